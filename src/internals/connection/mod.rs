//! A whole connection of the soft provider against a peer that does what the fuzzer says.
//!
//! The peer is a plain TCP socket over loopback. It does the start-up as it should; then the input is a list of
//! commands: what the peer sends, and what the user of our end does. A model of what was legal says what must be.

mod frames;
mod start;
mod user;

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};

use self::start::{Harness, Options, accept, connect};
use super::input::Input;
use super::peer::{Peer, Reader};
use crate::cm::{Adapter, Connection};
use crate::error::CompletionError;
use crate::mr::{Buffer, Region};
use crate::qp::{Completion, QueuePair, QueuePairConfig};
use crate::sync::Mutex;
use crate::types::{Access, DisconnectReason, ReadLimits};
use crate::wire::ddp::Tagged;
use crate::wire::mpa::{StartFrame, StartKind};
use crate::wire::rdmap::Opcode;

/// Nothing here takes as long: who gets here hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most commands and payload bytes of one run.
const COMMANDS: usize = 48;
const PAYLOAD: usize = 512 * 1024;
/// What receive buffers hold before.
const BLANK: u8 = 0xee;
/// What the last check writes.
const PROBE: u8 = 0x77;

static HARNESSES: LazyLock<Mutex<Vec<Harness>>> = LazyLock::new(Mutex::default);

/// Runs one connection.
///
/// # Panics
/// When our end does anything that it must not.
pub fn fuzz_connection(bytes: &[u8]) {
    let kept = HARNESSES.lock().pop();
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
    HARNESSES.lock().push(harness);
}

/// Bytes that are never [`SECRET`], [`BLANK`] or a mistake.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31) ^ at.wrapping_shr(8) as u8 ^ seed as u8)
        .map(|b| b & 0x3f)
        .collect()
}

/// A region, and what should be in it.
struct Known {
    region: Region,
    /// What is in it if nothing illegal happened.
    bytes: Vec<u8>,
    registered: bool,
    /// Where the peer was allowed to write.
    granted: Vec<bool>,
    /// Our own user had it written, too.
    local: bool,
    /// Reads of it that await their answer.
    readers: Vec<Rc<Cell<bool>>>,
}

/// What follows from a frame of the peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is granted.
    Legal,
    /// The connection ends.
    Illegal,
    /// It depends.
    Unsure,
}

impl Known {
    /// Something else will be read from now on.
    fn changes(&mut self) {
        self.readers.drain(..).for_each(|stale| stale.set(true));
    }

    fn is_as_expected(&self) -> bool {
        let mut bytes = vec![0; self.bytes.len()];
        self.region.read(0, &mut bytes).expect("in bounds");
        bytes == self.bytes
    }

    /// Whether nothing was written but where the peer was allowed to.
    fn is_intact(&self) -> bool {
        let mut bytes = vec![0; self.bytes.len()];
        self.region.read(0, &mut bytes).expect("in bounds");
        bytes.iter().zip(&self.bytes).zip(&self.granted).all(|((is, was), granted)| is == was || *granted)
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
    /// A message has begun and not ended.
    in_message: bool,
    send_msn: u32,
    read_msn: u32,
    payload: usize,
    burst: bool,
    may_speak: bool,
    /// The peer broke a rule, and nobody else has done anything about the end.
    must_end: bool,
}

async fn run(harness: &Harness, input: &mut Input<'_>) {
    let options = Options::new(input);
    let (adapter, listener) = if options.own_crc {
        (&harness.checked, &harness.checked_listener)
    } else {
        (&harness.adapter, &harness.listener)
    };
    let config = QueuePairConfig::default().receive_depth(8).send_depth(8);
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
    session.peer.deaf = false;
    session.settle().await;
    session.check_usable(&probe).await;
    session.end().await;
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
            in_message: false,
            send_msn: 1,
            read_msn: 1,
            payload: 0,
            burst: false,
            may_speak: false,
            must_end: false,
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
                    assert!(buffer[..] == pattern(buffer.len(), buffer.len()), "not what was to be read");
                }
            }
            Outcome::Received(place, Ok(completion), buffer) => {
                let (got, rest) = buffer.split_at(completion.bytes);
                assert!(rest.iter().all(|byte| *byte == BLANK), "written beyond the message");
                if let Some(message) = self.messages.get(place) {
                    assert!(got == message, "not message {place}");
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

    /// The length of a payload, as long as there is some left.
    fn payload_length(&mut self, input: &mut Input<'_>) -> usize {
        let length = input.length().min(PAYLOAD - self.payload);
        self.payload += length;
        length
    }

    /// Legal traffic does not end a connection, and leaves it usable.
    async fn check_usable(&mut self, probe: &Region) {
        if self.must_end {
            self.until("a broken rule ends it", |session| session.peer.ended).await;
        }
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
        self.until("every request is over", |session| {
            session.queue_pair.as_ref().is_none_or(|queue_pair| queue_pair.open_requests() == 0)
        })
        .await;
        if let Some(connection) = self.connection.take() {
            let over = tokio::time::timeout(PATIENCE, connection.disconnected()).await;
            over.expect("the connection is over");
        }
        self.until("the stream ends", |session| session.peer.ended).await;
        self.peer.close(false);
        for known in &self.regions {
            let access = known.region.access();
            let writable = access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC);
            let unsure = known.local || (writable && !self.reader.framed);
            assert!(unsure || known.is_intact(), "memory has changed that was not granted");
        }
    }
}
