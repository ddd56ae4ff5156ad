//! Buffers bytes that were read ahead of their place: headers, small messages whole, and with CRC on a frame
//! until all of it has arrived.
//!
//! Staged bytes are parsed within the turn that read them or the next ones, except for the start of a header.
//! So the room is the thread's, lent until no work is left: large enough for many small frames in one read,
//! and an idle connection keeps none of it.
//!
//! Bytes that land in the staging buffer have to be copied. A read that brings much is worth that copy: the
//! kernel acknowledges each read, and many short ones have the peer go on in small steps. So a read brings as
//! many frames as are still in the cache when they are copied. The reader of a stream, which has memory for
//! the payload itself, gets only the headers.
//!
//! A whole frame is gathered, with CRC on, before any of it is used, if a read has brought only a part of it.
//! Frames are large, and most are complete within a turn or two. So the buffer is the thread's, lent for a
//! frame, and a connection whose peer has stopped keeps no more than the peer has sent: the length of a
//! frame, two bytes, does not justify 64 KiB.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::wire::mpa;

/// The length from which on a frame is large, and so, very likely, are those that follow.
pub(super) const LARGE: usize = 16 * 1024;
/// The number of small frames that may follow a large one before large ones are no longer expected: the rest
/// of a Write that is no multiple of a frame, and the Send that announces it, for a message that was cut in
/// two, and as many for what the peer grants.
const SMALL_BETWEEN: u8 = 8;
const HEADERS_ONLY: usize = 20;
/// The number of bytes that are read ahead between two frames for the reader of a stream, and between two
/// messages whose segments are announced.
pub(super) const BETWEEN: usize = 4096;

/// The number of bytes that are read ahead while small frames are expected.
pub(super) const MANY: usize = 64 * 1024;
/// The most bytes of large frames that are read ahead, four of the largest: few system calls, and all of it
/// is still in the cache when it is copied, and checked with CRC on, beside the memory that it is copied to.
pub(super) const MOST: usize = 4 * mpa::fpdu_length(mpa::MAX_ULPDU);

/// The frames that are expected, from the lengths of the last ones.
pub(super) struct ReadAhead {
    /// A message may have to wait for a receive, with all that has been read behind it: less of large frames is read ahead.
    waits: bool,
    /// The length of the last large frame.
    large: usize,
    /// The number of frames since the last large one.
    since_large: u8,
    /// The last large frame was announced, or announced others.
    announced: bool,
}

impl ReadAhead {
    /// Creates the state of a connection without frames. `waits` if a message may have to wait for a receive,
    /// with all that has been read behind it.
    pub(super) fn new(waits: bool) -> Self {
        Self { waits, large: LARGE, since_large: u8::MAX, announced: false }
    }

    /// Returns the most bytes of large frames that are read ahead.
    fn limit(&self) -> usize {
        if self.waits { MANY } else { MOST }
    }

    /// Records the begin of a frame of this length, length field and trailer included. If it was announced, or
    /// announces large ones, the next large payloads are read to their places, and not ahead.
    #[inline]
    pub(super) fn begin(&mut self, length: usize, announced: bool) {
        if length >= LARGE || announced {
            (self.large, self.since_large, self.announced) = (length, 0, announced);
        } else {
            self.since_large = self.since_large.saturating_add(1);
        }
    }

    /// Returns whether the next frames are likely to be large.
    pub(super) fn expects_large(&self) -> bool {
        self.since_large <= SMALL_BETWEEN
    }

    /// Returns the most bytes that the next read of a stream's reader brings ahead, within a payload or
    /// between two.
    pub(super) fn headers(&self, in_payload: bool) -> usize {
        match in_payload {
            _ if !self.expects_large() => MANY,
            true => HEADERS_ONLY,
            false => BETWEEN,
        }
    }

    /// Returns the room that a turn needs.
    pub(super) fn room(&self) -> usize {
        if self.expects_large() { self.limit() } else { MANY }
    }

    /// Returns the most bytes that the next read brings behind the current frame: whole large frames if they
    /// are expected, unless they are announced.
    pub(super) fn whole_frames(&self) -> usize {
        match self.expects_large() {
            true if self.announced => BETWEEN,
            true => (self.limit() / self.large * self.large).max(MANY),
            false => MANY,
        }
    }
}

/// The most unread bytes that are copied for the next turn: the start of a header. Only a connection that
/// waits for a receive has more. A larger buffer for the start of a frame is not kept either.
const KEEP: usize = 256;

thread_local! {
    /// The room of this thread, while no connection has it.
    static FREE_ROOM: Cell<Box<[u8]>> = Cell::default();
}

/// Takes the room of this thread, at least [`MANY`] bytes, for a read whose bytes are processed at once.
pub(super) fn take_room() -> Box<[u8]> {
    let room = FREE_ROOM.take();
    if room.len() < MANY { vec![0; MANY].into_boxed_slice() } else { room }
}

/// Returns the room to the thread.
pub(super) fn put_room(room: Box<[u8]>) {
    FREE_ROOM.set(room);
}

/// The unread bytes of a connection, and room behind them.
#[derive(Default)]
pub(super) struct Staging {
    /// The thread's room; empty between two turns, except for a connection that has work left.
    lent: Box<[u8]>,
    /// The unread part of `lent`.
    start: usize,
    end: usize,
    /// The bytes that were unread at the end of the last turn, behind the first `taken`.
    kept: Vec<u8>,
    taken: usize,
}

impl Staging {
    /// Creates staging with bytes that have been read elsewhere.
    pub(super) fn new(unread: &[u8]) -> Self {
        Self { kept: unread.to_vec(), ..Self::default() }
    }

    /// Gets room of at least `room` bytes for a turn, unless that of the last turn was kept. If many bytes
    /// are unread, they are parsed where they are, before the next read.
    pub(super) fn lend(&mut self, room: usize) {
        if !self.lent.is_empty() {
            return;
        }
        if self.kept.len() > KEEP {
            (self.start, self.end) = (std::mem::take(&mut self.taken), self.kept.len());
            self.lent = std::mem::take(&mut self.kept).into_boxed_slice();
            return;
        }
        let mut lent = FREE_ROOM.take();
        if lent.len() < room.max(self.kept.len() + 1) {
            lent = vec![0; room.max(2 * self.kept.len())].into_boxed_slice();
        }
        (self.start, self.end) = (0, self.kept.len());
        if self.end > 0 {
            lent[..self.end].copy_from_slice(&self.kept);
            self.kept.clear();
        }
        self.lent = lent;
    }

    /// Takes over the room of the thread, with these unread bytes, for a turn. Nothing else is unread.
    pub(super) fn adopt(&mut self, room: Box<[u8]>, unread: Range<usize>) {
        debug_assert!(self.is_empty() && self.lent.is_empty(), "nothing is unread");
        (self.lent, self.start, self.end) = (room, unread.start, unread.end);
    }

    /// Returns the room to the thread, and keeps the unread bytes.
    pub(super) fn give_back(&mut self) {
        let (start, end) = (std::mem::take(&mut self.start), std::mem::take(&mut self.end));
        let lent = std::mem::take(&mut self.lent);
        let is_of_thread = [MANY, MOST].contains(&lent.len());
        if end - start > KEEP {
            // A message at a time may find a receive. So the bytes behind it are moved only when their room
            // is half empty: all of them are moved no more often than each byte comes.
            if !is_of_thread && 2 * (end - start) >= lent.len() {
                self.kept = lent.into_vec();
                self.kept.truncate(end);
                self.taken = start;
                return;
            }
            self.kept = lent[start..end].to_vec();
        } else {
            self.kept.extend_from_slice(&lent[start..end]);
        }
        if is_of_thread {
            let other = FREE_ROOM.take();
            FREE_ROOM.set(if other.len() > lent.len() { other } else { lent });
        }
    }

    /// Returns the size of the memory that is kept between two turns.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.lent.len() + self.kept.len()
    }

    /// Returns whether no bytes are unread, in a turn or between two.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end && self.kept.len() == self.taken
    }

    /// Returns the bytes that have been read and not taken.
    pub(super) fn unread(&self) -> &[u8] {
        &self.lent[self.start..self.end]
    }

    /// Takes the first unread bytes.
    pub(super) fn take(&mut self, length: usize) {
        self.start += length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns room behind the unread bytes, at most `most` bytes and never none.
    pub(super) fn room(&mut self, most: usize) -> &mut [u8] {
        if self.end == self.lent.len() {
            if self.start == 0 {
                self.grow(0);
            }
            self.lent.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let length = most.min(self.lent.len() - self.end);
        &mut self.lent[self.end..][..length]
    }

    /// Adds bytes that were read elsewhere, growing the room if necessary, and returns their number.
    pub(super) fn push_back(&mut self, bytes: &[u8]) -> usize {
        if self.lent.len() - self.end < bytes.len() {
            self.grow(bytes.len());
        }
        self.lent[self.end..][..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
        bytes.len()
    }

    /// Grows the room to more than `more` bytes behind the unread ones.
    fn grow(&mut self, more: usize) {
        let unread = self.unread().len();
        let mut lent = vec![0; MANY + 2 * (unread + more)].into_boxed_slice();
        lent[..unread].copy_from_slice(self.unread());
        (self.start, self.end, self.lent) = (0, unread, lent);
    }

    /// Adds the first `length` bytes of the room to the unread bytes.
    pub(super) fn filled(&mut self, length: usize) {
        self.end += length;
    }
}

/// The longest frame.
const LONGEST_FRAME: usize = mpa::fpdu_length(u16::MAX as usize);
/// Between two turns, a frame of which this much has arrived keeps its buffer: copying more would take longer
/// than allocating.
const MUCH: usize = 16 * 1024;
/// The number of buffers that a thread keeps for the frames of its connections.
const SPARES: usize = 8;

thread_local! {
    /// Buffers of this thread that no frame has.
    static FREE_FRAMES: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// The frame that is being gathered, if there is one.
#[derive(Default)]
pub(super) struct Frame {
    /// Empty, or for a whole frame.
    room: Box<[u8]>,
    /// The part that has arrived, if there is no buffer.
    kept: Vec<u8>,
    length: usize,
    gathered: usize,
}

impl Frame {
    /// Begins a frame of this length.
    pub(super) fn begin(&mut self, length: usize) {
        (self.length, self.gathered) = (length, 0);
        self.kept.clear();
    }

    /// Returns the bytes that have arrived.
    pub(super) fn gathered(&self) -> &[u8] {
        let bytes = if self.room.is_empty() { &self.kept[..] } else { &self.room[..] };
        bytes.get(..self.gathered).unwrap_or_default()
    }

    /// Returns the room for the missing bytes.
    pub(super) fn missing(&mut self) -> &mut [u8] {
        if self.room.is_empty() {
            self.lend();
        }
        &mut self.room[self.gathered..self.length]
    }

    /// Records that the next `length` missing bytes were filled.
    pub(super) fn filled(&mut self, length: usize) {
        self.gathered += length;
    }

    /// Takes the first of these bytes, as far as they are missing, and returns how many.
    pub(super) fn push(&mut self, bytes: &[u8]) -> usize {
        let missing = self.missing();
        let taken = bytes.len().min(missing.len());
        missing[..taken].copy_from_slice(&bytes[..taken]);
        self.gathered += taken;
        taken
    }

    /// Returns whether the whole frame has arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.gathered == self.length
    }

    /// Returns the buffer of a frame that is no longer needed to the thread.
    pub(super) fn release(&mut self) {
        let room = std::mem::take(&mut self.room);
        // A thread that is about to end keeps none.
        let _ = FREE_FRAMES.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < SPARES {
                free.push(room);
            }
        });
    }

    /// Ends a turn: a frame of which little has arrived needs no buffer.
    pub(super) fn park(&mut self) {
        if self.gathered < MUCH {
            self.shrink();
        }
    }

    /// Copies the bytes that have arrived to a small buffer, after nothing more has come for a while.
    pub(super) fn shrink(&mut self) {
        if !self.room.is_empty() {
            self.kept.reserve_exact(self.gathered);
            self.kept.extend_from_slice(&self.room[..self.gathered]);
            self.release();
        }
    }

    /// Returns the size of the memory that the frame keeps.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.room.len() + self.kept.capacity()
    }

    fn lend(&mut self) {
        let spare = FREE_FRAMES.try_with(|free| free.borrow_mut().pop());
        self.room = spare.ok().flatten().unwrap_or_else(|| vec![0; LONGEST_FRAME].into_boxed_slice());
        self.room[..self.kept.len()].copy_from_slice(&self.kept);
        self.kept.clear();
        self.kept.shrink_to(KEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A message of a byte stream ends with the rest of its last frame, and with a Send of four bytes. The
    // payload of the next message must not go through the staging buffer for that.
    #[test]
    fn large_message_tail_predicts_no_small_messages() {
        let mut ahead = ReadAhead::new(false);
        assert_eq!(ahead.headers(false), MANY, "nothing is known");
        for length in [65_520, 65_520, 4, 256, 4] {
            ahead.begin(length, false);
            assert_eq!((ahead.headers(true), ahead.headers(false)), (HEADERS_ONLY, BETWEEN), "{length}");
        }
        ahead.begin(65_520, false);
        for length in [256, 4, 256, 4, 16, 4, 16, 4, 4] {
            ahead.begin(length, false);
        }
        assert_eq!(ahead.headers(true), MANY, "small ones come now, many at once");
    }

    // A part of a frame is one more read, and with CRC on it is copied to where the rest of it is gathered.
    #[test]
    fn large_frames_are_read_as_a_whole() {
        let mut ahead = ReadAhead::new(false);
        assert_eq!(ahead.whole_frames(), MANY);
        for (length, frames) in [(mpa::fpdu_length(mpa::MAX_ULPDU), 4), (65_540, 4), (LARGE, 16)] {
            ahead.begin(length, false);
            assert_eq!(ahead.whole_frames(), frames * length);
            assert!(ahead.whole_frames() <= MOST);
        }
    }

    // What is read ahead of them would be copied.
    #[test]
    fn announced_frames_are_not_read_ahead() {
        let mut ahead = ReadAhead::new(false);
        for (length, announced) in [(256, true), (65_520, true), (64, false)] {
            ahead.begin(length, announced);
            assert_eq!(ahead.whole_frames(), BETWEEN, "{length}");
        }
        ahead.begin(65_520, false);
        assert!(ahead.whole_frames() > MANY);
    }

    // With a shared receive queue, a peer decides how long a message waits, and all that was read behind it
    // (SEC-12).
    #[test]
    fn read_ahead_is_small_with_shared_receives() {
        let mut ahead = ReadAhead::new(true);
        ahead.begin(mpa::fpdu_length(mpa::MAX_ULPDU), false);
        assert_eq!((ahead.whole_frames(), ahead.room()), (MANY, MANY));
    }

    #[test]
    fn unread_bytes_survive_the_turn() {
        let mut staging = Staging::new(b"abc");
        assert!(!staging.is_empty());
        staging.lend(MANY);
        assert_eq!(staging.unread(), b"abc");
        staging.room(2).copy_from_slice(b"de");
        staging.filled(2);
        staging.take(1);
        staging.give_back();
        let mut other = Staging::default();
        other.lend(MANY);
        assert!(other.is_empty());
        other.room(8).fill(7);
        other.give_back();
        staging.lend(MANY);
        assert_eq!(staging.unread(), b"bcde", "somebody else had the room in between");
        staging.take(4);
        staging.give_back();
        assert!(staging.is_empty());
    }

    // Bytes that are put back go behind the unread ones, whose place is not always the start of the room.
    #[test]
    fn anything_can_be_put_back() {
        for more in [MANY - 2, MANY - 1, MANY, MANY + 1, 2 * MANY] {
            let mut staging = Staging::new(b"abc");
            staging.lend(MANY);
            staging.take(1);
            assert_eq!(staging.push_back(&vec![7; more]), more);
            staging.push_back(b"de");
            for _ in 0..2 {
                assert_eq!(staging.unread(), [b"bc", &vec![7; more][..], b"de"].concat());
                staging.give_back();
                staging.lend(MANY);
            }
        }
    }

    // A peer sends many small messages at once, and each has to wait for a shared receive (SEC-12).
    #[test]
    fn bytes_that_wait_are_seldom_moved() {
        const MESSAGE: usize = 28;
        let mut staging = Staging::default();
        staging.lend(MANY);
        let bytes: Vec<u8> = (0..MANY).map(|place| (place / MESSAGE) as u8).collect();
        staging.room(MANY).copy_from_slice(&bytes);
        staging.filled(MANY);
        let (mut moved, mut taken, mut place) = (0, 0, std::ptr::null());
        while taken + MESSAGE <= MANY {
            staging.lend(MANY);
            assert_eq!(staging.unread(), &bytes[taken..]);
            if !std::ptr::eq(place, staging.unread().as_ptr()) {
                moved += staging.unread().len();
            }
            place = staging.unread()[MESSAGE..].as_ptr();
            staging.take(MESSAGE);
            taken += MESSAGE;
            staging.give_back();
            assert!(staging.memory() <= MANY);
        }
        assert!(moved <= 4 * MANY, "{moved} bytes were copied for {MANY} that came");
    }

    // A read that finds no room would look like the end of the stream.
    #[test]
    fn there_is_room_behind_bytes_that_wait() {
        let mut staging = Staging::default();
        staging.lend(MANY);
        staging.room(MANY).fill(7);
        staging.filled(MANY);
        staging.take(1);
        for _ in 0..3 {
            staging.give_back();
            staging.lend(MANY);
            assert!(!staging.room(1).is_empty());
            assert_eq!(staging.unread(), [7; MANY - 1]);
        }
    }

    #[test]
    fn a_thread_keeps_the_larger_room() {
        let [mut small, mut large] = [Staging::default(), Staging::default()];
        small.lend(MANY);
        large.lend(MOST);
        assert_eq!((small.lent.len(), large.lent.len()), (MANY, MOST));
        large.give_back();
        small.give_back();
        small.lend(MANY);
        assert_eq!(small.room(usize::MAX).len(), MOST);
    }

    #[test]
    fn there_is_always_room() {
        let mut staging = Staging::new(&[1; MANY]);
        staging.lend(MANY);
        assert!(!staging.room(usize::MAX).is_empty(), "behind as much as there can be");
        staging.take(MANY - 1);
        let length = staging.room(usize::MAX).len();
        staging.filled(length);
        assert!(!staging.room(usize::MAX).is_empty(), "what was taken is room again");
        assert_eq!(staging.unread().len(), 1 + length);
    }

    // A peer that stops within a frame holds little memory (SEC-12).
    #[test]
    fn a_frame_keeps_what_has_come_of_it() {
        let mut frame = Frame::default();
        frame.begin(LONGEST_FRAME);
        assert_eq!(frame.push(b"ab"), 2);
        frame.park();
        assert!(frame.room.is_empty() && frame.kept.capacity() <= KEEP, "two bytes");
        let mut other = Frame::default();
        other.begin(4);
        assert_eq!(other.push(&[7; 9]), 4);
        assert!(other.is_complete());
        other.release();

        frame.missing()[0] = b'c';
        frame.filled(1);
        assert!(!frame.is_complete());
        let rest = vec![b'd'; MUCH];
        assert_eq!(frame.push(&rest), MUCH);
        frame.park();
        assert_eq!(frame.room.len(), LONGEST_FRAME, "it is worth it");
        assert!(frame.room.starts_with(b"abcd"));
        frame.shrink();
        assert_eq!(frame.memory(), 3 + MUCH);
        assert!(frame.push(b"e") == 1 && frame.room.starts_with(b"abcd") && frame.gathered == 4 + MUCH);
    }

    // A thread that has had many frames at once keeps few buffers (SEC-12).
    #[test]
    fn a_thread_keeps_a_few_rooms() {
        let mut frames: Vec<_> = std::iter::repeat_with(Frame::default).take(2 * SPARES).collect();
        for frame in &mut frames {
            frame.begin(100);
            frame.push(&[1; 100]);
        }
        for frame in &mut frames {
            frame.release();
        }
        assert_eq!(FREE_FRAMES.with_borrow(Vec::len), SPARES);
        frames[0].begin(100);
        frames[0].push(&[1; 100]);
        assert_eq!(FREE_FRAMES.with_borrow(Vec::len), SPARES - 1);
    }
}
