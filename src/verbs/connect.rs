//! The active side of the connector: Bind, Connect, CompleteConnect, Reject, and the pauses between attempts to connect that this host
//! refuses for lack of resources.
//!
//! A passive side of InfiniBand or RoCE may be unable to take a connection for now. InfiniBand's connection manager has one
//! reason for every reject of a program, so the private data marks this one as not the application's, [`MARKER`]. Its last byte
//! is not zero: the private data of an application is at least one byte shorter, and arrives with zeros behind it. A peer that
//! does not know the marker finds a sentence in it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{debug, info};

use super::connector::{Connector, Offer, PendingCall, State};
use super::context::AdapterContext;
use super::limits::IB_REJECT_DATA;
use super::queue_pair::QueuePair;
use super::routes::{CmId, EventHandler};
use crate::error::{BindError, ConnectError, Reason};
use crate::net;
use crate::net::ports::{PortRange, candidates};
use crate::proto::connector::{Input, Loss, Op, Phase, Terms};
use crate::provider::connector::{AfterStep, ConnectCall, ConnectWait, ConnectorDriver};
use crate::provider::params::ConnectParams;
use crate::status::Status;
use crate::status::porting::{CmEvent as EventKind, Outcome};
use crate::sys::CmEvent;
use crate::types::{PrivateData, ReadLimits};

/// The sentence at the front of the private data.
const TEXT: &[u8] = b"tokio-rdma: the connection cannot be taken for now";

/// The private data of a reject for now.
pub(super) const MARKER: [u8; IB_REJECT_DATA] = {
    let mut marker = [0; IB_REJECT_DATA];
    let (text, _) = marker.split_at_mut(TEXT.len());
    text.copy_from_slice(TEXT);
    marker[IB_REJECT_DATA - 1] = 1;
    marker
};

/// The time limit of one attempt at each of the two steps of address resolution. A step repeats its packets within it.
const RESOLVE: Duration = Duration::from_secs(2);
/// The time after which no further attempt begins, if the caller has set no limit.
const RESOLVE_ALL: Duration = Duration::from_secs(5);
/// The number of other ports that are tried when a driver finds one taken only when it connects.
const PORT_TRIES: u8 = 16;

impl Connector {
    /// Binds the connector to a local address (`IND2Connector::Bind`).
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        if self.adapter.is_removed() {
            return Err(BindError::DeviceRemoved);
        }
        let address = net::canonical(address);
        self.bind_by(|state| {
            let (id, local) = bound_id(&self.adapter, self.me.clone(), address, false)?;
            state.id = Some(id);
            Ok(local)
        })
    }

    /// Binds again after an attempt that came to nothing has used the bound id up (`CM-19`).
    pub(crate) fn bind_again(&self, state: &mut State) {
        let Some(local) = state.progress.bound() else { return };
        if let Ok((id, _)) = bound_id(&self.adapter, self.me.clone(), local, true) {
            state.id = Some(id);
        }
    }

    /// Connects to `peer` (`IND2Connector::Connect`). Resolves when the peer accepts.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn connect(
        &self,
        queue_pair: &Arc<QueuePair>,
        peer: SocketAddr,
        params: &ConnectParams,
    ) -> Result<(), ConnectError> {
        self.check_adapter(peer)?;
        if queue_pair.adapter.domain != self.adapter.domain {
            return Err(ConnectError::ForeignQueuePair);
        }
        if params.multipath {
            return Err(ConnectError::NotSupported("multipath"));
        }
        if params.traffic_class.is_some_and(|class| class & 0b11 != 0) {
            return Err(ConnectError::NotSupported("a traffic class with bits of congestion control"));
        }
        let limit = params.timeout.or_else(|| self.answer_limit());
        let deadline = limit.and_then(|limit| tokio::time::Instant::now().checked_add(limit));
        let mut backoff = self.adapter.config.max_connects.map(|_| Backoff::default());
        let (mut pause, mut place) = (None, None);
        let watch = backoff.as_ref().map(|_| self.watch_cancels());
        let last = deadline.filter(|_| params.timeout.is_some());
        let last = last.unwrap_or_else(|| tokio::time::Instant::now() + RESOLVE_ALL);
        loop {
            let ready = async {
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
                // After an attempt that failed it is being renewed, which may wait for a call of the driver.
                queue_pair.settled().await;
                if place.is_none() {
                    place = self.adapter.connect_place().await;
                }
            };
            let ready = self.unless_canceled(ready);
            let wait = match deadline {
                None => ready.await?,
                Some(deadline) => {
                    let ready = tokio::time::timeout_at(deadline, ready).await;
                    ready.map_err(|_elapsed| ConnectError::TimedOut { peer, limit })??
                }
            };
            // Either may have ended during the wait.
            self.check_adapter(peer)?;
            let outcome = self.attempt(queue_pair, peer, params, deadline, wait).await;
            let refused = outcome.as_ref().is_err_and(|error| {
                error.status() == Status::INSUFFICIENT_RESOURCES && error.is_connector_usable()
            });
            pause = backoff.as_mut().filter(|_| refused).map(Backoff::pause);
            match pause {
                Some(_) if watch.as_ref().is_some_and(|watch| self.is_canceled(watch)) => {
                    return Err(ConnectError::Canceled);
                }
                Some(pause) if tokio::time::Instant::now() + pause < last => {
                    // Another connect may succeed during the pause.
                    place = None;
                    let connection = self.id;
                    debug!(%connection, %peer, ?pause, "no resources on this host, connect repeated");
                }
                _ => return outcome,
            }
        }
    }

    /// Checks that the adapter was not removed, and that its runtime has not shut down.
    ///
    /// # Errors
    /// `DeviceRemoved`; `Other` with `CANCELED`.
    fn check_adapter(&self, peer: SocketAddr) -> Result<(), ConnectError> {
        if self.adapter.is_removed() {
            return Err(ConnectError::DeviceRemoved);
        }
        if self.adapter.is_stopped() {
            return Err(ConnectError::Other {
                peer,
                status: Status::CANCELED,
                reason: Reason::RUNTIME_ENDED,
            });
        }
        Ok(())
    }

    /// Makes one attempt of a connect.
    ///
    /// # Errors
    /// See [`ConnectError`].
    async fn attempt(
        &self,
        queue_pair: &Arc<QueuePair>,
        peer: SocketAddr,
        params: &ConnectParams,
        deadline: Option<tokio::time::Instant>,
        wait: Option<ConnectWait<'_, Self>>,
    ) -> Result<(), ConnectError> {
        let begun = self.begin(queue_pair, peer, params, deadline.map(tokio::time::Instant::into_std), wait);
        self.adapter.log_addresses();
        let call = begun?;
        let answer = self.answer(Op::Connect);
        let answer = match deadline {
            None => answer.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, answer).await {
                Ok(answer) => answer,
                Err(_elapsed) => {
                    self.out_of_time();
                    self.answer(Op::Connect).await
                }
            },
        };
        // Before the call ends, because another call may begin then.
        let outcome = answer.map_err(|failure| self.connect_error(failure));
        call.returned();
        outcome
    }

    /// Returns the time limit of a connect whose caller has set none.
    ///
    /// The connection manager of InfiniBand asks the kernel of a peer whose program is silent again and again, for a quarter of an
    /// hour: each answer of that kernel asks for another minute. Drivers of iWARP end the wait by themselves.
    fn answer_limit(&self) -> Option<Duration> {
        if self.adapter.is_iwarp() { None } else { self.adapter.info().answer_timeout }
    }

    /// Begins a connect: takes the queue pair, and starts the machine under the same lock.
    fn begin(
        &self,
        queue_pair: &Arc<QueuePair>,
        peer: SocketAddr,
        params: &ConnectParams,
        deadline: Option<Instant>,
        wait: Option<ConnectWait<'_, Self>>,
    ) -> Result<ConnectCall<'_, Self>, ConnectError> {
        let lengths = (params.private_data.len(), self.adapter.info().max_request_data);
        self.begin_connect(net::canonical(peer), lengths, deadline, wait, |state| {
            if queue_pair.associate(self.me.clone()).is_err() {
                return false;
            }
            state.queue_pair = Some(queue_pair.clone());
            state.awaited = false;
            state.offer = Offer {
                private_data: params.private_data.to_vec().into(),
                limits: params.read_limits.capped_to(self.adapter.info().max_read_limits),
                options: params.options,
                traffic_class: params.traffic_class,
                tries: PORT_TRIES,
                until: params.timeout.is_none().then(|| Instant::now() + RESOLVE_ALL),
            };
            true
        })
    }

    /// Begins the first step of the attempt, the resolution of the peer's address, unless the attempt has to wait for
    /// the bound port.
    ///
    /// # Errors The input that reports the failure to the machine.
    pub(crate) fn dial(&self, state: &mut State) -> Result<(), Input> {
        if Self::is_put_off(state) {
            return Ok(());
        }
        self.resolve(state).map_err(Input::from)
    }

    fn resolve(&self, state: &mut State) -> Result<(), ConnectError> {
        let peer = state.progress.peer.ok_or(ConnectError::Invalid)?;
        net::validate_destination(peer)?;
        if state.progress.bound().is_some_and(|bound| bound.is_ipv4() != peer.is_ipv4()) {
            return Err(ConnectError::InvalidAddress(peer));
        }
        if state.progress.bound() == Some(peer) {
            // A listener cannot be there, and the TCP of some drivers would connect to itself.
            let reason = Reason::Errno(libc::ECONNREFUSED);
            return Err(ConnectError::Refused { peer, reason });
        }
        let id = match (state.id.clone(), state.progress.bound()) {
            (Some(id), Some(_)) => id,
            (_, bound) => {
                let (id, local) = match bound {
                    Some(bound) => {
                        bound_id(&self.adapter, self.me.clone(), bound, true).map_err(ConnectError::Bind)?
                    }
                    None => self.id_towards(peer)?,
                };
                state.progress.local = Some(local);
                state.id = Some(id.clone());
                id
            }
        };
        if state.progress.bound().is_some() {
            // So that the next attempt's id can have the address before this one has gone; to others it stays taken.
            let _ = id.set_reuseaddr();
        }
        let os = |error: &io::Error| net::connect_error(error, peer);
        if let Some(class) = state.offer.traffic_class {
            id.set_tos(class).map_err(|_| ConnectError::NotSupported("a traffic class"))?;
        }
        if let Some(timeout) = state.offer.options.ack_timeout() {
            id.set_ack_timeout(timeout).map_err(|_| ConnectError::NotSupported("an acknowledge timeout"))?;
        }
        id.resolve_addr(None, peer, RESOLVE).map_err(|error| os(&error))
    }

    /// Repeats a step of address resolution that has timed out, while there is time: a subnet manager may be busy, and
    /// a peer may be about to come up. Returns whether it does.
    ///
    /// The id is then as it was before the step, in the kernel too.
    pub(crate) fn resolves_again(&self, state: &mut State, event: &CmEvent, after: &mut AfterStep) -> bool {
        let (Some(id), Some(peer)) = (&state.id, state.progress.peer) else { return false };
        let unanswered = event.status == -libc::ETIMEDOUT && state.progress.phase() == Phase::Connecting;
        if !unanswered || state.offer.until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        let (connection, step) = (self.id, event.kind.name().unwrap_or("unknown"));
        after.log(move || debug!(%connection, %peer, step, "resolution repeated"));
        match event.kind {
            EventKind::ADDR_ERROR => id.resolve_addr(None, peer, RESOLVE).is_ok(),
            EventKind::ROUTE_ERROR => {
                self.resolve_route(state, after);
                true
            }
            _ => false,
        }
    }

    /// Has a thread ask for the route: librdmacm asks `ibacm` for that of InfiniBand and RoCE, if it runs, and waits for its
    /// answer within the call. That may take seconds, and all such calls of a process wait for each other.
    fn resolve_route(&self, state: &mut State, after: &mut AfterStep) {
        let (Some(id), Some(connector)) = (state.id.clone(), self.me.upgrade()) else { return };
        state.pending_call = PendingCall::Calling;
        after.add_job(Box::new(move || {
            // An attempt that ended before its turn came needs no route.
            let outcome = if connector.has_id(&id) { id.resolve_route(RESOLVE) } else { Ok(()) };
            connector.returned(id, None, |state| {
                outcome.map_err(|error| Self::fail(state, &error))?;
                state.pending_call = PendingCall::None;
                Ok(None)
            });
        }));
    }

    /// Handles the move of the local address to another port of its device, or to another device, as it happens to an
    /// address of a bond.
    ///
    /// A connection goes on for as long as its path does: its packets may still arrive, and if they do not, the device or the
    /// path timeout ends it. An id that waits for its connect is bound again, so that the connection uses the new path.
    pub(crate) fn address_moved(&self, state: &mut State, after: &mut AfterStep) {
        let (connection, local) = (self.id, state.progress.local);
        after.log(move || info!(%connection, local = local.map(tracing::field::display), "local address moved to another port"));
        if state.progress.phase() == Phase::Bound {
            state.id = None;
            self.bind_again(state);
        }
    }

    /// Creates an id at the address from which a peer is reached.
    fn id_towards(&self, peer: SocketAddr) -> Result<(Arc<CmId>, SocketAddr), ConnectError> {
        let made = || {
            let source = self.adapter.source_for(peer).ok_or(ConnectError::InvalidAddress(peer))?;
            bound_id(&self.adapter, self.me.clone(), source, false).map_err(ConnectError::Bind)
        };
        match made() {
            Err(ConnectError::Bind(BindError::InvalidAddress(_))) => {
                // The address has gone since it was listed.
                // Without the events of it, because the connector is locked.
                let _ = self.adapter.list_addresses();
                made()
            }
            outcome => outcome,
        }
    }

    /// Begins the second step, the resolution of the route, after the address was resolved.
    pub(crate) fn address_resolved(&self, state: &mut State, after: &mut AfterStep) -> Option<Input> {
        let id = state.id.as_ref().filter(|_| state.progress.phase() == Phase::Connecting)?;
        state.progress.local = id.local_addr().or(state.progress.local);
        if !self.adapter.has(id) {
            // It was bound to the unspecified address, and the peer is reached by another device.
            return Some(Self::fail(state, &io::Error::from_raw_os_error(libc::ENETUNREACH)));
        }
        self.resolve_route(state, after);
        None
    }

    /// Begins the third step: sends the request. InfiniBand's answer comes as an event; drivers of iWARP connect their
    /// TCP within the call, which is therefore made where it may block.
    pub(crate) fn route_resolved(&self, state: &mut State) -> Option<Input> {
        let id = state.id.clone().filter(|_| state.progress.phase() == Phase::Connecting)?;
        if !self.adapter.is_iwarp() {
            let device = state.queue_pair.as_ref()?.lend()?;
            device.tell_options(&id);
            let number = device.queue_pair.number;
            // The call only sends the number to the peer.
            drop(device);
            let outcome = id.connect(&state.offer.parameters(state.offer.limits, number));
            if outcome.is_ok() {
                state.pending_call = PendingCall::Waiting;
            }
            return outcome.err().map(|error| Self::fail(state, &error));
        }
        // Both are held until the call has returned: neither may go while the driver works on them.
        let device = state.queue_pair.as_ref()?.lend()?;
        let offer = state.offer.clone();
        let me = self.me.clone();
        self.set_path(device.path(&id, None));
        state.pending_call = PendingCall::Calling;
        self.adapter.runtime.spawn_blocking(move || {
            let outcome = id.connect(&offer.parameters(offer.limits, device.queue_pair.number));
            match me.upgrade() {
                Some(connector) => {
                    connector.returned(id, Some(device), |state| connector.has_called(state, outcome))
                }
                None => drop((id, device)),
            }
        });
        None
    }

    /// Handles the outcome of the call that sends the request over iWARP. A port of our own choice that turns out to be
    /// taken is replaced by the next one.
    ///
    /// # Errors The input that reports the failure to the machine.
    fn has_called(&self, state: &mut State, outcome: io::Result<()>) -> Result<Option<Input>, Input> {
        let Err(error) = outcome else {
            // Unless the answer has been faster.
            if state.pending_call == PendingCall::Calling {
                state.pending_call = PendingCall::Waiting;
            }
            return Ok(None);
        };
        if Self::takes_another_port(state, error.raw_os_error().unwrap_or(0)) {
            return Ok(self.dial(state).err());
        }
        Err(Self::fail(state, &error))
    }

    /// Gives up the id of the attempt if a driver has found its port taken, by this error number, and the port was of our own
    /// choice. Returns whether it did: the attempt dials again, from another port.
    pub(crate) fn takes_another_port(state: &mut State, errno: i32) -> bool {
        let taken = matches!(errno, libc::EADDRINUSE | libc::EADDRNOTAVAIL);
        if !taken || state.progress.bound().is_some() || state.offer.tries == 0 {
            return false;
        }
        state.pending_call = PendingCall::None;
        state.offer.tries -= 1;
        state.id = None;
        true
    }

    /// Returns the input for a step of the attempt that failed within its call.
    fn fail(state: &State, error: &io::Error) -> Input {
        let peer = state.progress.peer.unwrap_or(SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0));
        net::attempt_error(error, peer).into()
    }

    /// Returns the input for an event that ends the attempt, with the outcome that the event stands for.
    pub(super) fn input_for_failed_attempt(
        &self,
        state: &State,
        event: &CmEvent,
        outcome: Option<Outcome>,
        reason: Reason,
    ) -> Input {
        let Some(peer) = state.progress.peer else {
            return Input::lost(Loss::Failed(Status::UNSUCCESSFUL), reason);
        };
        let rejected = event.kind == EventKind::REJECTED && self.said_no(event);
        if rejected && !self.adapter.is_iwarp() && event.private_data[..] == MARKER {
            return Input::lost(Loss::Refused(None), Reason::NotNow);
        }
        let lost = |loss| Input::lost(loss, reason);
        match outcome {
            Some(Outcome::NetworkUnreachable) => lost(Loss::Unreachable { network: true }),
            Some(Outcome::HostUnreachable) => lost(Loss::Unreachable { network: false }),
            Some(Outcome::NoAnswer) => lost(Loss::TimedOut),
            _ if event.kind == EventKind::REJECTED => match event.status.saturating_neg() {
                libc::ETIMEDOUT => lost(Loss::TimedOut),
                libc::EHOSTUNREACH => lost(Loss::Unreachable { network: false }),
                libc::ENETUNREACH => lost(Loss::Unreachable { network: true }),
                // The application's.
                _ if rejected => {
                    let private_data = self.private_data_of(event);
                    ConnectError::Rejected { peer, private_data, reason }.into()
                }
                _ => lost(Loss::Refused(None)),
            },
            _ if event.kind == EventKind::DISCONNECTED => lost(Loss::GaveUp),
            _ => Self::input_for_error(event, outcome, peer, reason),
        }
    }

    /// Returns the input for a step of the attempt that failed with an error number, which means the same as that of a
    /// failed call.
    ///
    /// A resolution reports the numbers of the kernel's routes. Drivers of iWARP report what has no event of its own as
    /// `CONNECT_ERROR`: a peer without a hardware address, for example (cxgb4's `status2errno`).
    fn input_for_error(event: &CmEvent, outcome: Option<Outcome>, peer: SocketAddr, reason: Reason) -> Input {
        let errno = event.status.saturating_neg();
        let other = |status| ConnectError::Other { peer, status, reason };
        let error = match net::connect_error(&io::Error::from_raw_os_error(errno), peer) {
            _ if outcome == Some(Outcome::AddressInvalid) => ConnectError::InvalidAddress(peer),
            // A resolution reports a route that takes no packets by this number, a driver anything.
            _ if errno == libc::EINVAL && event.kind != EventKind::ADDR_ERROR => other(Status::UNSUCCESSFUL),
            ConnectError::Other { status: Status::INSUFFICIENT_RESOURCES, .. } => {
                other(Status::INSUFFICIENT_RESOURCES)
            }
            ConnectError::Other { .. } => other(Status::UNSUCCESSFUL),
            error => error,
        };
        Input::failed(error, Some(reason))
    }

    /// Returns the input for the peer's accept: on InfiniBand the peer waits for us, on iWARP the connection is
    /// established (SEMANTICS 11.2).
    pub(crate) fn input_for_reply(&self, state: &mut State, event: &CmEvent) -> Input {
        let told = ReadLimits::new(event.responder_resources.into(), event.initiator_depth.into());
        let told = if self.adapter.quirks().swaps_read_limits { told.swapped() } else { told };
        let limits = told.capped_to(state.offer.limits);
        if state.progress.phase() == Phase::Connecting {
            state.limits = limits;
            state.awaited = true;
        }
        let private_data = self.private_data_of(event).unwrap_or_else(PrivateData::empty);
        Input::PeerAccepted(Terms { limits, private_data })
    }

    /// Completes the connection (`IND2Connector::CompleteConnect`).
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn complete(&self) -> Result<(), ConnectError> {
        let answer = match self.step(
            |after| Self::run_on(&self.adapter.setup, after),
            |state, after| self.advance(state, Input::CompleteConnect, after),
        ) {
            Ok(()) => self.answer(Op::CompleteConnect).await,
            Err(failure) => return Err(self.connect_error(failure)),
        };
        if answer.is_err() {
            self.settled().await;
        }
        answer.map_err(|failure| self.connect_error(failure))
    }

    /// Begins the second half of the handshake, whose calls a thread makes. Over iWARP there is no call to make, and
    /// the connection is established.
    pub(crate) fn finish_connect(&self, state: &mut State, after: &mut AfterStep) -> Option<Input> {
        let aborted = |reason: Option<Reason>| Input::lost(Loss::Failed(Status::CONNECTION_ABORTED), reason);
        let (Some(id), Some(queue_pair), Some(connector)) =
            (state.id.clone(), state.queue_pair.clone(), self.me.upgrade())
        else {
            return Some(aborted(None));
        };
        state.awaited = false;
        if self.adapter.is_iwarp() {
            queue_pair.establish(state.limits);
            return Some(Input::CompleteDone);
        }
        let Some(device) = queue_pair.lend() else { return Some(aborted(None)) };
        let (limits, options) = (state.limits, state.offer.options);
        state.pending_call = PendingCall::Calling;
        after.add_job(Box::new(move || {
            let ready = queue_pair.ready(&device, &id, limits, options);
            let outcome = ready.and_then(|path| {
                connector.set_path(path);
                id.establish()
            });
            connector.returned(id, Some(device), |state| {
                if let Err(error) = outcome {
                    return Err(aborted(error.raw_os_error().map(Reason::Errno)));
                }
                state.pending_call = PendingCall::None;
                queue_pair.establish(limits);
                Ok(Some(Input::CompleteDone))
            });
        }));
        None
    }

    /// Rejects the reply of the passive side (`IND2Connector::Reject` by the active side).
    ///
    /// # Errors
    /// `InvalidBufferSize` if the connection manager has no room for so many bytes here.
    pub(crate) fn reject_reply(&self, data: &[u8]) -> Result<(), ConnectError> {
        let keep = |state: &mut State, data| state.reject_data = Some(data);
        self.reject(data, self.adapter.info().max_active_reject_data, keep)
            .map_err(|failure| self.connect_error(failure))
    }
}

/// Creates an id that is bound to a local address of the adapter. With port 0 the id gets the first free port of ours (`X9`).
///
/// # Errors
/// See [`BindError`].
pub(super) fn bound_id(
    adapter: &AdapterContext,
    handler: Weak<dyn EventHandler>,
    address: SocketAddr,
    reuse: bool,
) -> Result<(Arc<CmId>, SocketAddr), BindError> {
    let id = adapter.router.create(&adapter.events, handler);
    let id = id.map_err(|source| BindError::Os { call: "rdma_create_id", source: source.into() })?;
    if reuse {
        // The id before this one is gone, and some drivers remember it for a while. Without the option the port may be
        // ours all the same.
        let _ = id.set_reuseaddr();
    }
    let local = bind_id(&id, address)?;
    if adapter.has(&id) { Ok((id, local)) } else { Err(BindError::InvalidAddress(address.ip())) }
}

fn bind_id(id: &CmId, address: SocketAddr) -> Result<SocketAddr, BindError> {
    if address.is_ipv6() {
        let _ = id.set_afonly();
    }
    let bind = |port| {
        let mut address = address;
        address.set_port(port);
        id.bind(address).map(|()| id.local_addr().unwrap_or(address)).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EADDRINUSE) => BindError::SharingViolation(address),
                Some(libc::EADDRNOTAVAIL | libc::ENODEV | libc::EINVAL) => {
                    BindError::InvalidAddress(address.ip())
                }
                _ => BindError::Address { address, error: source.into() },
            }
        })
    };
    if address.port() != 0 {
        return bind(address.port());
    }
    for port in candidates(PortRange::EPHEMERAL) {
        match bind(port) {
            Err(BindError::SharingViolation(_)) => {}
            outcome => return outcome,
        }
    }
    Err(BindError::TooManyAddresses(address.ip()))
}

/// The first pause, before a random part of it is taken away.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// Pauses of which each may be twice as long as the one before. Half of a pause is random, so that programs that were refused together
/// do not come back together.
pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// Returns the next pause.
    pub(super) fn pause(&mut self) -> Duration {
        let mut random = [0; 4];
        // Without random numbers it is the shortest.
        let _ = getrandom::fill(&mut random);
        let half = self.next / 2;
        self.next = LONGEST.min(self.next * 2);
        half + half.mul_f64(f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // HW-20: each pause is between half and all of a time that doubles up to a second.
    #[test]
    fn pauses_double_and_vary() {
        let mut backoff = Backoff::default();
        let mut whole = FIRST;
        let mut parts = Vec::new();
        for _ in 0..40 {
            let pause = backoff.pause();
            assert!((whole / 2..=whole).contains(&pause), "{pause:?} of {whole:?}");
            parts.push(pause.div_duration_f64(whole));
            whole = LONGEST.min(whole * 2);
        }
        assert_eq!(whole, LONGEST);
        let spread = parts.iter().copied().fold(0.0, f64::max) - parts.iter().copied().fold(1.0, f64::min);
        assert!(spread > 0.1, "the pauses are all alike: {parts:?}");
    }
}
