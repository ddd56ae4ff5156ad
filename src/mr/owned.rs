//! Regions in memory of the program.

use std::fmt;
use std::ops::Deref;

use tokio::task::coop::consume_budget;

use super::check_length;
use super::region::Region;
use crate::backend::Adapter;
use crate::error::{RegisterError, RegisterFromError};
use crate::memory::{Owned, OwnedMemory, Returned};
use crate::types::Access;

/// A [`Region`] in an allocation of the program. Created by [`Adapter::register_from`](crate::cm::Adapter::register_from).
///
/// Dereferences to [`Region`], whose clones and slices refer to the same memory. While it is registered, the program reads and
/// writes the allocation through the region only, because a peer may write it at any time.
///
/// [`into_inner`](Self::into_inner) returns the allocation. If this value is dropped instead, the allocation is dropped
/// once no clone, no slice and no request uses it and it is deregistered. If the device cannot deregister it, it is
/// never freed.
pub struct OwnedRegion<M> {
    region: Region,
    returned: Returned<M>,
}

impl<M: OwnedMemory> OwnedRegion<M> {
    /// Registers an allocation.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) async fn register(
        adapter: &Adapter,
        memory: M,
        access: Access,
    ) -> Result<Self, RegisterFromError<M>> {
        consume_budget().await;
        let (memory, returned) = Owned::lend(memory);
        let region = match check_length(adapter, memory.len()) {
            Ok(()) => Region::register_memory(adapter, memory, access).await,
            Err(error) => {
                drop(memory);
                Err(error)
            }
        };
        match region {
            Ok(region) => Ok(Self { region, returned }),
            // No handle is left.
            Err(kind) => Err(RegisterFromError { kind, memory: returned.await.ok() }),
        }
    }

    /// Deregisters the memory and returns the allocation.
    ///
    /// Resolves when all other handles to the memory are dropped: the clones of the region, its slices, and the requests that
    /// use it, also those whose futures were dropped. A request completes when its connection ends at the latest. If a device
    /// fails so that it can no longer end a request, the method does not resolve, because the device may still write the
    /// memory. A peer that does not finish a transfer does not delay it.
    ///
    /// # Errors
    /// Those of [`Region::deregister`]; the error contains the region. `Busy` without a region if another handle registered the
    /// memory again and the device did not deregister it afterwards; the memory is then never freed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the allocation is dropped as if the region had been dropped.
    pub async fn into_inner(self) -> Result<M, RegisterFromError<Self>> {
        if let Err(kind) = self.region.deregister().await {
            return Err(RegisterFromError { kind, memory: Some(self) });
        }
        let Self { region, returned } = self;
        drop(region);
        returned.await.map_err(|_| RegisterFromError { kind: RegisterError::Busy, memory: None })
    }
}

impl<M> Deref for OwnedRegion<M> {
    type Target = Region;
    fn deref(&self) -> &Region {
        &self.region
    }
}

impl<M> fmt::Debug for OwnedRegion<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}
