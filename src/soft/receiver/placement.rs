//! Finds the memory for the payload of a segment, and the action on its completion; and predicts the frames
//! behind it, so that one `readv` reads many.
//!
//! A peer answers a read by segments of one length for consecutive memory, and sends a large message of a
//! byte stream as RDMA Writes of one length for consecutive memory. So payload may go to where the next
//! frames are expected, and their headers to gaps in between. Bytes that turn out to be something else are
//! put back into the stream and parsed as usual.
//!
//! The room of a stream's reader is its own until a read returns, whatever is in it. A sink that no other
//! process or peer can access is private until the read completes. A program that writes to the sink of a
//! read before it completes, by itself or by other requests, may change those bytes. Memory that peers or
//! other processes can access is not used, as they could see or change bytes there that are not meant for it;
//! nor are Writes to it predicted, as only their headers contain what the peer may access, and where a
//! message ends.

use std::sync::Arc;

use smallvec::SmallVec;

use super::buffer::{LARGE, Staging};
use super::turn::Stop;
use super::{Receiver, State};
use crate::inflight::{self, Payload};
use crate::memory::{Slice, Target};
use crate::provider::stream::StreamRoom;
use crate::provider::work::RemoteAddress;
use crate::soft::connection::Socket;
use crate::soft::memory::{Binding, RemoteAccess};
use crate::wire::ddp::{Header, Tagged};
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
}

impl Destination {
    pub(super) fn shrink(&mut self, by: usize) {
        match self {
            Self::Local(parts) => *parts = inflight::range(parts, by, usize::MAX),
            Self::Remote { place, .. } => place.address = place.address.wrapping_add(by as u64),
        }
    }

    /// Returns how many of the first of `length` bytes of payload go to a reader's room.
    pub(super) fn direct(&self, room: Option<&StreamRoom<'_>>, length: usize) -> usize {
        match (self, room) {
            (Self::Remote { place, .. }, Some(room)) => room.takes(*place, length),
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
    Immediate {
        solicited: bool,
    },
    /// A part of a Send to a byte stream.
    StreamSend {
        offset: usize,
        last: bool,
    },
    Terminate,
}

/// The content of a frame whose header has arrived.
pub(super) enum Content {
    Payload(Place, OnComplete),
    Control(Control),
}

/// Copies staged payload to its place.
///
/// # Errors
/// The Terminate for a peer whose key was invalidated.
pub(super) fn place_in(
    destination: &Destination,
    bytes: &[u8],
    room: &mut Option<&mut StreamRoom<'_>>,
) -> Result<(), Terminate> {
    let parts = match destination {
        Destination::Local(parts) => parts,
        Destination::Remote { access, place } => {
            let valid = access.guard().ok_or(Terminate::INVALID_STAG_TAGGED)?;
            let (direct, rest) = bytes.split_at(destination.direct(room.as_deref(), bytes.len()));
            if let Some(room) = room {
                room.copy(direct);
            }
            if let Some(memory) = valid.memory() {
                memory.write(offset(*place) + direct.len(), rest);
            }
            return Ok(());
        }
    };
    let mut rest = bytes;
    for part in parts {
        let taken = rest.len().min(part.len());
        part.write(0, &rest[..taken]);
        rest = &rest[taken..];
    }
    Ok(())
}

/// Returns the offset of a place in the memory of its key, which was checked.
pub(super) fn offset(place: RemoteAddress) -> usize {
    usize::try_from(place.address).unwrap_or(usize::MAX)
}

/// The most frames that are expected at once: a megabyte of full ones.
const MOST: usize = 16;
/// Length field and header of a frame.
const HEADER: usize = mpa::LENGTH_SIZE + Tagged::LEN;
/// Trailer of one frame and header of the next, without padding.
const GAP: usize = mpa::CRC_SIZE + HEADER;

/// The targets of the rest of a payload, and of the frames that are expected behind it.
type Targets<'a> = SmallVec<[Target<'a>; 2 * MOST + 2]>;

/// The frames that are expected behind the current payload: one at least, of one opcode, for consecutive
/// memory.
struct Plan {
    /// The header of the first frame.
    first: Tagged,
    /// The length of each payload; the last one of a response may be shorter.
    payload: usize,
    /// The length of all payloads.
    length: usize,
    /// The sink of a read, behind the current segment. If it is `None`, the payloads go to the room of a
    /// stream's reader, behind the current one.
    sink: Option<Slice>,
    /// The number of bytes that are read behind the last payload.
    behind: usize,
}

impl Plan {
    /// Plans the segments of a Read Response that follow one of `payload` bytes that ends at `to`, if `sink`
    /// is the rest of the sink. Returns `None` if they cannot be predicted.
    fn response(stag: u32, to: u64, payload: usize, sink: &Payload) -> Option<Self> {
        // Padding would move everything, and a sink in pieces is not worth the effort.
        let [rest] = sink.as_slice() else { return None };
        let length = rest.len().min(MOST * payload);
        if length == 0 || rest.is_exposed() || mpa::pad_length(Tagged::LEN + payload) != 0 {
            return None;
        }
        let first = Tagged { last: false, opcode: Opcode::ReadResponse, stag, to };
        Some(Self { first, payload, length, sink: Some(rest.clone()), behind: GAP })
    }

    /// Returns the offset of each payload, and its length.
    fn payloads(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Self { payload, length, .. } = *self;
        (0..length).step_by(payload).map(move |from| (from, payload.min(length - from)))
    }

    /// Returns the header of the frame with this payload.
    fn header(&self, (from, length): (usize, usize)) -> Tagged {
        let last = self.sink.as_ref().is_none_or(|sink| from + length == sink.len());
        Tagged { last, to: self.first.to.wrapping_add(from as u64), ..self.first }
    }

    /// Returns the places of the payloads in the sink of a read.
    fn parts(&self) -> SmallVec<[Slice; MOST]> {
        let sink = self.sink.as_ref();
        let parts = sink.map(|sink| self.payloads().map(|(from, length)| sink.part(from, length)));
        parts.into_iter().flatten().collect()
    }

    /// Adds the targets of the bytes behind the current payload: the gaps, each before its payload, which
    /// goes to one of the parts, or to the next bytes of the room.
    fn add_targets<'a>(
        &self,
        gaps: &'a mut [[u8; GAP]],
        parts: &'a [Slice],
        mut room: &'a mut [u8],
        targets: &mut Targets<'a>,
    ) {
        let mut parts = parts.iter();
        for ((_, length), gap) in self.payloads().zip(gaps) {
            targets.push(Target::Bytes(gap));
            targets.push(match parts.next() {
                Some(part) => Target::Memory(part),
                None => Target::Bytes(room.split_off_mut(..length).unwrap_or_default()),
            });
        }
    }

    /// Compares the `came` bytes behind the current payload, which a read has placed in the targets, with the
    /// plan. Returns the number of frames that are as expected, complete but for the last one. All other
    /// bytes go back into the stream, and zeros replace them in the sink.
    fn settle(
        &self,
        mut came: usize,
        gaps: &[[u8; GAP]],
        room: &mut Option<&mut StreamRoom<'_>>,
        staging: &mut Staging,
    ) -> usize {
        for (count, (payload, gap)) in self.payloads().zip(gaps).enumerate() {
            if came < GAP || gap[mpa::CRC_SIZE..] != self.header(payload).encode(payload.1) {
                self.put_back(count, came, gaps, room, staging);
                return count;
            }
            came = came.saturating_sub(GAP + payload.1);
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
        gaps: &[[u8; GAP]],
        room: &mut Option<&mut StreamRoom<'_>>,
        staging: &mut Staging,
    ) {
        let expected = (gaps.len() - first) * GAP + self.length - first * self.payload;
        let behind = came.saturating_sub(expected);
        let behind = staging.room(behind.max(1))[..behind].to_vec();
        came -= behind.len();
        for ((from, length), gap) in self.payloads().zip(gaps).skip(first) {
            came -= staging.push_back(&gap[..came.min(GAP)]);
            let length = came.min(length);
            match (&self.sink, &mut *room) {
                _ if length == 0 => break,
                (Some(sink), _) => {
                    let part = sink.part(from, length);
                    let mut bytes = vec![0; length];
                    part.read(0, &mut bytes);
                    came -= staging.push_back(&bytes);
                    bytes.fill(0);
                    part.write(0, &bytes);
                }
                (None, Some(room)) => came -= staging.push_back(&room.rest()[from..][..length]),
                (None, None) => {}
            }
        }
        staging.push_back(&behind);
    }
}

impl Receiver {
    /// Returns the frames that are expected behind the current payload, if they can be predicted.
    fn plan(&self, room: Option<&mut StreamRoom<'_>>) -> Option<Plan> {
        match (&self.state, room) {
            (State::Payload { on_complete: OnComplete::Response { last: false }, .. }, _) => {
                self.plan_response()
            }
            (State::Payload { destination: Destination::Remote { place, .. }, left, .. }, Some(room)) => {
                self.plan_message(*place, *left, room)
            }
            _ => None,
        }
    }

    /// Returns the segments that are expected behind the current one, whose header is known.
    fn plan_response(&self) -> Option<Plan> {
        let (Header::Tagged(Tagged { stag, to, .. }), length, _) = Header::decode(&self.header).ok()? else {
            return None;
        };
        // A message among them might have to wait for a receive, with all bytes that have come behind it
        // (SEC-12).
        if length < LARGE || self.connection.receives.is_shared() {
            return None;
        }
        let end = to.wrapping_add(length as u64);
        // Offsets in the sink of this side count from 0.
        let rest = self.connection.sending().queue.sink_from(usize::try_from(end).ok()?);
        Plan::response(stag, end, length, &rest)
    }

    /// Returns the Writes of a message of a byte stream that are expected behind the current one, of which
    /// `left` bytes are for `place`. The room has to suffice for them.
    fn plan_message(&self, place: RemoteAddress, left: usize, room: &mut StreamRoom<'_>) -> Option<Plan> {
        let shape = &self.stream.as_ref()?.shape;
        let rest = shape.rest().min(MOST);
        if rest == 0 {
            return None;
        }
        let room = room.initialized(place).len();
        let count = rest.min(room.saturating_sub(left) / shape.payload);
        if count == 0 {
            return None;
        }
        // Payload of the next message would go to the ring, because the room of this reader may not suffice
        // for it.
        let behind = shape.tail(count).unwrap_or(self.ahead.headers(true));
        let to = place.address.wrapping_add(left as u64);
        let first = Tagged { last: true, opcode: Opcode::Write, stag: place.key, to };
        Some(Plan { first, payload: shape.payload, length: count * shape.payload, sink: None, behind })
    }

    /// Reads the rest of the current payload and the frames that are expected behind it, and accounts for the
    /// bytes. Returns `None`, without a read, if no frames are expected.
    pub(super) fn read_planned(
        &mut self,
        socket: &Socket,
        room: &mut Option<&mut StreamRoom<'_>>,
    ) -> Result<Option<usize>, Stop> {
        let Some(plan) = self.plan(room.as_deref_mut()) else { return Ok(None) };
        let State::Payload { destination, left, .. } = &self.state else { return Ok(None) };
        let (parts, mut gaps) = (plan.parts(), [[0; GAP]; MOST]);
        let gaps = &mut gaps[..plan.length.div_ceil(plan.payload)];
        let behind = self.staging.room(plan.behind);
        let asked = left + gaps.len() * GAP + plan.length + behind.len();
        let mut targets = Targets::new();
        let (valid, next) = match (destination, room.as_deref_mut()) {
            (Destination::Remote { access, .. }, Some(room)) => {
                let named = || Terminate::INVALID_STAG_TAGGED.with_header(&self.header);
                let (current, next) = room.rest().split_at_mut(*left);
                targets.push(Target::Bytes(current));
                (Some(access.guard().ok_or_else(named)?), next)
            }
            (Destination::Local(current), _) => {
                targets.extend(current.iter().map(Target::Memory));
                (None, &mut [][..])
            }
            (Destination::Remote { .. }, None) => return Ok(None),
        };
        plan.add_targets(gaps, &parts, next, &mut targets);
        targets.push(Target::Bytes(behind));
        let length = socket.read(&mut targets, asked)?;
        drop(targets);
        drop(valid);
        self.account_for_bytes(length);
        let mut came = length - self.placed(length, room, StreamRoom::advance);
        let count = plan.settle(came, gaps, room, &mut self.staging);
        for payload in plan.payloads().take(count) {
            self.begin_planned(plan.header(payload), payload.1)?;
            came -= GAP;
            came -= self.placed(came, room, StreamRoom::advance);
        }
        Ok(Some(length))
    }

    /// Ends the current frame, because the next one has arrived as planned, and begins that one.
    fn begin_planned(&mut self, header: Tagged, length: usize) -> Result<(), Stop> {
        self.frame_done();
        self.header[..HEADER].copy_from_slice(&header.encode(length));
        let content = self.begin(&Header::Tagged(header), length, HEADER)?;
        let trailer = mpa::pad_length(Tagged::LEN + length) + mpa::CRC_SIZE;
        self.ahead.begin(HEADER + length + trailer);
        if let Some(Content::Payload(Place::Memory(destination), on_complete)) = content {
            self.state = State::Payload { destination, left: length, trailer, on_complete };
        }
        Ok(())
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
        if let Some(room) = room {
            fill(room, direct);
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
    use crate::memory::{self, Owned, Shared};

    const SEGMENT: usize = 96;
    /// Frames behind the first one, of `SEGMENT` bytes each, or the last of a response of the half.
    const FRAMES: usize = 3;

    /// Creates the sink behind the first segment: two and a half segments.
    fn sink() -> Shared {
        Owned::zeroed(SEGMENT * 5 / 2).expect("memory").share()
    }

    /// Creates the stream behind the first segment's payload: trailers, headers, payload, and the start of
    /// another message.
    fn stream(plan: &Plan) -> Vec<u8> {
        let mut bytes = Vec::new();
        for payload in plan.payloads() {
            bytes.extend([0; 4]);
            bytes.extend(plan.header(payload).encode(payload.1));
            bytes.extend((0..payload.1).map(|byte| byte as u8));
        }
        bytes.extend([9; GAP]);
        bytes
    }

    /// Places bytes as a `readv` would, and settles. Checks that each byte is in its place or back in the
    /// stream.
    fn check(plan: &Plan, sent: &[u8], wrong: Option<usize>) {
        let (mut staging, mut bytes) = (Staging::default(), [0; FRAMES * SEGMENT]);
        let mut into = ReadBuf::new(&mut bytes);
        let place = RemoteAddress { key: plan.first.stag, address: plan.first.to };
        let mut room = StreamRoom::new(&mut into, FRAMES * SEGMENT, place);
        staging.lend(64 * 1024);
        let (parts, mut gaps, mut targets) = (plan.parts(), [[0; GAP]; FRAMES], Targets::new());
        plan.add_targets(&mut gaps, &parts, room.rest(), &mut targets);
        targets.push(Target::Bytes(staging.room(plan.behind)));
        // A read that brings less than that is taken for one that has emptied the socket.
        assert_eq!(memory::room(&targets), stream(plan).len());
        memory::scatter(sent, &mut targets).expect("the memory is writable");
        drop(targets);
        let count = plan.settle(sent.len(), &gaps, &mut Some(&mut room), &mut staging);
        let arrived: usize = plan.payloads().take(count).map(|(_, length)| GAP + length).sum();
        let placed = arrived.min(sent.len());
        let case = format!("{} bytes, {wrong:?}", sent.len());
        assert_eq!(staging.unread(), &sent[placed..], "{case}");
        assert!(wrong.is_none_or(|wrong| placed <= wrong), "a header that differs is none: {case}");
        // A trailer, and the start of a header, decide nothing yet.
        assert!(wrong.is_some() || sent.len() - placed <= GAP, "the others are in place, {placed}: {case}");
        staging.give_back();
    }

    #[test]
    fn every_byte_is_placed_or_put_back() {
        let rest = Payload::from_iter([sink().whole()]);
        let first = Tagged { last: true, opcode: Opcode::Write, stag: 7, to: SEGMENT as u64 };
        let message = Plan { first, payload: SEGMENT, length: FRAMES * SEGMENT, sink: None, behind: GAP };
        let response = Plan::response(7, SEGMENT as u64, SEGMENT, &rest).expect("one piece, no padding");
        for plan in [response, message] {
            let whole = stream(&plan);
            for length in 0..=whole.len() {
                for wrong in [None, Some(5), Some(GAP + SEGMENT + 10)] {
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
    fn unpredictable_segments_are_not_expected() {
        let rest = Payload::from_iter([sink().whole()]);
        assert!(Plan::response(7, 99, 99, &rest).is_none(), "padding");
        assert!(Plan::response(7, 96, 96, &Payload::new()).is_none(), "nothing left");
        let pieces = Payload::from_iter([sink().whole(), sink().whole()]);
        assert!(Plan::response(7, 96, 96, &pieces).is_none(), "two pieces");
    }
}
