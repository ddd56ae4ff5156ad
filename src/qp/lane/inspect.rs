//! The report of a lane for a snapshot. Its owner alone knows it, and leaves a few numbers behind at each poll.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::inspect::{self, Inspect, LaneReport, Mark, Place, Snapshot};
use crate::provider::lane::LaneParts;
use crate::sync::Mutex;

/// What the owner of a lane leaves behind.
pub(super) struct Gauge {
    adapter: u64,
    slots: u32,
    queue_pairs: u16,
    outstanding: AtomicU32,
    /// Written by the owner alone.
    polls: AtomicU64,
    waits: AtomicBool,
    /// The number of polls when a snapshot has last seen another, and the time of that.
    seen: Mutex<(u64, Mark)>,
    place: OnceLock<Place>,
}

impl Gauge {
    /// Creates the gauge of a lane of the adapter with this number.
    pub(super) fn new(adapter: u64, parts: &LaneParts) -> Arc<Self> {
        let gauge = Arc::new(Self {
            adapter,
            slots: parts.slots,
            queue_pairs: parts.queue_pairs,
            outstanding: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            seen: Mutex::new((0, Mark::now())),
            place: OnceLock::new(),
        });
        let object: Weak<Self> = Arc::downgrade(&gauge);
        let _ = gauge.place.set(inspect::register(object));
        gauge
    }

    /// Notes a poll, after which so many requests are outstanding, and whether a task waits for more.
    #[inline]
    pub(super) fn polled(&self, outstanding: u32, waits: bool) {
        self.rung(outstanding);
        self.polls.store(self.polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Notes that no task waits any longer when the result is dropped.
    pub(super) fn waiting(self: &Arc<Self>) -> impl Drop + use<> {
        Waiting(self.clone())
    }

    /// Notes a doorbell, after which so many requests are outstanding.
    #[inline]
    pub(super) fn rung(&self, outstanding: u32) {
        self.outstanding.store(outstanding, Ordering::Relaxed);
    }
}

/// A task that waits for completions.
struct Waiting(Arc<Gauge>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waits.store(false, Ordering::Relaxed);
    }
}

impl Inspect for Gauge {
    fn inspect(&self, snapshot: &mut Snapshot) {
        let mut report = LaneReport { adapter: self.adapter, ..LaneReport::default() };
        (report.slots, report.queue_pairs) = (self.slots as usize, self.queue_pairs.into());
        report.outstanding = self.outstanding.load(Ordering::Relaxed) as usize;
        report.polls = self.polls.load(Ordering::Relaxed);
        report.is_waiting = self.waits.load(Ordering::Relaxed);
        let mut seen = self.seen.lock();
        if seen.0 != report.polls {
            *seen = (report.polls, Mark::now());
        }
        report.since_polled = seen.1.age();
        drop(seen);
        snapshot.lanes.push(report);
    }
}
