//! The requests of a lane that have options, several slots, or none, and receives of a shared queue.

use std::ops::Range;

use smallvec::SmallVec;

use super::slots::SlotState;
use super::{Lane, Special, settle};
use crate::error::PostErrorKind;
use crate::inflight::{Payload, Ticket};
use crate::memory::Owned;
use crate::provider::lane::{LaneRequest, LaneSource, LaneState, loose};
use crate::provider::work::{Flags, WorkRequest};
use crate::types::{OpKind, QueueKind, QueuePairId, Slot};

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
        let (ticket, payload) = settle::whole(slot.0, memory);
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
