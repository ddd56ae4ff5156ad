//! How many receives a shared receive queue holds, and who wants to know when there are few.

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
    dead: Option<Status>,
}

impl Inner {
    fn tell(&mut self, wakes: &mut WakeList) {
        if self.dead.is_none() && self.held >= self.threshold {
            return;
        }
        self.waiting.notify_all((), wakes);
    }
}

/// The count of a shared receive queue (IND2SharedReceiveQueue::Notify).
pub(crate) struct LowWater(Mutex<Inner>);

impl LowWater {
    pub(crate) fn new(depth: usize, threshold: usize) -> Self {
        let waiting = WaitSet::default();
        Self(Mutex::new(Inner { held: 0, depth, threshold, waiting, dead: None }))
    }

    /// A receive is about to be posted: whether there is room.
    pub(crate) fn reserve(&self) -> bool {
        let mut inner = self.0.lock();
        let room = inner.held < inner.depth;
        inner.held += usize::from(room);
        room
    }

    /// A message has taken a receive, or one that was reserved was not posted.
    pub(crate) fn taken(&self, wakes: &mut WakeList) {
        let mut inner = self.0.lock();
        inner.held = inner.held.saturating_sub(1);
        inner.tell(wakes);
    }

    pub(crate) fn held(&self) -> usize {
        self.0.lock().held
    }

    pub(crate) fn depth(&self) -> usize {
        self.0.lock().depth
    }

    /// Sets what is given. The threshold is at most the depth.
    ///
    /// # Errors
    /// How many receives there are, when they are more than `depth`. Nothing has changed then.
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
        inner.tell(&mut wakes);
        drop(inner);
        wakes.wake_all();
        Ok(())
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self, status: Status) {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        inner.dead.get_or_insert(status);
        inner.tell(&mut wakes);
        drop(inner);
        wakes.wake_all();
    }

    /// Asks to be told when there are few; at once, if there are.
    pub(crate) fn watch(self: &Arc<Self>) -> Watch {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        let key = inner.waiting.register(());
        inner.tell(&mut wakes);
        drop(inner);
        wakes.wake_all();
        Watch { count: self.clone(), key }
    }
}

/// A place among those who wait.
pub(crate) struct Watch {
    count: Arc<LowWater>,
    key: WaitKey,
}

impl Watch {
    /// Ready with the status by which the queue has ended, if it has.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        let mut inner = self.count.0.lock();
        let (polled, replaced) = inner.waiting.poll(self.key, cx);
        let dead = inner.dead;
        drop(inner);
        drop(replaced);
        polled.map(|()| dead)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let waiter = self.count.0.lock().waiting.remove(self.key);
        drop(waiter);
    }
}
