//! Predicts the layout of the rest of a Read Response, so that one `readv` reads many segments.
//!
//! A sink that no other process or peer can access is private until the read completes, so payload may go to
//! where the next segments are expected, and their headers to gaps in between. Bytes that turn out to be
//! something else are put back into the stream and parsed as usual. A program that writes to the sink of a
//! read before it completes, by itself or by other requests, may change them. Memory that peers or other
//! processes can access is not used, as they could see or change bytes there that are not meant for it; nor
//! are Writes predicted, as only their headers contain what the peer may access, and where a message ends.

use smallvec::SmallVec;

use super::staging::Staging;
use crate::inflight::Payload;
use crate::memory::{Slice, Target};
use crate::wire::ddp::Tagged;
use crate::wire::mpa;
use crate::wire::rdmap::Opcode;

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
