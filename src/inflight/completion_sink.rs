//! Delivers the completions of one queue of a queue pair, and counts the receives of a shared receive queue.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::completion_ring::{CompletionRing, Entry};
#[cfg(any(feature = "verbs", tokio_rdma_model))]
use super::completion_ring::{Polling, hand_over};
use super::{Completed, Table, Ticket, WakeList};
use crate::status::Status;
use crate::sync::{Mutex, WaitKey, WaitSet};

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
    #[inline(always)]
    pub(crate) fn complete_polled(
        &self,
        ticket: Ticket,
        mut completed: Completed,
        polling: Option<&mut Polling<'_>>,
        wakes: &mut WakeList,
    ) {
        completed.extra.queue_pair = self.queue_pair;
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        let ring = self.ring.as_ref().filter(|_| !completed.is_silent());
        let polling = polling.filter(|polling| ring.is_some_and(|ring| polling.takes(ring)));
        if let (Some(ring), None) = (ring, &polling) {
            return ring.push(Entry { table: self.table.clone(), ticket, completed }, wakes);
        }
        let polled = hand_over(&self.table, ticket, completed, wakes);
        if let Some(polling) = polling {
            polling.take(polled);
        }
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

/// The posted receives of a shared receive queue, with a low-water mark.
struct Count {
    held: usize,
    depth: usize,
    /// Fewer than this are few.
    threshold: usize,
    waiting: WaitSet<()>,
    /// The status with which the counter was closed, if it is closed.
    closed: Option<Status>,
}

impl Count {
    /// Notifies every task that waits, if there are few or it is closed.
    fn notify(&mut self, wakes: &mut WakeList) {
        if self.closed.is_none() && self.held >= self.threshold {
            return;
        }
        self.waiting.notify_all((), wakes);
    }
}

/// The count of a shared receive queue (IND2SharedReceiveQueue::Notify).
pub(crate) struct ReceiveCounter(Mutex<Count>);

impl ReceiveCounter {
    /// Creates a counter that counts up to `depth`; fewer than `threshold` are few.
    pub(crate) fn new(depth: usize, threshold: usize) -> Self {
        let waiting = WaitSet::default();
        Self(Mutex::new(Count { held: 0, depth, threshold, waiting, closed: None }))
    }

    /// Counts a receive that is about to be posted. Returns `false` if there is no room for it.
    pub(crate) fn reserve(&self) -> bool {
        let mut state = self.0.lock();
        let room = state.held < state.depth;
        state.held += usize::from(room);
        room
    }

    /// Takes a receive off the count: a message has taken it, or it was reserved and not posted.
    pub(crate) fn taken(&self, wakes: &mut WakeList) {
        let mut state = self.0.lock();
        state.held = state.held.saturating_sub(1);
        state.notify(wakes);
    }

    /// Returns the number of receives.
    pub(crate) fn held(&self) -> usize {
        self.0.lock().held
    }

    /// Returns the number of receives that the queue can hold.
    pub(crate) fn depth(&self) -> usize {
        self.0.lock().depth
    }

    /// Sets the depth and the threshold that are given. The threshold is at most the depth. If the number of receives is larger
    /// than `depth`, fails with it, and changes nothing.
    pub(crate) fn modify(&self, depth: Option<usize>, threshold: Option<usize>) -> Result<(), usize> {
        let mut wakes = WakeList::default();
        let mut state = self.0.lock();
        if let Some(depth) = depth {
            if state.held > depth {
                return Err(state.held);
            }
            state.depth = depth;
        }
        state.threshold = threshold.unwrap_or(state.threshold).min(state.depth);
        state.notify(&mut wakes);
        drop(state);
        wakes.wake_all();
        Ok(())
    }

    /// Closes the counter and notifies every task that waits.
    pub(crate) fn close(&self, status: Status) {
        let mut wakes = WakeList::default();
        let mut state = self.0.lock();
        state.closed.get_or_insert(status);
        state.notify(&mut wakes);
        drop(state);
        wakes.wake_all();
    }

    /// Asks to be notified when there are few; at once, if there are.
    pub(crate) fn watch(self: &Arc<Self>) -> Watch {
        let mut wakes = WakeList::default();
        let mut state = self.0.lock();
        let key = state.waiting.register(());
        state.notify(&mut wakes);
        drop(state);
        wakes.wake_all();
        Watch { count: self.clone(), key }
    }
}

/// The place of a task that waits for few receives.
pub(crate) struct Watch {
    count: Arc<ReceiveCounter>,
    key: WaitKey,
}

impl Watch {
    /// Resolves when there are few receives or the queue is closed: to the status with which it was closed, if it was.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        let mut state = self.count.0.lock();
        let (polled, replaced) = state.waiting.poll(self.key, cx);
        let closed = state.closed;
        drop(state);
        drop(replaced);
        polled.map(|()| closed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let waiter = self.count.0.lock().waiting.remove(self.key);
        drop(waiter);
    }
}
