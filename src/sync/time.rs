//! How long a task waits, polls before it sleeps, logs nothing, and runs before others have their turn.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::task::coop;

use super::Mutex;

/// The longest time limit: 30 years. A longer limit counts as this, so that no sum of a moment and a limit is beyond
/// the clock.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the end of a time limit that begins now, by the clock that tests can stop.
pub(crate) fn deadline(limit: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + limit.min(LONGEST)
}

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

/// Polls with `poll`, which uses up one unit of the budget that the task has for one turn ([`coop`]) if it is ready. Without a
/// budget the task yields first, so that a loop over futures that are always ready does not keep other tasks waiting.
pub(crate) fn poll_budgeted<T>(
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    if !coop::has_budget_remaining() {
        let _ = ready!(coop::poll_proceed(cx));
    }
    let output = ready!(poll(cx));
    if let Poll::Ready(turn) = coop::poll_proceed(cx) {
        turn.made_progress();
    }
    Poll::Ready(output)
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_a_deadline() {
        let now = tokio::time::Instant::now();
        assert!(deadline(Duration::ZERO) >= now);
        assert!(deadline(Duration::MAX) >= now + LONGEST);
    }

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
    fn spin_stays_started_after_its_limit() {
        let mut spin = Spin::new(Duration::from_nanos(1));
        spin.start();
        while spin.is_spinning() {}
        assert!(spin.is_started());
    }

    #[test]
    fn zero_and_endless_limits_never_spin() {
        for limit in [Duration::ZERO, Duration::MAX] {
            let mut spin = Spin::new(limit);
            spin.start();
            assert!(!spin.is_started() && !spin.is_spinning(), "{limit:?}");
        }
    }

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
