//! The active side: Bind, Connect, CompleteConnect, Reject.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::Instrument;

use super::adapter::{MAX_PRIVATE_DATA, READ_LIMITS};
use super::cm::Cm;
use super::link::{Driver, Link, LinkParts, Socket};
use super::net;
use super::net::bind::{BoundSocket, bind_connector};
use super::net::connect::{ConnectFailure, Connected};
use super::net::options::SocketError;
use super::net::ports::PortRange;
use super::queue_pair::QueuePairCore;
use super::receive::Receiver;
use super::send::SendQueue;
use super::transport::Transport;
use crate::error::{BindError, ConnectError, Reason, StateError};
use crate::proto::connector::{Input, Op, State, Terms};
use crate::proto::limits;
use crate::proto::mpa::{Initiator, Negotiated, Parting, Reply, Rtr, StartConfig};
use crate::provider::params::ConnectParams;
use crate::status::Status;
use crate::types::{PrivateData, Role};
use crate::wire::rdmap::ReadRequest;

/// How many ports are tried when the kernel says that the four of addresses and ports are taken.
const PORT_TRIES: usize = 512;

/// A dial that failed: what it means for the machine, and what to tell the caller.
struct DialError {
    input: Input,
    error: ConnectError,
}

impl DialError {
    fn refused(private_data: Option<PrivateData>, reason: Reason) -> Self {
        Self {
            input: Input::Refused { private_data: private_data.clone() },
            error: ConnectError::Refused { private_data, reason },
        }
    }

    fn new(error: ConnectError) -> Self {
        let input = match &error {
            ConnectError::NetworkUnreachable => Input::Unreachable { network: true },
            ConnectError::HostUnreachable => Input::Unreachable { network: false },
            ConnectError::TimedOut => Input::TimedOut,
            ConnectError::Refused { private_data, .. } => {
                Input::Refused { private_data: private_data.clone() }
            }
            ConnectError::Bind(error) => Input::BindFailed(error.status()),
            ConnectError::NotSupported(_) => Input::BindFailed(Status::NOT_SUPPORTED),
            other => Input::Failed(other.status()),
        };
        Self { input, error }
    }

    fn io(error: &io::Error, peer: SocketAddr) -> Self {
        let errno = error.raw_os_error().map_or(Reason::PeerClosed, Reason::Errno);
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
                Self::refused(None, errno)
            }
            _ => Self::new(net::errors::connect_error(error, peer)),
        }
    }
}

/// Cancels the connect when its future is dropped.
struct CancelOnDrop<'a>(Option<&'a Cm>);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(cm) = self.0.take() {
            let _ = cm.apply(Input::Cancel);
        }
    }
}

impl Cm {
    /// IND2Connector::Bind.
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        if self.adapter.is_removed() {
            return Err(BindError::DeviceRemoved);
        }
        self.apply(Input::Bind).map_err(|status| match status {
            Status::ADDRESS_ALREADY_ASSOCIATED => BindError::AlreadyBound,
            Status::DEVICE_REMOVED => BindError::DeviceRemoved,
            _ => BindError::InvalidState,
        })?;
        match self.make_bound(address, &ConnectParams::default()) {
            Ok(bound) => {
                let _ = self.apply_with(Input::Bound, |inner| {
                    inner.local = Some(bound.local);
                    inner.bound_to = Some(bound.local);
                    inner.bound = Some(bound);
                });
                Ok(())
            }
            Err(error) => {
                let error = match error {
                    SocketError::Bind(error) => error,
                    // Nothing that bind alone asks for can be missing.
                    SocketError::NotSupported(what) => {
                        BindError::Os { call: "socket", source: io::Error::other(what) }
                    }
                };
                let _ = self.apply(Input::BindFailed(error.status()));
                Err(error)
            }
        }
    }

    fn make_bound(&self, address: SocketAddr, params: &ConnectParams) -> Result<BoundSocket, SocketError> {
        if !self.adapter.owns(address.ip()) {
            return Err(BindError::InvalidAddress.into());
        }
        let options = self.adapter.socket_options(params.traffic_class, params.multipath);
        bind_connector(address, self.adapter.ports(), &options)
    }

    /// The address that Bind gave, before a connection uses it.
    pub(crate) fn bound_addr(&self) -> Result<SocketAddr, StateError> {
        let inner = self.lock();
        match (inner.machine.state(), &inner.bound) {
            (State::Bound, Some(bound)) => Ok(bound.local),
            _ => Err(StateError::ConnectionInvalid),
        }
    }

    /// IND2Connector::Connect: afterwards the transport waits for [`complete`](Self::complete).
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn connect(
        self: &Arc<Self>,
        queue_pair: &Arc<QueuePairCore>,
        peer: SocketAddr,
        params: &ConnectParams,
    ) -> Result<(), ConnectError> {
        if self.adapter.is_removed() {
            return Err(ConnectError::DeviceRemoved);
        }
        if queue_pair.adapter.domain != self.adapter.domain {
            return Err(ConnectError::ForeignQueuePair);
        }
        let deadline = params.timeout.and_then(|timeout| {
            tokio::time::Instant::now().checked_add(timeout).map(tokio::time::Instant::into_std)
        });
        self.begin(queue_pair, peer, params, deadline)?;
        let mut guard = CancelOnDrop(Some(self));
        let outcome = self.race(peer, params, deadline).await;
        let error = match outcome {
            Ok(dialled) => {
                let _ = self.apply_with(Input::PeerAccepted(dialled.terms), |inner| {
                    if inner.machine.state() == State::Connecting {
                        inner.transport = Some(dialled.transport);
                    }
                });
                None
            }
            Err(Some(DialError { input, error })) => {
                let _ = self.apply(input);
                Some(error)
            }
            Err(None) => None,
        };
        let status = self.answer(Op::Connect).await;
        guard.0 = None;
        if status != Status::SUCCESS {
            self.back_to_bound();
        }
        match error {
            _ if status == Status::SUCCESS => Ok(()),
            Some(error) if error.status() == status => Err(error),
            _ => Err(connect_error(status, self.take_reason())),
        }
    }

    /// The inline part of Connect.
    fn begin(
        self: &Arc<Self>,
        queue_pair: &Arc<QueuePairCore>,
        peer: SocketAddr,
        params: &ConnectParams,
        deadline: Option<Instant>,
    ) -> Result<(), ConnectError> {
        let (data, max_data) = (params.private_data.len(), MAX_PRIVATE_DATA);
        let mut busy = false;
        let input = |busy| Input::Connect { data, max_data, busy, deadline };
        // Taken before the machine is asked, so that no other connector gets it in between.
        let taken = {
            let mut inner = self.lock();
            let idle = matches!(inner.machine.state(), State::Idle | State::Bound);
            let taken = idle && data <= max_data && self.take_queue_pair(&mut inner, queue_pair);
            busy |= idle && data <= max_data && !taken;
            taken
        };
        let outcome = self.apply_with(input(busy), |inner| {
            if taken {
                inner.peer = Some(net::canonical(peer));
                Self::reset(inner, Op::Connect);
            }
        });
        outcome.map_err(|status| match status {
            Status::INVALID_BUFFER_SIZE => {
                ConnectError::InvalidBufferSize { length: data, maximum: max_data }
            }
            Status::CONNECTION_ACTIVE => ConnectError::Active,
            Status::DEVICE_REMOVED => ConnectError::DeviceRemoved,
            status => connect_error(status, Reason::Local("the connector cannot connect")),
        })
    }

    /// Dials until that is done, or the machine has been told to stop. `Err(None)`: the machine has the answer.
    async fn race(
        &self,
        peer: SocketAddr,
        params: &ConnectParams,
        deadline: Option<Instant>,
    ) -> Result<Dialled, Option<DialError>> {
        let expired = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.interrupted() => Err(None),
            outcome = self.dial(peer, params) => outcome.map_err(Some),
            () = expired => {
                self.tick();
                Err(None)
            }
        }
    }

    /// Resolves when the connect has been answered from elsewhere: cancelled, or the device or the queue pair removed.
    async fn interrupted(&self) {
        std::future::poll_fn(|cx| self.poll_answered(Op::Connect, cx)).await;
    }

    /// TCP connection and MPA start-up.
    async fn dial(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Dialled, DialError> {
        // Not before the machine has heard of it: unlike a mistake with the queue pair, it burns the connector (X2).
        net::errors::validate_destination(peer).map_err(DialError::new)?;
        let Connected { mut stream, local, lease } = self.reach(peer, params).await?;
        // A new lease means the old one is free: the connector is no longer bound to it.
        let bound = {
            let mut inner = self.lock();
            inner.local = Some(local);
            inner.lease = Some(lease);
            inner.bound_to.is_some()
        };
        if bound {
            // Until the peer has accepted, an end without TIME_WAIT: the port is wanted again (`CM-19`).
            let _ = net::options::abort(&stream);
        }
        let options = self.adapter.socket_options(None, params.multipath);
        match net::options::prepare(&stream, &options) {
            Ok(()) => {}
            // A multipath connection has no user timeout; keepalive and the probe notice a dead path all the same.
            Err(SocketError::NotSupported(_)) if params.multipath => {}
            Err(error) => return Err(DialError::new(error.into())),
        }
        let offer = limits::offer(params.read_limits, READ_LIMITS);
        let config = StartConfig { crc: self.adapter.config.crc, unsaid_limits: offer };
        let mut initiator = Initiator::new(config, offer, &params.private_data);
        stream.write_all(&initiator.request()).await.map_err(|error| DialError::io(&error, peer))?;
        let reply = loop {
            let mut bytes = [0; 1024];
            let length = stream.read(&mut bytes).await.map_err(|error| DialError::io(&error, peer))?;
            if length == 0 {
                return Err(DialError::refused(None, Reason::PeerClosed));
            }
            match initiator.receive(&bytes[..length]) {
                Ok(Some(reply)) => break reply,
                Ok(None) => {}
                Err(error) => {
                    // Said on the way out; the socket is closed behind it.
                    let last_words = error.bytes();
                    let reason = match &error.parting {
                        Some(parting) => match &**parting {
                            Parting::Terminate { terminate, .. } => terminate.reason(true),
                            Parting::Reply(_) => Reason::Protocol(error.error),
                        },
                        None => Reason::Protocol(error.error),
                    };
                    net::options::close_in_order(&stream);
                    super::transport::part(stream, last_words, &self.adapter.runtime);
                    return Err(DialError::refused(None, reason));
                }
            }
        };
        match reply {
            Reply::Accepted { negotiated, private_data } => {
                net::options::close_in_order(&stream);
                let leftover = initiator.leftover();
                let terms = Terms { limits: negotiated.limits, private_data };
                Ok(Dialled { transport: Transport::Active { stream, negotiated, leftover }, terms })
            }
            Reply::Rejected { private_data } => {
                let data = Some(private_data).filter(|data| !data.is_empty());
                Err(DialError::refused(data, Reason::MpaReject))
            }
        }
    }

    /// The TCP connection. A port of our own choice that turns out to be taken is replaced by the next one.
    async fn reach(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connected, DialError> {
        let (explicit, bound_to) = {
            let mut inner = self.lock();
            (inner.bound.take(), inner.bound_to)
        };
        if let Some(local) = bound_to {
            let bound = match explicit {
                Some(bound) if params.traffic_class.is_none() && !params.multipath => Ok(bound),
                // The options of this connect need a socket of their own.
                explicit => {
                    drop(explicit);
                    self.bind_again(local, params)
                }
            };
            let bound = bound.map_err(|error| DialError::new(error.into()))?;
            let outcome = net::connect::connect(bound, peer, None).await;
            return outcome.map_err(|ConnectFailure { error, bound }| {
                // Still bound: the same connector may try again (`CM-19`).
                self.lock().bound = bound;
                DialError::io(&error, peer)
            });
        }
        let source = self
            .adapter
            .source_for(net::canonical(peer).ip())
            .ok_or_else(|| DialError::new(ConnectError::InvalidAddress(peer)))?;
        let mut tries = PORT_TRIES;
        loop {
            let bound = self
                .make_bound(SocketAddr::new(source, 0), params)
                .map_err(|error| DialError::new(error.into()))?;
            self.lock().local = Some(bound.local);
            match net::connect::connect(bound, peer, None).await {
                Ok(connected) => return Ok(connected),
                Err(ConnectFailure { error, .. })
                    if tries > 0 && error.raw_os_error() == Some(libc::EADDRNOTAVAIL) =>
                {
                    tries -= 1;
                }
                Err(ConnectFailure { error, .. }) => return Err(DialError::io(&error, peer)),
            }
        }
    }

    /// A new socket for the address that Bind gave; what is left of an earlier one there does not count.
    fn bind_again(&self, local: SocketAddr, params: &ConnectParams) -> Result<BoundSocket, SocketError> {
        self.lock().lease = None;
        let options = self.adapter.socket_options(params.traffic_class, params.multipath);
        let port = PortRange::new(local.port(), local.port()).unwrap_or_default();
        bind_connector(SocketAddr::new(local.ip(), 0), port, &options).map_err(|error| match error {
            SocketError::Bind(BindError::TooManyAddresses) => BindError::SharingViolation.into(),
            error => error,
        })
    }

    /// A connect that may be tried again has used its socket up: the address of Bind is reserved once more.
    fn back_to_bound(&self) {
        let lost = {
            let inner = self.lock();
            let lost = inner.machine.state() == State::Bound && inner.bound.is_none();
            inner.bound_to.filter(|_| lost)
        };
        // If somebody was faster, the next connect says so.
        if let Some(bound) = lost.and_then(|local| self.bind_again(local, &ConnectParams::default()).ok()) {
            self.lock().bound = Some(bound);
        }
    }

    /// IND2Connector::CompleteConnect.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) fn complete(self: &Arc<Self>) -> Result<(), ConnectError> {
        let gone = self.check_peer();
        let invalid = |status| connect_error(status, self.take_reason());
        if let Err(reason) = gone {
            let _ = self.apply_with(Input::PeerGaveUp, |inner| Self::blame(inner, reason));
        }
        self.apply_with(Input::CompleteConnect, |inner| Self::reset(inner, Op::CompleteConnect))
            .map_err(invalid)?;
        let (transport, queue_pair) = {
            let mut inner = self.lock();
            (inner.transport.take(), inner.queue_pair())
        };
        if let (Some(Transport::Active { stream, negotiated, leftover }), Some(queue_pair)) =
            (transport, queue_pair)
        {
            let (link, driver) =
                self.link(stream, &queue_pair, Role::Active, &negotiated, &leftover, negotiated.rtr);
            link.kick();
            self.establish(Some(queue_pair));
            let _ = self.apply(Input::CompleteDone);
            self.spawn(driver);
        }
        match self.take_answer(Op::CompleteConnect) {
            Some(Status::SUCCESS) => Ok(()),
            status => Err(connect_error(status.unwrap_or(Status::CONNECTION_ABORTED), self.take_reason())),
        }
    }

    /// Whether the peer has left in the middle of the handshake.
    pub(crate) fn check_peer(&self) -> Result<(), Reason> {
        self.lock().transport.as_ref().map_or(Ok(()), Transport::check)
    }

    /// Turns a finished start-up into a connection.
    pub(crate) fn link(
        self: &Arc<Self>,
        stream: TcpStream,
        queue_pair: &Arc<QueuePairCore>,
        role: Role,
        negotiated: &Negotiated,
        leftover: &Bytes,
        rtr: Rtr,
    ) -> (Arc<Link>, Driver) {
        let socket = Socket::new(stream);
        let mut queue =
            SendQueue::new(queue_pair.initiator_depth, negotiated.limits.outbound, negotiated.crc);
        match (role, rtr) {
            (Role::Active, Rtr::Write) => queue.empty_write(),
            (Role::Active, Rtr::Read) => {
                // RFC 6581 section 4.3: nothing is read; the peer answers whatever its read limit.
                let nothing =
                    ReadRequest { sink_stag: 1, sink_to: 0, length: 0, source_stag: 0, source_to: 0 };
                queue.preface(nothing);
            }
            (Role::Active, Rtr::None | Rtr::Send) => {}
            (Role::Passive, _) => queue.held = true,
        }
        let link = Link::new(LinkParts {
            socket: socket.clone(),
            queue,
            crc: negotiated.crc,
            role,
            // A peer that does not speak of readiness counts as ready.
            implied: rtr == Rtr::None,
            inbound_reads: negotiated.limits.inbound,
            table: queue_pair.table.clone(),
            receives: queue_pair.receives.clone(),
            keys: self.adapter.keys.clone(),
            cm: self.clone(),
        });
        Self::attach(&mut self.lock(), link.clone());
        let receiver = Receiver::new(leftover, rtr == Rtr::Send);
        let config = &self.adapter.config;
        let driver =
            Driver::new(link.clone(), socket, receiver, config.path_timeout, config.disconnect_timeout);
        (link, driver)
    }

    pub(crate) fn spawn(&self, driver: Driver) {
        let peer = self.lock().peer;
        let span = tracing::debug_span!("connection", id = %self.id, peer = ?peer);
        self.adapter.runtime.spawn(driver.instrument(span));
    }

    /// IND2Connector::Reject by the active side.
    ///
    /// # Errors
    /// `InvalidBufferSize`: the wire has no place for data here.
    pub(crate) fn reject_reply(&self, data: &[u8]) -> Result<(), ConnectError> {
        let (length, maximum) = (data.len(), 0);
        self.apply(Input::Reject { data: length, max_data: maximum }).map_err(|status| match status {
            Status::INVALID_BUFFER_SIZE => ConnectError::InvalidBufferSize { length, maximum },
            status => connect_error(status, self.take_reason()),
        })
    }
}

/// A connection that the peer has accepted.
struct Dialled {
    transport: Transport,
    terms: Terms,
}

/// The error of a status that came without one.
pub(crate) fn connect_error(status: Status, reason: Reason) -> ConnectError {
    match status {
        Status::CONNECTION_REFUSED => ConnectError::Refused { private_data: None, reason },
        Status::NETWORK_UNREACHABLE => ConnectError::NetworkUnreachable,
        Status::HOST_UNREACHABLE => ConnectError::HostUnreachable,
        Status::IO_TIMEOUT => ConnectError::TimedOut,
        Status::CONNECTION_ACTIVE => ConnectError::Active,
        Status::CONNECTION_INVALID => ConnectError::Invalid,
        Status::CANCELED => ConnectError::Canceled,
        Status::CONNECTION_ABORTED => ConnectError::Aborted { reason },
        Status::DEVICE_REMOVED => ConnectError::DeviceRemoved,
        status => ConnectError::Other { status, reason },
    }
}
