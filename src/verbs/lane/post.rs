//! The requests of a lane.
//!
//! Plain ones need no look at their queue pair, as long as nothing happens to it. The lane remembers the queue pair that it posts to last,
//! and takes all the room that it has. So a plain request asks only whether it is for that one, whether there is room, and whether the
//! program holds the slot. Before anything may change that, the lane [closes](Lane::close_ways) this way, which gives the room back.
//!
//! The others have options, several slots or none, or are receives of a shared queue.

use std::mem;
use std::ops::Range;

use smallvec::SmallVec;

use super::members::Loose;
use super::{CLOSED, Lane, NONE, Special};
use crate::error::PostErrorKind;
use crate::inflight::{self, Done, LOOSE, Payload, ReadPlace, loose};
use crate::memory::{SlotState, Slots};
use crate::provider::work::{Flags, LaneRequest, LaneSource, Operation, RemoteAddress};
use crate::sys::{Piece, ReceiveRun, RemoteMemory, ScatterEntry, SendFlags, SendPlace, SendRequest, SendRun};
use crate::types::{OpKind, QueueKind, QueuePairId, Slot};
use crate::verbs::queue_pair::{is_read, translate};
use crate::verbs::work_queue::{Entries, entries, nothing};

impl Lane {
    /// Posts a Send of the first bytes of a slot.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        length: usize,
    ) -> Result<(), PostErrorKind> {
        let add = |place: SendPlace<'_>, piece, inline| place.send(piece, inline);
        if self.post(queue_pair, slot, 0, length, SlotState::Send, add) {
            return Ok(());
        }
        self.send_otherwise(queue_pair, slot, length)
    }

    /// Posts a Send that could not be posted at once.
    #[inline(never)]
    fn send_otherwise(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        length: usize,
    ) -> Result<(), PostErrorKind> {
        let add = |place: SendPlace<'_>, piece, inline| place.send(piece, inline);
        if self.send_to(queue_pair) && self.post(queue_pair, slot, 0, length, SlotState::Send, add) {
            return Ok(());
        }
        let operation = Operation::Send { invalidate: None, immediate: None };
        self.post_otherwise(queue_pair, (slot, 0, length), operation)
    }

    /// Posts an RDMA Write of a part of a slot.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        queue_pair: QueuePairId,
        (slot, part): (Slot, Range<usize>),
        to: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        let remote = RemoteMemory { address: to.address, key: to.key };
        let add = |place: SendPlace<'_>, piece, inline| place.write(piece, remote, inline);
        if self.post(queue_pair, slot, part.start, part.end, SlotState::Write, add) {
            return Ok(());
        }
        self.write_otherwise(queue_pair, (slot, part), to)
    }

    /// Posts an RDMA Write that could not be posted at once.
    #[inline(never)]
    fn write_otherwise(
        &mut self,
        queue_pair: QueuePairId,
        (slot, part): (Slot, Range<usize>),
        to: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        let remote = RemoteMemory { address: to.address, key: to.key };
        let add = |place: SendPlace<'_>, piece, inline| place.write(piece, remote, inline);
        if self.send_to(queue_pair)
            && self.post(queue_pair, slot, part.start, part.end, SlotState::Write, add)
        {
            return Ok(());
        }
        let part = (slot, part.start, part.end);
        self.post_otherwise(queue_pair, part, Operation::Write { to, immediate: None })
    }

    /// Posts an RDMA Read into a part of a slot.
    #[inline]
    pub(crate) fn read(
        &mut self,
        queue_pair: QueuePairId,
        (slot, part): (Slot, Range<usize>),
        from: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        let remote = RemoteMemory { address: from.address, key: from.key };
        let add = |place: SendPlace<'_>, piece, _| place.read(piece, remote);
        let Range { start, end } = part;
        // `send_to` may be what sees that the queue pair is connected, and whether for reads.
        if self.admits_reads(queue_pair) && self.post(queue_pair, slot, start, end, SlotState::Read, add)
            || self.send_to(queue_pair)
                && self.admits_reads(queue_pair)
                && self.post(queue_pair, slot, start, end, SlotState::Read, add)
        {
            return Ok(());
        }
        self.post_otherwise(queue_pair, (slot, start, end), Operation::Read { from })
    }

    /// Lends a part of a slot to a plain request, and puts that in the chain with `add`, whose argument says whether the bytes are
    /// copied. Returns whether it did: if not, nothing has changed.
    #[inline(always)]
    fn post(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        start: usize,
        end: usize,
        state: SlotState,
        add: impl FnOnce(SendPlace<'_>, Piece, bool),
    ) -> bool {
        let first = Done::id_of(queue_pair, 0);
        if self.sending != first {
            return false;
        }
        // A closed way has no room, also for an id that begins with `CLOSED`: that of a place without a completion does.
        debug_assert!(first != CLOSED || self.sends_left == 0);
        let Self { sends, sends_left, outstanding, slots, inline, .. } = self;
        let mut run = sends.run(sends_left, outstanding);
        add_to(&mut run, slots, (first, state, *inline), (slot, start, end), add)
    }

    /// Posts Sends of the first bytes of several slots, and hands them to the device, until the queue is full. Returns their number.
    ///
    /// # Errors
    /// That of a Send, unless the queue is full. Those before are posted and handed over.
    #[inline(always)]
    pub(crate) fn send_all(
        &mut self,
        queue_pair: QueuePairId,
        of: impl IntoIterator<Item = (Slot, usize)>,
    ) -> Result<usize, PostErrorKind> {
        let first = Done::id_of(queue_pair, 0);
        let mut of = of.into_iter();
        let add = |place: SendPlace<'_>, piece, inline| place.send(piece, inline);
        let mut posted = 0;
        loop {
            let mut next = of.next();
            if self.sending == first {
                // As in `post`.
                debug_assert!(first != CLOSED || self.sends_left == 0);
                let Self { sends, sends_left, outstanding, slots, inline, .. } = self;
                let (mut run, how) = (sends.run(sends_left, outstanding), (first, SlotState::Send, *inline));
                while let Some((slot, length)) = next
                    && add_to(&mut run, slots, how, (slot, 0, length), add)
                {
                    posted += 1;
                    next = of.next();
                }
            }
            let Some((slot, length)) = next else { break };
            match self.send_otherwise(queue_pair, slot, length) {
                Ok(()) => posted += 1,
                Err(PostErrorKind::QueueFull { .. }) => break,
                Err(error) => {
                    self.ring();
                    return Err(error);
                }
            }
        }
        self.ring();
        Ok(posted)
    }

    /// Posts a receive into a slot.
    #[inline(always)]
    pub(crate) fn receive(&mut self, queue_pair: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        if self.post_receive(queue_pair, slot) { Ok(()) } else { self.receive_otherwise(queue_pair, slot) }
    }

    /// Lends a slot to a receive, and puts that in the chain. Returns whether it did: if not, nothing has changed.
    #[inline(always)]
    fn post_receive(&mut self, queue_pair: QueuePairId, slot: Slot) -> bool {
        let first = Done::id_of(queue_pair, 0);
        if self.receiving != first {
            return false;
        }
        // As for sends.
        debug_assert!(first != CLOSED || self.receives_left == 0);
        let Self { receives, receives_left, outstanding, slots, .. } = self;
        add_receive(&mut receives.run(receives_left, outstanding), slots, first, slot)
    }

    /// Posts receives into several slots, as [`send_all`](Self::send_all) does.
    ///
    /// # Errors
    /// That of a receive, unless the queue is full. Those before are posted and handed over.
    #[inline(always)]
    pub(crate) fn receive_all(
        &mut self,
        queue_pair: QueuePairId,
        of: impl IntoIterator<Item = Slot>,
    ) -> Result<usize, PostErrorKind> {
        let first = Done::id_of(queue_pair, 0);
        let mut of = of.into_iter();
        let mut posted = 0;
        loop {
            let mut next = of.next();
            if self.receiving == first {
                // As in `post`.
                debug_assert!(first != CLOSED || self.receives_left == 0);
                let Self { receives, receives_left, outstanding, slots, .. } = self;
                let mut run = receives.run(receives_left, outstanding);
                while let Some(slot) = next
                    && add_receive(&mut run, slots, first, slot)
                {
                    posted += 1;
                    next = of.next();
                }
            }
            let Some(slot) = next else { break };
            match self.receive_otherwise(queue_pair, slot) {
                Ok(()) => posted += 1,
                Err(PostErrorKind::QueueFull { .. }) => break,
                Err(error) => {
                    self.ring();
                    return Err(error);
                }
            }
        }
        self.ring();
        Ok(posted)
    }

    /// Posts a receive that could not be posted at once.
    ///
    /// # Errors
    /// The reason why it was not posted.
    #[inline(never)]
    fn receive_otherwise(&mut self, queue_pair: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        if !self.receive_to(queue_pair) {
            return self.receive_apart(queue_pair, slot);
        }
        if self.post_receive(queue_pair, slot) {
            Ok(())
        } else {
            Err(PostErrorKind::NotHeld { slot: slot.0 })
        }
    }

    /// Lets receives be posted to a queue pair with a receive queue of its own, if it is open for them and has room. Those that wait for
    /// another one are handed to the device.
    fn receive_to(&mut self, queue_pair: QueuePairId) -> bool {
        if self.rare.shared.is_some() {
            return false;
        }
        let (first, place) = (Done::id_of(queue_pair, 0), queue_pair.place());
        if !self.receives.is_empty() && (self.receives_of != place || self.receives.is_full()) {
            self.ring_receives();
        }
        if self.receiving != first {
            self.close_receives();
        }
        let member = self.members.get_mut(place).filter(|member| member.receiving == queue_pair.0);
        let Some((member, device)) =
            member.and_then(|member| Some((&mut member.receive_room, member.device.as_ref()?)))
        else {
            return false;
        };
        if self.receiving != first {
            (self.receiving, self.receives_of) = (first, place);
            // SAFETY: `aim_nowhere` comes before the lane lets the queue pair go, except at its own end, behind which it posts nothing.
            unsafe { self.receives.aim(&device.queue_pair) };
        }
        self.receives_left += mem::take(member);
        self.receives_left > 0
    }

    /// Lets plain requests be posted to a queue pair, if it is open for them and has room. Those that wait for another one are handed to
    /// the device.
    #[inline(never)]
    fn send_to(&mut self, queue_pair: QueuePairId) -> bool {
        if self.news.is_pending() {
            self.look();
        }
        let (first, place) = (Done::id_of(queue_pair, 0), queue_pair.place());
        if !self.sends.is_empty() && (self.sends_of != place || self.sends.is_full()) {
            // The doorbell may find the end: nothing is posted behind what was refused.
            self.ring();
        }
        if self.sending != first {
            self.close_sends();
        }
        let member = self.members.get_mut(place).filter(|member| member.open == queue_pair.0);
        let Some((room, device)) =
            member.and_then(|member| Some((&mut member.send_room, member.device.as_ref()?)))
        else {
            return false;
        };
        if self.sending != first {
            (self.sending, self.sends_of) = (first, place);
            // SAFETY: `aim_nowhere` comes before the lane lets the queue pair go, except at its own end, behind which it posts nothing.
            unsafe { self.sends.aim(&device.queue_pair) };
        }
        self.sends_left += mem::take(room);
        self.sends_left > 0
    }

    /// Closes the plain ways, before something may change: what they have of the members is theirs again.
    pub(super) fn close_ways(&mut self) {
        self.close_sends();
        self.close_receives();
    }

    pub(super) fn close_sends(&mut self) {
        self.sending = CLOSED;
        let (left, completed) = (mem::take(&mut self.sends_left), mem::take(&mut self.completed));
        if let Some(member) = self.members.get_mut(self.sends_of) {
            member.send_room += left;
            member.quiet &= if completed > 0 { self.deaf } else { u32::MAX };
        }
    }

    pub(super) fn close_receives(&mut self) {
        self.receiving = CLOSED;
        let left = mem::take(&mut self.receives_left);
        if let Some(member) = self.members.get_mut(self.receives_of) {
            member.receive_room += left;
        }
    }
}

/// Lends a part of a slot to a plain request, which is added with `add`, as [`Lane::post`] does. Whose ids begin with `first`; bytes up to
/// the number `inline` are copied.
#[inline(always)]
fn add_to(
    run: &mut SendRun<'_>,
    slots: &mut Slots,
    (first, state, inline): (u64, SlotState, u32),
    (slot, start, end): (Slot, usize, usize),
    add: impl FnOnce(SendPlace<'_>, Piece, bool),
) -> bool {
    let Some(place) = run.vacant() else { return false };
    if end > slots.length() as usize || start >= end {
        return false;
    }
    if !slots.lend(slot.0, state, queue_pair_of(first).place() as u16) {
        return false;
    }
    let address = slots.device_address(slot.0) + start as u64;
    let (id, length) = (first | u64::from(slot.0), (end - start) as u32);
    add(place, Piece { id, address, length }, length <= inline);
    true
}

/// Lends a slot to a receive, which is added, like [`add_to`].
#[inline(always)]
pub(super) fn add_receive(run: &mut ReceiveRun<'_>, slots: &mut Slots, first: u64, slot: Slot) -> bool {
    let Some(place) = run.vacant() else { return false };
    if !slots.lend(slot.0, SlotState::Receive, queue_pair_of(first).place() as u16) {
        return false;
    }
    place.receive(first | u64::from(slot.0), slots.device_address(slot.0));
    true
}

/// Returns the queue pair with which an id begins.
#[inline]
fn queue_pair_of(id: u64) -> QueuePairId {
    QueuePairId((id >> 32) as u32)
}

impl Lane {
    /// Posts a request of the send queue with options, at once and behind those that wait.
    ///
    /// # Errors
    /// The reason why it was not posted: nothing has changed.
    pub(crate) fn request(&mut self, request: LaneRequest<'_>) -> Result<(), PostErrorKind> {
        let LaneRequest { queue_pair, operation, source, flags } = request;
        let kind = operation.kind();
        self.admit(queue_pair, kind)?;
        self.ring();
        // The doorbell may have found the end.
        self.admit(queue_pair, kind)?;
        let place = if is_read(kind) { self.read_place(&source)? } else { None };
        let silent = flags.contains(Flags::SILENT);
        let mut payload = Payload::new();
        let (id, entries, inline) = match source {
            LaneSource::Bytes(bytes) => {
                let id = self.loose_id(queue_pair, kind, silent);
                // The library copies them within the call.
                let address = bytes.as_ptr().addr() as u64;
                let entry = ScatterEntry { address, length: bytes.len() as u32, key: 0 };
                let none = || nothing(self.rare.context.quirks());
                let entries = if bytes.is_empty() { none() } else { Entries::from_iter([entry]) };
                (id, entries, !bytes.is_empty())
            }
            LaneSource::Slots(parts) => self.lend(queue_pair, (kind, flags), parts)?,
            LaneSource::Region(memory) => {
                let id = self.loose_id(queue_pair, kind, silent);
                let reads = !matches!(kind, OpKind::Send | OpKind::Write);
                let found = entries(memory, reads, self.rare.context.quirks());
                payload = memory.clone();
                (id, found.ok_or(PostErrorKind::ForeignMemory)?, false)
            }
        };
        // The place of a read is free once its completion has come.
        let unsignaled = place.is_none() && self.is_unsignaled(queue_pair, silent);
        let mut options = SendFlags::empty();
        options.set(SendFlags::SIGNALED, !unsignaled);
        options.set(SendFlags::INLINE, inline);
        options.set(SendFlags::FENCE, flags.contains(Flags::FENCE));
        options.set(SendFlags::SOLICITED, flags.contains(Flags::SOLICITED));
        let request = SendRequest { id, operation: translate(operation), entries: &entries, flags: options };
        let device = self.members.get(queue_pair.place()).and_then(|member| member.device.as_ref());
        // SAFETY: the entries are bytes that the call copies, or parts of slots that are lent to the request, as for plain requests,
        // or parts of registered memory that `count` keeps as long.
        let posted = device.map(|device| unsafe { device.queue_pair.post_one(&request) });
        if let Some(Ok(())) = posted {
            self.count(queue_pair, Loose { id, payload, place }, (silent, unsignaled));
            return Ok(());
        }
        let code = posted.and_then(|posted| posted.err()).and_then(|refused| refused.source.raw_os_error());
        if (id as u32) < LOOSE {
            // SAFETY: the device has not taken the request.
            unsafe { self.reclaim(id as u32, false) };
        }
        Err(PostErrorKind::Device(code.unwrap_or(libc::EINVAL)))
    }

    /// Posts a request with a part of a slot that is not plain: its queue pair has changed, or follows requests whose success the device
    /// does not report; or the part is empty or wrong, or the slot is not held.
    ///
    /// # Errors
    /// The reason why it was not posted.
    #[cold]
    #[inline(never)]
    pub(super) fn post_otherwise(
        &mut self,
        queue_pair: QueuePairId,
        (slot, start, end): (Slot, usize, usize),
        operation: Operation,
    ) -> Result<(), PostErrorKind> {
        let source = LaneSource::Slots(&[(slot, start..end)]);
        self.request(LaneRequest { queue_pair, operation, source, flags: Flags::empty() })
    }

    /// Returns the place among the reads in flight of the adapter for one into this memory, if their number is limited.
    ///
    /// # Errors
    /// `ReadsFull`.
    fn read_place(&self, into: &LaneSource<'_>) -> Result<Option<ReadPlace>, PostErrorKind> {
        let length = match into {
            LaneSource::Bytes(bytes) => bytes.len(),
            LaneSource::Slots(parts) => parts.iter().fold(0, |length, (_, part)| part.len().max(length)),
            LaneSource::Region(memory) => inflight::length(memory),
        };
        self.rare.context.read_place(Flags::empty(), length)
    }

    /// Returns the id of the next request of this kind without a slot: no other one of the queue pair has it.
    fn loose_id(&mut self, queue_pair: QueuePairId, kind: OpKind, silent: bool) -> u64 {
        let number = self.rare.loose;
        self.rare.loose = number.wrapping_add(1);
        Done::id_of(queue_pair, loose(kind, silent, number))
    }

    /// Lends parts of slots to a request of this kind. Returns its id, its entries, and whether the call is to copy the bytes.
    ///
    /// # Errors
    /// `NotHeld`, `TooLong`: none is lent.
    fn lend(
        &mut self,
        queue_pair: QueuePairId,
        (kind, flags): (OpKind, Flags),
        parts: &[(Slot, Range<usize>)],
    ) -> Result<(u64, Entries, bool), PostErrorKind> {
        let (maximum, mut length) = (self.slots.length() as usize, 0);
        for (place, (slot, part)) in parts.iter().enumerate() {
            if part.start > part.end || part.end > maximum {
                return Err(PostErrorKind::TooLong { length: part.end.max(part.start), maximum });
            }
            let twice = parts.iter().take(place).any(|(other, _)| other == slot);
            if twice || !self.slots.is_held(slot.0) {
                return Err(PostErrorKind::NotHeld { slot: slot.0 });
            }
            length += part.len();
        }
        let entry = |(slot, part): &(Slot, Range<usize>)| ScatterEntry {
            address: self.slots.device_address(slot.0) + part.start as u64,
            length: part.len() as u32,
            key: self.slots.key(),
        };
        let mut entries: Entries = parts.iter().filter(|(_, part)| !part.is_empty()).map(entry).collect();
        if entries.is_empty() {
            entries = nothing(self.rare.context.quirks());
        }
        let silent = flags.contains(Flags::SILENT);
        let Some((first, _)) = parts.first() else {
            return Ok((self.loose_id(queue_pair, kind, silent), entries, false));
        };
        let others: SmallVec<[u32; 4]> = parts.iter().skip(1).map(|(slot, _)| slot.0).collect();
        for (place, (slot, _)) in parts.iter().enumerate() {
            let state = if place == 0 { SlotState::Special } else { SlotState::Part };
            self.slots.lend(slot.0, state, queue_pair.place() as u16);
        }
        self.rare.special.insert(first.0, Special { kind, silent, others, place: None });
        // Not behind a fence: they may be what a read before it brings.
        let copied = matches!(kind, OpKind::Send | OpKind::Write)
            && (1..=self.inline as usize).contains(&length)
            && !flags.contains(Flags::FENCE);
        Ok((Done::id_of(queue_pair, first.0), entries, copied))
    }

    /// Returns whether the device is not to report the success of the next request. In each half of the queue one has a completion, so
    /// that there is always room again. Devices of iWARP finish a write before an earlier read, and then nothing follows from the
    /// completion of the write.
    fn is_unsignaled(&mut self, id: QueuePairId, silent: bool) -> bool {
        let half = self.rare.parameters.send_depth / 2;
        let iwarp = self.rare.context.is_iwarp();
        let unsignaled = self.member(id).and_then(|member| member.rare.as_ref()).map(|rare| rare.unsignaled);
        silent && !iwarp && unsignaled.is_some_and(|unsignaled| unsignaled < half)
    }

    /// Counts a request that was posted.
    fn count(&mut self, queue_pair: QueuePairId, mut request: Loose, (silent, unsignaled): (bool, bool)) {
        let id = request.id;
        if request.place.is_some()
            && let Some(special) = self.rare.special.get_mut(&(id as u32))
        {
            special.place = request.place.take();
        }
        if let Some(member) = self.member(queue_pair) {
            member.send_room = member.send_room.saturating_sub(1);
            if let Some(rare) = member.rare.as_mut() {
                if id as u32 >= LOOSE {
                    rare.loose.push_back(request);
                }
                if unsignaled {
                    rare.unsignaled += 1;
                    rare.following.push_back(id);
                } else {
                    member.follow(id);
                }
            }
            member.refresh();
        }
        self.close_ways();
        self.outstanding += u32::from(!silent);
    }

    /// Posts a receive to the shared queue, or finds out why one to a queue pair cannot be posted.
    ///
    /// # Errors
    /// The reason why it was not posted.
    pub(super) fn receive_apart(&mut self, queue_pair: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        if self.news.is_pending() {
            self.look();
        }
        self.admits()?;
        let depth = self.rare.parameters.receive_depth as usize;
        if self.rare.shared.is_none() {
            let member = self.member(queue_pair).ok_or(PostErrorKind::ConnectionInvalid)?;
            let alive = member.receiving == queue_pair.0;
            let full = PostErrorKind::QueueFull { queue: QueueKind::Receive, depth };
            return Err(if alive { full } else { PostErrorKind::ConnectionInvalid });
        }
        if self.rare.shared_room == 0 {
            return Err(PostErrorKind::QueueFull { queue: QueueKind::SharedReceive, depth });
        }
        if self.receives.is_full() {
            self.ring_receives();
        }
        let Self { receives, outstanding, slots, rare, .. } = self;
        let mut run = receives.run(&mut rare.shared_room, outstanding);
        let added = add_receive(&mut run, slots, Done::id_of(QueuePairId(NONE), 0), slot);
        if added { Ok(()) } else { Err(PostErrorKind::NotHeld { slot: slot.0 }) }
    }
}
