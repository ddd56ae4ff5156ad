//! The task of an established connection: its reading, its clock, and its endings.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::cm::Ending;
use super::config::SoftConfig;
use super::link::{Command, Link, Pumped, Socket};
use super::queue::Interrupted;
use super::receive::{Receiver, Stop, blame};
use super::send::SendQueue;
use crate::error::Reason;
use crate::flight::WakeList;
use crate::proto::mpa::terminate_fpdu;
use crate::status::Status;
use crate::sync::Spin;
use crate::types::Role;
use crate::wire::rdmap::Terminate;

/// How long a peer may be silent after the start-up before something is done about it.
///
/// siw sends its reply before it listens for frames, and looks at one that came in between only when something else
/// follows. So an initiator sends an empty Write.
///
/// An initiator that is not peer-to-peer has to send first (RFC 5044 section 7.1.3), but with siw it is up to the
/// application, and some let the server begin. So a responder waits this long, because siw drops a connection whose
/// first frame comes together with the reply, and then sends what it has.
const NUDGE: Duration = Duration::from_millis(200);

/// When the driver looks at the clock.
struct Timing {
    sleep: Pin<Box<Sleep>>,
    /// Half of the path timeout; `None` when only the [`NUDGE`] is due.
    half: Option<Duration>,
    nudge: bool,
    heard: bool,
    /// At the end of the last half the peer owed us an answer; it has been silent since.
    asked: bool,
}

enum State {
    Open,
    /// The last frames are going out; then the peer's end of stream is awaited, until `deadline`.
    Closing {
        deadline: Pin<Box<Sleep>>,
        shut: bool,
        flushed: bool,
    },
    Over,
}

/// The task of a connection: reads, writes on when the socket was full, watches the clock, and tidies up.
pub(crate) struct Driver {
    link: Arc<Link>,
    socket: Arc<Socket>,
    receiver: Receiver,
    timing: Option<Timing>,
    /// How long the socket is looked at without sleep after something has come.
    spin: Spin,
    state: State,
    disconnect_timeout: Duration,
    /// The attempt was taken back: the receives are no longer this connection's.
    spared: bool,
}

impl Driver {
    /// `half` of the path timeout is the rhythm in which silence is noticed.
    pub(crate) fn new(link: Arc<Link>, socket: Arc<Socket>, receiver: Receiver, config: &SoftConfig) -> Self {
        let disconnect_timeout = config.disconnect_timeout;
        let half = config.path_timeout.map(|timeout| timeout / 2);
        let spin = Spin::new(config.spin);
        let nudge = link.role == Role::Active || link.implied;
        let first = if nudge { Some(NUDGE) } else { half };
        let timing = first.map(|first| Timing {
            sleep: Box::pin(sleep_until(Instant::now() + first)),
            half,
            nudge,
            heard: false,
            asked: false,
        });
        Self { link, socket, receiver, timing, spin, state: State::Open, disconnect_timeout, spared: false }
    }

    /// One pass over an open connection. Ready when the state has changed.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut wakes = WakeList::default();
        let (command, blocked) = {
            let mut sending = self.link.send_queue();
            if !sending.driver.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                sending.driver = Some(cx.waker().clone());
            }
            (sending.command.take(), sending.blocked)
        };
        if let Some(command) = command {
            self.obey(command);
            return Poll::Ready(());
        }
        if blocked && self.socket.stream().poll_write_ready(cx).is_ready() {
            let pumped = self.link.pump(self.link.send_queue(), &mut wakes);
            std::mem::take(&mut wakes).wake_all();
            if pumped == Pumped::Blocked {
                // Full again, or enough for one turn: look at the other direction, and come back.
                cx.waker().wake_by_ref();
            }
        }
        let outcome = match self.receiver.start(&self.link, &mut wakes) {
            Err(stop) => Err(stop),
            Ok(()) => match self.poll_read(cx, &mut wakes) {
                Poll::Pending => {
                    wakes.wake_all();
                    return Poll::Pending;
                }
                Poll::Ready(outcome) => outcome,
            },
        };
        wakes.wake_all();
        if let Some(timing) = &mut self.timing {
            timing.heard = true;
        }
        if let Err(stop) = outcome {
            self.stopped(stop);
        }
        Poll::Ready(())
    }

    /// Reads once, when there may be something.
    fn poll_read(&mut self, cx: &mut Context<'_>, wakes: &mut WakeList) -> Poll<Result<(), Stop>> {
        if self.receiver.is_starved() {
            if self.link.send_queue().broken.is_some() {
                // Nobody would read the end of the stream.
                return Poll::Ready(Err(Stop::Closed));
            }
            // `SRQ-02`: what has come stays where it is until there is a receive for it.
            ready!(self.link.receives.poll_ready(self.link.number, cx));
            return Poll::Ready(self.receiver.resume(&self.link, wakes));
        }
        let spinning = self.spin.is_spinning();
        self.socket.set_eager(spinning);
        if !spinning {
            match self.socket.stream().poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Stop::Broken(error))),
                Poll::Ready(Ok(())) => {}
            }
        }
        match self.receiver.turn(&self.link, &self.socket, wakes) {
            Ok(false) if spinning => {
                // Once around: those go first for whom something has come.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            outcome => {
                if let Ok(true) = &outcome {
                    self.spin.start();
                }
                Poll::Ready(outcome.map(drop))
            }
        }
    }

    /// Whether the handshake is complete, as far as this side can know.
    fn is_established(&self) -> bool {
        self.link.role == Role::Active || self.link.implied || self.receiver.has_heard()
    }

    /// Nudges, probes, gives up. Ready when the state has changed.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let established = self.is_established();
        let Some(timing) = &mut self.timing else { return Poll::Pending };
        if timing.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        if std::mem::take(&mut timing.nudge) {
            if !self.receiver.has_heard() {
                match self.link.role {
                    Role::Active => self.write_on(SendQueue::nudge),
                    Role::Passive => self.link.release(),
                }
            }
        } else if self.receiver.is_starved() {
            // What has come is proof enough that the peer is there; that it has gone since is only seen here.
            timing.asked = false;
            if let Ok(Some(error)) = self.socket.stream().take_error() {
                self.stopped(Stop::Broken(error));
                return Poll::Ready(());
            }
        } else if std::mem::take(&mut timing.heard) || !established {
            timing.asked = false;
        } else {
            let asked = std::mem::take(&mut timing.asked);
            // A socket that is full takes no question; TCP notices a peer that lets it be full for too long.
            let owes = self.write_on(|queue| {
                queue.trim();
                queue.has_reads() || queue.probe()
            });
            if let Some(timing) = &mut self.timing {
                timing.asked = owes;
            }
            if asked && owes {
                self.lost(Reason::PathTimeout, Status::IO_TIMEOUT, None);
                return Poll::Ready(());
            }
        }
        match &mut self.timing {
            Some(Timing { sleep, half: Some(half), .. }) => sleep.as_mut().reset(Instant::now() + *half),
            timing => *timing = None,
        }
        // Once around, so that the clock is armed again.
        Poll::Ready(())
    }

    /// Puts something into the sending half and writes it.
    fn write_on<R>(&self, change: impl FnOnce(&mut SendQueue) -> R) -> R {
        let mut sending = self.link.send_queue();
        let result = change(&mut sending);
        self.link.go_on(sending);
        result
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Disconnect(deadline) => {
                let current = self.receiver.take_receive();
                self.flush_receives(current, Status::CANCELED);
                self.link.quiet_queue().close(None);
                self.close_until(deadline, false);
            }
            Command::Refuse => {
                self.link.quiet_queue().close(Some(Terminate::LOCAL_CATASTROPHIC));
                if self.is_established() {
                    self.flush(Status::CANCELED, Status::CANCELED);
                } else {
                    // Nothing has moved yet, so the queue pair is as it was (`CM-21`).
                    self.put_back();
                    self.spared = true;
                    self.link.cm.give_back();
                }
                self.close_until(Instant::now() + self.disconnect_timeout, true);
            }
            Command::Abandon(status) => {
                let _ = crate::provider::net::options::abort(self.socket.stream());
                self.flush(status, status);
                self.over(false);
            }
        }
    }

    fn close_until(&mut self, deadline: Instant, flushed: bool) {
        let deadline = Box::pin(sleep_until(deadline));
        self.state = State::Closing { deadline, shut: false, flushed };
    }

    /// The reader has come to an end.
    fn stopped(&mut self, stop: Stop) {
        let established = self.is_established();
        // A write may have met the error first; the read that followed found just an end. Only EPIPE says that the
        // peer had closed in order before.
        let stop = match (stop, self.link.send_queue().broken.take()) {
            (Stop::Closed, Some(error)) if error.kind() != io::ErrorKind::BrokenPipe => Stop::Broken(error),
            (stop, _) => stop,
        };
        match stop {
            Stop::Closed if established => {
                self.link.cm.ended(Ending::PeerDisconnected);
                self.flush(Status::CANCELED, Status::CANCELED);
                self.over(true);
            }
            Stop::Closed => self.never(Ending::GaveUp(Reason::PeerClosed)),
            Stop::Broken(error) => {
                let reason = match error.raw_os_error() {
                    Some(code) => Reason::Errno(code),
                    None if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Reason::Local("the stream ended within a frame")
                    }
                    None => Reason::Local("the memory of a transfer was deregistered"),
                };
                if established {
                    let status =
                        if is_path_error(&error) { Status::IO_TIMEOUT } else { Status::REMOTE_ERROR };
                    self.lost(reason, status, None);
                } else {
                    self.never(Ending::GaveUp(reason));
                }
            }
            Stop::Terminated(terminate) => {
                let reason = terminate.reason(false);
                if established {
                    self.lost(reason, blame(&terminate), None);
                } else {
                    self.never(Ending::Refused(reason));
                }
            }
            Stop::Violation(violation) => {
                let reason = violation.terminate.reason(true);
                if established {
                    self.lost(reason, violation.blame, Some(violation.terminate));
                } else {
                    // Nothing else has been sent yet, so the socket has room for it.
                    let last_words = terminate_fpdu(&violation.terminate, self.link.crc);
                    let socket = socket2::SockRef::from(self.socket.stream());
                    let _ = socket.send(&last_words).and_then(|_| socket.shutdown(std::net::Shutdown::Write));
                    self.never(Ending::GaveUp(reason));
                }
            }
        }
    }

    /// The connection is lost; `last_words` still go out when the socket takes them.
    fn lost(&mut self, reason: Reason, first: Status, last_words: Option<Terminate>) {
        self.link.cm.ended(Ending::Lost(reason, first));
        let Some(terminate) = last_words else {
            if first == Status::IO_TIMEOUT {
                // Nobody answers at the other end.
                let _ = crate::provider::net::options::abort(self.socket.stream());
            }
            self.flush(first, Status::CANCELED);
            return self.over(false);
        };
        // A Terminate cannot interrupt a frame: what is framed goes first, if it can, or there are no last words.
        let mut wakes = WakeList::default();
        let framed = self.link.pump(self.link.quiet_queue(), &mut wakes) == Pumped::Idle;
        self.link.quiet_queue().close(framed.then_some(terminate));
        self.link.pump(self.link.quiet_queue(), &mut wakes);
        let drained = self.link.quiet_queue().is_drained();
        wakes.wake_all();
        self.flush(first, Status::CANCELED);
        if drained {
            self.close_until(Instant::now() + self.disconnect_timeout, true);
        } else {
            // An orderly end, perhaps between two frames, would look like a disconnect.
            let _ = crate::provider::net::options::abort(self.socket.stream());
            self.over(false);
        }
    }

    /// The handshake came to nothing: the queue pair stays as it was.
    fn never(&mut self, ending: Ending) {
        self.state = State::Over;
        self.put_back();
        self.link.receives.forget(self.link.number);
        self.link.forget_socket();
        self.link.cm.ended(ending);
        self.link.cm.closed(false);
    }

    /// Finishes every request: the oldest of the send queue with `first`, all others with `rest`.
    fn flush(&mut self, first: Status, rest: Status) {
        // The reader lets go of the sink that it may be writing to, before the read completes.
        let current = self.receiver.take_receive();
        let mut wakes = WakeList::default();
        self.link.flush(first, rest, &mut wakes);
        wakes.wake_all();
        self.flush_receives(current, rest);
    }

    /// The message never came: its receive is the next one again.
    fn put_back(&mut self) {
        if let Some(Interrupted { receive, .. }) = self.receiver.take_receive() {
            let mut wakes = WakeList::default();
            self.link.receives.put_back(receive, &self.link.outlets.receive, &mut wakes);
            wakes.wake_all();
        }
    }

    fn flush_receives(&mut self, current: Option<Interrupted>, status: Status) {
        if self.spared {
            return;
        }
        let mut wakes = WakeList::default();
        self.link.receives.flush(current, status, true, &self.link.outlets.receive, &mut wakes);
        wakes.wake_all();
    }

    fn over(&mut self, answered: bool) {
        self.state = State::Over;
        self.link.receives.forget(self.link.number);
        self.link.forget_socket();
        self.link.cm.closed(answered);
    }

    /// One pass over a connection that is being closed. Ready when the state has changed.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let command = {
            let mut sending = self.link.send_queue();
            sending.driver = Some(cx.waker().clone());
            sending.command.take()
        };
        if let Some(Command::Abandon(status)) = command {
            self.obey(Command::Abandon(status));
            return Poll::Ready(());
        }
        let State::Closing { deadline, shut, flushed } = &mut self.state else { return Poll::Ready(()) };
        if deadline.as_mut().poll(cx).is_ready() {
            let _ = crate::provider::net::options::abort(self.socket.stream());
            self.flush(Status::CANCELED, Status::CANCELED);
            self.over(false);
            return Poll::Ready(());
        }
        if !*shut {
            let mut wakes = WakeList::default();
            self.link.pump(self.link.quiet_queue(), &mut wakes);
            wakes.wake_all();
            let done = {
                let sending = self.link.quiet_queue();
                sending.is_drained() || sending.broken.is_some()
            };
            if done {
                *shut = true;
                let _ = socket2::SockRef::from(self.socket.stream()).shutdown(std::net::Shutdown::Write);
                if !std::mem::replace(flushed, true) {
                    self.flush(Status::CANCELED, Status::CANCELED);
                }
                return Poll::Ready(());
            }
            if self.socket.stream().poll_write_ready(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        self.socket.set_eager(false);
        // What the peer still sends has nowhere to go; its end of stream is the answer.
        loop {
            match self.socket.stream().poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => break,
                Poll::Ready(Ok(())) => match self.receiver.discard(&self.socket) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => break,
                },
            }
        }
        self.flush(Status::CANCELED, Status::CANCELED);
        self.over(true);
        Poll::Ready(())
    }
}

/// Whether it was the path that failed rather than the peer. TCP that has given up reports what it last heard about
/// the path, if anything, in place of the timeout.
fn is_path_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkDown
    )
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Once per wake-up is enough for the clock: it wakes the task when it is due.
        while matches!(self.state, State::Open) && self.poll_clock(cx).is_ready() {}
        loop {
            let progress = match self.state {
                State::Open => self.poll_open(cx),
                State::Closing { .. } => self.poll_closing(cx),
                State::Over => return Poll::Ready(()),
            };
            if progress.is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Driver {
    /// The runtime is going away under an open connection: nobody may be left waiting.
    fn drop(&mut self) {
        if !matches!(self.state, State::Over) {
            self.link.cm.ended(Ending::Lost(Reason::Local("the runtime was shut down"), Status::CANCELED));
            self.flush(Status::CANCELED, Status::CANCELED);
            self.over(false);
        }
    }
}
