//! A counter of posted receives with a low-water mark.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::WakeList;
use crate::status::Status;
use crate::sync::{Mutex, WaitKey, WaitSet};

struct Inner {
    held: usize,
    depth: usize,
    /// Fewer than this are few.
    threshold: usize,
    waiting: WaitSet<()>,
    /// The status with which the counter was closed, if it is closed.
    closed: Option<Status>,
}

impl Inner {
    /// Notifies every task that waits, if there are few or it is closed.
    fn notify(&mut self, wakes: &mut WakeList) {
        if self.closed.is_none() && self.held >= self.threshold {
            return;
        }
        self.waiting.notify_all((), wakes);
    }
}

/// The count of a shared receive queue (IND2SharedReceiveQueue::Notify).
pub(crate) struct ReceiveCounter(Mutex<Inner>);

impl ReceiveCounter {
    /// Creates a counter that counts up to `depth`; fewer than `threshold` are few.
    pub(crate) fn new(depth: usize, threshold: usize) -> Self {
        let waiting = WaitSet::default();
        Self(Mutex::new(Inner { held: 0, depth, threshold, waiting, closed: None }))
    }

    /// Counts a receive that is about to be posted. Returns `false` if there is no room for it.
    pub(crate) fn reserve(&self) -> bool {
        let mut inner = self.0.lock();
        let room = inner.held < inner.depth;
        inner.held += usize::from(room);
        room
    }

    /// Takes a receive off the count: a message has taken it, or it was reserved and not posted.
    pub(crate) fn taken(&self, wakes: &mut WakeList) {
        let mut inner = self.0.lock();
        inner.held = inner.held.saturating_sub(1);
        inner.notify(wakes);
    }

    /// Returns the number of receives.
    pub(crate) fn held(&self) -> usize {
        self.0.lock().held
    }

    /// Returns the number of receives that the queue can hold.
    pub(crate) fn depth(&self) -> usize {
        self.0.lock().depth
    }

    /// Sets the depth and the threshold that are given. The threshold is at most the depth.
    ///
    /// # Errors
    /// The number of receives, if it is larger than `depth`. Nothing has changed then.
    pub(crate) fn modify(&self, depth: Option<usize>, threshold: Option<usize>) -> Result<(), usize> {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        if let Some(depth) = depth {
            if inner.held > depth {
                return Err(inner.held);
            }
            inner.depth = depth;
        }
        inner.threshold = threshold.unwrap_or(inner.threshold).min(inner.depth);
        inner.notify(&mut wakes);
        drop(inner);
        wakes.wake_all();
        Ok(())
    }

    /// Closes the counter and notifies every task that waits.
    pub(crate) fn close(&self, status: Status) {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        inner.closed.get_or_insert(status);
        inner.notify(&mut wakes);
        drop(inner);
        wakes.wake_all();
    }

    /// Asks to be notified when there are few; at once, if there are.
    pub(crate) fn watch(self: &Arc<Self>) -> Watch {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        let key = inner.waiting.register(());
        inner.notify(&mut wakes);
        drop(inner);
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
        let mut inner = self.count.0.lock();
        let (polled, replaced) = inner.waiting.poll(self.key, cx);
        let closed = inner.closed;
        drop(inner);
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
