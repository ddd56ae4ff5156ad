//! Start-up frames as a peer reads them (RFC 5044 section 7.1.1, RFC 6581).

use common::raw::{ENHANCED, REJECT, Start};

/// The most bytes behind the header.
pub(crate) const MOST_DATA: usize = 512;
/// The bytes before the private data: key, flags, revision, length.
const HEADER: usize = 20;
/// The bytes of the read limits.
const LIMITS: usize = 4;
/// From this many bytes on the length field of siw counts from zero again.
const SIW_WRAP: usize = 256;

/// The meaning of bytes as the beginning of a frame.
#[derive(Clone, Debug)]
pub(crate) enum Parsed {
    /// There is more to come.
    Part,
    /// No frame starts like this.
    Bad,
    /// A frame of this many bytes. Its words are there only from revision 2 on, with the flag S.
    Whole(Start, usize),
}

/// Reads a frame with this key.
pub(crate) fn parse(key: &[u8; 16], bytes: &[u8]) -> Parsed {
    let seen = bytes.len().min(key.len());
    if bytes[..seen] != key[..seen] {
        return Parsed::Bad;
    }
    let Some(head) = bytes.get(..HEADER) else { return Parsed::Part };
    let (flags, revision) = (u16::from(head[16]) << 8, head[17]);
    let mut length = usize::from(u16::from_be_bytes([head[18], head[19]]));
    if length > MOST_DATA {
        return Parsed::Bad;
    }
    let enhanced = flags & ENHANCED != 0;
    if enhanced && flags & REJECT == 0 && revision == 2 && length < LIMITS {
        length += SIW_WRAP;
    }
    let Some(data) = bytes.get(HEADER..HEADER + length) else { return Parsed::Part };
    let word = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    let has_limits = enhanced && revision >= 2 && length >= LIMITS;
    let words = has_limits.then(|| (word(0), word(2)));
    let data = if has_limits { &data[LIMITS..] } else { data };
    Parsed::Whole(Start { flags, revision, words, data: data.to_vec() }, HEADER + length)
}
