//! The engine of a stream: reads, writes, and the processing of completions.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures::FutureExt;
use tokio::io::ReadBuf;
use tokio::runtime::Handle;

use super::bells::{Bells, Side};
use super::config::StreamConfig;
use super::resources::{ENTRIES, Memory, Queues, RING, StreamResources};
use crate::cm::Connection;
use crate::error::{NotifyError, PostErrorKind, ProtocolError, StreamBroken};
use crate::metrics::Traffic;
use crate::mr::RemoteRegion;
use crate::proto::rsocket::{Carrier, Control, Event, Hello, Machine, Message, Span, Transfer};
use crate::qp::{CompletionQueue, Notify, NotifyKind, QueuePair, WorkCompletion, WorkOptions};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard, Spin};
use crate::types::{DisconnectReason, OpKind, RemoteKey};

/// How many completions are polled at once.
const RESULTS: usize = 64;

/// How often one poll of the stream polls the queues before it yields to other tasks.
const TURNS: usize = 16;

/// The kinds of requests of the send queue, as contexts in the completion queue.
const DATA: u64 = 0;
const CONTROL: u64 = 1;

/// One end of a stream. The fields are dropped in this order: the connection ends before its memory does.
pub(super) struct StreamInner {
    connection: Connection,
    queue_pair: QueuePair,
    queues: Queues,
    memory: Memory,
    carrier: Carrier,
    config: StreamConfig,
    inline: usize,
    traffic: Traffic,
    /// The runtime for the remaining work when the stream is dropped.
    runtime: Option<Handle>,
    bells: Arc<Bells>,
    /// The wakers of the receive queue and of the send queue.
    received: Waker,
    completed: Waker,
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    /// A scratch list for completions, empty between calls.
    results: Vec<WorkCompletion>,
    /// The next slots for outgoing messages and entries.
    messages: usize,
    entries: usize,
    /// The end of the connection, or an error after which nothing can be sent.
    ended: Option<StreamBroken>,
    /// `ended` has just been set. It is logged and counted when the lock is released.
    news: bool,
    /// The pending notifications of the two completion queues.
    receives: Option<Notify>,
    completions: Option<Notify>,
    /// How long each side polls before it sleeps.
    spins: [Spin; 2],
}

/// The locked state. No foreign code runs while it is locked: wakers and subscribers run when this guard is dropped.
struct Held<'a> {
    end: &'a StreamInner,
    guard: Option<MutexGuard<'a, State>>,
}

impl Deref for Held<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.guard.as_ref().expect("held until dropped")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("held until dropped")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let news = std::mem::take(&mut self.news).then(|| self.ended.clone()).flatten();
        self.end.bells.let_go();
        self.guard = None;
        self.end.bells.wake();
        if let Some(broken) = news {
            self.end.traffic.broken(broken.status());
            tracing::debug!(connection = %self.end.connection.id(), %broken, "stream broken");
        }
    }
}

/// The source of the bytes of a write.
enum Source<'a> {
    /// A range of the memory of this end.
    Own(Range<usize>),
    /// Bytes that the posting call copies.
    Inline(&'a [&'a [u8]]),
}

impl StreamInner {
    /// The end of a connection that is established, with a peer that said this. `speaks`: whether this end may be the
    /// first to send.
    pub(super) fn new(prepared: StreamResources, connection: Connection, peer: Hello, speaks: bool) -> Self {
        let StreamResources { settings, config, memory, queues, queue_pair, inline } = prepared;
        let state = State {
            machine: Machine::new(settings, peer, speaks),
            results: Vec::with_capacity(RESULTS),
            messages: 0,
            entries: 0,
            ended: None,
            news: false,
            receives: None,
            completions: None,
            spins: [Spin::new(config.spin); 2],
        };
        let bells = Arc::<Bells>::default();
        let end = Self {
            connection,
            queue_pair,
            queues,
            memory,
            carrier: settings.carrier,
            config,
            inline,
            traffic: Traffic::new("stream"),
            runtime: Handle::try_current().ok(),
            received: bells.for_receives(),
            completed: bells.for_completions(),
            bells,
            state: Mutex::new(state),
        };
        // The peer may fill the second half of the ring, too; and over iWARP the active end has to speak first.
        end.advance(&mut end.hold());
        end
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn config(&self) -> &StreamConfig {
        &self.config
    }

    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    fn hold(&self) -> Held<'_> {
        let guard = self.state.lock();
        self.bells.hold();
        Held { end: self, guard: Some(guard) }
    }

    /// Reads the bytes that have arrived, up to the room in `into`.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let before = into.remaining();
        let outcome = ready!(self.poll_for(cx, Side::Reader, |state, collected| {
            if self.copy_out(state, into) {
                return Some(Ok(()));
            }
            match &state.ended {
                // What arrived before that counts.
                _ if !collected => None,
                _ if state.machine.is_peer_done() => Some(Ok(())),
                ended => ended.clone().map(|broken| Err(broken.into())),
            }
        }));
        budget.made_progress();
        self.traffic.received(before - into.remaining());
        Poll::Ready(outcome)
    }

    /// Copies unread bytes to `into`. Returns whether there were any.
    fn copy_out(&self, state: &mut State, into: &mut ReadBuf<'_>) -> bool {
        let before = into.remaining();
        while into.remaining() > 0 {
            let unread = state.machine.unread();
            let length = unread.len().min(into.remaining());
            if length == 0 || self.memory.exposed.read_to(RING + unread.start, length, into).is_err() {
                break;
            }
            state.machine.consume(length);
        }
        let read = into.remaining() < before;
        if read {
            self.advance(state);
        }
        read
    }

    /// Writes one message, as long as the peer and the ring have room for.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let wanted = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let mut waited = false;
        let outcome = self.poll_for(cx, Side::Writer, |state, collected| {
            if state.machine.is_shutdown() {
                let error = io::Error::new(io::ErrorKind::BrokenPipe, "the stream has been shut down");
                return Some(Err(error));
            }
            if wanted == 0 {
                return Some(Ok(0));
            }
            let room = if state.ended.is_none() { state.machine.room().min(wanted) } else { 0 };
            // There may be more room, or no peer any more.
            if room > 0 && (collected || room == wanted && self.queues.receives.is_empty()) {
                return Some(self.copy_in(state, parts, room).map_err(Into::into));
            }
            waited = collected;
            match &state.ended {
                _ if !collected => None,
                _ if state.machine.is_peer_gone() => {
                    let error = io::Error::new(io::ErrorKind::BrokenPipe, "the peer has closed the stream");
                    Some(Err(error))
                }
                ended => ended.clone().map(|broken| Err(broken.into())),
            }
        });
        if waited {
            self.traffic.exhausted();
        }
        let outcome = ready!(outcome);
        budget.made_progress();
        if let Ok(length) = &outcome {
            self.traffic.sent(*length);
        }
        Poll::Ready(outcome)
    }

    /// Resolves when this end may send, or when the connection has ended.
    pub(super) fn poll_speaks(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_for(cx, Side::Reader, |state, _| {
            (state.machine.speaks() || state.ended.is_some()).then_some(())
        })
    }

    /// Lets this end send although the peer has sent nothing.
    pub(super) fn speak(&self) {
        let mut state = self.hold();
        state.machine.speak();
        self.advance(&mut state);
    }

    /// Copies the first `length` bytes to the ring and posts them.
    ///
    /// # Errors
    /// Nothing was posted, and the stream is broken.
    fn copy_in(
        &self,
        state: &mut State,
        parts: &[IoSlice<'_>],
        length: usize,
    ) -> Result<usize, StreamBroken> {
        let mut left = length;
        let parts = parts.iter().map(move |part| {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            part
        });
        let at = state.machine.send_at();
        let inline: Option<Vec<&[u8]>> = (length <= self.inline).then(|| parts.clone().collect());
        if inline.is_none() {
            let mut place = at;
            for part in parts {
                // It is in bounds: the machine has said that there is room.
                let _ = self.memory.own.write(place, part);
                place += part.len();
            }
        }
        let Transfer { from, to, message } = state.machine.transfer(length);
        let source = inline.as_deref().map_or(Source::Own(from), Source::Inline);
        self.post(state, Some((source, to)), message, DATA).map(|()| length).map_err(|kind| {
            self.refused(state, kind);
            state.ended.clone().unwrap_or(StreamBroken::Post(kind))
        })
    }

    /// Resolves when all sends have completed and, after a shutdown, the end of this direction has been sent to the
    /// peer.
    pub(super) fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_for(cx, Side::Writer, |state, collected| {
            self.advance(state);
            match &state.ended {
                _ if !collected => None,
                _ if state.machine.is_settled() => Some(Ok(())),
                // It went in good order, and takes what was on its way with it.
                Some(_) if state.machine.is_peer_gone() => Some(Ok(())),
                ended => ended.clone().map(|broken| Err(broken.into())),
            }
        })
    }

    /// Ends this direction. Returns `true` if its end has been sent to the peer or need not be sent.
    pub(super) fn shutdown(&self) -> bool {
        let mut state = self.hold();
        state.machine.shutdown();
        self.advance(&mut state);
        state.machine.has_said_so() || state.ended.is_some()
    }

    /// Ends both directions.
    pub(super) fn disconnect(&self) {
        let mut state = self.hold();
        state.machine.disconnect();
        self.advance(&mut state);
    }

    /// Resolves when `attempt` returns a value. The argument of `attempt` is `true` if all completions have been
    /// collected.
    fn poll_for<T>(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        mut attempt: impl FnMut(&mut State, bool) -> Option<T>,
    ) -> Poll<T> {
        // The value is often available without polling the queues.
        if let Some(done) = attempt(&mut self.hold(), false) {
            return Poll::Ready(done);
        }
        self.bells.register(side, cx.waker());
        self.queues.receives.progress();
        let mut state = self.hold();
        for _ in 0..TURNS {
            if self.collect(&mut state, side) {
                if let Some(done) = attempt(&mut state, false) {
                    state.spins[side as usize - 1].stop();
                    return Poll::Ready(done);
                }
                continue;
            }
            if let Some(done) = attempt(&mut state, true) {
                state.spins[side as usize - 1].stop();
                return Poll::Ready(done);
            }
            if !self.listen(&mut state, side) {
                let spin = &mut state.spins[side as usize - 1];
                if !spin.is_started() {
                    spin.start();
                }
                let spinning = spin.is_spinning();
                drop(state);
                if spinning {
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
        }
        // The peer sends without a pause: other tasks have their turn first.
        drop(state);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Requests notifications of the queues, after all completions have been collected. Returns `true` if there are
    /// more already.
    fn listen(&self, state: &mut State, side: Side) -> bool {
        let mut news = self.ask(state, false);
        if side == Side::Writer || state.machine.is_control_blocked() {
            news |= self.ask(state, true);
        }
        news
    }

    /// Requests a notification of one queue. Returns `true` if it is due already.
    fn ask(&self, state: &mut State, completions: bool) -> bool {
        let (queue, waker, asked) = if completions {
            (&self.queues.initiator, &self.completed, &mut state.completions)
        } else {
            (&self.queues.receives, &self.received, &mut state.receives)
        };
        let notify = asked.get_or_insert_with(|| queue.notify(NotifyKind::Any));
        let Poll::Ready(outcome) = notify.poll_unpin(&mut Context::from_waker(waker)) else { return false };
        *asked = None;
        match outcome {
            Ok(()) => true,
            // What was outstanding has ended with it. This cannot come to pass twice.
            Err(NotifyError::DeviceRemoved) => {
                let first = state.ended.is_none();
                self.collect_from(state, &self.queues.receives);
                self.end_with(state, StreamBroken::Connection(DisconnectReason::DeviceRemoved));
                first
            }
            Err(_) => {
                let first = state.ended.is_none();
                self.failed(state);
                first
            }
        }
    }

    /// Takes all results there are that matter to this side, and whether there were any.
    fn collect(&self, state: &mut State, side: Side) -> bool {
        let mut any = self.collect_from(state, &self.queues.receives);
        if side == Side::Writer || state.machine.is_control_blocked() {
            any |= self.collect_from(state, &self.queues.initiator);
        }
        if any {
            self.advance(state);
        }
        any
    }

    fn collect_from(&self, state: &mut State, queue: &CompletionQueue) -> bool {
        let mut results = std::mem::take(&mut state.results);
        let mut any = false;
        for _ in 0..TURNS {
            let count = queue.take(RESULTS, &mut results);
            any |= count > 0;
            for result in results.drain(..) {
                self.handle(state, result);
            }
            if count < RESULTS {
                break;
            }
        }
        state.results = results;
        any
    }

    fn handle(&self, state: &mut State, result: WorkCompletion) {
        match (result.status, result.kind) {
            // Nothing that it says counts any more.
            (_, OpKind::Receive) if matches!(state.ended, Some(StreamBroken::Protocol(_))) => {}
            (Status::SUCCESS, OpKind::Receive) => {
                if let Err(error) = self.receive(state, &result) {
                    // The peer cannot be trusted any more.
                    self.end_with(state, StreamBroken::Protocol(error));
                    self.queue_pair.flush();
                }
            }
            (Status::SUCCESS, _) if result.context == DATA => state.machine.transferred(),
            (Status::SUCCESS, _) => state.machine.controlled(),
            _ => self.failed(state),
        }
    }

    fn receive(&self, state: &mut State, result: &WorkCompletion) -> Result<(), ProtocolError> {
        // The number of a receive is that of its slot.
        let slot = usize::try_from(result.context).unwrap_or_default();
        let message = match (self.carrier, result.immediate) {
            (Carrier::Immediate, Some(word)) => Message::decode(word)?,
            (Carrier::Send, None) if result.bytes == Message::LEN => {
                Message::from_bytes(self.memory.received(slot), state.machine.peer_is_big_endian())?
            }
            _ => return Err(ProtocolError::Length(result.bytes)),
        };
        // If it can not be posted, the others end soon and say why.
        let _ = self.memory.post_receive(&self.queue_pair, self.carrier, slot);
        if state.machine.received(message)? == Event::Targets {
            let index = state.machine.next_target();
            if state.machine.offered(self.memory.target(index))? {
                self.memory.clear_target(index);
            }
        }
        Ok(())
    }

    /// Posts the control messages that are due.
    fn advance(&self, state: &mut State) {
        loop {
            while state.ended.is_none()
                && let Some(control) = state.machine.control()
            {
                if let Err(kind) = self.post_control(state, control) {
                    self.refused(state, kind);
                }
            }
            let blocked = state.machine.is_control_blocked() && state.ended.is_none();
            self.bells.set_eager(blocked);
            // One that is on its way may have completed: nobody else would look. Else its completion rings for everybody.
            if !blocked || !(self.collect_from(state, &self.queues.initiator) || self.ask(state, true)) {
                return;
            }
        }
    }

    fn post_control(&self, state: &mut State, control: Control) -> Result<(), PostErrorKind> {
        let target = control.target.map(|(entry, place)| {
            let start = self.memory.entries + state.entries * Span::LEN;
            state.entries = (state.entries + 1) % ENTRIES;
            // The places are in bounds.
            let _ = self.memory.own.write(start, &entry);
            (Source::Own(start..start + Span::LEN), place)
        });
        self.post(state, target, control.message, CONTROL)
    }

    /// Posts a message, and a write before it.
    fn post(
        &self,
        state: &mut State,
        write: Option<(Source<'_>, Span)>,
        message: Message,
        context: u64,
    ) -> Result<(), PostErrorKind> {
        let options = WorkOptions::default().context(context);
        match (self.carrier, write) {
            (Carrier::Immediate, write) => {
                // A message without data is an empty write.
                let (source, to) = write.unwrap_or((Source::Inline(&[]), Span::default()));
                self.write(&self.queue_pair, source, to, options.immediate(message.encode()))
            }
            (Carrier::Send, None) => self.send(&self.queue_pair, state, message, options),
            (Carrier::Send, Some((source, to))) => {
                let batch = self.queue_pair.batch();
                // The completion of the send that follows is enough.
                self.write(&batch, source, to, WorkOptions::default().silent())?;
                self.send(&batch, state, message, options)
            }
        }
    }

    fn write(
        &self,
        queue_pair: &QueuePair,
        source: Source<'_>,
        to: Span,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        let to = RemoteRegion::new(to.address, RemoteKey(to.key), to.length);
        match source {
            Source::Own(range) => {
                let slice = self.memory.own.slice(range).map_err(|_| PostErrorKind::AccessViolation)?;
                queue_pair.write_with(slice, &to, options).map(drop).map_err(|error| error.kind)
            }
            Source::Inline([]) => {
                queue_pair.write_with((), &to, options).map(drop).map_err(|error| error.kind)
            }
            Source::Inline(parts) => queue_pair.write_inline(parts, &to, options).map(drop),
        }
    }

    /// Sends a message as librdmacm does on iWARP.
    fn send(
        &self,
        queue_pair: &QueuePair,
        state: &mut State,
        message: Message,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        if self.inline >= Message::LEN {
            return queue_pair.send_inline(&[&message.to_bytes()], options).map(drop);
        }
        let start = self.memory.outgoing + state.messages * Message::LEN;
        state.messages = (state.messages + 1) % self.config.send_depth;
        // The places are in bounds.
        let _ = self.memory.own.write(start, &message.to_bytes());
        let slice = self.memory.own.slice(start..start + Message::LEN);
        let slice = slice.map_err(|_| PostErrorKind::AccessViolation)?;
        queue_pair.send_with(slice, options).map(drop).map_err(|error| error.kind)
    }

    /// Handles a failed request: the stream ends with the reason of the connection.
    fn failed(&self, state: &mut State) {
        // The reason is known before the first request completes.
        let reason = self.connection.disconnected().now_or_never().unwrap_or(DisconnectReason::Local);
        if matches!(state.ended, Some(StreamBroken::Post(_))) {
            state.ended = None;
        }
        self.end_with(state, StreamBroken::Connection(reason));
    }

    /// Handles a request that could not be posted. The stream has a gap then, so the connection is ended if it has not
    /// ended before.
    fn refused(&self, state: &mut State, kind: PostErrorKind) {
        match self.connection.disconnected().now_or_never() {
            Some(reason) => self.end_with(state, StreamBroken::Connection(reason)),
            None => {
                self.end_with(state, StreamBroken::Post(kind));
                self.queue_pair.flush();
            }
        }
    }

    fn end_with(&self, state: &mut State, broken: StreamBroken) {
        if state.ended.is_none() {
            state.ended = Some(broken);
            state.news = true;
        }
    }
}

impl fmt::Debug for StreamInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamInner").field("connection", &self.connection).finish_non_exhaustive()
    }
}
