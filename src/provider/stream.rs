//! The messages of a byte stream, as a provider that frames them itself takes them.
//!
//! On a device a stream posts requests for registered memory. The soft provider can do without: it takes the bytes of the
//! caller straight to the socket, and says how many there was room for.

use std::io::IoSlice;

use super::work::RemoteAddress;

/// The length of the payload of a Send of a stream.
pub(crate) const WORD: usize = 4;

/// A message: bytes of the caller's for memory of the peer, and a Send behind them that says how many they are.
pub(crate) struct StreamMessage<'a> {
    pub(crate) parts: &'a [IoSlice<'a>],
    /// The number of bytes that the peer has room for, at most as many as there are. At least one.
    pub(crate) length: usize,
    pub(crate) to: RemoteAddress,
    /// The payload of the Send behind so many bytes.
    pub(crate) describe: fn(usize) -> [u8; WORD],
}

/// The result of a write of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streamed {
    /// A message with so many bytes is on its way, at least one.
    Sent(usize),
    /// The connection takes nothing now. The waker of the call is woken when it may.
    Blocked,
}
