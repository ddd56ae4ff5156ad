//! A whole connection of the soft provider against a peer that does what the fuzzer says.
//!
//! The peer is a plain TCP socket over loopback. It does the start-up as it should; then the input is a list of
//! commands: what the peer sends, and what the user of our end does. A model of what was legal says what must be.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::runtime::{Builder, Runtime};

use super::input::Input;
use super::peer::{Peer, Reader, SECRET};
use crate::cm::{AcceptParams, Adapter, ConnectParams, Connection, Listener, Provider};
use crate::error::CompletionError;
use crate::mr::{Buffer, Region, RemoteRegion};
use crate::proto::mpa::{Rtr, rtr_frame};
use crate::provider::soft::config::SoftConfig;
use crate::qp::{Completion, Op, QueuePair, QueuePairConfig};
use crate::types::{Access, DisconnectReason, ReadLimits, RemoteKey};
use crate::wire::crc::{crc32c, to_wire};
use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::mpa::{Enhanced, LENGTH_SIZE, StartFrame, StartKind, pad_length};
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate, queue};

/// Nothing here takes as long: who gets here hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most commands and payload bytes of one run.
const COMMANDS: usize = 48;
const PAYLOAD: usize = 512 * 1024;
/// What receive buffers hold before.
const BLANK: u8 = 0xee;
/// What the last check writes.
const PROBE: u8 = 0x77;

/// What is made once and used by many runs.
struct Harness {
    adapter: Adapter,
    checked: Adapter,
    listener: Listener,
    checked_listener: Listener,
    /// Where the peer waits for our active end.
    foreign: TcpListener,
    runtime: Runtime,
}

impl Harness {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let inside = runtime.enter();
        let open = |crc| {
            let config = SoftConfig::default().crc(crc).path_timeout(None);
            let provider = Provider::soft_with(config);
            let id = provider.resolve(Ipv4Addr::LOCALHOST.into()).expect("loopback");
            let adapter = provider.open(id).expect("opened");
            let listener = adapter.listener();
            listener.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
            listener.listen(0).expect("listening");
            (adapter, listener)
        };
        let ((adapter, listener), (checked, checked_listener)) = (open(false), open(true));
        let foreign = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bound");
        foreign.set_nonblocking(true).expect("a socket");
        drop(inside);
        Self { adapter, checked, listener, checked_listener, foreign, runtime }
    }
}

static HARNESSES: Mutex<Vec<Harness>> = Mutex::new(Vec::new());

/// Runs one connection.
///
/// # Panics
/// When our end does anything that it must not.
pub fn fuzz_connection(bytes: &[u8]) {
    let kept = HARNESSES.lock().ok().and_then(|mut harnesses| harnesses.pop());
    let harness = kept.unwrap_or_else(Harness::new);
    let metrics = harness.runtime.metrics();
    harness.runtime.block_on(async {
        // The tasks of the adapters and listeners have begun.
        tokio::task::yield_now().await;
        let before = metrics.num_alive_tasks();
        run(&harness, &mut Input::new(bytes)).await;
        let end = Instant::now() + PATIENCE;
        while metrics.num_alive_tasks() > before {
            assert!(Instant::now() < end, "a task outlives its connection");
            tokio::task::yield_now().await;
        }
    });
    if let Ok(mut harnesses) = HARNESSES.lock() {
        harnesses.push(harness);
    }
}

/// Another loopback address for every run: nobody waits for ports in TIME_WAIT.
fn loopback() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % (1 << 20);
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number)
}

/// Bytes that are never [`SECRET`], [`BLANK`] or a mistake.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31) ^ at.wrapping_shr(8) as u8 ^ seed as u8)
        .map(|b| b & 0x3f)
        .collect()
}

/// The first bytes of the input.
struct Options {
    active: bool,
    ask_crc: bool,
    own_crc: bool,
    peer_to_peer: bool,
    /// Which of the RTR frames: Send, Write, Read.
    rtr: [bool; 3],
    enhanced: bool,
    /// The peer's first frame is not the RTR frame but what the fuzzer says.
    silent: bool,
    watch: bool,
    piece: usize,
    offered: ReadLimits,
    hard: bool,
}

impl Options {
    fn new(input: &mut Input<'_>) -> Self {
        let (a, b, c, d) = (input.byte(), input.byte(), input.byte(), input.byte());
        let bit = |byte: u8, bit: u8| byte >> bit & 1 != 0;
        Self {
            active: bit(a, 0),
            ask_crc: bit(a, 1),
            own_crc: bit(a, 2),
            peer_to_peer: !bit(a, 3),
            rtr: [bit(a, 4), bit(a, 5), bit(a, 6)],
            enhanced: !bit(a, 7),
            silent: bit(b, 0),
            watch: !bit(b, 1),
            hard: bit(b, 2),
            piece: if bit(b, 3) { usize::from(b >> 4) + 1 } else { 0 },
            offered: ReadLimits::new((c & 15).into(), (c >> 4).into())
                .capped_to(ReadLimits::new(8, (d & 15).into())),
        }
    }

    fn start_frame(&self, kind: StartKind) -> Vec<u8> {
        let [rtr_send, rtr_write, rtr_read] = self.rtr;
        let ReadLimits { inbound, outbound } = self.offered.swapped();
        let (ird, ord) = (inbound as u16, outbound as u16);
        let enhanced = Enhanced { ird, ord, peer_to_peer: self.peer_to_peer, rtr_send, rtr_write, rtr_read };
        let private_data =
            if self.enhanced { Bytes::copy_from_slice(&enhanced.encode()) } else { Bytes::new() };
        let frame = StartFrame {
            kind,
            markers: false,
            crc: self.ask_crc,
            reject: false,
            enhanced: self.enhanced,
            revision: if self.enhanced { 2 } else { 1 },
            private_data,
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    }
}

/// A region, and what should be in it.
struct Known {
    region: Region,
    /// What is in it if nothing illegal happened.
    bytes: Vec<u8>,
    /// Our own user had it written, too.
    local: bool,
}

impl Known {
    fn is_as_expected(&self) -> bool {
        let mut bytes = vec![0; self.bytes.len()];
        self.region.read(0, &mut bytes).expect("in bounds");
        bytes == self.bytes
    }
}

/// What a future of our end came to.
enum Outcome {
    Received(usize, Result<Completion, CompletionError>, Buffer),
    Read(Result<Completion, CompletionError>, Buffer),
    Other,
    Over(DisconnectReason),
}

struct Session<'a> {
    adapter: &'a Adapter,
    options: Options,
    crc: bool,
    peer: Peer,
    reader: Reader,
    establishing: Option<LocalBoxFuture<'static, Option<Connection>>>,
    connection: Option<Connection>,
    established: bool,
    over: Option<DisconnectReason>,
    queue_pair: Option<QueuePair>,
    pending: FuturesUnordered<LocalBoxFuture<'static, Outcome>>,
    regions: Vec<Known>,
    /// The rooms of the posted receives, as far as messages have not taken them.
    rooms: VecDeque<usize>,
    receives: usize,
    /// The legal messages of the peer.
    messages: Vec<Vec<u8>>,
    message: Vec<u8>,
    send_msn: u32,
    read_msn: u32,
    payload: usize,
    burst: bool,
    may_speak: bool,
}

async fn run(harness: &Harness, input: &mut Input<'_>) {
    let options = Options::new(input);
    let (adapter, listener) = if options.own_crc {
        (&harness.checked, &harness.checked_listener)
    } else {
        (&harness.adapter, &harness.listener)
    };
    let config = QueuePairConfig::default().receive_depth(8).initiator_depth(8);
    let queue_pair = adapter.queue_pair(config).expect("a queue pair");
    let probe = adapter.register(16, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
    let mut session = if options.active {
        connect(harness, adapter, queue_pair, options).await
    } else {
        accept(adapter, listener, queue_pair, options).await
    };
    for _ in 0..COMMANDS {
        if input.is_empty() {
            break;
        }
        session.command(input).await;
        if !session.burst {
            session.settle().await;
        }
    }
    session.settle().await;
    session.check_usable(&probe).await;
    session.end().await;
}

/// Our end accepts.
async fn accept<'a>(
    adapter: &'a Adapter,
    listener: &Listener,
    queue_pair: QueuePair,
    options: Options,
) -> Session<'a> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SockAddr::from(SocketAddr::from((loopback(), 0)))).expect("bound");
    socket.connect(&listener.local_addr().expect("it listens").into()).expect("connected");
    let mut peer = Peer::new(socket.into(), 0);
    peer.queue(&options.start_frame(StartKind::Request));
    peer.transfer();
    let request =
        tokio::time::timeout(PATIENCE, listener.request()).await.expect("it hangs").expect("a request");
    let params = AcceptParams::default().read_limits(options.offered);
    let taken = queue_pair.clone();
    let accepting = async move { request.accept(&taken, params).await.ok() };
    let mut session = Session::new(adapter, options, queue_pair, peer, accepting.boxed_local());
    let (frame, _) = session.start_frame(StartKind::Reply).await;
    assert!(!frame.reject, "our own accept");
    let (limits, rtr) = match Enhanced::decode(&frame.private_data) {
        Ok(said) if frame.enhanced => {
            let rtr = match said {
                Enhanced { peer_to_peer: false, .. } => Rtr::None,
                Enhanced { rtr_write: true, .. } => Rtr::Write,
                Enhanced { rtr_read: true, .. } => Rtr::Read,
                _ => Rtr::Send,
            };
            (ReadLimits::new(said.ird.into(), said.ord.into()), rtr)
        }
        _ => (session.options.offered, Rtr::None),
    };
    session.begin(frame.crc, limits);
    if !session.options.silent && rtr != Rtr::None {
        if rtr == Rtr::Read {
            session.reader.outbound.read(None, 0, 0);
            session.read_msn += 1;
        }
        session.peer.queue(&rtr_frame(rtr, frame.crc));
        session.until("it accepts", |session| session.establishing.is_none()).await;
        assert!(session.established, "the start-up of a good peer");
    }
    session
}

/// Our end connects.
async fn connect<'a>(
    harness: &Harness,
    adapter: &'a Adapter,
    queue_pair: QueuePair,
    options: Options,
) -> Session<'a> {
    let port = harness.foreign.local_addr().expect("bound").port();
    let address = SocketAddr::from((loopback(), port));
    let (connector, taken) = (adapter.connector(), queue_pair.clone());
    let params = ConnectParams::default().read_limits(options.offered);
    let mut connecting =
        async move { connector.connect_and_complete(&taken, address, params).await.ok() }.boxed_local();
    let end = Instant::now() + PATIENCE;
    let stream: TcpStream = loop {
        assert!(Instant::now() < end, "it does not connect");
        assert!((&mut connecting).now_or_never().is_none(), "it connects to nobody");
        match harness.foreign.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let mut session = Session::new(adapter, options, queue_pair, Peer::new(stream, 0), connecting);
    let (request, _) = session.start_frame(StartKind::Request).await;
    let said = Enhanced::decode(&request.private_data).expect("our own request");
    assert!(request.enhanced && said.peer_to_peer);
    let offered = ReadLimits::new(said.ird.into(), said.ord.into());
    let answer = if session.options.enhanced { session.options.offered } else { ReadLimits::default() };
    let crc = request.crc || session.options.ask_crc;
    session.begin(crc, offered.capped_to(answer));
    // Who asks for nothing that was offered is not served.
    let [_, write, read] = session.options.rtr;
    let good = !session.options.enhanced || !session.options.peer_to_peer || write || read;
    session.reader.clean = good;
    let reply = session.options.start_frame(StartKind::Reply);
    session.peer.queue(&reply);
    if !session.options.silent {
        session.until("it connects", |session| session.establishing.is_none()).await;
        assert_eq!(session.established, good, "the start-up of a good peer");
    }
    session
}

impl<'a> Session<'a> {
    fn new(
        adapter: &'a Adapter,
        options: Options,
        queue_pair: QueuePair,
        peer: Peer,
        establishing: LocalBoxFuture<'static, Option<Connection>>,
    ) -> Self {
        Self {
            adapter,
            crc: false,
            peer,
            reader: Reader::new(false, ReadLimits::NONE),
            establishing: Some(establishing),
            connection: None,
            established: false,
            over: None,
            queue_pair: Some(queue_pair),
            pending: FuturesUnordered::new(),
            regions: Vec::new(),
            rooms: VecDeque::new(),
            receives: 0,
            messages: Vec::new(),
            message: Vec::new(),
            send_msn: 1,
            read_msn: 1,
            payload: 0,
            burst: false,
            may_speak: false,
            options,
        }
    }

    /// The start-up frame of our end.
    async fn start_frame(&mut self, kind: StartKind) -> (StartFrame, usize) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok((frame, used)) = StartFrame::decode(kind, &self.peer.incoming) {
                self.peer.incoming.drain(..used);
                return (frame, used);
            }
            assert!(Instant::now() < end && !self.peer.ended, "no start-up frame");
            self.peer.transfer();
            self.poll().await;
        }
    }

    /// The start-up frames are exchanged.
    fn begin(&mut self, crc: bool, limits: ReadLimits) {
        self.crc = crc;
        self.reader = Reader::new(crc, limits);
        self.may_speak = self.options.active;
        self.peer.begin(self.options.piece);
    }

    /// Lets our end work, and its futures finish.
    async fn poll(&mut self) {
        poll_fn(|cx| {
            if let Some(establishing) = &mut self.establishing
                && let Poll::Ready(connection) = establishing.poll_unpin(cx)
            {
                self.establishing = None;
                self.connected(connection);
            }
            while let Poll::Ready(Some(outcome)) = self.pending.poll_next_unpin(cx) {
                self.finished(outcome);
            }
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
    }

    fn connected(&mut self, connection: Option<Connection>) {
        self.established = connection.is_some();
        if let Some(connection) = &connection
            && self.options.watch
        {
            let watched = connection.clone();
            self.pending.push(async move { Outcome::Over(watched.disconnected().await) }.boxed_local());
        }
        self.connection = connection;
    }

    fn finished(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Other => {}
            Outcome::Over(reason) => self.over = Some(reason),
            Outcome::Read(Ok(completion), buffer) => {
                assert_eq!(completion.bytes, buffer.len());
                if self.reader.clean {
                    assert_eq!(buffer[..], pattern(buffer.len(), buffer.len())[..], "what was read");
                }
            }
            Outcome::Received(place, Ok(completion), buffer) => {
                let (got, rest) = buffer.split_at(completion.bytes);
                assert!(rest.iter().all(|byte| *byte == BLANK), "written beyond the message");
                if let Some(message) = self.messages.get(place) {
                    assert_eq!(got, message, "message {place}");
                }
            }
            Outcome::Read(Err(_), _) => {}
            Outcome::Received(_, Err(_), buffer) => drop(buffer),
        }
    }

    async fn turn(&mut self) -> bool {
        let moved = self.peer.transfer();
        self.may_speak |= self.peer.spoke;
        self.reader.take(&mut self.peer.incoming, self.may_speak);
        self.poll().await;
        moved
    }

    /// Until nothing moves any more.
    async fn settle(&mut self) {
        let (mut quiet, end) = (0, Instant::now() + PATIENCE);
        while quiet < 4 {
            assert!(Instant::now() < end, "it does not come to rest");
            let moved = self.turn().await;
            quiet = if moved || self.peer.has_more() { 0 } else { quiet + 1 };
        }
    }

    async fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "waiting in vain until {what}");
            self.turn().await;
        }
    }

    async fn command(&mut self, input: &mut Input<'_>) {
        match input.below(20) {
            0 => self.raw(input),
            1..=4 => self.frame(input),
            5 | 6 => self.post_receive(input),
            7 => self.post(input, |queue_pair, buffer, _| queue_pair.send(buffer)),
            8 => self.post(input, |queue_pair, buffer, remote| queue_pair.write(buffer, &remote)),
            9 => self.post_read(input),
            10 => self.register(input).await,
            11 => self.unregister(input).await,
            12 => self.answer(input),
            13 => self.burst = !self.burst,
            14 => self.into_region(input),
            15 => self.settle().await,
            16 => self.user(input),
            17 => self.leave(input),
            18 => self.disconnect(),
            _ => self.valid_write(input),
        }
    }

    fn raw(&mut self, input: &mut Input<'_>) {
        let count = input.byte();
        let mut bytes = input.bytes(count.into()).to_vec();
        bytes.iter_mut().filter(|byte| **byte == SECRET).for_each(|byte| *byte = 0);
        if !bytes.is_empty() {
            (self.reader.clean, self.reader.framed) = (false, false);
            self.peer.queue(&bytes);
        }
    }

    /// The length of a payload, as long as there is some left.
    fn payload_length(&mut self, input: &mut Input<'_>) -> usize {
        let length = input.length().min(PAYLOAD - self.payload);
        self.payload += length;
        length
    }

    /// One FPDU with as much of it wrong as the input wants.
    fn frame(&mut self, input: &mut Input<'_>) {
        let (flags, opcode) = (input.byte(), input.byte() & 15);
        let wrong = |bit: u8| flags >> bit & 1 != 0;
        let last = !wrong(6);
        let region = input.byte();
        let known = Opcode::from_number(opcode);
        let (key, size) = self.target(region);
        let key = if wrong(0) { input.half().into() } else { key };
        let to = if wrong(1) { input.number(size) } else { 0 };
        let mut bytes = if known.is_some_and(Opcode::is_tagged) {
            let length = self.payload_length(input).min(Tagged::MAX_PAYLOAD);
            let header = Tagged { last, opcode: known.unwrap_or(Opcode::Write), stag: key, to };
            [&header.encode(length)[..], &pattern(7, length)].concat()
        } else {
            let (qn, msn) = match known {
                Some(Opcode::ReadRequest) => (queue::READ_REQUEST, self.read_msn),
                Some(Opcode::Terminate) => (queue::TERMINATE, 1),
                _ => (queue::SEND, self.send_msn),
            };
            let payload = match known {
                Some(Opcode::ReadRequest) => {
                    let length =
                        if wrong(1) { input.number(size) as u32 } else { self.payload_length(input) as u32 };
                    let (sink_stag, sink_to) = (u32::from(opcode) + 9, 0);
                    let request = ReadRequest { sink_stag, sink_to, length, source_stag: key, source_to: to };
                    let mut payload = request.encode().to_vec();
                    if wrong(4) {
                        payload.resize(input.length(), 0);
                    }
                    payload
                }
                Some(Opcode::Terminate) => input.bytes(usize::from(flags >> 4) * 4).to_vec(),
                _ => {
                    let length = self.payload_length(input).min(Untagged::MAX_PAYLOAD);
                    pattern(self.messages.len() + self.message.len(), length)
                }
            };
            let header = Untagged {
                last,
                opcode: known.unwrap_or(Opcode::Send),
                invalidate: key,
                qn: if wrong(4) { input.byte().into() } else { qn },
                msn: if wrong(2) { msn.wrapping_add_signed((input.byte() as i8).into()) } else { msn },
                mo: match qn {
                    _ if wrong(3) => input.number(1) as u32,
                    queue::SEND => self.message.len() as u32,
                    _ => 0,
                },
            };
            [&header.encode(payload.len())[..], &payload].concat()
        };
        if known.is_none() {
            bytes[3] = bytes[3] & 0xf0 | opcode;
        }
        if wrong(4) {
            bytes[2] ^= input.byte();
            bytes[3] ^= input.byte();
        }
        self.emit(bytes, wrong(5), wrong(7).then(|| input.length()));
    }

    /// A Write that is granted.
    fn valid_write(&mut self, input: &mut Input<'_>) {
        let place = input.byte();
        let (stag, size) = self.target(place);
        let length = self.payload_length(input).min(size as usize);
        let to = u64::from(input.byte()).min(size - length as u64);
        let header = Tagged { last: input.flag(), opcode: Opcode::Write, stag, to };
        let bytes = [&header.encode(length)[..], &pattern(input.byte().into(), length)].concat();
        self.emit(bytes, false, None);
    }

    /// The key and length of a region; key 0, which is nobody's, without one.
    fn target(&self, place: u8) -> (u32, u64) {
        let place = usize::from(place).checked_rem(self.regions.len());
        place.map_or((0, 0), |place| {
            let region = &self.regions[place].region;
            (region.key().0, region.len() as u64)
        })
    }

    /// Completes a frame, notes what must come of it, and sends it, or as much of it as `cut` says.
    fn emit(&mut self, mut bytes: Vec<u8>, bad_crc: bool, cut: Option<usize>) {
        let ulpdu = bytes.len() - LENGTH_SIZE;
        bytes.resize(bytes.len() + pad_length(ulpdu), 0);
        let checksum = if self.crc { crc32c(&bytes) } else { 0 };
        bytes.extend_from_slice(&to_wire(checksum ^ u32::from(bad_crc)));
        let cut = cut.filter(|cut| *cut < bytes.len());
        let crc_error = bad_crc && self.crc;
        let granted = self.judge(&bytes, crc_error);
        if let Some(cut) = cut {
            bytes.truncate(cut);
            (self.reader.clean, self.reader.framed) = (false, false);
        }
        self.reader.clean &= granted;
        self.peer.queue(&bytes);
    }

    /// Whether a whole frame is legal now; what it does is done in the model.
    fn judge(&mut self, frame: &[u8], crc_error: bool) -> bool {
        let Ok((header, length, used)) = Header::decode(frame) else { return false };
        if crc_error {
            return false;
        }
        if !self.reader.clean {
            self.guess(&header, length);
            return false;
        }
        let payload = &frame[used..used + length];
        match header {
            Header::Tagged(header) => match header.opcode {
                Opcode::Write if length == 0 => true,
                Opcode::Write => match self.writes(&header, length) {
                    Some((place, at)) => {
                        self.regions[place].bytes[at..at + length].copy_from_slice(payload);
                        true
                    }
                    None => false,
                },
                _ => false,
            },
            Header::Untagged(header) => {
                let good = |qn, msn, mo| header.qn == qn && header.msn == msn && header.mo == mo;
                match header.opcode {
                    Opcode::Send | Opcode::SendSolicited
                        if good(queue::SEND, self.send_msn, self.message.len() as u32) =>
                    {
                        self.message.extend_from_slice(payload);
                        let fits = self.rooms.front().is_some_and(|room| self.message.len() <= *room);
                        if header.last && fits {
                            self.rooms.pop_front();
                            self.messages.push(std::mem::take(&mut self.message));
                            self.send_msn += 1;
                        }
                        fits
                    }
                    Opcode::ReadRequest
                        if good(queue::READ_REQUEST, self.read_msn, 0)
                            && header.last
                            && length == ReadRequest::LEN =>
                    {
                        self.judge_read(&ReadRequest::decode(payload).expect("whole"))
                    }
                    _ => false,
                }
            }
        }
    }

    /// After something illegal: what may be placed all the same, and which numbers would be next.
    fn guess(&mut self, header: &Header, length: usize) {
        match header {
            Header::Tagged(header) if header.opcode == Opcode::Write => {
                self.writes(header, length);
            }
            Header::Untagged(header) if header.opcode.is_send() && header.msn == self.send_msn => {
                if header.last {
                    self.message.clear();
                    self.send_msn += 1;
                } else {
                    self.message.resize(self.message.len() + length, 0);
                }
            }
            Header::Untagged(header)
                if header.opcode == Opcode::ReadRequest && header.msn == self.read_msn =>
            {
                self.read_msn += 1;
            }
            _ => {}
        }
    }

    fn judge_read(&mut self, request: &ReadRequest) -> bool {
        self.read_msn += 1;
        // In a burst it is not known how many the other end has at once.
        if self.burst || !self.reader.outbound.may_read() {
            return false;
        }
        let length = request.length as usize;
        let wanted = if length == 0 {
            Some(Vec::new())
        } else {
            let Some(known) = self.regions.iter().find(|known| known.region.key().0 == request.source_stag)
            else {
                return false;
            };
            let end = usize::try_from(request.source_to).ok().and_then(|to| to.checked_add(length));
            let Some(bytes) = end.and_then(|end| known.bytes.get(end - length..end)) else { return false };
            if !known.region.is_registered() || !known.region.access().contains(Access::REMOTE_READ) {
                return false;
            }
            (!known.local).then(|| bytes.to_vec())
        };
        self.reader.outbound.read(wanted, request.sink_stag, length);
        true
    }

    /// The region and place that a Write goes to, if it is granted.
    fn writes(&mut self, header: &Tagged, length: usize) -> Option<(usize, usize)> {
        let place = self.regions.iter().position(|known| known.region.key().0 == header.stag)?;
        let known = &mut self.regions[place];
        let granted = known.region.is_registered() && known.region.access().contains(Access::REMOTE_WRITE);
        let at = usize::try_from(header.to).ok()?;
        let end = at.checked_add(length)?;
        if !granted || end > known.bytes.len() {
            return None;
        }
        // Once something was illegal it is open whether a Write was placed.
        known.local |= !self.reader.clean;
        Some((place, at))
    }

    fn keep(&self, future: impl Future<Output = Outcome> + 'static) {
        self.pending.push(future.boxed_local());
    }

    fn buffer(&self, length: usize, fill: u8) -> Buffer {
        let mut buffer = self.adapter.buffer(length).expect("memory");
        buffer.fill(fill);
        buffer
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let length = input.length();
        let Some(queue_pair) = &self.queue_pair else { return };
        if let Ok(op) = queue_pair.receive(self.buffer(length, BLANK)) {
            let place = self.receives;
            self.receives += 1;
            self.rooms.push_back(length);
            self.keep(async move {
                let (result, buffer) = op.await;
                Outcome::Received(place, result, buffer)
            });
        }
    }

    fn post<E>(
        &mut self,
        input: &mut Input<'_>,
        post: impl FnOnce(&QueuePair, Buffer, RemoteRegion) -> Result<Op<Buffer>, E>,
    ) {
        let (length, forget) = (self.payload_length(input), input.flag());
        let remote = RemoteRegion::new(input.number(0), RemoteKey(9), u32::MAX);
        let Some(queue_pair) = &self.queue_pair else { return };
        if let Ok(op) = post(queue_pair, self.buffer(length, 1), remote)
            && !forget
        {
            self.keep(async move {
                let _ = op.await;
                Outcome::Other
            });
        }
    }

    fn post_read(&mut self, input: &mut Input<'_>) {
        let (length, forget) = (self.payload_length(input), input.flag());
        let remote = RemoteRegion::new(0, RemoteKey(9), u32::MAX);
        let Some(queue_pair) = &self.queue_pair else { return };
        if let Ok(op) = queue_pair.read(self.buffer(length, BLANK), &remote)
            && !forget
        {
            self.keep(async move {
                let (result, buffer) = op.await;
                Outcome::Read(result, buffer)
            });
        }
    }

    /// A receive into a region, or a read of the peer's memory into one.
    fn into_region(&mut self, input: &mut Input<'_>) {
        let (place, receive, from, to) = (input.byte(), input.flag(), input.length(), input.length());
        let Some(place) = usize::from(place).checked_rem(self.regions.len()) else { return };
        let Some(queue_pair) = &self.queue_pair else { return };
        let known = &mut self.regions[place];
        let (from, to) = (from.min(to).min(known.bytes.len()), from.max(to).min(known.bytes.len()));
        let slice = known.region.slice(from..to).expect("in bounds");
        let remote = RemoteRegion::new(0, RemoteKey(9), u32::MAX);
        let posted =
            if receive { queue_pair.receive(slice).ok() } else { queue_pair.read(slice, &remote).ok() };
        let Some(op) = posted else { return };
        known.local = true;
        if receive {
            self.receives += 1;
            self.rooms.push_back(to - from);
        }
        self.keep(async move {
            let _ = op.await;
            Outcome::Other
        });
    }

    async fn register(&mut self, input: &mut Input<'_>) {
        let (rights, length) = (input.byte(), input.length().max(1));
        if self.regions.len() >= 8 {
            return;
        }
        let access = Access::from_bits_truncate((rights & 15).into());
        let region = self.adapter.register(length, access).await.expect("registered");
        let bytes =
            if access.contains(Access::REMOTE_READ) { pattern(0x11, length) } else { vec![SECRET; length] };
        region.write(0, &bytes).expect("in bounds");
        self.regions.push(Known { region, bytes, local: false });
    }

    async fn unregister(&mut self, input: &mut Input<'_>) {
        let Some(place) = usize::from(input.byte()).checked_rem(self.regions.len()) else { return };
        if self.reader.clean {
            // What the peer sent before must have come: it was legal.
            self.until("the region is as it should be", |session| {
                let known = &session.regions[place];
                (known.local || known.is_as_expected()) && !session.reader.outbound.has_reads()
            })
            .await;
        }
        self.regions[place].region.deregister().await.expect("deregistered");
    }

    /// The answer to the oldest read of our end.
    fn answer(&mut self, input: &mut Input<'_>) {
        let (flags, size) = (input.byte(), input.length().max(1));
        let Some((stag, length)) = self.reader.asked.pop_front() else { return };
        if flags & 7 == 7 {
            self.reader.clean = false;
        }
        let bytes = pattern(length, length);
        let size = size.max(length / 16);
        let mut at = 0;
        loop {
            let piece = &bytes[at..(at + size).min(length)];
            let last = at + piece.len() == length;
            let (mut stag, mut to) = (stag, at as u64);
            if flags & 7 == 7 {
                stag ^= u32::from(flags >> 3 & 1);
                to = to.wrapping_add(u64::from(flags >> 4 & 1));
            }
            let header = Tagged { last: last && flags != 0xff, opcode: Opcode::ReadResponse, stag, to };
            let clean = std::mem::replace(&mut self.reader.clean, false);
            self.emit([&header.encode(piece.len())[..], piece].concat(), false, None);
            self.reader.clean = clean;
            at += piece.len();
            if last {
                break;
            }
        }
    }

    /// Something that ends the connection from our side.
    fn user(&mut self, input: &mut Input<'_>) {
        self.reader.clean = false;
        match input.below(5) {
            0 => {
                if let Some(queue_pair) = &self.queue_pair {
                    queue_pair.flush();
                }
            }
            1 => self.queue_pair = None,
            2 => self.connection = None,
            3 => self.establishing = None,
            _ => {
                if let Some(connection) = &self.connection {
                    connection.cancel();
                }
            }
        }
    }

    fn disconnect(&mut self) {
        if let Some(connection) = self.connection.clone() {
            self.reader.clean = false;
            self.keep(async move {
                let _ = connection.disconnect().await;
                Outcome::Other
            });
        }
    }

    fn leave(&mut self, input: &mut Input<'_>) {
        self.reader.clean = false;
        match input.below(3) {
            0 => self.peer.finish(),
            1 => self.peer.close(true),
            _ => {
                let mut payload = Vec::new();
                Terminate::LOCAL_CATASTROPHIC.encode(&mut payload);
                self.emit([&Terminate::HEADER.encode(payload.len())[..], &payload].concat(), false, None);
            }
        }
    }

    /// Legal traffic does not end a connection, and leaves it usable.
    async fn check_usable(&mut self, probe: &Region) {
        if !self.reader.clean {
            return;
        }
        assert!(self.over.is_none(), "legal frames end the connection: {:?}", self.over);
        let header = Tagged { last: true, opcode: Opcode::Write, stag: probe.key().0, to: 3 };
        let bytes = [&header.encode(8)[..], &[PROBE; 8]].concat();
        self.emit(bytes, false, None);
        self.reader.clean = true;
        self.until("the probe is written", |_| {
            let mut bytes = [0; 16];
            probe.read(0, &mut bytes).is_ok()
                && bytes == [[0; 3].as_slice(), &[PROBE; 8], &[0; 5]].concat()[..]
        })
        .await;
        self.until("the first frame completes it", |session| session.established).await;
        let arrived = self.regions.iter().all(|known| known.local || known.is_as_expected());
        assert!(arrived, "what was written legally is not there");
    }

    /// The peer goes away: everything ends.
    async fn end(mut self) {
        if self.options.hard {
            self.peer.close(true);
        } else {
            self.peer.finish();
        }
        self.until("the attempt is over", |session| session.establishing.is_none()).await;
        if !self.established
            && let Some(queue_pair) = &self.queue_pair
        {
            // The receives of an attempt that came to nothing stay.
            queue_pair.flush();
        }
        self.until("every future is ready", |session| session.pending.is_empty()).await;
        if let Some(connection) = self.connection.take() {
            let over = tokio::time::timeout(PATIENCE, connection.disconnected()).await;
            over.expect("the connection is over");
        }
        self.until("the stream ends", |session| session.peer.ended).await;
        self.peer.close(false);
        for known in &self.regions {
            let writable = known.region.access().contains(Access::REMOTE_WRITE);
            let unsure = known.local || (writable && !self.reader.framed);
            assert!(unsure || known.is_as_expected(), "memory has changed that was not granted");
        }
    }
}
