//! Random numbers from a seed.

use std::ops::RangeInclusive;

/// A generator (SplitMix64): the same numbers from the same seed.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number of the range; its start if it is empty.
    pub(super) fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let (start, end) = (*range.start(), *range.end());
        if start >= end {
            return start;
        }
        // The high half of a product: as even as a test needs it.
        let count = u128::from(end - start) + 1;
        let offset = (u128::from(self.next()) * count) >> 64;
        start + u64::try_from(offset).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_the_range_and_of_the_seed() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.within(&(3..=5))).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for number in 3..=5 {
            assert!(draw(1).contains(&number));
        }
        assert!(draw(1).iter().all(|number| (3..=5).contains(number)));
        let mut rng = Rng::new(7);
        assert_eq!(rng.within(&(9..=9)), 9);
        assert!((0..1000).map(|_| rng.within(&(0..=u64::MAX))).any(|number| number > u64::MAX / 2));
    }
}
