//! A hasher for the numbers of calls.

use std::hash::Hasher;

/// Hashes a number. A peer cannot choose numbers that meet in one place: each is one more than the one before.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        // Odd, and without a pattern, so that both ends of the product depend on all of the number (Knuth's multiplicative hashing).
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
