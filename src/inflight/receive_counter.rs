//! A counter of posted receives with a low-water mark.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::WakeList;
use crate::status::Status;
use crate::sync::{Mutex, WaitKey, WaitSet};

struct State {
    held: usize,
    depth: usize,
    /// Fewer than this are few.
    threshold: usize,
    waiting: WaitSet<()>,
    /// The status with which the counter was closed, if it is closed.
    closed: Option<Status>,
}

impl State {
    /// Notifies every task that waits, if there are few or it is closed.
    fn notify(&mut self, wakes: &mut WakeList) {
        if self.closed.is_none() && self.held >= self.threshold {
            return;
        }
        self.waiting.notify_all((), wakes);
    }
}

/// The count of a shared receive queue (IND2SharedReceiveQueue::Notify).
pub(crate) struct ReceiveCounter(Mutex<State>);

impl ReceiveCounter {
    /// Creates a counter that counts up to `depth`; fewer than `threshold` are few.
    pub(crate) fn new(depth: usize, threshold: usize) -> Self {
        let waiting = WaitSet::default();
        Self(Mutex::new(State { held: 0, depth, threshold, waiting, closed: None }))
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
