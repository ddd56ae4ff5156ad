//! A judge of every byte that our stack sends once the start-up is over.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use common::raw::{READ_REQUEST, READ_RESPONSE, SEND, TERMINATE, WRITE, announced, crc32c};
use tokio_rdma::ReadLimits;

use crate::frame::{
    ATOMIC_QUEUE, ATOMIC_RESPONSE, ATOMIC_RESPONSE_LENGTH, Header, Place, READ_QUEUE, Read, SEND_QUEUE,
    TERMINATE_QUEUE, long, parse, word,
};

/// The byte that fills memory that the peer may not read, and that nothing else contains.
pub(crate) const SECRET: u8 = 0xa5;
/// The byte that fills the messages of the user of our stack.
pub(crate) const PAYLOAD: u8 = 1;
/// The key of the peer's memory, and of nothing else of it.
pub(crate) const PEER_KEY: u32 = 9;

/// The bytes that answer a read. They are stale once the region may have changed.
pub(crate) struct Wanted {
    pub(crate) bytes: Vec<u8>,
    pub(crate) stale: Rc<Cell<bool>>,
}

/// The answer that the peer waits for.
pub(crate) enum Awaited {
    Read { sink: u32, length: usize, received: usize },
    Atomic { identifier: u32 },
}

/// A request of the peer.
pub(crate) struct Asked {
    pub(crate) awaited: Awaited,
    /// Nothing is known of an empty read.
    pub(crate) wanted: Option<Wanted>,
}

/// The numbers that our stack uses next.
struct Numbers {
    send: u32,
    /// The bytes of the Send that has begun.
    offset: u32,
    read: u32,
    atomic: u32,
}

pub(crate) struct Reader {
    crc: bool,
    announces: bool,
    /// The next segment that our stack has announced, and how many follow that one.
    announced: Option<(Header, usize)>,
    next: Numbers,
    /// The requests of the peer that were not answered.
    pub(crate) reads: VecDeque<Asked>,
    /// The most of them at once.
    most_reads: usize,
    /// Reads of our stack that nobody has answered: sink key and length.
    pub(crate) asked: VecDeque<(u32, usize)>,
    /// The most of them at once: the limit, and the one that opens the connection.
    most_asked: usize,
    /// The starts of the frames that the peer has sent.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Everything that the peer sent was well framed, so what comes back is known.
    pub(crate) framed: bool,
    /// All that the peer sent was legal, so it must be granted.
    pub(crate) clean: bool,
    pub(crate) terminated: bool,
}

impl Reader {
    /// `limits` are those of our stack.
    pub(crate) fn new(crc: bool, announces: bool, limits: ReadLimits) -> Self {
        Self {
            crc,
            announces,
            announced: None,
            next: Numbers { send: 1, offset: 0, read: 1, atomic: 1 },
            reads: VecDeque::new(),
            most_reads: limits.inbound as usize,
            asked: VecDeque::new(),
            most_asked: limits.outbound as usize + 1,
            sent: Vec::new(),
            framed: true,
            clean: true,
            terminated: false,
        }
    }

    /// Returns whether reads and atomics were agreed on at all.
    pub(crate) fn reads_at_all(&self) -> bool {
        self.most_reads > 0
    }

    /// Returns whether an atomic of the peer has not been answered.
    pub(crate) fn awaits_atomic(&self) -> bool {
        self.reads.iter().any(|asked| matches!(asked.awaited, Awaited::Atomic { .. }))
    }

    /// Returns whether the peer may send one more.
    pub(crate) fn may_read(&self) -> bool {
        self.reads.len() < self.most_reads
    }

    /// Takes whole frames from the front of `bytes`. Without `may_speak` only a Terminate may come.
    pub(crate) fn take(&mut self, bytes: &mut Vec<u8>, may_speak: bool) {
        let mut used = 0;
        while let Some(length) = bytes.get(used..used + 2) {
            let ulpdu = usize::from(u16::from_be_bytes([length[0], length[1]]));
            let whole = (2 + ulpdu).next_multiple_of(4) + 4;
            let Some(frame) = bytes.get(used..used + whole) else { break };
            self.frame(frame, ulpdu, may_speak);
            used += whole;
        }
        bytes.drain(..used);
    }

    fn frame(&mut self, frame: &[u8], ulpdu: usize, may_speak: bool) {
        assert!(!self.terminated, "a Terminate is the last frame");
        let (body, field) = frame.split_at(frame.len() - 4);
        let expected = if self.crc { crc32c(body) } else { 0 };
        assert_eq!(field, expected.to_le_bytes(), "the CRC field");
        assert!(body[2 + ulpdu..].iter().all(|byte| *byte == 0), "a pad that is not zero");
        let ulpdu = &body[2..2 + ulpdu];
        let (header, payload) = parse(ulpdu).expect("a good header");
        self.announcement(&header, payload.len(), announced(ulpdu));
        assert!(may_speak || header.opcode == TERMINATE, "a responder that speaks first");
        match header.place {
            Place::Tagged { stag, to } => self.tagged(&header, stag, to, payload),
            Place::Untagged { queue, number, offset } => {
                assert_eq!(word(ulpdu, 2), 0, "our user invalidates nothing");
                self.untagged(&header, (queue, number, offset), payload);
            }
        }
    }

    /// The reserved bits are zero, or contain how many full segments follow.
    fn announcement(&mut self, header: &Header, length: usize, count: usize) {
        assert!(self.announces || count == 0, "reserved bits are zero");
        if !self.announces || header.opcode == TERMINATE {
            return;
        }
        if let Some((next, behind)) = self.announced {
            assert_eq!((*header, length, count), (next, header.full(), behind), "not what was announced");
        }
        assert_eq!(header.last, count == 0, "all that follow are announced");
        self.announced = (count > 0).then(|| (header.next(length, count == 1), count - 1));
    }

    fn tagged(&mut self, header: &Header, stag: u32, to: u64, payload: &[u8]) {
        if header.opcode == READ_RESPONSE {
            assert!(!self.framed || !payload.contains(&SECRET), "memory that was not granted");
            if self.clean {
                self.response(header.last, stag, to, payload);
            }
            return;
        }
        assert_eq!(header.opcode, WRITE);
        assert!(payload.is_empty() || stag == PEER_KEY, "a Write to a key that nobody has");
        assert!(is_own(payload), "not what the user writes");
    }

    /// A message number, and an offset for all but Sends, is the next one of its queue.
    fn untagged(&mut self, header: &Header, at: (u32, u32, u32), payload: &[u8]) {
        let next = &mut self.next;
        let expected = match header.opcode {
            SEND => (SEND_QUEUE, next.send, next.offset),
            READ_REQUEST => (READ_QUEUE, next.read, 0),
            TERMINATE => (TERMINATE_QUEUE, 1, 0),
            ATOMIC_RESPONSE => (ATOMIC_QUEUE, next.atomic, 0),
            other => panic!("our user posts nothing of the kind {other}"),
        };
        assert_eq!(at, expected, "queue, number and offset");
        assert!(header.last || header.opcode == SEND, "a whole message");
        match header.opcode {
            SEND => {
                assert!(is_own(payload), "not what the user sends");
                next.offset = if header.last { 0 } else { next.offset + payload.len() as u32 };
                next.send += u32::from(header.last);
            }
            READ_REQUEST => {
                next.read += 1;
                self.request(&Read::parse(payload).expect("a Read Request"));
            }
            TERMINATE => self.terminate(payload),
            _ => {
                next.atomic += 1;
                self.atomic_response(payload);
            }
        }
    }

    fn request(&mut self, read: &Read) {
        assert!(read.length == 0 || read.source == PEER_KEY, "a read of a key that nobody has");
        self.asked.push_back((read.sink, read.length));
        assert!(!self.clean || self.asked.len() <= self.most_asked, "more reads than were agreed on");
    }

    /// A segment of the answer to the oldest request of the peer.
    fn response(&mut self, last: bool, stag: u32, to: u64, payload: &[u8]) {
        let asked = self.reads.front_mut().expect("an answer to nothing");
        let Awaited::Read { sink, length, received } = &mut asked.awaited else {
            panic!("a read is answered before an atomic that was first");
        };
        if *length > 0 {
            assert_eq!((stag, to), (*sink, *received as u64), "the place of an answer");
        }
        let start = *received;
        *received += payload.len();
        assert!(*received <= *length, "more than was asked for");
        assert_eq!(last, *received == *length, "the end of an answer");
        if let Some(wanted) = &asked.wanted {
            let bytes = &wanted.bytes[start..start + payload.len()];
            assert!(wanted.stale.get() || bytes == payload, "not the bytes of the region");
        }
        if last {
            self.reads.pop_front();
        }
    }

    fn atomic_response(&mut self, payload: &[u8]) {
        assert_eq!(payload.len(), ATOMIC_RESPONSE_LENGTH);
        if !self.clean {
            return;
        }
        let asked = self.reads.pop_front().expect("an answer to nothing");
        let Awaited::Atomic { identifier } = asked.awaited else {
            panic!("an atomic is answered before a read that was first");
        };
        assert_eq!(word(payload, 0), identifier, "the identifier of the request");
        if let Some(wanted) = asked.wanted {
            let original = long(payload, 4).to_ne_bytes();
            assert!(wanted.stale.get() || wanted.bytes == original, "not what was there");
        }
    }

    /// The reason is of RFC 5040 section 4.8, and what follows it is the start of a frame of the peer.
    fn terminate(&mut self, payload: &[u8]) {
        self.terminated = true;
        let [kind, code, flags, 0] = payload[..4] else { panic!("reserved bits are zero") };
        let known = match (kind >> 4, kind & 15) {
            (0, 0) => code == 0,
            (0, 1) => code <= 4,
            (0, 2) => matches!(code, 5..=9 | 0xff),
            (1, 0) => true,
            (1, 1) => code <= 4,
            (1, 2) => (1..=6).contains(&code),
            (2, 0) => (1..=7).contains(&code),
            _ => false,
        };
        assert!(known, "the reason {kind:#x} {code:#x}");
        let start = &payload[4..];
        let length = match flags {
            0 => 0,
            // The length, and the header.
            0xc0 if start[2] & 0x80 != 0 => 16,
            0xc0 => 20,
            // A Read Request besides.
            0xe0 => 48,
            other => panic!("the flags {other:#x}"),
        };
        assert_eq!(start.len(), length);
        let known = start.is_empty() || self.sent.iter().any(|frame| frame.starts_with(start));
        assert!(
            known || !self.framed,
            "the header of no frame of the peer: {start:02x?} of {:02x?}",
            self.sent
        );
    }
}

/// Returns whether the bytes are those of a message of our user.
fn is_own(payload: &[u8]) -> bool {
    is_full_of::<PAYLOAD>(payload)
}

/// Returns whether every byte is this one. A comparison of slices: the fuzzer instruments each one of single bytes.
pub(crate) fn is_full_of<const BYTE: u8>(bytes: &[u8]) -> bool {
    bytes.chunks(1024).all(|piece| *piece == [BYTE; 1024][..piece.len()])
}
