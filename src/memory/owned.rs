//! Allocations of the program, which a device accesses for a time.
//!
//! An allocation is taken apart for that time: no `Vec`, no `Box` and no reference stands for bytes that a peer may write. It is
//! put together again when no handle is left, by the [`Loan`] of its [`Block`].

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use bytes::BytesMut;
use tokio::sync::oneshot;

use super::block::Block;

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
pub(super) trait Loan: Send {
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

#[cfg(test)]
mod tests {
    use super::super::words::WORD;
    use super::super::{Owned, Slice};
    use super::*;

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
}
