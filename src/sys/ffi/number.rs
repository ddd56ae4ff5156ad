//! Numbers of C that the modules around this one work with.

use std::ffi::{c_int, c_uint};

/// Declares numbers of C under the names that the headers give them, and a list of them for the test that compares them with the
/// headers.
macro_rules! numbers {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub(in crate::sys) const $name: $type = $value;)*

        #[cfg(test)]
        pub(in crate::sys) const ALL: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

numbers! {
    IBV_TRANSPORT_IB: c_int = 0;
    IBV_TRANSPORT_IWARP: c_int = 1;

    IBV_LINK_LAYER_INFINIBAND: u8 = 1;
    IBV_LINK_LAYER_ETHERNET: u8 = 2;
    IBV_PORT_DOWN: c_uint = 1;
    IBV_PORT_INIT: c_uint = 2;
    IBV_PORT_ARMED: c_uint = 3;
    IBV_PORT_ACTIVE: c_uint = 4;
    IBV_PORT_ACTIVE_DEFER: c_uint = 5;
    IBV_ATOMIC_NONE: c_uint = 0;
    IBV_ATOMIC_GLOB: c_uint = 2;
    IBV_MW_TYPE_2: c_uint = 2;
    IBV_QPT_RC: c_uint = 2;
    RDMA_PS_TCP: c_uint = 0x0106;

    IBV_QPS_INIT: c_uint = 1;
    IBV_QPS_RTR: c_uint = 2;
    IBV_QPS_RTS: c_uint = 3;
    IBV_QPS_ERR: c_uint = 6;

    IBV_WR_RDMA_WRITE: c_uint = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
    IBV_WR_SEND: c_uint = 2;
    IBV_WR_SEND_WITH_IMM: c_uint = 3;
    IBV_WR_RDMA_READ: c_uint = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
    IBV_WR_LOCAL_INV: c_uint = 7;
    IBV_WR_BIND_MW: c_uint = 8;
    IBV_WR_SEND_WITH_INV: c_uint = 9;

    IBV_ACCESS_LOCAL_WRITE: u32 = 1 << 0;
    IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
    IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
    IBV_ACCESS_MW_BIND: u32 = 1 << 4;
    IBV_ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

    IBV_SEND_FENCE: u32 = 1 << 0;
    IBV_SEND_SIGNALED: u32 = 1 << 1;
    IBV_SEND_SOLICITED: u32 = 1 << 2;
    IBV_SEND_INLINE: u32 = 1 << 3;

    IBV_WC_WITH_IMM: u32 = 1 << 1;
    IBV_WC_IP_CSUM_OK: u32 = 1 << 2;
    IBV_WC_WITH_INV: u32 = 1 << 3;

    IBV_DEVICE_SRQ_RESIZE: u32 = 1 << 13;
    IBV_DEVICE_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    IBV_DEVICE_MEM_WINDOW_TYPE_2A: u32 = 1 << 23;
    IBV_DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;

    IBV_SRQ_MAX_WR: u32 = 1 << 0;

    IBV_QP_STATE: u32 = 1 << 0;
    IBV_QP_ACCESS_FLAGS: u32 = 1 << 3;
    IBV_QP_PATH_MTU: u32 = 1 << 8;
    IBV_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    IBV_QP_MIN_RNR_TIMER: u32 = 1 << 15;
    IBV_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    IBV_QP_DEST_QPN: u32 = 1 << 20;

    RDMA_OPTION_ID: c_int = 0;
    RDMA_OPTION_ID_TOS: c_int = 0;
    RDMA_OPTION_ID_REUSEADDR: c_int = 1;
    RDMA_OPTION_ID_AFONLY: c_int = 2;
    RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
}

/// Bits of old kernels that are in no header: attributes of a link of Ethernet.
pub(in crate::sys) const QP_ETHERNET_ATTRIBUTES: u32 = 0xe0_0000;
