//! The fuzzer's end of a connection: a plain TCP socket, and a critical reader of what our stack sends.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;

use crate::proto::rdmap::{Inbound, Outbound, Segment};
use crate::types::ReadLimits;
use crate::wire::crc::{crc32c, from_wire};
use crate::wire::ddp::Header;
use crate::wire::extensions::AtomicResponse;
use crate::wire::mpa::{CRC_SIZE, fpdu_length};
use crate::wire::rdmap::{Opcode, ReadRequest};

/// Memory that the peer may not read is full of this, and nothing else contains it.
pub(super) const SECRET: u8 = 0xa5;

/// The socket: what is to be written is queued, what has come is collected.
pub(super) struct Peer {
    stream: Option<TcpStream>,
    outgoing: VecDeque<u8>,
    /// How many bytes go into one write; 0 for all.
    piece: usize,
    pub(super) incoming: Vec<u8>,
    /// It does not read for now.
    pub(super) deaf: bool,
    /// Nothing more will come.
    pub(super) ended: bool,
    /// Whether anything was written since the start-up.
    pub(super) spoke: bool,
}

impl Peer {
    pub(super) fn new(stream: TcpStream, piece: usize) -> Self {
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        let (outgoing, incoming) = (VecDeque::new(), Vec::new());
        Self { stream: Some(stream), outgoing, piece, incoming, deaf: false, ended: false, spoke: false }
    }

    /// The start-up is over.
    pub(super) fn begin(&mut self, piece: usize) {
        self.piece = piece;
        self.spoke = false;
    }

    pub(super) fn queue(&mut self, bytes: &[u8]) {
        if self.stream.is_some() {
            self.outgoing.extend(bytes);
        }
    }

    pub(super) fn has_more(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Moves what can be moved; tells whether anything was.
    pub(super) fn transfer(&mut self) -> bool {
        let Some(mut stream) = self.stream.as_ref() else { return false };
        let mut moved = false;
        let bytes = self.outgoing.make_contiguous();
        let piece =
            if self.piece == 0 { bytes.len() } else { self.piece.max(bytes.len() / 32).min(bytes.len()) };
        if piece > 0 {
            match stream.write(&bytes[..piece]) {
                Ok(written) => {
                    self.outgoing.drain(..written);
                    self.spoke = true;
                    moved = true;
                }
                Err(error) if is_transient(&error) => {}
                Err(_) => self.outgoing.clear(),
            }
        }
        let mut room = [0; 16 * 1024];
        while !self.ended && !self.deaf {
            match stream.read(&mut room) {
                Ok(0) => self.ended = true,
                Ok(length) => self.incoming.extend_from_slice(&room[..length]),
                Err(error) if is_transient(&error) => break,
                Err(_) => self.ended = true,
            }
            moved = true;
        }
        moved
    }

    /// No more from this side.
    pub(super) fn finish(&mut self) {
        self.outgoing.clear();
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Goes away, with a reset if `hard` or if something is unread.
    pub(super) fn close(&mut self, hard: bool) {
        self.outgoing.clear();
        self.ended = true;
        if let Some(stream) = self.stream.take()
            && hard
        {
            let _ = socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO));
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// What the peer should get for a read, and whether it may have changed since.
pub(super) struct Wanted {
    pub(super) bytes: Vec<u8>,
    pub(super) stale: Rc<Cell<bool>>,
}

/// Judges every byte that our stack sends: it must be what our stack would itself accept.
pub(super) struct Reader {
    crc: bool,
    inbound: Inbound,
    /// The peer's own numbering, and its reads.
    pub(super) outbound: Outbound<Option<Wanted>>,
    /// Reads of our stack that nobody has answered: sink key and length.
    pub(super) asked: VecDeque<(u32, usize)>,
    /// How many of them there may be: the limit, and the one that opens the connection.
    most_asked: usize,
    /// Everything that the peer sent was well framed, so what comes back is known.
    pub(super) framed: bool,
    /// What the peer sent was legal, so it must be granted.
    pub(super) clean: bool,
    pub(super) terminated: bool,
}

impl Reader {
    /// `limits` are those of our stack.
    pub(super) fn new(crc: bool, limits: ReadLimits) -> Self {
        Self {
            crc,
            inbound: Inbound::new(),
            outbound: Outbound::new(limits.inbound),
            asked: VecDeque::new(),
            most_asked: limits.outbound as usize + 1,
            framed: true,
            clean: true,
            terminated: false,
        }
    }

    /// Takes whole frames from the front of `bytes`.
    pub(super) fn take(&mut self, bytes: &mut Vec<u8>, may_speak: bool) {
        let mut used = 0;
        while let Some(length) = bytes[used..].first_chunk() {
            let whole = fpdu_length(u16::from_be_bytes(*length).into());
            let Some(frame) = bytes.get(used..used + whole) else { break };
            self.frame(frame, may_speak);
            used += whole;
        }
        bytes.drain(..used);
    }

    fn frame(&mut self, frame: &[u8], may_speak: bool) {
        assert!(!self.terminated, "a Terminate is the last frame");
        let (body, field) = frame.split_at(frame.len() - CRC_SIZE);
        let expected = if self.crc { crc32c(body) } else { 0 };
        assert_eq!(field.first_chunk().map(|field| from_wire(*field)), Some(expected), "the CRC field");
        let (header, length, used) = Header::decode(body).expect("a good header");
        let (payload, pad) = body[used..].split_at(length);
        assert!(pad.iter().all(|byte| *byte == 0), "a pad that is not zero");
        assert!(may_speak || header.opcode() == Opcode::Terminate, "a responder that speaks first");
        match self.inbound.segment(&header, length).expect("we send what we would refuse") {
            Segment::Terminate => self.terminated = true,
            Segment::Send { .. } | Segment::Write { .. } => {}
            Segment::AtomicResponse => {
                let response = AtomicResponse::decode(payload).expect("whole");
                if self.clean {
                    let wanted = self.outbound.atomic_response(&response).expect("an answer as asked");
                    if let Some(wanted) = wanted {
                        let stale = wanted.stale.get();
                        assert!(
                            stale || wanted.bytes == response.original.to_ne_bytes(),
                            "not what was there"
                        );
                    }
                    self.outbound.answered();
                }
            }
            Segment::Immediate { .. } | Segment::AtomicRequest => {
                panic!("our user posts nothing of the kind")
            }
            Segment::ReadRequest => {
                let request = ReadRequest::decode(payload).expect("whole");
                self.asked.push_back((request.sink_stag, request.length as usize));
                assert!(!self.clean || self.asked.len() <= self.most_asked, "more reads than were agreed on");
            }
            Segment::ReadResponse { stag, to, last } => {
                assert!(!self.framed || !payload.contains(&SECRET), "memory that was not granted");
                if self.clean {
                    let piece = self.outbound.response(stag, to, length, last).expect("an answer as asked");
                    if let Some(wanted) = piece.owner {
                        let bytes = &wanted.bytes[piece.offset..piece.offset + length];
                        assert!(wanted.stale.get() || bytes == payload, "not the bytes of the region");
                    }
                    if last {
                        self.outbound.answered();
                    }
                }
            }
        }
    }
}
