//! Memory that no peer can access: plain bytes between operations.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use bytes::Bytes;

use super::lend::{Lent, SgEntry};
use crate::backend::Adapter;
use crate::error::RegisterError;
use crate::memory::{Frozen, Owned, Shared};
use crate::types::Access;

/// Memory for sends, receives, and the local side of reads and writes.
///
/// A buffer is never remotely accessible, so between operations it dereferences to `[u8]`. During an operation, the
/// operation owns it. Buffers are created by [`Adapter::buffer`](crate::cm::Adapter::buffer) or returned by a
/// [`Pool`](super::Pool), and can be used with the queue pairs of that opened adapter.
///
/// Dropping a buffer frees it or returns it to its pool. If the future of a request was dropped, the same happens to
/// the buffer when the provider has finished with it. With a device, large buffers are freed on another thread.
pub struct Buffer {
    memory: Owned,
    domain: u64,
}

impl Buffer {
    pub(crate) fn zeroed(adapter: &Adapter, length: usize) -> Result<Self, RegisterError> {
        let memory = adapter.allocate(length)?;
        Ok(Self::of(memory, adapter.domain()))
    }

    /// Creates a buffer in memory of the adapter with this domain.
    pub(super) fn of(memory: Owned, domain: u64) -> Self {
        Self { memory, domain }
    }

    /// Converts the first `length` bytes into immutable [`Bytes`], without a copy.
    ///
    /// When the last clone of the bytes is dropped, the memory is freed or returned to its pool. Bytes in a buffer of a
    /// pool are also sent without a copy, see [`Pool::lend`](super::Pool::lend).
    ///
    /// # Panics
    /// If the buffer is shorter than `length`, as slicing does.
    pub fn freeze(self, length: usize) -> Bytes {
        assert!(length <= self.len(), "{length} of {} bytes", self.len());
        Bytes::from_owner(Prefix { memory: self.memory.freeze(), length })
    }

    /// Selects the bytes of `range` for the next operation. The operation returns the same [`BufferPart`].
    ///
    /// # Panics
    /// If the range is not within the buffer, as slicing does.
    pub fn part(self, range: Range<usize>) -> BufferPart {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        BufferPart { buffer: self, range }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// The memory of [`Bytes`].
struct Prefix {
    memory: Frozen,
    length: usize,
}

impl AsRef<[u8]> for Prefix {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(..self.length).unwrap_or_default()
    }
}

/// A buffer of which an operation uses a part. Created by [`Buffer::part`].
#[derive(Debug)]
pub struct BufferPart {
    buffer: Buffer,
    range: Range<usize>,
}

impl BufferPart {
    /// Returns the whole buffer.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for BufferPart {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buffer.get(self.range.clone()).unwrap_or_default()
    }
}

/// Makes memory exclusive again: the provider has dropped its handles before it completes a request.
fn reclaim(memory: Shared) -> Owned {
    memory.try_own().unwrap_or_else(|still_shared| {
        debug_assert!(false, "a provider completed a request whose memory it still uses");
        // Sound all the same: what is handed out is a copy.
        still_shared.copied()
    })
}

impl SgEntry for Buffer {
    type State = u64;

    fn allows(&self, domain: u64, access: Access) -> bool {
        // A sink that the peer must be able to write would not be plain bytes.
        self.domain == domain && !access.contains(Access::READ_SINK)
    }

    fn length(&self) -> usize {
        self.len()
    }

    fn lend(self) -> Lent<u64> {
        Lent(self.memory.share().whole(), self.domain)
    }

    fn reclaim(Lent(slice, domain): Lent<u64>) -> Self {
        Self { memory: reclaim(slice.into_shared()), domain }
    }
}

impl SgEntry for BufferPart {
    type State = (u64, Range<usize>);

    fn allows(&self, domain: u64, access: Access) -> bool {
        SgEntry::allows(&self.buffer, domain, access)
    }

    fn length(&self) -> usize {
        self.range.len()
    }

    fn lend(self) -> Lent<Self::State> {
        let Self { buffer: Buffer { memory, domain }, range } = self;
        Lent(memory.share().whole().part(range.start, range.len()), (domain, range))
    }

    fn reclaim(Lent(slice, (domain, range)): Lent<Self::State>) -> Self {
        Self { buffer: Buffer::reclaim(Lent(slice, domain)), range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // MR-06: there are no references to bytes that a peer can write.
    #[test]
    fn buffer_lacks_read_sink_access() {
        let buffer = Buffer::of(Owned::empty(), 5);
        assert!(SgEntry::allows(&buffer, 5, Access::LOCAL_WRITE));
        assert!(!SgEntry::allows(&buffer, 5, Access::LOCAL_WRITE | Access::READ_SINK));
        assert!(!SgEntry::allows(&buffer, 6, Access::empty()));
    }
}
