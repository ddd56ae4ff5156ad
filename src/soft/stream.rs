//! Reads and writes of a byte stream: the call that has the bytes frames and writes messages, and the call
//! that has room for payload reads it.
//!
//! No request is posted for them, nothing completes, and no memory is kept except for the end of the frame
//! that the socket did not take: the task of the connection writes that end, and wakes the writer.
//!
//! A message is framed as FPDUs around the bytes of the caller, for one `sendmsg`. Each FPDU of payload is an
//! RDMA Write of its own. So a message can end behind any of them: if the socket takes no more, the frame
//! that it has begun is completed, a Send contains the number of bytes, and only that much is copied.

use std::io::{self, IoSlice};
use std::sync::Weak;
use std::task::Waker;

use smallvec::SmallVec;
use tracing::trace;

use super::connection::{ConnectionShared, Extent, Sending, Transmitted};
use super::framing::{Batch, COPY_BELOW, MAX_FRAMES, MAX_TAGGED};
use crate::error::PostErrorKind;
use crate::inflight::WakeList;
use crate::memory::Piece;
use crate::provider::stream::{Progress, StreamMessage, StreamRoom, Streamed, WORD};
use crate::sync::MutexGuard;
use crate::wire::crc::{self, Crc};
use crate::wire::ddp::{Tagged, Untagged};
use crate::wire::mpa;
use crate::wire::rdmap::Opcode;

impl ConnectionShared {
    /// Writes a message of a stream, or as much of it as the socket takes.
    ///
    /// # Errors
    /// `ConnectionInvalid` if nothing more can be sent.
    pub(crate) fn write_message(
        &self,
        message: &StreamMessage<'_>,
        waker: &Waker,
    ) -> Result<Streamed, PostErrorKind> {
        let mut sending = self.sending();
        let Some(socket) = sending.socket.clone().filter(|_| !sending.queue.is_closed()) else {
            return Err(PostErrorKind::ConnectionInvalid);
        };
        let Some(send) = sending.queue.begin_message() else { return Ok(wait(sending, waker)) };
        drop(sending);
        let frames = StreamFrames::new(message, send, self.crc);
        let outcome = socket.stream.try_send_all(frames.pieces(), frames.length());
        let mut wakes = WakeList::default();
        let (streamed, transmitted) = match outcome {
            Ok(sent) if sent > 0 => {
                trace!(connection = %self.id, bytes = sent, "frames sent");
                let (length, rest) = frames.cut(sent);
                let mut sending = self.sending();
                let next = sending.queue.message_offered(sent, rest, &mut wakes);
                (
                    Streamed::Sent(length),
                    self.write_batches(&socket, sending, next, Extent::Call, &mut wakes).0,
                )
            }
            other => {
                let outcome = other.and(Err(io::ErrorKind::WouldBlock.into()));
                let mut sending = self.sending();
                let old = sending.queue.wait_for_idle(waker);
                let next = sending.queue.offered(Batch::new(self.crc), outcome, &mut wakes);
                let transmitted = self.write_batches(&socket, sending, next, Extent::Call, &mut wakes).0;
                drop(old);
                (Streamed::Blocked, transmitted)
            }
        };
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        wakes.wake_all();
        Ok(streamed)
    }

    /// Reads data that has arrived for a stream. Payload at the stream's next position goes to the room, and
    /// the rest to its place. The waker is woken when there may be more. See
    /// [`Reader::read`](super::receiver::reader::Reader::read).
    pub(crate) fn read_stream(
        &self,
        room: Option<&mut StreamRoom<'_>>,
        waker: &Waker,
        spins: bool,
        wakes: &mut WakeList,
    ) {
        let reader = self.reader.get().and_then(Weak::upgrade);
        if reader.is_some_and(|reader| reader.read(room, waker, spins, wakes)) {
            self.wake_driver();
        }
    }

    /// Calls `act` with the end of the last Write to the ring if the peer is writing nothing. No payload is
    /// placed during the call.
    pub(crate) fn if_quiet(&self, act: &mut dyn FnMut(Option<u64>)) {
        let Some(reader) = self.reader.get().and_then(Weak::upgrade) else { return };
        let receiver = reader.receiver();
        if receiver.at_boundary() {
            act(receiver.ring_end());
        }
    }

    /// Returns the progress of the connection. `None` if it has ended.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let received = self.reader.get().and_then(Weak::upgrade)?.receiver().received;
        let sending = self.sending();
        let unacknowledged = sending.socket.as_ref()?.stream.unacknowledged().ok()? as u64;
        let acknowledged = (unacknowledged > 0).then(|| sending.queue.written.saturating_sub(unacknowledged));
        Some(Progress { acknowledged, received })
    }

    /// Returns whether a message would be taken now, or never again. If not, the waker is woken when one may
    /// be.
    pub(crate) fn takes_messages(&self, waker: &Waker) -> bool {
        let sending = self.sending();
        if sending.queue.is_closed() || sending.queue.is_idle() {
            return true;
        }
        wait(sending, waker);
        false
    }
}

fn wait(mut sending: MutexGuard<'_, Sending>, waker: &Waker) -> Streamed {
    let old = sending.queue.wait_for_idle(waker);
    drop(sending);
    drop(old);
    Streamed::Blocked
}

/// The most pieces of the caller in a message, so that one `sendmsg` takes all of it.
const MAX_PARTS: usize = 16;
/// The bytes around the payloads of most messages, or the whole of a short one.
const FRAMING: usize = COPY_BELOW + 128;
/// Length field, header, payload and CRC of the Send.
const SEND: usize = mpa::LENGTH_SIZE + Untagged::LEN + WORD + mpa::CRC_SIZE;

/// A part of the message: framing, and the payload behind it.
#[derive(Clone, Copy)]
struct Section {
    /// The ends of the framing and of the payload.
    framing: usize,
    payload: usize,
}

/// The frames of a message.
pub(super) struct StreamFrames<'a> {
    message: &'a StreamMessage<'a>,
    send: Untagged,
    crc: bool,
    framing: SmallVec<[u8; FRAMING]>,
    /// One for each frame of payload, and the last for the end of the message.
    sections: SmallVec<[Section; MAX_FRAMES + 1]>,
}

impl<'a> StreamFrames<'a> {
    /// Frames as many bytes of the message as one system call takes. `send` is the header of the Send.
    pub(super) fn new(message: &'a StreamMessage<'a>, send: Untagged, crc: bool) -> Self {
        let parts = filled(message.parts).take(MAX_PARTS).map(<[u8]>::len);
        let length = message.length.min(parts.sum()).min(MAX_FRAMES * MAX_TAGGED);
        let (framing, sections) = (SmallVec::new(), SmallVec::new());
        let mut frames = Self { message, send, crc, framing, sections };
        let mut from = 0;
        while from < length {
            let to = length.min(from + MAX_TAGGED);
            frames.write(from, to, length <= COPY_BELOW);
            from = to;
        }
        frames.framing.extend_from_slice(&frames.ending(length));
        frames.sections.push(Section { framing: frames.framing.len(), payload: length });
        frames
    }

    /// Appends a frame with the bytes `from..to`, which are copied if `copy`.
    fn write(&mut self, from: usize, to: usize, copy: bool) {
        let address = self.message.to.address.wrapping_add(from as u64);
        let header = Tagged { last: true, opcode: Opcode::Write, stag: self.message.to.key, to: address };
        let header = header.encode(to - from);
        self.framing.extend_from_slice(&header);
        if copy {
            bytes(self.message.parts, from, to).for_each(|part| self.framing.extend_from_slice(part));
        } else {
            self.sections.push(Section { framing: self.framing.len(), payload: to });
        }
        let trailer = trailer(&header, bytes(self.message.parts, from, to), to - from, self.crc);
        self.framing.extend_from_slice(&trailer);
    }

    /// Returns the Send behind `length` bytes, as a frame.
    fn ending(&self, length: usize) -> [u8; SEND] {
        let word = (self.message.describe)(length);
        let header = self.send.encode(WORD);
        let mut frame = [0; SEND];
        frame[..header.len()].copy_from_slice(&header);
        frame[header.len()..][..WORD].copy_from_slice(&word);
        // The Send needs no padding.
        let trailer = trailer(&header, [&word[..]].into_iter(), WORD, self.crc);
        frame[header.len() + WORD..].copy_from_slice(&trailer);
        frame
    }

    /// Returns the pieces that are to be sent.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.slices().map(Piece::Bytes)
    }

    /// Returns the number of bytes of all pieces.
    pub(super) fn length(&self) -> usize {
        self.framing.len() + self.in_place()
    }

    /// Returns the number of bytes of the message.
    fn payload(&self) -> usize {
        self.sections.last().map_or(0, |section| section.payload)
    }

    /// Returns the number of bytes that are not copied.
    fn in_place(&self) -> usize {
        if self.sections.len() > 1 { self.payload() } else { 0 }
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut before = Section { framing: 0, payload: 0 };
        let copied = self.in_place() == 0;
        self.sections.iter().flat_map(move |&section| {
            let from = std::mem::replace(&mut before, section);
            let payload = if copied { section.payload } else { from.payload };
            let framing = &self.framing[from.framing..section.framing];
            std::iter::once(framing).chain(bytes(self.message.parts, payload, section.payload))
        })
    }

    /// Ends the message behind the frame that the socket has begun, after it has taken `sent` bytes, at least
    /// one. Returns the number of bytes of the message, and the rest that is to be sent.
    pub(super) fn cut(self, sent: usize) -> (usize, Batch) {
        let mut rest = Batch::new(self.crc);
        if sent >= self.length() {
            return (self.payload(), rest);
        }
        let cut = self.end_of_frame(sent);
        let end = cut.unwrap_or(Place { sent: self.length(), payload: self.payload() });
        let mut left = Vec::with_capacity(end.sent - sent + SEND);
        let (mut skip, mut take) = (sent, end.sent - sent);
        for slice in self.slices() {
            let (skipped, slice) = slice.split_at(skip.min(slice.len()));
            skip -= skipped.len();
            let taken = take.min(slice.len());
            left.extend_from_slice(&slice[..taken]);
            take -= taken;
        }
        if cut.is_some() {
            left.extend_from_slice(&self.ending(end.payload));
        }
        rest.framed(&left);
        (end.payload, rest)
    }

    /// Returns the end of the payload frame that has begun when `sent` bytes were sent; `None` if they
    /// contain all payload that stays in place.
    fn end_of_frame(&self, sent: usize) -> Option<Place> {
        let (_, frames) = self.sections.split_last()?;
        let mut from = 0;
        frames.iter().find_map(|section| {
            let length = section.payload - from;
            from = section.payload;
            let pad = mpa::pad_length(Tagged::LEN + length);
            let end = section.framing + section.payload + pad + mpa::CRC_SIZE;
            (sent < end).then_some(Place { sent: end, payload: section.payload })
        })
    }
}

/// A place where a message can end.
#[derive(Clone, Copy)]
struct Place {
    /// The number of bytes of all pieces before it.
    sent: usize,
    /// The number of bytes of the message before it.
    payload: usize,
}

/// Returns the parts that are not empty.
fn filled<'a>(parts: &'a [IoSlice<'a>]) -> impl Iterator<Item = &'a [u8]> {
    parts.iter().map(|part| &**part).filter(|part| !part.is_empty())
}

/// Returns the bytes `from..to` of the parts.
fn bytes<'a>(parts: &'a [IoSlice<'a>], from: usize, to: usize) -> impl Iterator<Item = &'a [u8]> {
    let mut at = 0;
    parts.iter().filter_map(move |part| {
        let start = at;
        at += part.len();
        let range = from.clamp(start, at) - start..to.clamp(start, at) - start;
        (!range.is_empty()).then(|| &part[range])
    })
}

/// Returns padding and checksum of a frame.
fn trailer<'a>(
    header: &[u8],
    payload: impl Iterator<Item = &'a [u8]>,
    length: usize,
    crc: bool,
) -> SmallVec<[u8; 8]> {
    let mut trailer = SmallVec::new();
    trailer.resize(mpa::pad_length(header.len() - mpa::LENGTH_SIZE + length), 0);
    let sum = if crc {
        let mut sum = Crc::new();
        sum.update(header);
        payload.for_each(|part| sum.update(part));
        sum.update(&trailer);
        sum.finish()
    } else {
        0
    };
    trailer.extend_from_slice(&crc::to_wire(sum));
    trailer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::work::RemoteAddress;
    use crate::wire::crc::crc32c;
    use crate::wire::ddp::Header;

    const TO: RemoteAddress = RemoteAddress { key: 7, address: 1 << 33 };

    fn send() -> Untagged {
        Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 5, mo: 0 }
    }

    fn describe(length: usize) -> [u8; WORD] {
        u32::try_from(length).expect("short").to_be_bytes()
    }

    fn collect<'a>(pieces: impl Iterator<Item = Piece<'a>>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(part) => bytes.extend_from_slice(part),
                Piece::Memory { .. } => panic!("nothing is in device memory"),
            }
        }
        bytes
    }

    /// Checks each frame, and returns the bytes that were written.
    fn written(mut wire: &[u8], crc: bool) -> Vec<u8> {
        let mut written = Vec::new();
        loop {
            let (header, length, consumed) = Header::decode(wire).expect("a header");
            let whole = mpa::fpdu_length(consumed - mpa::LENGTH_SIZE + length);
            let (frame, rest) = wire.split_at(whole);
            let (body, sum) = frame.split_at(whole - mpa::CRC_SIZE);
            assert_eq!(sum, crc::to_wire(if crc { crc32c(body) } else { 0 }));
            let payload = &body[consumed..consumed + length];
            match header {
                Header::Tagged(Tagged { last: true, opcode: Opcode::Write, stag: 7, to }) => {
                    assert_eq!(to, TO.address + written.len() as u64);
                    written.extend_from_slice(payload);
                }
                Header::Untagged(header) => {
                    assert_eq!((header, payload), (send(), &describe(written.len())[..]));
                    assert!(rest.is_empty(), "the Send is the end");
                    return written;
                }
                Header::Tagged(other) => panic!("{other:?}"),
            }
            wire = rest;
        }
    }

    // Wherever the socket is full, the peer gets whole frames, and a Send with the number of their bytes.
    #[test]
    fn a_message_can_be_cut_anywhere() {
        let bytes: Vec<u8> = (0..2 * MAX_TAGGED + 1001).map(|byte| (byte * 7) as u8).collect();
        let (first, second) = bytes.split_at(999);
        let parts = [first, &[], second].map(IoSlice::new);
        for (length, crc) in [(1, false), (COPY_BELOW, true), (COPY_BELOW + 1, false), (bytes.len(), true)] {
            let message = StreamMessage { parts: &parts, length, to: TO, describe };
            let frames = || StreamFrames::new(&message, send(), crc);
            let wire = collect(frames().pieces());
            assert_eq!(wire.len(), frames().length());
            assert_eq!(written(&wire, crc), bytes[..length]);
            let places =
                (1..=wire.len()).filter(|sent| *sent < 1200 || sent % 509 == 0 || wire.len() - sent < 100);
            for sent in places {
                let (taken, rest) = frames().cut(sent);
                let rest = collect(rest.pieces(None));
                assert!(rest.len() <= MAX_TAGGED + 100, "no more than a frame is copied");
                let whole = [&wire[..sent], &rest].concat();
                assert_eq!(written(&whole, crc), bytes[..taken], "{length}: {sent} bytes sent");
            }
        }
    }

    // One system call takes a limited number of pieces.
    #[test]
    fn a_message_of_many_parts_ends_early() {
        let bytes = vec![1; 100 * 2 * MAX_PARTS];
        let parts: Vec<_> = bytes.chunks(100).map(IoSlice::new).collect();
        let message = StreamMessage { parts: &parts, length: bytes.len(), to: TO, describe };
        let frames = StreamFrames::new(&message, send(), false);
        assert!(frames.pieces().count() < 64);
        assert_eq!(written(&collect(frames.pieces()), false).len(), 100 * MAX_PARTS);
    }
}
