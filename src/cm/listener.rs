//! The passive side.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;

use super::connection::{Attempt, Connection};
use crate::error::{AcceptError, BindError, Retained, StateError};
use crate::provider;
use crate::provider::params::AcceptParams;
use crate::qp::QueuePair;
use crate::types::{ConnectionId, PrivateData, ReadLimits};

/// Waits for connection requests (IND2Listener).
///
/// Handles are counted. Dropping the last one closes the listener: pending [`request`](Self::request)s end `Canceled`,
/// requests that nobody has fetched are refused, connections that were accepted live on. The port is free again at once;
/// it is not held by accepted connections (as it is in NDK).
///
/// # Examples
/// ```
/// # async fn example(adapter: &tokio_rdma::Adapter) -> std::io::Result<()> {
/// use tokio_rdma::{AcceptParams, QueuePairConfig};
///
/// let listener = adapter.listener();
/// listener.bind(([192, 0, 2, 1], 7000).into())?;
/// listener.listen(0)?;
/// loop {
///     let request = listener.request().await?;
///     let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
///     let connection = request.accept(&queue_pair, AcceptParams::default()).await?;
///     println!("connected to {}", connection.peer_addr());
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Listener {
    handle: Arc<Handle>,
}

struct Handle(provider::Listener);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Listener {
    pub(crate) fn new(provider: provider::Listener) -> Self {
        Self { handle: Arc::new(Handle(provider)) }
    }

    /// Binds to a local address. Source: `IND2Listener::Bind`.
    ///
    /// The unspecified address stands for all addresses of its family that this adapter has, and no others. Port 0 picks
    /// one of 49152-65535.
    ///
    /// # Errors
    /// `SharingViolation`, `TooManyAddresses`, `AlreadyBound`, `InvalidAddress`, `DeviceRemoved`. The listener is as it
    /// was, and may be bound otherwise.
    pub fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        self.handle.0.bind(address)
    }

    /// Begins to listen. Source: `IND2Listener::Listen`.
    ///
    /// `backlog` is how many requests may wait to be fetched; 0 is as many as possible, 1024, and more is silently
    /// capped to that. A request that finds the backlog full is refused.
    ///
    /// # Errors
    /// `InvalidState` when it is not bound or already listens; `SharingViolation`; `DeviceRemoved`. It stays bound.
    pub fn listen(&self, backlog: usize) -> Result<(), BindError> {
        self.handle.0.listen(backlog)
    }

    /// The address it listens on. Source: `IND2Listener::GetLocalAddress`.
    ///
    /// # Errors
    /// `InvalidDeviceState` when it does not listen.
    pub fn local_addr(&self) -> Result<SocketAddr, StateError> {
        self.handle.0.local_addr()
    }

    /// The next connection request. Source: `IND2Listener::GetConnectionRequest`.
    ///
    /// Many may be pending at once; requests go to them in the order in which they were first polled.
    ///
    /// # Errors
    /// `NotListening`, `Canceled`, `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: a request that it had already been given goes to the next one.
    pub async fn request(&self) -> Result<Request, AcceptError> {
        self.handle.0.request().await.map(Request::new)
    }

    /// Waits for a request and accepts it, for those who take whoever comes.
    ///
    /// # Errors
    /// Those of [`request`](Self::request) and [`Request::accept`]. A request that could not be accepted is refused.
    ///
    /// # Cancel safety
    /// Dropping the future refuses the peer that it was about to accept.
    pub async fn accept_next(
        &self,
        queue_pair: &QueuePair,
        params: AcceptParams,
    ) -> Result<Connection, AcceptError> {
        Ok(self.request().await?.accept(queue_pair, params).await?)
    }

    /// The connection requests as a stream, which ends with the first error.
    pub fn requests(&self) -> Requests {
        Requests { listener: self.clone(), pending: None, done: false }
    }

    /// Ends every pending [`request`](Self::request) with `Canceled`; the listener goes on.
    /// Source: `IND2Overlapped::CancelOverlappedRequests`.
    pub fn cancel(&self) {
        self.handle.0.cancel();
    }

    /// Ends it though there may be other handles: what its drop does.
    pub(crate) fn close(&self) {
        self.handle.0.close();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local_addr().ok()).finish()
    }
}

type Pending = Pin<Box<dyn Future<Output = Result<provider::Connector, AcceptError>> + Send + Sync>>;

/// A stream of connection requests, see [`Listener::requests`].
#[must_use = "streams do nothing unless polled"]
pub struct Requests {
    listener: Listener,
    pending: Option<Pending>,
    done: bool,
}

impl Stream for Requests {
    type Item = Result<Request, AcceptError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        let mut pending = self.pending.take().unwrap_or_else(|| Box::pin(self.listener.handle.0.request()));
        let Poll::Ready(outcome) = pending.as_mut().poll(cx) else {
            self.pending = Some(pending);
            return Poll::Pending;
        };
        self.done = outcome.is_err();
        Poll::Ready(Some(outcome.map(Request::new)))
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("listener", &self.listener).finish_non_exhaustive()
    }
}

/// A connection request of a peer (IND2Connector, passive side).
///
/// Look at it, then [`accept`](Self::accept) or [`reject`](Self::reject). Dropping it refuses the peer.
///
/// Accepting consumes it, so it cannot be done twice:
/// ```compile_fail,E0382
/// # async fn example(request: tokio_rdma::Request, queue_pair: tokio_rdma::QueuePair) {
/// use tokio_rdma::AcceptParams;
/// let _ = request.accept(&queue_pair, AcceptParams::default()).await;
/// let _ = request.accept(&queue_pair, AcceptParams::default()).await;
/// # }
/// ```
#[must_use = "dropping it refuses the peer"]
pub struct Request {
    attempt: Attempt,
}

impl Request {
    fn new(provider: provider::Connector) -> Self {
        Self { attempt: Attempt::new(provider) }
    }

    /// Its number in `tracing` output.
    pub fn id(&self) -> ConnectionId {
        self.attempt.provider().id()
    }

    /// The read limits that the peer offers, in this side's direction and capped to the adapter.
    /// Source: `IND2Connector::GetReadLimits`.
    pub fn read_limits(&self) -> ReadLimits {
        self.attempt.terms().0
    }

    /// What the peer sent with its request. Source: `IND2Connector::GetPrivateData`.
    pub fn private_data(&self) -> &PrivateData {
        self.attempt.terms().1
    }

    /// The local address that the peer asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.attempt.local_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer_addr()
    }

    /// Accepts: ready when the peer has completed the connection. Source: `IND2Connector::Accept`.
    ///
    /// Post receives to the queue pair before: the peer's first message may arrive before this is ready.
    ///
    /// # Errors
    /// `Refused` when the peer looked at the terms and said no; `Aborted` when it has left; `TimedOut`; `Canceled`;
    /// `DeviceRemoved`: the attempt is over, and the queue pair as it was. With `InvalidBufferSize`, `Active` and
    /// `ForeignQueuePair` nothing has happened, and the request is in [`handle`](Retained::handle).
    ///
    /// # Cancel safety
    /// Dropping the future refuses the peer, or disconnects when the peer has completed already.
    pub async fn accept(
        mut self,
        queue_pair: &QueuePair,
        params: AcceptParams,
    ) -> Result<Connection, Retained<AcceptError, Self>> {
        let agreed = self.attempt.provider().agreed(params.read_limits, self.read_limits());
        match self.attempt.provider().accept(queue_pair.provider(), &params).await {
            Ok(()) => {
                self.attempt.agree(agreed);
                Ok(Connection::new(self.attempt))
            }
            Err(error) => Err(self.retain(error)),
        }
    }

    /// Refuses, with data for the peer to see. Source: `IND2Connector::Reject`.
    ///
    /// # Errors
    /// `InvalidBufferSize`, with the request in [`handle`](Retained::handle); `Aborted` when the peer has left.
    ///
    /// # Cancel safety
    /// Dropping the future refuses the peer without the data.
    pub async fn reject(self, data: &[u8]) -> Result<(), Retained<AcceptError, Self>> {
        self.attempt.provider().reject_request(data).map_err(|error| self.retain(error))
    }

    fn retain(self, error: AcceptError) -> Retained<AcceptError, Self> {
        let usable = self.attempt.provider().is_pending();
        Retained { error, handle: usable.then_some(self) }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
