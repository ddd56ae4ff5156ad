//! Long bodies, which devices read from each other's memory.
//!
//! Runs on: soft, fake, fake-iwarp, rxe, siw

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use common::device::Device;
use common::{adapter, stream, within};
use futures::StreamExt;
use futures::future::{pending, try_join_all};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio_rdma::io::OneSided;
use tokio_rdma::{Access, Adapter, RdmaStream, Region, RemoteRegion, StreamConfig};
use tokio_rdma_rpc::{BoxError, Channel, Config, Incoming, Server};
use tower_service::Service;

/// The longest part of a body that is lent.
const PART: usize = 256 << 10;

const HEAD: u8 = 1;
const DATA: u8 = 2;
const WINDOW: u8 = 4;
const GO_AWAY: u8 = 5;
const LENT: u8 = 6;
const RETURNED: u8 = 7;
const END: u8 = 1;

/// Serves with this function, until the sender is used.
fn serve<F, A, B>(adapter: &Adapter, answer: F) -> (SocketAddr, oneshot::Sender<()>)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let listener = stream::listening(adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel();
    let service = tower::service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let ended = async move { drop(stopped.await) };
    tokio::spawn(Server::new().serve_with_shutdown(listener, service, ended));
    (address, stop)
}

/// Answers with the body of the request, as it comes.
async fn echo(request: Request<Incoming>) -> Response<Incoming> {
    Response::new(request.into_body())
}

/// Answers with the body of the request, when all of it has come: what has come is kept until then.
async fn collect(request: Request<Incoming>) -> Response<Full<Bytes>> {
    Response::new(Full::new(request.into_body().collect().await.expect("a body").to_bytes()))
}

fn channel(adapter: Adapter, address: SocketAddr) -> Channel {
    Channel::with_connector(&address.to_string(), false, Config::default(), move || {
        let adapter = adapter.clone();
        async move { Ok(RdmaStream::connect_on(&adapter, address, &StreamConfig::default()).await?) }
    })
}

fn pattern(from: usize, length: usize) -> Bytes {
    stream::pattern(from, length).into()
}

/// Sends bytes, and checks those that come back.
async fn call(channel: &Channel, from: usize, length: usize) -> Result<(), tokio_rdma_rpc::Error> {
    let request = Request::post("/").body(Full::new(pattern(from, length))).expect("a request");
    let answer = channel.clone().call(request).await?;
    let body = answer.into_body().collect().await?.to_bytes();
    assert!(body == pattern(from, length), "{length} bytes from {from}");
    Ok(())
}

// Of lengths around those that are lent, one after the other and at once, also more than the places and buffers take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_come_back_whole() {
    let adapter = adapter();
    for address in [serve(&adapter, echo).0, serve(&adapter, collect).0] {
        let channel = channel(adapter.clone(), address);
        for length in [PART / 2 - 1, PART / 2, PART + 1, 1 << 20, (3 << 20) + 3] {
            within(call(&channel, length, length)).await.expect("answered");
        }
        let calls = (0..8).map(|number| call(&channel, number, 300_000 + 50_000 * number));
        within(try_join_all(calls)).await.expect("answered");
    }
}

/// Returns an address as it is in a hello.
fn place(address: SocketAddr) -> Vec<u8> {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    [&ip.octets()[..], &address.port().to_be_bytes()].concat()
}

/// A client that speaks in frames, and the adapter that its memory belongs to.
struct Raw {
    stream: RdmaStream,
    one_sided: OneSided,
}

impl Raw {
    /// Connects, and exchanges the hellos. `None` where bodies are not lent.
    async fn connect(adapter: &Adapter, address: SocketAddr) -> Option<Self> {
        Self::connect_as(adapter, address, 0).await
    }

    /// Connects like [`connect`](Self::connect), and says in the hello that its port is so much higher.
    async fn connect_as(adapter: &Adapter, address: SocketAddr, wrong: u16) -> Option<Self> {
        let config = StreamConfig::default();
        let stream = RdmaStream::connect_on(adapter, address, &config);
        let mut stream = within(stream).await.expect("connected");
        let lends = !Device::under_test().is_soft() && !adapter.info().read_sink_required;
        let start = [&b"rdma-rpc\x01"[..], &[lends.into()]].concat();
        let limits = b"\x00\x04\x00\x00\x10\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x64\x00\x00\x40\x00";
        let [own, peer] =
            [stream.local_addr(), stream.peer_addr()].map(|address| address.expect("connected"));
        let own = SocketAddr::new(own.ip(), own.port().wrapping_add(wrong));
        let ends = if lends { [place(own), place(peer)].concat() } else { Vec::new() };
        let length = u16::try_from(20 + ends.len()).expect("short").to_be_bytes();
        stream.write_all(&[&start[..], &length, limits, &ends].concat()).await.expect("written");
        let mut hello = vec![0; 32 + ends.len()];
        within(stream.read_exact(&mut hello)).await.expect("a hello");
        assert_eq!(hello[..10], start, "devices read, unless they name their memory");
        let one_sided = stream.one_sided().filter(|_| lends)?;
        Some(Self { stream, one_sided })
    }

    async fn send(&mut self, kind: u8, flags: u8, call: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("short");
        let frame = [&length.to_be_bytes()[..], &call.to_be_bytes(), &[kind, flags, 0, 0], payload].concat();
        within(self.stream.write_all(&frame)).await.expect("written");
    }

    /// Begins the call `POST /`.
    async fn post(&mut self, call: u32, flags: u8) {
        self.send(HEAD, flags, call, b"\x00\x00\x00\x04\x01\x01/\x00").await;
    }

    /// Reads the next frame but windows.
    async fn next(&mut self) -> io::Result<(u8, u8, Vec<u8>)> {
        loop {
            let mut header = [0; 12];
            within(self.stream.read_exact(&mut header)).await?;
            let [a, b, c, d, .., kind, flags, _, _] = header;
            let mut payload = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
            within(self.stream.read_exact(&mut payload)).await?;
            if kind != WINDOW {
                return Ok((kind, flags, payload));
            }
        }
    }

    /// Reads what a frame lends. Returns the number of the loan.
    async fn read(&self, lent: &[u8]) -> (Vec<u8>, [u8; 4]) {
        let (loan, memory) = lent.split_first_chunk::<4>().expect("a number");
        let remote = RemoteRegion::decode(memory).expect("a description");
        let buffer = self.one_sided.adapter().buffer(remote.len() as usize).expect("memory");
        let buffer = within(self.one_sided.read(buffer, &remote)).await.expect("read");
        (buffer.to_vec(), *loan)
    }

    /// Memory of this end that the server may read.
    async fn memory(&self) -> Region {
        let region =
            self.one_sided.adapter().register(2 * PART, Access::REMOTE_READ).await.expect("registered");
        region.write(0, &stream::pattern(0, PART)).expect("in bounds");
        region
    }

    /// Reads on until the server ends the connection for a violation, which it does with a word.
    async fn assert_ended(&mut self, what: &str) {
        loop {
            match self.next().await {
                Ok((GO_AWAY, _, payload)) => return assert_eq!(payload[4..], [0, 0, 0, 6], "{what}"),
                Ok(_) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
}

/// Returns the payload of a frame that lends part of a memory.
fn loan(number: u32, memory: &Region, length: usize) -> Vec<u8> {
    let remote = memory.remote_part(0..length).expect("in bounds");
    [&number.to_be_bytes()[..], &remote.to_bytes()].concat()
}

/// Answers with 1 MiB, at once.
async fn answer_long(_: Request<Incoming>) -> Response<Full<Bytes>> {
    Response::new(Full::new(pattern(9, 1 << 20)))
}

/// Reads the frames of answers of 1 MiB until parts of one are lent. Returns the first of these, and how much came before.
async fn first_lent(raw: &mut Raw) -> (Vec<u8>, usize) {
    for call in 1.. {
        raw.post(call, END).await;
        let mut before = 0;
        loop {
            let (kind, flags, payload) = raw.next().await.expect("a frame");
            match kind {
                LENT => return (payload, before),
                HEAD => before += payload.len() - 4 - payload[3] as usize,
                _ => before += payload.len(),
            }
            if flags & END != 0 {
                break;
            }
        }
        assert_eq!(before, 1 << 20);
        // The memory is being registered.
        tokio::task::yield_now().await;
    }
    unreachable!("it is lent once there is memory")
}

// The first bodies come in frames, while memory is registered. A server that ends waits for the loans.
#[tokio::test]
async fn server_waits_for_its_loans() {
    let adapter = adapter();
    let (address, stop) = serve(&adapter, answer_long);
    let Some(mut raw) = Raw::connect(&adapter, address).await else { return };
    let (mut lent, mut at) = first_lent(&mut raw).await;
    drop(stop);
    let mut loans = Vec::new();
    loop {
        let (bytes, number) = raw.read(&lent).await;
        assert!(bytes == stream::pattern(9 + at, bytes.len()), "from {at}");
        at += bytes.len();
        loans.push(number);
        match raw.next().await.expect("a frame") {
            (LENT, _, payload) => lent = payload,
            (GO_AWAY, _, _) => {
                let (kind, _, payload) = raw.next().await.expect("a frame");
                assert_eq!(kind, LENT);
                lent = payload;
            }
            (kind, flags, payload) => {
                at += payload.len();
                assert_eq!((kind, flags), (DATA, END));
                break;
            }
        }
    }
    assert_eq!(at, 1 << 20);
    let last = loans.pop().expect("one");
    for number in loans {
        raw.send(RETURNED, 0, 0, &number).await;
    }
    // All calls have ended, and yet the memory is there.
    let (bytes, _) = raw.read(&lent).await;
    assert!(!bytes.is_empty());
    raw.send(RETURNED, 0, 0, &last).await;
    loop {
        match raw.next().await {
            Ok((kind, ..)) => assert_eq!(kind, GO_AWAY),
            Err(error) => break assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
        }
    }
}

// Also when nobody reads the body, because the service has answered or the call has ended.
#[tokio::test]
async fn every_loan_is_returned() {
    let adapter = adapter();
    let (address, _stop) = serve(&adapter, async |request: Request<Incoming>| {
        let body = request.into_body();
        match body.into_data_stream().next().await {
            Some(Ok(first)) if first[..] == *b"wait" => pending().await,
            Some(Ok(first)) => assert!(first == pattern(0, first.len()), "what was lent"),
            other => panic!("{other:?}"),
        }
        Response::new(Empty::<Bytes>::new())
    });
    let Some(mut raw) = Raw::connect(&adapter, address).await else { return };
    let memory = raw.memory().await;
    for (call, first) in [(1, true), (2, false)] {
        raw.post(call, 0).await;
        if !first {
            raw.send(DATA, 0, call, b"wait").await;
        }
        for number in 0..3 {
            raw.send(LENT, 0, call, &loan(60 + number, &memory, PART)).await;
        }
        let mut returned = Vec::new();
        while returned.len() < 3 {
            let (kind, _, payload) = raw.next().await.expect("a frame");
            if kind == RETURNED {
                returned.push(payload[3]);
            }
        }
        returned.sort_unstable();
        assert_eq!(returned, [60, 61, 62], "call {call}");
    }
}

#[tokio::test]
async fn wrong_loans_end_the_connection() {
    let adapter = adapter();
    let (address, _stop) = serve(&adapter, async |_| pending::<Response<Empty<Bytes>>>().await);
    let Some(raw) = Raw::connect(&adapter, address).await else { return };
    let memory = raw.memory().await;
    let short = loan(0, &memory, 1)[1..].to_vec();
    let mut nothing = loan(0, &memory, 1);
    nothing[16..].fill(0);
    let cases = [
        ("a number that is too large", vec![(LENT, 1, loan(64, &memory, PART))]),
        ("a loan of nothing", vec![(LENT, 1, nothing)]),
        ("a loan that is too short", vec![(LENT, 1, loan(0, &memory, PART / 2 - 1))]),
        ("a loan that is too long", vec![(LENT, 1, loan(0, &memory, PART + 1))]),
        ("a short frame", vec![(LENT, 1, short)]),
        ("a loan for no call", vec![(LENT, 2, loan(0, &memory, PART))]),
        ("a return of nothing", vec![(RETURNED, 0, vec![0; 4])]),
        ("the same loan twice", vec![(LENT, 1, loan(0, &memory, PART)), (LENT, 1, loan(0, &memory, PART))]),
        (
            "more than the window",
            (0..4).map(|number| (LENT, 1, loan(number, &memory, PART))).collect::<Vec<_>>(),
        ),
    ];
    for (what, frames) in cases {
        let mut raw = Raw::connect(&adapter, address).await.expect("as before");
        raw.post(1, 0).await;
        for (kind, call, payload) in frames {
            raw.send(kind, 0, call, &payload).await;
        }
        raw.assert_ended(what).await;
    }
    // What a relay passes on would be memory of another connection.
    let mut raw = Raw::connect_as(&adapter, address, 1).await.expect("as before");
    raw.post(1, 0).await;
    raw.send(LENT, 0, 1, &loan(0, &memory, PART)).await;
    raw.assert_ended("a relay").await;
    // A device does not permit it, which ends the connection without a word.
    let mut raw = Raw::connect(&adapter, address).await.expect("as before");
    let memory = raw.memory().await;
    let revoked = loan(0, &memory, PART);
    memory.deregister().await.expect("deregistered");
    raw.post(1, 0).await;
    raw.send(LENT, 0, 1, &revoked).await;
    while raw.next().await.is_ok() {}
}
