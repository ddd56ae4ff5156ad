//! Logging of events that a peer can cause as often as it likes.

use std::time::{Duration, Instant};

use super::Mutex;

/// The shortest time between two events that are let through.
const PERIOD: Duration = Duration::from_secs(10);

/// Lets the first of many events through, and then at most one every ten seconds.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    /// Lets an event through if the period has passed. Returns the number of events that were held back before it;
    /// `None` if this one is held back.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < PERIOD) {
            state.held_back += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use super::*;

    #[test]
    fn one_event_per_period_is_let_through() {
        let (throttle, begin) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.admit_at(begin), Some(0));
        assert_eq!(throttle.admit_at(begin + PERIOD / 2), None);
        assert_eq!(throttle.admit_at(begin + PERIOD / 2), None);
        assert_eq!(throttle.admit_at(begin + PERIOD), Some(2));
        assert_eq!(throttle.admit_at(begin + PERIOD * 2), Some(0));
    }
}
