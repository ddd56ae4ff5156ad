//! The pauses between attempts to connect that this host refuses for lack of resources.

use std::time::Duration;

/// The first pause, before a random part of it is taken away.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// Pauses of which each may be twice as long as the one before. Half of a pause is random, so that programs that were refused together
/// do not come back together.
pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// Returns the next pause.
    pub(super) fn pause(&mut self) -> Duration {
        let mut random = [0; 4];
        // Without random numbers it is the shortest.
        let _ = getrandom::fill(&mut random);
        let half = self.next / 2;
        self.next = LONGEST.min(self.next * 2);
        half + half.mul_f64(f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // HW-20: each pause is between half and all of a time that doubles up to a second.
    #[test]
    fn pauses_double_and_vary() {
        let mut backoff = Backoff::default();
        let mut whole = FIRST;
        let mut parts = Vec::new();
        for _ in 0..40 {
            let pause = backoff.pause();
            assert!((whole / 2..=whole).contains(&pause), "{pause:?} of {whole:?}");
            parts.push(pause.div_duration_f64(whole));
            whole = LONGEST.min(whole * 2);
        }
        assert_eq!(whole, LONGEST);
        let spread = parts.iter().copied().fold(0.0, f64::max) - parts.iter().copied().fold(1.0, f64::min);
        assert!(spread > 0.1, "the pauses are all alike: {parts:?}");
    }
}
