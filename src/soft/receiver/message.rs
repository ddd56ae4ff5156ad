//! Reads the frames of a byte stream's message, which are expected like those of the last message: one
//! `readv` for all of them, into the memory of the reader.
//!
//! The peer sends a large message as RDMA Writes of one length, for consecutive memory, and a Send behind
//! them. So payload may go to where the next frames are expected, and their headers to gaps in between. Until
//! a read returns, its buffer is its own, whatever is in it: bytes that turn out to be something else are put
//! back into the stream, and parsed as usual.

use smallvec::SmallVec;

use super::buffer::LARGE;
use super::placement::{Content, Destination, GAP, HEADER, Place};
use super::turn::Stop;
use super::{Receiver, State};
use crate::memory::Target;
use crate::provider::stream::{StreamRoom, WORD};
use crate::soft::connection::Socket;
use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, Terminate};

/// The most frames that are expected at once.
const MOST: usize = 16;

/// The longest end of a message that is read with its last large frame: it is copied.
const LONGEST_TAIL: usize = 4096;
/// The size of the frame of the Send that ends a message.
const SEND: usize = mpa::fpdu_length(Untagged::LEN + WORD);

/// The frames of the current message and of the last one.
#[derive(Default)]
pub(in crate::soft) struct Shape {
    /// The length of the payload of each large frame.
    payload: usize,
    this: Frames,
    last: Frames,
}

#[derive(Clone, Copy, Default)]
struct Frames {
    /// The number of large frames.
    large: usize,
    /// The number of bytes of the frames behind them.
    tail: usize,
}

impl Shape {
    /// Records the begin of a Write with this much payload.
    pub(super) fn begin(&mut self, payload: usize) {
        if payload < LARGE {
            self.this.tail = self.this.tail.saturating_add(mpa::fpdu_length(Tagged::LEN + payload));
            return;
        }
        if payload != self.payload {
            *self = Self { payload, ..Self::default() };
        }
        self.this = Frames { large: self.this.large + 1, tail: 0 };
    }

    /// Records the Send that ends a message.
    pub(in crate::soft) fn end(&mut self) {
        self.last = std::mem::take(&mut self.this);
        self.last.tail = self.last.tail.saturating_add(SEND);
    }

    /// Returns the number of large frames that are expected behind the current one.
    fn rest(&self) -> usize {
        // Padding would move everything.
        let is_aligned = mpa::pad_length(Tagged::LEN + self.payload) == 0;
        if is_aligned { self.last.large.saturating_sub(self.this.large) } else { 0 }
    }

    /// Returns the number of bytes from the trailer of the last large frame to the end of the message, if
    /// `large` large frames are yet to be read.
    pub(super) fn tail(&self, large: usize) -> Option<usize> {
        let is_last = self.this.large + large == self.last.large && self.this.tail == 0;
        let trailer = mpa::pad_length(Tagged::LEN + self.payload) + mpa::CRC_SIZE;
        (is_last && self.last.tail <= LONGEST_TAIL).then_some(trailer + self.last.tail)
    }
}

impl Receiver {
    /// Reads the rest of the current frame and those that are expected behind it, and accounts for the bytes.
    /// Returns `None`, without a read, if no frame is expected or the room suffices for none.
    pub(super) fn read_message(
        &mut self,
        socket: &Socket,
        room: &mut StreamRoom<'_>,
    ) -> Result<Option<usize>, Stop> {
        let State::Payload { destination: Destination::Remote { access, place, .. }, left, .. } = &self.state
        else {
            return Ok(None);
        };
        let (expected, payload) = (self.shape.rest().min(MOST), self.shape.payload);
        if expected == 0 {
            return Ok(None);
        }
        let memory = room.initialized(*place);
        let expected = expected.min(memory.len().saturating_sub(*left) / payload);
        if expected == 0 {
            return Ok(None);
        }
        let mut gaps = [[0; GAP]; MOST];
        let gaps = &mut gaps[..expected];
        // Payload of the next message would go to the ring, because the room of this reader may not suffice
        // for it.
        let behind = self.shape.tail(expected).unwrap_or(self.ahead.headers(true));
        let behind = self.staging.room(behind);
        let asked = *left + expected * (GAP + payload) + behind.len();
        let (current, next) = memory.split_at_mut(*left);
        let mut targets: SmallVec<[Target<'_>; 2 * MOST + 2]> = SmallVec::new();
        targets.push(Target::Bytes(current));
        for (gap, part) in gaps.iter_mut().zip(next.chunks_exact_mut(payload)) {
            targets.push(Target::Bytes(gap));
            targets.push(Target::Bytes(part));
        }
        targets.push(Target::Bytes(behind));
        let valid = access.guard();
        if valid.is_none() {
            return Err(Terminate::INVALID_STAG_TAGGED.with_header(&self.header).into());
        }
        let length = socket.read(&mut targets, asked)?;
        drop(targets);
        drop(valid);
        self.account_for_bytes(length);
        self.verify(length, gaps, payload, room)?;
        Ok(Some(length))
    }

    /// Compares `came` bytes with the expected headers in the gaps, and receives the frames that are as
    /// expected.
    fn verify(
        &mut self,
        mut came: usize,
        gaps: &[[u8; GAP]],
        payload: usize,
        room: &mut StreamRoom<'_>,
    ) -> Result<(), Stop> {
        came -= self.place_in_room(came, room);
        for (index, gap) in gaps.iter().enumerate() {
            let bytes = &gap[mpa::CRC_SIZE..];
            let header = self.next_header().filter(|next| came >= GAP && next.encode(payload) == bytes);
            let Some(header) = header else {
                self.put_back(came, &gaps[index..], payload, room);
                return Ok(());
            };
            came -= GAP;
            self.frame_done();
            self.header[..HEADER].copy_from_slice(bytes);
            let content = self.begin(&Header::Tagged(header), payload, HEADER)?;
            // There is no padding.
            let trailer = mpa::CRC_SIZE;
            self.ahead.begin(HEADER + payload + trailer);
            if let Some(Content::Payload { place: Place::Memory(destination), on_complete }) = content {
                self.state = State::Payload { destination, left: payload, trailer, on_complete };
            }
            came -= self.place_in_room(came, room);
        }
        self.staging.filled(came);
        Ok(())
    }

    /// Receives the first of `came` bytes, which are payload of the current frame and in the room. Returns
    /// how many.
    fn place_in_room(&mut self, came: usize, room: &mut StreamRoom<'_>) -> usize {
        let State::Payload { destination, left, .. } = &mut self.state else { return 0 };
        let placed = came.min(*left);
        room.advance(placed);
        destination.shrink(placed);
        *left -= placed;
        placed
    }

    /// Returns the header of a frame that goes on where the current one has ended.
    fn next_header(&self) -> Option<Tagged> {
        let State::Payload { destination: Destination::Remote { place, .. }, left: 0, .. } = &self.state
        else {
            return None;
        };
        let (stag, to) = (place.key, place.address);
        Some(Tagged { last: true, opcode: Opcode::Write, stag, to })
    }

    /// Puts the remaining `came` bytes back into the stream: they are in these gaps, in the room behind each,
    /// and in the staging buffer.
    fn put_back(&mut self, came: usize, gaps: &[[u8; GAP]], payload: usize, room: &mut StreamRoom<'_>) {
        let behind = came.saturating_sub(gaps.len() * (GAP + payload));
        let behind = self.staging.room(behind.max(1))[..behind].to_vec();
        let mut left = came - behind.len();
        for (gap, part) in gaps.iter().zip(room.rest().chunks_exact(payload)) {
            left -= self.staging.push_back(&gap[..left.min(GAP)]);
            left -= self.staging.push_back(&part[..left.min(payload)]);
        }
        self.staging.push_back(&behind);
    }
}
