//! Finds the memory for the payload of a segment, the action on its completion, and the layout of the rest of
//! a Read Response, so that one `readv` reads many segments.
//!
//! A sink that no other process or peer can access is private until the read completes, so payload may go to
//! where the next segments are expected, and their headers to gaps in between. Bytes that turn out to be
//! something else are put back into the stream and parsed as usual. A program that writes to the sink of a
//! read before it completes, by itself or by other requests, may change them. Memory that peers or other
//! processes can access is not used, as they could see or change bytes there that are not meant for it; nor
//! are Writes predicted, as only their headers contain what the peer may access, and where a message ends.

use std::sync::Arc;

use smallvec::SmallVec;
use tracing::trace;

use super::buffer::{LARGE, Staging};
use super::turn::{Stop, Violation};
use super::{Receiver, State};
use crate::inflight::{self, Payload};
use crate::memory::{Slice, Target};
use crate::provider::stream::StreamRoom;
use crate::provider::work::RemoteAddress;
use crate::soft::memory::{Binding, RemoteAccess};
use crate::status::Status;
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
    Payload {
        place: Place,
        on_complete: OnComplete,
    },
    /// A payload that is a header of RDMAP.
    Control(OnComplete),
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

/// The most segments that are expected at once: a megabyte of full ones.
const MOST: usize = 16;
/// Length field and header of a segment.
pub(super) const HEADER: usize = mpa::LENGTH_SIZE + Tagged::LEN;
/// Trailer of one segment and header of the next.
pub(super) const GAP: usize = mpa::CRC_SIZE + HEADER;

/// A segment that is expected.
struct Expected {
    header: [u8; HEADER],
    slice: Slice,
    to: u64,
    last: bool,
    /// The bytes that came in place of the trailer before it and its header.
    gap: [u8; GAP],
}

/// The segments behind the current one: one at least.
pub(super) struct PredictedSegments {
    stag: u32,
    expected: Vec<Expected>,
    /// The bytes that came behind the last segment.
    behind: [u8; GAP],
}

/// A segment that came as expected, or the part of it that has arrived.
pub(super) struct Arrived {
    pub(super) header: [u8; HEADER],
    pub(super) stag: u32,
    pub(super) to: u64,
    pub(super) length: usize,
    pub(super) last: bool,
    /// The number of bytes of the payload that are in place.
    pub(super) placed: usize,
}

impl PredictedSegments {
    /// Predicts the segments that should follow one of `length` bytes that ends at `to`, if `sink` is the
    /// rest of the sink. Returns `None` if they cannot be predicted.
    pub(super) fn new(stag: u32, to: u64, length: usize, sink: &Payload) -> Option<Box<Self>> {
        // Padding would move everything, and a sink in pieces is not worth the effort.
        let [rest] = sink.as_slice() else { return None };
        if length == 0 || rest.is_exposed() || mpa::pad_length(Tagged::LEN + length) != 0 {
            return None;
        }
        let mut expected = Vec::with_capacity(MOST.min(rest.len().div_ceil(length)));
        let mut from = 0;
        while from < rest.len() && expected.len() < MOST {
            let (slice, to) = (rest.part(from, length), to.wrapping_add(from as u64));
            from += slice.len();
            let last = from == rest.len();
            let header = Tagged { last, opcode: Opcode::ReadResponse, stag, to }.encode(slice.len());
            expected.push(Expected { header, slice, to, last, gap: [0; GAP] });
        }
        (!expected.is_empty()).then(|| Box::new(Self { stag, expected, behind: [0; GAP] }))
    }

    /// Returns whether a peer has got access to the sink since the prediction.
    pub(super) fn is_exposed(&self) -> bool {
        self.expected.iter().any(|expected| expected.slice.is_exposed())
    }

    /// Adds the targets for the bytes behind the payload of the current segment, and returns their total
    /// length.
    pub(super) fn targets<'a>(&'a mut self, targets: &mut SmallVec<[Target<'a>; 2]>) -> usize {
        let mut length = GAP;
        for Expected { gap, slice, .. } in &mut self.expected {
            length += gap.len() + slice.len();
            targets.push(Target::Bytes(gap));
            targets.push(Target::Memory(slice));
        }
        targets.push(Target::Bytes(&mut self.behind));
        length
    }

    /// Compares `length` bytes that a read has placed in the targets with the prediction. Returns the
    /// segments that are as expected, complete but for the last one, and the rest of the prediction, if any
    /// segments are left. All other bytes go back into the stream, and zeros replace them in the sink.
    pub(super) fn verify(
        mut self: Box<Self>,
        mut length: usize,
        staging: &mut Staging,
    ) -> (Vec<Arrived>, Option<Box<Self>>) {
        let mut arrived = Vec::with_capacity(self.expected.len());
        while length >= GAP
            && let Some(Expected { header, slice, to, last, gap }) = self.expected.get(arrived.len())
            && gap[mpa::CRC_SIZE..] == *header
        {
            let placed = (length - GAP).min(slice.len());
            length -= GAP + placed;
            let whole = slice.len();
            arrived.push(Arrived {
                header: *header,
                stag: self.stag,
                to: *to,
                length: whole,
                last: *last,
                placed,
            });
            if placed < whole {
                self.expected.drain(..arrived.len());
                return (arrived, (!self.expected.is_empty()).then_some(self));
            }
        }
        for Expected { slice, gap, .. } in &self.expected[arrived.len()..] {
            length -= staging.push_back(&gap[..length.min(GAP)]);
            let mut bytes = vec![0; length.min(slice.len())];
            slice.read(0, &mut bytes);
            length -= staging.push_back(&bytes);
            bytes.fill(0);
            slice.write(0, &bytes);
        }
        staging.push_back(&self.behind[..length]);
        (arrived, None)
    }
}

impl Receiver {
    /// Predicts the segments behind this one, of which a part has arrived. Returns `None` if they cannot be
    /// predicted.
    pub(super) fn predict(&self, header: &Header, length: usize) -> Option<Box<PredictedSegments>> {
        let &Header::Tagged(Tagged { last: false, opcode: Opcode::ReadResponse, stag, to }) = header else {
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
        PredictedSegments::new(stag, end, length, &rest)
    }

    /// Records `length` bytes behind the payload of the current frame: in the places of the predicted
    /// segments, or in the staging buffer.
    pub(super) fn received_behind(&mut self, length: usize) -> Result<(), Stop> {
        let Some(predicted) = self.predicted.take_if(|_| length > 0) else {
            self.staging.filled(length);
            return Ok(());
        };
        let (arrived, predicted) = predicted.verify(length, &mut self.staging);
        for segment in arrived {
            self.arrived(&segment)?;
        }
        self.predicted = predicted;
        Ok(())
    }

    /// Completes the current segment of a Read Response, because the next one has arrived as predicted.
    fn arrived(&mut self, segment: &Arrived) -> Result<(), Stop> {
        let Arrived { header, stag, to, length, last, placed } = *segment;
        trace!(connection = %self.connection.id, opcode = ?Opcode::ReadResponse, length, "frame received");
        self.heard = true;
        self.header[..header.len()].copy_from_slice(&header);
        let sink = self.sink((stag, to), (length, last), header.len())?;
        let destination = Destination::Local(inflight::range(&sink, placed, usize::MAX));
        let trailer = mpa::pad_length(Tagged::LEN + length) + mpa::CRC_SIZE;
        self.state = State::Payload {
            destination,
            left: length - placed,
            trailer,
            on_complete: OnComplete::Response { last },
        };
        Ok(())
    }

    /// Returns the memory for a segment of a Read Response.
    pub(super) fn sink(
        &self,
        from: (u32, u64),
        (length, last): (usize, bool),
        header: usize,
    ) -> Result<Payload, Stop> {
        self.connection.sending().queue.response(from, length, last).map_err(|terminate| {
            let terminate = terminate.with_header(&self.header[..header]);
            Stop::Violation(Box::new(Violation { terminate, blame: Status::REMOTE_ERROR }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Owned, Shared};

    const SEGMENT: usize = 96;

    /// Creates the sink behind the first segment: two and a half segments.
    fn sink() -> Shared {
        Owned::zeroed(SEGMENT * 5 / 2).expect("memory").share()
    }

    /// Creates the stream behind the first segment's payload: trailers, headers, payload, and the start of
    /// another message.
    fn stream(length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for from in (0..length).step_by(SEGMENT) {
            let part = SEGMENT.min(length - from);
            let (last, to) = (from + part == length, (SEGMENT + from) as u64);
            bytes.extend([0; 4]);
            bytes.extend(Tagged { last, opcode: Opcode::ReadResponse, stag: 7, to }.encode(part));
            bytes.extend((0..part).map(|byte| byte as u8));
        }
        bytes.extend([9; GAP]);
        bytes
    }

    /// Places the bytes as a `readv` would.
    fn receive(predicted: &mut PredictedSegments, mut bytes: &[u8]) {
        let mut targets = SmallVec::new();
        let room = predicted.targets(&mut targets);
        // A read that brings less than that is taken for one that has emptied the socket.
        assert_eq!(room, crate::memory::room(&targets));
        for target in targets {
            let length = match target {
                Target::Append(..) => panic!("it has no room of a reader's"),
                Target::Memory(slice) => slice.write(0, bytes),
                Target::Bytes(place) => {
                    let length = place.len().min(bytes.len());
                    place[..length].copy_from_slice(&bytes[..length]);
                    length
                }
            };
            bytes = &bytes[length..];
        }
    }

    #[test]
    fn every_byte_is_placed_or_back_in_the_stream() {
        let whole = stream(sink().len());
        for length in 0..=whole.len() {
            for wrong in [None, Some(5), Some(GAP + SEGMENT + 10)] {
                let mut sent = whole.clone();
                if let Some(place) = wrong {
                    sent[place] ^= 1;
                }
                let (sink, mut staging) = (sink(), Staging::default());
                let rest = Payload::from_iter([sink.clone().whole()]);
                let mut predicted =
                    PredictedSegments::new(7, SEGMENT as u64, SEGMENT, &rest).expect("one piece, no padding");
                receive(&mut predicted, &sent[..length]);
                staging.lend(64 * 1024);
                let (arrived, further) = predicted.verify(length, &mut staging);
                let placed: usize = arrived.iter().map(|arrived| GAP + arrived.placed).sum();
                assert_eq!(staging.unread(), &sent[placed..length], "{length} bytes, {wrong:?}");
                assert!(wrong.is_none_or(|wrong| placed <= wrong), "a header that differs is none");
                // A trailer, and the start of a header, decide nothing yet.
                assert!(
                    wrong.is_some() || length - placed <= GAP,
                    "the others are in place: {placed} of {length} bytes"
                );
                let cut = arrived.iter().position(|arrived| arrived.placed < arrived.length);
                assert!(
                    cut.is_none_or(|place| place + 1 == arrived.len()),
                    "only the last one is incomplete"
                );
                let more = cut.is_some_and(|place| !arrived[place].last);
                assert_eq!(further.is_some(), more, "{length} bytes, {wrong:?}");
                staging.give_back();
            }
        }
    }

    #[test]
    fn unpredictable_segments_are_not_expected() {
        let rest = Payload::from_iter([sink().whole()]);
        assert!(PredictedSegments::new(7, 99, 99, &rest).is_none(), "padding");
        assert!(PredictedSegments::new(7, 96, 96, &Payload::new()).is_none(), "nothing left");
        let pieces = Payload::from_iter([sink().whole(), sink().whole()]);
        assert!(PredictedSegments::new(7, 96, 96, &pieces).is_none(), "two pieces");
    }
}
