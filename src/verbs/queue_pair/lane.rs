//! A queue pair of a lane: the lane posts to the queue pair of the device and polls its completions by itself. What concerns the
//! connection is as ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{DeviceQp, QueuePair};
use crate::error::{Reason, WcError};
use crate::proto::qp::QueuePairState;
use crate::verbs::routes::CompletionHandler;

/// The state of a queue pair, as its lane sees it.
pub(crate) struct Look {
    pub(crate) phase: QueuePairState,
    /// The queue pair of the device; `None` once a job ends it.
    pub(crate) device: Option<Arc<DeviceQp>>,
    /// The number of reads and atomics that may be outstanding at once.
    pub(crate) reads: u32,
    /// A part of the path timeout has passed since the last look of a poll.
    pub(crate) ticked: bool,
}

impl QueuePair {
    /// Has the lane look at the queue pair. The caller may hold the locks of connectors.
    pub(super) fn tell_lane(&self) {
        if let Some(lane) = &self.lane {
            lane.news.mark();
            let news = lane.news.clone();
            // A waker is foreign code.
            self.adapter.runtime.spawn(async move { news.wake() });
        }
    }

    /// Returns the state, for the lane. `polls` says that the lane polls next, and counts the part of the path timeout.
    pub(crate) fn look(&self, polls: bool) -> Look {
        let ticked = self.lane.as_ref().map(|lane| &lane.ticked);
        let ticked = ticked.is_some_and(|ticked| ticked.fetch_and(!polls, Ordering::Relaxed));
        let state = self.lock();
        let current = state.device.current();
        let (device, reads) = (current.map(|current| current.qp.clone()), current.map_or(0, |c| c.reads));
        Look { phase: state.phase, device, reads, ticked }
    }

    /// Handles the first message that the lane has polled, perhaps before the one that establishes the connection. Returns whether it
    /// can be answered.
    pub(crate) fn received_early(&self) -> bool {
        let mut state = self.lock();
        let associated = state.phase == QueuePairState::Associated;
        if let Some(current) = state.device.current_mut().filter(|_| associated) {
            current.has_received = true;
            drop(state);
            self.data_arrived();
            return true;
        }
        false
    }

    /// Ends the connection because a request has failed, which the lane has polled. The key is that of the queue pair of the device.
    pub(crate) fn failed(&self, error: WcError, key: u32) {
        self.lock().broken.get_or_insert(error);
        self.broke(error, key);
    }

    /// Ends the connection because the device has refused requests of the lane.
    pub(crate) fn refused_by_device(&self, key: u32) {
        self.doorbell_refused(key);
    }

    /// Ends the connection, whose peer has given no sign of life for as long as the path timeout.
    pub(crate) fn gone_silent(&self, key: u32) {
        self.silent(key, Reason::PathTimeout);
    }
}
