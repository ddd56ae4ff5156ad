//! Makes frames of queued requests and responses, in the order the protocol allows, and collects them for one
//! `sendmsg`: small parts are copied together, large payload stays in place.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ops::Range;

use smallvec::SmallVec;
use tokio::io::ReadBuf;

use super::memory::{Grant, RemoteAccess, deregistered};
use super::send_queue::{Answer, Entry, FramingTurn, ReadOwner, RequestState, Response, SendQueue};
use super::send_queue::{StreamEnd, Work};
use crate::inflight::{self, Payload, STREAM_KEY, WORD};
use crate::memory::{self, Piece, Slice};
use crate::proto::mpa::{Rtr, rtr_frame};
use crate::proto::rdmap::SendOptions;
use crate::provider::work::{Flags, Operation, RemoteAddress};
use crate::wire::ddp::{self, Header, Tagged, Untagged};
use crate::wire::extensions::{Atomic, AtomicRequest, AtomicResponse, Immediate};
use crate::wire::mpa::{self, Crc, crc32c};
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate};

/// Up to this many bytes, copying payload beside its header is cheaper than another piece.
pub(super) const COPY_BELOW: usize = 1024;
/// The most FPDUs of full size in a batch, or of payload in a message of a stream: about a megabyte, and a
/// few pieces each.
pub(super) const MAX_FRAMES: usize = 17;
/// The most pieces: one `sendmsg` takes all of them.
const MAX_PIECES: usize = 48;
/// The most copied bytes in a batch, about as many as in place: with fewer the peer reads less at a time,
/// which costs both ends more than a smaller arena saves in the cache.
const MAX_COPIED: usize = 1024 * 1024;
/// The most bytes behind a payload: padding and checksum.
const TRAILER: usize = 3 + mpa::CRC_SIZE;
/// The room for a trailer in a frame on the stack: [`append_trailer`] writes whole words.
pub(super) const TRAILER_ROOM: usize = 8;
/// A batch that waits for the socket may keep an arena of this size, however little is in it.
const SMALL_ARENA: usize = 4 * 1024;
/// The largest arena that a thread keeps.
const LARGEST_ARENA: usize = 2 * MAX_COPIED;

thread_local! {
    /// The arena of this thread, while no batch has it.
    static FREE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Takes an empty arena of this thread.
fn take_arena() -> Vec<u8> {
    FREE.try_with(Cell::take).unwrap_or_default()
}

/// Returns an arena to this thread.
fn restore_arena(mut arena: Vec<u8>) {
    arena.clear();
    if (1..=LARGEST_ARENA).contains(&arena.capacity()) {
        // A thread that is about to end keeps none.
        let _ = FREE.try_with(|free| free.set(arena));
    }
}

/// Appends padding and checksum to the FPDU of `ulpdu` bytes that begins at `start`. Without `crc` its payload may be
/// elsewhere.
#[inline]
pub(super) fn append_trailer(frame: &mut ReadBuf<'_>, start: usize, ulpdu: usize, crc: bool) {
    let end = frame.filled().len() + mpa::pad_length(ulpdu) + mpa::CRC_SIZE;
    // RFC 5044 section 4.4: the checksum field is always there; zero when the checksum is off.
    frame.put_slice(&[0; TRAILER_ROOM]);
    frame.set_filled(end);
    if crc && let Some((body, field)) = frame.filled_mut()[start..].split_last_chunk_mut() {
        *field = mpa::crc_to_wire(crc32c(body));
    }
}

/// The most bytes of frames that belong to no request, and are made on the stack: those of the end of a stream.
pub(super) const OWN: usize = mpa::fpdu_length(Untagged::LEN + WORD)
    + mpa::fpdu_length(Untagged::LEN + ReadRequest::LEN)
    + TRAILER_ROOM;
/// The memory of such frames.
type OwnRoom = [MaybeUninit<u8>; OWN];

/// Appends an untagged segment whose payload is a message of this side.
fn append_untagged(frames: &mut ReadBuf<'_>, header: &Untagged, payload: &[u8], crc: bool) {
    let start = frames.filled().len();
    frames.put_slice(&header.encode(payload.len()));
    frames.put_slice(payload);
    append_trailer(frames, start, Untagged::LEN + payload.len(), crc);
}

/// Returns the frame of an answer to an empty Read with this sink.
pub(super) fn frame_empty_answer<'a>(
    room: &'a mut OwnRoom,
    (stag, to): (u32, u64),
    crc: bool,
) -> ReadBuf<'a> {
    let mut frame = ReadBuf::uninit(room);
    frame.put_slice(&Tagged { last: true, opcode: Opcode::ReadResponse, stag, to }.encode(0));
    append_trailer(&mut frame, 0, Tagged::LEN, crc);
    frame
}

enum Part {
    /// Bytes of the arena.
    Copied(Range<usize>),
    /// Payload in place.
    InPlace(Slice),
    /// Payload in place that a peer reads: a part of the memory of `access`, which alone keeps it.
    Remote(Range<usize>),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Copied(range) | Self::Remote(range) => range.len(),
            Self::InPlace(slice) => slice.len(),
        }
    }
}

/// Framed bytes that the socket has not taken yet.
pub(crate) struct Batch {
    /// Copied bytes. The arena is the thread's, lent until the socket has taken the batch: an idle connection
    /// has none.
    pub(super) arena: Vec<u8>,
    parts: VecDeque<Part>,
    frames: u32,
    /// The number of bytes of the first part that have been sent.
    sent: usize,
    /// The peer's access to the in-place parts of Read Responses, as long as one of them has not been sent in
    /// full: it must be valid when they are sent.
    pub(super) access: Option<RemoteAccess>,
    crc: bool,
}

impl Batch {
    pub(crate) fn new(crc: bool) -> Self {
        Self { arena: Vec::new(), parts: VecDeque::new(), frames: 0, sent: 0, access: None, crc }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes the batch, and leaves an empty one.
    pub(super) fn take(&mut self) -> Self {
        let empty = Self::new(self.crc);
        std::mem::replace(self, empty)
    }

    /// Returns whether another FPDU of any size fits.
    pub(crate) fn has_room(&self) -> bool {
        (self.frames as usize) < MAX_FRAMES && self.parts.len() < MAX_PIECES && self.arena.len() < MAX_COPIED
    }

    /// Returns whether payload that is reached by this access may join.
    pub(crate) fn admits(&self, access: Option<&RemoteAccess>) -> bool {
        match (&self.access, access) {
            (Some(mine), Some(other)) => mine.is(other),
            _ => true,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.frames = 0;
        self.sent = 0;
        self.access = None;
        restore_arena(std::mem::take(&mut self.arena));
    }

    /// Shrinks an arena that is much too large for its bytes, because the socket does not take all of the
    /// batch now.
    pub(crate) fn trim(&mut self) {
        if self.arena.capacity() > SMALL_ARENA.max(2 * self.arena.len()) {
            self.arena.shrink_to(SMALL_ARENA);
        }
    }

    /// Returns the end of the arena, from which on more is copied.
    fn begin(&mut self) -> usize {
        if self.arena.capacity() == 0 {
            self.arena = take_arena();
        }
        self.arena.len()
    }

    /// Appends a segment whose payload is device-visible memory, and announces that `follow` full segments
    /// follow. `access` is the peer's access to the payload, if the peer reads it.
    pub(crate) fn segment(
        &mut self,
        header: &Header,
        follow: usize,
        parts: &Payload,
        access: Option<&RemoteAccess>,
    ) {
        let (start, length) = (self.begin(), inflight::length(parts));
        match header {
            Header::Tagged(header) => self.arena.extend_from_slice(&header.encode(length)),
            Header::Untagged(header) => self.arena.extend_from_slice(&header.encode(length)),
        }
        if follow > 0 {
            ddp::announce(&mut self.arena[start..], follow);
        }
        let frame = self.arena.len() - start + length;
        // A checksum must be of the very bytes that are sent, and others may write registered memory: copy
        // first.
        if length > COPY_BELOW && !self.crc {
            self.copied(start);
            self.parts.extend(parts.iter().map(|slice| match access {
                Some(_) => Part::Remote(slice.place()),
                None => Part::InPlace(slice.clone()),
            }));
            if access.is_some() {
                self.access = access.cloned();
            }
            let start = self.arena.len();
            self.trailer(start, frame);
            self.copied(start);
        } else {
            // One allocation at most, and no bytes that are cleared first.
            self.arena.reserve(length + TRAILER);
            if length > COPY_BELOW && memory::folds_copies() {
                self.checked(start, frame, parts);
            } else {
                for part in parts {
                    part.append_to(part.len(), &mut self.arena);
                }
                self.trailer(start, frame);
            }
            self.copied(start);
        }
    }

    /// Appends segments with a copy of their payload. `bytes` is the length of all payloads.
    pub(super) fn copied_segments<'p>(
        &mut self,
        (bytes, segments): (usize, usize),
        each: impl Iterator<Item = (Header, &'p [u8])>,
    ) {
        let start = self.begin();
        self.arena.reserve(bytes + segments * (mpa::LENGTH_SIZE + Untagged::LEN + TRAILER_ROOM));
        for (header, payload) in each {
            let start = self.arena.len();
            match header {
                Header::Tagged(header) => self.arena.extend_from_slice(&header.encode(payload.len())),
                Header::Untagged(header) => self.arena.extend_from_slice(&header.encode(payload.len())),
            }
            self.arena.extend_from_slice(payload);
            let length = self.arena.len() - start;
            // Whole words are written faster than so many bytes.
            self.arena.extend_from_slice(&[0; TRAILER_ROOM]);
            let end = start + length + mpa::pad_length(length - mpa::LENGTH_SIZE) + mpa::CRC_SIZE;
            self.arena.truncate(end);
            if self.crc
                && let Some((body, field)) = self.arena[start..].split_last_chunk_mut()
            {
                *field = mpa::crc_to_wire(crc32c(body));
            }
        }
        self.copied(start);
    }

    /// Appends a whole FPDU that was framed elsewhere.
    pub(crate) fn framed(&mut self, fpdu: &[u8]) {
        let start = self.begin();
        self.arena.extend_from_slice(fpdu);
        self.copied(start);
    }

    /// Appends a ready-to-receive frame.
    pub(super) fn rtr(&mut self, rtr: Rtr) {
        if self.parts.capacity() == 0 {
            // A connection may stay idle behind it, and keeps this room.
            self.parts.reserve_exact(1);
        }
        self.framed(&rtr_frame(rtr, self.crc));
    }

    /// Appends an untagged segment whose payload is a header of this side.
    pub(crate) fn untagged(&mut self, header: &Untagged, payload: &[u8]) {
        let start = self.begin();
        self.arena.extend_from_slice(&header.encode(payload.len()));
        self.arena.extend_from_slice(payload);
        self.trailer(start, self.arena.len() - start);
        self.copied(start);
    }

    /// Appends payload, padding and checksum to the header of an FPDU of `length` bytes that starts at `start`. The
    /// checksum is computed while the payload is copied.
    #[inline(never)]
    fn checked(&mut self, start: usize, length: usize, parts: &Payload) {
        let mut crc = Crc::new();
        crc.update(&self.arena[start..]);
        for part in parts {
            part.append_checked(&mut self.arena, &mut crc);
        }
        let pad = &[0; 4][..mpa::pad_length(length - mpa::LENGTH_SIZE)];
        crc.update(pad);
        self.arena.extend_from_slice(pad);
        self.arena.extend_from_slice(&mpa::crc_to_wire(crc.finish()));
        self.frames += 1;
    }

    /// Appends padding and checksum of the FPDU of `length` bytes (length field included) that starts at
    /// `start`.
    fn trailer(&mut self, start: usize, length: usize) {
        let pad = mpa::pad_length(length - mpa::LENGTH_SIZE);
        self.arena.extend_from_slice(&[0; 4][..pad]);
        // RFC 5044 section 4.4: the field is always there; zero when the checksum is off.
        let crc = if self.crc { crc32c(&self.arena[start..]) } else { 0 };
        self.arena.extend_from_slice(&mpa::crc_to_wire(crc));
        self.frames += u32::from(length > COPY_BELOW);
    }

    /// Makes the end of the arena, from `start` on, the next part, joined to the one before if it can be.
    fn copied(&mut self, start: usize) {
        let end = self.arena.len();
        match self.parts.back_mut() {
            Some(Part::Copied(range)) if range.end == start => range.end = end,
            _ => self.parts.push_back(Part::Copied(start..end)),
        }
    }

    /// Returns the pieces that are to be sent. `memory` is that of the access, if the batch
    /// has one.
    pub(crate) fn pieces<'a>(&'a self, memory: Option<&'a Slice>) -> impl Iterator<Item = Piece<'a>> {
        self.parts.iter().enumerate().map(move |(index, part)| {
            let skip = if index == 0 { self.sent } else { 0 };
            match (part, memory) {
                (Part::Copied(range), _) => Piece::Bytes(&self.arena[range.start + skip..range.end]),
                (Part::InPlace(slice), _) => Piece::Memory { slice, part: skip..slice.len() },
                (Part::Remote(range), Some(slice)) => {
                    Piece::Memory { slice, part: range.start + skip..range.end }
                }
                // Such a part has an access, and its caller passes the memory.
                (Part::Remote(_), None) => Piece::Bytes(&[]),
            }
        })
    }

    /// Removes the first `sent` bytes, which the socket has taken.
    pub(crate) fn advance(&mut self, mut sent: usize) {
        while let Some(part) = self.parts.front() {
            let left = part.len() - self.sent;
            if sent < left {
                self.sent += sent;
                // The Read Response may have been sent in full, and the memory deregistered for that reason.
                if !self.parts.iter().any(|part| matches!(part, Part::Remote(_))) {
                    self.access = None;
                }
                self.trim();
                return;
            }
            sent -= left;
            self.sent = 0;
            self.parts.pop_front();
        }
        self.clear();
    }
}

/// Returns the length of the next segment if `left` bytes of a message are left, and how many full segments
/// are announced behind it. The receiver knows the place of those, so the segment that is not full comes first
/// then, and not last.
fn cut(left: usize, full: usize, announces: bool) -> (usize, usize) {
    let follow = if announces && left > full { (left - 1) / full } else { 0 };
    ((left - follow * full).min(full), follow)
}

impl SendQueue {
    /// Frames as much as a batch holds. Returns false if there is nothing to send now.
    pub(super) fn fill(&mut self) -> bool {
        if self.is_held() {
            return false;
        }
        if self.is_closed() {
            if let Some(terminate) = self.terminate.take() {
                let mut payload = Vec::with_capacity(terminate.payload_len());
                terminate.encode(&mut payload);
                self.batch.untagged(&Terminate::HEADER, &payload);
            }
            return !self.batch.is_empty();
        }
        // In turn, so that neither a peer that reads nor a caller that writes starves the other.
        let mut progress = true;
        while progress && self.has_unframed() && self.batch.has_room() {
            let answered = self.turn != FramingTurn::Request && self.fill_response();
            let requested = self.turn != FramingTurn::Response && self.fill_request();
            progress = answered || requested;
        }
        !self.batch.is_empty()
    }

    /// Frames segments of the oldest unfinished response.
    fn fill_response(&mut self) -> bool {
        let Some(Response { grant, framed, answer }) = self.responses.front_mut() else { return false };
        if !self.batch.admits(grant.as_ref().map(|grant| &grant.access)) {
            return false;
        }
        let (access, part) = match grant {
            Some(Grant { access, part }) => (Some(access.clone()), part.clone()),
            None => (None, 0..0),
        };
        // Small or checksummed payload is copied here, so it has to be valid here; payload that stays in
        // place is checked again when it is written.
        let held = match access.as_ref().map(RemoteAccess::guard) {
            Some(None) => {
                self.broken.get_or_insert_with(deregistered);
                return false;
            }
            other => other.flatten(),
        };
        let payload = &held.as_ref().map_or_else(Payload::new, |held| held.part(part.start, part.len()));
        let (stag, to) = match *answer {
            Answer::Read { sink } => sink,
            Answer::Atomic { atomic, identifier } => {
                // Executed in its turn: the reads before it must see the value before it. Bytes of a read
                // that are still in place are fetched when the batch is written, so the atomic waits for the
                // next batch.
                if self.batch.access.is_some() {
                    return false;
                }
                // One step, so that no other atomic comes between, of whichever connection.
                let original = payload.first().and_then(|word| word.update(|value| atomic.apply(value)));
                let Some(original) = original else {
                    self.broken.get_or_insert_with(deregistered);
                    return false;
                };
                let header = self.outbound.answer_atomic();
                self.batch.untagged(&header, &AtomicResponse { identifier, original }.encode());
                self.responses.pop_front();
                return true;
            }
        };
        self.turn = FramingTurn::Response;
        while self.batch.has_room() {
            let (size, follow) = cut(part.len() - *framed, Tagged::FULL, self.announces);
            let last = *framed + size == part.len();
            // The peer chose the sink, and may choose one that wraps around.
            let to = to.wrapping_add(*framed as u64);
            let header = Tagged { last, opcode: Opcode::ReadResponse, stag, to };
            let parts = inflight::range(payload, *framed, size);
            self.batch.segment(&Header::Tagged(header), follow, &parts, access.as_ref());
            *framed += size;
            if last {
                self.responses.pop_front();
                self.turn = FramingTurn::Any;
                break;
            }
        }
        true
    }

    /// Frames segments of the oldest unfinished request, or executes it if it needs no frame.
    fn fill_request(&mut self) -> bool {
        let sequence = self.head + self.framed as u64;
        let sends_no_more = self.sends_no_more();
        let Some(entry) = self.entries.get_mut(self.framed) else { return self.fill_stream_end() };
        if sends_no_more {
            // Grants, and the news that this end has closed: of no use to a peer that sends no more data.
            entry.state = RequestState::Done;
            self.framed += 1;
            return true;
        }
        // The queue is in order: requests behind one that may not start yet wait with it.
        if entry.framed == 0 && entry.flags.contains(Flags::FENCE) && self.outbound.has_reads() {
            return false;
        }
        let operation = match &entry.work {
            Work::Transfer(operation) => *operation,
            Work::Window(window_op) => {
                window_op.commit();
                entry.state = RequestState::Done;
                self.framed += 1;
                return true;
            }
        };
        let atomic = match operation {
            Operation::Send { .. } | Operation::Write { .. } => return self.fill_message(),
            _ if !self.outbound.may_read() => return false,
            Operation::Read { from } => {
                // The name of the sink is never looked up, see `Outbound::read`; this one is just easy to
                // recognise.
                let name = (sequence as u32).wrapping_shl(8) | 1;
                let header = self.outbound.read(ReadOwner::Request(sequence), name, entry.length);
                // Posting checked that the length fits.
                let length = u32::try_from(entry.length).unwrap_or(u32::MAX);
                let RemoteAddress { key: source_stag, address: source_to } = from;
                let request = ReadRequest { sink_stag: name, sink_to: 0, length, source_stag, source_to };
                self.batch.untagged(&header, &request.encode());
                None
            }
            Operation::CompareSwap { at, compare, swap } => Some((at, Atomic::compare_swap(compare, swap))),
            Operation::FetchAdd { at, add } => Some((at, Atomic::fetch_add(add))),
        };
        if let Some((RemoteAddress { key: stag, address: to }, atomic)) = atomic {
            let (header, identifier) = self.outbound.atomic(ReadOwner::Request(sequence));
            self.batch.untagged(&header, &AtomicRequest { identifier, stag, to, atomic }.encode());
        }
        entry.state = RequestState::Framed;
        self.framed += 1;
        true
    }

    /// Frames the end of a stream. Returns false if there is nothing to frame now.
    fn fill_stream_end(&mut self) -> bool {
        let mut room = [MaybeUninit::uninit(); OWN];
        let frames = self.frame_stream_end(&mut room);
        if frames.filled().is_empty() {
            return false;
        }
        self.batch.framed(frames.filled());
        self.streamed = true;
        true
    }

    /// Frames as much of the end of a stream as may be sent now.
    pub(super) fn frame_stream_end<'a>(&mut self, room: &'a mut OwnRoom) -> ReadBuf<'a> {
        let (mut frames, crc) = (ReadBuf::uninit(room), self.batch.crc);
        if let StreamEnd::Due(message) = self.ends.own {
            let header = self.outbound.next_send();
            self.outbound.count_send();
            append_untagged(&mut frames, &header, &message, crc);
            self.ends.own = StreamEnd::Announced;
        }
        if self.ends.own == StreamEnd::Announced && self.outbound.may_read() {
            let header = self.outbound.read(ReadOwner::StreamEnd, 1, 0);
            let source_stag = if self.ends.is_last { STREAM_KEY } else { 0 };
            let request = ReadRequest { sink_stag: 1, sink_to: 0, length: 0, source_stag, source_to: 0 };
            append_untagged(&mut frames, &header, &request.encode(), crc);
            self.ends.own = StreamEnd::Asked;
        }
        frames
    }

    /// Frames segments of the oldest unfinished request, which is a Send or a Write.
    fn fill_message(&mut self) -> bool {
        let Some(entry) = self.entries.get_mut(self.framed) else { return false };
        let Entry { work, payload, flags, length, framed, state, .. } = entry;
        let solicited = flags.contains(Flags::SOLICITED);
        let (written, options, immediate) = match *work {
            Work::Transfer(Operation::Write { to, immediate }) => {
                (Some(to), SendOptions::default(), immediate)
            }
            Work::Transfer(Operation::Send { invalidate, .. }) => {
                (None, SendOptions { invalidate, solicited }, None)
            }
            _ => return false,
        };
        self.turn = FramingTurn::Request;
        while self.batch.has_room() {
            let full = if written.is_some() { Tagged::FULL } else { Untagged::FULL };
            let (size, follow) = cut(*length - *framed, full, self.announces);
            let last = *framed + size == *length;
            let parts: SmallVec<_> = inflight::range(payload, *framed, size);
            let header = if let Some(RemoteAddress { key: stag, address }) = written {
                let to = address.wrapping_add(*framed as u64);
                Header::Tagged(Tagged { last, opcode: Opcode::Write, stag, to })
            } else {
                // Posting checked that the header can express every offset.
                let Some(header) = self.outbound.send(*framed, last, options) else { return false };
                Header::Untagged(header)
            };
            self.batch.segment(&header, follow, &parts, None);
            *framed += size;
            if last {
                if let Some(value) = immediate {
                    // A message of its own, behind the Write, whose data is in place when it arrives.
                    let header = self.outbound.immediate(solicited);
                    self.batch.untagged(&header, &Immediate(value).encode());
                }
                *state = RequestState::Framed;
                self.framed += 1;
                self.turn = FramingTurn::Any;
                break;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;
    use crate::soft::memory::KeyTable;
    use crate::types::Access;
    use crate::wire::rdmap::Opcode;

    fn memory(length: usize) -> crate::memory::Shared {
        Owned::zeroed(length).expect("memory").share()
    }

    /// Frames the answer to a read of 2000 bytes.
    fn answer(batch: &mut Batch, access: &RemoteAccess) {
        let header = Tagged { last: true, opcode: Opcode::ReadResponse, stag: 1, to: 0 };
        let payload = access.guard().expect("valid").part(0, 2000);
        batch.segment(&Header::Tagged(header), 0, &payload, Some(access));
    }

    #[test]
    fn access_is_needed_until_its_bytes_are_sent() {
        let keys = KeyTable::default();
        let registration = keys.register(memory(2000), Access::REMOTE_READ).expect("registered");
        let mut batch = Batch::new(false);
        answer(&mut batch, &RemoteAccess::new(registration, None));
        let header = Tagged { last: true, opcode: Opcode::Write, stag: 2, to: 0 };
        batch.segment(&Header::Tagged(header), 0, &Payload::from_iter([memory(3000).whole()]), None);

        assert!(batch.access.is_some(), "a Write of ours behind the answer does not free it");
        let answered = 16 + 2000;
        batch.advance(answered - 1);
        assert!(batch.access.is_some(), "a byte of the answer is left");
        batch.advance(1);
        assert!(batch.access.is_none(), "what is left is somebody else's");
        assert!(!batch.is_empty());
    }

    #[test]
    fn thread_keeps_one_arena_of_limited_size() {
        restore_arena(Vec::with_capacity(LARGEST_ARENA));
        assert_eq!(take_arena().capacity(), LARGEST_ARENA);
        assert_eq!(take_arena().capacity(), 0, "there was one");
        restore_arena(Vec::with_capacity(LARGEST_ARENA + 1));
        assert_eq!(take_arena().capacity(), 0, "it was too large");
    }

    #[test]
    fn announced_segments_are_full_behind_the_first() {
        for (length, expected) in [
            (0, &[(0, 0)][..]),
            (10, &[(10, 0)]),
            (11, &[(1, 1), (10, 0)]),
            (30, &[(10, 2), (10, 1), (10, 0)]),
            (39, &[(9, 3), (10, 2), (10, 1), (10, 0)]),
        ] {
            let (mut left, mut segments) = (length, Vec::new());
            loop {
                segments.push(cut(left, 10, true));
                left -= segments[segments.len() - 1].0;
                if left == 0 {
                    break;
                }
            }
            assert_eq!(segments, expected, "{length}");
        }
        assert_eq!([cut(39, 10, false), cut(9, 10, false)], [(10, 0), (9, 0)]);
    }

    // One access decides whether a batch is sent, so that of a second region would not be checked.
    #[test]
    fn answers_from_different_memory_do_not_join() {
        let keys = KeyTable::default();
        let region = || keys.register(memory(2000), Access::REMOTE_READ).expect("registered");
        let [first, second] = [region(), region()];
        let [first, second] = [first, second].map(|registration| RemoteAccess::new(registration, None));
        let mut batch = Batch::new(false);
        assert!(batch.admits(Some(&first)));
        answer(&mut batch, &first);
        assert!(batch.admits(Some(&first)) && batch.admits(None) && !batch.admits(Some(&second)));
    }
}
