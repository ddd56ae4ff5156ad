//! A hasher for the numbers of calls.

use std::hash::Hasher;

/// Hashes a number. Each is one more than the one before, but a peer chooses which calls stay open, such as each 65,536th. A
/// table takes the place from the low bits and compares the highest seven first, so both depend on the whole number.
///
/// There is no secret in it: a peer can search for numbers that meet, but comes to one only by the calls before it, and
/// may have no more of them open than its limit.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // A bit of a product depends on no higher bits of the number.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        // Odd, and without a pattern (Knuth's multiplicative hashing): the high bits depend on all of the number.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    #[test]
    fn numbers_at_any_distance_do_not_meet() {
        let hasher = BuildHasherDefault::<IdHasher>::default();
        for shift in 0..22 {
            let hashes: Vec<_> = (1..=1000_u32).map(|number| hasher.hash_one(number << shift)).collect();
            let count = |part: fn(&u64) -> u64| hashes.iter().map(part).collect::<HashSet<_>>().len();
            // At random there would be 638 of 1,024, and all of 128.
            assert!(count(|hash| hash % 1024) > 450, "the places of multiples of 2^{shift}");
            assert!(count(|hash| hash >> 57) > 100, "the high bits of multiples of 2^{shift}");
        }
    }
}
