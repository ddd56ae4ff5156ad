//! Reads and writes of a stream, waiting until one of them is possible, and its end.

use std::future::pending;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{Interest, ReadBuf, Ready};
use tokio::task::coop;
use tokio::time::timeout;

use super::{Confirmation, Moved, Side, State, StreamEngine, TURNS};
use crate::error::{PostErrorKind, StreamBroken};
use crate::inflight::StreamInbox;
use crate::io::resources::{Incoming, RING};
use crate::io::session::Close;
use crate::proto::rsocket::Span;
use crate::provider::stream::{Progress, StreamRoom};
use crate::provider::work::RemoteAddress;
use crate::types::DisconnectReason;

/// The most bytes that the first write after the peer's close takes. As a socket does, the stream takes and discards them: a
/// program that writes before it reads, such as TLS or HTTP/2, then reads what the peer sent last.
const LATE_WRITE: usize = 64 << 10;

/// The time for which the device of a stream that was reset refuses what a program with rsocket still sends. Its rclose waits for the
/// completions of all it has sent, and librdmacm 65 does not end this wait when the connection ends. Without an answer it would last for as
/// long as the device of that program repeats its messages: on `rdma_rxe` for ever.
const FAREWELL: Duration = Duration::from_secs(1);

impl StreamEngine {
    /// Reads the bytes that have arrived, up to the room in `into`.
    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = into.remaining();
        let outcome =
            ready!(self.poll_for(cx, Side::Reader, |state, collected| self.read(state, into, collected)));
        self.traffic.received(before - into.remaining());
        self.flow.received(before - into.remaining());
        Poll::Ready(outcome)
    }

    /// Reads like [`poll_read`](Self::poll_read), but fails with `WouldBlock` instead of waiting.
    pub(crate) fn try_read(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        if into.remaining() == 0 {
            return Ok(());
        }
        let before = into.remaining();
        let outcome = self.try_for(Side::Reader, |state, collected| self.read(state, into, collected));
        self.traffic.received(before - into.remaining());
        self.flow.received(before - into.remaining());
        outcome
    }

    /// Copies the bytes that have arrived, which stay unread.
    pub(crate) fn poll_peek(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_for(cx, Side::Reader, |state, collected| self.peek_unread(state, into, collected))
    }

    /// Copies the bytes that have arrived, which stay unread. Any number of tasks may wait.
    pub(crate) async fn peek(&self, into: &mut ReadBuf<'_>) -> Result<io::Result<()>, Moved> {
        self.wait_for(Side::Reader, |state, collected| self.peek_unread(state, into, collected)).await
    }

    /// Writes one message, as long as the peer and the ring have room for.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut exhausted = false;
        let outcome = self.poll_for(cx, Side::Writer, |state, collected| {
            self.write_parts(state, parts, collected, &mut exhausted)
        });
        if exhausted {
            self.traffic.exhausted();
        }
        let outcome = ready!(outcome);
        if let Ok(length) = &outcome {
            self.traffic.sent(*length);
            self.flow.sent(*length);
        }
        Poll::Ready(outcome)
    }

    /// Writes like [`poll_write`](Self::poll_write), but fails with `WouldBlock` instead of waiting.
    pub(crate) fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut exhausted = false;
        let outcome = self.try_for(Side::Writer, |state, collected| {
            self.write_parts(state, parts, collected, &mut exhausted)
        });
        if exhausted {
            self.traffic.exhausted();
        }
        if let Ok(length) = &outcome {
            self.traffic.sent(*length);
            self.flow.sent(*length);
        }
        outcome
    }

    /// Resolves when a read or a write would not wait.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>, side: Side) -> Poll<()> {
        self.poll_for(cx, side, |state, collected| self.is_ready(state, side, collected))
    }

    /// Resolves when a read or a write would not wait. Any number of tasks may wait.
    pub(crate) async fn ready(&self, side: Side) -> Result<(), Moved> {
        self.wait_for(side, |state, collected| self.is_ready(state, side, collected)).await
    }

    /// Reads into `into`. Returns `None` if there is nothing to be read yet. `collected` is whether all completions
    /// have been collected.
    fn read(&self, state: &mut State, into: &mut ReadBuf<'_>, collected: bool) -> Option<io::Result<()>> {
        let reads_now = || collected && self.queues.incoming.reads_for_reader();
        if self.copy_out(state, into) || reads_now() && self.read_now(state, into) {
            return Some(Ok(()));
        }
        end_of_read(state, collected)
    }

    /// Has the provider read the bytes that have come: the next bytes of the stream go straight to `into`. Returns
    /// whether there were any.
    fn read_now(&self, state: &mut State, into: &mut ReadBuf<'_>) -> bool {
        let Some(Span { address, key, length }) = state.machine.next_place() else { return false };
        if state.ended.is_some() || self.queues.incoming.has_bytes() {
            return false;
        }
        let most = usize::try_from(length).unwrap_or(usize::MAX);
        let mut room = StreamRoom::new(into, most, RemoteAddress { key, address });
        let spins = state.spin.is_spinning();
        self.queue_pair.provider().read_stream(Some(&mut room), self.reading(), spins, &mut state.wakes);
        let filled = room.filled();
        self.count_read(state, filled);
        filled > 0
    }

    fn peek_unread(
        &self,
        state: &mut State,
        into: &mut ReadBuf<'_>,
        collected: bool,
    ) -> Option<io::Result<()>> {
        let before = into.remaining();
        match (&self.queues.incoming, &self.memory) {
            (Incoming::Inbox(inbox), _) => inbox.peek(into, unread_of(state, inbox)),
            (_, memory) => {
                for part in state.machine.unread_parts() {
                    let length = part.len().min(into.remaining());
                    // The ring is in bounds.
                    memory.iter().for_each(|memory| {
                        let _ = memory.exposed.read_to(RING + part.start, length, into);
                    });
                }
            }
        }
        let has_data = into.remaining() < before || before == 0 && self.has_unread(state);
        if has_data { Some(Ok(())) } else { end_of_read(state, collected) }
    }

    /// Counts bytes that have been read. A peer that writes more than was granted ends the stream.
    #[inline(always)]
    fn count_read(&self, state: &mut State, length: usize) {
        state.standing.read(length);
        state.spin.count(length);
        if let Err(error) = state.machine.read(length) {
            self.end_violated(state, error);
        }
    }

    /// Returns whether bytes can be read.
    pub(super) fn has_unread(&self, state: &State) -> bool {
        match &self.queues.incoming {
            Incoming::Inbox(inbox) => unread_of(state, inbox) > 0,
            Incoming::Receives(_) => !state.machine.unread().is_empty(),
        }
    }

    /// Moves unread bytes to `into`. Returns whether there were any.
    fn copy_out(&self, state: &mut State, into: &mut ReadBuf<'_>) -> bool {
        let before = into.remaining();
        match (&self.queues.incoming, &self.memory) {
            (Incoming::Inbox(inbox), _) => {
                // A reader that always finds bytes takes the messages behind them, too.
                if !inbox.is_empty() {
                    self.collect(state, Side::Reader);
                }
                let unread = unread_of(state, inbox);
                if unread > 0 {
                    self.count_read(state, inbox.read(into, unread));
                }
            }
            (_, None) => {}
            (_, Some(memory)) => {
                while into.remaining() > 0 {
                    let unread = state.machine.unread();
                    let length = unread.len().min(into.remaining());
                    if length == 0 || memory.exposed.read_to(RING + unread.start, length, into).is_err() {
                        break;
                    }
                    self.count_read(state, length);
                }
            }
        }
        let read = into.remaining() < before;
        if read {
            self.advance(state);
        }
        read
    }

    /// Writes one message; `None` if it has to wait. Sets `exhausted` when a write begins to wait for room.
    fn write_parts(
        &self,
        state: &mut State,
        parts: &[IoSlice<'_>],
        collected: bool,
        exhausted: &mut bool,
    ) -> Option<io::Result<usize>> {
        let wanted = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        if state.machine.is_shutdown() || state.standing.is_closing() {
            return Some(Err(broken_pipe("the stream has been shut down")));
        }
        if wanted == 0 {
            return Some(Ok(0));
        }
        let most = wanted.min(state.standing.room());
        let room = if state.ended.is_none() { state.machine.room(most) } else { 0 };
        // A message that has not been collected may give more room, or end the stream.
        if room > 0 && (collected || room == wanted && self.queues.incoming.is_empty()) {
            match self.send_now(state, parts, room) {
                Ok(Some(length)) => {
                    state.standing.keep(parts, length);
                    state.exhausted = false;
                    return Some(Ok(length));
                }
                Ok(None) => {}
                // The peer may have closed the stream since the queues were polled: then its last messages decide.
                Err(kind) => {
                    self.handle_refused_post(state, kind);
                    self.collect_incoming(state);
                }
            }
        }
        if collected && has_peer_left(state) && std::mem::take(&mut state.takes_late_write) {
            return Some(Ok(wanted.min(LATE_WRITE)));
        }
        match state.broken() {
            _ if !collected => None,
            _ if state.machine.is_peer_gone() => Some(Err(broken_pipe("the peer has closed the stream"))),
            Some(broken) => Some(Err(broken.clone().into())),
            None => {
                // A wait is polled more than once.
                *exhausted |= !std::mem::replace(&mut state.exhausted, true);
                None
            }
        }
    }

    /// Sends the first `room` bytes as one message, or fewer. `None` if the socket has no room.
    #[inline(always)]
    pub(super) fn send_now(
        &self,
        state: &mut State,
        parts: &[IoSlice<'_>],
        room: usize,
    ) -> Result<Option<usize>, PostErrorKind> {
        if self.frames { self.frame(state, parts, room) } else { self.copy_in(state, parts, room).map(Some) }
    }

    /// Returns `Some` if a read or a write of any length would not wait.
    pub(super) fn is_ready(&self, state: &State, side: Side, collected: bool) -> Option<()> {
        let machine = &state.machine;
        let (now, ended) = match side {
            Side::Reader => (self.has_unread(state), machine.is_peer_done()),
            Side::Writer => {
                let takes = || !self.frames || self.queue_pair.provider().takes_messages(&self.completed);
                let has_room = machine.room(state.standing.room()) > 0 && takes();
                let is_shutdown = machine.is_shutdown() || state.standing.is_closing();
                (has_room || is_shutdown, machine.is_peer_gone())
            }
        };
        (now || collected && (ended || state.broken().is_some())).then_some(())
    }
}

/// The readiness of both directions.
impl StreamEngine {
    /// Resolves when one of these directions is ready. Any number of tasks may wait.
    pub(crate) async fn readiness(&self, interest: Interest) -> Result<Ready, Moved> {
        let wait = async |side: Side, waits: bool| {
            if !waits {
                return pending().await;
            }
            let attempt = |state: &mut State, collected| {
                let ready = self.ready_now(state, interest, collected);
                (!ready.is_empty()).then_some(ready)
            };
            self.wait_for(side, attempt).await
        };
        // The end of the stream wakes both directions. One that waits for nothing else is not woken by bytes that it would not take.
        let writes = interest.is_writable() || !interest.is_readable();
        tokio::select! {
            biased;
            ready = wait(Side::Reader, interest.is_readable()) => ready,
            ready = wait(Side::Writer, writes) => ready,
        }
    }

    /// Returns the readiness. `collected` is whether all completions have been collected.
    fn ready_now(&self, state: &State, interest: Interest, collected: bool) -> Ready {
        let machine = &state.machine;
        let has_ended = collected && state.broken().is_some();
        let flag = |is_set, flag| if is_set { flag } else { Ready::EMPTY };
        let mut ready = flag(has_ended && interest.is_error(), Ready::ERROR);
        if interest.is_readable() {
            let is_closed = has_ended || collected && machine.is_peer_done();
            ready |= flag(self.is_ready(state, Side::Reader, collected).is_some(), Ready::READABLE);
            ready |= flag(is_closed, Ready::READ_CLOSED);
        }
        if interest.is_writable() {
            let is_closed = has_ended || collected && machine.is_peer_gone();
            ready |= flag(self.is_ready(state, Side::Writer, collected).is_some(), Ready::WRITABLE);
            ready |= flag(is_closed, Ready::WRITE_CLOSED);
        }
        ready
    }
}

/// The end of a stream: the messages to the peer, and the confirmation of its device.
impl StreamEngine {
    /// Ends this direction. Returns `true` if its end has been sent to the peer or need not be sent.
    pub(crate) fn shutdown(&self) -> bool {
        let mut state = self.lock();
        if !state.standing.close(Close::Shutdown) {
            state.machine.shutdown();
        }
        self.advance(&mut state);
        let has_announced = state.machine.has_announced_end() && !state.standing.is_closing();
        has_announced || state.broken().is_some()
    }

    /// Ends both directions.
    pub(crate) fn disconnect(&self) {
        let mut state = self.lock();
        if !state.standing.close(Close::Disconnect) {
            state.machine.disconnect();
        }
        self.advance(&mut state);
    }

    /// Returns the progress of the connection. `None` if it has ended, or the provider cannot say.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.queue_pair.provider().progress()
    }

    /// Ends the connection without a message to the peer.
    pub(crate) fn abort(&self) {
        self.queue_pair.flush();
    }

    /// Ends the connection like [`abort`](Self::abort). If the peer is a program with rsocket, the device of this end first refuses
    /// what that still sends, for at most [`FAREWELL`], in a task.
    pub(crate) fn reset(self: &Arc<Self>) {
        // Streams of this crate take the end of the connection for an answer, and always say that they send a message of theirs.
        let needs_answers = self.lock().machine.is_end_silent();
        match &self.runtime {
            Some(runtime) if needs_answers && self.queue_pair.provider().refuse() => {
                let engine = self.clone();
                runtime.spawn(async move {
                    let _ = timeout(FAREWELL, engine.connection.disconnected()).await;
                    engine.abort();
                });
            }
            _ => self.abort(),
        }
    }

    /// Resolves when all sends have completed and, after a shutdown, the end of this direction has been sent to the
    /// peer. If a send completes before the peer's device has received it, the device has confirmed that it has.
    pub(crate) fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_settled_behind(cx, |_| true)
    }

    /// Ends this direction of a stream without a session, and resolves like [`poll_settled`](Self::poll_settled).
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_settled_behind(cx, |state| {
            let is_first = !state.machine.is_shutdown();
            state.machine.shutdown();
            is_first
        })
    }

    /// Resolves like [`poll_settled`](Self::poll_settled). `begin` is called before each attempt, and returns whether messages may be due
    /// because of it.
    fn poll_settled_behind(
        &self,
        cx: &mut Context<'_>,
        begin: impl Fn(&mut State) -> bool,
    ) -> Poll<io::Result<()>> {
        let budget = ready!(coop::poll_proceed(cx));
        self.inner.wakers.register(Side::Writer, cx.waker());
        let attempt = |state: &mut State, collected: bool| {
            if begin(state) {
                self.advance(state);
            }
            if !collected {
                return None;
            }
            let sent = !self.frames || self.queue_pair.provider().takes_messages(&self.completed);
            let sent = sent && !state.standing.is_closing();
            if sent && state.machine.is_settled() && self.is_confirmed(state) {
                return Some(Ok(()));
            }
            match state.broken() {
                Some(ended) if is_good_order(state, ended) => Some(Ok(())),
                ended => ended.cloned().map(|broken| Err(broken.into())),
            }
        };
        let attempt = |state: &mut State, collected| state.if_here(|state| attempt(state, collected));
        let wait = |state: &mut State| state.waits[Side::Writer as usize].polled();
        let outcome = ready!(self.poll_registered(cx, Side::Writer, wait, attempt));
        budget.made_progress();
        Poll::Ready(outcome)
    }

    /// Returns whether the peer's device has confirmed that it has received everything, and the end behind it.
    pub(crate) fn has_confirmation(&self) -> bool {
        self.lock().confirmation == Confirmation::Received
    }

    /// Returns whether the peer has confirmed that it has received everything, and sends no more.
    pub(crate) fn is_over(&self) -> bool {
        let mut state = self.lock();
        self.collect_incoming(&mut state);
        let State { machine, confirmation, .. } = &*state;
        *confirmation == Confirmation::Received && machine.is_settled() && machine.is_peer_done()
    }

    /// Returns whether the peer's device has received what was sent, as far as that can be known.
    fn is_confirmed(&self, state: &State) -> bool {
        // A peer that has disconnected knows the end of this side, or no longer takes data.
        !self.confirms
            || state.machine.has_peer_disconnected()
            || state.confirmation == Confirmation::Received
    }

    /// Returns the outcome of `attempt`, or `WouldBlock` if it has none.
    fn try_for<T>(
        &self,
        side: Side,
        mut attempt: impl FnMut(&mut State, bool) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let mut state = self.lock();
        // This call does not wait, so no wait of before is left either.
        state.waits[side as usize].end();
        if let Some(outcome) = state.if_here(|state| attempt(state, false)) {
            return outcome;
        }
        drop(state);
        self.queues.incoming.progress();
        let mut state = self.lock();
        for _ in 0..TURNS {
            let more = self.collect(&mut state, side);
            if let Some(outcome) = state.if_here(|state| attempt(state, !more)) {
                return outcome;
            }
            if !more {
                break;
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Returns the error of a write that cannot succeed any longer.
fn broken_pipe(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, why)
}

/// Returns the number of bytes in the inbox that can be read: all that have come. While messages wait, only those that a message
/// has announced, so that the credits of a reader keep pace with it; and nothing behind the end of file, or a violation of the protocol.
fn unread_of(state: &State, inbox: &StreamInbox) -> usize {
    let readable = inbox.readable();
    let has_violated = matches!(state.ended, Some(StreamBroken::Protocol(_)));
    if inbox.is_empty() && !state.machine.is_peer_done() && !has_violated {
        readable
    } else {
        readable.min(state.machine.unread_with(0))
    }
}

/// Returns the outcome of a read if there is nothing to be read; `None` if data may still come.
fn end_of_read(state: &mut State, collected: bool) -> Option<io::Result<()>> {
    // Data that arrived before the end counts.
    if !collected {
        return None;
    }
    if is_peer_done(state) {
        state.takes_late_write = false;
        return Some(Ok(()));
    }
    state.broken().cloned().map(|broken| Err(broken.into()))
}

/// Returns whether the peer has sent the end of file.
fn is_peer_done(state: &State) -> bool {
    // If a program in C has exited, its kernel has disconnected in good order: a socket would end like that, too.
    let has_disconnected = state.ended == Some(StreamBroken::Connection(DisconnectReason::Peer));
    state.machine.is_peer_done() || has_disconnected && state.machine.is_end_silent()
}

/// Returns whether the peer has sent the end of file and takes no data: it has closed the stream, or the connection has ended.
fn has_peer_left(state: &State) -> bool {
    use DisconnectReason::{Lost, Peer};
    let has_ended = matches!(state.broken(), Some(StreamBroken::Connection(Peer | Lost { .. })));
    state.machine.is_peer_gone() || has_ended && is_peer_done(state)
}

/// Returns whether the connection was ended by a peer that no longer takes data: messages that were on their way are
/// lost then.
pub(super) fn is_good_order(state: &State, ended: &StreamBroken) -> bool {
    let by_peer = *ended == StreamBroken::Connection(DisconnectReason::Peer);
    state.machine.has_peer_disconnected() || by_peer && state.machine.is_peer_gone()
}
