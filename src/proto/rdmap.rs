//! RDMAP and DDP once a connection is up: which segment may come next, and what ours look like.
//!
//! Sans-io: headers in, decisions out. Payload never passes through here; the provider moves it between the wire and
//! the memory that a decision names. RFC 5040 (RDMAP), RFC 5041 (DDP), RFC 7306 (Immediate Data, Atomic Operations).

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate, queue, read_request_header};

/// The longest Terminate that is looked at: control word, segment length, DDP header, RDMAP header.
pub(crate) const MAX_TERMINATE: usize = 4 + 2 + Untagged::LEN + ReadRequest::LEN;
/// The longest message whose payload is for RDMAP itself.
pub(crate) const MAX_CONTROL: usize = MAX_TERMINATE;
const _: () = assert!(AtomicRequest::LEN <= MAX_CONTROL);

/// A segment that arrives and is allowed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A part of the next Send, `offset` bytes into the message.
    Send { offset: usize, last: bool, solicited: bool, invalidate: Option<u32> },
    /// A part of an RDMA Write; key, range and rights are still to be checked, unless it is empty.
    Write { stag: u32, to: u64 },
    /// A part of the answer to a read of ours; [`Outbound::response`] finds the read.
    ReadResponse { stag: u32, to: u64, last: bool },
    /// A Read Request of [`ReadRequest::LEN`] bytes.
    ReadRequest,
    /// Immediate Data of [`Immediate::LEN`] bytes: a whole message that takes a receive.
    Immediate { solicited: bool },
    /// An Atomic Request of [`AtomicRequest::LEN`] bytes.
    AtomicRequest,
    /// An Atomic Response of [`AtomicResponse::LEN`] bytes; [`Outbound::atomic_response`] finds the request.
    AtomicResponse,
    /// The peer's Terminate, its last message.
    Terminate,
}

/// The receiving half: message order within the untagged queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbound {
    send_msn: u32,
    /// A Send has begun and not ended.
    sending: bool,
    /// Bytes of the current Send that have been placed.
    send_offset: usize,
    /// Read Requests and Atomic Requests.
    read_msn: u32,
    atomic_response_msn: u32,
}

impl Inbound {
    /// Creates the receiving half: message sequence numbers start at 1 (RFC 5041 section 5.2).
    pub(crate) const fn new() -> Self {
        Self { send_msn: 1, sending: false, send_offset: 0, read_msn: 1, atomic_response_msn: 1 }
    }

    /// Returns the header of the next Send, if that is a plain one in one segment, and may come.
    #[inline]
    pub(crate) fn next_send(&self) -> Option<Untagged> {
        (!self.sending).then(|| Untagged::whole(Opcode::Send, queue::SEND, self.send_msn))
    }

    /// Takes a Send in one segment with the header that [`next_send`](Self::next_send) has returned.
    #[inline]
    pub(crate) fn count_send(&mut self) {
        self.send_msn = self.send_msn.wrapping_add(1);
    }

    /// Decides about the segment with this header and `length` bytes of payload. The error is the Terminate to send to the peer.
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
            Opcode::Immediate | Opcode::ImmediateSolicited => queue::SEND,
            opcode if opcode.is_send() => queue::SEND,
            Opcode::ReadRequest | Opcode::AtomicRequest => queue::READ_REQUEST,
            Opcode::AtomicResponse => queue::ATOMIC_RESPONSE,
            Opcode::Terminate => queue::TERMINATE,
            _ => return Err(Terminate::UNEXPECTED_OPCODE),
        };
        if header.qn != expected {
            return Err(Terminate::INVALID_QN);
        }
        match header.opcode {
            Opcode::Immediate | Opcode::ImmediateSolicited if self.sending => {
                // In the midst of a Send only its next segment may come.
                Err(if header.msn == self.send_msn { Terminate::INVALID_MO } else { Terminate::MSN_RANGE })
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                whole(header, length, &mut self.send_msn, Immediate::LEN)?;
                Ok(Segment::Immediate { solicited: header.opcode.is_solicited() })
            }
            Opcode::ReadRequest => {
                whole(header, length, &mut self.read_msn, ReadRequest::LEN)?;
                Ok(Segment::ReadRequest)
            }
            Opcode::AtomicRequest => {
                whole(header, length, &mut self.read_msn, AtomicRequest::LEN)?;
                Ok(Segment::AtomicRequest)
            }
            Opcode::AtomicResponse => {
                whole(header, length, &mut self.atomic_response_msn, AtomicResponse::LEN)?;
                Ok(Segment::AtomicResponse)
            }
            Opcode::Terminate if header.mo != 0 || !header.last || length > MAX_TERMINATE => {
                Err(Terminate::INVALID_MO)
            }
            Opcode::Terminate => Ok(Segment::Terminate),
            _ => self.send(header, length),
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
        self.sending = !header.last;
        if header.last {
            self.send_msn = self.send_msn.wrapping_add(1);
            self.send_offset = 0;
        } else {
            self.send_offset = offset + length;
        }
        let solicited = header.opcode.is_solicited();
        let invalidate = header.opcode.invalidates().then_some(header.invalidate);
        Ok(Segment::Send { offset, last: header.last, solicited, invalidate })
    }
}

/// Checks that a message is one segment of `expected` bytes and the next one of its queue, and counts it.
fn whole(header: &Untagged, length: usize, msn: &mut u32, expected: usize) -> Result<(), Terminate> {
    if header.msn != *msn {
        return Err(Terminate::MSN_RANGE);
    }
    if header.mo != 0 || !header.last {
        return Err(Terminate::INVALID_MO);
    }
    match length.cmp(&expected) {
        Ordering::Equal => {}
        // No code is closer.
        Ordering::Less => return Err(Terminate::CATASTROPHIC_STREAM),
        Ordering::Greater => return Err(Terminate::TOO_LONG),
    }
    *msn = msn.wrapping_add(1);
    Ok(())
}

/// Takes the next message sequence number.
#[inline]
fn next(msn: &mut u32) -> u32 {
    let taken = *msn;
    *msn = taken.wrapping_add(1);
    taken
}

/// The answer that a request of this side waits for.
#[derive(Debug)]
enum Awaited {
    /// The bytes of a read.
    Read { stag: u32, length: usize, received: usize },
    /// The value that an atomic found.
    Atomic { identifier: u32 },
}

/// A read or an atomic of ours that has not been answered in full.
#[derive(Debug)]
struct Outstanding<T> {
    owner: T,
    awaited: Awaited,
}

/// The options of a Send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendOptions {
    /// The peer's STag that it takes back.
    pub(crate) invalidate: Option<u32>,
    /// The receive that it ends in is a solicited event.
    pub(crate) solicited: bool,
}

/// The sending half: sequence numbers, and the reads and atomics that await their answers.
///
/// `T` names the owner of such a request.
#[derive(Debug)]
pub(crate) struct Outbound<T> {
    send_msn: u32,
    read_msn: u32,
    atomic_response_msn: u32,
    /// The most reads and atomics in flight at once: the negotiated ORD (RFC 7306 section 5.4 counts them together).
    read_limit: usize,
    reads: VecDeque<Outstanding<T>>,
}

impl<T> Outbound<T> {
    pub(crate) fn new(read_limit: u32) -> Self {
        let read_limit = usize::try_from(read_limit).unwrap_or(usize::MAX);
        Self { send_msn: 1, read_msn: 1, atomic_response_msn: 1, read_limit, reads: VecDeque::new() }
    }

    /// Returns whether another read or atomic may be issued now (`NEG-06`).
    pub(crate) fn may_read(&self) -> bool {
        self.reads.len() < self.read_limit
    }

    /// Returns the number of reads and atomics that await their answer, and the most of them.
    #[cfg(feature = "inspect")]
    pub(crate) fn reads(&self) -> (usize, usize) {
        (self.reads.len(), self.read_limit)
    }

    /// Returns whether reads were agreed on at all, and so atomics.
    pub(crate) fn reads_at_all(&self) -> bool {
        self.read_limit > 0
    }

    /// Returns whether a read or an atomic awaits its answer.
    pub(crate) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Returns the header of a piece of the current Send; the last piece moves on to the next message.
    ///
    /// `None` beyond the 4 GiB that a message offset can express.
    pub(crate) fn send(&mut self, offset: usize, last: bool, options: SendOptions) -> Option<Untagged> {
        let mo = u32::try_from(offset).ok()?;
        let SendOptions { invalidate, solicited } = options;
        let opcode = Opcode::send(invalidate.is_some(), solicited);
        let invalidate = invalidate.unwrap_or(0);
        let header = Untagged { last, opcode, invalidate, qn: queue::SEND, msn: self.send_msn, mo };
        if last {
            self.count_send();
        }
        Some(header)
    }

    /// Returns the header of the next Send, if that is a plain one in one segment.
    /// [`count_send`](Self::count_send) takes its number when the segment is sent.
    pub(crate) fn next_send(&self) -> Untagged {
        Untagged::whole(Opcode::Send, queue::SEND, self.send_msn)
    }

    /// Takes the next message sequence number, for a Send.
    pub(crate) fn count_send(&mut self) {
        next(&mut self.send_msn);
    }

    /// Returns the header of an Immediate Data message, which is numbered as the Sends are (RFC 7306 section 6.3).
    pub(crate) fn immediate(&mut self, solicited: bool) -> Untagged {
        let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        Untagged::whole(opcode, queue::SEND, next(&mut self.send_msn))
    }

    /// Returns the header of a Read Request, which counts as outstanding from now on.
    ///
    /// The sink is named by `stag` and offset 0. The name is only ever compared with what comes back, so it needs no
    /// key and gives the peer no right.
    pub(crate) fn read(&mut self, owner: T, stag: u32, length: usize) -> Untagged {
        self.reads.push_back(Outstanding { owner, awaited: Awaited::Read { stag, length, received: 0 } });
        read_request_header(next(&mut self.read_msn))
    }

    /// Returns the header and the identifier of an Atomic Request, which counts as outstanding from now on. It is numbered as
    /// the Read Requests are (RFC 7306 section 5.2.1).
    pub(crate) fn atomic(&mut self, owner: T) -> (Untagged, u32) {
        // The number of the message is as good a name as any: no two that are outstanding share it.
        let identifier = next(&mut self.read_msn);
        self.reads.push_back(Outstanding { owner, awaited: Awaited::Atomic { identifier } });
        (Untagged::whole(Opcode::AtomicRequest, queue::READ_REQUEST, identifier), identifier)
    }

    /// Returns the header of our answer to an atomic of the peer's.
    pub(crate) fn answer_atomic(&mut self) -> Untagged {
        Untagged::whole(Opcode::AtomicResponse, queue::ATOMIC_RESPONSE, next(&mut self.atomic_response_msn))
    }

    /// Matches a segment of a Read Response with the oldest outstanding read (RFC 5040 section 5.2: responses come
    /// in the order of the requests). Returns the owner of the read, and the offset of the segment in the sink.
    /// [`remove_answered`](Self::remove_answered) follows once the last one has been placed. The error is the
    /// Terminate for an answer without a request, or for one that differs from its request.
    pub(crate) fn response(
        &mut self,
        stag: u32,
        to: u64,
        length: usize,
        last: bool,
    ) -> Result<(&T, usize), Terminate> {
        let Some(Outstanding { owner, awaited: Awaited::Read { stag: asked, length: whole, received } }) =
            self.reads.front_mut()
        else {
            return Err(Terminate::UNEXPECTED_OPCODE);
        };
        if length == 0 && last && *whole == 0 {
            // Of an empty answer neither key nor offset is checked.
            return Ok((owner, 0));
        }
        if stag != *asked {
            return Err(Terminate::INVALID_STAG_TAGGED);
        }
        let offset = *received;
        let end = offset + length;
        if u64::try_from(offset) != Ok(to) || end > *whole || last != (end == *whole) {
            return Err(Terminate::BOUNDS_TAGGED);
        }
        *received = end;
        Ok((owner, offset))
    }

    /// Matches an Atomic Response with the oldest outstanding request and returns its owner: answers come in the
    /// order of the requests, whatever their kind (RFC 7306 section 5.4). [`remove_answered`](Self::remove_answered) follows.
    /// The error is the Terminate for an answer without a request.
    pub(crate) fn atomic_response(&self, response: &AtomicResponse) -> Result<&T, Terminate> {
        match self.reads.front() {
            Some(Outstanding { owner, awaited: Awaited::Atomic { identifier } })
                if *identifier == response.identifier =>
            {
                Ok(owner)
            }
            _ => Err(Terminate::UNEXPECTED_OPCODE),
        }
    }

    /// Returns the owner of the request whose answer comes next.
    pub(crate) fn oldest(&self) -> Option<&T> {
        self.reads.front().map(|read| &read.owner)
    }

    /// Returns the number of the request whose answer comes next.
    pub(crate) fn question(&self) -> Option<u32> {
        let count = u32::try_from(self.reads.len()).ok().filter(|count| *count > 0)?;
        Some(self.read_msn.wrapping_sub(count))
    }

    /// Removes the oldest outstanding request, which has been answered in full, and returns its owner.
    pub(crate) fn remove_answered(&mut self) -> Option<T> {
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
    fn a_terminate_is_short() {
        let (mut inbound, header) = (Inbound::new(), Header::Untagged(Terminate::HEADER));
        assert_eq!(inbound.segment(&header, 4), Ok(Segment::Terminate));
        assert_eq!(inbound.segment(&header, 1000), Err(Terminate::INVALID_MO));
    }

    // Reads beyond the negotiated limit wait, and answers must fit their reads (NEG-06).
    #[test]
    fn reads_stay_within_the_limit() {
        let mut outbound = Outbound::new(2);
        assert_eq!(outbound.read("a", 7, 100).msn, 1);
        assert!(outbound.may_read());
        assert_eq!(outbound.read("b", 8, 0).msn, 2);
        assert!(!outbound.may_read());
        assert_eq!(outbound.response(7, 0, 60, false), Ok((&"a", 0)));
        assert_eq!(outbound.response(7, 0, 40, true), Err(Terminate::BOUNDS_TAGGED), "the offset went back");
        assert_eq!(outbound.response(7, 60, 41, true), Err(Terminate::BOUNDS_TAGGED), "more than was asked");
        assert_eq!(
            outbound.response(7, 60, 40, false),
            Err(Terminate::BOUNDS_TAGGED),
            "full, but not the last"
        );
        assert_eq!(outbound.response(8, 60, 40, true), Err(Terminate::INVALID_STAG_TAGGED));
        assert_eq!(outbound.response(7, 60, 40, true), Ok((&"a", 60)));
        assert_eq!(outbound.remove_answered(), Some("a"));
        assert_eq!(outbound.response(0, 99, 0, true), Ok((&"b", 0)));
        assert_eq!(outbound.remove_answered(), Some("b"));
        assert_eq!(outbound.response(8, 0, 0, true), Err(Terminate::UNEXPECTED_OPCODE), "nobody asked");
    }

    // A Send carries its invalidation and its solicited event to the peer (QP-11, QP-13).
    #[test]
    fn a_send_says_what_it_does_beside() {
        let (mut outbound, mut inbound) = (Outbound::<()>::new(0), Inbound::new());
        for (invalidate, solicited) in [(None, false), (Some(7), false), (None, true), (Some(9), true)] {
            let options = SendOptions { invalidate, solicited };
            for (offset, last) in [(0, false), (10, true)] {
                let header = outbound.send(offset, last, options).expect("a small offset");
                let segment = inbound.segment(&Header::Untagged(header), 10);
                assert_eq!(segment, Ok(Segment::Send { offset, last, solicited, invalidate }));
            }
        }
        assert_eq!(
            outbound.send(1 << 32, true, SendOptions::default()),
            None,
            "beyond what an offset can say"
        );
    }

    // QP-23: immediate data has its place among the sends.
    #[test]
    fn immediate_data_is_numbered_as_sends_are() {
        let (mut outbound, mut inbound) = (Outbound::<()>::new(0), Inbound::new());
        for solicited in [false, true] {
            let header = outbound.immediate(solicited);
            assert_eq!(header.encode(8)[..4], [0, 26, 0x41, 0x48 + u8::from(solicited)]);
            let header = Header::Untagged(header);
            assert_eq!(inbound.segment(&header, 7), Err(Terminate::CATASTROPHIC_STREAM));
            assert_eq!(inbound.segment(&header, 8), Ok(Segment::Immediate { solicited }));
            assert_eq!(inbound.segment(&header, 8), Err(Terminate::MSN_RANGE), "the same once more");
        }
        let first = outbound.send(0, false, SendOptions::default()).expect("a small offset");
        let interrupts = Header::Untagged(outbound.immediate(false));
        let next = Header::Untagged(outbound.immediate(false));
        for length in [5, 0] {
            let mut inbound = inbound;
            inbound.segment(&Header::Untagged(first), length).expect("the first part of a message");
            assert_eq!(inbound.segment(&interrupts, 8), Err(Terminate::INVALID_MO));
            assert_eq!(inbound.segment(&next, 8), Err(Terminate::MSN_RANGE));
        }
    }

    // QP-23, NEG-06: atomics and reads share numbers, limit and order.
    #[test]
    fn atomics_are_answered_in_order_with_reads() {
        let (mut outbound, mut inbound) = (Outbound::new(2), Inbound::new());
        let read = outbound.read("read", 5, 4);
        let (atomic, identifier) = outbound.atomic("atomic");
        assert_eq!((read.msn, atomic.msn, outbound.may_read()), (1, 2, false));
        assert_eq!(atomic.encode(52)[..4], [0, 70, 0x41, 0x4a]);
        assert_eq!(inbound.segment(&Header::Untagged(read), 28), Ok(Segment::ReadRequest));
        assert_eq!(inbound.segment(&Header::Untagged(atomic), 28), Err(Terminate::CATASTROPHIC_STREAM));
        assert_eq!(inbound.segment(&Header::Untagged(atomic), 52), Ok(Segment::AtomicRequest));

        let answer = AtomicResponse { identifier, original: 1 };
        assert_eq!(outbound.atomic_response(&answer), Err(Terminate::UNEXPECTED_OPCODE), "the read is first");
        outbound.response(5, 0, 4, true).expect("the answer to the read");
        assert_eq!(outbound.remove_answered(), Some("read"));
        assert_eq!(
            outbound.response(5, 0, 4, true),
            Err(Terminate::UNEXPECTED_OPCODE),
            "it is an atomic now"
        );
        let other = AtomicResponse { identifier: identifier + 1, ..answer };
        assert_eq!(outbound.atomic_response(&other), Err(Terminate::UNEXPECTED_OPCODE));
        assert_eq!(outbound.atomic_response(&answer), Ok(&"atomic"));
        assert_eq!(outbound.remove_answered(), Some("atomic"));
        assert_eq!(outbound.atomic_response(&answer), Err(Terminate::UNEXPECTED_OPCODE), "nobody asked");

        let (first, second) = (outbound.answer_atomic(), outbound.answer_atomic());
        assert_eq!(second.encode(12)[2..16], [0x41, 0x4b, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2]);
        assert_eq!(inbound.segment(&Header::Untagged(second), 12), Err(Terminate::MSN_RANGE));
        assert_eq!(inbound.segment(&Header::Untagged(first), 13), Err(Terminate::TOO_LONG));
        assert_eq!(inbound.segment(&Header::Untagged(first), 12), Ok(Segment::AtomicResponse));
        let misplaced = Untagged { qn: queue::READ_REQUEST, ..second };
        assert_eq!(inbound.segment(&Header::Untagged(misplaced), 12), Err(Terminate::INVALID_QN));
        let cut = Untagged { last: false, ..second };
        assert_eq!(inbound.segment(&Header::Untagged(cut), 12), Err(Terminate::INVALID_MO));
    }
}
