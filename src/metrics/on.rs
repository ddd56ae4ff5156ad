//! Metrics for the recorder of the `metrics` facade.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ::metrics::{
    Counter, Gauge, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use smallvec::SmallVec;

use crate::status::Status;

const CONNECTIONS: &str = "tokio_rdma_connections";
const PHASE: &str = "tokio_rdma_phase_seconds";
const ERRORS: &str = "tokio_rdma_errors_total";
const ACCEPTS: &str = "tokio_rdma_accepts_total";
const HALF_OPEN: &str = "tokio_rdma_half_open";
const STREAMS: &str = "tokio_rdma_streams";
const SENT: &str = "tokio_rdma_sent_bytes_total";
const RECEIVED: &str = "tokio_rdma_received_bytes_total";
const EXHAUSTED: &str = "tokio_rdma_credits_exhausted_total";
const SESSIONS: &str = "tokio_rdma_sessions_total";
const BROKEN: &str = "tokio_rdma_broken_total";

/// Registers a description of each metric with the recorder. Call this once, after the recorder was installed.
pub fn describe() {
    describe_gauge!(CONNECTIONS, Unit::Count, "Connections and connection attempts, by state");
    describe_histogram!(PHASE, Unit::Seconds, "Time that a connection spent in a state");
    describe_counter!(ERRORS, Unit::Count, "Failed calls on connections and lost connections, by status");
    describe_counter!(ACCEPTS, Unit::Count, "Peers of listeners, by what became of them");
    describe_gauge!(HALF_OPEN, Unit::Count, "Peers that a listener waits for before it can go on");
    describe_gauge!(STREAMS, Unit::Count, "Open byte streams");
    describe_counter!(SENT, Unit::Bytes, "Bytes written to streams");
    describe_counter!(RECEIVED, Unit::Bytes, "Bytes read from streams");
    describe_counter!(EXHAUSTED, Unit::Count, "Writes that waited for room");
    describe_counter!(SESSIONS, Unit::Count, "Connections that resume sessions of streams, by outcome");
    describe_counter!(BROKEN, Unit::Count, "Streams that broke, by status");
}

/// Metrics of events under a lock. They are recorded after the lock is released, because the recorder is foreign code.
#[derive(Default)]
pub(crate) struct PendingMetrics {
    failed: SmallVec<[(&'static str, Status); 1]>,
    begun: SmallVec<[Arc<Phase>; 1]>,
    over: SmallVec<[Arc<Phase>; 1]>,
}

impl PendingMetrics {
    /// Notes that a call on a connection has failed.
    pub(crate) fn failed(&mut self, call: &'static str, status: Status) {
        self.failed.push((call, status));
    }

    /// Notes that a connection has changed its state. `None` is a state that is not counted.
    pub(crate) fn moved(&mut self, guard: &mut PhaseGuard, state: Option<&'static str>) {
        let phase = state.map(|state| Arc::new(Phase::new(state)));
        self.begun.extend(phase.clone());
        if let Some(over) = std::mem::replace(&mut guard.0, phase) {
            over.ended.get_or_init(Instant::now);
            self.over.push(over);
        }
    }

    /// Returns whether there is nothing to record.
    pub(crate) fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.begun.is_empty() && self.over.is_empty()
    }

    /// Records the metrics. Called after the lock is released.
    pub(crate) fn record(self) {
        for (call, status) in self.failed {
            counter!(ERRORS, "call" => call, "status" => status.to_string()).increment(1);
        }
        self.begun.iter().for_each(|phase| phase.begin());
    }
}

/// The current state of a connection.
pub(crate) struct PhaseGuard(Option<Arc<Phase>>);

impl PhaseGuard {
    /// Creates the first state of a connection and records it. `None` is a state that is not counted.
    pub(crate) fn new(state: Option<&'static str>) -> Self {
        let (mut guard, mut metrics) = (Self(None), PendingMetrics::default());
        metrics.moved(&mut guard, state);
        metrics.record();
        guard
    }
}

/// A period in one state. Its end is recorded when the last reference is dropped, so that two threads can record the
/// beginning and the end in either order.
struct Phase {
    state: &'static str,
    since: Instant,
    ended: OnceLock<Instant>,
    /// The gauge that was incremented, and must be decremented.
    gauge: OnceLock<Gauge>,
}

impl Phase {
    fn new(state: &'static str) -> Self {
        Self { state, since: Instant::now(), ended: OnceLock::new(), gauge: OnceLock::new() }
    }

    fn begin(&self) {
        let gauge = self.gauge.get_or_init(|| gauge!(CONNECTIONS, "state" => self.state));
        gauge.increment(1.0);
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        // Without a gauge the beginning was not recorded.
        if let Some(gauge) = self.gauge.take() {
            let ended = self.ended.take().unwrap_or_else(Instant::now);
            histogram!(PHASE, "state" => self.state).record(ended - self.since);
            gauge.decrement(1.0);
        }
    }
}

/// The metrics of one stream.
pub(crate) struct Traffic {
    kind: &'static str,
    open: Gauge,
    sent: Counter,
    received: Counter,
    exhausted: Counter,
}

impl Traffic {
    /// Records that a stream of this kind is open.
    pub(crate) fn new(kind: &'static str) -> Self {
        let open = gauge!(STREAMS, "kind" => kind);
        open.increment(1.0);
        Self {
            kind,
            open,
            sent: counter!(SENT, "kind" => kind),
            received: counter!(RECEIVED, "kind" => kind),
            exhausted: counter!(EXHAUSTED, "kind" => kind),
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.increment(bytes as u64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.increment(bytes as u64);
    }

    /// Records that a write waits for room.
    pub(crate) fn exhausted(&self) {
        self.exhausted.increment(1);
    }

    /// Records that the stream broke.
    pub(crate) fn broken(&self, status: Status) {
        counter!(BROKEN, "kind" => self.kind, "status" => status.to_string()).increment(1);
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

/// The metrics of the listeners of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptMetrics {
    kind: &'static str,
}

impl AcceptMetrics {
    /// Creates metrics with this label.
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind }
    }

    /// Records the outcome of the request of a peer.
    pub(crate) fn count(&self, outcome: &'static str) {
        counter!(ACCEPTS, "kind" => self.kind, "outcome" => outcome).increment(1);
    }

    /// Records that a peer is half open, until the guard is dropped.
    pub(crate) fn half_open(&self) -> HalfOpenGuard {
        let gauge = gauge!(HALF_OPEN, "kind" => self.kind);
        gauge.increment(1.0);
        HalfOpenGuard(gauge)
    }
}

/// Records what became of a connection that was to resume a session.
pub(crate) fn count_session(outcome: &'static str) {
    counter!(SESSIONS, "outcome" => outcome).increment(1);
}

/// A peer that is half open.
pub(crate) struct HalfOpenGuard(Gauge);

impl Drop for HalfOpenGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
