//! A queue pair: its two queues, and the connection it belongs to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use smallvec::SmallVec;
use tokio::sync::Notify;

use super::adapter::{Adapter, MAX_TRANSFER};
use super::completion_queue::{CompletionQueue, Membership};
use super::connection::ConnectionShared;
use super::memory::{Registration, Window, WindowOp};
use super::receive_queue::{Receive, ReceiveQueue, SharedReceives};
use crate::error::{PostErrorKind, Reason};
use crate::inflight::{self, CompletionSink, Payload, Ticket, WORD, WakeList};
#[cfg(feature = "inspect")]
use crate::inspect::{ConnectionReport, QueuePairReport};
use crate::memory::Owned;
use crate::proto::qp::{Busy, QueuePairState};
use crate::provider::connector::FLUSHED;
use crate::provider::params::{self, QueuePairParts};
use crate::provider::registry::{Member, Registered};
use crate::provider::stream::{StreamMessage, Streamed};
use crate::provider::work::{
    BindTarget, DirectOutcome, DirectRequest, Flags, InlineRequest, Refused, WindowRequest, WorkRequest,
};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard};
use crate::types::OpKind;

/// The queues that it uses. Only completion queues of the program look at sockets: there is none for requests that complete through
/// futures.
pub(crate) type Queues = params::Queues<Arc<SharedReceives>, Option<Arc<CompletionQueue>>>;

/// The connector that uses a queue pair, seen from the queue pair.
pub(crate) trait QueuePairUser: Send + Sync {
    /// Ends the connection, for this local reason.
    fn abandon(&self, why: &'static str);
    /// Ends the attempt or the connection, because the queue pair is gone.
    fn queue_pair_removed(&self);
    /// Returns the reason why the connection broke, if it did.
    fn loss(&self) -> Option<Reason>;
}

/// The queue pair, shared by its handle and its connection.
pub(crate) struct QueuePair {
    pub(crate) adapter: Arc<Adapter>,
    /// The sink where the requests of the send queue complete.
    pub(crate) sends: CompletionSink,
    pub(crate) receives: Arc<ReceiveQueue>,
    pub(crate) send_depth: u32,
    state: Mutex<State>,
    /// The phase is `Connected`. Written with the lock.
    connected: AtomicBool,
    connection: OnceLock<Arc<ConnectionShared>>,
    /// The completion queues whose polls also poll the socket.
    polled: Box<[Arc<CompletionQueue>]>,
    _registered: Registered,
}

struct State {
    phase: QueuePairState,
    /// The connector that it is being used for.
    user: Option<Weak<dyn QueuePairUser>>,
    /// The queue pair ends with an attempt that fails: the last handle of the user was dropped, or it is one of a lane.
    released: bool,
    /// The attempt has ended, and its driver has not freed the queue pair yet.
    is_returning: bool,
    /// Notified when that driver has freed the queue pair, if [`QueuePair::settled`] waits for it.
    returned: Option<Arc<Notify>>,
    /// Held as long as the queue pair is connected: an ended connection takes no turns from others.
    memberships: Box<[Membership]>,
}

impl QueuePair {
    pub(crate) fn new(adapter: Arc<Adapter>, parts: QueuePairParts, queues: Queues) -> Arc<Self> {
        // Entries and inline bytes are counted by the caller.
        let _ = (parts.receive_entries, parts.send_entries, parts.inline);
        let mut polled = SmallVec::<[Arc<CompletionQueue>; 2]>::new();
        if parts.inbox.is_none() {
            for queue in [queues.sends, queues.receives] {
                polled.extend(queue.filter(|queue| !polled.iter().any(|other| Arc::ptr_eq(other, queue))));
            }
        }
        let receives = match (parts.inbox, queues.shared) {
            (Some(inbox), _) => ReceiveQueue::to_stream(inbox, parts.receive),
            (None, Some(shared)) => ReceiveQueue::with_shared(shared, parts.receive),
            (None, None) if parts.receive.lane().is_some() => ReceiveQueue::of_lane(parts.receive),
            (None, None) => ReceiveQueue::new(parts.receive_depth, parts.receive),
        };
        // One of a lane is good for one attempt.
        let released = parts.initiator.lane().is_some();
        let registry = adapter.registry().clone();
        registry.create(|_, registered| Self {
            sends: parts.initiator,
            receives,
            send_depth: u32::try_from(parts.send_depth).unwrap_or(u32::MAX),
            state: Mutex::new(State {
                phase: QueuePairState::Unconnected,
                user: None,
                released,
                is_returning: false,
                returned: None,
                memberships: Box::default(),
            }),
            connected: AtomicBool::new(false),
            connection: OnceLock::new(),
            polled: polled.into_iter().collect(),
            adapter,
            _registered: registered,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Keeps the state from changes, so that a test sees what has happened before one.
    #[cfg(test)]
    pub(super) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }

    /// Returns whether it has a connection, before or after it is connected.
    #[cfg(test)]
    pub(super) fn has_connection(&self) -> bool {
        self.connection.get().is_some()
    }

    /// Returns the state, and the connector that uses the queue pair.
    fn used_by(&self) -> (QueuePairState, Option<Arc<dyn QueuePairUser>>) {
        let state = self.lock();
        (state.phase, state.user.as_ref().and_then(Weak::upgrade))
    }

    /// Returns the state.
    pub(super) fn phase(&self) -> QueuePairState {
        self.lock().phase
    }

    fn is_free(&self) -> bool {
        self.phase() == QueuePairState::Unconnected
    }

    /// Associates the queue pair with a connector.
    ///
    /// # Errors
    /// Another connector uses it, or has used it.
    pub(crate) fn associate(&self, user: Weak<dyn QueuePairUser>) -> Result<(), Busy> {
        let mut state = self.lock();
        state.phase.associate()?;
        state.user = Some(user);
        Ok(())
    }

    /// Frees the queue pair after a failed attempt. If the device or the last handle is gone, also completes
    /// the posted receives. The caller wakes `wakes` without its locks.
    ///
    /// Returns false if the queue pair was connected. Its state does not tell: once it is free, another connector may use it.
    pub(crate) fn dissociate(&self, wakes: &mut WakeList) -> bool {
        let is_free = self.change(QueuePairState::dissociate, wakes) == QueuePairState::Unconnected;
        let released = {
            let mut state = self.lock();
            if state.phase != QueuePairState::Unconnected {
                return is_free;
            }
            state.user = None;
            state.released
        };
        if self.adapter.is_removed() {
            self.close(Status::DEVICE_REMOVED, wakes);
        } else if released {
            self.close(Status::CANCELED, wakes);
        }
        is_free
    }

    /// Records that the attempt has ended, and that its driver frees the queue pair once it has released the
    /// receives.
    pub(crate) fn expect_return(&self) {
        let mut state = self.lock();
        state.is_returning |= state.phase == QueuePairState::Associated;
    }

    /// Waits until the driver of an ended attempt has freed the queue pair, so that another connector can use
    /// it, or until that can no longer happen.
    pub(crate) async fn settled(&self) {
        loop {
            let returned = {
                let mut state = self.lock();
                state.is_returning.then(|| state.returned.get_or_insert_default().clone())
            };
            let Some(returned) = returned else { return };
            // In a box, because it is seldom needed: without one it would be moved with each connect.
            let mut notified = Box::pin(returned.notified());
            notified.as_mut().enable();
            if self.lock().is_returning {
                notified.await;
            }
        }
    }

    /// Ends the queue pair and completes its posted receives with `status`. The caller wakes `wakes` without its locks.
    fn close(&self, status: Status, wakes: &mut WakeList) {
        self.end(wakes);
        self.receives.flush(None, status, true, wakes);
    }

    /// Closes the queue pair like [`close`](Self::close), for callers without locks.
    fn close_now(&self, status: Status) {
        let mut wakes = WakeList::default();
        self.close(status, &mut wakes);
        wakes.wake_all();
    }

    /// Establishes the connection: from now on everything may be posted. The caller wakes `wakes` without its
    /// locks.
    pub(crate) fn establish(&self, connection: &Arc<ConnectionShared>, wakes: &mut WakeList) {
        let _ = self.connection.set(connection.clone());
        self.change(QueuePairState::establish, wakes);
        if self.polled.is_empty() {
            return;
        }
        // Last, so that whoever polls a message can answer it.
        let mut state = self.lock();
        if state.phase == QueuePairState::Connected && state.memberships.is_empty() {
            state.memberships = self.polled.iter().map(|queue| queue.add(connection)).collect();
        }
    }

    /// Ends the queue pair: nothing more can be posted. The caller wakes `wakes` without its locks.
    pub(crate) fn end(&self, wakes: &mut WakeList) {
        self.change(QueuePairState::end, wakes);
    }

    /// Changes the phase, and notifies waiters for the queue pair. It is free then, or will not be: its peer
    /// may have been faster than a refusal, or it has ended. Returns the new phase.
    fn change(&self, change: fn(&mut QueuePairState), wakes: &mut WakeList) -> QueuePairState {
        let mut state = self.lock();
        change(&mut state.phase);
        let phase = state.phase;
        self.connected.store(phase == QueuePairState::Connected, Ordering::Release);
        if std::mem::take(&mut state.is_returning)
            && let Some(returned) = state.returned.clone()
        {
            wakes.run(move || returned.notify_waiters());
        }
        let connected = phase == QueuePairState::Connected;
        let left = if connected { Box::default() } else { std::mem::take(&mut state.memberships) };
        drop(state);
        drop(left);
        if let Some((inbox, _)) = self.sends.lane() {
            inbox.note_news(wakes);
        }
        phase
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The reason why the request was not posted, with its payload.
    pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        if self.adapter.is_removed() {
            return Err(Refused { kind: PostErrorKind::DeviceRemoved, payload });
        }
        self.receives
            .post(Receive { ticket, payload })
            .map_err(|(kind, receive)| Refused { kind, payload: receive.payload })
    }

    /// Posts a request of the send queue.
    ///
    /// # Errors
    /// The reason why the request was not posted, with its payload.
    pub(crate) fn post_send(&self, request: WorkRequest) -> Result<(), Refused> {
        let length = inflight::length(&request.payload);
        if length > MAX_TRANSFER {
            let kind = PostErrorKind::TooLong { length, maximum: MAX_TRANSFER };
            return Err(Refused { kind, payload: request.payload });
        }
        let posted = match self.connection_for(request.operation.kind()) {
            Ok(connection) => connection.post(request),
            Err(kind) => Err(Refused { kind, payload: request.payload }),
        };
        posted.map_err(|Refused { kind, payload }| Refused { kind: self.explain(kind), payload })
    }

    /// Returns the connection for a request of this kind.
    ///
    /// # Errors
    /// The reason why there is none that takes it.
    fn connection_for(&self, kind: OpKind) -> Result<&Arc<ConnectionShared>, PostErrorKind> {
        // The connection is there from just before the queue pair counts as connected to the end of both.
        let phase = self.lock().phase;
        match (phase.admits(kind), self.connection.get()) {
            (Ok(()), connection) => connection.ok_or(PostErrorKind::ConnectionInvalid),
            (Err(_), _) if self.adapter.is_removed() => Err(PostErrorKind::DeviceRemoved),
            (Err(kind), _) => Err(kind),
        }
    }

    /// Posts the bind of a window, which has its new key when this returns.
    ///
    /// # Errors
    /// The reason why it was not posted.
    pub(crate) fn post_bind(
        &self,
        request: WindowRequest,
        window: &Arc<Window>,
        target: BindTarget<&Arc<Registration>>,
    ) -> Result<(), PostErrorKind> {
        self.post_window(OpKind::Bind, request, |connection| window.bind(target, connection))
    }

    /// Posts the invalidation of a window.
    ///
    /// # Errors
    /// The reason why it was not posted.
    pub(crate) fn post_invalidate(
        &self,
        request: WindowRequest,
        window: &Arc<Window>,
    ) -> Result<(), PostErrorKind> {
        self.post_window(OpKind::Invalidate, request, |_| Ok(window.unbind()))
    }

    fn post_window(
        &self,
        kind: OpKind,
        request: WindowRequest,
        change: impl FnOnce(u64) -> Result<WindowOp, PostErrorKind>,
    ) -> Result<(), PostErrorKind> {
        let connection = self.connection_for(kind);
        let posted = connection.and_then(|connection| connection.post_window(kind, request, change));
        posted.map_err(|kind| self.explain(kind))
    }

    /// Executes a request of the send queue within the call, see [`ConnectionShared::post_direct`].
    #[inline]
    pub(crate) fn post_direct(&self, request: DirectRequest<'_>) -> DirectOutcome {
        if request.flags.intersects(Flags::DEFER | Flags::FENCE) || !self.sends.is_direct() {
            return DirectOutcome::Declined;
        }
        match self.connection.get() {
            Some(connection) if self.connected.load(Ordering::Acquire) => connection.post_direct(request),
            _ => DirectOutcome::Declined,
        }
    }

    /// Posts a request of the send queue whose bytes are copied by this call.
    ///
    /// # Errors
    /// The reason why it was not posted.
    pub(crate) fn post_inline(&self, request: InlineRequest<'_>) -> Result<(), PostErrorKind> {
        let InlineRequest { ticket, operation, parts, flags } = request;
        let none = PostErrorKind::InsufficientResources("there is no memory for the copy of the inline data");
        let copy = Owned::copied(parts).ok_or(none)?;
        let payload = Payload::from_iter([copy.share().whole()]);
        self.post_send(WorkRequest { ticket, operation, payload, flags }).map_err(|refused| refused.kind)
    }

    /// Writes a message of a stream, or as much of it as the connection takes.
    ///
    /// # Errors
    /// The reason why nothing more can be sent.
    pub(crate) fn write_message(
        &self,
        message: &StreamMessage<'_>,
        waker: &Waker,
    ) -> Result<Streamed, PostErrorKind> {
        let none = PostErrorKind::ConnectionInvalid;
        let written =
            self.connection.get().ok_or(none).and_then(|connection| connection.write_message(message, waker));
        written.map_err(|kind| self.explain(kind))
    }

    /// Sends the end of a stream, and asks the peer for its confirmation.
    ///
    /// # Errors
    /// The reason why nothing more can be sent.
    pub(crate) fn end_stream(&self, message: [u8; WORD], is_last: bool) -> Result<(), PostErrorKind> {
        let none = PostErrorKind::ConnectionInvalid;
        let ended =
            self.connection.get().ok_or(none).and_then(|connection| connection.end_stream(message, is_last));
        ended.map_err(|kind| self.explain(kind))
    }

    /// Returns the connection, from just before the queue pair counts as connected.
    pub(crate) fn connection(&self) -> Option<&Arc<ConnectionShared>> {
        self.connection.get()
    }

    /// Adds the reason for the loss of the connection, if that is why nothing can be posted.
    #[cold]
    fn explain(&self, kind: PostErrorKind) -> PostErrorKind {
        let (_, user) = self.used_by();
        match (kind, user.and_then(|user| user.loss())) {
            (PostErrorKind::ConnectionInvalid, Some(reason)) => PostErrorKind::ConnectionLost { reason },
            (kind, _) => kind,
        }
    }

    /// Writes the deferred requests.
    pub(crate) fn ring(&self) {
        if let Some(connection) = self.connection.get() {
            connection.transmit_after(|_queue| ());
        }
    }

    /// Ends the queue pair after one of its completion queues has lost a result, because no later result is
    /// reliable.
    pub(crate) fn overrun(&self) {
        let (phase, user) = self.used_by();
        match (phase, user) {
            (QueuePairState::Connected, Some(user)) => user.abandon("a completion queue overran"),
            (_, user) => {
                if let Some(user) = user {
                    user.queue_pair_removed();
                }
                self.close_now(Status::CANCELED);
            }
        }
    }

    /// Completes everything as CANCELED. A connection does not survive it: the flushed requests cannot be
    /// distinguished from those that the peer has already begun. An attempt does not survive it either: a
    /// device has lent its queue pair to it.
    pub(crate) fn flush(&self) {
        let (phase, user) = self.used_by();
        if let (QueuePairState::Connected, Some(user)) = (phase, &user) {
            return user.abandon(FLUSHED);
        }
        if let (QueuePairState::Associated, Some(user)) = (phase, user) {
            user.queue_pair_removed();
        }
        let mut wakes = WakeList::default();
        self.receives.flush(None, Status::CANCELED, false, &mut wakes);
        wakes.wake_all();
    }

    /// Returns `false`: the end of TCP is an answer to whatever the peer still writes.
    pub(crate) fn refuse(&self) -> bool {
        false
    }

    /// Ends the queue pair after its last handle was dropped.
    pub(crate) fn released(&self) {
        if let (_, Some(user)) = self.used_by() {
            user.queue_pair_removed();
        }
        // A connection flushes for itself, when nothing of the memory is in use any more.
        let free = {
            let mut state = self.lock();
            state.released = true;
            state.phase == QueuePairState::Unconnected
        };
        if free {
            self.close_now(Status::CANCELED);
        }
    }
}

impl Member for QueuePair {
    fn device_removed(&self) {
        // The connection flushes for itself, see above.
        if self.is_free() {
            self.close_now(Status::DEVICE_REMOVED);
        }
    }
}

#[cfg(feature = "inspect")]
impl QueuePair {
    /// Adds its report to that of its connector.
    pub(super) fn add_to(&self, connector: &mut ConnectionReport) {
        let report = connector.queue_pair.insert(QueuePairReport::default());
        report.sends.depth = self.send_depth as usize;
        self.sends.inspect(false, &mut report.sends);
        self.receives.inspect(report);
        if let Some(connection) = self.connection() {
            connection.add_to(connector);
        }
    }
}
