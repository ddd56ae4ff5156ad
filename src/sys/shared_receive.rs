//! Shared receive queues.

use std::io;
use std::mem;
use std::ptr;
use std::slice;
use std::sync::Arc;

use super::call::Object;
use super::ffi::number;
use super::memory::ProtectionDomain;
use super::post::{self, ReceiveRequest, Refused};
use super::{call, ffi};

/// A receive queue that many queue pairs take their receives from.
pub(crate) struct SharedReceiveQueue {
    pub(super) raw: Object<ffi::ibv_srq>,
    key: u64,
    /// Its destruction has been tried.
    ended: bool,
    _domain: Arc<ProtectionDomain>,
}

impl SharedReceiveQueue {
    /// Creates a queue for at least that many requests with that many entries, whose events carry the key.
    ///
    /// # Errors
    /// `EINVAL` for more than the device allows, `EOPNOTSUPP` where it has none.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        entries: u32,
        key: u64,
    ) -> io::Result<Arc<Self>> {
        // SAFETY: all members are integers or pointers, for which zero is a value.
        let mut attributes: ffi::ibv_srq_init_attr = unsafe { mem::zeroed() };
        attributes.srq_context = ffi::key_to_context(key);
        let raw = call::pointer(libc::ENOMEM, || {
            // Again each time: the call stores here what the queue has.
            attributes.attr = ffi::ibv_srq_attr { max_wr: depth, max_sge: entries, srq_limit: 0 };
            // SAFETY: the domain is live, and the queue keeps it so.
            unsafe { ffi::ibv_create_srq(domain.raw.as_ptr(), &mut attributes) }
        })?;
        Ok(Arc::new(Self { raw, key, ended: false, _domain: domain.clone() }))
    }

    /// Returns the key that its events carry.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Adds a request.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full, `EINVAL` for what the driver sees to be wrong.
    ///
    /// # Safety
    /// The memory of the entries stays allocated and registered under their keys, and no reference to it is made, until
    /// the request has completed, or this queue and every queue pair of it is destroyed. Memory of another device is not among the
    /// entries unless the device [receives in place](super::Quirks::receives_in_place).
    pub(crate) unsafe fn post(&self, request: ReceiveRequest<'_>) -> Result<(), Refused> {
        let mut raw = request.to_raw().map_err(|source| Refused { taken: 0, source })?;
        let mut bad = ptr::null_mut();
        call::clear_errno();
        // SAFETY: the queue is live; request and entries are, and are only read, until the call returns. The memory behind
        // them is the caller's.
        let returned = unsafe { ffi::ibv_post_srq_recv(self.raw.as_ptr(), &mut raw, &mut bad) };
        post::outcome(returned, bad, slice::from_ref(&raw))
    }

    /// Makes room for at least that many requests. Its requests stay.
    ///
    /// # Errors
    /// `EINVAL` for more than the device allows or less than is needed, and from most drivers where its size is fixed, see
    /// [`DeviceAttributes::resizes_shared`](super::DeviceAttributes::resizes_shared).
    pub(crate) fn resize(&self, depth: u32) -> io::Result<()> {
        let mut attributes = ffi::ibv_srq_attr { max_wr: depth, max_sge: 0, srq_limit: 0 };
        let mask = number::IBV_SRQ_MAX_WR as i32;
        // SAFETY: the queue is live; the attributes that the mask names are set.
        call::number(|| unsafe { ffi::ibv_modify_srq(self.raw.as_ptr(), &mut attributes, mask) })
    }

    /// Destroys the queue, if that has not been tried: then the device no longer uses the memory of its requests. The owner drops the
    /// handle next.
    ///
    /// # Errors
    /// Those of ibv_destroy_srq(3): `EBUSY` if a queue pair of it could not be destroyed. It is leaked, and the device may use that
    /// memory at any later time.
    pub(crate) fn destroy(&mut self) -> io::Result<()> {
        if mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        // SAFETY: every queue pair of the queue holds an `Arc` of it, so none is left; this is called once. The call waits for
        // asynchronous events that were taken and not acknowledged, which `Context::next_async_event` does at once.
        let outcome = call::number(|| unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) });
        if let Err(error) = &outcome {
            tracing::warn!(%error, key = self.key, "a shared receive queue could not be destroyed and is leaked");
        }
        outcome
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // The error has been logged.
        let _ = self.destroy();
    }
}
