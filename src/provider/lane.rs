//! The parameters of a lane, and its requests.

use std::ops::Range;

use crate::inflight::{Done, Payload};
use crate::memory::Pages;
use crate::provider::work::{Flags, Operation};
use crate::types::{OpKind, QueuePairId, Slot};

/// The sizes of a lane, which the caller has checked against the adapter.
#[derive(Clone, Debug)]
pub(crate) struct LaneParts {
    pub(crate) slots: u32,
    pub(crate) slot_length: u32,
    pub(crate) queue_pairs: u16,
    pub(crate) send_depth: u32,
    /// The receives of each queue pair, or of all if they are shared.
    pub(crate) receive_depth: u32,
    pub(crate) shared_receives: bool,
    /// The entries of a request of the send queue.
    pub(crate) send_entries: u32,
    pub(crate) inline: u32,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "no device interrupts a processor"))]
    pub(crate) processor: Option<usize>,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "no device has an entry for each page"))]
    pub(crate) pages: Pages,
}

/// A request of the send queue of a lane. Its options fit the operation, and the adapter has both.
pub(crate) struct LaneRequest<'a> {
    pub(crate) queue_pair: QueuePairId,
    pub(crate) operation: Operation,
    pub(crate) source: LaneSource<'a>,
    pub(crate) flags: Flags,
}

/// The local memory of a request.
#[derive(Clone)]
pub(crate) enum LaneSource<'a> {
    /// Parts of slots, of which there are as many as the queue pair has entries at most. No slot is there twice.
    Slots(&'a [(Slot, Range<usize>)]),
    /// Bytes that the call copies, no more than the queue pair has inline.
    Bytes(&'a [u8]),
    /// A part of a region, which has the rights that the request needs.
    Region(&'a Payload),
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
