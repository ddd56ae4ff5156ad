//! What lies between the two ends: a stream each way, in order, late, in pieces, and sometimes cut.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::proto::rdmap::{Inbound, Segment as Judged};
use crate::wire::crc::{crc32c, from_wire, to_wire};
use crate::wire::ddp::{Header, Untagged};
use crate::wire::mpa::{CRC_SIZE, fpdu_length};
use crate::wire::rdmap::{Opcode, Terminate, queue};

/// What travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// The stream is being opened, or was.
    Open,
    /// Bytes of it.
    Bytes(Bytes),
    /// Its orderly end.
    Fin,
    /// Its end, the other way's too.
    Reset,
}

/// How a link treats what it carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// How long everything is under way.
    pub(super) latency: Duration,
    /// The largest piece that bytes arrive in.
    pub(super) chunk: usize,
    /// What each piece of a write is later than the one before.
    pub(super) gap: Duration,
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    queue: VecDeque<(Instant, Segment)>,
    /// Nothing overtakes this.
    last: Option<Instant>,
    cut: bool,
}

/// The two directions of one stream, each named by the side that sends.
#[derive(Debug)]
pub(super) struct Link {
    manner: Manner,
    ways: [Way; 2],
}

impl Link {
    /// A link that nothing was sent over.
    pub(super) fn new(manner: Manner) -> Self {
        Self { manner, ways: Default::default() }
    }

    /// Sends one segment; bytes fall into pieces.
    pub(super) fn send(&mut self, from: usize, now: Instant, segment: Segment) {
        let Segment::Bytes(mut bytes) = segment else { return self.push(from, now, segment) };
        let mut at = now;
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(self.manner.chunk));
            self.push(from, at, Segment::Bytes(piece));
            at += self.manner.gap;
        }
    }

    /// One piece, behind everything else.
    fn push(&mut self, from: usize, at: Instant, segment: Segment) {
        let way = &mut self.ways[from];
        if way.cut {
            return;
        }
        let arrival = way.last.map_or(at + self.manner.latency, |last| last.max(at + self.manner.latency));
        way.last = Some(arrival);
        way.queue.push_back((arrival, segment));
    }

    /// From now on nothing that this side sent or sends arrives.
    pub(super) fn cut(&mut self, from: usize) {
        self.ways[from] = Way { cut: true, ..Way::default() };
    }

    /// Everything to come is under way for longer.
    pub(super) fn slow(&mut self, extra: Duration) {
        self.manner.latency += extra;
    }

    /// Something in between ends both directions, ahead of what is still under way.
    pub(super) fn sever(&mut self, now: Instant, end: &Segment) {
        for way in self.ways.iter_mut().filter(|way| !way.cut) {
            *way = Way { queue: VecDeque::from([(now, end.clone())]), last: Some(now), cut: true };
        }
    }

    /// When the next segment arrives, at either side.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.ways.iter().filter_map(|way| way.queue.front()).map(|(at, _)| *at).min()
    }

    /// The next segment that this side sent and that has arrived.
    pub(super) fn arrived(&mut self, from: usize, now: Instant) -> Option<Segment> {
        let queue = &mut self.ways[from].queue;
        if queue.front().is_some_and(|(at, _)| *at <= now) {
            queue.pop_front().map(|(_, it)| it)
        } else {
            None
        }
    }
}

/// What a frame of an established stream is, as far as the connection cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Nothing but a first frame.
    Ready,
    /// A message for a receive that was posted.
    Message,
    /// The peer's last words.
    Terminate,
}

/// Takes a stream apart into frames, and judges them as the provider does.
#[derive(Debug)]
pub(super) struct Frames {
    crc: bool,
    buffer: BytesMut,
    inbound: Inbound,
}

impl Frames {
    /// A stream whose frames have a CRC or not.
    pub(super) fn new(crc: bool) -> Self {
        Self { crc, buffer: BytesMut::new(), inbound: Inbound::new() }
    }

    /// More of the stream.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether the stream stands between two frames.
    pub(super) fn at_boundary(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next whole frame. Both ends speak well, so anything else is a failure of the test.
    pub(super) fn next(&mut self) -> Option<Frame> {
        let length = fpdu_length(usize::from(u16::from_be_bytes(*self.buffer.first_chunk()?)));
        if self.buffer.len() < length {
            return None;
        }
        let frame = self.buffer.split_to(length);
        let (body, trailer) = frame.split_at(length - CRC_SIZE);
        let expected = if self.crc { crc32c(body) } else { 0 };
        assert_eq!(from_wire(trailer.try_into().expect("four bytes")), expected, "the ends differ about CRC");
        let (header, payload, _) = Header::decode(body).expect("a header");
        Some(match self.inbound.segment(&header, payload).expect("a segment that may come now") {
            Judged::Terminate => Frame::Terminate,
            Judged::Send { .. } => Frame::Message,
            Judged::Write { .. } | Judged::ReadRequest | Judged::ReadResponse { .. } => Frame::Ready,
            Judged::Immediate { .. } | Judged::AtomicRequest | Judged::AtomicResponse => {
                unreachable!("the pair posts nothing of the kind")
            }
        })
    }
}

/// A Terminate as it follows the reply.
pub(super) fn terminate(crc: bool) -> Bytes {
    let terminate = Terminate::LOCAL_CATASTROPHIC;
    let mut payload = BytesMut::new();
    terminate.encode(&mut payload);
    frame(Terminate::HEADER, &payload, crc)
}

/// The message with this number.
pub(super) fn message(msn: u32, crc: bool) -> Bytes {
    let header = Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: queue::SEND, msn, mo: 0 };
    frame(header, b"good day", crc)
}

/// A frame whose length needs no pad.
fn frame(header: Untagged, payload: &[u8], crc: bool) -> Bytes {
    let mut out = BytesMut::from(&header.encode(payload.len())[..]);
    out.extend_from_slice(payload);
    assert_eq!(out.len() + CRC_SIZE, fpdu_length(out.len() - 2), "it needs a pad");
    let checksum = if crc { to_wire(crc32c(&out)) } else { [0; CRC_SIZE] };
    out.extend_from_slice(&checksum);
    out.freeze()
}
