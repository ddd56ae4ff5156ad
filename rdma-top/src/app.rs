//! The state of the display, and the keys that change it.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::detail::{self, Section};
use crate::order::{Column, Filter, Order};
use crate::rows::{self, Key, Kind, Row};
use crate::source::{Failure, Reading};

/// The time for which a process that has ended is shown.
const FAREWELL: Duration = Duration::from_secs(30);

/// The state of the display.
#[derive(Debug)]
pub(crate) struct App {
    /// What the processes have served.
    readings: Vec<Reading>,
    /// The processes that were seen.
    seen: Vec<Seen>,
    /// Nothing has been read yet.
    pub(crate) is_new: bool,
    /// Every line, in the order that is chosen.
    all: Vec<Rc<Row>>,
    /// Those that the filter shows.
    pub(crate) rows: Vec<Rc<Row>>,
    /// The widths of their columns: a process may have a hundred thousand lines, and the display shows fifty.
    pub(crate) widths: [usize; Column::ALL.len()],
    /// The order of the lines.
    pub(crate) order: Order,
    /// The lines that are shown.
    pub(crate) filter: Filter,
    /// The index of the marked line.
    pub(crate) marked: usize,
    /// The name of the marked object, if the user has chosen it: the mark moves with it.
    chosen: Option<Key>,
    /// The index of the first line on the screen.
    pub(crate) first: usize,
    /// The number of lines on the screen, when it was last drawn.
    pub(crate) height: usize,
    /// One object, instead of the table.
    pub(crate) detail: Option<Detail>,
    /// The user wants to leave.
    pub(crate) is_over: bool,
}

/// A process that was seen.
#[derive(Debug)]
struct Seen {
    /// The path of its socket.
    path: PathBuf,
    /// Its number and program, if it has answered once.
    name: Option<String>,
    /// The time of the first look without it.
    missing: Option<Instant>,
}

/// One object in detail.
#[derive(Debug)]
pub(crate) struct Detail {
    /// Its last line.
    pub(crate) row: Row,
    /// Its last reports.
    pub(crate) sections: Vec<Section>,
    /// The last look has not found it.
    pub(crate) is_gone: bool,
    /// The number of lines above the screen.
    pub(crate) scroll: usize,
}

impl App {
    /// Returns the state before the first look.
    pub(crate) fn new() -> Self {
        Self {
            readings: Vec::new(),
            seen: Vec::new(),
            is_new: true,
            all: Vec::new(),
            rows: Vec::new(),
            widths: Default::default(),
            order: Order::default(),
            filter: Filter::default(),
            marked: 0,
            chosen: None,
            first: 0,
            height: 1,
            detail: None,
            is_over: false,
        }
    }

    /// Takes what the processes have served.
    pub(crate) fn update(&mut self, mut readings: Vec<Reading>, now: Instant) {
        self.seen.retain_mut(|seen| {
            if readings.iter().any(|reading| reading.path == seen.path) {
                seen.missing = None;
                return true;
            }
            now.duration_since(*seen.missing.get_or_insert(now)) < FAREWELL
        });
        for reading in &readings {
            if self.seen.iter().all(|seen| seen.path != reading.path) {
                self.seen.push(Seen { path: reading.path.clone(), name: None, missing: None });
            }
        }
        let ended = self.seen.iter().filter(|seen| seen.missing.is_some());
        readings.extend(ended.map(|seen| Reading { path: seen.path.clone(), outcome: Err(Failure::Ended) }));
        self.readings = readings;
        self.is_new = false;
        let mut rows = rows::rows(&self.readings);
        self.name_processes(&mut rows);
        self.all = rows.into_iter().map(Rc::new).collect();
        self.arrange();
        if let Some(detail) = &mut self.detail {
            let row = self.all.iter().find(|row| row.key == detail.row.key);
            detail.is_gone = row.is_none();
            if let Some(row) = row {
                detail.sections = detail::sections(row, &self.readings);
                detail.row = Row::clone(row);
            }
        }
    }

    /// Gives the processes that do not answer the names that they had before.
    fn name_processes(&mut self, rows: &mut [Row]) {
        for seen in &mut self.seen {
            let mut own = rows.iter_mut().filter(|row| row.key.path == seen.path);
            let Some(row) = own.next() else { continue };
            match (&seen.name, row.key.kind) {
                (Some(name), Kind::Process) => row.process.clone_from(name),
                (_, Kind::Process) => {}
                _ => seen.name = Some(row.process.clone()),
            }
        }
    }

    /// Returns the number of processes, and the number of objects that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let waiting = self.all.iter().filter(|row| row.waits_for.is_some()).count();
        (self.readings.len(), waiting)
    }

    /// Returns the number of objects, without regard to the filter.
    pub(crate) fn objects(&self) -> usize {
        self.all.iter().filter(|row| row.key.kind != Kind::Process).count()
    }

    /// Orders and filters the lines, and finds the marked one again.
    fn arrange(&mut self) {
        self.order.sort(&mut self.all);
        self.rows = self.all.iter().filter(|row| self.filter.shows(row)).cloned().collect();
        self.widths = Column::ALL.map(|column| column.width(&self.rows));
        let place = self.chosen.as_ref().and_then(|key| self.rows.iter().position(|row| row.key == *key));
        self.marked = place.unwrap_or(self.marked).min(self.rows.len().saturating_sub(1));
    }

    /// Marks the line that is so many below.
    fn step(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        self.marked = self.marked.saturating_add_signed(by).min(last);
        // At the top the mark stays, and the lines come and go below it.
        self.chosen = self.rows.get(self.marked).filter(|_| self.marked > 0).map(|row| row.key.clone());
    }

    /// Follows a key.
    pub(crate) fn key(&mut self, key: KeyEvent) {
        let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt || key.code == KeyCode::Char('q') {
            self.is_over = true;
            return;
        }
        let page = self.height.saturating_sub(1).max(1) as isize;
        let by = match key.code {
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -page,
            KeyCode::PageDown | KeyCode::Char(' ') => page,
            KeyCode::Home | KeyCode::Char('g') => isize::MIN,
            KeyCode::End | KeyCode::Char('G') => isize::MAX,
            _ => 0,
        };
        match &mut self.detail {
            Some(detail) => match key.code {
                KeyCode::Enter | KeyCode::Esc | KeyCode::Backspace => self.detail = None,
                // The drawing limits it.
                _ => detail.scroll = detail.scroll.saturating_add_signed(by),
            },
            None if by != 0 => self.step(by),
            None => self.table_key(key.code),
        }
    }

    /// Follows a key that the table has for itself.
    fn table_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Left => self.order.shift(-1),
            KeyCode::Right => self.order.shift(1),
            KeyCode::Char('r') => self.order.is_reversed = !self.order.is_reversed,
            KeyCode::Char('f') => self.filter.next_kind(&self.all),
            KeyCode::Char('w') => self.filter.is_waiting = !self.filter.is_waiting,
            KeyCode::Esc => self.filter = Filter::default(),
            KeyCode::Enter => {
                self.detail = self.rows.get(self.marked).map(|row| Detail {
                    row: Row::clone(row),
                    sections: detail::sections(row, &self.readings),
                    is_gone: false,
                    scroll: 0,
                });
            }
            _ => return,
        }
        self.arrange();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    /// Returns a display of the sample.
    fn app() -> App {
        let mut app = App::new();
        app.update(samples::readings(), Instant::now());
        app
    }

    /// Presses keys.
    fn press(app: &mut App, keys: &[KeyCode]) {
        keys.iter().for_each(|&code| app.key(code.into()));
    }

    #[test]
    fn the_mark_moves_with_its_object() {
        let mut app = app();
        press(&mut app, &[KeyCode::Down, KeyCode::Down, KeyCode::Down]);
        assert_eq!(app.rows[app.marked].key.kind, Kind::Stream);
        press(&mut app, &[KeyCode::Char('r')]);
        assert_eq!((app.marked, app.rows[app.marked].key.kind), (3, Kind::Stream));
        press(&mut app, &[KeyCode::End]);
        assert_eq!(app.marked, 6);
        press(&mut app, &[KeyCode::Char('f'), KeyCode::Char('f')]);
        assert_eq!((app.rows.len(), app.marked), (2, 1));
        press(&mut app, &[KeyCode::Esc, KeyCode::Home]);
        assert_eq!((app.rows.len(), app.marked), (7, 0));
    }

    #[test]
    fn keys_choose_order_and_filter() {
        let mut app = app();
        press(&mut app, &[KeyCode::Left]);
        assert_eq!(app.order.column, Column::Bytes);
        press(&mut app, &[KeyCode::Right, KeyCode::Right]);
        assert_eq!(app.order.column, Column::Process);
        press(&mut app, &[KeyCode::Char('w')]);
        assert!(app.rows.iter().all(|row| row.waits_for.is_some()) && app.rows.len() == 6);
        press(&mut app, &[KeyCode::Char('q')]);
        assert!(app.is_over);
    }

    #[test]
    fn the_object_in_detail_stays_when_it_is_gone() {
        let mut app = app();
        press(&mut app, &[KeyCode::Down, KeyCode::Enter, KeyCode::Down]);
        assert_eq!(app.detail.as_ref().map(|detail| (detail.is_gone, detail.scroll)), Some((false, 1)));
        app.update(Vec::new(), Instant::now());
        assert!(app.detail.as_ref().is_some_and(|detail| detail.is_gone && !detail.sections.is_empty()));
        press(&mut app, &[KeyCode::Esc]);
        assert!(app.detail.is_none());
    }

    #[test]
    fn processes_that_end_are_shown_for_a_while() {
        let mut app = app();
        let start = Instant::now();
        app.update(Vec::new(), start);
        let lines: Vec<_> = app.rows.iter().map(|row| format!("{} {}", row.process, row.state)).collect();
        assert_eq!(lines, ["17 kv ended", "18 ended"]);
        app.update(Vec::new(), start + FAREWELL / 2);
        assert_eq!(app.rows.len(), 2);
        app.update(samples::readings(), start + FAREWELL / 2);
        assert_eq!(app.counts().0, 2);
        app.update(Vec::new(), start + FAREWELL);
        assert_eq!(app.rows.len(), 2);
        app.update(Vec::new(), start + FAREWELL * 2);
        assert_eq!(app.rows.len(), 0);
    }
}
