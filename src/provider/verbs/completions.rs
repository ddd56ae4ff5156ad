//! Completion queues, each of which many queue pairs share: a queue pair reserves as much room as it has requests, and a
//! shared receive queue as much as it has receives, whichever queue pairs take them.
//!
//! A completion names the queue pair of the device that it is for. The task that polls puts the completions
//! into the inboxes of the queue pairs, under the lock of the completion queue, so that each gets them in
//! order; each queue pair processes its inbox under its own lock. Locks are taken in this order: queue pair,
//! completion queue, inbox.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::debug;

use super::adapter::{Adapter, Opened};
use super::queue_pair::QueuePair;
use super::shared::Receives;
use super::work_queue::RequestId;
use crate::sync::Mutex;
use crate::sys::{self, BATCH, Batch, CompletionQueue};

/// The length of the first queue; each further one is twice as long as the one before, up to `MOST`.
const FIRST: u32 = 512;
const MOST: u32 = 8192;

/// The completion queues of an adapter.
#[derive(Default)]
pub(crate) struct Completions(Mutex<Vec<CqSlot>>);

/// A queue, how much of it nobody has reserved, and the vector by which its events come.
struct CqSlot {
    queue: Arc<Queue>,
    free: u32,
    vector: u32,
}

/// A completion queue, and room for what is polled.
pub(crate) struct Queue {
    completions: Arc<CompletionQueue>,
    batch: Mutex<Batch>,
    /// It has lost a completion: nobody looks for those that follow.
    lost: AtomicBool,
    /// The time that it has to outlive its last queue pair by, and the runtime that destroys it then.
    lingers: Option<(Duration, Handle)>,
}

/// Queue pairs for which something was found, and the keys of it.
pub(crate) type Ready = SmallVec<[(u32, Arc<QueuePair>); 4]>;

impl Completions {
    /// The queue whose events carry this key.
    pub(crate) fn by_key(&self, key: u64) -> Option<Arc<Queue>> {
        let shares = self.0.lock();
        shares.iter().find(|share| share.queue.completions.key() == key).map(|share| share.queue.clone())
    }

    pub(crate) fn all(&self) -> SmallVec<[Arc<Queue>; 4]> {
        self.0.lock().iter().map(|share| share.queue.clone()).collect()
    }

    /// Lets this queue, which has lost a completion, go once no queue pair holds it.
    pub(crate) fn forget(&self, key: u64) {
        let mut shares = self.0.lock();
        let place = shares.iter().position(|share| share.queue.completions.key() == key);
        let share = place.map(|place| shares.remove(place));
        drop(shares);
        if let Some(share) = share {
            share.queue.lost.store(true, Ordering::Release);
        }
    }

    /// Lets every queue go once no queue pair holds it.
    pub(crate) fn close(&self) {
        let shares = std::mem::take(&mut *self.0.lock());
        drop(shares);
    }

    /// Room for so many completions that come by this vector, in a new queue when there is no other.
    ///
    /// # Errors
    /// Those of ibv_create_cq(3) and ibv_req_notify_cq(3).
    fn reserve(
        &self,
        adapter: &Adapter,
        opened: &Opened,
        entries: u32,
        vector: u32,
    ) -> io::Result<Arc<Queue>> {
        let before = {
            let mut shares = self.0.lock();
            let fits = |share: &&mut CqSlot| share.free >= entries && share.vector == vector;
            if let Some(share) = shares.iter_mut().find(fits) {
                share.free -= entries;
                return Ok(share.queue.clone());
            }
            shares.last().map_or(FIRST / 2, |share| share.queue.completions.entries())
        };
        // Without the lock, which the reactor wants; if another one is made meanwhile, then there are two.
        let length = before.saturating_mul(2).min(MOST).min(adapter.max_completions()).max(entries);
        let completions =
            CompletionQueue::new(&opened.context, &opened.channel, length, adapter.router.key(), vector)?;
        completions.arm(false)?;
        let free = completions.entries().saturating_sub(entries);
        let lingers = adapter.quirks().completions_linger.map(|time| (time, adapter.runtime.clone()));
        let queue =
            Arc::new(Queue { completions, batch: Mutex::default(), lost: AtomicBool::new(false), lingers });
        self.0.lock().push(CqSlot { queue: queue.clone(), free, vector });
        // A removal may have closed all of them since the caller looked.
        if adapter.is_removed() {
            self.close();
        }
        Ok(queue)
    }

    /// Gives room back. The first queue stays, for whoever comes next.
    fn release(&self, queue: &Arc<Queue>, entries: u32) {
        let mut unused = None;
        let mut shares = self.0.lock();
        if let Some(place) = shares.iter().position(|share| Arc::ptr_eq(&share.queue, queue))
            && let Some(share) = shares.get_mut(place)
        {
            share.free = share.free.saturating_add(entries);
            if place > 0 && share.free >= share.queue.completions.entries() {
                unused = Some(shares.remove(place));
            }
        }
        drop(shares);
        drop(unused);
    }

    /// Makes the first queue.
    ///
    /// # Errors
    /// Those of ibv_create_cq(3).
    pub(crate) fn open(&self, adapter: &Adapter, opened: &Opened) -> io::Result<()> {
        self.reserve(adapter, opened, 0, 0).map(drop)
    }
}

impl Queue {
    /// Asks for an event when the next completion comes. Completions that have arrived before cause no event.
    ///
    /// # Errors
    /// Those of ibv_req_notify_cq(3).
    pub(crate) fn arm(&self) -> io::Result<()> {
        self.completions.arm(false)
    }

    /// Makes room for so many more.
    ///
    /// # Errors
    /// Those of ibv_resize_cq(3).
    fn grow(&self, more: u32) -> io::Result<()> {
        // One after the other, or one of them would be forgotten.
        let _batch = self.batch.lock();
        self.completions.resize(self.completions.entries().saturating_add(more))
    }

    /// Polls all that was in the queue when this began, and puts it into inboxes, into which their owners have to look.
    pub(crate) fn collect(&self, adapter: &Adapter) -> Ready {
        // None of these is dropped while the lock is held: that may be the end of a queue pair, which comes back here.
        let mut touched = Ready::new();
        let mut batch = self.batch.lock();
        // Completions that have arrived since cause an event, or are found by the task that is about to arm
        // the queue.
        let mut left = self.completions.entries() as usize;
        let mut count = BATCH;
        // One that was not filled has emptied the queue.
        while count == BATCH && left > 0 {
            count = match self.completions.poll(&mut batch) {
                Ok(count) => count,
                Err(error) => {
                    debug!(%error, "completion queue not polled");
                    break;
                }
            };
            left = left.saturating_sub(count);
            for completion in batch.iter() {
                let named = RequestId::unpack(completion.wr_id).key;
                let key = if named == RequestId::SHARED {
                    // A queue pair that is gone has left no completion behind, see `Route`.
                    let Some(key) = adapter.key_by_number(completion.qp_num) else { continue };
                    key
                } else {
                    named
                };
                if touched.last().is_none_or(|(last, _)| *last != key) {
                    // Completions for a queue pair that has ended are discarded.
                    let Some(queue_pair) = adapter.queue_pair_by_key(key) else { continue };
                    touched.push((key, queue_pair));
                }
                if let Some((_, queue_pair)) = touched.last() {
                    queue_pair.deliver(key, &completion);
                }
            }
        }
        drop(batch);
        touched
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some((time, runtime)) = self.lingers.take() {
            let completions = self.completions.clone();
            runtime.spawn(async move {
                tokio::time::sleep(time).await;
                drop(completions);
            });
        }
    }
}

/// A part of a completion queue, for the completions of one queue pair, or for those of the receives that several share.
pub(crate) struct Room {
    queue: Arc<Queue>,
    entries: AtomicU32,
    vector: u32,
    adapter: Arc<Adapter>,
}

impl Room {
    /// Room for so many completions that come by this vector.
    ///
    /// # Errors
    /// Those of ibv_create_cq(3) and ibv_req_notify_cq(3).
    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        opened: &Opened,
        entries: u32,
        vector: u32,
    ) -> io::Result<Self> {
        let queue = adapter.completions.reserve(adapter, opened, entries, vector)?;
        Ok(Self { queue, entries: entries.into(), vector, adapter: adapter.clone() })
    }

    /// The vector by which its completions come.
    pub(crate) fn vector(&self) -> u32 {
        self.vector
    }

    /// Returns whether completions are looked for here.
    pub(crate) fn is_served(&self) -> bool {
        !self.queue.lost.load(Ordering::Acquire)
    }

    /// Makes room for so many completions in all. One task does so at a time.
    ///
    /// # Errors
    /// Those of ibv_resize_cq(3).
    pub(crate) fn grow(&self, entries: u32) -> io::Result<()> {
        let more = entries.saturating_sub(self.entries.load(Ordering::Relaxed));
        if more > 0 {
            self.queue.grow(more)?;
            self.entries.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Never gives it back: a queue pair that could not be destroyed may still complete requests.
    pub(crate) fn withhold(&self) {
        self.entries.store(0, Ordering::Relaxed);
    }

    /// Returns whether this key is that of the events of its completion queue.
    fn is_in(&self, key: u64) -> bool {
        self.queue.completions.key() == key
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.adapter.completions.release(&self.queue, self.entries.load(Ordering::Relaxed));
    }
}

/// A queue pair of the device, its key, and the room that its completions have.
pub(crate) struct DeviceQp {
    // Dropped in this order: what the end of the queue pair completes still needs the room, and the receives are not used
    // any more then.
    pub(crate) queue_pair: sys::QueuePair,
    route: Route,
    receives: Option<Arc<Receives>>,
    /// Notified when the device says that it takes no receive of a shared queue any more.
    pub(crate) last_receive: Arc<Notify>,
}

impl DeviceQp {
    /// Makes a queue pair whose completions are for `owner`, with room for so many of them, which come by this vector. It may
    /// use the shared receives, which have room of their own. `make` is given the completion queues of its send queue and of
    /// its receives.
    ///
    /// # Errors
    /// Those of `make`, and of making a completion queue.
    pub(crate) fn new(
        owner: &Arc<QueuePair>,
        opened: &Opened,
        (entries, vector): (u32, u32),
        receives: Option<Arc<Receives>>,
        make: impl FnOnce(&Arc<CompletionQueue>, &Arc<CompletionQueue>) -> io::Result<sys::QueuePair>,
    ) -> io::Result<Self> {
        let mut route = loop {
            let adapter = owner.adapter.clone();
            let room = Room::new(&adapter, opened, entries, vector)?;
            let shared = receives.as_ref().map(|receives| receives.room(opened, vector)).transpose()?;
            let key = adapter.enlist(Arc::downgrade(owner));
            let route = Route { room, shared, key, number: None, adapter };
            // Whoever learns that a queue has lost a completion marks it before it looks for those who use it, of which this is
            // one from now on.
            if route.rooms().all(Room::is_served) {
                break route;
            }
        };
        let received = route.shared.as_deref().unwrap_or(&route.room);
        let queue_pair = make(&route.room.queue.completions, &received.queue.completions)?;
        if receives.is_some() {
            route.number = Some(queue_pair.number());
            route.adapter.enlist_number(queue_pair.number(), route.key);
        }
        Ok(Self { queue_pair, route, receives, last_receive: Arc::default() })
    }

    /// Destroys it. Returns whether that was possible: otherwise the device may use the memory of its requests at any later time.
    pub(crate) fn destroy(self) -> bool {
        let Self { queue_pair, route, receives, .. } = self;
        let destroyed = queue_pair.destroy().is_ok();
        if !destroyed {
            // It has the receives that it took, too.
            route.rooms().for_each(Room::withhold);
            receives.iter().for_each(|receives| receives.withhold());
        }
        destroyed
    }

    /// Returns whether its completions come in the queue whose events carry this key.
    pub(crate) fn completes_in(&self, key: u64) -> bool {
        self.route.rooms().any(|room| room.is_in(key))
    }

    /// The shared receives that it takes from.
    pub(crate) fn receives(&self) -> Option<Arc<Receives>> {
        self.receives.clone()
    }

    /// Returns the key that its completions carry.
    pub(crate) fn key(&self) -> u32 {
        self.route.key
    }

    /// Has everything put into the inboxes that there is. The owner then looks into its own.
    pub(crate) fn collect(&self) {
        self.route.collect();
    }
}

/// The way of the completions of a queue pair of the device to its owner.
struct Route {
    room: Room,
    /// Where its receives complete, if they are of a shared queue.
    shared: Option<Arc<Room>>,
    key: u32,
    /// The number of the queue pair, where its completions need that to be told apart.
    number: Option<u32>,
    adapter: Arc<Adapter>,
}

impl Route {
    fn rooms(&self) -> impl Iterator<Item = &Room> {
        std::iter::once(&self.room).chain(self.shared.as_deref())
    }

    /// The caller may hold the lock of a queue pair, so the others look into their inboxes from a task of their own.
    fn collect(&self) {
        let mut others = Ready::new();
        for room in self.rooms() {
            others.extend(room.queue.collect(&self.adapter));
        }
        others.retain(|(key, _)| *key != self.key);
        if !others.is_empty() {
            self.adapter.runtime.spawn(async move { others.iter().for_each(|(_, other)| other.progress()) });
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // The room is only free when nothing of this queue pair is left in it.
        self.collect();
        self.adapter.strike(self.key, self.number);
    }
}
