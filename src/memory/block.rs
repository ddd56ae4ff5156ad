//! Blocks of memory: zeroed ones, whose pages are there once they are used, and allocations of the program.

use std::alloc::{self, Layout};
use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use super::owned::Loan;
use super::words::WORD;

/// The alignment of a block: a cache line, the best alignment for direct memory access.
const ALIGNMENT: usize = 64;

/// From how many bytes on a block has pages of its own, as with malloc(3) by default. malloc(3) itself stops doing so for
/// blocks as large as one that it has freed, and then clears them all, which takes long and makes them resident.
const OWN_PAGES: usize = 128 << 10;

#[repr(align(64))]
struct Aligned;

/// The origin of a block, which decides how the block is freed.
enum Origin {
    /// A block that is never freed.
    Nothing,
    /// The heap. The allocation starts here, a little before the block.
    Heap(NonNull<u8>),
    /// A mapping.
    Pages,
    /// The program, which allocated the memory.
    Program(Box<dyn Loan>),
}

/// A block of initialised memory. One that is allocated here is zeroed, and is readable and writable up to the end of the last
/// word that it begins.
pub(super) struct Block {
    start: NonNull<u8>,
    length: usize,
    origin: Origin,
}

impl Block {
    pub(super) fn empty() -> Self {
        Self { start: NonNull::<Aligned>::dangling().cast(), length: 0, origin: Origin::Nothing }
    }

    /// Returns a block that is an allocation of the program.
    ///
    /// # Safety
    /// The range is initialised, and may be read and written by this pointer on any thread until the loan ends.
    pub(super) unsafe fn from_program(start: NonNull<u8>, length: usize, loan: Box<dyn Loan>) -> Self {
        Self { start, length, origin: Origin::Program(loan) }
    }

    /// Allocates a block. Returns `None` if there is not enough memory.
    pub(super) fn zeroed(length: usize) -> Option<Self> {
        match length {
            0 => Some(Self::empty()),
            1..OWN_PAGES => Self::from_heap(length),
            _ => Self::from_pages(length),
        }
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Returns the addresses of the words that belong to the block as a whole. The first and the last bytes of an allocation
    /// of the program may share their words with memory that has another owner.
    pub(super) fn words(&self) -> Range<usize> {
        let start = self.start.addr().get();
        if !matches!(self.origin, Origin::Program(_)) {
            return start..start + self.length.next_multiple_of(WORD);
        }
        let end = start + self.length;
        let first = start.next_multiple_of(WORD).min(end);
        first..(end - end % WORD).max(first)
    }

    /// Gives child processes zeroes in place of the pages of the block. A page that is shared with a child is copied when this
    /// process writes to it, and a device that has the page from before keeps the old one.
    #[cfg(any(feature = "verbs", feature = "sim"))]
    pub(super) fn wipe_on_fork(&self) {
        if matches!(self.origin, Origin::Pages) {
            // If this fails, the kernel copies such pages for the child, unless it is older than Linux 5.12.
            let _ = pages::wipe_on_fork(self.start, self.length);
        }
    }

    /// Returns the layout of the allocation of a block of the heap. The alignment of a word lets calloc(3) allocate it,
    /// which need not clear memory that is new.
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
        Some(Self { start, length, origin: Origin::Heap(base) })
    }

    fn from_pages(length: usize) -> Option<Self> {
        let start = pages::map(length, 0).ok()?;
        Some(Self { start, length, origin: Origin::Pages })
    }

    /// Keeps the memory for ever.
    pub(super) fn leak(&mut self) {
        self.origin = Origin::Nothing;
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.origin, Origin::Nothing) {
            Origin::Nothing => {}
            Origin::Heap(base) => {
                if let Some(layout) = Self::layout(self.length) {
                    // SAFETY: `base` came from `alloc_zeroed` with this very layout, and drop runs once.
                    unsafe { alloc::dealloc(base.as_ptr(), layout) }
                }
            }
            // SAFETY: `start` and `length` are those of the mapping, which no handle uses, since none to the block is
            // left.
            Origin::Pages => unsafe { pages::unmap(self.start, self.length) },
            // SAFETY: the memory is not used after this, since no handle to the block is left.
            Origin::Program(loan) => unsafe { loan.end() },
        }
    }
}

/// The system calls for memory in whole pages.
pub(super) mod pages {
    use super::*;

    /// Maps zeroed pages, private and of no file. `kind` has further flags of mmap(2).
    pub(in crate::memory) fn map(length: usize, kind: c_int) -> io::Result<NonNull<u8>> {
        // A slice is never longer.
        isize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | kind;
        // SAFETY: a new mapping at an address of the kernel's choice, of no file, affects no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Removes a mapping.
    ///
    /// # Safety
    /// The range is a whole mapping of [`map`], which is not used after this call.
    pub(in crate::memory) unsafe fn unmap(start: NonNull<u8>, length: usize) {
        // It cannot fail: a mapping that is removed as a whole needs no further one.
        // SAFETY: the caller's.
        unsafe { libc::munmap(start.as_ptr().cast(), length) };
    }

    /// Gives child processes zeroes in place of these pages (`MADV_WIPEONFORK`). The pages stay in place there, so that the
    /// child can drop its copy of their owner.
    pub(in crate::memory) fn wipe_on_fork(start: NonNull<u8>, length: usize) -> io::Result<()> {
        // SAFETY: the advice changes nothing in this process.
        let outcome = unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_WIPEONFORK) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
