//! The ownership of buffers while a device may access them.
//!
//! A work request is posted by a call and completed by a future. In between its memory belongs to the provider, as
//! a [`Payload`]; the [`Table`] of the queue pair keeps one slot per request, in which the completion and the
//! payload meet the future again. A future that is dropped leaves its slot behind as an orphan: the payload is
//! freed when the provider is done with it, not before (`CAN-09`).
//!
//! And the completions of lanes, [`Done`], which have no future, and the limit on the reads in flight, `ReadPlaces`.

mod completion_ring;
mod completion_sink;
mod done;
#[cfg(feature = "soft")]
mod lane_inbox;
#[cfg(all(test, tokio_rdma_model))]
mod model;
mod op;
mod read_places;
#[cfg_attr(
    not(feature = "soft"),
    allow(dead_code, reason = "only the soft provider delivers bytes to streams by itself")
)]
mod stream_bytes;
#[cfg_attr(
    not(feature = "soft"),
    allow(dead_code, reason = "only the soft provider delivers Sends to streams by itself")
)]
mod stream_inbox;
mod table;
mod wake_list;

pub use completion_ring::NotifyKind;
pub(crate) use completion_ring::{CompletionRing, Joined, Notified, OverrunListener, Polled, Polling};
pub(crate) use completion_sink::{CompletionSink, ReceiveCounter, Watch};
pub use done::{Done, LaneState};
pub(crate) use done::{LOOSE, is_silent, loose, loose_kind};
#[cfg(feature = "soft")]
pub(crate) use lane_inbox::{Arrived, Inbox};
pub(crate) use op::not_allowed;
pub(crate) use op::sealed::{self, LentList};
pub use op::{Completion, Op, WorkBuffer};
pub(crate) use read_places::ReadPlace;
#[cfg(feature = "verbs")]
pub(crate) use read_places::ReadPlaces;
pub(crate) use stream_bytes::{LIST, RING};
pub(crate) use stream_inbox::{STREAM_KEY, StreamInbox, StreamNews, StreamSend, StreamSink, WORD};
pub(crate) use table::{Completed, CompletionInfo, Note, RequestMeta, Table, Ticket};
pub(crate) use wake_list::WakeList;

use smallvec::SmallVec;

use crate::memory::Slice;

/// The scatter-gather list of a work request.
pub(crate) type Payload = SmallVec<[Slice; 1]>;

/// Returns the number of bytes of a scatter-gather list.
#[inline]
pub(crate) fn length(payload: &Payload) -> usize {
    match payload.as_slice() {
        // Nearly always there is one.
        [slice] => slice.len(),
        slices => slices.iter().map(Slice::len).sum(),
    }
}

/// Returns the parts of `payload` that hold the bytes from `from` on, at most `length` of them.
#[cfg(feature = "soft")]
pub(crate) fn range(payload: &Payload, mut from: usize, mut length: usize) -> Payload {
    // Nearly always there is one.
    if let [slice] = payload.as_slice() {
        let part = slice.part(from, length);
        return if part.len() == 0 { Payload::new() } else { Payload::from_buf([part]) };
    }
    let mut parts = Payload::new();
    for slice in payload {
        if length == 0 {
            break;
        }
        if from < slice.len() {
            let part = slice.part(from, length);
            length -= part.len();
            parts.push(part);
        }
        from = from.saturating_sub(slice.len());
    }
    parts
}
