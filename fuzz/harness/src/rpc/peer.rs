//! The peer of a connection: what it says, and a judge of what our end says.

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_rdma_rpc::Config;

use super::direction::{
    AWAY, DATA, Direction, END, FRAME_COST, Flow, Frame, HEAD, Limits, PROTOCOL, RESET, TRAILERS, WINDOW,
    block, frame,
};
use super::is_filled;
use crate::input::Input;
use crate::stage::{PATIENCE, idle};

/// The most bytes of the bodies of a run, and if the stream holds little: it fills often, and each time takes long.
const PAYLOAD: usize = 96 << 10;
const NARROW_PAYLOAD: usize = 8 << 10;
const NARROW: usize = 4 << 10;
/// A stream that holds all that is said at once.
const WIDE: usize = 128 << 10;
/// A write takes at least one of so many parts of the queued bytes.
const LEAST_PART: usize = 8;
/// The most exchanges while the clock stands: an end that always has more to say must run into the time limit.
const EXCHANGES: usize = 64;
/// Trailers, as a peer sends them: `grpc-status: 0`.
const SOME_TRAILERS: &[u8] = &[130];

/// The shape of a run.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// The number of bytes that the stream holds.
    pub(crate) capacity: usize,
    /// The length of a long body of our end: more than a stream holds, and a peer may take.
    pub(crate) long: usize,
    piece: usize,
    /// The peer does not wait for our end between two commands.
    pub(crate) burst: bool,
    pub(crate) config: Config,
    /// The most calls that our end serves.
    pub(crate) calls: u32,
    limits: Limits,
}

impl Options {
    pub(crate) fn new(input: &mut Input<'_>) -> Self {
        let (shape, limits, config) = (input.byte(), input.byte(), input.byte());
        let limits = match limits % 4 {
            0 => Limits { frame: 1 << 16, call_window: 1 << 20, window: 4 << 20, calls: 100, head: 1 << 14 },
            1 => Limits { frame: 1 << 14, call_window: 1 << 12, window: 1 << 14, calls: 1, head: 1 << 12 },
            2 => Limits { frame: 1 << 14, call_window: 1 << 13, window: 1 << 15, calls: 3, head: 1 << 12 },
            _ => Limits {
                frame: u32::MAX,
                call_window: u32::MAX,
                window: u32::MAX,
                calls: u32::MAX,
                head: 1 << 20,
            },
        };
        let calls = 1 + u32::from(config % 8);
        let config = match config >> 6 {
            0 => Config::default(),
            1 => Config::default().call_window(0).connection_window(0).max_head(0),
            2 => Config::default().call_window(16 << 10).connection_window(32 << 10),
            _ => Config::default().call_window(64 << 10).connection_window(64 << 10).max_head(64 << 10),
        };
        let capacity = [WIDE, 16 << 10, NARROW, 500][usize::from(shape) & 3];
        Self {
            capacity,
            long: if capacity < NARROW { 5000 } else { 40_000 },
            burst: shape & 4 != 0,
            piece: if shape & 8 != 0 { usize::from(shape >> 4) + 1 } else { 0 },
            config: config.max_calls(calls),
            calls,
            limits,
        }
    }
}

/// The peer's end of a connection.
pub(crate) struct Peer {
    options: Options,
    /// Our end is the client.
    has_client: bool,
    stream: Option<DuplexStream>,
    outgoing: VecDeque<u8>,
    pub(crate) said: Direction,
    pub(crate) heard: Direction,
    /// It does not read for now.
    pub(crate) is_deaf: bool,
    /// Nothing more comes of our end.
    pub(crate) has_ended: bool,
    /// It writes no more.
    pub(crate) has_finished: bool,
    /// It has said what it must not, perhaps.
    pub(crate) is_wild: bool,
    /// It has broken a rule for certain: our end owes it a GoAway.
    must_refuse: bool,
    /// The byte that fills the bodies of a call, unless it is the number of the call.
    pub(crate) fillers: BTreeMap<u32, u8>,
    payload: usize,
}

impl Peer {
    pub(crate) fn new(options: Options, has_client: bool, stream: DuplexStream) -> Self {
        Self {
            options,
            has_client,
            stream: Some(stream),
            outgoing: VecDeque::new(),
            said: Direction::default(),
            heard: Direction::default(),
            is_deaf: false,
            has_ended: false,
            has_finished: false,
            is_wild: false,
            must_refuse: false,
            fillers: BTreeMap::new(),
            payload: 0,
        }
    }

    /// Returns whether nothing was said that could end the connection.
    pub(crate) fn is_legal(&self) -> bool {
        !self.is_wild && !self.has_finished && self.said.away.is_none()
    }

    pub(crate) fn hello(&mut self) {
        let origin: &[u8] = if self.has_client { b"" } else { b"\0host:50051" };
        self.emit(&self.options.limits.hello(origin));
    }

    pub(crate) fn emit(&mut self, bytes: &[u8]) {
        if self.stream.is_none() || self.has_finished {
            return;
        }
        if self.said.push(bytes, |_, _| {}).is_err() {
            self.is_wild = true;
        }
        self.outgoing.extend(bytes);
    }

    /// Returns the length of a body, as long as there is some left for this run.
    pub(crate) fn length(&mut self, input: &mut Input<'_>) -> usize {
        let most = if self.options.capacity <= NARROW { NARROW_PAYLOAD } else { PAYLOAD };
        let length = input.length().min(most - self.payload);
        self.payload += length;
        length
    }

    /// Returns how many bytes of a body may be sent in one frame, without its cost.
    fn room(&self, call: u32, length: usize) -> usize {
        let Some(limits) = self.heard.hello else { return 0 };
        let left =
            |window: u32, granted: u64, spent: u64| (u64::from(window) + granted).saturating_sub(spent);
        let own = left(limits.call_window, self.heard.flow(call).granted, self.said.flow(call).spent);
        let all = left(limits.window, self.heard.all.granted, self.said.all.spent);
        length.min(own.min(all) as usize).min(limits.frame as usize / 2)
    }

    pub(crate) fn filler(&self, call: u32) -> u8 {
        self.fillers.get(&call).copied().unwrap_or(call as u8)
    }

    /// Says the head of a call, with as much of a body as is legal.
    pub(crate) fn head(&mut self, call: u32, head: &[u8], length: usize, flags: u8) {
        let mut payload = block(head);
        if flags & TRAILERS != 0 {
            payload.extend(block(SOME_TRAILERS));
        }
        payload.resize(payload.len() + self.room(call, length), self.filler(call));
        self.emit(&frame(HEAD, flags, call, &payload));
    }

    /// Says more of a body, as much as is legal.
    pub(crate) fn data(&mut self, call: u32, length: usize, flags: u8) {
        let cost = FRAME_COST as usize;
        let length = self.room(call, length + cost).saturating_sub(cost);
        if length == 0 && flags & END == 0 {
            return;
        }
        let mut payload = if flags & TRAILERS == 0 { Vec::new() } else { block(SOME_TRAILERS) };
        payload.resize(payload.len() + length, self.filler(call));
        self.emit(&frame(DATA, flags, call, &payload));
    }

    pub(crate) fn reset(&mut self, call: u32, code: u32) {
        self.emit(&frame(RESET, 0, call, &code.to_be_bytes()));
    }

    /// Grants more, as much as is legal.
    pub(crate) fn grant(&mut self, call: u32, more: u32) {
        let (first, flow) = match call {
            0 => (self.options.limits.window, &self.said.all),
            _ => (self.options.limits.call_window, &self.said.flow(call)),
        };
        // What our end has spent may not have come yet.
        let most = u64::from(u32::MAX - first).saturating_sub(flow.granted);
        let more = more.min(u32::try_from(most).unwrap_or(u32::MAX));
        if more > 0 {
            self.emit(&frame(WINDOW, 0, call, &more.to_be_bytes()));
        }
    }

    pub(crate) fn away(&mut self, last: u32, code: u32) {
        self.emit(&frame(AWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat()));
    }

    /// Says anything: bytes of the input, or a frame with a payload of those.
    pub(crate) fn garbage(&mut self, input: &mut Input<'_>) {
        self.is_wild = true;
        let shape = input.byte();
        let mut bytes = match shape & 3 {
            0 => input.bytes(usize::from(shape >> 2)).to_vec(),
            shape_of_frame => {
                let (kind, flags, call) = (input.below(8) as u8, input.byte() & 0x83, input.byte().into());
                let length = usize::from(input.byte());
                let payload = input.bytes(length);
                // Most have a block in front, whose content is that of the input.
                let payload = if shape_of_frame > 1 { block(payload) } else { payload.to_vec() };
                frame(kind, flags, call, &payload)
            }
        };
        if shape & 0x40 != 0 {
            let filling = self.length(input);
            bytes.resize(bytes.len() + filling, shape);
        }
        self.emit(&bytes);
    }

    /// Breaks a rule.
    pub(crate) fn violate(&mut self, input: &mut Input<'_>) {
        let call = if self.has_client { self.heard.last } else { self.said.last };
        let next = call.saturating_add(1);
        let bytes = match input.below(16) {
            0 => frame(9, 0, call, &[]),
            1 => frame(0, 0, call, &[]),
            2 => frame(RESET, END, call, &[0; 4]),
            3 => frame(DATA, TRAILERS, call, &[0; 4]),
            4 => [&[0; 8][..], &[DATA, 0, 0, 1]].concat(),
            5 => [&[0x7F, 0xFF, 0xFF, 0xFF][..], &[0, 0, 0, 1, DATA, 0, 0, 0]].concat(),
            6 => frame(DATA, 0, next, b"data of no call"),
            7 => frame(DATA, 0, call, &[]),
            8 => frame(RESET, 0, call, &[0; 3]),
            9 => frame(RESET, 0, next, &[0; 4]),
            10 => frame(WINDOW, 0, next, &[0; 4]),
            11 => [frame(WINDOW, 0, 0, &[0xFF; 4]), frame(WINDOW, 0, 0, &[0xFF; 4])].concat(),
            12 => frame(AWAY, 0, 0, &[0; 7]),
            13 => frame(HEAD, END, next.saturating_add(1), &block(b"\x01\x01/\x00")),
            14 => frame(WINDOW, 0, 0, &[0; 3]),
            _ => frame(HEAD, END, next, b"\x00\x00\x00\x05\x01\x01/\x00"),
        };
        let is_first = self.is_legal() && !self.has_ended && self.heard.away.is_none();
        // What a peer does not take for a while may be lost with the connection.
        let is_heard = !self.is_deaf && !self.options.burst && self.options.capacity == WIDE;
        self.must_refuse = is_first && is_heard && self.stream.is_some() && self.said.hello.is_some();
        self.is_wild = true;
        self.emit(&bytes);
    }

    /// Writes and reads as much as the stream allows. Returns whether that was anything.
    fn transfer(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let cx = &mut Context::from_waker(Waker::noop());
        let mut moved = false;
        let bytes = self.outgoing.make_contiguous();
        let piece = match self.options.piece {
            0 => bytes.len(),
            piece => piece.max(bytes.len() / LEAST_PART).min(bytes.len()),
        };
        if piece > 0 {
            match Pin::new(&mut *stream).poll_write(cx, &bytes[..piece]) {
                Poll::Ready(Ok(written)) => {
                    self.outgoing.drain(..written);
                    moved = true;
                }
                Poll::Ready(Err(_)) => self.outgoing.clear(),
                Poll::Pending => {}
            }
        }
        if self.has_finished && self.outgoing.is_empty() {
            // Shutting down a stream in memory takes no time, and fails never.
            let _ = Pin::new(&mut *stream).poll_shutdown(cx);
        }
        let mut room = [MaybeUninit::uninit(); 4 << 10];
        while !self.has_ended && !self.is_deaf {
            let mut room = ReadBuf::uninit(&mut room);
            let outcome = Pin::new(&mut *stream).poll_read(cx, &mut room);
            let filled = room.filled();
            match outcome {
                Poll::Pending => break,
                Poll::Ready(outcome) => self.has_ended = outcome.is_err() || filled.is_empty(),
            }
            moved = true;
            let judge = Judge {
                has_client: self.has_client,
                said: &self.said,
                is_wild: self.is_wild,
                fillers: &mut self.fillers,
            };
            judge.listen(&mut self.heard, filled);
        }
        moved
    }

    /// Moves bytes until nothing moves at once. The clock stands: a step of it for each piece takes most of the time of a run.
    async fn exchange(&mut self) {
        for _ in 0..EXCHANGES {
            if !self.transfer() {
                return;
            }
            // The tasks run, as far as they can without the clock.
            yield_now().await;
        }
    }

    /// Moves bytes until nothing moves, and every task waits.
    pub(crate) async fn settle(&mut self) {
        let begin = Instant::now();
        self.exchange().await;
        loop {
            idle(Instant::now()).await;
            if !self.transfer() {
                return;
            }
            self.exchange().await;
            assert!(begin.elapsed() < PATIENCE, "it does not come to rest");
        }
    }

    /// Moves bytes until it is so.
    pub(crate) async fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        self.exchange().await;
        while !is_so(self) {
            assert!(begin.elapsed() < PATIENCE, "waiting in vain until {what}");
            idle(begin).await;
            self.exchange().await;
        }
    }

    /// Checks that a violation was answered.
    pub(crate) async fn check_refusal(&mut self) {
        self.is_deaf = false;
        self.settle().await;
        if self.must_refuse {
            self.until("a broken rule ends the connection", |peer| peer.has_ended).await;
            assert_eq!(self.heard.away, Some(PROTOCOL), "a violation without a word");
        }
    }

    /// Goes away: with what it has not written, or unread, if `hard`.
    pub(crate) async fn close(&mut self, hard: bool) {
        self.has_finished = true;
        if hard {
            self.stream = None;
            self.outgoing.clear();
            self.has_ended = true;
            return;
        }
        self.until("our end closes, too", |peer| peer.has_ended).await;
        self.stream = None;
    }
}

/// What our end may say.
struct Judge<'a> {
    has_client: bool,
    said: &'a Direction,
    is_wild: bool,
    fillers: &'a mut BTreeMap<u32, u8>,
}

impl Judge<'_> {
    fn listen(mut self, heard: &mut Direction, bytes: &[u8]) {
        let outcome = heard.push(bytes, |heard, frame| self.check(heard, frame));
        outcome.expect("our end says nothing that is malformed");
    }

    fn check(&mut self, heard: &Direction, frame: &Frame<'_>) {
        let limits = self.said.hello.expect("no frame before the hello of the peer");
        let (mine, theirs) = (heard.flow(frame.call), self.said.flow(frame.call));
        assert!(frame.length <= limits.frame as usize, "a frame that the peer does not take");
        assert!(frame.head.len().max(frame.trailers.len()) <= limits.head as usize, "a long block");
        match frame.kind {
            HEAD => {
                assert!(!mine.has_head && !mine.was_reset, "a second head, or a late one: {frame:?}");
                if self.has_client {
                    assert_eq!(frame.call, heard.last + 1, "calls in their order");
                    self.fillers.insert(frame.call, number_in_path(frame.head));
                } else {
                    assert!(theirs.has_head, "an answer to nothing");
                }
            }
            DATA => {
                assert!(mine.has_head && !mine.has_ended && !mine.was_reset, "a body: {frame:?}");
                assert!(frame.is_last() || !frame.body.is_empty(), "a frame of nothing");
            }
            RESET => {
                assert!(!mine.was_reset && frame.number <= PROTOCOL, "{frame:?}");
                assert!(if self.has_client { mine.has_head } else { theirs.has_head }, "a reset of nothing");
                assert!(self.has_client || !mine.has_ended || frame.number == 0, "{frame:?}");
            }
            WINDOW => {
                let (granted, spent) = match frame.call {
                    0 => (heard.all.granted, self.said.all.spent),
                    _ => (mine.granted, theirs.spent),
                };
                let own = heard.hello.expect("the hello comes first");
                let window = if frame.call == 0 { own.window } else { own.call_window };
                assert!(frame.number >= window / 2, "a flood of windows");
                // So that what our end keeps is never more than its windows.
                assert!(granted + u64::from(frame.number) <= spent, "more is granted than has come");
            }
            _ => {
                assert!(heard.away.is_none() && frame.call == 0, "a second end");
                assert!(frame.number <= PROTOCOL, "{frame:?}");
            }
        }
        self.check_body(limits, heard, frame, (&mine, &theirs));
    }

    fn check_body(&self, limits: Limits, heard: &Direction, frame: &Frame<'_>, flows: (&Flow, &Flow)) {
        let (mine, theirs) = flows;
        let cost = match frame.kind {
            HEAD => frame.body.len() as u64,
            DATA if !frame.body.is_empty() => frame.body.len() as u64 + FRAME_COST,
            _ => return,
        };
        let left = u64::from(limits.call_window) + theirs.granted;
        assert!(mine.spent + cost <= left, "more than the window of the call");
        let left = u64::from(limits.window) + self.said.all.granted;
        assert!(heard.all.spent + cost <= left, "more than the window of the connection");
        if !self.is_wild {
            let filler = self.fillers.get(&frame.call).copied().unwrap_or(frame.call as u8);
            assert!(is_filled(frame.body, filler), "bytes of another call");
        }
    }
}

/// Returns the last number of the path of a request of our client: `/kind/number`.
fn number_in_path(head: &[u8]) -> u8 {
    let length = usize::from(head[1]);
    let path = std::str::from_utf8(&head[2..2 + length]).expect("a path");
    path.rsplit('/').next().and_then(|number| number.parse().ok()).expect("a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(said: &Direction, heard: &mut Direction, bytes: &[u8]) {
        let fillers = &mut BTreeMap::new();
        Judge { has_client: false, said, is_wild: false, fillers }.listen(heard, bytes);
    }

    // The judge must be able to fail.
    #[test]
    fn judge_refuses_what_is_not_allowed() {
        let limits = Limits { frame: 1 << 14, call_window: 5000, window: 1 << 14, calls: 1, head: 1 << 12 };
        let mut said = Direction::default();
        let request = frame(HEAD, END, 1, &block(b"\x01\x01/\x00"));
        said.push(&[limits.hello(b""), request].concat(), |_, _| {}).expect("well-formed");
        let head = frame(HEAD, 0, 1, &block(&[0, 200]));
        let data = |length| frame(DATA, 0, 1, &vec![1; length]);
        let cases = [
            ("of nothing", frame(HEAD, 0, 2, &block(&[0, 200]))),
            ("without a head", data(1)),
            ("twice", [head.clone(), head.clone()].concat()),
            ("more than a window", [head.clone(), data(5000)].concat()),
            ("of another call", [head.clone(), frame(DATA, 0, 1, &[2])].concat()),
            ("a grant of nothing", frame(WINDOW, 0, 0, &[0, 0, 0, 1])),
            ("malformed", frame(7, 0, 1, &[])),
        ];
        let hello = limits.hello(b"");
        judge(&said, &mut Direction::default(), &[hello.clone(), head, data(4936)].concat());
        for (what, bytes) in cases {
            let bytes = [hello.clone(), bytes].concat();
            let outcome = std::panic::catch_unwind(|| judge(&said, &mut Direction::default(), &bytes));
            assert!(outcome.is_err(), "{what}");
        }
    }
}
