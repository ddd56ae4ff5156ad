//! A frame that is gathered before any of it is used, with CRC on, because a read has brought a part of it.
//!
//! Frames are large, and most are complete within a turn or two. So the room is the thread's, lent for a frame, and a connection
//! keeps no more than the peer has sent, once it has stopped: the length of a frame, two bytes, is not reason enough for 64 KiB.

use std::cell::RefCell;

use crate::wire::mpa;

/// The longest frame.
const ROOM: usize = mpa::fpdu_length(u16::MAX as usize);
/// Between two turns, the room stays with a frame of which this has come: to copy more would take longer than to allocate.
const MUCH: usize = 16 * 1024;
/// As in `staging`: more than this is not kept for the next time.
const KEEP: usize = 256;
/// The number of rooms that are kept for the frames of a thread's connections.
const SPARES: usize = 8;

thread_local! {
    /// Rooms that no frame has, of this thread.
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// The frame that is being gathered, if there is one.
#[derive(Default)]
pub(super) struct Frame {
    /// Empty, or for a whole frame.
    room: Box<[u8]>,
    /// The part that has come, if there is no room.
    kept: Vec<u8>,
    length: usize,
    gathered: usize,
}

impl Frame {
    /// Begins with a frame of this length.
    pub(super) fn begin(&mut self, length: usize) {
        (self.length, self.gathered) = (length, 0);
        self.kept.clear();
    }

    /// The part that has come.
    pub(super) fn gathered(&self) -> &[u8] {
        let bytes = if self.room.is_empty() { &self.kept[..] } else { &self.room[..] };
        bytes.get(..self.gathered).unwrap_or_default()
    }

    /// The part that is missing.
    pub(super) fn missing(&mut self) -> &mut [u8] {
        if self.room.is_empty() {
            self.lend();
        }
        &mut self.room[self.gathered..self.length]
    }

    /// So many of the missing bytes have been filled.
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

    /// Returns whether all of it has come.
    pub(super) fn is_complete(&self) -> bool {
        self.gathered == self.length
    }

    /// Takes the room with the whole frame, and its length, for [`restore`](Self::restore) or [`release`](Self::release).
    pub(super) fn take(&mut self) -> (Box<[u8]>, usize) {
        (std::mem::take(&mut self.room), self.length)
    }

    /// The frame is not done with.
    pub(super) fn restore(&mut self, room: Box<[u8]>) {
        self.room = room;
    }

    /// The frame is done with.
    pub(super) fn release(room: Box<[u8]>) {
        // A thread that is about to end keeps none.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < SPARES {
                free.push(room);
            }
        });
    }

    /// The turn is over: a frame of which little has come needs no room.
    pub(super) fn park(&mut self) {
        if self.gathered < MUCH {
            self.shrink();
        }
    }

    /// Nothing more has come for a while: the frame keeps what has come, and no room.
    pub(super) fn shrink(&mut self) {
        if !self.room.is_empty() {
            self.kept.reserve_exact(self.gathered);
            self.kept.extend_from_slice(&self.room[..self.gathered]);
            Self::release(self.take().0);
        }
    }

    /// The memory that it keeps.
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

    // SEC-12
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

    // SEC-12
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
