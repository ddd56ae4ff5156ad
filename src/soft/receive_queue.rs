//! The receive queue of a queue pair: one of its own, which may be that of a lane, one that it shares with
//! others, or the inbox of a byte stream.
//!
//! A message that finds a shared queue empty stays in its socket: the connection stops reading until a
//! receive is posted, and TCP holds the peer back. Receives are handed out first come, first served: a
//! receive that is posted is granted to the connection that has waited longest, so that a peer that floods
//! takes no share but its own.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::adapter::Adapter;
use crate::error::{OpenError, PostErrorKind, ResizeError};
use crate::inflight::{self, Arrived, Completed, CompletionSink, Payload, StreamInbox, Ticket, WakeList};
#[cfg(feature = "inspect")]
use crate::inspect::QueuePairReport;
use crate::memory::{Owned, Slice};
use crate::provider::registry::{Member, Registered};
use crate::provider::work::Refused;
use crate::status::Status;
use crate::sync::Mutex;
use crate::types::{QueueKind, QueuePairId};

/// A receive that a message was arriving in when the connection ended.
pub(crate) struct Interrupted {
    pub(crate) receive: Receive,
    /// The message did not fit.
    pub(crate) overflowed: bool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Receive>,
    /// The queue pair has been disconnected: receives that are posted now are flushed at once.
    closed: bool,
}

/// The receives of a queue pair of a lane.
#[derive(Default)]
struct LaneState {
    queue: VecDeque<LaneReceive>,
    /// As in [`State`].
    closed: bool,
}

/// A posted receive of a lane: its slot, and the memory of that.
pub(crate) type LaneReceive = (u32, Owned);

enum Source {
    /// First in, first out, at most `depth` of them.
    Own {
        state: Mutex<State>,
        depth: usize,
    },
    /// As `Own`, with the memory of slots of a lane, which counts them.
    Lane(Mutex<LaneState>),
    Shared(Arc<SharedReceives>),
    /// No receives: messages go to the stream.
    Stream(Arc<StreamInbox>),
}

/// The receives of a queue pair, and where they complete.
pub(crate) struct ReceiveQueue {
    source: Source,
    sink: CompletionSink,
}

impl ReceiveQueue {
    /// Creates a queue with receives of its own.
    pub(crate) fn new(depth: usize, sink: CompletionSink) -> Arc<Self> {
        Arc::new(Self { source: Source::Own { state: Mutex::default(), depth }, sink })
    }

    /// Creates a queue with receives of its own for a queue pair of the lane that the sink delivers to.
    pub(crate) fn of_lane(sink: CompletionSink) -> Arc<Self> {
        Arc::new(Self { source: Source::Lane(Mutex::default()), sink })
    }

    /// Creates a queue whose receives are those of a shared queue.
    pub(crate) fn with_shared(shared: Arc<SharedReceives>, sink: CompletionSink) -> Arc<Self> {
        Arc::new(Self { source: Source::Shared(shared), sink })
    }

    /// Creates a queue without receives, whose messages go to this inbox.
    pub(crate) fn to_stream(inbox: Arc<StreamInbox>, sink: CompletionSink) -> Arc<Self> {
        Arc::new(Self { source: Source::Stream(inbox), sink })
    }

    /// Returns the inbox that messages go to instead of receives.
    pub(crate) fn inbox(&self) -> Option<&Arc<StreamInbox>> {
        if let Source::Stream(inbox) = &self.source { Some(inbox) } else { None }
    }

    /// Returns whether the receives are those of a shared queue. If there is none for a message, the message
    /// waits for one in that case, and breaks its connection otherwise (`QP-20`).
    pub(crate) fn is_shared(&self) -> bool {
        self.shared().is_some()
    }

    /// Adds its receives to a report.
    #[cfg(feature = "inspect")]
    pub(super) fn inspect(&self, report: &mut QueuePairReport) {
        match &self.source {
            Source::Own { depth, .. } => {
                report.receives.depth = *depth;
                self.sink.inspect(true, &mut report.receives);
            }
            Source::Lane(state) => report.receives.outstanding = state.lock().queue.len(),
            Source::Shared(_) => report.shared_receives = true,
            Source::Stream(_) => {}
        }
    }

    /// Returns whether the receives are the queue pair's alone.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.source, Source::Own { .. })
    }

    fn shared(&self) -> Option<&SharedReceives> {
        if let Source::Shared(shared) = &self.source { Some(shared) } else { None }
    }

    /// Posts a receive: at any time, connected or not (`QP-05`).
    ///
    /// # Errors
    /// `QueueFull`; `NotSupported` if all receives are shared, or messages go to a stream. Nothing has been
    /// posted then.
    pub(crate) fn post(&self, receive: Receive) -> Result<(), (PostErrorKind, Receive)> {
        let Source::Own { state, depth } = &self.source else {
            return Err((
                PostErrorKind::NotSupported("a receive posted to a queue pair with a shared receive queue"),
                receive,
            ));
        };
        let mut state = state.lock();
        if state.closed {
            drop(state);
            let mut wakes = WakeList::default();
            self.cancel(receive, Status::CANCELED, &mut wakes);
            wakes.wake_all();
            return Ok(());
        }
        if state.queue.len() >= *depth {
            let full = PostErrorKind::QueueFull { queue: QueueKind::Receive, depth: *depth };
            return Err((full, receive));
        }
        state.queue.push_back(receive);
        Ok(())
    }

    /// Posts receives of a lane, like [`post`](Self::post).
    pub(super) fn post_all(&self, receives: impl Iterator<Item = LaneReceive>) {
        let Source::Lane(state) = &self.source else { return };
        let mut state = state.lock();
        if !state.closed {
            return state.queue.extend(receives);
        }
        drop(state);
        let mut wakes = WakeList::default();
        receives.for_each(|receive| self.cancel(receive.into(), Status::CANCELED, &mut wakes));
        wakes.wake_all();
    }

    /// Returns whether [`with_lane`](Self::with_lane) has receives to call for.
    #[inline]
    pub(super) fn is_of_lane(&self) -> bool {
        matches!(self.source, Source::Lane(_))
    }

    /// Calls `take` with the receives of a queue pair of a lane and with the completions of the lane, to which it adds those of the
    /// receives that it takes, and with the id of the queue pair. `None` if the queue is any other.
    pub(super) fn with_lane<R>(
        &self,
        wakes: &mut WakeList,
        take: impl FnOnce(&mut VecDeque<LaneReceive>, &mut VecDeque<Arrived>, QueuePairId) -> R,
    ) -> Option<R> {
        let (Source::Lane(state), Some((inbox, id))) = (&self.source, self.sink.lane()) else { return None };
        let mut state = state.lock();
        Some(inbox.add(wakes, |arrived| take(&mut state.queue, arrived, id)))
    }

    /// Takes the receive for the next message of this connection.
    pub(crate) fn take(&self, connection: u64) -> Option<Receive> {
        match &self.source {
            Source::Own { state, .. } => state.lock().queue.pop_front(),
            Source::Lane(state) => state.lock().queue.pop_front().map(Receive::from),
            Source::Shared(shared) => shared.take(connection),
            Source::Stream(_) => None,
        }
    }

    /// Takes the next receive, if it is the queue pair's alone and has room for this many bytes.
    #[inline]
    pub(super) fn take_for(&self, length: usize) -> Option<Receive> {
        let Source::Own { state, .. } = &self.source else { return None };
        let mut state = state.lock();
        let room = inflight::length(&state.queue.front()?.payload);
        if room >= length { state.queue.pop_front() } else { None }
    }

    /// Returns the receive of an unfinished message to the queue, as the next one.
    pub(crate) fn restore(&self, receive: Receive, wakes: &mut WakeList) {
        match &self.source {
            Source::Own { state, .. } => {
                let mut state = state.lock();
                if state.closed {
                    drop(state);
                    return self.cancel(receive, Status::CANCELED, wakes);
                }
                state.queue.push_front(receive);
            }
            Source::Lane(state) => {
                let mut state = state.lock();
                if state.closed {
                    drop(state);
                    return self.cancel(receive, Status::CANCELED, wakes);
                }
                let Receive { ticket, payload } = receive;
                let memory = payload.into_iter().next().map(reclaim);
                if let Some(memory) = memory {
                    state.queue.push_front((ticket.slot(), memory));
                }
            }
            Source::Shared(shared) => shared.restore(receive),
            Source::Stream(_) => self.cancel(receive, Status::CANCELED, wakes),
        }
    }

    /// Completes a receive that was taken.
    pub(crate) fn complete(&self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        self.sink.complete(ticket, completed, wakes);
    }

    /// Resolves when a message that waits for a receive may have found one.
    pub(crate) fn poll_ready(&self, connection: u64, cx: &mut Context<'_>) -> Poll<()> {
        self.shared().map_or(Poll::Ready(()), |shared| shared.poll_ready(connection, cx))
    }

    /// Returns whether a message that waits for a receive finds one.
    pub(crate) fn is_ready(&self, connection: u64) -> bool {
        self.shared().is_none_or(|shared| shared.is_ready(connection))
    }

    /// Ends the wait of the connection with this number.
    pub(crate) fn forget(&self, connection: u64) {
        if let Some(shared) = self.shared() {
            shared.forget(connection);
        }
    }

    /// Completes all receives that are the queue pair's alone with `status`: first `current`, the receive
    /// that a message was arriving in. With `close`, later posts are flushed too.
    pub(crate) fn flush(
        &self,
        current: Option<Interrupted>,
        status: Status,
        close: bool,
        wakes: &mut WakeList,
    ) {
        let (mut own, mut lane) = (None, None);
        match &self.source {
            Source::Own { state, .. } => own = Some(state.lock()),
            Source::Lane(state) => lane = Some(state.lock()),
            Source::Shared(_) => {}
            Source::Stream(inbox) => inbox.end(wakes),
        }
        if let Some(Interrupted { receive, overflowed }) = current {
            let status = if overflowed { Status::BUFFER_OVERFLOW } else { status };
            self.cancel(receive, status, wakes);
        }
        if let Some(state) = &mut own {
            state.closed |= close;
            for receive in state.queue.drain(..) {
                self.cancel(receive, status, wakes);
            }
        }
        if let Some(state) = &mut lane {
            state.closed |= close;
            for receive in state.queue.drain(..) {
                self.cancel(receive.into(), status, wakes);
            }
        }
    }

    fn cancel(&self, receive: Receive, status: Status, wakes: &mut WakeList) {
        self.complete(receive.ticket, Completed::failed(status, receive.payload), wakes);
    }
}

/// A posted receive.
pub(crate) struct Receive {
    pub(crate) ticket: Ticket,
    pub(crate) payload: Payload,
}

/// Makes the memory of a slot exclusive again. If a handle to it is left, which would be a mistake, it is a copy.
pub(super) fn reclaim(slice: Slice) -> Owned {
    slice.into_shared().try_own().unwrap_or_else(|still_shared| {
        debug_assert!(false, "a request of a lane has completed whose memory is still in use");
        still_shared.copied()
    })
}

impl From<LaneReceive> for Receive {
    fn from((slot, memory): LaneReceive) -> Self {
        Self { ticket: Ticket::of_slot(slot), payload: Payload::from_buf([memory.share().whole()]) }
    }
}

#[derive(Default)]
struct SharedState {
    /// Receives for which no connection waits.
    queue: VecDeque<Receive>,
    /// The connections in which a message waits for a receive, by their numbers.
    waiting: HashMap<u64, Waker>,
    /// The order in which the connections began to wait.
    order: VecDeque<u64>,
    /// Receives for connections that have waited, and have not taken them yet.
    granted: BTreeMap<u64, Receive>,
    /// The queue has ended: the device was removed, or the last handle was dropped.
    closed: bool,
}

impl SharedState {
    /// Grants the receive to the connection that has waited longest, which is to be woken.
    ///
    /// # Errors
    /// The receive, if no connection waits.
    fn grant(&mut self, receive: Receive) -> Result<Waker, Receive> {
        let first = self.order.pop_front();
        match first.and_then(|connection| self.waiting.remove_entry(&connection)) {
            Some((connection, waker)) => {
                self.granted.insert(connection, receive);
                Ok(waker)
            }
            None => Err(receive),
        }
    }
}

/// A shared receive queue.
pub(crate) struct SharedReceives {
    state: Mutex<SharedState>,
    /// The sink where the receives that are left at the end complete.
    sink: CompletionSink,
    adapter: Arc<Adapter>,
    _registered: Registered,
}

impl SharedReceives {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// None: there is no device to ask, and the caller counts depth and entries.
    #[expect(clippy::unnecessary_wraps, reason = "other providers have to ask a device")]
    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        _depth: usize,
        _entries: usize,
        sink: CompletionSink,
    ) -> Result<Arc<Self>, OpenError> {
        Ok(adapter.registry().create(|_, registered| Self {
            state: Mutex::default(),
            sink,
            adapter: adapter.clone(),
            _registered: registered,
        }))
    }

    /// Posts a receive, for the connection that has waited longest if one waits.
    ///
    /// # Errors
    /// `DeviceRemoved`, with the payload.
    pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        self.add(Receive { ticket, payload }, VecDeque::push_back)
            .map_err(|Receive { payload, .. }| Refused { kind: PostErrorKind::DeviceRemoved, payload })
    }

    /// Grants the receive to the connection that has waited longest, or adds it to the queue.
    ///
    /// # Errors
    /// The receive, if the queue has ended.
    fn add(
        &self,
        receive: Receive,
        add: impl FnOnce(&mut VecDeque<Receive>, Receive),
    ) -> Result<(), Receive> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(receive);
        }
        let woken = state.grant(receive).map_err(|receive| add(&mut state.queue, receive)).ok();
        drop(state);
        if let Some(waker) = woken {
            waker.wake();
        }
        Ok(())
    }

    /// Takes the receive for the next message of this connection.
    pub(super) fn take(&self, connection: u64) -> Option<Receive> {
        let mut state = self.state.lock();
        let granted = if state.granted.is_empty() { None } else { state.granted.remove(&connection) };
        granted.or_else(|| state.queue.pop_front())
    }

    /// Returns the receive of an unfinished message, as the next one, to the queue or to the connection that
    /// has waited longest.
    pub(super) fn restore(&self, receive: Receive) {
        if let Err(receive) = self.add(receive, VecDeque::push_front) {
            self.finish([receive], self.last_status());
        }
    }

    /// Resolves when there is a receive for this connection, and makes it wait for one.
    pub(super) fn poll_ready(&self, connection: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.granted.contains_key(&connection) || !state.queue.is_empty() {
            return Poll::Ready(());
        }
        let old = state.waiting.insert(connection, cx.waker().clone());
        if old.is_none() {
            state.order.push_back(connection);
        }
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Returns whether there is a receive for this connection.
    pub(super) fn is_ready(&self, connection: u64) -> bool {
        let state = self.state.lock();
        state.granted.contains_key(&connection) || !state.queue.is_empty()
    }

    /// Ends the wait of this connection. A receive that was granted to it goes to the next one.
    pub(super) fn forget(&self, connection: u64) {
        let mut state = self.state.lock();
        let gone = state.waiting.remove(&connection);
        if gone.is_some() {
            state.order.retain(|waiting| *waiting != connection);
        }
        let granted = state.granted.remove(&connection);
        drop(state);
        drop(gone);
        if let Some(receive) = granted {
            self.restore(receive);
        }
    }

    /// Returns the number of connections whose message waits for a receive.
    #[cfg(feature = "inspect")]
    pub(crate) fn messages_waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Accepts any depth: the queue has no limit of its own.
    ///
    /// # Errors
    /// None.
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "other providers have to ask a device")]
    pub(crate) fn resize(&self, _depth: usize) -> Result<(), ResizeError> {
        Ok(())
    }

    /// Ends the queue after its last handle was dropped, when no queue pair uses it.
    pub(crate) fn released(&self) {
        self.end(Status::CANCELED);
    }

    fn last_status(&self) -> Status {
        if self.adapter.is_removed() { Status::DEVICE_REMOVED } else { Status::CANCELED }
    }

    fn end(&self, status: Status) {
        let left = {
            let mut state = self.state.lock();
            state.closed = true;
            let granted = std::mem::take(&mut state.granted);
            let queue = std::mem::take(&mut state.queue);
            granted.into_values().chain(queue)
        };
        self.finish(left, status);
    }

    fn finish(&self, left: impl IntoIterator<Item = Receive>, status: Status) {
        let mut wakes = WakeList::default();
        for Receive { ticket, payload } in left {
            self.sink.complete(ticket, Completed::failed(status, payload), &mut wakes);
        }
        wakes.wake_all();
    }
}

impl Member for SharedReceives {
    fn device_removed(&self) {
        self.end(Status::DEVICE_REMOVED);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::inflight::{RequestMeta, Table};
    use crate::memory::Owned;
    use crate::net::Host;
    use crate::soft::adapter;
    use crate::soft::config::SoftConfig;
    use crate::types::OpKind;

    /// Counts how often a task is woken.
    #[derive(Default)]
    pub(in crate::soft) struct Count(pub(in crate::soft) AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Creates an empty queue, and the table of its receives.
    pub(in crate::soft) fn shared_receives() -> (Arc<SharedReceives>, Arc<Table>) {
        let id = adapter::resolve(&Host::Kernel, "127.0.0.1".parse().expect("an address"))
            .expect("the loopback interface");
        let adapter = Adapter::open(Host::Kernel, id, SoftConfig::default()).expect("opened");
        let table = Arc::<Table>::default();
        let sink = CompletionSink::to_futures(table.clone());
        (SharedReceives::new(&adapter, 4, 1, sink).expect("a queue"), table)
    }

    /// Posts a receive of a few bytes.
    pub(in crate::soft) fn post(shared: &SharedReceives, table: &Table) -> Ticket {
        let ticket = table.open(RequestMeta { kind: OpKind::Receive, context: 0 }, || 0);
        let payload = Payload::from_iter([Owned::zeroed(8).expect("memory").share().whole()]);
        assert!(shared.post_receive(ticket, payload).is_ok());
        ticket
    }

    // The connection that has waited longest is served first, and no other is woken for it (SRQ-02, SEC-05).
    #[tokio::test]
    async fn receive_is_granted_to_longest_waiting_connection() {
        let (shared, table) = shared_receives();
        let count = Arc::<Count>::default();
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        for connection in [1, 2, 1] {
            assert!(shared.poll_ready(connection, &mut cx).is_pending());
        }
        let (first, second) = (post(&shared, &table), post(&shared, &table));
        assert_eq!(count.0.load(Ordering::SeqCst), 2, "each once");
        assert!(shared.take(3).is_none(), "all are granted");
        assert!(shared.poll_ready(3, &mut cx).is_pending());
        assert!(shared.poll_ready(2, &mut cx).is_ready());
        assert_eq!(shared.take(2).expect("granted").ticket, second);
        assert_eq!(shared.take(1).expect("granted").ticket, first);
        assert!(shared.take(1).is_none(), "one each");
    }

    // A receive whose connection has stopped waiting is granted to the next connection (SRQ-02).
    #[tokio::test]
    async fn an_unused_receive_goes_to_the_next() {
        let (shared, table) = shared_receives();
        let mut cx = Context::from_waker(Waker::noop());
        for connection in [1, 2, 3] {
            assert!(shared.poll_ready(connection, &mut cx).is_pending());
        }
        shared.forget(2);
        let first = post(&shared, &table);
        shared.forget(1);
        let taken = shared.take(3).expect("granted");
        assert_eq!(taken.ticket, first);
        shared.restore(taken);
        assert!(shared.poll_ready(4, &mut cx).is_ready(), "nobody waits for it");
        assert_eq!(shared.take(4).expect("there is one").ticket, first);
        assert!(shared.poll_ready(4, &mut cx).is_pending());
        let granted = post(&shared, &table);
        shared.released();
        assert!(shared.take(4).is_none());
        let ended = table.poll(granted, &mut cx);
        assert!(matches!(ended, Poll::Ready(Some(Completed { status: Status::CANCELED, .. }))), "{ended:?}");
        let ticket = table.open(RequestMeta { kind: OpKind::Receive, context: 0 }, || 0);
        assert!(shared.post_receive(ticket, Payload::new()).is_err(), "nobody could take it");
    }
}
