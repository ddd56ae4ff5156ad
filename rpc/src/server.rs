//! The server: connections of a listener, and a service that answers their requests.

use std::future::{Future, pending};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::Instrument;

use crate::body::Incoming;
use crate::config::Config;
use crate::connected::{self, Connected};
use crate::error::Error;
use crate::grpc;
use crate::inspect::{Below, show};
use crate::link::{self, CallHandle, Lending, Link, LossGuard, Message, Unsent};
use crate::machine::Arrived;
use crate::metrics::{ConnectionMetrics, count_connect};
use crate::observation::Observation;
use crate::service::HttpService;
use crate::wire::{Code, put_response};

/// The status of gRPC for a service that has failed.
const INTERNAL: u32 = 13;

/// The pause behind an accept that has failed.
const PAUSE: Duration = Duration::from_millis(10);

/// Serves the connections of a listener with a service, until the listener ends: tonic's `Routes`, axum's `Router`, or
/// any other service of HTTP requests.
///
/// The extensions of each request contain a [`ConnectionInfo`](crate::ConnectionInfo), with the address and the certificates of
/// the peer.
///
/// # Errors
/// None so far: connections that fail are dropped, with an event of `tracing`.
///
/// # Cancel safety
/// Dropping the future ends all connections.
pub async fn serve<L, IO, E, S>(listener: L, service: S) -> io::Result<()>
where
    L: Stream<Item = Result<IO, E>>,
    IO: AsyncRead + AsyncWrite + Connected + Send + 'static,
    E: std::fmt::Display,
    S: HttpService,
{
    Server::new().serve(listener, service).await
}

/// A server with settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Server {
    config: Config,
}

impl Server {
    /// Returns a server with the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the limits of connections.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Serves like [`serve`].
    ///
    /// # Errors
    /// As there.
    pub async fn serve<L, IO, E, S>(self, listener: L, service: S) -> io::Result<()>
    where
        L: Stream<Item = Result<IO, E>>,
        IO: AsyncRead + AsyncWrite + Connected + Send + 'static,
        E: std::fmt::Display,
        S: HttpService,
    {
        self.serve_with_shutdown(listener, service, pending()).await
    }

    /// Serves until `signal` resolves. From then on no call is begun; the calls that have begun may go on for as long as
    /// [`Config::shutdown_timeout`] says.
    ///
    /// # Errors
    /// As [`serve`].
    ///
    /// # Cancel safety
    /// Dropping the future ends all connections.
    pub async fn serve_with_shutdown<L, IO, E, S>(
        self,
        listener: L,
        service: S,
        signal: impl Future<Output = ()>,
    ) -> io::Result<()>
    where
        L: Stream<Item = Result<IO, E>>,
        IO: AsyncRead + AsyncWrite + Connected + Send + 'static,
        E: std::fmt::Display,
        S: HttpService,
    {
        let (mut listener, mut signal) = (Box::pin(listener), pin!(signal));
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = &mut signal => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.next() => match accepted {
                    None => break,
                    Some(Ok(stream)) => {
                        let connection = connection(stream, service.clone(), self.config, stopped.clone());
                        connections.spawn(connection);
                    }
                    Some(Err(error)) => {
                        tracing::debug!(%error, "no connection accepted");
                        // It may come again at once, as long as there are no descriptors.
                        sleep(PAUSE).await;
                    }
                },
            }
        }
        // Peers are refused meanwhile.
        drop((stop, listener));
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(self.config.shutdown_timeout, all).await;
        Ok(())
    }
}

/// Serves one connection.
async fn connection<IO, S>(stream: IO, service: S, config: Config, mut stopped: watch::Receiver<()>)
where
    IO: AsyncRead + AsyncWrite + Connected + Send + 'static,
    S: HttpService,
{
    let extensions = connected::extensions(&stream);
    let lending = Lending::of(&stream).filter(|_| config.one_sided);
    let below = Below::of(&stream);
    let (reader, writer) = tokio::io::split(stream);
    let accepted = link::accept(Box::new(reader), Box::new(writer), config.settings, lending);
    let (link, mut frames) = match timeout(config.handshake_timeout, accepted).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            count_connect(false, false, false);
            return tracing::debug!(error = error.line(), "no connection");
        }
        Err(_) => {
            count_connect(false, false, false);
            return tracing::debug!("no hello in time");
        }
    };
    count_connect(false, false, true);
    let metrics = ConnectionMetrics::open(false);
    let _guard = LossGuard(&link);
    let _shown = show(&link, below);
    let calls = link.clone();
    let begin = move |mut arrived: Arrived, is_alone| {
        arrived.head.extensions.clone_from(&extensions);
        begin(&calls, service.clone(), arrived, is_alone);
    };
    let outcome = {
        let mut driven = pin!(link.drive(&mut frames, begin));
        tokio::select! {
            outcome = &mut driven => outcome,
            _ = stopped.changed() => {
                link.go_away();
                driven.await
            }
        }
    };
    metrics.end(&outcome);
    if let Err(error) = &outcome {
        tracing::debug!(error = error.line(), "connection ended");
    }
    link.end(&mut frames, outcome, config.handshake_timeout).await;
}

/// Begins to answer a request.
fn begin<S: HttpService>(link: &Arc<Link>, service: S, arrived: Arrived, is_alone: bool) {
    let Arrived { call: id, head, whole } = arrived;
    let call = CallHandle::of(link, id);
    let is_whole = whole.is_some();
    let body = match whole {
        Some((bytes, trailers)) => Incoming::whole(bytes, trailers),
        None => Incoming::of_request(CallHandle::of(link, id)),
    };
    // A reset may have come with it.
    if !link.is_wanted(id) {
        return;
    }
    let link = link.clone();
    let is_grpc = grpc::is_grpc(&head.headers);
    let observation = Observation::of_server(&head, is_grpc);
    let span = observation.span();
    let mut answer = Box::pin(answer(call, service, Request::from_parts(head, body), is_grpc, observation))
        .instrument(span);
    // Most answers are there at once. With several requests, the other threads of the runtime take part; and this task has to
    // read what a request lacks.
    if is_alone && is_whole {
        let mut cx = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut answer).poll(&mut cx))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => return,
            // It has been dropped, or is now: the call is reset.
            Err(_) => return,
        }
    }
    let task = tokio::spawn(answer);
    link.set_task(id, task.abort_handle());
}

/// Answers a request.
async fn answer<S: HttpService>(
    call: CallHandle,
    mut service: S,
    request: Request<Incoming>,
    is_grpc: bool,
    mut observation: Observation,
) {
    let limit = grpc::timeout(request.headers()).and_then(|limit| Instant::now().checked_add(limit));
    let mut message = Message { head: None, held: Bytes::new(), next: None };
    let mut has_answer = false;
    let _guard = PanicGuard(&call);
    let work = async {
        let failed = |error: S::Error| Unsent::Body(error.into());
        std::future::poll_fn(|cx| service.poll_ready(cx)).await.map_err(failed)?;
        let (head, body) = service.call(request).await.map_err(failed)?.into_parts();
        if head.status.is_informational() {
            return Err(Unsent::Body("an informational status is no answer".into()));
        }
        message.head = Some(call.link().encode(&head.headers, |_, out| put_response(&head, out))?);
        has_answer = true;
        observation.head(&head);
        call.link().send_message(call.id(), &mut message, pin!(observation.watch(pin!(body)))).await
    };
    let outcome = match limit {
        None => work.await,
        Some(limit) => timeout_at(limit, work).await.unwrap_or(Err(Unsent::Gone(Error::Deadline))),
    };
    let mut own_status = None;
    let (code, status, kind, text) = match outcome {
        Ok(()) => return observation.complete(),
        Err(Unsent::Body(error)) => {
            own_status = grpc::own_status(&*error);
            let status = own_status.as_ref().and_then(grpc::status_of).unwrap_or(INTERNAL);
            (Code::Internal, status, Code::Internal.name(), format!("the service has failed: {error}"))
        }
        Err(Unsent::TooLarge) => {
            let error = Error::TooLarge;
            (Code::TooLarge, error.grpc_status(), error.kind(), error.line())
        }
        Err(Unsent::Gone(error)) => {
            let code = if matches!(error, Error::Deadline) { Code::Deadline } else { Code::Internal };
            (code, error.grpc_status(), error.kind(), error.line())
        }
    };
    tracing::debug!(call = call.id(), error = text, "no whole answer");
    observation.fail(status, kind);
    if is_grpc {
        let has_begun = has_answer && message.head.is_none();
        let sent = match own_status {
            Some(fields) => send_status(&call, fields, has_begun).await,
            None => Err(Unsent::TooLarge),
        };
        if matches!(sent, Err(Unsent::TooLarge)) {
            // The call may have ended, which is why there is no answer.
            let _ = send_status(&call, grpc::status(status, &text), has_begun).await;
        }
    }
    call.reset(code);
}

/// Ends the call of a service that panics, also if a task of that service still reads the request.
struct PanicGuard<'a>(&'a CallHandle);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        // Does nothing behind the end of an answer.
        self.0.reset(Code::Internal);
    }
}

/// Ends an answer of gRPC with the fields of a status.
async fn send_status(call: &CallHandle, mut fields: HeaderMap, has_begun: bool) -> Result<(), Unsent> {
    if has_begun {
        let trailers = call.link().encode_trailers(&fields)?;
        return call.link().send(call.id(), &mut None, Bytes::new(), Some(Some(&trailers))).await;
    }
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut response = Response::new(());
    *response.headers_mut() = fields;
    let (head, ()) = response.into_parts();
    let head = call.link().encode(&head.headers, |_, out| put_response(&head, out))?;
    call.link().send(call.id(), &mut Some(head), Bytes::new(), Some(None)).await
}
