//! The span of a call, and its metrics.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderMap, Method, Request, StatusCode, Uri, request, response};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tracing::field::{Empty, display};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Span, debug_span};

use crate::connected::ConnectionInfo;
use crate::error::Error;
use crate::grpc;
use crate::metrics::CallMetrics;
use crate::wire::Origin;

/// The statuses of gRPC that are errors of the server: the others are those of its caller.
const SERVER_ERRORS: [u32; 6] = [2, 4, 12, 13, 14, 15];
/// The statuses of a call without one, of a call that was dropped, and of a service that has panicked.
const UNKNOWN: u32 = 2;
const CANCELLED: u32 = 1;
const INTERNAL: u32 = 13;

/// An end of a call, and its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) is_client: bool,
    pub(crate) is_grpc: bool,
}

/// What observes a call: its span and its metrics. Its drop ends both. Without the feature `metrics` and a subscriber for the span
/// there is nothing, which costs the hot path a branch at each step.
#[derive(Default)]
pub(crate) struct Observation(Option<Box<Observed>>);

struct Observed {
    kind: Kind,
    span: Span,
    metrics: CallMetrics,
    /// The status of HTTP.
    head: Option<StatusCode>,
    /// The status of gRPC.
    status: Option<u32>,
    end: End,
}

/// The way in which a call has ended.
enum End {
    /// It is dropped before its end.
    Dropped,
    Answered,
    /// There is no whole answer. gRPC has this status for it.
    Failed(u32, &'static str),
}

impl Observation {
    /// Begins to observe a call at the client. `origin` is what its connection has in front of the path.
    pub(crate) fn of_client<B>(request: &Request<B>, is_grpc: bool, origin: &Origin) -> Self {
        let authority = || request.uri().authority().or(origin.authority.as_ref());
        Self::begin(Kind { is_client: true, is_grpc }, request.method(), request.uri(), authority, || None)
    }

    /// Begins to observe a call at the server.
    pub(crate) fn of_server(head: &request::Parts, is_grpc: bool) -> Self {
        let authority = || head.uri.authority();
        let peer = || head.extensions.get::<ConnectionInfo>()?.peer_addr;
        Self::begin(Kind { is_client: false, is_grpc }, &head.method, &head.uri, authority, peer)
    }

    #[inline]
    fn begin<'a>(
        kind: Kind,
        method: &Method,
        uri: &Uri,
        authority: impl Fn() -> Option<&'a http::uri::Authority>,
        peer: impl Fn() -> Option<SocketAddr>,
    ) -> Self {
        if !CallMetrics::IS_ON && LevelFilter::current() < Level::DEBUG {
            return Self(None);
        }
        let span = span(kind, method, uri, authority(), peer());
        if !CallMetrics::IS_ON && span.is_disabled() {
            return Self(None);
        }
        let metrics = CallMetrics::begin(kind, method, uri);
        Self(Some(Box::new(Observed { kind, span, metrics, head: None, status: None, end: End::Dropped })))
    }

    /// Returns whether a call is observed, and has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the span, for what belongs to the call.
    pub(crate) fn span(&self) -> Span {
        self.0.as_ref().map_or_else(Span::none, |observed| observed.span.clone())
    }

    /// Takes note of the head of the answer.
    pub(crate) fn head(&mut self, head: &response::Parts) {
        if let Some(observed) = &mut self.0 {
            observed.head = Some(head.status);
            observed.fields(&head.headers);
        }
    }

    /// Takes note of the trailers.
    pub(crate) fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(observed) = &mut self.0 {
            observed.fields(trailers);
        }
    }

    /// Ends with the whole answer.
    pub(crate) fn complete(&mut self) {
        if let Some(mut observed) = self.0.take() {
            observed.end = End::Answered;
        }
    }

    /// Ends without a whole answer. `status` is that of gRPC.
    pub(crate) fn fail(&mut self, status: u32, error: &'static str) {
        if let Some(mut observed) = self.0.take() {
            observed.end = End::Failed(status, error);
        }
    }

    /// Ends with an error.
    pub(crate) fn fail_with(&mut self, error: &Error) {
        self.fail(error.grpc_status(), error.kind());
    }

    /// Returns a body of an answer whose trailers are taken note of.
    pub(crate) fn watch<B>(&mut self, body: B) -> Watched<'_, B> {
        Watched { body, observation: self }
    }
}

/// The target of the spans, so that a filter can name them.
const TARGET: &str = "tokio_rdma_rpc::call";

/// Creates the span of a call, with the names of OpenTelemetry.
fn span(
    kind: Kind,
    method: &Method,
    uri: &Uri,
    authority: Option<&http::uri::Authority>,
    peer: Option<SocketAddr>,
) -> Span {
    let (address, port) = (authority.map(|name| name.host()), authority.and_then(|name| name.port_u16()));
    let (peer, peer_port) = (peer.map(|peer| display(peer.ip())), peer.map(|peer| peer.port()));
    let end = if kind.is_client { "client" } else { "server" };
    if kind.is_grpc {
        let method = rpc_method(uri);
        debug_span!(
            target: TARGET,
            "call",
            otel.name = method,
            otel.kind = end,
            otel.status_code = Empty,
            rpc.system.name = "grpc",
            rpc.method = method,
            rpc.status_code = Empty,
            server.address = address,
            server.port = port,
            network.peer.address = peer,
            network.peer.port = peer_port,
            "error.type" = Empty,
        )
    } else {
        debug_span!(
            target: TARGET,
            "call",
            otel.name = method_name(method),
            otel.kind = end,
            otel.status_code = Empty,
            http.request.method = method_name(method),
            url.path = uri.path(),
            http.response.status_code = Empty,
            server.address = address,
            server.port = port,
            network.peer.address = peer,
            network.peer.port = peer_port,
            "error.type" = Empty,
        )
    }
}

/// Returns the method of gRPC in a URI: `package.Service/Method`.
pub(crate) fn rpc_method(uri: &Uri) -> &str {
    uri.path().trim_start_matches('/')
}

/// Returns the name of a method of HTTP that OpenTelemetry knows.
pub(crate) fn method_name(method: &Method) -> &str {
    const KNOWN: [Method; 9] = [
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
        Method::PATCH,
        Method::CONNECT,
        Method::TRACE,
    ];
    if KNOWN.contains(method) { method.as_str() } else { "_OTHER" }
}

/// Returns the text of a status of HTTP, if it is a known one: a peer could make up others without end.
fn status_name(status: &StatusCode) -> &str {
    if status.canonical_reason().is_some() { status.as_str() } else { "_OTHER" }
}

impl Observed {
    /// Takes the status of gRPC from a head or trailers.
    fn fields(&mut self, fields: &HeaderMap) {
        if self.kind.is_grpc {
            self.status = grpc::status_of(fields).or(self.status);
        }
    }

    /// Returns whether it is dropped by a panic of the service.
    fn is_panic(&self) -> bool {
        !self.kind.is_client && std::thread::panicking()
    }

    /// Returns the status of gRPC, and whether it is an error at this end.
    fn grpc_outcome(&self) -> (u32, bool) {
        let status = match self.end {
            End::Dropped if self.is_panic() => INTERNAL,
            End::Dropped => CANCELLED,
            End::Answered => self.status.unwrap_or(UNKNOWN),
            End::Failed(status, _) => status,
        };
        (status, if self.kind.is_client { status != 0 } else { SERVER_ERRORS.contains(&status) })
    }

    /// Returns the class of the error of a call of HTTP.
    fn http_error(&self) -> Option<&str> {
        match self.end {
            End::Dropped if self.is_panic() => Some("internal"),
            End::Dropped => Some("cancelled"),
            End::Failed(_, error) => Some(error),
            End::Answered => {
                let is_error = |status: &&StatusCode| {
                    status.is_server_error() || self.kind.is_client && status.is_client_error()
                };
                self.head.as_ref().filter(is_error).map(status_name)
            }
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let (status, error) = if self.kind.is_grpc {
            let (status, is_error) = self.grpc_outcome();
            let status = grpc::status_name(status);
            self.span.record("rpc.status_code", status);
            (Some(status), Some(status).filter(|_| is_error))
        } else {
            if let Some(status) = self.head {
                self.span.record("http.response.status_code", status.as_u16());
            }
            (self.head.as_ref().map(status_name), self.http_error())
        };
        if let Some(error) = error {
            self.span.record("error.type", error);
            self.span.record("otel.status_code", "ERROR");
        }
        self.metrics.end(self.kind, status, error);
    }
}

/// A body of an answer whose trailers are taken note of.
#[pin_project]
pub(crate) struct Watched<'a, B> {
    #[pin]
    body: B,
    observation: &'a mut Observation,
}

impl<B: Body> Body for Watched<'_, B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            this.observation.trailers(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
