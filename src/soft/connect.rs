//! The active side of connection setup: Bind, Connect, CompleteConnect, Reject.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::adapter::{MAX_PRIVATE_DATA, READ_LIMITS};
use super::connection::{ConnectionParts, ConnectionShared, Socket};
use super::connector::{Connector, PendingHandshake};
use super::driver::Driver;
use super::queue_pair::QueuePair;
use crate::error::{BindError, ConnectError, Reason};
use crate::net::kernel::options::SocketError;
use crate::net::{self, BoundSocket, ConnectFailure, Connected, Stream};
use crate::proto::connector::{Input, Loss, Op, Phase, Terms};
use crate::proto::limits;
use crate::proto::mpa::{Initiator, Negotiated, Reply, StartConfig, StartError};
use crate::provider::connector::{AfterStep, ConnectorDriver};
use crate::provider::params::ConnectParams;
use crate::status::Status;
use crate::types::Role;

/// How often within the path timeout a connect that waits for its reply looks whether the peer's host is there.
const LOOKS: u32 = 16;
/// Room for most replies, with the first message of a byte stream behind it. What is left comes with the next read.
pub(super) const START: usize = 320;
/// The number of ports that are tried when the kernel reports that the pair of addresses and ports is in use.
const PORT_TRIES: usize = 512;

impl Connector {
    /// Binds the connector to `address` (IND2Connector::Bind).
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        if self.adapter.is_removed() {
            return Err(BindError::DeviceRemoved);
        }
        self.bind_by(|state| {
            let socket = self.make_bound(address, &ConnectParams::default())?;
            Ok(state.socket.insert(Box::new(socket)).local())
        })
    }

    fn make_bound(&self, address: SocketAddr, params: &ConnectParams) -> Result<BoundSocket, SocketError> {
        if !self.adapter.owns(address.ip()) {
            return Err(BindError::InvalidAddress(address.ip()).into());
        }
        let options = self.adapter.socket_options(params.traffic_class, params.multipath);
        self.adapter.host.bind_connector(address, self.adapter.ports(), &options)
    }

    /// Connects to `peer` (IND2Connector::Connect). Afterwards the handshake waits for
    /// [`complete`](Self::complete).
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn connect(
        self: &Arc<Self>,
        queue_pair: &Arc<QueuePair>,
        peer: SocketAddr,
        params: &ConnectParams,
    ) -> Result<(), ConnectError> {
        if self.adapter.is_removed() {
            return Err(ConnectError::DeviceRemoved);
        }
        if queue_pair.adapter.domain != self.adapter.domain {
            return Err(ConnectError::ForeignQueuePair);
        }
        if let Some(option) = params.options.first() {
            return Err(ConnectError::NotSupported(option));
        }
        let deadline = params.timeout.and_then(|timeout| {
            tokio::time::Instant::now().checked_add(timeout).map(tokio::time::Instant::into_std)
        });
        // The driver of a failed attempt may still have the queue pair.
        let wait = self.unless_canceled(queue_pair.settled()).await?;
        let lengths = (params.private_data.len(), MAX_PRIVATE_DATA);
        let call = self
            .begin_connect(peer, lengths, deadline, wait, |state| self.take_queue_pair(state, queue_pair))?;
        let outcome = tokio::select! {
            biased;
            // The machine has answered: the connect was cancelled, or the device or the queue pair was removed.
            () = std::future::poll_fn(|cx| self.poll_answered(Op::Connect, cx)) => None,
            outcome = self.dial(peer, params, deadline) => Some(outcome),
        };
        if let Some(outcome) = outcome {
            self.unwatch(Op::Connect);
            self.step(AfterStep::run, |state, after| {
                let input = match outcome {
                    Ok(Dialled { handshake, terms }) => {
                        if state.progress.phase() == Phase::Connecting {
                            state.handshake = Some(Box::new(handshake));
                        }
                        Input::PeerAccepted(terms)
                    }
                    Err(error) => error.into(),
                };
                let _ = self.advance(state, input, after);
            });
        }
        let outcome = self.answer(Op::Connect).await.map_err(|failure| self.connect_error(failure));
        call.returned();
        outcome
    }

    /// Connects by TCP and starts up MPA, within the caller's time.
    async fn dial(
        &self,
        peer: SocketAddr,
        params: &ConnectParams,
        deadline: Option<Instant>,
    ) -> Result<Dialled, ConnectError> {
        // Not before the machine has accepted the call: unlike a mistake with the queue pair, it makes the
        // connector unusable (X2).
        net::validate_destination(peer)?;
        let Connected { stream, local, lease } = self.reach(peer, params, deadline).await?;
        let stream =
            stream.captured(self.adapter.config.capture.as_ref(), net::canonical(peer), Role::Active);
        let explicit = {
            let mut state = self.lock();
            // An attempt that was ended does not need the port, which would be held for as long as the
            // connector exists.
            if state.progress.phase() == Phase::Connecting {
                state.progress.local = Some(local);
                state.lease = Some(lease);
            }
            state.progress.bound()
        };
        let Some(explicit) = explicit else { return self.start_up(stream, peer, params, deadline).await };
        // If the start-up fails the port has to be free at once, for the next attempt.
        let _ = stream.abort();
        let outcome = if explicit.ip().is_unspecified() && !self.adapter.owns(local.ip()) {
            // The kernel reaches the peer by another adapter.
            drop(stream);
            Err(ConnectError::NetworkUnreachable { peer })
        } else {
            self.start_up(stream, peer, params, deadline).await
        };
        match &outcome {
            Ok(Dialled { handshake, .. }) => handshake.keep(),
            Err(_) => self.bind_again(None),
        }
        outcome
    }

    /// Restores the socket of a connector that is bound, after a failed attempt (`CM-19`): `socket` if the
    /// attempt has not used it up, or a new one. If that cannot be bound now the next attempt tries again,
    /// because the address stays that of the connector.
    fn bind_again(&self, socket: Option<BoundSocket>) {
        let mut state = self.lock();
        let Some(local) = state.progress.bound().filter(|_| state.progress.phase() == Phase::Connecting)
        else {
            return;
        };
        state.lease = None;
        state.progress.local = Some(local);
        let bind = || self.adapter.host.bind_again(local, &self.adapter.socket_options(None, false)).ok();
        state.socket = socket.or_else(bind).map(Box::new);
    }

    /// Starts up MPA, until the deadline.
    async fn start_up(
        &self,
        stream: Stream,
        peer: SocketAddr,
        params: &ConnectParams,
        deadline: Option<Instant>,
    ) -> Result<Dialled, ConnectError> {
        let Some(deadline) = deadline else { return self.shake_hands(stream, peer, params).await };
        match tokio::time::timeout_at(deadline.into(), self.shake_hands(stream, peer, params)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => {
                self.log_cause(&Reason::Local("the time limit of the connect"));
                Err(ConnectError::TimedOut { peer, limit: None })
            }
        }
    }

    async fn shake_hands(
        &self,
        stream: Stream,
        peer: SocketAddr,
        params: &ConnectParams,
    ) -> Result<Dialled, ConnectError> {
        let offer = limits::offer(params.read_limits, READ_LIMITS);
        let config = StartConfig { crc: self.adapter.config.crc, unsaid_limits: offer };
        let mut initiator = Initiator::new(config, offer);
        let request = initiator.request(&params.private_data);
        stream.write_all(&request).await.map_err(|error| net::attempt_error(&error, peer))?;
        // Set while the peer reads the request: this does not concern the first bytes of a connection.
        stream.send_at_once()?;
        self.adapter.metronome.start();
        let path_timeout = self.adapter.config.path_timeout;
        let mut look = path_timeout.map(|timeout| timeout / LOOKS);
        let mut is_kept_alive = false;
        let reply = loop {
            let ready = match look {
                None => stream.readable().await,
                Some(time) => match tokio::time::timeout(time, stream.readable()).await {
                    Ok(ready) => ready,
                    Err(_elapsed) => {
                        if let Some(timeout) = path_timeout
                            && !std::mem::replace(&mut is_kept_alive, true)
                        {
                            stream.keep_alive(timeout);
                        }
                        look_again(&stream, path_timeout).map(|next| look = next)
                    }
                },
            };
            ready.map_err(|error| net::attempt_error(&error, peer))?;
            match read_reply(&stream, &mut initiator).map_err(|error| net::attempt_error(&error, peer))? {
                Ok(Some(reply)) => break reply,
                Ok(None) => {}
                Err(error) => {
                    let reason = error.reason;
                    self.send_last_words(stream, error.bytes);
                    return Err(ConnectError::Refused { peer, reason });
                }
            }
        };
        match reply {
            Reply::Accepted { negotiated, private_data, leftover } => {
                let terms = Terms { limits: negotiated.limits, private_data };
                Ok(Dialled { handshake: PendingHandshake::Active { stream, negotiated, leftover }, terms })
            }
            Reply::Rejected { private_data } => {
                let data = Some(private_data).filter(|data| !data.is_empty());
                Err(ConnectError::Rejected { peer, private_data: data, reason: Reason::MpaReject })
            }
        }
    }

    /// Sends the peer the reason why its reply is invalid, and closes the socket behind that.
    fn send_last_words(&self, stream: Stream, last_words: Bytes) {
        if stream.is_aborting() {
            // The port has to be free at once, whether or not the peer receives the message.
            let _ = stream.send_now(&last_words);
        } else {
            self.adapter.lingering_close.close_after(stream, last_words);
        }
    }

    /// Connects by TCP. If the kernel refuses a port of this side's choice as taken, the next one is tried.
    async fn reach(
        &self,
        peer: SocketAddr,
        params: &ConnectParams,
        deadline: Option<Instant>,
    ) -> Result<Connected, ConnectError> {
        let left = || {
            let now = tokio::time::Instant::now().into_std();
            deadline.map(|deadline| deadline.saturating_duration_since(now))
        };
        let (bound, socket) = {
            let mut state = self.lock();
            (state.progress.bound(), state.socket.take())
        };
        if let Some(local) = bound {
            let socket = self.with_options(local, socket.map(|socket| *socket), params)?;
            return socket.connect(peer, left()).await.map_err(|ConnectFailure { error, bound }| {
                // Still bound: the same connector may try again (`CM-19`), but with the options of its own
                // attempt.
                let is_plain = |socket: &mut BoundSocket| {
                    !has_options(params) || socket.renew(&self.adapter.socket_options(None, false)).is_ok()
                };
                self.bind_again(bound.and_then(|mut socket| is_plain(&mut socket).then_some(socket)));
                net::attempt_error(&error, peer)
            });
        }
        let mut tries = PORT_TRIES;
        loop {
            let bound = self.bind_towards(peer, params)?;
            self.lock().progress.local = Some(bound.local());
            match bound.connect(peer, left()).await {
                Ok(connected) => return Ok(connected),
                Err(ConnectFailure { error, .. })
                    if tries > 0 && error.raw_os_error() == Some(libc::EADDRNOTAVAIL) =>
                {
                    tries -= 1;
                }
                Err(ConnectFailure { error, .. }) => return Err(net::attempt_error(&error, peer)),
            }
        }
    }

    /// Binds a socket to the address from which the peer is reached.
    fn bind_towards(&self, peer: SocketAddr, params: &ConnectParams) -> Result<BoundSocket, ConnectError> {
        let made = || {
            let source = self.adapter.source_for(net::canonical(peer).ip());
            let source = source.ok_or_else(|| match self.adapter.has_addresses() {
                true => ConnectError::InvalidAddress(peer),
                // The interface may get its addresses back.
                false => ConnectError::NetworkUnreachable { peer },
            })?;
            self.make_bound(SocketAddr::new(source, 0), params).map_err(ConnectError::from)
        };
        match made() {
            Err(ConnectError::Bind(BindError::InvalidAddress(_))) => {
                // The address was removed after it was listed.
                let _ = self.adapter.current_addresses();
                made()
            }
            outcome => outcome,
        }
    }

    /// Returns a socket at the address of Bind, with the options of this attempt. `socket` is the one that
    /// Bind made, without options.
    ///
    /// # Errors
    /// The kernel does not support the options, or no new socket can be bound in place of one that was used
    /// up. The connector is as it was.
    fn with_options(
        &self,
        local: SocketAddr,
        socket: Option<BoundSocket>,
        params: &ConnectParams,
    ) -> Result<BoundSocket, SocketError> {
        let options = self.adapter.socket_options(params.traffic_class, params.multipath);
        let Some(mut socket) = socket else { return self.adapter.host.bind_again(local, &options) };
        if has_options(params)
            && let Err(error) = socket.renew(&options)
        {
            self.bind_again(Some(socket));
            return Err(error);
        }
        Ok(socket)
    }

    /// Completes the connection (IND2Connector::CompleteConnect). `asks` if the peer may have left since its reply was read.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) fn complete(self: &Arc<Self>, asks: bool) -> Result<(), ConnectError> {
        if asks {
            self.notice_departure();
        }
        let begun = self.step(AfterStep::run, |state, after| {
            self.advance(state, Input::CompleteConnect, after)?;
            Ok((state.handshake.take(), state.queue_pair.clone()))
        });
        let (handshake, queue_pair) = begun.map_err(|failure| self.connect_error(failure))?;
        if let (Some(PendingHandshake::Active { stream, negotiated, leftover }), Some(queue_pair)) =
            (handshake.map(|handshake| *handshake), queue_pair)
        {
            let started = self.start_connection(stream, &queue_pair, Role::Active, &negotiated, &leftover);
            if let Some(driver) = started {
                driver.send_rtr();
                self.establish(Input::CompleteDone);
                self.adapter.runtime.spawn(driver);
            }
        }
        let answer = self.take_answer(Op::CompleteConnect);
        answer
            .unwrap_or_else(|| Err(Status::CONNECTION_ABORTED.into()))
            .map_err(|failure| self.connect_error(failure))
    }

    /// Checks whether the peer has closed its socket while its request or its reply was waiting, and reports
    /// that to the machine.
    pub(super) fn notice_departure(&self) {
        let checked = self.lock().handshake.as_ref().map_or(Ok(()), |handshake| handshake.check());
        if let Err(reason) = checked {
            let _ = self.handle(Input::lost(Loss::GaveUp, reason));
        }
    }

    /// Creates the connection of a finished start-up. Returns `None` if the attempt was ended at the same
    /// time: the socket is closed then.
    pub(crate) fn start_connection(
        self: &Arc<Self>,
        stream: Stream,
        queue_pair: &Arc<QueuePair>,
        role: Role,
        negotiated: &Negotiated,
        leftover: &Bytes,
    ) -> Option<Pin<Box<Driver<Self>>>> {
        self.adapter.metronome.start();
        let socket = Socket::new(stream, self.take_descriptor());
        let connection = ConnectionShared::new(ConnectionParts {
            id: self.id,
            role,
            negotiated: *negotiated,
            send_depth: queue_pair.send_depth,
            sends: queue_pair.sends.clone(),
            receives: queue_pair.receives.clone(),
            keys: self.adapter.keys.clone(),
        });
        if !self.attach(connection.clone()) {
            return None;
        }
        // In a box: tokio moves the future of a task at its start and at its end.
        Some(Box::pin(Driver::new(connection, socket, leftover, self.clone(), &self.adapter.config)))
    }

    /// Rejects the peer's reply (IND2Connector::Reject by the active side).
    ///
    /// # Errors
    /// `InvalidBufferSize`: the wire protocol has no place for data here; `Aborted`: the peer has left.
    pub(crate) fn reject_reply(&self, data: &[u8]) -> Result<(), ConnectError> {
        self.notice_departure();
        self.reject(data, 0, |_, _| ()).map_err(|failure| self.connect_error(failure))
    }
}

/// Returns whether an attempt has options that must not stay with the socket.
const fn has_options(params: &ConnectParams) -> bool {
    params.traffic_class.is_some() || params.multipath
}

/// Returns after which time to check again whether the peer's host has acknowledged the request. Returns
/// `None` if it has, or without a path timeout: how long the peer takes to reply is not limited here (`X8`).
///
/// # Errors
/// `ETIMEDOUT` if the peer's host has sent nothing for the path timeout, although the request is repeated.
fn look_again(stream: &Stream, path_timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    let Some(limit) = path_timeout.filter(|_| stream.unacknowledged().is_ok_and(|bytes| bytes > 0)) else {
        return Ok(None);
    };
    match stream.unanswered()? {
        Some(silence) if silence >= limit => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        _ => Ok(Some(limit / LOOKS)),
    }
}

/// Takes the bytes of the reply that have arrived. The buffer is on the stack, and not part of the future
/// that waits.
fn read_reply(stream: &Stream, initiator: &mut Initiator) -> io::Result<Result<Option<Reply>, StartError>> {
    let mut bytes = [0; START];
    match stream.try_read(&mut bytes) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(length) => Ok(initiator.receive(&bytes[..length])),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(Ok(None))
        }
        Err(error) => Err(error),
    }
}

/// A connection that the peer has accepted.
struct Dialled {
    handshake: PendingHandshake,
    terms: Terms,
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::net::host::Host;
    use crate::net::ports::lease;
    use crate::soft::adapter::{Adapter, resolve};
    use crate::soft::config::SoftConfig;

    // A cancel from another thread may come when TCP has connected, and the connector lives on (CAN-06).
    #[tokio::test]
    async fn canceled_attempt_frees_its_port() {
        let id = resolve(&Host::Kernel, Ipv4Addr::LOCALHOST.into()).expect("the loopback interface");
        let adapter = Adapter::open(Host::Kernel, id, SoftConfig::default()).expect("opened");
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let peer = listener.local_addr().expect("its address");
        let connector = Connector::new(adapter.clone());
        connector.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
        let local = connector.bound_addr().expect("bound");
        let (data, max_data, busy, deadline, overdue) = (0, 0, false, None, false);
        connector.handle(Input::Connect { data, max_data, busy, deadline, overdue }).expect("accepted");
        let params = ConnectParams::default();
        let mut dialing = Box::pin(connector.dial(peer, &params, None));
        assert!(futures::poll!(&mut dialing).is_pending());
        connector.cancel();
        // The peer closes, so that the start-up comes to nothing.
        let close = async { drop((listener.accept().expect("connected"), listener)) };
        let (outcome, ()) = tokio::join!(dialing, close);
        assert!(outcome.is_err());
        // Its lease alone is looked at: a child of another test may have a copy of the socket until it runs its program.
        drop(lease(None, local.ip(), local.port()).expect("the port is free"));
        assert_eq!(connector.lock().progress.phase(), Phase::Dead);
    }
}
