//! Connectors and replies: the active side of a connection.

use std::fmt;
use std::net::SocketAddr;

use tokio::task::coop::consume_budget;
use tokio::time::Instant;

use super::connection::{Attempt, Connection};
use crate::backend;
use crate::error::{BindError, ConnectError, Retained, StateError};
use crate::provider::params::ConnectParams;
use crate::qp::Endpoint;
use crate::types::{ConnectionId, PrivateData, ReadLimits};

/// Connects to a listener (`IND2Connector`, active side).
///
/// A connector makes one connection. If [`connect`](Self::connect) fails because the peer refused it, the destination
/// was unreachable, the attempt timed out, this host lacks resources, or an argument kept it from starting, the connector can be
/// used again. So it can after `Active`, once the call that is in progress has returned such an error. After any other error it
/// cannot, and further calls return an error. [`ConnectError::is_connector_usable`] distinguishes the two.
///
/// # Examples
/// ```
/// # async fn example(adapter: &tokio_rdma::Adapter) -> std::io::Result<()> {
/// use tokio_rdma::{ConnectParams, QueuePairConfig};
///
/// let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
/// let connector = adapter.connector();
/// let reply = connector
///     .connect(&queue_pair, ([192, 0, 2, 1], 7000).into(), ConnectParams::default())
///     .await?;
/// println!("the peer accepted with {:?}", reply.read_limits());
/// let connection = reply.complete().await?;
/// # drop(connection);
/// # Ok(())
/// # }
/// ```
pub struct Connector {
    provider: backend::Connector,
}

impl Connector {
    pub(crate) fn new(provider: backend::Connector) -> Self {
        Self { provider }
    }

    /// Returns the number of the connection in `tracing` output.
    pub fn id(&self) -> ConnectionId {
        self.provider.id()
    }

    /// Binds to a local address (`IND2Connector::Bind`).
    ///
    /// This call is optional, because [`connect`](Self::connect) binds implicitly. With the unspecified address the
    /// system chooses the address; a peer that is not reached from an address of this adapter is `NetworkUnreachable`. Port 0
    /// chooses a port of 49152-65535.
    ///
    /// The connector keeps the address for as long as it can be used, also after attempts that fail. If another program has
    /// taken the port after such an attempt, the next one fails with `Bind`, and the one after that tries again.
    ///
    /// # Errors
    /// `SharingViolation`, `TooManyAddresses`, `AlreadyBound`, `InvalidAddress`, `InvalidState`, `DeviceRemoved`. The
    /// connector is unchanged and can be bound to another address.
    ///
    /// # Other processes
    /// No other connection of this process has the port that port 0 has chosen. On the soft provider another process may have
    /// the same one for a connection of its own.
    pub fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        self.provider.bind(address)
    }

    /// Connects to a listener (`IND2Connector::Connect`, `NdkConnect`, `dat_ep_connect`).
    ///
    /// Resolves when the peer accepts. The returned [`Reply`] has the peer's private data and read limits, and
    /// [`Reply::complete`] establishes the connection. Receives can be posted to the queue pair at any time. The queue pair is a
    /// [`QueuePair`](crate::QueuePair) or that of a [`Lane`](crate::qp::Lane).
    ///
    /// The future owns what it needs: it can outlive the connector and be spawned. Dropping the connector or the queue pair
    /// does not end the connect; to abandon it, drop the future or call [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// See [`ConnectError`]. [`is_retryable`](ConnectError::is_retryable) returns whether another attempt may succeed, and
    /// [`is_connector_usable`](ConnectError::is_connector_usable) whether this connector can make it. The queue pair is
    /// unchanged and keeps its posted receives.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the attempt and rejects the peer, even if the peer has accepted. The connector
    /// cannot be used again. The queue pair can be used for another attempt.
    pub fn connect<E: Endpoint>(
        &self,
        queue_pair: &E,
        peer: SocketAddr,
        params: ConnectParams,
    ) -> impl Future<Output = Result<Reply, ConnectError>> + Send + use<E> {
        ask(self.provider.clone(), queue_pair.clone(), peer, params)
    }

    /// Connects to a listener and completes the connection without inspecting the reply.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect) and [`Reply::complete`].
    ///
    /// # Cancel safety
    /// As for [`connect`](Self::connect) and [`Reply::complete`].
    pub fn connect_and_complete<E: Endpoint>(
        &self,
        queue_pair: &E,
        peer: SocketAddr,
        params: ConnectParams,
    ) -> impl Future<Output = Result<Connection, ConnectError>> + Send + use<E> {
        let (provider, queue_pair) = (self.provider.clone(), queue_pair.clone());
        async move {
            match ask(provider, queue_pair, peer, params).await?.complete_at_once().await {
                // Between the two calls only a cancel makes the state invalid.
                Err(ConnectError::Invalid) => Err(ConnectError::Canceled),
                outcome => outcome,
            }
        }
    }

    /// Returns the bound address, or the local address of the connection (`IND2Connector::GetLocalAddress`).
    ///
    /// # Errors
    /// `ConnectionInvalid` if the connector is neither bound nor connecting nor connected.
    pub fn local_addr(&self) -> Result<SocketAddr, StateError> {
        self.provider.local_addr()
    }

    /// Returns the address of the peer (`IND2Connector::GetPeerAddress`).
    ///
    /// # Errors
    /// `ConnectionInvalid` before the peer has accepted and after the connection has ended.
    pub fn peer_addr(&self) -> Result<SocketAddr, StateError> {
        self.provider.peer_addr()
    }

    /// Returns the read limits of the peer's accept (`IND2Connector::GetReadLimits`).
    ///
    /// # Errors
    /// `ConnectionInvalid` except between connect and complete.
    pub fn read_limits(&self) -> Result<ReadLimits, StateError> {
        self.provider.read_limits()
    }

    /// Returns the private data of the peer's accept, or of its reject (`IND2Connector::GetPrivateData`).
    ///
    /// # Errors
    /// `ConnectionInvalid` except between connect and complete, and after a connect that was refused with data.
    pub fn private_data(&self) -> Result<PrivateData, StateError> {
        self.provider.private_data()
    }

    /// Cancels all pending operations of this connector (`IND2Overlapped::CancelOverlappedRequests`).
    ///
    /// A pending connect fails with `Canceled`, and the connector cannot be used again. A [`Reply`] that is not completed is
    /// rejected, and its [`complete`](Reply::complete) fails with `Invalid`.
    ///
    /// After the connection is complete, this method does the same as [`Connection::cancel`]: the connection stays
    /// established, and all pending [`disconnected`](Connection::disconnected) futures resolve with
    /// [`DisconnectReason::Canceled`](crate::types::DisconnectReason::Canceled), also those of other tasks that have a handle
    /// of the connection. A pending [`disconnect`](Connection::disconnect) fails with `Canceled`.
    pub fn cancel(&self) {
        self.provider.cancel();
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Connects like [`Connector::connect`].
async fn ask<E: Endpoint>(
    provider: backend::Connector,
    queue_pair: E,
    peer: SocketAddr,
    params: ConnectParams,
) -> Result<Reply, ConnectError> {
    let limit = params.timeout.map(|limit| (Instant::now(), limit));
    match provider.connect(queue_pair.provider().0, peer, &params).await {
        Ok(()) => match Attempt::new(provider) {
            Ok(mut attempt) => {
                attempt.set_queue_pair(&queue_pair);
                Ok(Reply { attempt })
            }
            Err(provider) => Err(end_of(&provider).await),
        },
        // The system has limits of its own, which may be shorter.
        Err(ConnectError::TimedOut { peer, .. }) => {
            let limit = limit.filter(|(began, limit)| began.elapsed() >= *limit);
            Err(ConnectError::TimedOut { peer, limit: limit.map(|(_, limit)| limit) })
        }
        Err(error) => Err(error),
    }
}

/// Returns why a connector ended that was connecting until now: a cancel, or the removal of its adapter.
async fn end_of(provider: &backend::Connector) -> ConnectError {
    let outcome = provider.complete(true).await;
    provider.release();
    match outcome {
        Err(ConnectError::DeviceRemoved) => ConnectError::DeviceRemoved,
        _ => ConnectError::Canceled,
    }
}

/// A connection that the peer has accepted and this side has not completed.
///
/// Inspect the private data and the read limits, then [`complete`](Self::complete) or [`reject`](Self::reject) the
/// connection. Dropping the `Reply` rejects the peer. Unlike after a connect that was rejected by the peer, the connector
/// cannot be used again after either.
///
/// Completing consumes the `Reply`, so a second call does not compile:
/// ```compile_fail,E0382
/// # async fn example(reply: tokio_rdma::Reply) {
/// let _ = reply.complete().await;
/// let _ = reply.complete().await;
/// # }
/// ```
#[must_use = "dropping it rejects the peer"]
pub struct Reply {
    attempt: Attempt,
}

impl Reply {
    /// Returns the negotiated read limits, as seen from this side (`IND2Connector::GetReadLimits`).
    pub fn read_limits(&self) -> ReadLimits {
        self.attempt.terms().0
    }

    /// Returns the private data of the peer's accept (`IND2Connector::GetPrivateData`).
    pub fn private_data(&self) -> &PrivateData {
        self.attempt.terms().1
    }

    /// Returns the local address of the connection.
    pub fn local_addr(&self) -> SocketAddr {
        self.attempt.local_addr()
    }

    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer_addr()
    }

    /// Completes the connection (`IND2Connector::CompleteConnect`).
    ///
    /// The peer's accept resolves, and all kinds of requests can be posted to the queue pair.
    ///
    /// # Errors
    /// `Aborted` if the peer has closed the connection; `Invalid` if the connector was cancelled before the call,
    /// `Canceled` if during the call; `TimedOut`; `DeviceRemoved`. The connector cannot be used again.
    ///
    /// # Cancel safety
    /// Dropping the future rejects the peer, or disconnects if the connection is already complete.
    pub async fn complete(self) -> Result<Connection, ConnectError> {
        self.attempt.provider().complete(true).await?;
        Ok(Connection::new(self.attempt))
    }

    /// Completes the connection like [`complete`](Self::complete), in the very poll in which the reply has come: the peer's
    /// bytes have just been read, and the socket is not asked again.
    pub(crate) async fn complete_at_once(self) -> Result<Connection, ConnectError> {
        self.attempt.provider().complete(false).await?;
        Ok(Connection::new(self.attempt))
    }

    /// Rejects the connection: the peer's accept fails with `CONNECTION_REFUSED` (`IND2Connector::Reject`).
    ///
    /// The future does not wait for the peer. The queue pair is unchanged. The connector cannot be used again.
    ///
    /// # Errors
    /// `InvalidBufferSize` if `data` is longer than
    /// [`max_active_reject_data`](super::AdapterInfo::max_active_reject_data), with the reply in
    /// [`handle`](Retained::handle); `Aborted` if the peer has closed the connection.
    ///
    /// # Cancel safety
    /// Dropping the future rejects the peer.
    pub async fn reject(self, data: &[u8]) -> Result<(), Retained<ConnectError, Self>> {
        consume_budget().await;
        match self.attempt.provider().reject_reply(data) {
            Ok(()) => Ok(()),
            Err(error @ ConnectError::InvalidBufferSize { .. }) => {
                Err(Retained { error, handle: Some(self) })
            }
            Err(error) => Err(Retained { error, handle: None }),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
