//! The state of a byte stream, whose messages have no receives, and the shape of its messages.
//!
//! The peer sends a large message as RDMA Writes of one length, for consecutive memory, and a Send behind
//! them. So the frames of a message are expected like those of the last one.

use std::sync::Arc;

use smallvec::SmallVec;

use super::buffer::LARGE;
use super::placement::stream_place;
use super::reader::Stop;
use super::{Receiver, State};
use crate::inflight::{StreamInbox, StreamSend, WORD, WakeList};
use crate::memory::Target;
use crate::provider::stream::StreamRoom;
use crate::soft::connection::Socket;
use crate::wire::ddp::{Tagged, Untagged};
use crate::wire::mpa;
use crate::wire::rdmap::Terminate;

/// The longest end of a message that is read with its last large frame: it is copied.
const LONGEST_TAIL: usize = 4096;
/// The size of the frame of the Send that ends a message.
const SEND: usize = mpa::fpdu_length(Untagged::LEN + WORD);

/// The state of the receiving half that only a byte stream has.
pub(super) struct StreamSide {
    inbox: Arc<StreamInbox>,
    /// The Send that is arriving.
    word: [u8; WORD],
    /// The frames of the messages.
    pub(super) shape: Shape,
    /// Bytes have come that no task was woken for.
    came: bool,
}

impl StreamSide {
    pub(super) fn new(inbox: Arc<StreamInbox>) -> Self {
        Self { inbox, word: [0; WORD], shape: Shape::default(), came: false }
    }

    /// Begins a Write of `length` bytes, at least one, to the offset `to`.
    ///
    /// # Errors
    /// The Terminate for a peer to which that place was not granted.
    #[inline]
    pub(super) fn begin_write(&mut self, to: u64, length: usize) -> Result<(), Terminate> {
        self.inbox.check(to, length).map_err(|_| Terminate::BOUNDS_TAGGED)?;
        self.shape.begin(length);
        Ok(())
    }

    /// Takes payload of a Write that has [begun](Self::begin_write).
    ///
    /// # Errors
    /// The Terminate for a peer that leaves too many gaps.
    pub(super) fn write(&mut self, to: u64, payload: &[u8]) -> Result<(), Terminate> {
        self.came = true;
        self.inbox.write(to, payload).map_err(|_| Terminate::BOUNDS_TAGGED)
    }

    /// Takes a whole Write.
    ///
    /// # Errors
    /// As [`begin_write`](Self::begin_write) and [`write`](Self::write).
    #[inline]
    pub(super) fn take_write(&mut self, to: u64, payload: &[u8]) -> Result<(), Terminate> {
        self.came = true;
        self.shape.begin(payload.len());
        self.inbox.take_write(to, payload).map_err(|_| Terminate::BOUNDS_TAGGED)
    }

    /// Takes payload of a Write that has [begun](Self::begin_write) from `read`: [`StreamInbox::write_from`].
    pub(super) fn write_from<R>(
        &mut self,
        to: u64,
        length: usize,
        read: impl FnOnce(&mut [u8]) -> (usize, R),
    ) -> Option<R> {
        self.came = true;
        self.inbox.write_from(to, length, read)
    }

    /// Counts bytes that have gone to the room of the reader.
    pub(super) fn skip(&mut self, length: usize) {
        self.came |= self.inbox.skip(length);
    }

    /// Collects the wakers of the tasks that wait for bytes, if any have come.
    #[inline]
    pub(super) fn came(&mut self, wakes: &mut WakeList) {
        if std::mem::take(&mut self.came) {
            self.inbox.came(wakes);
        }
    }

    /// Delivers the peer's answer to the end of this direction.
    pub(super) fn confirm(&self, wakes: &mut WakeList) {
        self.inbox.confirm(wakes);
    }

    /// Notes whether the next frames are likely to be large, for the reader of the stream.
    #[inline]
    pub(super) fn expect_large(&self, is_likely: bool) {
        self.inbox.set_expects_large(is_likely);
    }

    /// Takes a Send that is one frame.
    ///
    /// # Errors
    /// As [`begin_send`](Self::begin_send) and [`end_send`](Self::end_send).
    pub(super) fn take_send(
        &mut self,
        payload: &[u8],
        room: &mut Option<&mut StreamRoom<'_>>,
        wakes: &mut WakeList,
    ) -> Result<(), Terminate> {
        match payload.split_first_chunk() {
            Some((word, bytes)) => {
                if !bytes.is_empty() {
                    if room.is_some() {
                        self.begin_send(0, payload.len())?;
                    }
                    self.take_bytes(bytes, room)?;
                }
                self.deliver(StreamSend::Word(*word), wakes)
            }
            None => self.deliver(StreamSend::Other(payload.len()), wakes),
        }
    }

    /// Begins a segment of a Send, with `length` bytes from this offset of the message on. The Send begins with a word, and the bytes behind
    /// that are the next ones of the stream.
    ///
    /// # Errors
    /// The Terminate for a peer that sends more than there is room for.
    pub(super) fn begin_send(&mut self, offset: usize, length: usize) -> Result<(), Terminate> {
        let behind = (offset + length).saturating_sub(offset.max(WORD));
        self.inbox.check_next(behind).map_err(|_| Terminate::TOO_LONG)
    }

    /// Takes a part of a Send whose segment has [begun](Self::begin_send).
    ///
    /// # Errors
    /// As [`begin_send`](Self::begin_send).
    pub(super) fn receive(
        &mut self,
        offset: usize,
        part: &[u8],
        room: &mut Option<&mut StreamRoom<'_>>,
    ) -> Result<(), Terminate> {
        let (word, bytes) = part.split_at(WORD.saturating_sub(offset).min(part.len()));
        if !word.is_empty() {
            self.word[offset..][..word.len()].copy_from_slice(word);
        }
        if bytes.is_empty() { Ok(()) } else { self.take_bytes(bytes, room) }
    }

    /// Takes the next bytes of the stream: they go to the room of the reader, as far as that is for them.
    fn take_bytes(&mut self, bytes: &[u8], room: &mut Option<&mut StreamRoom<'_>>) -> Result<(), Terminate> {
        let mut rest = bytes;
        if let Some(room) = room {
            let (direct, behind) = bytes.split_at(room.takes(stream_place(self.inbox.next()), bytes.len()));
            if !direct.is_empty() {
                room.copy(direct);
                self.skip(direct.len());
            }
            rest = behind;
        }
        if rest.is_empty() {
            return Ok(());
        }
        self.came = true;
        self.inbox.append(rest).map_err(|_| Terminate::TOO_LONG)
    }

    /// Ends a Send of so many bytes.
    ///
    /// # Errors
    /// As [`deliver`](Self::deliver).
    pub(super) fn end_send(&mut self, length: usize, wakes: &mut WakeList) -> Result<(), Terminate> {
        let send = if length < WORD { StreamSend::Other(length) } else { StreamSend::Word(self.word) };
        self.deliver(send, wakes)
    }

    /// Delivers a complete Send.
    ///
    /// # Errors
    /// The Terminate for a peer that sends more of them than it may.
    pub(super) fn deliver(&mut self, send: StreamSend, wakes: &mut WakeList) -> Result<(), Terminate> {
        self.shape.end();
        if !self.inbox.deliver(send, wakes) {
            return Err(Terminate::NO_BUFFER);
        }
        // It has woken those who wait for the bytes before it, too.
        self.came = false;
        Ok(())
    }
}

impl Receiver {
    /// Reads the rest of the current payload, which is for a stream, and what is behind it. `None` if its bytes are not the next ones of
    /// the stream.
    pub(super) fn read_to_stream(
        &mut self,
        socket: &Socket,
        to: u64,
        left: usize,
        most: usize,
    ) -> Result<Option<usize>, Stop> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        let staging = self.staging.room(most);
        let read = stream.write_from(to, left, |spare| {
            let room = spare.len();
            let mut targets = SmallVec::<[Target<'_>; 2]>::new();
            targets.push(Target::Bytes(spare));
            let mut asked = room;
            if room == left {
                asked += staging.len();
                targets.push(Target::Bytes(staging));
            }
            let outcome = socket.read(&mut targets, asked);
            (*outcome.as_ref().unwrap_or(&0).min(&room), outcome)
        });
        let Some(outcome) = read else { return Ok(None) };
        let length = outcome?;
        self.account_for_bytes(length);
        let placed = length.min(left);
        if let State::Payload { destination, left, .. } = &mut self.state {
            *left -= placed;
            destination.shrink(placed);
        }
        self.staging.filled(length - placed);
        Ok(Some(length))
    }
}

/// The frames of the current message and of the last one.
#[derive(Default)]
pub(super) struct Shape {
    /// The length of the payload of each large frame.
    pub(super) payload: usize,
    this: Frames,
    last: Frames,
    /// The last two messages with large frames began with one of this length.
    is_steady: bool,
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
    fn begin(&mut self, payload: usize) {
        // The rest of a message that is no multiple of a frame may be large, too.
        if payload < LARGE || self.this.large > 0 && payload < self.payload {
            self.this.tail = self.this.tail.saturating_add(mpa::fpdu_length(Tagged::LEN + payload));
            return;
        }
        if payload != self.payload {
            *self = Self { payload, ..Self::default() };
        } else if self.this.large == 0 {
            self.is_steady = true;
        }
        self.this = Frames { large: self.this.large + 1, tail: 0 };
    }

    /// Records the Send that ends a message.
    fn end(&mut self) {
        let mut ended = std::mem::take(&mut self.this);
        ended.tail = ended.tail.saturating_add(SEND);
        // A short message between two long ones, such as the part of one before the end of the peer's grant, does not tell of the next.
        if ended.large > 0 || self.last.large == 0 {
            self.last = ended;
        }
    }

    /// Returns the number of large frames that the next message is expected to begin with: one at most if they are padded.
    pub(super) fn next(&self) -> usize {
        let is_next = self.is_steady && self.this.large == 0 && self.this.tail == 0;
        if is_next { self.last.large.min(if self.is_padded() { 1 } else { usize::MAX }) } else { 0 }
    }

    /// Returns the number of large frames that are expected behind the current one.
    pub(super) fn rest(&self) -> usize {
        if self.is_padded() { 0 } else { self.last.large.saturating_sub(self.this.large) }
    }

    /// Returns whether large frames are padded, which moves all behind the first.
    fn is_padded(&self) -> bool {
        mpa::pad_length(Tagged::LEN + self.payload) > 0
    }

    /// Returns the number of bytes from the trailer of the last large frame to the end of the message, if
    /// `large` large frames are yet to be read.
    pub(super) fn tail(&self, large: usize) -> Option<usize> {
        let is_last = self.this.large + large == self.last.large && self.this.tail == 0;
        let trailer = mpa::pad_length(Tagged::LEN + self.payload) + mpa::CRC_SIZE;
        (is_last && self.last.tail <= LONGEST_TAIL).then_some(trailer + self.last.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The rest of a message may be a large frame, and short messages come between long ones: the next long one is expected to be as long
    // as the last.
    #[test]
    fn long_messages_are_expected_to_have_as_many_full_frames() {
        const FULL: usize = Tagged::FULL;
        let mut shape = Shape::default();
        let mut message = |payloads: &[usize]| {
            let next = shape.next();
            let rests: Vec<_> = payloads
                .iter()
                .map(|payload| {
                    shape.begin(*payload);
                    shape.rest()
                })
                .collect();
            shape.end();
            (next, rests)
        };
        assert_eq!(message(&[FULL, FULL, FULL, FULL / 2]), (0, vec![0, 0, 0, 0]));
        assert_eq!(message(&[20]), (0, vec![3]), "it takes two to begin with the same");
        assert_eq!(message(&[FULL, FULL, FULL, 40]), (0, vec![2, 1, 0, 0]));
        assert_eq!(message(&[FULL, LARGE]), (3, vec![2, 2]), "a shorter one");
        assert_eq!(message(&[FULL, FULL]), (1, vec![0, 0]));
        assert_eq!(message(&[LARGE, LARGE]), (2, vec![0, 0]), "other frames");
        assert_eq!(message(&[LARGE, LARGE]), (0, vec![1, 0]));
        assert_eq!(message(&[]), (2, vec![]));
        // As frames of HTTP/2 have it, with a header of 9 bytes.
        let padded = LARGE + 9;
        assert_eq!(message(&[padded, padded]), (2, vec![0, 0]), "other frames");
        assert_eq!(message(&[padded, padded]), (0, vec![0, 0]), "padding moves the frames behind the first");
        assert_eq!(message(&[padded]), (1, vec![0]), "the first one has no padding before it");
    }
}
