//! The display in a terminal.

use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::app::App;
use crate::screen;
use crate::source::{Reading, Source};

/// The time after which the display looks for new snapshots, if no key is pressed.
const TURN: Duration = Duration::from_millis(50);

/// Shows the table until the user leaves. The terminal is then as it was before, also after an error or a panic.
///
/// # Errors
/// Those of the terminal.
pub(crate) fn show(source: Source, interval: Duration) -> io::Result<()> {
    let readings = read_always(source, interval);
    let mut terminal = ratatui::try_init()?;
    let outcome = turn(&mut terminal, &readings);
    // An error of it would hide the other one.
    let restored = ratatui::try_restore();
    outcome.and(restored)
}

/// Reads the processes in a thread of its own, at each interval: the display never waits for them.
fn read_always(source: Source, interval: Duration) -> Receiver<Vec<Reading>> {
    // No more than one is ahead of the display.
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        loop {
            let started = Instant::now();
            if sender.send(source.read()).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(started.elapsed()));
        }
    });
    receiver
}

/// Draws, and follows keys and snapshots.
fn turn(terminal: &mut DefaultTerminal, readings: &Receiver<Vec<Reading>>) -> io::Result<()> {
    let mut app = App::new();
    let mut is_changed = true;
    while !app.is_over {
        if is_changed {
            terminal.draw(|frame| screen::draw(frame, &mut app))?;
        }
        is_changed = event::poll(TURN)?;
        if is_changed
            && let Event::Key(key) = event::read()?
            && !key.is_release()
        {
            app.key(key);
        }
        match readings.try_recv() {
            Ok(readings) => {
                app.update(readings, Instant::now());
                is_changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(io::Error::other("the snapshots are read no more"));
            }
        }
    }
    Ok(())
}
