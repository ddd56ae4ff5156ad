//! What must end when an adapter goes away.

use std::sync::{Arc, Weak};

use slab::Slab;

use crate::sync::Mutex;

/// An object that ends with its adapter.
pub(crate) trait Member: Send + Sync {
    /// The adapter is gone: everything that is pending finishes with `DEVICE_REMOVED`.
    fn device_removed(&self);

    /// The runtime of the adapter has shut down: nothing that is pending would ever finish. For providers that notice it
    /// for all members at once.
    #[cfg(feature = "verbs")]
    fn runtime_ended(&self) {}
}

/// Everything that was created from an adapter and still exists.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Slab<Weak<dyn Member>>>);

impl Registry {
    /// Puts an object on the list, until what this returns is dropped.
    pub(crate) fn register(self: &Arc<Self>, member: Weak<dyn Member>) -> Registered {
        Registered { registry: Arc::downgrade(self), place: self.0.lock().insert(member) }
    }

    /// Tells every one of them that the adapter is gone.
    pub(crate) fn device_removed(&self) {
        self.tell(|member| member.device_removed());
    }

    /// Tells every one of them that the runtime has shut down.
    #[cfg(feature = "verbs")]
    pub(crate) fn runtime_ended(&self) {
        self.tell(|member| member.runtime_ended());
    }

    fn tell(&self, news: impl Fn(&dyn Member)) {
        let members: Vec<_> = self.0.lock().iter().filter_map(|(_, member)| member.upgrade()).collect();
        members.iter().for_each(|member| news(&**member));
    }
}

/// Takes a member off the list when it is dropped.
pub(crate) struct Registered {
    registry: Weak<Registry>,
    place: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            let _member = registry.0.lock().try_remove(self.place);
        }
    }
}
