//! Blocks of memory: zeroed ones, whose pages are there once they are used, and allocations of the program, which a device accesses for
//! a time, among them mappings in whole pages.
//!
//! An allocation is taken apart for that time: no `Vec`, no `Box` and no reference stands for bytes that a peer may write. It is
//! put together again when no handle is left, by the [`Loan`] of its [`Block`].

use std::alloc::{self, Layout};
use std::ffi::c_int;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};
use std::{fmt, io, slice};

use bytes::BytesMut;
use tokio::sync::oneshot;

use super::words::WORD;
use crate::error::RegisterError;

/// An allocation that [`Adapter::register_from`](crate::cm::Adapter::register_from) registers: `Vec<u8>`, `Box<[u8]>`,
/// [`BytesMut`], [`Mapping`](super::Mapping), or [`RawMemory`].
///
/// The registered memory is the bytes of the allocation, without spare capacity. This trait cannot be implemented outside of
/// this crate.
pub trait OwnedMemory: sealed::Allocation {}

impl<M: sealed::Allocation> OwnedMemory for M {}

pub(super) mod sealed {
    //! The implementation of [`OwnedMemory`](super::OwnedMemory).

    use std::ptr::NonNull;

    /// An allocation that can be taken apart.
    ///
    /// # Safety
    /// `into_parts` returns the first address and the length of initialised bytes. From then until `from_parts` they may be
    /// read and written by the pointer on any thread, and the program accesses them by no other means. Nothing happens to the
    /// memory if the parts are dropped.
    pub unsafe trait Allocation: Send + Sized + 'static {
        /// The other parts.
        type Rest: Send;

        /// Takes the allocation apart.
        fn into_parts(self) -> (NonNull<u8>, usize, Self::Rest);

        /// Puts the allocation together again.
        ///
        /// # Safety
        /// The parts are those that `into_parts` returned, and are used once. The pointer is not used after this call.
        unsafe fn from_parts(start: NonNull<u8>, length: usize, rest: Self::Rest) -> Self;
    }
}

// SAFETY: the vector owns its initialised bytes, and only the pointer is left of it.
unsafe impl sealed::Allocation for Vec<u8> {
    type Rest = usize;

    fn into_parts(self) -> (NonNull<u8>, usize, usize) {
        let mut vector = ManuallyDrop::new(self);
        // SAFETY: the pointer of a vector is never null.
        let start = unsafe { NonNull::new_unchecked(vector.as_mut_ptr()) };
        (start, vector.len(), vector.capacity())
    }

    unsafe fn from_parts(start: NonNull<u8>, length: usize, capacity: usize) -> Self {
        // SAFETY: the parts of a vector, by the caller's promise.
        unsafe { Self::from_raw_parts(start.as_ptr(), length, capacity) }
    }
}

// SAFETY: as for the vector.
unsafe impl sealed::Allocation for Box<[u8]> {
    type Rest = ();

    fn into_parts(self) -> (NonNull<u8>, usize, ()) {
        let length = self.len();
        (NonNull::from(Self::leak(self)).cast(), length, ())
    }

    unsafe fn from_parts(start: NonNull<u8>, length: usize, (): ()) -> Self {
        let bytes = ptr::slice_from_raw_parts_mut(start.as_ptr(), length);
        // SAFETY: the pointer of a box, by the caller's promise.
        unsafe { Self::from_raw(bytes) }
    }
}

// SAFETY: the handle has its bytes to itself; its neighbours in the same allocation have others. The handle is kept, and is not
// used until the parts are joined again; it contains a pointer, not a reference.
unsafe impl sealed::Allocation for BytesMut {
    type Rest = ManuallyDrop<Self>;

    fn into_parts(self) -> (NonNull<u8>, usize, ManuallyDrop<Self>) {
        let mut bytes = ManuallyDrop::new(self);
        let all: &mut [u8] = &mut bytes;
        (NonNull::from(all).cast(), bytes.len(), bytes)
    }

    unsafe fn from_parts(_start: NonNull<u8>, _length: usize, bytes: ManuallyDrop<Self>) -> Self {
        ManuallyDrop::into_inner(bytes)
    }
}

/// Memory that is given by its address, for memory that no type of this crate stands for: of a C library, or shared with another
/// process.
///
/// Dropping a `RawMemory` has no effect on the memory.
///
/// # Examples
///
/// ```
/// # async fn example(adapter: &tokio_rdma::Adapter) -> Result<(), Box<dyn std::error::Error>> {
/// use std::ptr::NonNull;
/// use tokio_rdma::Access;
/// use tokio_rdma::mr::RawMemory;
///
/// let start = NonNull::from(Box::leak(vec![0_u8; 4096].into_boxed_slice()));
/// // SAFETY: the memory is leaked, so that it is never freed, and nothing else has its address.
/// let memory = unsafe { RawMemory::new(start.cast(), start.len()) };
/// let region = adapter.register_from(memory, Access::REMOTE_READ).await?;
/// region.write(0, b"for the peer")?;
/// // From here on the program may use the memory again.
/// let memory = region.into_inner().await?;
/// # Ok(())
/// # }
/// ```
pub struct RawMemory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: by the promise of `new`, the memory may be used on any thread.
unsafe impl Send for RawMemory {}
// SAFETY: a shared reference gives out the address and the length only.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// Creates a handle to `length` bytes that begin at `start`. They need no alignment.
    ///
    /// # Safety
    /// From the call of [`register_from`](crate::cm::Adapter::register_from) until it fails with this value, or
    /// [`OwnedRegion::into_inner`](crate::mr::OwnedRegion::into_inner) returns this value:
    ///
    /// * The bytes stay mapped, readable and writable by this pointer, on every thread. All of them are initialised, and
    ///   `length` is at most `isize::MAX`.
    /// * This program has no reference to them, and accesses them through the region only. Other processes, the kernel and
    ///   devices may access them at any time.
    ///
    /// If the value is dropped, or a future of these methods is dropped before it is ready, this holds until the process ends:
    /// requests that were posted before may still access the memory.
    pub const unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length }
    }

    /// Returns the address of the first byte.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the length is 0.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl fmt::Debug for RawMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawMemory({} bytes)", self.length)
    }
}

// SAFETY: the promise of `new` is this trait's.
unsafe impl sealed::Allocation for RawMemory {
    type Rest = ();

    fn into_parts(self) -> (NonNull<u8>, usize, ()) {
        (self.start, self.length, ())
    }

    unsafe fn from_parts(start: NonNull<u8>, length: usize, (): ()) -> Self {
        Self { start, length }
    }
}

/// Resolves to an allocation when no handle to it is left, or to an error if a device keeps it.
pub(crate) type Returned<M> = oneshot::Receiver<M>;

/// The claim of the program to memory that it has lent. If it is dropped, the memory is never freed.
trait Loan: Send {
    /// Returns the memory to the program, or frees it if the program does not wait for it.
    ///
    /// # Safety
    /// From this call on, nothing but the program uses the memory.
    unsafe fn end(self: Box<Self>);
}

/// An allocation taken apart.
struct Parts<M: OwnedMemory> {
    start: NonNull<u8>,
    length: usize,
    rest: M::Rest,
    owner: oneshot::Sender<M>,
}

// SAFETY: an allocation may be sent to another thread as a whole, so its pointer may.
unsafe impl<M: OwnedMemory> Send for Parts<M> {}

impl<M: OwnedMemory> Loan for Parts<M> {
    unsafe fn end(self: Box<Self>) {
        let Self { start, length, rest, owner } = *self;
        // SAFETY: the parts are used this once, and the pointer is not used after this, by the caller's promise.
        let memory = unsafe { M::from_parts(start, length, rest) };
        // If the program does not wait for the memory, it is freed here.
        let _ = owner.send(memory);
    }
}

/// Makes a block of an allocation.
pub(super) fn lend<M: OwnedMemory>(memory: M) -> (Block, Returned<M>) {
    let (start, length, rest) = memory.into_parts();
    let (owner, returned) = oneshot::channel();
    let loan = Box::new(Parts::<M> { start, length, rest, owner });
    // SAFETY: an allocation is initialised and may be used on any thread until the loan ends, as the trait says.
    let block = unsafe { Block::from_program(start, length, loan) };
    (block, returned)
}

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
    unsafe fn from_program(start: NonNull<u8>, length: usize, loan: Box<dyn Loan>) -> Self {
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
mod pages {
    use super::*;

    /// Maps zeroed pages, private and of no file. `kind` has further flags of mmap(2).
    pub(super) fn map(length: usize, kind: c_int) -> io::Result<NonNull<u8>> {
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
    pub(super) unsafe fn unmap(start: NonNull<u8>, length: usize) {
        // It cannot fail: a mapping that is removed as a whole needs no further one.
        // SAFETY: the caller's.
        unsafe { libc::munmap(start.as_ptr().cast(), length) };
    }

    /// Gives child processes zeroes in place of these pages (`MADV_WIPEONFORK`). The pages stay in place there, so that the
    /// child can drop its copy of their owner.
    pub(super) fn wipe_on_fork(start: NonNull<u8>, length: usize) -> io::Result<()> {
        // SAFETY: the advice changes nothing in this process.
        let outcome = unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_WIPEONFORK) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The size of the pages of a [`Mapping`].
///
/// A device keeps an entry for each page of registered memory. With fewer and larger pages, registration is faster, and the
/// device finds more of the entries in its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of the usual size, 4 KiB on most systems.
    #[default]
    Base,
    /// Pages of the usual size, which the kernel may replace by huge pages (`MADV_HUGEPAGE` of madvise(2)).
    Transparent,
    /// Huge pages of 2 MiB (`MAP_HUGETLB` of mmap(2)), which the administrator has reserved (`vm.nr_hugepages`).
    Huge2MiB,
    /// Huge pages of 1 GiB (`MAP_HUGETLB` of mmap(2)), which the administrator has reserved.
    Huge1GiB,
}

impl Pages {
    /// Returns the flags of mmap(2), and the number that lengths are multiples of.
    fn kind(self) -> (c_int, usize) {
        match self {
            Self::Base | Self::Transparent => (0, 1),
            Self::Huge2MiB => (libc::MAP_HUGETLB | libc::MAP_HUGE_2MB, 2 << 20),
            Self::Huge1GiB => (libc::MAP_HUGETLB | libc::MAP_HUGE_1GB, 1 << 30),
        }
    }
}

/// Zeroed memory in pages of its own (mmap(2)), for [`Adapter::register_from`](crate::cm::Adapter::register_from).
///
/// The memory is private to this process. In a child process of fork(2) the bytes of a mapping are zero (`MADV_WIPEONFORK` of
/// madvise(2)), except those in pages of [`Pages::Huge2MiB`] and [`Pages::Huge1GiB`], which the child has as they were. Dropping a mapping unmaps it.
///
/// ```
/// # async fn example(adapter: &tokio_rdma::Adapter) -> Result<(), Box<dyn std::error::Error>> {
/// use tokio_rdma::Access;
/// use tokio_rdma::mr::{Mapping, Pages};
///
/// const LENGTH: usize = 64 << 20;
/// // Huge pages, if there are any.
/// let memory = Mapping::new(LENGTH, Pages::Huge2MiB).or_else(|_| Mapping::new(LENGTH, Pages::Transparent))?;
/// let region = adapter.register_from(memory, Access::REMOTE_WRITE).await?;
/// # Ok(())
/// # }
/// ```
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// The length with the rest of the last huge page.
    mapped: usize,
}

// SAFETY: plain memory that the value owns.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only reads it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` zero bytes. The first is at the start of a page.
    ///
    /// # Errors
    /// * `Empty` if the length is 0.
    /// * `OutOfMemory`.
    /// * `InsufficientResources` if not enough huge pages are reserved and free.
    /// * `NotSupported` if the kernel has no pages of that kind.
    /// * `Os` for other errors of mmap(2) and madvise(2).
    pub fn new(length: usize, pages: Pages) -> Result<Self, RegisterError> {
        let (kind, size) = pages.kind();
        if length == 0 {
            return Err(RegisterError::Empty);
        }
        let mapped = length.checked_next_multiple_of(size).ok_or(RegisterError::OutOfMemory { length })?;
        let start = pages::map(mapped, kind).map_err(|error| map_error(error, kind != 0, length))?;
        let mapping = Self { start, length, mapped };
        if kind == 0 {
            // If this fails, the kernel copies registered pages for a child, unless it is older than Linux 5.12.
            let _ = pages::wipe_on_fork(start, mapped);
        }
        if pages == Pages::Transparent {
            mapping.advise_huge_pages()?;
        }
        Ok(mapping)
    }

    fn advise_huge_pages(&self) -> Result<(), RegisterError> {
        // SAFETY: the range is the mapping, and the advice changes none of its bytes.
        let outcome = unsafe { libc::madvise(self.start.as_ptr().cast(), self.mapped, libc::MADV_HUGEPAGE) };
        if outcome == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::EINVAL) => RegisterError::NotSupported("transparent huge pages with this kernel"),
            _ => RegisterError::Os { call: "madvise", source: error.into() },
        })
    }
}

fn map_error(error: io::Error, huge: bool, length: usize) -> RegisterError {
    match error.raw_os_error() {
        Some(libc::ENOMEM) if huge => RegisterError::InsufficientResources(
            "too few huge pages of this size are reserved and free (vm.nr_hugepages)",
        ),
        Some(libc::EINVAL | libc::ENODEV | libc::EOPNOTSUPP) if huge => {
            RegisterError::NotSupported("huge pages of this size with this kernel")
        }
        Some(libc::ENOMEM) | None => RegisterError::OutOfMemory { length },
        _ => RegisterError::Os { call: "mmap", source: error.into() },
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value.
        unsafe { pages::unmap(self.start, self.mapped) }
    }
}

impl Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped and initialised, and belongs to this value.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.length)
    }
}

// SAFETY: the value owns its initialised bytes, and only the pointer is left of it.
unsafe impl sealed::Allocation for Mapping {
    type Rest = usize;

    fn into_parts(self) -> (NonNull<u8>, usize, usize) {
        let parts = (self.start, self.length, self.mapped);
        mem::forget(self);
        parts
    }

    unsafe fn from_parts(start: NonNull<u8>, length: usize, mapped: usize) -> Self {
        Self { start, length, mapped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::words::WORD;
    use crate::memory::{Owned, Slice};

    fn filled<M: OwnedMemory>(memory: M) -> (Slice, Returned<M>) {
        let (memory, returned) = Owned::lend(memory);
        let slice = memory.share().whole();
        let bytes: Vec<u8> = (0..slice.len()).map(|place| place as u8 + 1).collect();
        assert_eq!(slice.write(0, &bytes), bytes.len());
        (slice, returned)
    }

    /// Checks that the memory and its bytes are returned when the last handle is dropped.
    fn round_trip<M: OwnedMemory + AsRef<[u8]>>(memory: M) {
        let (address, length) = (memory.as_ref().as_ptr().addr(), memory.as_ref().len());
        let (slice, mut returned) = filled(memory);
        let part = slice.part(1, length);
        drop(slice);
        returned.try_recv().map(drop).expect_err("a part is left");
        drop(part);
        let memory = returned.try_recv().expect("it came back");
        let bytes = memory.as_ref();
        assert_eq!((bytes.as_ptr().addr(), bytes.len()), (address, length));
        assert!(bytes.iter().enumerate().all(|(place, byte)| usize::from(*byte) == place + 1));
    }

    // Memory of every kind is returned to the program, or freed if the program does not wait for it (MR-09).
    #[test]
    fn an_allocation_comes_back_with_the_last_handle() {
        let mut vector = Vec::with_capacity(100);
        vector.resize(37, 0);
        round_trip(vector);
        round_trip(vec![0; 37].into_boxed_slice());
        round_trip(BytesMut::zeroed(37));
        drop(filled(vec![0; 64]));
        drop(filled(BytesMut::zeroed(5)));
    }

    // MR-09: the bytes beside an allocation have another owner, so the words that it shares are not accessed as words.
    #[test]
    fn nothing_beside_an_allocation_is_accessed() {
        const LENGTH: usize = 4 * WORD;
        for from in 0..=WORD {
            for length in 1..=LENGTH - from {
                let mut around = [0_u8; LENGTH];
                let start = NonNull::from(&mut around[from..]).cast::<u8>();
                // SAFETY: the bytes are in `around`, which lives longer and is not used until they are back.
                let (slice, mut returned) = filled(unsafe { RawMemory::new(start, length) });
                let inside = start.addr().get()..start.addr().get() + length;
                for at in 0..length {
                    let range = slice.range(at, length - at);
                    assert_eq!(range.len(), length - at, "{from}+{length}");
                    for cells in [range.head, range.tail] {
                        let place = cells.as_ptr().addr();
                        assert!(cells.is_empty() || inside.contains(&place));
                        assert!(cells.is_empty() || place + cells.len() <= inside.end);
                        assert!(cells.len() < WORD || length < 2 * WORD);
                    }
                    let words = range.body.words;
                    let place = words.as_ptr().addr();
                    assert!(words.is_empty() || inside.start <= place);
                    assert!(words.is_empty() || place + size_of_val(words) <= inside.end);
                    let mut found = vec![0; length - at];
                    assert_eq!(slice.read(at, &mut found), found.len());
                    assert!(found.iter().zip(at + 1..).all(|(byte, place)| usize::from(*byte) == place));
                    assert_eq!(slice.write(at, &found), found.len());
                }
                drop(slice);
                returned.try_recv().expect("it came back");
                let others = around[..from].iter().chain(&around[from + length..]);
                assert!(others.copied().all(|byte| byte == 0), "{from}+{length}");
            }
        }
    }

    // HW-11: memory that the device keeps is neither freed nor returned.
    #[test]
    fn memory_that_is_withheld_does_not_come_back() {
        let (mut block, mut returned) = lend(vec![7_u8; 3]);
        let (start, length) = (block.start(), block.len());
        block.leak();
        drop(block);
        assert_eq!(returned.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        // SAFETY: the vector was leaked: this is all that is left of it.
        let kept = unsafe { Vec::from_raw_parts(start.as_ptr(), length, length) };
        assert_eq!(kept, [7; 3]);
    }

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

    // A failure to map names the kind of pages that the system lacks (HW-11).
    #[test]
    fn errors_name_the_pages() {
        let error = |number, huge| map_error(io::Error::from_raw_os_error(number), huge, 7);
        assert!(matches!(error(libc::ENOMEM, false), RegisterError::OutOfMemory { length: 7 }));
        assert!(matches!(error(libc::ENOMEM, true), RegisterError::InsufficientResources(_)));
        assert!(matches!(error(libc::EINVAL, true), RegisterError::NotSupported(_)));
        assert!(matches!(error(libc::EPERM, true), RegisterError::Os { call: "mmap", .. }));
    }

    #[test]
    fn impossible_lengths_are_errors() {
        for pages in [Pages::Base, Pages::Transparent, Pages::Huge2MiB, Pages::Huge1GiB] {
            assert!(matches!(Mapping::new(0, pages), Err(RegisterError::Empty)));
            Mapping::new(usize::MAX, pages).map(drop).expect_err("too long");
        }
    }
}
