//! Options of a vendor that the ends of a connection agree on: ibv_query_ece(3) and rdma_set_local_ece(3).

use std::ffi::c_int;

use super::types::*;
use super::world::{self, live};
use super::{minus_one, number_of};

/// `struct ibv_ece`.
#[repr(C)]
struct ibv_ece {
    vendor_id: u32,
    options: u32,
    comp_mask: u32,
}

/// The options of a queue pair.
#[derive(Clone, Copy)]
pub(super) struct Options {
    vendor: u32,
    /// All that it can have.
    supported: u32,
    pub(super) used: u32,
    /// Those that its next change of state is to bring.
    asked: Option<u32>,
}

impl Options {
    pub(super) fn new((vendor, supported): (u32, u32)) -> Self {
        Self { vendor, supported, used: supported, asked: None }
    }

    /// Its queue pair changes its state.
    pub(super) fn apply(&mut self) {
        self.used = self.asked.take().map_or(self.used, |asked| asked & self.supported);
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(raw: *mut ibv_qp, to: *mut ibv_ece) -> c_int {
    number_of(world::enter("ibv_query_ece").and_then(|mut world| {
        let options = live(&mut world.queue_pairs, raw).options.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the caller's structure.
        unsafe { to.write(ibv_ece { vendor_id: options.vendor, options: options.used, comp_mask: 0 }) };
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(raw: *mut ibv_qp, from: *mut ibv_ece) -> c_int {
    number_of(world::enter("ibv_set_ece").and_then(|mut world| {
        let options = live(&mut world.queue_pairs, raw).options.as_mut().ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the caller's structure.
        let from = unsafe { &*from };
        if from.vendor_id != options.vendor || from.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        options.asked = Some(from.options);
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(raw: *mut rdma_cm_id, from: *mut ibv_ece) -> c_int {
    minus_one(world::enter("rdma_set_local_ece").and_then(|mut world| {
        // SAFETY: the caller's structure.
        let from = unsafe { &*from };
        if from.vendor_id == 0 || from.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        live(&mut world.cm.ids, raw).local_options = (from.vendor_id, from.options);
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(raw: *mut rdma_cm_id, to: *mut ibv_ece) -> c_int {
    minus_one(world::enter("rdma_get_remote_ece").map(|mut world| {
        let (vendor_id, options) = live(&mut world.cm.ids, raw).remote_options;
        // SAFETY: the caller's structure.
        unsafe { to.write(ibv_ece { vendor_id, options, comp_mask: 0 }) };
    }))
}
