//! Registered memory of the soft provider: regions, windows, and the keys that give peers access to them.
//!
//! A window is a part of a region under a key of its own, for the peer of one connection. A binding is
//! posted, and so it has three states: *pending* from the call on, when its key is known already; *live* once
//! its turn in the queue has come; *dead* when it was invalidated, bound over, or its connection has ended.
//! Bytes are moved for a peer under a guard, so that none moves after the deregistration.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{PostErrorKind, RegisterError};
use crate::inflight::Payload;
use crate::memory::{Shared, Slice};
use crate::net::Host;
use crate::net::host::Reserve;
use crate::provider::work::BindTarget;
use crate::sync::{KeyHasher, Mutex, RwLock, RwLockReadGuard};
use crate::types::Access;
use crate::wire::rdmap::Terminate;

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

/// The access of a peer to memory: a registration, and the binding if the key is that of a window.
#[derive(Clone)]
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

/// Returns the error that ends a connection whose peer reads memory after its deregistration.
pub(crate) fn deregistered() -> io::Error {
    io::Error::other(Deregistered)
}

/// Returns whether this is the error of [`deregistered`].
pub(crate) fn is_deregistered(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.is::<Deregistered>())
}

#[derive(Debug, thiserror::Error)]
#[error("the memory was deregistered while a peer read it")]
struct Deregistered;

/// The text of an error: every random number that was tried is a key already, or the system has no random
/// numbers.
const NO_KEY: &str = "no free key was found";
const UNALIGNED: &str = "atomics in memory that is not aligned to 8 bytes, with the soft provider";

/// The access that a peer's key, offset and length give, and the part of its memory.
pub(crate) struct Grant {
    pub(crate) access: RemoteAccess,
    pub(crate) part: Range<usize>,
}

/// The use that a peer makes of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Write,
    Read,
    Atomic,
}

/// The object that has a key.
#[derive(Clone)]
enum Named {
    Region(Arc<Registration>),
    Window(Arc<Binding>),
}

/// The keys in the table are random numbers of this host, so no peer can make them collide.
type ByKey<T> = HashMap<u32, T, BuildHasherDefault<KeyHasher>>;

#[derive(Default)]
struct Keys {
    /// The source of random numbers.
    host: Host,
    reserve: Reserve,
    names: ByKey<Named>,
    /// The number of windows that are bound to each region that has any, by the key of the region.
    bound: ByKey<usize>,
}

impl Keys {
    /// Returns a free random key.
    fn fresh(&mut self) -> Option<u32> {
        let Self { host, reserve, names, .. } = self;
        // With a thousand million keys in use half of the tries still succeed.
        let tries = std::iter::repeat_with(|| host.random(reserve)).take(64);
        // Zero names nothing on the wire: the empty Write of the handshake carries it.
        tries.flatten().find(|key| *key != 0 && !names.contains_key(key))
    }

    /// Returns whether the key is still that of this registration: later it may belong to another.
    fn has(&self, registration: &Registration) -> bool {
        matches!(self.names.get(&registration.key()),
            Some(Named::Region(owner)) if std::ptr::eq(Arc::as_ptr(owner), registration))
    }

    fn remove(&mut self, registration: &Registration) -> Option<Named> {
        if self.has(registration) { self.names.remove(&registration.key()) } else { None }
    }
}

/// The keys of one protection domain, which is one opened adapter: a key of another domain is not found here.
#[derive(Default)]
pub(crate) struct KeyTable {
    keys: RwLock<Keys>,
}

impl KeyTable {
    /// Creates a table without keys. Its keys are random numbers of this host.
    pub(crate) fn new(host: Host) -> Self {
        Self { keys: RwLock::new(Keys { host, ..Keys::default() }) }
    }

    /// Registers memory under a fresh random key.
    ///
    /// # Errors
    /// `InsufficientResources` when the system has no randomness, or no free key is found. `NotSupported` if
    /// the access includes atomics and the memory is not aligned for them.
    pub(crate) fn register(
        &self,
        memory: Shared,
        access: Access,
    ) -> Result<Arc<Registration>, RegisterError> {
        if access.contains(Access::REMOTE_ATOMIC) && !memory.has_aligned_words() {
            // Peers address the words of atomics by their offset.
            return Err(RegisterError::NotSupported(UNALIGNED));
        }
        let mut keys = self.keys.write();
        let key = keys.fresh().ok_or(RegisterError::InsufficientResources(NO_KEY))?;
        let registration = Registration::new(key, memory, access);
        keys.names.insert(key, Named::Region(registration.clone()));
        Ok(registration)
    }

    /// Revokes the key. When this returns, no byte of the memory is being moved on a peer's behalf, and none
    /// will be. A second call changes nothing.
    ///
    /// # Errors
    /// `Busy` while a window is bound to the region (`MR-04`): nothing has changed then.
    pub(crate) fn deregister(&self, registration: &Registration) -> Result<(), RegisterError> {
        let removed = {
            let mut keys = self.keys.write();
            if keys.has(registration) && keys.bound.contains_key(&registration.key()) {
                return Err(RegisterError::Busy);
            }
            keys.remove(registration)
        };
        registration.revoke();
        drop(removed);
        Ok(())
    }

    /// Deregisters a region whose last handle was dropped. Windows that are bound to it give no access from
    /// now on.
    pub(crate) fn release(&self, registration: &Registration) {
        let removed = self.keys.write().remove(registration);
        registration.revoke();
        drop(removed);
    }

    /// Registers a part of a region under a fresh random key, which is valid once the binding goes live.
    ///
    /// # Errors
    /// `ForeignMemory` if the region is no longer registered; `InsufficientResources` without a free key.
    pub(super) fn bind(
        &self,
        registration: &Arc<Registration>,
        range: Range<usize>,
        access: Access,
        connection: u64,
    ) -> Result<Arc<Binding>, PostErrorKind> {
        let mut keys = self.keys.write();
        if !keys.has(registration) {
            return Err(PostErrorKind::ForeignMemory);
        }
        let key = keys.fresh().ok_or(PostErrorKind::InsufficientResources(NO_KEY))?;
        let binding = Binding::new(key, registration.clone(), range, access, connection);
        keys.names.insert(key, Named::Window(binding.clone()));
        *keys.bound.entry(registration.key()).or_default() += 1;
        Ok(binding)
    }

    /// Revokes the key of a window. When this returns, no byte is being moved by it, and none will be.
    pub(super) fn unbind(&self, binding: &Binding) {
        let removed = {
            let mut keys = self.keys.write();
            let mine = matches!(keys.names.get(&binding.key()),
                Some(Named::Window(owner)) if std::ptr::eq(Arc::as_ptr(owner), binding));
            if mine {
                let region = binding.registration.key;
                if let Some(count) = keys.bound.get_mut(&region) {
                    *count -= 1;
                    if *count == 0 {
                        keys.bound.remove(&region);
                    }
                }
                keys.names.remove(&binding.key())
            } else {
                None
            }
        };
        binding.revoke();
        drop(removed);
    }

    /// Revokes the keys of all windows that the peer of this connection may use.
    pub(super) fn unbind_all(&self, connection: u64) {
        let mine: Vec<_> = {
            let keys = self.keys.read();
            let windows = keys.names.values().filter_map(|named| match named {
                Named::Window(binding) if binding.connection == connection => Some(binding.clone()),
                _ => None,
            });
            windows.collect()
        };
        mine.iter().for_each(|binding| self.unbind(binding));
    }

    /// Returns the window that the peer of this connection may invalidate by this key: one that it may use
    /// (RFC 5040 section 5.3, `NdkSendAndInvalidate`). A peer may never invalidate a region.
    pub(crate) fn window(&self, key: u32, connection: u64) -> Option<Arc<Binding>> {
        match self.keys.read().names.get(&key) {
            Some(Named::Window(binding)) if binding.connection == connection && binding.is_live() => {
                Some(binding.clone())
            }
            _ => None,
        }
    }

    /// Checks key, rights and range before a byte is placed or read on behalf of the peer of this connection
    /// (RFC 5041 section 5.1, RFC 5040 section 7).
    ///
    /// # Errors
    /// The Terminate for the peer's mistake.
    pub(crate) fn resolve(
        &self,
        (key, to): (u32, u64),
        length: usize,
        intent: Intent,
        connection: u64,
    ) -> Result<Grant, Terminate> {
        let (unknown, strange) = match intent {
            Intent::Write => (Terminate::INVALID_STAG_TAGGED, Terminate::NOT_ASSOCIATED_TAGGED),
            Intent::Read | Intent::Atomic => {
                (Terminate::INVALID_STAG_REMOTE, Terminate::NOT_ASSOCIATED_REMOTE)
            }
        };
        let right = match intent {
            Intent::Write => Access::REMOTE_WRITE,
            Intent::Read => Access::REMOTE_READ,
            Intent::Atomic => Access::REMOTE_ATOMIC,
        };
        let named = self.keys.read().names.get(&key).cloned();
        let (registration, binding, access) = match named {
            Some(Named::Region(registration)) => {
                let access = registration.access();
                (registration, None, access)
            }
            // The key of a window is unknown before the binding goes live, and after its region was
            // deregistered.
            Some(Named::Window(binding)) if !binding.is_live() || !binding.registration.is_valid() => {
                return Err(unknown);
            }
            // A window serves the peer of one connection only (`MW-04`).
            Some(Named::Window(binding)) if binding.connection != connection => return Err(strange),
            Some(Named::Window(binding)) => {
                let access = binding.access;
                (binding.registration.clone(), Some(binding), access)
            }
            None => return Err(unknown),
        };
        if !access.contains(right) {
            return Err(Terminate::ACCESS_REMOTE);
        }
        let part = part(to, length).filter(|part| match &binding {
            Some(binding) => binding.contains(part),
            None => registration.contains(part),
        });
        let part = part.ok_or_else(|| beyond(to, length, intent))?;
        Ok(Grant { part, access: RemoteAccess::new(registration, binding) })
    }
}

/// Returns the bytes from this offset on, if their ends are representable.
fn part(to: u64, length: usize) -> Option<Range<usize>> {
    let start = usize::try_from(to).ok()?;
    Some(start..start.checked_add(length)?)
}

/// Returns the Terminate for a peer that addresses bytes beyond the largest offset, or beyond the bounds of
/// its key.
fn beyond(to: u64, length: usize, intent: Intent) -> Terminate {
    // The last byte has an offset, too.
    let wraps = length > 0 && to.checked_add(length as u64 - 1).is_none();
    match (intent, wraps) {
        (Intent::Write, false) => Terminate::BOUNDS_TAGGED,
        (Intent::Write, true) => Terminate::TO_WRAP_TAGGED,
        (Intent::Read | Intent::Atomic, false) => Terminate::BOUNDS_REMOTE,
        (Intent::Read | Intent::Atomic, true) => Terminate::TO_WRAP_REMOTE,
    }
}

/// A memory window.
pub(crate) struct Window {
    keys: Arc<KeyTable>,
    /// The latest binding that was posted, until its invalidation is posted.
    latest: Mutex<Option<Arc<Binding>>>,
}

impl Window {
    /// Creates a window without a binding.
    ///
    /// # Errors
    /// None: only a binding needs a key.
    #[expect(clippy::unnecessary_wraps, reason = "other providers have to ask a device")]
    pub(crate) fn new(keys: &Arc<KeyTable>) -> Result<Arc<Self>, RegisterError> {
        Ok(Arc::new(Self { keys: keys.clone(), latest: Mutex::default() }))
    }

    /// Returns the binding of the last call that binds or invalidates the window, unless it was revoked
    /// since: key, remote address, length.
    pub(crate) fn bound(&self) -> Option<(u32, u64, usize)> {
        let latest = self.latest.lock().clone()?;
        // The peer may have taken it back, or the connection has ended.
        (!latest.is_dead()).then(|| (latest.key(), latest.range.start as u64, latest.range.len()))
    }

    /// Gives it a new key, for the peer of the connection with this number.
    ///
    /// # Errors
    /// `ForeignMemory` when the region is not registered any more; `InsufficientResources` without a free key.
    pub(crate) fn bind(
        self: &Arc<Self>,
        target: BindTarget<&Arc<Registration>>,
        connection: u64,
    ) -> Result<WindowOp, PostErrorKind> {
        let BindTarget { registration, range, access } = target;
        let mut latest = self.latest.lock();
        let new = self.keys.bind(registration, range, access, connection)?;
        let old = latest.replace(new.clone());
        Ok(WindowOp { window: self.clone(), old, new: Some(new) })
    }

    /// Takes its key back.
    pub(crate) fn unbind(self: &Arc<Self>) -> WindowOp {
        WindowOp { window: self.clone(), old: self.latest.lock().take(), new: None }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(latest) = self.latest.get_mut().take() {
            self.keys.unbind(&latest);
        }
    }
}

/// The change that a posted request makes to a window when its turn comes.
pub(crate) struct WindowOp {
    /// It lasts until then, whoever drops it.
    window: Arc<Window>,
    old: Option<Arc<Binding>>,
    new: Option<Arc<Binding>>,
}

impl WindowOp {
    /// Returns whether it binds the window.
    pub(crate) fn binds(&self) -> bool {
        self.new.is_some()
    }

    /// Applies the change, when the turn of the request has come.
    pub(crate) fn commit(&self) {
        if let Some(old) = &self.old {
            self.window.keys.unbind(old);
        }
        if let Some(new) = &self.new {
            new.go_live();
        }
    }

    /// Revokes both bindings of a request whose turn will not come: nothing is bound from now on.
    pub(crate) fn rollback(&self) {
        self.old.iter().chain(&self.new).for_each(|binding| self.window.keys.unbind(binding));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;
    use crate::status::Status;

    // A second deregistration changes nothing, even when the key was reused in between (MR-01).
    #[test]
    fn second_deregistration_keeps_reused_key() {
        let table = KeyTable::default();
        let register = || {
            let memory = Owned::zeroed(8).expect("memory").share();
            table.register(memory, Access::REMOTE_READ).expect("registered")
        };
        let reaches = |key| table.resolve((key, 0), 1, Intent::Read, 1).is_ok();
        let first = register();
        table.deregister(&first).expect("nothing is bound to it");
        let memory = Owned::zeroed(8).expect("memory").share();
        let second = Registration::new(first.key(), memory, Access::REMOTE_READ);
        table.keys.write().names.insert(first.key(), Named::Region(second.clone()));
        table.deregister(&first).expect("it is not registered");
        assert!(reaches(second.key()) && second.is_valid());
        table.deregister(&second).expect("nothing is bound to it");
        assert!(!reaches(second.key()) && !second.is_valid());
    }

    // A region with a window stays registered (MR-04), and only the peer of the window's connection may use
    // it (MW-04).
    #[test]
    fn window_pins_region_and_serves_one_connection() {
        let table = KeyTable::default();
        let memory = Owned::zeroed(8).expect("memory").share();
        let region = table.register(memory, Access::REMOTE_READ).expect("registered");
        let window = table.bind(&region, 2..6, Access::REMOTE_READ, 7).expect("bound");
        let reach = |to, length, connection| {
            let read = table.resolve((window.key(), to), length, Intent::Read, connection);
            read.map(|grant| grant.access.guard().is_some())
        };
        assert_eq!(reach(2, 4, 7), Err(Terminate::INVALID_STAG_REMOTE), "its turn has not come");
        assert!(table.window(window.key(), 7).is_none());
        assert_eq!(table.deregister(&region).err().map(|error| error.status()), Some(Status::DEVICE_BUSY));
        window.go_live();
        assert_eq!(reach(2, 4, 7), Ok(true));
        assert_eq!(reach(2, 4, 8), Err(Terminate::NOT_ASSOCIATED_REMOTE));
        assert_eq!(
            (reach(1, 4, 7), reach(3, 4, 7)),
            (Err(Terminate::BOUNDS_REMOTE), Err(Terminate::BOUNDS_REMOTE))
        );
        assert!(table.window(window.key(), 7).is_some() && table.window(window.key(), 8).is_none());
        assert!(table.window(region.key(), 7).is_none(), "a region is not the peer's to take");
        table.unbind_all(8);
        assert_eq!(reach(2, 4, 7), Ok(true));
        table.unbind_all(7);
        assert_eq!(reach(2, 4, 7), Err(Terminate::INVALID_STAG_REMOTE));
        table.unbind(&window);
        table.deregister(&region).expect("nothing is bound to it");
        assert!(table.bind(&region, 2..6, Access::REMOTE_READ, 7).is_err(), "it is not registered any more");
    }
}
