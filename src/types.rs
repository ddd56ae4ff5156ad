//! The small value types that every layer speaks: read limits, private data, keys, rights.

use std::fmt;
use std::ops::Deref;

use bitflags::bitflags;
use bytes::Bytes;

use crate::error::Reason;
use crate::status::Status;

/// How many RDMA Reads may be in flight on a connection, seen from one end.
///
/// `inbound` is what this end serves (IRD, `responder_resources`), `outbound` what it issues (ORD,
/// `initiator_depth`). Source: `IND2Connector::Connect`, RFC 6581 section 4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadLimits {
    /// Reads by the peer that this end is willing to serve at once; 0 serves none.
    pub inbound: u32,
    /// Reads that this end wants to have in flight at once; 0 issues none.
    pub outbound: u32,
}

impl ReadLimits {
    /// No reads either way.
    pub const NONE: Self = Self { inbound: 0, outbound: 0 };

    /// The limits for serving `inbound` and issuing `outbound` reads at once.
    pub const fn new(inbound: u32, outbound: u32) -> Self {
        Self { inbound, outbound }
    }

    /// Each direction lowered to that of `cap`. Nothing is an error: ND caps silently.
    #[must_use]
    pub fn capped_to(self, cap: Self) -> Self {
        Self { inbound: self.inbound.min(cap.inbound), outbound: self.outbound.min(cap.outbound) }
    }

    /// The same two directions in the peer's view: what one end issues, the other serves.
    #[must_use]
    pub const fn swapped(self) -> Self {
        Self { inbound: self.outbound, outbound: self.inbound }
    }
}

impl Default for ReadLimits {
    /// Sixteen each way: enough to keep a wire busy, small enough for every adapter.
    fn default() -> Self {
        Self::new(16, 16)
    }
}

/// The bytes that came with a connection request, an accept or a reject.
///
/// InfiniBand pads private data with zeroes to a fixed length; [`is_exact`](Self::is_exact) tells whether
/// the length is what the peer sent. Source: `IND2Connector::GetPrivateData`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PrivateData {
    bytes: Bytes,
    exact: bool,
}

impl PrivateData {
    /// Data of exactly the length that the peer sent.
    pub fn exact(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), exact: true }
    }

    /// Data that the transport may have padded with zeroes at the end.
    pub fn padded(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), exact: false }
    }

    /// No data at all.
    pub fn empty() -> Self {
        Self::exact(Bytes::new())
    }

    /// Whether the length is the one the peer sent, rather than a padded one.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Copies as much as fits into `out`, as `GetPrivateData` does, and returns the length copied.
    ///
    /// # Errors
    /// [`TooShort`] (`BUFFER_OVERFLOW`) when `out` is too small; `out` is then full and `needed` is the whole length.
    pub fn copy_to(&self, out: &mut [u8]) -> Result<usize, TooShort> {
        let length = self.bytes.len().min(out.len());
        out[..length].copy_from_slice(&self.bytes[..length]);
        if length < self.bytes.len() { Err(TooShort { needed: self.bytes.len() }) } else { Ok(length) }
    }
}

impl Deref for PrivateData {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for PrivateData {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let padding = if self.exact { "" } else { ", may be padded" };
        write!(f, "PrivateData({} bytes{padding})", self.bytes.len())
    }
}

/// The caller's buffer holds only a part of what there is (`ND_BUFFER_OVERFLOW`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer is too short: {needed} are needed")]
pub struct TooShort {
    /// The size that would have been enough, in the units of the call.
    pub needed: usize,
}

impl TooShort {
    /// Always [`Status::BUFFER_OVERFLOW`].
    pub fn status(&self) -> Status {
        Status::BUFFER_OVERFLOW
    }
}

/// The key by which a peer addresses a region (an iWARP STag, a verbs rkey).
///
/// Opaque; in messages it travels in network byte order, see [`RemoteRegion`](crate::mr::RemoteRegion).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteKey(pub u32);

/// An adapter of a provider, as [`Provider::resolve`](crate::cm::Provider::resolve) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u64);

/// A number that names a connection in `tracing` output; unique in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

bitflags! {
    /// What may be done to registered memory. Source: `IND2MemoryRegion::Register` flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The adapter may write it on this side's behalf: receives, and the sink of reads.
        const LOCAL_WRITE = 1;
        /// The peer may read it.
        const REMOTE_READ = 2;
        /// The peer may write it; contains [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        const REMOTE_WRITE = 5;
        /// It may be the sink of an RDMA Read on iWARP, where the sink is addressed over the wire.
        const READ_SINK = 8;
        /// The peer may work on it by atomics.
        const REMOTE_ATOMIC = 16;
    }
}

/// Why a connection is over. Source: `IND2Connector::NotifyDisconnect`, which tells only that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The peer disconnected.
    Peer,
    /// The connection broke.
    Lost {
        /// The status that the oldest outstanding request of the send queue finished with.
        status: Status,
        /// What the provider noticed.
        reason: Reason,
    },
    /// This side disconnected.
    Local,
    /// The adapter was removed.
    DeviceRemoved,
    /// Not the connection is over, but the wait for its end: it was cancelled.
    Canceled,
}

impl DisconnectReason {
    /// The ND status: that of NotifyDisconnect for an orderly end, else what went wrong.
    pub fn status(&self) -> Status {
        match self {
            Self::Peer | Self::Local => Status::SUCCESS,
            Self::Lost { status, .. } => *status,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
            Self::Canceled => Status::CANCELED,
        }
    }
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It called Connect (MPA initiator).
    Active,
    /// It called Accept (MPA responder).
    Passive,
}

/// What a work request does. Source: `ND2_REQUEST_TYPE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// Receive one message.
    Receive,
    /// Send one message.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Atomic compare-and-swap.
    CompareSwap,
    /// Atomic fetch-and-add.
    FetchAdd,
    /// Binding of a memory window.
    Bind,
    /// Invalidation of a memory window.
    Invalidate,
}
