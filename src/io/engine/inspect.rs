//! The report of an end of a stream for a snapshot.

use std::sync::{Arc, Weak};

use super::{Side, StreamEngine};
use crate::inspect::{self, Inspect, Snapshot, StreamReport};
use crate::io::resources::Incoming;

/// Lets snapshots see an end, as long as it exists.
pub(super) fn register(engine: &Arc<StreamEngine>) {
    let object: Weak<StreamEngine> = Arc::downgrade(engine);
    let _ = engine.inspected.1.set(inspect::register(object));
}

impl Inspect for StreamEngine {
    fn inspect(&self, snapshot: &mut Snapshot) {
        if !self.has_moved() {
            snapshot.streams.push(self.report());
        }
    }
}

impl StreamEngine {
    /// Returns the report of the stream, which is here.
    pub(in crate::io) fn report(&self) -> StreamReport {
        let mut report = StreamReport { connection: self.connection.id().0, ..StreamReport::default() };
        report.age = self.inspected.0.age();
        (report.bytes_sent, report.bytes_received) = self.flow.totals();
        let state = self.inner.state.lock();
        state.machine.report(&mut report);
        report.read_waits = state.waits[Side::Reader as usize].age();
        report.write_waits = state.waits[Side::Writer as usize].age();
        report.ended = state.ended.as_ref().map(ToString::to_string);
        drop(state);
        match &self.queues.incoming {
            // Also what no message has announced yet.
            Incoming::Inbox(inbox) => report.unread = report.unread.max(inbox.readable()),
            Incoming::Receives(queue) => report.unprocessed = queue.len(),
        }
        report
    }
}
