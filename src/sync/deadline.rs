//! Deadlines that any time limit has.

use std::time::Duration;

use tokio::time::Instant;

/// The longest time limit: 30 years. A longer limit counts as this, so that no sum of a moment and a limit is beyond
/// the clock.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the end of a time limit that begins now, by the clock that tests can stop.
pub(crate) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_a_deadline() {
        let now = Instant::now();
        assert!(deadline(Duration::ZERO) >= now);
        assert!(deadline(Duration::MAX) >= now + LONGEST);
    }
}
