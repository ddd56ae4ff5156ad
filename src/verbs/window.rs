//! Memory windows of the verbs provider.
//!
//! A window of the device is only ever bound once at a time: binding the user's window anew takes another
//! one, and the one before goes when the new binding has been carried out. So nothing is invalidated that is
//! known not to be bound, which brings `rxe` down. A device's window that is bound keeps `rxe` from
//! destroying the queue pair (for 50 s) and from deregistering the region; so windows go before their queue
//! pair, and hold the registration of their region.

use std::ops::Range;
use std::sync::Arc;

use super::context::AdapterContext;
use super::region::Registration;
use crate::error::RegisterError;
use crate::provider::registry::{Member, Registered};
use crate::sync::Mutex;
use crate::sys::{MemoryWindow, next_key};

/// A memory window.
pub(crate) struct Window {
    adapter: Arc<AdapterContext>,
    state: Mutex<State>,
    _registered: Registered,
}

#[derive(Default)]
struct State {
    /// The device's window for the next binding.
    free: Option<Free>,
    bound: Option<Bound>,
}

/// A window of the device that is not bound, and the last key that it had.
pub(crate) struct Free {
    window: MemoryWindow,
    key: u32,
}

/// A window of the device that is bound, or will be when the request has been carried out.
pub(crate) struct Bound {
    window: MemoryWindow,
    key: u32,
    address: u64,
    length: usize,
    /// The key of the device's queue pair that bound it.
    owner: u32,
    /// The registration of the memory that the key gives access to.
    _registration: Arc<Registration>,
}

impl Bound {
    pub(crate) fn key(&self) -> u32 {
        self.key
    }
}

impl Free {
    pub(crate) fn window(&self) -> &MemoryWindow {
        &self.window
    }

    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    pub(crate) fn next_key(&self) -> u32 {
        next_key(self.key)
    }
}

impl Window {
    /// Creates a window that is not bound.
    ///
    /// # Errors
    /// `NotSupported` where the device has none, `InsufficientResources` when it has no more.
    pub(crate) fn new(adapter: &Arc<AdapterContext>) -> Result<Arc<Self>, RegisterError> {
        if !adapter.info().memory_windows {
            return Err(RegisterError::NotSupported("memory windows"));
        }
        let free = Some(allocate(adapter)?);
        let state = Mutex::new(State { free, bound: None });
        let adapter = adapter.clone();
        let registry = adapter.regions.clone();
        Ok(registry.create(|_, registered| Self { adapter, state, _registered: registered }))
    }

    /// Returns the key, the remote address and the length of the binding.
    pub(crate) fn bound(&self) -> Option<(u32, u64, usize)> {
        self.state.lock().bound.as_ref().map(|bound| (bound.key, bound.address, bound.length))
    }

    /// Takes a window of the device that can be bound.
    ///
    /// # Errors
    /// `InsufficientResources` when the device has no more.
    pub(crate) fn take_free(&self) -> Result<Free, RegisterError> {
        let free = self.state.lock().free.take();
        free.map_or_else(|| allocate(&self.adapter), Ok)
    }

    /// Gives back a window that was not bound after all, or is no longer bound.
    pub(crate) fn give_back(&self, free: Free) {
        let extra = self.state.lock().free.replace(free);
        drop(extra);
    }

    /// Records a binding that has been posted. The binding before it is dropped with its request if the same
    /// queue pair has bound it, and at once otherwise.
    pub(crate) fn bind(
        &self,
        free: Free,
        registration: &Arc<Registration>,
        range: Range<usize>,
        owner: u32,
    ) -> Option<Bound> {
        let key = free.next_key();
        let bound = Bound {
            window: free.window,
            key,
            address: registration.address() + range.start as u64,
            length: range.len(),
            owner,
            _registration: registration.clone(),
        };
        let before = self.state.lock().bound.replace(bound);
        before.filter(|before| before.owner == owner)
    }

    /// Takes the binding, whose invalidation is about to be posted to this queue pair.
    pub(crate) fn unbind(&self, owner: u32) -> Option<Bound> {
        let mut state = self.state.lock();
        state.bound.take_if(|bound| bound.owner == owner)
    }

    /// Puts back a binding whose invalidation was not posted. A binding made since then stays.
    pub(crate) fn rebind(&self, bound: Bound) {
        let mut state = self.state.lock();
        if state.bound.is_none() {
            state.bound = Some(bound);
        }
    }

    /// Returns the window of a binding that the device has invalidated.
    pub(crate) fn invalidated(&self, bound: Bound) {
        let Bound { window, key, .. } = bound;
        self.give_back(Free { window, key });
    }

    /// Removes the binding with this key, which the peer of this queue pair has invalidated.
    pub(crate) fn invalidated_by_peer(&self, owner: u32, invalidated: u32) {
        let bound = self.state.lock().bound.take_if(|bound| bound.owner == owner && bound.key == invalidated);
        if let Some(bound) = bound {
            self.invalidated(bound);
        }
    }

    /// Removes the binding of a queue pair that is about to be destroyed.
    pub(crate) fn leave(&self, owner: u32) {
        let bound = self.unbind(owner);
        drop(bound);
    }
}

fn allocate(adapter: &AdapterContext) -> Result<Free, RegisterError> {
    let opened = adapter.opened().ok_or(RegisterError::DeviceRemoved)?;
    let window = MemoryWindow::new(&opened.domain).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) => {
            RegisterError::InsufficientResources("the device has no memory window left")
        }
        Some(libc::ENODEV | libc::EIO) => RegisterError::DeviceRemoved,
        _ => RegisterError::Os { call: "ibv_alloc_mw", source: source.into() },
    })?;
    let key = window.key();
    Ok(Free { window, key })
}

impl Member for Window {
    /// Frees the windows of the device, which cannot go before the last of them has.
    fn device_removed(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        drop(state);
    }
}
