//! Reproducible random numbers.

use std::hash::{BuildHasher, RandomState};

/// Names the seed of an earlier run.
const SEED: &str = "TOKIO_RDMA_TEST_SEED";

/// A generator (SplitMix64).
pub struct Dice(u64);

impl Dice {
    /// The seed of this run, which is printed: a new one each time, unless the environment names one.
    #[allow(clippy::print_stderr, reason = "it is wanted when the test fails")]
    pub fn seed() -> u64 {
        let told = std::env::var(SEED).ok().map(|text| text.parse().expect("a number"));
        let seed = told.unwrap_or_else(|| RandomState::new().hash_one(0));
        eprintln!("{SEED}={seed}");
        seed
    }

    /// Those of one case of many under a seed.
    pub fn of(seed: u64, case: usize) -> Self {
        let mut dice = Self(seed);
        dice.0 ^= dice.next().wrapping_mul(case as u64 + 1);
        dice
    }

    /// Others, for somebody else.
    pub fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of so many numbers, from 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("small")
    }
}
