//! The causes of failures, and the meaning of Terminate codes in words.

use std::fmt;
use std::io;

use crate::status::porting::{CmEvent, IbRejectReason};
use crate::status::{DeviceEvent, WcStatus};

/// The cause of a failure, as the provider, the system or the peer reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// An operating system error number.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Errno(i32),
    /// The peer rejected in its MPA reply (RFC 5044 section 7.1, the R bit).
    #[error("the reply of MPA has the reject bit")]
    MpaReject,
    /// The peer closed the TCP connection before it responded.
    #[error("the peer closed the connection before it responded")]
    PeerClosed,
    /// The peer cannot take the connection for now, or has not decided about it: this crate sends that over InfiniBand
    /// and RoCE in place of a reject of the application.
    #[error("the peer cannot take the connection for now")]
    NotNow,
    /// An RDMAP Terminate message, received or sent (RFC 5040 section 4.8).
    #[error(
        "{} sent a Terminate: {} (layer {layer}, type {etype}, code {code})",
        if *sent { "this side" } else { "the peer" },
        meaning(*layer, *etype, *code)
    )]
    Terminate {
        /// Whether this side sent it.
        sent: bool,
        /// The layer: 0 RDMAP, 1 DDP, 2 LLP (MPA).
        layer: u8,
        /// The error type within the layer.
        etype: u8,
        /// The error code within the type.
        code: u8,
    },
    /// The peer violated the protocol before a Terminate could be sent.
    #[error("the peer violated the protocol: {0}")]
    Protocol(DecodeError),
    /// Nothing was received from the peer for the path timeout.
    #[error("nothing received from the peer within the path timeout")]
    PathTimeout,
    /// An event of rdma_cm (rdma_get_cm_event(3)).
    #[error("{}", cm(*event, *status))]
    Cm {
        /// The kind of the event.
        event: CmEvent,
        /// The status of the event: a negative errno, or the reason of an InfiniBand reject.
        status: i32,
    },
    /// The failure of a work request (ibv_poll_cq(3)).
    ///
    /// With [`WcStatus::WR_FLUSH_ERR`] the device moved the queue pair to the error state and said no more: most often it refused a
    /// request of the peer.
    #[error("a work request failed with {0}")]
    Completion(WcError),
    /// An asynchronous event of the device about the queue pair or about one of its queues (ibv_get_async_event(3)).
    #[error("the device reports {0}: {meaning}", meaning = .0.meaning())]
    Event(DeviceEvent),
    /// A local event, such as a flush of the queue pair.
    #[error("{0}")]
    Local(&'static str),
}

/// Formats the text of [`Reason::Cm`].
fn cm(event: CmEvent, status: i32) -> String {
    let errno = || io::Error::from_raw_os_error(status.saturating_neg());
    match IbRejectReason::from_status(status).filter(|_| event == CmEvent::REJECTED) {
        Some(reason) => format!("rejected: {} ({reason})", reason.meaning()),
        None if event == CmEvent::REJECTED => format!("rejected: {}", errno()),
        None if status == 0 => event.to_string(),
        None => format!("{event}: {}", errno()),
    }
}

/// The failure of a work request, as the device reported it (`ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WcError {
    /// The status of the completion.
    pub status: WcStatus,
    /// The error code of the vendor, which the manual of the device explains; 0 if there is none.
    pub vendor_err: u32,
}

impl WcError {
    /// Creates the failure with a status and the error code of the vendor.
    pub const fn new(status: WcStatus, vendor_err: u32) -> Self {
        Self { status, vendor_err }
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, vendor error {:#x}: {}", self.status, self.vendor_err, self.status.meaning())
    }
}

impl Reason {
    /// The text of the cause [`RUNTIME_ENDED`](Self::RUNTIME_ENDED).
    pub(crate) const RUNTIME_ENDED_TEXT: &str = "the runtime in which the adapter was opened has ended";
    /// The cause of what fails on an adapter whose runtime has ended.
    pub(crate) const RUNTIME_ENDED: Self = Self::Local(Self::RUNTIME_ENDED_TEXT);

    /// Returns whether the cause may be gone at the next attempt. A peer that does not speak the protocol
    /// will not learn it.
    pub(super) const fn is_transient(&self) -> bool {
        !matches!(self, Self::Protocol(_) | Self::Terminate { .. })
    }
}

/// The first bytes that a peer sent, at most [`Excerpt::LEN`].
///
/// The `Display` text is in quotation marks. Bytes that are not printable ASCII are escaped, so that a peer cannot forge lines of a
/// log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Excerpt {
    bytes: [u8; Self::LEN],
    length: u8,
}

impl Excerpt {
    /// The maximum number of bytes.
    pub const LEN: usize = 16;

    /// Copies the first bytes.
    pub fn new(from: &[u8]) -> Self {
        let mut bytes = [0; Self::LEN];
        let length = from.len().min(Self::LEN);
        bytes[..length].copy_from_slice(&from[..length]);
        Self { bytes, length: length as u8 }
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error of decoding bytes of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame is incomplete.
    #[error("the frame is truncated")]
    Truncated,
    /// The frame does not start with the MPA key (RFC 5044 section 7.1.1). Contains the bytes in its place.
    #[error("the frame starts with {0} and not with the MPA key")]
    BadKey(Excerpt),
    /// The version of MPA, DDP or RDMAP is not supported.
    #[error("unsupported protocol version {0}")]
    Version(u8),
    /// The private data is longer than the 512 bytes of RFC 5044.
    #[error("private data of {0} bytes exceeds the MPA maximum of 512")]
    PrivateDataTooLong(u16),
    /// The peer requires a feature that is not supported, for example markers, or frames without CRC.
    #[error("the peer requires an unsupported feature: {0}")]
    Unsupported(&'static str),
    /// The CRC32C does not match.
    #[error("CRC mismatch")]
    Crc,
    /// A length or a field contradicts another one.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
}

/// Returns the meaning of a Terminate: the tables of RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044 section 8 and
/// RFC 6581 section 8.
const fn meaning(layer: u8, etype: u8, code: u8) -> &'static str {
    match (layer, etype, code) {
        (0, 0, _) => "its sender gave the connection up",

        (0, 1, 0) => "the key names no memory",
        (0, 1, 1) => "the access is outside of the memory",
        (0, 1, 2) => "the memory lacks the access right",
        (0, 1, 3) => "the memory belongs to another protection domain",
        (0, 1, 4) => "the address of the access wraps around",
        (0, 1, _) => "unknown protection error of RDMAP",

        (0, 2, 5) => "unsupported version of RDMAP",
        (0, 2, 6) => "unexpected opcode of RDMAP",
        (0, 2, 7) => "catastrophic error of the stream",
        (0, 2, 8) => "catastrophic error of the adapter",
        (0, 2, 9) => "the key cannot be invalidated",
        (0, 2, _) => "unspecified error of a remote operation",

        (1, 0, _) => "its sender had a failure in DDP",

        (1, 1, 0) => "the key of a tagged message names no memory",
        (1, 1, 1) => "a tagged message is outside of its memory",
        (1, 1, 2) => "the memory of a tagged message belongs to another protection domain",
        (1, 1, 3) => "the address of a tagged message wraps around",
        (1, 1, 4) => "unsupported version of DDP in a tagged message",
        (1, 1, _) => "unknown error of a tagged message",

        (1, 2, 1) => "the queue of an untagged message does not exist",
        (1, 2, 2) => "no receive was posted for the message, or more reads were in flight than agreed",
        (1, 2, 3) => "the number of an untagged message is not the next",
        (1, 2, 4) => "the offset in an untagged message is not the next",
        (1, 2, 5) => "the message is longer than the receive",
        (1, 2, 6) => "unsupported version of DDP in an untagged message",
        (1, 2, _) => "unknown error of an untagged message",

        (2, 0, 1) => "the TCP stream was closed or lost",
        (2, 0, 2) => "the CRC of a frame does not match",
        (2, 0, 3) => "the markers and the length of a frame do not match",
        (2, 0, 4) => "invalid start-up frame of MPA",
        (2, 0, 5) => "its sender had a failure in MPA",
        (2, 0, 6) => "the responder wants more reads in flight than the initiator serves",
        (2, 0, 7) => "the responder chose an RTR frame that the initiator did not offer",
        (2, ..) => "unknown error of MPA",

        _ => "unknown error",
    }
}
