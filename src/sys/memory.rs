//! Protection domains, memory that devices may reach, and memory windows of type 2: keys for a part of a region that a request
//! binds and another one invalidates.

use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use bitflags::bitflags;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::call::{self, Object};
use super::device::Context;
use super::ffi::{self, number};

/// A protection domain.
pub(crate) struct ProtectionDomain {
    pub(super) raw: Object<ffi::ibv_pd>,
    _context: Arc<Context>,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open, and the domain keeps it so.
        let raw = call::pointer(libc::ENOMEM, || unsafe { ffi::ibv_alloc_pd(context.raw.as_ptr()) })?;
        Ok(Arc::new(Self { raw, _context: context.clone() }))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every object of the domain holds an `Arc` of it, so none is left; drop runs once.
        if let Err(error) = call::number(|| unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) }) {
            tracing::warn!(%error, "a protection domain could not be destroyed and is leaked");
        }
    }
}

bitflags! {
    /// The accesses that registered memory, or a queue pair, permits. Reading by the local device is always
    /// permitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct AccessFlags: u32 {
        const LOCAL_WRITE = number::IBV_ACCESS_LOCAL_WRITE;
        const REMOTE_WRITE = number::IBV_ACCESS_REMOTE_WRITE;
        const REMOTE_READ = number::IBV_ACCESS_REMOTE_READ;
        const REMOTE_ATOMIC = number::IBV_ACCESS_REMOTE_ATOMIC;
        /// Whether windows may be bound to it.
        const MW_BIND = number::IBV_ACCESS_MW_BIND;
        /// Whether the device may order its accesses as it likes. It is optional: kernels that do not know it ignore it.
        const RELAXED_ORDERING = number::IBV_ACCESS_RELAXED_ORDERING;
    }
}

impl AccessFlags {
    /// Those that the memory of another device may have: the kernel refuses a registration of it with any other, such as
    /// [`MW_BIND`](Self::MW_BIND) (ibv_reg_dmabuf_mr(3)).
    const OF_DMABUF: Self = Self::LOCAL_WRITE
        .union(Self::REMOTE_WRITE)
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::RELAXED_ORDERING);
}

/// Registered memory. The region does not own the memory itself.
pub(crate) struct MemoryRegion {
    pub(super) raw: Object<ffi::ibv_mr>,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
    /// Peers can write to the memory.
    pub(crate) peers_write: bool,
    domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// Lets the device reach memory.
    ///
    /// # Errors
    /// `ENOMEM` if there is not enough memory, or less may be locked than this takes (see [`memlock_limit`]).
    ///
    /// # Safety
    /// The range is one live allocation that is not freed before [`deregister`](Self::deregister) has succeeded. As
    /// long as requests and peers may write to it, no reference to its bytes is made.
    pub(crate) unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> io::Result<Self> {
        let address = start.expose_provenance() as u64;
        // C calls this by the macro `ibv_reg_mr`. Before rdma-core 32, the function of that name hands optional flags to kernels
        // that do not know them.
        let raw = call::pointer(libc::ENOMEM, || {
            // SAFETY: the domain is live, and the region keeps it so. The range is as the caller promises.
            unsafe {
                ffi::ibv_reg_mr_iova2(domain.raw.as_ptr(), start.cast(), length, address, access.bits())
            }
        })?;
        // SAFETY: the library has just made the region for this call.
        Ok(unsafe { Self::of(raw, domain, access) })
    }

    /// Lets the device reach memory of another device: a part of what the descriptor of a dma-buf stands for, from
    /// `offset` on. Requests and peers find its first byte at `address`. No window can be bound to it.
    ///
    /// The address is any number, and none of this process. So the memory is not for requests whose bytes the library copies: inline
    /// ones, and receives unless the device [receives in place](super::Quirks::receives_in_place).
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the library, the kernel or the driver does not know how.
    pub(crate) fn register_dmabuf(
        domain: &Arc<ProtectionDomain>,
        dmabuf: BorrowedFd<'_>,
        (offset, length, address): (u64, usize, u64),
        access: AccessFlags,
    ) -> io::Result<Self> {
        let unknown = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let register = ffi::reg_dmabuf_mr().ok_or_else(unknown)?;
        let (flags, fd) = ((access & AccessFlags::OF_DMABUF).bits() as c_int, dmabuf.as_raw_fd());
        let raw = call::pointer(libc::ENOMEM, || {
            // SAFETY: the domain is live, and the region keeps it so. The descriptor is open. The call makes nothing of
            // this process reachable: the memory is that of the descriptor, which the kernel keeps for as long as the
            // region is there, and the address only names it. Callers of `post_send` and `post_receive` of a queue pair
            // answer for requests for which the library would use the address itself.
            unsafe { register(domain.raw.as_ptr(), offset, length, address, fd, flags) }
        })?;
        // SAFETY: as in `register`.
        Ok(unsafe { Self::of(raw, domain, access) })
    }

    /// Takes ownership of a region of the library.
    ///
    /// # Safety
    /// A live region of the domain, which has no other owner.
    unsafe fn of(raw: Object<ffi::ibv_mr>, domain: &Arc<ProtectionDomain>, access: AccessFlags) -> Self {
        // SAFETY: the region is live, and the fields are never written again.
        let region = unsafe { &*raw.as_ptr() };
        let peers_write = access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC);
        Self { raw, local_key: region.lkey, remote_key: region.rkey, peers_write, domain: domain.clone() }
    }

    /// Takes the memory away from the device: then it may be freed.
    ///
    /// # Errors
    /// The region, which is as it was, and why: a window is bound to it, for example. Dropping it then tries once more
    /// and leaks it. A removed device is such a case, as its driver answers no more: whether it still writes is
    /// unknown.
    pub(crate) fn deregister(self) -> Result<(), (Self, io::Error)> {
        let region = ManuallyDrop::new(self);
        match region.destroy() {
            Ok(()) => {
                // SAFETY: the field is taken this once, since `region` is never dropped or used again.
                drop(unsafe { std::ptr::read(&raw const region.domain) });
                Ok(())
            }
            Err(error) => Err((ManuallyDrop::into_inner(region), error)),
        }
    }

    /// Deregisters the region. Is not to be called again once it has succeeded.
    fn destroy(&self) -> io::Result<()> {
        // SAFETY: the region is live, has no other owner, and is not destroyed again.
        call::number(|| unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::warn!(%error, "memory could not be deregistered and is leaked");
        }
    }
}

/// `MEMBARRIER_CMD_GLOBAL` of <linux/membarrier.h>.
const MEMBARRIER_CMD_GLOBAL: libc::c_long = 1;

/// Waits until the kernel has finished whatever its network code was doing on any processor, for a driver that places what arrives in
/// the middle of that (membarrier(2), which waits for a grace period of RCU: 10 to 30 ms).
///
/// # Errors
/// Those of membarrier(2): the kernel does not have it, or does not allow it.
pub(crate) fn await_placements() -> io::Result<()> {
    // SAFETY: a call with numbers alone.
    let outcome = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0_i64, 0_i64) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the number of bytes of memory that this process may lock, which registering does; `None` if there
/// is no limit.
pub(crate) fn memlock_limit() -> Option<u64> {
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (limit != RLIM_INFINITY).then_some(limit)
}

/// A memory window. It is bound to a region, and made of use to the peer of one queue pair, by a request of that queue
/// pair; see [`Binding`](super::Binding).
///
/// As long as it is bound the region cannot be deregistered, and with some drivers the queue pair that bound it cannot
/// be destroyed without a long wait. Dropping it unbinds it.
pub(crate) struct MemoryWindow {
    pub(super) raw: Object<ffi::ibv_mw>,
    /// The key that the window was created with, which gives no access. Each binding has another: see [`next_key`].
    pub(crate) key: u32,
    _domain: Arc<ProtectionDomain>,
}

impl MemoryWindow {
    /// Creates a window that is not bound.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver knows no such windows; `ENOMEM` if the device has no more.
    pub(crate) fn new(domain: &Arc<ProtectionDomain>) -> io::Result<Self> {
        // SAFETY: the domain is live, and the window keeps it so.
        let raw = call::pointer(libc::ENOMEM, || unsafe {
            ffi::alloc_window(domain.raw.as_ptr(), number::IBV_MW_TYPE_2)
        })?;
        // SAFETY: the window is new and nothing is bound to it yet, so nothing writes to the field.
        let key = unsafe { (*raw.as_ptr()).rkey };
        Ok(Self { raw, key, _domain: domain.clone() })
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: the window has no other owner, and drop runs once.
        if let Err(error) = call::number(|| unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) }) {
            tracing::warn!(%error, key = self.key, "a memory window could not be destroyed and is leaked");
        }
    }
}

/// Returns the key for the next binding of a window whose last one was `key`: the device has chosen all but the lowest
/// byte, which is the user's, and must differ from the last one.
pub(crate) fn next_key(key: u32) -> u32 {
    const OF_THE_USER: u32 = 0xff;
    key & !OF_THE_USER | key.wrapping_add(1) & OF_THE_USER
}
