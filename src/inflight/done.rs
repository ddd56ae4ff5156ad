//! The completion of a request of a lane, in the layout of C; what stands for the slot of a request without one; and the progress of a
//! queue pair of a lane.

use crate::error::{CompletionError, WcError};
use crate::status::{Status, WcStatus};
use crate::types::{OpKind, QueueKind, QueuePairId, RemoteKey, Slot};

/// The completion of a request of a [`Lane`](crate::qp::Lane), in the layout of `ibv_wc`: a device writes it where the program reads it.
///
/// Which methods have a meaning depends on [`kind`](Self::kind), and all but that, [`slot`](Self::slot),
/// [`queue_pair`](Self::queue_pair) and [`status`](Self::status) have none if the request failed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_error: u32,
    pub(crate) length: u32,
    /// Immediate data in network byte order, or a key that the peer has invalidated.
    pub(crate) told: u32,
    pub(crate) number: u32,
    pub(crate) source: u32,
    pub(crate) flags: u32,
    pub(crate) key_index: u16,
    pub(crate) source_lid: u16,
    pub(crate) level: u8,
    pub(crate) path_bits: u8,
}

impl Done {
    /// A place for a completion.
    pub const EMPTY: Self = Self {
        id: u64::MAX,
        status: WcStatus::GENERAL_ERR.code(),
        opcode: 0,
        vendor_error: 0,
        length: 0,
        told: 0,
        number: 0,
        source: 0,
        flags: 0,
        key_index: 0,
        source_lid: 0,
        level: 0,
        path_bits: 0,
    };

    /// The bit of `enum ibv_wc_opcode` that completions of receives have.
    pub(crate) const RECEIVED: u32 = 1 << 7;
    /// `IBV_WC_RECV_RDMA_WITH_IMM`.
    pub(crate) const RECEIVED_WRITE: u32 = Self::RECEIVED + 1;
    /// `IBV_WC_WITH_IMM`.
    pub(crate) const IMMEDIATE: u32 = 1 << 1;
    /// `IBV_WC_WITH_INV`.
    pub(crate) const INVALIDATED: u32 = 1 << 3;

    /// Returns the id of a request: its queue pair, and the number of its slot.
    #[inline]
    pub(crate) const fn id_of(queue_pair: QueuePairId, slot: u32) -> u64 {
        (queue_pair.0 as u64) << 32 | slot as u64
    }

    /// Returns the opcode with which a request of this kind completes.
    pub(crate) const fn opcode_of(kind: OpKind) -> u32 {
        match kind {
            OpKind::Send => 0,
            OpKind::Write => 1,
            OpKind::Read => 2,
            OpKind::CompareSwap => 3,
            OpKind::FetchAdd => 4,
            OpKind::Bind => 5,
            OpKind::Invalidate => 6,
            OpKind::Receive => Self::RECEIVED,
        }
    }

    /// Returns the slot of the request, which the program holds again. Of a request with several slots it is the first, and the program
    /// holds all of them. A request without a slot has one that no lane has.
    #[inline]
    pub const fn slot(&self) -> Slot {
        Slot(self.id as u32)
    }

    /// Returns the queue pair of the request; for a shared receive, the one that the message came by.
    #[inline]
    pub const fn queue_pair(&self) -> QueuePairId {
        QueuePairId((self.id >> 32) as u32)
    }

    /// Returns the operation of the request.
    #[inline]
    pub const fn kind(&self) -> OpKind {
        match self.opcode {
            0 => OpKind::Send,
            1 => OpKind::Write,
            2 => OpKind::Read,
            3 => OpKind::CompareSwap,
            4 => OpKind::FetchAdd,
            _ => OpKind::Receive,
        }
    }

    /// Returns the number of bytes in the slot of a receive. It is 0 for one that an RDMA Write with immediate data has taken, and for
    /// other requests.
    #[inline]
    pub const fn bytes(&self) -> usize {
        if self.opcode == Self::RECEIVED { self.length as usize } else { 0 }
    }

    /// Returns the length of the peer's RDMA Write that has taken a receive by its immediate data, and 0 for all others. It is also 0
    /// with iWARP, where immediate data is a message of its own.
    #[inline]
    pub const fn written(&self) -> u32 {
        if self.opcode == Self::RECEIVED_WRITE { self.length } else { 0 }
    }

    /// Returns the immediate data of the message that a receive has.
    #[inline]
    pub const fn immediate(&self) -> Option<u32> {
        let told = self.opcode & Self::RECEIVED != 0 && self.flags & Self::IMMEDIATE != 0;
        if told { Some(u32::from_be(self.told)) } else { None }
    }

    /// Returns the key of the memory window that the message of a receive has invalidated.
    #[inline]
    pub const fn invalidated(&self) -> Option<RemoteKey> {
        let told = self.opcode & Self::RECEIVED != 0 && self.flags & Self::INVALIDATED != 0;
        if told { Some(RemoteKey(self.told)) } else { None }
    }

    /// Returns whether the request succeeded.
    #[inline]
    pub const fn is_success(&self) -> bool {
        self.status == 0
    }

    /// Returns the status of the request. The end of a connection completes what is outstanding with [`Status::CANCELED`].
    #[inline]
    pub const fn status(&self) -> Status {
        if self.is_success() { Status::SUCCESS } else { self.failure() }
    }

    #[cold]
    const fn failure(&self) -> Status {
        let general = self.status == WcStatus::GENERAL_ERR.code() && self.vendor_error == Self::NO_DEVICE;
        if general && self.source != 0 {
            return Status::from_code(self.source);
        }
        let received = self.opcode & Self::RECEIVED != 0;
        let queue = if received { QueueKind::Receive } else { QueueKind::Send };
        WcStatus::from_code(self.status).status(queue)
    }

    /// Returns an error if the request failed.
    ///
    /// # Errors
    /// The status, with the report of the device if it has one.
    #[inline]
    pub fn ok(&self) -> Result<(), CompletionError> {
        if self.is_success() { Ok(()) } else { Err(self.error()) }
    }

    #[cold]
    fn error(&self) -> CompletionError {
        let error = WcError::new(WcStatus::from_code(self.status), self.vendor_error);
        let device = (self.vendor_error != Self::NO_DEVICE).then_some(error);
        CompletionError { status: self.failure(), device }
    }

    /// Returns the completion of a request of the soft provider that has failed with this status, which need not be one of a device.
    #[cfg(feature = "soft")]
    pub(crate) const fn failed_with(id: u64, kind: OpKind, status: Status) -> Self {
        let failed = Self::failed(id, kind, WcStatus::GENERAL_ERR);
        // No completion of a connection names its source.
        Self { source: status.code(), ..failed }
    }

    /// The error code of the vendor in a failure that no device has reported.
    pub(crate) const NO_DEVICE: u32 = u32::MAX;

    /// Returns the completion of a request that no device has completed.
    pub(crate) const fn failed(id: u64, kind: OpKind, status: WcStatus) -> Self {
        let (status, opcode) = (status.code(), Self::opcode_of(kind));
        Self { id, status, opcode, vendor_error: Self::NO_DEVICE, ..Self::EMPTY }
    }
}

/// The progress of a queue pair of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LaneState {
    /// It is not connected yet: receives can be posted.
    Unconnected,
    /// It is connected: everything can be posted.
    Connected,
    /// Its connection has ended, or its attempt to connect has failed: nothing can be posted, and what was outstanding comes out of the
    /// next polls.
    Ended,
    /// It is gone: each of its requests has come out of a poll. Polls lead here, so a program that waits for this goes on to poll, also
    /// if nothing is outstanding.
    Gone,
}

/// The slots from here on are none: they stand for requests without one, each with a kind and a number.
pub(crate) const LOOSE: u32 = 0xf000_0000;
/// The bits of the kind of such a request.
const KIND: u32 = 0x7;
/// The bit of one that is silent.
const SILENT: u32 = 0x8;
/// The place of the number, behind these. More requests than it counts are never outstanding.
const NUMBER: u32 = 4;

/// Returns what stands for the request of this kind and number without a slot.
pub(crate) fn loose(kind: OpKind, silent: bool, number: u32) -> u32 {
    LOOSE | number << NUMBER & !LOOSE | Done::opcode_of(kind) & KIND | if silent { SILENT } else { 0 }
}

/// Returns the kind of a request without a slot.
pub(crate) fn loose_kind(number: u32) -> OpKind {
    Done { opcode: number & KIND, ..Done::EMPTY }.kind()
}

/// Returns whether a request without a slot is silent.
pub(crate) fn is_silent(number: u32) -> bool {
    number & SILENT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    // A completion says which kind of request failed, and whether a device has reported it.
    #[test]
    fn failures_keep_the_kind() {
        let kinds = [
            OpKind::Send,
            OpKind::Write,
            OpKind::Read,
            OpKind::CompareSwap,
            OpKind::FetchAdd,
            OpKind::Receive,
        ];
        for kind in kinds {
            let done = Done::failed(Done::id_of(QueuePairId(7), 9), kind, WcStatus::WR_FLUSH_ERR);
            assert_eq!((done.kind(), done.queue_pair(), done.slot()), (kind, QueuePairId(7), Slot(9)));
            assert_eq!(done.status(), Status::CANCELED);
            assert_eq!(done.ok().expect_err("it failed").device, None);
        }
        #[cfg(feature = "soft")]
        for status in [Status::BUFFER_OVERFLOW, Status::IO_TIMEOUT, Status::CANCELED] {
            let done = Done::failed_with(4, OpKind::Receive, status);
            assert_eq!(done.ok().expect_err("it failed"), CompletionError { status, device: None });
        }
        let reported = Done { status: WcStatus::REM_ACCESS_ERR.code(), vendor_error: 3, ..Done::EMPTY };
        assert!(reported.ok().expect_err("it failed").device.is_some());
    }

    // Immediate data and lengths are those of receives alone.
    #[test]
    fn what_a_receive_tells() {
        let received = Done { status: 0, opcode: Done::RECEIVED, length: 5, ..Done::EMPTY };
        assert_eq!((received.bytes(), received.written(), received.immediate()), (5, 0, None));
        let told = 7_u32.to_be();
        let written = Done { opcode: Done::RECEIVED_WRITE, flags: Done::IMMEDIATE, told, ..received };
        assert_eq!((written.bytes(), written.written(), written.immediate()), (0, 5, Some(7)));
        let sent = Done { opcode: 0, flags: Done::IMMEDIATE | Done::INVALIDATED, ..written };
        assert_eq!((sent.bytes(), sent.immediate(), sent.invalidated()), (0, None, None));
    }
}
