//! Device-visible memory: an allocation held by pointer, and the two system calls that work on it in place.
//!
//! A provider reads and writes this memory while the application runs, and a peer may write registered memory at any
//! time. There are three kinds of handles:
//!
//! * [`Owned`] is the only handle to its allocation and dereferences to bytes.
//! * [`Shared`] can be cloned. Its bytes are only copied in and out, by atomic accesses of one size, because others may write
//!   them: see [`words`].
//! * [`Frozen`] dereferences to bytes, because a frozen allocation is only read. A [`Slice`] of it refuses writes.
//!
//! In the `soft` provider the kernel has the role of the device: `readv` and `sendmsg` work on raw ranges of live
//! allocations.
#![allow(unsafe_code)] // One of the three places that may; every block says why it is sound.

#[cfg(feature = "soft")]
mod checksum;
mod owned;
#[cfg(feature = "verbs")]
mod slots;
#[cfg(feature = "soft")]
mod sockets;
mod words;

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
#[cfg(any(feature = "verbs", feature = "sim"))]
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::BufMut;

#[cfg(feature = "soft")]
pub(crate) use checksum::{Unchecked, folds_copies};
use owned::Block;
pub(crate) use owned::Returned;
pub use owned::{Mapping, OwnedMemory, Pages, RawMemory};
#[cfg(feature = "verbs")]
pub(crate) use slots::{SlotState, Slots};
#[cfg(feature = "soft")]
pub(crate) use sockets::{
    Piece, Received, Spare, Target, TcpInfo, gather, receive, room, scatter, send, unacknowledged,
};
use words::{Range, WORD, Words, load_all, store_all};

/// The most bytes that are copied word by word without a [`Range`], which costs more than such a copy.
const SHORT: usize = 256;

/// The registration of an allocation with a device.
pub(crate) trait Attachment: Send + Sync {
    /// Returns the current local key of the memory, for work requests.
    #[cfg(feature = "verbs")]
    fn local_key(&self) -> u32;

    /// Returns the device's address of the first byte, for memory of another device (see [`Shared::device_only`]).
    #[cfg(feature = "verbs")]
    fn address(&self) -> u64;

    /// Ends the device's access, if it has not ended yet. Returns false if the device keeps the access. The memory must
    /// then never be freed.
    fn detach(&self) -> bool;

    /// Drops memory whose last handle was dropped, on this thread or on the blocking pool. Dropping it detaches it.
    fn retire(&self, memory: Memory);
}

/// Receives memory whose last handle is dropped, instead of the heap.
pub(crate) trait Recycler: Send + Sync {
    /// Takes the memory back, after the last handle and the last use by a provider have ended.
    fn recycle(&self, memory: Owned);

    /// Receives a weak handle to `bytes` when the memory is frozen. It is valid until the memory is returned.
    fn frozen(&self, bytes: &[u8], memory: WeakFrozen);
}

/// Memory and its registration with a device. Dropping it deregisters the memory, and frees it or returns it to the program.
pub(crate) struct Memory {
    block: Block,
    attachment: Option<Arc<dyn Attachment>>,
}

// SAFETY: this is plain memory that the value owns, or that the program lent and that may be used on any thread;
// accesses are restricted by `Owned` (exclusive), `Shared` (atomics only) and `Frozen` (reading only), not by the
// thread that makes them.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives out nothing but the address and the length.
unsafe impl Sync for Memory {}

impl Memory {
    fn of(block: Block) -> Self {
        Self { block, attachment: None }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.attachment.as_ref().is_some_and(|attachment| !attachment.detach()) {
            // The device may write to the memory at any later time: leaking it is safer than reusing it.
            self.block.leak();
        }
    }
}

/// The memory that handles share. It never moves or changes its size. When the last handle is dropped, it is returned
/// to its `home` or freed.
struct Allocation {
    memory: Memory,
    /// The number of bytes. `memory` has the same length, or 0 if the bytes belong to another device.
    length: usize,
    recycler: Option<Arc<dyn Recycler>>,
    /// Whether the memory is read-only.
    frozen: AtomicBool,
}

impl Allocation {
    fn of(memory: Memory) -> Self {
        let length = memory.block.len();
        Self { memory, length, recycler: None, frozen: AtomicBool::new(false) }
    }

    /// Returns whether the bytes are in host memory, not in memory of another device.
    fn is_host_mapped(&self) -> bool {
        self.memory.block.len() == self.length
    }

    fn is_frozen(&self) -> bool {
        // A handle to frozen memory is obtained from the thread that froze it, afterwards: that orders the two.
        self.frozen.load(Ordering::Relaxed)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::of(Block::empty()));
        match (self.recycler.take(), memory.attachment.clone()) {
            (Some(recycler), _) => recycler.recycle(Owned(Arc::new(Self::of(memory)))),
            (None, Some(attachment)) => attachment.retire(memory),
            (None, None) => drop(memory),
        }
    }
}

/// The only handle to an allocation: ordinary bytes, read and written by reference.
///
/// Invariant: the `Arc` is unique for as long as this value exists.
pub(crate) struct Owned(Arc<Allocation>);

impl Owned {
    /// Allocates zeroed memory. Returns `None` if there is not enough memory.
    pub(crate) fn zeroed(length: usize) -> Option<Self> {
        Some(Self::of(Block::zeroed(length)?))
    }

    /// Allocates memory with a copy of these bytes. Returns `None` if there is not enough memory.
    #[cfg(feature = "soft")]
    pub(crate) fn copied(parts: &[&[u8]]) -> Option<Self> {
        let mut memory = Self::zeroed(parts.iter().map(|part| part.len()).sum())?;
        let mut rest = &mut memory[..];
        parts.iter().for_each(|part| rest.put_slice(part));
        Some(memory)
    }

    /// Takes an allocation of the program, which returns to the program when the last handle to it is dropped.
    pub(crate) fn lend<M: OwnedMemory>(memory: M) -> (Self, Returned<M>) {
        let (block, returned) = owned::lend(memory);
        (Self::of(block), returned)
    }

    /// Returns the length, without a reference to the bytes: other processes may write memory of the program already.
    pub(crate) fn len(&self) -> usize {
        self.0.memory.block.len()
    }

    pub(crate) fn empty() -> Self {
        Self::of(Block::empty())
    }

    fn of(block: Block) -> Self {
        Self(Arc::new(Allocation::of(Memory::of(block))))
    }

    /// Registers the memory with a device. The device may access it after [`share`](Self::share). Memory of length 0 is
    /// not registered.
    ///
    /// # Errors
    /// The errors of `register`, which is called with the first address and the length.
    #[cfg(any(feature = "verbs", feature = "sim"))]
    pub(crate) fn attach<E>(
        mut self,
        register: impl FnOnce(NonNull<u8>, usize) -> Result<Arc<dyn Attachment>, E>,
    ) -> Result<Self, E> {
        if let Some(Allocation { memory, .. }) = Arc::get_mut(&mut self.0)
            && memory.block.len() > 0
        {
            memory.block.wipe_on_fork();
            memory.attachment = Some(register(memory.block.start(), memory.block.len())?);
        }
        Ok(self)
    }

    /// Sets the `home` to which the memory is returned when its last handle is dropped.
    pub(crate) fn with_recycler(mut self, recycler: Arc<dyn Recycler>) -> Self {
        if let Some(allocation) = Arc::get_mut(&mut self.0) {
            allocation.recycler = Some(recycler);
        }
        self
    }

    /// Converts into a shared handle, so that a provider and a peer may access the memory.
    pub(crate) fn share(self) -> Shared {
        Shared(self.0)
    }

    /// Makes the memory read-only for this program and for devices until the last handle is dropped.
    pub(crate) fn freeze(self) -> Frozen {
        self.0.frozen.store(true, Ordering::Relaxed);
        let frozen = Frozen(self.0);
        if let Some(recycler) = &frozen.0.recycler {
            recycler.frozen(&frozen, WeakFrozen(Arc::downgrade(&frozen.0)));
        }
        frozen
    }
}

impl Deref for Owned {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let block = &self.0.memory.block;
        // SAFETY: the range is one live, initialised allocation, and by the invariant there is no other handle, so it
        // is not written while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(block.start().as_ptr(), block.len()) }
    }
}

impl DerefMut for Owned {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let block = &self.0.memory.block;
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(block.start().as_ptr(), block.len()) }
    }
}

/// A handle to read-only memory: ordinary bytes, read by reference.
///
/// Invariant: the allocation is frozen, and was [`Owned`] when it was frozen. So there was no [`Slice`] through which
/// it could be written, and every later `Slice` refuses writes. The memory is writable again after all handles are
/// dropped, because it then becomes another allocation.
pub(crate) struct Frozen(Arc<Allocation>);

impl Deref for Frozen {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let block = &self.0.memory.block;
        // SAFETY: the range is one live, initialised allocation, which by the invariant is not written.
        unsafe { std::slice::from_raw_parts(block.start().as_ptr(), block.len()) }
    }
}

/// A weak handle to frozen memory.
pub(crate) struct WeakFrozen(Weak<Allocation>);

impl WeakFrozen {
    /// Returns a readable part of the memory. `None` if the last handle was dropped or the part is out of bounds.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> Option<Slice> {
        Shared(self.0.upgrade()?).slice(offset, length)
    }
}

/// A handle to memory that others may write. Its bytes are only copied.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Allocation>);

impl Shared {
    /// Creates a handle to memory of another device. Only the device of the attachment can access it.
    #[cfg(feature = "verbs")]
    pub(crate) fn device_only(length: usize, attachment: Arc<dyn Attachment>) -> Self {
        let mut memory = Memory::of(Block::empty());
        memory.attachment = Some(attachment);
        let mut allocation = Allocation::of(memory);
        allocation.length = length;
        Self(Arc::new(allocation))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.length
    }

    /// Converts into an exclusive handle, if no other handle is left.
    pub(crate) fn try_own(mut self) -> Result<Owned, Self> {
        // `get_mut` synchronises with the drop of the other handles, so their writes are visible.
        match Arc::get_mut(&mut self.0) {
            Some(allocation) => {
                *allocation.frozen.get_mut() = false;
                Ok(Owned(self.0))
            }
            None => Err(self),
        }
    }

    /// Returns an exclusive copy. It is empty if there is not enough memory.
    pub(crate) fn copied(self) -> Owned {
        let mut copy = Owned::zeroed(self.len()).unwrap_or_else(Owned::empty);
        self.whole().read(0, &mut copy);
        copy
    }

    pub(crate) fn whole(self) -> Slice {
        let length = self.len();
        Slice { memory: self, offset: 0, length }
    }

    /// Returns a part of the memory. `None` if it is out of bounds.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> Option<Slice> {
        let end = offset.checked_add(length)?;
        (end <= self.len()).then(|| Slice { memory: self.clone(), offset, length })
    }
}

/// A bounds-checked part of shared memory.
///
/// Invariant: `offset + length` lies within the allocation.
#[derive(Clone)]
pub(crate) struct Slice {
    memory: Shared,
    offset: usize,
    length: usize,
}

impl Slice {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns whether a provider may write to the memory: it is not frozen.
    pub(crate) fn is_writable(&self) -> bool {
        !self.memory.0.is_frozen()
    }

    /// Returns the address of the first byte and the local key, for a device that reads the slice. `None` if the slice
    /// is empty or not registered.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) fn for_device(&self) -> Option<(u64, u32)> {
        let allocation = &*self.memory.0;
        let attachment = allocation.memory.attachment.as_ref().filter(|_| self.length > 0)?;
        let address = if allocation.is_host_mapped() {
            self.address(0).expose_provenance() as u64
        } else {
            attachment.address().wrapping_add(self.offset as u64)
        };
        Some((address, attachment.local_key()))
    }

    /// Returns the address of the first byte and the local key, for a device that writes to the slice. `None` if the
    /// slice is empty, not registered or frozen.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) fn for_device_to_write(&self) -> Option<(u64, u32)> {
        self.for_device().filter(|_| self.is_writable())
    }

    /// Returns whether a call can copy the bytes where a device would read them: they are in host memory.
    #[cfg(feature = "verbs")]
    pub(crate) fn can_be_copied(&self) -> bool {
        self.is_host_mapped()
    }

    #[cfg(feature = "soft")]
    pub(crate) fn place(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.length
    }

    pub(crate) fn into_shared(self) -> Shared {
        self.memory
    }

    /// Returns at most `length` bytes of the slice, starting at `from`.
    pub(crate) fn part(&self, from: usize, length: usize) -> Self {
        let from = from.min(self.length);
        let length = length.min(self.length - from);
        Self { memory: self.memory.clone(), offset: self.offset + from, length }
    }

    /// Copies `from` to the slice at `at` and returns the number of bytes copied, 0 if the memory is frozen.
    ///
    /// Relaxed atomics: a racing reader sees old or new bytes, and that is all it is promised.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> usize {
        if !self.is_writable() {
            return 0;
        }
        if let Some(words) = self.whole_words(at, from.len()) {
            store_all(words, from.as_chunks().0);
            return from.len();
        }
        let range = self.range(at, from.len());
        range.write(from);
        range.len()
    }

    /// Copies bytes of the slice, starting at `at`, and returns the number of bytes copied.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) -> usize {
        // SAFETY: bytes are valid as bytes that may be uninitialised, and `copy_out` writes nothing but whole bytes.
        let into = unsafe { &mut *(std::ptr::from_mut(into) as *mut [MaybeUninit<u8>]) };
        self.copy_out(at, into)
    }

    /// Appends at most the first `length` bytes of the slice, and returns the number of bytes appended.
    pub(crate) fn append_to(&self, length: usize, into: &mut impl BufMut) -> usize {
        let length = length.min(self.length).min(into.remaining_mut());
        let mut done = 0;
        while done < length {
            let chunk = into.chunk_mut();
            let part = chunk.len().min(length - done);
            // SAFETY: `copy_out` writes initialised bytes and nothing else.
            let place = unsafe { chunk.as_uninit_slice_mut() };
            let count = self.copy_out(done, &mut place[..part]);
            // SAFETY: the first `count` bytes of the chunk have just been written.
            unsafe { into.advance_mut(count) };
            done += count;
            if count == 0 {
                break;
            }
        }
        done
    }

    /// Copies bytes of the slice, starting at `at`, and returns the number of bytes copied. They are initialised then.
    fn copy_out(&self, at: usize, into: &mut [MaybeUninit<u8>]) -> usize {
        if let Some(words) = self.whole_words(at, into.len()) {
            load_all(words, into.as_chunks_mut().0);
            return into.len();
        }
        let range = self.range(at, into.len());
        range.read(into);
        range.len()
    }

    /// Returns the words of a short range that consists of whole ones, as that of nearly every short message does.
    #[inline]
    fn whole_words(&self, at: usize, length: usize) -> Option<&[AtomicU64]> {
        if length > SHORT { None } else { self.aligned_words(at, length) }
    }

    /// Returns the words of a range within the slice, if it consists of whole ones.
    #[inline]
    fn aligned_words(&self, at: usize, length: usize) -> Option<&[AtomicU64]> {
        let fits = at <= self.length && length <= self.length - at;
        if !length.is_multiple_of(WORD) || !fits || !self.is_host_mapped() {
            return None;
        }
        let start = self.address(at).cast::<AtomicU64>();
        // SAFETY: the range lies within the slice, so within one live, initialised allocation, which lives as long as the slice
        // is borrowed. An aligned word that lies within a block is one of its whole words, which are accessed as
        // [`words`](Self::words) says.
        start.is_aligned().then(|| unsafe { std::slice::from_raw_parts(start, length / WORD) })
    }

    /// Returns at most `length` bytes, starting at `at`, for access by atomics. Empty if the bytes are not in host memory.
    fn range(&self, at: usize, length: usize) -> Range<'_> {
        let at = at.min(self.length);
        let length = length.min(self.length - at);
        if length == 0 || !self.is_host_mapped() {
            return Range { head: &[], body: Words { words: &[], before: 0, length: 0 }, tail: &[] };
        }
        let start = self.address(at);
        let whole = self.memory.0.memory.block.words();
        let end = start.addr() + length;
        let from = start.addr().max(whole.start).min(end);
        let to = whole.end.min(end).max(from);
        let at_address = |address: usize| start.wrapping_add(address - start.addr());
        Range {
            head: self.bytes(start, from - start.addr()),
            body: self.words(at_address(from), to - from),
            tail: self.bytes(at_address(to), end - to),
        }
    }

    /// Returns the bytes of a range outside of the block's whole words.
    fn bytes(&self, first: *mut u8, length: usize) -> &[AtomicU8] {
        // SAFETY: the range lies within the slice, so within one live, initialised allocation, which lives as long as the slice
        // is borrowed. While there is a `Slice`, these bytes are only accessed one by one by atomics, or by the kernel or a
        // device, as the words of [`words`](Self::words) are.
        unsafe { std::slice::from_raw_parts(first.cast::<AtomicU8>(), length) }
    }

    /// Returns the words of a range within the block's whole words.
    fn words(&self, first: *mut u8, length: usize) -> Words<'_> {
        if length == 0 {
            return Words { words: &[], before: 0, length };
        }
        // The whole words start at a word.
        let before = first.addr() % WORD;
        let (start, count) =
            (first.wrapping_sub(before).cast::<AtomicU64>(), (before + length).div_ceil(WORD));
        // SAFETY: the slice lies within one live, initialised allocation, which has all of these words, and lives as long as
        // the slice is borrowed. The allocation is not exclusive while there is a `Slice`, so these words are only accessed by
        // atomics of this size or the kernel; or it is frozen: then everybody reads, here by atomics and there without.
        let words = unsafe { std::slice::from_raw_parts(start, count) };
        Words { words, before, length }
    }

    /// Returns whether the bytes are in host memory, not in memory of another device.
    fn is_host_mapped(&self) -> bool {
        self.memory.0.is_host_mapped()
    }

    /// Returns the address `at` bytes into a slice of host memory; `at <= length`.
    fn address(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.length && self.is_host_mapped());
        self.memory.0.memory.block.start().as_ptr().wrapping_add(self.offset + at)
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({}+{})", self.offset, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;

    // Short ranges of whole words are copied in another way than others.
    #[test]
    fn copies_of_whole_words_stay_in_place() {
        let shared = Owned::zeroed(SHORT + 4 * WORD).expect("memory").share();
        let data: Vec<u8> = (0..SHORT + 2 * WORD).map(|place| place as u8 | 1).collect();
        for offset in [0, 4, WORD] {
            let part = shared.slice(offset, SHORT + 2 * WORD).expect("in bounds");
            for at in (0..3 * WORD).step_by(4) {
                for length in (0..=SHORT + 2 * WORD).step_by(WORD) {
                    let taken = length.min(part.len() - at);
                    assert_eq!(part.write(at, &data[..length]), taken, "{offset}, {at}, {length}");
                    let (mut all, mut back) = ([0; SHORT + 4 * WORD], vec![0; length]);
                    shared.clone().whole().read(0, &mut all);
                    let (before, rest) = all.split_at(offset + at);
                    assert_eq!(rest[..taken], data[..taken], "{offset}, {at}, {length}");
                    let others = before.iter().chain(&rest[taken..]);
                    assert!(others.copied().all(|byte| byte == 0), "{offset}, {at}, {length}");
                    assert_eq!(part.read(at, &mut back), taken);
                    assert_eq!(back[..taken], data[..taken]);
                    part.write(at, &vec![0; taken]);
                }
            }
        }
    }

    #[test]
    fn ownership_returns_only_with_the_last_handle() {
        let shared = Owned::zeroed(8).expect("memory").share();
        let other = shared.clone();
        let shared = shared.try_own().err().expect("another handle exists").whole();
        drop(other);
        let mut owned = shared.into_shared().try_own().ok().expect("the last handle");
        owned[0] = 7;
        assert_eq!(owned[0], 7);
    }

    #[test]
    fn parts_stay_in_bounds() {
        let shared = Owned::zeroed(10).expect("memory").share();
        assert!(shared.slice(4, 7).is_none());
        assert!(shared.slice(usize::MAX, 2).is_none());
        let slice = shared.slice(4, 6).expect("in bounds");
        assert_eq!(slice.part(2, 100).len(), 4);
        assert_eq!(slice.part(100, 1).len(), 0);
        assert_eq!(slice.write(6, b"x"), 0);
    }

    #[test]
    fn empty_memory_is_fine() {
        let slice = Owned::zeroed(0).expect("nothing is always there").share().whole();
        assert_eq!((slice.len(), slice.write(0, b"a"), slice.read(0, &mut [0])), (0, 0, 0));
    }

    /// Keeps what comes back.
    #[derive(Default)]
    struct Shelf {
        back: Mutex<Vec<Owned>>,
        frozen: Mutex<Option<WeakFrozen>>,
    }

    impl Recycler for Shelf {
        fn recycle(&self, memory: Owned) {
            self.back.lock().push(memory);
        }

        fn frozen(&self, _: &[u8], memory: WeakFrozen) {
            *self.frozen.lock() = Some(memory);
        }
    }

    #[test]
    fn frozen_memory_is_read_and_never_written() {
        let shelf = Arc::new(Shelf::default());
        let mut memory = Owned::zeroed(16).expect("memory").with_recycler(shelf.clone());
        memory.copy_from_slice(b"what was written");
        let frozen = memory.freeze();
        let watched = shelf.frozen.lock().take().expect("it is told");
        assert!(watched.slice(9, 8).is_none());
        let slice = watched.slice(9, 7).expect("in bounds");
        assert_eq!((slice.is_writable(), slice.write(0, b"nothing")), (false, 0));
        #[cfg(feature = "soft")]
        {
            use std::io::Write;
            use std::os::fd::AsFd;
            let (mut here, there) = std::os::unix::net::UnixStream::pair().expect("a pair");
            here.write_all(b"nothing").expect("sent");
            let error = receive(there.as_fd(), &mut [Target::Memory(&slice)]).expect_err("refused");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        }
        let mut found = [0; 7];
        assert_eq!((slice.read(0, &mut found), &found), (7, b"written"));
        assert_eq!(&frozen[..], b"what was written");
        drop(frozen);
        assert!(shelf.back.lock().is_empty(), "a slice is left");
        drop(slice);
        assert!(watched.slice(0, 1).is_none(), "it is another allocation now");
        let mut thawed = shelf.back.lock().pop().expect("it came back");
        thawed[0] = b'W';
        assert_eq!(thawed.share().whole().write(0, b"now"), 3);
        assert!(shelf.back.lock().is_empty(), "it is recycled once");
    }

    #[cfg(feature = "verbs")]
    mod attached {
        use std::sync::atomic::AtomicUsize;

        use super::*;

        /// A device that returns memory or does not.
        struct Fake {
            gives_back: bool,
            retired: Mutex<Vec<Memory>>,
            asked: AtomicUsize,
        }

        impl Attachment for Fake {
            fn local_key(&self) -> u32 {
                7
            }

            fn address(&self) -> u64 {
                0x1_0000
            }

            fn detach(&self) -> bool {
                self.asked.fetch_add(1, Ordering::SeqCst);
                self.gives_back
            }

            fn retire(&self, memory: Memory) {
                self.retired.lock().push(memory);
            }
        }

        fn fake(gives_back: bool) -> Arc<Fake> {
            Arc::new(Fake { gives_back, retired: Mutex::default(), asked: AtomicUsize::new(0) })
        }

        /// Returns memory that is registered with a device.
        fn attached(device: &Arc<Fake>) -> Owned {
            let memory = Owned::zeroed(8).expect("memory");
            memory.attach(|_, _| Ok::<_, ()>(device.clone() as Arc<_>)).expect("attached")
        }

        // MR-01: where it takes long is up to the attachment, and the memory is freed only after.
        #[test]
        fn the_attachment_decides_where_memory_is_detached() {
            let device = fake(true);
            drop(attached(&device));
            assert_eq!(device.asked.load(Ordering::SeqCst), 0, "not yet");
            let retired = std::mem::take(&mut *device.retired.lock());
            assert_eq!(retired.len(), 1);
            drop(retired);
            assert_eq!(device.asked.load(Ordering::SeqCst), 1);
        }

        #[test]
        fn memory_at_home_stays_attached() {
            let (device, shelf) = (fake(true), Arc::new(Shelf::default()));
            drop(attached(&device).with_recycler(shelf.clone()));
            let back = shelf.back.lock().pop().expect("it came back");
            assert_eq!(back.share().whole().for_device().map(|(_, key)| key), Some(7));
            assert_eq!(device.asked.load(Ordering::SeqCst), 0);
        }

        #[test]
        fn frozen_memory_is_read_only_to_device() {
            let shelf = Arc::new(Shelf::default());
            let memory = attached(&fake(true)).with_recycler(shelf.clone());
            let start = memory.as_ptr().addr() as u64;
            let frozen = memory.freeze();
            let watched = shelf.frozen.lock().take().expect("it is told");
            let slice = watched.slice(3, 5).expect("in bounds");
            assert_eq!(slice.for_device(), Some((start + 3, 7)));
            assert_eq!(slice.for_device_to_write(), None);
            drop(frozen);
        }

        #[test]
        fn memory_of_another_device_is_nothing_here() {
            let slice = Shared::device_only(64, fake(true)).slice(16, 32).expect("in bounds");
            assert_eq!(slice.for_device(), Some((0x1_0010, 7)));
            assert_eq!(slice.for_device_to_write(), Some((0x1_0010, 7)));
            assert_eq!((slice.len(), slice.write(0, b"x"), slice.read(0, &mut [0])), (32, 0, 0));
            assert!(!slice.can_be_copied());
            #[cfg(feature = "soft")]
            {
                use std::os::fd::AsFd;
                let (here, _there) = std::os::unix::net::UnixStream::pair().expect("a pair");
                receive(here.as_fd(), &mut [Target::Memory(&slice)]).expect_err("there is no memory");
                send(here.as_fd(), [Piece::Memory { slice: &slice, part: 0..slice.len() }].into_iter())
                    .expect_err("there are no bytes");
            }
            let owned = slice.into_shared().try_own().ok().expect("the only handle");
            assert!(owned.is_empty());
        }
    }
}
