//! rdma_cm ids, and to whom their events go.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::sync::Mutex;
use crate::sys::{CmEvent, CmId, EventChannel};

/// Whoever gets the events of an id.
pub(crate) trait Target: Send + Sync {
    /// One event, already acknowledged.
    fn event(self: Arc<Self>, event: CmEvent);
}

/// The ids of an adapter by their key. A key is never used twice, so that an event that was read just before its id was
/// destroyed finds nobody.
#[derive(Default)]
pub(crate) struct Targets {
    known: Mutex<HashMap<u64, Weak<dyn Target>>>,
    last: AtomicU64,
}

impl Targets {
    /// Whether no id is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.lock().is_empty()
    }

    /// A key for an id or anything else of the adapter; 0 is never one.
    pub(crate) fn key(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Hands an event to whom it is for.
    pub(crate) fn deliver(&self, event: CmEvent) {
        let target = self.known.lock().get(&event.key).and_then(Weak::upgrade);
        if let Some(target) = target {
            target.event(event);
        }
    }

    /// A new id whose events go to `target`.
    ///
    /// # Errors
    /// Those of rdma_create_id(3).
    pub(crate) fn create(
        self: &Arc<Self>,
        channel: &Arc<EventChannel>,
        target: Weak<dyn Target>,
    ) -> io::Result<Arc<Identifier>> {
        let key = self.key();
        let id = CmId::new(channel, key)?;
        Ok(self.watch(id, key, target))
    }

    /// Takes over the id of a request. Nothing is lost meanwhile: the one task that reads events is the one that
    /// calls this.
    pub(crate) fn adopt(self: &Arc<Self>, mut id: CmId, target: Weak<dyn Target>) -> Arc<Identifier> {
        let key = self.key();
        id.set_key(key);
        self.watch(id, key, target)
    }

    fn watch(self: &Arc<Self>, id: CmId, key: u64, target: Weak<dyn Target>) -> Arc<Identifier> {
        self.known.lock().insert(key, target);
        Arc::new(Identifier { id, _entry: Entry { key, targets: self.clone() } })
    }
}

/// An rdma_cm id that is listed under its key for as long as it exists.
pub(crate) struct Identifier {
    // Dropped in this order: the kernel may take its time to destroy it, and until then it is there.
    id: CmId,
    _entry: Entry,
}

impl Deref for Identifier {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.id
    }
}

/// A place in the list.
struct Entry {
    key: u64,
    targets: Arc<Targets>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _target = self.targets.known.lock().remove(&self.key);
    }
}
