//! An iWARP peer that sends bytes over TCP, without any code under test.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rdma::error::{ConnectError, Reason};
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, ConnectParams, Connection, DisconnectReason, Op, QueuePair, Reply, Status,
    WorkBuffer,
};

use super::tcp::{TcpListener, TcpStream};
use super::{Device, End, Pair, connected, listening, queue_pair, within};

pub const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
pub const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";

/// Flags of a start-up frame (RFC 5044 section 7.1.1, RFC 6581).
pub const MARKERS: u16 = 0x8000;
pub const CRC: u16 = 0x4000;
pub const REJECT: u16 = 0x2000;
pub const ENHANCED: u16 = 0x1000;
/// Of this crate: segments announce how many follow, in a request and in the reply to it.
pub const OFFERS_ANNOUNCEMENTS: u16 = 0x0400;
pub const TAKES_ANNOUNCEMENTS: u16 = 0x0200;
/// In the IRD word: A, peer-to-peer; B, an empty frame for RTR.
pub const PEER_TO_PEER: u16 = 0x8000;
pub const RTR_SEND: u16 = 0x4000;
/// In the ORD word: C and D, an empty Write or Read for RTR.
pub const RTR_WRITE: u16 = 0x8000;
pub const RTR_READ: u16 = 0x4000;

pub const WRITE: u8 = 0;
pub const READ_REQUEST: u8 = 1;
pub const READ_RESPONSE: u8 = 2;
pub const SEND: u8 = 3;
pub const TERMINATE: u8 = 7;

/// The private data of a stream's peer that confirms what it has received, and takes messages in memory that is nowhere.
pub const STREAM: [u8; 40] = {
    let mut hello = [0; 40];
    // Version, credits, the flags of this crate; two targets and a ring.
    (hello[0], hello[3], hello[4]) = (1, 100, 3);
    (hello[19], hello[23]) = (1, 2);
    (hello[35], hello[37]) = (2, 16);
    hello
};

/// The CRC32C of each byte alone.
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC32C, byte by byte.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| crc >> 8 ^ REMAINDERS[(crc as u8 ^ byte) as usize])
}

/// A start-up frame.
#[derive(Clone, Debug)]
pub struct Start {
    pub flags: u16,
    pub revision: u8,
    /// The IRD and ORD words of revision 2.
    pub words: Option<(u16, u16)>,
    pub data: Vec<u8>,
}

impl Start {
    /// Revision 2 with limits, not peer-to-peer.
    pub fn enhanced(ird: u16, ord: u16) -> Self {
        Self { flags: ENHANCED, revision: 2, words: Some((ird, ord)), data: Vec::new() }
    }

    /// The same, peer-to-peer, with an empty Write for RTR.
    pub fn peer_to_peer(ird: u16, ord: u16) -> Self {
        Self::enhanced(ird | PEER_TO_PEER, ord | RTR_WRITE)
    }

    /// One that says no limits.
    pub fn plain(revision: u8) -> Self {
        Self { flags: 0, revision, words: None, data: Vec::new() }
    }

    pub fn flag(mut self, flag: u16) -> Self {
        self.flags |= flag;
        self
    }

    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    pub fn encode(&self, key: &[u8; 16]) -> Vec<u8> {
        let mut rest = Vec::new();
        if let Some((ird, ord)) = self.words {
            rest.extend_from_slice(&ird.to_be_bytes());
            rest.extend_from_slice(&ord.to_be_bytes());
        }
        rest.extend_from_slice(&self.data);
        let mut out = key.to_vec();
        out.extend_from_slice(&(self.flags | u16::from(self.revision)).to_be_bytes());
        out.extend_from_slice(&(rest.len() as u16).to_be_bytes());
        out.extend_from_slice(&rest);
        out
    }
}

/// An untagged ULPDU.
pub fn untagged(opcode: u8, last: bool, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![if last { 0x41 } else { 0x01 }, 0x40 | opcode, 0, 0, 0, 0];
    for word in [qn, msn, mo] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(payload);
    out
}

/// A tagged ULPDU.
pub fn tagged(opcode: u8, last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![if last { 0xc1 } else { 0x81 }, 0x40 | opcode];
    out.extend_from_slice(&stag.to_be_bytes());
    out.extend_from_slice(&to.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A whole Send.
pub fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(SEND, true, 0, msn, 0, payload)
}

/// A whole Write.
pub fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(WRITE, true, stag, to, payload)
}

/// Adds to a ULPDU how many full segments of its message follow.
pub fn announcing(mut ulpdu: Vec<u8>, count: usize) -> Vec<u8> {
    ulpdu[0] |= (count as u8 & 0x0f) << 2;
    ulpdu[1] |= count as u8 & 0x30;
    ulpdu
}

/// How many full segments of its message follow a ULPDU, as it says.
pub fn announced(ulpdu: &[u8]) -> usize {
    usize::from((ulpdu[0] & 0x3c) >> 2 | ulpdu[1] & 0x30)
}

/// The payload of a Read Request.
pub fn read_payload(sink: (u32, u64), size: u32, source: (u32, u64)) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&sink.0.to_be_bytes());
    out.extend_from_slice(&sink.1.to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&source.0.to_be_bytes());
    out.extend_from_slice(&source.1.to_be_bytes());
    out
}

/// A Read Request.
pub fn read_request(msn: u32, sink: (u32, u64), size: u32, source: (u32, u64)) -> Vec<u8> {
    untagged(READ_REQUEST, true, 1, msn, 0, &read_payload(sink, size, source))
}

/// A Terminate with these bytes of content.
pub fn terminate(content: &[u8]) -> Vec<u8> {
    untagged(TERMINATE, true, 2, 1, 0, content)
}

/// The ULPDU as an FPDU.
pub fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut out = (ulpdu.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(ulpdu);
    out.resize(out.len().next_multiple_of(4), 0);
    let checksum = if crc { crc32c(&out) } else { 0 };
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// A received ULPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(pub Vec<u8>);

impl Frame {
    pub fn is_tagged(&self) -> bool {
        self.0[0] & 0x80 != 0
    }

    pub fn is_last(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    pub fn opcode(&self) -> u8 {
        self.0[1] & 0x0f
    }

    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    pub fn long(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    pub fn payload(&self) -> &[u8] {
        &self.0[if self.is_tagged() { 14 } else { 18 }..]
    }

    /// The frame that wakes a sleepy peer and says nothing.
    pub fn is_nudge(&self) -> bool {
        self.is_tagged() && self.opcode() == WRITE && self.payload().is_empty()
    }

    /// Layer, type and code of a Terminate, in the order of RFC 5040.
    pub fn terminated(&self) -> Option<(u8, u8, u8)> {
        if self.is_tagged() || self.opcode() != TERMINATE {
            return None;
        }
        assert_eq!((self.word(6), self.word(10), self.word(14)), (2, 1, 0), "queue, number and offset");
        let control = self.payload();
        Some((control[0] >> 4, control[0] & 0x0f, control[1]))
    }

    /// The answer to this Read Request, with `data` in one segment.
    pub fn answer(&self, data: &[u8]) -> Vec<u8> {
        assert_eq!(self.opcode(), READ_REQUEST);
        tagged(READ_RESPONSE, true, self.word(18), self.long(22), data)
    }

    /// How much a Read Request wants.
    pub fn read_size(&self) -> usize {
        self.word(30) as usize
    }
}

/// The peer.
pub struct Raw {
    pub stream: TcpStream,
    pub crc: bool,
}

impl Raw {
    /// A TCP connection on which nothing has been said.
    pub async fn dial(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.expect("TCP connects"), crc: false }
    }

    /// A connection that has asked for a byte stream, and the reply.
    pub async fn asks_for_stream(address: SocketAddr) -> (Self, Start) {
        let mut raw = Self::dial(address).await;
        let mut hello = vec![0; 40];
        hello[0] = 1;
        hello[2..4].copy_from_slice(&100_u16.to_be_bytes());
        hello[23] = 2;
        hello[39] = 64;
        raw.say(&Start::peer_to_peer(16, 16).data(&hello).encode(REQUEST_KEY)).await;
        let reply = raw.start_frame(REPLY_KEY).await;
        (raw, reply)
    }

    /// A place to be dialled.
    pub async fn listener() -> (TcpListener, SocketAddr) {
        TcpListener::bind(Ipv4Addr::LOCALHOST.into()).await.expect("bound")
    }

    /// Whoever comes.
    pub async fn answer_the_phone(listener: &TcpListener) -> Self {
        Self { stream: within(listener.accept()).await.expect("accepted"), crc: false }
    }

    pub async fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("it listens");
    }

    /// As [`say`](Self::say), to one that may have hung up.
    pub async fn try_say(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Sends a ULPDU.
    pub async fn post(&mut self, ulpdu: &[u8]) {
        let frame = fpdu(ulpdu, self.crc);
        self.say(&frame).await;
    }

    /// The next start-up frame; flags without the revision.
    pub async fn start_frame(&mut self, key: &[u8; 16]) -> Start {
        within(async {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head).await.expect("a start-up frame");
            assert_eq!(&head[..16], key);
            let word = u16::from_be_bytes([head[16], head[17]]);
            let mut data = vec![0; u16::from_be_bytes([head[18], head[19]]).into()];
            self.stream.read_exact(&mut data).await.expect("its private data");
            let words = (word & ENHANCED != 0).then(|| {
                let rest = data.split_off(4);
                let word = |at| u16::from_be_bytes([data[at], data[at + 1]]);
                let words = (word(0), word(2));
                data = rest;
                words
            });
            Start { flags: word & 0xff00, revision: word as u8, words, data }
        })
        .await
    }

    /// The next frame; `None` at the end of the stream, orderly or not.
    pub async fn frame(&mut self) -> Option<Frame> {
        within(async {
            let mut bytes = vec![0; 2];
            self.stream.read_exact(&mut bytes).await.ok()?;
            let length = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
            let padded = (2 + length).next_multiple_of(4);
            bytes.resize(padded + 4, 0);
            self.stream.read_exact(&mut bytes[2..]).await.ok()?;
            let checksum = u32::from_le_bytes(bytes[padded..].try_into().expect("four bytes"));
            assert_eq!(checksum, if self.crc { crc32c(&bytes[..padded]) } else { 0 }, "the checksum");
            Some(Frame(bytes[2..2 + length].to_vec()))
        })
        .await
    }

    /// The next frame that says something.
    pub async fn message(&mut self) -> Option<Frame> {
        loop {
            let frame = self.frame().await?;
            if !frame.is_nudge() {
                return Some(frame);
            }
        }
    }

    /// A message that is already here, or on its way through a simulated network.
    pub async fn message_now(&mut self) -> Option<Frame> {
        if Device::under_test() == Device::Sim {
            return timeout(Duration::from_secs(1), self.message()).await.ok().flatten();
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
            if self.has_bytes() {
                let frame = self.frame().await?;
                if !frame.is_nudge() {
                    return Some(frame);
                }
            }
        }
        None
    }

    /// Whether something can be read, or the stream has ended.
    pub fn has_bytes(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match self.stream.socket().peek(&mut byte) {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(_) => true,
        }
    }

    /// All that still comes; the last words of a connection that was violated are a Terminate.
    pub async fn last_words(&mut self) -> Option<(u8, u8, u8)> {
        let mut last = None;
        while let Some(frame) = self.frame().await {
            assert_eq!(last, None, "nothing follows a Terminate");
            last = frame.terminated();
        }
        last
    }

    /// All bytes to the end of the stream.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = within(self.stream.read_to_end(&mut bytes)).await;
        bytes
    }

    /// Closes with a reset.
    pub fn reset(self) {
        self.stream.reset().expect("linger");
    }
}

/// A connection that `raw` asks for with `start`; the passive end and what it replied.
pub async fn raw_connects(adapter: &Adapter, start: Start, accept: AcceptParams) -> (End, Raw, Start) {
    raw_connects_to(adapter, queue_pair(adapter), start, accept).await
}

/// The same with a queue pair to which receives may have been posted.
pub async fn raw_connects_to(
    adapter: &Adapter,
    queue_pair: QueuePair,
    start: Start,
    accept: AcceptParams,
) -> (End, Raw, Start) {
    let (listener, address) = listening(adapter);
    let peer = async {
        let mut raw = Raw::dial(address).await;
        raw.say(&start.encode(REQUEST_KEY)).await;
        let reply = raw.start_frame(REPLY_KEY).await;
        assert_eq!(reply.flags & REJECT, 0, "accepted");
        raw.crc = reply.flags & CRC != 0;
        if reply.words.is_some_and(|(ird, _)| ird & PEER_TO_PEER != 0) {
            raw.post(&write(0, 0, &[])).await;
        }
        (raw, reply)
    };
    let ((raw, reply), connection) =
        within(async { tokio::join!(peer, listener.accept_next(&queue_pair, accept)) }).await;
    (End { queue_pair, connection: connection.expect("accepted") }, raw, reply)
}

/// A connection that `raw` grants with `reply`; the active end and what it had asked for.
pub async fn raw_accepts(adapter: &Adapter, reply: Start) -> (End, Raw, Start) {
    let (half, raw, request, queue_pair) = raw_replies(adapter, &reply.encode(REPLY_KEY)).await;
    let connection = half.expect("connected").complete().await.expect("completed");
    let mut raw = raw;
    raw.crc = (request.flags | reply.flags) & CRC != 0;
    (End { queue_pair, connection }, raw, request)
}

/// The outcome of a connect that gets these bytes for a reply.
pub async fn raw_replies(
    adapter: &Adapter,
    bytes: &[u8],
) -> (Result<Reply, ConnectError>, Raw, Start, QueuePair) {
    let (listener, address) = Raw::listener().await;
    let queue_pair = queue_pair(adapter);
    let peer = async {
        let mut raw = Raw::answer_the_phone(&listener).await;
        let request = raw.start_frame(REQUEST_KEY).await;
        raw.say(bytes).await;
        (raw, request)
    };
    let connector = adapter.connector();
    let params = ConnectParams::default();
    let ((raw, request), half) =
        within(async { tokio::join!(peer, connector.connect(&queue_pair, address, params)) }).await;
    (half, raw, request, queue_pair)
}

/// A connection that has nothing to do with what happens to others.
pub struct Bystander(Pair);

impl Bystander {
    pub async fn new(adapter: &Adapter) -> Self {
        Self(connected(adapter).await)
    }

    /// It still works, both ways.
    pub async fn is_well(&self, adapter: &Adapter, after: &str) {
        let Pair { active, passive } = &self.0;
        for (from, to) in [(active, passive), (passive, active)] {
            let receive = to.queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted");
            let send =
                from.queue_pair.send(adapter.buffer_from(b"bystand").expect("a buffer")).expect("posted");
            assert!(within(send).await.0.is_ok(), "the bystander, after {after}");
            let (outcome, buffer) = within(receive).await;
            assert_eq!(outcome.map(|done| done.bytes), Ok(7), "the bystander, after {after}");
            assert_eq!(&buffer[..7], b"bystand");
        }
    }
}

/// The status of a request that failed.
pub async fn failure<B: WorkBuffer>(op: Op<B>) -> Status {
    within(op).await.0.expect_err("it fails").status()
}

/// The bytes that a request moved, and the buffer.
pub async fn success<B: WorkBuffer>(op: Op<B>) -> (usize, B) {
    let (outcome, buffer) = within(op).await;
    (outcome.expect("it succeeds").bytes, buffer)
}

/// Whether a send succeeded whose peer leaves as soon as it has the message; if not, it was cancelled.
///
/// rxe completes a receive before it acknowledges the message, so a peer that leaves at once may take the last
/// acknowledgement with it. That the message came, the peer says itself.
pub async fn success_or_canceled<B: WorkBuffer>(op: Op<B>) -> bool {
    let (outcome, _) = within(op).await;
    let status = outcome.err().map(|error| error.status());
    assert!(matches!(status, None | Some(Status::CANCELED)), "{status:?}");
    status.is_none()
}

/// A buffer with these bytes.
pub fn bytes(adapter: &Adapter, bytes: &[u8]) -> Buffer {
    adapter.buffer_from(bytes).expect("a buffer")
}

/// A buffer of zeroes.
pub fn room(adapter: &Adapter, length: usize) -> Buffer {
    adapter.buffer(length).expect("a buffer")
}

/// How a connection was lost: the status, and the Terminate with whether this side sent it.
pub async fn terminated(connection: &Connection) -> (Status, bool, (u8, u8, u8)) {
    match within(connection.disconnected()).await {
        DisconnectReason::Lost { status, reason: Reason::Terminate { sent, layer, etype, code } } => {
            (status, sent, (layer, etype, code))
        }
        other => panic!("not a Terminate: {other:?}"),
    }
}

/// Outcomes of a send queue in which something is refused by the peer: successes that were early, one failure
/// that says what happened, and nothing but `CANCELED` behind it.
pub async fn one_failure(ops: Vec<Op<Buffer>>) -> Status {
    let mut failures = Vec::new();
    for op in ops {
        match within(op).await.0 {
            Ok(_) => assert_eq!(failures, [], "nothing succeeds behind a failure"),
            Err(error) => failures.push(error.status()),
        }
    }
    let (first, rest) = failures.split_first().expect("something fails");
    assert!(rest.iter().all(|status| *status == Status::CANCELED), "{failures:?}");
    *first
}
