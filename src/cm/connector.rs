//! The active side.

use std::fmt;
use std::net::SocketAddr;

use super::connection::{Attempt, Connection};
use crate::error::{BindError, ConnectError, Retained, StateError};
use crate::provider;
use crate::provider::params::ConnectParams;
use crate::qp::QueuePair;
use crate::types::{ConnectionId, PrivateData, ReadLimits};

/// Connects to a listener (IND2Connector, active side).
///
/// A connector is good for one connection. A connect that is refused, unreachable or timed out leaves it ready for
/// another, and so does one that never began, for a mistake in its arguments; other failures burn it, and further calls
/// say so.
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
/// println!("the peer accepts, with {:?}", reply.read_limits());
/// let connection = reply.complete().await?;
/// # drop(connection);
/// # Ok(())
/// # }
/// ```
pub struct Connector {
    provider: provider::Connector,
}

impl Connector {
    pub(crate) fn new(provider: provider::Connector) -> Self {
        Self { provider }
    }

    /// Its number in `tracing` output.
    pub fn id(&self) -> ConnectionId {
        self.provider.id()
    }

    /// Binds to a local address. Source: `IND2Connector::Bind`.
    ///
    /// The unspecified address leaves the choice to the system, port 0 picks one of 49152-65535. Not needed: a connect
    /// binds implicitly.
    ///
    /// # Errors
    /// `SharingViolation`, `TooManyAddresses`, `AlreadyBound`, `InvalidAddress`, `InvalidState`, `DeviceRemoved`. The
    /// connector is as it was, and may be bound otherwise.
    pub fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        self.provider.bind(address)
    }

    /// Asks a listener for a connection. Source: `IND2Connector::Connect`, `NdkConnect`, `dat_ep_connect`.
    ///
    /// Ready when the peer has accepted: the connection is half open, its terms can be read from the [`Reply`], and
    /// [`Reply::complete`] makes it whole. The queue pair takes receives all the while.
    ///
    /// # Errors
    /// See [`ConnectError`]; [`is_retryable`](ConnectError::is_retryable) tells whether this connector may connect
    /// again. The queue pair is as it was, posted receives included.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the attempt: the peer is refused, the connector is burnt, the queue pair is free for
    /// another. If the peer's accept had arrived, it is refused just the same.
    pub async fn connect(
        &self,
        queue_pair: &QueuePair,
        peer: SocketAddr,
        params: ConnectParams,
    ) -> Result<Reply, ConnectError> {
        self.provider.connect(queue_pair.provider(), peer, &params).await?;
        Ok(Reply { attempt: Attempt::new(self.provider.clone()) })
    }

    /// [`connect`](Self::connect) and [`Reply::complete`] in one call, for those who take what the peer offers.
    ///
    /// # Errors
    /// Those of both.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_and_complete(
        &self,
        queue_pair: &QueuePair,
        peer: SocketAddr,
        params: ConnectParams,
    ) -> Result<Connection, ConnectError> {
        match self.connect(queue_pair, peer, params).await?.complete().await {
            // Between the two there is nothing that could be invalid but for a cancel, which is what to say here.
            Err(ConnectError::Invalid) => Err(ConnectError::Canceled),
            outcome => outcome,
        }
    }

    /// The bound address, or that of the connection. Source: `IND2Connector::GetLocalAddress`.
    ///
    /// # Errors
    /// `ConnectionInvalid` when it is neither bound nor connecting nor connected.
    pub fn local_addr(&self) -> Result<SocketAddr, StateError> {
        self.provider.local_addr()
    }

    /// The peer's address. Source: `IND2Connector::GetPeerAddress`.
    ///
    /// # Errors
    /// `ConnectionInvalid` before the peer has accepted and after the end.
    pub fn peer_addr(&self) -> Result<SocketAddr, StateError> {
        self.provider.peer_addr()
    }

    /// The read limits that the peer agreed to. Source: `IND2Connector::GetReadLimits`.
    ///
    /// # Errors
    /// `ConnectionInvalid` but between connect and complete.
    pub fn read_limits(&self) -> Result<ReadLimits, StateError> {
        self.provider.read_limits()
    }

    /// The private data of the peer's accept, or of its reject after a connect that was refused with data.
    /// Source: `IND2Connector::GetPrivateData`.
    ///
    /// # Errors
    /// `ConnectionInvalid` at any other moment.
    pub fn private_data(&self) -> Result<PrivateData, StateError> {
        self.provider.private_data()
    }

    /// Cancels what is pending on this connector, from another task. Source:
    /// `IND2Overlapped::CancelOverlappedRequests`.
    ///
    /// A pending connect ends `Canceled` and burns the connector; a connection that is established is not hurt, but
    /// those who wait for its end are told [`Canceled`](crate::types::DisconnectReason::Canceled).
    pub fn cancel(&self) {
        self.provider.cancel();
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// A connection that the peer has accepted and this side has not completed.
///
/// Look at the terms, then [`complete`](Self::complete) or [`reject`](Self::reject). Dropping it refuses the peer.
///
/// Completing consumes it, so it cannot be done twice:
/// ```compile_fail,E0382
/// # async fn example(reply: tokio_rdma::Reply) {
/// let _ = reply.complete().await;
/// let _ = reply.complete().await;
/// # }
/// ```
#[must_use = "dropping it refuses the peer"]
pub struct Reply {
    attempt: Attempt,
}

impl Reply {
    /// The read limits that would hold, in this side's direction. Source: `IND2Connector::GetReadLimits`.
    pub fn read_limits(&self) -> ReadLimits {
        self.attempt.terms().0
    }

    /// What the peer sent with its accept. Source: `IND2Connector::GetPrivateData`.
    pub fn private_data(&self) -> &PrivateData {
        self.attempt.terms().1
    }

    /// The local address of the connection.
    pub fn local_addr(&self) -> SocketAddr {
        self.attempt.local_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer_addr()
    }

    /// Completes the connection: the peer's accept finishes, and everything may be posted.
    /// Source: `IND2Connector::CompleteConnect`.
    ///
    /// # Errors
    /// `Aborted` when the peer has left meanwhile; `Invalid` when the connector was cancelled before, `Canceled` when
    /// it is now; `TimedOut`; `DeviceRemoved`. The connector is burnt.
    ///
    /// # Cancel safety
    /// Dropping the future refuses the peer, or disconnects when the connection is already complete.
    pub async fn complete(self) -> Result<Connection, ConnectError> {
        self.attempt.provider().complete().await?;
        Ok(Connection::new(self.attempt))
    }

    /// Says no after all: the peer's accept fails with `CONNECTION_REFUSED`. Source: `IND2Connector::Reject`.
    ///
    /// # Errors
    /// `InvalidBufferSize` for more data than
    /// [`max_active_reject_data`](super::AdapterInfo::max_active_reject_data), with the reply in
    /// [`handle`](Retained::handle); `Aborted` when the peer has left.
    ///
    /// # Cancel safety
    /// Dropping the future refuses the peer.
    pub async fn reject(self, data: &[u8]) -> Result<(), Retained<ConnectError, Self>> {
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
