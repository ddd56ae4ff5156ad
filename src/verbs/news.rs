//! The news for a lane: what happens to its queue pairs while the owner of the lane alone posts and polls.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures::task::AtomicWaker;

use crate::memory::Shared;
use crate::provider::registry::{Member, Registered, Registry};
use crate::sync::Mutex;
use crate::sys::SharedReceiveQueue;
use crate::types::QueuePairId;

/// The news for a lane, which looks at them before it polls.
#[derive(Default)]
pub(crate) struct News {
    /// There are some. Written last.
    pending: AtomicBool,
    /// The parts of the path timeout that have passed.
    ticks: AtomicU32,
    /// The queue pairs whose queue pair of the device is gone, and whether no memory is in use any longer.
    destroyed: Mutex<Vec<(QueuePairId, bool)>>,
    /// The task that waits for completions.
    pub(crate) waker: AtomicWaker,
    /// Its place among what ends with the adapter.
    _registered: Option<Registered>,
}

impl Member for News {
    fn device_removed(&self) {
        self.mark();
        self.wake();
    }
}

impl News {
    /// Creates the news of a lane of the adapter with this registry.
    pub(crate) fn of(registry: &Arc<Registry>) -> Arc<Self> {
        registry.create(|_, registered| Self { _registered: Some(registered), ..Self::default() })
    }

    /// Returns whether there are news since the last [`take`](Self::take).
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Notes that a queue pair has changed. The caller [wakes](Self::wake) without its locks.
    pub(crate) fn mark(&self) {
        self.pending.store(true, Ordering::Release);
    }

    /// Wakes the task that waits for completions.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Takes the news, before the lane looks at its queue pairs: later ones are pending again. Returns the queue pairs that are gone,
    /// and whether a part of the path timeout has passed.
    pub(crate) fn take(&self) -> (Vec<(QueuePairId, bool)>, bool) {
        self.pending.swap(false, Ordering::AcqRel);
        // However many have passed: a program that has not polled for long has not seen the signs of life either.
        (mem::take(&mut *self.destroyed.lock()), self.ticks.swap(0, Ordering::Relaxed) > 0)
    }

    /// Notes that a part of the path timeout has passed.
    pub(crate) fn tick(&self) {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        self.mark();
        self.wake();
    }
}

/// A lane, as a queue pair of it sees it.
#[derive(Clone)]
pub(crate) struct Membership {
    pub(crate) news: Arc<News>,
    pub(crate) id: QueuePairId,
    /// The receive queue that the queue pairs of the lane share, if they do.
    pub(crate) receives: Option<Arc<SharedReceiveQueue>>,
    /// The memory of the lane, which queue pairs of the device keep.
    pub(crate) memory: Arc<Mutex<Vec<Shared>>>,
}

/// The end of a queue pair of the device, which the lane is notified of when this is dropped.
pub(crate) struct EndNotice {
    pub(crate) membership: Membership,
    /// The device no longer uses the memory of the requests.
    pub(crate) free: bool,
}

impl EndNotice {
    /// Keeps the memory of the lane for good: the device may use it at any later time.
    pub(crate) fn withhold(&self) {
        mem::forget(self.membership.memory.lock().clone());
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        let Membership { news, id, .. } = &self.membership;
        news.destroyed.lock().push((*id, self.free));
        news.mark();
        news.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What happens while a lane looks is news for its next look.
    #[test]
    fn nothing_is_overlooked() {
        let news = News::default();
        assert!(!news.is_pending());
        news.tick();
        news.tick();
        assert!(news.is_pending());
        assert_eq!(news.take(), (Vec::new(), true));
        assert_eq!((news.is_pending(), news.take()), (false, (Vec::new(), false)));
        let (memory, id) = (Arc::default(), QueuePairId::new(3, 1));
        let news = Arc::new(news);
        let membership = Membership { news: news.clone(), id, receives: None, memory };
        drop(EndNotice { membership, free: true });
        assert!(news.is_pending());
        assert_eq!(news.take().0, [(id, true)]);
    }
}
