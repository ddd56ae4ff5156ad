//! The messages of a byte stream, as a provider that frames them itself takes them.
//!
//! On a device a stream posts requests for registered memory. The soft provider can do without: it takes the bytes of the
//! caller straight to the socket, and says how many there was room for. And it reads into the memory of the caller what the
//! peer writes to the place that is read next.

use std::io::IoSlice;

use bytes::BufMut;

use super::work::RemoteAddress;
#[cfg(feature = "soft")]
use crate::memory::Target;

/// The length of the payload of a Send of a stream.
pub(crate) const WORD: usize = 4;

/// A message: bytes of the caller's for memory of the peer, and a Send behind them that says how many they are.
#[cfg_attr(
    not(feature = "soft"),
    expect(dead_code, reason = "only the soft provider reads and writes by itself")
)]
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
#[cfg_attr(
    not(feature = "soft"),
    expect(dead_code, reason = "only the soft provider reads and writes by itself")
)]
pub(crate) enum Streamed {
    /// A message with so many bytes is on its way, at least one.
    Sent(usize),
    /// The connection takes nothing now. The waker of the call is woken when it may.
    Blocked,
}

/// The room of a reader, for payload that the peer writes to the place that is read next.
#[cfg_attr(
    not(feature = "soft"),
    expect(dead_code, reason = "only the soft provider reads and writes by itself")
)]
pub(crate) struct StreamRoom<'a> {
    into: &'a mut (dyn BufMut + 'a),
    /// The number of bytes that it still takes.
    left: usize,
    filled: usize,
    /// The place in the memory of this end that the next byte is for.
    place: RemoteAddress,
}

impl<'a> StreamRoom<'a> {
    /// Room for at most `most` of the bytes that are written to `place` and behind it.
    pub(crate) fn new(into: &'a mut (dyn BufMut + 'a), most: usize, place: RemoteAddress) -> Self {
        let left = most.min(into.remaining_mut());
        Self { into, left, filled: 0, place }
    }

    /// The number of bytes that it has been filled with.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }
}

#[cfg(feature = "soft")]
impl StreamRoom<'_> {
    /// Returns how many bytes of a payload of this length at this place it takes, from the first one on. None if the payload is
    /// for another place than the next.
    pub(crate) fn takes(&self, place: RemoteAddress, length: usize) -> usize {
        if place == self.place { length.min(self.left) } else { 0 }
    }

    /// The room for the next `length` bytes. [`fill`](Self::fill) follows.
    pub(crate) fn target(&mut self, length: usize) -> Target<'_> {
        Target::append(&mut *self.into, length.min(self.left))
    }

    /// So many bytes have been received in [`target`](Self::target).
    pub(crate) fn fill(&mut self, length: usize) {
        self.left -= length;
        self.filled += length;
        self.place.address = self.place.address.wrapping_add(length as u64);
    }

    /// Copies bytes that it [`takes`](Self::takes).
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.into.put_slice(bytes);
        self.fill(bytes.len());
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }
}
