//! Stages bytes that were read ahead of their place: headers, and small messages whole.
//!
//! They are parsed within the turn that read them or the next ones, except for the start of a header. So the
//! room is the thread's, lent until no work is left: large enough for many small frames in one read, and an
//! idle connection keeps none of it.

use std::cell::Cell;

use super::read_ahead::{MANY as ROOM, MOST};

/// The most unread bytes that are copied for the next turn: the start of a header. Only a connection that
/// waits for a receive has more.
const KEEP: usize = 256;

thread_local! {
    /// The room of this thread, while no connection has it.
    static FREE: Cell<Box<[u8]>> = Cell::default();
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
        let mut lent = FREE.take();
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

    /// Returns the room to the thread, and keeps the unread bytes.
    pub(super) fn give_back(&mut self) {
        let (start, end) = (std::mem::take(&mut self.start), std::mem::take(&mut self.end));
        let lent = std::mem::take(&mut self.lent);
        let is_of_thread = [ROOM, MOST].contains(&lent.len());
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
            let other = FREE.take();
            FREE.set(if other.len() > lent.len() { other } else { lent });
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
        let mut lent = vec![0; ROOM + 2 * (unread + more)].into_boxed_slice();
        lent[..unread].copy_from_slice(self.unread());
        (self.start, self.end, self.lent) = (0, unread, lent);
    }

    /// Adds the first `length` bytes of the room to the unread bytes.
    pub(super) fn filled(&mut self, length: usize) {
        self.end += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_bytes_survive_the_turn() {
        let mut staging = Staging::new(b"abc");
        assert!(!staging.is_empty());
        staging.lend(ROOM);
        assert_eq!(staging.unread(), b"abc");
        staging.room(2).copy_from_slice(b"de");
        staging.filled(2);
        staging.take(1);
        staging.give_back();
        let mut other = Staging::default();
        other.lend(ROOM);
        assert!(other.is_empty());
        other.room(8).fill(7);
        other.give_back();
        staging.lend(ROOM);
        assert_eq!(staging.unread(), b"bcde", "somebody else had the room in between");
        staging.take(4);
        staging.give_back();
        assert!(staging.is_empty());
    }

    #[test]
    fn anything_can_be_put_back() {
        let mut staging = Staging::new(b"abc");
        staging.lend(ROOM);
        staging.take(1);
        assert_eq!(staging.push_back(&[7; 2 * ROOM]), 2 * ROOM);
        staging.push_back(b"de");
        assert_eq!(staging.unread().len(), 2 + 2 * ROOM + 2);
        assert!(staging.unread().starts_with(b"bc\x07") && staging.unread().ends_with(b"\x07de"));
        staging.give_back();
        staging.lend(ROOM);
        assert_eq!(staging.unread().len(), 2 + 2 * ROOM + 2);
    }

    // A peer sends many small messages at once, and each has to wait for a shared receive (SEC-12).
    #[test]
    fn bytes_that_wait_are_seldom_moved() {
        const MESSAGE: usize = 28;
        let mut staging = Staging::default();
        staging.lend(ROOM);
        let bytes: Vec<u8> = (0..ROOM).map(|place| (place / MESSAGE) as u8).collect();
        staging.room(ROOM).copy_from_slice(&bytes);
        staging.filled(ROOM);
        let (mut moved, mut taken, mut place) = (0, 0, std::ptr::null());
        while taken + MESSAGE <= ROOM {
            staging.lend(ROOM);
            assert_eq!(staging.unread(), &bytes[taken..]);
            if !std::ptr::eq(place, staging.unread().as_ptr()) {
                moved += staging.unread().len();
            }
            place = staging.unread()[MESSAGE..].as_ptr();
            staging.take(MESSAGE);
            taken += MESSAGE;
            staging.give_back();
            assert!(staging.memory() <= ROOM);
        }
        assert!(moved <= 4 * ROOM, "{moved} bytes were copied for {ROOM} that came");
    }

    // A read that finds no room would look like the end of the stream.
    #[test]
    fn there_is_room_behind_bytes_that_wait() {
        let mut staging = Staging::default();
        staging.lend(ROOM);
        staging.room(ROOM).fill(7);
        staging.filled(ROOM);
        staging.take(1);
        for _ in 0..3 {
            staging.give_back();
            staging.lend(ROOM);
            assert!(!staging.room(1).is_empty());
            assert_eq!(staging.unread(), [7; ROOM - 1]);
        }
    }

    #[test]
    fn a_thread_keeps_the_larger_room() {
        let [mut small, mut large] = [Staging::default(), Staging::default()];
        small.lend(ROOM);
        large.lend(MOST);
        assert_eq!((small.lent.len(), large.lent.len()), (ROOM, MOST));
        large.give_back();
        small.give_back();
        small.lend(ROOM);
        assert_eq!(small.room(usize::MAX).len(), MOST);
    }

    // Bytes that are put back go behind the unread ones, whose place is not always the start of the room.
    #[test]
    fn what_is_put_back_behind_a_full_room_grows_it() {
        for more in [ROOM - 2, ROOM - 1, ROOM, ROOM + 1] {
            let mut staging = Staging::default();
            staging.lend(ROOM);
            staging.room(3).copy_from_slice(b"abc");
            staging.filled(3);
            staging.take(1);
            assert_eq!(staging.push_back(&vec![7; more]), more);
            assert!(staging.unread().starts_with(b"bc") && staging.unread()[2..] == vec![7; more]);
        }
    }

    #[test]
    fn there_is_always_room() {
        let mut staging = Staging::new(&[1; ROOM]);
        staging.lend(ROOM);
        assert!(!staging.room(usize::MAX).is_empty(), "behind as much as there can be");
        staging.take(ROOM - 1);
        let length = staging.room(usize::MAX).len();
        staging.filled(length);
        assert!(!staging.room(usize::MAX).is_empty(), "what was taken is room again");
        assert_eq!(staging.unread().len(), 1 + length);
    }
}
