//! Times and lengths that objects note for a snapshot. Without the feature `inspect` they are empty.

#[cfg(feature = "inspect")]
mod on {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use tokio::time::Instant;

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

    /// The time since which something waits.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Wait(Option<Mark>);

    impl Wait {
        /// Notes that it waits, unless it does so already.
        pub(crate) fn begin(&mut self) {
            self.0.get_or_insert_with(Mark::now);
        }

        /// Notes that it waits no longer.
        #[inline]
        pub(crate) fn end(&mut self) {
            self.0 = None;
        }

        /// Returns how long it has waited.
        pub(crate) fn age(self) -> Option<Duration> {
            self.0.map(Mark::age)
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
    pub(crate) struct Wait(());

    impl Wait {
        #[inline(always)]
        pub(crate) fn begin(&mut self) {}

        #[inline(always)]
        pub(crate) fn end(&mut self) {}
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
pub(crate) use off::{Flow, Mark, Posted, Steps, Wait};
#[cfg(feature = "inspect")]
pub(crate) use on::{Flow, Mark, Posted, Steps, Wait};
