//! A whole connection of the soft provider against a peer that the input controls.
//!
//! The peer is a plain stream of the simulated network. It does the start-up as it should; then the input is a list of
//! commands to the peer and to the user of our end. A model of all that was legal tells what must have come of it.

mod frames;
mod model;
mod start;
mod user;

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use common::raw::Start;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use tokio_rdma::error::CompletionError;
use tokio_rdma::{
    Access, Adapter, Buffer, Completion, Connection, DisconnectReason, QueuePair, QueuePairConfig,
    ReadLimits, Region,
};

pub(crate) use self::start::Options;
use self::start::{accept, connect};
use crate::frame::{Header, MOST_ULPDU};
use crate::input::Input;
use crate::peer::Peer;
use crate::reader::{Reader, is_full_of};
use crate::stage::{PATIENCE, Stage, idle, run, within};
use crate::start_frame::{Parsed, parse};

/// The most commands and payload bytes of one run.
const COMMANDS: usize = 48;
const PAYLOAD: usize = 512 * 1024;
/// The most payload bytes where streams hold 4 KiB: they fill these many times, and each time takes long.
const NARROW_PAYLOAD: usize = 32 * 1024;
/// The byte that fills a receive buffer before.
const BLANK: u8 = 0xee;
/// The byte that the last check writes.
const PROBE: u8 = 0x77;

/// Runs one connection.
///
/// # Panics
/// When our end does anything that it must not.
pub fn connection(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    run(execute(&mut input));
}

/// Bytes that are neither those of secret memory nor those of blank buffers.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31) ^ at.wrapping_shr(8) as u8 ^ seed as u8)
        .map(|b| b & 0x3f)
        .collect()
}

/// A region, and what should be in it.
struct Known {
    region: Region,
    /// Its content if nothing illegal has happened.
    bytes: Vec<u8>,
    registered: bool,
    /// The bytes that the peer was allowed to write.
    granted: Vec<bool>,
    /// Our own user had it written, too.
    local: bool,
    /// A Write may have overtaken an atomic that waits behind other answers: there is no order between them.
    disputed: bool,
    /// Reads of it that await their answer.
    readers: Vec<Rc<Cell<bool>>>,
}

impl Known {
    /// Something else will be read from now on.
    fn changes(&mut self) {
        self.readers.drain(..).for_each(|stale| stale.set(true));
    }

    /// Returns whether it is known what should be in it.
    fn is_known(&self) -> bool {
        !self.local && !self.disputed
    }

    fn is_as_expected(&self) -> bool {
        self.read() == self.bytes
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes.len()];
        self.region.read(0, &mut bytes).expect("in bounds");
        bytes
    }

    /// Returns whether nothing was written but where the peer was allowed to.
    fn is_intact(&self) -> bool {
        let bytes = self.read();
        bytes == self.bytes
            || bytes
                .iter()
                .zip(&self.bytes)
                .zip(&self.granted)
                .all(|((is, was), granted)| is == was || *granted)
    }
}

/// The outcome of a future of our end.
enum Outcome {
    Received(usize, Result<Completion, CompletionError>, Buffer),
    Read(Result<Completion, CompletionError>, Buffer),
    Other,
    Over(DisconnectReason),
}

/// A connection, and what is known of it.
pub(crate) struct Session {
    adapter: Adapter,
    options: Options,
    crc: bool,
    /// Both ends announce how many segments follow.
    announces: bool,
    /// The next segment that the peer has announced, and how many follow that one.
    announced: Option<(Header, usize)>,
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
    /// Our end owes it a Terminate for that.
    must_terminate: bool,
}

async fn execute(input: &mut Input<'_>) {
    let options = Options::new(input);
    let mut opened = Opened::new(options).await;
    for _ in 0..COMMANDS {
        if input.is_empty() {
            break;
        }
        opened.session.command(input).await;
        if !opened.session.burst {
            opened.session.settle().await;
        }
    }
    opened.close().await;
}

/// A connection that both ends have begun.
pub(crate) struct Opened {
    pub(crate) session: Session,
    /// The peer writes to it last, to show that the connection works.
    probe: Region,
    _stage: Stage,
}

impl Opened {
    pub(crate) async fn new(options: Options) -> Self {
        let stage = Stage::new(options.narrow);
        let adapter = stage.adapter(options.own_crc);
        let config = QueuePairConfig::default().receive_depth(8).send_depth(8);
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let probe = adapter.register(16, access).await.expect("registered");
        let session = if options.active {
            connect(&stage, adapter, queue_pair, options).await
        } else {
            accept(&stage, adapter, queue_pair, options).await
        };
        Self { session, probe, _stage: stage }
    }

    /// Sends these bytes as one frame, unless they could name the region of the last check.
    pub(crate) async fn frame(&mut self, ulpdu: &[u8]) {
        let key = self.probe.key().0.to_be_bytes();
        if ulpdu.len() <= MOST_ULPDU && !ulpdu.windows(key.len()).any(|bytes| bytes == key) {
            self.session.emit(ulpdu.to_vec(), false, None);
            self.session.settle().await;
        }
    }

    /// Checks what has become of the connection, and ends it.
    pub(crate) async fn close(mut self) {
        self.session.peer.deaf = false;
        self.session.settle().await;
        self.session.check_usable(&self.probe).await;
        self.session.end().await;
    }
}

impl Session {
    fn new(
        adapter: Adapter,
        options: Options,
        queue_pair: QueuePair,
        peer: Peer,
        establishing: LocalBoxFuture<'static, Option<Connection>>,
    ) -> Self {
        Self {
            adapter,
            crc: false,
            announces: false,
            announced: None,
            peer,
            reader: Reader::new(false, false, ReadLimits::NONE),
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
            must_terminate: false,
            options,
        }
    }

    /// The start-up frame of our end.
    async fn start_frame(&mut self, key: &[u8; 16]) -> Start {
        let begin = Instant::now();
        loop {
            self.peer.transfer();
            self.poll().await;
            if let Parsed::Whole(frame, used) = parse(key, &self.peer.incoming) {
                self.peer.incoming.drain(..used);
                return frame;
            }
            assert!(begin.elapsed() < PATIENCE && !self.peer.ended, "no start-up frame");
            idle(begin).await;
        }
    }

    /// The start-up frames are exchanged.
    fn begin(&mut self, crc: bool, announces: bool, limits: ReadLimits) {
        (self.crc, self.announces) = (crc, announces);
        self.reader = Reader::new(crc, announces, limits);
        self.may_speak = self.options.active;
        self.peer.begin(self.options.piece);
    }

    /// Polls the futures of our end; tells whether one has finished.
    async fn poll(&mut self) -> bool {
        poll_fn(|cx| {
            let mut moved = false;
            if let Some(establishing) = &mut self.establishing
                && let Poll::Ready(connection) = establishing.poll_unpin(cx)
            {
                self.establishing = None;
                self.connected(connection);
                moved = true;
            }
            while let Poll::Ready(Some(outcome)) = self.pending.poll_next_unpin(cx) {
                self.finished(outcome);
                moved = true;
            }
            Poll::Ready(moved)
        })
        .await
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
                assert!(is_full_of::<BLANK>(rest), "written beyond the message");
                if let Some(message) = self.messages.get(place) {
                    assert!(got == message, "not message {place}");
                }
            }
            Outcome::Read(Err(_), _) => {}
            Outcome::Received(_, Err(_), buffer) => drop(buffer),
        }
    }

    /// Moves what has come and what is to be sent; tells whether anything has happened.
    async fn turn(&mut self) -> bool {
        let moved = self.peer.transfer();
        self.may_speak |= self.peer.spoke;
        self.reader.take(&mut self.peer.incoming, self.may_speak);
        self.poll().await || moved
    }

    /// Until nothing moves any more.
    async fn settle(&mut self) {
        let begin = Instant::now();
        // The peer and the user have done something since the last turn.
        self.turn().await;
        loop {
            idle(Instant::now()).await;
            if !self.turn().await {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not come to rest");
        }
    }

    async fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let mut moved = Instant::now();
        self.turn().await;
        while !done(self) {
            assert!(moved.elapsed() < PATIENCE, "waiting in vain until {what}");
            idle(moved).await;
            if self.turn().await {
                moved = Instant::now();
            }
        }
    }

    /// The length of a payload, as long as there is some left.
    fn payload_length(&mut self, input: &mut Input<'_>) -> usize {
        let most = if self.options.narrow { NARROW_PAYLOAD } else { PAYLOAD };
        let length = input.length().min(most.saturating_sub(self.payload));
        self.payload += length;
        length
    }

    /// Legal traffic does not end a connection, and leaves it usable.
    async fn check_usable(&mut self, probe: &Region) {
        if self.must_end {
            self.until("a broken rule ends it", |session| session.peer.ended).await;
            assert!(self.reader.terminated || !self.must_terminate, "a violation without a Terminate");
        }
        // Nothing but the rest of an announced message may follow.
        if !self.reader.clean || self.announced.is_some() {
            return;
        }
        assert!(self.over.is_none(), "legal frames end the connection: {:?}", self.over);
        self.emit(common::raw::write(probe.key().0, 3, &[PROBE; 8]), false, None);
        self.reader.clean = true;
        self.until("the probe is written", |_| {
            let mut bytes = [0; 16];
            probe.read(0, &mut bytes).is_ok()
                && bytes == [[0; 3].as_slice(), &[PROBE; 8], &[0; 5]].concat()[..]
        })
        .await;
        self.until("the first frame completes it", |session| session.established).await;
        let arrived = self.regions.iter().all(|known| !known.is_known() || known.is_as_expected());
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
            within("the connection is over", connection.disconnected()).await;
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
