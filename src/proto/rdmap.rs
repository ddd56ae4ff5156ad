//! RDMAP and DDP once a connection is up: which segment may come next, and what ours look like.
//!
//! Sans-io: headers in, decisions out. Payload never passes through here; the provider moves it between the wire and
//! the memory that a decision names. RFC 5040 (RDMAP), RFC 5041 (DDP).

use std::collections::VecDeque;

use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate, queue, read_request_header};

/// The longest Terminate that is looked at: control word, segment length, DDP header, RDMAP header.
pub(crate) const MAX_TERMINATE: usize = 4 + 2 + Untagged::LEN + ReadRequest::LEN;

/// What an arriving segment is, when it may arrive now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A part of the next Send, `offset` bytes into the message.
    Send { offset: usize, last: bool, solicited: bool, invalidate: Option<u32> },
    /// A part of an RDMA Write; key, range and rights are still to be checked, unless it is empty.
    Write { stag: u32, to: u64 },
    /// A part of the answer to a read of ours; [`Outbound::response`] says which.
    ReadResponse { stag: u32, to: u64, last: bool },
    /// A Read Request of [`ReadRequest::LEN`] bytes.
    ReadRequest,
    /// The peer's last words.
    Terminate,
}

/// The receiving half: message order within the untagged queues.
#[derive(Debug)]
pub(crate) struct Inbound {
    send_msn: u32,
    /// Bytes of the current Send that have been placed.
    send_offset: usize,
    read_msn: u32,
}

impl Inbound {
    /// Message sequence numbers start at 1 (RFC 5041 section 5.2).
    pub(crate) const fn new() -> Self {
        Self { send_msn: 1, send_offset: 0, read_msn: 1 }
    }

    /// Decides about the segment with this header and `length` bytes of payload.
    ///
    /// # Errors
    /// The Terminate that the peer has earned.
    pub(crate) fn segment(&mut self, header: &Header, length: usize) -> Result<Segment, Terminate> {
        match header {
            Header::Tagged(header) => self.tagged(header),
            Header::Untagged(header) => self.untagged(header, length),
        }
    }

    fn tagged(&self, header: &Tagged) -> Result<Segment, Terminate> {
        let Tagged { last, opcode, stag, to } = *header;
        match opcode {
            Opcode::Write => Ok(Segment::Write { stag, to }),
            Opcode::ReadResponse => Ok(Segment::ReadResponse { stag, to, last }),
            _ => Err(Terminate::UNEXPECTED_OPCODE),
        }
    }

    fn untagged(&mut self, header: &Untagged, length: usize) -> Result<Segment, Terminate> {
        let expected = match header.opcode {
            opcode if opcode.is_send() => queue::SEND,
            Opcode::ReadRequest => queue::READ_REQUEST,
            Opcode::Terminate => queue::TERMINATE,
            _ => return Err(Terminate::UNEXPECTED_OPCODE),
        };
        if header.qn != expected {
            return Err(Terminate::INVALID_QN);
        }
        match expected {
            queue::SEND => self.send(header, length),
            queue::READ_REQUEST => self.read_request(header, length),
            _ if header.mo != 0 || !header.last || length > MAX_TERMINATE => Err(Terminate::INVALID_MO),
            _ => Ok(Segment::Terminate),
        }
    }

    fn send(&mut self, header: &Untagged, length: usize) -> Result<Segment, Terminate> {
        if header.msn != self.send_msn {
            return Err(Terminate::MSN_RANGE);
        }
        let offset = self.send_offset;
        // TCP keeps the order, so the offset of a segment is what came before it.
        if u32::try_from(offset) != Ok(header.mo) {
            return Err(Terminate::INVALID_MO);
        }
        if header.last {
            self.send_msn = self.send_msn.wrapping_add(1);
            self.send_offset = 0;
        } else {
            self.send_offset = offset + length;
        }
        let solicited = matches!(header.opcode, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate);
        let invalidate = matches!(header.opcode, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
            .then_some(header.invalidate);
        Ok(Segment::Send { offset, last: header.last, solicited, invalidate })
    }

    fn read_request(&mut self, header: &Untagged, length: usize) -> Result<Segment, Terminate> {
        if header.msn != self.read_msn {
            return Err(Terminate::MSN_RANGE);
        }
        if header.mo != 0 || !header.last {
            return Err(Terminate::INVALID_MO);
        }
        if length != ReadRequest::LEN {
            return Err(Terminate::TOO_LONG);
        }
        self.read_msn = self.read_msn.wrapping_add(1);
        Ok(Segment::ReadRequest)
    }
}

/// A read of ours that has not been answered in full.
#[derive(Debug)]
struct OutstandingRead<T> {
    owner: T,
    stag: u32,
    length: usize,
    received: usize,
}

/// A piece of a Read Response, matched to its read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResponsePiece<'a, T> {
    pub(crate) owner: &'a T,
    /// Where in the sink the piece goes.
    pub(crate) offset: usize,
}

/// The sending half: sequence numbers, and the reads that await their answers.
///
/// `T` names the owner of a read.
#[derive(Debug)]
pub(crate) struct Outbound<T> {
    send_msn: u32,
    read_msn: u32,
    /// The most reads in flight at once: the negotiated ORD.
    read_limit: usize,
    reads: VecDeque<OutstandingRead<T>>,
}

impl<T> Outbound<T> {
    pub(crate) fn new(read_limit: u32) -> Self {
        let read_limit = usize::try_from(read_limit).unwrap_or(usize::MAX);
        Self { send_msn: 1, read_msn: 1, read_limit, reads: VecDeque::new() }
    }

    /// Whether another read may be issued now (`NEG-06`).
    pub(crate) fn may_read(&self) -> bool {
        self.reads.len() < self.read_limit
    }

    /// Whether reads were agreed on at all.
    pub(crate) fn reads_at_all(&self) -> bool {
        self.read_limit > 0
    }

    pub(crate) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// The header of a piece of the current Send; the last piece moves on to the next message.
    ///
    /// `None` beyond the 4 GiB that a message offset can say.
    pub(crate) fn send(&mut self, offset: usize, last: bool) -> Option<Untagged> {
        let mo = u32::try_from(offset).ok()?;
        let header =
            Untagged { last, opcode: Opcode::Send, invalidate: 0, qn: queue::SEND, msn: self.send_msn, mo };
        if last {
            self.send_msn = self.send_msn.wrapping_add(1);
        }
        Some(header)
    }

    /// The header of a Read Request, which counts as outstanding from now on.
    ///
    /// The sink is named by `stag` and offset 0. The name is only ever compared with what comes back, so it needs no
    /// key and gives the peer no right.
    pub(crate) fn read(&mut self, owner: T, stag: u32, length: usize) -> Untagged {
        self.reads.push_back(OutstandingRead { owner, stag, length, received: 0 });
        let msn = self.read_msn;
        self.read_msn = self.read_msn.wrapping_add(1);
        read_request_header(msn)
    }

    /// Matches a segment of a Read Response with the oldest outstanding read (RFC 5040 section 5.2: responses come
    /// in the order of the requests). [`answered`](Self::answered) follows once the last one has been placed.
    ///
    /// # Errors
    /// The Terminate for an answer that nobody asked for, or that differs from what was asked.
    pub(crate) fn response(
        &mut self,
        stag: u32,
        to: u64,
        length: usize,
        last: bool,
    ) -> Result<ResponsePiece<'_, T>, Terminate> {
        let read = self.reads.front_mut().ok_or(Terminate::UNEXPECTED_OPCODE)?;
        if length == 0 && last && read.length == 0 {
            // Of an empty answer neither key nor offset is checked.
            return Ok(ResponsePiece { owner: &read.owner, offset: 0 });
        }
        if stag != read.stag {
            return Err(Terminate::INVALID_STAG_TAGGED);
        }
        let offset = read.received;
        let received = offset + length;
        if u64::try_from(offset) != Ok(to) || received > read.length || last != (received == read.length) {
            return Err(Terminate::BOUNDS_TAGGED);
        }
        read.received = received;
        Ok(ResponsePiece { owner: &read.owner, offset })
    }

    /// The oldest read has been answered in full.
    pub(crate) fn answered(&mut self) -> Option<T> {
        self.reads.pop_front().map(|read| read.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(msn: u32, mo: u32, last: bool) -> Header {
        Header::Untagged(Untagged { last, opcode: Opcode::Send, invalidate: 0, qn: 0, msn, mo })
    }

    #[test]
    fn sends_come_in_order() {
        let mut inbound = Inbound::new();
        let first = inbound.segment(&send(1, 0, false), 10).expect("first part");
        assert_eq!(first, Segment::Send { offset: 0, last: false, solicited: false, invalidate: None });
        assert_eq!(inbound.segment(&send(1, 9, true), 1), Err(Terminate::INVALID_MO));
        let second = inbound.segment(&send(1, 10, true), 1).expect("second part");
        assert_eq!(second, Segment::Send { offset: 10, last: true, solicited: false, invalidate: None });
        assert_eq!(inbound.segment(&send(1, 0, true), 1), Err(Terminate::MSN_RANGE));
        assert_eq!(inbound.segment(&send(3, 0, true), 1), Err(Terminate::MSN_RANGE));
        inbound.segment(&send(2, 0, true), 0).expect("next message");
    }

    #[test]
    fn queues_and_opcodes_must_agree() {
        let mut inbound = Inbound::new();
        let header =
            |opcode, qn| Header::Untagged(Untagged { last: true, opcode, invalidate: 0, qn, msn: 1, mo: 0 });
        assert_eq!(inbound.segment(&header(Opcode::Send, 3), 0), Err(Terminate::INVALID_QN));
        assert_eq!(inbound.segment(&header(Opcode::ReadRequest, 0), 28), Err(Terminate::INVALID_QN));
        assert_eq!(inbound.segment(&header(Opcode::ReadRequest, 1), 27), Err(Terminate::TOO_LONG));
        assert_eq!(inbound.segment(&header(Opcode::ReadRequest, 1), 28), Ok(Segment::ReadRequest));
        assert_eq!(inbound.segment(&header(Opcode::ReadRequest, 1), 28), Err(Terminate::MSN_RANGE));
        assert_eq!(inbound.segment(&header(Opcode::Terminate, 2), 4), Ok(Segment::Terminate));
        assert_eq!(inbound.segment(&header(Opcode::Terminate, 2), 1000), Err(Terminate::INVALID_MO));
    }

    // NEG-06
    #[test]
    fn reads_stay_within_the_limit() {
        let mut outbound = Outbound::new(2);
        assert_eq!(outbound.read("a", 7, 100).msn, 1);
        assert!(outbound.may_read());
        assert_eq!(outbound.read("b", 8, 0).msn, 2);
        assert!(!outbound.may_read());
        assert_eq!(outbound.response(7, 0, 60, false).map(|piece| piece.offset), Ok(0));
        assert_eq!(outbound.response(7, 0, 40, true), Err(Terminate::BOUNDS_TAGGED), "the offset went back");
        assert_eq!(outbound.response(7, 60, 41, true), Err(Terminate::BOUNDS_TAGGED), "more than was asked");
        assert_eq!(
            outbound.response(7, 60, 40, false),
            Err(Terminate::BOUNDS_TAGGED),
            "full, but not the last"
        );
        assert_eq!(outbound.response(8, 60, 40, true), Err(Terminate::INVALID_STAG_TAGGED));
        assert_eq!(outbound.response(7, 60, 40, true).map(|piece| piece.offset), Ok(60));
        assert_eq!(outbound.answered(), Some("a"));
        assert_eq!(outbound.response(0, 99, 0, true).map(|piece| *piece.owner), Ok("b"));
        assert_eq!(outbound.answered(), Some("b"));
        assert_eq!(outbound.response(8, 0, 0, true), Err(Terminate::UNEXPECTED_OPCODE), "nobody asked");
    }
}
