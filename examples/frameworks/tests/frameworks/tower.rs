//! The connector as a service, under the layers of tower.
//!
//! Runs on: rxe

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use common::device::{nobody, silent};
use common::*;
use futures::future::BoxFuture;
use hyper::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rdma::error::{ConnectError, StreamError};
use tokio_rdma::io::{RdmaListener, RdmaStream};
use tokio_rdma::{RdmaConnector, Status, StreamConfig};
use tower::balance::p2c::Balance;
use tower::discover::ServiceList;
use tower::load::Constant;
use tower::reconnect::Reconnect;
use tower::retry::{Policy, Retry};
use tower::timeout::error::Elapsed;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

fn connector() -> RdmaConnector {
    RdmaConnector::new().provider(Device::under_test().provider())
}

fn uri(address: SocketAddr) -> Uri {
    format!("rdma://{address}").parse().expect("a URI")
}

fn listen(address: SocketAddr) -> RdmaListener {
    RdmaListener::bind_on(&adapter(), address, &StreamConfig::default()).expect("bound")
}

/// Answers each connection's first byte by its own, counts them, and closes those connections that get a zero.
struct Server {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    fn start(name: u8) -> Self {
        Self::start_at((v4(), 0).into(), name)
    }

    fn start_at(address: SocketAddr, name: u8) -> Self {
        let listener = listen(address);
        let (address, accepted) = (listener.local_addr().expect("an address"), Arc::new(AtomicUsize::new(0)));
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            let mut streams = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("accepted");
                count.fetch_add(1, Ordering::Relaxed);
                streams.spawn(async move {
                    while let Ok(asked) = stream.read_u8().await
                        && asked != 0
                    {
                        stream.write_u8(name).await.expect("written");
                        stream.flush().await.expect("flushed");
                    }
                });
            }
        });
        Self { address, accepted, task }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client of that server as a service: a byte for a byte. It breaks with its stream.
struct Asking {
    stream: Option<RdmaStream>,
    broken: Arc<std::sync::Mutex<Option<RdmaStream>>>,
}

impl Asking {
    fn new(stream: RdmaStream) -> Self {
        Self { stream: Some(stream), broken: Arc::default() }
    }
}

impl Service<u8> for Asking {
    type Response = u8;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<u8, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.stream.is_none() {
            self.stream = self.broken.lock().expect("no panic").take();
        }
        Poll::Ready(if self.stream.is_some() { Ok(()) } else { Err("broken".into()) })
    }

    fn call(&mut self, byte: u8) -> Self::Future {
        let (mut stream, back) = (self.stream.take().expect("it was ready"), self.broken.clone());
        Box::pin(async move {
            stream.write_u8(byte).await?;
            stream.flush().await?;
            let answer = stream.read_u8().await?;
            *back.lock().expect("no panic") = Some(stream);
            Ok(answer)
        })
    }
}

// The text names the host, which the URI has (ERR-09).
#[tokio::test]
async fn a_host_that_is_not_resolved_is_named() {
    let uri = "http://nosuch.invalid:7998".parse().expect("a URI");
    let error = within(connector().oneshot(uri)).await.expect_err("no such host");
    assert!(error.to_string().starts_with("cannot resolve the name: nosuch.invalid:7998: "), "{error}");
}

#[tokio::test]
async fn a_uri_is_connected_to() {
    let server = Server::start(7);
    let stream = within(connector().oneshot(uri(server.address))).await.expect("connected");
    assert_eq!(stream.peer_addr().expect("an address"), server.address);
    assert_eq!(within(Asking::new(stream).oneshot(1)).await.expect("an answer"), 7);
}

#[tokio::test]
async fn uri_with_ipv6_address_connects() {
    let listener = listen((v6(), 0).into());
    let address = listener.local_addr().expect("an address");
    let (connected, accepted) =
        within(async { tokio::join!(connector().oneshot(uri(address)), listener.accept()) }).await;
    let (connected, (accepted, peer)) = (connected.expect("connected"), accepted.expect("accepted"));
    assert_eq!(
        (connected.peer_addr().expect("an address"), connected.local_addr().expect("an address")),
        (accepted.local_addr().expect("an address"), peer)
    );
}

#[tokio::test]
async fn uri_error_names_destination_without_path() {
    // The text names the scheme and the host, and not the path, which may be secret.
    for (uri, place) in [("/path", "the URI of :// "), ("rdma://a.example/secret", "rdma://a.example")] {
        let error = within(connector().oneshot(uri.parse().expect("a URI"))).await.expect_err("nowhere");
        assert!(matches!(&error, StreamError::Destination(why) if why.contains(place)), "{uri}: {error:?}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        assert_eq!(error.status(), Status::INVALID_ADDRESS);
    }
}

#[tokio::test]
async fn a_timeout_ends_a_connect_that_nobody_answers() {
    let (_silent, address) = silent(v4());
    let mut impatient = ServiceBuilder::new().timeout(Duration::from_millis(200)).service(connector());
    let error = within(impatient.ready().await.expect("always").call(uri(address))).await.expect_err("late");
    assert!(error.is::<Elapsed>(), "{error:?}");
}

/// Tries again as long as it is refused, and sees to it that somebody listens in the end.
#[derive(Clone)]
struct UntilThere {
    refused: Arc<AtomicUsize>,
    server: Arc<std::sync::Mutex<Option<Server>>>,
}

impl Policy<Uri, RdmaStream, StreamError> for UntilThere {
    type Future = Ready<()>;

    fn retry(&mut self, uri: &mut Uri, result: &mut Result<RdmaStream, StreamError>) -> Option<Self::Future> {
        let Err(StreamError::Connect(error)) = result else { return None };
        assert!(error.is_retryable(), "{error:?}");
        if self.refused.fetch_add(1, Ordering::Relaxed) + 1 == 3 {
            let address = uri.authority().expect("of an address").as_str().parse().expect("an address");
            *self.server.lock().expect("no panic") = Some(Server::start_at(address, 9));
        }
        Some(ready(()))
    }

    fn clone_request(&mut self, uri: &Uri) -> Option<Uri> {
        Some(uri.clone())
    }
}

#[tokio::test]
async fn a_retry_connects_again_until_somebody_listens() {
    let address = nobody(v4());
    let policy = UntilThere { refused: Arc::default(), server: Arc::default() };
    let retry = Retry::new(policy.clone(), connector());
    let stream = within(retry.oneshot(uri(address))).await.expect("connected at last");
    assert_eq!(policy.refused.load(Ordering::Relaxed), 3);
    assert_eq!(within(Asking::new(stream).oneshot(1)).await.expect("an answer"), 9);
}

// IO-14: tower.
#[tokio::test]
async fn a_reconnect_replaces_a_connection_that_broke() {
    let server = Server::start(5);
    let make = connector().map_response(Asking::new);
    let mut service = Reconnect::new(make, uri(server.address));
    for _ in 0..3 {
        assert_eq!(within(service.ready()).await.expect("ready").call(1).await.expect("an answer"), 5);
    }
    assert_eq!(server.accepted(), 1);
    // The server closes this one.
    within(service.ready().await.expect("ready").call(0)).await.expect_err("no answer");
    assert_eq!(within(service.ready()).await.expect("ready").call(1).await.expect("an answer"), 5);
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn reconnect_reports_refusal_then_connects() {
    let address = nobody(v4());
    let make = connector().map_response(Asking::new);
    let mut service = Reconnect::new(make, uri(address));
    let error = within(service.ready().await.expect("ready").call(1)).await.expect_err("nobody");
    let error = error.downcast_ref::<StreamError>().expect("the connector's");
    assert!(matches!(error, StreamError::Connect(ConnectError::Refused { .. })), "{error:?}");
    let _server = Server::start_at(address, 6);
    assert_eq!(within(service.ready()).await.expect("ready").call(1).await.expect("an answer"), 6);
}

#[tokio::test]
async fn a_balance_spreads_over_servers() {
    let servers = [Server::start(1), Server::start(2)];
    // Each server has a connector that knows where it leads, and all have the same load.
    let services = servers.each_ref().map(|server| {
        let uri = uri(server.address);
        Constant::new(connector().map_request(move |()| uri.clone()), 1)
    });
    let mut balance = Balance::new(ServiceList::new::<()>(services));
    let mut streams = Vec::new();
    // Two choices by lot each time: that one server is never chosen has a probability of 2 to the power of -63.
    for _ in 0..often(64, 64) {
        streams.push(within(balance.ready().await.expect("ready").call(())).await.expect("connected"));
        if servers.iter().all(|server| server.accepted() > 0) {
            break;
        }
    }
    let mut reached = [false; 3];
    for stream in streams {
        let name = within(Asking::new(stream).oneshot(1)).await.expect("an answer");
        reached[usize::from(name)] = true;
    }
    assert_eq!(reached, [false, true, true]);
}
