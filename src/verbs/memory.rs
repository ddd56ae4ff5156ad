//! Memory of the verbs provider: registered regions, and memory windows.
//!
//! A window of the device is only ever bound once at a time: binding the user's window anew takes another
//! one, and the one before goes when the new binding has been carried out. So nothing is invalidated that is
//! known not to be bound, which brings `rxe` down. A device's window that is bound keeps `rxe` from
//! destroying the queue pair (for 50 s) and from deregistering the region; so windows go before their queue
//! pair, and hold the registration of their region.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::Handle;
use tracing::debug;

use super::context::AdapterContext;
use crate::error::RegisterError;
use crate::memory::{Attachment, Memory, Owned, Shared};
use crate::provider::registry::{Member, Registered};
use crate::sync::{Mutex, RwLock};
use crate::sys::{
    AccessFlags, MemoryRegion, MemoryWindow, Quirks, await_placements, memlock_limit, next_key,
};
use crate::types::Access;

/// The registration of one allocation with the device. It exists until the memory is freed.
struct Attached {
    /// The address at which the device finds the first byte.
    address: u64,
    length: usize,
    /// The local key of the registration of the moment, or of the last one.
    local_key: AtomicU32,
    /// Counts the registrations and their ends: odd while the device has the memory. Read by every post of a part of
    /// a region, so without the lock.
    turns: AtomicU32,
    /// Read by each binding of a window, of which many queue pairs may make one at a time.
    region: RwLock<Option<MemoryRegion>>,
    runtime: Handle,
    quirks: Quirks,
    _registered: Registered,
}

impl Attached {
    fn turn(&self) -> u32 {
        self.turns.load(Ordering::Acquire)
    }

    /// Returns whether the device has the memory, by whichever registration.
    fn is_registered(&self) -> bool {
        !self.turn().is_multiple_of(2)
    }

    /// Ends the device's access, if it has it.
    ///
    /// # Errors
    /// Those of ibv_dereg_mr(3): the device has the memory as before.
    fn end(&self) -> io::Result<()> {
        // Held to the end: a thread that frees the memory waits here.
        let mut region = self.region.write();
        let Some(had) = region.take() else { return Ok(()) };
        let waits = self.quirks.places_late && had.peers_write;
        match had.deregister() {
            Ok(()) => {
                if waits && let Err(error) = await_placements() {
                    debug!(%error, "what is being placed is not waited for");
                }
                self.turns.fetch_add(1, Ordering::Release);
                Ok(())
            }
            Err((has, error)) => {
                *region = Some(has);
                Err(error)
            }
        }
    }

    /// Installs `region` as the device's registration of the memory. Returns the remote key and the turn of the
    /// registration.
    ///
    /// # Errors
    /// `Busy` when it has another one.
    fn begin(&self, region: MemoryRegion, adapter: &AdapterContext) -> Result<(u32, u32), RegisterError> {
        let key = region.remote_key;
        let turn = {
            let mut now = self.region.write();
            if now.is_some() {
                return Err(RegisterError::Busy);
            }
            self.local_key.store(region.local_key, Ordering::Relaxed);
            *now = Some(region);
            self.turns.fetch_add(1, Ordering::Release).wrapping_add(1)
        };
        // The device may have been removed before the region was installed. A later removal finds the region.
        if adapter.is_removed() {
            self.device_removed();
        }
        Ok((key, turn))
    }
}

impl Attachment for Attached {
    fn local_key(&self) -> u32 {
        self.local_key.load(Ordering::Relaxed)
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn detach(&self) -> bool {
        self.end().is_ok()
    }

    fn retire(&self, memory: Memory) {
        if self.length >= LARGE && self.is_registered() {
            // A runtime that has shut down drops it at once.
            self.runtime.spawn_blocking(move || drop(memory));
        } else {
            drop(memory);
        }
    }
}

impl Member for Attached {
    /// Ends the device's access: some drivers cannot let the device go before all of its memory is deregistered.
    fn device_removed(&self) {
        self.detach();
    }
}

/// Memory under a key.
pub(crate) struct Registration {
    memory: Shared,
    attached: Arc<Attached>,
    key: u32,
    /// The turn of this registration: a later one of the same memory does not make this one valid again.
    turn: u32,
    access: Access,
}

impl Registration {
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Returns the remote address of the first byte: its virtual address, if it has one.
    pub(crate) fn address(&self) -> u64 {
        self.attached.address
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn memory(&self) -> &Shared {
        &self.memory
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.attached.turn() == self.turn
    }

    /// Does something with the device's region, unless it was deregistered or is being deregistered, which may take long.
    pub(crate) fn with_region<R>(&self, use_it: impl FnOnce(&MemoryRegion) -> R) -> Option<R> {
        let region = self.attached.region.try_read()?;
        region.as_ref().map(use_it)
    }

    /// Ends the registration; work requests that still name it fail.
    ///
    /// # Errors
    /// `Busy` when a window is bound to it: it is as before.
    pub(crate) fn deregister(&self) -> Result<(), RegisterError> {
        self.attached.end().map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => RegisterError::Busy,
            Some(libc::EINVAL) if self.attached.quirks.misnames_busy_regions => RegisterError::Busy,
            Some(libc::ENODEV | libc::EIO) => RegisterError::DeviceRemoved,
            _ => RegisterError::Os { call: "ibv_dereg_mr", source: source.into() },
        })
    }
}

/// The length from which on freeing registered memory takes long enough to be done off the runtime's threads.
const LARGE: usize = 1 << 20;

impl AdapterContext {
    /// Returns the runtime on whose blocking threads memory is registered and deregistered: that is a command to the firmware
    /// of a card, whatever the length.
    pub(crate) fn blocking(&self) -> Option<&Handle> {
        Some(&self.runtime)
    }

    /// Allocates memory that work requests of this adapter can use, and no peer.
    ///
    /// The device may write to it in any order: the bytes are not read before the request has completed, for which all
    /// of them are there (ibv_reg_mr(3)), and no other request writes to them before.
    pub(crate) fn allocate(&self, length: usize) -> Result<Owned, RegisterError> {
        self.attach_private(Owned::zeroed(length).ok_or(RegisterError::OutOfMemory { length })?)
    }

    /// Lets work requests of this adapter use memory, and no peer.
    pub(crate) fn attach_private(&self, memory: Owned) -> Result<Owned, RegisterError> {
        let mut access = AccessFlags::LOCAL_WRITE;
        access.set(AccessFlags::RELAXED_ORDERING, !self.quirks().copies_in_order);
        memory.attach(|start, length| {
            let (attached, ..) = self.attach(start, length, access)?;
            Ok(attached as Arc<dyn Attachment>)
        })
    }

    /// Puts memory under a key.
    pub(crate) fn register(&self, memory: Owned, access: Access) -> Result<Registration, RegisterError> {
        let mut made = None;
        let memory = memory.attach(|start, length| {
            let (attached, key, turn) = self.attach(start, length, self.flags(access))?;
            made = Some((attached.clone(), key, turn));
            Ok(attached as Arc<dyn Attachment>)
        })?;
        let (attached, key, turn) = made.ok_or(RegisterError::Empty)?;
        Ok(Registration { memory: memory.share(), attached, key, turn, access })
    }

    /// Puts memory under a new key whose old one was taken back.
    ///
    /// # Errors
    /// `Busy` when it was not; see [`RegisterError`].
    pub(crate) fn register_again(
        &self,
        old: &Registration,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let Registration { memory, attached, .. } = old;
        if attached.is_registered() {
            return Err(RegisterError::Busy);
        }
        let start = NonNull::new(ptr::with_exposed_provenance_mut(attached.address as usize));
        let region = self.reach(start.ok_or(RegisterError::Empty)?, attached.length, self.flags(access))?;
        let (key, turn) = attached.begin(region, self)?;
        Ok(Registration { memory: memory.clone(), attached: attached.clone(), key, turn, access })
    }

    /// Puts memory of another device under a key.
    ///
    /// # Errors
    /// `NotSupported` when the library, the kernel or the driver does not know how; see [`RegisterError`].
    pub(crate) fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        (offset, length, address): (u64, usize, u64),
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let opened = self.opened().ok_or(RegisterError::DeviceRemoved)?;
        let part = (offset, length, address);
        let region = MemoryRegion::register_dmabuf(&opened.domain, dmabuf, part, self.flags(access));
        let region = region.map_err(|source| register_error("ibv_reg_dmabuf_mr", source, length))?;
        let (attached, key, turn) = self.enroll(region, address, length)?;
        let memory = Shared::device_only(length, attached.clone());
        Ok(Registration { memory, attached, key, turn, access })
    }

    /// Registers memory for the first time; also returns the key for peers and the turn.
    fn attach(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: AccessFlags,
    ) -> Result<(Arc<Attached>, u32, u32), RegisterError> {
        let region = self.reach(start, length, access)?;
        self.enroll(region, start.as_ptr().expose_provenance() as u64, length)
    }

    /// Registers memory with the device. The caller makes the region a part of the attachment of the allocation, which
    /// is this range.
    fn reach(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterError> {
        let opened = self.opened().ok_or(RegisterError::DeviceRemoved)?;
        // SAFETY: the range is one live allocation, whose attachment the registration becomes a part of: the
        // memory is not freed before `detach` has ended it. The handles of the memory decide who reads and
        // writes it.
        let region = unsafe { MemoryRegion::register(&opened.domain, start.as_ptr(), length, access) };
        region.map_err(|source| register_error("ibv_reg_mr", source, length))
    }

    /// Adds memory with its first registration to those that end with the adapter. Also returns the key for peers and
    /// the turn.
    fn enroll(
        &self,
        region: MemoryRegion,
        address: u64,
        length: usize,
    ) -> Result<(Arc<Attached>, u32, u32), RegisterError> {
        let attached = self.regions.create(|_, registered| Attached {
            address,
            length,
            local_key: AtomicU32::new(region.local_key),
            turns: AtomicU32::new(0),
            region: RwLock::new(None),
            runtime: self.runtime.clone(),
            quirks: *self.quirks(),
            _registered: registered,
        });
        let (key, turn) = attached.begin(region, self)?;
        Ok((attached, key, turn))
    }

    /// Translates the rights of a region into those of the device. If the device has windows, one may be bound to any
    /// region.
    fn flags(&self, access: Access) -> AccessFlags {
        let mut flags = flags(access, self.info().read_sink_required);
        flags.set(AccessFlags::MW_BIND, self.info().memory_windows);
        let relaxed = access.contains(Access::RELAXED_ORDERING) && !self.quirks().copies_in_order;
        flags.set(AccessFlags::RELAXED_ORDERING, relaxed);
        if self.info().atomics && access.contains(Access::REMOTE_ATOMIC) {
            // A device grants it only together with the local right.
            flags |= AccessFlags::REMOTE_ATOMIC | AccessFlags::LOCAL_WRITE;
        }
        flags
    }
}

/// Translates the rights of a region, for a device that writes the answers to reads as a peer writes, or does not.
fn flags(access: Access, requires_read_sink: bool) -> AccessFlags {
    let mut flags = AccessFlags::empty();
    flags.set(AccessFlags::LOCAL_WRITE, access.contains(Access::LOCAL_WRITE));
    flags.set(AccessFlags::REMOTE_READ, access.contains(Access::REMOTE_READ));
    flags.set(AccessFlags::REMOTE_WRITE, access.contains(Access::REMOTE_WRITE));
    if access.contains(Access::READ_SINK) && requires_read_sink {
        flags |= AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    }
    flags
}

fn register_error(call: &'static str, source: io::Error, length: usize) -> RegisterError {
    match source.raw_os_error() {
        Some(libc::EAGAIN) => RegisterError::InsufficientResources(
            "a limit is reached, such as `rdma.max` of the control group",
        ),
        // Most often it is the limit and not the memory: a device cannot use what may be swapped out.
        Some(libc::ENOMEM) => match memlock_limit() {
            Some(limit) => RegisterError::MemoryLockLimit { length, limit },
            None => RegisterError::OutOfMemory { length },
        },
        Some(libc::ENODEV | libc::EIO) => RegisterError::DeviceRemoved,
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => {
            RegisterError::NotSupported("this kind of memory on this device")
        }
        _ => RegisterError::Os { call, source: source.into() },
    }
}

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
    pub(crate) window: MemoryWindow,
    pub(crate) key: u32,
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
        let bound = Bound {
            window: free.window,
            key: next_key(free.key),
            address: registration.address() + range.start as u64,
            length: range.len(),
            owner,
            _registration: registration.clone(),
        };
        let before = self.state.lock().bound.replace(bound);
        before.filter(|before| before.owner == owner)
    }

    /// Takes the binding, whose invalidation is about to be posted to this queue pair, or which this queue pair leaves before it
    /// is destroyed.
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
    let key = window.key;
    Ok(Free { window, key })
}

impl Member for Window {
    /// Frees the windows of the device, which cannot go before the last of them has.
    fn device_removed(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        drop(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // MR-06: only where it must be is the sink of a read reachable for peers.
    #[test]
    fn read_sinks_are_remotely_writable_if_required() {
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        assert_eq!(flags(Access::READ_SINK, true), writable);
        assert_eq!(flags(Access::READ_SINK | Access::REMOTE_READ, true), writable | AccessFlags::REMOTE_READ);
        assert_eq!(flags(Access::LOCAL_WRITE | Access::READ_SINK, false), AccessFlags::LOCAL_WRITE);
        assert_eq!(flags(Access::LOCAL_WRITE, true), AccessFlags::LOCAL_WRITE);
        assert_eq!(flags(Access::READ_SINK, false), AccessFlags::empty());
    }
}
