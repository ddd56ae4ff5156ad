//! The requests of a lane: plain ones, which wait in a chain, and their way to a connection; and those that have options, several slots, or
//! none, and receives of a shared queue.

use std::ops::Range;

use smallvec::SmallVec;

use super::slots::{SlotState, Slots};
use super::{Lane, Special, slots};
use crate::error::PostErrorKind;
use crate::inflight::{Arrived, Completed, LaneState, Payload, Ticket, WakeList, loose};
use crate::memory::Owned;
use crate::proto::rdmap::Outbound;
use crate::provider::work::{Flags, LaneRequest, LaneSource, Operation, RemoteAddress, WorkRequest};
use crate::soft::connection::{ConnectionShared, Extent, Transmitted};
use crate::soft::framing::Batch;
use crate::soft::send_queue::ReadOwner;
use crate::status::Status;
use crate::types::{OpKind, QueueKind, QueuePairId, Slot};
use crate::wire::ddp::{Header, Tagged};
use crate::wire::rdmap::Opcode;

/// The operation of a plain request.
#[derive(Clone, Copy)]
pub(super) enum Message {
    Send,
    Write(RemoteAddress),
    Read(RemoteAddress),
}

impl Message {
    #[inline]
    pub(super) fn kind(self) -> OpKind {
        match self {
            Self::Send => OpKind::Send,
            Self::Write(_) => OpKind::Write,
            Self::Read(_) => OpKind::Read,
        }
    }

    /// Returns the header of a Send or a Write of one frame. The next Send has the next number.
    #[inline]
    fn header(self, outbound: &mut Outbound<ReadOwner>) -> Header {
        match self {
            Self::Write(RemoteAddress { key: stag, address: to }) => {
                Header::Tagged(Tagged { last: true, opcode: Opcode::Write, stag, to })
            }
            Self::Send | Self::Read(_) => {
                let header = outbound.next_send();
                outbound.count_send();
                Header::Untagged(header)
            }
        }
    }

    fn operation(self) -> Operation {
        match self {
            Self::Send => Operation::Send { invalidate: None, immediate: None },
            Self::Write(to) => Operation::Write { to, immediate: None },
            Self::Read(from) => Operation::Read { from },
        }
    }
}

/// A request that waits: a part of a slot.
#[derive(Clone, Copy)]
pub(super) struct Chained {
    pub(super) slot: u32,
    pub(super) start: u32,
    pub(super) length: u32,
    pub(super) message: Message,
}

impl Chained {
    /// Returns the bytes, which are in the slot.
    #[inline]
    fn bytes<'s>(&self, slots: &'s Slots) -> &'s [u8] {
        let (start, length) = (self.start as usize, self.length as usize);
        slots.lent_bytes(self.slot).get(start..start + length).unwrap_or_default()
    }

    fn request(&self, payload: Payload) -> WorkRequest {
        let (ticket, operation) = (Ticket::of_slot(self.slot), self.message.operation());
        WorkRequest { ticket, operation, payload, flags: Flags::empty() }
    }
}

/// The outcome of [`ConnectionShared::post_copied`].
enum Copied {
    /// All have completed.
    Completed,
    /// They were posted, and complete later.
    Posted,
    /// Nothing has happened.
    Declined,
}

impl ConnectionShared {
    /// Writes Sends and Writes of one frame each within the call, if nothing is ahead of them. The frames are copies.
    fn post_copied(&self, chain: &[Chained], slots: &Slots) -> Copied {
        let mut sending = self.sending();
        if !sending.queue.admits_direct() {
            return Copied::Declined;
        }
        let Some(socket) = sending.socket.clone() else { return Copied::Declined };
        let mut batch = Batch::new(self.crc);
        let length = chain.iter().map(|request| request.length as usize).sum();
        let queue = &mut sending.queue;
        queue.begin_copied();
        let frame = |request: &Chained| (request.message.header(&mut queue.outbound), request.bytes(slots));
        batch.copied_segments((length, chain.len()), chain.iter().map(frame));
        drop(sending);
        let outcome = self.report_sent(socket.write_copied(&batch));
        let mut sending = self.sending();
        if let Ok(sent) = outcome
            && sent == batch.arena.len()
            && sending.queue.direct_sent(sent)
        {
            drop(sending);
            batch.clear();
            return Copied::Completed;
        }
        for request in chain.iter().rev() {
            // The bytes are in the frames.
            sending.queue.queue_direct(request.request(Payload::new()), request.length as usize);
        }
        let mut wakes = WakeList::default();
        let next = sending.queue.offered(batch, outcome, &mut wakes);
        let (transmitted, _bytes) = self.write_batches(&socket, sending, next, Extent::Call, &mut wakes);
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        wakes.wake_all();
        Copied::Posted
    }

    /// Posts requests, and writes their frames together. Returns those that the queue does not admit.
    fn post_all(&self, requests: impl Iterator<Item = WorkRequest>) -> Vec<WorkRequest> {
        self.transmit_after(|queue| {
            let mut refused = Vec::new();
            for request in requests {
                match queue.admits(request.operation.kind()) {
                    Ok(()) => queue.post(request),
                    Err(_) => refused.push(request),
                }
            }
            refused
        })
    }
}

impl Lane {
    /// Hands the requests of the send queue that wait to their queue pair.
    pub(super) fn ring_sends(&mut self) {
        let chain = std::mem::take(&mut self.sends);
        let has_long = std::mem::take(&mut self.has_long);
        let member = self.members.get(self.sends_of);
        let queue_pair = member.and_then(|member| member.queue_pair.as_ref());
        let id = member.map_or(super::NONE, |member| member.id);
        match queue_pair.and_then(|queue_pair| queue_pair.connection()) {
            Some(connection) => {
                let posted =
                    if has_long { Copied::Declined } else { connection.post_copied(&chain, &self.slots) };
                match posted {
                    Copied::Completed => {
                        // Earlier ones come first.
                        self.collect();
                        let done = |request: &Chained| Arrived::copied(id, request.slot);
                        self.arrived.extend(chain.iter().map(done));
                    }
                    Copied::Posted => {}
                    Copied::Declined => {
                        let slots = &mut self.slots;
                        let refused = connection.post_all(chain.iter().map(|request| {
                            let (start, length) = (request.start as usize, request.length as usize);
                            let memory = slots.take_memory(request.slot);
                            let part = memory.map(|memory| memory.share().whole().part(start, length));
                            request.request(part.into_iter().collect())
                        }));
                        self.refuse(id, refused);
                    }
                }
            }
            None => self.refuse(id, chain.iter().map(|request| request.request(Payload::new())).collect()),
        }
        self.sends = chain;
        self.sends.clear();
    }

    /// Completes requests that the queue pair has refused, because its connection has ended.
    fn refuse(&mut self, id: QueuePairId, refused: Vec<WorkRequest>) {
        if refused.is_empty() {
            return;
        }
        self.collect();
        for WorkRequest { ticket, payload, .. } in refused {
            let failed = Completed::failed(Status::CANCELED, payload);
            self.arrived.push_back(Arrived::other(id, ticket.slot(), failed));
        }
    }

    /// Hands the receives that wait to their queue pair.
    pub(super) fn ring_receives(&mut self) {
        let slots = std::mem::take(&mut self.receives);
        let member = self.members.get(self.receives_of);
        if let Some(queue_pair) = member.and_then(|member| member.queue_pair.as_ref()) {
            let lane_slots = &mut self.slots;
            let memory = |slot: &u32| lane_slots.take_memory(*slot).map(|memory: Owned| (*slot, memory));
            queue_pair.receives.post_all(slots.iter().filter_map(memory));
        }
        self.receives = slots;
        self.receives.clear();
    }
}

impl Lane {
    /// Posts a request of the send queue with options, at once and behind those that wait.
    ///
    /// # Errors
    /// The reason why it was not posted: nothing has changed.
    pub(crate) fn request(&mut self, request: LaneRequest<'_>) -> Result<(), PostErrorKind> {
        let LaneRequest { queue_pair: id, operation, source, flags } = request;
        let kind = operation.kind();
        self.ring();
        self.admit(id, kind)?;
        let silent = flags.contains(Flags::SILENT);
        let loose = || Ticket::of_slot(loose(kind, silent, 0));
        let (ticket, payload) = match source {
            LaneSource::Bytes(bytes) => {
                let none = PostErrorKind::InsufficientResources(
                    "there is no memory for the copy of the inline data",
                );
                let copy = Owned::copied(&[bytes]).ok_or(none)?;
                (loose(), Payload::from_buf([copy.share().whole()]))
            }
            LaneSource::Region(memory) => (loose(), memory.clone()),
            LaneSource::Slots([]) => (loose(), Payload::new()),
            LaneSource::Slots(parts) => self.lend((kind, silent), parts)?,
        };
        let connection = self.member(id).and_then(|member| member.queue_pair.as_ref()?.connection().cloned());
        let work = WorkRequest { ticket, operation, payload, flags };
        let posted = match connection {
            Some(connection) => connection.post(work).map_err(|refused| (refused.kind, refused.payload)),
            None => Err((PostErrorKind::ConnectionInvalid, work.payload)),
        };
        if let Err((kind, payload)) = posted {
            // The connection has just ended.
            self.reclaim(ticket.slot(), payload, false);
            return Err(kind);
        }
        if let Some(member) = self.member(id) {
            member.send_room = member.send_room.saturating_sub(1);
        }
        self.outstanding += u32::from(!silent);
        Ok(())
    }

    /// Lends parts of slots, at least one, to a request of this kind. Returns its ticket and its memory.
    ///
    /// # Errors
    /// `NotHeld`, `TooLong`: none is lent.
    fn lend(
        &mut self,
        (kind, silent): (OpKind, bool),
        parts: &[(Slot, Range<usize>)],
    ) -> Result<(Ticket, Payload), PostErrorKind> {
        let maximum = self.slots.length();
        for (place, (slot, part)) in parts.iter().enumerate() {
            if part.start > part.end || part.end > maximum {
                return Err(PostErrorKind::TooLong { length: part.end.max(part.start), maximum });
            }
            let twice = parts.iter().take(place).any(|(other, _)| other == slot);
            if twice || !self.slots.is_held(slot.0) {
                return Err(PostErrorKind::NotHeld { slot: slot.0 });
            }
        }
        let mut payload = Payload::new();
        let mut first = None;
        let mut others = SmallVec::new();
        for (slot, part) in parts {
            match first {
                None => first = Some(slot.0),
                Some(_) => others.push(slot.0),
            }
            self.slots.lend(slot.0, if others.is_empty() { SlotState::Special } else { SlotState::Part });
            let memory = self.slots.take_memory(slot.0);
            payload.extend(memory.map(|memory| memory.share().whole().part(part.start, part.len())));
        }
        let first = first.unwrap_or(u32::MAX);
        self.rare.special.insert(first, Special { kind, silent, others });
        Ok((Ticket::of_slot(first), payload))
    }

    /// Posts a receive to the shared queue, or finds the reason why none can be posted.
    ///
    /// # Errors
    /// That reason.
    #[cold]
    pub(super) fn receive_otherwise(&mut self, id: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        self.collect();
        if self.rare.ended.is_some() {
            return Err(PostErrorKind::DeviceRemoved);
        }
        let depth = self.rare.parameters.receive_depth as usize;
        let Some(shared) = &self.rare.shared else {
            let member = self.member(id).ok_or(PostErrorKind::ConnectionInvalid)?;
            let is_alive = matches!(member.state, LaneState::Unconnected | LaneState::Connected);
            let full = PostErrorKind::QueueFull { queue: QueueKind::Receive, depth };
            return Err(if is_alive { full } else { PostErrorKind::ConnectionInvalid });
        };
        if self.rare.shared_room == 0 {
            return Err(PostErrorKind::QueueFull { queue: QueueKind::SharedReceive, depth });
        }
        if !self.slots.lend(slot.0, SlotState::Posted(OpKind::Receive)) {
            return Err(PostErrorKind::NotHeld { slot: slot.0 });
        }
        let memory = self.slots.take_memory(slot.0);
        let (ticket, payload) = slots::whole(slot.0, memory);
        if let Err(refused) = shared.post_receive(ticket, payload) {
            self.restore([slot.0], refused.payload);
            self.slots.hold(slot.0);
            return Err(refused.kind);
        }
        self.rare.shared_room -= 1;
        self.outstanding += 1;
        Ok(())
    }
}
