//! The messages of a byte stream, for a provider that frames them itself.
//!
//! On a device a stream posts requests for registered memory. The soft provider can do without: it takes the bytes of
//! the caller straight to the socket, and returns how many there was room for. It reads into the memory of the caller
//! what the peer writes to the place that is read next, and puts the Sends of the peer into an inbox: no receive is
//! posted for them.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::task::Waker;

use bytes::BufMut;
use tokio::io::ReadBuf;

use super::work::RemoteAddress;
#[cfg(feature = "soft")]
use crate::inflight::WakeList;
#[cfg(feature = "soft")]
use crate::memory::Target;
use crate::sync::Mutex;

/// The length of the payload of a Send of a stream.
pub(crate) const WORD: usize = 4;

/// A message: bytes of the caller's for memory of the peer, and behind them a Send with their number.
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

/// The buffer of a reader.
pub(crate) trait ReadInto: BufMut {
    /// Returns the part of it that is not filled, as far as it is initialised.
    fn initialized(&mut self) -> &mut [u8];

    /// Marks the first bytes of that part as filled.
    fn advance(&mut self, length: usize);
}

impl ReadInto for ReadBuf<'_> {
    fn initialized(&mut self) -> &mut [u8] {
        let filled = self.filled().len();
        &mut self.initialized_mut()[filled..]
    }

    fn advance(&mut self, length: usize) {
        ReadBuf::advance(self, length);
    }
}

/// The room of a reader, for payload that the peer writes to the place that is read next.
pub(crate) struct StreamRoom<'a> {
    into: &'a mut (dyn ReadInto + 'a),
    /// The number of bytes that it still takes.
    left: usize,
    filled: usize,
    /// The place in the memory of this end that the next byte is for.
    place: RemoteAddress,
}

impl<'a> StreamRoom<'a> {
    /// Creates room for at most `most` of the bytes that are written to `place` and behind it.
    pub(crate) fn new(into: &'a mut (dyn ReadInto + 'a), most: usize, place: RemoteAddress) -> Self {
        let left = most.min(into.remaining_mut());
        Self { into, left, filled: 0, place }
    }

    /// Returns the number of bytes that it has been filled with.
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

    /// Returns the room as memory, as far as it is initialised, if the next byte is for this place.
    /// [`advance`](Self::advance) follows.
    pub(crate) fn initialized(&mut self, place: RemoteAddress) -> &mut [u8] {
        if place == self.place { self.rest() } else { &mut [] }
    }

    /// Returns the room as memory, as far as it is initialised.
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        let rest = self.into.initialized();
        let length = self.left.min(rest.len());
        &mut rest[..length]
    }

    /// Marks the next bytes of the memory as filled.
    pub(crate) fn advance(&mut self, length: usize) {
        self.into.advance(length);
        self.fill(length);
    }
}

/// A Send of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamSend {
    Word([u8; WORD]),
    /// One of another length, in bytes, or of another kind.
    Other(usize),
}

/// The Sends of the peer of a stream that the stream has not taken yet, in order.
#[derive(Debug)]
pub(crate) struct StreamInbox {
    inbox: Mutex<Inbox>,
    depth: usize,
    ring: u64,
}

#[derive(Debug, Default)]
struct Inbox {
    sends: VecDeque<StreamSend>,
    /// Wakes the stream, if `listens`.
    waker: Option<Waker>,
    listens: bool,
    /// Nothing has come for a while.
    idle: bool,
    end: End,
}

/// The end of the messages, and whether the stream has taken it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// Nothing more comes, and that was not taken yet.
    Reached,
    Told,
}

/// The next news in an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamNews {
    Send(StreamSend),
    /// Nothing has been written for the stream for a while: memory that it does not use can be given back.
    Idle,
    /// Nothing more comes. Taken once.
    Ended,
}

impl StreamInbox {
    /// Creates an inbox for at most `depth` Sends at a time. The ring that the peer writes is from the offset `ring`
    /// on.
    pub(crate) fn new(depth: usize, ring: u64) -> Arc<Self> {
        Arc::new(Self { inbox: Mutex::default(), depth, ring })
    }

    /// Takes the next news, if there is one.
    pub(crate) fn take(&self) -> Option<StreamNews> {
        let mut inbox = self.inbox.lock();
        match (inbox.sends.pop_front(), inbox.end) {
            (Some(send), _) => Some(StreamNews::Send(send)),
            (None, _) if std::mem::take(&mut inbox.idle) => Some(StreamNews::Idle),
            (None, End::Reached) => {
                inbox.end = End::Told;
                Some(StreamNews::Ended)
            }
            (None, End::Open | End::Told) => None,
        }
    }

    /// Returns whether there is no news.
    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.lock().is_empty()
    }

    /// Has this waker woken, once, when there is news. Returns `true` if there is already.
    pub(crate) fn listen(&self, waker: &Waker) -> bool {
        let mut inbox = self.inbox.lock();
        if !inbox.is_empty() {
            return true;
        }
        inbox.listens = inbox.end == End::Open;
        let known = inbox.waker.as_ref().is_some_and(|known| known.will_wake(waker));
        let old = if known { None } else { inbox.waker.replace(waker.clone()) };
        drop(inbox);
        drop(old);
        false
    }
}

#[cfg(feature = "soft")]
impl StreamInbox {
    /// Returns the offset from where on the peer writes the ring.
    pub(crate) fn ring(&self) -> u64 {
        self.ring
    }

    /// Delivers a Send of the peer. Returns `false` if there are as many as there may be.
    #[must_use]
    pub(crate) fn deliver(&self, send: StreamSend, wakes: &mut WakeList) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.sends.len() >= self.depth {
            return false;
        }
        inbox.sends.push_back(send);
        inbox.wake(wakes);
        true
    }

    /// Delivers the news that nothing has been written for a while.
    pub(crate) fn rest(&self, wakes: &mut WakeList) {
        let mut inbox = self.inbox.lock();
        inbox.idle = true;
        inbox.wake(wakes);
    }

    /// Delivers the news that nothing more comes.
    pub(crate) fn end(&self, wakes: &mut WakeList) {
        let mut inbox = self.inbox.lock();
        if inbox.end == End::Open {
            inbox.end = End::Reached;
            inbox.wake(wakes);
        }
    }
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.sends.is_empty() && !self.idle && self.end != End::Reached
    }

    #[cfg(feature = "soft")]
    fn wake(&mut self, wakes: &mut WakeList) {
        if std::mem::take(&mut self.listens) {
            wakes.extend(self.waker.clone());
        }
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
