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

    /// Returns whether completions go straight to the futures, and nobody counts them.
    #[cfg(feature = "soft")]
    pub(crate) fn is_direct(&self) -> bool {
        self.ring.is_none() && self.count.is_none()
    }

    /// As [`complete`](Self::complete), for a provider that looks for completions because somebody polls. The lock of the
    /// queue pair is held.
    #[cfg(any(feature = "verbs", tokio_rdma_model))]
    pub(crate) fn complete_polled(
        &self,
        ticket: Ticket,
        completed: Completed,
        polling: Option<&mut Polling<'_>>,
        wakes: &mut WakeList,
    ) {
        let (Some(polling), Some((ring, queue_pair))) = (polling, &self.ring) else {
            return self.complete(ticket, completed, wakes);
        };
        if completed.is_silent() || !polling.takes(ring) {
            return self.complete(ticket, completed, wakes);
        }
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        polling.take(hand_over(&self.table, ticket, completed, *queue_pair, wakes));
    }

    /// The provider is done with a request, see [`Table::complete`].
    pub(crate) fn complete(&self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        match &self.ring {
            Some((ring, queue_pair)) if !completed.is_silent() => {
                let (queue_pair, table) = (*queue_pair, self.table.clone());
                ring.push(Entry { queue_pair, table, ticket, completed }, wakes);
            }
            _ => {
                self.table.complete(ticket, completed, wakes);
            }
        }
    }
}
