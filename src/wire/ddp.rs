//! DDP segment headers with their RDMAP control byte (RFC 5041 sections 4.2 and 4.3, RFC 5040 section 4.1).
//!
//! The two control bytes are always parsed together: DDP carries the second one for RDMAP ("RsvdULP").
//! Encoded headers start with the MPA length field, so that header and length go out in one piece.
//!
//! This file and `rdmap` name each other: a DDP header carries the RDMAP opcode, and a Terminate carries a DDP header.

use super::array;
use super::mpa::{LENGTH_SIZE, MAX_ULPDU};
use super::rdmap::Opcode;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION: u8 = 0x01;
const DDP_VERSION_MASK: u8 = 0x03;
const RDMAP_VERSION: u8 = 0x40;
const RDMAP_VERSION_MASK: u8 = 0xc0;
const OPCODE_MASK: u8 = 0x0f;

/// Returns the two control bytes: T, L and DDP version; RDMAP version and opcode. Reserved bits are zero.
const fn control(tagged: bool, last: bool, opcode: Opcode) -> [u8; 2] {
    let t = if tagged { TAGGED } else { 0 };
    let l = if last { LAST } else { 0 };
    [t | l | DDP_VERSION, RDMAP_VERSION | opcode as u8]
}

/// Returns the length field of a ULPDU. Header and payload fit into a ULPDU.
fn length_field(header: usize, payload_len: usize) -> [u8; 2] {
    debug_assert!(payload_len <= MAX_ULPDU - header);
    u16::try_from(payload_len.saturating_add(header)).unwrap_or(u16::MAX).to_be_bytes()
}

/// The header of a tagged segment: Write and Read Response (RFC 5041 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tagged {
    /// L: the last segment of its message.
    pub(crate) last: bool,
    pub(crate) opcode: Opcode,
    /// The key of the region in which the payload is placed.
    pub(crate) stag: u32,
    /// The offset in the region.
    pub(crate) to: u64,
}

impl Tagged {
    /// The length of the header.
    pub(crate) const LEN: usize = 14;
    /// The most payload of a segment: its FPDU then fills the 16-bit length and needs no padding.
    pub(crate) const FULL: usize = 65_520;

    /// Returns the length field and the header of a segment with `payload_len` bytes of payload.
    pub(crate) fn encode(&self, payload_len: usize) -> [u8; LENGTH_SIZE + Self::LEN] {
        let mut out = [0; LENGTH_SIZE + Self::LEN];
        out[0..2].copy_from_slice(&length_field(Self::LEN, payload_len));
        out[2..4].copy_from_slice(&control(true, self.last, self.opcode));
        out[4..8].copy_from_slice(&self.stag.to_be_bytes());
        out[8..16].copy_from_slice(&self.to.to_be_bytes());
        out
    }
}

/// The header of an untagged segment: all messages except Write and Read Response (RFC 5041 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untagged {
    /// L: the last segment of its message.
    pub(crate) last: bool,
    pub(crate) opcode: Opcode,
    /// The STag that a Send with Invalidate invalidates. Reserved in other messages: sent as 0 and ignored.
    pub(crate) invalidate: u32,
    /// The queue number, see [`queue`](super::rdmap::queue).
    pub(crate) qn: u32,
    /// The number of the message in its queue, from 1.
    pub(crate) msn: u32,
    /// The offset of the segment in its message.
    pub(crate) mo: u32,
}

impl Untagged {
    /// The length of the header.
    pub(crate) const LEN: usize = 18;
    /// The most payload of a segment: its FPDU then fills the 16-bit length and needs no padding.
    pub(crate) const FULL: usize = 65_516;

    /// Returns the header of a message of one segment.
    #[inline]
    pub(crate) const fn whole(opcode: Opcode, qn: u32, msn: u32) -> Self {
        Self { last: true, opcode, invalidate: 0, qn, msn, mo: 0 }
    }

    /// Returns the length of the payload if this header is at the start of a segment, whatever its reserved field contains.
    #[inline]
    pub(crate) fn matches(&self, start: &[u8; LENGTH_SIZE + Self::LEN]) -> Option<usize> {
        // Word by word: an array that was written by parts would be read slowly.
        let [l0, l1, c0, c1, _, _, _, _, q0, q1, q2, q3, s0, s1, s2, s3, o0, o1, o2, o3] = *start;
        let is_same = [c0, c1] == control(false, self.last, self.opcode)
            && u32::from_be_bytes([q0, q1, q2, q3]) == self.qn
            && u32::from_be_bytes([s0, s1, s2, s3]) == self.msn
            && u32::from_be_bytes([o0, o1, o2, o3]) == self.mo;
        usize::from(u16::from_be_bytes([l0, l1])).checked_sub(Self::LEN).filter(|_| is_same)
    }

    /// Returns the length field and the header of a segment with `payload_len` bytes of payload.
    pub(crate) fn encode(&self, payload_len: usize) -> [u8; LENGTH_SIZE + Self::LEN] {
        let mut out = [0; LENGTH_SIZE + Self::LEN];
        out[0..2].copy_from_slice(&length_field(Self::LEN, payload_len));
        out[2..4].copy_from_slice(&control(false, self.last, self.opcode));
        out[4..8].copy_from_slice(&self.invalidate.to_be_bytes());
        out[8..12].copy_from_slice(&self.qn.to_be_bytes());
        out[12..16].copy_from_slice(&self.msn.to_be_bytes());
        out[16..20].copy_from_slice(&self.mo.to_be_bytes());
        out
    }
}

/// A segment header of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// T = 1.
    Tagged(Tagged),
    /// T = 0.
    Untagged(Untagged),
}

/// The highest number of segments in a header, which stands for any number from there on.
pub(crate) const MANY_FOLLOW: usize = 63;

/// Adds to an encoded header how many full segments of its message follow, in the reserved bits: four of DDP
/// and, above them, two of RDMAP.
pub(crate) fn announce(header: &mut [u8], follow: usize) {
    let follow = follow.min(MANY_FOLLOW) as u8;
    header[2] |= (follow & 0x0f) << 2;
    header[3] |= follow & 0x30;
}

/// Returns how many full segments follow, as an encoded header says.
pub(crate) fn announced(header: &[u8]) -> usize {
    let (ddp, rdmap) = (header[2], header[3]);
    usize::from((ddp >> 2) & 0x0f | rdmap & 0x30)
}

/// The error of decoding a header.
///
/// All errors except [`Truncated`](Self::Truncated) end the stream with the Terminate that
/// [`Terminate::for_header`](super::rdmap::Terminate::for_header) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// More bytes are needed. The peer has made no error.
    Truncated,
    /// The ULPDU is shorter than its header: LLP/MPA/3 (RFC 5044 section 8), as siw responds.
    Short,
    /// A DDP version other than 1: DDP/tagged/4 or DDP/untagged/6, by the T bit (RFC 5041 section 7.2).
    DdpVersion { tagged: bool },
    /// An RDMAP version other than 1: RDMAP/remote operation/5 (RFC 5040 section 4.8).
    RdmapVersion,
    /// The opcode does not exist: RDMAP/remote operation/6.
    Opcode(u8),
    /// The opcode and the T bit do not match: RDMAP/remote operation/6.
    TaggedMismatch,
}

impl Header {
    /// Decodes the header at the start of `fpdu`, which starts with the MPA length field.
    ///
    /// Returns the header, the length of the payload, and the number of bytes of length field and header.
    ///
    /// Reserved bits are ignored; [`announced`] reads them. Versions are checked when the whole header has arrived, so that the Terminate can
    /// contain it; the header is never longer than the announced ULPDU.
    #[inline]
    pub(crate) fn decode(fpdu: &[u8]) -> Result<(Self, usize, usize), HeaderError> {
        let length = array(fpdu, 0).map(u16::from_be_bytes).ok_or(HeaderError::Truncated)?;
        let length = usize::from(length);
        if length < Tagged::LEN {
            return Err(HeaderError::Short);
        }
        let [ddp, rdmap] = array(fpdu, 2).ok_or(HeaderError::Truncated)?;
        let tagged = ddp & TAGGED != 0;
        let header = if tagged { Tagged::LEN } else { Untagged::LEN };
        let payload = length.checked_sub(header).ok_or(HeaderError::Short)?;
        if fpdu.len() < LENGTH_SIZE + header {
            return Err(HeaderError::Truncated);
        }
        if ddp & DDP_VERSION_MASK != DDP_VERSION {
            return Err(HeaderError::DdpVersion { tagged });
        }
        if rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION {
            return Err(HeaderError::RdmapVersion);
        }
        let number = rdmap & OPCODE_MASK;
        let opcode = Opcode::from_number(number).ok_or(HeaderError::Opcode(number))?;
        if opcode.is_tagged() != tagged {
            return Err(HeaderError::TaggedMismatch);
        }
        let last = ddp & LAST != 0;
        let word = |at| array(fpdu, at).map(u32::from_be_bytes).ok_or(HeaderError::Truncated);
        let parsed = if tagged {
            let to = array(fpdu, 8).map(u64::from_be_bytes).ok_or(HeaderError::Truncated)?;
            Self::Tagged(Tagged { last, opcode, stag: word(4)?, to })
        } else {
            let (invalidate, qn, msn, mo) = (word(4)?, word(8)?, word(12)?, word(16)?);
            Self::Untagged(Untagged { last, opcode, invalidate, qn, msn, mo })
        };
        Ok((parsed, payload, LENGTH_SIZE + header))
    }

    /// Returns the header of a segment of the same message whose payload begins `length` bytes behind that of
    /// this one.
    pub(crate) const fn behind(self, length: usize, last: bool) -> Self {
        match self {
            Self::Tagged(header) => {
                Self::Tagged(Tagged { last, to: header.to.wrapping_add(length as u64), ..header })
            }
            Self::Untagged(header) => {
                Self::Untagged(Untagged { last, mo: header.mo.wrapping_add(length as u32), ..header })
            }
        }
    }

    /// Returns the length of the encoded header, length field included, and the most payload of a segment.
    pub(crate) const fn lengths(&self) -> (usize, usize) {
        match self {
            Self::Tagged(_) => (LENGTH_SIZE + Tagged::LEN, Tagged::FULL),
            Self::Untagged(_) => (LENGTH_SIZE + Untagged::LEN, Untagged::FULL),
        }
    }

    /// Returns whether the segment is the last one of its message.
    pub(crate) const fn is_last(&self) -> bool {
        match self {
            Self::Tagged(header) => header.last,
            Self::Untagged(header) => header.last,
        }
    }

    /// Returns the opcode of the message.
    pub(crate) const fn opcode(&self) -> Opcode {
        match self {
            Self::Tagged(header) => header.opcode,
            Self::Untagged(header) => header.opcode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WRITE: Tagged = Tagged { last: true, opcode: Opcode::Write, stag: 0x100, to: 0x7f00_0000_1000 };
    const SEND: Untagged =
        Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 1, mo: 0x20 };

    #[test]
    fn tagged_bytes() {
        let bytes = WRITE.encode(4);
        assert_eq!(bytes, [0, 18, 0xc1, 0x40, 0, 0, 1, 0, 0, 0, 0x7f, 0, 0, 0, 0x10, 0]);
        assert_eq!(Header::decode(&bytes), Ok((Header::Tagged(WRITE), 4, 16)));
        let more = Tagged { last: false, opcode: Opcode::ReadResponse, ..WRITE };
        assert_eq!(more.encode(0)[..4], [0, 14, 0x81, 0x42]);
    }

    #[test]
    fn untagged_bytes() {
        let bytes = SEND.encode(0x100);
        assert_eq!(bytes, [1, 18, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x20]);
        assert_eq!(Header::decode(&bytes), Ok((Header::Untagged(SEND), 0x100, 20)));
        let more = Untagged { last: false, opcode: Opcode::SendInvalidate, invalidate: 0x300, ..SEND };
        assert_eq!(more.encode(0)[..8], [0, 18, 0x01, 0x44, 0, 0, 3, 0]);
    }

    #[test]
    fn every_truncation_of_a_header() {
        for bytes in [&WRITE.encode(9)[..], &SEND.encode(9)[..]] {
            for length in 0..bytes.len() {
                assert_eq!(Header::decode(&bytes[..length]), Err(HeaderError::Truncated), "{length}");
            }
        }
    }

    #[test]
    fn a_ulpdu_shorter_than_its_header() {
        for length in 0..Tagged::LEN {
            assert_eq!(Header::decode(&[0, length as u8]), Err(HeaderError::Short));
        }
        for length in Tagged::LEN..Untagged::LEN {
            assert_eq!(Header::decode(&[0, length as u8, 0x41, 0x43]), Err(HeaderError::Short));
            assert_eq!(Header::decode(&[0, length as u8, 0xc1, 0x40]), Err(HeaderError::Truncated));
        }
    }

    #[test]
    fn versions_and_opcodes() {
        let decode = |ddp, rdmap| {
            let mut bytes = SEND.encode(0);
            bytes[2..4].copy_from_slice(&[ddp, rdmap]);
            Header::decode(&bytes).map(|_| ())
        };
        assert_eq!(decode(0x42, 0x43), Err(HeaderError::DdpVersion { tagged: false }));
        assert_eq!(decode(0xc0, 0x40), Err(HeaderError::DdpVersion { tagged: true }));
        assert_eq!(decode(0x41, 0x03), Err(HeaderError::RdmapVersion));
        assert_eq!(decode(0x41, 0x83), Err(HeaderError::RdmapVersion));
        for opcode in Opcode::COUNT..16 {
            assert_eq!(decode(0x41, 0x40 | opcode), Err(HeaderError::Opcode(opcode)));
        }
        for opcode in 0..Opcode::COUNT {
            let tagged = matches!(opcode, 0 | 2);
            let wrong = Err(HeaderError::TaggedMismatch);
            assert_eq!(decode(0x41, 0x40 | opcode), if tagged { wrong } else { Ok(()) });
            assert_eq!(decode(0xc1, 0x40 | opcode), if tagged { Ok(()) } else { wrong });
        }
        assert_eq!(decode(0x41 | 0x3c, 0x43 | 0x30), Ok(()), "reserved bits are ignored");
    }

    #[test]
    fn reserved_bits_announce_segments() {
        for bytes in [&mut WRITE.encode(4)[..], &mut SEND.encode(4)] {
            let plain = bytes.to_vec();
            for follow in 0..=MANY_FOLLOW + 1 {
                bytes.copy_from_slice(&plain);
                announce(bytes, follow);
                assert_eq!(announced(bytes), follow.min(MANY_FOLLOW));
                assert_eq!(Header::decode(bytes), Header::decode(&plain), "nothing else has changed");
            }
            assert_eq!(bytes[2..4], [plain[2] | 0x3c, plain[3] | 0x30]);
        }
    }

    fn opcodes(tagged: bool) -> impl Strategy<Value = Opcode> {
        (0..Opcode::COUNT).prop_filter_map("of the other class", move |number| {
            Opcode::from_number(number).filter(|opcode| opcode.is_tagged() == tagged)
        })
    }

    proptest! {
        #[test]
        fn tagged_round_trip(
            last: bool, opcode in opcodes(true), stag: u32, to: u64, payload in 0..=MAX_ULPDU - Tagged::LEN,
        ) {
            let header = Tagged { last, opcode, stag, to };
            prop_assert_eq!(Header::decode(&header.encode(payload)), Ok((Header::Tagged(header), payload, 16)));
        }

        #[test]
        fn untagged_round_trip(
            last: bool, opcode in opcodes(false), invalidate: u32, qn: u32, msn: u32, mo: u32,
            payload in 0..=MAX_ULPDU - Untagged::LEN,
        ) {
            let header = Untagged { last, opcode, invalidate, qn, msn, mo };
            let expected = Ok((Header::Untagged(header), payload, 20));
            prop_assert_eq!(Header::decode(&header.encode(payload)), expected);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok((_, _, used)) = Header::decode(&bytes) {
                prop_assert!(used <= bytes.len());
            }
        }
    }
}
