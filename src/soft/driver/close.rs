//! Closes a connection: sends the last frames, completes the requests, and closes the socket, which is kept
//! while the last bytes are still on the way to a slow peer.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::{Driver, Ending, Event, Observer};
use crate::error::Reason;
use crate::inflight::WakeList;
use crate::proto::mpa::terminate_fpdu;
use crate::soft::connection::{Command, Extent, Socket};
use crate::soft::memory::is_deregistered;
use crate::soft::receive_queue::Interrupted;
use crate::soft::receiver::reader::SharedSocket;
use crate::soft::receiver::reader::{Stop, TURN, blame};
use crate::status::Status;
use crate::sync::deadline;
use crate::wire::rdmap::Terminate;

/// The acknowledgements of the peer are first read after this part of the time for a disconnect.
const FIRST_LOOK: u32 = 8;

/// The state of the task of a connection.
pub(super) enum State {
    Open,
    /// In a box, as is what is seldom known, because most of its time a connection is open.
    Closing(Box<Closing>),
    /// Nothing more is written. The requests are flushed as soon as no writer is left: the oldest of the send
    /// queue with `first`, all others with `rest`.
    Flushing {
        first: Status,
        rest: Status,
        end: End,
        /// The connection was lost while this end disconnected.
        lost: Option<Box<(Reason, Status)>>,
    },
    Over,
}

/// A connection that sends its last frames and then waits for the peer's end of the stream.
pub(super) struct Closing {
    /// The end of the wait.
    deadline: Instant,
    /// The end of the wait however much the peer acknowledges: one byte at a time would keep the socket for
    /// ever.
    limit: Instant,
    /// The number of bytes that the peer's kernel had acknowledged when they were last read. Most connections
    /// end before that, and save the system call.
    acknowledged: Option<u64>,
    /// This half of the stream has been ended.
    shut: bool,
    /// The statuses of the requests that have not been flushed.
    unflushed: Option<(Status, Status)>,
    /// The connection is intact: bytes that completed still arrive, so the deadline moves while the peer
    /// acknowledges more.
    orderly: bool,
}

/// The way in which the socket is closed after the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The peer has ended its half of the stream, too.
    Answered,
    /// Nothing is awaited from the peer.
    Unanswered,
    /// The socket is closed in the background, once the peer has all that was sent.
    Lingering,
}

impl<O: Observer> Driver<O> {
    /// Carries out a command of the connector.
    pub(super) fn execute(&mut self, command: Command) {
        match command {
            Command::Disconnect(deadline) => {
                let mut receiver = self.reader.receiver();
                // The reader of a stream may have read an end from the socket, which would not report it
                // again.
                if let Some(stop) = receiver.take_stop() {
                    drop(receiver);
                    return self.on_read_end(stop);
                }
                if self.connection.sending().queue.is_stream_over() {
                    drop(receiver);
                    self.flush(Status::CANCELED, Status::CANCELED);
                    return self.finish(End::Answered);
                }
                receiver.listen_for_terminate();
                let current = receiver.take_receive();
                drop(receiver);
                self.flush_receives(current, Status::CANCELED);
                self.connection.sending().queue.close(None);
                self.close_until(deadline, Some((Status::CANCELED, Status::CANCELED)), true);
            }
            Command::Refuse => {
                self.connection.sending().queue.close(Some(Terminate::LOCAL_CATASTROPHIC));
                let mut limit = self.observer.disconnect_timeout();
                let unflushed = if self.is_established() {
                    let current = self.reader.receiver().take_receive();
                    self.flush_receives(current, Status::CANCELED);
                    Some((Status::CANCELED, Status::CANCELED))
                } else {
                    // Nothing has moved yet, so the queue pair is as it was (`CM-21`).
                    self.restore_receive();
                    self.receives_detached = true;
                    self.observer.event(Event::Detached);
                    if self.socket.is_needed() {
                        limit = Duration::ZERO;
                    }
                    None
                };
                self.close_until(deadline(limit), unflushed, false);
            }
            Command::Abandon(status) => {
                let _ = self.socket.stream().abort();
                self.flush_and(status, status, End::Unanswered);
            }
        }
    }

    fn close_until(&mut self, deadline: Instant, unflushed: Option<(Status, Status)>, orderly: bool) {
        // A receive that was granted is for other connections now.
        self.connection.receives.forget(self.connection.number);
        let now = Instant::now();
        let first =
            if orderly { now + deadline.saturating_duration_since(now) / FIRST_LOOK } else { deadline };
        // Until the deadline, or until the acknowledgements are first read.
        self.path_timeout.close_at(first);
        let limit = now + LONGEST_CLOSE;
        let closing = Closing { deadline, limit, acknowledged: None, shut: false, unflushed, orderly };
        self.state = State::Closing(Box::new(closing));
    }

    /// Flushes as soon as no writer is left, and then closes the socket.
    fn flush_and(&mut self, first: Status, rest: Status, end: End) {
        self.connection.ends();
        self.connection.receives.forget(self.connection.number);
        self.state = State::Flushing { first, rest, end, lost: None };
    }

    /// Handles the end of the reader.
    pub(super) fn on_read_end(&mut self, stop: Stop) {
        self.end_reading();
        let stop = first_cause(stop, self.connection.sending().queue.broken.take());
        if let Stop::Panicked = stop {
            let _ = self.socket.stream().abort();
        }
        let (ending, last_words) = classify(stop, self.is_established());
        match ending {
            Ending::PeerDisconnected => {
                self.report_end(ending);
                self.flush_and(Status::CANCELED, Status::CANCELED, End::Answered);
            }
            Ending::Lost(reason, first) => self.connection_lost(reason, first, last_words),
            Ending::Refused(_) | Ending::GaveUp(_) => {
                if let Some(terminate) = last_words {
                    // Nothing else has been sent yet, so the socket has room for the Terminate.
                    let last_words = terminate_fpdu(&terminate, self.connection.crc);
                    let stream = self.socket.stream();
                    let _ = stream.send_now(&last_words).and_then(|_| stream.shut_down(Shutdown::Write));
                }
                self.handshake_failed(ending);
            }
        }
    }

    /// Has what arrives succeed no more, before the end is reported.
    fn end_reading(&self) {
        self.connection.ends();
        // Waits for a turn that has begun elsewhere.
        drop(self.reader.receiver());
    }

    /// Ends the connection without another poll. If a thread is writing, that writer flushes the send queue.
    pub(super) fn stop(&mut self) {
        self.end_reading();
        self.report_end(Ending::Lost(Reason::Local("the runtime was shut down"), Status::CANCELED));
        self.flush(Status::CANCELED, Status::CANCELED);
        self.finish(End::Unanswered);
    }

    pub(super) fn report_end(&mut self, ending: Ending) {
        if !std::mem::replace(&mut self.ended, true) {
            self.observer.event(Event::Ended(ending));
        }
    }

    /// Ends a lost connection. `last_words` go out behind the frames that are queued, and nothing else does.
    pub(super) fn connection_lost(&mut self, reason: Reason, first: Status, last_words: Option<Terminate>) {
        self.end_reading();
        self.report_end(Ending::Lost(reason, first));
        let Some(terminate) = last_words else {
            if first == Status::IO_TIMEOUT {
                // The other end does not answer.
                let _ = self.socket.stream().abort();
            }
            return self.flush_and(first, Status::CANCELED, End::Unanswered);
        };
        self.connection.sending().queue.close(Some(terminate));
        let current = self.reader.receiver().take_receive();
        self.flush_receives(current, Status::CANCELED);
        self.close_until(
            deadline(self.observer.disconnect_timeout()),
            Some((first, Status::CANCELED)),
            false,
        );
    }

    /// Ends a connection whose peer has sent nothing for the path timeout.
    pub(super) fn peer_silent(&mut self) {
        if self.is_established() {
            self.connection_lost(Reason::PathTimeout, Status::IO_TIMEOUT, None);
        } else {
            let _ = self.socket.stream().abort();
            self.handshake_failed(Ending::GaveUp(Reason::PathTimeout));
        }
    }

    /// Ends a failed handshake. The queue pair stays as it was.
    fn handshake_failed(&mut self, ending: Ending) {
        self.state = State::Over;
        self.restore_receive();
        self.connection.receives.forget(self.connection.number);
        self.connection.forget_socket();
        self.report_end(ending);
        self.observer.event(Event::Closed { answered: false });
    }

    /// Flushes once no writer is left, and closes. Resolves when the state has changed.
    pub(super) fn poll_flushing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.connection.poll_halt(cx));
        if let State::Flushing { first, rest, end, lost } = &mut self.state {
            let (first, rest, end, lost) = (*first, *rest, *end, lost.take());
            self.flush(first, rest);
            if let Some((reason, status)) = lost.map(|lost| *lost) {
                self.report_end(Ending::Lost(reason, status));
            }
            self.finish(end);
        }
        Poll::Ready(())
    }

    /// Completes every request: the oldest of the send queue with `first`, all others with `rest`.
    pub(super) fn flush(&mut self, first: Status, rest: Status) {
        // The reader releases the sink that it may be writing to, before the read completes.
        let mut wakes = WakeList::default();
        let current = {
            let mut receiver = self.reader.receiver();
            // The first message is still held back if the report that the connection is established has
            // panicked.
            receiver.complete_first(&mut wakes);
            receiver.take_receive()
        };
        self.connection.flush(first, rest, &mut wakes);
        wakes.wake_all();
        self.flush_receives(current, rest);
    }

    /// Returns the receive of an unfinished message to its queue, as the next one.
    pub(super) fn restore_receive(&mut self) {
        // The wakers run without the lock of the reader.
        let current = self.reader.receiver().take_receive();
        if let Some(Interrupted { receive, .. }) = current {
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

    pub(super) fn finish(&mut self, end: End) {
        self.state = State::Over;
        self.connection.receives.forget(self.connection.number);
        self.connection.forget_socket();
        if end == End::Lingering {
            tokio::spawn(linger(self.socket.clone()));
        }
        self.observer.event(Event::Closed { answered: end == End::Answered });
    }

    /// Polls a connection that is being closed once. Resolves when the state has changed.
    pub(super) fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let asked = self.connection.poll_command(cx);
        if let Some(Command::Abandon(status)) = asked.command {
            self.execute(Command::Abandon(status));
            return Poll::Ready(());
        }
        if matches!(&self.state, State::Closing(closing) if !closing.shut) {
            if self.write_rest() {
                return Poll::Ready(());
            }
            let blocked = self.connection.sending().queue.is_blocked();
            if blocked && self.socket.stream().poll_write_ready(cx).is_ready() {
                let _ = pin!(yield_now()).poll(cx);
            }
        }
        let Poll::Ready(failed) = self.poll_discard(cx) else {
            // A peer that floods leaves no budget for the timer.
            ready!(self.path_timeout.poll_close(cx));
            self.on_timer();
            return Poll::Ready(());
        };
        let orderly = matches!(&self.state, State::Closing(closing) if closing.orderly);
        match if orderly { self.loss(failed) } else { None } {
            None => self.close_now(End::Answered),
            Some(loss) => {
                self.close_now(End::Unanswered);
                if let State::Flushing { lost, .. } = &mut self.state {
                    *lost = Some(Box::new(loss));
                }
            }
        }
        Poll::Ready(())
    }

    /// Returns why the connection was lost after this end had begun to disconnect: not all bytes that
    /// completed may have arrived.
    fn loss(&mut self, failed: Option<io::Error>) -> Option<(Reason, Status)> {
        if let Some(terminate) = self.reader.receiver().terminated() {
            return Some((terminate.reason(false), blame(terminate)));
        }
        let error = self.connection.sending().queue.broken.take().or(failed)?;
        match classify(error.into(), true).0 {
            Ending::Lost(reason, status) => Some((reason, status)),
            _ => None,
        }
    }

    /// Handles the timer: the peer has not ended its half in time, or its acknowledgements are read for the
    /// first time.
    fn on_timer(&mut self) {
        let (written, completed) = {
            let sending = self.connection.sending();
            (sending.queue.written, sending.queue.completed)
        };
        let unacknowledged = self.unacknowledged();
        let acknowledged = written.saturating_sub(unacknowledged);
        let is_stream = self.connection.receives.inbox().is_some();
        let State::Closing(closing) = &mut self.state else { return };
        // The peer of a byte stream also waits for the end of the stream, and for the word that confirms
        // received bytes: with a reset in their place a shutdown would fail although everything has been
        // read.
        let is_owed = acknowledged < completed || (is_stream && closing.shut && unacknowledged > 0);
        let before = closing.acknowledged.replace(acknowledged);
        let now = Instant::now();
        if now < closing.deadline {
            self.path_timeout.close_at(closing.deadline);
        } else if closing.orderly && now < closing.limit && before.is_none_or(|before| acknowledged > before)
        {
            // Without a first reading this task is late: the program was stopped.
            closing.deadline = deadline(self.observer.disconnect_timeout()).min(closing.limit);
            self.path_timeout.close_at(closing.deadline);
        } else if closing.orderly && is_owed {
            // A reset would discard the unacknowledged bytes.
            let _ = self.socket.stream().shut_down(Shutdown::Write);
            self.close_now(End::Lingering);
        } else {
            // An orderly end, perhaps between two frames, would look like a disconnect.
            let _ = self.socket.stream().abort();
            self.close_now(End::Unanswered);
        }
    }

    /// Ends the wait for the peer.
    fn close_now(&mut self, end: End) {
        if let State::Closing(closing) = &self.state {
            let (first, rest) = closing.unflushed.unwrap_or((Status::CANCELED, Status::CANCELED));
            self.flush_and(first, rest, end);
        }
    }

    /// Writes the queued frames, and then ends this half of the stream. Returns whether all was written.
    fn write_rest(&mut self) -> bool {
        self.connection.transmit_rest(Extent::Call);
        let done = {
            let sending = self.connection.sending();
            sending.queue.is_drained() || (sending.queue.broken.is_some() && !sending.queue.is_writing())
        };
        if done && let State::Closing(closing) = &mut self.state {
            closing.shut = true;
            let unflushed = closing.unflushed.take();
            let _ = self.socket.stream().shut_down(Shutdown::Write);
            if let Some((first, rest)) = unflushed {
                self.flush(first, rest);
            }
        }
        done
    }

    /// Reads and discards bytes of the peer, as many as a turn may read. Resolves when the peer has ended the
    /// stream, or with the error of the socket.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Error>> {
        self.socket.set_eager(false);
        loop {
            if self.spent >= TURN {
                let _ = pin!(yield_now()).poll(cx);
                return Poll::Pending;
            }
            if let Err(error) = ready!(self.socket.stream().poll_read_ready(cx)) {
                return Poll::Ready(Some(error));
            }
            match self.reader.receiver().discard(&self.socket) {
                Ok(None) => return Poll::Ready(None),
                Ok(Some(cost)) => self.spent += cost,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Some(error)),
            }
        }
    }
}

/// Returns the earlier cause of an end: a write may have failed before the read that found the end of the
/// stream. EPIPE alone means that the peer had closed in order before.
pub(super) fn first_cause(stop: Stop, broken: Option<io::Error>) -> Stop {
    match (stop, broken) {
        (Stop::Closed | Stop::Broken(_), Some(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
            error.into()
        }
        (stop, _) => stop,
    }
}

/// Translates the end of the reader to the end of the attempt or the connection, and the last message to the
/// peer.
pub(super) fn classify(stop: Stop, established: bool) -> (Ending, Option<Terminate>) {
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
        Stop::Panicked => {
            let reason = Reason::Local("a waker, a destructor or a subscriber of the program panicked");
            (reason, Status::CANCELED, None)
        }
        Stop::Broken(error) => {
            let reason = match error.raw_os_error() {
                Some(code) => Reason::Errno(code),
                None if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Reason::Local("the stream ended within a frame")
                }
                None if error.kind() == io::ErrorKind::PermissionDenied || is_deregistered(&error) => {
                    Reason::Local("the memory of a transfer was deregistered")
                }
                // tokio's error when its I/O driver has shut down.
                None => Reason::Local("the runtime was shut down"),
            };
            let status = if is_path_error(&error) { Status::IO_TIMEOUT } else { Status::REMOTE_ERROR };
            (reason, status, None)
        }
    };
    let ending = if established { Ending::Lost(reason, status) } else { Ending::GaveUp(reason) };
    (ending, last_words)
}

/// Returns whether the path failed rather than the peer. TCP that has given up reports the last ICMP error of
/// the path, if it received one, in place of the timeout.
fn is_path_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkDown
    )
}

/// The socket of a peer is closed if the peer acknowledges nothing for this long, or does not end the stream
/// this long after it has acknowledged everything.
const LINGER_LIMIT: Duration = Duration::from_secs(60);
/// A disconnect waits no longer than this for a peer, and the socket lingers no longer than this again,
/// however much the peer acknowledges. The buffers of Linux, of 4 MiB, are then delivered at 7 KiB/s.
const LONGEST_CLOSE: Duration = Duration::from_secs(600);

/// Keeps the socket until the peer has ended the stream. If there are too many such sockets, it is closed at
/// once, and the kernel delivers what it can.
///
/// Closed earlier, it would answer all data of the peer with a reset, which discards what the peer has not
/// read.
async fn linger(socket: SharedSocket) {
    let Some(_place) = socket.stream().linger() else { return };
    let _ = timeout(LONGEST_CLOSE, drain(&socket)).await;
}

/// Waits until the peer has ended the stream, or has stopped acknowledging data.
async fn drain(socket: &Socket) {
    let unacknowledged = || socket.stream().unacknowledged().unwrap_or(0);
    let mut queued = unacknowledged();
    while timeout(LINGER_LIMIT, socket.stream().discard()).await.is_err() {
        let before = std::mem::replace(&mut queued, unacknowledged());
        if queued >= before {
            return;
        }
    }
}
