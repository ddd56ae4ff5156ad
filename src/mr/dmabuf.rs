//! Memory of another device, such as a graphics card, that the adapter reaches by itself.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use super::lend::{Lent, SgEntry};
use super::region::{Region, RegionSlice};
use super::remote::RemoteRegion;
use super::{at_leisure, check_length};
use crate::error::RegisterError;
use crate::provider::Adapter;
use crate::types::{Access, RemoteKey, TooShort};

/// Registered memory of another device, which a dma-buf stands for: what this program has no bytes of (ibv_reg_dmabuf_mr).
///
/// A peer may reach it by its key, and requests of this side may send from it, and receive and read into it, all of which
/// the two devices do between them. Handles are counted; dropping the last one deregisters, once no request uses it any
/// more. Made by [`Adapter::register_dmabuf`](crate::cm::Adapter::register_dmabuf).
#[derive(Clone)]
pub struct DmaBufRegion {
    region: Region,
}

impl DmaBufRegion {
    pub(crate) async fn register(
        adapter: &Adapter,
        dmabuf: BorrowedFd<'_>,
        (offset, length, address): (u64, usize, u64),
        access: Access,
    ) -> Result<Self, RegisterError> {
        check_length(adapter, length)?;
        // Open for as long as that takes, whatever becomes of the future.
        let failed = |source| RegisterError::Os { call: "dup", source };
        let dmabuf = dmabuf.try_clone_to_owned().map_err(failed)?;
        let worker = adapter.clone();
        let made = at_leisure(adapter, length, move || {
            let registration = worker.register_dmabuf(dmabuf.as_fd(), (offset, length, address), access)?;
            Ok(Self { region: Region::of(worker, registration) })
        });
        made.await?
    }

    /// The length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// The key.
    pub fn key(&self) -> RemoteKey {
        self.region.key()
    }

    /// What a peer needs to reach all of it, see [`Region::remote`].
    pub fn remote(&self) -> RemoteRegion {
        self.region.remote()
    }

    /// What a peer needs to reach `range`.
    ///
    /// # Errors
    /// [`TooShort`] when the region ends before the range does, or the range is longer than 4 GiB.
    pub fn remote_part(&self, range: Range<usize>) -> Result<RemoteRegion, TooShort> {
        self.region.remote_part(range)
    }

    /// A part of it for a work request.
    ///
    /// # Errors
    /// [`TooShort`] when the region ends before the range does.
    pub fn slice(&self, range: Range<usize>) -> Result<DmaBufSlice, TooShort> {
        Ok(DmaBufSlice { slice: self.region.slice(range)? })
    }

    /// Takes the key back, see [`Region::deregister`].
    ///
    /// # Errors
    /// As for [`Region::deregister`].
    ///
    /// # Cancel safety
    /// As for [`Region::deregister`].
    pub async fn deregister(&self) -> Result<(), RegisterError> {
        self.region.deregister().await
    }

    /// Whether it has a key by which the memory can be reached.
    pub fn is_registered(&self) -> bool {
        self.region.is_registered()
    }
}

impl fmt::Debug for DmaBufRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBufRegion").field("len", &self.len()).field("access", &self.access()).finish()
    }
}

/// A part of a [`DmaBufRegion`], to send from or receive into.
#[derive(Clone, Debug)]
pub struct DmaBufSlice {
    slice: RegionSlice,
}

impl DmaBufSlice {
    /// Where it lies in the region.
    pub fn range(&self) -> Range<usize> {
        self.slice.range()
    }
}

impl SgEntry for DmaBufSlice {
    type State = RegionSlice;

    fn allows(&self, domain: u64, access: Access) -> bool {
        SgEntry::allows(&self.slice, domain, access)
    }

    fn length(&self) -> usize {
        SgEntry::length(&self.slice)
    }

    fn lend(self) -> Lent<RegionSlice> {
        SgEntry::lend(self.slice)
    }

    fn reclaim(lent: Lent<RegionSlice>) -> Self {
        Self { slice: RegionSlice::reclaim(lent) }
    }
}
