//! Established connections.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::error::DisconnectError;
use crate::provider;
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

/// A connector that has a peer: a request, a reply or a connection. Dropping it is ND's Release.
///
/// A connector returns its read limits, private data and addresses only in some states, so they are stored here.
pub(super) struct Attempt {
    provider: provider::Connector,
    read_limits: ReadLimits,
    private_data: PrivateData,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Attempt {
    pub(super) fn new(provider: provider::Connector) -> Self {
        // An adapter that was removed in this very moment has taken the answers with it: there is no peer any more.
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Self {
            read_limits: provider.read_limits().unwrap_or(ReadLimits::NONE),
            private_data: provider.private_data().unwrap_or_else(|_| PrivateData::empty()),
            local: provider.local_addr().unwrap_or(nowhere),
            peer: provider.peer_addr().unwrap_or(nowhere),
            provider,
        }
    }

    pub(super) fn provider(&self) -> &provider::Connector {
        &self.provider
    }

    pub(super) fn terms(&self) -> (ReadLimits, &PrivateData) {
        (self.read_limits, &self.private_data)
    }

    /// Stores the read limits of the connection.
    pub(super) fn agree(&mut self, limits: ReadLimits) {
        self.read_limits = limits;
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.provider.release();
    }
}

/// An established connection.
///
/// Data is sent and received through the [`QueuePair`](crate::QueuePair) that was connected. The `Connection` reports
/// the end of the connection and ends it.
///
/// `Connection` is a cheap handle; clones refer to the same connection. Dropping the last handle disconnects in the
/// background.
#[derive(Clone)]
pub struct Connection {
    attempt: Arc<Attempt>,
}

impl Connection {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Arc::new(attempt) }
    }

    /// Returns the number of the connection in `tracing` output.
    pub fn id(&self) -> ConnectionId {
        self.attempt.provider.id()
    }

    /// Returns a `tracing` span for work that belongs to the connection.
    ///
    /// The span is named `connection`. Its fields are `id` (the number of the connection), `local` and `peer` (its
    /// addresses). Use it to group events by connection, for example those of the calls of an RPC framework.
    ///
    /// ```
    /// # async fn example(messages: tokio_rdma::Messages) {
    /// use tracing::Instrument;
    ///
    /// let span = messages.connection().span();
    /// let serve = async move {
    ///     // This event is inside the span.
    ///     tracing::info!("request received");
    /// # drop(messages);
    /// };
    /// tokio::spawn(serve.instrument(span));
    /// # }
    /// ```
    ///
    /// tonic's server spawns its own tasks. There, `Server::trace_fn` creates the span of a call. The addresses of this
    /// span are in the `TcpConnectInfo` of the request's extensions.
    pub fn span(&self) -> tracing::Span {
        tracing::info_span!("connection", id = %self.id(), local = %self.local_addr(), peer = %self.peer_addr())
    }

    /// Returns the local address, with the port that was assigned.
    pub fn local_addr(&self) -> SocketAddr {
        self.attempt.local
    }

    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer
    }

    /// Returns the negotiated read limits, as seen from this side.
    pub fn read_limits(&self) -> ReadLimits {
        self.attempt.read_limits
    }

    /// Returns the private data of the peer's request or accept.
    pub fn private_data(&self) -> &PrivateData {
        &self.attempt.private_data
    }

    /// Resolves when the connection ends, for any reason (`IND2Connector::NotifyDisconnect`).
    ///
    /// Resolves immediately if the connection has already ended. If the peer disconnects, this future resolves before
    /// the outstanding requests complete with `CANCELED`. Any number of tasks may wait.
    ///
    /// # Detecting a dead peer
    /// The `soft` provider probes a peer that has been silent for a while, see `SoftConfig::path_timeout`.
    ///
    /// The devices of the `verbs` provider have no keepalive. They detect a dead peer or path only when the peer does
    /// not acknowledge sent data. On InfiniBand and RoCE that takes [`retry_count`](crate::ConnectParams::retry_count)
    /// times one to four [`ack_timeout`](crate::ConnectParams::ack_timeout)s. On iWARP it takes until the TCP of the
    /// driver gives up, often 15 minutes. A side that only receives never detects a dead peer. Send a message
    /// periodically and limit the wait for the response.
    ///
    /// Some drivers also report that their own interface went down: `siw` does. `rxe` does not, and its connections
    /// continue if the interface is up again in time.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn disconnected(&self) -> DisconnectReason {
        self.attempt.provider.disconnected().await
    }

    /// Disconnects (`IND2Connector::Disconnect`).
    ///
    /// Sends a disconnect request, waits for the peer's response, and returns when the device no longer accesses memory
    /// of the queue pair. Outstanding requests complete with `CANCELED`. To lose no data, await the sends and writes
    /// first: the data of completed requests reaches the peer before the disconnect does. The queue pair cannot be used
    /// again.
    ///
    /// # Errors
    /// `TimedOut` if the peer did not respond; the connection has ended nevertheless. `Invalid` if the connection had
    /// already ended, or another call is disconnecting it. `Canceled`, `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the disconnect.
    pub async fn disconnect(&self) -> Result<(), DisconnectError> {
        self.attempt.provider.disconnect().await
    }

    /// Cancels all pending [`disconnected`](Self::disconnected) and [`disconnect`](Self::disconnect) futures
    /// (`IND2Overlapped::CancelOverlappedRequests`).
    ///
    /// If no disconnect is pending, the connection stays established.
    pub fn cancel(&self) {
        self.attempt.provider.cancel();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id())
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}
