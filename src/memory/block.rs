//! Blocks of zeroed memory. Their pages are there once they are used.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};

use super::words::WORD;

/// The alignment of a block: a cache line, the best alignment for direct memory access.
const ALIGNMENT: usize = 64;

/// From how many bytes on a block has pages of its own, as with malloc(3) by default. malloc(3) itself stops doing so for
/// blocks as large as one that it has freed, and then clears them all, which takes long and makes them resident.
const OWN_PAGES: usize = 128 << 10;

#[repr(align(64))]
struct Aligned;

/// A zeroed block of memory, readable and writable up to the end of the last word that it begins.
pub(super) struct Block {
    start: NonNull<u8>,
    length: usize,
    /// The start of the allocation, a little before `start`; equal to `start` for a block with pages of its
    /// own.
    base: NonNull<u8>,
}

impl Block {
    /// Returns a block of length 0.
    pub(super) fn empty() -> Self {
        let start = NonNull::<Aligned>::dangling().cast();
        Self { start, length: 0, base: start }
    }

    /// Allocates a block. Returns `None` if there is not enough memory.
    pub(super) fn zeroed(length: usize) -> Option<Self> {
        match length {
            0 => Some(Self::empty()),
            1..OWN_PAGES => Self::from_heap(length),
            _ => Self::from_pages(length),
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The layout of the allocation in which a block of the heap lies. The alignment of a word lets calloc(3) do it, which
    /// need not clear memory that is new.
    fn layout(length: usize) -> Option<Layout> {
        let length = length.checked_next_multiple_of(WORD)?.checked_add(ALIGNMENT - WORD)?;
        Layout::from_size_align(length, WORD).ok()
    }

    fn from_heap(length: usize) -> Option<Self> {
        let layout = Self::layout(length)?;
        // SAFETY: the layout has a size above zero.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        let before = base.addr().get().next_multiple_of(ALIGNMENT) - base.addr().get();
        // SAFETY: the base is aligned to a word, so `before` is at most the room that the layout has for it.
        let start = unsafe { base.add(before) };
        Some(Self { start, length, base })
    }

    fn from_pages(length: usize) -> Option<Self> {
        // A slice is never longer.
        isize::try_from(length).ok()?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice, of no file, affects no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = NonNull::new(start.cast())?;
        Some(Self { start, length, base: start })
    }

    /// Keeps the memory for ever.
    pub(super) fn leak(&mut self) {
        self.length = 0;
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.length >= OWN_PAGES {
            // SAFETY: `start` and `length` are those of the mapping, which nobody uses any more. It cannot fail: a mapping
            // that is removed as a whole needs no further one.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        } else if let (1.., Some(layout)) = (self.length, Self::layout(self.length)) {
            // SAFETY: `base` came from `alloc_zeroed` with this very layout, and drop runs once.
            unsafe { alloc::dealloc(self.base.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroed_and_aligned() {
        for length in [1, 7, 8, 63, 64, 65, 4096, OWN_PAGES - 1, OWN_PAGES, OWN_PAGES + 1] {
            // Some of these were used before.
            for _ in 0..3 {
                let block = Block::zeroed(length).expect("memory");
                assert_eq!(block.start().addr().get() % ALIGNMENT, 0, "{length}");
                // SAFETY: the block is exclusive, initialised, and as long.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block.start().as_ptr(), block.len()) };
                assert_eq!(bytes.len(), length);
                assert!(bytes.iter().all(|byte| *byte == 0), "{length}");
                bytes.fill(7);
            }
        }
    }

    #[test]
    fn impossible_lengths_are_none() {
        for length in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 4096] {
            assert!(Block::zeroed(length).is_none());
        }
    }
}
