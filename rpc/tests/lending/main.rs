//! Long bodies, which devices read from each other's memory.
//!
//! Runs on: soft, fake, fake-iwarp, rxe, siw

mod limits;

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
const RESET: u8 = 3;
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
    serve_with(adapter, Config::default(), answer)
}

/// Serves like [`serve`], with these limits.
fn serve_with<F, A, B>(adapter: &Adapter, config: Config, answer: F) -> (SocketAddr, oneshot::Sender<()>)
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
    tokio::spawn(Server::new().config(config).serve_with_shutdown(listener, service, ended));
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

fn channel(adapter: Adapter, address: SocketAddr, config: Config) -> Channel {
    Channel::with_connector(&address.to_string(), false, config, move || {
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
        let channel = channel(adapter.clone(), address, Config::default());
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

/// Returns whether the connections of an adapter lend memory and read it.
fn lends(adapter: &Adapter) -> bool {
    !Device::under_test().is_soft() && !adapter.info().read_sink_required
}

async fn connect(adapter: &Adapter, address: SocketAddr) -> RdmaStream {
    let config = StreamConfig::default();
    within(RdmaStream::connect_on(adapter, address, &config)).await.expect("connected")
}

/// Exchanges the hellos, and says in this end's that its port is so much higher. Returns whether the peer lends and reads.
async fn greet(stream: &mut RdmaStream, wrong: u16) -> bool {
    let lends = lends(&stream.adapter());
    let limits = b"\x00\x04\x00\x00\x10\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x64\x00\x00\x40\x00";
    let [own, peer] = [stream.local_addr(), stream.peer_addr()].map(|address| address.expect("connected"));
    let own = SocketAddr::new(own.ip(), own.port().wrapping_add(wrong));
    let ends = if lends { [place(own), place(peer)].concat() } else { Vec::new() };
    let length = u16::try_from(20 + ends.len()).expect("short").to_be_bytes();
    let hello = [&b"rdma-rpc\x01"[..], &[lends.into()], &length, limits, &ends].concat();
    within(stream.write_all(&hello)).await.expect("written");
    let mut start = [0; 12];
    within(stream.read_exact(&mut start)).await.expect("a hello");
    let [.., flags, a, b] = start;
    let mut rest = vec![0; u16::from_be_bytes([a, b]).into()];
    within(stream.read_exact(&mut rest)).await.expect("a hello");
    assert_eq!(start[..9], *b"rdma-rpc\x01");
    flags == 1
}

/// Returns a frame.
fn frame(kind: u8, flags: u8, call: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    [&length.to_be_bytes()[..], &call.to_be_bytes(), &[kind, flags, 0, 0], payload].concat()
}

impl Raw {
    /// Connects, and exchanges the hellos. `None` where bodies are not lent.
    async fn connect(adapter: &Adapter, address: SocketAddr) -> Option<Self> {
        Self::connect_as(adapter, address, 0).await
    }

    /// Connects like [`connect`](Self::connect), and says in the hello that its port is so much higher.
    async fn connect_as(adapter: &Adapter, address: SocketAddr, wrong: u16) -> Option<Self> {
        let mut stream = connect(adapter, address).await;
        let is_lent_to = greet(&mut stream, wrong).await;
        assert_eq!(is_lent_to, lends(adapter), "devices read, unless they name their memory");
        Self::of(stream)
    }

    /// Returns the client on a stream behind the hellos. `None` where bodies are not lent.
    fn of(stream: RdmaStream) -> Option<Self> {
        let one_sided = stream.one_sided().filter(|one_sided| lends(one_sided.adapter()))?;
        Some(Self { stream, one_sided })
    }

    async fn send(&mut self, kind: u8, flags: u8, call: u32, payload: &[u8]) {
        within(self.stream.write_all(&frame(kind, flags, call, payload))).await.expect("written");
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

/// Reads the frames of an answer to its end, or until a part of it is lent. Returns the length of what came in frames, and the
/// part that is lent.
async fn answer(raw: &mut Raw) -> (usize, Option<Vec<u8>>) {
    let mut length = 0;
    loop {
        let (kind, flags, payload) = raw.next().await.expect("a frame");
        match kind {
            LENT => return (length, Some(payload)),
            HEAD => length += payload.len() - 4 - payload[3] as usize,
            kind => {
                assert_eq!(kind, DATA);
                length += payload.len();
            }
        }
        if flags & END != 0 {
            return (length, None);
        }
    }
}

/// Begins calls with answers of 1 MiB until parts of one are lent. Returns its number, the first of these parts, and the length of
/// what came before.
async fn first_lent(raw: &mut Raw) -> (u32, Vec<u8>, usize) {
    for call in 1.. {
        raw.post(call, END).await;
        match answer(raw).await {
            (before, Some(lent)) => return (call, lent, before),
            (whole, None) => assert_eq!(whole, 1 << 20),
        }
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
    let (call, mut lent, mut at) = first_lent(&mut raw).await;
    drop(stop);
    let (mut loans, mut is_ending) = (Vec::new(), false);
    loop {
        let (bytes, number) = raw.read(&lent).await;
        assert!(bytes == stream::pattern(9 + at, bytes.len()), "from {at}");
        at += bytes.len();
        loans.push(number);
        let mut next = raw.next().await.expect("a frame");
        if next.0 == GO_AWAY {
            is_ending = true;
            next = raw.next().await.expect("a frame");
        }
        match next {
            (LENT, _, payload) => lent = payload,
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
    if !is_ending {
        assert_eq!(raw.next().await.expect("a frame").0, GO_AWAY);
    }
    // All calls have ended, and yet the memory is there, and the server goes on.
    let (bytes, _) = raw.read(&lent).await;
    assert!(!bytes.is_empty());
    raw.post(call + 1, END).await;
    assert_eq!(raw.next().await.expect("a frame"), (RESET, 0, vec![0, 0, 0, 2]), "refused");
    raw.send(RETURNED, 0, 0, &last).await;
    assert_eq!(raw.next().await.expect_err("an end").kind(), io::ErrorKind::UnexpectedEof);
}

// The hello says so, so that the peer has its bodies in frames, too.
#[tokio::test]
async fn bodies_stay_in_frames_if_so_configured() {
    let adapter = adapter();
    let config = Config::default().one_sided(false);
    let (address, _stop) = serve_with(&adapter, config, answer_long);
    let mut stream = connect(&adapter, address).await;
    assert!(!greet(&mut stream, 0).await, "the server");
    if let Some(mut raw) = Raw::of(stream) {
        for call in 1..10 {
            raw.post(call, END).await;
            assert_eq!(answer(&mut raw).await, (1 << 20, None));
        }
    }
    let listener = stream::listening(&adapter, &StreamConfig::default());
    let channel = channel(adapter, listener.local_addr().expect("an address"), config);
    let calling = tokio::spawn(async move { call(&channel, 0, 1 << 20).await });
    let (mut stream, _) = within(listener.accept()).await.expect("accepted");
    assert!(!greet(&mut stream, 0).await, "the client");
    calling.abort();
}

// A program may keep more of what was lent than there are buffers for.
#[tokio::test]
async fn kept_bodies_leave_buffers_for_others() {
    const PARTS: usize = 20;
    let adapter = adapter();
    let config = Config::default().call_window(16 << 20).connection_window(16 << 20);
    let (address, _stop) = serve_with(&adapter, config, async |request: Request<Incoming>| {
        let body = request.into_body().into_data_stream();
        let parts: Vec<_> = body.map(|part| part.expect("a part")).collect().await;
        assert!(parts.iter().all(|part| *part == pattern(0, PART)) && parts.len() == PARTS);
        Response::new(Empty::<Bytes>::new())
    });
    let Some(mut raw) = Raw::connect(&adapter, address).await else { return };
    let memory = raw.memory().await;
    raw.post(1, 0).await;
    for _ in 0..PARTS {
        raw.send(LENT, 0, 1, &loan(0, &memory, PART)).await;
        assert_eq!(raw.next().await.expect("a frame"), (RETURNED, 0, vec![0; 4]));
    }
    raw.send(DATA, END, 1, b"").await;
    assert_eq!(answer(&mut raw).await, (0, None));
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
        // At once: a loan that comes alone may be returned before the next one comes.
        let frames = frames.iter().map(|(kind, call, payload)| frame(*kind, 0, *call, payload));
        within(raw.stream.write_all(&frames.collect::<Vec<_>>().concat())).await.expect("written");
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
