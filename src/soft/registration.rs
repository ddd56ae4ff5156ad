//! Registered memory, the parts of it that windows are bound to, and the guard under which bytes are moved
//! for a peer.
//!
//! A binding is posted, and so it has three states: *pending* from the call on, when its key is known
//! already; *live* once its turn in the queue has come; *dead* when it was invalidated, bound over, or its
//! connection has ended.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::inflight::Payload;
use crate::memory::{Shared, Slice};
use crate::sync::{RwLock, RwLockReadGuard};
use crate::types::Access;

/// Memory under a key. Remote offsets (TO) count from its first byte.
pub(crate) struct Registration {
    key: u32,
    access: Access,
    length: usize,
    /// The memory, until it is deregistered. Transfers of peers refer to it by offset: the registration is
    /// the only handle of the provider to it, so that a peer that has stopped keeps no memory. A transfer
    /// holds this for reading, so that `revoke` returns only when the last byte has been moved.
    memory: RwLock<Option<Slice>>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is left out: it gives access to the memory.
        f.debug_struct("Registration").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Registration {
    pub(super) fn new(key: u32, memory: Shared, access: Access) -> Arc<Self> {
        Arc::new(Self { key, access, length: memory.len(), memory: RwLock::new(Some(memory.whole())) })
    }

    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Returns the remote address of the first byte.
    #[expect(clippy::unused_self, reason = "other providers have their memory elsewhere")]
    pub(crate) fn address(&self) -> u64 {
        0
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns false once the memory was deregistered.
    pub(crate) fn is_valid(&self) -> bool {
        self.memory.read().is_some()
    }

    /// Returns whether these bytes lie within the memory.
    pub(super) fn contains(&self, part: &Range<usize>) -> bool {
        part.end <= self.length
    }

    /// Marks the memory as accessible to peers.
    pub(super) fn expose(&self) {
        if let Some(memory) = &*self.memory.read() {
            memory.expose();
        }
    }

    /// Ends the use of the memory. Returns when the last byte has been moved by this key.
    pub(super) fn revoke(&self) {
        let memory = self.memory.write().take();
        // Without the lock, as the memory may return to the program.
        drop(memory);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Pending,
    Live,
    Dead,
}

/// A part of a region under a key of its own, for the peer of one connection.
pub(crate) struct Binding {
    key: u32,
    registration: Arc<Registration>,
    range: Range<usize>,
    access: Access,
    /// The connection whose peer may use it.
    connection: u64,
    /// A transfer by this key holds the lock for reading, as with a registration.
    life: RwLock<Life>,
}

impl Binding {
    pub(super) fn new(
        key: u32,
        registration: Arc<Registration>,
        range: Range<usize>,
        access: Access,
        connection: u64,
    ) -> Arc<Self> {
        Arc::new(Self { key, registration, range, access, connection, life: RwLock::new(Life::Pending) })
    }

    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    pub(super) fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn connection(&self) -> u64 {
        self.connection
    }

    pub(super) fn is_live(&self) -> bool {
        self.live().is_some()
    }

    /// Returns a guard that keeps the binding live, or `None` if it is not.
    fn live(&self) -> Option<RwLockReadGuard<'_, Life>> {
        let life = self.life.read();
        (*life == Life::Live).then_some(life)
    }

    pub(super) fn is_dead(&self) -> bool {
        *self.life.read() == Life::Dead
    }

    /// Returns whether these bytes of the region lie within the binding.
    pub(super) fn contains(&self, part: &Range<usize>) -> bool {
        self.range.start <= part.start && part.end <= self.range.end && self.registration.contains(part)
    }

    pub(super) fn go_live(&self) {
        let mut life = self.life.write();
        // The binding may have been revoked before its turn came.
        if *life == Life::Pending {
            *life = Life::Live;
        }
    }

    /// Revokes the key. Returns when the last byte has been moved by it.
    pub(super) fn revoke(&self) {
        *self.life.write() = Life::Dead;
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is left out: it gives access to the memory.
        f.debug_struct("Binding").field("access", &self.access).finish_non_exhaustive()
    }
}

/// The access of a peer to memory: a registration, and the binding if the key is that of a window.
#[derive(Clone, Debug)]
pub(crate) struct RemoteAccess {
    registration: Arc<Registration>,
    binding: Option<Arc<Binding>>,
}

/// Proof that a key is valid, for as long as it is held, and the memory. Only ever held across a non-blocking
/// call.
pub(crate) struct AccessGuard<'a> {
    _binding: Option<RwLockReadGuard<'a, Life>>,
    registration: RwLockReadGuard<'a, Option<Slice>>,
}

impl AccessGuard<'_> {
    /// Returns the memory, from the offset 0 of its registration.
    pub(crate) fn memory(&self) -> Option<&Slice> {
        self.registration.as_ref()
    }

    /// Returns at most `length` bytes of the memory, from this offset on.
    pub(crate) fn part(&self, from: usize, length: usize) -> Payload {
        let part = self.memory().map(|memory| memory.part(from, length));
        part.filter(|part| part.len() > 0).into_iter().collect()
    }
}

impl RemoteAccess {
    pub(super) fn new(registration: Arc<Registration>, binding: Option<Arc<Binding>>) -> Self {
        Self { registration, binding }
    }

    /// Returns the proof that the key is valid, or `None` once it was revoked.
    pub(crate) fn guard(&self) -> Option<AccessGuard<'_>> {
        let binding = match &self.binding {
            Some(binding) => Some(binding.live()?),
            None => None,
        };
        let registration = self.registration.memory.read();
        registration.is_some().then_some(AccessGuard { _binding: binding, registration })
    }

    /// Returns whether both are the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let key = |access: &Self| access.binding.as_ref().map(Arc::as_ptr);
        Arc::ptr_eq(&self.registration, &other.registration) && key(self) == key(other)
    }
}
