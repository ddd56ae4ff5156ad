//! The messages of a byte stream, for a provider that frames them itself.
//!
//! On a device a stream posts requests for registered memory. The soft provider can do without: it takes the bytes of
//! the caller straight to the socket, and returns how many there was room for. It reads into the memory of the caller
//! what the peer writes to the place that is read next. No receive is posted for the Sends of the peer: they go to the
//! [`StreamInbox`](crate::inflight::StreamInbox).

use std::io::IoSlice;

use bytes::BufMut;

use super::work::RemoteAddress;
use crate::inflight::WORD;
#[cfg(feature = "soft")]
use crate::memory::{Received, Spare, Target};

/// A message: bytes of the caller's for memory of the peer, and behind them a Send with their number; or, if they are few, a Send of
/// both.
pub(crate) struct StreamMessage<'a> {
    pub(crate) parts: &'a [IoSlice<'a>],
    /// The number of bytes that the peer has room for, at most as many as there are. At least one.
    pub(crate) length: usize,
    pub(crate) to: RemoteAddress,
    /// The peer takes the bytes of a short message in the Send, behind its word.
    pub(crate) in_send: bool,
    /// The word of the Send behind so many bytes.
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

/// The bytes of a connection by which the end of a stream distinguishes a slow path from a peer that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The number of bytes that the peer's kernel has acknowledged; `None` if it has acknowledged all.
    pub(crate) acknowledged: Option<u64>,
    /// The number of bytes that have come from the peer: its answer is behind what it had queued.
    pub(crate) received: u64,
}

impl Progress {
    /// So many bytes that come from the peer are progress: empty messages are not.
    const RECEIVED: u64 = 64 * 1024;

    /// Returns whether the connection has made progress since then.
    pub(crate) fn is_beyond(&self, before: &Self) -> bool {
        let has_acknowledged = match (before.acknowledged, self.acknowledged) {
            (Some(before), Some(now)) => now > before,
            // The last byte is progress, too. What is sent later, such as a probe, is none for a peer that had everything.
            (Some(_), None) => true,
            (None, _) => false,
        };
        has_acknowledged || self.received >= before.received + Self::RECEIVED
    }
}

/// The room of a reader, for payload that the peer writes to the place that is read next.
pub(crate) struct StreamRoom<'a> {
    into: &'a mut (dyn BufMut + 'a),
    /// The number of bytes that it still takes.
    left: usize,
    filled: usize,
    /// The place in the memory of this end that the next byte is for.
    place: RemoteAddress,
}

impl<'a> StreamRoom<'a> {
    /// Creates room for at most `most` of the bytes that are written to `place` and behind it.
    pub(crate) fn new(into: &'a mut (dyn BufMut + 'a), most: usize, place: RemoteAddress) -> Self {
        let left = most.min(into.remaining_mut());
        Self { into, left, filled: 0, place }
    }

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

    /// Returns the room for the next `length` bytes. [`fill`](Self::fill) follows.
    pub(crate) fn target(&mut self, length: usize) -> Target<'_> {
        Target::append(&mut *self.into, length.min(self.left))
    }

    /// Counts bytes that have been received in [`target`](Self::target).
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

    /// Returns the place that the next byte is for.
    pub(crate) fn place(&self) -> RemoteAddress {
        self.place
    }

    /// Returns how many of the next bytes are in one piece of memory, if the next byte is for this place.
    pub(crate) fn contiguous(&mut self, place: RemoteAddress) -> usize {
        if place == self.place { self.left.min(self.into.chunk_mut().len()) } else { 0 }
    }

    /// Cuts the room into pieces of these lengths, for one read. [`fill_with`](Self::fill_with) follows.
    pub(crate) fn cut(&mut self, lengths: impl Iterator<Item = usize>) -> impl Iterator<Item = Spare<'_>> {
        Spare::cut(&mut *self.into, lengths)
    }

    /// Fills the next `length` bytes, which the pieces have received.
    pub(crate) fn fill_with(&mut self, received: &mut Received, length: usize) {
        let appended = received.append_to(&mut *self.into, length);
        debug_assert!(appended, "the pieces are of this room, and have received the bytes");
        self.fill(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The last acknowledged byte counts, and so do 64 KiB from the peer; what is sent after that does not (IO-03).
    #[test]
    fn progress_is_bytes_of_either_direction() {
        let progress = |acknowledged, received| Progress { acknowledged, received };
        let before = progress(Some(7), 100);
        for now in [progress(Some(8), 100), progress(None, 100), progress(Some(7), 100 + 65536)] {
            assert!(now.is_beyond(&before), "{now:?}");
        }
        assert!(!progress(Some(7), 100 + 65535).is_beyond(&before));
        assert!(!progress(Some(9), 100).is_beyond(&progress(None, 100)), "a probe");
    }
}
