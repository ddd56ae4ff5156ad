//! Completions that wait to be polled: the completion queues of all providers.
//!
//! A request whose queue pair has a completion queue of the user's completes into a [`CompletionRing`]. There
//! its completion stays until it is polled; only then does it reach the slot of its future. A task that sleeps
//! instead asks for a notification: of any result, of those that the peer solicited, or of failures
//! (IND2CompletionQueue::Notify).

use std::collections::VecDeque;
#[cfg(feature = "inspect")]
use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use slab::Slab;

use super::{Completed, CompletionInfo, RequestMeta, Table, Ticket, WakeList};
#[cfg(feature = "inspect")]
use crate::inspect::CompletionQueueReport;
use crate::inspect::Mark;
use crate::status::Status;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, WaitKey, WaitSet, Waiter};

/// The completions that resolve a notification. Each kind includes the kinds listed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NotifyKind {
    /// Any completion (`ND_CQ_NOTIFY_ANY`).
    Any,
    /// A received message that was sent with a solicited event, or a failure (`ND_CQ_NOTIFY_SOLICITED`). On a device it may resolve
    /// for any message: [`AdapterInfo::solicited_events`](crate::cm::AdapterInfo::solicited_events).
    Solicited,
    /// A failure (`ND_CQ_NOTIFY_ERRORS`).
    Errors,
}

/// A result, polled.
pub(crate) struct Polled {
    pub(crate) label: Option<RequestMeta>,
    pub(crate) status: Status,
    pub(crate) bytes: u32,
    pub(crate) extra: CompletionInfo,
}

/// A completion queue that is being polled. A result that is found during the poll is handed over at once, and does not
/// wait in the ring.
#[cfg_attr(
    not(any(feature = "verbs", tokio_rdma_model)),
    expect(dead_code, reason = "soft completes into the ring when it is polled")
)]
pub(crate) struct Polling<'a> {
    ring: &'a CompletionRing,
    /// The number of results that were asked for.
    #[cfg(feature = "soft")]
    most: usize,
    /// The number of results that are still asked for.
    room: usize,
    take: &'a mut dyn FnMut(Polled),
}

impl Polling<'_> {
    /// Returns whether no result has been found.
    #[cfg(feature = "soft")]
    pub(crate) fn is_empty(&self) -> bool {
        self.room == self.most
    }

    /// Returns whether the ring holds as many results as are asked for.
    #[cfg(feature = "soft")]
    pub(crate) fn is_satisfied(&self) -> bool {
        !self.ring.is_idle() && self.ring.len() >= self.room
    }

    /// Returns the number of results that are still asked for.
    #[cfg(feature = "verbs")]
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Returns whether a result for this ring can be handed over. The caller holds the lock of its queue pair, so that no result
    /// before it is on its way to the ring.
    #[cfg(any(feature = "verbs", tokio_rdma_model))]
    pub(super) fn takes(&self, ring: &CompletionRing) -> bool {
        self.room > 0 && std::ptr::eq(self.ring, ring) && ring.is_idle()
    }

    /// Hands a result over.
    #[cfg(any(feature = "verbs", tokio_rdma_model))]
    pub(super) fn take(&mut self, polled: Polled) {
        self.room = self.room.saturating_sub(1);
        (self.take)(polled);
    }
}

/// Hands the completion of a request to its future, and returns the report of it for the caller of `poll`.
#[inline]
pub(super) fn hand_over(table: &Table, ticket: Ticket, completed: Completed, wakes: &mut WakeList) -> Polled {
    let Completed { status, bytes, extra, .. } = completed;
    let label = table.complete_here(ticket, completed, wakes);
    Polled { label, status, bytes, extra }
}

/// An object that ends when results are lost.
pub(crate) trait OverrunListener: Send + Sync {
    /// Ends the object, because the completion queue was full and has lost a result.
    fn overrun(&self);
}

/// A result that waits to be polled.
pub(super) struct Entry {
    pub(super) table: Arc<Table>,
    pub(super) ticket: Ticket,
    pub(super) completed: Completed,
    /// When it has come, for snapshots.
    #[cfg_attr(not(feature = "inspect"), expect(dead_code, reason = "only snapshots read it"))]
    since: Mark,
}

impl Entry {
    /// Creates the entry of a result that has come now.
    #[inline]
    pub(super) fn new(table: &Arc<Table>, ticket: Ticket, completed: Completed) -> Self {
        Self { table: table.clone(), ticket, completed, since: Mark::now() }
    }
}

/// The reason of a notification.
#[derive(Clone, Copy)]
enum Notification {
    /// There are results.
    Results(NotifyKind),
    /// The queue is closed.
    Closed,
}

/// The requests whose results wait in a ring, by the address of their table.
#[cfg(feature = "inspect")]
type ByTable = HashMap<usize, Arc<HashSet<Ticket>>>;

#[cfg(test)]
std::thread_local! {
    /// The number of times that this thread has gone through the results of a ring for a snapshot.
    #[cfg(feature = "inspect")]
    static PASSES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

struct State {
    entries: VecDeque<Entry>,
    /// An index of `entries` for snapshots, until they change: many queue pairs may share the ring, and each asks for its own.
    #[cfg(feature = "inspect")]
    by_table: Option<ByTable>,
    depth: usize,
    /// The best result that has come since a task was notified.
    pending: Option<NotifyKind>,
    waiting: WaitSet<Notification, NotifyKind>,
    listeners: Slab<Weak<dyn OverrunListener>>,
    /// The status with which the ring was closed, if it is closed.
    closed: Option<Status>,
}

impl State {
    /// Returns whether the ring has no result, no task waits for one, and the ring is open.
    fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.closed.is_none() && self.waiting.interests().next().is_none()
    }

    /// Drops the index of the results, which are about to change.
    #[inline]
    fn drop_index(&mut self) {
        #[cfg(feature = "inspect")]
        {
            self.by_table = None;
        }
    }

    /// Notifies every task that waits, if the best result is good enough for one of them: `ANY dominates`.
    fn notify(&mut self, wakes: &mut WakeList) {
        let notification = match (self.closed, self.pending, self.waiting.interests().min()) {
            (Some(_), _, _) => Notification::Closed,
            (None, Some(best), Some(least)) if best >= *least => Notification::Results(best),
            _ => return,
        };
        self.pending = None;
        self.waiting.notify_all(notification, wakes);
    }
}

/// The results of a completion queue that have not been polled.
pub(crate) struct CompletionRing {
    state: Mutex<State>,
    /// See [`State::is_idle`]. Written with the lock.
    idle: AtomicBool,
}

/// The lock of a ring.
struct Guard<'a> {
    state: MutexGuard<'a, State>,
    idle: &'a AtomicBool,
}

impl Deref for Guard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.idle.store(self.state.is_idle(), Ordering::Release);
    }
}

impl CompletionRing {
    /// Creates an empty ring with room for `depth` results.
    pub(crate) fn new(depth: usize) -> Arc<Self> {
        let state = State {
            entries: VecDeque::new(),
            #[cfg(feature = "inspect")]
            by_table: None,
            depth,
            pending: None,
            waiting: WaitSet::default(),
            listeners: Slab::new(),
            closed: None,
        };
        Arc::new(Self { state: Mutex::new(state), idle: AtomicBool::new(true) })
    }

    fn lock(&self) -> Guard<'_> {
        Guard { state: self.state.lock(), idle: &self.idle }
    }

    /// Returns whether a result need not be kept here to be polled. Takes no lock: results of other threads may be on
    /// their way.
    fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    /// Calls `listener` when results are lost, until what this returns is dropped.
    pub(crate) fn join(self: &Arc<Self>, listener: Weak<dyn OverrunListener>) -> Joined {
        let mut state = self.lock();
        if state.listeners.capacity() == 0 {
            // Many a ring has one listener, and the first growth of a slab would be to four.
            state.listeners.reserve_exact(1);
        }
        Joined { ring: self.clone(), place: state.listeners.insert(listener) }
    }

    /// Adds a result. One that finds no room closes the ring.
    pub(super) fn push(&self, entry: Entry, wakes: &mut WakeList) {
        let mut state = self.lock();
        if state.closed.is_none() && state.entries.len() < state.depth {
            let kind = match (entry.completed.status, entry.completed.extra.solicited) {
                (Status::SUCCESS, false) => NotifyKind::Any,
                (Status::SUCCESS, true) => NotifyKind::Solicited,
                _ => NotifyKind::Errors,
            };
            state.drop_index();
            state.entries.push_back(entry);
            state.pending = state.pending.max(Some(kind));
            state.notify(wakes);
            return;
        }
        // The result is lost to the queue, not to the future of its request.
        let first = state.closed.is_none();
        state.closed.get_or_insert(Status::BUFFER_OVERFLOW);
        state.notify(wakes);
        let listeners: Vec<_> = state.listeners.iter().map(|(_, listener)| listener.clone()).collect();
        drop(state);
        let Entry { table, ticket, completed, .. } = entry;
        table.complete(ticket, completed, wakes);
        if first {
            wakes.run(move || {
                listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.overrun());
            });
        }
    }

    /// Takes up to `most` results, oldest first, and hands the completion of each to its future. `look` searches for
    /// others, also when there is no room for them.
    pub(crate) fn poll(
        &self,
        most: usize,
        mut take: impl FnMut(Polled),
        look: impl FnOnce(&mut Polling<'_>),
    ) -> usize {
        let mut room = most;
        if !self.is_idle() {
            room -= self.take(room, &mut take);
        }
        if most > 0 {
            let mut polling = Polling {
                ring: self,
                #[cfg(feature = "soft")]
                most,
                room,
                take: &mut take,
            };
            look(&mut polling);
            room = polling.room;
        }
        // Those that another thread has found, and those that were more than room was for.
        if room > 0 && !self.is_idle() {
            room -= self.take(room, &mut take);
        }
        most - room
    }

    fn take(&self, most: usize, take: &mut impl FnMut(Polled)) -> usize {
        let mut wakes = WakeList::default();
        let mut state = self.lock();
        let count = most.min(state.entries.len());
        state.drop_index();
        // Under the lock, because it takes longer to move them than to hand them on. The wakers in `wakes` run behind it.
        for Entry { table, ticket, completed, .. } in state.entries.drain(..count) {
            take(hand_over(&table, ticket, completed, &mut wakes));
        }
        if state.entries.is_empty() {
            // Nothing is left to notify of.
            state.pending = None;
        }
        drop(state);
        wakes.wake_all();
        count
    }

    /// Returns the number of results in the queue.
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Returns the number of results that the queue can hold.
    pub(crate) fn depth(&self) -> usize {
        self.lock().depth
    }

    /// Returns the status with which the ring was closed, if it is closed.
    pub(crate) fn closed(&self) -> Option<Status> {
        self.lock().closed
    }

    /// Returns the requests of this table whose results have not been polled.
    #[cfg(feature = "inspect")]
    pub(super) fn tickets_of(&self, table: &Arc<Table>) -> Arc<HashSet<Ticket>> {
        let mut state = self.lock();
        let State { entries, by_table, .. } = &mut *state;
        let by_table = by_table.get_or_insert_with(|| index(entries));
        by_table.get(&address(table)).cloned().unwrap_or_default()
    }

    /// Adds what it holds to a report.
    #[cfg(feature = "inspect")]
    pub(crate) fn inspect(&self, report: &mut CompletionQueueReport) {
        let state = self.lock();
        (report.depth, report.waiting) = (state.depth, state.entries.len());
        report.oldest = state.entries.front().map(|entry| entry.since.age());
        report.tasks = state.waiting.interests().count();
        report.is_closed = state.closed.is_some();
    }

    /// Makes room for `depth` results. Fails with the number of results if it is larger.
    pub(crate) fn resize(&self, depth: usize) -> Result<(), usize> {
        let mut state = self.lock();
        let held = state.entries.len();
        if held > depth {
            return Err(held);
        }
        state.depth = depth;
        Ok(())
    }

    /// Closes the ring and notifies every task that waits. Results in the ring can still be polled.
    pub(crate) fn close(&self, status: Status) {
        let mut wakes = WakeList::default();
        let mut state = self.lock();
        state.closed.get_or_insert(status);
        state.notify(&mut wakes);
        drop(state);
        wakes.wake_all();
    }

    /// Requests a notification.
    pub(crate) fn notify(self: &Arc<Self>, kind: NotifyKind) -> Notified {
        let mut wakes = WakeList::default();
        let mut state = self.lock();
        let key = state.waiting.register(kind);
        state.notify(&mut wakes);
        drop(state);
        wakes.wake_all();
        Notified { ring: self.clone(), key, consumed: false }
    }
}

/// Returns the results by their tables, which exist as long as the results.
#[cfg(feature = "inspect")]
fn index(entries: &VecDeque<Entry>) -> ByTable {
    #[cfg(test)]
    PASSES.set(PASSES.get() + 1);
    let mut by_table = HashMap::<usize, HashSet<Ticket>>::new();
    for entry in entries {
        by_table.entry(address(&entry.table)).or_default().insert(entry.ticket);
    }
    by_table.into_iter().map(|(table, tickets)| (table, Arc::new(tickets))).collect()
}

#[cfg(feature = "inspect")]
fn address(table: &Arc<Table>) -> usize {
    Arc::as_ptr(table).addr()
}

impl Drop for CompletionRing {
    /// Hands the results that were not polled to their futures.
    fn drop(&mut self) {
        let mut wakes = WakeList::default();
        let entries = std::mem::take(&mut self.lock().entries);
        for Entry { table, ticket, completed, .. } in entries {
            table.complete(ticket, completed, &mut wakes);
        }
        wakes.wake_all();
    }
}

/// Takes a listener off the list when it is dropped.
pub(crate) struct Joined {
    ring: Arc<CompletionRing>,
    place: usize,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let listener = self.ring.lock().listeners.try_remove(self.place);
        drop(listener);
    }
}

/// A notification that has been asked for.
pub(crate) struct Notified {
    ring: Arc<CompletionRing>,
    key: WaitKey,
    /// It was returned by `poll`.
    consumed: bool,
}

impl Notified {
    /// Resolves when the task is notified: to the status with which the queue was closed, if it was.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        let mut state = self.ring.lock();
        let (polled, replaced) = state.waiting.poll(self.key, cx);
        let closed = state.closed;
        drop(state);
        drop(replaced);
        self.consumed |= polled.is_ready();
        polled.map(|_notification| closed)
    }
}

impl Drop for Notified {
    /// Passes a notification that was not consumed to the next task that asks.
    fn drop(&mut self) {
        let mut wakes = WakeList::default();
        let mut state = self.ring.lock();
        let waiter = state.waiting.remove(self.key);
        if let (false, Some(Notification::Results(kind))) =
            (self.consumed, waiter.as_ref().and_then(Waiter::value))
            && !state.entries.is_empty()
        {
            state.pending = state.pending.max(Some(kind));
            state.notify(&mut wakes);
        }
        drop(state);
        drop(waiter);
        wakes.wake_all();
    }
}

#[cfg(all(test, feature = "inspect", not(tokio_rdma_model)))]
mod tests {
    use super::*;
    use crate::inflight::{CompletionSink, Payload};
    use crate::inspect::WorkQueueReport;
    use crate::types::OpKind;

    const RECEIVE: RequestMeta = RequestMeta { kind: OpKind::Receive, context: 0 };

    // OBS-03: a snapshot goes through the results of a queue once, however many queue pairs share it.
    #[test]
    fn queue_pairs_share_one_pass_over_the_results() {
        let ring = CompletionRing::new(64);
        let queue_pairs: Vec<_> = (0..8)
            .map(|_| {
                let table = Arc::<Table>::default();
                (CompletionSink::to_ring(table.clone(), ring.clone()), table)
            })
            .collect();
        let mut wakes = WakeList::default();
        for (sink, table) in &queue_pairs {
            let [first, _second] = [(); 2].map(|()| table.open(RECEIVE, || 0));
            sink.complete(first, Completed::done(0, Payload::new()), &mut wakes);
        }
        let report = |sink: &CompletionSink| {
            let mut report = WorkQueueReport::default();
            sink.inspect(true, &mut report);
            (report.outstanding, report.uncollected)
        };
        let before = PASSES.get();
        assert!(queue_pairs.iter().all(|(sink, _)| report(sink) == (1, 1)));
        assert_eq!(PASSES.get() - before, 1);
        // A poll or another result changes what the next snapshot reports.
        assert_eq!(ring.poll(1, |_| {}, |_| {}), 1);
        let (sink, table) = &queue_pairs[1];
        sink.complete(table.open(RECEIVE, || 0), Completed::done(0, Payload::new()), &mut wakes);
        let reports: Vec<_> = queue_pairs.iter().take(3).map(|(sink, _)| report(sink)).collect();
        assert_eq!(reports, [(1, 1), (1, 2), (1, 1)]);
    }
}
