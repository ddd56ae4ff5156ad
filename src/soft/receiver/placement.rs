//! Finds the memory for the payload of a segment, and the action on its completion; and plans the frames
//! behind it, so that one `readv` reads many.
//!
//! Between two ends of this crate, a header contains how many full segments of its message follow. A peer
//! sends a large message of a byte stream as RDMA Writes of one length for consecutive memory. So payload may
//! go to where the next frames are expected, and their headers to gaps in between. Bytes that turn out to be
//! something else are put back into the stream and parsed as usual.
//!
//! Announced payload goes to memory that the peer may write anyway: its rights to all of it are checked first,
//! and the sink of a read and a posted receive are for such bytes. The room of a stream's reader is its own
//! until a read returns, whatever is in it. Frames that are not announced are not expected elsewhere: only
//! their headers contain what the peer may access, and where a message ends.

use std::iter;
use std::sync::Arc;

use smallvec::SmallVec;

use super::buffer::{BETWEEN, Staging};
use super::message::StreamSide;
use super::reader::Stop;
use super::{Receiver, State};
use crate::inflight::{self, Payload, STREAM_KEY};
use crate::memory::{Received, Slice, Spare, Target, Unchecked};
use crate::provider::stream::StreamRoom;
use crate::provider::work::RemoteAddress;
use crate::soft::connection::{ConnectionShared, Socket};
use crate::soft::memory::{Binding, Intent, RemoteAccess};
use crate::wire::ddp::{self, Header, MANY_FOLLOW, Tagged, Untagged};
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, Terminate};

/// The place of a payload.
pub(super) enum Place {
    /// In the current receive, from this byte on.
    Receive(usize),
    Memory(Destination),
}

/// The memory for the payload of the current segment.
pub(super) enum Destination {
    /// A posted receive, or the sink of a read.
    Local(Payload),
    /// Memory that the peer addressed: checked at every single transfer, and not touched if the access has
    /// ended. The place is that of the first byte, which was checked with all that follow.
    Remote { access: RemoteAccess, place: RemoteAddress },
    /// The bytes of a stream from this offset on.
    Stream(u64),
    /// A Send to a stream, from this offset of the message on.
    StreamSend(usize),
}

/// Returns the place of a byte of a stream.
pub(super) fn stream_place(address: u64) -> RemoteAddress {
    RemoteAddress { key: STREAM_KEY, address }
}

impl Destination {
    pub(super) fn shrink(&mut self, by: usize) {
        match self {
            Self::Local(parts) => *parts = inflight::range(parts, by, usize::MAX),
            Self::Remote { place, .. } => place.address = place.address.wrapping_add(by as u64),
            Self::Stream(address) => *address = address.wrapping_add(by as u64),
            Self::StreamSend(offset) => *offset += by,
        }
    }

    /// Returns how many of the first of `length` bytes of payload go to a reader's room.
    pub(super) fn direct(&self, room: Option<&StreamRoom<'_>>, length: usize) -> usize {
        match (self, room) {
            (Self::Stream(address), Some(room)) => room.takes(stream_place(*address), length),
            _ => 0,
        }
    }
}

/// The action when the current segment is complete.
#[derive(Default)]
pub(super) enum OnComplete {
    #[default]
    Nothing,
    Send {
        last: bool,
        solicited: bool,
        invalidate: Option<Arc<Binding>>,
    },
    /// A Send to a byte stream ends, of so many bytes.
    StreamSend(usize),
    Response {
        last: bool,
    },
}

/// A message whose payload has no memory of its own.
#[derive(Clone, Copy)]
pub(super) enum Control {
    ReadRequest,
    AtomicRequest,
    AtomicResponse,
    Immediate { solicited: bool },
    Terminate,
}

/// The content of a frame whose header has arrived.
pub(super) enum Content {
    Payload(Place, OnComplete),
    Control(Control),
}

/// Copies staged payload to its place. The checksum of `ahead` may be computed beside the copy.
///
/// # Errors
/// The Terminate for a peer whose key was invalidated.
pub(super) fn place_in(
    destination: &Destination,
    bytes: &[u8],
    room: &mut Option<&mut StreamRoom<'_>>,
    stream: &mut Option<Box<StreamSide>>,
    ahead: &mut Option<Unchecked<'_>>,
) -> Result<(), Terminate> {
    let mut write = |memory: &Slice, at, bytes| match ahead {
        Some(ahead) => memory.write_beside(at, bytes, ahead),
        None => memory.write(at, bytes),
    };
    let parts = match destination {
        Destination::Local(parts) => parts,
        Destination::Remote { access, place } => {
            let valid = access.guard().ok_or(Terminate::INVALID_STAG_TAGGED)?;
            if let Some(memory) = valid.memory() {
                write(memory, offset(*place), bytes);
            }
            return Ok(());
        }
        Destination::Stream(to) => {
            let Some(stream) = stream else { return Ok(()) };
            let (direct, rest) = bytes.split_at(destination.direct(room.as_deref(), bytes.len()));
            if let Some(room) = room.as_deref_mut().filter(|_| !direct.is_empty()) {
                room.copy(direct);
                stream.skip(direct.len());
            }
            return if rest.is_empty() { Ok(()) } else { stream.write(to + direct.len() as u64, rest) };
        }
        Destination::StreamSend(offset) => {
            return stream.as_mut().map_or(Ok(()), |stream| stream.receive(*offset, bytes, room));
        }
    };
    let mut rest = bytes;
    for part in parts {
        let taken = rest.len().min(part.len());
        write(part, 0, &rest[..taken]);
        rest = &rest[taken..];
    }
    Ok(())
}

/// Returns the offset of a place in the memory of its key, which was checked.
pub(super) fn offset(place: RemoteAddress) -> usize {
    usize::try_from(place.address).unwrap_or(usize::MAX)
}

/// The segments that the peer has announced behind the current one.
#[derive(Clone, Copy)]
pub(super) struct Announced {
    /// The header of the next one.
    next: Header,
    /// Their number, at least one. The highest number stands for any from there on.
    count: usize,
}

impl Announced {
    /// Returns whether a segment with this header, which announces `count` others, is the next one.
    fn allows(&self, header: &Header, length: usize, count: usize) -> bool {
        let is_counted = count + 1 == self.count || (count == MANY_FOLLOW && self.count == MANY_FOLLOW);
        *header == self.next && length == header.lengths().1 && is_counted
    }
}

/// The most frames that are expected at once: a megabyte of full ones.
const MOST: usize = 16;
/// Trailer of one frame, without padding, and header of the next.
const LONGEST_GAP: usize = mpa::CRC_SIZE + mpa::LENGTH_SIZE + Untagged::LEN;

/// The targets of the rest of a payload, and of the frames that are expected behind it.
type Targets<'a> = SmallVec<[Target<'a>; 2 * MOST + 2]>;
/// The pieces of a reader's room: for the rest of the current payload, and for each that is expected.
type Pieces<'a> = SmallVec<[Spare<'a>; MOST + 1]>;

/// The frames that are expected behind the current payload, or next: for consecutive memory, and without padding.
struct Plan {
    /// The header of the first frame.
    first: Header,
    /// The length of each payload.
    payload: usize,
    /// The number of frames: one at least.
    count: usize,
    /// The length of the payloads of a message, from the first frame on.
    message: usize,
    /// The memory of this side for the payloads. If it is `None`, they go behind the current payload: to
    /// memory of the peer's choice, or to the room of a stream's reader.
    sink: Option<Slice>,
    /// The number of bytes of the payloads that are read: all of them, or as many as a room has places for.
    room: usize,
    /// The number of bytes that are read behind the last payload.
    behind: usize,
    /// The trailer of the frame before has been read already: the first gap is a header.
    opens: bool,
}

impl Plan {
    /// Returns the length of all payloads.
    fn length(&self) -> usize {
        self.count * self.payload
    }

    /// Returns the length of the bytes before each payload: a trailer and a header.
    fn gap(&self) -> usize {
        mpa::CRC_SIZE + self.first.lengths().0
    }

    /// Returns the number of bytes of the first gap that have been read already.
    fn opened(&self) -> usize {
        if self.opens { mpa::CRC_SIZE } else { 0 }
    }

    /// Returns the offset of each payload.
    fn payloads(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.length()).step_by(self.payload)
    }

    /// Returns how many bytes of each payload are read.
    fn lengths(&self) -> impl Iterator<Item = usize> + use<> {
        let (room, payload) = (self.room, self.payload);
        self.payloads().map(move |from| payload.min(room.saturating_sub(from)))
    }

    /// Returns the header of the frame whose payload has this offset.
    fn header(&self, from: usize) -> Header {
        self.first.behind(from, (from + self.payload).is_multiple_of(self.message))
    }

    /// Returns the places of the payloads in this memory.
    fn parts(&self, memory: Option<Slice>) -> SmallVec<[Slice; MOST]> {
        let parts = memory.map(|memory| self.payloads().map(move |from| memory.part(from, self.payload)));
        parts.into_iter().flatten().collect()
    }

    /// Adds the targets of the bytes behind the current payload: the gaps, each before its payload, which
    /// goes to one of the parts, or of the pieces of a room.
    fn add_targets<'a>(
        &self,
        gaps: &'a mut [[u8; LONGEST_GAP]],
        parts: &'a [Slice],
        pieces: &'a mut [Spare<'_>],
        targets: &mut Targets<'a>,
    ) {
        let places = parts.iter().map(Target::Memory).chain(pieces.iter_mut().map(Spare::target));
        let mut from = self.opened();
        for (gap, place) in gaps.iter_mut().zip(places) {
            targets.push(Target::Bytes(&mut gap[std::mem::take(&mut from)..self.gap()]));
            targets.push(place);
        }
    }

    /// Compares the `came` bytes behind the current payload, which a read has placed in the targets, with the
    /// plan; a trailer that was read before counts. Returns the number of frames that are as expected, complete
    /// but for the last one. All other bytes go back into the stream.
    fn settle(
        &self,
        mut came: usize,
        gaps: &[[u8; LONGEST_GAP]],
        parts: &[Slice],
        pieces: &[Spare<'_>],
        staging: &mut Staging,
    ) -> usize {
        let header = self.first.lengths().0;
        for (count, (from, gap)) in self.payloads().zip(gaps).enumerate() {
            let expected = Ok((self.header(from), self.payload, header));
            if came < self.gap() || Header::decode(&gap[mpa::CRC_SIZE..]) != expected {
                self.put_back(count, came, gaps, parts, pieces, staging);
                return count;
            }
            came = came.saturating_sub(self.gap() + self.payload);
        }
        staging.filled(came);
        gaps.len()
    }

    /// Puts `came` bytes back into the stream. They are in the gaps from the one with this number on, in the
    /// payload behind each, and in the staging buffer.
    fn put_back(
        &self,
        first: usize,
        mut came: usize,
        gaps: &[[u8; LONGEST_GAP]],
        parts: &[Slice],
        pieces: &[Spare<'_>],
        staging: &mut Staging,
    ) {
        let expected = (gaps.len() - first) * (self.gap() + self.payload);
        let behind = came.saturating_sub(expected);
        let behind = staging.room(behind.max(1))[..behind].to_vec();
        came -= behind.len();
        for (number, gap) in gaps.iter().enumerate().skip(first) {
            let from = if number == 0 { self.opened() } else { 0 };
            came -= from + staging.push_back(&gap[from..came.min(self.gap())]);
            let length = came.min(self.payload);
            match (parts.get(number), pieces.get(number)) {
                _ if length == 0 => break,
                (Some(part), _) => {
                    let mut bytes = vec![0; length];
                    part.read(0, &mut bytes);
                    came -= staging.push_back(&bytes);
                }
                (None, Some(piece)) => came -= staging.push_back(piece.received()),
                (None, None) => {}
            }
        }
        staging.push_back(&behind);
    }
}

impl Receiver {
    /// Begins a frame: decides where the payload of its segment goes, and notes what it announces. Returns
    /// false, with nothing changed, if the message has to wait for a receive.
    ///
    /// # Errors
    /// The Terminate for a segment that is not allowed.
    #[inline]
    pub(super) fn begin_segment(
        &mut self,
        header: &Header,
        length: usize,
        consumed: usize,
    ) -> Result<bool, Stop> {
        let mut count = ddp::announced(&self.header);
        if count > 0 || self.announced.is_some() {
            count = self.check_announced(header, length, count)?;
        }
        let Some(content) = self.begin(header, length, consumed)? else { return Ok(false) };
        let trailer = mpa::pad_length(consumed - mpa::LENGTH_SIZE + length) + mpa::CRC_SIZE;
        self.ahead.begin(consumed + length + trailer, count > 0 || self.announced.is_some());
        self.announced = (count > 0).then(|| Announced { next: header.behind(length, count == 1), count });
        self.state = match content {
            Content::Control(control) => State::Control { length, trailer, control },
            Content::Payload(place, on_complete) => {
                let destination = self.destination(place, length);
                State::Payload { destination, left: length, trailer, on_complete }
            }
        };
        Ok(true)
    }

    /// Checks that a segment, which announces `count` others, may follow what the peer has announced. Returns
    /// the number that counts.
    ///
    /// # Errors
    /// The Terminate for another segment than that.
    #[inline(never)]
    fn check_announced(&self, header: &Header, length: usize, count: usize) -> Result<usize, Stop> {
        if !self.connection.announces {
            return Ok(0);
        }
        let is_allowed = match &self.announced {
            // The last message of a peer that ends the connection, wherever it is.
            _ if header.opcode() == Opcode::Terminate => true,
            Some(announced) => announced.allows(header, length, count),
            None => !header.is_last(),
        };
        let named = || Terminate::CATASTROPHIC_STREAM.with_header(&self.header[..header.lengths().0]);
        match header.opcode() {
            _ if is_allowed => Ok(count),
            Opcode::ReadResponse => Err(Stop::response(named())),
            _ => Err(named().into()),
        }
    }

    /// Returns the frames that are expected behind the current payload, or next.
    fn plan(&self, room: Option<&mut StreamRoom<'_>>) -> Option<Plan> {
        if matches!(self.state, State::Header) {
            return self.plan_next(room?);
        }
        let State::Payload { destination, left: left @ 1.., trailer, on_complete } = &self.state else {
            return None;
        };
        match (destination, room) {
            (Destination::Stream(to), Some(room)) => self.plan_message(stream_place(*to), *left, room),
            (Destination::Stream(_), None) | (Destination::StreamSend(_), _) => None,
            // The first segment of a message may be padded, which moves all behind it.
            _ if *trailer != mpa::CRC_SIZE => None,
            _ => self.plan_announced(destination, on_complete),
        }
    }

    /// Returns the segments that the peer has announced, if all of them have a place.
    fn plan_announced(&self, destination: &Destination, on_complete: &OnComplete) -> Option<Plan> {
        let Announced { next: first, count: announced } = self.announced?;
        let ((_, payload), count) = (first.lengths(), announced.min(MOST));
        let (length, message) = (count * payload, announced * payload);
        let sink = match (destination, first, on_complete) {
            (Destination::Remote { access, .. }, Header::Tagged(Tagged { stag, to, .. }), _) => {
                let ConnectionShared { keys, number, .. } = &*self.connection;
                let grant = keys.resolve((stag, to), length, Intent::Write, *number).ok()?;
                grant.access.is(access).then_some(None)?
            }
            (_, Header::Tagged(Tagged { to, .. }), OnComplete::Response { .. }) => {
                // Offsets in the sink of this side count from 0.
                Some(self.connection.sending().queue.sink_from(usize::try_from(to).ok()?))
            }
            (_, Header::Untagged(_), OnComplete::Send { .. }) => {
                let (receive, placed) = self.receive.as_ref()?;
                Some(inflight::range(&receive.payload, *placed, usize::MAX))
            }
            _ => return None,
        };
        let sink = match sink.as_deref() {
            None => None,
            Some([rest]) if rest.len() >= length => Some(rest.clone()),
            // A sink in pieces is not worth the effort.
            Some(_) => return None,
        };
        let mut plan =
            Plan { first, payload, count, message, sink, room: length, behind: BETWEEN, opens: false };
        if count < announced {
            plan.behind = plan.gap();
        }
        Some(plan)
    }

    /// Returns the Writes of a message of a byte stream that are expected behind the current one, of which
    /// `left` bytes are for `place`. The room has to suffice for them.
    fn plan_message(&self, place: RemoteAddress, left: usize, room: &mut StreamRoom<'_>) -> Option<Plan> {
        let rest = self.stream.as_ref()?.shape.rest();
        self.plan_writes(rest, place, left, room)
    }

    /// Returns the Writes that the next message of a byte stream is expected to begin with. They are for the room of the reader.
    fn plan_next(&self, room: &mut StreamRoom<'_>) -> Option<Plan> {
        if !self.staging.is_empty() || self.empty_frame || self.connection.crc || self.announced.is_some() {
            return None;
        }
        let next = self.stream.as_ref()?.shape.next();
        let plan = self.plan_writes(next, room.place(), 0, room)?;
        Some(Plan { opens: true, ..plan })
    }

    /// Returns as many of these Writes as have room behind the `left` bytes that are for `place`: for the last one there may be too little,
    /// and the reader comes back for the rest of it.
    fn plan_writes(
        &self,
        writes: usize,
        place: RemoteAddress,
        left: usize,
        room: &mut StreamRoom<'_>,
    ) -> Option<Plan> {
        let shape = &self.stream.as_ref()?.shape;
        if writes == 0 {
            return None;
        }
        let payload = shape.payload;
        let room = room.contiguous(place).saturating_sub(left).min(writes.min(MOST) * payload);
        let count = room.div_ceil(payload);
        if count == 0 {
            return None;
        }
        let behind = match room == count * payload {
            // Payload of the message behind would go to a chunk, because the room of this reader may not suffice
            // for it.
            true => shape.tail(count).unwrap_or(self.ahead.headers(true)),
            false => 0,
        };
        let to = place.address.wrapping_add(left as u64);
        let first = Header::Tagged(Tagged { last: true, opcode: Opcode::Write, stag: place.key, to });
        Some(Plan { first, payload, count, message: payload, sink: None, room, behind, opens: false })
    }

    /// Reads the rest of the current payload and the frames that are expected behind it, and accounts for the
    /// bytes. Returns `None`, without a read, if no frames are expected.
    pub(super) fn read_planned(
        &mut self,
        socket: &Socket,
        room: &mut Option<&mut StreamRoom<'_>>,
    ) -> Result<Option<usize>, Stop> {
        if self.announced.is_none() && room.is_none() {
            return Ok(None);
        }
        let Some(plan) = self.plan(room.as_deref_mut()) else { return Ok(None) };
        let (destination, left) = match &self.state {
            State::Payload { destination, left, .. } => (Some(destination), *left),
            State::Header | State::Control { .. } | State::Gather => (None, 0),
        };
        // Checked again at every read: the memory may have been deregistered within the frame.
        let access = match destination {
            Some(Destination::Remote { access, .. }) => Some(access.clone()),
            Some(Destination::Local(_) | Destination::Stream(_) | Destination::StreamSend(_)) | None => None,
        };
        let named = || Terminate::INVALID_STAG_TAGGED.with_header(&self.header);
        let valid = access.as_ref().map(|access| access.guard().ok_or_else(named)).transpose()?;
        let mut pieces = Pieces::new();
        let (current, memory) = match (destination, &valid, room.as_deref_mut()) {
            (Some(Destination::Remote { place, .. }), Some(valid), _) => {
                let from = offset(*place);
                let memory = valid.memory().map(|memory| memory.part(from + left, plan.length()));
                (valid.part(from, left), memory)
            }
            (Some(Destination::Stream(_)) | None, _, Some(room)) => {
                pieces.extend(room.cut(iter::once(left).chain(plan.lengths())));
                (Payload::new(), None)
            }
            (Some(Destination::Local(parts)), ..) => (parts.clone(), plan.sink.clone()),
            _ => return Ok(None),
        };
        let (parts, mut gaps) = (plan.parts(memory), [[0; LONGEST_GAP]; MOST]);
        let gaps = &mut gaps[..plan.count];
        let behind = self.staging.room(plan.behind);
        let asked = left + plan.count * plan.gap() - plan.opened() + plan.room + behind.len();
        let mut targets = Targets::new();
        targets.extend(current.iter().map(Target::Memory));
        let next = match &mut pieces[..] {
            [direct, next @ ..] => {
                targets.extend((left > 0).then(|| direct.target()));
                next
            }
            [] => &mut [],
        };
        plan.add_targets(gaps, &parts, next, &mut targets);
        targets.push(Target::Bytes(behind));
        let length = socket.read(&mut targets, asked)?;
        drop(targets);
        self.account_for_bytes(length);
        if length == 0 {
            return Ok(Some(0));
        }
        let mut came = length.saturating_sub(left) + plan.opened();
        let count = plan.settle(came, gaps, &parts, pieces.get(1..).unwrap_or_default(), &mut self.staging);
        let mut received = Received::of(&pieces);
        drop((current, parts, pieces, valid));
        self.placed(length, room, |room, length| room.fill_with(&mut received, length));
        for (number, gap) in gaps[..count].iter().enumerate() {
            if number > 0 || !plan.opens {
                self.frame_done();
            }
            self.begin_planned(&gap[mpa::CRC_SIZE..plan.gap()])?;
            came -= plan.gap();
            came -= self.placed(came, room, |room, length| room.fill_with(&mut received, length));
        }
        Ok(Some(length))
    }

    /// Begins a frame that has arrived as planned.
    fn begin_planned(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let Ok((header, length, consumed)) = Header::decode(bytes) else { return Ok(()) };
        self.header[..consumed].copy_from_slice(bytes);
        // The receive of the message was taken for its first segment, so nothing has to wait.
        self.begin_segment(&header, length, consumed).map(|_| ())
    }

    /// Records that the first of `came` bytes are in the place of the current payload, and returns how many.
    /// `fill` counts those in the room of a stream's reader.
    pub(super) fn placed<'a>(
        &mut self,
        came: usize,
        room: &mut Option<&mut StreamRoom<'a>>,
        fill: impl FnOnce(&mut StreamRoom<'a>, usize),
    ) -> usize {
        let State::Payload { destination, left, .. } = &mut self.state else { return 0 };
        let placed = came.min(*left);
        let direct = destination.direct(room.as_deref(), placed);
        if let (Some(room), Some(stream)) = (room.as_deref_mut().filter(|_| direct > 0), &mut self.stream) {
            fill(room, direct);
            stream.skip(direct);
        }
        *left -= placed;
        destination.shrink(placed);
        placed
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::ReadBuf;

    use super::*;
    use crate::memory::{self, Owned};

    const SEGMENT: usize = 96;
    /// Frames behind the first one, of `SEGMENT` bytes each.
    const FRAMES: usize = 3;

    fn encoded(header: Header) -> Vec<u8> {
        match header {
            Header::Tagged(header) => header.encode(SEGMENT).to_vec(),
            Header::Untagged(header) => header.encode(SEGMENT).to_vec(),
        }
    }

    /// Creates the stream behind the first segment's payload, or its trailer: trailers, headers, payload, and the start of
    /// another message.
    fn stream(plan: &Plan) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (from, length) in plan.payloads().zip(plan.lengths()) {
            bytes.extend([0; 4]);
            bytes.extend(encoded(plan.header(from)));
            bytes.extend((0..length).map(|byte| byte as u8));
        }
        bytes.resize(bytes.len() + plan.behind, 9);
        bytes.split_off(plan.opened())
    }

    /// Places bytes as a `readv` would, and settles. Checks that each byte is in its place or back in the
    /// stream.
    fn check(plan: &Plan, sent: &[u8], wrong: Option<usize>) {
        let (mut staging, mut bytes) = (Staging::default(), [0; FRAMES * SEGMENT]);
        let mut into = ReadBuf::new(&mut bytes);
        let place = RemoteAddress { key: 7, address: SEGMENT as u64 };
        let mut room = StreamRoom::new(&mut into, FRAMES * SEGMENT, place);
        staging.lend(64 * 1024);
        let (parts, mut gaps) = (plan.parts(plan.sink.clone()), [[0; LONGEST_GAP]; FRAMES]);
        let mut pieces: Pieces<'_> = room.cut(plan.lengths()).collect();
        let mut targets = Targets::new();
        plan.add_targets(&mut gaps, &parts, &mut pieces, &mut targets);
        targets.push(Target::Bytes(staging.room(plan.behind)));
        // A read that brings less than that is taken for one that has emptied the socket.
        assert_eq!(memory::room(&targets), stream(plan).len());
        memory::scatter(sent, &mut targets).expect("the memory is writable");
        drop(targets);
        let came = sent.len() + plan.opened();
        let count = plan.settle(came, &gaps, &parts, &pieces, &mut staging);
        let placed = (count * (plan.gap() + SEGMENT)).min(came).saturating_sub(plan.opened());
        let case = format!("{} bytes, {wrong:?}", sent.len());
        assert_eq!(staging.unread(), &sent[placed..], "{case}");
        assert!(wrong.is_none_or(|wrong| placed <= wrong), "a header that differs is none: {case}");
        // A trailer, and the start of a header, decide nothing yet.
        assert!(
            wrong.is_some() || sent.len() - placed <= plan.gap(),
            "the others are in place, {placed}: {case}"
        );
        staging.give_back();
    }

    #[test]
    fn every_byte_is_placed_or_put_back() {
        let write = Header::Tagged(Tagged { last: true, opcode: Opcode::Write, stag: 7, to: SEGMENT as u64 });
        let (opcode, mo) = (Opcode::Send, SEGMENT as u32);
        let send = Header::Untagged(Untagged { last: false, opcode, invalidate: 0, qn: 0, msn: 1, mo });
        let sink = Owned::zeroed(SEGMENT * FRAMES).expect("memory").share().whole();
        let all = FRAMES * SEGMENT;
        for (first, message, sink, room, opens) in [
            (write, 1, None, all, false),
            (write, 1, None, all, true),
            (write, 1, None, all - 30, false),
            (write, 1, None, all - SEGMENT + 1, true),
            (write, FRAMES, Some(sink.clone()), all, false),
            (send, FRAMES + 1, Some(sink), all, false),
        ] {
            let (payload, message) = (SEGMENT, message * SEGMENT);
            let behind = if room == all { 16 } else { 0 };
            let plan = Plan { first, payload, count: FRAMES, message, sink, room, behind, opens };
            let whole = stream(&plan);
            for length in 0..=whole.len() {
                for wrong in [None, Some(5), Some(plan.gap() + SEGMENT + 10)] {
                    let mut sent = whole.clone();
                    if let Some(place) = wrong {
                        sent[place] ^= 1;
                    }
                    check(&plan, &sent[..length], wrong);
                }
            }
        }
    }

    #[test]
    fn only_the_announced_segment_is_allowed() {
        let next = Header::Tagged(Tagged { last: false, opcode: Opcode::Write, stag: 7, to: 9 });
        let full = Tagged::FULL;
        let announced = |count| Announced { next, count };
        assert!(announced(3).allows(&next, full, 2));
        for count in [0, 1, 3, MANY_FOLLOW] {
            assert!(!announced(3).allows(&next, full, count), "{count}");
        }
        assert!(!announced(3).allows(&next, full - 1, 2), "another length");
        assert!(!announced(3).allows(&next.behind(1, false), full, 2), "another place");
        assert!(!announced(3).allows(&next.behind(0, true), full, 2), "an end");
        // The highest number says nothing of the end.
        let many = announced(MANY_FOLLOW);
        assert!(many.allows(&next, full, MANY_FOLLOW) && many.allows(&next, full, MANY_FOLLOW - 1));
        assert!(!many.allows(&next, full, MANY_FOLLOW - 2));
    }
}
