//! The objects that end with an adapter.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use slab::Slab;

#[cfg(feature = "inspect")]
use crate::inspect::Snapshot;
use crate::sync::Mutex;

/// An object that ends with its adapter.
pub(crate) trait Member: Send + Sync {
    /// Ends everything that is pending with `DEVICE_REMOVED`: the adapter is gone.
    fn device_removed(&self);

    /// Ends what is pending and would never finish: the runtime of the adapter has shut down. For providers that notice
    /// it for all members at once.
    #[cfg(feature = "verbs")]
    fn runtime_ended(&self) {}

    /// Adds the report of the object, of the adapter with this number, to a snapshot.
    #[cfg(feature = "inspect")]
    fn inspect(&self, _adapter: u64, _snapshot: &mut Snapshot) {}
}

#[derive(Default)]
struct State {
    /// A member that is not complete yet has a place with a dangling reference.
    members: Slab<Weak<dyn Member>>,
    removed: bool,
}

impl State {
    fn members(&self) -> Vec<Arc<dyn Member>> {
        self.members.iter().filter_map(|(_, member)| member.upgrade()).collect()
    }
}

/// Everything that was created from an adapter and still exists.
#[derive(Default)]
pub(crate) struct Registry(Mutex<State>);

impl Registry {
    /// Creates a member, which keeps the guard that `make` gets. The member is notified of the adapter's removal
    /// exactly once, also if the adapter was removed before, or is removed during the call.
    pub(crate) fn create<T: Member + 'static>(
        self: &Arc<Self>,
        make: impl FnOnce(&Weak<T>, Registered) -> T,
    ) -> Arc<T> {
        let Ok(member) = self.try_create(make, |_| Ok::<_, Infallible>(()));
        member
    }

    /// Creates a member like [`create`](Self::create); `begin` runs before the member can be notified.
    ///
    /// # Errors
    /// Those of `begin`: the member is dropped.
    pub(crate) fn try_create<T: Member + 'static, E>(
        self: &Arc<Self>,
        make: impl FnOnce(&Weak<T>, Registered) -> T,
        begin: impl FnOnce(&T) -> Result<(), E>,
    ) -> Result<Arc<T>, E> {
        let nobody: Weak<dyn Member> = Weak::<T>::new();
        let place = self.0.lock().members.insert(nobody);
        let registered = Registered { registry: Arc::downgrade(self), place };
        let member = Arc::new_cyclic(|me| make(me, registered));
        begin(&member)?;
        let mut state = self.0.lock();
        let removed = state.removed;
        // It is on the list before the removal, or is notified here: never both, and never neither.
        if !removed && let Some(listed) = state.members.get_mut(place) {
            let weak: Weak<T> = Arc::downgrade(&member);
            *listed = weak;
        }
        drop(state);
        if removed {
            member.device_removed();
        }
        Ok(member)
    }

    /// Notifies every member that the adapter is gone.
    pub(crate) fn device_removed(&self) {
        let members = {
            let mut state = self.0.lock();
            state.removed = true;
            state.members()
        };
        members.iter().for_each(|member| member.device_removed());
    }

    /// Adds the reports of all members, of the adapter with this number, to a snapshot.
    #[cfg(feature = "inspect")]
    pub(crate) fn inspect(&self, adapter: u64, snapshot: &mut Snapshot) {
        let members = self.0.lock().members();
        members.iter().for_each(|member| member.inspect(adapter, snapshot));
    }

    /// Notifies every member that the runtime has shut down. Later members have to check that themselves.
    #[cfg(feature = "verbs")]
    pub(crate) fn runtime_ended(&self) {
        let members = self.0.lock().members();
        members.iter().for_each(|member| member.runtime_ended());
    }
}

/// A guard that takes a member off the list when it is dropped.
pub(crate) struct Registered {
    registry: Weak<Registry>,
    place: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            let _member = registry.0.lock().members.try_remove(self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Object {
        heard: AtomicUsize,
        _registered: Registered,
    }

    impl Object {
        fn new(_me: &Weak<Self>, registered: Registered) -> Self {
            Self { heard: AtomicUsize::new(0), _registered: registered }
        }

        fn heard(&self) -> usize {
            self.heard.load(Ordering::SeqCst)
        }
    }

    impl Member for Object {
        fn device_removed(&self) {
            self.heard.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn member_is_notified_of_removal_exactly_once() {
        let registry = Arc::<Registry>::default();
        let before = registry.create(Object::new);
        assert_eq!(before.heard(), 0);
        let during = registry.create(|me, registered| {
            registry.device_removed();
            Object::new(me, registered)
        });
        let after = registry.create(Object::new);
        assert_eq!([&before, &during, &after].map(|member| member.heard()), [1, 1, 1]);
    }

    #[test]
    fn member_is_notified_only_after_it_begins() {
        let registry = Arc::<Registry>::default();
        let begin = |member: &Object| {
            registry.device_removed();
            if member.heard() == 0 { Ok(()) } else { Err("too early") }
        };
        assert_eq!(registry.try_create(Object::new, begin).map(|member| member.heard()), Ok(1));
    }

    #[test]
    fn dropped_or_failed_member_leaves_registry() {
        let registry = Arc::<Registry>::default();
        drop(registry.create(Object::new));
        assert!(registry.try_create(Object::new, |_| Err(())).is_err());
        assert!(registry.0.lock().members.is_empty());
        registry.device_removed();
    }
}
