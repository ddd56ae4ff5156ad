//! Reads and writes of a byte stream: the call that has the bytes frames and writes messages, and the call
//! that has room for payload reads it.
//!
//! No request is posted for them, nothing completes, and no memory is kept except for the end of the frame
//! that the socket did not take: the task of the connection writes that end, and wakes the writer.
//!
//! A short message is framed on the stack, for one `send`. For a peer that takes it so it is one Send, with the word
//! and the bytes. A longer one is framed as FPDUs around the bytes of the caller, for one `sendmsg`. Each FPDU
//! of payload is an RDMA Write of its own. So a message can end behind any of them: if the socket takes no more, the
//! frame that it has begun is completed, a Send contains the number of bytes, and only that much is copied.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::sync::Weak;
use std::task::Waker;

use tokio::io::ReadBuf;

use super::connection::{ConnectionShared, Extent, Sending, Socket, Transmitted};
use super::framing::{Batch, COPY_BELOW, MAX_FRAMES, OWN, TRAILER_ROOM, append_trailer};
use crate::error::PostErrorKind;
use crate::inflight::{WORD, WakeList};
use crate::memory::Piece;
use crate::provider::stream::{Progress, StreamMessage, StreamRoom, Streamed};
use crate::provider::work::RemoteAddress;
use crate::sync::MutexGuard;
use crate::wire::ddp::{Tagged, Untagged};
use crate::wire::mpa::{self, Crc, crc32c};
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
        if message.length <= COPY_BELOW {
            let mut room = [MaybeUninit::uninit(); SHORT];
            let frames = short_frames(&mut room, message, send, self.crc);
            let outcome = socket.stream.try_write(frames.filled());
            let cut = |sent| {
                let mut rest = Batch::new(self.crc);
                rest.framed(&frames.filled()[sent..]);
                (message.length, rest)
            };
            Ok(self.message_offered(&socket, outcome, (frames.filled().len(), message.length), cut, waker))
        } else {
            let mut room = [MaybeUninit::uninit(); FRAMING];
            let frames = StreamFrames::new(&mut room, message, send, self.crc);
            let outcome = socket.stream.try_send_all(frames.pieces(), frames.length());
            let whole = (frames.length(), frames.payload);
            Ok(self.message_offered(&socket, outcome, whole, |sent| frames.cut(sent), waker))
        }
    }

    /// Processes the outcome of offering a message to the socket. `whole` is the number of bytes of its frames and
    /// of its payload. `cut` ends the message, of which the socket has taken so many bytes, and returns the number
    /// of bytes of payload, and the frames that are left.
    #[inline]
    fn message_offered(
        &self,
        socket: &Socket,
        outcome: io::Result<usize>,
        (length, payload): (usize, usize),
        cut: impl FnOnce(usize) -> (usize, Batch),
        waker: &Waker,
    ) -> Streamed {
        let sent = match self.report_sent(outcome) {
            Ok(sent) if sent > 0 => sent,
            Ok(_) => return self.message_refused(socket, io::ErrorKind::WouldBlock.into(), waker),
            Err(error) => return self.message_refused(socket, error, waker),
        };
        if sent < length {
            let (payload, rest) = cut(sent);
            self.write_behind(socket, self.sending(), sent, rest);
            return Streamed::Sent(payload);
        }
        let mut sending = self.sending();
        if !sending.queue.message_sent(sent) {
            self.write_behind(socket, sending, sent, Batch::new(self.crc));
        }
        Streamed::Sent(payload)
    }

    /// Goes on behind a message, of which the socket has taken `sent` bytes and `rest` is left.
    #[cold]
    fn write_behind(&self, socket: &Socket, mut sending: MutexGuard<'_, Sending>, sent: usize, rest: Batch) {
        let mut wakes = WakeList::default();
        let next = sending.queue.message_offered(sent, rest, &mut wakes);
        let (transmitted, _) = self.write_batches(socket, sending, next, Extent::Call, &mut wakes);
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        wakes.wake_all();
    }

    /// Gives up a message of which the socket has taken nothing.
    #[cold]
    fn message_refused(&self, socket: &Socket, error: io::Error, waker: &Waker) -> Streamed {
        let mut wakes = WakeList::default();
        let mut sending = self.sending();
        let old = sending.queue.wait_for_idle(waker);
        let next = sending.queue.offered(Batch::new(self.crc), Err(error), &mut wakes);
        let (transmitted, _) = self.write_batches(socket, sending, next, Extent::Call, &mut wakes);
        drop(old);
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        wakes.wake_all();
        Streamed::Blocked
    }

    /// Sends the message of the end of a stream, behind all that was posted, and asks the peer for the confirmation that it has received
    /// everything, which goes to the inbox. `is_last`: this end sends no other message once the peer has sent its last one, too.
    ///
    /// # Errors
    /// `ConnectionInvalid` if nothing more can be sent.
    pub(crate) fn end_stream(&self, message: [u8; WORD], is_last: bool) -> Result<(), PostErrorKind> {
        let mut sending = self.sending();
        if sending.queue.is_closed() {
            return Err(PostErrorKind::ConnectionInvalid);
        }
        let (is_idle, mut wakes) = (sending.queue.is_idle(), WakeList::default());
        sending.queue.end_stream(message, is_last);
        if is_idle {
            let mut room = [MaybeUninit::uninit(); OWN];
            let frames = sending.queue.frame_stream_end(&mut room);
            self.write_own(sending, frames.filled(), true, Extent::Call, &mut wakes);
        } else {
            self.transmit(sending, Extent::Call, &mut wakes);
        }
        wakes.wake_all();
        Ok(())
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
/// Length field and header of a Write.
const HEADER: usize = mpa::LENGTH_SIZE + Tagged::LEN;
/// The length of the Send at the end of a message, which needs no padding.
const SEND: usize = mpa::fpdu_length(Untagged::LEN + WORD);
const _: () = assert!(mpa::pad_length(Untagged::LEN + WORD) == 0);
/// The room for the frames of a short message.
const SHORT: usize = HEADER + COPY_BELOW + TRAILER_ROOM + SEND;
/// The room for the bytes around the payloads of a message.
const FRAMING: usize = MAX_FRAMES * HEADER_AND_CRC + TRAILER_ROOM + SEND;
/// The bytes around a payload that needs no padding, as all but the last do.
const HEADER_AND_CRC: usize = HEADER + mpa::CRC_SIZE;

/// Returns the frames of a message of at most [`COPY_BELOW`] bytes.
#[inline]
fn short_frames<'a>(
    room: &'a mut [MaybeUninit<u8>; SHORT],
    message: &StreamMessage<'_>,
    send: Untagged,
    crc: bool,
) -> ReadBuf<'a> {
    let mut frames = ReadBuf::uninit(room);
    if message.in_send {
        frames.put_slice(&send.encode(WORD + message.length));
        frames.put_slice(&(message.describe)(message.length));
    } else {
        frames.put_slice(&write_header(message, 0, message.length));
    }
    let header = frames.filled().len();
    bytes(message.parts, 0, message.length).for_each(|part| frames.put_slice(part));
    debug_assert_eq!(
        frames.filled().len(),
        header + message.length,
        "the message is no longer than its parts"
    );
    if message.in_send {
        append_trailer(&mut frames, 0, Untagged::LEN + WORD + message.length, crc);
        return frames;
    }
    append_trailer(&mut frames, 0, Tagged::LEN + message.length, crc);
    append_send(&mut frames, message, message.length, send, crc);
    frames
}

/// Returns the header of the Write of the bytes `from..to`.
fn write_header(message: &StreamMessage<'_>, from: usize, to: usize) -> [u8; HEADER] {
    let RemoteAddress { key: stag, address } = message.to;
    let to_address = address.wrapping_add(from as u64);
    Tagged { last: true, opcode: Opcode::Write, stag, to: to_address }.encode(to - from)
}

/// Appends the Send behind `length` bytes.
fn append_send(
    frames: &mut ReadBuf<'_>,
    message: &StreamMessage<'_>,
    length: usize,
    send: Untagged,
    crc: bool,
) {
    let mut frame = [0; SEND];
    let (body, sum) = frame.split_at_mut(SEND - mpa::CRC_SIZE);
    let (header, word) = body.split_at_mut(mpa::LENGTH_SIZE + Untagged::LEN);
    header.copy_from_slice(&send.encode(WORD));
    word.copy_from_slice(&(message.describe)(length));
    if crc {
        sum.copy_from_slice(&mpa::crc_to_wire(crc32c(body)));
    }
    frames.put_slice(&frame);
}

/// The frames of a message whose payload stays with the caller.
struct StreamFrames<'a> {
    message: &'a StreamMessage<'a>,
    send: Untagged,
    crc: bool,
    /// The bytes around the payloads: a header before each, a trailer behind it, and the Send.
    framing: ReadBuf<'a>,
    /// The number of bytes of the message.
    payload: usize,
}

impl<'a> StreamFrames<'a> {
    /// Frames as many bytes of the message as one system call takes. `send` is the header of the Send.
    fn new(
        room: &'a mut [MaybeUninit<u8>; FRAMING],
        message: &'a StreamMessage<'a>,
        send: Untagged,
        crc: bool,
    ) -> Self {
        let parts = filled(message.parts).take(MAX_PARTS).map(<[u8]>::len);
        let payload = message.length.min(parts.sum()).min(MAX_FRAMES * Tagged::FULL);
        let mut framing = ReadBuf::uninit(room);
        for from in (0..payload).step_by(Tagged::FULL) {
            let to = payload.min(from + Tagged::FULL);
            let header = write_header(message, from, to);
            framing.put_slice(&header);
            let padding = &[0; 4][..mpa::pad_length(Tagged::LEN + to - from)];
            framing.put_slice(padding);
            let mut sum = 0;
            if crc {
                let mut crc = Crc::new();
                crc.update(&header);
                bytes(message.parts, from, to).for_each(|part| crc.update(part));
                crc.update(padding);
                sum = crc.finish();
            }
            framing.put_slice(&mpa::crc_to_wire(sum));
        }
        append_send(&mut framing, message, payload, send, crc);
        Self { message, send, crc, framing, payload }
    }

    /// Returns the pieces that are to be sent.
    fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.slices().map(Piece::Bytes)
    }

    /// Returns the number of bytes of all pieces.
    fn length(&self) -> usize {
        self.framing.filled().len() + self.payload
    }

    /// Returns the number of frames of payload.
    fn count(&self) -> usize {
        self.payload.div_ceil(Tagged::FULL)
    }

    /// Returns the end of the frame of payload with this index in the message.
    fn end_of_payload(&self, frame: usize) -> usize {
        self.payload.min((frame + 1) * Tagged::FULL)
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (framing, count) = (self.framing.filled(), self.count());
        let mut from = 0;
        (0..=count).flat_map(move |frame| {
            let to = if frame == count { framing.len() } else { frame * HEADER_AND_CRC + HEADER };
            let around = &framing[std::mem::replace(&mut from, to)..to];
            let payload = bytes(self.message.parts, frame * Tagged::FULL, self.end_of_payload(frame));
            std::iter::once(around).chain(payload)
        })
    }

    /// Ends the message behind the frame that the socket has begun, after it has taken `sent` bytes, at least one and
    /// not all. Returns the number of bytes of the message, and the rest that is to be sent.
    fn cut(&self, sent: usize) -> (usize, Batch) {
        let cut = self.end_of_frame(sent);
        let end = cut.unwrap_or(Place { sent: self.length(), payload: self.payload });
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
            let mut room = [MaybeUninit::uninit(); SEND];
            let mut ending = ReadBuf::uninit(&mut room);
            append_send(&mut ending, self.message, end.payload, self.send, self.crc);
            left.extend_from_slice(ending.filled());
        }
        let mut rest = Batch::new(self.crc);
        rest.framed(&left);
        (end.payload, rest)
    }

    /// Returns the end of the payload frame that has begun when `sent` bytes were sent; `None` if they
    /// contain all payload.
    fn end_of_frame(&self, sent: usize) -> Option<Place> {
        (0..self.count()).find_map(|frame| {
            let payload = self.end_of_payload(frame);
            let pad = mpa::pad_length(Tagged::LEN + payload - frame * Tagged::FULL);
            let end = (frame + 1) * HEADER_AND_CRC + payload + pad;
            (sent < end).then_some(Place { sent: end, payload })
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

#[cfg(test)]
mod tests {
    use super::super::send_queue::{Answer, SendQueue};
    use super::*;
    use crate::inflight::CompletionSink;
    use crate::wire::ddp::Header;
    use crate::wire::mpa::crc32c;

    fn queue() -> SendQueue {
        SendQueue::new(4, 1, false, CompletionSink::to_futures(std::sync::Arc::default()))
    }

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
            assert_eq!(sum, mpa::crc_to_wire(if crc { crc32c(body) } else { 0 }));
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
        let bytes: Vec<u8> = (0..2 * Tagged::FULL + 1001).map(|byte| (byte * 7) as u8).collect();
        let (first, second) = bytes.split_at(999);
        let parts = [first, &[], second].map(IoSlice::new);
        for (length, crc) in [(COPY_BELOW + 1, false), (Tagged::FULL, true), (bytes.len(), true)] {
            let message = StreamMessage { parts: &parts, length, to: TO, in_send: false, describe };
            let mut room = [MaybeUninit::uninit(); FRAMING];
            let frames = StreamFrames::new(&mut room, &message, send(), crc);
            let wire = collect(frames.pieces());
            assert_eq!(wire.len(), frames.length());
            assert_eq!(written(&wire, crc), bytes[..length]);
            let places =
                (1..wire.len()).filter(|sent| *sent < 1200 || sent % 509 == 0 || wire.len() - sent < 100);
            for sent in places {
                let (taken, rest) = frames.cut(sent);
                let rest = collect(rest.pieces(None));
                assert!(rest.len() <= Tagged::FULL + 100, "no more than a frame is copied");
                let whole = [&wire[..sent], &rest].concat();
                assert_eq!(written(&whole, crc), bytes[..taken], "{length}: {sent} bytes sent");
            }
        }
    }

    // For a peer that takes bytes behind the word, both are one Send.
    #[test]
    fn short_message_has_the_same_frames() {
        let bytes: Vec<u8> = (0..COPY_BELOW).map(|byte| (byte * 7) as u8).collect();
        for length in (1..40).chain([COPY_BELOW - 1, COPY_BELOW]) {
            let (first, second) = bytes.split_at(length / 3);
            let parts = [first, &[], second].map(IoSlice::new);
            for crc in [false, true] {
                let message = StreamMessage { parts: &parts, length, to: TO, in_send: false, describe };
                let (mut short, mut long) =
                    ([MaybeUninit::uninit(); SHORT], [MaybeUninit::uninit(); FRAMING]);
                let frames = short_frames(&mut short, &message, send(), crc);
                assert_eq!(written(frames.filled(), crc), bytes[..length]);
                let long = StreamFrames::new(&mut long, &message, send(), crc);
                assert_eq!(frames.filled(), collect(long.pieces()));
                let message = StreamMessage { in_send: true, ..message };
                let mut room = [MaybeUninit::uninit(); SHORT];
                let frame = short_frames(&mut room, &message, send(), crc);
                let (body, sum) = frame.filled().split_at(frame.filled().len() - mpa::CRC_SIZE);
                assert_eq!(sum, mpa::crc_to_wire(if crc { crc32c(body) } else { 0 }));
                assert_eq!(frame.filled().len(), mpa::fpdu_length(Untagged::LEN + WORD + length));
                let (header, payload, consumed) = Header::decode(body).expect("a header");
                assert_eq!((header, payload), (Header::Untagged(send()), WORD + length));
                assert_eq!(body[consumed..][..payload], [&describe(length), &bytes[..length]].concat());
            }
        }
    }

    // What came while a stream wrote its message goes on behind it.
    #[test]
    fn work_is_due_behind_a_message() {
        let request = |queue: &mut SendQueue| queue.respond(None, Answer::Read { sink: (1, 0) });
        let waiter = |queue: &mut SendQueue| drop(queue.wait_for_idle(Waker::noop()));
        let closes = |queue: &mut SendQueue| queue.close(None);
        let mut alone = queue();
        assert!(alone.begin_message().is_some() && alone.message_sent(44) && alone.is_idle());
        assert_eq!((alone.written, alone.completed, alone.outbound.next_send().msn), (44, 44, 2));
        for change in [request as fn(&mut SendQueue), waiter, closes] {
            let mut queue = self::queue();
            assert!(queue.begin_message().is_some());
            change(&mut queue);
            assert!(!queue.message_sent(44) && queue.is_writing() && queue.written == 0);
            let _ = queue.message_offered(44, Batch::new(false), &mut WakeList::default());
            assert_eq!((queue.written, queue.completed, queue.outbound.next_send().msn), (44, 44, 2));
        }
    }

    // One system call takes a limited number of pieces.
    #[test]
    fn a_message_of_many_parts_ends_early() {
        let bytes = vec![1; 100 * 2 * MAX_PARTS];
        let parts: Vec<_> = bytes.chunks(100).map(IoSlice::new).collect();
        let message = StreamMessage { parts: &parts, length: bytes.len(), to: TO, in_send: false, describe };
        let mut room = [MaybeUninit::uninit(); FRAMING];
        let frames = StreamFrames::new(&mut room, &message, send(), false);
        assert!(frames.pieces().count() < 64);
        assert_eq!(written(&collect(frames.pieces()), false).len(), 100 * MAX_PARTS);
    }
}
