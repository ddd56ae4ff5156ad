//! A work queue: the requests that the device has, their sequence numbers, and their results.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::memory::{Bound, Window};
use super::routes::RequestId;
use crate::error::{PostErrorKind, WcError};
use crate::inflight::{
    self, Completed, CompletionInfo, CompletionSink, Note, Payload, ReadPlace, Ticket, WakeList,
};
use crate::memory::Slice;
use crate::provider::work::Flags;
use crate::status::{Status, WcStatus};
use crate::sys::{Quirks, ScatterEntry, Told, WcResult};
use crate::types::QueueKind;

/// The entries of a request, most often one.
pub(crate) type Entries = SmallVec<[ScatterEntry; 4]>;

/// A request that the device has, or will have when the doorbell rings.
pub(crate) struct Outstanding {
    pub(crate) ticket: Ticket,
    pub(crate) payload: Payload,
    /// Its success is not to be reported.
    pub(crate) silent: bool,
    /// The device does not report its success.
    pub(crate) unsignaled: bool,
    pub(crate) held: Held,
    /// The number of bytes that were copied when it was posted, and are not in the payload.
    pub(crate) copied: u32,
    /// The result from the device, while a request before it is not finished.
    pub(crate) result: Option<WcResult>,
}

impl Outstanding {
    pub(crate) fn new(ticket: Ticket, payload: Payload) -> Self {
        let held = Held::default();
        Self { ticket, payload, silent: false, unsignaled: false, held, copied: 0, result: None }
    }

    /// Creates a request of the send queue with these options.
    pub(crate) fn to_send(ticket: Ticket, payload: Payload, flags: Flags) -> Self {
        Self { silent: flags.contains(Flags::SILENT), ..Self::new(ticket, payload) }
    }

    /// Returns the result of a request that the device has not finished. Its memory comes back only if the device no
    /// longer uses it, `free`. Otherwise it is leaked, as a device may use it at any later time, and the payload is empty.
    pub(crate) fn ended(self, status: Status, free: bool, wakes: &mut WakeList) -> (Ticket, Completed) {
        let Self { ticket, mut payload, held, .. } = self;
        held.release(false, wakes);
        if !free {
            std::mem::forget(std::mem::take(&mut payload));
        }
        (ticket, Completed::failed(status, payload))
    }
}

/// What a request holds until it has finished. Few requests hold anything, so it is small.
#[derive(Default)]
pub(crate) enum Held {
    #[default]
    Nothing,
    /// A window that is being bound, and what it was bound to before on this queue pair.
    Binding(#[expect(dead_code, reason = "held to be dropped")] Box<(Arc<Window>, Option<Bound>)>),
    /// A window that is being invalidated, and what it was bound to.
    Invalidating(Box<(Arc<Window>, Bound)>),
    /// A place among the reads in flight of the adapter.
    Reading(ReadPlace),
}

impl Held {
    /// Takes what concerns a window.
    pub(crate) fn take_window(&mut self) -> Self {
        if matches!(self, Self::Reading(_)) { Self::Nothing } else { std::mem::take(self) }
    }

    /// Releases what a request held that the device has completed, or will not complete.
    #[cold]
    pub(crate) fn release(self, succeeded: bool, wakes: &mut WakeList) {
        match self {
            Self::Invalidating(invalidating) if succeeded => {
                let (window, bound) = *invalidating;
                window.invalidated(bound);
            }
            // The next in line may be woken.
            Self::Reading(place) => wakes.run(move || drop(place)),
            Self::Nothing | Self::Binding(_) | Self::Invalidating(_) => {}
        }
    }
}

impl WcResult {
    pub(crate) const SUCCESS: Self = Self { status: WcStatus::SUCCESS, bytes: 0, told: None };

    /// Returns the report of the device, if the request failed.
    pub(crate) fn error(&self) -> Option<WcError> {
        let vendor_err = if let Some(Told::VendorError(code)) = self.told { code } else { 0 };
        let failed = self.status != WcStatus::SUCCESS;
        failed.then(|| WcError::new(self.status, vendor_err))
    }

    /// Returns the number of bytes in the memory of a receive.
    pub(crate) fn received(&self, payload: &Payload) -> usize {
        // No device places more than there is room for, whatever length it reports.
        (self.bytes as usize).min(inflight::length(payload))
    }

    /// Returns the completion, with this status, of a request that the device has completed and that did not succeed.
    pub(crate) fn failed(&self, status: Status, payload: Payload) -> Completed {
        let mut completed = Completed::failed(status, payload);
        completed.extra.note = self.error().map_or(Note::Nothing, Note::Report);
        completed
    }

    /// Returns what the completion of a receive reports. No device shows which message was solicited: each may have
    /// been.
    pub(crate) fn extra(&self) -> CompletionInfo {
        let note = match self.told {
            Some(Told::Immediate(data)) => Note::Immediate(data),
            Some(Told::Invalidated(key)) => Note::Invalidated(key),
            Some(Told::VendorError(_)) | None => Note::Nothing,
        };
        CompletionInfo { solicited: true, note, ..CompletionInfo::default() }
    }
}

/// One of the queues of a queue pair.
pub(crate) struct WorkQueue {
    pub(crate) sink: CompletionSink,
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Requests that failed, to be reported once the connection is known to be over.
    pub(crate) failed: Vec<(Ticket, Completed)>,
    /// The sequence number of the request at the front.
    front: u32,
}

impl WorkQueue {
    pub(crate) fn new(sink: CompletionSink) -> Self {
        Self { sink, outstanding: VecDeque::new(), failed: Vec::new(), front: 0 }
    }

    /// Begins to count anew.
    pub(crate) fn reset(&mut self) {
        self.outstanding.clear();
        self.front = 0;
    }

    /// Returns the sequence number of the next request.
    pub(crate) fn next(&self) -> u32 {
        // The depth of a queue is far below 2^30.
        self.front.wrapping_add(self.outstanding.len() as u32) & RequestId::SEQUENCE
    }

    /// Records the result of this request. Drivers of iWARP finish a write before a read that was posted earlier; if
    /// requests are unsignaled, those before this one have finished, too. Returns whether the request is known and had
    /// no result.
    pub(crate) fn finished(&mut self, sequence: u32, result: WcResult) -> bool {
        let place = (sequence.wrapping_sub(self.front) & RequestId::SEQUENCE) as usize;
        let found = self
            .outstanding
            .get_mut(place)
            .is_some_and(|outstanding| outstanding.result.replace(result).is_none());
        if found {
            self.succeeded_before(place);
        }
        found
    }

    /// Records that the device has finished all requests before the one with this number, if there are any.
    pub(crate) fn finished_before(&mut self, sequence: u32) {
        let place = (sequence.wrapping_sub(self.front) & RequestId::SEQUENCE) as usize;
        if place <= self.outstanding.len() {
            self.succeeded_before(place);
        }
    }

    /// Records the success of the unsignaled requests right before this place.
    fn succeeded_before(&mut self, place: usize) {
        let before = self.outstanding.range_mut(..place).rev();
        for outstanding in before.take_while(|other| other.unsignaled && other.result.is_none()) {
            outstanding.result = Some(WcResult::SUCCESS);
        }
    }

    /// Completes the requests that failed: with `status` if they were flushed, as that was by the same end.
    pub(crate) fn complete_failed(&mut self, status: Status, wakes: &mut WakeList) {
        for (ticket, mut completed) in std::mem::take(&mut self.failed) {
            if completed.status == Status::CANCELED {
                completed.status = status;
            }
            self.sink.complete(ticket, completed, wakes);
        }
    }

    /// Returns whether the oldest request is finished.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.outstanding.front().is_some_and(|outstanding| outstanding.result.is_some())
    }

    /// Takes the oldest request, which has finished, if it has this number.
    #[inline]
    pub(crate) fn pop_if(&mut self, sequence: u32) -> Option<Outstanding> {
        if sequence != self.front & RequestId::SEQUENCE || self.outstanding.front()?.result.is_some() {
            return None;
        }
        self.front = self.front.wrapping_add(1);
        self.outstanding.pop_front()
    }

    /// Takes the oldest request, if it is finished (`QP-17`).
    pub(crate) fn pop(&mut self) -> Option<(Outstanding, WcResult)> {
        let result = self.outstanding.front()?.result?;
        let outstanding = self.outstanding.pop_front()?;
        self.front = self.front.wrapping_add(1);
        Some((outstanding, result))
    }
}

/// Returns a payload as the device sees it, like [`entries`], if it is one piece, as nearly always. `None` if there are several, or if
/// the request cannot have it.
#[inline]
pub(crate) fn single_entry(payload: &Payload, writes: bool) -> Option<[ScatterEntry; 1]> {
    match payload.as_slice() {
        [slice] => Some([entry(slice, writes)?]),
        _ => None,
    }
}

/// Returns the payload as the device sees it, which `writes` it or reads it; `None` when a part of it is not
/// registered, or must not be written.
pub(crate) fn entries(payload: &Payload, writes: bool, quirks: &Quirks) -> Option<Entries> {
    let mut entries = Entries::new();
    for slice in payload.iter().filter(|slice| slice.len() > 0) {
        entries.push(entry(slice, writes)?);
    }
    Some(if entries.is_empty() { nothing(quirks) } else { entries })
}

/// Returns the payload of a receive as the device sees it, like [`receive_entries`], if it is one piece, as nearly always. `None` if
/// there are several, or if the request cannot have it.
#[inline]
pub(crate) fn single_receive_entry(payload: &Payload, quirks: &Quirks) -> Option<[ScatterEntry; 1]> {
    match payload.as_slice() {
        [slice] if quirks.receives_in_place || slice.can_be_copied() => single_entry(payload, true),
        _ => None,
    }
}

/// Returns the payload of a receive as the device sees it.
///
/// # Errors
/// `NotSupported` for memory of another device, unless the device receives in place: its library might copy the bytes to an address
/// that is none of this process. `ForeignMemory` where there are no [`entries`].
pub(crate) fn receive_entries(payload: &Payload, quirks: &Quirks) -> Result<Entries, PostErrorKind> {
    if !quirks.receives_in_place && !payload.as_slice().iter().all(Slice::can_be_copied) {
        return Err(PostErrorKind::NotSupported(
            "a receive into memory of another device, on a device whose library may copy the bytes",
        ));
    }
    entries(payload, true, quirks).ok_or(PostErrorKind::ForeignMemory)
}

#[inline]
fn entry(slice: &Slice, writes: bool) -> Option<ScatterEntry> {
    let (address, key) = if writes { slice.for_device_to_write() } else { slice.for_device() }?;
    Some(ScatterEntry { address, length: u32::try_from(slice.len()).ok()?, key })
}

const NO_ENTRY: ScatterEntry = ScatterEntry { address: 0, length: 0, key: 0 };

/// Returns the entries of a request without bytes: neither address nor key of an entry without bytes matter.
pub(crate) fn nothing(quirks: &Quirks) -> Entries {
    quirks.needs_an_entry.then_some(NO_ENTRY).into_iter().collect()
}

/// Returns the status of a completion (SEMANTICS: completion statuses of ND and verbs).
pub(crate) fn status_of(completion: WcStatus, receive: bool, quirks: &Quirks) -> Status {
    match completion {
        WcStatus::SUCCESS => Status::SUCCESS,
        // Ours are not malformed.
        WcStatus::LOC_QP_OP_ERR if receive && quirks.misnames_short_receives => Status::BUFFER_OVERFLOW,
        status => {
            let queue = if receive { QueueKind::Receive } else { QueueKind::Send };
            status.status(queue)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A driver may report more bytes than the memory of a receive has.
    #[test]
    fn received_bytes_are_capped_at_buffer_size() {
        let result = WcResult { bytes: 1 << 20, ..WcResult::SUCCESS };
        assert_eq!(result.received(&Payload::new()), 0);
    }
}
