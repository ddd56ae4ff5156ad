//! Posts requests to the queues of a queue pair.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{QueuePair, State};
use crate::error::{PostErrorKind, RegisterError};
use crate::inflight::{self, Completed, Payload, Ticket, WakeList};
use crate::memory::Slice;
use crate::proto::qp::QueuePairState;
use crate::provider::work::{
    BindTarget, Flags, InlineRequest, Operation, Refused, RemoteAddress, WindowRequest, WorkRequest,
};
use crate::status::Status;
use crate::sync::MutexGuard;
use crate::sys::{
    self, AccessFlags, Binding, ReceiveRequest, RemoteMemory, ScatterEntry, SendFlags, SendRequest,
};
use crate::types::{Access, OpKind, QueueKind};
use crate::verbs::memory::{Registration, Window};
use crate::verbs::routes::RequestId;
use crate::verbs::work_queue::{
    Entries, Outstanding, WindowChange, entries, no_entries, nothing, receive_entries,
};

/// The maximum number of requests that wait for the doorbell.
const DEFERRED: usize = 64;

/// A request that waits for the doorbell. The memory of its entries belongs to the outstanding requests
/// already.
pub(super) struct Deferred {
    id: RequestId,
    operation: sys::Operation<'static>,
    entries: Entries,
    /// The place of its bytes in `copies`, if they are not in the entries.
    copied: Option<Range<usize>>,
    flags: SendFlags,
}

impl Deferred {
    fn request(&self) -> SendRequest<'_> {
        SendRequest {
            id: self.id.pack(),
            operation: self.operation,
            entries: &self.entries,
            flags: self.flags,
        }
    }
}

/// The bytes of a request.
struct Bytes<'a> {
    entries: &'a [ScatterEntry],
    /// The call that posts it copies them.
    inline: bool,
    /// The place of them in `copies`, if they are there.
    copied: Option<Range<usize>>,
}

impl Bytes<'_> {
    const NOTHING: Self = Self { entries: &[], inline: false, copied: None };
}

impl QueuePair {
    /// Posts a receive.
    ///
    /// # Errors
    /// The reason, with the payload.
    pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        let mut state = self.lock();
        if self.adapter.is_removed() {
            return Err(Refused { kind: PostErrorKind::DeviceRemoved, payload });
        }
        if state.device.is_none() && state.phase == QueuePairState::Unconnected {
            return self.post_later(&mut state, ticket, payload);
        }
        if state.device.is_none() {
            // Too late: it comes back flushed (`DIS-10`).
            let mut wakes = WakeList::default();
            state.receives.sink.complete(ticket, Completed::failed(Status::CANCELED, payload), &mut wakes);
            drop(state);
            wakes.wake_all();
            return Ok(());
        }
        self.post_receive_locked(&mut state, ticket, payload)
    }

    /// Keeps a receive for the next queue pair of the device, which a job is making.
    ///
    /// # Errors
    /// The reason, with the payload.
    fn post_later(&self, state: &mut State, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        let failed = state.failed.iter().filter(|(receive, ..)| *receive).count();
        let held = state.receives.outstanding.len() + failed + state.waiting.len();
        if held >= self.capacities.receive as usize {
            return Err(Refused { kind: self.full(QueueKind::Receive), payload });
        }
        if receive_entries(&payload, self.adapter.quirks()).is_none() {
            return Err(Refused { kind: no_entries(&payload, self.adapter.quirks()), payload });
        }
        state.waiting.push_back(Outstanding::new(ticket, payload));
        Ok(())
    }

    /// Posts a receive under the lock.
    ///
    /// # Errors
    /// The reason, with the payload.
    pub(super) fn post_receive_locked(
        &self,
        state: &mut State,
        ticket: Ticket,
        payload: Payload,
    ) -> Result<(), Refused> {
        let sequence = state.receives.next();
        let full = state.receives.outstanding.len() >= self.capacities.receive as usize;
        let posted = match (full, state.device.as_ref(), receive_entries(&payload, self.adapter.quirks())) {
            (true, _, _) => return Err(Refused { kind: self.full(QueueKind::Receive), payload }),
            (_, Some(device), Some(entries)) => {
                let id = RequestId { key: device.key(), receive: true, sequence };
                let request = ReceiveRequest { id: id.pack(), entries: &entries };
                // SAFETY: the entries are parts of `payload`, registered allocations that are shared from now on and
                // stay in `outstanding` until the request has completed or `stop` has destroyed the queue pair. Memory of
                // another device is among them only where the device receives in place.
                unsafe { device.queue_pair.post_receive(&[request]) }
            }
            (_, None, _) => return Err(Refused { kind: PostErrorKind::ConnectionInvalid, payload }),
            (_, _, None) => {
                return Err(Refused { kind: no_entries(&payload, self.adapter.quirks()), payload });
            }
        };
        match posted {
            Ok(()) => {
                state.receives.outstanding.push_back(Outstanding::new(ticket, payload));
                Ok(())
            }
            Err(sys::Refused { source, .. }) => {
                Err(Refused { kind: self.refused(QueueKind::Receive, &source), payload })
            }
        }
    }

    /// Posts a request of the send queue.
    ///
    /// # Errors
    /// The reason, with the payload.
    pub(crate) fn post_send(&self, request: WorkRequest) -> Result<(), Refused> {
        let WorkRequest { ticket, operation, payload, flags } = request;
        let kind = operation.kind();
        let operation = translate(operation);
        let length = inflight::length(&payload);
        let mut state = self.lock();
        let posted = match self.admits(&state, kind, length) {
            Ok(key) => {
                let reads = matches!(kind, OpKind::Read | OpKind::CompareSwap | OpKind::FetchAdd);
                let outstanding = Outstanding::to_send(ticket, payload, flags);
                match entries(&outstanding.payload, reads, self.adapter.quirks()) {
                    Some(entries) => {
                        let inline = !reads && self.is_copied(&outstanding.payload, length, flags);
                        let bytes = Bytes { entries: &entries, inline, copied: None };
                        self.submit(&mut state, key, outstanding, &operation, bytes, flags)
                    }
                    None => Err(Refused { kind: PostErrorKind::ForeignMemory, payload: outstanding.payload }),
                }
            }
            Err(kind) => Err(Refused { kind, payload }),
        };
        self.conclude(state, posted)
    }

    /// Posts a request of the send queue whose bytes are copied by this call.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn post_inline(&self, request: InlineRequest<'_>) -> Result<(), PostErrorKind> {
        let InlineRequest { ticket, operation, parts, flags } = request;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut state = self.lock();
        let posted = match self.admits(&state, operation.kind(), length) {
            Ok(key) => {
                let mut outstanding = Outstanding::to_send(ticket, Payload::new(), flags);
                // No longer than the inline bytes of a queue pair.
                outstanding.copied = length as u32;
                let from = state.copies.len();
                parts.iter().for_each(|part| state.copies.extend_from_slice(part));
                let range = from..state.copies.len();
                let entries = self.entry_of(&state.copies, &range);
                let bytes = Bytes { entries: &entries, inline: true, copied: Some(range) };
                let posted = self.submit(&mut state, key, outstanding, &translate(operation), bytes, flags);
                if state.deferred.is_empty() {
                    // The device has them, or nobody wants them.
                    state.copies.clear();
                }
                posted
            }
            Err(kind) => Err(Refused { kind, payload: Payload::new() }),
        };
        self.conclude(state, posted).map_err(|refused| refused.kind)
    }

    /// Posts the bind of a window, which has its new key when this returns.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn post_bind(
        &self,
        request: WindowRequest,
        window: &Arc<Window>,
        target: BindTarget<&Arc<Registration>>,
    ) -> Result<(), PostErrorKind> {
        let WindowRequest { ticket, flags } = request;
        let mut state = self.lock();
        let posted = self.admits(&state, OpKind::Bind, 0).and_then(|key| {
            let flags = send_flags(flags) | SendFlags::SIGNALED;
            self.bind_window(&mut state, key, window, target, flags)
        });
        let posted = posted.map(|window_change| {
            let mut outstanding = Outstanding::to_send(ticket, Payload::new(), flags);
            outstanding.window_change = window_change;
            state.initiator.outstanding.push_back(outstanding);
            state.unsignaled = 0;
        });
        drop(state);
        posted.map_err(|kind| self.explain(kind))
    }

    /// Posts the invalidation of a window.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn post_invalidate(
        &self,
        request: WindowRequest,
        window: &Arc<Window>,
    ) -> Result<(), PostErrorKind> {
        let WindowRequest { ticket, flags } = request;
        let mut state = self.lock();
        let bound = self.admits(&state, OpKind::Invalidate, 0).and_then(|key| {
            // Bound by another queue pair, it cannot be taken back by this one (`MW-04`).
            window.unbind(key).map(|bound| (key, bound)).ok_or(PostErrorKind::NotBound)
        });
        let posted = match bound {
            Ok((key, bound)) => {
                let operation = sys::Operation::LocalInvalidate(bound.key());
                let mut outstanding = Outstanding::to_send(ticket, Payload::new(), flags);
                outstanding.window_change = WindowChange::Invalidating(Box::new((window.clone(), bound)));
                self.submit(&mut state, key, outstanding, &operation, Bytes::NOTHING, flags)
            }
            Err(kind) => Err(Refused { kind, payload: Payload::new() }),
        };
        self.conclude(state, posted).map_err(|refused| refused.kind)
    }

    /// Ends a posting call, whose outcome is that of [`submit`](Self::submit).
    ///
    /// # Errors
    /// Those of the outcome, with the cause of the loss of the connection if nothing can be posted because of it.
    #[inline]
    fn conclude(&self, state: MutexGuard<'_, State>, posted: Result<bool, Refused>) -> Result<(), Refused> {
        self.unlock(state, matches!(posted, Ok(true)));
        match posted {
            Ok(_) => Ok(()),
            Err(Refused { kind, payload }) => Err(Refused { kind: self.explain(kind), payload }),
        }
    }

    /// Unlocks, and ends the connection if the device has refused deferred requests.
    #[inline]
    fn unlock(&self, state: MutexGuard<'_, State>, refused: bool) {
        let key = if refused { state.device.as_ref().map(|device| device.key()) } else { None };
        drop(state);
        if let Some(key) = key {
            self.doorbell_refused(key);
        }
    }

    /// Adds the cause of the loss of the connection, if nothing can be posted because of it.
    #[cold]
    fn explain(&self, kind: PostErrorKind) -> PostErrorKind {
        let connector = self.lock().user();
        match (kind, connector.and_then(|connector| connector.cause())) {
            (PostErrorKind::ConnectionInvalid, Some(reason)) => PostErrorKind::ConnectionLost { reason },
            (kind, _) => kind,
        }
    }

    /// Returns whether the call that posts these bytes copies them, as it does with few, so that the device need not come for them;
    /// not behind a fence, as they may be what a read before it brings.
    fn is_copied(&self, payload: &Payload, length: usize, flags: Flags) -> bool {
        let few = 1..=self.capacities.inline as usize;
        few.contains(&length) && !flags.contains(Flags::FENCE) && payload.iter().all(Slice::can_be_copied)
    }

    /// Checks that a request of this kind and length can be posted now. Returns the key of the device's queue
    /// pair.
    ///
    /// # Errors
    /// The reason why it cannot be posted.
    fn admits(&self, state: &State, kind: OpKind, length: usize) -> Result<u32, PostErrorKind> {
        let maximum = self.adapter.info().max_transfer;
        if length > maximum {
            return Err(PostErrorKind::TooLong { length, maximum });
        }
        if self.adapter.is_removed() {
            return Err(PostErrorKind::DeviceRemoved);
        }
        // A message may be answered as soon as it has come: in librdmacm, too, the queue pair can send by then.
        if !(state.has_received && state.phase == QueuePairState::Associated) {
            state.phase.admits(kind)?;
        }
        if state.refused {
            // Its connection is about to end.
            return Err(PostErrorKind::ConnectionInvalid);
        }
        if state.initiator.outstanding.len() >= self.send_depth as usize {
            return Err(self.full(QueueKind::Send));
        }
        let device = state.device.as_ref().ok_or(PostErrorKind::ConnectionInvalid)?;
        if matches!(kind, OpKind::Read | OpKind::CompareSwap | OpKind::FetchAdd) && state.reads == 0 {
            return Err(PostErrorKind::NoReads);
        }
        Ok(device.key())
    }

    /// Hands a request to the device, now or with the doorbell. Returns whether some of the deferred requests
    /// were refused, see [`ring_for`](Self::ring_for).
    fn submit(
        &self,
        state: &mut State,
        key: u32,
        mut outstanding: Outstanding,
        operation: &sys::Operation<'static>,
        bytes: Bytes<'_>,
        flags: Flags,
    ) -> Result<bool, Refused> {
        let Bytes { entries, inline, copied } = bytes;
        outstanding.unsignaled = outstanding.silent
            && matches!(outstanding.window_change, WindowChange::Nothing)
            && self.may_be_unsignaled(state);
        let id = RequestId { key, receive: false, sequence: state.initiator.next() };
        let mut send_flags = send_flags(flags);
        send_flags.set(SendFlags::SIGNALED, !outstanding.unsignaled);
        send_flags.set(SendFlags::INLINE, inline);
        if self.adapter.is_iwarp() && matches!(operation, sys::Operation::Read(_)) {
            // Reads are answered in their order, so it waits by itself; `siw` gives up on one that has the flag.
            send_flags.remove(SendFlags::FENCE);
        }
        let unsignaled = if outstanding.unsignaled { state.unsignaled + 1 } else { 0 };
        if flags.contains(Flags::DEFER) || !state.deferred.is_empty() {
            let (operation, entries) = (*operation, entries.into());
            state.deferred.push(Deferred { id, operation, entries, copied, flags: send_flags });
            state.initiator.outstanding.push_back(outstanding);
            state.unsignaled = unsignaled;
            let rings = !flags.contains(Flags::DEFER) || state.deferred.len() >= DEFERRED;
            return Ok(rings && self.ring_for(state));
        }
        let Some(device) = state.device.as_ref() else {
            return Err(Refused { kind: PostErrorKind::ConnectionInvalid, payload: outstanding.payload });
        };
        let request = SendRequest { id: id.pack(), operation: *operation, entries, flags: send_flags };
        // SAFETY: as in `post_receive_locked`; or the entry is a part of `copies`, which this call reads and the device
        // does not read later. Bytes of a region that the call copies may be written by others during the call, as they
        // may while a device reads them.
        match unsafe { device.queue_pair.post_send(&[request]) } {
            Ok(()) => {
                state.initiator.outstanding.push_back(outstanding);
                state.unsignaled = unsignaled;
                Ok(false)
            }
            Err(sys::Refused { source, .. }) => {
                if let WindowChange::Invalidating(invalidating) = outstanding.window_change {
                    let (window, bound) = *invalidating;
                    window.rebind(bound);
                }
                Err(Refused { kind: self.refused(QueueKind::Send, &source), payload: outstanding.payload })
            }
        }
    }

    /// Returns the entries of a request whose bytes are in this range of the copies.
    fn entry_of(&self, copies: &[u8], range: &Range<usize>) -> Entries {
        match copies.get(range.clone()) {
            Some(bytes) if !bytes.is_empty() => {
                let (address, length) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u32);
                Entries::from_iter([ScatterEntry { address, length, key: 0 }])
            }
            _ => nothing(self.adapter.quirks()),
        }
    }

    /// Returns whether the next request may succeed without a completion of the device: in each half of the
    /// queue one request has a completion, so that there is always room again. Devices of iWARP finish a
    /// write before an earlier read, and then nothing follows from the completion of the write.
    fn may_be_unsignaled(&self, state: &State) -> bool {
        !self.adapter.is_iwarp() && state.unsignaled < self.send_depth / 2
    }

    /// Posts the deferred requests to the device.
    pub(crate) fn ring(&self) {
        let mut state = self.lock();
        let refused = self.ring_for(&mut state);
        self.unlock(state, refused);
    }

    /// Posts the deferred requests. Returns whether the device refused some of them: nothing is posted behind
    /// these, and the caller ends the connection, without the lock. The outstanding requests finish with it,
    /// as nothing may be known of the requests before.
    fn ring_for(&self, state: &mut State) -> bool {
        if state.deferred.is_empty() {
            return false;
        }
        let mut deferred = std::mem::take(&mut state.deferred);
        // The copies may have moved when those of later requests were added.
        for Deferred { entries, copied, .. } in &mut deferred {
            if let Some(range) = copied {
                *entries = self.entry_of(&state.copies, range);
            }
        }
        let requests: SmallVec<[SendRequest<'_>; 16]> = deferred.iter().map(Deferred::request).collect();
        let posted = match state.device.as_ref() {
            // SAFETY: as in `submit`.
            Some(device) => unsafe { device.queue_pair.post_send(&requests) },
            // The requests have come back flushed.
            None => Ok(()),
        };
        drop(requests);
        if let Err(sys::Refused { taken, source }) = &posted {
            tracing::debug!(%source, taken, "deferred requests rejected");
            state.refused = true;
        }
        deferred.clear();
        state.deferred = deferred;
        state.copies.clear();
        posted.is_err()
    }

    /// Hands a binding to the device, and returns what its request holds until it has finished.
    ///
    /// # Errors
    /// The reason why it was not posted.
    fn bind_window(
        &self,
        state: &mut State,
        key: u32,
        window: &Arc<Window>,
        target: BindTarget<&Arc<Registration>>,
        flags: SendFlags,
    ) -> Result<WindowChange, PostErrorKind> {
        // The deferred requests come first, in the order of the calls. If one of them is refused, the connection ends.
        if self.ring_for(state) {
            self.broke_later(key);
            return Err(PostErrorKind::ConnectionInvalid);
        }
        let BindTarget { registration, range, access } = target;
        let Some(device) = state.device.as_ref() else { return Err(PostErrorKind::ConnectionInvalid) };
        let free = window.take_free().map_err(|error| match error {
            RegisterError::DeviceRemoved => PostErrorKind::DeviceRemoved,
            RegisterError::InsufficientResources(what) => PostErrorKind::InsufficientResources(what),
            _ => PostErrorKind::Device(libc::ENOMEM),
        })?;
        let id = RequestId { key, receive: false, sequence: state.initiator.next() }.pack();
        let posted = registration.with_region(|region| {
            let operation = sys::Operation::BindWindow(Binding {
                window: free.window(),
                key: free.key(),
                next_key: free.next_key(),
                region,
                address: registration.address() + range.start as u64,
                length: range.len() as u64,
                access: rights(access),
            });
            // SAFETY: the window is held by the request until it has finished, or is freed before, which the device notices;
            // the registration is held by the window. No other request has this window of the device.
            unsafe { device.queue_pair.post_send(&[SendRequest { id, operation, entries: &[], flags }]) }
        });
        let posted = posted.ok_or(PostErrorKind::ForeignMemory);
        let refused = |refused: sys::Refused| self.refused(QueueKind::Send, &refused.source);
        let posted = posted.and_then(|posted| posted.map_err(refused));
        if let Err(kind) = posted {
            window.give_back(free);
            return Err(kind);
        }
        let before = window.bind(free, registration, range, key);
        state.add_window(window);
        Ok(WindowChange::Binding(Box::new((window.clone(), before))))
    }

    /// Ends the connection, without the lock, because a request was refused.
    fn broke_later(&self, key: u32) {
        if let Some(me) = self.me.upgrade() {
            self.adapter.runtime.spawn(async move { me.doorbell_refused(key) });
        }
    }

    /// Returns the error of a post to a queue that holds as many requests as it can.
    #[cold]
    fn full(&self, queue: QueueKind) -> PostErrorKind {
        let depth = if queue == QueueKind::Send { self.send_depth } else { self.capacities.receive };
        PostErrorKind::QueueFull { queue, depth: depth as usize }
    }

    /// Returns the error of a post that the driver refuses.
    fn refused(&self, queue: QueueKind, error: &io::Error) -> PostErrorKind {
        match error.raw_os_error() {
            _ if self.adapter.is_removed() => PostErrorKind::DeviceRemoved,
            Some(libc::ENOMEM) => self.full(queue),
            // The driver has moved it, and the event that says so is on its way.
            Some(libc::ENOTCONN) => PostErrorKind::ConnectionInvalid,
            code => PostErrorKind::Device(code.unwrap_or(0)),
        }
    }
}

/// Translates an operation into one that the device takes.
fn translate(operation: Operation) -> sys::Operation<'static> {
    match operation {
        Operation::Send { invalidate: Some(key), .. } => sys::Operation::SendInvalidate(key),
        Operation::Send { immediate: Some(immediate), .. } => sys::Operation::SendImmediate(immediate),
        Operation::Send { .. } => sys::Operation::Send,
        Operation::Write { to, immediate: Some(immediate) } => {
            sys::Operation::WriteImmediate(place(to), immediate)
        }
        Operation::Write { to, immediate: None } => sys::Operation::Write(place(to)),
        Operation::Read { from } => sys::Operation::Read(place(from)),
        Operation::CompareSwap { at, compare, swap } => {
            sys::Operation::CompareSwap { remote: place(at), compare, swap }
        }
        Operation::FetchAdd { at, add } => sys::Operation::FetchAdd { remote: place(at), add },
    }
}

fn place(remote: RemoteAddress) -> RemoteMemory {
    RemoteMemory { address: remote.address, key: remote.key }
}

fn send_flags(flags: Flags) -> SendFlags {
    let flag = |asked, flag| if flags.contains(asked) { flag } else { SendFlags::empty() };
    flag(Flags::FENCE, SendFlags::FENCE) | flag(Flags::SOLICITED, SendFlags::SOLICITED)
}

/// Translates the rights of a window into those of the device.
fn rights(access: Access) -> AccessFlags {
    let flag = |asked, flag| if access.contains(asked) { flag } else { AccessFlags::empty() };
    flag(Access::REMOTE_READ, AccessFlags::REMOTE_READ)
        | flag(Access::REMOTE_WRITE, AccessFlags::REMOTE_WRITE)
        | flag(Access::REMOTE_ATOMIC, AccessFlags::REMOTE_ATOMIC)
}
