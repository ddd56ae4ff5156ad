//! The only file that names `rdma_sys`, so the one to change if the bindings are ever swapped.
//!
//! Enumerations of C are integers here. The one that the bindings make a Rust `enum`, `ibv_event_type`, is never
//! read as such: a library newer than the bindings reports events that they do not know.
#![allow(non_camel_case_types, reason = "the names are those of the C headers")]

use std::ffi::{c_int, c_void};

pub(super) use rdma_sys::{
    atomic_t, bind_mw_t, ibv_ack_cq_events, ibv_alloc_pd, ibv_async_event, ibv_close_device,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp,
    ibv_create_srq, ibv_dealloc_mw, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_comp_channel, ibv_destroy_cq,
    ibv_destroy_qp, ibv_destroy_srq, ibv_device, ibv_device_attr, ibv_free_device_list, ibv_get_async_event,
    ibv_get_cq_event, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name, ibv_modify_qp,
    ibv_modify_srq, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_open_device, ibv_pd, ibv_poll_cq, ibv_port_attr,
    ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_query_device, ibv_recv_wr, ibv_reg_mr, ibv_req_notify_cq, ibv_resize_cq, ibv_send_wr, ibv_sge,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc, rdma_accept, rdma_ack_cm_event, rdma_bind_addr,
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel, rdma_create_id,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_disconnect, rdma_establish, rdma_event_channel,
    rdma_free_devices, rdma_get_cm_event, rdma_get_devices, rdma_init_qp_attr, rdma_listen, rdma_reject,
    rdma_resolve_addr, rdma_resolve_route, rdma_set_option, rdma_t,
};

/// Everything, for the test that compares it with the headers.
#[cfg(test)]
pub(super) use rdma_sys as every;

/// Numbers of C that the modules around this one work with, under the names of the C headers.
pub(super) mod number {
    use std::ffi::c_int;

    use rdma_sys::{
        ibv_access_flags, ibv_device_cap_flags, ibv_qp_attr_mask, ibv_send_flags, ibv_srq_attr_mask,
        ibv_wc_flags,
    };

    pub(in crate::sys) use rdma_sys::ibv_atomic_cap::IBV_ATOMIC_NONE;
    pub(in crate::sys) use rdma_sys::ibv_mw_type::IBV_MW_TYPE_2;

    pub(in crate::sys) use rdma_sys::ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
    pub(in crate::sys) use rdma_sys::ibv_qp_type::IBV_QPT_RC;
    pub(in crate::sys) use rdma_sys::ibv_transport_type::{IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP};
    pub(in crate::sys) use rdma_sys::ibv_wr_opcode::{
        IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
        IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
        IBV_WR_SEND_WITH_INV,
    };
    pub(in crate::sys) use rdma_sys::rdma_port_space::RDMA_PS_TCP;

    pub(in crate::sys) const ACCESS_LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    pub(in crate::sys) const ACCESS_REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    pub(in crate::sys) const ACCESS_REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    pub(in crate::sys) const ACCESS_REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    pub(in crate::sys) const ACCESS_MW_BIND: u32 = ibv_access_flags::IBV_ACCESS_MW_BIND.0;

    pub(in crate::sys) const SEND_FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
    pub(in crate::sys) const SEND_SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
    pub(in crate::sys) const SEND_SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
    pub(in crate::sys) const SEND_INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

    pub(in crate::sys) const WC_WITH_IMM: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    pub(in crate::sys) const WC_IP_CSUM_OK: u32 = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
    pub(in crate::sys) const WC_WITH_INV: u32 = ibv_wc_flags::IBV_WC_WITH_INV.0;

    pub(in crate::sys) const DEVICE_MEM_MGT_EXTENSIONS: u32 =
        ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0;
    pub(in crate::sys) const DEVICE_MEM_WINDOW_TYPE_2A: u32 =
        ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0;
    pub(in crate::sys) const DEVICE_MEM_WINDOW_TYPE_2B: u32 =
        ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;

    pub(in crate::sys) const SRQ_MAX_WR: u32 = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0;

    pub(in crate::sys) const QP_STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;
    pub(in crate::sys) const QP_ACCESS_FLAGS: u32 = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;
    pub(in crate::sys) const QP_MAX_READ_ATOMIC: u32 = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
    pub(in crate::sys) const QP_MAX_DEST_READ_ATOMIC: u32 = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;

    // Members of unnamed enumerations, under names that the bindings do not give.
    pub(in crate::sys) const RDMA_OPTION_ID: c_int = 0;
    pub(in crate::sys) const RDMA_OPTION_ID_TOS: c_int = 0;
    pub(in crate::sys) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
    pub(in crate::sys) const RDMA_OPTION_ID_AFONLY: c_int = 2;
    pub(in crate::sys) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
}

/// `ibv_query_port`, whose parameter the bindings type as the opaque structure of its first version.
///
/// The library fills that structure, which is what the first members of `ibv_port_attr` are: everything up to and
/// including `flags`. What follows keeps the value it has. (The inline function of the C header would fill all of
/// it; its translation in the bindings compares with the wrong mark and so never does.)
///
/// # Safety
/// As for the C function: an open device, and a structure to fill.
pub(super) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's. The library writes the leading part of the structure only.
    unsafe { rdma_sys::ibv_query_port(context, port, attributes.cast()) }
}

/// `ibv_alloc_mw`, which gives null where the driver knows no windows of this type.
///
/// # Safety
/// A live domain.
pub(super) unsafe fn alloc_window(domain: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    // SAFETY: the caller's.
    unsafe { rdma_sys::ibv_alloc_mw(domain, kind) }.unwrap_or(std::ptr::null_mut())
}

/// `ibv_reg_dmabuf_mr`.
pub(super) type RegDmabufMr = unsafe extern "C" fn(
    domain: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr;

/// `ibv_reg_dmabuf_mr`, which libraries older than rdma-core 34 do not have; nor do the bindings when they were made from
/// its headers. So it is looked for when it is needed.
pub(super) fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    // SAFETY: the name is a string, and the library, which has no unloading code of its own, stays loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ibv_reg_dmabuf_mr".as_ptr()) };
    // SAFETY: this is the type of the function of that name since its first version.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, RegDmabufMr>(found) })
}

/// `rdma_notify` with the one event that it is for.
///
/// # Safety
/// A live identifier.
pub(super) unsafe fn notify_established(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's.
    unsafe { rdma_sys::rdma_notify(id, rdma_sys::ibv_event_type::IBV_EVENT_COMM_EST) }
}

/// What happened, as an integer: the value of `event_type`, which need not be one that the bindings know.
///
/// # Safety
/// An event that `ibv_get_async_event` filled.
pub(super) unsafe fn async_event_kind(event: *const ibv_async_event) -> u32 {
    // SAFETY: the event is live; no reference to the enumeration and no value of it is made.
    let kind = unsafe { &raw const (*event).event_type };
    // SAFETY: a C enumeration has the size of an integer, and the library has written it.
    unsafe { kind.cast::<u32>().read() }
}

/// The object that an event is about.
///
/// # Safety
/// An event that `ibv_get_async_event` filled, of a kind whose element is a pointer to a `T`.
pub(super) unsafe fn async_event_element<T>(event: *const ibv_async_event) -> *mut T {
    // SAFETY: the event is live.
    let element = unsafe { &raw const (*event).element };
    // SAFETY: for these kinds the library has stored a pointer to such an object.
    unsafe { element.cast::<*mut T>().read() }
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// An event that `ibv_get_async_event` filled and that was not yet acknowledged.
pub(super) unsafe fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's.
    unsafe { rdma_sys::ibv_ack_async_event(event) }
}

/// The part of an event that is about a connection. For events of an identifier in the port space for reliable
/// connections it is valid whatever the kind, and zero where nothing is said.
///
/// # Safety
/// An event of `rdma_get_cm_event`, not yet acknowledged, of an identifier in that port space.
pub(super) unsafe fn connection_of(event: &rdma_cm_event) -> rdma_conn_param {
    // SAFETY: the library has zeroed the union and has filled this member or none.
    unsafe { event.param.conn }
}

/// The key of an object is its context pointer in C.
pub(super) fn key_to_context(key: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(key as usize)
}

/// The key that was made a context pointer.
pub(super) fn context_to_key(context: *mut c_void) -> u64 {
    context.addr() as u64
}
