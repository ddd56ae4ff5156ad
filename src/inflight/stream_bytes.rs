//! The bytes of a stream that have arrived and were not read, for a provider to which an offset is a number and not a place.
//!
//! The peer writes to a ring of so many bytes, and to a list of targets before it; or it sends the next bytes. Neither is memory: a byte
//! stream comes in order, and what comes is appended to chunks, which go back to the thread when they were read. A Write that is ahead of the next byte is kept
//! aside until those before it have come.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;

use tokio::io::ReadBuf;

/// The length of the list of targets, whose first byte has the offset 0.
pub(crate) const LIST: usize = 32;
/// The offset of the ring.
pub(crate) const RING: u64 = 64;

/// The sizes of chunks: for short frames, of which an idle stream keeps none and a busy one a few; and for long ones.
const SIZES: [usize; 2] = [8 << 10, 64 << 10];
/// The number of chunks of each size that a thread keeps.
const SPARES: [usize; 2] = [64, 16];
/// The most pieces that are kept aside. A peer whose Writes have more gaps than that violates the protocol.
const MOST_ASIDE: usize = 64;

thread_local! {
    static FREE: RefCell<[Vec<Box<[u8]>>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// A piece of the stream, in room for more.
#[derive(Debug)]
struct Chunk {
    room: Box<[u8]>,
    filled: Range<usize>,
}

impl Chunk {
    /// Takes a chunk for a payload of this length: what is behind it will be as long.
    fn for_payload(length: usize) -> Self {
        let class = usize::from(length > SIZES[0]);
        let spare = FREE.with_borrow_mut(|free| free[class].pop());
        Self { room: spare.unwrap_or_else(|| vec![0; SIZES[class]].into_boxed_slice()), filled: 0..0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.filled.clone()]
    }

    /// Returns the room behind the bytes, at most so much.
    fn spare(&mut self, most: usize) -> &mut [u8] {
        let spare = &mut self.room[self.filled.end..];
        let length = spare.len().min(most);
        &mut spare[..length]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let room = std::mem::take(&mut self.room);
        let class = usize::from(room.len() > SIZES[0]);
        // A thread that is about to end keeps none.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free[class].len() < SPARES[class] {
                free[class].push(room);
            }
        });
    }
}

/// Bytes that are ahead of the next one.
#[derive(Debug)]
struct Aside {
    /// The ring, as memory.
    ring: Box<[u8]>,
    /// The positions of the bytes in it, in order, with gaps in between.
    runs: Vec<Range<u64>>,
}

/// See the [module](self). Positions count the bytes of the stream from its beginning.
#[derive(Debug)]
pub(crate) struct StreamBytes {
    list: [u8; LIST],
    /// The length of the ring.
    ring: u64,
    /// The position of the next byte to arrive, and its place in the ring.
    arrived: u64,
    next: u64,
    chunks: VecDeque<Chunk>,
    /// The number of bytes in the chunks.
    length: usize,
    aside: Option<Box<Aside>>,
}

/// The peer has written to a place outside of the ring, or that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfBounds;

impl StreamBytes {
    /// Creates an empty ring of this length.
    pub(crate) fn new(ring: u64) -> Self {
        Self { list: [0; LIST], ring, arrived: 0, next: 0, chunks: VecDeque::new(), length: 0, aside: None }
    }

    /// Returns the number of bytes that can be read.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the bytes of the list.
    pub(crate) fn list(&mut self) -> &mut [u8; LIST] {
        &mut self.list
    }

    /// Checks that so many bytes, at least one, from this offset on are in the list, or in the ring and free. Whether the peer was
    /// granted them is seen when its message announces them.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn check(&self, to: u64, length: usize) -> Result<(), OutOfBounds> {
        let end = to.checked_add(length as u64).ok_or(OutOfBounds)?;
        let is_list = end <= LIST as u64;
        let is_free = || {
            let ahead = self.ahead(to).filter(|_| end <= RING + self.ring);
            ahead.is_some_and(|ahead| ahead + self.length as u64 + length as u64 <= self.ring)
        };
        if is_list || is_free() { Ok(()) } else { Err(OutOfBounds) }
    }

    /// Returns by how much a byte at this offset is ahead of the next one. `None` outside of the ring.
    fn ahead(&self, to: u64) -> Option<u64> {
        let place = to.checked_sub(RING).filter(|place| *place < self.ring)?;
        Some(if place >= self.next { place - self.next } else { place + self.ring - self.next })
    }

    /// Returns whether the byte at this offset is the next one.
    pub(crate) fn is_next(&self, to: u64) -> bool {
        to == self.next()
    }

    /// Returns the offset of the next byte.
    pub(crate) fn next(&self) -> u64 {
        RING + self.next
    }

    /// Takes bytes that the peer writes to this offset, which was [checked](Self::check).
    ///
    /// # Errors
    /// The pieces that are ahead of the next byte are too many.
    pub(crate) fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let Some(ahead) = self.ahead(to) else {
            let start = usize::try_from(to).map_err(|_| OutOfBounds)?;
            self.list.get_mut(start..start + bytes.len()).ok_or(OutOfBounds)?.copy_from_slice(bytes);
            return Ok(());
        };
        if ahead > 0 {
            return self.set_aside(self.arrived + ahead, bytes);
        }
        self.append(bytes);
        Ok(())
    }

    /// Checks that the ring has room for so many bytes behind those that have come.
    ///
    /// # Errors
    /// It has not.
    pub(crate) fn check_next(&self, length: usize) -> Result<(), OutOfBounds> {
        let has_room = self.length as u64 + length as u64 <= self.ring;
        if has_room { Ok(()) } else { Err(OutOfBounds) }
    }

    /// Takes the next bytes, for which there [is room](Self::check_next).
    pub(crate) fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let spare = self.spare(bytes.len());
            let length = spare.len();
            spare.copy_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            self.filled(length);
        }
    }

    /// Returns room for the next bytes, at most `most` and at least one. [`filled`](Self::filled) follows.
    fn spare(&mut self, most: usize) -> &mut [u8] {
        self.spare_of(1, most)
    }

    /// Returns room for the next bytes of a payload of this length, in one piece unless that is longer than a chunk: a system call is dearer
    /// than the end of a chunk.
    pub(crate) fn spare_whole(&mut self, length: usize) -> &mut [u8] {
        self.spare_of(length.min(SIZES[1]), length)
    }

    fn spare_of(&mut self, least: usize, most: usize) -> &mut [u8] {
        if self.chunks.back().is_none_or(|chunk| chunk.room.len() - chunk.filled.end < least) {
            self.chunks.push_back(Chunk::for_payload(most));
        }
        self.chunks.back_mut().map_or(&mut [], |chunk| chunk.spare(most))
    }

    /// Counts bytes in the [`spare`](Self::spare) room.
    pub(crate) fn filled(&mut self, length: usize) {
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.filled.end += length;
            self.length += length;
        }
        if self.length == 0 {
            self.chunks.clear();
        }
        self.skip(length);
    }

    /// Counts bytes that have gone to the room of a reader, past the chunks.
    pub(crate) fn skip(&mut self, length: usize) {
        self.arrived += length as u64;
        self.next += length as u64;
        if self.next >= self.ring {
            self.next -= self.ring;
        }
        if self.aside.is_some() {
            self.join();
        }
    }

    /// Keeps bytes that are ahead of the next one.
    #[cold]
    fn set_aside(&mut self, position: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let ring = usize::try_from(self.ring).map_err(|_| OutOfBounds)?;
        let aside = self.aside.get_or_insert_with(|| {
            Box::new(Aside { ring: vec![0; ring].into_boxed_slice(), runs: Vec::new() })
        });
        let start = (position % self.ring) as usize;
        aside.ring.get_mut(start..start + bytes.len()).ok_or(OutOfBounds)?.copy_from_slice(bytes);
        let mut run = position..position + bytes.len() as u64;
        aside.runs.retain(|other| {
            let joins = other.start <= run.end && run.start <= other.end;
            if joins {
                run = run.start.min(other.start)..run.end.max(other.end);
            }
            !joins
        });
        if aside.runs.len() == MOST_ASIDE {
            return Err(OutOfBounds);
        }
        let place = aside.runs.partition_point(|other| other.start < run.start);
        aside.runs.insert(place, run);
        Ok(())
    }

    /// Appends what was kept aside, as far as all before it has come.
    #[cold]
    fn join(&mut self) {
        let Some(mut aside) = self.aside.take() else { return };
        while let Some(run) = aside.runs.first().filter(|run| run.start <= self.arrived).cloned() {
            aside.runs.remove(0);
            // The end of the ring may be within.
            while self.arrived < run.end {
                let start = (self.arrived % self.ring) as usize;
                let length = (run.end - self.arrived).min(self.ring - start as u64) as usize;
                let bytes = &aside.ring[start..start + length];
                let spare = self.spare(bytes.len());
                let length = spare.len();
                spare.copy_from_slice(&bytes[..length]);
                self.filled(length);
            }
        }
        self.aside = Some(aside).filter(|aside| !aside.runs.is_empty());
    }

    /// Moves the first bytes to `into`, at most `most`, and returns their number.
    pub(crate) fn read(&mut self, into: &mut ReadBuf<'_>, most: usize) -> usize {
        let wanted = most.min(into.remaining());
        let mut left = wanted;
        while let Some(chunk) = self.chunks.front_mut().filter(|_| left > 0) {
            let length = chunk.filled.len().min(left);
            into.put_slice(&chunk.bytes()[..length]);
            chunk.filled.start += length;
            left -= length;
            if chunk.filled.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.length -= wanted - left;
        wanted - left
    }

    /// Copies the first bytes to `into`, at most `most`.
    pub(crate) fn peek(&self, into: &mut ReadBuf<'_>, most: usize) {
        let mut left = most.min(into.remaining());
        for chunk in &self.chunks {
            let length = chunk.filled.len().min(left);
            into.put_slice(&chunk.bytes()[..length]);
            left -= length;
        }
    }
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads all bytes, `at_once` at a time.
    fn read(bytes: &mut StreamBytes, at_once: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut room = vec![0; at_once];
        while bytes.len() > 0 {
            let mut into = ReadBuf::new(&mut room);
            assert_eq!(bytes.read(&mut into, at_once), into.filled().len());
            all.extend_from_slice(into.filled());
        }
        all
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|place| (place % 251 + place / 251) as u8).collect()
    }

    proptest! {
        // In whatever order the pieces of a window come, the stream is the same.
        #[test]
        fn pieces_come_in_any_order(
            cuts in prop::collection::btree_set(1_usize..1000, 0..40),
            order in any::<prop::sample::Index>(),
            seed in any::<u64>(),
            at_once in 1_usize..300,
        ) {
            let (ring, mut bytes) = (1000, StreamBytes::new(1000));
            // Not at the start of the ring.
            let shift = order.index(1000);
            bytes.write(RING, &pattern(shift)).expect("free");
            prop_assert_eq!(read(&mut bytes, 1000), pattern(shift));
            let all = pattern(1000);
            let mut edges: Vec<usize> = [0].into_iter().chain(cuts).chain([1000 - shift, 1000]).collect();
            edges.sort_unstable();
            edges.dedup();
            let mut pieces: Vec<_> = edges.windows(2).map(|pair| pair[0]..pair[1]).collect();
            let mut state = seed | 1;
            for place in (1..pieces.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                pieces.swap(place, (state >> 33) as usize % (place + 1));
            }
            for piece in pieces {
                let to = RING + ((shift + piece.start) % ring) as u64;
                bytes.check(to, piece.len()).expect("free");
                bytes.write(to, &all[piece.clone()]).expect("few gaps");
            }
            prop_assert_eq!(bytes.len(), 1000);
            prop_assert!(bytes.aside.is_none());
            prop_assert_eq!(read(&mut bytes, at_once), all);
            prop_assert!(bytes.chunks.is_empty());
        }
    }

    // What is not free is refused: behind the ring, across its end, and over bytes that are unread.
    #[test]
    fn bytes_outside_of_free_room_are_refused() {
        let mut bytes = StreamBytes::new(100);
        assert!(bytes.check(RING, 100).is_ok() && bytes.check(RING + 99, 1).is_ok());
        for (to, length) in
            [(RING, 101), (RING + 99, 2), (RING + 100, 1), (RING - 1, 1), (LIST as u64 - 1, 2)]
        {
            assert_eq!(bytes.check(to, length), Err(OutOfBounds), "{length} at {to}");
        }
        assert!(bytes.check(0, LIST).is_ok() && bytes.check(u64::MAX, 2).is_err());
        bytes.write(RING, &pattern(30)).expect("free");
        assert!(bytes.is_next(RING + 30) && bytes.check(RING + 30, 70).is_ok());
        assert!(bytes.check(RING, 1).is_err() && bytes.check(RING + 29, 1).is_err());
        bytes.read(&mut ReadBuf::new(&mut [0; 20]), 20);
        assert!(bytes.check(RING, 20).is_ok() && bytes.check(RING, 21).is_err());
        assert_eq!(bytes.len(), 10, "readable, before any message");
    }

    // A thread that has had many unread bytes at once keeps a part of their chunks.
    #[test]
    fn thread_keeps_a_limited_number_of_chunks() {
        let kept = || FREE.with_borrow(|free| [0, 1].map(|class| free[class].len()));
        for (class, size) in SIZES.into_iter().enumerate() {
            let length = 2 * SPARES[class] * size;
            let mut bytes = StreamBytes::new(length as u64);
            for piece in (0..length).step_by(size) {
                bytes.write(RING + piece as u64, &vec![7; size]).expect("free");
            }
            assert_eq!(kept()[class], 0, "all are in use");
            read(&mut bytes, length);
            assert_eq!(kept()[class], SPARES[class], "chunks of {size} bytes");
        }
        assert_eq!(kept(), SPARES);
    }

    // A peer that leaves a gap behind each byte is not given memory for ever.
    #[test]
    fn gaps_are_limited() {
        let mut bytes = StreamBytes::new(1000);
        let outcome = (1..1000).step_by(2).try_for_each(|place| bytes.write(RING + place, &[0]));
        assert_eq!(outcome, Err(OutOfBounds));
        assert_eq!(bytes.len(), 0);
    }
}
