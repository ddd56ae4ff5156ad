//! Numbers of C that the modules around this one work with, under the names of the C headers. The test `layout` compares them
//! with the headers.

use std::ffi::{c_int, c_uint};

pub(in crate::sys) const IBV_TRANSPORT_IB: c_int = 0;
pub(in crate::sys) const IBV_TRANSPORT_IWARP: c_int = 1;

pub(in crate::sys) const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub(in crate::sys) const IBV_PORT_ACTIVE: c_uint = 4;
pub(in crate::sys) const IBV_ATOMIC_NONE: c_uint = 0;
pub(in crate::sys) const IBV_ATOMIC_GLOB: c_uint = 2;
pub(in crate::sys) const IBV_MW_TYPE_2: c_uint = 2;
pub(in crate::sys) const IBV_QPT_RC: c_uint = 2;
pub(in crate::sys) const RDMA_PS_TCP: c_uint = 0x0106;

pub(in crate::sys) const IBV_QPS_INIT: c_uint = 1;
pub(in crate::sys) const IBV_QPS_RTR: c_uint = 2;
pub(in crate::sys) const IBV_QPS_RTS: c_uint = 3;
pub(in crate::sys) const IBV_QPS_ERR: c_uint = 6;

pub(in crate::sys) const IBV_WR_RDMA_WRITE: c_uint = 0;
pub(in crate::sys) const IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(in crate::sys) const IBV_WR_SEND: c_uint = 2;
pub(in crate::sys) const IBV_WR_SEND_WITH_IMM: c_uint = 3;
pub(in crate::sys) const IBV_WR_RDMA_READ: c_uint = 4;
pub(in crate::sys) const IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
pub(in crate::sys) const IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
pub(in crate::sys) const IBV_WR_LOCAL_INV: c_uint = 7;
pub(in crate::sys) const IBV_WR_BIND_MW: c_uint = 8;
pub(in crate::sys) const IBV_WR_SEND_WITH_INV: c_uint = 9;

pub(in crate::sys) const ACCESS_LOCAL_WRITE: u32 = 1 << 0;
pub(in crate::sys) const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub(in crate::sys) const ACCESS_REMOTE_READ: u32 = 1 << 2;
pub(in crate::sys) const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
pub(in crate::sys) const ACCESS_MW_BIND: u32 = 1 << 4;
pub(in crate::sys) const ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

pub(in crate::sys) const SEND_FENCE: u32 = 1 << 0;
pub(in crate::sys) const SEND_SIGNALED: u32 = 1 << 1;
pub(in crate::sys) const SEND_SOLICITED: u32 = 1 << 2;
pub(in crate::sys) const SEND_INLINE: u32 = 1 << 3;

pub(in crate::sys) const WC_WITH_IMM: u32 = 1 << 1;
pub(in crate::sys) const WC_IP_CSUM_OK: u32 = 1 << 2;
pub(in crate::sys) const WC_WITH_INV: u32 = 1 << 3;

pub(in crate::sys) const DEVICE_SRQ_RESIZE: u32 = 1 << 13;
pub(in crate::sys) const DEVICE_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
pub(in crate::sys) const DEVICE_MEM_WINDOW_TYPE_2A: u32 = 1 << 23;
pub(in crate::sys) const DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;

pub(in crate::sys) const SRQ_MAX_WR: u32 = 1 << 0;

pub(in crate::sys) const QP_STATE: u32 = 1 << 0;
pub(in crate::sys) const QP_ACCESS_FLAGS: u32 = 1 << 3;
pub(in crate::sys) const QP_MAX_READ_ATOMIC: u32 = 1 << 13;
pub(in crate::sys) const QP_MIN_RNR_TIMER: u32 = 1 << 15;
pub(in crate::sys) const QP_MAX_DEST_READ_ATOMIC: u32 = 1 << 17;
/// Bits of old kernels that are in no header: attributes of a link of Ethernet.
pub(in crate::sys) const QP_ETHERNET_ATTRIBUTES: u32 = 0xe0_0000;

pub(in crate::sys) const RDMA_OPTION_ID: c_int = 0;
pub(in crate::sys) const RDMA_OPTION_ID_TOS: c_int = 0;
pub(in crate::sys) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub(in crate::sys) const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub(in crate::sys) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
