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

use super::siphash::siphash;

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
