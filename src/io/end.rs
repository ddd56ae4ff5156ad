//! One end of a stream: its memory, its queue pair, and the machine that says what goes through them.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures::FutureExt;
use tokio::io::ReadBuf;
use tokio::runtime::Handle;

use super::config::StreamConfig;
use crate::cm::{Adapter, Connection};
use crate::error::{PostErrorKind, ProtocolError, StreamBroken, StreamError};
use crate::metrics::Traffic;
use crate::mr::{Region, RemoteRegion};
use crate::proto::rsocket::{
    Carrier, Control, Event, Hello, Machine, Message, Settings, Span, TARGETS, Transfer,
};
use crate::qp::{
    CompletionQueue, CompletionQueueConfig, Notify, NotifyKind, QueuePair, QueuePairConfig, WorkOptions,
    WorkResult,
};
use crate::status::Status;
use crate::types::{Access, DisconnectReason, OpKind, RemoteKey};

/// The list of targets, at the start of the exposed memory; the ring is behind it, where a cache line begins.
const RING: usize = 64;

/// Entries for the peer's list that are on their way: as many as control messages can be.
const ENTRIES: usize = 4;

/// How many results are taken at once.
const RESULTS: usize = 64;

/// What the numbers of initiator requests in the completion queue mean.
const DATA: u64 = 0;
const CONTROL: u64 = 1;

/// What is made before the peer is asked, or answered.
pub(super) struct Prepared {
    settings: Settings,
    config: StreamConfig,
    memory: Memory,
    queues: Queues,
    queue_pair: QueuePair,
}

/// Where results come: those of receives apart from the others, which nobody waits for as long as there is room for more.
/// With one queue every write would wake the reader.
struct Queues {
    receives: CompletionQueue,
    initiator: CompletionQueue,
}

/// Registered memory.
struct Memory {
    /// The list of targets and the ring: the peer writes them.
    exposed: Region,
    /// The ring that is sent from, then messages to be sent, entries for the peer's list, and messages received.
    own: Region,
    /// Where these begin.
    outgoing: usize,
    entries: usize,
    incoming: usize,
}

impl Prepared {
    /// Makes the queues and the memory, and posts all receives.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub(super) async fn new(adapter: &Adapter, config: &StreamConfig) -> Result<Self, StreamError> {
        let info = adapter.info();
        let config = config.on(&info)?;
        let carrier = if info.iwarp { Carrier::Send } else { Carrier::Immediate };
        let (sends, receives) = (config.send_depth, config.receive_depth);
        let queue = |depth| {
            let queue = CompletionQueueConfig::default().depth(depth).spin(config.spin);
            adapter.completion_queue(queue)
        };
        let queues = Queues { receives: queue(receives)?, initiator: queue(sends)? };
        let queue_pair = QueuePairConfig::default()
            .initiator_depth(sends)
            .receive_depth(receives)
            .initiator_entries(1)
            .receive_entries(1)
            .receive_completions(&queues.receives)
            .initiator_completions(&queues.initiator);
        let queue_pair = adapter.queue_pair(queue_pair)?;

        let [send_buffer, receive_buffer] = config.buffers(&info);
        let outgoing = send_buffer.next_multiple_of(Span::LEN);
        let entries = outgoing + sends * Message::LEN;
        let entries = entries.next_multiple_of(Span::LEN);
        let incoming = entries + ENTRIES * Span::LEN;
        let length = match carrier {
            Carrier::Send => incoming + receives * Message::LEN,
            Carrier::Immediate => incoming,
        };
        let exposed = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let exposed = adapter.register(RING + receive_buffer, exposed).await?;
        let own = adapter.register(length, Access::LOCAL_WRITE).await?;

        // The lengths are checked: they fit.
        let span = |region: RemoteRegion| Span {
            address: region.address(),
            key: region.key().0,
            length: region.len(),
        };
        let part = |range| exposed.remote_part(range).map_or_else(|_| Span::default(), span);
        let settings = Settings {
            carrier,
            ring: part(RING..exposed.len()),
            targets: Span { length: TARGETS as u32, ..part(0..TARGETS * Span::LEN) },
            receives: u16::try_from(receives).unwrap_or(u16::MAX),
            send_ring: send_buffer,
            send_entries: sends,
        };
        let memory = Memory { exposed, own, outgoing, entries, incoming };
        for slot in 0..receives {
            memory.post_receive(&queue_pair, carrier, slot)?;
        }
        Ok(Self { settings, config, memory, queues, queue_pair })
    }

    pub(super) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// The private data that says what this end brings.
    pub(super) fn private_data(&self) -> [u8; Hello::LEN] {
        self.settings.hello().to_bytes()
    }

    /// The end of a connection that is established, with a peer that said this. `speaks`: whether this end may be the
    /// first to send.
    pub(super) fn open(self, connection: Connection, peer: Hello, speaks: bool) -> End {
        let Self { settings, config, memory, queues, queue_pair } = self;
        let machine = Machine::new(settings, peer, speaks);
        let state = State {
            machine,
            results: Vec::with_capacity(RESULTS),
            messages: 0,
            entries: 0,
            ended: None,
            reader: Waiter::default(),
            writer: Waiter::default(),
            waited: false,
        };
        let end = End {
            carrier: settings.carrier,
            config,
            memory,
            queues,
            queue_pair,
            connection,
            traffic: Traffic::new("stream"),
            runtime: Handle::try_current().ok(),
            state: Mutex::new(state),
        };
        // The peer may fill the second half of the ring, too; and over iWARP the active end has to speak first.
        end.advance(&mut end.lock());
        end
    }
}

impl Memory {
    fn post_receive(
        &self,
        queue_pair: &QueuePair,
        carrier: Carrier,
        slot: usize,
    ) -> Result<(), PostErrorKind> {
        let context = slot as u64;
        match carrier {
            Carrier::Immediate => queue_pair.receive_with((), context).map(drop).map_err(|error| error.kind),
            Carrier::Send => {
                let place = self.incoming + slot * Message::LEN;
                let Ok(slice) = self.own.slice(place..place + Message::LEN) else {
                    return Err(PostErrorKind::AccessViolation);
                };
                queue_pair.receive_with(slice, context).map(drop).map_err(|error| error.kind)
            }
        }
    }

    /// The message that a receive has left here.
    fn received(&self, slot: usize) -> [u8; Message::LEN] {
        let mut bytes = [0; Message::LEN];
        // The slots are in bounds.
        let _ = self.own.read(self.incoming + slot * Message::LEN, &mut bytes);
        bytes
    }

    /// An entry of the list that the peer writes. Read until two looks agree: it may be written just now.
    fn target(&self, index: usize) -> Span {
        let look = || {
            let mut bytes = [0; Span::LEN];
            let _ = self.exposed.read(index * Span::LEN, &mut bytes);
            Span::from_native(bytes)
        };
        let mut seen = look();
        // A peer that never stops writing is left with whatever was seen last.
        for _ in 0..ENTRIES {
            let again = look();
            if again == seen {
                break;
            }
            seen = again;
        }
        seen
    }

    fn clear_target(&self, index: usize) {
        let _ = self.exposed.write(index * Span::LEN, &[0; Span::LEN]);
    }
}

/// One end of a stream.
pub(super) struct End {
    carrier: Carrier,
    config: StreamConfig,
    memory: Memory,
    queues: Queues,
    queue_pair: QueuePair,
    connection: Connection,
    traffic: Traffic,
    /// Where what is left is done when the stream is dropped.
    runtime: Option<Handle>,
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    /// Taken from a completion queue, and empty between calls.
    results: Vec<WorkResult>,
    /// The next places for messages and entries that go out.
    messages: usize,
    entries: usize,
    /// The connection is over, or nothing more can be done with it.
    ended: Option<StreamBroken>,
    reader: Waiter,
    writer: Waiter,
    /// The write that is under way has found no room.
    waited: bool,
}

/// What one of the two waits for.
#[derive(Default)]
struct Waiter {
    received: Option<Notify>,
    completed: Option<Notify>,
}

/// Which of the two waits.
#[derive(Clone, Copy)]
enum Side {
    Reader,
    Writer,
}

impl State {
    fn waiter(&mut self, side: Side) -> &mut Waiter {
        match side {
            Side::Reader => &mut self.reader,
            Side::Writer => &mut self.writer,
        }
    }

    /// Whether requests of this end that complete are news: to a reader only when they keep it from giving credits.
    fn minds_completions(&self, side: Side) -> bool {
        matches!(side, Side::Writer) || self.machine.is_control_blocked()
    }
}

impl End {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn config(&self) -> &StreamConfig {
        &self.config
    }

    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what has arrived, as much as there is room for.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let mut state = self.lock();
        loop {
            let state = &mut *state;
            if self.copy_out(state, into) {
                break;
            }
            if self.collect(state, Side::Reader) {
                continue;
            }
            if state.machine.is_peer_done() {
                break;
            }
            if let Some(broken) = &state.ended {
                return Poll::Ready(Err(broken.clone().into()));
            }
            ready!(self.poll_news(state, Side::Reader, cx));
        }
        state.reader = Waiter::default();
        budget.made_progress();
        Poll::Ready(Ok(()))
    }

    /// Whether there was anything.
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
            self.traffic.received(before - into.remaining());
            self.advance(state);
        }
        read
    }

    /// Writes as much as the peer and the ring have room for: one message.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let mut state = self.lock();
        let length = loop {
            let state = &mut *state;
            if state.machine.is_shutdown() {
                return Poll::Ready(Err(closed_here()));
            }
            if wanted == 0 {
                break 0;
            }
            let room = if state.ended.is_none() { state.machine.room().min(wanted) } else { 0 };
            if room == wanted {
                break room;
            }
            // There may be more.
            if self.collect(state, Side::Writer) {
                continue;
            }
            if room > 0 {
                break room;
            }
            if state.machine.is_peer_gone() {
                let error = io::Error::new(io::ErrorKind::BrokenPipe, "the peer has closed the stream");
                return Poll::Ready(Err(error));
            }
            if let Some(broken) = &state.ended {
                return Poll::Ready(Err(broken.clone().into()));
            }
            if !std::mem::replace(&mut state.waited, true) {
                self.traffic.exhausted();
            }
            ready!(self.poll_news(state, Side::Writer, cx));
        };
        state.writer = Waiter::default();
        state.waited = false;
        budget.made_progress();
        if length > 0 {
            self.copy_in(&mut state, parts, length);
        }
        Poll::Ready(Ok(length))
    }

    /// Puts the first `length` bytes into the ring, and posts them.
    fn copy_in(&self, state: &mut State, parts: &[IoSlice<'_>], length: usize) {
        let start = state.machine.send_at();
        let mut done = 0;
        for part in parts {
            let bytes = &part[..part.len().min(length - done)];
            // It is in bounds: the machine has said that there is room.
            let _ = self.memory.own.write(start + done, bytes);
            done += bytes.len();
            if done == length {
                break;
            }
        }
        self.traffic.sent(length);
        let transfer = state.machine.transfer(length);
        if let Err(kind) = self.post_transfer(state, transfer) {
            self.end(state, Some(kind));
        }
    }

    /// Ready when nothing that was written is on its way any more, and the peer has been told if nothing follows.
    pub(super) fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        loop {
            let state = &mut *state;
            self.advance(state);
            if self.collect(state, Side::Writer) {
                continue;
            }
            if state.machine.is_settled() {
                break;
            }
            match &state.ended {
                // It went in good order, and takes what was on its way with it.
                Some(_) if state.machine.is_peer_gone() => break,
                Some(broken) => return Poll::Ready(Err(broken.clone().into())),
                None => {}
            }
            ready!(self.poll_news(state, Side::Writer, cx));
        }
        state.writer = Waiter::default();
        Poll::Ready(Ok(()))
    }

    /// This end writes nothing any more.
    pub(super) fn shutdown(&self) {
        let mut state = self.lock();
        state.machine.shutdown();
        self.advance(&mut state);
    }

    /// This end does nothing any more.
    pub(super) fn disconnect(&self) {
        let mut state = self.lock();
        state.machine.disconnect();
        self.advance(&mut state);
    }

    /// Waits for results, after all that are there have been collected. Ready when it is worth another look.
    fn poll_news(&self, state: &mut State, side: Side, cx: &mut Context<'_>) -> Poll<()> {
        let completed = state.minds_completions(side);
        let waiter = state.waiter(side);
        let notify = |queue: &CompletionQueue| queue.notify(NotifyKind::Any);
        let mut outcome = waiter.received.get_or_insert_with(|| notify(&self.queues.receives)).poll_unpin(cx);
        if outcome.is_pending() && completed {
            let completed = waiter.completed.get_or_insert_with(|| notify(&self.queues.initiator));
            outcome = completed.poll_unpin(cx);
        }
        let outcome = ready!(outcome);
        *waiter = Waiter::default();
        if outcome.is_err() {
            // The adapter is gone: what was outstanding has ended with it.
            self.collect(state, Side::Writer);
            self.end(state, None);
        }
        Poll::Ready(())
    }

    /// Takes all results there are that matter to this side, and whether there were any.
    fn collect(&self, state: &mut State, side: Side) -> bool {
        let mut results = std::mem::take(&mut state.results);
        let mut any = false;
        let completed = state.minds_completions(side).then_some(&self.queues.initiator);
        for queue in [&self.queues.receives].into_iter().chain(completed) {
            loop {
                let count = queue.poll(RESULTS, &mut results);
                any |= count > 0;
                for result in results.drain(..) {
                    self.handle(state, result);
                }
                if count < RESULTS {
                    break;
                }
            }
        }
        state.results = results;
        if any {
            self.advance(state);
        }
        any
    }

    fn handle(&self, state: &mut State, result: WorkResult) {
        match (result.status, result.kind) {
            // Nothing that it says counts any more.
            (_, OpKind::Receive) if matches!(state.ended, Some(StreamBroken::Protocol(_))) => {}
            (Status::SUCCESS, OpKind::Receive) => {
                if let Err(error) = self.receive(state, &result) {
                    self.break_off(state, error);
                }
            }
            (Status::SUCCESS, _) if result.context == DATA => state.machine.transferred(),
            (Status::SUCCESS, _) => state.machine.controlled(),
            _ => self.end(state, None),
        }
    }

    fn receive(&self, state: &mut State, result: &WorkResult) -> Result<(), ProtocolError> {
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
        while state.ended.is_none()
            && let Some(control) = state.machine.control()
        {
            if let Err(kind) = self.post_control(state, control) {
                self.end(state, Some(kind));
            }
        }
    }

    fn post_transfer(&self, state: &mut State, transfer: Transfer) -> Result<(), PostErrorKind> {
        let Transfer { from, to, message } = transfer;
        self.post(state, Some((from, to)), message, DATA)
    }

    fn post_control(&self, state: &mut State, control: Control) -> Result<(), PostErrorKind> {
        let target = control.target.map(|(entry, place)| {
            let start = self.memory.entries + state.entries * Span::LEN;
            state.entries = (state.entries + 1) % ENTRIES;
            // The places are in bounds.
            let _ = self.memory.own.write(start, &entry);
            (start..start + Span::LEN, place)
        });
        self.post(state, target, control.message, CONTROL)
    }

    /// Posts a message, and what is written before it.
    fn post(
        &self,
        state: &mut State,
        write: Option<(std::ops::Range<usize>, Span)>,
        message: Message,
        context: u64,
    ) -> Result<(), PostErrorKind> {
        let slice = |range| self.memory.own.slice(range).map_err(|_| PostErrorKind::AccessViolation);
        let options = WorkOptions::default().context(context);
        let write = match write {
            Some((range, to)) => {
                Some((slice(range)?, RemoteRegion::new(to.address, RemoteKey(to.key), to.length)))
            }
            None => None,
        };
        match (self.carrier, write) {
            (Carrier::Immediate, Some((from, to))) => {
                let options = options.immediate(message.encode());
                self.queue_pair.write_with(from, &to, options).map(drop).map_err(|error| error.kind)
            }
            (Carrier::Immediate, None) => {
                let (nowhere, options) =
                    (RemoteRegion::new(0, RemoteKey(0), 0), options.immediate(message.encode()));
                self.queue_pair.write_with((), &nowhere, options).map(drop).map_err(|error| error.kind)
            }
            (Carrier::Send, write) => {
                let start = self.memory.outgoing + state.messages * Message::LEN;
                state.messages = (state.messages + 1) % self.config.send_depth;
                // The places are in bounds.
                let _ = self.memory.own.write(start, &message.to_bytes());
                let message = slice(start..start + Message::LEN)?;
                let Some((from, to)) = write else {
                    return self.queue_pair.send_with(message, options).map(drop).map_err(|error| error.kind);
                };
                let batch = self.queue_pair.batch();
                // The send behind it tells of it, too.
                let silent = WorkOptions::default().silent();
                batch.write_with(from, &to, silent).map(drop).map_err(|error| error.kind)?;
                batch.send_with(message, options).map(drop).map_err(|error| error.kind)
            }
        }
    }

    /// The peer cannot be trusted any more.
    fn break_off(&self, state: &mut State, error: ProtocolError) {
        tracing::debug!(connection = %self.connection.id(), %error, "the peer broke the protocol of the stream");
        if state.ended.is_none() {
            self.ended_by(state, StreamBroken::Protocol(error));
        }
        self.queue_pair.flush();
    }

    /// A request failed, or could not be posted: the connection is over, and says why.
    fn end(&self, state: &mut State, kind: Option<PostErrorKind>) {
        if state.ended.is_some() {
            return;
        }
        // It is known before the first request finishes.
        let reason = self.connection.disconnected().now_or_never();
        let broken = match (reason, kind) {
            (Some(reason), _) => StreamBroken::Connection(reason),
            (None, Some(kind)) => StreamBroken::Post(kind),
            (None, None) => StreamBroken::Connection(DisconnectReason::Local),
        };
        self.ended_by(state, broken);
    }

    fn ended_by(&self, state: &mut State, broken: StreamBroken) {
        let orderly = match &broken {
            StreamBroken::Connection(DisconnectReason::Peer) => state.machine.is_peer_gone(),
            StreamBroken::Connection(reason) => *reason == DisconnectReason::Local,
            _ => false,
        };
        if !orderly {
            self.traffic.broken(broken.status());
        }
        state.ended = Some(broken);
    }
}

fn closed_here() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the stream has been shut down")
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("connection", &self.connection).finish_non_exhaustive()
    }
}
