//! Sessions: streams that go on over another connection when theirs is lost.
//!
//! Each end counts the bytes of the stream, from its first one on: what its program has written, what of it the peer's program
//! has read, and what its own program has read. It keeps the bytes that it has written until the peer's program has read them. So
//! a connection can be lost at any moment, with all that is under way: the active end connects again, both ends say how much
//! their programs have read ([`Greeting`]), and each sends what follows that.
//!
//! This module has the counts and the messages, which are the first bytes of a connection whose hellos have the flag for
//! sessions. It keeps no byte and sends nothing.

mod message;
mod siphash;

pub(crate) use message::{Greeting, GreetingBytes, Id, Kind, Secret};

/// The number of bits of a count in an acknowledgement of rsocket's messages.
const COUNT_BITS: u32 = 29;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// The most bytes that an end may keep: counts beyond it would be ambiguous.
pub(crate) const MOST_KEPT: u64 = COUNT / 2;

/// The most bytes after which a report is due: until then the peer keeps them in the caches of its processor.
const MOST_STEP: u64 = 128 << 10;

/// The counts of one end, in bytes from the start of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Counts {
    /// The peer's program has read so much.
    acknowledged: u64,
    /// So much was sent, over the present connection or one before.
    sent: u64,
    /// The program of this end has written so much.
    written: u64,
    /// The most bytes that are kept for the peer.
    window: u64,
    /// The program of this end has read so much, and has reported so much to the peer.
    read: u64,
    reported: u64,
    /// The number of bytes from which on a report is due.
    step: u64,
}

/// A peer whose counts cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction;

impl Counts {
    /// Starts a stream. The ends keep so many bytes, this one and the peer.
    pub(crate) fn new(window: u64, peers: u64) -> Self {
        let (window, step) = (window.clamp(1, MOST_KEPT), (peers / 4).clamp(1, MOST_STEP));
        Self { acknowledged: 0, sent: 0, written: 0, window, read: 0, reported: 0, step }
    }

    /// Returns the number of bytes that the program may write now. None while bytes of before a loss wait to be sent again.
    pub(crate) fn room(&self) -> u64 {
        if self.sent < self.written { 0 } else { self.window.saturating_sub(self.kept()) }
    }

    /// Returns the number of bytes that are kept: written, and not acknowledged.
    pub(crate) fn kept(&self) -> u64 {
        self.written - self.acknowledged
    }

    /// Returns where the bytes that wait to be sent again begin, among those that are kept.
    pub(crate) fn unsent_from(&self) -> u64 {
        self.sent - self.acknowledged
    }

    /// Returns whether bytes wait to be sent again.
    pub(crate) fn has_unsent(&self) -> bool {
        self.sent < self.written
    }

    /// Notes that the program has written so many bytes, which have been sent.
    pub(crate) fn write(&mut self, bytes: u64) {
        debug_assert!(!self.has_unsent());
        self.written += bytes;
        self.sent = self.written;
    }

    /// Notes that so many of the bytes that wait to be sent again have been.
    pub(crate) fn send_again(&mut self, bytes: u64) {
        self.sent = (self.sent + bytes).min(self.written);
    }

    /// Notes that the program has read so many bytes. Returns whether the peer does not know of some of them.
    pub(crate) fn read(&mut self, bytes: u64) -> bool {
        self.read += bytes;
        self.read > self.reported
    }

    /// Returns whether so much has been read that a report is due.
    pub(crate) fn is_acknowledgement_due(&self) -> bool {
        self.read - self.reported >= self.step
    }

    /// Returns what is to be reported to the peer, if there is anything.
    pub(crate) fn take_acknowledgement(&mut self) -> Option<u32> {
        if self.read == self.reported {
            return None;
        }
        self.reported = self.read;
        // Of as many bits.
        u32::try_from(self.read & COUNT).ok()
    }

    /// Takes a report of the peer. Returns the number of bytes that it frees.
    ///
    /// # Errors
    /// The peer has read more than was sent.
    pub(crate) fn acknowledge(&mut self, reported: u32) -> Result<u64, Contradiction> {
        let more = u64::from(reported).wrapping_sub(self.acknowledged) & COUNT;
        if more > self.sent - self.acknowledged {
            return Err(Contradiction);
        }
        self.acknowledged += more;
        Ok(more)
    }

    /// Returns the number of bytes that the program has read, for a [`Greeting`].
    pub(crate) fn progress(&self) -> u64 {
        self.read
    }

    /// Goes on over another connection, whose other end has read so much, and knows how much this end has. Returns the number of
    /// bytes that this frees. What follows them waits to be sent again.
    ///
    /// # Errors
    /// The peer has read more than was sent, or less than it has acknowledged. Nothing has changed then.
    pub(crate) fn resume(&mut self, peers: u64) -> Result<u64, Contradiction> {
        if peers > self.sent_ever() || peers < self.acknowledged {
            return Err(Contradiction);
        }
        let more = peers - self.acknowledged;
        (self.acknowledged, self.sent, self.reported) = (peers, peers, self.read);
        Ok(more)
    }

    /// Returns the number of bytes that may have reached the peer, over this connection or one before. All that the
    /// program has written was once sent, or is behind bytes that were.
    fn sent_ever(&self) -> u64 {
        self.written
    }
}

#[cfg(test)]
mod tests;
