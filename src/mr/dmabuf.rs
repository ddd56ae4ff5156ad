//! Memory of another device, such as a graphics card, that the adapter accesses directly.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use tokio::task::coop::consume_budget;

use super::lend::{Lent, SgEntry};
use super::region::{Region, RegionSlice};
use super::remote::RemoteRegion;
use super::{check_length, maybe_blocking};
use crate::backend::Adapter;
use crate::error::RegisterError;
use crate::types::{Access, RemoteKey, TooShort};

/// Registered memory of another device, given as a dma-buf (ibv_reg_dmabuf_mr).
///
/// This program has no access to the bytes. A peer can access the memory by its key. Requests of this side can send and
/// write from it, and read into it. The two devices transfer the data directly. A memory window cannot be bound to it.
///
/// A receive into it is posted with cards of `irdma`, `bnxt_re` and `mana` only, and refused as
/// [`NotSupported`](crate::error::PostErrorKind::NotSupported) with others: the completions of some cards, such as those of
/// `mlx5`, contain the bytes of a short message, which the library of the device copies to the address of the receive. That
/// address is not one of this program here. Have the peer write to the memory instead, or read from the peer.
///
/// `DmaBufRegion` is a cheap handle; clones refer to the same region. Dropping the last handle deregisters the memory
/// once no request uses it. Created by [`Adapter::register_dmabuf`](crate::cm::Adapter::register_dmabuf).
#[derive(Clone)]
pub struct DmaBufRegion {
    region: Region,
}

impl DmaBufRegion {
    /// Registers memory of another device: offset, length, and the address of its first byte.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) async fn register(
        adapter: &Adapter,
        dmabuf: BorrowedFd<'_>,
        (offset, length, address): (u64, usize, u64),
        access: Access,
    ) -> Result<Self, RegisterError> {
        consume_budget().await;
        check_length(adapter, length)?;
        // Open for as long as that takes, whatever becomes of the future.
        let failed = |source: std::io::Error| RegisterError::Os { call: "dup", source: source.into() };
        let dmabuf = dmabuf.try_clone_to_owned().map_err(failed)?;
        let worker = adapter.clone();
        let made = maybe_blocking(adapter, move || {
            let registered = worker.register_dmabuf(dmabuf.as_fd(), (offset, length, address), access)?;
            Ok(Self { region: Region::of(worker, registered) })
        });
        made.await?
    }

    /// Returns the length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Returns the access rights of the registration.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// Returns the key.
    pub fn key(&self) -> RemoteKey {
        self.region.key()
    }

    /// Returns the address, key and length by which a peer can access the whole region, see [`Region::remote`].
    pub fn remote(&self) -> RemoteRegion {
        self.region.remote()
    }

    /// Returns the address, key and length by which a peer can access `range`.
    ///
    /// # Errors
    /// [`TooShort`] if the range is not within the region or is longer than 4 GiB.
    pub fn remote_part(&self, range: Range<usize>) -> Result<RemoteRegion, TooShort> {
        self.region.remote_part(range)
    }

    /// Returns a part of the region for a work request.
    ///
    /// # Errors
    /// [`TooShort`] if the range is not within the region.
    pub fn slice(&self, range: Range<usize>) -> Result<DmaBufSlice, TooShort> {
        Ok(DmaBufSlice { slice: self.region.slice(range)? })
    }

    /// Invalidates the key, like [`Region::deregister`].
    ///
    /// # Errors
    /// Those of [`Region::deregister`].
    ///
    /// # Cancel safety
    /// See [`Region::deregister`].
    pub async fn deregister(&self) -> Result<(), RegisterError> {
        self.region.deregister().await
    }

    /// Returns `true` if the memory can be accessed by its key.
    pub fn is_registered(&self) -> bool {
        self.region.is_registered()
    }
}

impl fmt::Debug for DmaBufRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBufRegion").field("len", &self.len()).field("access", &self.access()).finish()
    }
}

/// A part of a [`DmaBufRegion`], for work requests. Created by [`DmaBufRegion::slice`].
#[derive(Clone, Debug)]
pub struct DmaBufSlice {
    slice: RegionSlice,
}

impl DmaBufSlice {
    /// Returns the position of the slice in its region.
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
