//! Polling for a while before sleep.

use std::time::{Duration, Instant};

/// For how long something is polled before its task sleeps. A limit of zero, or one beyond what the clock can show, is no
/// spinning at all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spin {
    limit: Duration,
    until: Option<Instant>,
}

impl Spin {
    /// Creates a spin with this limit that is not started.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, until: None }
    }

    /// Spins for the limit from now on.
    pub(crate) fn start(&mut self) {
        self.until = if self.limit.is_zero() { None } else { Instant::now().checked_add(self.limit) };
    }

    /// Ends the spinning.
    pub(crate) fn stop(&mut self) {
        self.until = None;
    }

    /// Returns whether it was started and not stopped, also after the limit has passed.
    pub(crate) fn is_started(&self) -> bool {
        self.until.is_some()
    }

    /// Returns whether it was started and the limit has not passed yet.
    pub(crate) fn is_spinning(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use super::*;

    #[test]
    fn spins_from_start_to_stop() {
        let mut spin = Spin::new(Duration::from_secs(3600));
        assert!(!spin.is_started() && !spin.is_spinning());
        spin.start();
        assert!(spin.is_started() && spin.is_spinning());
        spin.stop();
        assert!(!spin.is_started() && !spin.is_spinning());
    }

    #[test]
    fn is_started_until_stop_when_the_time_is_over() {
        let mut spin = Spin::new(Duration::from_nanos(1));
        spin.start();
        while spin.is_spinning() {}
        assert!(spin.is_started());
    }

    #[test]
    fn a_limit_of_zero_and_one_without_end_never_spin() {
        for limit in [Duration::ZERO, Duration::MAX] {
            let mut spin = Spin::new(limit);
            spin.start();
            assert!(!spin.is_started() && !spin.is_spinning(), "{limit:?}");
        }
    }
}
