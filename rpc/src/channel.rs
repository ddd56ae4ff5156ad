//! The client: a service for requests, with a connection that is made again when it was lost.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::uri::Authority;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_rdma::RdmaStream;
use tower_service::Service;

use crate::body::Incoming;
use crate::config::Config;
use crate::error::{BoxError, Error};
use crate::grpc;
use crate::inspect::{Below, show};
use crate::link::{
    self, CallHandle, Lending, Link, LossGuard, Message, Part, Reader, Unsent, Writer, poll_part,
};
use crate::machine::Answer;
use crate::metrics::{ConnectionMetrics, count_connect};
use crate::observation::Observation;
use crate::wire::{Origin, put_request};

/// The pauses before a connect that follows one that has failed, or was of no use: the first and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// The age at which a connection counts as one that was of use.
const SETTLED: Duration = Duration::from_secs(1);

/// The longest authority that a hello has room for. The name of a host has 253 characters at most.
const LONGEST_AUTHORITY: usize = 512;

/// The most parts of a request that its call polls itself.
const PARTS: usize = 4;

/// A connection to a server, for the generated clients of tonic and for any request.
///
/// Clones share the connection. If it is lost, the calls that were on their way fail, and the next call connects
/// again. A call is never repeated: it may have been executed.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use http_body_util::Full;
/// use tower_service::Service;
///
/// let mut channel = tokio_rdma_rpc::Channel::connect("192.0.2.1:50051").await?;
/// let request = http::Request::get("/hello").body(Full::<bytes::Bytes>::default())?;
/// let answer = channel.call(request).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

/// A connect of a stream.
type Connecting = BoxFuture<'static, io::Result<(Reader, Writer, Option<Lending>, Below)>>;

struct Shared {
    connect: Box<dyn Fn() -> Connecting + Send + Sync>,
    origin: Origin,
    config: Config,
    current: Mutex<Option<Arc<Link>>>,
    /// Held by the one that connects.
    attempts: tokio::sync::Mutex<Attempts>,
}

/// The attempts to connect since one that was of use.
#[derive(Default)]
struct Attempts {
    /// Those that have failed, one after the other.
    failed: u32,
    /// The error of the last of them, and the end of the pause behind it.
    last: Option<(Error, Instant)>,
    /// The connections that have ended before they had settled, one after the other.
    fleeting: u32,
    /// The time when the last connection was made.
    since: Option<Instant>,
}

/// Counts one more attempt of a kind, and returns the pause behind it.
fn pause(attempts: &mut u32) -> Duration {
    let pause = PAUSES[0].saturating_mul(1 << (*attempts).min(16)).min(PAUSES[1]);
    *attempts += 1;
    jitter(pause)
}

impl Channel {
    /// Connects to a server by name or address, `host:port`.
    ///
    /// # Errors
    /// `Connect` if there is no connection, `Protocol` if the peer speaks something else, such as HTTP/2.
    ///
    /// # Cancel safety
    /// Dropping the future drops the channel. An attempt that has begun ends by itself, within the time for it.
    pub async fn connect(address: impl Into<String>) -> Result<Self, Error> {
        let channel = Self::connect_lazy(address);
        channel.shared.link().await?;
        Ok(channel)
    }

    /// Returns a channel that connects with its first call.
    #[must_use]
    pub fn connect_lazy(address: impl Into<String>) -> Self {
        let address = address.into();
        let authority = address.clone();
        let connect = move || {
            let address = address.clone();
            async move { RdmaStream::connect(address).await }
        };
        Self::with_connector(&authority, false, Config::default(), connect)
    }

    /// Returns a channel over streams that `connect` makes, when the first call needs one, and again after a loss: for
    /// TLS, a given adapter, or other settings.
    ///
    /// `authority` and `secure` are those of the URIs that the server sees, as far as the requests have none.
    pub fn with_connector<C, F, IO>(authority: &str, secure: bool, config: Config, connect: C) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Send + 'static,
    {
        let connect = move || -> Connecting {
            let stream = connect();
            Box::pin(async move {
                let stream = stream.await?;
                let lending = Lending::of(&stream).filter(|_| config.one_sided);
                let below = Below::of(&stream);
                let (reader, writer) = tokio::io::split(stream);
                Ok((Box::new(reader) as Reader, Box::new(writer) as Writer, lending, below))
            })
        };
        let shared = Shared {
            connect: Box::new(connect),
            origin: Origin {
                secure,
                authority: Authority::try_from(authority)
                    .ok()
                    .filter(|name| name.as_str().len() <= LONGEST_AUTHORITY),
            },
            config,
            current: Mutex::default(),
            attempts: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(link) = self.current.get_mut().unwrap_or_else(PoisonError::into_inner) {
            link.go_away();
        }
    }
}

impl Shared {
    /// Returns the connection, if it takes calls.
    fn current(&self) -> Option<Arc<Link>> {
        self.lock_current().clone().filter(|link| link.accepts())
    }

    fn lock_current(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection. Connects if there is none, by a task, so that an attempt is not given up with the call that has
    /// begun it.
    async fn link(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let shared = self.clone();
        let attempt = tokio::spawn(async move { shared.connected().await });
        attempt.await.unwrap_or_else(|error| Err(Error::Connect(Arc::new(io::Error::other(error)))))
    }

    /// Returns the connection. Connects if there is none, one attempt at a time, with a pause behind one that has failed.
    async fn connected(&self) -> Result<Arc<Link>, Error> {
        let mut attempts = self.attempts.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        if let Some((error, _)) = attempts.last.as_ref().filter(|(_, until)| Instant::now() < *until) {
            return Err(error.clone());
        }
        if let Some(since) = attempts.since.take() {
            // A peer that ends each connection at once is asked no more often than one that refuses them.
            if since.elapsed() < SETTLED {
                sleep_until(since + pause(&mut attempts.fleeting)).await;
            } else {
                attempts.fleeting = 0;
            }
        }
        let Config { settings, handshake_timeout: limit, .. } = self.config;
        let attempt = async {
            let connect = |error| Error::Connect(Arc::new(error));
            let (reader, writer, lending, below) = (self.connect)().await.map_err(connect)?;
            let connected = link::connect(reader, writer, settings, self.origin.clone(), lending).await;
            connected.map(|(link, frames)| (link, frames, below))
        };
        let outcome = match timeout(limit, attempt).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Connect(Arc::new(io::ErrorKind::TimedOut.into()))),
        };
        let is_again = attempts.last.is_some() || self.lock_current().is_some();
        count_connect(true, is_again, outcome.is_ok());
        let (link, mut frames, below) = outcome.inspect_err(|error| {
            let pause = pause(&mut attempts.failed);
            attempts.last = Some((error.clone(), Instant::now() + pause));
        })?;
        (attempts.failed, attempts.last, attempts.since) = (0, None, Some(Instant::now()));
        let driven = link.clone();
        tokio::spawn(async move {
            let _guard = LossGuard(&driven);
            let _shown = show(&driven, below);
            let metrics = ConnectionMetrics::open(true);
            let outcome = driven.drive(&mut frames, |_, _| {}).await;
            metrics.end(&outcome);
            driven.end(&mut frames, outcome, limit).await;
        });
        let old = self.lock_current().replace(link.clone());
        if let Some(old) = old {
            // Its calls may go on.
            old.go_away();
        }
        Ok(link)
    }
}

/// Shortens a pause by up to a half, so that clients that have lost one server do not come back together.
fn jitter(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    pause.mul_f64(1.0 - (RandomState::new().hash_one(0) % 512) as f64 / 1024.0)
}

/// The future of an answer.
pub type ResponseFuture = BoxFuture<'static, Result<Response<Incoming>, Error>>;

impl<B> Service<Request<B>> for Channel
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = ResponseFuture;

    /// Is ready at once: a call waits by itself for a connection, and while the peer takes no more.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    /// Sends a request, and resolves with the head of its answer.
    ///
    /// The time of the field `grpc-timeout` limits the call at both ends. If the field `content-type` says that it is a
    /// call of gRPC, an error is an answer with a status.
    ///
    /// # Cancel safety
    /// Dropping the future, or the body of the answer before its end, cancels the call.
    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let shared = self.shared.clone();
        Box::pin(async move {
            let is_grpc = grpc::is_grpc(request.headers());
            let mut observation = Observation::of_client(&request, is_grpc, &shared.origin);
            match call(&shared, request, is_grpc, &mut observation).await {
                Err(error) => {
                    observation.fail_with(&error);
                    if is_grpc { Ok(status(&error)) } else { Err(error) }
                }
                outcome => outcome,
            }
        })
    }
}

/// Makes a call.
async fn call<B>(
    shared: &Arc<Shared>,
    request: Request<B>,
    is_grpc: bool,
    observation: &mut Observation,
) -> Result<Response<Incoming>, Error>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let limit = grpc::timeout(request.headers()).and_then(|limit| Instant::now().checked_add(limit));
    let (answer, call) = match limit {
        None => begin(shared, request).await?,
        Some(limit) => timeout_at(limit, begin(shared, request)).await.map_err(|_| Error::Deadline)??,
    };
    let (head, body) = match answer {
        Answer::Whole(head, bytes, trailers) => {
            observation.head(&head);
            trailers.iter().for_each(|trailers| observation.trailers(trailers));
            observation.complete();
            (head, Incoming::whole(bytes, trailers))
        }
        Answer::Begun(head) => {
            observation.head(&head);
            let deadline = limit.map(|limit| Box::pin(sleep_until(limit)));
            (head, Incoming::of_answer(call, is_grpc, deadline, std::mem::take(observation)))
        }
    };
    Ok(Response::from_parts(*head, body))
}

/// Sends a request and waits for the head of its answer.
async fn begin<B>(shared: &Arc<Shared>, request: Request<B>) -> Result<(Answer, CallHandle), Error>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let mut body = Box::pin(body);
    // What is there of the request goes with its head: mostly all of it.
    let mut message = Message { head: None, held: Bytes::new(), next: None };
    for _ in 0..PARTS {
        match poll_part(body.as_mut(), &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Part::Data(data))) if message.held.is_empty() => message.held = data,
            Poll::Ready(Ok(part)) => message.next = Some(part),
            Poll::Ready(Err(error)) => return Err(Error::Body(Arc::new(error))),
            Poll::Pending => break,
        }
        if message.next.is_some() {
            break;
        }
    }
    let (link, mut call, is_whole) = loop {
        let link = shared.link().await?;
        // The connection may end meanwhile.
        let Ok(permit) = link.permits.clone().acquire_owned().await else { continue };
        link.room().await;
        message.head = Some(link.encode(&parts.headers, |origin, out| put_request(&parts, origin, out))?);
        if let Some((call, is_whole)) = link.open(permit, &mut message)? {
            break (link, call, is_whole);
        }
    };
    if !is_whole {
        // The answer may be there before the end of the request.
        let failure = Arc::default();
        call.set_failure(Arc::clone(&failure));
        let dropped = Some(Error::Body(Arc::new("it was dropped before its end".into())));
        let sender = Sender { link, id: call.id(), error: dropped, failure };
        tokio::spawn(async move {
            let mut sender = sender;
            let outcome = sender.link.send_message(sender.id, &mut message, body.as_mut()).await;
            sender.error = match outcome {
                Ok(()) | Err(Unsent::Gone(_)) => None,
                Err(unsent) => {
                    let error = Error::from(unsent);
                    tracing::debug!(call = sender.id, error = error.line(), "request not sent to its end");
                    Some(error)
                }
            };
        });
    }
    let answer = call.answer().await?;
    Ok((answer, call))
}

/// The sender of the rest of a request. If its body fails, or panics, the call ends.
struct Sender {
    link: Arc<Link>,
    id: u32,
    /// Why the body was not sent, if it is needed.
    error: Option<Error>,
    /// The place for it, for the caller.
    failure: Arc<OnceLock<Error>>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(error) = self.error.take() {
            self.link.fail_call(self.id, error, &self.failure);
        }
    }
}

/// Returns an answer that tells a caller of gRPC of an error.
fn status(error: &Error) -> Response<Incoming> {
    let mut response = Response::new(Incoming::whole(None::<Bytes>, None));
    *response.headers_mut() = error.grpc_fields();
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    response
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("origin", &self.shared.origin).finish_non_exhaustive()
    }
}
