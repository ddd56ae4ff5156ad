//! What is told to the recorder.

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
const STREAMS: &str = "tokio_rdma_streams";
const SENT: &str = "tokio_rdma_sent_bytes_total";
const RECEIVED: &str = "tokio_rdma_received_bytes_total";
const EXHAUSTED: &str = "tokio_rdma_credits_exhausted_total";
const BROKEN: &str = "tokio_rdma_broken_total";

/// Tells the recorder what each of the names means, for it to show. Once, after it was installed.
pub fn describe() {
    describe_gauge!(CONNECTIONS, Unit::Count, "Connections, and attempts at one, by state");
    describe_histogram!(PHASE, Unit::Seconds, "How long a connection was in a state");
    describe_counter!(ERRORS, Unit::Count, "Calls on connections that failed, by status");
    describe_gauge!(STREAMS, Unit::Count, "Open byte streams, and open messages");
    describe_counter!(SENT, Unit::Bytes, "Bytes that were written to streams and messages");
    describe_counter!(RECEIVED, Unit::Bytes, "Bytes that were read from streams and messages");
    describe_counter!(EXHAUSTED, Unit::Count, "Writes that waited for room");
    describe_counter!(BROKEN, Unit::Count, "Streams and messages that broke, by status");
}

/// What happened under a lock, for the recorder to hear of without it: it is foreign code.
#[derive(Default)]
pub(crate) struct Notes {
    failed: SmallVec<[(&'static str, Status); 1]>,
    begun: SmallVec<[Arc<Phase>; 1]>,
    over: SmallVec<[Arc<Phase>; 1]>,
}

impl Notes {
    /// A call on a connection has failed.
    pub(crate) fn failed(&mut self, call: &'static str, status: Status) {
        self.failed.push((call, status));
    }

    /// A connection is in another state; in none that counts before the first and after the last.
    pub(crate) fn moved(&mut self, stay: &mut Stay, state: Option<&'static str>) {
        let phase = state.map(|state| Arc::new(Phase::new(state)));
        self.begun.extend(phase.clone());
        if let Some(over) = std::mem::replace(&mut stay.0, phase) {
            over.ended.get_or_init(Instant::now);
            self.over.push(over);
        }
    }

    /// The lock is gone.
    pub(crate) fn tell(self) {
        for (call, status) in self.failed {
            counter!(ERRORS, "call" => call, "status" => status.to_string()).increment(1);
        }
        self.begun.iter().for_each(|phase| phase.begin());
    }
}

/// The state that a connection is in.
pub(crate) struct Stay(Option<Arc<Phase>>);

impl Stay {
    /// In its first, if that counts. The recorder hears of it at once.
    pub(crate) fn new(state: Option<&'static str>) -> Self {
        let (mut stay, mut notes) = (Self(None), Notes::default());
        notes.moved(&mut stay, state);
        notes.tell();
        stay
    }
}

/// One stay in a state: it is over for the recorder when the last who knows of it is gone, so that two threads may tell the
/// beginning and the end in either order.
struct Phase {
    state: &'static str,
    since: Instant,
    ended: OnceLock<Instant>,
    /// Where it was counted: there it has to be taken back.
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
        // Nobody has heard of one that was not told.
        if let Some(gauge) = self.gauge.take() {
            let ended = self.ended.take().unwrap_or_else(Instant::now);
            histogram!(PHASE, "state" => self.state).record(ended - self.since);
            gauge.decrement(1.0);
        }
    }
}

/// What goes through one stream.
pub(crate) struct Traffic {
    kind: &'static str,
    open: Gauge,
    sent: Counter,
    received: Counter,
    exhausted: Counter,
}

impl Traffic {
    /// One of this kind is open.
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

    /// Somebody begins to wait for room.
    pub(crate) fn exhausted(&self) {
        self.exhausted.increment(1);
    }

    /// It has ended otherwise than it should.
    pub(crate) fn broken(&self, status: Status) {
        counter!(BROKEN, "kind" => self.kind, "status" => status.to_string()).increment(1);
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}
