//! The listener of the verbs provider: its ids, and the requests that arrive at them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::Waker;

use tracing::{debug, info, warn};

use super::cm_id::{CmId, EventHandler};
use super::connect::bound_id;
use super::connector::Connector;
use super::context::AdapterContext;
use crate::error::{BindError, Reason, StateError};
#[cfg(feature = "inspect")]
use crate::inspect::Snapshot;
use crate::net;
use crate::proto::connector::Terms;
use crate::proto::listener::End;
use crate::provider::accept_queue::{AcceptQueue, Requests};
use crate::provider::connector::ConnectorDriver;
use crate::provider::registry::{Member, Registered};
use crate::status::porting::CmEvent as EventKind;
use crate::sync::{Mutex, MutexGuard};
use crate::sys::CmEvent;
use crate::types::{PrivateData, ReadLimits};

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
