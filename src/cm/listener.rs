//! Listeners and requests: the passive side of a connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures::stream::{self, Fuse};
use futures::{FutureExt, Stream, StreamExt};
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

use super::acceptor::{Acceptor, AcceptorConfig, AcceptorParts, none_later};
use super::adapter::Adapter;
use super::connection::{Attempt, Connection};
use crate::backend;
use crate::error::{AcceptError, BindError, Retained, StateError};
use crate::metrics::AcceptMetrics;
use crate::provider::params::AcceptParams;
use crate::qp::Endpoint;
use crate::types::{ConnectionId, PrivateData, ReadLimits};

/// Receives connection requests (`IND2Listener`).
///
/// `Listener` is a cheap handle; clones refer to the same listener. Dropping the last handle closes the listener:
/// pending [`request`](Self::request) futures fail with `Canceled`, requests in the backlog are refused, and accepted
/// connections stay established. The port is free immediately. Unlike in NDK, accepted connections do not hold it.
///
/// # Examples
/// A server uses [`acceptor`](Self::acceptor), so that one silent peer does not keep the others waiting:
///
/// ```
#[doc = include_str!("../../docs/snippets/accept_loop.rs")]
/// ```
#[derive(Clone)]
pub struct Listener {
    inner: Arc<Inner>,
}

struct Inner(backend::Listener);

impl Drop for Inner {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Listener {
    pub(crate) fn new(provider: backend::Listener) -> Self {
        Self { inner: Arc::new(Inner(provider)) }
    }

    /// Binds to a local address (`IND2Listener::Bind`).
    ///
    /// The unspecified address means all addresses of its family that [`Adapter::info`](super::Adapter::info) lists at this
    /// moment, and no others. Port 0 chooses a port of 49152-65535.
    ///
    /// # Errors
    /// `SharingViolation`, `TooManyAddresses`, `AlreadyBound`, `InvalidAddress`, `DeviceRemoved`. The listener is
    /// unchanged and can be bound to another address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        self.inner.0.bind(address)
    }

    /// Starts listening (`IND2Listener::Listen`).
    ///
    /// `backlog` is the maximum number of requests that wait for [`request`](Self::request). 0 means the maximum, 1024;
    /// larger values are reduced to 1024 silently. A request that arrives while the backlog is full is refused: the peer's
    /// connect fails with [`ConnectError::Refused`](crate::error::ConnectError::Refused), which may be retried.
    ///
    /// With the soft provider the waiting requests of all listeners of the process have at most an eighth of its descriptors
    /// (`RLIMIT_NOFILE`). Requests beyond that are rejected, but 16 wait in any case.
    ///
    /// # Errors
    /// `InvalidState` if the listener is not bound or already listening; `SharingViolation`; `DeviceRemoved`. The
    /// listener stays bound.
    pub fn listen(&self, backlog: usize) -> Result<(), BindError> {
        self.inner.0.listen(backlog)
    }

    /// Returns the address of the listener (`IND2Listener::GetLocalAddress`).
    ///
    /// # Errors
    /// `InvalidDeviceState` if the listener is not listening.
    pub fn local_addr(&self) -> Result<SocketAddr, StateError> {
        self.inner.0.local_addr()
    }

    /// Waits for the next connection request (`IND2Listener::GetConnectionRequest`).
    ///
    /// Several futures may be pending. They receive requests in the order in which they were first polled.
    ///
    /// A peer may be slow to complete the connection after [`Request::accept`], or never do so. So a server accepts
    /// each request in a task of its own with a time limit, and waits for the next request without waiting for that
    /// task. It limits the number of such tasks: the `Request` of the soft provider holds a descriptor, which counts as
    /// the program's own. [`acceptor`](Self::acceptor) does this, and drops old handshakes if others need their places.
    /// By hand:
    ///
    /// ```
    #[doc = include_str!("../../docs/snippets/request_loop.rs")]
    /// ```
    ///
    /// # Errors
    /// `NotListening`, `Canceled`, `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future loses no request. A request that was assigned to the future is assigned to the next one.
    pub async fn request(&self) -> Result<Request, AcceptError> {
        self.inner.0.request().await.and_then(Request::fetched)
    }

    /// Waits for the next connection request and accepts it without inspecting it.
    ///
    /// Resolves when the peer has completed the connection, which has no time limit on the soft provider. While one peer is
    /// silent, a loop around this call accepts no other. So this call is for programs with one peer, such as tests; a
    /// server uses [`acceptor`](Self::acceptor).
    ///
    /// # Errors
    /// The errors of [`request`](Self::request) and [`Request::accept`]. A request that cannot be accepted is rejected.
    ///
    /// # Cancel safety
    /// Dropping the future rejects the peer whose request it has received.
    pub async fn accept_next<E: Endpoint>(
        &self,
        queue_pair: &E,
        params: AcceptParams,
    ) -> Result<Connection, AcceptError> {
        Ok(self.request().await?.accept(queue_pair, params).await?)
    }

    /// Returns the connection requests as a stream. The stream ends after the first error.
    pub fn requests(&self) -> Requests {
        Requests { listener: self.clone(), requests: Box::pin(self.requests_as(Request::fetched)) }
    }

    /// Returns the requests for a task that has a limit of its own: their descriptors count on.
    pub(super) fn counted_requests(&self) -> impl Stream<Item = RequestResult> + Send + use<> {
        self.requests_as(Request::new)
    }

    fn requests_as(
        &self,
        as_request: fn(backend::Connector) -> RequestResult,
    ) -> Fuse<impl Stream<Item = RequestResult> + Send + Sync + use<>> {
        let requests = stream::unfold(Some(self.clone()), move |listener| async move {
            let listener = listener?;
            let request = listener.inner.0.request().await.and_then(as_request);
            let next = request.is_ok().then_some(listener);
            Some((request, next))
        });
        requests.fuse()
    }

    /// Answers requests in the background with `answer`, and returns the connections.
    ///
    /// A slow or silent peer delays no other: each request is answered in a task of its own, with a time limit. `answer`
    /// usually creates a queue pair, posts receives and calls [`Request::accept`]. Keep both the queue pair and the connection: dropping
    /// the last handle of either disconnects. [`Connection::keep_queue_pair`] makes one value of them.
    ///
    /// The acceptor takes all requests: [`request`](Self::request) on another handle competes with it. Dropping the acceptor
    /// closes the listener, for its other handles, too.
    ///
    /// The tasks run on the current runtime, not on that of the adapter. The listener is closed when that runtime ends.
    ///
    /// # Errors
    /// `InvalidState` if the listener is not listening.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Examples
    /// The example of [`Listener`].
    pub fn acceptor<T, F, H>(&self, config: AcceptorConfig, answer: F) -> Result<Acceptor<T>, BindError>
    where
        T: Send + 'static,
        F: Fn(Request) -> H + Send + Sync + 'static,
        H: Future<Output = io::Result<T>> + Send + 'static,
    {
        Acceptor::new(AcceptorParts {
            listeners: vec![((), self.clone())],
            later: none_later(),
            closed: Arc::default(),
            config,
            metrics: AcceptMetrics::new("acceptor"),
            answer: move |(), request| answer(request).map(|outcome| outcome.map(Some)),
            is_prompt: false,
        })
    }

    /// Cancels all pending [`request`](Self::request) futures; the listener continues to listen
    /// (`IND2Overlapped::CancelOverlappedRequests`).
    pub fn cancel(&self) {
        self.inner.0.cancel();
    }

    /// Closes the listener, as dropping the last handle does.
    pub(crate) fn close(&self) {
        self.inner.0.close();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local_addr().ok()).finish()
    }
}

type RequestResult = Result<Request, AcceptError>;

/// A stream of connection requests, returned by [`Listener::requests`].
#[must_use = "streams do nothing unless polled"]
pub struct Requests {
    listener: Listener,
    requests: Pin<Box<dyn Stream<Item = RequestResult> + Send + Sync>>,
}

impl Stream for Requests {
    type Item = Result<Request, AcceptError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.requests.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("listener", &self.listener).finish_non_exhaustive()
    }
}

/// A connection request of a peer (`IND2Connector`, passive side).
///
/// Inspect the request, then [`accept`](Self::accept) or [`reject`](Self::reject) it. Dropping the `Request` refuses the
/// peer: its connect fails with [`ConnectError::Refused`](crate::error::ConnectError::Refused), as from a full backlog, and
/// not with [`Rejected`](crate::error::ConnectError::Rejected).
///
/// Accepting consumes the `Request`, so a second call does not compile:
/// ```compile_fail,E0382
/// # async fn example(request: tokio_rdma::Request, queue_pair: tokio_rdma::QueuePair) {
/// use tokio_rdma::AcceptParams;
/// let _ = request.accept(&queue_pair, AcceptParams::default()).await;
/// let _ = request.accept(&queue_pair, AcceptParams::default()).await;
/// # }
/// ```
#[must_use = "dropping it rejects the peer"]
pub struct Request {
    attempt: Attempt,
    /// The time of the reply, for an acceptor, which limits the time of the peer.
    replied: Option<Arc<OnceLock<Instant>>>,
}

impl Request {
    /// Creates the request of a connector that has one, unless the adapter was removed in this very moment.
    fn new(provider: backend::Connector) -> Result<Self, AcceptError> {
        let attempt = Attempt::new(provider).map_err(|provider| {
            provider.release();
            AcceptError::DeviceRemoved
        });
        Ok(Self { attempt: attempt?, replied: None })
    }

    /// Creates the request of a connector, which the program has from now on, with its descriptor.
    fn fetched(provider: backend::Connector) -> Result<Self, AcceptError> {
        drop(provider.take_descriptor());
        Self::new(provider)
    }

    /// Returns the connector.
    pub(super) fn provider(&self) -> &backend::Connector {
        self.attempt.provider()
    }

    /// Has [`accept`](Self::accept) store the time of its reply in `replied`.
    pub(super) fn note_reply(&mut self, replied: Arc<OnceLock<Instant>>) {
        self.replied = Some(replied);
    }

    /// Returns the number of the connection in `tracing` output.
    pub fn id(&self) -> ConnectionId {
        self.attempt.provider().id()
    }

    /// Returns the read limits that the peer offers, as seen from this side and reduced to the adapter's limits
    /// (`IND2Connector::GetReadLimits`).
    pub fn read_limits(&self) -> ReadLimits {
        self.attempt.terms().0
    }

    /// Returns the private data of the request (`IND2Connector::GetPrivateData`).
    pub fn private_data(&self) -> &PrivateData {
        self.attempt.terms().1
    }

    /// Returns the adapter of the request, if the listener serves several adapters.
    pub(crate) fn adapter(&self) -> Option<Adapter> {
        self.attempt.provider().adapter().map(Adapter::new)
    }

    /// Returns the local address that the peer connects to.
    pub fn local_addr(&self) -> SocketAddr {
        self.attempt.local_addr()
    }

    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer_addr()
    }

    /// Accepts the request (`IND2Connector::Accept`).
    ///
    /// Resolves when the peer completes the connection. Post receives to the queue pair before this call, because the
    /// peer's first message may arrive before the future resolves. From then on all kinds of requests can be posted, so that the message
    /// can be answered at once.
    ///
    /// # Errors
    /// `Refused` if the peer rejected the reply; `Aborted` if the peer has closed the connection; `TimedOut`;
    /// `Canceled`; `DeviceRemoved`. After these errors the attempt has ended and the queue pair is unchanged.
    ///
    /// `InvalidBufferSize`, `Active`, `ForeignQueuePair` and `NotSupported` leave the request unanswered and return it in
    /// [`handle`](Retained::handle).
    ///
    /// # Cancel safety
    /// Dropping the future rejects the peer, or disconnects if the peer has already completed the connection.
    pub async fn accept<E: Endpoint>(
        mut self,
        queue_pair: &E,
        params: AcceptParams,
    ) -> Result<Connection, Retained<AcceptError, Self>> {
        let agreed = self.attempt.provider().agreed(params.read_limits, self.read_limits());
        // An attempt that has ended may not have given it back. The peer is not to blame for that wait.
        queue_pair.provider().0.settled().await;
        let outcome = {
            let mut accept = pin!(self.attempt.provider().accept(queue_pair.provider().0, &params));
            std::future::poll_fn(|cx| {
                let polled = accept.as_mut().poll(cx);
                // By the first wait the reply has been sent: a fresh socket has room for it.
                if let Some(replied) = self.replied.as_ref().filter(|_| polled.is_pending()) {
                    replied.get_or_init(Instant::now);
                }
                polled
            })
            .await
        };
        match outcome {
            Ok(()) => {
                self.attempt.agree(agreed);
                self.attempt.set_queue_pair(queue_pair);
                Ok(Connection::new(self.attempt))
            }
            Err(error) => Err(self.retain(error)),
        }
    }

    /// Rejects the request and sends `data` to the peer (`IND2Connector::Reject`).
    ///
    /// The future does not wait for the peer, whose connect fails with
    /// [`ConnectError::Rejected`](crate::error::ConnectError::Rejected).
    ///
    /// # Errors
    /// `InvalidBufferSize` if `data` is longer than [`max_reject_data`](super::AdapterInfo::max_reject_data), with the
    /// request in [`handle`](Retained::handle); `Aborted` if the peer has closed the connection.
    ///
    /// # Cancel safety
    /// Dropping the future rejects the peer without the data.
    pub async fn reject(self, data: &[u8]) -> Result<(), Retained<AcceptError, Self>> {
        consume_budget().await;
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
