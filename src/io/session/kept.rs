//! The bytes that an end keeps for its peer.

use std::collections::VecDeque;
use std::io::IoSlice;

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
