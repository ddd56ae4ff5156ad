//! The news for a lane: what happens to its queue pairs while the owner of the lane alone posts and polls.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures::task::AtomicWaker;

use crate::inflight::{Payload, ReadPlace};
use crate::memory::{Shared, Slice};
use crate::provider::registry::{Member, Registered, Registry};
use crate::sync::Mutex;
use crate::sys::SharedReceiveQueue;
use crate::types::QueuePairId;

/// The news for a lane, which looks at them before it polls.
#[derive(Default)]
pub(crate) struct News {
    /// There are some. Written last.
    pending: AtomicBool,
    /// The device has lost the receive queue that the queue pairs share.
    lost: AtomicBool,
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

    /// Notes that the device has lost the receive queue that the queue pairs share. The caller [marks](Self::mark) that next.
    pub(crate) fn note_loss(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Returns whether the device has lost the receive queue that the queue pairs share.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Wakes the task that waits for completions.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Takes the news, before the lane looks at its queue pairs: later ones are pending again. Returns the queue pairs that are gone.
    pub(crate) fn take(&self) -> Vec<(QueuePairId, bool)> {
        self.pending.swap(false, Ordering::AcqRel);
        mem::take(&mut *self.destroyed.lock())
    }
}

/// The memory of a lane. The lane keeps it, and each of its queue pairs of the device until that is destroyed: after that, and after
/// the end of the lane, no device uses it.
pub(crate) struct LaneMemory {
    /// The slots, and from the end of the lane on the memory of requests that are outstanding then.
    memory: Mutex<Vec<Shared>>,
    /// The places of reads that are in flight at the end of the lane.
    places: Mutex<Vec<ReadPlace>>,
    /// The receive queue that the queue pairs of the lane share, if they do. Its last holder is this.
    receives: Option<Arc<SharedReceiveQueue>>,
}

impl LaneMemory {
    /// Keeps memory that the requests of such a queue use, or those of queue pairs.
    pub(crate) fn new(slots: Shared, receives: Option<Arc<SharedReceiveQueue>>) -> Arc<Self> {
        Arc::new(Self { memory: Mutex::new(vec![slots]), places: Mutex::default(), receives })
    }

    /// Returns the receive queue that the queue pairs share, if they do.
    pub(crate) fn receives(&self) -> Option<&Arc<SharedReceiveQueue>> {
        self.receives.as_ref()
    }

    /// Keeps the memory of a request, too.
    pub(crate) fn add(&self, payload: Payload) {
        self.memory.lock().extend(payload.into_iter().map(Slice::into_shared));
    }

    /// Keeps the places of reads, too.
    pub(crate) fn add_places(&self, places: impl Iterator<Item = ReadPlace>) {
        self.places.lock().extend(places);
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        let destroyed = self
            .receives
            .take()
            .and_then(Arc::into_inner)
            .is_none_or(|mut receives| receives.destroy().is_ok());
        if !destroyed {
            // The device may write to its receives at any later time.
            mem::forget(mem::take(&mut *self.memory.lock()));
        }
    }
}

/// A lane, as a queue pair of it sees it.
pub(crate) struct Membership {
    pub(crate) news: Arc<News>,
    pub(crate) id: QueuePairId,
    /// The memory of the lane. A handle of the queue pair does not keep it.
    pub(crate) memory: Weak<LaneMemory>,
    /// The key of the receive queue that the queue pairs of the lane share, if they do.
    pub(crate) receives: Option<u64>,
    /// A part of the path timeout has passed since the lane has looked before a poll.
    pub(crate) ticked: AtomicBool,
}

impl Membership {
    /// Returns what the queue pair of the device keeps, which is the memory of the lane, and what notifies the lane of its end.
    pub(crate) fn end_notice(&self, memory: Arc<LaneMemory>) -> EndNotice {
        EndNotice { news: self.news.clone(), id: self.id, memory, free: false }
    }

    /// Notes that a part of the path timeout has passed. However many pass before the lane polls, they count once: a program that has
    /// not polled for long has not seen the signs of life either.
    pub(crate) fn tick(&self) {
        self.ticked.store(true, Ordering::Relaxed);
        self.news.mark();
        self.news.wake();
    }
}

/// The end of a queue pair of the device, which the lane is notified of when this is dropped.
pub(crate) struct EndNotice {
    news: Arc<News>,
    id: QueuePairId,
    memory: Arc<LaneMemory>,
    /// The device no longer uses the memory of the requests.
    pub(crate) free: bool,
}

impl EndNotice {
    /// Keeps the memory of the lane for good, with what is added to it later: the device may use it at any later time.
    pub(crate) fn withhold(&self) {
        mem::forget(self.memory.clone());
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.news.destroyed.lock().push((self.id, self.free));
        self.news.mark();
        self.news.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;

    fn membership(news: &Arc<News>, memory: &Arc<LaneMemory>, place: u16) -> Membership {
        let (news, memory) = (news.clone(), Arc::downgrade(memory));
        let (id, ticked) = (QueuePairId::new(place, 1), AtomicBool::new(false));
        Membership { news, id, memory, receives: None, ticked }
    }

    fn memory() -> Arc<LaneMemory> {
        LaneMemory::new(Owned::zeroed(8).expect("memory").share(), None)
    }

    // What happens while a lane looks is news for its next look.
    #[test]
    fn nothing_is_overlooked() {
        let (news, memory) = (Arc::<News>::default(), memory());
        assert!(!news.is_pending());
        let one = membership(&news, &memory, 3);
        let mut notice = one.end_notice(memory);
        assert!(!news.is_pending());
        notice.free = true;
        drop(notice);
        assert!(news.is_pending());
        assert_eq!(news.take(), [(one.id, true)]);
        assert!(!news.is_pending() && news.take().is_empty());
        assert!(one.memory.upgrade().is_none(), "a handle does not keep it");
    }

    // A part of the path timeout is one of the queue pair that it was counted for.
    #[test]
    fn a_tick_is_of_one_queue_pair() {
        let (news, memory) = (Arc::<News>::default(), memory());
        let [one, other] = [1, 2].map(|place| membership(&news, &memory, place));
        one.tick();
        one.tick();
        assert!(news.is_pending() && !other.ticked.load(Ordering::Relaxed));
        assert!(one.ticked.swap(false, Ordering::Relaxed));
    }
}
