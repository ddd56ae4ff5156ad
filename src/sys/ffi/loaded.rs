//! The functions of the two libraries, which are opened when the first of them is needed.
//!
//! Posting and polling do not come by here: C has them as inline functions, which call the driver by the table of the open
//! device.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libc::sockaddr;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tracing::debug;

use super::types::*;
use super::{EceFunctions, RegDmabufMr};

const MISSING: &str =
    "libibverbs.so.1 and librdmacm.so.1 cannot be loaded: install rdma-core (Debian: librdmacm1)";
const OLD: &str = "libibverbs.so.1 or librdmacm.so.1 is too old: install rdma-core 28 or newer";

/// The one event that `rdma_notify` is for.
pub(in crate::sys) const IBV_EVENT_COMM_EST: c_uint = 4;

/// Declares the functions of the libraries, in a table that is filled at once, each with a function that calls it.
macro_rules! functions {
    ($($library:ident { $(
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;
    )* })*) => {
        struct Functions {
            $($($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*)*
        }

        impl Functions {
            /// Looks for each function.
            fn find($($library: &Library),*) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: these are the types of the functions of these names.
                    $($($name: unsafe { find($library, stringify!($name)) }.ok_or(OLD)?,)*)*
                })
            }
        }

        $($(
            /// Calls the function of that name.
            ///
            /// # Safety
            /// The conditions of its manual page.
            pub(in crate::sys) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's.
                unsafe { (loaded().functions.$name)($($argument),*) }
            }
        )*)*

        /// Each function with its parameters and its result, for the test that compares them with the headers.
        #[cfg(test)]
        pub(in crate::sys) const SIGNATURES: &[(&str, &[&str], &str)] = &[$($(
            (stringify!($name), &[$(stringify!($type)),*], concat!($(stringify!($result))?)),
        )*)*];
    };
}

functions! {
    ibverbs {
        fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut _compat_ibv_port_attr) -> c_int;
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int;
        fn ibv_reg_mr_iova2(
            domain: *mut ibv_pd,
            start: *mut c_void,
            length: usize,
            iova: u64,
            access: c_uint,
        ) -> *mut ibv_mr;
        fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            queue: *mut *mut ibv_cq,
            context: *mut *mut c_void,
        ) -> c_int;
        fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint);
        fn ibv_create_cq(
            context: *mut ibv_context,
            entries: c_int,
            key: *mut c_void,
            channel: *mut ibv_comp_channel,
            vector: c_int,
        ) -> *mut ibv_cq;
        fn ibv_resize_cq(queue: *mut ibv_cq, entries: c_int) -> c_int;
        fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int;
        fn ibv_create_srq(domain: *mut ibv_pd, attributes: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_modify_srq(queue: *mut ibv_srq, attributes: *mut ibv_srq_attr, mask: c_int) -> c_int;
        fn ibv_destroy_srq(queue: *mut ibv_srq) -> c_int;
        fn ibv_create_qp(domain: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(queue_pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int;
        fn ibv_destroy_qp(queue_pair: *mut ibv_qp) -> c_int;
    }
    rdmacm {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
        fn rdma_create_id(
            channel: *mut rdma_event_channel,
            id: *mut *mut rdma_cm_id,
            context: *mut c_void,
            space: c_uint,
        ) -> c_int;
        fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
        fn rdma_set_option(
            id: *mut rdma_cm_id,
            level: c_int,
            option: c_int,
            value: *mut c_void,
            length: usize,
        ) -> c_int;
        fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int;
        fn rdma_resolve_addr(
            id: *mut rdma_cm_id,
            source: *mut sockaddr,
            destination: *mut sockaddr,
            timeout: c_int,
        ) -> c_int;
        fn rdma_resolve_route(id: *mut rdma_cm_id, timeout: c_int) -> c_int;
        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
        fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
        fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
        fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
        fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int;
        fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
        fn rdma_init_qp_attr(id: *mut rdma_cm_id, attributes: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
        fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context;
        fn rdma_free_devices(list: *mut *mut ibv_context);
    }
}

/// Opens a library by its name.
fn open(file: &str) -> Result<Library, &'static str> {
    // SAFETY: what the two libraries do when they are loaded and unloaded needs nothing of this program.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    library.map_err(|error| {
        debug!(%error, "library not loaded");
        MISSING
    })
}

/// Finds a function, in its newest version.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller's.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.inspect_err(|error| debug!(%error, "function not found")).ok().map(|function| *function)
}

/// Finds the functions for options of vendors, if all of them are there.
fn find_ece(ibverbs: &Library, rdmacm: &Library) -> Option<EceFunctions> {
    Some(EceFunctions {
        // SAFETY: this is the type of the function of that name since its first version.
        query: unsafe { find(ibverbs, "ibv_query_ece") }?,
        // SAFETY: as above.
        set: unsafe { find(ibverbs, "ibv_set_ece") }?,
        // SAFETY: as above.
        set_local: unsafe { find(rdmacm, "rdma_set_local_ece") }?,
        // SAFETY: as above.
        get_remote: unsafe { find(rdmacm, "rdma_get_remote_ece") }?,
    })
}

/// The libraries, which stay loaded to the end of the process.
struct Loaded {
    functions: Functions,
    reg_dmabuf_mr: Option<RegDmabufMr>,
    ece: Option<EceFunctions>,
    _libraries: [Library; 2],
}

static LOADED: OnceLock<Result<Loaded, &'static str>> = OnceLock::new();

impl Loaded {
    fn get() -> &'static Result<Self, &'static str> {
        LOADED.get_or_init(|| {
            let (ibverbs, rdmacm) = (open("libibverbs.so.1")?, open("librdmacm.so.1")?);
            Ok(Self {
                functions: Functions::find(&ibverbs, &rdmacm)?,
                // SAFETY: this is the type of the function of that name since its first version.
                reg_dmabuf_mr: unsafe { find(&ibverbs, "ibv_reg_dmabuf_mr") },
                ece: find_ece(&ibverbs, &rdmacm),
                _libraries: [ibverbs, rdmacm],
            })
        })
    }
}

/// Loads the libraries, once. Everything else here needs it to have succeeded.
///
/// # Errors
/// A sentence, if they are not there or too old.
pub(crate) fn load() -> Result<(), &'static str> {
    Loaded::get().as_ref().map(drop).map_err(|sentence| *sentence)
}

/// Returns the loaded libraries.
///
/// # Panics
/// If they cannot be loaded. Every call is about an object, and the first object is made after [`load`] has succeeded.
fn loaded() -> &'static Loaded {
    match Loaded::get() {
        Ok(loaded) => loaded,
        Err(sentence) => panic!("{sentence}"),
    }
}

/// Returns `ibv_reg_dmabuf_mr`, if the library has it.
pub(in crate::sys) fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    loaded().reg_dmabuf_mr
}

/// Returns the functions for options of vendors, if the libraries have them.
pub(in crate::sys) fn ece() -> Option<EceFunctions> {
    loaded().ece
}

/// Declares functions that call one of the driver: the inline functions of the C header. Each has the result without a driver
/// that knows the function.
macro_rules! driver {
    ($(
        $(#[$doc:meta])*
        fn $name:ident = $function:ident($object:ident: $object_type:ty $(, $argument:ident: $type:ty)*) -> $result:ty,
            or $without:expr;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The conditions of the manual page of the C function.
        pub(in crate::sys) unsafe fn $name($object: $object_type $(, $argument: $type)*) -> $result {
            // SAFETY: the object is live, and the device stays open while it has objects; the table does not change.
            let function = unsafe { (*(*$object).context).ops.$function };
            match function {
                // SAFETY: the caller's.
                Some(function) => unsafe { function($object $(, $argument)*) },
                None => $without,
            }
        }
    )*};
}

driver! {
    /// Calls `ibv_alloc_mw` of the driver: null if the driver knows no windows.
    fn alloc_window = alloc_mw(domain: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw, or std::ptr::null_mut();

    /// Calls `ibv_dealloc_mw` of the driver.
    fn ibv_dealloc_mw = dealloc_mw(window: *mut ibv_mw) -> c_int, or libc::EOPNOTSUPP;

    /// Calls `ibv_poll_cq` of the driver.
    fn ibv_poll_cq = poll_cq(queue: *mut ibv_cq, room: c_int, entries: *mut ibv_wc) -> c_int, or -1;

    /// Calls `ibv_req_notify_cq` of the driver.
    fn ibv_req_notify_cq = req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int, or libc::EOPNOTSUPP;

    /// Calls `ibv_post_srq_recv` of the driver.
    fn ibv_post_srq_recv = post_srq_recv(
        queue: *mut ibv_srq, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    ) -> c_int, or libc::EOPNOTSUPP;

    /// Calls `ibv_post_send` of the driver.
    fn ibv_post_send = post_send(
        queue_pair: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr
    ) -> c_int, or libc::EOPNOTSUPP;

    /// Calls `ibv_post_recv` of the driver.
    fn ibv_post_recv = post_recv(
        queue_pair: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    ) -> c_int, or libc::EOPNOTSUPP;
}
