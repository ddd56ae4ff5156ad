//! Delivers the completions of one queue of a queue pair.

use std::sync::Arc;

use super::completion_ring::{CompletionRing, Entry};
use super::{Completed, ReceiveCounter, Table, Ticket, WakeList};
use crate::status::Status;

/// The destination of the completions of one queue of a queue pair.
#[derive(Clone)]
pub(crate) struct CompletionSink {
    table: Arc<Table>,
    /// The ring that is polled first, and the number of the queue pair there.
    ring: Option<(Arc<CompletionRing>, u64)>,
    /// The counter of the requests, of a shared receive queue.
    count: Option<Arc<ReceiveCounter>>,
}

impl CompletionSink {
    /// Straight to the futures of this table.
    pub(crate) fn to_futures(table: Arc<Table>) -> Self {
        Self { table, ring: None, count: None }
    }

    /// To a completion queue that is polled, with a number for the queue pair, and from there to the futures.
    pub(crate) fn to_ring(table: Arc<Table>, ring: Arc<CompletionRing>, queue_pair: u64) -> Self {
        Self { table, ring: Some((ring, queue_pair)), count: None }
    }

    /// Every request is counted as taken when it completes.
    pub(crate) fn counted(self, count: Arc<ReceiveCounter>) -> Self {
        Self { count: Some(count), ..self }
    }

    /// The provider is done with a request, see [`Table::complete`].
    pub(crate) fn complete(&self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        match &self.ring {
            Some((ring, queue_pair)) if !(completed.extra.silent && completed.status == Status::SUCCESS) => {
                let (queue_pair, table) = (*queue_pair, self.table.clone());
                ring.push(Entry { queue_pair, table, ticket, completed }, wakes);
            }
            _ => {
                self.table.complete(ticket, completed, wakes);
            }
        }
    }
}
