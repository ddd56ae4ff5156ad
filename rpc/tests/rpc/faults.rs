//! Faults: bodies that fail, answers that are cut, heads that are too large, and peers that want more than there is.

use std::future::{Future, pending, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaListener, RdmaStream, StreamConfig};
use tokio_rdma_rpc::{BoxError, Channel, Code, Config, Error, Incoming, Server};
use tower_service::Service;

use super::peers::{DATA, HEAD, HELLO, RESET, WINDOW, frame, post, raw, rest};
use super::{Serving, call, pattern};

const AWAY: u8 = 5;
const END: u8 = 1;
const TRAILERS: u8 = 2;

/// The most fields of a head, or of trailers.
const MOST_FIELDS: usize = 256;

type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(path).body(Empty::new()).expect("a request")
}

fn boxed<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Returns a body that is pending until it is told to fail, or to panic.
fn failing(panics: bool) -> (oneshot::Sender<()>, AnyBody) {
    let (fail, told) = oneshot::channel::<()>();
    let frames = futures::stream::once(async move {
        let _ = told.await;
        assert!(!panics, "as it was told");
        Err::<Frame<Bytes>, BoxError>("as it was told".into())
    });
    (fail, boxed(StreamBody::new(frames)))
}

/// Returns trailers, or the fields of a head, that no peer takes.
fn too_long() -> HeaderMap {
    let value = HeaderValue::try_from("x".repeat(17 << 10)).expect("a value");
    HeaderMap::from_iter([(HeaderName::from_static("x-long"), value)])
}

/// Returns as many short fields.
fn many(count: usize) -> HeaderMap {
    let field = |_| (HeaderName::from_static("x-short"), HeaderValue::from_static("1"));
    HeaderMap::from_iter((0..count).map(field))
}

/// Serves with a function that may fail, and counts the connections.
async fn counting<F, A>(config: Config, answer: F) -> (Serving, Arc<AtomicUsize>)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Result<Response<AnyBody>, BoxError>> + Send + 'static,
{
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let listener = listener.inspect(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let task = tokio::spawn(Server::new().config(config).serve(listener, tower::service_fn(answer)));
    (Serving { address, task }, count)
}

/// Answers with the body of the request.
async fn echo(request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
    Ok(Response::new(boxed(request.into_body())))
}

/// Reads the next frame: its kind, flags, call and payload.
async fn next(stream: &mut RdmaStream) -> (u8, u8, u32, Vec<u8>) {
    let mut header = [0; 12];
    common::within(stream.read_exact(&mut header)).await.expect("a header");
    let [a, b, c, d, e, f, g, h, kind, flags, ..] = header;
    let mut payload = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
    common::within(stream.read_exact(&mut payload)).await.expect("a payload");
    (kind, flags, u32::from_be_bytes([e, f, g, h]), payload)
}

/// Accepts a channel, of which this end takes as many calls at once.
async fn accept(listener: &RdmaListener, calls: u8) -> RdmaStream {
    let (mut stream, _) = common::within(listener.accept()).await.expect("accepted");
    let mut start = [0; 12];
    common::within(stream.read_exact(&mut start)).await.expect("a hello");
    let mut hello = vec![0; usize::from(u16::from_be_bytes([start[10], start[11]]))];
    common::within(stream.read_exact(&mut hello)).await.expect("its rest");
    let mut hello = HELLO.to_vec();
    hello[24..28].copy_from_slice(&[0, 0, 0, calls]);
    stream.write_all(&hello).await.expect("written");
    stream
}

/// Listens, and returns a channel with the other end of its connection.
async fn raw_server(calls: u8) -> (RdmaListener, Channel, RdmaStream) {
    // The heads of as many calls as it takes are more than that.
    let config = StreamConfig::default().receive_buffer(2 << 20);
    let soft = Provider::soft_with(SoftConfig::default());
    let bound = RdmaListener::bind_with_provider(&soft, "127.0.0.1:0", &config).await;
    let listener = bound.expect("bound");
    let address: SocketAddr = listener.local_addr().expect("bound");
    let connect = common::within(Channel::connect(address.to_string()));
    let (channel, stream) = tokio::join!(connect, accept(&listener, calls));
    (listener, channel.expect("connected"), stream)
}

/// Returns the head of an answer without fields, with these bytes of its body.
fn answer(call: u32, flags: u8, body: &[u8]) -> Vec<u8> {
    frame(HEAD, flags, call, &[b"\x00\x00\x00\x02\x00\xC8", body].concat())
}

// Another task than the caller sends the rest of the request.
#[tokio::test]
async fn request_that_fails_ends_its_call_alone() {
    struct Said(mpsc::UnboundedSender<&'static str>);
    impl Drop for Said {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }
    let (tell, mut told) = mpsc::unbounded_channel();
    let service = move |request: Request<Incoming>| {
        let said = (request.uri().path() == "/wait").then(|| Said(tell.clone()));
        async move {
            if let Some(said) = said {
                let _ = said.0.send("begun");
                pending::<()>().await;
            }
            Ok(Response::new(boxed(Empty::new())))
        }
    };
    let (server, count) = counting(Config::default(), service).await;
    let channel = server.channel().await;
    for panics in [false, true] {
        let (fail, body) = failing(panics);
        let request = Request::post("/wait").body(body).expect("a request");
        let waiting = tokio::spawn({
            let channel = channel.clone();
            async move { call(&channel, request).await }
        });
        assert_eq!(common::within(told.recv()).await, Some("begun"));
        fail.send(()).expect("the body waits");
        let error = common::within(waiting).await.expect("no panic").expect_err("no answer");
        assert!(matches!(error, Error::Body(_)), "{error:?}");
        assert_eq!(common::within(told.recv()).await, Some("dropped"), "the future of the service");
        call(&channel, get("/")).await.expect("answered");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1, "the connection goes on");
}

// The answer has begun: its body has the error of the request.
#[tokio::test]
async fn failure_of_a_request_reaches_the_reader_of_its_answer() {
    let (server, _) = counting(Config::default(), echo).await;
    let channel = server.channel().await;
    let (fail, body) = failing(false);
    let request = Request::post("/").body(body).expect("a request");
    let answer = common::within(channel.clone().call(request)).await.expect("begun");
    fail.send(()).expect("the body waits");
    let error = common::within(answer.into_body().collect()).await.expect_err("cut");
    assert!(matches!(error, Error::Body(_)), "{error:?}");
}

/// A body that fails when it is asked behind the moment from which on it is to, and that wakes nobody then.
struct FailsWhenAsked(Arc<AtomicBool>, mpsc::UnboundedSender<()>);

impl Body for FailsWhenAsked {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.0.load(Ordering::Relaxed) { Poll::Ready(Some(Err("too late".into()))) } else { Poll::Pending }
    }
}

impl Drop for FailsWhenAsked {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

// Both have happened when the caller looks.
#[tokio::test]
async fn failure_behind_the_end_of_a_call_is_not_its_error() {
    let (_listener, channel, mut stream) = raw_server(100).await;
    let fails = Arc::new(AtomicBool::new(false));
    let (tell, mut dropped) = mpsc::unbounded_channel();
    let request = Request::post("/").body(FailsWhenAsked(fails.clone(), tell)).expect("a request");
    let mut call = channel.clone().call(request);
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(next(&mut stream).await.2, 1);
    fails.store(true, Ordering::Relaxed);
    // It ends the call, and has the body asked once more.
    stream.write_all(&frame(RESET, 0, 1, &[0, 0, 0, 2])).await.expect("written");
    common::within(dropped.recv()).await.expect("dropped");
    let error = common::within(call).await.expect_err("no answer");
    assert!(matches!(error, Error::Reset(Code::Refused)), "{error:?}");
}

// A status in fields would be lost on a caller of gRPC-Web, which looks into the body.
#[tokio::test]
async fn grpc_web_is_not_grpc() {
    let (server, _) = counting(Config::default(), async |_| Err("always".into())).await;
    let channel = server.channel().await;
    for (kind, is_grpc) in [
        ("application/grpc", true),
        ("application/grpc+json", true),
        ("application/grpc;charset=utf-8", true),
        ("application/grpc-web", false),
        ("application/grpc-web+proto", false),
    ] {
        let mut request = get("/");
        request.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        let answer = common::within(channel.clone().call(request)).await;
        assert_eq!(answer.is_ok(), is_grpc, "{kind}: {answer:?}");
    }
}

/// A stream that reports a byte more than it has written, when it is to.
struct Boasting {
    stream: RdmaStream,
    boasts: Arc<AtomicBool>,
}

impl AsyncRead for Boasting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, room)
    }
}

impl AsyncWrite for Boasting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let more = usize::from(self.boasts.load(Ordering::Relaxed));
        Pin::new(&mut self.stream).poll_write(cx, bytes).map_ok(|written| written + more)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn stream_that_reports_too_much_is_lost() {
    let (server, count) = counting(Config::default(), echo).await;
    let (address, boasts) = (server.address, Arc::new(AtomicBool::new(false)));
    let boasting = boasts.clone();
    let channel = Channel::with_connector("server", false, Config::default(), move || {
        let boasts = boasting.clone();
        async move { Ok(Boasting { stream: RdmaStream::connect(address).await?, boasts }) }
    });
    call(&channel, get("/")).await.expect("answered");
    boasts.store(true, Ordering::Relaxed);
    let error = call(&channel, get("/")).await.expect_err("lost");
    assert!(matches!(error, Error::Lost(_)), "{error:?}");
    boasts.store(false, Ordering::Relaxed);
    call(&channel, get("/")).await.expect("answered");
    assert_eq!(count.load(Ordering::Relaxed), 2, "another connection");
}

// Head and reset may arrive before the caller has looked: what is there must not pass for the whole.
#[tokio::test]
async fn answers_that_are_cut_are_errors() {
    let (_listener, channel, mut stream) = raw_server(100).await;
    for (number, is_reset) in [(1, true), (2, false)] {
        let waiting = tokio::spawn({
            let channel = channel.clone();
            async move { call(&channel, get("/")).await }
        });
        assert_eq!(next(&mut stream).await.2, number);
        let mut bytes = answer(number, 0, b"half of");
        if is_reset {
            bytes.extend(frame(RESET, 0, number, &[0, 0, 0, 3]));
        }
        stream.write_all(&bytes).await.expect("written");
        if !is_reset {
            stream.shutdown().await.expect("ended");
        }
        let error = common::within(waiting).await.expect("no panic").expect_err("not whole");
        match error {
            Error::Reset(Code::Internal) => assert!(is_reset),
            Error::Lost(_) => assert!(!is_reset),
            _ => panic!("{error:?}"),
        }
    }
}

// What follows a complete answer does not take it away.
#[tokio::test]
async fn whole_answer_outlives_its_request() {
    let (_listener, channel, mut stream) = raw_server(100).await;
    let (fail, body) = failing(false);
    let first = channel.clone().call(Request::post("/").body(body).expect("a request"));
    let first = tokio::spawn(first);
    assert_eq!(next(&mut stream).await.2, 1);
    let second = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel, get("/")).await }
    });
    assert_eq!(next(&mut stream).await.2, 2);
    // The one field of the trailers is `grpc-status: 0`.
    let end = frame(DATA, END | TRAILERS, 1, b"\x00\x00\x00\x01\x82the end");
    let frames = [answer(1, 0, b"from the start "), frame(DATA, 0, 1, b"to "), end, answer(2, END, b"")];
    stream.write_all(&frames.concat()).await.expect("written");
    // Who has the second answer has received the first.
    common::within(second).await.expect("no panic").expect("answered");
    fail.send(()).expect("the body waits");
    assert_eq!(next(&mut stream).await, (RESET, 0, 1, vec![0, 0, 0, 1]));
    let answer = common::within(first).await.expect("no panic").expect("answered");
    let body = common::within(answer.into_body().collect()).await.expect("whole");
    assert_eq!(body.trailers().expect("trailers")["grpc-status"], "0");
    assert_eq!(body.to_bytes(), "from the start to the end");
}

// The peer would end the connection with all its calls.
#[tokio::test]
async fn requests_that_are_too_large_fail_alone() {
    let (server, count) = counting(Config::default(), echo).await;
    let channel = server.channel().await;
    let request = |fields: HeaderMap, trailers: Option<HeaderMap>| {
        let trailers = ready(trailers.map(Ok));
        let mut request = Request::new(Full::new(pattern(10)).with_trailers(trailers));
        *request.headers_mut() = fields;
        request
    };
    let none = HeaderMap::new;
    for (fields, trailers) in [
        (too_long(), None),
        (many(MOST_FIELDS + 1), None),
        (none(), Some(too_long())),
        (none(), Some(many(MOST_FIELDS + 1))),
    ] {
        let error = call(&channel, request(fields, trailers)).await.expect_err("too large");
        assert!(matches!(error, Error::TooLarge), "{error:?}");
        let largest = request(many(MOST_FIELDS), Some(many(MOST_FIELDS)));
        assert_eq!(call(&channel, largest).await.expect("answered").into_body(), pattern(10));
    }
    assert_eq!(count.load(Ordering::Relaxed), 1, "the connection goes on");
}

// Trailers that come later meet a call that has begun: it ends, and the server does not take it for whole.
#[tokio::test]
async fn late_trailers_that_are_too_large_end_their_call() {
    let (server, count) = counting(Config::default(), echo).await;
    let channel = server.channel().await;
    for trailers in [too_long(), many(MOST_FIELDS + 1)] {
        let (tell, told) = oneshot::channel::<()>();
        let trailers = async move {
            let _ = told.await;
            Some(Ok(trailers))
        };
        let body = Full::new(pattern(10)).with_trailers(trailers);
        let request = Request::post("/").body(body).expect("a request");
        let answer = common::within(channel.clone().call(request)).await.expect("begun");
        tell.send(()).expect("the body waits");
        let error = common::within(answer.into_body().collect()).await.expect_err("cut");
        assert!(matches!(error, Error::TooLarge), "{error:?}");
        call(&channel, get("/")).await.expect("answered");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1, "the connection goes on");
}

// A caller of gRPC is told by a status, however little of it fits; any other by a reset.
#[tokio::test]
async fn answers_that_cannot_be_sent_fail_alone() {
    let service = async |request: Request<Incoming>| {
        let text = "long \u{263A} ".repeat(10_000);
        let failed = || futures::stream::iter([Err::<Frame<Bytes>, BoxError>("at once".into())]);
        let trailed = |trailers| boxed(Full::new(pattern(10)).with_trailers(ready(Some(Ok(trailers)))));
        let mut response = Response::new(boxed(Empty::new()));
        match request.uri().path() {
            "/head" => *response.headers_mut() = too_long(),
            "/fields" => *response.headers_mut() = many(MOST_FIELDS + 1),
            "/trailers" => *response.body_mut() = trailed(too_long()),
            "/many" => *response.body_mut() = trailed(many(MOST_FIELDS + 1)),
            "/body" => *response.body_mut() = boxed(StreamBody::new(failed())),
            "/text" => return Err(text.into()),
            _ => {}
        }
        Ok(response)
    };
    let (server, count) = counting(Config::default(), service).await;
    let channel = server.channel().await;
    for path in ["/head", "/fields", "/trailers", "/many", "/body", "/text"] {
        let is_large = !matches!(path, "/body" | "/text");
        let error = call(&channel, get(path)).await.expect_err("no answer");
        match error {
            Error::Reset(Code::TooLarge) => assert!(is_large, "{path}"),
            Error::Reset(Code::Internal) => assert!(!is_large, "{path}"),
            _ => panic!("{path}: {error:?}"),
        }
        let mut request = get(path);
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        let answer = common::within(channel.clone().call(request)).await.expect("an answer");
        let (head, body) = answer.into_parts();
        let body = common::within(body.collect()).await.expect("whole");
        let fields = body.trailers().unwrap_or(&head.headers);
        let status = fields["grpc-status"].to_str().expect("text");
        assert!(if is_large { status == "8" } else { status != "0" }, "{path}: {fields:?}");
        // A reset would have become a status at the client, with another message.
        let message = fields["grpc-message"].to_str().expect("text");
        assert!(!message.contains("the peer has ended"), "{path}: {message}");
        assert_eq!(message.contains("long %E2%98%BA"), path == "/text", "{path}: {message}");
        assert!(body.to_bytes().len() <= 10);
        call(&channel, get("/")).await.expect("answered");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1, "the connection goes on");
}

// What requests leave behind that are cancelled in the write that begins them: no place, and no bytes of the window.
#[tokio::test]
async fn calls_that_end_as_they_begin_leave_nothing() {
    const BODY: usize = 100;
    let (window, rounds) = (64 << 10, 50);
    let config = Config::default().connection_window(window as u32).max_calls(1000);
    let (server, _) = counting(config, echo).await;
    let mut stream = raw(&server).await;
    let (mut room, mut last) = (window, 0);
    for _ in 0..80 {
        let mut bytes = Vec::new();
        for _ in 0..rounds {
            let calls = [last + 1, last + 2];
            bytes.extend(calls.iter().flat_map(|call| post(*call, 0, &[7; BODY])));
            bytes.extend(calls.iter().flat_map(|call| frame(RESET, 0, *call, &[0, 0, 0, 1])));
            last += 2;
        }
        // Only as much as was granted: a peer that goes beyond is thrown out.
        while room < rounds * 2 * BODY {
            let (kind, _, call, payload) = next(&mut stream).await;
            assert!(kind != AWAY && (kind != RESET || payload[3] != 2), "{kind} of {call}: {payload:?}");
            if (kind, call) == (WINDOW, 0) {
                room += u32::from_be_bytes(payload.try_into().expect("a number")) as usize;
            }
        }
        room -= rounds * 2 * BODY;
        common::within(stream.write_all(&bytes)).await.expect("written");
    }
    let pieces =
        [post(last + 1, 0, b""), frame(DATA, 0, last + 1, &pattern(5000)), frame(DATA, END, last + 1, b"")];
    stream.write_all(&pieces.concat()).await.expect("written");
    let mut body = Vec::new();
    loop {
        let (kind, flags, call, payload) = next(&mut stream).await;
        assert!(
            kind != AWAY && (kind != RESET || call <= last && payload[3] != 2),
            "{kind} of {call}: {payload:?}"
        );
        match kind {
            HEAD if call > last => body.extend_from_slice(&payload[6..]),
            DATA if call > last => body.extend_from_slice(&payload),
            _ => {}
        }
        if call > last && flags & END != 0 {
            break;
        }
    }
    assert_eq!(body, pattern(5000));
}

// A server that takes no more calls may still have the ones that keep the places.
#[tokio::test]
async fn callers_that_wait_for_a_place_go_to_another_connection() {
    for is_lost in [false, true] {
        let (listener, channel, mut stream) = raw_server(1).await;
        let held = tokio::spawn(channel.clone().call(get("/")));
        assert_eq!(next(&mut stream).await.2, 1);
        stream.write_all(&answer(1, 0, b"from the start ")).await.expect("written");
        let held = common::within(held).await.expect("no panic").expect("answered");
        let mut waiting = channel.clone().call(get("/"));
        let poll = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "there is no place");
        let waiting = tokio::spawn(waiting);
        if is_lost {
            stream.shutdown().await.expect("ended");
        } else {
            stream.write_all(&frame(AWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])).await.expect("written");
        }
        let mut other = accept(&listener, 1).await;
        assert_eq!(next(&mut other).await.2, 1);
        other.write_all(&answer(1, END, b"")).await.expect("written");
        common::within(waiting).await.expect("no panic").expect("answered");
        if is_lost {
            let error = common::within(held.into_body().collect()).await.expect_err("lost");
            assert!(matches!(error, Error::Lost(_)), "{error:?}");
        } else {
            stream.write_all(&frame(DATA, END, 1, b"to the end")).await.expect("written");
            let body = common::within(held.into_body().collect()).await.expect("whole").to_bytes();
            assert_eq!(body, "from the start to the end");
        }
    }
}

// Heads of answers need no window: without this limit the memory of a server would be its peer's.
#[tokio::test]
async fn peer_that_does_not_read_is_not_read() {
    const MOST: usize = 8 << 20;
    let service = async |_: Request<Incoming>| {
        let mut response = Response::new(boxed(Empty::new()));
        let value = HeaderValue::try_from("x".repeat(2000)).expect("a value");
        response.headers_mut().insert("x-long", value);
        Ok(response)
    };
    let (server, _) = counting(Config::default(), service).await;
    let channel = server.channel().await;
    let mut stream = raw(&server).await;
    let (mut call_number, mut unsent, mut written, mut stalled) = (0, Vec::new(), 0, 0);
    // The server has had its turns when it has answered another peer a hundred times.
    while stalled < 100 {
        if unsent.is_empty() {
            call_number += 1;
            unsent = post(call_number, END, &[7; 1000]);
        }
        let cx = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut stream).poll_write(cx, &unsent) {
            Poll::Ready(count) => {
                let count = count.expect("written");
                unsent.drain(..count);
                (written, stalled) = (written + count, 0);
                assert!(written < MOST, "it reads without end");
            }
            Poll::Pending => {
                call(&channel, get("/")).await.expect("answered");
                stalled += 1;
            }
        }
        let _ = Pin::new(&mut stream).poll_flush(&mut Context::from_waker(Waker::noop()));
    }
}

// They have arrived with their heads, but nobody has read them.
#[tokio::test]
async fn bodies_of_whole_requests_count() {
    let service = async |request: Request<Incoming>| {
        let _request = request;
        pending::<Result<Response<AnyBody>, BoxError>>().await
    };
    let (server, _) = counting(Config::default(), service).await;
    let mut stream = raw(&server).await;
    let bytes: Vec<u8> = (1..=200).flat_map(|call| post(call, END, &[7; 50 << 10])).collect();
    // The end of the connection ends the write.
    let _ = common::within(stream.write_all(&bytes)).await;
    let rest = rest(&mut stream).await;
    // 81 of them fit into 4 MiB.
    assert_eq!(rest, frame(AWAY, 0, 0, &[0, 0, 0, 82, 0, 0, 0, 6]));
}

#[tokio::test]
async fn deadline_ends_an_answer_of_which_there_is_more() {
    let (_listener, channel, mut stream) = raw_server(100).await;
    let mut request = get("/");
    request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("1H"));
    let waiting = tokio::spawn(channel.clone().call(request));
    assert_eq!(next(&mut stream).await.2, 1);
    let frames = [answer(1, 0, b"more"), frame(DATA, 0, 1, b"and"), frame(DATA, 0, 1, b"more")];
    stream.write_all(&frames.concat()).await.expect("written");
    let mut body = common::within(waiting).await.expect("no panic").expect("answered").into_body();
    for _ in 0..2 {
        common::within(body.frame()).await.expect("a frame").expect("no error");
    }
    // The hour passes, and the rest is still there.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3601)).await;
    tokio::time::resume();
    let error = common::within(body.frame()).await.expect("a frame").expect_err("late");
    assert!(matches!(error, Error::Deadline), "{error:?}");
    assert!(common::within(body.frame()).await.is_none());
    assert_eq!(next(&mut stream).await, (RESET, 0, 1, vec![0, 0, 0, 4]));
}

// The task that reads the connection must not be the one that is blocked.
#[test]
fn service_may_block_on_its_body() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let outcome = runtime.block_on(runtime.spawn(async {
        let service = async |request: Request<Incoming>| {
            let collect = request.into_body().collect();
            let body = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(collect));
            Ok(Response::new(boxed(Full::new(body?.to_bytes()))))
        };
        let (server, _) = counting(Config::default(), service).await;
        let channel = server.channel().await;
        for length in [1000, 10_000, 3 << 20] {
            let request = Request::post("/").body(Full::new(pattern(length))).expect("a request");
            assert_eq!(call(&channel, request).await.expect("answered").into_body(), pattern(length));
        }
    }));
    // A service that is still blocked would be waited for.
    runtime.shutdown_background();
    outcome.expect("no panic");
}

// A request that is cut by its answer is no whole request for who reads on; and it keeps no place.
#[tokio::test]
async fn rest_of_a_request_behind_its_answer_is_an_error() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let service = move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            tokio::spawn(async move { tell.send(request.into_body().collect().await.map(drop)) });
            // That task waits for more when the answer goes.
            tokio::task::yield_now().await;
            Ok(Response::new(boxed(Empty::new())))
        }
    };
    let (server, _) = counting(Config::default().max_calls(1), service).await;
    let channel = server.channel().await;
    for _ in 0..10 {
        let frames = futures::stream::iter([Ok::<_, BoxError>(Frame::data(pattern(10)))]);
        let body = StreamBody::new(frames.chain(futures::stream::pending()));
        call(&channel, Request::post("/").body(body).expect("a request")).await.expect("answered");
        let error = common::within(told.recv()).await.expect("told").expect_err("not whole");
        assert!(matches!(error, Error::Reset(Code::None)), "{error:?}");
    }
}

// The heads that are not written yet keep them from going, too.
#[tokio::test]
async fn callers_that_wait_for_room_go_to_another_connection() {
    let (listener, channel, mut stream) = raw_server(250).await;
    let calls: Vec<_> = (0..250)
        .map(|_| {
            let mut request = get("/");
            let value = HeaderValue::try_from("x".repeat(15 << 10)).expect("a value");
            request.headers_mut().insert("x-long", value);
            tokio::spawn(channel.clone().call(request))
        })
        .collect();
    assert_eq!(next(&mut stream).await.2, 1);
    stream.write_all(&frame(AWAY, 0, 0, &[0, 0, 1, 0, 0, 0, 0, 0])).await.expect("written");
    let mut other = accept(&listener, 250).await;
    assert_eq!(next(&mut other).await.2, 1);
    drop(calls);
}

// Each of these ended the connection, or never ended, in spite of honest ends.
#[tokio::test]
async fn unusual_calls_end_nothing_but_themselves() {
    let service = async |request: Request<Incoming>| {
        match request.uri().path_and_query().expect("a path").as_str() {
            "/switch" => Ok(Response::builder().status(101).body(boxed(Empty::new())).expect("a response")),
            "/panic" => {
                // It reads on when the service has gone.
                tokio::spawn(request.into_body().collect());
                panic!("with a task that reads");
            }
            path => Ok::<_, BoxError>(Response::new(boxed(Full::new(Bytes::from(path.to_owned()))))),
        }
    };
    let (server, count) = counting(Config::default().max_head(64 << 10), service).await;
    let channel = server.channel().await;
    let mut query = get("/");
    *query.uri_mut() = "http://server?x=1".parse().expect("a URI");
    assert_eq!(call(&channel, query).await.expect("answered").into_body(), "/?x=1");
    let error = call(&channel, get("/switch")).await.expect_err("no answer");
    assert!(matches!(error, Error::Reset(Code::Internal)), "{error:?}");
    // The rest of the request never comes.
    let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, BoxError>>());
    let request = Request::post("/panic").body(body).expect("a request");
    let error = call(&channel, request).await.expect_err("no answer");
    assert!(matches!(error, Error::Reset(Code::Internal)), "{error:?}");
    assert_eq!(call(&channel, get("/well")).await.expect("answered").into_body(), "/well");
    assert_eq!(count.load(Ordering::Relaxed), 1, "the connection goes on");
}
