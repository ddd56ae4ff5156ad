//! The task of an established connection: it reads, keeps the timers, and closes the connection.
//!
//! It reports to an [`Observer`], and does not depend on the connector.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop::has_budget_remaining;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep_until};

use super::config::SoftConfig;
use super::connection::{ConnectionShared, DriverWork, Extent, Socket, Transmitted};
use super::receiver::reader::{Reader, SharedSocket, tasks_run};
use super::receiver::reader::{Stop, TURN, Turn, TurnOutcome, cost_of};
use super::send_queue::SendQueue;
use super::timers::{MessageTimeout, Owed, PathTimeout, Question, Tick, Verdict};
use crate::error::Reason;
use crate::inflight::WakeList;
use crate::proto::mpa::Rtr;
use crate::status::Status;
use crate::sync::{Spin, deadline};
use crate::types::Role;
use crate::wire::rdmap::Terminate;
use close::State;

mod close;

/// Intervals of the empty Writes that show the peer that this end is alive while its message waits for a
/// receive: the first is shorter.
const STARVED: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];
/// How often a run of the task that spins looks whether bytes have come.
const LOOKS: u32 = 4;

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

/// The way in which an attempt or a connection came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The peer disconnected in order.
    PeerDisconnected,
    /// The connection broke, with the status of the request that failed.
    Lost(Reason, Status),
    /// The active side rejected instead of completing.
    Refused(Reason),
    /// The active side closed its socket instead of completing.
    GaveUp(Reason),
}

/// Receives the reports of a connection's task.
pub(crate) trait Observer: Send + Sync + 'static {
    /// Handles one report. The task wakes what follows from it afterwards.
    fn event(&self, event: Event);

    /// Returns the time that a disconnect waits for the peer.
    fn disconnect_timeout(&self) -> Duration;
}

/// The task of a connection: reads, writes on when the socket was full, polls the timers, and closes.
pub(crate) struct Driver<O: Observer> {
    connection: Arc<ConnectionShared>,
    socket: SharedSocket,
    reader: Arc<Reader>,
    observer: Arc<O>,
    path_timeout: PathTimeout,
    /// `None` if no time limits a message.
    message_timeout: Option<Box<MessageTimeout>>,
    /// Time of the next empty Write while a message waits for a receive.
    starved: Option<Pin<Box<Sleep>>>,
    /// The message has been waiting since the last poll.
    is_starved: bool,
    /// The time for which the socket is polled without sleep after data has arrived. `None` if it never is.
    spin: Option<Box<Spin>>,
    /// The work of this poll, as the reader counts it.
    spent: u32,
    /// After the last turn, the next one belonged to this task: large frames are expected, for example.
    reads_itself: bool,
    /// The reader has processed in this poll all bytes that had arrived: only the socket can bring more.
    awaits_socket: bool,
    state: State,
    /// The attempt was withdrawn: the receives are no longer this connection's.
    receives_detached: bool,
    /// The end has been reported.
    ended: bool,
}

impl<O: Observer> Driver<O> {
    /// Creates the task of this connection, to be spawned. `leftover` are the bytes behind the start-up frames.
    pub(crate) fn new(
        connection: Arc<ConnectionShared>,
        socket: Socket,
        leftover: &[u8],
        observer: Arc<O>,
        config: &SoftConfig,
    ) -> Self {
        let nudges = connection.is_peer_ready() && connection.rtr != Rtr::Waived;
        let task_spins = !config.spin.is_zero();
        let reader = Reader::new(connection.clone(), socket, leftover, task_spins);
        let message_timeout = config.message_timeout.filter(|_| connection.receives.is_shared());
        Self {
            connection,
            socket: reader.socket(),
            reader,
            observer,
            message_timeout: message_timeout.map(|limit| Box::new(MessageTimeout::new(limit))),
            path_timeout: PathTimeout::new(config.path_timeout, nudges),
            starved: None,
            is_starved: false,
            spin: task_spins.then(|| Box::new(Spin::new(config.spin))),
            spent: 0,
            reads_itself: true,
            awaits_socket: false,
            state: State::Open,
            receives_detached: false,
            ended: false,
        }
    }

    /// Sends the first frame of the active side.
    pub(crate) fn send_rtr(&self) {
        self.connection.send_rtr(&self.socket);
    }

    /// Polls the command of the connector and the timers of an open connection, and writes on: once per
    /// wake-up, as each wakes the task. The state may change.
    fn poll_surroundings(&mut self, cx: &mut Context<'_>) {
        let DriverWork { command, blocked, known } = self.connection.poll_command(cx);
        if let Some(command) = command {
            return self.execute(command);
        }
        while matches!(self.state, State::Open) && self.poll_clock(cx, known).is_ready() {}
        let is_blocked = blocked && matches!(self.state, State::Open);
        if is_blocked && self.socket.stream().poll_write_ready(cx).is_ready() {
            let (transmitted, bytes) = self.connection.transmit_rest(Extent::Turn);
            self.spent += cost_of(bytes);
            // A poll of a completion queue may be writing, which reports to no task that the socket is full.
            let is_blocked =
                transmitted == Transmitted::Blocked || self.connection.sending().queue.is_blocked();
            if is_blocked && self.socket.stream().poll_write_ready(cx).is_ready() {
                // Enough for one turn: read next, and write again after the sockets of other connections.
                let _ = pin!(yield_now()).poll(cx);
            }
        }
    }

    /// Polls an open connection once. Resolves when the state has changed.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut wakes = WakeList::default();
        // The tasks whose wakers a turn has collected do not wait on if a subscriber panics in it.
        let outcome = match catch_unwind(AssertUnwindSafe(|| self.poll_receive(cx, &mut wakes))) {
            Ok(Poll::Ready(outcome)) => outcome,
            Ok(Poll::Pending) => {
                wakes.wake_all();
                return self.poll_message_timeout(cx);
            }
            Err(_) => Err(Stop::Panicked),
        };
        if let Ok(TurnOutcome { established, cost, .. }) = outcome {
            if established {
                self.observer.event(Event::Established);
                self.connection.release();
                self.reader.receiver().complete_first(&mut wakes);
                // Small frames are expected until large ones have come.
                self.reads_itself = false;
            }
            self.spent += cost;
        }
        let spins = self.spin.is_some() && outcome.is_ok() && !wakes.is_empty();
        wakes.wake_all();
        if let Err(stop) = outcome {
            self.on_read_end(stop);
        }
        if spins {
            // Those who were woken go first. The next message has not come yet, most likely.
            self.check_message();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Polls for readiness to read. The next report that the socket is readable goes to the reader's waker, or
    /// to this task if that would only wake it.
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !has_budget_remaining() {
            // The runtime would defer that waker in place of the task's.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        let waker = if self.reads_itself { cx.waker() } else { self.reader.waker() };
        self.socket.stream().poll_read_ready(&mut Context::from_waker(waker))
    }

    /// Processes staged bytes, or reads once, if there may be bytes to read.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        wakes: &mut WakeList,
    ) -> Poll<Result<TurnOutcome, Stop>> {
        let spinning = self.spin.as_ref().is_some_and(|spin| spin.is_spinning());
        self.socket.set_eager(spinning);
        let readable = if spinning { Poll::Ready(Ok(())) } else { self.poll_read_ready(cx) };
        if readable.is_pending() && self.awaits_socket {
            return Poll::Pending;
        }
        let mut receiver = self.reader.receiver();
        if let Some(reads) = receiver.take_reads() {
            // The message that waited has gone on.
            self.is_starved = false;
            self.path_timeout.received_before(reads);
            self.path_timeout.follow_ticks_if_busy();
            receiver.reads.stamps = self.path_timeout.stamps();
        }
        if receiver.awaits_receive() {
            drop(receiver);
            return self.poll_awaited(cx, wakes);
        }
        let reads = receiver.needs_socket();
        if reads {
            if let Err(error) = ready!(readable) {
                return Poll::Ready(Err(Stop::Broken(error)));
            }
            if !spinning
                && receiver.expects_large()
                && let Some(waker) = receiver.take_waiting()
            {
                drop(receiver);
                waker.wake();
                // Yield once: the reader of a stream goes first, in whatever task it is. `wake_by_ref` would
                // requeue this task ahead of the main task of a runtime.
                let _ = pin!(yield_now()).poll(cx);
                return Poll::Pending;
            }
        }
        let mut advance = || receiver.advance(&self.socket, &mut Turn { wakes, room: None, limit: TURN });
        let mut outcome = advance();
        // A run of this task costs more than a look.
        for _ in 1..LOOKS {
            if !(reads && spinning && matches!(outcome, Some(TurnOutcome { read: false, .. }))) {
                break;
            }
            outcome = advance();
        }
        self.reads_itself = !receiver.serves_at_once();
        let stop = receiver.take_stop();
        drop(receiver);
        match outcome {
            Some(TurnOutcome { read: false, .. }) if reads && spinning => {
                // Yield once: tasks that were woken go first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(TurnOutcome { read: true, .. }) => {
                if let Some(spin) = &mut self.spin {
                    spin.start();
                }
            }
            Some(TurnOutcome { read: false, .. }) | None => {}
        }
        self.has_read(outcome, stop)
    }

    /// Processes the message that awaits a receive, as soon as it has one (`SRQ-02`): bytes that have arrived
    /// stay where they are until then. A poll of a completion queue may have gone on with the message since
    /// it was found waiting.
    fn poll_awaited(
        &mut self,
        cx: &mut Context<'_>,
        wakes: &mut WakeList,
    ) -> Poll<Result<TurnOutcome, Stop>> {
        let ready = self.connection.receives.poll_ready(self.connection.number, cx);
        let mut receiver = self.reader.receiver();
        if !receiver.awaits_receive() {
            drop(receiver);
            // A receive that is granted to a connection that does not wait would be kept from the others.
            self.connection.receives.forget(self.connection.number);
            // Polled again, for the step that the poll of the completion queue has left.
            self.awaits_socket = false;
            return Poll::Ready(Ok(TurnOutcome { cost: 1, ..TurnOutcome::default() }));
        }
        if ready.is_ready() {
            self.is_starved = false;
            let outcome = receiver.advance(&self.socket, &mut Turn { wakes, room: None, limit: TURN });
            let stop = receiver.take_stop();
            drop(receiver);
            return self.has_read(outcome, stop);
        }
        drop(receiver);
        if let Some(error) = self.connection.sending().queue.broken.take() {
            // The peer is gone, and so is the message: without a receive the end of the stream would not be
            // read.
            return Poll::Ready(Err(error.into()));
        }
        self.poll_starved(cx);
        Poll::Pending
    }

    /// Records a turn of the reader, or its end. Pending if the end has been taken before.
    fn has_read(
        &mut self,
        outcome: Option<TurnOutcome>,
        stop: Option<Stop>,
    ) -> Poll<Result<TurnOutcome, Stop>> {
        let Some(outcome) = outcome else { return stop.map_or(Poll::Pending, |stop| Poll::Ready(Err(stop))) };
        self.awaits_socket = outcome.needs_socket;
        self.path_timeout.received();
        self.path_timeout.follow_ticks_if_busy();
        Poll::Ready(Ok(outcome))
    }

    /// Sends the peer an empty Write now and then, to show that this end is alive while nothing is read.
    fn poll_starved(&mut self, cx: &mut Context<'_>) {
        let [first, next] = STARVED.map(deadline);
        let starved = self.starved.get_or_insert_with(|| Box::pin(sleep_until(first)));
        if !std::mem::replace(&mut self.is_starved, true) {
            starved.as_mut().reset(first);
        }
        while starved.as_mut().poll(cx).is_ready() {
            self.connection.transmit_after(SendQueue::nudge);
            starved.as_mut().reset(next);
        }
    }

    /// Ends the connection if a message in a shared receive makes no progress. Resolves when the state has
    /// changed.
    fn poll_message_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timeout) = &mut self.message_timeout else { return Poll::Pending };
        ready!(timeout.poll(self.reader.receiver().progress(), cx));
        self.message_lost();
        Poll::Ready(())
    }

    /// Checks the message timeout like [`poll_message_timeout`](Self::poll_message_timeout), after a turn
    /// that has left bytes to read.
    fn check_message(&mut self) {
        let Some(timeout) = &mut self.message_timeout else { return };
        let progress = self.reader.receiver().progress();
        if matches!(self.state, State::Open) && timeout.is_over(progress) {
            self.message_lost();
        }
    }

    /// Ends the connection whose message in a shared receive makes no progress.
    fn message_lost(&mut self) {
        // The receive is for the messages of other connections.
        self.restore_receive();
        let reason = Reason::Local("a message in a shared receive made no progress");
        self.connection_lost(reason, Status::IO_TIMEOUT, Some(Terminate::LOCAL_CATASTROPHIC));
    }

    /// Returns whether the handshake is complete, as far as this side can know.
    fn is_established(&self) -> bool {
        self.connection.is_peer_ready() || self.reader.receiver().heard
    }

    /// Acts on a tick of the path timeout. Resolves when the state has changed. `known` if the last poll was
    /// by the same task.
    fn poll_clock(&mut self, cx: &mut Context<'_>, known: bool) -> Poll<()> {
        let tick = ready!(self.path_timeout.poll(cx, known));
        let mut receiver = self.reader.receiver();
        if let Some(reads) = receiver.take_reads() {
            self.is_starved = false;
            self.path_timeout.received_before(reads);
        }
        receiver.shrink();
        let has_heard = receiver.heard;
        drop(receiver);
        match (tick, self.connection.role) {
            (Tick::Rest, _) => {}
            (Tick::Nudge, _) if has_heard => {}
            (Tick::Nudge, Role::Active) => self.connection.transmit_after(SendQueue::nudge),
            (Tick::Nudge, Role::Passive) => {
                let has_reply = self.unacknowledged() == 0;
                if self.path_timeout.postpones_nudge(has_reply) {
                    return Poll::Ready(());
                }
                self.connection.release();
            }
            (Tick::Check, _) => {
                if self.check() == Verdict::Lost {
                    self.peer_silent();
                    return Poll::Ready(());
                }
            }
        }
        {
            let mut receiver = self.reader.receiver();
            receiver.reads.stamps = self.path_timeout.stamps();
            // A read since the last look has no time if none was recorded then.
            if let Some(reads) = receiver.take_reads() {
                self.path_timeout.received_before(reads);
            }
        }
        self.path_timeout.rearm();
        // Polled once more, so that the timer is armed again.
        Poll::Ready(())
    }

    /// Judges the silence of the peer, and asks it for a sign of life if that is due.
    fn check(&mut self) -> Verdict {
        // Only now, because connections that end before the first check need none of the four calls. What was accepted has
        // the options of its listener.
        if self.connection.role == Role::Active
            && let Some(timeout) = self.path_timeout.take_keepalive()
        {
            self.socket.stream().keep_alive(timeout);
        }
        let owed = self.owed();
        if self.path_timeout.check_answer(owed) == Verdict::Lost {
            return Verdict::Lost;
        }
        if self.reader.receiver().awaits_receive() {
            if let Ok(Some(error)) = self.socket.stream().take_error() {
                // The message goes first, if a receive was posted for it while this task was stopped.
                self.connection.sending().queue.broken.get_or_insert(error);
                return Verdict::Alive;
            }
            // The peer's kernel has the answer: empty Writes show the peer that its message waits, and its
            // kernel acknowledges them.
            return self.path_timeout.check_unread(self.socket.stream().unanswered().unwrap_or(None));
        }
        let acknowledged = self.acknowledged();
        match self.path_timeout.check(acknowledged) {
            // In this order: what has been read since is counted under the lock.
            Verdict::Lost if !self.has_input() && self.reader.receiver().reads.count == 0 => {
                return Verdict::Lost;
            }
            // This task may be late, and bytes of the peer unread.
            Verdict::Lost => self.path_timeout.excuse(),
            Verdict::Ask => {
                let question = self.ask();
                let acknowledged = self.acknowledged();
                self.path_timeout.asked(question, acknowledged);
            }
            Verdict::Alive => {}
        }
        Verdict::Alive
    }

    /// Returns whether the peer has sent bytes that have not been read.
    fn has_input(&self) -> bool {
        self.socket.stream().peek_now(&mut [0]).is_ok()
    }

    /// Returns the number of bytes that the peer's kernel has not acknowledged.
    fn unacknowledged(&self) -> u64 {
        self.socket.stream().unacknowledged().unwrap_or(0) as u64
    }

    /// Returns the number of bytes that were written and acknowledged by the peer's kernel.
    fn acknowledged(&self) -> u64 {
        let written = self.connection.sending().queue.written;
        written.saturating_sub(self.unacknowledged())
    }

    /// Returns the answer that the peer owes, if its device gives one whatever its program does: that of a
    /// byte stream.
    fn owed(&self) -> Option<Owed> {
        self.connection.receives.inbox()?;
        let (question, written, drained) = {
            let sending = self.connection.sending();
            (sending.queue.outbound.question()?, sending.queue.written, sending.queue.is_drained())
        };
        let received = self.reader.receiver().received;
        Some(Owed { question, written, drained, acknowledged: self.acknowledged(), received })
    }

    /// Asks the peer for a sign of life, if no question is open.
    fn ask(&self) -> Question {
        let ConnectionShared { role, rtr, .. } = &*self.connection;
        let is_waived = (*role, *rtr) == (Role::Passive, Rtr::Waived);
        if !self.is_established() || is_waived && self.reader.receiver().received == 0 {
            // A peer that has not sent its first frame owes nothing but the acknowledgement of this side's
            // bytes: its program may not have completed the connection.
            return if self.unacknowledged() > 0 { Question::Full } else { Question::None };
        }
        let owes = self.connection.transmit_after(|queue| queue.outbound.has_reads() || queue.probe());
        let (written, full, asks, is_over) = {
            let queue = &self.connection.sending().queue;
            (queue.written, queue.is_blocked(), queue.outbound.reads_at_all(), queue.is_stream_over())
        };
        if is_over {
            // A question could meet a peer that has closed. The end is one, too: this end sends nothing else, and the peer ends then.
            let _ = self.socket.stream().shut_down(Shutdown::Write);
            return Question::Asked(written);
        }
        if owes && !full {
            Question::Asked(written)
        } else if full || asks || self.acknowledged() < written {
            Question::Full
        } else {
            Question::None
        }
    }
}

impl<O: Observer> Future for Driver<O> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The timers of a program that is stopped are late.
        ready!(self.socket.stream().poll_running(cx));
        tasks_run();
        self.spent = 0;
        self.awaits_socket = false;
        if matches!(self.state, State::Open) {
            self.poll_surroundings(cx);
        }
        loop {
            let progress = match self.state {
                State::Open => self.poll_open(cx),
                State::Closing(_) => self.poll_closing(cx),
                State::Flushing { .. } => self.poll_flushing(cx),
                State::Over => return Poll::Ready(()),
            };
            if progress.is_pending() {
                return Poll::Pending;
            }
            if self.spent >= TURN {
                self.check_message();
                // Yield to other tasks and to the I/O driver. `wake_by_ref` would requeue this task ahead of
                // the I/O driver.
                let _ = pin!(yield_now()).poll(cx);
                return Poll::Pending;
            }
        }
    }
}

impl<O: Observer> Drop for Driver<O> {
    /// Ends an open connection when the runtime shuts down, so that no future is left waiting.
    fn drop(&mut self) {
        if !matches!(self.state, State::Over) {
            self.stop();
        }
    }
}

#[cfg(test)]
mod tests;
