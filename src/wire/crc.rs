//! CRC32C, the checksum of an FPDU (RFC 5044 section 4.4).
//!
//! It covers the length field, the ULPDU and the pad. On the wire the 32-bit value is stored in
//! little-endian order, unlike every other field.

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC32C (Castagnoli) of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the value as the four bytes at the end of an FPDU.
pub(crate) const fn to_wire(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}

/// Returns the value of the four bytes at the end of an FPDU.
pub(crate) const fn from_wire(bytes: [u8; 4]) -> u32 {
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

    /// Returns the CRC of the added bytes.
    pub(crate) fn finish(self) -> u32 {
        // The algorithm is 32 bits wide: the upper half of the result is zero.
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn check_value_and_its_bytes() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(to_wire(crc32c(b"123456789")), [0x83, 0x92, 0x06, 0xe3]);
        assert_eq!(from_wire([0x83, 0x92, 0x06, 0xe3]), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    /// Computes the iSCSI examples of RFC 3720 appendix B.4, which use the same polynomial.
    #[test]
    fn iscsi_vectors() {
        assert_eq!(to_wire(crc32c(&[0; 32])), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(to_wire(crc32c(&[0xff; 32])), [0x43, 0xab, 0xa8, 0x62]);
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
