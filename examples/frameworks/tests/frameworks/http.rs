//! HTTP over streams: an axum server, and hyper's client through the connector.
//!
//! Runs on: rxe

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::authority::{Authority, NAME};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use bytes::Bytes;
use common::device::nobody;
use common::stream::listening;
use common::*;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Barrier, Notify, oneshot};
use tokio::task::JoinHandle;
use tokio_rdma::error::StreamError;
use tokio_rdma::io::{ConnectionInfo, HttpConnector, RdmaListener, RdmaStream, TlsListener};
use tokio_rdma::{RdmaConnector, StreamConfig};
use tokio_rustls::rustls::pki_types::ServerName;

const MIB: usize = 1 << 20;

type Client = Hyper<HttpConnector, BoxBody<Bytes, Infallible>>;

/// A listener as axum has it, which counts.
struct Counting {
    listener: RdmaListener,
    accepted: Arc<AtomicUsize>,
}

impl axum::serve::Listener for Counting {
    type Io = RdmaStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (RdmaStream, SocketAddr) {
        let accepted = self.listener.accept().await.expect("accepted");
        self.accepted.fetch_add(1, Ordering::Relaxed);
        accepted
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A server, and how to stop it.
struct Server {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Server {
    fn start(router: Router) -> Self {
        let listener = listening(&adapter(), &StreamConfig::default());
        let (address, accepted) = (listener.local_addr().expect("an address"), Arc::new(AtomicUsize::new(0)));
        let (shutdown, told) = oneshot::channel::<()>();
        let listener = Counting { listener, accepted: accepted.clone() };
        let told = async move { told.await.unwrap_or(()) };
        let serve = axum::serve(listener, router).with_graceful_shutdown(told);
        Self { address, accepted, shutdown, served: tokio::spawn(serve.into_future()) }
    }

    fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// How many connections it has had.
    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Lets it finish what it has begun, which must not take for ever.
    async fn stop(self) {
        self.shutdown.send(()).expect("it serves");
        within(self.served).await.expect("no panic").expect("served");
    }
}

fn connector() -> HttpConnector {
    RdmaConnector::new().provider(Device::under_test().provider()).http()
}

fn client(version: Version) -> Client {
    Hyper::builder(TokioExecutor::new()).http2_only(version == Version::HTTP_2).build(connector())
}

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

fn empty() -> BoxBody<Bytes, Infallible> {
    Empty::new().boxed()
}

async fn ask(client: &Client, uri: String, body: Option<BoxBody<Bytes, Infallible>>) -> Response<Incoming> {
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = Request::builder().method(method).uri(uri).body(body.unwrap_or_else(empty));
    let response = within(client.request(request.expect("a request"))).await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    response
}

async fn whole(response: Response<Incoming>) -> Bytes {
    within(response.into_body().collect()).await.expect("a body").to_bytes()
}

/// Bytes that tell where they are.
fn pattern(length: usize) -> Bytes {
    common::stream::pattern(0, length).into()
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Sends back what comes, as it comes.
fn echo() -> Router {
    Router::new()
        .route("/echo", post(async |body: Body| body))
        .layer(axum::extract::DefaultBodyLimit::disable())
}

/// A body that is sent as it is made.
fn by_and_by() -> (UnboundedSender<Bytes>, BoxBody<Bytes, Infallible>) {
    let (sender, receiver) = unbounded();
    let frames = receiver.map(|bytes| Ok(Frame::data(bytes)));
    (sender, BodyExt::boxed(StreamBody::new(frames)))
}

#[tokio::test]
async fn requests_one_after_the_other_share_a_connection() {
    for version in VERSIONS {
        let (server, client) = (Server::start(hello()), client(version));
        let mut connections = Vec::new();
        for _ in 0..5 {
            let response = ask(&client, server.uri("/"), None).await;
            assert_eq!(response.version(), version);
            let info = response.extensions().get::<ConnectionInfo>().cloned().expect("the connector's word");
            assert_eq!(info.peer_addr, server.address);
            connections.push(info.connection);
            assert_eq!(&whole(response).await[..], b"hello");
        }
        // The client may have begun another one meanwhile: what counts is the one that was used.
        assert!(connections.iter().all(|connection| *connection == connections[0]), "{connections:?}");
        drop(client);
        server.stop().await;
    }
}

/// The text with which a handler or a service names its connection.
fn text(info: &ConnectionInfo) -> String {
    let ConnectionInfo { provider, adapter, connection, local_addr, peer_addr, .. } = info;
    format!("{provider} {adapter} {connection} {local_addr} {peer_addr}")
}

/// Asks, and compares with what the connector says of the same connection.
async fn connection_is_known(address: SocketAddr) {
    let client = client(Version::HTTP_11);
    let response = ask(&client, format!("http://{address}/"), None).await;
    let info = response.extensions().get::<ConnectionInfo>().cloned().expect("the connector's word");
    let own = adapter().info();
    assert_eq!((info.provider, &*info.adapter), (own.provider, &*own.name));
    let answer = String::from_utf8(whole(response).await.to_vec()).expect("text");
    let words: Vec<_> = answer.split(' ').collect();
    let [provider, adapter, connection, local, peer] = words[..] else { panic!("{answer}") };
    assert_eq!((provider, adapter), (&*info.provider.to_string(), &*info.adapter));
    assert_ne!(connection, info.connection.to_string(), "each end has a number");
    assert_eq!((local, peer), (&*info.peer_addr.to_string(), &*info.local_addr.to_string()));
}

// IO-13: axum serves the listener, and a handler has the connection.
#[tokio::test]
async fn axum_serves_a_listener() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let address = listener.local_addr().expect("bound");
    let handler = async |ConnectInfo(info): ConnectInfo<ConnectionInfo>| text(&info);
    let router = Router::new().route("/", get(handler));
    let service = router.into_make_service_with_connect_info::<ConnectionInfo>();
    let (shutdown, told) = oneshot::channel::<()>();
    let serve = axum::serve(listener, service).with_graceful_shutdown(async { told.await.unwrap_or(()) });
    let served = tokio::spawn(serve.into_future());
    connection_is_known(address).await;
    shutdown.send(()).expect("it serves");
    within(served).await.expect("no panic").expect("served");
}

// IO-13: the same with TLS.
#[tokio::test]
async fn axum_serves_a_listener_with_tls() {
    let authority = Authority::new();
    let listener = TlsListener::new(listening(&adapter(), &StreamConfig::default()), authority.server());
    let address = listener.local_addr().expect("bound");
    let handler = async |ConnectInfo(info): ConnectInfo<ConnectionInfo>| text(&info);
    let router = Router::new().route("/", get(handler));
    let service = router.into_make_service_with_connect_info::<ConnectionInfo>();
    let served = tokio::spawn(axum::serve(listener, service).into_future());
    let stream = within(RdmaStream::connect_on(&adapter(), address, &StreamConfig::default())).await;
    let stream = stream.expect("connected");
    let own = stream.local_addr().expect("connected");
    let name = ServerName::try_from(NAME).expect("a name");
    let mut stream = within(authority.good().connect(name, stream)).await.expect("secured");
    let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    within(stream.write_all(request)).await.expect("written");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.expect("read");
    assert!(answer.ends_with(&format!(" {address} {own}")), "{answer}");
    served.abort();
}

// IO-13: a server of hyper inserts the connection of its stream into each request, and a response has that of the client.
#[tokio::test]
async fn hyper_serves_a_stream() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("accepted");
        let info = stream.info();
        let answer = async |request: Request<Incoming>| {
            let info = request.extensions().get::<ConnectionInfo>().expect("inserted");
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(text(info))))
        };
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(info.clone());
            answer(request)
        });
        let serve =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let _ = serve.await;
    });
    connection_is_known(address).await;
    within(server).await.expect("no panic");
}

#[tokio::test]
async fn client_without_pool_connects_for_each_request() {
    let server = Server::start(hello());
    let client: Client = Hyper::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector());
    for _ in 0..3 {
        assert_eq!(&whole(ask(&client, server.uri("/"), None).await).await[..], b"hello");
    }
    assert_eq!(server.accepted(), 3);
    server.stop().await;
}

// IO-14: hyper, with both versions of HTTP.
#[tokio::test]
async fn bodies_flow_both_ways_at_once() {
    for version in VERSIONS {
        let (server, client) = (Server::start(echo()), client(version));
        let (sender, body) = by_and_by();
        let mut response = ask(&client, server.uri("/echo"), Some(body)).await;
        if version == Version::HTTP_11 {
            assert_eq!(response.headers()["transfer-encoding"], "chunked");
        }
        // The next piece is sent when the one before it has come back.
        for length in [1, 1000, 100_000] {
            let sent = pattern(length);
            sender.unbounded_send(sent.clone()).expect("the body is being sent");
            let mut received = Vec::new();
            while received.len() < length {
                let frame = within(response.frame()).await.expect("a frame").expect("no error");
                received.extend_from_slice(frame.data_ref().expect("data"));
            }
            assert!(received == sent, "{length} bytes over {version:?}");
        }
        drop(sender);
        assert!(whole(response).await.is_empty(), "the end");
        drop(client);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_body_comes_back_as_it_was() {
    let sent = pattern(often(16, 4) * MIB);
    for version in VERSIONS {
        let (server, client) = (Server::start(echo()), client(version));
        let response = ask(&client, server.uri("/echo"), Some(Full::new(sent.clone()).boxed())).await;
        assert!(whole(response).await == sent, "{version:?}");
        drop(client);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_http2_requests_share_a_connection() {
    let many = often(100, 16);
    // Nobody is answered before all have asked.
    let all = Arc::new(Barrier::new(many));
    let router = Router::new().route(
        "/{number}",
        post(async move |number: axum::extract::Path<usize>, body: Bytes| {
            all.wait().await;
            format!("{} {}", number.0, body.len())
        }),
    );
    let (server, client) = (Server::start(router), client(Version::HTTP_2));
    // So that none of them opens a connection of its own.
    let first = Request::get(server.uri("/none")).body(empty()).expect("a request");
    assert_eq!(within(client.request(first)).await.expect("an answer").status(), 405);
    let asked = (0..many).map(|number| {
        let (client, uri) = (client.clone(), server.uri(&format!("/{number}")));
        async move {
            let body = Full::new(pattern(number * 100)).boxed();
            (number, whole(ask(&client, uri, Some(body)).await).await)
        }
    });
    let answers: Vec<_> = within(asked.collect::<FuturesUnordered<_>>().collect()).await;
    assert_eq!(answers.len(), many);
    for (number, answer) in answers {
        assert_eq!(answer, format!("{number} {}", number * 100));
    }
    assert_eq!(server.accepted(), 1);
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_drops_a_response_stops_it() {
    for version in VERSIONS {
        let (gone, told) = oneshot::channel::<()>();
        let gone = Arc::new(std::sync::Mutex::new(Some(gone)));
        let endless = async move || {
            // Dropped with the body, and so is the sender.
            let gone = gone.lock().expect("no panic").take();
            Body::from_stream(stream::repeat_with(move || {
                let _ = &gone;
                Ok::<_, Infallible>(pattern(10_000))
            }))
        };
        let router = hello().route("/endless", get(endless));
        let (server, client) = (Server::start(router), client(version));
        let mut response = ask(&client, server.uri("/endless"), None).await;
        let mut received = 0;
        while received < MIB {
            let frame = within(response.frame()).await.expect("a frame").expect("no error");
            received += frame.data_ref().expect("data").len();
        }
        drop(response);
        within(told).await.expect_err("the server has dropped the body");
        // Of HTTP/1.1 that was the end of the connection, of HTTP/2 of a stream in it.
        assert_eq!(&whole(ask(&client, server.uri("/"), None).await).await[..], b"hello");
        assert_eq!(server.accepted(), if version == Version::HTTP_2 { 1 } else { 2 }, "{version:?}");
        drop(client);
        server.stop().await;
    }
}

#[tokio::test]
async fn shutdown_finishes_requests_and_refuses_connections() {
    for version in VERSIONS {
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let handler = {
            let (begun, go_on) = (begun.clone(), go_on.clone());
            async move || {
                begun.notify_one();
                go_on.notified().await;
                "late"
            }
        };
        let server = Server::start(Router::new().route("/", get(handler)));
        let (client, uri, address) = (client(version), server.uri("/"), server.address);
        let request = tokio::spawn(async move { whole(ask(&client, uri, None).await).await });
        within(begun.notified()).await;
        let mut stopped = Box::pin(server.stop());
        assert!(futures::poll!(&mut stopped).is_pending(), "a request is not answered yet");
        // The listener goes away with the signal, and nobody new gets in.
        let refused = async {
            while RdmaStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        within(refused).await;
        assert!(futures::poll!(&mut stopped).is_pending(), "still not");
        go_on.notify_one();
        assert_eq!(&within(request).await.expect("no panic")[..], b"late");
        stopped.await;
    }
}

#[tokio::test]
async fn absent_server_is_a_connect_error() {
    let uri = format!("http://{}/", nobody(v4()));
    let request = Request::get(uri).body(empty()).expect("a request");
    let error = within(client(Version::HTTP_11).request(request)).await.expect_err("nobody");
    let error = of_the_stream(&error);
    assert!(matches!(error, StreamError::Connect(_)), "{error:?}");
}

#[tokio::test]
async fn https_is_rejected_unless_caller_allows_it() {
    let server = Server::start(hello());
    let uri = format!("https://{}/", server.address);
    let request = Request::get(&uri).body(empty()).expect("a request");
    let error = within(client(Version::HTTP_11).request(request)).await.expect_err("nothing secures it");
    let error = of_the_stream(&error);
    assert!(matches!(error, StreamError::Destination(why) if why.contains("https")), "{error:?}");
    assert_eq!(server.accepted(), 0);
    // If the caller says so, it is a stream as any other: this caller lies, and no TLS is spoken.
    let client: Client = Hyper::builder(TokioExecutor::new()).build(connector().enforce_http(false));
    assert_eq!(&whole(ask(&client, uri, None).await).await[..], b"hello");
    drop(client);
    server.stop().await;
}

/// The connector's error for an attempt that failed.
fn of_the_stream(error: &hyper_util::client::legacy::Error) -> &StreamError {
    assert!(error.is_connect(), "{error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source.filter(|error| !error.is::<StreamError>()) {
        source = error.source();
    }
    source.and_then(|error| error.downcast_ref()).expect("the error of the stream")
}
