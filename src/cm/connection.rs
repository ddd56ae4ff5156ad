//! Established connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt;
use tokio::task::coop::cooperative;

use crate::backend;
use crate::error::DisconnectError;
#[cfg(feature = "inspect")]
use crate::inspect::ConnectionReport;
use crate::proto::connector::Terms;
use crate::provider::info::{ConnectionDetails, ProviderKind};
use crate::qp::{Endpoint, QueuePair, WeakQueuePair};
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

/// A connector that has a peer: a request, a reply or a connection. Dropping it is ND's Release.
///
/// A connector returns its read limits and private data only in some states, so they are stored here.
pub(super) struct Attempt {
    provider: backend::Connector,
    read_limits: ReadLimits,
    private_data: PrivateData,
    /// The queue pair of the connection.
    queue_pair: Option<WeakQueuePair>,
}

impl Attempt {
    /// Stores the answers of a connector that has a peer.
    ///
    /// # Errors
    /// The connector, if the attempt was ended in this very moment, and its answers with it.
    pub(super) fn new(provider: backend::Connector) -> Result<Self, backend::Connector> {
        let Ok(Terms { limits, private_data }) = provider.terms() else { return Err(provider) };
        Ok(Self { provider, read_limits: limits, private_data, queue_pair: None })
    }

    pub(super) fn provider(&self) -> &backend::Connector {
        &self.provider
    }

    /// Stores the queue pair of the connection, unless it is that of a lane.
    pub(super) fn set_queue_pair(&mut self, queue_pair: &impl Endpoint) {
        self.queue_pair = queue_pair.downgrade().0;
    }

    pub(super) fn terms(&self) -> (ReadLimits, &PrivateData) {
        (self.read_limits, &self.private_data)
    }

    /// Stores the read limits of the connection.
    pub(super) fn agree(&mut self, limits: ReadLimits) {
        self.read_limits = limits;
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.provider.ends().0
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.provider.ends().1
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(queue_pair) = self.queue_pair.as_ref().filter(|_| self.provider.is_connected()) {
            queue_pair.connection_dropped();
        }
        self.provider.release();
    }
}

/// An established connection.
///
/// Data is sent and received through the [`QueuePair`](crate::QueuePair) that was connected. The `Connection` reports
/// the end of the connection and ends it.
///
/// `Connection` is a cheap handle; clones refer to the same connection. Dropping the last handle disconnects in the
/// background, and so does dropping the last handle of the queue pair: keep both for as long as the connection is needed.
/// [`keep_queue_pair`](Self::keep_queue_pair) makes one value of both. A request that is posted after the last `Connection` was
/// dropped fails with [`PostErrorKind::ConnectionDropped`](crate::error::PostErrorKind::ConnectionDropped).
#[derive(Clone)]
pub struct Connection {
    attempt: Arc<Attempt>,
    /// The queue pair, if this handle keeps it.
    kept: Option<QueuePair>,
}

impl Connection {
    /// Returns the connector.
    #[cfg(feature = "rustls")]
    pub(crate) fn connector(&self) -> &backend::Connector {
        &self.attempt.provider
    }

    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Arc::new(attempt), kept: None }
    }

    /// Returns the queue pair of the connection. `None` if its last handle has been dropped, and for the queue pair of a
    /// [`Lane`](crate::qp::Lane).
    ///
    /// The handle that this returns keeps the queue pair like any other. It never is `None` for a handle of
    /// [`keep_queue_pair`](Self::keep_queue_pair) that was made while the queue pair had one.
    pub fn queue_pair(&self) -> Option<QueuePair> {
        self.kept.clone().or_else(|| self.attempt.queue_pair.as_ref()?.upgrade())
    }

    /// Returns a handle of the connection that keeps the queue pair, too, and so do its clones: as long as one of them exists, neither
    /// is dropped. Has no effect if the last handle of the queue pair has been dropped.
    ///
    /// ```
    /// # use tokio_rdma::{AcceptParams, Adapter, Connection, Listener, QueuePairConfig};
    /// # async fn example(adapter: &Adapter, listener: &Listener) -> std::io::Result<Connection> {
    /// let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    /// let connection = listener.accept_next(&queue_pair, AcceptParams::default()).await?;
    /// Ok(connection.keep_queue_pair()) // `queue_pair` may be dropped
    /// # }
    /// ```
    #[must_use = "the connection is dropped with what this returns"]
    pub fn keep_queue_pair(self) -> Self {
        let kept = self.queue_pair();
        Self { kept, ..self }
    }

    /// Returns the number of the connection in `tracing` output.
    pub fn id(&self) -> ConnectionId {
        self.attempt.provider.id()
    }

    /// Returns the provider of the adapter that the connection uses.
    pub fn provider(&self) -> ProviderKind {
        self.attempt.provider.kind()
    }

    /// Returns a `tracing` span for work that belongs to the connection.
    ///
    /// The span is named `connection`. Its fields are `id` (the number of the connection), `local` and `peer` (its
    /// addresses). Use it to group events by connection, for example those of the calls of an RPC framework.
    ///
    /// ```
    /// # async fn example(stream: tokio_rdma::RdmaStream) {
    /// use tracing::Instrument;
    ///
    /// let span = stream.connection().span();
    /// let serve = async move {
    ///     // This event is inside the span.
    ///     tracing::info!("request received");
    /// # drop(stream);
    /// };
    /// tokio::spawn(serve.instrument(span));
    /// # }
    /// ```
    ///
    /// tonic's server spawns its own tasks. There, `Server::trace_fn` creates the span of a call. The addresses of this
    /// span are in the `TcpConnectInfo` of the request's extensions. With `RdmaListener::tonic` a
    /// [`ConnectionInfo`](crate::io::ConnectionInfo) is there, which has its number, too.
    pub fn span(&self) -> tracing::Span {
        tracing::info_span!("connection", id = %self.id(), local = %self.local_addr(), peer = %self.peer_addr())
    }

    /// Returns whether the connection is established: neither side has ended it, and no loss has been detected.
    ///
    /// It may end at any time. [`disconnected`](Self::disconnected) waits for that and has the reason.
    pub fn is_connected(&self) -> bool {
        self.attempt.provider.is_connected()
    }

    /// Returns the local address, with the port that was assigned.
    pub fn local_addr(&self) -> SocketAddr {
        self.attempt.local_addr()
    }

    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer_addr()
    }

    /// Returns the negotiated read limits, as seen from this side.
    pub fn read_limits(&self) -> ReadLimits {
        self.attempt.read_limits
    }

    /// Returns what both ends have agreed on: queue pair numbers, path MTU, GIDs, options of the vendor. They do not change, and can
    /// still be asked for after the end of the connection.
    pub fn details(&self) -> ConnectionDetails {
        let connector = &self.attempt.provider;
        ConnectionDetails::new(connector.adapter_name().to_owned(), connector.path(), self.read_limits())
    }

    /// Returns the private data of the peer's request or accept.
    pub fn private_data(&self) -> &PrivateData {
        &self.attempt.private_data
    }

    /// Resolves when the connection ends, for any reason (`IND2Connector::NotifyDisconnect`).
    ///
    /// Resolves immediately if the connection has already ended, or if this side has called
    /// [`disconnect`](Self::disconnect). If the peer disconnects, this future is ready, and [`is_connected`](Self::is_connected) is
    /// `false`, by the time that the first outstanding request completes with `CANCELED`. If one task waits for this future and
    /// another for a request, either may run first: that is the scheduler's choice. Any number of tasks may wait.
    ///
    /// # Detecting a dead peer
    /// The `soft` provider probes a peer that has been silent for a while, see `SoftConfig::path_timeout`.
    ///
    /// The `verbs` provider does the same on a connection without outstanding requests, see `VerbsConfig::path_timeout`.
    /// Outstanding requests are left to the device, which detects that the peer does not acknowledge them. On InfiniBand
    /// and RoCE that takes [`retry_count`](crate::ConnectParams::retry_count) times one to four
    /// [`ack_timeout`](crate::ConnectParams::ack_timeout)s. On iWARP it takes until the TCP of the driver gives up, often 15
    /// minutes.
    ///
    /// Some drivers also report that their own interface went down: `siw` does. `rxe` does not, and its connections
    /// continue if the interface is up again in time.
    ///
    /// The future is independent of this handle and does not keep the connection: when the last handle is dropped, it
    /// resolves.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn disconnected(&self) -> impl Future<Output = DisconnectReason> + Send + use<> {
        let provider = self.attempt.provider.clone();
        async move { cooperative(provider.disconnected()).await }
    }

    /// Returns why the connection has ended, if it has. Unlike [`disconnected`](Self::disconnected), this does not use the
    /// budget of the task.
    pub(crate) fn ended(&self) -> Option<DisconnectReason> {
        self.attempt.provider.disconnected().now_or_never()
    }

    /// Returns its report for a snapshot.
    #[cfg(feature = "inspect")]
    pub(crate) fn report(&self) -> ConnectionReport {
        self.attempt.provider.report()
    }

    /// Disconnects (`IND2Connector::Disconnect`).
    ///
    /// Sends a disconnect request, waits for the peer's response, and returns when the device no longer accesses memory
    /// of the queue pair. Outstanding requests complete with `CANCELED`. To lose no data, await the sends and writes
    /// first: the data of completed requests reaches the peer before the disconnect does. The queue pair cannot be used
    /// again.
    ///
    /// `Ok` means that the peer agreed: it responded, or it had disconnected itself.
    ///
    /// # Errors
    /// `Lost` with the reason if the connection was lost, now or before: data of requests that completed early may not
    /// have arrived, see [`early_completion`](crate::cm::AdapterInfo::early_completion). `TimedOut` if the peer did not
    /// respond; the connection has ended nevertheless. `Invalid` if this side has already disconnected, or another call
    /// is disconnecting. `Canceled`, `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the disconnect. No other call waits for it: [`disconnected`](Self::disconnected)
    /// resolves when the disconnect begins, and a second `disconnect` fails with `Invalid`. The requests that are
    /// outstanding still complete with `CANCELED`.
    pub fn disconnect(&self) -> impl Future<Output = Result<(), DisconnectError>> + Send + use<> {
        let attempt = self.attempt.clone();
        async move { cooperative(attempt.provider.disconnect()).await }
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
