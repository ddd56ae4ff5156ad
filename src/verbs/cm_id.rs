//! rdma_cm ids, and the routing of their events to the objects that they belong to.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::sync::Mutex;
use crate::sys::{CmEvent, EventChannel, RawCmId};

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
