//! Gathers a whole frame before any of it is used, with CRC on, if a read has brought only a part of it.
//!
//! Frames are large, and most are complete within a turn or two. So the buffer is the thread's, lent for a
//! frame, and a connection whose peer has stopped keeps no more than the peer has sent: the length of a
//! frame, two bytes, does not justify 64 KiB.

use std::cell::RefCell;

use crate::wire::mpa;

/// The longest frame.
const ROOM: usize = mpa::fpdu_length(u16::MAX as usize);
/// Between two turns, a frame of which this much has arrived keeps its buffer: copying more would take longer
/// than allocating.
const MUCH: usize = 16 * 1024;
/// Like in `staging`: larger buffers are not kept.
const KEEP: usize = 256;
/// The number of buffers that a thread keeps for the frames of its connections.
const SPARES: usize = 8;

thread_local! {
    /// Buffers of this thread that no frame has.
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
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

    /// Takes the buffer with the whole frame, and its length, for [`restore`](Self::restore) or
    /// [`release`](Self::release).
    pub(super) fn take(&mut self) -> (Box<[u8]>, usize) {
        (std::mem::take(&mut self.room), self.length)
    }

    /// Restores the buffer of a frame that is still needed.
    pub(super) fn restore(&mut self, room: Box<[u8]>) {
        self.room = room;
    }

    /// Returns the buffer of a frame that is no longer needed to the thread.
    pub(super) fn release(room: Box<[u8]>) {
        // A thread that is about to end keeps none.
        let _ = FREE.try_with(|free| {
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
            Self::release(self.take().0);
        }
    }

    /// Returns the size of the memory that the frame keeps.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.room.len() + self.kept.capacity()
    }

    fn lend(&mut self) {
        let spare = FREE.try_with(|free| free.borrow_mut().pop());
        self.room = spare.ok().flatten().unwrap_or_else(|| vec![0; ROOM].into_boxed_slice());
        self.room[..self.kept.len()].copy_from_slice(&self.kept);
        self.kept.clear();
        self.kept.shrink_to(KEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A peer that stops within a frame holds little memory (SEC-12).
    #[test]
    fn a_frame_keeps_what_has_come_of_it() {
        let mut frame = Frame::default();
        frame.begin(ROOM);
        assert_eq!(frame.push(b"ab"), 2);
        frame.park();
        assert!(frame.room.is_empty() && frame.kept.capacity() <= KEEP, "two bytes");
        let mut other = Frame::default();
        other.begin(4);
        assert_eq!(other.push(&[7; 9]), 4);
        assert!(other.is_complete());
        Frame::release(other.take().0);

        frame.missing()[0] = b'c';
        frame.filled(1);
        assert!(!frame.is_complete());
        let rest = vec![b'd'; MUCH];
        assert_eq!(frame.push(&rest), MUCH);
        frame.park();
        assert_eq!(frame.room.len(), ROOM, "it is worth it");
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
            Frame::release(frame.take().0);
        }
        assert_eq!(FREE.with_borrow(Vec::len), SPARES);
        frames[0].begin(100);
        frames[0].push(&[1; 100]);
        assert_eq!(FREE.with_borrow(Vec::len), SPARES - 1);
    }
}
