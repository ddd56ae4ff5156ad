//! The address and key by which a peer finds memory: descriptions of it, and memory windows, whose keys work requests grant
//! and revoke.

use std::fmt;
use std::ops::Range;

use bytes::Buf;

use crate::backend::{self, Adapter};
use crate::error::RegisterError;
use crate::types::{RemoteKey, TooShort};

/// Memory of the peer: address, key and length, for transmission in private data and messages.
///
/// The encoding has 16 bytes, big-endian: address (8), key (4), length (4).
///
/// ```
/// use tokio_rdma::mr::RemoteRegion;
/// use tokio_rdma::types::RemoteKey;
///
/// let region = RemoteRegion::new(0x1000, RemoteKey(7), 4096);
/// assert_eq!(RemoteRegion::from_bytes(region.to_bytes()), region);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    pub(crate) address: u64,
    pub(crate) key: RemoteKey,
    pub(crate) length: u32,
}

impl RemoteRegion {
    /// The length of the encoding in bytes.
    pub const LEN: usize = 16;

    /// Creates a description. The peer checks each access to the memory, also whether it exists.
    pub const fn new(address: u64, key: RemoteKey, length: u32) -> Self {
        Self { address, key, length }
    }

    /// Returns the address of the first byte, in the address space of the region at the peer.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the key.
    pub const fn key(&self) -> RemoteKey {
        self.key
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "described by the peer, not a collection")]
    pub const fn len(&self) -> u32 {
        self.length
    }

    /// Returns a part of the memory.
    ///
    /// # Errors
    /// [`TooShort`] if the range is not within the memory.
    pub fn part(&self, range: Range<u32>) -> Result<Self, TooShort> {
        let address = self.address.checked_add(range.start.into());
        match address {
            Some(address) if range.start <= range.end && range.end <= self.length => {
                Ok(Self { address, key: self.key, length: range.end - range.start })
            }
            _ => {
                Err(TooShort { needed: range.end.max(range.start) as usize, available: self.length as usize })
            }
        }
    }

    /// Encodes the description.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Decodes a description.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let mut bytes = &bytes[..];
        Self { address: bytes.get_u64(), key: RemoteKey(bytes.get_u32()), length: bytes.get_u32() }
    }

    /// Decodes a description from the start of a message or of private data. Returns `None` if the input is shorter.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().copied().map(Self::from_bytes)
    }
}

impl TryFrom<&[u8]> for RemoteRegion {
    type Error = TooShort;

    /// Decodes a description from the start of a message or of private data.
    ///
    /// # Errors
    /// [`TooShort`] if the input is shorter than [`LEN`](Self::LEN).
    fn try_from(bytes: &[u8]) -> Result<Self, TooShort> {
        Self::decode(bytes).ok_or(TooShort { needed: Self::LEN, available: bytes.len() })
    }
}

impl fmt::Display for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key, as in `Debug`.
        write!(f, "{} bytes at {:#x}", self.length, self.address)
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: logs travel further than the memory should.
        write!(f, "RemoteRegion({:#x}+{})", self.address, self.length)
    }
}

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
    pub(crate) fn new(adapter: &Adapter) -> Result<Self, RegisterError> {
        Ok(Self { provider: adapter.window()?, domain: adapter.domain() })
    }

    pub(crate) fn provider(&self) -> &backend::Window {
        &self.provider
    }

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
