//! The task of an established connection: its reading, its clock, and its endings.
//!
//! It reports to an [`Observer`], and knows no connector.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::time::{Instant, Sleep, sleep_until};

use super::config::SoftConfig;
use super::connection::{Command, ConnectionShared, Socket, Transmitted};
use super::path_timeout::{PathTimeout, Tick};
use super::receive::{Receiver, Stop, Turned, blame};
use super::receive_queue::Interrupted;
use super::send::SendQueue;
use crate::error::Reason;
use crate::inflight::WakeList;
use crate::proto::mpa::terminate_fpdu;
use crate::provider::net::options::abort;
use crate::status::Status;
use crate::sync::Spin;
use crate::types::Role;
use crate::wire::rdmap::Terminate;

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

/// A report of the task of a connection. In this order, each at most once, with no lock held.
#[derive(Debug)]
pub(crate) enum Event {
    /// The peer's first frame has arrived: the handshake is complete.
    Established,
    /// The attempt or the connection has ended; no request has been flushed yet (`X3`).
    Ended(Ending),
    /// A handshake was refused before it was complete: the queue pair is unused and free.
    Detached,
    /// The socket is closed and every request has completed.
    Closed {
        /// The peer has ended its half of the stream, too.
        answered: bool,
    },
}

/// How an attempt or a connection came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The peer disconnected in order.
    PeerDisconnected,
    /// It broke, with the status of the request that suffered.
    Lost(Reason, Status),
    /// The active side said no instead of completing.
    Refused(Reason),
    /// The active side vanished instead of completing.
    GaveUp(Reason),
}

/// Receives the reports of a connection's task.
pub(crate) trait Observer: Send + Sync + 'static {
    /// Handles one report. The task wakes what follows from it afterwards.
    fn event(&self, event: Event);
}

/// The task of a connection: reads, writes on when the socket was full, watches the clock, and tidies up.
pub(crate) struct Driver<O: Observer> {
    connection: Arc<ConnectionShared>,
    socket: Arc<Socket>,
    receiver: Receiver,
    observer: Arc<O>,
    /// `None` when no tick is due any more.
    path_timeout: Option<PathTimeout>,
    /// How long the socket is looked at without sleep after something has come.
    spin: Spin,
    state: State,
    disconnect_timeout: Duration,
    /// The attempt was taken back: the receives are no longer this connection's.
    receives_detached: bool,
    /// The end has been reported.
    ended: bool,
}

impl<O: Observer> Driver<O> {
    /// The task of this connection, to be spawned.
    pub(crate) fn new(
        connection: Arc<ConnectionShared>,
        socket: Arc<Socket>,
        receiver: Receiver,
        observer: Arc<O>,
        config: &SoftConfig,
    ) -> Self {
        let nudges = connection.role == Role::Active || connection.implied;
        Self {
            connection,
            socket,
            receiver,
            observer,
            path_timeout: PathTimeout::new(config.path_timeout, nudges),
            spin: Spin::new(config.spin),
            state: State::Open,
            disconnect_timeout: config.disconnect_timeout,
            receives_detached: false,
            ended: false,
        }
    }

    /// One pass over an open connection. Ready when the state has changed.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (command, blocked) = self.connection.poll_command(cx);
        if let Some(command) = command {
            self.execute(command);
            return Poll::Ready(());
        }
        let mut wakes = WakeList::default();
        if blocked && self.socket.stream().poll_write_ready(cx).is_ready() {
            let transmitted = self.connection.transmit(self.connection.send_queue(), &mut wakes);
            std::mem::take(&mut wakes).wake_all();
            if transmitted == Transmitted::Blocked {
                // Full again, or enough for one turn: look at the other direction, and come back.
                cx.waker().wake_by_ref();
            }
        }
        let Poll::Ready(outcome) = self.poll_receive(cx, &mut wakes) else {
            wakes.wake_all();
            return Poll::Pending;
        };
        if let Ok(Turned { established: true, .. }) = &outcome {
            self.observer.event(Event::Established);
            self.connection.release();
        }
        wakes.wake_all();
        if let Err(stop) = outcome {
            self.on_read_end(stop);
        }
        Poll::Ready(())
    }

    /// Processes staged bytes, or reads once, when there may be something.
    fn poll_receive(&mut self, cx: &mut Context<'_>, wakes: &mut WakeList) -> Poll<Result<Turned, Stop>> {
        if self.receiver.has_unprocessed() {
            return Poll::Ready(self.receiver.resume(wakes));
        }
        let outcome = if self.receiver.awaits_receive() {
            if self.connection.send_queue().broken.is_some() {
                // Nobody would read the end of the stream.
                return Poll::Ready(Err(Stop::Closed));
            }
            // `SRQ-02`: what has come stays where it is until there is a receive for it.
            ready!(self.connection.receives.poll_ready(self.connection.number, cx));
            self.receiver.resume(wakes)
        } else {
            ready!(self.poll_read(cx, wakes))
        };
        if let Some(path_timeout) = &mut self.path_timeout {
            path_timeout.received();
        }
        Poll::Ready(outcome)
    }

    /// Reads once, when there may be something.
    fn poll_read(&mut self, cx: &mut Context<'_>, wakes: &mut WakeList) -> Poll<Result<Turned, Stop>> {
        let spinning = self.spin.is_spinning();
        self.socket.set_eager(spinning);
        if !spinning && let Err(error) = ready!(self.socket.stream().poll_read_ready(cx)) {
            return Poll::Ready(Err(Stop::Broken(error)));
        }
        let outcome = self.receiver.turn(&self.socket, wakes);
        match &outcome {
            Ok(Turned { read: false, .. }) if spinning => {
                // Once around: those go first for whom something has come.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(Turned { read: true, .. }) => {
                self.spin.start();
            }
            Ok(Turned { read: false, .. }) | Err(_) => {}
        }
        Poll::Ready(outcome)
    }

    /// Whether the handshake is complete, as far as this side can know.
    fn is_established(&self) -> bool {
        self.connection.role == Role::Active || self.connection.implied || self.receiver.has_heard()
    }

    /// Acts on a tick of the clock. Ready when the state has changed.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(path_timeout) = &mut self.path_timeout else { return Poll::Pending };
        let tick = ready!(path_timeout.poll(cx));
        let Some(mut path_timeout) = self.path_timeout.take() else { return Poll::Pending };
        match tick {
            Tick::Nudge if self.receiver.has_heard() => {}
            Tick::Nudge => match self.connection.role {
                Role::Active => self.write_on(SendQueue::nudge),
                Role::Passive => self.connection.release(),
            },
            Tick::Half if self.receiver.awaits_receive() => {
                // What has come is proof enough that the peer is there; that it has gone since is only seen here.
                path_timeout.excuse();
                if let Ok(Some(error)) = self.socket.stream().take_error() {
                    self.on_read_end(Stop::Broken(error));
                    return Poll::Ready(());
                }
            }
            Tick::Half => {
                if path_timeout.gives_up(|| self.is_established() && self.ask()) {
                    self.connection_lost(Reason::PathTimeout, Status::IO_TIMEOUT, None);
                    return Poll::Ready(());
                }
            }
        }
        self.path_timeout = path_timeout.rearm().then_some(path_timeout);
        // Once around, so that the clock is armed again.
        Poll::Ready(())
    }

    /// Asks the peer for a sign of life, if no question is open. Returns whether the peer owes an answer.
    fn ask(&self) -> bool {
        // A socket that is full takes no question; TCP notices a peer that lets it be full for too long.
        self.write_on(|queue| {
            queue.trim();
            queue.has_reads() || queue.probe()
        })
    }

    /// Puts something into the sending half and writes it.
    fn write_on<R>(&self, change: impl FnOnce(&mut SendQueue) -> R) -> R {
        let mut sending = self.connection.send_queue();
        let result = change(&mut sending);
        self.connection.transmit_now(sending);
        result
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Disconnect(deadline) => {
                let current = self.receiver.take_receive();
                self.flush_receives(current, Status::CANCELED);
                self.connection.lock_when_idle().close(None);
                self.close_until(deadline, false);
            }
            Command::Refuse => {
                self.connection.lock_when_idle().close(Some(Terminate::LOCAL_CATASTROPHIC));
                if self.is_established() {
                    self.flush(Status::CANCELED, Status::CANCELED);
                } else {
                    // Nothing has moved yet, so the queue pair is as it was (`CM-21`).
                    self.restore_receive();
                    self.receives_detached = true;
                    self.observer.event(Event::Detached);
                }
                self.close_until(Instant::now() + self.disconnect_timeout, true);
            }
            Command::Abandon(status) => {
                let _ = abort(self.socket.stream());
                self.flush(status, status);
                self.finish(false);
            }
        }
    }

    fn close_until(&mut self, deadline: Instant, flushed: bool) {
        let deadline = Box::pin(sleep_until(deadline));
        self.state = State::Closing { deadline, shut: false, flushed };
    }

    /// The reader has come to an end.
    fn on_read_end(&mut self, stop: Stop) {
        // A write may have met the error first; the read that followed found just an end. Only EPIPE says that the
        // peer had closed in order before.
        let stop = match (stop, self.connection.send_queue().broken.take()) {
            (Stop::Closed, Some(error)) if error.kind() != io::ErrorKind::BrokenPipe => Stop::Broken(error),
            (stop, _) => stop,
        };
        let (ending, last_words) = classify(stop, self.is_established());
        match ending {
            Ending::PeerDisconnected => {
                self.report_end(ending);
                self.flush(Status::CANCELED, Status::CANCELED);
                self.finish(true);
            }
            Ending::Lost(reason, first) => self.connection_lost(reason, first, last_words),
            Ending::Refused(_) | Ending::GaveUp(_) => {
                if let Some(terminate) = last_words {
                    // Nothing else has been sent yet, so the socket has room for it.
                    let last_words = terminate_fpdu(&terminate, self.connection.crc);
                    let socket = SockRef::from(self.socket.stream());
                    let _ = socket.send(&last_words).and_then(|_| socket.shutdown(Shutdown::Write));
                }
                self.handshake_failed(ending);
            }
        }
    }

    fn report_end(&mut self, ending: Ending) {
        if !std::mem::replace(&mut self.ended, true) {
            self.observer.event(Event::Ended(ending));
        }
    }

    /// The connection is lost; `last_words` still go out when the socket takes them.
    fn connection_lost(&mut self, reason: Reason, first: Status, last_words: Option<Terminate>) {
        self.report_end(Ending::Lost(reason, first));
        let Some(terminate) = last_words else {
            if first == Status::IO_TIMEOUT {
                // Nobody answers at the other end.
                let _ = abort(self.socket.stream());
            }
            self.flush(first, Status::CANCELED);
            return self.finish(false);
        };
        // A Terminate cannot interrupt a frame: what is framed goes first, if it can, or there are no last words.
        let mut wakes = WakeList::default();
        let framed =
            self.connection.transmit(self.connection.lock_when_idle(), &mut wakes) == Transmitted::Idle;
        self.connection.lock_when_idle().close(framed.then_some(terminate));
        self.connection.transmit(self.connection.lock_when_idle(), &mut wakes);
        let drained = self.connection.lock_when_idle().is_drained();
        wakes.wake_all();
        self.flush(first, Status::CANCELED);
        if drained {
            self.close_until(Instant::now() + self.disconnect_timeout, true);
        } else {
            // An orderly end, perhaps between two frames, would look like a disconnect.
            let _ = abort(self.socket.stream());
            self.finish(false);
        }
    }

    /// The handshake came to nothing: the queue pair stays as it was.
    fn handshake_failed(&mut self, ending: Ending) {
        self.state = State::Over;
        self.restore_receive();
        self.connection.receives.forget(self.connection.number);
        self.connection.forget_socket();
        self.report_end(ending);
        self.observer.event(Event::Closed { answered: false });
    }

    /// Finishes every request: the oldest of the send queue with `first`, all others with `rest`.
    fn flush(&mut self, first: Status, rest: Status) {
        // The reader lets go of the sink that it may be writing to, before the read completes.
        let current = self.receiver.take_receive();
        let mut wakes = WakeList::default();
        self.connection.flush(first, rest, &mut wakes);
        wakes.wake_all();
        self.flush_receives(current, rest);
    }

    /// The message never came: its receive is the next one again.
    fn restore_receive(&mut self) {
        if let Some(Interrupted { receive, .. }) = self.receiver.take_receive() {
            let mut wakes = WakeList::default();
            self.connection.receives.restore(receive, &mut wakes);
            wakes.wake_all();
        }
    }

    fn flush_receives(&mut self, current: Option<Interrupted>, status: Status) {
        if self.receives_detached {
            return;
        }
        let mut wakes = WakeList::default();
        self.connection.receives.flush(current, status, true, &mut wakes);
        wakes.wake_all();
    }

    fn finish(&mut self, answered: bool) {
        self.state = State::Over;
        self.connection.receives.forget(self.connection.number);
        self.connection.forget_socket();
        self.observer.event(Event::Closed { answered });
    }

    /// One pass over a connection that is being closed. Ready when the state has changed.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let (Some(Command::Abandon(status)), _) = self.connection.poll_command(cx) {
            self.execute(Command::Abandon(status));
            return Poll::Ready(());
        }
        let State::Closing { deadline, shut, .. } = &mut self.state else { return Poll::Ready(()) };
        let shut = *shut;
        if deadline.as_mut().poll(cx).is_ready() {
            let _ = abort(self.socket.stream());
            self.flush(Status::CANCELED, Status::CANCELED);
            self.finish(false);
            return Poll::Ready(());
        }
        if !shut {
            if self.write_rest() {
                return Poll::Ready(());
            }
            if self.socket.stream().poll_write_ready(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        ready!(self.poll_discard(cx));
        self.flush(Status::CANCELED, Status::CANCELED);
        self.finish(true);
        Poll::Ready(())
    }

    /// Writes what is framed, and behind it ends our half of the stream. Whether that is done.
    fn write_rest(&mut self) -> bool {
        let mut wakes = WakeList::default();
        self.connection.transmit(self.connection.lock_when_idle(), &mut wakes);
        wakes.wake_all();
        let done = {
            let sending = self.connection.lock_when_idle();
            sending.is_drained() || sending.broken.is_some()
        };
        if done && let State::Closing { shut, flushed, .. } = &mut self.state {
            *shut = true;
            let _ = SockRef::from(self.socket.stream()).shutdown(Shutdown::Write);
            if !std::mem::replace(flushed, true) {
                self.flush(Status::CANCELED, Status::CANCELED);
            }
        }
        done
    }

    /// Reads what has nowhere to go any more. Ready when the peer has ended the stream.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.socket.set_eager(false);
        while ready!(self.socket.stream().poll_read_ready(cx)).is_ok() {
            match self.receiver.discard(&self.socket) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        Poll::Ready(())
    }
}

/// The meaning of the end of the reader: how the attempt or the connection ends, and the last words to the peer.
fn classify(stop: Stop, established: bool) -> (Ending, Option<Terminate>) {
    let (reason, status, last_words) = match stop {
        Stop::Closed if established => return (Ending::PeerDisconnected, None),
        Stop::Closed => (Reason::PeerClosed, Status::CANCELED, None),
        Stop::Terminated(terminate) if !established => {
            return (Ending::Refused(terminate.reason(false)), None);
        }
        Stop::Terminated(terminate) => (terminate.reason(false), blame(&terminate), None),
        Stop::Violation(violation) => {
            (violation.terminate.reason(true), violation.blame, Some(violation.terminate))
        }
        Stop::Broken(error) => {
            let reason = match error.raw_os_error() {
                Some(code) => Reason::Errno(code),
                None if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Reason::Local("the stream ended within a frame")
                }
                None => Reason::Local("the memory of a transfer was deregistered"),
            };
            let status = if is_path_error(&error) { Status::IO_TIMEOUT } else { Status::REMOTE_ERROR };
            (reason, status, None)
        }
    };
    let ending = if established { Ending::Lost(reason, status) } else { Ending::GaveUp(reason) };
    (ending, last_words)
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

impl<O: Observer> Future for Driver<O> {
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

impl<O: Observer> Drop for Driver<O> {
    /// The runtime is going away under an open connection: nobody may be left waiting.
    fn drop(&mut self) {
        if !matches!(self.state, State::Over) {
            self.report_end(Ending::Lost(Reason::Local("the runtime was shut down"), Status::CANCELED));
            self.flush(Status::CANCELED, Status::CANCELED);
            self.finish(false);
        }
    }
}

#[cfg(test)]
mod tests;
