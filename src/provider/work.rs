//! The requests that the posting calls pass to a provider, and those of a lane with its parameters.

use std::ops::Range;

use bitflags::bitflags;

use crate::error::PostErrorKind;
#[cfg(feature = "soft")]
use crate::inflight;
use crate::inflight::{Payload, RequestMeta, Table, Ticket};
use crate::memory::Pages;
use crate::types::{Access, OpKind, QueuePairId, Slot};

/// The peer's memory, by its key and the address of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteAddress {
    pub(crate) key: u32,
    pub(crate) address: u64,
}

/// A request of the send queue. Its limits, rights and lengths have been checked against the capabilities of
/// the adapter; whether it can be posted now has not.
pub(crate) struct WorkRequest {
    pub(crate) ticket: Ticket,
    pub(crate) operation: Operation,
    pub(crate) payload: Payload,
    pub(crate) flags: Flags,
}

/// A send or a write of bytes that the posting call copies.
pub(crate) struct InlineRequest<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) operation: Operation,
    /// The bytes, of which there are not too many.
    pub(crate) parts: &'a [&'a [u8]],
    pub(crate) flags: Flags,
}

/// A Send or a Write that the provider may execute within the posting call.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "soft"), expect(dead_code, reason = "only the soft provider takes them"))]
pub(crate) struct DirectRequest<'a> {
    pub(crate) operation: &'a Operation,
    pub(crate) source: Source<'a>,
    pub(crate) flags: Flags,
    /// Where the slot is opened of a request that has to wait after all, and what the slot is to say.
    pub(crate) table: &'a Table,
    pub(crate) label: RequestMeta,
}

/// The bytes of a request.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "soft"), expect(dead_code, reason = "only the soft provider takes them"))]
pub(crate) enum Source<'a> {
    Memory(&'a Payload),
    /// Bytes that the call copies.
    Bytes(&'a [&'a [u8]]),
}

#[cfg(feature = "soft")]
impl Source<'_> {
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Memory(payload) => inflight::length(payload),
            Self::Bytes(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Returns a handle to the memory; an empty payload for bytes.
    pub(crate) fn payload(&self) -> Payload {
        match self {
            Self::Memory(payload) => (*payload).clone(),
            Self::Bytes(_) => Payload::new(),
        }
    }
}

/// The outcome of a [`DirectRequest`].
#[derive(Debug)]
#[cfg_attr(not(feature = "soft"), expect(dead_code, reason = "devices decline"))]
pub(crate) enum DirectOutcome {
    /// It has completed, with this number of bytes.
    Completed(usize),
    /// It was posted with this ticket. The provider has a handle of its own to the memory.
    Posted(Ticket),
    /// Nothing has happened: it is to be posted.
    Declined,
}

/// A request to change the binding of a window, which has no bytes of its own.
#[derive(Clone, Copy)]
pub(crate) struct WindowRequest {
    pub(crate) ticket: Ticket,
    pub(crate) flags: Flags,
}

/// The part of a registration that a window is bound to, and the rights that the peer has there by the key of the window.
pub(crate) struct BindTarget<R> {
    pub(crate) registration: R,
    pub(crate) range: Range<usize>,
    pub(crate) access: Access,
}

/// A request that was not posted.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The reason.
    pub(crate) kind: PostErrorKind,
    /// Its memory, unchanged.
    pub(crate) payload: Payload,
}

/// The operation of a request that moves bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send {
        /// The window of the peer's that is invalidated with it.
        invalidate: Option<u32>,
        immediate: Option<u32>,
    },
    Write {
        to: RemoteAddress,
        immediate: Option<u32>,
    },
    Read {
        from: RemoteAddress,
    },
    /// The payload of eight bytes gets what was there before.
    CompareSwap {
        at: RemoteAddress,
        compare: u64,
        swap: u64,
    },
    /// The payload of eight bytes gets what was there before.
    FetchAdd {
        at: RemoteAddress,
        add: u64,
    },
}

impl Operation {
    pub(crate) fn kind(self) -> OpKind {
        match self {
            Self::Send { .. } => OpKind::Send,
            Self::Write { .. } => OpKind::Write,
            Self::Read { .. } => OpKind::Read,
            Self::CompareSwap { .. } => OpKind::CompareSwap,
            Self::FetchAdd { .. } => OpKind::FetchAdd,
        }
    }
}

bitflags! {
    /// The options of a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Flags: u8 {
        /// It begins when every read and atomic before it has been answered.
        const FENCE = 1;
        /// The receive that it ends in is a solicited event.
        const SOLICITED = 2;
        /// Its success is not reported: [`CompletionInfo::silent`](crate::inflight::CompletionInfo::silent).
        const SILENT = 4;
        /// It may wait for the next request without this flag, or for `ring`.
        const DEFER = 8;
        /// The caller has reserved its place among the reads in flight of the adapter, which is the request's once that is posted.
        const RESERVED = 64;
    }
}

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
