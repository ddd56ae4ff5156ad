//! The engine of a stream: its state, its wakers, and the processing of completions.

#[cfg(feature = "inspect")]
mod inspect;
mod one_sided;
mod post;
mod session;
mod transfer;
mod wakers;

pub use one_sided::OneSided;
pub(super) use session::{Loss, Moved};
pub(super) use wakers::Side;

use std::future::poll_fn;
use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{coop, yield_now};

use super::resources::{Incoming, Memory, Queues, StreamResources};
use crate::cm::{Adapter, Connection};
use crate::error::{NotifyError, PostErrorKind, ProtocolError, StreamBroken};
use crate::inflight::{StreamNews, StreamSend, StreamSink, WORD, WakeList};
use crate::inspect::{Flow, FutureWait, PolledWait};
#[cfg(feature = "inspect")]
use crate::inspect::{Mark, Place};
use crate::metrics::Traffic;
use crate::proto::rsocket::{Carrier, Event, Hello, Machine, Message};
use crate::qp::{CompletionQueue, Notify, NotifyKind, QueuePair, WorkCompletion};
use crate::status::Status;
use crate::sync::{AdaptiveSpin, Mutex, MutexGuard, current_runtime};
use crate::types::{DisconnectReason, OpKind};
use post::PostedRequests;
use session::Standing;
use wakers::{Cause, Wakers};

/// The number of completions that are polled at once.
const RESULTS: usize = 64;

/// The number of times that one poll of the stream polls the queues before it yields to other tasks.
const TURNS: usize = 16;

/// The number of looks of a task that spins before others have their turn: some microseconds.
const LOOKS: usize = 4;

/// The kinds of requests of the send queue: the low bits of their contexts in the completion queue. The other bits are the
/// number of transfers that the completion covers.
const DATA: u64 = 0;
const CONTROL: u64 = 1;
const READ: u64 = 2;
const KIND_BITS: u32 = 2;
const KIND: u64 = (1 << KIND_BITS) - 1;

/// One end of a stream. The fields are dropped in this order: the connection ends before its memory does.
pub(super) struct StreamEngine {
    pub(super) connection: Connection,
    pub(super) adapter: Adapter,
    queue_pair: QueuePair,
    queues: Queues,
    memory: Option<Memory>,
    carrier: Carrier,
    /// The requests that may be outstanding in the send queue, and the time limit of a close, as configured.
    send_depth: usize,
    pub(super) close_timeout: Duration,
    inline: usize,
    /// The provider frames messages itself, out of the memory of the caller: nothing is posted for them.
    frames: bool,
    /// A send may complete before the peer's device has received it, and that device answers empty reads.
    confirms: bool,
    /// The most reads of memory of the peer at once.
    reads: usize,
    traffic: Traffic,
    /// What snapshots tell of the bytes.
    flow: Flow,
    /// The runtime for the remaining work when the stream is dropped.
    pub(super) runtime: Option<Handle>,
    /// The wakers of the receive queue, of the send queue, and of a provider that reads for the reader. The first and the last are made when
    /// they are needed: over soft nothing is received in a queue, and a provider seldom reads for the reader.
    received: OnceLock<Waker>,
    completed: Waker,
    reading: OnceLock<Waker>,
    /// The stream has left for another engine.
    has_moved: AtomicBool,
    inner: Arc<Inner>,
    /// When it was made, and its place among what snapshots look at.
    #[cfg(feature = "inspect")]
    inspected: (Mark, OnceLock<Place>),
}

/// The part of an end that a provider reaches with the messages of the peer.
struct Inner {
    state: Mutex<State>,
    wakers: Arc<Wakers>,
}

impl StreamSink for Inner {
    fn take(&self, word: [u8; WORD], readable: usize, unprocessed: &AtomicUsize) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        let State { machine, ended, standing, .. } = &mut *state;
        // A message that violates the protocol changes nothing. It goes the way of the others, whose consequences take
        // locks of the provider.
        let applied = match Message::from_bytes(word, machine.peer_is_big_endian()) {
            Ok(data @ Message::Data(bytes)) if ended.is_none() && machine.unread_with(bytes) <= readable => {
                machine.apply(data).is_ok()
            }
            _ => false,
        };
        if applied {
            standing.hear();
        }
        unprocessed.fetch_add(usize::from(applied), Ordering::Relaxed);
        applied
    }

    #[cfg(feature = "soft")]
    fn collect_wakers(&self, wakes: &mut WakeList) {
        self.wakers.collect(wakes);
    }
}

impl Drop for StreamEngine {
    fn drop(&mut self) {
        // A provider that delivers a message just now may drop the rest, and has its own locks.
        let mut state = self.inner.state.lock();
        let posted = (!state.posted.is_empty()).then(|| take(&mut state.posted));
        // None of soft. An empty one is not moved, which costs more than the look.
        let notifications = (state.receives.is_some() || state.completions.is_some())
            .then(|| (state.receives.take(), state.completions.take()));
        drop(state);
        drop((notifications, posted));
        self.inner.wakers.tasks.iter().for_each(|tasks| drop(tasks.poller.take()));
    }
}

struct State {
    machine: Machine,
    standing: Standing,
    /// A scratch list for completions, empty between calls.
    results: Vec<WorkCompletion>,
    /// The requests that complete through their futures.
    posted: PostedRequests,
    /// The next slots for outgoing messages and entries.
    messages: usize,
    entries: usize,
    /// The end of the connection, or an error after which nothing can be sent.
    ended: Option<StreamBroken>,
    /// `ended` has been set. It is logged and counted when the lock is released, unless the stream can go on over another connection.
    has_unreported_end: bool,
    /// The waker that the provider wakes when it has read for this end.
    wakes: WakeList,
    /// A write waits for room.
    exhausted: bool,
    /// The first write after the peer's close is taken: the end of file has not been read.
    takes_late_write: bool,
    confirmation: Confirmation,
    /// The reads of memory of the peer that are under way.
    reads: usize,
    /// The pending notifications of the completion queues.
    receives: Option<Notify>,
    completions: Option<Notify>,
    /// A read polls before it sleeps, as long as that pays.
    spin: AdaptiveSpin,
    /// The wait of the call that polls in each direction, for snapshots.
    waits: [PolledWait; 2],
}

impl State {
    /// Records that a wait of this side has ended because something has come.
    fn found(&mut self, side: Side) {
        self.waits[side as usize].end();
        if side == Side::Reader {
            self.spin.found();
        }
    }
}

/// The empty read behind the last message, which the peer's device answers when it has received that message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Confirmation {
    NotRequested,
    Requested,
    Received,
}

/// The locked state. The wakers of the stream, and the events of its end, run when this guard is dropped. Calls of the provider that
/// are made under the lock trace and record metrics by themselves.
struct StateGuard<'a> {
    end: &'a StreamEngine,
    guard: Option<MutexGuard<'a, State>>,
}

impl Deref for StateGuard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.guard.as_ref().expect("held until dropped")
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("held until dropped")
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let Self { end, guard } = self;
        let Some(mut state) = guard.take() else { return };
        let wakers = &*end.inner.wakers;
        if !state.has_unreported_end && state.wakes.is_empty() {
            wakers.release();
            drop(state);
            return wakers.wake();
        }
        let broken = state.take_unreported_break();
        let mut wakes = std::mem::take(&mut state.wakes);
        wakers.release();
        drop(state);
        wakers.wake();
        wakes.wake_all();
        if let Some(broken) = broken {
            end.traffic.broken(broken.status());
            tracing::debug!(connection = %end.connection.id(), %broken, "stream broken");
        }
    }
}

impl StreamEngine {
    /// Creates the end of an established connection whose peer has sent the hello `peer`. `may_send` is whether this end
    /// may be the first to send.
    pub(super) fn new(
        adapter: &Adapter,
        prepared: StreamResources,
        connection: Connection,
        peer: Hello,
        may_send: bool,
    ) -> Arc<Self> {
        let StreamResources { settings, config, memory, queues, queue_pair, inline, frames, reads } =
            prepared;
        let wakers = Arc::<Wakers>::default();
        let outbound = connection.read_limits().outbound as usize;
        let confirms = settings.confirms && peer.confirms && outbound > 0;
        let spin = AdaptiveSpin::new(config.spin_on(adapter));
        // Made in its place: `Arc::new` would copy it three times.
        let inner = Arc::new_cyclic(|_| {
            let state = Mutex::new(State {
                machine: Machine::new(settings, peer, may_send),
                standing: Standing::Plain,
                results: Vec::new(),
                posted: PostedRequests::default(),
                messages: 0,
                entries: 0,
                ended: None,
                has_unreported_end: false,
                wakes: WakeList::default(),
                exhausted: false,
                takes_late_write: true,
                confirmation: Confirmation::NotRequested,
                reads: 0,
                receives: None,
                completions: None,
                spin,
                waits: [PolledWait::default(); 2],
            });
            Inner { state, wakers: wakers.clone() }
        });
        if let Incoming::Inbox(inbox) = &queues.incoming {
            let sink: Weak<Inner> = Arc::downgrade(&inner);
            inbox.connect(sink);
        }
        // Here and not later: it is too large to be moved through the futures of those that wait for it.
        let end = Arc::new_cyclic(|_| Self {
            connection,
            adapter: adapter.clone(),
            queue_pair,
            queues,
            memory,
            carrier: settings.carrier,
            send_depth: config.send_depth,
            close_timeout: config.close_timeout,
            inline,
            frames,
            confirms,
            reads: reads.min(outbound),
            traffic: Traffic::new("stream"),
            flow: Flow::default(),
            // One without timers could not limit the close.
            runtime: current_runtime().ok(),
            received: OnceLock::new(),
            completed: wakers.clone().into(),
            reading: OnceLock::new(),
            has_moved: AtomicBool::new(false),
            inner,
            #[cfg(feature = "inspect")]
            inspected: (Mark::now(), OnceLock::new()),
        });
        // Unless it knows, the peer may fill the second half of the ring, too; and over iWARP the active end has to speak first.
        end.advance(&mut end.lock());
        end
    }

    /// Returns the end for those that share it, and lets snapshots see it.
    pub(super) fn shared(self: Arc<Self>) -> Arc<Self> {
        #[cfg(feature = "inspect")]
        inspect::register(&self);
        self
    }

    fn lock(&self) -> StateGuard<'_> {
        let guard = self.inner.state.lock();
        self.inner.wakers.defer();
        StateGuard { end: self, guard: Some(guard) }
    }

    /// Wakes the tasks that wait in this direction.
    pub(super) fn wake(&self, side: Side) {
        self.inner.wakers.wake_sides(side.bit());
    }

    /// Resolves when this end may send, or when the connection has ended.
    pub(super) fn poll_may_send(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Of a connection that has just been made.
        self.poll_for(cx, Side::Reader, |state, _| {
            if self.has_unread(state) {
                // Their message is on its way.
                state.machine.allow_sending();
            }
            (state.machine.may_send() || state.ended.is_some()).then_some(())
        })
        .map(drop)
    }

    /// Lets this end send although the peer has sent nothing.
    pub(super) fn allow_sending(&self) {
        let mut state = self.lock();
        // The call that has waited for it was given up.
        state.waits[Side::Reader as usize].end();
        state.machine.allow_sending();
        self.advance(&mut state);
    }

    /// Resolves when `attempt` returns a value, within the budget of the task. The argument of `attempt` is `true` if all
    /// completions have been collected. While the stream is elsewhere it waits: the caller looks for another engine then.
    fn poll_for<T>(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        mut attempt: impl FnMut(&mut State, bool) -> Option<T>,
    ) -> Poll<T> {
        let budget = ready!(coop::poll_proceed(cx));
        // The value is often available without polling the queues, or with the message that has woken the task. A read
        // over soft finds none if nothing has come since the last one.
        let Queues { incoming, .. } = &self.queues;
        if side == Side::Writer || !self.frames || incoming.has_bytes() || !incoming.is_empty() {
            let mut state = self.lock();
            let mut done = state.if_here(|state| attempt(state, false));
            if done.is_none() && !self.queues.incoming.is_empty() {
                self.collect(&mut state, side);
                done = state.if_here(|state| attempt(state, false));
            }
            if let Some(done) = done {
                state.found(side);
                budget.made_progress();
                return Poll::Ready(done);
            }
        }
        self.inner.wakers.register(side, cx.waker());
        let attempt = |state: &mut State, collected| state.if_here(|state| attempt(state, collected));
        let begin = |state: &mut State| state.waits[side as usize].polled();
        let done = ready!(self.poll_registered(cx, side, begin, attempt));
        budget.made_progress();
        Poll::Ready(done)
    }

    /// Resolves like [`poll_for`](Self::poll_for), for a task that is woken in this direction already. Calls `begin` if it has to wait.
    fn poll_registered<T>(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        mut begin: impl FnMut(&mut State),
        mut attempt: impl FnMut(&mut State, bool) -> Option<T>,
    ) -> Poll<T> {
        for look in 1.. {
            self.queues.incoming.progress();
            let mut state = self.lock();
            let was_spinning = side == Side::Reader && state.spin.is_spinning();
            if self.frames && was_spinning {
                // While this task spins, the runtime may not see for a while that bytes have come.
                self.queue_pair.provider().read_stream(None, self.reading(), true, &mut state.wakes);
            }
            let Some(done) = self.attempt_or_arm(&mut state, side, &mut attempt) else {
                // The peer sends without a pause: other tasks have their turn first.
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            };
            if let Some(done) = done {
                state.found(side);
                return Poll::Ready(done);
            }
            let spins = side == Side::Reader && state.spin.polls_again();
            begin(&mut state);
            drop(state);
            if spins && was_spinning && look < LOOKS {
                continue;
            }
            if spins {
                // Who spins comes behind all tasks that are ready, and behind the sockets of others.
                let _ = pin!(yield_now()).poll(cx);
            }
            break;
        }
        Poll::Pending
    }

    /// Attempts with all completions collected, and has the tasks of this side woken if that fails. `None` if more and more completions
    /// come.
    fn attempt_or_arm<T>(
        &self,
        state: &mut State,
        side: Side,
        attempt: &mut impl FnMut(&mut State, bool) -> Option<T>,
    ) -> Option<Option<T>> {
        for _ in 0..TURNS {
            let more = self.collect(state, side);
            if let Some(done) = attempt(state, !more) {
                return Some(Some(done));
            }
            // The tasks of a stream that waits for its next engine are woken when it has that.
            if !more && (state.is_left() || !self.arm(state, side)) {
                return Some(None);
            }
        }
        None
    }

    /// Waits like [`poll_for`](Self::poll_for), for any number of tasks.
    async fn wait_for<T>(
        &self,
        side: Side,
        mut attempt: impl FnMut(&mut State, bool) -> Option<T>,
    ) -> Result<T, Moved> {
        let waits = self.inner.wakers.waits(side);
        let mut woken = pin!(waits.next());
        let mut wait = FutureWait::new(&self.inner.wakers.tasks(side).waits);
        poll_fn(|cx| {
            let budget = ready!(coop::poll_proceed(cx));
            while woken.as_mut().poll(cx).is_ready() {
                woken.set(waits.next());
            }
            let attempt = |state: &mut State, collected| state.here(|state| attempt(state, collected));
            let done = ready!(self.poll_registered(cx, side, |_| wait.begin(), attempt));
            budget.made_progress();
            Poll::Ready(done)
        })
        .await
    }

    /// Returns the waker of the receive queue.
    fn received(&self) -> &Waker {
        self.received.get_or_init(|| self.inner.wakers.waker(Cause::Receive))
    }

    /// Returns the waker of a provider that reads for the reader.
    fn reading(&self) -> &Waker {
        self.reading.get_or_init(|| self.inner.wakers.waker(Cause::Reading))
    }

    /// Requests notifications of the queues, after all completions have been collected. Returns `true` if there are
    /// more already.
    #[inline(always)]
    fn arm(&self, state: &mut State, side: Side) -> bool {
        let mut is_due = match &self.queues.incoming {
            Incoming::Receives(queue) => {
                self.arm_queue(state, queue, |state| &mut state.receives, self.received())
            }
            Incoming::Inbox(inbox) => inbox.listen(side == Side::Reader),
        };
        if side == Side::Writer || state.machine.is_control_blocked() {
            is_due |= self.arm_initiator(state);
        }
        is_due
    }

    /// Requests a notification of the completions of this end's requests. Returns `true` if it is due already.
    fn arm_initiator(&self, state: &mut State) -> bool {
        if let Some(queue) = &self.queues.initiator {
            return self.arm_queue(state, queue, |state| &mut state.completions, &self.completed);
        }
        !state.posted.is_empty() && self.collect_posted(state)
    }

    /// Requests a notification of one queue. Returns `true` if it is due already.
    fn arm_queue(
        &self,
        state: &mut State,
        queue: &CompletionQueue,
        pending: fn(&mut State) -> &mut Option<Notify>,
        waker: &Waker,
    ) -> bool {
        let notify = pending(state).get_or_insert_with(|| queue.notify(NotifyKind::Any));
        let Poll::Ready(outcome) = notify.poll_now(&mut Context::from_waker(waker)) else { return false };
        *pending(state) = None;
        let Err(error) = outcome else { return true };
        let first = state.ended.is_none();
        if error == NotifyError::DeviceRemoved {
            // The outstanding requests have ended with the adapter. This happens only once.
            self.collect_incoming(state);
            self.end_with(state, StreamBroken::Connection(DisconnectReason::DeviceRemoved));
        } else {
            self.handle_failure(state);
        }
        first
    }

    /// Takes all results that concern this side. Returns whether there were any.
    fn collect(&self, state: &mut State, side: Side) -> bool {
        let mut any = self.collect_incoming(state);
        if side == Side::Writer || state.machine.is_control_blocked() {
            any |= self.collect_own(state);
        }
        if any {
            self.advance(state);
        }
        any
    }

    /// Takes the messages of the peer that have arrived. Returns whether there were any.
    fn collect_incoming(&self, state: &mut State) -> bool {
        let inbox = match &self.queues.incoming {
            Incoming::Receives(queue) => return self.collect_from(state, queue),
            Incoming::Inbox(inbox) => inbox,
        };
        let mut any = inbox.has_unprocessed();
        for _ in 0..TURNS * RESULTS {
            let Some(news) = inbox.take() else { break };
            any = true;
            match news {
                StreamNews::Send(send) => self.handle_send(state, send),
                StreamNews::Confirmed => state.confirmation = Confirmation::Received,
                StreamNews::Ended => self.handle_failure(state),
            }
        }
        any
    }

    /// Takes the completions of this end's requests. Returns whether there were any.
    fn collect_own(&self, state: &mut State) -> bool {
        match &self.queues.initiator {
            Some(queue) => self.collect_from(state, queue),
            None => !state.posted.is_empty() && self.collect_posted(state),
        }
    }

    /// Takes the completions of requests that complete through their futures. Returns whether there were any. The completion of the
    /// next one wakes.
    #[cold]
    fn collect_posted(&self, state: &mut State) -> bool {
        let mut any = false;
        while let Some((context, has_succeeded)) = state.posted.poll(&self.completed) {
            self.handle_own(state, context, has_succeeded);
            any = true;
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
                self.handle_completion(state, result);
            }
            if count < RESULTS {
                break;
            }
        }
        state.results = results;
        any
    }

    fn handle_completion(&self, state: &mut State, result: WorkCompletion) {
        match (result.status, result.kind) {
            // After a violation of the protocol, messages of the peer are ignored.
            (_, OpKind::Receive) if matches!(state.ended, Some(StreamBroken::Protocol(_))) => {}
            (Status::SUCCESS, OpKind::Receive) => {
                // The number of a receive is that of its slot.
                let slot = usize::try_from(result.context).unwrap_or_default();
                let message = self.decode_message(state, slot, &result);
                if let Some(memory) = &self.memory {
                    // If it cannot be posted, the other receives complete soon, with the reason.
                    let _ = memory.post_receive(&self.queue_pair, self.carrier, slot);
                }
                self.handle_message(state, message);
            }
            (status, OpKind::Receive) if status != Status::SUCCESS => self.handle_failure(state),
            (status, _) => self.handle_own(state, result.context, status == Status::SUCCESS),
        }
    }

    /// Handles the completion of a request of this end with this context.
    fn handle_own(&self, state: &mut State, context: u64, has_succeeded: bool) {
        if !has_succeeded {
            return self.handle_failure(state);
        }
        let transfers = usize::try_from(context >> KIND_BITS);
        state.machine.complete_transfers(transfers.unwrap_or_default());
        match context & KIND {
            CONTROL => state.machine.complete_control(),
            READ => state.reads -= 1,
            _ => {}
        }
    }

    fn decode_message(
        &self,
        state: &State,
        slot: usize,
        result: &WorkCompletion,
    ) -> Result<Message, ProtocolError> {
        match (self.carrier, result.immediate, &self.memory) {
            (Carrier::Immediate, Some(word), _) => Message::decode(word),
            (Carrier::Send, None, Some(memory)) if result.bytes == Message::LEN => {
                let bytes = memory.read_message(slot);
                Message::from_bytes(bytes, state.machine.peer_is_big_endian())
            }
            _ => Err(ProtocolError::Length(result.bytes)),
        }
    }

    /// Handles a Send that the provider has put into the inbox.
    fn handle_send(&self, state: &mut State, send: StreamSend) {
        // After a violation of the protocol, messages of the peer are ignored.
        if matches!(state.ended, Some(StreamBroken::Protocol(_))) {
            return;
        }
        let message = match send {
            StreamSend::Word(bytes) => Message::from_bytes(bytes, state.machine.peer_is_big_endian()),
            StreamSend::Other(bytes) => Err(ProtocolError::Length(bytes)),
        };
        self.handle_message(state, message);
    }

    /// Handles a message of the peer. One that violates the protocol ends the stream.
    fn handle_message(&self, state: &mut State, message: Result<Message, ProtocolError>) {
        if let Err(error) = message.and_then(|message| self.process(state, message)) {
            self.end_violated(state, error);
        }
    }

    /// Ends the stream, because the peer violates the protocol.
    fn end_violated(&self, state: &mut State, error: ProtocolError) {
        self.end_with(state, StreamBroken::Protocol(error));
        self.queue_pair.flush();
    }

    fn process(&self, state: &mut State, message: Message) -> Result<(), ProtocolError> {
        if let (Incoming::Inbox(inbox), Message::Data(bytes)) = (&self.queues.incoming, message)
            && state.machine.unread_with(bytes) > inbox.readable()
        {
            // The Writes of a message come before it.
            return Err(ProtocolError::Overrun("bytes"));
        }
        state.standing.hear();
        match state.machine.apply(message)? {
            Event::Changed => Ok(()),
            Event::Targets => self.take_target(state),
            Event::Read(bytes) => state.standing.acknowledge(bytes),
            Event::Abandoned => {
                self.end_with(state, StreamBroken::SessionUnknown { reason: DisconnectReason::Peer });
                Ok(())
            }
        }
    }

    /// Posts the control messages that are due, and what else has to be sent for the end of the stream.
    fn advance(&self, state: &mut State) {
        self.queues.incoming.processed();
        self.advance_session(state);
        loop {
            while state.ended.is_none()
                && let Some(control) = state.machine.control()
            {
                if let Err(kind) = self.post_control(state, control) {
                    self.handle_refused_post(state, kind);
                }
                // Most have completed by now.
                self.collect_posted(state);
            }
            if state.ended.is_none()
                && state.machine.needs_signaled()
                && let Err(kind) = self.post_nothing(state)
            {
                self.handle_refused_post(state, kind);
            }
            let blocked = state.machine.is_control_blocked() && state.ended.is_none();
            self.inner.wakers.set_eager(blocked);
            // A control message that is on its way may have completed, and no task would look for that. If none has,
            // the completion of the next wakes the tasks of both directions.
            if !blocked || !(self.collect_own(state) || self.arm_initiator(state)) {
                return;
            }
        }
    }

    /// Handles a failed request: the stream ends with the reason of the connection.
    fn handle_failure(&self, state: &mut State) {
        // The reason is known before the first request completes.
        let reason = self.connection.ended().unwrap_or(DisconnectReason::Local);
        if matches!(state.ended, Some(StreamBroken::Post(_))) {
            state.ended = None;
        }
        self.end_with(state, StreamBroken::Connection(reason));
    }

    /// Handles a request that could not be posted. The stream has a gap then, so the connection is ended if it has not
    /// ended before.
    fn handle_refused_post(&self, state: &mut State, kind: PostErrorKind) {
        match self.connection.ended() {
            Some(reason) => self.end_with(state, StreamBroken::Connection(reason)),
            None => {
                let broken = match kind {
                    // The end of the connection follows: a thread ends everything of the adapter.
                    PostErrorKind::DeviceRemoved => StreamBroken::Connection(DisconnectReason::DeviceRemoved),
                    kind => StreamBroken::Post(kind),
                };
                self.end_with(state, broken);
                self.queue_pair.flush();
            }
        }
    }

    fn end_with(&self, state: &mut State, broken: StreamBroken) {
        if state.ended.is_none() {
            state.ended = Some(broken);
            state.has_unreported_end = true;
        }
    }
}
