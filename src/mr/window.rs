//! Memory windows: a part of a region under a key of its own, given and taken back by work requests.

use std::fmt;

use super::remote::RemoteRegion;
use crate::error::RegisterError;
use crate::provider::{self, Adapter};
use crate::types::RemoteKey;

/// A memory window (IND2MemoryWindow, type 2 of verbs). Made by
/// [`Adapter::memory_window`](crate::cm::Adapter::memory_window).
///
/// [`QueuePair::bind`](crate::qp::QueuePair::bind) gives it a part of a region, with rights and a fresh key; only the peer
/// of that queue pair can use the key. [`QueuePair::invalidate`](crate::qp::QueuePair::invalidate), or a send of the peer
/// that invalidates, takes it back, and so does the end of the connection. A region cannot be deregistered while a window
/// is bound to it.
pub struct MemoryWindow {
    provider: provider::Window,
    domain: u64,
}

impl MemoryWindow {
    pub(crate) fn new(adapter: &Adapter) -> Result<Self, RegisterError> {
        Ok(Self { provider: adapter.window()?, domain: adapter.domain() })
    }

    pub(crate) fn provider(&self) -> &provider::Window {
        &self.provider
    }

    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// What a peer needs to reach what it is bound to, from the call of bind on to the call of invalidate; `None`
    /// otherwise. A binding of more than 4 GiB is cut to what a length can say. Source:
    /// `IND2MemoryWindow::GetRemoteToken`.
    pub fn remote(&self) -> Option<RemoteRegion> {
        let (key, address, length) = self.provider.bound()?;
        Some(RemoteRegion::new(address, RemoteKey(key), u32::try_from(length).unwrap_or(u32::MAX)))
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: who has it can reach the memory.
        f.debug_struct("MemoryWindow").field("bound", &self.remote().is_some()).finish()
    }
}
