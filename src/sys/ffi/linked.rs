//! The functions of the two libraries by the bindings of `rdma-sys`, which are linked.

use std::ffi::{CStr, c_void};

pub(in crate::sys) use rdma_sys::{
    atomic_t, bind_mw_t, ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_async_event,
    ibv_close_device, ibv_comp_channel, ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_create_qp, ibv_create_srq, ibv_dealloc_mw, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, ibv_device, ibv_device_attr, ibv_free_device_list,
    ibv_get_async_event, ibv_get_cq_event, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name,
    ibv_modify_qp, ibv_modify_srq, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_open_device, ibv_pd, ibv_poll_cq,
    ibv_port_attr, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_query_device, ibv_query_port, ibv_recv_wr, ibv_reg_mr_iova2, ibv_req_notify_cq,
    ibv_resize_cq, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc, rdma_accept,
    rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id, rdma_disconnect,
    rdma_establish, rdma_event_channel, rdma_free_devices, rdma_get_cm_event, rdma_get_devices,
    rdma_init_qp_attr, rdma_listen, rdma_notify, rdma_reject, rdma_resolve_addr, rdma_resolve_route,
    rdma_set_option, rdma_t,
};

/// The one event that `rdma_notify` is for.
pub(in crate::sys) use rdma_sys::ibv_event_type::IBV_EVENT_COMM_EST;

/// Everything, for the test that compares it with the headers.
#[cfg(test)]
pub(in crate::sys) use rdma_sys as every;

use super::{EceFunctions, RegDmabufMr};

/// Succeeds, because the libraries are linked.
pub(crate) fn load() -> Result<(), &'static str> {
    Ok(())
}

/// Calls `ibv_alloc_mw`: null if the driver knows no windows.
///
/// # Safety
/// A live domain.
pub(in crate::sys) unsafe fn alloc_window(domain: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    // SAFETY: the caller's.
    unsafe { rdma_sys::ibv_alloc_mw(domain, kind) }.unwrap_or(std::ptr::null_mut())
}

/// Returns `ibv_reg_dmabuf_mr`, if the library has it. Bindings made from older headers do not, so it is looked for.
pub(in crate::sys) fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    // SAFETY: this is the type of the function of that name since its first version.
    unsafe { find(c"ibv_reg_dmabuf_mr") }
}

/// Returns the functions for options of vendors, if the libraries have them. Bindings made from older headers do not.
pub(in crate::sys) fn ece() -> Option<EceFunctions> {
    Some(EceFunctions {
        // SAFETY: this is the type of the function of that name since its first version.
        query: unsafe { find(c"ibv_query_ece") }?,
        // SAFETY: as above.
        set: unsafe { find(c"ibv_set_ece") }?,
        // SAFETY: as above.
        set_local: unsafe { find(c"rdma_set_local_ece") }?,
        // SAFETY: as above.
        get_remote: unsafe { find(c"rdma_get_remote_ece") }?,
    })
}

/// Looks for a function in the libraries, which have no unloading code of their own and stay loaded.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn find<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller's; both are pointers.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}
