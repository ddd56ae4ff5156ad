//! The listener of the verbs provider, its ids, and the requests that arrive at them; and the passive side of the connector: Accept and
//! Reject of a request, and the refusal of a peer that waits.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::Waker;

use tracing::{debug, info, warn};

use super::connect::{MARKER, bound_id};
use super::connector::{self, Connector, Offer, PendingCall};
use super::context::AdapterContext;
use super::queue_pair::{DeviceQp, QueuePair};
use super::routes::{CmId, EventHandler};
use crate::error::{AcceptError, BindError, Reason, StateError};
#[cfg(feature = "inspect")]
use crate::inspect::Snapshot;
use crate::net;
use crate::proto::connector::{Input, Loss, Op, Phase, Terms};
use crate::proto::listener::End;
use crate::provider::accept_queue::{AcceptQueue, Requests};
use crate::provider::connector::{AfterStep, ConnectorDriver, ReleaseGuard};
use crate::provider::params::AcceptParams;
use crate::provider::registry::{Member, Registered};
use crate::status::Status;
use crate::status::porting::CmEvent as EventKind;
use crate::sync::{Mutex, MutexGuard};
use crate::sys::CmEvent;
use crate::types::{ConnectionId, PrivateData, ReadLimits, Role};

/// A listener, shared by its handle and the reactor.
pub(crate) struct Listener {
    adapter: Arc<AdapterContext>,
    me: Weak<Self>,
    state: Mutex<State>,
    /// The lock of calls that listen. Such a call may wait in the driver while requests arrive, so `state` is not held
    /// then; this one is taken before it.
    listens: Mutex<()>,
    _registered: Registered,
}

/// The state of a listener, under its lock.
pub(crate) struct State {
    requests: Requests<Arc<Connector>>,
    /// One per address.
    ids: Vec<Arc<CmId>>,
    local: Option<SocketAddr>,
}

impl Listener {
    pub(crate) fn new(adapter: Arc<AdapterContext>) -> Arc<Self> {
        let registry = adapter.registry().clone();
        registry.create(|me, registered| Self {
            adapter,
            me: me.clone(),
            state: Mutex::new(State { requests: Requests::new(), ids: Vec::new(), local: None }),
            listens: Mutex::default(),
            _registered: registered,
        })
    }

    /// Binds the listener (`IND2Listener::Bind`). All addresses of a family get the same port.
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        let outcome = self.make_bound(address);
        self.adapter.log_addresses();
        outcome
    }

    /// Binds the listener, under its lock.
    fn make_bound(&self, address: SocketAddr) -> Result<(), BindError> {
        let mut state = self.state.lock();
        let local = state.local;
        state.requests.machine.may_bind().map_err(|status| BindError::of_listener(status, local))?;
        let address = net::canonical(address);
        let mut ids = Vec::new();
        let mut port = address.port();
        for mut place in self.adapter.expand(address) {
            place.set_port(port);
            match bound_id(&self.adapter, self.me.clone(), place, false) {
                Ok((id, bound)) => {
                    port = bound.port();
                    ids.push(id);
                }
                // It has gone since it was listed.
                Err(BindError::InvalidAddress(_)) if address.ip().is_unspecified() => {}
                Err(error) => return Err(error),
            }
        }
        if ids.is_empty() {
            return Err(BindError::InvalidAddress(address.ip()));
        }
        let mut bound = address;
        bound.set_port(port);
        state.local = Some(bound);
        state.ids = ids;
        state.requests.machine.bound().map_err(|status| BindError::of_listener(status, local))
    }

    /// Listens (`IND2Listener::Listen`).
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn listen(&self, backlog: usize) -> Result<(), BindError> {
        let listens = self.listens.lock();
        let mut state = self.state.lock();
        let local = state.local;
        state.requests.machine.may_listen().map_err(|status| BindError::of_listener(status, local))?;
        if self.adapter.is_stopped() {
            return Err(BindError::InvalidState(Reason::RUNTIME_ENDED_TEXT));
        }
        // First: a request may come at one address while the driver still waits for another.
        state.requests.machine.listen(backlog).map_err(|status| BindError::of_listener(status, local))?;
        let ids = state.ids.clone();
        drop(state);
        // The kernel's queue holds those that the reactor has not seen yet; ours is the backlog. The kernel has no word for
        // "not now" when its own is full, so that is as long as it permits (`net.rdma_ucm.max_backlog`).
        if let Err(source) = ids.iter().try_for_each(|id| id.listen(i32::MAX)) {
            let left = self.state.lock().requests.withdraw();
            drop(listens);
            leave(left);
            return Err(match source.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    BindError::SharingViolation(local.unwrap_or_else(|| ([0, 0, 0, 0], 0).into()))
                }
                _ => BindError::Os { call: "rdma_listen", source: source.into() },
            });
        }
        // A subscriber may call this listener.
        drop(listens);
        info!(local = local.map(tracing::field::display), backlog, "listening");
        Ok(())
    }

    /// Returns the local address (`IND2Listener::GetLocalAddress`).
    ///
    /// # Errors
    /// `InvalidDeviceState` when it does not listen.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        let state = self.state.lock();
        state.requests.machine.local_address_ready()?;
        state.local.ok_or(StateError::InvalidDeviceState)
    }

    /// Closes the listener: waits end CANCELED, and queued requests are refused (`LS-07`).
    pub(crate) fn close(&self) {
        self.end(End::Closed);
    }

    fn end(&self, end: End) {
        let mut state = self.state.lock();
        let left = state.requests.end(end);
        let ids = std::mem::take(&mut state.ids);
        drop(state);
        drop(ids);
        leave(left);
    }

    /// Replaces an id whose address has moved to another port of the device, as that of a bond does: the old id stays
    /// with the port that had the address, and requests arrive at the other.
    ///
    /// Requests that have arrived and are still in the kernel are refused with the old id.
    fn address_moved(&self, key: u64) {
        let calls = self.listens.lock();
        let mut state = self.state.lock();
        let Some(place) = state.ids.iter().position(|id| id.key() == key) else { return };
        let Some(local) = state.ids.get(place).and_then(|id| id.local_addr()) else { return };
        let old = state.ids.swap_remove(place);
        let listens = state.requests.machine.local_address_ready().is_ok();
        drop(state);
        // The port is free when the old id is gone.
        drop(old);
        let bound = bound_id(&self.adapter, self.me.clone(), local, true);
        let bound = bound.map_err(io::Error::from).and_then(|(id, _)| {
            if listens {
                id.listen(i32::MAX)?;
            }
            Ok(id)
        });
        let bound = bound.map(|id| {
            let mut state = self.state.lock();
            // A listener that was closed in between has no ids.
            let is_open = !state.requests.machine.is_over();
            let unused = if is_open {
                state.ids.push(id);
                None
            } else {
                Some(id)
            };
            drop(state);
            drop(unused);
        });
        drop(calls);
        match bound {
            Ok(()) => info!(%local, "address moved to another port; listening there"),
            Err(error) => warn!(%local, %error, "address moved to where it cannot be served"),
        }
    }

    /// Queues a request, which has arrived with an id of its own.
    fn arrived(&self, event: CmEvent) {
        let told = ReadLimits::new(event.responder_resources.into(), event.initiator_depth.into());
        let limits = told.capped_to(self.adapter.info().max_read_limits);
        let exact = self.adapter.is_iwarp();
        let data = bytes::Bytes::copy_from_slice(&event.private_data);
        let private_data = if exact { PrivateData::exact(data) } else { PrivateData::padded(data) };
        let Some(request) = event.request else { return };
        let terms = Terms { limits, private_data };
        let router = &self.adapter.router;
        let connector = Connector::with_request(self.adapter.clone(), terms, |me| router.adopt(request, me));
        debug!(connection = %connector.id, peer = connector.peer_addr().ok().map(tracing::field::display), "request arrived");
        self.enqueue(connector, |queued| !queued.is_pending());
    }
}

/// Wakes the calls that waited for requests, and refuses the requests that were not fetched. The caller holds no lock.
fn leave((wakers, requests): (Vec<Waker>, Vec<Arc<Connector>>)) {
    wakers.into_iter().for_each(Waker::wake);
    requests.into_iter().for_each(|connector| connector.release());
}

impl AsMut<Requests<Arc<Connector>>> for State {
    fn as_mut(&mut self) -> &mut Requests<Arc<Connector>> {
        &mut self.requests
    }
}

impl AcceptQueue for Listener {
    type State = State;
    type Request = Arc<Connector>;
    type Connector = Arc<Connector>;

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn connector_for(&self, request: Arc<Connector>) -> Arc<Connector> {
        request
    }

    fn refuse(&self, request: Arc<Connector>) {
        debug!(connection = %request.id, "request rejected: the backlog is full or the listener is closed");
        request.release();
    }
}

impl EventHandler for Listener {
    fn event(self: Arc<Self>, event: CmEvent) {
        match event.kind {
            EventKind::CONNECT_REQUEST => self.arrived(event),
            EventKind::DEVICE_REMOVAL => self.adapter.remove(),
            // The driver may wait in there.
            EventKind::ADDR_CHANGE => {
                let setup = self.adapter.setup.clone();
                setup.run(Box::new(move || self.address_moved(event.key)));
            }
            kind => debug!(event = kind.name().unwrap_or("unknown"), status = event.status, "event ignored"),
        }
    }
}

impl Member for Listener {
    fn device_removed(&self) {
        self.end(End::Removed);
    }

    #[cfg(feature = "inspect")]
    fn inspect(&self, adapter: u64, snapshot: &mut Snapshot) {
        let state = self.state.lock();
        let report = state.requests.report(adapter, state.local);
        drop(state);
        snapshot.listeners.push(report);
    }

    fn runtime_ended(&self) {
        self.close();
    }
}

impl Connector {
    /// Accepts the request (`IND2Connector::Accept`). Resolves when the peer has completed the connection.
    ///
    /// # Errors
    /// See [`AcceptError`]. [`is_pending`](Self::is_pending) returns whether the request is still usable.
    pub(crate) async fn accept(
        &self,
        queue_pair: &Arc<QueuePair>,
        params: &AcceptParams,
    ) -> Result<(), AcceptError> {
        if queue_pair.adapter.domain != self.adapter.domain {
            return Err(AcceptError::ForeignQueuePair);
        }
        if self.adapter.is_stopped() {
            let (peer, status) = (self.peer(), Status::CANCELED);
            return Err(AcceptError::Other { peer, status, reason: Reason::RUNTIME_ENDED });
        }
        let (length, maximum) = (params.private_data.len(), self.adapter.info().max_reply_data);
        // After an attempt that failed it is being renewed.
        queue_pair.settled().await;
        let mut taken = false;
        let within = |state: &mut connector::State, after: &mut AfterStep| {
            taken = length <= maximum
                && state.progress.phase() == Phase::RequestPending
                && state.queue_pair.is_none()
                && queue_pair.associate(self.me.clone()).is_ok();
            if taken {
                let offered = state.progress.machine.read_limits().unwrap_or(ReadLimits::NONE);
                state.queue_pair = Some(queue_pair.clone());
                state.limits = self.agreed(params.read_limits, offered);
                state.offer = Offer {
                    private_data: params.private_data.to_vec().into(),
                    limits: state.limits,
                    options: params.options,
                    traffic_class: None,
                    tries: 0,
                    until: None,
                };
            }
            let busy = length <= maximum && !taken;
            self.advance(state, Input::Accept { data: length, max_data: maximum, busy }, after)
        };
        if let Err(failure) = self.step(|after| Self::run_on(&self.adapter.setup, after), within) {
            self.give_back(taken);
            return Err(self.accept_error(failure));
        }
        let guard = ReleaseGuard::new(self);
        let answer = self.answer(Op::Accept).await;
        guard.disarm();
        answer.map_err(|failure| self.accept_error(failure))
    }

    /// Returns the read limits of an accept that asks for these: at most those that were offered. Some devices serve
    /// all reads that were offered.
    pub(crate) fn agreed(&self, asked: ReadLimits, offered: ReadLimits) -> ReadLimits {
        let agreed = asked.capped_to(offered);
        if self.adapter.quirks().serves_offered_reads {
            ReadLimits { inbound: offered.inbound, ..agreed }
        } else {
            agreed
        }
    }

    /// Frees the queue pair of a call that was refused inline.
    fn give_back(&self, taken: bool) {
        let queue_pair = if taken { self.lock().queue_pair.take() } else { None };
        if let Some(job) = queue_pair.and_then(|queue_pair| queue_pair.dissociate()) {
            self.adapter.teardown.run(job);
        }
    }

    /// Has a thread send the reply. InfiniBand's queue pair is ready before that; iWARP's driver does it by itself.
    ///
    /// # Errors The input that reports the failure to the machine.
    pub(crate) fn reply(&self, state: &mut connector::State, after: &mut AfterStep) -> Result<(), Input> {
        let (Some(id), Some(queue_pair), Some(connector)) =
            (state.id.clone(), state.queue_pair.clone(), self.me.upgrade())
        else {
            return Err(Input::lost(Loss::GaveUp, None));
        };
        let device = queue_pair.lend().ok_or_else(|| Input::lost(Loss::GaveUp, None))?;
        state.awaited = false;
        state.pending_call = PendingCall::Calling;
        let (offer, limits) = (state.offer.clone(), state.limits);
        if self.adapter.quirks().misses_early_frames {
            // On a thread of its own it would wait in the middle for its turn, while the peer sends.
            let connection = self.id;
            let log = |error: io::Error| after.log(move || Self::log_ack_timeout(connection, &error));
            let outcome = self.send_reply(&id, &queue_pair, &device, &offer, limits, log);
            // Not under the lock: its last holder finishes requests.
            after.add_job(Box::new(move || drop(device)));
            return self.has_replied(state, outcome).map(drop);
        }
        after.add_job(Box::new(move || {
            let log = |error: io::Error| Self::log_ack_timeout(connector.id, &error);
            let outcome = connector.send_reply(&id, &queue_pair, &device, &offer, limits, log);
            connector.returned(id, Some(device), |state| connector.has_replied(state, outcome));
        }));
        Ok(())
    }

    /// Makes the calls of an accept.
    ///
    /// # Errors
    /// Those of the calls.
    fn send_reply(
        &self,
        id: &CmId,
        queue_pair: &QueuePair,
        device: &DeviceQp,
        offer: &Offer,
        limits: ReadLimits,
        log_ack_timeout: impl FnOnce(io::Error),
    ) -> io::Result<()> {
        if let Some(timeout) = offer.options.ack_timeout()
            && let Err(error) = id.set_ack_timeout(timeout)
        {
            log_ack_timeout(error);
        }
        if self.adapter.is_iwarp() {
            queue_pair.set_reads(limits);
            self.set_path(device.path(id, None));
        } else {
            self.set_path(queue_pair.ready(device, id, limits, offer.options)?);
        }
        id.accept(&offer.parameters(limits, device.queue_pair.number))
    }

    /// Logs that the acknowledge timeout could not be set, which does not keep the accept from succeeding.
    fn log_ack_timeout(connection: ConnectionId, error: &io::Error) {
        debug!(%connection, %error, "acknowledge timeout not set");
    }

    /// Handles the outcome of the calls that send the reply.
    ///
    /// # Errors The input that reports the failure to the machine.
    fn has_replied(
        &self,
        state: &mut connector::State,
        outcome: io::Result<()>,
    ) -> Result<Option<Input>, Input> {
        if let Err(error) = outcome {
            // Most often the peer has gone, and the event that says so is on its way.
            return Err(Input::lost(Loss::GaveUp, error.raw_os_error().map(Reason::Errno)));
        }
        // Unless the word that establishes the connection has been faster.
        if state.pending_call == PendingCall::Calling {
            state.pending_call =
                if self.adapter.is_iwarp() { PendingCall::Waiting } else { PendingCall::None };
        }
        Ok(None)
    }

    /// Returns whether Accept or Reject may still be called.
    pub(crate) fn is_pending(&self) -> bool {
        let state = self.lock();
        state.progress.phase() == Phase::RequestPending && state.id.is_some()
    }

    /// Rejects the request (`IND2Connector::Reject` by the passive side).
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub(crate) fn reject_request(&self, data: &[u8]) -> Result<(), AcceptError> {
        let keep = |state: &mut connector::State, data| state.reject_data = Some(data);
        self.reject(data, self.adapter.info().max_reject_data, keep)
            .map_err(|failure| self.accept_error(failure))
    }

    /// Refuses a waiting peer, with the private data of Reject, or for now. Over iWARP a reject for now has no data.
    pub(super) fn refuse(&self, state: &mut connector::State) {
        let said = state.reject_data.take();
        let for_now: &[u8] =
            if self.role == Role::Passive && !self.adapter.is_iwarp() { &MARKER } else { &[] };
        let data = said.as_deref().unwrap_or(for_now);
        // At any other moment the destruction of the id refuses the peer. After an accept a reject would leave the
        // reply in flight, and the destruction would wait a minute for it.
        if let Some(id) = state.id.as_ref().filter(|_| std::mem::take(&mut state.awaited)) {
            let established = self.adapter.is_iwarp() && self.role == Role::Active;
            // If the peer has gone, the call fails, which makes no difference.
            let _ = if established { id.disconnect() } else { id.reject(data) };
        }
        self.release_id(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::limits::IB_REJECT_DATA;
    use crate::verbs::limits::MAX_REJECT_DATA;

    // ERR-10: not even the marker itself, sent by an application, arrives as the marker.
    #[test]
    fn no_data_of_an_application_is_the_marker() {
        for length in 0..=MAX_REJECT_DATA {
            let mut arrives = MARKER[..length].to_vec();
            arrives.resize(IB_REJECT_DATA, 0);
            assert_ne!(arrives, MARKER, "{length}");
        }
    }
}
