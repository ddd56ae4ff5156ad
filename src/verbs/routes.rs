//! The way from the device to the queue pairs: the ids of requests, the queue pairs that completions and events are for, by the key in
//! these ids and by the device's number, and what follows from completions. And that from rdma_cm to connectors and listeners: its ids,
//! and the routing of their events.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::error::{Reason, WcError};
use crate::inflight::{Polling, WakeList};
use crate::provider::registry::Member;
use crate::sync::{KeyHasher, Mutex, MutexGuard};
use crate::sys::{CmEvent, Completions, Element, EventChannel, RawCmId};

/// The id of a request at the device: the key of the device's queue pair, the queue, and the place in it.
#[derive(Clone, Copy)]
pub(crate) struct RequestId {
    pub(crate) key: u32,
    pub(crate) receive: bool,
    pub(crate) sequence: u32,
}

impl RequestId {
    const RECEIVE: u32 = 1 << 31;
    /// Below the place of the empty request that asks for a sign of life, which is not among the others.
    pub(super) const SEQUENCE: u32 = Self::KEEPALIVE - 1;
    /// The place of that one.
    pub(crate) const KEEPALIVE: u32 = 1 << 30;
    const KEY: u32 = 32;
    /// The key of no queue pair: a receive of a shared queue, and the place of it there.
    pub(crate) const SHARED: u32 = u32::MAX;

    pub(crate) fn pack(self) -> u64 {
        let queue = if self.receive { Self::RECEIVE } else { 0 };
        (u64::from(self.key) << Self::KEY) | u64::from(queue | self.sequence)
    }

    pub(crate) fn unpack(id: u64) -> Self {
        let place = id as u32;
        Self {
            key: (id >> Self::KEY) as u32,
            receive: place & Self::RECEIVE != 0,
            sequence: place & !Self::RECEIVE,
        }
    }
}

/// The number of parts of the path timeout. A dead peer is noticed at most one part late.
pub(crate) const TICKS: u32 = 10;

/// A queue pair, as the tasks see it that read completions and events of the device.
pub(crate) trait CompletionHandler: Send + Sync {
    /// Takes completions of the device's queue pair with this key. The lock of the queues of a
    /// group is held. With `effects`, they are processed at once if the lock of the queue pair is free; otherwise they
    /// are deferred. Returns whether the caller has to call [`progress`](Self::progress).
    fn deliver(&self, key: u32, completions: Completions<'_>, effects: Option<&mut Effects<'_, '_>>) -> bool;

    /// Returns whether this group may hold the queue pair, to find it again: until the user releases it, which ends with
    /// `CompletionGroup::forget`. The lock of the group is held.
    fn is_remembered(&self, group: &dyn Member) -> bool;

    /// Processes what was deferred, and wakes the tasks whose requests have finished. No lock is held.
    fn progress(&self);

    /// Returns the number of the device's queue pair that is in use.
    fn number(&self) -> Option<u32>;

    /// Returns whether this is its completion queue of the device, or its shared receive queue.
    fn uses(&self, element: Element) -> bool;

    /// Ends the wait for the last receive of the device's queue pair with this key, which takes no further receive of a
    /// shared queue.
    fn last_receive(&self, key: u32);

    /// Ends the connection: the device has reported an error of the queue pair, or of a queue of it.
    fn device_error(&self, reason: Reason);

    /// Releases the shared receives, which the device has lost.
    fn shared_lost(&self);

    /// Handles a message that has arrived, perhaps before the one that establishes the connection.
    fn data_arrived(&self);

    /// Counts one of the [`TICKS`] of the path timeout.
    fn tick(&self);
}

/// Queue pairs: all of an adapter, or those that complete in one group of completion queues.
#[derive(Default)]
pub(crate) struct Routes(Mutex<State>);

type Map<T> = HashMap<u32, T, BuildHasherDefault<KeyHasher>>;

/// The queue pairs, under the lock.
#[derive(Default)]
pub(crate) struct State {
    /// By the keys in their requests. A key is used again only after all the others.
    by_key: Map<Weak<dyn CompletionHandler>>,
    /// The keys by the device's numbers, of those with a shared receive queue.
    by_number: Map<u32>,
    next: u32,
    /// By the keys of completion queues, whether they have lost a completion.
    queues: HashMap<u64, Arc<AtomicBool>>,
}

impl State {
    /// Returns the key of the queue pair with this number, of those with a shared receive queue.
    pub(crate) fn key_by_number(&self, number: u32) -> Option<u32> {
        self.by_number.get(&number).copied()
    }

    /// Returns the queue pair with this key.
    pub(crate) fn by_key(&self, key: u32) -> Option<Arc<dyn CompletionHandler>> {
        self.by_key.get(&key).and_then(Weak::upgrade)
    }
}

impl Routes {
    /// Locks the queue pairs, for a caller that looks for several.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Registers a queue pair of the device under a new key. Completions that carry the key are for `handler`.
    pub(crate) fn register(&self, handler: Weak<dyn CompletionHandler>) -> u32 {
        let mut all = self.lock();
        // There are fewer queue pairs than keys.
        while all.next == RequestId::SHARED || all.by_key.contains_key(&all.next) {
            all.next = all.next.wrapping_add(1);
        }
        let key = all.next;
        all.next = key.wrapping_add(1);
        all.by_key.insert(key, handler);
        key
    }

    /// Adds a queue pair that has a key.
    pub(crate) fn add(&self, key: u32, handler: Weak<dyn CompletionHandler>) {
        self.lock().by_key.insert(key, handler);
    }

    /// Registers the number of a queue pair, by which completions of receives of a shared queue name it.
    pub(crate) fn add_number(&self, number: u32, key: u32) {
        self.lock().by_number.insert(number, key);
    }

    /// Removes the key of a queue pair, and its number.
    pub(crate) fn deregister(&self, key: u32, number: Option<u32>) {
        let mut all = self.lock();
        let _handler = all.by_key.remove(&key);
        if let Some(number) = number
            && all.by_number.get(&number) == Some(&key)
        {
            // A later queue pair with the same number keeps its entry.
            all.by_number.remove(&number);
        }
    }

    /// Returns the queue pair with this number. Only for events that are rare.
    pub(crate) fn by_number(&self, number: u32) -> Option<Arc<dyn CompletionHandler>> {
        self.all().into_iter().find(|queue_pair| queue_pair.number() == Some(number))
    }

    /// Returns every queue pair that there is.
    pub(crate) fn all(&self) -> Vec<Arc<dyn CompletionHandler>> {
        self.lock().by_key.values().filter_map(Weak::upgrade).collect()
    }

    /// Hands the event of the last receive to the queue pair with this number, which takes no further receive of a
    /// shared queue.
    pub(crate) fn last_receive(&self, number: u32) {
        let found = {
            let all = self.lock();
            all.key_by_number(number).and_then(|key| Some((key, all.by_key(key)?)))
        };
        if let Some((key, queue_pair)) = found {
            queue_pair.last_receive(key);
        }
    }

    /// Registers a completion queue whose events carry this key. Returns the flag that says whether it has lost a
    /// completion.
    pub(crate) fn register_queue(&self, key: u64) -> Arc<AtomicBool> {
        self.lock().queues.entry(key).or_default().clone()
    }

    /// Removes a completion queue.
    pub(crate) fn deregister_queue(&self, key: u64) {
        self.lock().queues.remove(&key);
    }

    /// Ends the connections that use a completion queue or a shared receive queue of the device, which has lost something.
    pub(crate) fn fail_queue(&self, element: Element, reason: Reason) {
        if let Element::CompletionQueue(key) = element
            && let Some(lost) = self.lock().queues.get(&key)
        {
            // First: no further queue pair reserves entries in it.
            lost.store(true, Ordering::Release);
        }
        let all = self.all();
        let hit: Vec<_> = all.iter().filter(|queue_pair| queue_pair.uses(element)).collect();
        if let Element::SharedReceiveQueue(_) = element {
            hit.iter().for_each(|queue_pair| queue_pair.shared_lost());
        }
        hit.iter().for_each(|queue_pair| queue_pair.device_error(reason));
    }
}

/// The result of looking at completions.
#[derive(Default)]
pub(crate) struct Effects<'a, 'b> {
    pub(crate) wakes: WakeList,
    /// The queue of the program that is being polled.
    pub(crate) polling: Option<&'a mut Polling<'b>>,
    pub(crate) queue_pair: ConnectionEffects,
}

/// The result for the connection of a queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConnectionEffects {
    /// A message has come before the connection was established.
    pub(crate) received: bool,
    /// The failure of the first request that failed, and the key of the device's queue pair.
    pub(crate) broken: Option<(WcError, u32)>,
    /// The failure of the request that asks for a sign of life, and the key of the device's queue pair.
    pub(crate) silent: Option<(WcError, u32)>,
}

impl<'a, 'b> Effects<'a, 'b> {
    /// Creates an empty result, with the queue of a caller that polls.
    pub(crate) fn by(polling: Option<&'a mut Polling<'b>>) -> Self {
        Self { polling, ..Self::default() }
    }
}

/// The receiver of the events of an id.
pub(crate) trait EventHandler: Send + Sync {
    /// Handles one event, which is already acknowledged.
    fn event(self: Arc<Self>, event: CmEvent);
}

/// The ids of an adapter by their keys. A key is never used twice, so that an event that was read just before its id
/// was destroyed has no handler.
#[derive(Default)]
pub(crate) struct EventRouter {
    known: Mutex<HashMap<u64, Weak<dyn EventHandler>>>,
    last: AtomicU64,
}

impl EventRouter {
    /// Returns whether no id is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.lock().is_empty()
    }

    /// Returns a new key, for an id or anything else of the adapter. A key is never 0.
    pub(crate) fn key(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Hands an event to the handler of its id, if that still exists.
    pub(crate) fn deliver(&self, event: CmEvent) {
        let handler = self.known.lock().get(&event.key).and_then(Weak::upgrade);
        if let Some(handler) = handler {
            handler.event(event);
        }
    }

    /// Creates an id whose events go to `handler`.
    ///
    /// # Errors
    /// Those of rdma_create_id(3).
    pub(crate) fn create(
        self: &Arc<Self>,
        channel: &Arc<EventChannel>,
        handler: Weak<dyn EventHandler>,
    ) -> io::Result<Arc<CmId>> {
        let key = self.key();
        let id = RawCmId::new(channel, key)?;
        Ok(self.watch(id, key, handler))
    }

    /// Takes over the id of a request. No event is lost in between: the one task that reads events is the one that
    /// calls this.
    pub(crate) fn adopt(self: &Arc<Self>, mut id: RawCmId, handler: Weak<dyn EventHandler>) -> Arc<CmId> {
        let key = self.key();
        id.set_key(key);
        self.watch(id, key, handler)
    }

    fn watch(self: &Arc<Self>, id: RawCmId, key: u64, handler: Weak<dyn EventHandler>) -> Arc<CmId> {
        self.known.lock().insert(key, handler);
        Arc::new(CmId { id, _entry: Entry { key, router: self.clone() } })
    }
}

/// An rdma_cm id that is listed under its key for as long as it exists.
pub(crate) struct CmId {
    // Dropped in this order: the kernel may take long to destroy the id, which stays listed until then.
    id: RawCmId,
    _entry: Entry,
}

impl Deref for CmId {
    type Target = RawCmId;

    fn deref(&self) -> &RawCmId {
        &self.id
    }
}

/// A place in the list.
struct Entry {
    key: u64,
    router: Arc<EventRouter>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _handler = self.router.known.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // HW-16: the mark of a completion queue that has lost a completion is for as long as there is the queue.
    #[test]
    fn a_lost_queue_is_marked_until_it_goes() {
        let routes = Routes::default();
        let [hit, other] = [1, 2].map(|key| routes.register_queue(key));
        let is_lost = |queue: &AtomicBool| queue.load(Ordering::Acquire);
        routes.fail_queue(Element::CompletionQueue(1), Reason::Local("lost"));
        assert!(is_lost(&hit) && !is_lost(&other));
        assert!(is_lost(&routes.register_queue(1)), "it is the same queue");
        routes.deregister_queue(1);
        assert!(!is_lost(&routes.register_queue(1)), "it is another one");
        assert!(is_lost(&hit));
    }
}
