//! A service over HTTP, its client, and failures of each kind that is counted.

use std::error::Error;

use axum::extract::ConnectInfo;
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Router, serve};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::AsyncReadExt;
use tokio_rdma::io::ConnectionInfo;
use tokio_rdma::{RdmaConnector, RdmaListener, RdmaStream};
use tracing::{Instrument, Span, info, info_span};

use crate::trace_context::{TRACEPARENT, TraceContext};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The span of a call, on either side.
fn span(name: &'static str, context: TraceContext) -> Span {
    let trace = format!("{:032x}", context.trace);
    info_span!("call", name, trace, span = format!("{:016x}", context.span))
}

/// Sends the body back, with the context of the call: the server's span, in the trace of the client.
async fn echo(
    ConnectInfo(info): ConnectInfo<ConnectionInfo>,
    headers: HeaderMap,
    body: Bytes,
) -> ([(&'static str, String); 1], Bytes) {
    let sent = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()?.parse().ok());
    // A caller that sends none, or nonsense, begins a trace here.
    let context = sent.map_or_else(TraceContext::new, TraceContext::child);
    span("server", context).in_scope(
        || info!(connection = %info.connection, adapter = %info.adapter, bytes = body.len(), "served"),
    );
    ([(TRACEPARENT, context.to_string())], body)
}

/// Serves, and calls the service three times.
///
/// Returns the contexts of each call: that of the client, and that of the server's span.
pub(crate) async fn calls() -> Outcome<Vec<(TraceContext, TraceContext)>> {
    let listener = RdmaListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let routes = Router::new().route("/", post(echo));
    let service = routes.into_make_service_with_connect_info::<ConnectionInfo>();
    let server = tokio::spawn(serve(listener, service).into_future());
    let client = Client::builder(TokioExecutor::new()).build(RdmaConnector::new().http());
    let mut contexts = Vec::new();
    for length in [10, 100, 1000] {
        let context = TraceContext::new();
        let call = async {
            let request = Request::post(format!("http://{address}/"))
                .header(TRACEPARENT, context.to_string())
                .body(Full::new(Bytes::from(vec![7; length])))?;
            let response = client.request(request).await?;
            let answer =
                response.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok()?.parse().ok());
            let bytes = response.into_body().collect().await?.to_bytes().len();
            info!(bytes, "answered");
            Outcome::Ok(answer.ok_or("the answer has no context")?)
        };
        contexts.push((context, call.instrument(span("client", context)).await?));
    }
    server.abort();
    Ok(contexts)
}

/// A connect that is refused, and a stream whose peer aborts it.
pub(crate) async fn failures() -> Outcome<()> {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    if let Err(error) = RdmaStream::connect(nobody).await {
        info!(%nobody, %error, "as expected");
    }
    let listener = RdmaListener::bind("127.0.0.1:0").await?;
    let connect = RdmaStream::connect(listener.local_addr()?);
    let (connected, accepted) = tokio::try_join!(connect, listener.accept())?;
    connected.set_zero_linger()?;
    drop(connected);
    let mut aborted = accepted.0;
    if let Err(error) = aborted.read(&mut [0]).await {
        info!(%error, "as expected");
    }
    Ok(())
}
