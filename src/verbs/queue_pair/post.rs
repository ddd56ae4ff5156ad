//! Posts requests to the queues of a queue pair.
//!
//! The way of nearly all requests is inlined in one function: a request is too large to be passed from one to the next.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use super::device::Current;
use super::{QueuePair, State};
use crate::error::{PostErrorKind, RegisterError};
use crate::inflight::{self, Completed, Payload, ReadPlace, Ticket, WakeList};
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
    Entries, Held, Outstanding, WorkQueue, entries, nothing, receive_entries, single_entry,
    single_receive_entry,
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
    pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        let mut state = self.lock();
        if self.adapter.is_removed() {
            return Err(Refused { kind: PostErrorKind::DeviceRemoved, payload });
        }
        match (state.device.current(), state.phase) {
            (Some(_), _) => self.post_receive_now(&mut state, ticket, payload),
            (None, QueuePairState::Unconnected) => self.post_later(&mut state, ticket, payload),
            (None, _) => {
                // Too late: it comes back flushed (`DIS-10`).
                let mut wakes = WakeList::default();
                let canceled = Completed::failed(Status::CANCELED, payload);
                state.receives.sink.complete(ticket, canceled, &mut wakes);
                drop(state);
                wakes.wake_all();
                Ok(())
            }
        }
    }

    /// Keeps a receive for the next queue pair of the device, which a job is making.
    fn post_later(&self, state: &mut State, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        let held = state.receives.outstanding.len() + state.receives.failed.len() + state.waiting.len();
        if held >= self.capacities.receive as usize {
            return Err(Refused { kind: self.full(QueueKind::Receive), payload });
        }
        if let Err(kind) = receive_entries(&payload, self.adapter.quirks()) {
            return Err(Refused { kind, payload });
        }
        state.waiting.push_back(Outstanding::new(ticket, payload));
        Ok(())
    }

    /// Posts a receive under the lock.
    pub(super) fn post_receive_locked(
        &self,
        state: &mut State,
        ticket: Ticket,
        payload: Payload,
    ) -> Result<(), Refused> {
        self.post_receive_now(state, ticket, payload)
    }

    /// Posts a receive like [`post_receive_locked`](Self::post_receive_locked), for the way of nearly all.
    #[inline(always)]
    fn post_receive_now(&self, state: &mut State, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        let Some(current) = state.device.current() else {
            return Err(Refused { kind: PostErrorKind::ConnectionInvalid, payload });
        };
        if state.receives.outstanding.len() >= self.capacities.receive as usize {
            return Err(Refused { kind: self.full(QueueKind::Receive), payload });
        }
        let (one, several);
        let entries = match single_receive_entry(&payload, self.adapter.quirks()) {
            Some(entry) => {
                one = entry;
                &one[..]
            }
            None => match receive_entries(&payload, self.adapter.quirks()) {
                Ok(entries) => {
                    several = entries;
                    &several[..]
                }
                Err(kind) => return Err(Refused { kind, payload }),
            },
        };
        let id = RequestId { key: current.qp.key(), receive: true, sequence: state.receives.next() };
        let request = ReceiveRequest { id: id.pack(), entries };
        // SAFETY: the entries are parts of `payload`, registered allocations that are shared from now on and stay in
        // `outstanding` until the request has completed or `stop` has destroyed the queue pair. Memory of another device is
        // among them only where the device receives in place.
        match unsafe { current.qp.queue_pair.post_receive(request) } {
            Ok(()) => {
                state.receives.outstanding.push_back(Outstanding::new(ticket, payload));
                Ok(())
            }
            Err(sys::Refused { source, .. }) => {
                Err(Refused { kind: self.refused(QueueKind::Receive, &source), payload })
            }
        }
    }

    /// Posts a request of the send queue that is no read.
    pub(crate) fn post_send(&self, request: WorkRequest) -> Result<(), Refused> {
        let WorkRequest { ticket, operation, payload, flags } = request;
        let kind = operation.kind();
        let operation = translate(operation);
        let length = inflight::length(&payload);
        let mut state = self.lock();
        let posted = match self.admits(&mut state, kind, length) {
            Ok((current, queue)) => {
                let outstanding = Outstanding::to_send(ticket, payload, flags);
                let inline = self.is_copied(&outstanding.payload, length, flags);
                if let Some(entries) = single_entry(&outstanding.payload, false) {
                    let bytes = Bytes { entries: &entries, inline, copied: None };
                    self.submit(current, queue, outstanding, &operation, bytes, flags)
                } else if let Some(entries) = entries(&outstanding.payload, false, self.adapter.quirks()) {
                    let bytes = Bytes { entries: &entries, inline, copied: None };
                    self.submit_other(current, queue, outstanding, &operation, bytes, flags)
                } else {
                    Err(Refused { kind: PostErrorKind::ForeignMemory, payload: outstanding.payload })
                }
            }
            Err(kind) => Err(Refused { kind, payload }),
        };
        self.conclude(state, posted)
    }

    /// Posts a read or an atomic, unless the adapter has as many in flight as it may have.
    pub(crate) fn post_read(&self, request: WorkRequest) -> Result<(), Refused> {
        let WorkRequest { ticket, operation, payload, flags } = request;
        let (kind, length) = (operation.kind(), inflight::length(&payload));
        // Before the lock, as it may be free again behind it.
        let mut place = self.adapter.read_place(flags, length);
        let mut state = self.lock();
        let admitted = self.admits_other(&mut state, kind, length).and_then(|admitted| match place {
            Ok(_) => Ok(admitted),
            Err(full) => Err(full),
        });
        let posted = match (admitted, entries(&payload, true, self.adapter.quirks())) {
            (Ok((current, queue)), Some(entries)) => {
                if let Ok(Some(_)) = place {
                    // With a completion, whatever its options: the place is free once that has come.
                    current.unsignaled = self.send_depth;
                }
                let outstanding = Outstanding::to_send(ticket, payload, flags);
                let bytes = Bytes { entries: &entries, inline: false, copied: None };
                let posted =
                    self.submit_other(current, queue, outstanding, &translate(operation), bytes, flags);
                if let (Ok(_), Ok(place), Some(outstanding)) =
                    (&posted, &mut place, queue.outstanding.back_mut())
                {
                    outstanding.held = place.take().map_or(Held::Nothing, Held::Reading);
                }
                posted
            }
            (Ok(_), None) => Err(Refused { kind: PostErrorKind::ForeignMemory, payload }),
            (Err(kind), _) => Err(Refused { kind, payload }),
        };
        let posted = self.conclude(state, posted);
        if let (true, Ok(Some(place))) = (flags.contains(Flags::RESERVED), place) {
            // It is not posted, and the caller takes the place back.
            drop(place.pass());
        }
        posted
    }

    /// Reserves a place among the reads in flight of the adapter, and waits for it. `None` if the number of these is not limited.
    ///
    /// # Errors
    /// If it would wait, those of a post, except a full queue.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line.
    pub(crate) async fn reserve_read(&self) -> Result<Option<ReadPlace>, PostErrorKind> {
        let Some(places) = &self.adapter.reads else { return Ok(None) };
        if let Ok(place) = places.take() {
            return Ok(place);
        }
        // Deferred reads have places, which are not free before they are posted.
        self.ring();
        let mut place = pin!(places.wait());
        let mut settled = pin!(self.settled.notified());
        loop {
            settled.as_mut().enable();
            self.check_reads()?;
            tokio::select! {
                biased;
                place = &mut place => {
                    // A queue pair that has ended meanwhile, or whose adapter is removed, needs none.
                    return self.check_reads().map(|()| place);
                }
                () = settled.as_mut() => {}
            }
            settled.set(self.settled.notified());
        }
    }

    /// Checks that reads can be posted, now or when the queue has room.
    ///
    /// # Errors
    /// Those of a post.
    fn check_reads(&self) -> Result<(), PostErrorKind> {
        let checked = self.admits_other(&mut self.lock(), OpKind::Read, 0).map(drop);
        match checked {
            Ok(()) | Err(PostErrorKind::QueueFull { .. }) => Ok(()),
            Err(kind) => Err(self.explain(kind)),
        }
    }

    /// Posts a request of the send queue whose bytes are copied by this call.
    pub(crate) fn post_inline(&self, request: InlineRequest<'_>) -> Result<(), PostErrorKind> {
        let InlineRequest { ticket, operation, parts, flags } = request;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut state = self.lock();
        let posted = match self.admits(&mut state, operation.kind(), length) {
            Ok((current, queue)) => {
                let mut outstanding = Outstanding::to_send(ticket, Payload::new(), flags);
                // No longer than the inline bytes of a queue pair.
                outstanding.copied = length as u32;
                let from = current.copies.len();
                parts.iter().for_each(|part| current.copies.extend_from_slice(part));
                let range = from..current.copies.len();
                let entries = self.entry_of(&current.copies, &range);
                let bytes = Bytes { entries: &entries, inline: true, copied: Some(range) };
                let posted = self.submit(current, queue, outstanding, &translate(operation), bytes, flags);
                if current.deferred.is_empty() {
                    // The device has them, or nobody wants them.
                    current.copies.clear();
                }
                posted
            }
            Err(kind) => Err(Refused { kind, payload: Payload::new() }),
        };
        self.conclude(state, posted).map_err(|refused| refused.kind)
    }

    /// Posts the bind of a window, which has its new key when this returns.
    pub(crate) fn post_bind(
        &self,
        request: WindowRequest,
        window: &Arc<Window>,
        target: BindTarget<&Arc<Registration>>,
    ) -> Result<(), PostErrorKind> {
        let WindowRequest { ticket, flags } = request;
        let mut state = self.lock();
        let mut refused = None;
        let posted = self.admits_other(&mut state, OpKind::Bind, 0).and_then(|(current, queue)| {
            // The deferred requests come first, in the order of the calls. If one of them is refused, the connection ends.
            if self.ring_for(current) {
                refused = Some(current.qp.key());
                return Err(PostErrorKind::ConnectionInvalid);
            }
            let options = send_flags(flags) | SendFlags::SIGNALED;
            let mut outstanding = Outstanding::to_send(ticket, Payload::new(), flags);
            outstanding.held = self.bind_window(current, queue.next(), window, target, options)?;
            queue.outstanding.push_back(outstanding);
            current.unsignaled = 0;
            Ok(())
        });
        drop(state);
        let posted = posted.map_err(|kind| self.explain(kind));
        if let Some(key) = refused {
            self.doorbell_refused(key);
        }
        posted
    }

    /// Posts the invalidation of a window.
    pub(crate) fn post_invalidate(
        &self,
        request: WindowRequest,
        window: &Arc<Window>,
    ) -> Result<(), PostErrorKind> {
        let WindowRequest { ticket, flags } = request;
        let mut state = self.lock();
        let bound = self.admits_other(&mut state, OpKind::Invalidate, 0).and_then(|(current, queue)| {
            // Bound by another queue pair, it cannot be taken back by this one (`MW-04`).
            let bound = window.unbind(current.qp.key()).ok_or(PostErrorKind::NotBound)?;
            Ok((current, queue, bound))
        });
        let posted = match bound {
            Ok((current, queue, bound)) => {
                let operation = sys::Operation::LocalInvalidate(bound.key());
                let mut outstanding = Outstanding::to_send(ticket, Payload::new(), flags);
                outstanding.held = Held::Invalidating(Box::new((window.clone(), bound)));
                self.submit_other(current, queue, outstanding, &operation, Bytes::NOTHING, flags)
            }
            Err(kind) => Err(Refused { kind, payload: Payload::new() }),
        };
        self.conclude(state, posted).map_err(|refused| refused.kind)
    }

    /// Ends a posting call, whose outcome is that of [`submit`](Self::submit).
    ///
    /// # Errors
    /// Those of the outcome, with the cause of the loss of the connection if nothing can be posted because of it.
    #[inline(always)]
    fn conclude(&self, state: MutexGuard<'_, State>, posted: Result<bool, Refused>) -> Result<(), Refused> {
        match posted {
            Ok(false) => drop(state),
            Ok(true) => self.unlock(state, true),
            Err(Refused { kind, payload }) => {
                drop(state);
                return Err(Refused { kind: self.explain(kind), payload });
            }
        }
        Ok(())
    }

    /// Unlocks, and ends the connection if the device has refused deferred requests.
    fn unlock(&self, state: MutexGuard<'_, State>, refused: bool) {
        let key = if refused { state.device.current().map(|current| current.qp.key()) } else { None };
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

    /// Checks a request like [`admits`](Self::admits), where that is not in the way of nearly all.
    #[inline(never)]
    fn admits_other<'a>(
        &self,
        state: &'a mut State,
        kind: OpKind,
        length: usize,
    ) -> Result<(&'a mut Current, &'a mut WorkQueue), PostErrorKind> {
        self.admits(state, kind, length)
    }

    /// Checks that a request of this kind and length can be posted now. Returns the queue pair of the device and the queue that
    /// take it.
    #[inline(always)]
    fn admits<'a>(
        &self,
        state: &'a mut State,
        kind: OpKind,
        length: usize,
    ) -> Result<(&'a mut Current, &'a mut WorkQueue), PostErrorKind> {
        let maximum = self.adapter.info().max_transfer;
        if length > maximum {
            return Err(PostErrorKind::TooLong { length, maximum });
        }
        if self.adapter.is_removed() {
            return Err(PostErrorKind::DeviceRemoved);
        }
        let State { phase, device, initiator, .. } = state;
        let current = device.current_mut();
        // A message may be answered as soon as it has come: in librdmacm, too, the queue pair can send by then.
        let answers =
            *phase == QueuePairState::Associated && current.as_ref().is_some_and(|c| c.has_received);
        if !answers {
            phase.admits(kind)?;
        }
        // If the device has refused requests, the connection is about to end.
        let current = current.filter(|c| !c.refused).ok_or(PostErrorKind::ConnectionInvalid)?;
        if initiator.outstanding.len() >= self.send_depth as usize {
            return Err(self.full(QueueKind::Send));
        }
        if is_read(kind) && current.reads == 0 {
            return Err(PostErrorKind::NoReads);
        }
        Ok((current, initiator))
    }

    /// Hands a request to the device, like [`submit`](Self::submit), where that is not in the way of nearly all.
    #[inline(never)]
    fn submit_other(
        &self,
        current: &mut Current,
        queue: &mut WorkQueue,
        outstanding: Outstanding,
        operation: &sys::Operation<'static>,
        bytes: Bytes<'_>,
        flags: Flags,
    ) -> Result<bool, Refused> {
        self.submit(current, queue, outstanding, operation, bytes, flags)
    }

    /// Hands a request to the device, now or with the doorbell. Returns whether some of the deferred requests
    /// were refused, see [`ring_for`](Self::ring_for).
    #[inline(always)]
    fn submit(
        &self,
        current: &mut Current,
        queue: &mut WorkQueue,
        mut outstanding: Outstanding,
        operation: &sys::Operation<'static>,
        bytes: Bytes<'_>,
        flags: Flags,
    ) -> Result<bool, Refused> {
        let Bytes { entries, inline, copied } = bytes;
        outstanding.unsignaled = outstanding.silent
            && matches!(outstanding.held, Held::Nothing)
            // In each half of the queue one request has a completion, so that there is always room again. Devices of iWARP finish a
            // write before an earlier read, and then nothing follows from the completion of the write.
            && !self.adapter.is_iwarp()
            && current.unsignaled < self.send_depth / 2;
        let id = RequestId { key: current.qp.key(), receive: false, sequence: queue.next() };
        let mut send_flags = send_flags(flags);
        send_flags.set(SendFlags::SIGNALED, !outstanding.unsignaled);
        send_flags.set(SendFlags::INLINE, inline);
        if self.adapter.is_iwarp() && matches!(operation, sys::Operation::Read(_)) {
            // Reads are answered in their order, so it waits by itself; `siw` gives up on one that has the flag.
            send_flags.remove(SendFlags::FENCE);
        }
        let unsignaled = if outstanding.unsignaled { current.unsignaled + 1 } else { 0 };
        if flags.contains(Flags::DEFER) || !current.deferred.is_empty() {
            let (operation, entries) = (*operation, entries.into());
            current.deferred.push(Deferred { id, operation, entries, copied, flags: send_flags });
            queue.outstanding.push_back(outstanding);
            current.unsignaled = unsignaled;
            let rings = !flags.contains(Flags::DEFER) || current.deferred.len() >= DEFERRED;
            return Ok(rings && self.ring_for(current));
        }
        let request = SendRequest { id: id.pack(), operation: *operation, entries, flags: send_flags };
        // SAFETY: as in `post_receive_locked`; or the entry is a part of `copies`, which this call reads and the device
        // does not read later. Bytes of a region that the call copies may be written by others during the call, as they
        // may while a device reads them.
        match unsafe { current.qp.queue_pair.post_one(&request) } {
            Ok(()) => {
                queue.outstanding.push_back(outstanding);
                current.unsignaled = unsignaled;
                Ok(false)
            }
            Err(sys::Refused { source, .. }) => {
                if let Held::Invalidating(invalidating) = outstanding.held {
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

    /// Posts the deferred requests to the device.
    pub(crate) fn ring(&self) {
        let mut state = self.lock();
        let refused = state.device.current_mut().is_some_and(|current| self.ring_for(current));
        self.unlock(state, refused);
    }

    /// Posts the deferred requests. Returns whether the device refused some of them: nothing is posted behind
    /// these, and the caller ends the connection, without the lock. The outstanding requests finish with it,
    /// as nothing may be known of the requests before.
    fn ring_for(&self, current: &mut Current) -> bool {
        let Current { qp, deferred, copies, refused, .. } = current;
        if deferred.is_empty() {
            return false;
        }
        // The copies may have moved when those of later requests were added.
        for Deferred { entries, copied, .. } in &mut *deferred {
            if let Some(range) = copied {
                *entries = self.entry_of(copies, range);
            }
        }
        // SAFETY: as in `submit`.
        let posted = unsafe { qp.queue_pair.post_send(deferred, Deferred::request) };
        deferred.clear();
        copies.clear();
        if let Err(sys::Refused { taken, source }) = &posted {
            tracing::debug!(%source, taken, "deferred requests rejected");
            *refused = true;
        }
        posted.is_err()
    }

    /// Hands a binding to the device, and returns what its request holds until it has finished.
    fn bind_window(
        &self,
        current: &mut Current,
        sequence: u32,
        window: &Arc<Window>,
        target: BindTarget<&Arc<Registration>>,
        flags: SendFlags,
    ) -> Result<Held, PostErrorKind> {
        let key = current.qp.key();
        let BindTarget { registration, range, access } = target;
        let free = window.take_free().map_err(|error| match error {
            RegisterError::DeviceRemoved => PostErrorKind::DeviceRemoved,
            RegisterError::InsufficientResources(what) => PostErrorKind::InsufficientResources(what),
            _ => PostErrorKind::Device(libc::ENOMEM),
        })?;
        let id = RequestId { key, receive: false, sequence }.pack();
        let posted = registration.with_region(|region| {
            let operation = sys::Operation::BindWindow(Binding {
                window: &free.window,
                key: free.key,
                next_key: sys::next_key(free.key),
                region,
                address: registration.address() + range.start as u64,
                length: range.len() as u64,
                access: rights(access),
            });
            // SAFETY: the window is held by the request until it has finished, or is freed before, which the device notices;
            // the registration is held by the window. No other request has this window of the device.
            unsafe { current.qp.queue_pair.post_one(&SendRequest { id, operation, entries: &[], flags }) }
        });
        let posted = posted.ok_or(PostErrorKind::ForeignMemory);
        let refused = |refused: sys::Refused| self.refused(QueueKind::Send, &refused.source);
        let posted = posted.and_then(|posted| posted.map_err(refused));
        if let Err(kind) = posted {
            window.give_back(free);
            return Err(kind);
        }
        let before = window.bind(free, registration, range, key);
        current.add_window(window);
        Ok(Held::Binding(Box::new((window.clone(), before))))
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

/// Returns whether a request of this kind is one of those whose number in flight is limited.
#[inline]
pub(crate) fn is_read(kind: OpKind) -> bool {
    matches!(kind, OpKind::Read | OpKind::CompareSwap | OpKind::FetchAdd)
}

/// Translates an operation into one that the device takes.
pub(crate) fn translate(operation: Operation) -> sys::Operation<'static> {
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
