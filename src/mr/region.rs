//! Memory that a peer may reach by key.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::entry::{Piece, Single};
use super::remote::RemoteRegion;
use crate::error::RegisterError;
use crate::memory::Owned;
use crate::provider::{Adapter, Registration};
use crate::types::{Access, RemoteKey, TooShort};

/// Registered memory (IND2MemoryRegion).
///
/// A peer that has the key may write it at any moment, so it is read and written by copying: what is copied while the
/// peer writes is a mix of old and new bytes, never anything worse. Handles are counted; dropping the last one
/// deregisters. Made by [`Adapter::register`](crate::cm::Adapter::register).
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

struct Inner {
    adapter: Adapter,
    registration: Registration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.adapter.deregister(&self.registration);
    }
}

impl Region {
    pub(crate) async fn register(
        adapter: &Adapter,
        length: usize,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let maximum = adapter.capabilities().registration;
        if adapter.is_removed() {
            return Err(RegisterError::DeviceRemoved);
        }
        if length == 0 {
            return Err(RegisterError::Empty);
        }
        if length > maximum {
            return Err(RegisterError::TooLarge { length, maximum });
        }
        let memory = Owned::zeroed(length).ok_or(RegisterError::InsufficientResources)?;
        let registration = adapter.register(memory, access).await?;
        Ok(Self { inner: Arc::new(Inner { adapter: adapter.clone(), registration }) })
    }

    /// The length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.inner.registration.memory().len()
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.inner.registration.access()
    }

    pub(crate) fn is_of(&self, domain: u64) -> bool {
        self.inner.adapter.domain() == domain
    }

    pub(crate) fn registration(&self) -> Registration {
        self.inner.registration.clone()
    }

    /// The key (GetRemoteToken).
    pub fn key(&self) -> RemoteKey {
        self.inner.registration.key()
    }

    /// What a peer needs to reach all of it. A region of more than 4 GiB is cut to what a length can say; see
    /// [`remote_part`](Self::remote_part).
    pub fn remote(&self) -> RemoteRegion {
        let length = u32::try_from(self.len()).unwrap_or(u32::MAX);
        RemoteRegion { address: self.inner.registration.address(), key: self.key(), length }
    }

    /// What a peer needs to reach `range`.
    ///
    /// # Errors
    /// [`TooShort`] when the region ends before the range does, or the range is longer than 4 GiB.
    pub fn remote_part(&self, range: Range<usize>) -> Result<RemoteRegion, TooShort> {
        let needed = range.end;
        self.check(&range)?;
        let length = u32::try_from(range.len()).map_err(|_| TooShort { needed })?;
        let address = self.inner.registration.address() + range.start as u64;
        Ok(RemoteRegion { address, key: self.key(), length })
    }

    /// Copies bytes in at `offset`.
    ///
    /// # Errors
    /// [`TooShort`] when they do not fit; nothing has been copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), TooShort> {
        let slice = self.slice(offset..offset.saturating_add(bytes.len()))?;
        slice.for_payload(|part| part.write(0, bytes));
        Ok(())
    }

    /// Copies bytes out from `offset`.
    ///
    /// # Errors
    /// [`TooShort`] when there are not as many; nothing has been copied then.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), TooShort> {
        let slice = self.slice(offset..offset.saturating_add(bytes.len()))?;
        slice.for_payload(|part| part.read(0, bytes));
        Ok(())
    }

    /// A part of it for a work request.
    ///
    /// # Errors
    /// [`TooShort`] when the region ends before the range does.
    pub fn slice(&self, range: Range<usize>) -> Result<RegionSlice, TooShort> {
        self.check(&range)?;
        Ok(RegionSlice { region: self.clone(), range })
    }

    fn check(&self, range: &Range<usize>) -> Result<(), TooShort> {
        let good = range.start <= range.end && range.end <= self.len();
        if good { Ok(()) } else { Err(TooShort { needed: range.end.max(range.start) }) }
    }

    /// Takes the key back (Deregister): when this is ready, no peer reaches the memory any more, and a peer that tries
    /// loses its connection. The memory stays readable here.
    ///
    /// # Errors
    /// None on the soft provider. Deregistering twice is fine.
    ///
    /// # Cancel safety
    /// The key is taken back at the first poll, at once.
    pub async fn deregister(&self) -> Result<(), RegisterError> {
        self.inner.adapter.deregister(&self.inner.registration);
        Ok(())
    }

    /// Whether it has not been deregistered.
    pub fn is_registered(&self) -> bool {
        self.inner.registration.is_valid()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: who has it can reach the memory.
        f.debug_struct("Region").field("len", &self.len()).field("access", &self.access()).finish()
    }
}

/// A part of a region, to send from or receive into.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Region,
    range: Range<usize>,
}

impl RegionSlice {
    /// The region that it is a part of.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where it lies in the region.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    fn for_payload<R>(&self, use_it: impl FnOnce(&crate::memory::Slice) -> R) -> Option<R> {
        let memory = self.region.inner.registration.memory();
        memory.slice(self.range.start, self.range.len()).as_ref().map(use_it)
    }
}

impl Single for RegionSlice {
    type Rest = Self;

    fn allows(&self, domain: u64, access: Access) -> bool {
        self.region.inner.adapter.domain() == domain
            && self.region.access().contains(access)
            && self.region.is_registered()
    }

    fn length(&self) -> usize {
        self.range.len()
    }

    fn lend(self) -> Piece<Self> {
        let memory = self.region.inner.registration.memory();
        // It is in bounds.
        let slice = memory.slice(self.range.start, self.range.len());
        let slice = slice.unwrap_or_else(|| memory.clone().whole().part(0, 0));
        Piece { slice, rest: self }
    }

    fn reclaim(piece: Piece<Self>) -> Self {
        piece.rest
    }
}
