//! Memory windows: temporary access to a part of a region, granted and revoked by work requests.

use std::fmt;

use super::remote::RemoteRegion;
use crate::backend::{self, Adapter};
use crate::error::RegisterError;
use crate::types::RemoteKey;

/// A memory window (`IND2MemoryWindow`, type 2 of verbs). Created by
/// [`Adapter::memory_window`](crate::cm::Adapter::memory_window).
///
/// [`QueuePair::bind`](crate::qp::QueuePair::bind) binds the window to a part of a region, with rights and a new key.
/// Only the peer of that queue pair can use the key. The key becomes invalid by
/// [`QueuePair::invalidate`](crate::qp::QueuePair::invalidate), by a Send with Invalidate of the peer, or when the
/// connection ends. A region cannot be deregistered while a window is bound to it.
pub struct MemoryWindow {
    provider: backend::Window,
    domain: u64,
}

impl MemoryWindow {
    /// Creates a window that is not bound.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn new(adapter: &Adapter) -> Result<Self, RegisterError> {
        Ok(Self { provider: adapter.window()?, domain: adapter.domain() })
    }

    /// Returns the window of the provider.
    pub(crate) fn provider(&self) -> &backend::Window {
        &self.provider
    }

    /// Returns the protection domain.
    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// Returns the address, key and length by which a peer can access the bound memory. Source:
    /// `IND2MemoryWindow::GetRemoteToken`.
    ///
    /// Returns `Some` after `bind` has been called, until `invalidate` is called, the peer invalidates the window, or the
    /// connection ends. Otherwise `None`. A length of more than 4 GiB is reduced to the largest `u32`.
    pub fn remote(&self) -> Option<RemoteRegion> {
        let (key, address, length) = self.provider.bound()?;
        Some(RemoteRegion::new(address, RemoteKey(key), u32::try_from(length).unwrap_or(u32::MAX)))
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which gives access to the memory.
        f.debug_struct("MemoryWindow").field("bound", &self.remote().is_some()).finish()
    }
}
