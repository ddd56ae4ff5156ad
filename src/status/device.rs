//! The reports of a device through libibverbs: the statuses of completions, and asynchronous events.

use std::fmt;

use super::{Status, meanings};
use crate::types::QueueKind;

meanings! {
    /// The status of a completion, `ibv_wc_status` in `verbs.h`.
    ///
    /// It is not an enum, because newer libraries add statuses.
    WcStatus means "for a reason that is not known here";
    /// The request succeeded.
    SUCCESS = 0, "it succeeded";
    /// A message is longer than the receive, or than the device allows.
    LOC_LEN_ERR = 1, "a message is longer than the receive or than the device allows";
    /// The request or the queue pair is inconsistent.
    LOC_QP_OP_ERR = 2, "the request or the queue pair is inconsistent";
    /// As `LOC_QP_OP_ERR`, of a reliable datagram.
    LOC_EEC_OP_ERR = 3, "the request or the queue pair is inconsistent";
    /// The memory of the request is not registered for it.
    LOC_PROT_ERR = 4, "the memory of the request is not registered for it";
    /// The queue pair was in the error state.
    WR_FLUSH_ERR = 5, "the queue pair was in the error state";
    /// A memory window cannot be bound or invalidated.
    MW_BIND_ERR = 6, "the memory window cannot be bound or invalidated";
    /// The response of the peer was not what the request asked for.
    BAD_RESP_ERR = 7, "the response of the peer was not what the request asked for";
    /// Memory of this side lacks a right that a message of the peer needs.
    LOC_ACCESS_ERR = 8, "memory of this side lacks a right that a message of the peer needs";
    /// The peer found the message invalid, for example longer than its receive.
    REM_INV_REQ_ERR = 9, "the peer found the message invalid, for example longer than its receive";
    /// The peer refused the access to its memory.
    REM_ACCESS_ERR = 10, "the peer refused the access to its memory";
    /// The peer could not execute the request.
    REM_OP_ERR = 11, "the peer could not execute the request";
    /// The peer acknowledged nothing.
    RETRY_EXC_ERR = 12, "the peer acknowledged nothing";
    /// The peer posted no receive.
    RNR_RETRY_EXC_ERR = 13, "the peer posted no receive";
    /// The reliable datagram domains differ.
    LOC_RDD_VIOL_ERR = 14;
    /// The peer found a reliable datagram invalid.
    REM_INV_RD_REQ_ERR = 15;
    /// The peer aborted the request.
    REM_ABORT_ERR = 16, "the peer aborted the request";
    /// The end-to-end context of a reliable datagram does not exist.
    INV_EECN_ERR = 17;
    /// The end-to-end context of a reliable datagram is in a wrong state.
    INV_EEC_STATE_ERR = 18;
    /// The device failed.
    FATAL_ERR = 19, "the device failed";
    /// The response did not arrive in time.
    RESP_TIMEOUT_ERR = 20, "the response did not arrive in time";
    /// The request failed for another reason.
    GENERAL_ERR = 21;
    /// A tag could not be matched.
    TM_ERR = 22;
    /// A message with a tag needs the help of the program.
    TM_RNDV_INCOMPLETE = 23;
}

impl WcStatus {
    /// Returns the status of a request of this queue that completes so.
    ///
    /// `rdma_rxe` reports a receive that is too short as `LOC_QP_OP_ERR`; that request completes with `BUFFER_OVERFLOW`, too.
    pub const fn status(self, queue: QueueKind) -> Status {
        match self {
            Self::SUCCESS => Status::SUCCESS,
            Self::WR_FLUSH_ERR => Status::CANCELED,
            Self::LOC_LEN_ERR => match queue {
                QueueKind::Send => Status::DATA_OVERRUN,
                QueueKind::Receive | QueueKind::SharedReceive => Status::BUFFER_OVERFLOW,
            },
            Self::LOC_PROT_ERR | Self::LOC_ACCESS_ERR | Self::REM_ACCESS_ERR | Self::MW_BIND_ERR => {
                Status::ACCESS_VIOLATION
            }
            Self::LOC_QP_OP_ERR | Self::LOC_EEC_OP_ERR => Status::INVALID_DEVICE_REQUEST,
            Self::RETRY_EXC_ERR | Self::RNR_RETRY_EXC_ERR | Self::RESP_TIMEOUT_ERR => Status::IO_TIMEOUT,
            Self::REM_OP_ERR | Self::REM_INV_REQ_ERR | Self::REM_ABORT_ERR | Self::BAD_RESP_ERR => {
                Status::REMOTE_ERROR
            }
            _ => Status::INTERNAL_ERROR,
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "IBV_WC_{name} ({})", self.code()),
            None => write!(f, "ibv_wc_status {}", self.code()),
        }
    }
}

meanings! {
    /// The number of an asynchronous event, `ibv_event_type` in `verbs.h`.
    ///
    /// It is not an enum, because newer libraries add events.
    DeviceEvent means "the queue pair failed";
    /// A completion queue has lost a completion.
    CQ_ERR = 0, "a completion queue has lost a completion";
    /// A queue pair failed, and could not complete a request with the reason.
    QP_FATAL = 1;
    /// This side refused a request of the peer that is invalid, or that the queue pair does not permit.
    QP_REQ_ERR = 2, "it refused an invalid request of the peer";
    /// This side refused an access of the peer to its memory.
    QP_ACCESS_ERR = 3, "it refused an access of the peer to memory";
    /// A message arrived before the connection was established.
    COMM_EST = 4;
    /// The requests of a send queue that is being drained have completed.
    SQ_DRAINED = 5;
    /// The connection uses its alternate path.
    PATH_MIG = 6;
    /// The connection could not use its alternate path.
    PATH_MIG_ERR = 7;
    /// The device failed.
    DEVICE_FATAL = 8;
    /// A port became active.
    PORT_ACTIVE = 9;
    /// A port went down.
    PORT_ERR = 10;
    /// The subnet manager changed the LID of a port.
    LID_CHANGE = 11;
    /// The table of P_Keys of a port changed.
    PKEY_CHANGE = 12;
    /// A port has another subnet manager.
    SM_CHANGE = 13;
    /// A shared receive queue failed.
    SRQ_ERR = 14, "the shared receive queue failed";
    /// A shared receive queue holds fewer receives than its limit.
    SRQ_LIMIT_REACHED = 15;
    /// A queue pair in the error state takes no further receive of its shared receive queue.
    QP_LAST_WQE_REACHED = 16;
    /// The subnet manager asks for registrations.
    CLIENT_REREGISTER = 17;
    /// The table of GIDs of a port changed.
    GID_CHANGE = 18;
    /// A work queue failed.
    WQ_FATAL = 19;
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "IBV_EVENT_{name} ({})", self.code()),
            None => write!(f, "ibv_event_type {}", self.code()),
        }
    }
}
