//! Peers that break the protocol, speak another one, or want too much.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::Empty;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc;
use tokio_rdma::{RdmaListener, RdmaStream};
use tokio_rdma_rpc::{Channel, Config, Connected, Error, Incoming, Server, serve};
use tower_service::Service;

use super::{Serving, call};

/// The hello of a client with large windows and no origin.
pub(crate) const HELLO: &[u8] =
    b"rdma-rpc\x01\x00\x00\x14\x00\x04\x00\x00\x00\x10\x00\x00\x00\x40\x00\x00\x00\x00\x00\x64\x00\x00\x40\x00";

pub(crate) const HEAD: u8 = 1;
pub(crate) const DATA: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const WINDOW: u8 = 4;
pub(crate) const GO_AWAY: u8 = 5;

pub(crate) fn frame(kind: u8, flags: u8, call: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(&call.to_be_bytes());
    bytes.extend_from_slice(&[kind, flags, 0, 0]);
    bytes.extend_from_slice(payload);
    bytes
}

/// The head of `POST /`, with these bytes of its body.
pub(crate) fn post(call: u32, flags: u8, body: &[u8]) -> Vec<u8> {
    frame(HEAD, flags, call, &[b"\x00\x00\x00\x04\x01\x01/\x00", body].concat())
}

/// Connects, and exchanges the hellos.
pub(crate) async fn raw(server: &Serving) -> RdmaStream {
    let mut stream = common::within(RdmaStream::connect(server.address)).await.expect("connected");
    stream.write_all(HELLO).await.expect("written");
    let mut hello = [0; 32];
    common::within(stream.read_exact(&mut hello)).await.expect("a hello");
    assert_eq!(&hello[..12], &HELLO[..12]);
    stream
}

/// Reads until the connection ends.
pub(crate) async fn rest(stream: &mut RdmaStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // The end may be a reset.
    let _ = common::within(stream.read_to_end(&mut rest)).await;
    rest
}

/// Serves with small windows: calls that never end.
async fn endless() -> Serving {
    let config = Config::default().call_window(16 << 10).connection_window(32 << 10).max_calls(10);
    let answer = async |_: Request<Incoming>| pending::<Response<Empty<Bytes>>>().await;
    Serving::with(Server::new().config(config), answer).await
}

// Each of these ends the connection with a word on it, and no other.
#[tokio::test]
async fn violations_end_the_connection() {
    let server = endless().await;
    let other = server.channel().await;
    let other =
        tokio::spawn(
            async move { call(&other, Request::get("/").body(Empty::new()).expect("a request")).await },
        );
    let data = |length: usize| frame(DATA, 0, 1, &vec![7; length]);
    let cases: [(&str, Vec<u8>); 16] = [
        ("a kind that is unknown", frame(9, 0, 1, &[])),
        ("flags of another kind", frame(RESET, 1, 1, &[0; 4])),
        ("trailers without an end", frame(DATA, 2, 1, &[0; 4])),
        ("reserved bytes", [&[0; 8][..], &[DATA, 0, 0, 1]].concat()),
        ("a frame that is too long", [&[0x7F, 0xFF, 0xFF, 0xFF][..], &[0, 0, 0, 1, DATA, 0, 0, 0]].concat()),
        ("a call that is not the next", post(2, 0, b"")),
        ("the same call twice", [post(1, 0, b""), post(1, 0, b"")].concat()),
        ("the call 0", post(0, 0, b"")),
        ("data of no call", data(1)),
        ("nothing, for ever", [post(1, 0, b""), data(0)].concat()),
        ("more than the window of a call", [post(1, 0, b""), data(16 << 10)].concat()),
        ("more than the window of a call, in the head", post(1, 0, &vec![7; (16 << 10) + 1])),
        ("a window that is too large", [post(1, 0, b""), frame(WINDOW, 0, 1, &[0xFF; 4])].concat()),
        ("a window of the connection that is too large", frame(WINDOW, 0, 0, &[0xFF; 4])),
        ("a block beyond its frame", frame(HEAD, 0, 1, b"\x00\x00\x00\x05\x01\x01/\x00")),
        ("a head that is no head", frame(HEAD, 0, 1, b"\x00\x00\x00\x04\x01\x7F/\x00")),
    ];
    for (what, bytes) in cases {
        let mut stream = raw(&server).await;
        stream.write_all(&bytes).await.expect("written");
        let rest = rest(&mut stream).await;
        // A GoAway with the code of violations is the last frame.
        assert_eq!(
            rest.get(rest.len().wrapping_sub(12)..).map(|end| (end[0], &end[8..])),
            Some((5, &[0, 0, 0, 6][..])),
            "{what}: {rest:?}"
        );
    }
    assert!(!other.is_finished(), "the connection of another client goes on");
}

// Calls that are cancelled at once are refused as long as those before them are there.
#[tokio::test]
async fn calls_beyond_the_limit_are_refused() {
    let server = endless().await;
    let mut stream = raw(&server).await;
    let calls: Vec<u8> = (1..=11).flat_map(|call| post(call, 1, b"")).collect();
    stream.write_all(&calls).await.expect("written");
    let mut refused = [0; 16];
    common::within(stream.read_exact(&mut refused)).await.expect("a frame");
    assert_eq!(refused[..], frame(RESET, 0, 11, &[0, 0, 0, 2])[..]);
}

#[tokio::test]
async fn rapid_resets_leave_nothing() {
    let server = endless().await;
    let mut stream = raw(&server).await;
    for batch in 0..100_u32 {
        let calls: Vec<u8> = (1..=100)
            .flat_map(|call| {
                let call = batch * 100 + call;
                [post(call, 0, &[7; 100]), frame(RESET, 0, call, &[0, 0, 0, 1])].concat()
            })
            .collect();
        common::within(stream.write_all(&calls)).await.expect("written");
    }
    // What was not read was granted again, and there is room for another call.
    stream.write_all(&post(10_001, 0, &[7; 100])).await.expect("written");
    stream.shutdown().await.expect("ended");
    let rest = rest(&mut stream).await;
    let mut frames = &rest[..];
    while let Some((header, behind)) = frames.split_first_chunk::<12>() {
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        assert_ne!(header[8], 5, "the end of the connection");
        frames = &behind[length..];
    }
}

// Who says nothing, or half a hello, is not waited for; nor is who speaks HTTP/2.
#[tokio::test]
async fn servers_wait_for_no_hello() {
    let config = Config::default().handshake_timeout(Duration::from_millis(50));
    let answer = async |_: Request<Incoming>| Response::new(Empty::<Bytes>::new());
    let server = Serving::with(Server::new().config(config), answer).await;
    for hello in [&b""[..], &HELLO[..20], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"rdma-rpc\x02\0\0\x14"] {
        let mut stream = common::within(RdmaStream::connect(server.address)).await.expect("connected");
        stream.write_all(hello).await.expect("written");
        assert!(rest(&mut stream).await.is_empty());
    }
    let channel = server.channel().await;
    call(&channel, Request::get("/").body(Empty::new()).expect("a request")).await.expect("answered");
}

#[tokio::test]
async fn client_notices_another_protocol() {
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("written");
        rest(&mut stream).await
    });
    let error = common::within(Channel::connect(address)).await.expect_err("another protocol");
    assert!(matches!(error, Error::Protocol(_)), "{error:?}");
    common::within(server).await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn peer_that_goes_at_once_is_left_alone() {
    let connects = Arc::new(AtomicUsize::new(0));
    let count = connects.clone();
    let channel = Channel::with_connector("server", false, Config::default(), move || {
        count.fetch_add(1, Ordering::SeqCst);
        async {
            let (near, mut far) = tokio::io::duplex(1 << 10);
            tokio::spawn(async move {
                far.read_exact(&mut [0; 32]).await.expect("a hello");
                far.write_all(&[HELLO, &frame(GO_AWAY, 0, 0, &[0; 8])].concat()).await.expect("written");
                // Its end may be a reset.
                let _ = far.read_to_end(&mut Vec::new()).await;
            });
            Ok(near)
        }
    });
    let request = Request::get("/").body(Empty::<Bytes>::new()).expect("a request");
    let outcome = tokio::time::timeout(Duration::from_secs(30), channel.clone().call(request)).await;
    assert!(outcome.is_err(), "there is no answer: {outcome:?}");
    // Pauses of 50 ms and more, each twice as long as the one before, up to 10 s: ten to thirteen of them.
    let connects = connects.load(Ordering::SeqCst);
    assert!((2..=16).contains(&connects), "{connects}");
}

/// Bytes that are there at once, a frame of this length at a time. Before each frame it takes down how often others have run.
struct Ready {
    frames: VecDeque<Vec<u8>>,
    start: usize,
    turns: Arc<AtomicUsize>,
    seen: mpsc::UnboundedSender<usize>,
}

impl AsyncRead for Ready {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { frames, start, turns, seen } = &mut *self;
        let Some(frame) = frames.front() else { return Poll::Pending };
        if *start == 0 {
            let _ = seen.send(turns.load(Ordering::SeqCst));
        }
        let length = room.remaining().min(frame.len() - *start);
        room.put_slice(&frame[*start..*start + length]);
        *start += length;
        if *start == frame.len() {
            frames.pop_front();
            *start = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Ready {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Connected for Ready {}

// They take the bytes of each while these are in the cache, and one peer does not keep the thread.
#[tokio::test]
async fn others_run_between_long_frames() {
    const FRAMES: usize = 8;
    let long = frame(DATA, 0, 1, &[7; 64 << 10]);
    let begin = [HELLO.to_vec(), post(1, 0, b"")];
    let turns = Arc::new(AtomicUsize::new(0));
    let (seen, mut before) = mpsc::unbounded_channel();
    let frames = begin.into_iter().chain(std::iter::repeat_n(long, FRAMES)).collect();
    let stream = Ready { frames, start: 0, turns: turns.clone(), seen };
    let service = tower::service_fn(async |_request: Request<Incoming>| {
        pending::<Result<Response<Empty<Bytes>>, Infallible>>().await
    });
    let listener = futures::stream::iter([Ok::<_, io::Error>(stream)]).chain(futures::stream::pending());
    let server = tokio::spawn(serve(listener, service));
    // `yield_now` would have it wait until nobody else is ready.
    let other = tokio::spawn(poll_fn(move |cx| {
        turns.fetch_add(1, Ordering::SeqCst);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    }));
    let mut seen = Vec::new();
    while seen.len() < 2 + FRAMES {
        seen.push(common::within(before.recv()).await.expect("a frame"));
    }
    // The first long one may come with the head.
    assert!(seen[2..].is_sorted_by(|earlier, later| earlier < later), "{seen:?}");
    server.abort();
    other.abort();
}
