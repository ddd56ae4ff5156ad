//! An established connection.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::error::DisconnectError;
use crate::provider;
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

/// A connector that owes its peer an answer, or a connection: dropping it is ND's Release.
///
/// What can be asked of a connector only at certain moments is kept here when it is there.
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

    /// The limits that were agreed on.
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
/// Data moves through the queue pair that it was made with; this handle is for its end. Handles are counted: dropping
/// the last one disconnects in the background.
#[derive(Clone)]
pub struct Connection {
    attempt: Arc<Attempt>,
}

impl Connection {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Arc::new(attempt) }
    }

    /// Its number in `tracing` output.
    pub fn id(&self) -> ConnectionId {
        self.attempt.provider.id()
    }

    /// A span that says which connection this is: `connection`, with its number as in all other output about it, and its
    /// addresses. What is done within it, the calls of an RPC framework for example, can be told by connection.
    ///
    /// ```
    /// # async fn example(messages: tokio_rdma::Messages) {
    /// use tracing::Instrument;
    ///
    /// let span = messages.connection().span();
    /// let serve = async move {
    ///     // Spans and events in here, and in what it spawns with `Span::current()`, are inside.
    ///     tracing::info!("asked");
    /// # drop(messages);
    /// };
    /// tokio::spawn(serve.instrument(span));
    /// # }
    /// ```
    ///
    /// tonic's server spawns for itself: there `Server::trace_fn` makes the span of a call, out of the `TcpConnectInfo` among
    /// the extensions of the request, whose addresses are the ones that are in this span.
    pub fn span(&self) -> tracing::Span {
        tracing::info_span!("connection", id = %self.id(), local = %self.local_addr(), peer = %self.peer_addr())
    }

    /// The local address, with the port that it was given.
    pub fn local_addr(&self) -> SocketAddr {
        self.attempt.local
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer
    }

    /// The read limits that were agreed on, in this side's direction.
    pub fn read_limits(&self) -> ReadLimits {
        self.attempt.read_limits
    }

    /// What the peer sent with its request or its accept.
    pub fn private_data(&self) -> &PrivateData {
        &self.attempt.private_data
    }

    /// Ready when the connection is over, however that came; at once when it is already.
    /// Source: `IND2Connector::NotifyDisconnect`.
    ///
    /// When the peer disconnects, this is ready before the outstanding requests finish `CANCELED`. Any number of tasks
    /// may wait.
    ///
    /// # A path or a peer that is gone without a word
    /// The `soft` provider asks a peer that has been silent for a while, see `SoftConfig::path_timeout`. The devices of
    /// the `verbs` provider do not: they know no keepalive, and notice only that something they sent is not
    /// acknowledged. Over InfiniBand and RoCE that takes [`retry_count`](crate::ConnectParams::retry_count) times one
    /// to four [`ack_timeout`](crate::ConnectParams::ack_timeout)s, over iWARP as long as the driver's TCP tries, often a
    /// quarter of an hour; an end that only receives waits for ever. A program that has to know sends something from
    /// time to time, and limits how long it waits for the answer. (Some drivers also tell when their own interface goes
    /// down: `siw` does, `rxe` does not, and its connections go on when it is up again in time.)
    ///
    /// # Cancel safety
    /// Dropping the future costs nothing.
    pub async fn disconnected(&self) -> DisconnectReason {
        self.attempt.provider.disconnected().await
    }

    /// Ends the connection: tells the peer, waits for its answer, and until no memory of the queue pair is in use.
    /// Source: `IND2Connector::Disconnect`.
    ///
    /// Outstanding requests finish `CANCELED`. To lose nothing, await the sends and writes first: what has completed
    /// reaches the peer before the end does. The queue pair cannot be used again.
    ///
    /// # Errors
    /// `TimedOut` when the peer did not answer; the connection is over all the same. `Invalid` when it was over before,
    /// or someone else is disconnecting it. `Canceled`, `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the disconnect.
    pub async fn disconnect(&self) -> Result<(), DisconnectError> {
        self.attempt.provider.disconnect().await
    }

    /// Cancels those who wait in [`disconnected`](Self::disconnected) or [`disconnect`](Self::disconnect); the
    /// connection itself is not hurt by the former. Source: `IND2Overlapped::CancelOverlappedRequests`.
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
