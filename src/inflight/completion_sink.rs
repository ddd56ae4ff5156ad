//! Delivers the completions of one queue of a queue pair, and counts the receives of a shared receive queue.

#[cfg(feature = "inspect")]
use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};

#[cfg(feature = "soft")]
use super::Inbox;
use super::completion_ring::{CompletionRing, Entry};
#[cfg(any(feature = "verbs", tokio_rdma_model))]
use super::completion_ring::{Polling, hand_over};
use super::{Completed, Table, Ticket, WakeList};
#[cfg(feature = "inspect")]
use crate::inspect::WorkQueueReport;
use crate::status::Status;
use crate::sync::{Mutex, WaitKey, WaitSet};
#[cfg(feature = "soft")]
use crate::types::QueuePairId;

/// The destination of the completions of one queue of a queue pair.
#[derive(Clone)]
pub(crate) struct CompletionSink {
    destination: Destination,
    /// The context of the queue pair, for the completions; the id of one of a lane.
    queue_pair: u64,
    /// The counter of the requests, of a shared receive queue.
    count: Option<Arc<ReceiveCounter>>,
}

#[derive(Clone)]
enum Destination {
    Futures(Arc<Table>),
    /// The ring is polled first.
    Ring(Arc<Table>, Arc<CompletionRing>),
    #[cfg(feature = "soft")]
    Lane(Arc<Inbox>),
}

impl CompletionSink {
    fn new(destination: Destination) -> Self {
        Self { destination, queue_pair: 0, count: None }
    }

    /// Creates a sink that delivers straight to the futures of this table.
    pub(crate) fn to_futures(table: Arc<Table>) -> Self {
        Self::new(Destination::Futures(table))
    }

    /// Creates a sink that delivers to a completion queue that is polled, and from there to the futures.
    pub(crate) fn to_ring(table: Arc<Table>, ring: Arc<CompletionRing>) -> Self {
        Self::new(Destination::Ring(table, ring))
    }

    /// Creates a sink that delivers to the owner of a lane, for the queue pair with this id.
    #[cfg(feature = "soft")]
    pub(crate) fn to_lane(inbox: Arc<Inbox>, id: QueuePairId) -> Self {
        Self::new(Destination::Lane(inbox)).of_queue_pair(u64::from(id.0))
    }

    /// Returns the inbox of the lane that it delivers to, and the id of the queue pair.
    #[cfg(feature = "soft")]
    pub(crate) fn lane(&self) -> Option<(&Arc<Inbox>, QueuePairId)> {
        match &self.destination {
            Destination::Lane(inbox) => Some((inbox, self.queue_pair_id())),
            Destination::Futures(_) | Destination::Ring(..) => None,
        }
    }

    #[cfg(feature = "soft")]
    fn queue_pair_id(&self) -> QueuePairId {
        QueuePairId(self.queue_pair as u32)
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
        matches!(self.destination, Destination::Futures(_)) && self.count.is_none()
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
        match &self.destination {
            Destination::Ring(table, ring) if !completed.is_silent() => {
                match polling.filter(|polling| polling.takes(ring)) {
                    Some(polling) => polling.take(hand_over(table, ticket, completed, wakes)),
                    None => ring.push(Entry::new(table, ticket, completed), wakes),
                }
            }
            Destination::Futures(table) | Destination::Ring(table, _) => {
                hand_over(table, ticket, completed, wakes);
            }
            #[cfg(feature = "soft")]
            Destination::Lane(inbox) => inbox.complete(self.queue_pair_id(), ticket, completed, wakes),
        }
    }

    /// Adds its requests to a report: the receives, or all others.
    #[cfg(feature = "inspect")]
    pub(crate) fn inspect(&self, receives: bool, report: &mut WorkQueueReport) {
        match &self.destination {
            Destination::Futures(table) => table.inspect(receives, &HashSet::new(), report),
            Destination::Ring(table, ring) => table.inspect(receives, &ring.tickets_of(table), report),
            #[cfg(feature = "soft")]
            Destination::Lane(_) => {}
        }
    }

    /// Completes a request that the provider is done with, see [`Table::complete`].
    pub(crate) fn complete(&self, ticket: Ticket, mut completed: Completed, wakes: &mut WakeList) {
        completed.extra.queue_pair = self.queue_pair;
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        match &self.destination {
            Destination::Ring(table, ring) if !completed.is_silent() => {
                ring.push(Entry::new(table, ticket, completed), wakes);
            }
            Destination::Futures(table) | Destination::Ring(table, _) => {
                table.complete(ticket, completed, wakes);
            }
            #[cfg(feature = "soft")]
            Destination::Lane(inbox) => inbox.complete(self.queue_pair_id(), ticket, completed, wakes),
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
