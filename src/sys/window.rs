//! Memory windows of type 2: keys for a part of a region that a request binds and another one invalidates.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::ffi::number;
use super::memory::ProtectionDomain;
use super::{call, ffi};

/// A memory window. It is bound to a region, and made of use to the peer of one queue pair, by a request of that queue
/// pair; see [`Binding`](super::Binding).
///
/// As long as it is bound the region cannot be deregistered, and with some drivers the queue pair that bound it cannot
/// be destroyed without a long wait. Dropping it unbinds it.
pub(crate) struct MemoryWindow {
    raw: NonNull<ffi::ibv_mw>,
    key: u32,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: the library's calls on a window may come from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    /// Creates a window that is not bound.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver knows no such windows; `ENOMEM` if the device has no more.
    pub(crate) fn new(domain: &Arc<ProtectionDomain>) -> io::Result<Self> {
        // SAFETY: the domain is live, and the window keeps it so.
        let raw = call::pointer(libc::ENOMEM, || unsafe {
            ffi::alloc_window(domain.as_ptr(), number::IBV_MW_TYPE_2)
        })?;
        // SAFETY: the window is new and nothing is bound to it yet, so nothing writes to the field.
        let key = unsafe { (*raw.as_ptr()).rkey };
        Ok(Self { raw, key, _domain: domain.clone() })
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mw {
        self.raw.as_ptr()
    }

    /// Returns the key that the window was created with, which gives no access. Each binding has another: see
    /// [`next_key`].
    pub(crate) fn key(&self) -> u32 {
        self.key
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: the window has no other owner, and drop runs once.
        if let Err(error) = call::number(|| unsafe { ffi::ibv_dealloc_mw(self.as_ptr()) }) {
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
