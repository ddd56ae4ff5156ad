//! Times and lengths that objects note for a snapshot. Without the feature `inspect` they are empty.

#[cfg(feature = "inspect")]
mod on {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use slab::Slab;
    use tokio::time::Instant;

    use crate::sync::Mutex;

    /// The time of something, by the clock that tests can stop.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Mark(Instant);

    impl Mark {
        /// Returns the present time.
        #[inline]
        pub(crate) fn now() -> Self {
            Self(Instant::now())
        }

        /// Returns the time that has passed since then.
        pub(crate) fn age(self) -> Duration {
            self.0.elapsed()
        }
    }

    /// When a connector has changed, and by what.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Steps {
        /// The time when it came into its state.
        pub(crate) since: Mark,
        /// The last call or report, and its time.
        pub(crate) last: (&'static str, Mark),
    }

    impl Steps {
        /// Notes that the connector is made.
        pub(crate) fn new() -> Self {
            let now = Mark::now();
            Self { since: now, last: ("created", now) }
        }

        /// Notes a call or a report, and whether it has changed the state.
        pub(crate) fn step(&mut self, name: &'static str, has_moved: bool) {
            let now = Mark::now();
            self.last = (name, now);
            if has_moved {
                self.since = now;
            }
        }
    }

    /// The bytes that a program has sent and received.
    #[derive(Debug, Default)]
    pub(crate) struct Flow {
        sent: AtomicU64,
        received: AtomicU64,
    }

    impl Flow {
        pub(crate) fn sent(&self, bytes: usize) {
            self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }

        pub(crate) fn received(&self, bytes: usize) {
            self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        }

        /// Returns the numbers of bytes sent and received.
        pub(crate) fn totals(&self) -> (u64, u64) {
            (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
        }
    }

    /// The wait of a call that is polled: when the first poll found nothing, and when the last one did. A call that is given up leaves it
    /// as it is.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct PolledWait(Option<(Mark, Mark)>);

    impl PolledWait {
        /// Notes a poll that has found nothing.
        pub(crate) fn polled(&mut self) {
            let now = Mark::now();
            self.0 = Some((self.0.map_or(now, |(since, _)| since), now));
        }

        /// Notes that it waits no longer.
        #[inline]
        pub(crate) fn end(&mut self) {
            self.0 = None;
        }

        /// Returns how long it has waited, and the time since the last poll.
        pub(crate) fn ages(self) -> Option<(Duration, Duration)> {
            self.0.map(|(since, last)| (since.age(), last.age()))
        }
    }

    /// Whether the waker of a call that is polled was woken: the call is polled again, unless it was given up.
    #[derive(Debug, Default)]
    pub(crate) struct Woken(AtomicBool);

    impl Woken {
        #[inline]
        pub(crate) fn set(&self, is_woken: bool) {
            self.0.store(is_woken, Ordering::Relaxed);
        }

        pub(crate) fn get(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// The waits of futures of this crate, which end when these are dropped.
    #[derive(Debug, Default)]
    pub(crate) struct FutureWaits(Mutex<Slab<Mark>>);

    impl FutureWaits {
        /// Returns how long the oldest of them has waited.
        pub(crate) fn oldest(&self) -> Option<Duration> {
            self.0.lock().iter().map(|(_, since)| *since).min().map(Mark::age)
        }
    }

    /// The wait of one future, until it is dropped.
    #[derive(Debug)]
    pub(crate) struct FutureWait<'a> {
        all: &'a FutureWaits,
        place: Option<usize>,
    }

    impl<'a> FutureWait<'a> {
        /// Creates the wait of a future that has not waited yet.
        pub(crate) fn new(all: &'a FutureWaits) -> Self {
            Self { all, place: None }
        }

        /// Notes that the future waits, unless it does so already.
        pub(crate) fn begin(&mut self) {
            self.place.get_or_insert_with(|| self.all.0.lock().insert(Mark::now()));
        }
    }

    impl Drop for FutureWait<'_> {
        fn drop(&mut self) {
            if let Some(place) = self.place {
                self.all.0.lock().try_remove(place);
            }
        }
    }

    /// The time when a request was posted, and its length.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Posted {
        pub(crate) at: Mark,
        pub(crate) length: usize,
    }

    impl Posted {
        /// Notes a request of this length that is posted now.
        #[inline]
        pub(crate) fn now(length: impl FnOnce() -> usize) -> Self {
            Self { at: Mark::now(), length: length() }
        }
    }
}

#[cfg(not(feature = "inspect"))]
mod off {
    /// Nothing.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Mark;

    impl Mark {
        #[inline(always)]
        pub(crate) fn now() -> Self {
            Self
        }
    }

    /// Nothing.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Steps;

    impl Steps {
        #[inline(always)]
        pub(crate) fn new() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn step(&mut self, _name: &'static str, _has_moved: bool) {}
    }

    /// Nothing.
    #[derive(Debug, Default)]
    pub(crate) struct Flow(());

    impl Flow {
        #[inline(always)]
        pub(crate) fn sent(&self, _bytes: usize) {}

        #[inline(always)]
        pub(crate) fn received(&self, _bytes: usize) {}
    }

    /// Nothing.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct PolledWait(());

    impl PolledWait {
        #[inline(always)]
        pub(crate) fn polled(&mut self) {}

        #[inline(always)]
        pub(crate) fn end(&mut self) {}
    }

    /// Nothing.
    #[derive(Debug, Default)]
    pub(crate) struct Woken(());

    impl Woken {
        #[inline(always)]
        pub(crate) fn set(&self, _is_woken: bool) {}
    }

    /// Nothing.
    #[derive(Debug, Default)]
    pub(crate) struct FutureWaits(());

    /// Nothing.
    #[derive(Debug)]
    pub(crate) struct FutureWait(());

    impl FutureWait {
        #[inline(always)]
        pub(crate) fn new(_all: &FutureWaits) -> Self {
            Self(())
        }

        #[inline(always)]
        pub(crate) fn begin(&mut self) {}
    }

    /// Nothing.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Posted;

    impl Posted {
        #[inline(always)]
        pub(crate) fn now(_length: impl FnOnce() -> usize) -> Self {
            Self
        }
    }
}

#[cfg(not(feature = "inspect"))]
pub(crate) use off::{Flow, FutureWait, FutureWaits, Mark, PolledWait, Posted, Steps, Woken};
#[cfg(feature = "inspect")]
pub(crate) use on::{Flow, FutureWait, FutureWaits, Mark, PolledWait, Posted, Steps, Woken};
