//! What is told to the recorder.

use std::time::Instant;

use ::metrics::{
    Counter, Gauge, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

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

/// A call on a connection has failed.
pub(crate) fn failed(call: &'static str, status: Status) {
    counter!(ERRORS, "call" => call, "status" => status.to_string()).increment(1);
}

/// The state that a connection is in, since when, and where that is counted.
pub(crate) struct Stay(Option<(&'static str, Instant, Gauge)>);

impl Stay {
    /// It is in none that counts.
    pub(crate) fn new() -> Self {
        Self(None)
    }

    /// The connection is in another state; in none that counts before the first and after the last.
    pub(crate) fn moved(&mut self, state: Option<&'static str>) {
        self.leave();
        self.0 = state.map(|state| {
            let gauge = gauge!(CONNECTIONS, "state" => state);
            gauge.increment(1.0);
            (state, Instant::now(), gauge)
        });
    }

    fn leave(&mut self) {
        if let Some((state, since, gauge)) = self.0.take() {
            gauge.decrement(1.0);
            histogram!(PHASE, "state" => state).record(since.elapsed());
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.leave();
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
