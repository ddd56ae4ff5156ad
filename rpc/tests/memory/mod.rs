//! A server and its channels over streams in memory.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::io::DuplexStream;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_rdma_rpc::{BoxError, Channel, Config, Incoming, serve};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// A network with one server, which runs or does not.
#[derive(Clone, Default)]
pub(crate) struct Network {
    streams: Arc<Mutex<Option<UnboundedSender<io::Result<DuplexStream>>>>>,
}

impl Network {
    /// Runs the server, until the task is aborted.
    pub(crate) fn serve(&self) -> JoinHandle<io::Result<()>> {
        let (sender, mut accepted) = unbounded_channel();
        *self.streams.lock().expect("no panic") = Some(sender);
        tokio::spawn(serve(stream::poll_fn(move |cx| accepted.poll_recv(cx)), tower::service_fn(answer)))
    }

    /// Connects to the server.
    pub(crate) fn connect(&self) -> io::Result<DuplexStream> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let streams = self.streams.lock().expect("no panic");
        let accepted = streams.as_ref().is_some_and(|streams| streams.send(Ok(far)).is_ok());
        if accepted { Ok(near) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    pub(crate) fn channel(&self) -> Channel {
        let network = self.clone();
        Channel::with_connector("server:7000", false, Config::default(), move || {
            let stream = network.connect();
            async { stream }
        })
    }
}

type Answer = UnsyncBoxBody<Bytes, BoxError>;

fn bytes(bytes: Bytes) -> Answer {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body that goes on for ever behind its first byte.
fn endless() -> Answer {
    let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"1")))]);
    StreamBody::new(first.chain(stream::pending())).boxed_unsync()
}

/// Answers by the last part of the path.
pub(crate) async fn answer(request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let (head, body) = request.into_parts();
    tracing::info!("in the service");
    let kind = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let is_grpc = head.headers.get(CONTENT_TYPE) == Some(&GRPC);
    let mut response = Response::new(bytes(Bytes::new()));
    let mut status =
        |code: &'static str| response.headers_mut().insert("grpc-status", HeaderValue::from_static(code));
    match kind.as_str() {
        "Never" => pending().await,
        "Panic" => panic!("as the request has it"),
        "Late" => sleep(Duration::from_secs(3)).await,
        _ => {}
    }
    match kind.as_str() {
        "Endless" => *response.body_mut() = endless(),
        "Broken" if !is_grpc => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
        "Missing" if !is_grpc => *response.status_mut() = StatusCode::NOT_FOUND,
        // No registered one.
        "Odd" => *response.status_mut() = StatusCode::from_u16(599).expect("a status"),
        "Broken" => drop(status("13")),
        "Missing" => drop(status("5")),
        "Echo" | "Late" => {
            let trailers = HeaderMap::from_iter([(
                "grpc-status".parse().expect("a name"),
                HeaderValue::from_static("0"),
            )]);
            let whole = body.collect().await.expect("a request").to_bytes();
            let end = std::future::ready(is_grpc.then_some(Ok(trailers)));
            *response.body_mut() = bytes(whole).with_trailers(end).boxed_unsync();
        }
        _ => drop(status("12")),
    }
    if is_grpc {
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
    }
    Ok(response)
}

/// Returns a call of gRPC with this many bytes.
pub(crate) fn grpc(path: &str, length: usize) -> Request<Full<Bytes>> {
    let request = Request::post(path).header(CONTENT_TYPE, GRPC);
    request.body(Full::new(vec![7; length].into())).expect("a request")
}

/// Lets the tasks of the server run to their ends.
pub(crate) async fn settle() {
    sleep(Duration::from_millis(1)).await;
}
