//! The connector of the verbs provider: the ND state machine, driven by the events of an rdma_cm id.
//!
//! An id serves one attempt. After a failed attempt a new id takes over the local address, so that a late message of
//! the peer about the old id has no handler.

use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::task::AbortHandle;
use tracing::debug;

use super::context::AdapterContext;
use super::queue_pair::{DeviceQp, QueuePair, QueuePairUser};
use super::reactor::handle_device_events;
use super::routes::{CmId, EventHandler};
use super::workers::Workers;
use crate::error::{DisconnectError, Reason};
#[cfg(feature = "inspect")]
use crate::inspect::{ConnectionReport, Snapshot};
use crate::proto::connector::{Action, Connector as Machine, Input, Loss, Phase, Terms};
use crate::provider::connector::{AfterStep, ConnectorDriver, ConnectorState, FLUSHED, next_id};
use crate::provider::info::Path;
use crate::provider::params::Options;
use crate::provider::registry::{Member, Registered};
use crate::status::Status;
use crate::status::porting::{CmEvent as EventKind, CmPhase, CmTransport, IbRejectReason, Outcome};
use crate::sync::{Mutex, MutexGuard};
use crate::sys::{CmEvent, ConnectionParams};
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits, Role};

/// A connector and the connection that comes of it.
pub(crate) struct Connector {
    pub(crate) id: ConnectionId,
    pub(crate) adapter: Arc<AdapterContext>,
    pub(crate) role: Role,
    /// Itself, for the events of its ids.
    pub(crate) me: Weak<Connector>,
    state: Mutex<State>,
    /// The path of the connection, known before it is established.
    path: Mutex<Option<Box<Path>>>,
    _registered: Registered,
}

/// The state of a connector, under its lock.
pub(crate) struct State {
    pub(crate) progress: ConnectorState,
    /// The id of the attempt, or one that is bound and waits for it.
    pub(crate) id: Option<Arc<CmId>>,
    pub(crate) queue_pair: Option<Arc<QueuePair>>,
    /// The parameters that Connect or Accept sends to the peer.
    pub(crate) offer: Offer,
    /// The read limits of the connection.
    pub(crate) limits: ReadLimits,
    /// The private data that Reject sends, if it was called.
    pub(crate) reject_data: Option<Bytes>,
    /// The peer waits for our decision: to accept its request, or to complete what it has accepted.
    pub(crate) awaited: bool,
    /// The input that an action has led to.
    pub(crate) next: Option<Input>,
    /// The timer that ends a Disconnect without an answer.
    timer: Option<AbortHandle>,
    /// The progress of a connect or an accept during which its id cannot be destroyed without waiting for it.
    pub(crate) pending_call: PendingCall,
    /// The number of ids of earlier attempts that are not destroyed yet and still use the bound port.
    retiring: u32,
    /// The attempt begins when they are destroyed.
    retry_pending: bool,
    /// A job ends the queue pair of the device.
    flushing: bool,
    /// The disconnects that wait for that job.
    queued_disconnects: SmallVec<[DisconnectMode; 2]>,
    /// An event that arrived before the call that causes it had returned: the resolved route, or the peer's disconnect
    /// during the call that completes the connection.
    deferred_event: Option<CmEvent>,
}

/// The ways to disconnect from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DisconnectMode {
    /// With a Disconnect, which waits for the answer.
    AwaitAnswer,
    /// Without waiting for anything.
    Immediate,
    /// In answer to the disconnect of the peer.
    Answer,
}

/// The parameters that Connect or Accept sends to the peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    pub(crate) private_data: Bytes,
    pub(crate) limits: ReadLimits,
    pub(crate) options: Options,
    pub(crate) traffic_class: Option<u8>,
    /// The number of ports that may still be tried.
    pub(crate) tries: u8,
    /// The end of the time in which a step of address resolution is repeated; `None` if the caller's limit ends the attempt.
    pub(crate) until: Option<Instant>,
}

impl Offer {
    /// Returns the parameters of the call of the connection manager, with these read limits and the number of this queue pair.
    pub(crate) fn parameters(&self, limits: ReadLimits, queue_pair: u32) -> ConnectionParams<'_> {
        // Limits are capped to the device, which knows no more than 255.
        let reads = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
        ConnectionParams {
            private_data: &self.private_data,
            responder_resources: reads(limits.inbound),
            initiator_depth: reads(limits.outbound),
            retry_count: self.options.retry_count(),
            rnr_retry_count: self.options.rnr_retry_count(),
            qp_num: queue_pair,
        }
    }
}

/// A call, or a connect, or over iWARP an accept, that the connection manager cannot take back at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingCall {
    /// There is none.
    None,
    /// A thread is in the call that asks for the route, connects TCP, of an iWARP driver, accepts or completes.
    Calling,
    /// The request is on its way, or the peer has it. Over iWARP destroying the id waits for the answer or the end of
    /// the driver's patience, and after an accept for the peer's first message, if it has to send one; over InfiniBand
    /// for the last message about it, of which the kernel can lose sight.
    Waiting,
}

impl State {
    /// Returns whether a thread has yet to return from the call that leads to this event. The next step of the id waits for that:
    /// otherwise the outcome of one call would be taken for that of the next.
    fn precedes_return(&self, event: &CmEvent) -> bool {
        let follows = match event.kind {
            EventKind::ROUTE_RESOLVED | EventKind::ROUTE_ERROR => self.progress.phase() == Phase::Connecting,
            EventKind::DISCONNECTED => self.progress.phase() == Phase::Completing,
            _ => false,
        };
        follows && self.pending_call == PendingCall::Calling
    }
}

impl AsMut<ConnectorState> for State {
    fn as_mut(&mut self) -> &mut ConnectorState {
        &mut self.progress
    }
}

impl Connector {
    /// Creates the connector of an active side, on which no call has been made.
    pub(crate) fn new(adapter: Arc<AdapterContext>) -> Arc<Self> {
        Self::with(adapter, Role::Active, |_| (ConnectorState::new(Machine::new(), None, None), None))
    }

    /// Creates the connector of a request, which has arrived with an id of its own.
    pub(crate) fn with_request(
        adapter: Arc<AdapterContext>,
        terms: Terms,
        adopt: impl FnOnce(Weak<dyn EventHandler>) -> Arc<CmId>,
    ) -> Arc<Self> {
        Self::with(adapter, Role::Passive, |me| {
            let id = adopt(me);
            let machine = Machine::with_request(terms);
            (ConnectorState::new(machine, id.local_addr(), id.peer_addr()), Some(id))
        })
    }

    fn with(
        adapter: Arc<AdapterContext>,
        role: Role,
        make: impl FnOnce(Weak<dyn EventHandler>) -> (ConnectorState, Option<Arc<CmId>>),
    ) -> Arc<Self> {
        let registry = adapter.registry().clone();
        registry.create(|me: &Weak<Self>, registered| {
            let (progress, id) = make(me.clone());
            let state = State {
                progress,
                id,
                queue_pair: None,
                offer: Offer::default(),
                limits: ReadLimits::NONE,
                reject_data: None,
                awaited: role == Role::Passive,
                next: None,
                timer: None,
                pending_call: PendingCall::None,
                retiring: 0,
                retry_pending: false,
                flushing: false,
                queued_disconnects: SmallVec::new(),
                deferred_event: None,
            };
            Self {
                id: next_id(),
                adapter,
                role,
                me: me.clone(),
                state: Mutex::new(state),
                path: Mutex::default(),
                _registered: registered,
            }
        })
    }

    /// Sets the path of the connection that is about to be made.
    pub(super) fn set_path(&self, path: Path) {
        *self.path.lock() = Some(Box::new(path));
    }

    /// Returns the path of the connection.
    pub(crate) fn path(&self) -> Option<Path> {
        self.path.lock().as_deref().copied()
    }

    fn lose(&self, status: Status, reason: Reason, applies: impl FnOnce(&State) -> bool) -> AfterStep {
        let mut after = AfterStep::default();
        let mut state = self.lock();
        // A thread is about to end everything, because the device is gone, and that is the reason of the end.
        if self.adapter.is_removed() || !applies(&state) {
            return after;
        }
        let connected = state.progress.phase() == Phase::Connected;
        let loss = Loss::Path(connected.then_some(status));
        let _ = self.advance(&mut state, Input::lost(loss, reason), &mut after);
        if connected {
            self.disconnect_in(&mut state, DisconnectMode::Answer, &mut after);
        }
        after
    }

    /// Returns the input for an event of the current id, if the event concerns the machine.
    fn interpret(&self, state: &mut State, event: &CmEvent, after: &mut AfterStep) -> Option<Input> {
        let phase = state.progress.phase();
        let (connection, peer, status, name) =
            (self.id, state.progress.peer, event.status, event.kind.name().unwrap_or("unknown"));
        after.log(move || {
            debug!(%connection, peer = peer.map(tracing::field::display), event = name, status, phase = ?phase, "rdma_cm event");
        });
        if matches!(event.kind, EventKind::ESTABLISHED | EventKind::CONNECT_RESPONSE) {
            state.pending_call = PendingCall::None;
        }
        match event.kind {
            EventKind::ADDR_RESOLVED => self.address_resolved(state, after),
            EventKind::ROUTE_RESOLVED => self.route_resolved(state),
            EventKind::CONNECT_RESPONSE => Some(self.input_for_reply(state, event)),
            EventKind::ESTABLISHED if self.role == Role::Active => Some(self.input_for_reply(state, event)),
            EventKind::ESTABLISHED => {
                if let (Phase::Accepting, Some(queue_pair)) = (phase, &state.queue_pair) {
                    queue_pair.establish(state.limits);
                }
                Some(Input::PeerCompleted)
            }
            EventKind::DEVICE_REMOVAL => None,
            EventKind::ADDR_CHANGE => {
                self.address_moved(state, after);
                None
            }
            EventKind::ADDR_ERROR | EventKind::ROUTE_ERROR if self.resolves_again(state, event, after) => {
                None
            }
            EventKind::CONNECT_ERROR
                if phase == Phase::Connecting
                    && Self::takes_another_port(state, event.status.saturating_neg()) =>
            {
                self.dial(state).err()
            }
            EventKind::ADDR_ERROR
            | EventKind::ROUTE_ERROR
            | EventKind::CONNECT_ERROR
            | EventKind::UNREACHABLE
            | EventKind::REJECTED
            | EventKind::DISCONNECTED => Some(self.input_for_end(state, event)),
            // TIMEWAIT_EXIT: the queue pair was destroyed. Unknown events are ignored, too.
            _ => None,
        }
    }

    /// Maps an rdma_cm event that ends the attempt or the connection to an input.
    fn input_for_end(&self, state: &State, event: &CmEvent) -> Input {
        let phase = state.progress.phase();
        let transport = if self.adapter.is_iwarp() { CmTransport::Iwarp } else { CmTransport::InfiniBand };
        let cm_phase = match phase {
            Phase::Connected | Phase::PeerGone | Phase::Disconnecting | Phase::Disconnected => {
                CmPhase::Connected
            }
            Phase::RequestPending | Phase::Accepting => CmPhase::Accepting,
            _ => CmPhase::Connecting,
        };
        let kind = event.kind;
        let outcome = Outcome::from_cm_in(cm_phase, kind, event.status, transport);
        let reason = Reason::Cm { event: kind, status: event.status };
        let lost = |loss| Input::lost(loss, reason);
        // After the end of the connection has begun its break is no loss.
        let broken = |status| lost(Loss::Path((phase == Phase::Connected).then_some(status)));
        match phase {
            Phase::Connecting => self.input_for_failed_attempt(state, event, outcome, reason),
            Phase::Connected | Phase::PeerGone | Phase::Disconnecting if kind == EventKind::DISCONNECTED => {
                // A card that speaks iWARP has been reset by its peer. InfiniBand has no word for that.
                let reset = event.status == -libc::ECONNRESET;
                let status = if reset { Status::REMOTE_ERROR } else { Status::IO_TIMEOUT };
                match (phase, event.status) {
                    // Nothing of the queue pair is left, see `Flush`.
                    (Phase::Disconnecting, 0) => Input::DisconnectAnswered,
                    (Phase::Connected, 0) => self.input_for_disconnect(state, reason),
                    (_, 0) => lost(Loss::Disconnected),
                    // The disconnect that this end has begun was not completed, unless it was merely not answered.
                    (Phase::Disconnecting, errno) if errno != -libc::ETIMEDOUT => {
                        lost(Loss::Path(Some(status)))
                    }
                    _ => broken(status),
                }
            }
            Phase::Connected | Phase::PeerGone | Phase::Disconnecting => broken(Status::IO_TIMEOUT),
            // Between two halves of the handshake.
            _ => match (kind, outcome) {
                (EventKind::DISCONNECTED, _) => lost(Loss::Disconnected),
                (EventKind::REJECTED, _) if self.said_no(event) => {
                    lost(Loss::Refused(self.private_data_of(event)))
                }
                (EventKind::UNREACHABLE, _) => lost(Loss::TimedOut),
                // The peer has waited for our last message for as long as it does.
                (EventKind::REJECTED, _)
                    if self.role == Role::Active && reject_reason(event) == Some(IbRejectReason::TIMEOUT) =>
                {
                    lost(Loss::TimedOut)
                }
                _ => lost(Loss::GaveUp),
            },
        }
    }

    /// Returns the input for the disconnect of the peer. A queue pair whose requests were flushed before had failed, and the peer
    /// leaves for the same reason: `rdma_rxe` raises no event when it refuses a request. Over iWARP the end of TCP flushes them, too.
    fn input_for_disconnect(&self, state: &State, reason: Reason) -> Input {
        let failure = state.queue_pair.as_ref().and_then(|queue_pair| queue_pair.failure());
        match failure.filter(|_| !self.adapter.is_iwarp()) {
            Some((status, error)) => Input::lost(Loss::Path(Some(status)), Reason::Completion(error)),
            None => Input::lost(Loss::Disconnected, reason),
        }
    }

    /// Handles what the device has reported by now, without the lock: the cause of an end is known before the end itself.
    fn handle_reports(&self) {
        handle_device_events(&self.adapter);
        let queue_pair = self.lock().queue_pair.clone();
        if let Some(queue_pair) = queue_pair {
            queue_pair.collect_completions();
        }
    }

    /// Returns whether a reject was the application's. iWARP cannot tell, except by the data.
    pub(super) fn said_no(&self, event: &CmEvent) -> bool {
        match reject_reason(event) {
            Some(reason) => reason == IbRejectReason::CONSUMER_DEFINED,
            None => !event.private_data.is_empty(),
        }
    }

    /// Returns the private data of an event. InfiniBand fills its messages up with zeros.
    pub(crate) fn private_data_of(&self, event: &CmEvent) -> Option<PrivateData> {
        let data = Bytes::copy_from_slice(&event.private_data);
        let exact = self.adapter.is_iwarp();
        (!data.is_empty()).then(|| if exact { PrivateData::exact(data) } else { PrivateData::padded(data) })
    }

    /// Releases the id of the attempt. A peer that waits for our decision is refused by the destruction of the id.
    pub(super) fn release_id(&self, state: &mut State) {
        if let Some(id) = state.id.take() {
            match std::mem::replace(&mut state.pending_call, PendingCall::None) {
                PendingCall::None => drop(id),
                // The thread that is in the call has the id, too, and gets rid of it.
                PendingCall::Calling => state.retiring += 1,
                PendingCall::Waiting => {
                    state.retiring += 1;
                    let me = self.me.clone();
                    self.adapter.runtime.spawn_blocking(move || {
                        drop(id);
                        if let Some(connector) = me.upgrade() {
                            connector.retired();
                        }
                    });
                }
            }
        }
        state.retry_pending = false;
        if let Some(timer) = state.timer.take() {
            timer.abort();
        }
    }

    /// Counts an id of an earlier attempt as destroyed. After the last one the bound port is free, and an attempt that
    /// waited for it begins.
    pub(crate) fn retired(&self) {
        self.step(AfterStep::run, |state, after| {
            state.retiring = state.retiring.saturating_sub(1);
            if state.retiring == 0
                && std::mem::take(&mut state.retry_pending)
                && state.progress.phase() == Phase::Connecting
                && let Err(input) = self.dial(state)
            {
                let _ = self.advance(state, input, after);
            }
        });
    }

    /// Returns whether the attempt has to wait until the bound port is free again; then it begins by itself.
    pub(crate) fn is_put_off(state: &mut State) -> bool {
        state.retry_pending = state.retiring > 0 && state.progress.bound().is_some();
        state.retry_pending
    }

    /// Disconnects in this way: now, or when the job that ends the queue pair of the device is done.
    fn disconnect_in(&self, state: &mut State, mode: DisconnectMode, after: &mut AfterStep) {
        if state.flushing {
            return state.queued_disconnects.push(mode);
        }
        match mode {
            DisconnectMode::AwaitAnswer => self.begin_disconnect(state, after),
            DisconnectMode::Immediate => {
                // If the call fails, the destruction of the id ends the connection.
                let _ = Self::send_disconnect(state);
                self.release_id(state);
            }
            DisconnectMode::Answer => self.send_disconnect_or_release(state, after),
        }
    }

    /// Has the requests of the connection flushed, and its queue pair of the device destroyed.
    fn flush(&self, state: &mut State, after: &mut AfterStep) {
        let Some(connector) = self.me.upgrade() else { return };
        let Some(end) = state.queue_pair.as_ref().and_then(|queue_pair| queue_pair.end()) else { return };
        state.flushing = true;
        let resets = self.adapter.is_iwarp() && !self.adapter.quirks().errors_close_in_order;
        let local = state.progress.machine.ending() == Some(&DisconnectReason::Local);
        // A card resets the connection whose queue pair goes to the error state, and its peer would report a loss.
        // After rdma_disconnect the driver closes TCP in order.
        let parting = state.id.clone().filter(|_| resets && local);
        after.add_job(Box::new(move || {
            let _ = parting.map_or(Ok(()), |id| id.disconnect());
            end();
            connector.flushed();
        }));
    }

    /// Disconnects in the ways that waited for the end of the queue pair of the device.
    fn flushed(&self) {
        self.step(AfterStep::run, |state, after| {
            state.flushing = false;
            for mode in std::mem::take(&mut state.queued_disconnects) {
                // The peer may have left since, and the machine waits for no answer then.
                if mode != DisconnectMode::AwaitAnswer || state.progress.phase() == Phase::Disconnecting {
                    self.disconnect_in(state, mode, after);
                }
            }
            if let Some(input) = self.follow_up(state, after) {
                let _ = self.advance(state, input, after);
            }
        });
    }

    /// Returns whether this is the id of the attempt.
    pub(crate) fn has_id(&self, id: &Arc<CmId>) -> bool {
        self.lock().id.as_ref().is_some_and(|current| Arc::ptr_eq(current, id))
    }

    /// Handles the return of a call on this id, which a thread has made. `device` is the queue pair of the device that
    /// the call connects. If the id is still that of the attempt, `then` gives the input that follows, as an error if
    /// the attempt ends with it. In that case, and if the id is that of an earlier attempt, the id retires.
    pub(crate) fn returned(
        &self,
        id: Arc<CmId>,
        device: Option<Arc<DeviceQp>>,
        then: impl FnOnce(&mut State) -> Result<Option<Input>, Input>,
    ) {
        let retires = self.step(AfterStep::run, |state, after| {
            if state.id.as_ref().is_none_or(|current| !Arc::ptr_eq(current, &id)) {
                return true;
            }
            // The end of the attempt leaves the id to this thread, as if the call went on.
            let (input, retires) = match then(state) {
                Ok(input) => (input, false),
                Err(input) => (Some(input), true),
            };
            if let Some(input) = input {
                let _ = self.advance(state, input, after);
            }
            retires
        });
        let deferred = self.lock().deferred_event.take();
        if let (Some(event), Some(connector)) = (deferred, self.me.upgrade()) {
            connector.event(event);
        }
        // In this order: the queue pair waits for the id, and that may wait for the peer.
        drop((id, device));
        if retires {
            self.retired();
        }
    }

    /// Runs what follows a step, and has its jobs done by these threads.
    pub(crate) fn run_on(workers: &Arc<Workers>, after: &mut AfterStep) {
        after.run_jobs_by(|job| workers.run(job));
    }

    /// Waits until the requests of the queue pair have finished that the end of the attempt or the connection flushes.
    pub(crate) async fn settled(&self) {
        let queue_pair = self.lock().queue_pair.clone();
        if let Some(queue_pair) = queue_pair {
            queue_pair.settled().await;
        }
    }

    /// Disconnects (`IND2Connector::Disconnect`), and waits until the requests of the connection have finished.
    ///
    /// # Errors
    /// See [`DisconnectError`].
    pub(crate) async fn disconnect(&self) -> Result<(), DisconnectError> {
        let queue_pair = self.lock().queue_pair.clone();
        let outcome = ConnectorDriver::disconnect(self).await;
        // A call that was refused has ended nothing.
        if let Some(queue_pair) = queue_pair.filter(|_| outcome != Err(DisconnectError::Invalid)) {
            queue_pair.settled().await;
        }
        outcome
    }

    /// Calls rdma_disconnect, if there is an id.
    ///
    /// # Errors
    /// Those of rdma_disconnect(3).
    fn send_disconnect(state: &State) -> io::Result<()> {
        state.id.as_ref().map_or(Ok(()), |id| id.disconnect())
    }

    /// Disconnects without waiting for an answer. If the call fails, the destruction of the id ends the connection.
    fn send_disconnect_or_release(&self, state: &mut State, after: &mut AfterStep) {
        if let Err(error) = Self::send_disconnect(state) {
            let connection = self.id;
            after.log(move || debug!(%connection, %error, "rdma_disconnect failed"));
            self.release_id(state);
        }
    }

    /// Asks the peer to disconnect, and gives up at the deadline of the machine.
    fn begin_disconnect(&self, state: &mut State, after: &mut AfterStep) {
        let sent = Self::send_disconnect(state);
        let left = state.progress.machine.ending() != Some(&DisconnectReason::Local) || state.id.is_none();
        if left || self.adapter.is_stopped() {
            // The peer has left already, there is no id, or the runtime has ended and no task reads the answer.
            state.next = Some(Input::DisconnectAnswered);
            return;
        }
        if self.adapter.is_removed() {
            // As in `lose`.
            return;
        }
        if let Err(error) = sent {
            let connection = self.id;
            let reason = Reason::Errno(error.raw_os_error().unwrap_or(0));
            after.log(move || debug!(%connection, %error, "rdma_disconnect failed"));
            // No answer will come. The destruction of the id, which follows, ends the connection at the peer.
            state.next = Some(Input::lost(Loss::Path(Some(Status::CANCELED)), reason));
            return;
        }
        let Some(deadline) = state.progress.machine.next_timeout() else { return };
        let me = self.me.clone();
        let timer = self.adapter.runtime.spawn(async move {
            tokio::time::sleep_until(deadline.into()).await;
            if let Some(connector) = me.upgrade() {
                connector.out_of_time();
            }
        });
        state.timer = Some(timer.abort_handle());
    }

    /// Ends the pending connect or disconnect, whose deadline has passed.
    pub(crate) fn out_of_time(&self) {
        self.step(
            |after| self.run_apart(after),
            |state, after| {
                if matches!(state.progress.phase(), Phase::Connecting | Phase::Disconnecting) {
                    let _ = self.advance(state, Input::lost(Loss::TimedOut, None), after);
                }
            },
        );
    }
}

/// Returns the reason of a reject of InfiniBand; `None` for the error number that iWARP has.
const fn reject_reason(event: &CmEvent) -> Option<IbRejectReason> {
    IbRejectReason::from_status(event.status)
}

impl ConnectorDriver for Connector {
    type State = State;

    fn id(&self) -> ConnectionId {
        self.id
    }

    #[cfg(feature = "inspect")]
    fn report(&self) -> ConnectionReport {
        let state = self.lock();
        let mut report = state.progress.report(self.id, self.adapter.domain);
        let queue_pair = state.queue_pair.clone();
        drop(state);
        report.role = Some(if self.role == Role::Active { "active" } else { "passive" }.into());
        report.queue_pair = queue_pair.map(|queue_pair| queue_pair.report());
        report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn execute(&self, state: &mut State, action: Action, after: &mut AfterStep) {
        match action {
            // The trait carries out `Finish`, and `bind` itself carries out `StartBind`.
            Action::Finish { .. } | Action::StartBind => {}
            Action::StartConnect => state.next = self.dial(state).err(),
            Action::StartComplete => state.next = self.finish_connect(state, after),
            Action::StartAccept => state.next = self.reply(state, after).err(),
            Action::StartDisconnect => {
                self.disconnect_in(state, DisconnectMode::AwaitAnswer, after);
            }
            Action::Leave => self.disconnect_in(state, DisconnectMode::Immediate, after),
            Action::RefusePeer => self.refuse(state),
            Action::Abandon => self.release_id(state),
            Action::Flush => self.flush(state, after),
        }
    }

    fn follow_up(&self, state: &mut State, after: &mut AfterStep) -> Option<Input> {
        if let Some(next) = state.next.take() {
            return Some(next);
        }
        match state.progress.phase() {
            Phase::Bound if state.id.is_none() => self.bind_again(state),
            Phase::Dead | Phase::Disconnected => {
                state.progress.bound = None;
                if !state.flushing {
                    self.release_id(state);
                }
            }
            _ => {}
        }
        let free = matches!(state.progress.phase(), Phase::Idle | Phase::Bound | Phase::Dead);
        if free
            && let Some(queue_pair) = state.queue_pair.take()
            && let Some(job) = queue_pair.dissociate()
        {
            after.add_job(job);
        }
        None
    }

    fn disconnect_timeout(&self) -> Duration {
        self.adapter.config.disconnect_timeout
    }

    fn run_apart(&self, after: &mut AfterStep) {
        Self::run_on(&self.adapter.teardown, after);
    }
}

impl QueuePairUser for Connector {
    fn connection(&self) -> ConnectionId {
        self.id
    }

    fn cause(&self) -> Option<Reason> {
        self.loss().map(|(_, reason)| reason)
    }

    fn broken(&self, status: Status, reason: Reason) {
        self.run_apart(&mut self.lose(status, reason, |_| true));
    }

    fn broken_here(&self, status: Status, reason: Reason) {
        self.lose(status, reason, |_| true).run();
    }

    fn broken_by(&self, key: u32, status: Status, reason: Reason) {
        let uses_it =
            |state: &State| state.queue_pair.as_ref().is_some_and(|queue_pair| queue_pair.key() == Some(key));
        if status == Status::IO_TIMEOUT && uses_it(&self.lock()) {
            self.log_cause(&reason);
        }
        self.run_apart(&mut self.lose(status, reason, uses_it));
    }

    fn disconnect_first(&self) -> bool {
        let mut state = self.lock();
        if state.progress.phase() != Phase::Connected || Self::send_disconnect(&state).is_err() {
            return false;
        }
        // The answer of the peer is the next event, and not the reason.
        state.progress.machine.note_loss(Status::CANCELED, Reason::Local(FLUSHED));
        true
    }

    /// Reports the connection as established: the message that does so was overtaken, and may never arrive (`P12`).
    fn data_arrived(&self) {
        let state = self.lock();
        if let (Phase::Accepting, Some(id), false) =
            (state.progress.phase(), &state.id, self.adapter.is_iwarp())
        {
            // The call fails if that message has arrived.
            let _ = id.notify_established();
        }
    }

    fn queue_pair_removed(&self) {
        ConnectorDriver::queue_pair_removed(self);
    }
}

impl EventHandler for Connector {
    fn event(self: Arc<Self>, event: CmEvent) {
        let mut after = AfterStep::default();
        if event.kind == EventKind::DISCONNECTED {
            self.handle_reports();
        }
        let mut state = self.lock();
        // The event belongs to an id that is no longer that of the attempt.
        if state.id.as_ref().is_none_or(|id| id.key() != event.key) {
            return;
        }
        // A thread is about to end everything, because the device is gone.
        if self.adapter.is_removed() {
            return;
        }
        if state.precedes_return(&event) {
            state.deferred_event = Some(event);
            return;
        }
        let Some(input) = self.interpret(&mut state, &event, &mut after) else {
            drop(state);
            Self::run_on(&self.adapter.resolution, &mut after);
            if event.kind == EventKind::DEVICE_REMOVAL {
                self.adapter.remove();
            }
            return;
        };
        let leaving = matches!(input, Input::Lost { loss: Loss::Disconnected | Loss::Path(_), .. });
        let _ = self.advance(&mut state, input, &mut after);
        if leaving && state.progress.phase() == Phase::PeerGone && !self.adapter.is_iwarp() {
            // The peer's Disconnect waits for this answer, and our requests are gone already.
            self.disconnect_in(&mut state, DisconnectMode::Answer, &mut after);
        }
        drop(state);
        self.run_apart(&mut after);
    }
}

impl Member for Connector {
    fn device_removed(&self) {
        let _ = self.handle(Input::DeviceRemoved);
    }

    #[cfg(feature = "inspect")]
    fn inspect(&self, _adapter: u64, snapshot: &mut Snapshot) {
        snapshot.connections.push(self.report());
    }

    fn runtime_ended(&self) {
        let phase = self.step(AfterStep::run, |state, after| {
            let phase = state.progress.phase();
            if phase == Phase::Connecting {
                // As a cancel, but for the error of the call.
                let input = Input::lost(Loss::Failed(Status::CANCELED), Reason::RUNTIME_ENDED);
                let _ = self.advance(state, input, after);
            }
            phase
        });
        match phase {
            Phase::ConnectDone | Phase::RequestPending | Phase::Accepting | Phase::Connected => {
                self.broken(Status::CANCELED, Reason::RUNTIME_ENDED);
            }
            Phase::Disconnecting => drop(self.handle(Input::DisconnectAnswered)),
            Phase::Idle
            | Phase::Bound
            | Phase::Connecting
            | Phase::Completing
            | Phase::PeerGone
            | Phase::Disconnected
            | Phase::Dead => {}
        }
    }
}
