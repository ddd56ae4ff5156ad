//! Value types: read limits, private data, keys, access rights, the reason of a disconnect.

// This file and `error` name each other: a lost connection has a `Reason`, and a refused one returns private data.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bitflags::bitflags;
use bytes::Bytes;

use crate::error::Reason;
use crate::status::Status;

/// The maximum numbers of RDMA Reads in flight on a connection, as seen from one side.
///
/// Source: `IND2Connector::Connect`, RFC 6581 section 4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadLimits {
    /// The number of reads by the peer that this side serves at once (IRD, `responder_resources`). 0 allows none.
    #[doc(alias = "ird")]
    #[doc(alias = "responder_resources")]
    pub inbound: u32,
    /// The number of reads that this side has in flight at once (ORD, `initiator_depth`). 0 allows none.
    #[doc(alias = "ord")]
    #[doc(alias = "initiator_depth")]
    pub outbound: u32,
}

impl ReadLimits {
    /// No reads in either direction.
    pub const NONE: Self = Self { inbound: 0, outbound: 0 };

    /// Creates limits for serving `inbound` reads and issuing `outbound` reads at once.
    pub const fn new(inbound: u32, outbound: u32) -> Self {
        Self { inbound, outbound }
    }

    /// Returns the limits with each direction reduced to that of `cap`.
    #[must_use]
    pub fn capped_to(self, cap: Self) -> Self {
        Self { inbound: self.inbound.min(cap.inbound), outbound: self.outbound.min(cap.outbound) }
    }

    /// Returns the limits as seen from the peer: the reads that one side issues, the other side serves.
    #[must_use]
    pub const fn swapped(self) -> Self {
        Self { inbound: self.outbound, outbound: self.inbound }
    }
}

impl Default for ReadLimits {
    /// Returns 16 in each direction: enough to keep a connection busy, small enough for every adapter.
    fn default() -> Self {
        Self::new(16, 16)
    }
}

impl fmt::Display for ReadLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} inbound, {} outbound", self.inbound, self.outbound)
    }
}

/// The number of characters of private data that a text shows.
const SHOWN: usize = 128;

/// The bytes that the peer sent with a connection request, an accept or a reject (`IND2Connector::GetPrivateData`).
///
/// InfiniBand pads private data with zeros to a fixed length. [`is_exact`](Self::is_exact) returns whether the length
/// is the length that the peer sent.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PrivateData(
    /// `None` for exactly no bytes, as most connections have: an idle one keeps a word then.
    Option<Arc<Content>>,
);

/// The bytes of [`PrivateData`], and whether their number is that of the peer.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Content {
    bytes: Bytes,
    exact: bool,
}

impl PrivateData {
    /// Creates private data of exactly the length that the peer sent.
    pub fn exact(bytes: impl Into<Bytes>) -> Self {
        Self::new(bytes.into(), true)
    }

    /// Creates private data that the transport may have padded with zeros at the end.
    pub fn padded(bytes: impl Into<Bytes>) -> Self {
        Self::new(bytes.into(), false)
    }

    /// Creates empty private data.
    pub fn empty() -> Self {
        Self(None)
    }

    fn new(bytes: Bytes, exact: bool) -> Self {
        let is_none = exact && bytes.is_empty();
        Self((!is_none).then(|| Arc::new(Content { bytes, exact })))
    }

    /// Returns whether the length is exactly the length that the peer sent.
    pub fn is_exact(&self) -> bool {
        self.0.as_ref().is_none_or(|content| content.exact)
    }

    /// Returns the bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0.map(|content| content.bytes.clone()).unwrap_or_default()
    }

    /// Returns the bytes in quotation marks, escaped and shortened, if they are printable text.
    ///
    /// Text is UTF-8 without control characters other than white space. Padding does not count.
    pub fn text(&self) -> Option<String> {
        let end = if self.is_exact() { self.len() } else { self.iter().rposition(|byte| *byte != 0)? + 1 };
        let text = std::str::from_utf8(&self[..end]).ok().filter(|text| !text.is_empty())?;
        if text.chars().any(|character| character.is_control() && !character.is_whitespace()) {
            return None;
        }
        let shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        let rest = if text.chars().nth(SHOWN).is_some() { "..." } else { "" };
        Some(format!("\"{shown}{rest}\""))
    }

    /// Copies the bytes to `out` and returns the number of bytes copied.
    ///
    /// # Errors
    /// [`TooShort`] (`BUFFER_OVERFLOW`) if `out` is too short. `out` is filled, as by `GetPrivateData`, and `needed` is
    /// the length of the private data.
    pub fn copy_to(&self, out: &mut [u8]) -> Result<usize, TooShort> {
        let length = self.len().min(out.len());
        out[..length].copy_from_slice(&self[..length]);
        let short = TooShort { needed: self.len(), available: out.len() };
        if length < self.len() { Err(short) } else { Ok(length) }
    }
}

impl Deref for PrivateData {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |content| &content.bytes)
    }
}

impl AsRef<[u8]> for PrivateData {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let padding = if self.is_exact() { "" } else { ", may be padded" };
        write!(f, "PrivateData({} bytes{padding})", self.len())
    }
}

/// The error of a call whose buffer, slice or region is too short (`ND_BUFFER_OVERFLOW`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer, slice or region has a length of {available}, and {needed} is needed")]
pub struct TooShort {
    /// The required length, in bytes or elements.
    pub needed: usize,
    /// The length that there is, in bytes or elements.
    pub available: usize,
}

impl TooShort {
    /// Returns the ND status, which is always [`Status::BUFFER_OVERFLOW`].
    pub fn status(&self) -> Status {
        Status::BUFFER_OVERFLOW
    }
}

/// The key by which a peer addresses a region (an iWARP STag, a verbs rkey).
///
/// The value is opaque. [`RemoteRegion`](crate::mr::RemoteRegion) encodes it in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteKey(pub u32);

/// The number of a slot: a piece of the registered memory of a [`Lane`](crate::qp::Lane).
///
/// It is a name, not the memory: the lane knows who has the slot, and refuses one that the program does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// Returns the number: slots count from 0, so that a table of the program can be indexed by it.
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The id of a queue pair of a [`Lane`](crate::qp::Lane). An id is not used again before 65,535 others in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePairId(pub(crate) u32);

impl QueuePairId {
    const PLACE: u32 = 16;

    /// Makes the id of the queue pair in this place, of which it is this generation.
    pub(crate) const fn new(place: u16, generation: u16) -> Self {
        Self((generation as u32) << Self::PLACE | place as u32)
    }

    /// Returns the place among the queue pairs of the lane: places count from 0, and are used again.
    #[inline]
    pub const fn place(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// The id of an adapter of a provider, returned by [`Provider::resolve`](crate::cm::Provider::resolve).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u64);

/// The number of a connection in `tracing` output, unique within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

bitflags! {
    /// The access rights of registered memory (flags of `IND2MemoryRegion::Register`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Requests of this side may write the memory: receives, and the sink of reads.
        const LOCAL_WRITE = 1;
        /// The peer may read the memory.
        const REMOTE_READ = 2;
        /// The peer may write the memory. Contains [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        const REMOTE_WRITE = 5;
        /// The memory may be the sink of an RDMA Read on iWARP, where the peer addresses the sink by its key.
        const READ_SINK = 8;
        /// The peer may modify the memory by atomics.
        const REMOTE_ATOMIC = 16;
        /// A device may write the bytes of a request to the memory in any order (`IBV_ACCESS_RELAXED_ORDERING` of
        /// ibv_reg_mr(3)), which is faster on some systems.
        ///
        /// When a request has completed, all of its bytes are in place, as without this flag. A program that waits for a
        /// peer's Write by reading the memory must not use it: a byte may arrive before those in front of it, whatever
        /// [`AdapterInfo::in_order_dma`](crate::cm::AdapterInfo::in_order_dma) says. Kernels and drivers that do not know
        /// the flag ignore it, and so does the soft provider. A [`Buffer`](crate::mr::Buffer) always has it on a device.
        const RELAXED_ORDERING = 32;
    }
}

impl Access {
    /// Returns the rights of the peer among these.
    pub(crate) fn remote(self) -> Self {
        let remote = [Self::REMOTE_READ, Self::REMOTE_WRITE, Self::REMOTE_ATOMIC];
        remote.into_iter().filter(|right| self.contains(*right)).collect()
    }
}

impl fmt::Display for Access {
    /// Writes the names of the rights, for example `LOCAL_WRITE | READ_SINK`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// The reason why a connection ended.
///
/// `IND2Connector::NotifyDisconnect` reports only that a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The peer disconnected.
    #[error("the peer disconnected")]
    Peer,
    /// The connection was lost.
    #[error("the connection was lost: {reason} ({status})")]
    Lost {
        /// The status of the oldest outstanding request of the send queue.
        status: Status,
        /// The cause, as the provider detected it.
        reason: Reason,
    },
    /// This side disconnected.
    #[error("this side disconnected")]
    Local,
    /// The adapter was removed.
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The wait was cancelled. The connection may still be established.
    #[error("the wait for the end of the connection was cancelled")]
    Canceled,
}

impl DisconnectReason {
    /// Returns the ND status: the status of NotifyDisconnect for an orderly end, otherwise the status of the failure.
    pub fn status(&self) -> Status {
        match self {
            Self::Peer | Self::Local => Status::SUCCESS,
            Self::Lost { status, .. } => *status,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
            Self::Canceled => Status::CANCELED,
        }
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that called Connect (MPA initiator).
    Active,
    /// The side that called Accept (MPA responder).
    Passive,
}

/// The kind of a work request (`ND2_REQUEST_TYPE`).
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

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareSwap => "compare-and-swap",
            Self::FetchAdd => "fetch-and-add",
            Self::Bind => "bind",
            Self::Invalidate => "invalidate",
        })
    }
}

/// A queue that work requests are posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueKind {
    /// The send queue of a queue pair.
    Send,
    /// The receive queue of a queue pair.
    Receive,
    /// A receive queue that several queue pairs share.
    SharedReceive,
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send queue",
            Self::Receive => "receive queue",
            Self::SharedReceive => "shared receive queue",
        })
    }
}
