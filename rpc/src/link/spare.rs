//! Memory for long frames that is used again.
//!
//! A frame of 64 KiB is freed as soon as its reader has copied it, and the next one is allocated. An allocator that gives the end
//! of its heap back to the system can then do so for each call, with the memory of the reader, too, so that a call of 1 MiB takes
//! twice the time, for page faults. So the process keeps a few buffers, however many connections it has.

use std::sync::{Mutex, PoisonError};

use bytes::BytesMut;

/// The most buffers that are kept.
const MOST: usize = 8;

/// Buffers whose content was split off, with the room that they had. They can be used again when that has been dropped, and the
/// rest of them at once.
pub(super) struct Spare(Mutex<Vec<(BytesMut, usize)>>);

/// Those of the process.
pub(super) static SPARE: Spare = Spare::new();

impl Spare {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns an empty buffer with room for so many bytes.
    pub(super) fn take(&self, length: usize) -> BytesMut {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who keeps a short frame is not to keep a long buffer with it.
        let mut free = buffers.iter_mut();
        let free = free.position(|(buffer, room)| *room <= 2 * length && buffer.try_reclaim(length));
        let buffer = free.map(|index| buffers.remove(index).0);
        drop(buffers);
        buffer.unwrap_or_else(|| BytesMut::with_capacity(length))
    }

    /// Keeps a buffer that had this room, in place of the one that has been kept for longest if there are enough.
    pub(super) fn keep(&self, buffer: BytesMut, room: usize) {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (buffers.len() >= MOST).then(|| buffers.remove(0));
        buffers.push((buffer, room));
        drop(buffers);
        drop(oldest);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Returns bytes in memory of this length, whose buffer is kept.
    fn fill(spare: &Spare, length: usize) -> Bytes {
        let mut buffer = spare.take(length);
        assert!(buffer.is_empty());
        buffer.resize(length, 1);
        let room = buffer.capacity();
        let bytes = buffer.split().freeze();
        spare.keep(buffer, room);
        bytes
    }

    #[test]
    fn buffer_is_used_again_once_read() {
        let spare = Spare::new();
        let first = fill(&spare, 1000);
        let place = first.as_ptr();
        let second = fill(&spare, 1000);
        assert_ne!(second.as_ptr(), place, "the first is being read");
        drop(first);
        assert_eq!(fill(&spare, 900).as_ptr(), place);
        assert_ne!(fill(&spare, 2000).as_ptr(), place, "it is too short");
        assert_ne!(fill(&spare, 400).as_ptr(), place, "it is too long");
        assert_eq!(&second[..], &[1; 1000]);
    }

    #[test]
    fn few_buffers_are_kept() {
        let spare = Spare::new();
        let bytes: Vec<_> = (0..3 * MOST).map(|_| fill(&spare, 1000)).collect();
        let is_kept = |bytes: Bytes| bytes.try_into_mut().is_err();
        let kept: Vec<_> = bytes.into_iter().map(is_kept).collect();
        let expected = [vec![false; 2 * MOST], vec![true; MOST]].concat();
        assert_eq!(kept, expected, "the last ones");
    }
}
