//! The bytes that the server and the client agree on: the table that clients read, and the messages of a change.

use std::collections::BTreeMap;
use std::io;

/// The size of a bucket, in bytes. A client reads one bucket at a time.
pub(crate) const BUCKET: usize = 1024;
/// The sequence number and the checksum at the start of a bucket.
const HEAD: usize = 16;
/// The longest key in bytes: its length takes one byte, and 0 marks the end of a bucket.
pub(crate) const LONGEST_KEY: usize = 64;
/// The longest message of a change: its kind, the length of the key, the key, the value.
pub(crate) const REQUEST: usize = 2 + LONGEST_KEY + BUCKET;
/// The size of an answer: the outcome and a sequence number.
pub(crate) const ANSWER: usize = 9;

/// The pairs of one bucket.
pub(crate) type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// FNV-1a, of 64 bits. It detects accidents and spreads keys; it resists no attacker.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The offset in the table of the bucket of a key. Both sides compute it, so the server is not asked.
pub(crate) fn offset(key: &[u8], table: usize) -> usize {
    let buckets = (table / BUCKET).max(1) as u64;
    (hash(&[key]) % buckets) as usize * BUCKET
}

/// A bucket: the sequence number, the checksum of everything else, and the pairs. `None` if the pairs do not fit.
pub(crate) fn encode(sequence: u64, pairs: &Pairs) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    for (key, value) in pairs {
        bytes.push(u8::try_from(key.len()).ok()?);
        bytes.extend(u16::try_from(value.len()).ok()?.to_be_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    if bytes.len() > BUCKET {
        return None;
    }
    bytes.resize(BUCKET, 0);
    bytes[..8].copy_from_slice(&sequence.to_be_bytes());
    let checksum = hash(&[&bytes[..8], &bytes[HEAD..]]);
    bytes[8..HEAD].copy_from_slice(&checksum.to_be_bytes());
    Some(bytes)
}

/// The sequence number of a bucket, and the value of a key in it. `None` if the bucket was changed while it was read.
///
/// Equal sequence numbers at both ends of the bucket would not prove that it is whole, because an adapter may read the
/// bytes in any order. The checksum does.
pub(crate) fn decode(bytes: &[u8], key: &[u8]) -> Option<(u64, Option<Vec<u8>>)> {
    let (sequence, rest) = bytes.split_first_chunk()?;
    let (checksum, mut rest) = rest.split_first_chunk()?;
    if u64::from_be_bytes(*checksum) != hash(&[sequence, rest]) {
        return None;
    }
    let sequence = u64::from_be_bytes(*sequence);
    while let Some(([length, high, low], pairs)) = rest.split_first_chunk() {
        if *length == 0 {
            break;
        }
        let (found, pairs) = pairs.split_at_checked(usize::from(*length))?;
        let (value, pairs) = pairs.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
        if found == key {
            return Some((sequence, Some(value.to_vec())));
        }
        rest = pairs;
    }
    Some((sequence, None))
}

/// A change of the store.
pub(crate) enum Change {
    Put { key: Vec<u8>, value: Vec<u8> },
    Delete { key: Vec<u8> },
}

impl Change {
    /// A change that stores a value.
    ///
    /// # Errors
    /// `InvalidInput` if the key is empty or too long, or no bucket has room for the value.
    pub(crate) fn put(key: &[u8], value: &[u8]) -> io::Result<Self> {
        check_key(key)?;
        let (length, most) = (value.len(), BUCKET - HEAD - 3 - key.len());
        if length > most {
            return Err(invalid(format!(
                "a value for this key has at most {most} bytes, and this one has {length}"
            )));
        }
        Ok(Self::Put { key: key.to_vec(), value: value.to_vec() })
    }

    /// A change that removes a value.
    ///
    /// # Errors
    /// `InvalidInput` if the key is empty or too long.
    pub(crate) fn delete(key: &[u8]) -> io::Result<Self> {
        check_key(key)?;
        Ok(Self::Delete { key: key.to_vec() })
    }

    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, value) = match self {
            Self::Put { value, .. } => (b'p', &value[..]),
            Self::Delete { .. } => (b'd', &[][..]),
        };
        // `check_key` has limited the length.
        [&[kind, self.key().len() as u8], self.key(), value].concat()
    }

    /// # Errors
    /// `InvalidInput` if the message is no change.
    pub(crate) fn decode(message: &[u8]) -> io::Result<Self> {
        let fields = message.split_first_chunk().and_then(|([kind, length], rest)| {
            let (key, value) = rest.split_at_checked(usize::from(*length))?;
            Some((kind, key, value))
        });
        match fields {
            Some((b'p', key, value)) => Self::put(key, value),
            Some((b'd', key, [])) => Self::delete(key),
            _ => Err(invalid("the message is no change".to_owned())),
        }
    }
}

fn check_key(key: &[u8]) -> io::Result<()> {
    if (1..=LONGEST_KEY).contains(&key.len()) {
        return Ok(());
    }
    Err(invalid(format!("a key has 1 to {LONGEST_KEY} bytes, and this one has {}", key.len())))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The server's answer to a change.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// The bucket of the key has this sequence number now.
    Done(u64),
    /// The bucket of the key is full.
    Full,
}

impl Answer {
    pub(crate) fn encode(self) -> [u8; ANSWER] {
        let (outcome, sequence) = match self {
            Self::Done(sequence) => (0, sequence),
            Self::Full => (1, 0),
        };
        let mut bytes = [outcome; ANSWER];
        bytes[1..].copy_from_slice(&u64::to_be_bytes(sequence));
        bytes
    }

    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let (outcome, sequence) = message.split_first()?;
        match outcome {
            0 => Some(Self::Done(u64::from_be_bytes(sequence.try_into().ok()?))),
            1 => Some(Self::Full),
            _ => None,
        }
    }
}
