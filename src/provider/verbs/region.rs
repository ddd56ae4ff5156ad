//! Registered memory.

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::adapter::AdapterCore;
use crate::error::RegisterError;
use crate::memory::{Attachment, Owned, Shared};
use crate::provider::members::{Member, Membership};
use crate::sys::{AccessFlags, MemoryRegion, memlock_limit};
use crate::types::Access;

/// The registration of one allocation, which keeps it until the memory itself goes.
struct Attached {
    local_key: u32,
    remote_key: u32,
    /// `None` once it is deregistered.
    region: Mutex<Option<MemoryRegion>>,
    membership: OnceLock<Membership>,
}

impl Attached {
    fn is_valid(&self) -> bool {
        self.region.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Attachment for Attached {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn detach(&self) -> bool {
        let mut region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever the device says, it has been asked once; what it keeps is not asked again.
        region.take().is_none_or(MemoryRegion::deregister)
    }
}

impl Member for Attached {
    /// Some drivers cannot let the device go before all of its memory is deregistered.
    fn device_removed(&self) {
        self.detach();
    }
}

/// Memory under a key.
pub(crate) struct Registration {
    memory: Shared,
    attached: Arc<Attached>,
    address: u64,
    access: Access,
}

impl Registration {
    pub(crate) fn key(&self) -> u32 {
        self.attached.remote_key
    }

    /// The remote address of the first byte: its virtual address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn memory(&self) -> &Shared {
        &self.memory
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.attached.is_valid()
    }

    /// Ends the registration; work requests that still name it fail.
    pub(crate) fn deregister(&self) {
        self.attached.detach();
    }
}

/// From how many bytes on a registration takes long enough to be done off the runtime's threads.
const LARGE: usize = 1 << 20;

/// Puts memory under a key.
///
/// # Errors
/// See [`RegisterError`].
pub(crate) async fn register(
    adapter: &Arc<AdapterCore>,
    memory: Owned,
    access: Access,
) -> Result<Registration, RegisterError> {
    if memory.len() < LARGE {
        return adapter.register(memory, access);
    }
    let worker = adapter.clone();
    let made = adapter.runtime.spawn_blocking(move || worker.register(memory, access)).await;
    // It neither panics nor is aborted, unless the runtime has shut down.
    made.unwrap_or(Err(RegisterError::DeviceRemoved))
}

impl AdapterCore {
    /// Memory that work requests of this adapter can use, and no peer.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn allocate(&self, length: usize) -> Result<Owned, RegisterError> {
        let memory = Owned::zeroed(length).ok_or(RegisterError::InsufficientResources)?;
        memory.attach(|start, length| {
            let attached: Arc<dyn Attachment> = self.attach(start, length, AccessFlags::LOCAL_WRITE)?;
            Ok(attached)
        })
    }

    /// Puts memory under a key.
    ///
    /// # Errors
    /// See [`RegisterError`].
    fn register(&self, memory: Owned, access: Access) -> Result<Registration, RegisterError> {
        let mut made = None;
        let memory = memory.attach(|start, length| {
            let attached = self.attach(start, length, flags(access))?;
            made = Some((attached.clone(), start.as_ptr().expose_provenance() as u64));
            Ok(attached as Arc<dyn Attachment>)
        })?;
        let (attached, address) = made.ok_or(RegisterError::Empty)?;
        Ok(Registration { memory: memory.share(), attached, address, access })
    }

    fn attach(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: AccessFlags,
    ) -> Result<Arc<Attached>, RegisterError> {
        let opened = self.opened().ok_or(RegisterError::DeviceRemoved)?;
        // SAFETY: the range is one live allocation, which gets the registration as its attachment: it is not freed
        // before `detach` has ended the registration. Who reads and writes it is decided by `Owned` and `Shared`.
        let region = unsafe { MemoryRegion::register(&opened.domain, start.as_ptr(), length, access) };
        let region = region.map_err(|source| register_error(source, length))?;
        let (local_key, remote_key) = (region.local_key(), region.remote_key());
        let region = Mutex::new(Some(region));
        let attached = Arc::new(Attached { local_key, remote_key, region, membership: OnceLock::new() });
        let member: Weak<dyn Member> = Arc::<Attached>::downgrade(&attached);
        let _ = attached.membership.set(self.regions.join(member));
        // It may have gone between the look and the joining.
        if self.is_removed() {
            attached.device_removed();
        }
        Ok(attached)
    }
}

/// The rights of a region in the device's words.
fn flags(access: Access) -> AccessFlags {
    let mut flags = AccessFlags::empty();
    if access.contains(Access::LOCAL_WRITE) {
        flags |= AccessFlags::LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_READ) {
        flags |= AccessFlags::REMOTE_READ;
    }
    if access.contains(Access::REMOTE_WRITE) {
        flags |= AccessFlags::REMOTE_WRITE;
    }
    flags
}

fn register_error(source: io::Error, length: usize) -> RegisterError {
    match source.raw_os_error() {
        // Most often it is the limit and not the memory: a device cannot use what may be swapped out.
        Some(libc::ENOMEM | libc::EAGAIN) => match memlock_limit() {
            Some(limit) => RegisterError::MemoryLockLimit { length, limit },
            None => RegisterError::InsufficientResources,
        },
        Some(libc::ENODEV | libc::EIO) => RegisterError::DeviceRemoved,
        _ => RegisterError::Os { call: "ibv_reg_mr", source },
    }
}
