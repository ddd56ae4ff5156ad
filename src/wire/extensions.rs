//! RDMAP extensions: Immediate Data and Atomic Operations (RFC 7306).
//!
//! The start-up does not announce whether a peer supports them. A peer without support responds to their opcodes with a
//! Terminate (RDMAP/remote operation/6), as to any unknown opcode.

use super::array;
use crate::error::DecodeError;

/// The payload of an Immediate Data message (RFC 7306 section 6.2): eight bytes of the user.
///
/// The API of this crate has four bytes, as that of verbs. They are sent as the first half, followed by zeros, as
/// Chelsio's adapters do. A peer that sends a small number of 64 bits has it in the second half. Both are accepted:
/// they differ only in which half is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Immediate(pub(crate) u32);

impl Immediate {
    pub(crate) const LEN: usize = 8;

    /// Returns the payload.
    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        (u64::from(self.0) << 32).to_be_bytes()
    }

    /// Decodes the immediate data at the start of `payload`. More than 32 bits are `Malformed`.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let word = |at| array(payload, at).map(u32::from_be_bytes).ok_or(DecodeError::Truncated);
        match (word(0)?, word(4)?) {
            (value, 0) | (0, value) => Ok(Self(value)),
            _ => Err(DecodeError::Malformed("immediate data of more than 32 bits")),
        }
    }
}

/// An Atomic Operation on 64 bits (RFC 7306 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    /// Adds `add`. `mask` has the highest bit of each field of the number, and no carry leaves a field. 0 means one field.
    FetchAdd { add: u64, mask: u64 },
    /// Stores `swap` where `swap_mask` is set, if the bits where `compare_mask` is set are those of `compare`.
    CompareSwap { swap: u64, swap_mask: u64, compare: u64, compare_mask: u64 },
}

impl Atomic {
    const FETCH_ADD: u32 = 0;
    const COMPARE_SWAP: u32 = 2;
    /// The mask of the operation code in its word. The other 28 bits are reserved.
    const CODE_MASK: u32 = 0x0f;

    /// Returns an addition on one field of 64 bits.
    pub(crate) const fn fetch_add(add: u64) -> Self {
        Self::FetchAdd { add, mask: 0 }
    }

    /// Returns a compare-and-swap of all 64 bits.
    pub(crate) const fn compare_swap(compare: u64, swap: u64) -> Self {
        Self::CompareSwap { swap, swap_mask: u64::MAX, compare, compare_mask: u64::MAX }
    }

    /// Returns the result of the operation on `value`.
    pub(crate) const fn apply(self, value: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => {
                // Without their highest bits, no field carries into the next one. Then the highest bits are added, and
                // their carry is discarded.
                let low = (value & !mask).wrapping_add(add & !mask);
                low ^ ((value ^ add) & mask)
            }
            Self::CompareSwap { swap, swap_mask, compare, compare_mask } => {
                if (value ^ compare) & compare_mask == 0 {
                    value & !swap_mask | swap & swap_mask
                } else {
                    value
                }
            }
        }
    }
}

/// The payload of an Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicRequest {
    /// The identifier, which the response repeats.
    pub(crate) identifier: u32,
    /// The key of the responder's region.
    pub(crate) stag: u32,
    /// The offset in the region.
    pub(crate) to: u64,
    pub(crate) atomic: Atomic,
}

impl AtomicRequest {
    pub(crate) const LEN: usize = 52;

    /// Returns the payload.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let (code, operands) = match self.atomic {
            Atomic::FetchAdd { add, mask } => (Atomic::FETCH_ADD, [add, mask, 0, 0]),
            Atomic::CompareSwap { swap, swap_mask, compare, compare_mask } => {
                (Atomic::COMPARE_SWAP, [swap, swap_mask, compare, compare_mask])
            }
        };
        let mut out = [0; Self::LEN];
        out[0..4].copy_from_slice(&code.to_be_bytes());
        out[4..8].copy_from_slice(&self.identifier.to_be_bytes());
        out[8..12].copy_from_slice(&self.stag.to_be_bytes());
        out[12..20].copy_from_slice(&self.to.to_be_bytes());
        for (place, operand) in out[20..].chunks_exact_mut(8).zip(operands) {
            place.copy_from_slice(&operand.to_be_bytes());
        }
        out
    }

    /// Decodes the request at the start of `payload`. Reserved bits and unused operands are ignored. An operation that RFC 7306
    /// does not have is `Malformed`.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let word = |at| array(payload, at).map(u32::from_be_bytes).ok_or(DecodeError::Truncated);
        let long = |at| array(payload, at).map(u64::from_be_bytes).ok_or(DecodeError::Truncated);
        let operands = [long(20)?, long(28)?, long(36)?, long(44)?];
        let atomic = match (word(0)? & Atomic::CODE_MASK, operands) {
            (Atomic::FETCH_ADD, [add, mask, ..]) => Atomic::FetchAdd { add, mask },
            (Atomic::COMPARE_SWAP, [swap, swap_mask, compare, compare_mask]) => {
                Atomic::CompareSwap { swap, swap_mask, compare, compare_mask }
            }
            _ => return Err(DecodeError::Malformed("an atomic operation that does not exist")),
        };
        Ok(Self { identifier: word(4)?, stag: word(8)?, to: long(12)?, atomic })
    }
}

/// The payload of an Atomic Response (RFC 7306 section 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicResponse {
    /// The identifier of the request.
    pub(crate) identifier: u32,
    /// The value before the operation.
    pub(crate) original: u64,
}

impl AtomicResponse {
    pub(crate) const LEN: usize = 12;

    /// Returns the payload.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0..4].copy_from_slice(&self.identifier.to_be_bytes());
        out[4..12].copy_from_slice(&self.original.to_be_bytes());
        out
    }

    /// Decodes the response at the start of `payload`.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let identifier = array(payload, 0).map(u32::from_be_bytes).ok_or(DecodeError::Truncated)?;
        let original = array(payload, 4).map(u64::from_be_bytes).ok_or(DecodeError::Truncated)?;
        Ok(Self { identifier, original })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[rustfmt::skip]
    const ADD: [u8; AtomicRequest::LEN] = [
        0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 1, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        0, 0, 0, 0, 0, 0, 0, 5, 0x80, 0, 0, 0, 0x80, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn atomic_bytes() {
        let add = AtomicRequest {
            identifier: 9,
            stag: 0x100,
            to: 0x1122_3344_5566_7788,
            atomic: Atomic::FetchAdd { add: 5, mask: 0x8000_0000_8000_0000 },
        };
        assert_eq!(add.encode(), ADD);
        assert_eq!(AtomicRequest::decode(&ADD), Ok(add));
        let swap = AtomicRequest { atomic: Atomic::compare_swap(3, 4), ..add };
        let bytes = swap.encode();
        assert_eq!((bytes[3], bytes[27], bytes[43]), (2, 4, 3));
        assert_eq!((&bytes[28..36], &bytes[44..52]), (&[0xff; 8][..], &[0xff; 8][..]));
        assert_eq!(AtomicRequest::decode(&bytes), Ok(swap));
        let answer = AtomicResponse { identifier: 9, original: 0x0102_0304_0506_0708 };
        assert_eq!(answer.encode(), [0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(AtomicResponse::decode(&answer.encode()), Ok(answer));
    }

    #[test]
    fn immediate_bytes() {
        let value = Immediate(0x0102_0304);
        assert_eq!(value.encode(), [1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(Immediate::decode(&[1, 2, 3, 4, 0, 0, 0, 0]), Ok(value));
        assert_eq!(Immediate::decode(&[0, 0, 0, 0, 1, 2, 3, 4]), Ok(value), "as a number of 64 bits");
        assert!(
            matches!(Immediate::decode(&[1; 8]), Err(DecodeError::Malformed(_))),
            "too much for our users"
        );
    }

    #[test]
    fn every_truncation() {
        let answer = AtomicResponse { identifier: 1, original: 2 }.encode();
        for length in 0..AtomicRequest::LEN {
            assert_eq!(AtomicRequest::decode(&ADD[..length]), Err(DecodeError::Truncated));
            if let Some(cut) = answer.get(..length).filter(|_| length < AtomicResponse::LEN) {
                assert_eq!(AtomicResponse::decode(cut), Err(DecodeError::Truncated));
            }
            if length < Immediate::LEN {
                assert_eq!(Immediate::decode(&[0; 8][..length]), Err(DecodeError::Truncated));
            }
        }
    }

    #[test]
    fn unknown_operations_and_reserved_bits() {
        for code in 0..16 {
            let mut bytes = ADD;
            bytes[3] = code;
            assert_eq!(AtomicRequest::decode(&bytes).is_ok(), matches!(code, 0 | 2), "{code}");
        }
        let mut bytes = ADD;
        bytes[..4].copy_from_slice(&[0xff, 0xff, 0xff, 0xf0]);
        assert_eq!(AtomicRequest::decode(&bytes), AtomicRequest::decode(&ADD));
    }

    /// Adds bit by bit, as a full adder with its carry.
    fn slow_add(value: u64, add: u64, mask: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let digit = (value >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (digit & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { digit >> 1 };
        }
        sum
    }

    // A masked compare and swap compares and replaces the bits of its masks alone (QP-23).
    #[test]
    fn swaps_compare_only_what_is_masked() {
        assert_eq!(Atomic::compare_swap(7, 9).apply(7), 9);
        assert_eq!(Atomic::compare_swap(7, 9).apply(8), 8);
        let masked =
            Atomic::CompareSwap { swap: 0xabcd, swap_mask: 0xff, compare: 0x12, compare_mask: 0xff00 };
        assert_eq!(
            masked.apply(0x0034),
            0x00cd,
            "only the second byte is compared, only the first is swapped"
        );
        assert_eq!(masked.apply(0x0134), 0x0134);
        assert_eq!(Atomic::fetch_add(1).apply(u64::MAX), 0);
    }

    proptest! {
        #[test]
        fn requests_round_trip(
            identifier: u32, stag: u32, to: u64, operands: [u64; 4], swap: bool,
        ) {
            let [a, b, c, d] = operands;
            let atomic = if swap {
                Atomic::CompareSwap { swap: a, swap_mask: b, compare: c, compare_mask: d }
            } else {
                Atomic::FetchAdd { add: a, mask: b }
            };
            let request = AtomicRequest { identifier, stag, to, atomic };
            prop_assert_eq!(AtomicRequest::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn responses_round_trip(bytes: [u8; AtomicResponse::LEN], value: u32) {
            prop_assert_eq!(AtomicResponse::decode(&bytes).unwrap().encode(), bytes);
            prop_assert_eq!(Immediate::decode(&Immediate(value).encode()), Ok(Immediate(value)));
        }

        // A masked fetch and add stops the carry at the end of a field (QP-23).
        #[test]
        fn fields_do_not_carry(value: u64, add: u64, mask: u64) {
            prop_assert_eq!(Atomic::FetchAdd { add, mask }.apply(value), slow_add(value, add, mask));
            prop_assert_eq!(Atomic::fetch_add(add).apply(value), value.wrapping_add(add));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = AtomicRequest::decode(&bytes);
            let _ = AtomicResponse::decode(&bytes);
            let _ = Immediate::decode(&bytes);
        }
    }
}
