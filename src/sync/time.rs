//! How long a task waits, polls before it sleeps, perhaps as long as more comes by it, logs nothing, and runs before others have their
//! turn.

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

/// Decides whether a task that waits for bytes polls before it sleeps.
///
/// Polling saves the time in which a sleeper wakes up, and costs a processor: it may be the one that the peer needs, or that what has
/// come would be worked off with in larger pieces. So it is measured. Now and then, some waits that sleep are followed by as many that
/// poll. If by these more came in the same time, the next waits poll, and so on, until the next comparison. If not, or if a wait takes
/// longer than the limit, the next waits sleep: more of them each time. A limit of zero, or one beyond what the clock can
/// show, is no polling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveSpin {
    limit: Duration,
    phase: Phase,
    /// The waits that are left of the phase.
    waits: u32,
    /// The exponent of the number of waits that sleep until the next comparison.
    sleeps: u32,
    /// The exponent of the number of waits that poll until then.
    polls: u32,
    /// The bytes that have come in this phase, if it is measured.
    bytes: u64,
    since: Option<Instant>,
    /// What came, and in which time, by the waits that slept.
    asleep: (u64, Duration),
    /// A wait that polls has begun.
    spin: Option<PollingWait>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits sleep.
    Rest,
    /// Waits sleep, and what comes is counted.
    Asleep,
    /// Waits poll, and what comes is counted.
    Trial,
    /// Waits poll.
    Polling,
}

/// A wait that polls.
#[derive(Clone, Copy, Debug)]
struct PollingWait {
    until: Instant,
    /// The time of the last poll.
    last: Instant,
}

impl AdaptiveSpin {
    /// The number of waits that are measured.
    const MEASURED: u32 = 16;
    /// The first exponents: who waits a few times only never polls.
    const FIRST: (u32, u32) = (4, 6);
    /// The greatest exponent: what a comparison costs is lost in what so many waits cost.
    const MOST: u32 = 12;
    /// A task whose polls are further apart does not have the processor for itself: it may be the peer that needs it.
    const APART: Duration = Duration::from_micros(20);

    /// Creates one that polls for this time at most.
    pub(crate) fn new(limit: Duration) -> Self {
        let limit = if limit <= LONGEST { limit } else { Duration::ZERO };
        let (sleeps, polls) = Self::FIRST;
        Self {
            limit,
            phase: Phase::Rest,
            waits: (1 << sleeps) - 1,
            sleeps,
            polls,
            bytes: 0,
            since: None,
            asleep: (0, Duration::ZERO),
            spin: None,
        }
    }

    /// Returns whether a wait polls just now.
    pub(crate) fn is_spinning(&self) -> bool {
        self.spin.is_some()
    }

    /// Counts bytes that have come.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Returns whether to poll once more, after a poll that found nothing. If not, the task sleeps.
    pub(crate) fn polls_again(&mut self) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        match self.spin {
            Some(spin) => self.goes_on(spin, Instant::now()),
            None if self.waits > 0 && matches!(self.phase, Phase::Rest | Phase::Asleep) => {
                self.waits -= 1;
                false
            }
            None => self.begins(Instant::now()),
        }
    }

    /// Goes on with a wait that polls.
    fn goes_on(&mut self, spin: PollingWait, now: Instant) -> bool {
        let in_time = now < spin.until;
        self.spin = in_time.then_some(PollingWait { last: now, ..spin });
        if !in_time {
            self.rest();
        }
        in_time
    }

    /// Begins a wait. Returns whether it polls.
    fn begins(&mut self, now: Instant) -> bool {
        if self.waits == 0 {
            self.next_phase(now);
        }
        self.waits = self.waits.saturating_sub(1);
        let polls = matches!(self.phase, Phase::Trial | Phase::Polling);
        self.spin = polls.then_some(PollingWait { until: now + self.limit, last: now });
        polls
    }

    fn next_phase(&mut self, now: Instant) {
        let passed = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let came = std::mem::take(&mut self.bytes);
        self.since = Some(now);
        match self.phase {
            Phase::Rest | Phase::Polling => (self.phase, self.waits) = (Phase::Asleep, Self::MEASURED),
            Phase::Asleep => {
                self.asleep = (came, passed);
                (self.phase, self.waits) = (Phase::Trial, Self::MEASURED);
            }
            Phase::Trial if is_better((came, passed), self.asleep) => {
                (self.phase, self.waits) = (Phase::Polling, 1 << self.polls);
                self.polls = (self.polls + 2).min(Self::MOST);
                self.sleeps = Self::FIRST.0;
            }
            Phase::Trial => self.rest(),
        }
    }

    /// Has the next waits sleep, more of them than the last time.
    fn rest(&mut self) {
        (self.phase, self.waits) = (Phase::Rest, 1 << self.sleeps);
        self.sleeps = (self.sleeps + 2).min(Self::MOST);
        self.polls = Self::FIRST.1;
        self.since = None;
    }

    /// Records that a wait has ended because something has come.
    pub(crate) fn found(&mut self) {
        if self.spin.is_some() {
            self.found_at(Instant::now());
        }
    }

    fn found_at(&mut self, now: Instant) {
        let spin = self.spin.take();
        if spin.is_some_and(|spin| now.saturating_duration_since(spin.last) > Self::APART) {
            self.rest();
        }
    }
}

/// Returns whether clearly more bytes came in the same time.
fn is_better((bytes, time): (u64, Duration), (before, time_before): (u64, Duration)) -> bool {
    let product = |bytes: u64, time: Duration| u128::from(bytes) * time.as_nanos();
    product(bytes, time_before) * 8 >= product(before, time) * 9 && bytes > 0
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

    /// Longer than any test takes.
    const LIMIT: Duration = Duration::from_secs(3600);
    const STEP: Duration = Duration::from_micros(1);
    const SLEEPS: u32 = 15 + AdaptiveSpin::MEASURED;

    /// Lets waits pass, in which so many bytes come each, until one polls. Returns the number of those that slept.
    fn until_it_polls(spin: &mut AdaptiveSpin, bytes: usize) -> u32 {
        (0..)
            .find(|_| {
                spin.polls_again() || {
                    spin.count(bytes);
                    false
                }
            })
            .expect("without end")
    }

    /// Lets the wait that polls end with so many bytes, and further ones, until one sleeps. Returns the number of those that polled.
    fn until_it_sleeps(spin: &mut AdaptiveSpin, bytes: usize) -> u32 {
        let polled = |spin: &mut AdaptiveSpin| {
            let last = spin.spin.expect("it polls").last;
            spin.found_at(last + STEP);
            spin.count(bytes);
            spin.polls_again()
        };
        (1..).find(|_| !polled(spin)).expect("without end")
    }

    // The time between two calls is about the same everywhere, so that bytes decide.
    #[test]
    fn polling_goes_on_while_more_comes() {
        let mut spin = AdaptiveSpin::new(LIMIT);
        assert_eq!(until_it_polls(&mut spin, 1), SLEEPS, "those who wait a few times do not poll");
        let polled: Vec<_> = (0..4)
            .map(|_| {
                let polled = until_it_sleeps(&mut spin, 1 << 20);
                // The one that has slept is the first of those that are compared.
                assert_eq!(until_it_polls(&mut spin, 1), AdaptiveSpin::MEASURED - 1);
                polled - AdaptiveSpin::MEASURED
            })
            .collect();
        assert_eq!(polled, [64, 256, 1024, 4096]);
    }

    #[test]
    fn polling_becomes_rare_if_no_more_comes() {
        let mut spin = AdaptiveSpin::new(LIMIT);
        let mut slept = Vec::new();
        for _ in 0..6 {
            slept.push(until_it_polls(&mut spin, 1 << 20));
            assert_eq!(until_it_sleeps(&mut spin, 1), AdaptiveSpin::MEASURED);
        }
        // Of the first of each the caller has seen the end.
        assert_eq!(slept, [SLEEPS, SLEEPS, 63 + 16, 255 + 16, 1023 + 16, 4095 + 16]);
    }

    #[test]
    fn a_wait_beyond_the_limit_ends_polling() {
        let mut spin = AdaptiveSpin::new(LIMIT);
        until_it_polls(&mut spin, 1);
        let PollingWait { until, last } = spin.spin.expect("it polls");
        assert!(spin.goes_on(PollingWait { until, last }, until - STEP) && spin.is_spinning());
        let late = spin.spin.expect("it polls");
        assert!(!spin.goes_on(late, until) && !spin.is_spinning());
        assert_eq!(until_it_polls(&mut spin, 1), 16 + AdaptiveSpin::MEASURED);
    }

    #[test]
    fn a_shared_processor_ends_polling() {
        let mut spin = AdaptiveSpin::new(LIMIT);
        until_it_polls(&mut spin, 1);
        let last = spin.spin.expect("it polls").last;
        spin.found_at(last + AdaptiveSpin::APART + STEP);
        assert_eq!(until_it_polls(&mut spin, 1), 16 + AdaptiveSpin::MEASURED);
    }

    #[test]
    fn zero_and_endless_limits_never_poll() {
        for limit in [Duration::ZERO, Duration::MAX] {
            let mut spin = AdaptiveSpin::new(limit);
            assert!((0..1000).all(|_| !spin.polls_again()), "{limit:?}");
        }
    }

    #[test]
    fn clearly_more_is_an_eighth_more() {
        let second = Duration::from_secs(1);
        assert!(is_better((9, second), (8, second)) && !is_better((8, second), (8, second)));
        assert!(is_better((8, second), (16, 3 * second)) && !is_better((0, second), (0, second)));
    }
}
