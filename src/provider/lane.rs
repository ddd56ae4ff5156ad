//! The parameters of a lane, and its requests.

use std::ops::Range;

use crate::inflight::Payload;
use crate::memory::Pages;
use crate::provider::work::{Flags, Operation};
use crate::types::{QueuePairId, Slot};

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
    pub(crate) processor: Option<usize>,
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
    /// It is gone: each of its requests has come out of a poll.
    Gone,
}
