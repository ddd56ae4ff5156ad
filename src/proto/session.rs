//! Sessions: streams that go on over another connection when theirs is lost.
//!
//! Each end counts the bytes of the stream, from its first one on: what its program has written, what of it the peer's program
//! has read, and what its own program has read. It keeps the bytes that it has written until the peer's program has read them. So
//! a connection can be lost at any moment, with all that is under way: the active end connects again, both ends say how much
//! their programs have read ([`Greeting`]), and each sends what follows that.
//!
//! This module has the counts and the messages, which are the first bytes of a connection whose hellos have the flag for
//! sessions. It keeps no byte and sends nothing.
//!
//! The message with which each end of a session begins a connection: the active end asks, the passive end answers.
//!
//! | offset | length | content |
//! |---|---|---|
//! | 0 | 4 | `RdSe` |
//! | 4 | 1 | the version, 1 |
//! | 5 | 1 | the [`Kind`] |
//! | 6 | 2 | 0 |
//! | 8 | 4 | how many bytes this end keeps for the peer at most |
//! | 12 | 4 | milliseconds for which this end keeps the session without a connection |
//! | 16 | 16 | the id of the session; 0 in an `Open` |
//! | 32 | 8 | the epoch: that of the attempt to resume, and of the answer to it |
//! | 40 | 8 | how many bytes the program of this end has read |
//! | 48 | 16 | the secret of the session in the answer to an `Open`, or 0 |
//! | 64 | 16 | the proof; 0 in an `Open` |
//!
//! Numbers are big-endian. The proof is the SipHash-2-4 of all that is before it, of 128 bits, with the secret as its key.

use std::fmt;
use std::time::Duration;

use siphash::siphash;

mod siphash;

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

const MAGIC: [u8; 4] = *b"RdSe";
const VERSION: u8 = 1;

/// The number by which an end finds a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(crate) [u8; 16]);

impl Id {
    /// Returns a short name, which is not enough to resume the session.
    #[cfg(feature = "inspect")]
    pub(crate) fn short(self) -> String {
        let [a, b, c, d, ..] = self.0;
        format!("{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

/// What only the two ends of a session know.
#[derive(Clone, Copy, Default)]
pub(crate) struct Secret(pub(crate) [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    fn prove(&self, bytes: &[u8]) -> [u8; 16] {
        siphash(self.0, bytes)
    }

    /// Returns whether the proof is that of who knows the secret, in a time that does not depend on where it differs.
    fn proves(&self, bytes: &[u8], proof: &[u8]) -> bool {
        let known = self.prove(bytes);
        known.iter().zip(proof).fold(0, |differs, (known, found)| differs | (known ^ found)) == 0
    }
}

/// What a message asks or answers: its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The active end asks for a session.
    Open = 1,
    /// It asks to go on with one.
    Resume = 2,
    /// The passive end agrees.
    Granted = 3,
    /// There is no such session, or the proof is not that of its peer: who asks does not learn which.
    Unknown = 4,
    /// The session exists, and cannot go on with these counts or in this epoch.
    Refused = 5,
    /// The stream has ended for both ends, and the sender has received all of it.
    Over = 6,
    /// The active end has given the stream up.
    Abandoned = 7,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Open, Self::Resume, Self::Granted, Self::Unknown, Self::Refused, Self::Over, Self::Abandoned];
}

/// The first message of an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting {
    pub(crate) kind: Kind,
    pub(crate) window: u32,
    pub(crate) gives_up_after: Duration,
    pub(crate) id: Id,
    pub(crate) epoch: u64,
    pub(crate) read: u64,
    pub(crate) secret: Secret,
}

/// The bytes of a message.
pub(crate) type GreetingBytes = [u8; 80];

/// The length of what the proof is of.
const PROVEN: usize = 64;

impl Greeting {
    /// Encodes it, with the proof that this end knows the secret of the session.
    pub(crate) fn to_bytes(self, proof: &Secret) -> GreetingBytes {
        let Self { kind, window, gives_up_after, id, epoch, read, secret } = self;
        let milliseconds = u32::try_from(gives_up_after.as_millis()).unwrap_or(u32::MAX);
        let fields: [&[u8]; 8] = [
            &MAGIC,
            &[VERSION, kind as u8, 0, 0],
            &window.to_be_bytes(),
            &milliseconds.to_be_bytes(),
            &id.0,
            &epoch.to_be_bytes(),
            &read.to_be_bytes(),
            &secret.0,
        ];
        let mut bytes = [0; size_of::<GreetingBytes>()];
        let mut rest: &mut [u8] = &mut bytes;
        for field in fields {
            let (place, behind) = rest.split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = behind;
        }
        let (proven, place) = bytes.split_at_mut(PROVEN);
        place.copy_from_slice(&proof.prove(proven));
        bytes
    }

    /// Decodes it. `None` if it is something else.
    pub(crate) fn decode(bytes: &GreetingBytes) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let ([version, kind, _, _], rest) = rest.split_first_chunk()?;
        let (window, rest) = rest.split_first_chunk()?;
        let (milliseconds, rest) = rest.split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (read, rest) = rest.split_first_chunk()?;
        let (secret, _) = rest.split_first_chunk()?;
        if *magic != MAGIC || *version != VERSION {
            return None;
        }
        Some(Self {
            kind: Kind::ALL.into_iter().find(|known| *known as u8 == *kind)?,
            window: u32::from_be_bytes(*window),
            gives_up_after: Duration::from_millis(u32::from_be_bytes(*milliseconds).into()),
            id: Id(*id),
            epoch: u64::from_be_bytes(*epoch),
            read: u64::from_be_bytes(*read),
            secret: Secret(*secret),
        })
    }

    /// Returns whether the message is of an end that knows the secret.
    pub(crate) fn is_proven(bytes: &GreetingBytes, secret: &Secret) -> bool {
        let (proven, proof) = bytes.split_at(PROVEN);
        secret.proves(proven, proof)
    }
}

#[cfg(test)]
mod tests;
