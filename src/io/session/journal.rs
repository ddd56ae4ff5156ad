//! The bytes that an end has written and its peer's program has not read, and the counts of both directions.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::error::ProtocolError;
use crate::proto::session::{Contradiction, Counts};

/// The most reports by the clock without a sign that the program of the peer runs: each takes a receive of the peer, which its program
/// posts again. Reports of much that was read have no such limit.
const UNHEARD: u8 = 4;

/// How a program closes a stream, or a direction of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::io) enum Close {
    Shutdown,
    Disconnect,
    /// At once, and whatever is under way.
    Abandon,
}

/// What passes from one connection of a session to the next.
#[derive(Debug)]
pub(in crate::io) struct Journal {
    counts: Counts,
    /// The bytes from the first unacknowledged one to the last written.
    kept: Kept,
    /// What is due when all bytes of before a loss have been sent again.
    close: Option<Close>,
    /// Wakes the task of the session: the program has read or written something, and the reports of both ends are due soon.
    wake: Arc<Notify>,
    /// The task has been woken for them.
    is_awaited: bool,
    /// The number of reports by the clock since the last message of the peer.
    unheard: u8,
}

impl Journal {
    pub(super) fn new(counts: Counts, wake: Arc<Notify>) -> Self {
        Self { counts, kept: Kept::default(), close: None, wake, is_awaited: false, unheard: 0 }
    }

    /// Returns how many bytes may be written.
    pub(in crate::io) fn room(&self) -> usize {
        usize::try_from(self.counts.room()).unwrap_or(usize::MAX)
    }

    /// Keeps the first `length` bytes, which have been sent.
    pub(in crate::io) fn write(&mut self, parts: &[IoSlice<'_>], length: usize) {
        self.kept.append(parts, length);
        self.counts.write(length as u64);
        self.await_reports();
    }

    /// Wakes the task, if that was not done since it looked at the reports.
    fn await_reports(&mut self) {
        if !std::mem::replace(&mut self.is_awaited, true) {
            self.wake.notify_one();
        }
    }

    /// Counts bytes that the program has read.
    pub(in crate::io) fn read(&mut self, length: usize) {
        if self.counts.read(length as u64) {
            self.await_reports();
        }
    }

    pub(in crate::io) fn hear(&mut self) {
        self.unheard = 0;
    }

    /// Takes what the peer's program has read.
    ///
    /// # Errors
    /// It cannot have read as much.
    pub(in crate::io) fn acknowledge(&mut self, bytes: u32) -> Result<(), ProtocolError> {
        let freed = self.counts.acknowledge(bytes);
        let freed =
            freed.map_err(|Contradiction| ProtocolError::Value { what: "read bytes", value: bytes.into() });
        self.free(freed?);
        Ok(())
    }

    fn free(&mut self, bytes: u64) {
        self.kept.free(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Returns how much the program has read, if it is so much that a report is due now.
    pub(in crate::io) fn take_read(&mut self) -> Option<u32> {
        self.counts.is_acknowledgement_due().then(|| self.counts.take_acknowledgement())?
    }

    /// Returns how much the program has read, if the peer does not know of some of it, and takes it in.
    pub(in crate::io) fn take_read_by_clock(&mut self) -> Option<u32> {
        self.is_awaited = false;
        if self.unheard >= UNHEARD {
            return None;
        }
        let read = self.counts.take_acknowledgement();
        self.unheard += u8::from(read.is_some());
        read
    }

    /// Has the direction closed when all bytes of before a loss have been sent again. Returns `false` if there are none.
    pub(in crate::io) fn close(&mut self, close: Close) -> bool {
        let waits = self.counts.has_unsent();
        if waits {
            self.close = self.close.max(Some(close));
        }
        waits
    }

    pub(in crate::io) fn is_closing(&self) -> bool {
        self.close.is_some()
    }

    /// Takes the close that is due now.
    pub(in crate::io) fn take_close(&mut self) -> Option<Close> {
        if self.counts.has_unsent() { None } else { self.close.take() }
    }

    /// Returns whether bytes are kept for the peer.
    pub(in crate::io) fn has_kept(&self) -> bool {
        self.counts.kept() > 0
    }

    pub(in crate::io) fn has_unsent(&self) -> bool {
        self.counts.has_unsent()
    }

    /// Returns bytes of before a loss that have not been sent again, the first ones.
    pub(in crate::io) fn unsent(&self) -> &[u8] {
        self.kept.from(usize::try_from(self.counts.unsent_from()).unwrap_or(usize::MAX))
    }

    pub(in crate::io) fn send_again(&mut self, length: usize) {
        self.counts.send_again(length as u64);
    }

    /// Returns how many bytes the program has read.
    pub(super) fn progress(&self) -> u64 {
        self.counts.progress()
    }

    /// Goes on over another connection, where the peer's program has read so much.
    ///
    /// # Errors
    /// It cannot have read as much, or as little. Nothing has changed then.
    pub(super) fn resume(&mut self, peers: u64) -> Result<(), Contradiction> {
        let freed = self.counts.resume(peers)?;
        self.free(freed);
        (self.close, self.unheard) = (None, 0);
        Ok(())
    }
}

/// The length of a chunk.
const CHUNK: usize = 32 << 10;

/// The most chunks that wait to be used again. The one that was freed last is used first: it is still in the caches.
const SPARE: usize = 4;

/// A queue of bytes, in chunks.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// All are full, apart from the last.
    chunks: VecDeque<Vec<u8>>,
    /// The number of bytes of the first chunk that were freed.
    freed: usize,
    spare: Vec<Vec<u8>>,
}

impl Kept {
    /// Appends the first `length` bytes.
    pub(super) fn append(&mut self, parts: &[IoSlice<'_>], length: usize) {
        let mut left = length;
        for part in parts {
            let mut part = &part[..part.len().min(left)];
            left -= part.len();
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(self.room()));
                part = later;
                match self.chunks.back_mut() {
                    Some(chunk) if !now.is_empty() => chunk.extend_from_slice(now),
                    _ => {
                        let chunk = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK));
                        self.chunks.push_back(chunk);
                    }
                }
            }
        }
    }

    /// Returns the room in the last chunk.
    fn room(&self) -> usize {
        self.chunks.back().map_or(0, |chunk| CHUNK - chunk.len())
    }

    /// Frees the first bytes.
    pub(super) fn free(&mut self, mut bytes: usize) {
        while bytes > 0
            && let Some(first) = self.chunks.front_mut()
        {
            let left = first.len() - self.freed;
            if bytes < left {
                self.freed += bytes;
                return;
            }
            bytes -= left;
            self.freed = 0;
            let chunk = self.chunks.pop_front();
            if self.spare.len() < SPARE {
                self.spare.extend(chunk.map(|mut chunk| {
                    chunk.clear();
                    chunk
                }));
            }
        }
        if self.chunks.is_empty() {
            // An idle stream has no memory here.
            *self = Self::default();
        }
    }

    /// Returns bytes from this place on, as many as are in one piece.
    pub(super) fn from(&self, place: usize) -> &[u8] {
        let place = place + self.freed;
        let chunk = self.chunks.get(place / CHUNK);
        chunk.and_then(|chunk| chunk.get(place % CHUNK..)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Against a plain queue, over the ends of chunks.
    #[test]
    fn bytes_come_out_as_they_went_in() {
        let (mut kept, mut plain) = (Kept::default(), VecDeque::<u8>::new());
        let mut next = 0_u8;
        for round in 0..400_usize {
            let length = round * 997 % (2 * CHUNK);
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    next = next.wrapping_mul(5).wrapping_add(1);
                    next
                })
                .collect();
            let (one, other) = bytes.split_at(length / 3);
            kept.append(&[IoSlice::new(one), IoSlice::new(other), IoSlice::new(b"beyond")], length);
            plain.extend(&bytes);
            let free = (round * 1009 % (2 * CHUNK)).min(plain.len());
            kept.free(free);
            plain.drain(..free);
            let mut place = 0;
            while place < plain.len() {
                let piece = kept.from(place);
                assert!(!piece.is_empty());
                assert!(piece.iter().eq(plain.range(place..place + piece.len())));
                place += piece.len();
            }
            assert!(kept.from(place).is_empty());
        }
        kept.free(plain.len());
        assert_eq!((kept.chunks.capacity(), kept.spare.capacity()), (0, 0));
    }
}
