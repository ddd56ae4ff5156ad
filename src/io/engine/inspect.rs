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
    /// Notes that no call that polls waits in this direction.
    pub(in crate::io) fn end_wait(&self, side: Side) {
        self.inner.state.lock().waits[side as usize].end();
    }

    /// Returns the report of the stream, which is here.
    pub(in crate::io) fn report(&self) -> StreamReport {
        let mut report = StreamReport { connection: self.connection.id().0, ..StreamReport::default() };
        report.age = self.inspected.0.age();
        (report.bytes_sent, report.bytes_received) = self.flow.totals();
        let state = self.inner.state.lock();
        state.machine.report(&mut report);
        let polled = Side::BOTH.map(|side| state.waits[side as usize]);
        report.ended = state.ended.as_ref().map(ToString::to_string);
        drop(state);
        let [reader, writer] = Side::BOTH.map(|side| {
            let tasks = self.inner.wakers.tasks(side);
            if let Some(age) = tasks.waits.oldest() {
                return (Some(age), None);
            }
            // One that was woken is polled again, or was dropped.
            polled[side as usize].ages().filter(|_| !tasks.woken.get()).unzip()
        });
        (report.read_waits, report.read_polled) = reader;
        (report.write_waits, report.write_polled) = writer;
        match &self.queues.incoming {
            // Also what no message has announced yet.
            Incoming::Inbox(inbox) => report.unread = report.unread.max(inbox.readable()),
            Incoming::Receives(queue) => report.unprocessed = queue.len(),
        }
        report
    }
}
