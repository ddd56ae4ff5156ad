//! MPA: the start-up frames (RFC 5044 section 7.1.1, RFC 6581), and the size of an FPDU and its checksum (RFC 5044 section 4).
//!
//! A start-up frame is a 16-byte key, a byte of flags, the revision, the length of the private data and the
//! private data. With the S flag the first four bytes of the private data are [`Enhanced`].
//!
//! The checksum is CRC32C. It covers the length field, the ULPDU and the pad. On the wire the 32-bit value is stored in
//! little-endian order, unlike every other field.

use crc_fast::{CrcAlgorithm, Digest};
use smallvec::SmallVec;

use super::array;
use crate::error::{DecodeError, Excerpt};

/// The size of the ULPDU length at the start of every FPDU.
pub(crate) const LENGTH_SIZE: usize = 2;
/// The size of the CRC at the end of every FPDU. If CRC is off, the CRC is present, but zero and not checked.
pub(crate) const CRC_SIZE: usize = 4;
/// The maximum length of a ULPDU that the length field can hold.
pub(crate) const MAX_ULPDU: usize = u16::MAX as usize;

/// Returns the number of zero bytes between the ULPDU and the CRC: they make `2 + ulpdu + pad` a multiple of four
/// (RFC 5044 section 4.1).
pub(crate) const fn pad_length(ulpdu_len: usize) -> usize {
    (LENGTH_SIZE + ulpdu_len % 4).wrapping_neg() % 4
}

/// Returns the size of an FPDU without markers: length, ULPDU, pad, CRC.
pub(crate) const fn fpdu_length(ulpdu_len: usize) -> usize {
    LENGTH_SIZE + ulpdu_len + pad_length(ulpdu_len) + CRC_SIZE
}

const KEY_SIZE: usize = 16;
const REQUEST_KEY: &[u8; KEY_SIZE] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; KEY_SIZE] = b"MPA ID Rep Frame";

mod flag {
    /// M: the sender wants to receive markers.
    pub(super) const MARKERS: u8 = 0x80;
    /// C: the sender wants CRC.
    pub(super) const CRC: u8 = 0x40;
    /// R: the responder rejects.
    pub(super) const REJECT: u8 = 0x20;
    /// S: RFC 6581 parameters lead the private data.
    pub(super) const ENHANCED: u8 = 0x10;
    /// Of this crate, in a request: the initiator announces segments if the responder does, too.
    pub(super) const OFFERS_ANNOUNCEMENTS: u8 = 0x04;
    /// Of this crate, in a reply to such a request: both ends announce segments. It is another bit because siw
    /// echoes all bits of the request.
    pub(super) const TAKES_ANNOUNCEMENTS: u8 = 0x02;
}

/// The kind of a start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartKind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

impl StartKind {
    const fn key(self) -> &'static [u8; KEY_SIZE] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }

    const fn announcements(self) -> u8 {
        match self {
            Self::Request => flag::OFFERS_ANNOUNCEMENTS,
            Self::Reply => flag::TAKES_ANNOUNCEMENTS,
        }
    }
}

/// siw adds the length of [`Enhanced`] to the length of the user's data in eight bits. From 252 bytes of data on, the
/// length field is too small by this number.
const SIW_WRAP: usize = 256;

/// The bytes of a start-up frame, most of which have little private data.
pub(crate) type StartBytes = SmallVec<[u8; 64]>;

/// An MPA request or reply frame (RFC 5044 section 7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartFrame<'a> {
    /// The kind of the frame, which determines the key.
    pub(crate) kind: StartKind,
    /// M: the sender requires markers in the frames that it receives.
    pub(crate) markers: bool,
    /// C: the sender requires CRC in both directions.
    pub(crate) crc: bool,
    /// R: the responder rejects the connection.
    pub(crate) reject: bool,
    /// S: the parameters before the private data (RFC 6581), which exist from revision 2 on.
    pub(crate) enhanced: Option<Enhanced>,
    /// A request offers announced segments, and a reply takes the offer.
    pub(crate) announces: bool,
    /// The MPA revision. Decoding does not check it.
    pub(crate) revision: u8,
    /// The private data of the user.
    pub(crate) private_data: &'a [u8],
}

impl<'a> StartFrame<'a> {
    /// The number of bytes before the private data.
    pub(crate) const HEADER: usize = KEY_SIZE + 4;
    /// The maximum length of the private data (RFC 5044 section 7.1.1), including `Enhanced`.
    pub(crate) const MAX_PRIVATE_DATA: usize = 512;
    /// The maximum length of a frame.
    pub(crate) const MAX_LEN: usize = Self::HEADER + Self::MAX_PRIVATE_DATA;

    /// Creates a frame without any flag.
    pub(crate) const fn new(kind: StartKind, revision: u8, private_data: &'a [u8]) -> Self {
        let (markers, crc, reject, announces) = (false, false, false, false);
        Self { kind, markers, crc, reject, enhanced: None, announces, revision, private_data }
    }

    /// Encodes the frame. Parameters and private data are at most [`MAX_PRIVATE_DATA`](Self::MAX_PRIVATE_DATA) long together;
    /// further bytes are omitted.
    pub(crate) fn encode(&self) -> StartBytes {
        let parameters = self.enhanced.map(|enhanced| enhanced.encode());
        let parameters = parameters.as_ref().map_or(&[][..], |parameters| parameters);
        let most = Self::MAX_PRIVATE_DATA - parameters.len();
        debug_assert!(self.private_data.len() <= most);
        let private_data = &self.private_data[..self.private_data.len().min(most)];
        let length = parameters.len() + private_data.len();
        let bit = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = bit(self.markers, flag::MARKERS)
            | bit(self.crc, flag::CRC)
            | bit(self.reject, flag::REJECT)
            | bit(self.enhanced.is_some(), flag::ENHANCED)
            | bit(self.announces, self.kind.announcements());
        let [high, low] = (length as u16).to_be_bytes();
        let mut out = StartBytes::from_elem(0, Self::HEADER + length);
        let (header, rest) = out.split_at_mut(Self::HEADER);
        let (key, fields) = header.split_at_mut(KEY_SIZE);
        key.copy_from_slice(self.kind.key());
        fields.copy_from_slice(&[flags, self.revision, high, low]);
        let (first, rest) = rest.split_at_mut(parameters.len());
        first.copy_from_slice(parameters);
        rest.copy_from_slice(private_data);
        out
    }

    /// Decodes the frame at the start of `bytes`. Returns the frame and the number of its bytes.
    ///
    /// Reserved flag bits are ignored, because siw echoes all bits of the request. If the length has no room for the
    /// parameters that S announces, siw has lost 256 of it. A wrong key and too long a length are detected also in an incomplete
    /// frame.
    pub(crate) fn decode(kind: StartKind, bytes: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        let seen = bytes.len().min(KEY_SIZE);
        if bytes[..seen] != kind.key()[..seen] {
            return Err(DecodeError::BadKey(Excerpt::new(bytes)));
        }
        let [flags, revision, high, low] = array(bytes, KEY_SIZE).ok_or(DecodeError::Truncated)?;
        let length = u16::from_be_bytes([high, low]);
        if usize::from(length) > Self::MAX_PRIVATE_DATA {
            return Err(DecodeError::PrivateDataTooLong(length));
        }
        let (reject, has_parameters) =
            (flags & flag::REJECT != 0, flags & flag::ENHANCED != 0 && revision >= 2);
        let mut end = Self::HEADER + usize::from(length);
        if has_parameters && !reject && revision == 2 && usize::from(length) < Enhanced::LEN {
            end += SIW_WRAP;
        }
        let behind = bytes.get(Self::HEADER..end).ok_or(DecodeError::Truncated)?;
        // A reply that rejects may have the flag and no room for parameters.
        let (enhanced, private_data) = match behind.split_first_chunk() {
            Some((parameters, rest)) if has_parameters => (Some(Enhanced::decode(*parameters)), rest),
            None if has_parameters && revision == 2 && kind == StartKind::Request => {
                return Err(DecodeError::Malformed("no room for the read limits in the private data"));
            }
            _ => (None, behind),
        };
        let frame = Self {
            kind,
            markers: flags & flag::MARKERS != 0,
            crc: flags & flag::CRC != 0,
            reject,
            enhanced,
            announces: flags & kind.announcements() != 0,
            revision,
            private_data,
        };
        Ok((frame, end))
    }
}

/// The RFC 6581 parameters at the start of the private data: read limits and the "ready to receive" frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Enhanced {
    /// The number of reads that the sender of this frame serves at once; 14 bits.
    pub(crate) ird: u16,
    /// The number of reads that the sender of this frame issues at once; 14 bits.
    pub(crate) ord: u16,
    /// A: peer-to-peer, that is the initiator sends an RTR frame first.
    pub(crate) peer_to_peer: bool,
    /// B: the RTR frame may be a zero-length FPDU (a Send).
    pub(crate) rtr_send: bool,
    /// C: the RTR frame may be a zero-length RDMA Write.
    pub(crate) rtr_write: bool,
    /// D: the RTR frame may be a zero-length RDMA Read Request.
    pub(crate) rtr_read: bool,
}

impl Enhanced {
    const LEN: usize = 4;
    /// The largest value of [`ird`](Self::ird) and [`ord`](Self::ord). It means "not negotiated here" (RFC 6581), and
    /// is treated as no limit.
    pub(crate) const NO_LIMIT: u16 = 0x3fff;

    const UPPER: u16 = 0x8000;
    const LOWER: u16 = 0x4000;

    /// Returns the two big-endian words. Values above 14 bits become [`NO_LIMIT`](Self::NO_LIMIT).
    fn encode(&self) -> [u8; Self::LEN] {
        let word = |value: u16, upper: bool, lower: bool| {
            value.min(Self::NO_LIMIT)
                | if upper { Self::UPPER } else { 0 }
                | if lower { Self::LOWER } else { 0 }
        };
        let [a, b] = word(self.ird, self.peer_to_peer, self.rtr_send).to_be_bytes();
        let [c, d] = word(self.ord, self.rtr_write, self.rtr_read).to_be_bytes();
        [a, b, c, d]
    }

    /// Decodes the two words.
    fn decode([a, b, c, d]: [u8; Self::LEN]) -> Self {
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            ird: first & Self::NO_LIMIT,
            ord: second & Self::NO_LIMIT,
            peer_to_peer: first & Self::UPPER != 0,
            rtr_send: first & Self::LOWER != 0,
            rtr_write: second & Self::UPPER != 0,
            rtr_read: second & Self::LOWER != 0,
        }
    }
}

/// Returns the CRC32C (Castagnoli) of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the value as the four bytes at the end of an FPDU.
pub(crate) const fn crc_to_wire(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}

/// Returns the value of the four bytes at the end of an FPDU.
pub(crate) const fn crc_from_wire(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

/// Computes the CRC32C of several ranges of bytes: header, payload, pad.
pub(crate) struct Crc(Digest);

impl Crc {
    /// Creates the state before the first byte.
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds `bytes`.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Creates the state behind bytes that are added elsewhere, as [`state`](Self::state) returns it.
    pub(crate) fn of_state(state: u32) -> Self {
        Self(Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state.into()))
    }

    /// Returns the remainder of the added bytes: the CRC before its bits are inverted at the end.
    pub(crate) fn state(&self) -> u32 {
        // The algorithm is 32 bits wide.
        self.0.get_state() as u32
    }

    /// Returns the CRC of the added bytes.
    pub(crate) fn finish(self) -> u32 {
        // The algorithm is 32 bits wide: the upper half of the result is zero.
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Composes a frame from its flag word, as siw's own logs write it, and its private data.
    fn raw(kind: StartKind, word: u16, private_data: &[u8]) -> Vec<u8> {
        let length = private_data.len() as u16;
        [&kind.key()[..], &word.to_be_bytes(), &length.to_be_bytes(), private_data].concat()
    }

    #[test]
    fn each_parameter_bit() {
        for (bytes, bits) in [
            ([0x80, 0, 0, 0], [true, false, false, false]),
            ([0x40, 0, 0, 0], [false, true, false, false]),
            ([0, 0, 0x80, 0], [false, false, true, false]),
            ([0, 0, 0x40, 0], [false, false, false, true]),
        ] {
            let e = Enhanced::decode(bytes);
            assert_eq!([e.peer_to_peer, e.rtr_send, e.rtr_write, e.rtr_read], bits);
            assert_eq!(e.encode(), bytes);
        }
    }

    #[test]
    fn wrong_bytes_are_seen_early() {
        let bad = |bytes| DecodeError::BadKey(Excerpt::new(bytes));
        assert_eq!(StartFrame::decode(StartKind::Request, b"G"), Err(bad(b"G")));
        assert_eq!(StartFrame::decode(StartKind::Request, b"MPA ID Rep"), Err(bad(b"MPA ID Rep")));
        assert_eq!(StartFrame::decode(StartKind::Reply, b"MPA ID Req Frame"), Err(bad(b"MPA ID Req Frame")));
        let mut bytes = raw(StartKind::Request, 0x0001, &[]);
        bytes[18..20].copy_from_slice(&513u16.to_be_bytes());
        let result = StartFrame::decode(StartKind::Request, &bytes);
        assert_eq!(result, Err(DecodeError::PrivateDataTooLong(513)));
    }

    #[test]
    fn the_longest_private_data() {
        let mut bytes = raw(StartKind::Reply, 0x0001, &[9; 512]);
        bytes.extend_from_slice(b"the next frame");
        let (frame, used) = StartFrame::decode(StartKind::Reply, &bytes).unwrap();
        assert_eq!((frame.private_data.len(), used), (512, StartFrame::MAX_LEN));
    }

    #[test]
    fn fpdu_sizes() {
        assert_eq!([0, 1, 2, 3, 4, 18].map(pad_length), [2, 1, 0, 3, 2, 0]);
        // siw's segments at MTU 1500 and 9000, and a read request
        assert_eq!([1442, 8938, 46].map(fpdu_length), [1448, 8944, 52]);
        for ulpdu in 0..=MAX_ULPDU {
            assert_eq!((LENGTH_SIZE + ulpdu + pad_length(ulpdu)) % 4, 0);
            assert!(pad_length(ulpdu) < 4);
        }
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            request: bool, markers: bool, crc: bool, reject: bool, enhanced: Option<[u8; 4]>, announces: bool,
            revision: u8, private_data in proptest::collection::vec(any::<u8>(), 0..=508),
        ) {
            let kind = if request { StartKind::Request } else { StartKind::Reply };
            let enhanced = enhanced.filter(|_| revision >= 2).map(Enhanced::decode);
            let frame = StartFrame { kind, markers, crc, reject, enhanced, announces, revision, private_data: &private_data };
            let bytes = frame.encode();
            prop_assert_eq!(StartFrame::decode(kind, &bytes), Ok((frame, bytes.len())));
        }

        #[test]
        fn parameters_round_trip(bytes: [u8; 4]) {
            prop_assert_eq!(Enhanced::decode(bytes).encode(), bytes);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..600), keyed: bool, request: bool,
        ) {
            let kind = if request { StartKind::Request } else { StartKind::Reply };
            if keyed {
                bytes.splice(..0, kind.key().iter().copied());
            }
            if let Ok((_, used)) = StartFrame::decode(kind, &bytes) {
                prop_assert!(used <= bytes.len());
            }
        }
    }

    #[test]
    fn check_value_and_its_bytes() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc_to_wire(crc32c(b"123456789")), [0x83, 0x92, 0x06, 0xe3]);
        assert_eq!(crc_from_wire([0x83, 0x92, 0x06, 0xe3]), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    /// Computes the iSCSI examples of RFC 3720 appendix B.4, which use the same polynomial.
    #[test]
    fn iscsi_vectors() {
        assert_eq!(crc_to_wire(crc32c(&[0; 32])), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc_to_wire(crc32c(&[0xff; 32])), [0x43, 0xab, 0xa8, 0x62]);
    }

    proptest! {
        #[test]
        fn in_pieces_is_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 0usize..3000) {
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            let mut crc = Crc::new();
            crc.update(head);
            crc.update(tail);
            prop_assert_eq!(crc.finish(), crc32c(&bytes));
        }
    }
}
