//! Requests and answers, whole and in pieces.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio_rdma::{RdmaListener, RdmaStream};
use tokio_rdma_rpc::{BoxError, Channel, Config, Incoming, Server, divide, serve};
use tower_service::Service;

use super::{Serving, call, pattern};

/// Answers with the body of the request, as it comes.
async fn echo(request: Request<Incoming>) -> Response<Incoming> {
    Response::new(request.into_body())
}

/// Returns a body that is written through the sender.
fn piecewise()
-> (futures::channel::mpsc::Sender<Result<Frame<Bytes>, BoxError>>, impl Body<Data = Bytes, Error = BoxError>)
{
    let (sender, receiver) = futures::channel::mpsc::channel(0);
    (sender, StreamBody::new(receiver))
}

fn post<B>(body: B) -> Request<B> {
    Request::post("/").body(body).expect("a request")
}

// Also of more than a frame, and of more than both windows take.
#[tokio::test]
async fn bodies_of_all_lengths_come_back() {
    let server = Serving::with(Server::new(), echo).await;
    let channel = server.channel().await;
    for length in [0, 1, 4095, 4096, 16 << 10, 256 << 10, (1 << 20) + 1, 9 << 20] {
        let answer = call(&channel, post(Full::new(pattern(length)))).await.expect("answered");
        assert_eq!(answer.into_body(), pattern(length), "{length} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_windows_only_slow_down() {
    let config = Config::default().call_window(16 << 10).connection_window(16 << 10);
    let server = Serving::with(Server::new().config(config), echo).await;
    let channel = server.channel().await;
    let calls = (0..20).map(|number| {
        let channel = channel.clone();
        tokio::spawn(async move {
            let bytes = pattern(100_000 + number);
            let answer = call(&channel, post(Full::new(bytes.clone()))).await.expect("answered");
            assert_eq!(answer.into_body(), bytes);
        })
    });
    for outcome in futures::future::join_all(calls).await {
        outcome.expect("no panic");
    }
}

// Each piece arrives before the next is written: nothing waits to be joined.
#[tokio::test]
async fn pieces_go_back_and_forth() {
    let server = Serving::with(Server::new(), echo).await;
    let channel = server.channel().await;
    let (mut sender, body) = piecewise();
    let answer = common::within(channel.clone().call(post(body))).await.expect("answered");
    let mut body = answer.into_body();
    for number in 0..100_u8 {
        let piece = Bytes::from(vec![number; 1 + usize::from(number) * 100]);
        sender.send(Ok(Frame::data(piece.clone()))).await.expect("taken");
        let mut got = Vec::new();
        while got.len() < piece.len() {
            let frame = common::within(body.frame()).await.expect("a frame").expect("no error");
            got.extend_from_slice(frame.data_ref().expect("data"));
        }
        assert_eq!(got, piece);
    }
    let trailers =
        HeaderMap::from_iter([("x-sum".parse().expect("a name"), HeaderValue::from_static("100"))]);
    sender.send(Ok(Frame::trailers(trailers.clone()))).await.expect("taken");
    let frame = common::within(body.frame()).await.expect("a frame").expect("no error");
    assert_eq!(frame.into_trailers().expect("trailers"), trailers);
    assert!(common::within(body.frame()).await.is_none());
}

// The server sees what the client has sent, and the other way round.
#[tokio::test]
async fn heads_arrive_as_they_were() {
    let server = Serving::with(Server::new(), async |request: Request<Incoming>| {
        let (head, _) = request.into_parts();
        assert_eq!(
            (head.method, head.version),
            (Method::from_bytes(b"BREW").expect("a method"), Version::HTTP_2)
        );
        let mut response = Response::new(Full::new(Bytes::from(head.uri.to_string())));
        *response.headers_mut() = head.headers;
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let server = server.await;
    let channel = server.channel().await;
    let mut fields = HeaderMap::new();
    fields.append("x-own", HeaderValue::from_bytes(b"\xE2\x98\xBA").expect("a value"));
    fields.append("content-type", HeaderValue::from_static("application/grpc"));
    fields.append("content-type", HeaderValue::from_static("text/x-tea"));
    fields.append("x-own", HeaderValue::from_static(""));
    let uris = [
        ("/pot?size=2", format!("http://{}/pot?size=2", server.address)),
        ("https://tea/", "https://tea/".into()),
    ];
    for (uri, seen) in uris {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::from_bytes(b"BREW").expect("a method");
        *request.uri_mut() = Uri::from_static(uri);
        *request.headers_mut() = fields.clone();
        let answer = call(&channel, request).await.expect("answered");
        assert_eq!((answer.status(), answer.headers()), (StatusCode::IM_A_TEAPOT, &fields));
        assert_eq!(answer.into_body(), seen);
    }
}

#[tokio::test]
async fn axum_answers() {
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let router =
        Router::new().route("/hello", get(async || "hello")).route("/wait", get(std::future::pending::<()>));
    let server = tokio::spawn(serve(listener, router));
    let channel = common::within(Channel::connect(address)).await.expect("connected");
    for (path, status, body) in [("/hello", StatusCode::OK, "hello"), ("/none", StatusCode::NOT_FOUND, "")] {
        let request = Request::get(path).body(Empty::new()).expect("a request");
        let answer = call(&channel, request).await.expect("answered");
        assert_eq!((answer.status(), &answer.body()[..]), (status, body.as_bytes()), "{path}");
    }
    server.abort();
}

// HTTP/2 and messages behind one port: each server has its own peers, from their first byte on.
#[tokio::test]
async fn one_port_serves_both_protocols() {
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let (in_messages, mut others) = divide(listener);
    let router = Router::new().route("/hello", get(async || "hello"));
    let server = tokio::spawn(serve(in_messages, router));
    let mut other = common::within(RdmaStream::connect(address)).await.expect("connected");
    other.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("written");
    let channel = common::within(Channel::connect(address.to_string())).await.expect("connected");
    let request = Request::get("/hello").body(Empty::new()).expect("a request");
    assert_eq!(call(&channel, request).await.expect("answered").into_body(), "hello");
    let mut stream = common::within(others.next()).await.expect("the other").expect("no error");
    let mut first = [0; 24];
    common::within(stream.read_exact(&mut first)).await.expect("read");
    assert_eq!(&first, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    server.abort();
}

// A reader that is slow stops itself alone, and its peer has no more memory of this end than a window.
#[tokio::test]
async fn slow_reader_stops_only_itself() {
    let answer = async |request: Request<Incoming>| {
        let length = if request.uri().path() == "/long" { 20 << 20 } else { 5 };
        Response::new(Full::new(pattern(length)))
    };
    let server = Serving::with(Server::new(), answer).await;
    let channel = server.channel().await;
    let get = |path: &str| Request::get(path).body(Empty::<Bytes>::new()).expect("a request");
    let slow = common::within(channel.clone().call(get("/long"))).await.expect("answered");
    for _ in 0..100 {
        assert_eq!(call(&channel, get("/short")).await.expect("answered").into_body(), pattern(5));
    }
    let body = common::within(slow.into_body().collect()).await.expect("whole").to_bytes();
    assert_eq!(body, pattern(20 << 20));
}

/// Serves calls that stay with the service until they are let go, and counts those that are there.
async fn holding(most: u32) -> (Serving, Arc<Semaphore>, Arc<Semaphore>) {
    let (inside, let_go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let seen = (inside.clone(), let_go.clone());
    let answer = move |request: Request<Incoming>| {
        let (inside, let_go) = seen.clone();
        async move {
            inside.add_permits(1);
            let_go.acquire().await.expect("open").forget();
            Response::new(request.into_body())
        }
    };
    let server = Serving::with(Server::new().config(Config::default().max_calls(most)), answer).await;
    (server, inside, let_go)
}

/// Makes as many calls, each of which takes its own answer.
fn numbered(channel: &Channel, count: u32) -> FuturesUnordered<impl Future<Output = u32>> {
    let calls = (0..count).map(|number| {
        let channel = channel.clone();
        async move {
            let sent = Bytes::copy_from_slice(&number.to_be_bytes());
            let answer = call(&channel, post(Full::new(sent.clone()))).await.expect("answered");
            assert_eq!(answer.into_body(), sent);
            number
        }
    });
    calls.collect()
}

// What the server takes at once waits at the client, and comes later: the server would refuse it.
#[tokio::test]
async fn calls_beyond_the_limit_wait() {
    let (server, inside, let_go) = holding(3).await;
    let channel = server.channel().await;
    let mut calls = numbered(&channel, 10);
    for answered in 0..10 {
        let places = 3.min(10 - answered);
        tokio::select! {
            _ = calls.next() => panic!("an answer without leave"),
            permits = common::within(inside.acquire_many(places)) => drop(permits.expect("open")),
        }
        assert_eq!(inside.available_permits(), places as usize, "those that have a place, and no others");
        // The next one is told of the place by the answer.
        inside.forget_permits(1);
        let_go.add_permits(1);
        common::within(calls.next()).await.expect("answered");
    }
}

// All of them are with the service before the first one is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_at_once() {
    const CALLS: u32 = 10_000;
    let (server, inside, let_go) = holding(CALLS).await;
    let channel = server.channel().await;
    let mut calls = numbered(&channel, CALLS);
    tokio::select! {
        _ = calls.next() => panic!("an answer without leave"),
        permits = common::within(inside.acquire_many(CALLS)) => drop(permits.expect("open")),
    }
    let_go.add_permits(CALLS as usize);
    let mut answered: Vec<u32> = common::within(calls.collect()).await;
    answered.sort_unstable();
    assert!(answered.into_iter().eq(0..CALLS));
}
