//! Completion queues of the device, in groups: the queues of a group have one channel, one vector and one task.
//!
//! A completion queue of the program is a group of its own, and nothing that concerns it touches another one. The queue pairs
//! that complete through futures share a few groups. A queue pair reserves as much room in a queue of its group as it has
//! requests, and a shared receive queue as much as it has receives, whichever queue pairs take them; so a queue of the device never
//! overruns, and a group gets another one when there is no room left.
//!
//! A completion names the queue pair of the device that it is for. A caller that polls hands the completions to the
//! queue pairs under the lock of the group's queues, so that each gets them in order. A queue pair whose lock is free
//! processes them there and then. Otherwise it defers them, and the caller has it process these without a
//! lock. Locks are taken in this order: queue pair, queues of the group, routes of the group, deferred completions; that of a queue pair
//! behind that of the queues is only tried.

use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use smallvec::SmallVec;
use tokio::task::AbortHandle;
use tracing::{debug, warn};

use super::context::AdapterContext;
use super::routes::{CompletionHandler, Effects, RequestId, Routes};
use crate::error::Reason;
use crate::inflight::{NotifyKind, Polling};
use crate::provider::registry::{Member, Registered};
use crate::sync::{Mutex, MutexGuard};
use crate::sys::{BATCH, Batch, CompletionChannel, CompletionQueue, Element};

/// The length of the first queue of queue pairs that complete through futures; each further one of a group is twice as long as
/// the one before, up to `MOST`.
const FIRST: u32 = 512;
const MOST: u32 = 8192;
/// The room that the first queue of the program has beside its depth: each queue pair has a request of its own.
const SPARE: u32 = 64;

/// The cause of the end of a connection whose completion queue has lost a completion.
pub(crate) const LOST: Reason = Reason::Local("the completion queue of the device has lost a completion");

/// Completion queues that share a channel, a vector and a task.
pub(crate) struct CompletionGroup {
    pub(crate) context: Arc<AdapterContext>,
    vector: u32,
    /// The length of the first queue.
    first: u32,
    /// `None` once the adapter is removed, whose device some drivers cannot let go before.
    channel: Mutex<Option<Arc<CompletionChannel>>>,
    queues: Mutex<Queues>,
    /// The queue pairs that complete here.
    pub(crate) routes: Routes,
    /// It is a completion queue of the program.
    pub(crate) own: bool,
    /// The program polls it all the time: it is armed only while a caller waits for completions.
    polled: bool,
    /// A lane has it, which alone polls its one queue: there is no task.
    exclusive: bool,
    /// The number of callers that wait, if it is polled.
    waiting: AtomicUsize,
    /// The number of those that wait for any completion.
    waiting_for_any: AtomicUsize,
    /// The number of times that completions were found, except by [`poll`](Self::poll). Wraps around.
    finds: AtomicUsize,
    /// The task that reads the channel.
    task: Mutex<Option<AbortHandle>>,
    _registered: Registered,
}

/// The user of a group.
pub(crate) enum GroupUser {
    /// The queue pairs that complete through futures.
    Futures,
    /// The program, whose completion queue of this depth it is. `polled` says that it polls the queue all the time.
    Program { depth: u32, polled: bool },
    /// A lane, whose queue has this many entries.
    Lane { entries: u32 },
}

/// The queues of a group.
#[derive(Default)]
struct Queues {
    slots: Vec<CqSlot>,
    /// The adapter is removed. A queue is dropped with its last [`Room`], and nothing is found in it except by these.
    is_closed: bool,
}

/// A queue, and what its group has to know to poll it: under the lock of the group, so that a poll takes no other.
struct CqSlot {
    queue: Arc<Queue>,
    /// The number of entries that are not reserved.
    free: u32,
    /// The number of [`Room`]s in it.
    rooms: usize,
    work: Work,
}

impl Queues {
    /// Returns the queues that are polled.
    fn served(&self) -> impl Iterator<Item = &Arc<Queue>> {
        let queues = self.slots.iter().map(|slot| &slot.queue);
        queues.filter(|queue| !self.is_closed && queue.is_served())
    }

    /// Returns the place of this queue, which is in its group as long as there is a [`Room`] in it.
    fn slot_of(&mut self, queue: &Arc<Queue>) -> Option<&mut CqSlot> {
        self.slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.queue, queue))
    }
}

impl CqSlot {
    /// Returns whether no entry is reserved.
    fn is_free(&self) -> bool {
        self.free >= self.queue.completions.entries()
    }
}

/// A completion queue.
pub(crate) struct Queue {
    completions: Arc<CompletionQueue>,
    /// It has lost a completion: those that follow are not polled.
    lost: Arc<AtomicBool>,
    context: Arc<AdapterContext>,
}

/// Room for what is polled.
#[derive(Default)]
struct Work {
    batch: Batch,
    /// The queue pair that the last completion was for: most often the next one is, too. As its user has not released it, this is
    /// never its last holder.
    last: Option<Known>,
    /// The queue was resized since a poll has emptied it.
    resized: bool,
}

/// A queue pair that had completions, and the key of it at the device.
#[derive(Clone)]
struct Known {
    key: u32,
    queue_pair: Arc<dyn CompletionHandler>,
    /// See [`CompletionHandler::is_remembered`].
    stays: bool,
}

/// Queue pairs that have deferred completions, and have to process these. Nearly always there is none.
#[derive(Default)]
pub(crate) struct Ready {
    first: Option<Known>,
    more: Option<Box<SmallVec<[Known; 4]>>>,
}

impl Ready {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds a queue pair, for a caller that holds the lock of its group.
    fn add(&mut self, known: &Known) {
        let last = self.more.as_ref().and_then(|more| more.last()).or(self.first.as_ref());
        match last {
            None => self.first = Some(known.clone()),
            Some(last) if last.key == known.key => {}
            Some(_) => self.more.get_or_insert_default().push(known.clone()),
        }
    }

    /// Leaves the queue pair with this key out.
    pub(crate) fn without(mut self, key: u32) -> Self {
        if let Some(more) = &mut self.more {
            more.retain(|other| other.key != key);
        }
        if self.first.as_ref().is_some_and(|first| first.key == key) {
            self.first = self.more.as_mut().and_then(|more| more.pop());
        }
        self
    }

    /// Has the queue pairs process what they have deferred.
    pub(crate) fn progress(&self) {
        let more = self.more.iter().flat_map(|more| more.iter());
        self.first.iter().chain(more).for_each(|known| known.queue_pair.progress());
    }
}

impl CompletionGroup {
    /// Creates a group behind this channel.
    pub(crate) fn new(
        context: &Arc<AdapterContext>,
        channel: Arc<CompletionChannel>,
        vector: u32,
        user: GroupUser,
    ) -> Arc<Self> {
        let (first, own, polled) = match user {
            GroupUser::Futures => (FIRST, false, false),
            GroupUser::Program { depth, polled } => (depth.saturating_add(SPARE), true, polled),
            GroupUser::Lane { entries } => (entries, true, true),
        };
        let exclusive = matches!(user, GroupUser::Lane { .. });
        context.groups.create(|_, registered| Self {
            context: context.clone(),
            vector,
            first,
            channel: Mutex::new(Some(channel)),
            queues: Mutex::default(),
            routes: Routes::default(),
            own,
            polled,
            exclusive,
            waiting: AtomicUsize::new(0),
            waiting_for_any: AtomicUsize::new(0),
            finds: AtomicUsize::new(0),
            task: Mutex::default(),
            _registered: registered,
        })
    }

    /// Returns the channel, for the task that reads it; `None` once the adapter is removed.
    pub(crate) fn channel(&self) -> Option<Arc<CompletionChannel>> {
        self.channel.lock().clone()
    }

    /// Sets the task that reads the channel. The task ends with the group.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        *self.task.lock() = Some(task);
        // The adapter may have been removed since the caller looked.
        if self.channel.lock().is_none() {
            self.stop();
        }
    }

    fn stop(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// Returns the queue whose events carry this key, unless it has lost a completion.
    pub(crate) fn by_key(&self, key: u64) -> Option<Arc<Queue>> {
        self.queues.lock().served().find(|queue| queue.completions.key == key).cloned()
    }

    /// Processes what the device has completed, as the task does after an event.
    pub(crate) fn progress(&self) {
        self.process_all(None);
    }

    /// Processes what the device has completed, like [`progress`](Self::progress), for a caller that polls. Takes no
    /// more than that has asked for.
    pub(crate) fn poll(&self, polling: &mut Polling<'_>) {
        self.process_all(Some(polling));
    }

    fn process_all(&self, mut polling: Option<&mut Polling<'_>>) {
        let queues = self.queues.lock();
        // Most often there is one.
        if let [slot] = queues.slots.as_slice() {
            let key = slot.queue.completions.key;
            return self.process_locked(queues, key, polling);
        }
        let keys: SmallVec<[u64; 4]> = queues.served().map(|queue| queue.completions.key).collect();
        drop(queues);
        for key in keys {
            self.process(key, polling.as_deref_mut());
        }
    }

    /// Processes what the device has completed in the queue whose events carry this key.
    #[inline(never)]
    pub(crate) fn process(&self, key: u64, polling: Option<&mut Polling<'_>>) {
        self.process_locked(self.queues.lock(), key, polling);
    }

    /// Polls a queue, and does what follows from its completions once the group is unlocked.
    #[inline(always)]
    fn process_locked(
        &self,
        mut queues: MutexGuard<'_, Queues>,
        key: u64,
        polling: Option<&mut Polling<'_>>,
    ) {
        let is_closed = queues.is_closed;
        let is_meant = |slot: &&mut CqSlot| slot.queue.completions.key == key && slot.queue.is_served();
        let Some(slot) = queues.slots.iter_mut().find(is_meant).filter(|_| !is_closed) else { return };
        let mut ready = Ready::default();
        let polls = polling.is_some();
        let mut effects = Effects::by(polling);
        let found = self.collect(slot, &mut ready, Some(&mut effects));
        drop(queues);
        if found && !polls {
            self.finds.fetch_add(1, Ordering::Relaxed);
        }
        effects.wakes.wake_all();
        if ready.is_empty() {
            // It has nothing to drop, which would take a call.
            std::mem::forget(ready);
        } else {
            ready.progress();
        }
    }

    /// Returns the number of times that completions were found, except by [`poll`](Self::poll). It wraps around.
    pub(crate) fn finds(&self) -> usize {
        self.finds.load(Ordering::Relaxed)
    }

    /// Returns whether the channel has no other event that matters when one with this key has been taken: there is no
    /// other queue, and only the task of the group arms it.
    pub(crate) fn notifies_once(&self, key: u64) -> bool {
        let queues = self.queues.lock();
        let is_alone = matches!(queues.slots.as_slice(), [slot] if slot.queue.completions.key == key);
        is_alone && !self.polled && !queues.is_closed
    }

    /// Returns whether the device is to raise an event for the next completion.
    pub(crate) fn is_armed(&self) -> bool {
        !self.polled || self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns whether an event for each message with a solicited event and for each failure is enough: all callers that wait want
    /// these alone, and nothing else needs the events of a polled group.
    fn wants_solicited_only(&self) -> bool {
        self.polled
            && self.waiting_for_any.load(Ordering::SeqCst) == 0
            && !self.context.quirks().solicits_no_failures
    }

    /// Asks for an event at the next completion of this queue that a caller waits for. Completions that have arrived before cause no
    /// event: the caller then processes them.
    pub(crate) fn arm(&self, queue: &Queue) -> io::Result<()> {
        if self.wants_solicited_only() && queue.completions.arm_solicited().is_ok() {
            // A wait for any completion may have begun since. Its arm may have come first, and no driver has to keep it.
            fence(Ordering::SeqCst);
            if self.wants_solicited_only() {
                return Ok(());
            }
        }
        queue.completions.arm()
    }

    /// Begins a wait for completions of this kind: arms the queues of a polled group, and processes what has completed before.
    pub(crate) fn begin_wait(&self, kind: NotifyKind) {
        if !self.polled {
            return;
        }
        if kind == NotifyKind::Any {
            self.waiting_for_any.fetch_add(1, Ordering::SeqCst);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let queues: SmallVec<[_; 1]> = self.queues.lock().served().cloned().collect();
        for queue in queues {
            if let Err(error) = self.arm(&queue) {
                debug!(%error, "completion queue not armed");
            }
        }
        // Completions that have come before cause no event.
        self.progress();
    }

    /// Ends a wait for completions of this kind.
    pub(crate) fn end_wait(&self, kind: NotifyKind) {
        if !self.polled {
            return;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if kind == NotifyKind::Any {
            self.waiting_for_any.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Makes the first queue.
    pub(super) fn begin(self: &Arc<Self>) -> io::Result<()> {
        Room::new(self, 0).map(drop)
    }

    /// Reserves room for so many completions, in a new queue if no other has it.
    fn reserve(&self, entries: u32) -> io::Result<Arc<Queue>> {
        let before = {
            let mut queues = self.queues.lock();
            if queues.is_closed {
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            }
            let slots = &mut queues.slots;
            // A queue that has lost a completion goes when no entry of it is reserved.
            slots.retain(|slot| slot.queue.is_served() || !slot.is_free());
            let fits = |slot: &&mut CqSlot| slot.free >= entries && slot.queue.is_served();
            if let Some(slot) = slots.iter_mut().find(fits) {
                slot.free -= entries;
                slot.rooms += 1;
                return Ok(slot.queue.clone());
            }
            slots.last().map(|slot| slot.queue.completions.entries())
        };
        if self.exclusive && before.is_some() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // Without the lock, which the task needs. If another thread makes one at the same time, there are two.
        let usual = before.map_or(self.first, |before| before.saturating_mul(2).min(MOST));
        let length = usual.min(self.context.attributes.max_cqe).max(entries);
        let queue = Queue::new(self, length)?;
        let free = queue.completions.entries().saturating_sub(entries);
        let slot = CqSlot { queue: queue.clone(), free, rooms: 1, work: Work::default() };
        self.queues.lock().slots.push(slot);
        // After that: a caller that begins to wait now arms it, or is seen here.
        if self.is_armed()
            && let Err(error) = self.arm(&queue)
        {
            self.free(&queue, entries);
            return Err(error);
        }
        // A removal may have closed all of them since the caller looked.
        if self.context.is_removed() {
            self.close();
        }
        Ok(queue)
    }

    /// Gives room back. The first queue stays for later queue pairs.
    fn free(&self, queue: &Arc<Queue>, entries: u32) {
        let mut unused = None;
        let mut queues = self.queues.lock();
        let is_closed = queues.is_closed;
        if let Some(place) = queues.slots.iter().position(|slot| Arc::ptr_eq(&slot.queue, queue))
            && let Some(slot) = queues.slots.get_mut(place)
        {
            slot.free = slot.free.saturating_add(entries);
            slot.rooms = slot.rooms.saturating_sub(1);
            let stays = place == 0 && slot.queue.is_served();
            let goes = if is_closed { slot.rooms == 0 } else { !stays && slot.is_free() };
            if goes {
                unused = Some(queues.slots.remove(place));
            }
        }
        drop(queues);
        drop(unused);
    }

    /// Lets every queue go once no queue pair holds it.
    fn close(&self) {
        let mut queues = self.queues.lock();
        queues.is_closed = true;
        let (used, unused): (Vec<_>, Vec<_>) =
            std::mem::take(&mut queues.slots).into_iter().partition(|slot| slot.rooms > 0);
        queues.slots = used;
        drop(queues);
        let channel = self.channel.lock().take();
        drop(unused);
        drop(channel);
    }

    /// Makes room for so many more completions in a queue.
    fn grow(&self, queue: &Arc<Queue>, more: u32) -> io::Result<()> {
        // Under the lock: one after the other, or one of them would be lost.
        let mut queues = self.queues.lock();
        if let Some(slot) = queues.slot_of(queue) {
            slot.work.resized = true;
        }
        queue.completions.resize(queue.completions.entries().saturating_add(more))
    }

    /// Forgets a queue pair that its user has released: it is not [remembered](CompletionHandler::is_remembered) again.
    pub(crate) fn forget(&self, released: &dyn CompletionHandler) {
        let is_meant = |known: &mut Known| ptr::addr_eq(Arc::as_ptr(&known.queue_pair), released);
        let mut queues = self.queues.lock();
        let of_slot = |slot: &mut CqSlot| slot.work.last.take_if(is_meant);
        let forgotten: SmallVec<[Known; 1]> = queues.slots.iter_mut().filter_map(of_slot).collect();
        drop(queues);
        drop(forgotten);
    }

    /// Polls a queue for at most as many completions as it is long, or as a caller that polls has asked for. With `effects`, a queue
    /// pair processes its completions at once if its lock is free; otherwise it defers them, and is added to `ready`. Returns whether
    /// completions were found for a queue pair.
    #[inline(always)]
    fn collect(
        &self,
        CqSlot { queue, work, .. }: &mut CqSlot,
        ready: &mut Ready,
        mut effects: Option<&mut Effects<'_, '_>>,
    ) -> bool {
        let mut found = false;
        if self.exclusive {
            return found;
        }
        // Completions that have arrived since cause an event, or are found by the task that is about to arm
        // the queue.
        let mut left = queue.completions.entries() as usize;
        loop {
            let polling = effects.as_ref().and_then(|effects| effects.polling.as_ref());
            let most = polling.map_or(BATCH, |polling| polling.room().min(BATCH)).min(left);
            if most == 0 {
                break;
            }
            let polled = queue.completions.poll(&mut work.batch, most);
            let count = work.batch.len();
            left = left.saturating_sub(count);
            if count > 0 {
                found |= self.deliver(work, ready, effects.as_deref_mut());
            }
            if polled.is_err() {
                queue.fail();
                break;
            }
            // One that was not filled has emptied the queue. `bnxt_re` also ends a call where the queue was resized.
            if count < most && !std::mem::take(&mut work.resized) {
                break;
            }
        }
        found
    }

    /// Hands completions to the queue pairs. Consecutive ones for one queue pair are handed over at once. Returns whether one of the
    /// queue pairs is still there.
    fn deliver(
        &self,
        Work { batch, last, .. }: &mut Work,
        ready: &mut Ready,
        mut effects: Option<&mut Effects<'_, '_>>,
    ) -> bool {
        let mut found = false;
        for (named, completions) in batch.runs(|id| RequestId::unpack(id).key) {
            if last.as_ref().is_none_or(|last| last.key != named.0) {
                *last = self.find(named);
            }
            // Completions for a queue pair that has ended are discarded.
            let Some(known) = last else { continue };
            found = true;
            let has_deferred = known.queue_pair.deliver(known.key, completions, effects.as_deref_mut());
            if has_deferred || !known.stays {
                ready.add(known);
            }
            if !known.stays {
                // Its end is not to come here, where the lock is held: `ready` has it, too.
                *last = None;
            }
        }
        found
    }

    /// Returns the queue pair that a completion is for, by the key and the number that the completion names.
    fn find(&self, (named, number): (u32, u32)) -> Option<Known> {
        let routes = self.routes.lock();
        // A queue pair that is gone has left no completion of a shared receive behind, see `DeviceQp`.
        let key = if named == RequestId::SHARED { routes.key_by_number(number)? } else { named };
        let queue_pair = routes.by_key(key)?;
        Some(Known { key, stays: queue_pair.is_remembered(self), queue_pair })
    }
}

impl Member for CompletionGroup {
    fn device_removed(&self) {
        self.close();
        self.stop();
    }
}

impl Drop for CompletionGroup {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Queue {
    /// Creates a queue of this length for a group.
    fn new(group: &CompletionGroup, length: u32) -> io::Result<Arc<Self>> {
        let context = group.context.clone();
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let channel = group.channel().ok_or_else(gone)?;
        let key = context.router.key();
        let completions = CompletionQueue::new(&channel, length, key, group.vector)?;
        let lost = context.routes.register_queue(key);
        Ok(Arc::new(Self { completions, lost, context }))
    }

    /// Returns whether the queue is polled: it has lost no completion.
    pub(crate) fn is_served(&self) -> bool {
        !self.lost.load(Ordering::Acquire)
    }

    /// Ends the use of the queue, and the connections that use it: a completion cannot be read, and its queue pair is
    /// not known.
    fn fail(&self) {
        if self.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        let (context, key) = (self.context.clone(), self.completions.key);
        // In a task of its own, because the caller may hold the locks of queue pairs.
        self.context.runtime.spawn(async move {
            warn!(adapter = %context.device.name, "completion queue cannot be read");
            context.routes.fail_queue(Element::CompletionQueue(key), LOST);
        });
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.context.routes.deregister_queue(self.completions.key);
        if let Some(time) = self.context.quirks().completions_linger {
            let completions = self.completions.clone();
            self.context.runtime.spawn(async move {
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
    pub(crate) group: Arc<CompletionGroup>,
}

impl Room {
    /// Reserves room for so many completions in a queue of this group.
    pub(crate) fn new(group: &Arc<CompletionGroup>, entries: u32) -> io::Result<Self> {
        let queue = group.reserve(entries)?;
        Ok(Self { queue, entries: entries.into(), group: group.clone() })
    }

    /// Returns the queue of the device.
    pub(crate) fn completions(&self) -> &Arc<CompletionQueue> {
        &self.queue.completions
    }

    /// Returns whether the queue is polled: it has lost no completion.
    pub(crate) fn is_served(&self) -> bool {
        self.queue.is_served()
    }

    /// Ends the use of the queue, as a poll does that fails.
    pub(crate) fn fail(&self) {
        self.queue.fail();
    }

    /// Makes room for so many completions in all. One task does so at a time.
    pub(crate) fn grow(&self, entries: u32) -> io::Result<()> {
        let more = entries.saturating_sub(self.entries.load(Ordering::Relaxed));
        if more > 0 {
            self.group.grow(&self.queue, more)?;
            self.entries.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Keeps the room reserved for good: a queue pair that could not be destroyed may still complete requests.
    pub(crate) fn withhold(&self) {
        self.entries.store(0, Ordering::Relaxed);
    }

    /// Returns whether this key is that of the events of its completion queue.
    pub(crate) fn is_in(&self, key: u64) -> bool {
        self.queue.completions.key == key
    }

    /// Has the queue pairs defer all completions of its queue.
    pub(crate) fn collect(&self, ready: &mut Ready) {
        if let Some(slot) = self.group.queues.lock().slot_of(&self.queue) {
            self.group.collect(slot, ready, None);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.group.free(&self.queue, self.entries.load(Ordering::Relaxed));
    }
}
