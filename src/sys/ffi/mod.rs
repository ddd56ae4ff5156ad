//! The C interface of libibverbs and librdmacm: structures, numbers and functions.
//!
//! The functions come from one of two backends. [`loaded`] opens the libraries at run time, so that a build needs neither
//! headers nor a library. With the feature `rdma-sys` they are [`linked`], by the bindings of that crate, and nothing else
//! names `rdma_sys`.
//!
//! Enumerations of C are integers here. The one that `rdma-sys` makes a Rust `enum`, `ibv_event_type`, is never
//! read as such: a library newer than the bindings reports events that they do not know.
#![allow(non_camel_case_types, reason = "the names are those of the C headers")]

use std::ffi::{c_int, c_void};

#[cfg(feature = "rdma-sys")]
mod linked;
#[cfg(not(feature = "rdma-sys"))]
mod loaded;
pub(super) mod number;
#[cfg(not(feature = "rdma-sys"))]
pub(super) mod types;

#[cfg(feature = "rdma-sys")]
use linked as backend;
#[cfg(not(feature = "rdma-sys"))]
use loaded as backend;

pub(crate) use backend::load;
pub(super) use backend::*;
#[cfg(not(feature = "rdma-sys"))]
pub(super) use types::*;

/// Everything, for the test that compares it with the headers.
#[cfg(all(test, not(feature = "rdma-sys")))]
pub(super) use types as every;

/// `ibv_reg_dmabuf_mr`, which libraries older than rdma-core 34 do not have.
pub(super) type RegDmabufMr = unsafe extern "C" fn(
    domain: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr;

/// `struct ibv_ece` of rdma-core 31 and newer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ibv_ece {
    pub(in crate::sys) vendor_id: u32,
    pub(in crate::sys) options: u32,
    pub(in crate::sys) comp_mask: u32,
}

/// The functions for options of vendors, which libraries older than rdma-core 31 do not have.
#[derive(Clone, Copy)]
pub(super) struct EceFunctions {
    /// `ibv_query_ece` and `ibv_set_ece`.
    pub(in crate::sys) query: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_ece) -> c_int,
    pub(in crate::sys) set: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_ece) -> c_int,
    /// `rdma_set_local_ece` and `rdma_get_remote_ece`.
    pub(in crate::sys) set_local: unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_ece) -> c_int,
    pub(in crate::sys) get_remote: unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_ece) -> c_int,
}

/// Returns the kind of an event as an integer: the value of `event_type`, which need not be one that the bindings know.
///
/// # Safety
/// An event that `ibv_get_async_event` filled.
pub(super) unsafe fn async_event_kind(event: *const ibv_async_event) -> u32 {
    // SAFETY: the event is live; no reference to the enumeration and no value of it is made.
    let kind = unsafe { &raw const (*event).event_type };
    // SAFETY: a C enumeration has the size of an integer, and the library has written it.
    unsafe { kind.cast::<u32>().read() }
}

/// Converts the key of an object to its context pointer in C.
pub(super) fn key_to_context(key: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(key as usize)
}

/// Converts a context pointer back to the key.
pub(super) fn context_to_key(context: *mut c_void) -> u64 {
    context.addr() as u64
}
