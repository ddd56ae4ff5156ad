//! Receive queues that several queue pairs share.
//!
//! The queue pair that takes a receive is known when the receive completes: the completion names the place of
//! the receive here, and the queue pair by its number. A receive that no message has taken is returned when
//! the last queue pair of the device that could use it is gone. So is a receive that a message was arriving
//! in when its connection ended: not every device reports its result.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use slab::Slab;
use smallvec::SmallVec;

use super::completion_queue::{CompletionGroup, Room};
use super::context::AdapterContext;
use super::limits;
use super::routes::RequestId;
use super::work_queue::{Outstanding, receive_entries};
use crate::error::{NotifyError, OpenError, PostErrorKind, ResizeError};
use crate::inflight::{CompletionSink, Payload, Ticket, WakeList};
use crate::provider::registry::{Member, Registered};
use crate::provider::work::Refused;
use crate::status::Status;
use crate::sync::Mutex;
use crate::sys::{self, ReceiveRequest, SharedReceiveQueue};
use crate::types::QueueKind;

/// A shared receive queue as its user has it.
pub(crate) struct SharedReceives {
    /// `None` once the adapter is removed or the user has let it go.
    receives: Mutex<Option<Arc<Receives>>>,
    /// The key that events of the queue carry.
    key: u64,
    adapter: Arc<AdapterContext>,
    _registered: Registered,
}

/// The queue of the device, and what was posted to it. Every queue pair of the device that uses it holds it.
pub(crate) struct Receives {
    pub(super) queue: Arc<SharedReceiveQueue>,
    slots: Mutex<Slab<(Ticket, Payload)>>,
    completions: Mutex<Rooms>,
    /// A queue pair of it could not be destroyed.
    withheld: AtomicBool,
    sink: CompletionSink,
    adapter: Arc<AdapterContext>,
}

/// The rooms in which the receives of a queue complete.
struct Rooms {
    /// The number of receives, all of which may be taken by the queue pairs of one room.
    depth: u32,
    /// One for each completion queue of the program, for as long as a queue pair completes there, and one for all others.
    rooms: SmallVec<[Weak<Room>; 1]>,
    /// The last room for all others, which stays for later queue pairs.
    kept: Option<Arc<Room>>,
}

impl Receives {
    /// Returns the room for the completions of queue pairs that complete in this group, or in any one of those that
    /// queue pairs share: one of these is enough. A room in a completion queue that has lost a completion is not used
    /// again.
    pub(crate) fn room(&self, group: &Arc<CompletionGroup>) -> io::Result<Arc<Room>> {
        let mut completions = self.completions.lock();
        completions.kept = completions.kept.take().filter(|room| room.is_served());
        completions.rooms.retain(|room| room.strong_count() > 0);
        let fits = |room: &Arc<Room>| {
            let same = Arc::ptr_eq(&room.group, group) || !(room.group.own || group.own);
            same && room.is_served()
        };
        if let Some(room) = completions.rooms.iter().filter_map(Weak::upgrade).find(fits) {
            return Ok(room);
        }
        let room = Arc::new(Room::new(group, completions.depth)?);
        completions.rooms.push(Arc::downgrade(&room));
        if !group.own {
            completions.kept = Some(room.clone());
        }
        Ok(room)
    }

    /// Makes room for the completions of so many receives.
    fn grow(&self, depth: u32) -> io::Result<()> {
        let mut completions = self.completions.lock();
        completions.rooms.iter().filter_map(Weak::upgrade).try_for_each(|room| room.grow(depth))?;
        completions.depth = completions.depth.max(depth);
        Ok(())
    }

    /// Notes that a queue pair of it could not be destroyed: the device may write to any of the receives at any later time.
    pub(crate) fn withhold(&self) {
        self.withheld.store(true, Ordering::Release);
    }

    /// Takes the receive at this place, which has completed.
    pub(crate) fn take(&self, place: u32) -> Option<(Ticket, Payload)> {
        self.slots.lock().try_remove(place as usize)
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        // No queue pair uses the queue: with this nothing does.
        let destroyed = Arc::get_mut(&mut self.queue).is_some_and(|queue| queue.destroy().is_ok());
        let free = destroyed && !*self.withheld.get_mut();
        let slots = std::mem::take(&mut *self.slots.lock());
        if slots.is_empty() {
            return;
        }
        let status = if self.adapter.is_removed() { Status::DEVICE_REMOVED } else { Status::CANCELED };
        let mut wakes = WakeList::default();
        for (_, (ticket, payload)) in slots {
            let (ticket, completed) = Outstanding::new(ticket, payload).ended(status, free, &mut wakes);
            self.sink.complete(ticket, completed, &mut wakes);
        }
        if self.adapter.is_stopped() {
            wakes.wake_all();
        } else {
            // A queue pair may be going, with locks held.
            self.adapter.runtime.spawn(async move { wakes.wake_all() });
        }
    }
}

impl SharedReceives {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// `InvalidParameter` for more entries or receives than the device can have; `Os` when it has no room.
    pub(crate) fn new(
        adapter: &Arc<AdapterContext>,
        depth: usize,
        entries: usize,
        sink: CompletionSink,
    ) -> Result<Arc<Self>, OpenError> {
        let opened = adapter.opened().ok_or(OpenError::DeviceRemoved)?;
        // Both were checked against the device.
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let most = usize::try_from(adapter.attributes.max_srq_sge).unwrap_or(usize::MAX);
        OpenError::check_range(4, "entries", entries, 1..=most)?;
        let key = adapter.router.key();
        let queue =
            SharedReceiveQueue::new(&opened.domain, small(depth), small(entries), key).map_err(|source| {
                limits::shared_queue_refused(adapter, (small(depth), small(entries)), source)
            })?;
        let receives = Receives {
            queue,
            slots: Mutex::default(),
            completions: Mutex::new(Rooms { depth: small(depth), rooms: SmallVec::new(), kept: None }),
            withheld: AtomicBool::new(false),
            sink,
            adapter: adapter.clone(),
        };
        // The registry of regions ends after the queue pairs, which use the queue.
        Ok(adapter.regions.create(|_, registered| Self {
            receives: Mutex::new(Some(Arc::new(receives))),
            key,
            adapter: adapter.clone(),
            _registered: registered,
        }))
    }

    /// Returns the object that a queue pair of the device holds to use the queue; `None` when the queue has
    /// ended.
    pub(crate) fn receives(&self) -> Option<Arc<Receives>> {
        self.receives.lock().clone()
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Posts a receive.
    pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        let Some(receives) = self.receives() else {
            return Err(Refused { kind: PostErrorKind::DeviceRemoved, payload });
        };
        let entries = match receive_entries(&payload, self.adapter.quirks()) {
            Ok(entries) => entries,
            Err(kind) => return Err(Refused { kind, payload }),
        };
        // Held until it is posted, so that its completion finds it.
        let mut slots = receives.slots.lock();
        let place = slots.insert((ticket, payload));
        // A queue has far fewer places than 2^31.
        let id = RequestId { key: RequestId::SHARED, receive: true, sequence: place as u32 };
        let request = ReceiveRequest { id: id.pack(), entries: &entries };
        // SAFETY: the entries are parts of the payload, registered allocations that are shared from now on and stay in their
        // slot until the request has completed, or the drop of `receives` has destroyed the queue after every queue pair. Memory of
        // another device is among them only where the device receives in place.
        let Err(sys::Refused { source, .. }) = (unsafe { receives.queue.post(request) }) else {
            return Ok(());
        };
        let (_, payload) = slots.remove(place);
        // A resize has the lock below while it waits for a poller that waits for the slots.
        drop(slots);
        let kind = match source.raw_os_error() {
            _ if self.adapter.is_removed() => PostErrorKind::DeviceRemoved,
            Some(libc::ENOMEM) => {
                let depth = receives.completions.lock().depth as usize;
                PostErrorKind::QueueFull { queue: QueueKind::SharedReceive, depth }
            }
            code => PostErrorKind::Device(code.unwrap_or(0)),
        };
        Err(Refused { kind, payload })
    }

    /// Makes room for so many receives, here and for their completions.
    ///
    /// # Errors
    /// `Os` if the device cannot (`EOPNOTSUPP`) or has no room. Nothing has changed if it cannot.
    pub(crate) fn resize(&self, depth: usize) -> Result<(), ResizeError> {
        let receives = self.receives().ok_or(ResizeError::Ended(NotifyError::DeviceRemoved))?;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let failed = |call| move |source: io::Error| ResizeError::Os { call, source: source.into() };
        if !self.adapter.attributes.resizes_shared {
            // Drivers would fail with another error, and only once the completion queues have grown.
            return Err(failed("ibv_modify_srq")(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        receives.grow(depth).map_err(failed("ibv_resize_cq"))?;
        receives.queue.resize(depth).map_err(failed("ibv_modify_srq"))
    }

    /// Releases the queue, which ends when no queue pair of the device holds it.
    pub(crate) fn released(&self) {
        let receives = self.receives.lock().take();
        drop(receives);
    }
}

#[cfg(feature = "inspect")]
impl SharedReceives {
    /// Returns 0: a device does not tell.
    #[expect(clippy::unused_self, reason = "other providers know")]
    pub(crate) fn messages_waiting(&self) -> usize {
        0
    }
}

impl Member for SharedReceives {
    fn device_removed(&self) {
        self.released();
    }
}
