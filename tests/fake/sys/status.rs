//! Numbers of the C headers that the device gives back.
#![allow(dead_code, reason = "the headers' lists are whole")]

/// `enum ibv_node_type`.
pub(super) mod node {
    use std::ffi::c_int;

    pub(in crate::sys) const CHANNEL_ADAPTER: c_int = 1;
    pub(in crate::sys) const RNIC: c_int = 4;
}

/// `enum ibv_wc_status`.
pub(super) mod wc {
    pub(in crate::sys) const SUCCESS: u32 = 0;
    pub(in crate::sys) const LOC_LEN_ERR: u32 = 1;
    pub(in crate::sys) const LOC_QP_OP_ERR: u32 = 2;
    pub(in crate::sys) const LOC_PROT_ERR: u32 = 4;
    pub(in crate::sys) const WR_FLUSH_ERR: u32 = 5;
    pub(in crate::sys) const MW_BIND_ERR: u32 = 6;
    pub(in crate::sys) const LOC_ACCESS_ERR: u32 = 8;
    pub(in crate::sys) const REM_INV_REQ_ERR: u32 = 9;
    pub(in crate::sys) const REM_ACCESS_ERR: u32 = 10;
    pub(in crate::sys) const REM_OP_ERR: u32 = 11;
    pub(in crate::sys) const RETRY_EXC_ERR: u32 = 12;
    pub(in crate::sys) const RNR_RETRY_EXC_ERR: u32 = 13;
}

/// `enum ibv_wc_opcode`.
pub(super) mod opcode {
    pub(in crate::sys) const SEND: u32 = 0;
    pub(in crate::sys) const RDMA_WRITE: u32 = 1;
    pub(in crate::sys) const RDMA_READ: u32 = 2;
    pub(in crate::sys) const COMP_SWAP: u32 = 3;
    pub(in crate::sys) const FETCH_ADD: u32 = 4;
    pub(in crate::sys) const BIND_MW: u32 = 5;
    pub(in crate::sys) const LOCAL_INV: u32 = 6;
    pub(in crate::sys) const RECV: u32 = 128;
    pub(in crate::sys) const RECV_RDMA_WITH_IMM: u32 = 129;
}

/// `enum ibv_event_type`.
pub(super) mod asynchronous {
    pub(in crate::sys) const CQ_ERR: u32 = 0;
    pub(in crate::sys) const QP_FATAL: u32 = 1;
    pub(in crate::sys) const QP_REQ_ERR: u32 = 2;
    pub(in crate::sys) const QP_ACCESS_ERR: u32 = 3;
    pub(in crate::sys) const DEVICE_FATAL: u32 = 8;
    pub(in crate::sys) const PORT_ACTIVE: u32 = 9;
    pub(in crate::sys) const PORT_ERR: u32 = 10;
    pub(in crate::sys) const PKEY_CHANGE: u32 = 12;
    pub(in crate::sys) const SRQ_ERR: u32 = 14;
    pub(in crate::sys) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(in crate::sys) const QP_LAST_WQE_REACHED: u32 = 16;
}

/// `enum rdma_cm_event_type`.
pub(super) mod cm {
    pub(in crate::sys) const ADDR_RESOLVED: u32 = 0;
    pub(in crate::sys) const ADDR_ERROR: u32 = 1;
    pub(in crate::sys) const ROUTE_RESOLVED: u32 = 2;
    pub(in crate::sys) const ROUTE_ERROR: u32 = 3;
    pub(in crate::sys) const CONNECT_REQUEST: u32 = 4;
    pub(in crate::sys) const CONNECT_RESPONSE: u32 = 5;
    pub(in crate::sys) const CONNECT_ERROR: u32 = 6;
    pub(in crate::sys) const UNREACHABLE: u32 = 7;
    pub(in crate::sys) const REJECTED: u32 = 8;
    pub(in crate::sys) const ESTABLISHED: u32 = 9;
    pub(in crate::sys) const DISCONNECTED: u32 = 10;
    pub(in crate::sys) const DEVICE_REMOVAL: u32 = 11;
    pub(in crate::sys) const ADDR_CHANGE: u32 = 14;
    pub(in crate::sys) const TIMEWAIT_EXIT: u32 = 15;
}

/// Reasons of InfiniBand's connection manager for a reject.
pub(super) mod reject {
    pub(in crate::sys) const TIMEOUT: i32 = 4;
    pub(in crate::sys) const INVALID_SERVICE_ID: i32 = 8;
    pub(in crate::sys) const STALE_CONN: i32 = 10;
    pub(in crate::sys) const CONSUMER_DEFINED: i32 = 28;
}

/// States of a queue pair that `number` does not have.
pub(super) const QPS_RESET: u32 = 0;

/// Bits of the attributes of a queue pair that `number` does not have.
pub(super) mod attribute {
    pub(in crate::sys) const PKEY_INDEX: u32 = 1 << 4;
    pub(in crate::sys) const PORT: u32 = 1 << 5;
    pub(in crate::sys) const AV: u32 = 1 << 7;
    pub(in crate::sys) const PATH_MTU: u32 = 1 << 8;
    pub(in crate::sys) const TIMEOUT: u32 = 1 << 9;
    pub(in crate::sys) const RETRY_CNT: u32 = 1 << 10;
    pub(in crate::sys) const RNR_RETRY: u32 = 1 << 11;
    pub(in crate::sys) const RQ_PSN: u32 = 1 << 12;
    pub(in crate::sys) const SQ_PSN: u32 = 1 << 16;
    pub(in crate::sys) const DEST_QPN: u32 = 1 << 20;
    /// Those that some old kernels have for RoCE, and user space does not: 21 to 23.
    pub(in crate::sys) const OF_THE_KERNEL: u32 = 0x7 << 21;
}
