//! Completions that wait to be polled: the completion queues of all providers.
//!
//! A request whose queue pair has a completion queue of the user's completes into a [`CompletionRing`]. There
//! its completion stays until it is polled; only then does it reach the slot of its future. A task that would
//! rather sleep asks for a notification: of any result, of those that the peer solicited, or of failures
//! (IND2CompletionQueue::Notify).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use slab::Slab;

use super::{Completed, CompletionInfo, RequestMeta, Table, Ticket, WakeList};
use crate::status::Status;
use crate::sync::{Mutex, WaitKey, WaitSet, Waiter};

/// The completions that resolve a notification. Each kind includes the kinds listed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NotifyKind {
    /// Any completion (`ND_CQ_NOTIFY_ANY`).
    Any,
    /// A received message that was sent with a solicited event, or a failure (`ND_CQ_NOTIFY_SOLICITED`).
    Solicited,
    /// A failure (`ND_CQ_NOTIFY_ERRORS`).
    Errors,
}

/// A result, polled.
pub(crate) struct Polled {
    pub(crate) label: Option<RequestMeta>,
    /// The number of its queue pair.
    pub(crate) queue_pair: u64,
    pub(crate) status: Status,
    pub(crate) bytes: usize,
    pub(crate) extra: CompletionInfo,
}

/// Something that cannot go on when results are lost.
pub(crate) trait OverrunListener: Send + Sync {
    /// The completion queue is full, and a result has been lost to it.
    fn overrun(&self);
}

/// A result that waits to be polled.
pub(super) struct Entry {
    /// The number of its queue pair.
    pub(super) queue_pair: u64,
    pub(super) table: Arc<Table>,
    pub(super) ticket: Ticket,
    pub(super) completed: Completed,
}

/// The reason of a notification.
#[derive(Clone, Copy)]
enum Notification {
    /// There are results.
    Results(NotifyKind),
    /// The queue is closed.
    Closed,
}

struct Inner {
    entries: VecDeque<Entry>,
    depth: usize,
    /// The best result that has come since a task was notified.
    pending: Option<NotifyKind>,
    waiting: WaitSet<Notification, NotifyKind>,
    listeners: Slab<Weak<dyn OverrunListener>>,
    /// The status with which the ring was closed, if it is closed.
    closed: Option<Status>,
}

impl Inner {
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
pub(crate) struct CompletionRing(Mutex<Inner>);

impl CompletionRing {
    /// An empty one with room for so many results.
    pub(crate) fn new(depth: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            entries: VecDeque::new(),
            depth,
            pending: None,
            waiting: WaitSet::default(),
            listeners: Slab::new(),
            closed: None,
        })))
    }

    /// Calls `listener` when results are lost, until what this returns is dropped.
    pub(crate) fn join(self: &Arc<Self>, listener: Weak<dyn OverrunListener>) -> Joined {
        let mut inner = self.0.lock();
        Joined { ring: self.clone(), place: inner.listeners.insert(listener) }
    }

    /// Adds a result. One that finds no room closes the ring.
    pub(super) fn push(&self, entry: Entry, wakes: &mut WakeList) {
        let mut inner = self.0.lock();
        if inner.closed.is_none() && inner.entries.len() < inner.depth {
            let kind = match (entry.completed.status, entry.completed.extra.solicited) {
                (Status::SUCCESS, false) => NotifyKind::Any,
                (Status::SUCCESS, true) => NotifyKind::Solicited,
                _ => NotifyKind::Errors,
            };
            inner.entries.push_back(entry);
            inner.pending = inner.pending.max(Some(kind));
            inner.notify(wakes);
            return;
        }
        // The result is lost to the queue, not to the future of its request.
        let first = inner.closed.is_none();
        inner.closed.get_or_insert(Status::BUFFER_OVERFLOW);
        inner.notify(wakes);
        let listeners: Vec<_> = inner.listeners.iter().map(|(_, listener)| listener.clone()).collect();
        drop(inner);
        let Entry { table, ticket, completed, .. } = entry;
        table.complete(ticket, completed, wakes);
        if first {
            wakes.run(move || {
                listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.overrun());
            });
        }
    }

    /// Takes up to `most` results, oldest first, and hands the completion of each to its future.
    pub(crate) fn poll(&self, most: usize, mut take: impl FnMut(Polled)) -> usize {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        let count = most.min(inner.entries.len());
        // Under the lock, because it takes longer to move them than to hand them on. What `wakes` has runs behind it.
        for Entry { queue_pair, table, ticket, completed } in inner.entries.drain(..count) {
            let Completed { status, bytes, extra, .. } = completed;
            let label = table.complete(ticket, completed, &mut wakes);
            take(Polled { label, queue_pair, status, bytes, extra });
        }
        if inner.entries.is_empty() {
            // Nothing is left to notify of.
            inner.pending = None;
        }
        drop(inner);
        wakes.wake_all();
        count
    }

    /// Returns the number of results in the queue.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    /// Returns the number of results that the queue can hold.
    pub(crate) fn depth(&self) -> usize {
        self.0.lock().depth
    }

    /// The status with which the ring was closed, if it is closed.
    pub(crate) fn closed(&self) -> Option<Status> {
        self.0.lock().closed
    }

    /// Makes room for so many results.
    ///
    /// # Errors
    /// The number of results, if it is larger than `depth`.
    pub(crate) fn resize(&self, depth: usize) -> Result<(), usize> {
        let mut inner = self.0.lock();
        let held = inner.entries.len();
        if held > depth {
            return Err(held);
        }
        inner.depth = depth;
        Ok(())
    }

    /// The adapter is gone: what is there can be polled, and nobody waits any more.
    pub(crate) fn close(&self, status: Status) {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        inner.closed.get_or_insert(status);
        inner.notify(&mut wakes);
        drop(inner);
        wakes.wake_all();
    }

    /// Asks to be notified.
    pub(crate) fn notify(self: &Arc<Self>, kind: NotifyKind) -> Notified {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        let key = inner.waiting.register(kind);
        inner.notify(&mut wakes);
        drop(inner);
        wakes.wake_all();
        Notified { ring: self.clone(), key, consumed: false }
    }
}

impl Drop for CompletionRing {
    /// Nobody polls any more: the results that are left are given to their futures.
    fn drop(&mut self) {
        let mut wakes = WakeList::default();
        let entries = std::mem::take(&mut self.0.lock().entries);
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
        let listener = self.ring.0.lock().listeners.try_remove(self.place);
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
    /// Ready with the reason why the queue is closed, if it is.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        let mut inner = self.ring.0.lock();
        let (polled, replaced) = inner.waiting.poll(self.key, cx);
        let closed = inner.closed;
        drop(inner);
        drop(replaced);
        self.consumed |= polled.is_ready();
        polled.map(|_notification| closed)
    }
}

impl Drop for Notified {
    /// A notification that was not consumed goes to the next task that asks.
    fn drop(&mut self) {
        let mut wakes = WakeList::default();
        let mut inner = self.ring.0.lock();
        let waiter = inner.waiting.remove(self.key);
        if let (false, Some(Notification::Results(kind))) =
            (self.consumed, waiter.as_ref().and_then(Waiter::value))
            && !inner.entries.is_empty()
        {
            inner.pending = inner.pending.max(Some(kind));
            inner.notify(&mut wakes);
        }
        drop(inner);
        drop(waiter);
        wakes.wake_all();
    }
}
