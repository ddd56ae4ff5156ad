//! What one side tells the other about its memory.

use std::fmt;
use std::ops::Range;

use crate::types::{RemoteKey, TooShort};

/// Memory of the peer: address, key and length, made to travel in private data and messages.
///
/// On the wire 16 bytes, big-endian: address (8), key (4), length (4).
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
    /// The length on the wire.
    pub const LEN: usize = 16;

    /// Memory described by hand. It is the peer that decides whether this exists.
    pub const fn new(address: u64, key: RemoteKey, length: u32) -> Self {
        Self { address, key, length }
    }

    /// The address of the first byte, as the peer counts.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The key.
    pub const fn key(&self) -> RemoteKey {
        self.key
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "described by the peer, not a collection")]
    pub const fn len(&self) -> u32 {
        self.length
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`TooShort`] when it ends before the range does.
    pub fn part(&self, range: Range<u32>) -> Result<Self, TooShort> {
        let address = self.address.checked_add(range.start.into());
        match address {
            Some(address) if range.start <= range.end && range.end <= self.length => {
                Ok(Self { address, key: self.key, length: range.end - range.start })
            }
            _ => Err(TooShort { needed: usize::try_from(range.end).unwrap_or(usize::MAX) }),
        }
    }

    /// The 16 bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// From the 16 bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = bytes;
        Self {
            address: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: RemoteKey(u32::from_be_bytes([k0, k1, k2, k3])),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// From the start of a message or of private data; `None` when that is shorter.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().copied().map(Self::from_bytes)
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: logs travel further than the memory should.
        write!(f, "RemoteRegion({:#x}+{})", self.address, self.length)
    }
}
