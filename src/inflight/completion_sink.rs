//! Delivers the completions of one queue of a queue pair.

use std::sync::Arc;

use super::completion_ring::{CompletionRing, Entry};
#[cfg(any(feature = "verbs", tokio_rdma_model))]
use super::completion_ring::{Polling, hand_over};
use super::{Completed, ReceiveCounter, Table, Ticket, WakeList};

/// The destination of the completions of one queue of a queue pair.
#[derive(Clone)]
pub(crate) struct CompletionSink {
    table: Arc<Table>,
    /// The ring that is polled first.
    ring: Option<Arc<CompletionRing>>,
    /// The context of the queue pair, for the completions.
    queue_pair: u64,
    /// The counter of the requests, of a shared receive queue.
    count: Option<Arc<ReceiveCounter>>,
}

impl CompletionSink {
    /// Creates a sink that delivers straight to the futures of this table.
    pub(crate) fn to_futures(table: Arc<Table>) -> Self {
        Self { table, ring: None, queue_pair: 0, count: None }
    }

    /// Creates a sink that delivers to a completion queue that is polled, and from there to the futures.
    pub(crate) fn to_ring(table: Arc<Table>, ring: Arc<CompletionRing>) -> Self {
        Self { table, ring: Some(ring), queue_pair: 0, count: None }
    }

    /// Sets the context by which completions name the queue pair.
    pub(crate) fn of_queue_pair(self, context: u64) -> Self {
        Self { queue_pair: context, ..self }
    }

    /// Counts every request as taken when it completes.
    pub(crate) fn counted(self, count: Arc<ReceiveCounter>) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Returns whether completions go straight to the futures and are not counted.
    #[cfg(feature = "soft")]
    pub(crate) fn is_direct(&self) -> bool {
        self.ring.is_none() && self.count.is_none()
    }

    /// Completes a request like [`complete`](Self::complete), for a provider that looks for completions during a poll
    /// of a completion queue. The caller holds the lock of the queue pair.
    #[cfg(any(feature = "verbs", tokio_rdma_model))]
    pub(crate) fn complete_polled(
        &self,
        ticket: Ticket,
        mut completed: Completed,
        polling: Option<&mut Polling<'_>>,
        wakes: &mut WakeList,
    ) {
        let (Some(polling), Some(ring)) = (polling, &self.ring) else {
            return self.complete(ticket, completed, wakes);
        };
        if completed.is_silent() || !polling.takes(ring) {
            return self.complete(ticket, completed, wakes);
        }
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        completed.extra.queue_pair = self.queue_pair;
        polling.take(hand_over(&self.table, ticket, completed, wakes));
    }

    /// Completes a request that the provider is done with, see [`Table::complete`].
    pub(crate) fn complete(&self, ticket: Ticket, mut completed: Completed, wakes: &mut WakeList) {
        completed.extra.queue_pair = self.queue_pair;
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        match &self.ring {
            Some(ring) if !completed.is_silent() => {
                ring.push(Entry { table: self.table.clone(), ticket, completed }, wakes);
            }
            _ => {
                self.table.complete(ticket, completed, wakes);
            }
        }
    }
}
