//! The completions of a lane.

use std::iter;

use smallvec::SmallVec;

use super::{Lane, Special};
use crate::inflight::{Arrived, Completed, Done, Note, Payload, Ticket};
use crate::memory::Owned;
use crate::provider::lane::{LOOSE, LaneState, is_silent, loose_kind};
use crate::soft::lane::slots::SlotState;
use crate::soft::receive_queue::reclaim;
use crate::status::Status;
use crate::types::{OpKind, QueuePairId};

/// Returns the ticket and the memory of a request that uses a whole slot.
pub(super) fn whole(slot: u32, memory: Option<Owned>) -> (Ticket, Payload) {
    (Ticket::of_slot(slot), memory.into_iter().map(|memory| memory.share().whole()).collect())
}

impl Lane {
    /// Gives the slots of a completed request to the program. Returns the completion; `None` if it is not to be reported.
    #[inline]
    pub(super) fn settle(&mut self, arrived: Arrived) -> Option<Done> {
        let Arrived { id, length, memory, other } = arrived;
        let slot = id as u32;
        let done = Done { id, status: 0, length, ..Done::EMPTY };
        if let Some(completed) = other {
            return self.settle_other(done, *completed);
        }
        let kind = match (memory, self.slots.state(slot)) {
            (Some(memory), _) => {
                self.slots.restore_memory(slot, memory);
                OpKind::Receive
            }
            (None, Some(SlotState::Posted(kind))) => kind,
            (None, _) => return None,
        };
        self.slots.hold(slot);
        self.count(id, kind);
        Some(Done { opcode: Done::opcode_of(kind), ..done })
    }

    /// Settles a completion that has its memory with it, or has failed.
    fn settle_other(&mut self, done: Done, completed: Completed) -> Option<Done> {
        let (id, slot, queue_pair) = (done.id, done.slot().0, done.queue_pair());
        let Completed { mut status, bytes, payload, extra } = completed;
        let has_failed = status != Status::SUCCESS;
        let (kind, silent) = if slot >= LOOSE {
            (loose_kind(slot), is_silent(slot))
        } else {
            self.reclaim(slot, payload, !has_failed)?
        };
        if kind == OpKind::Receive && self.rare.shared.is_some() && self.member(queue_pair).is_none() {
            // It came by a queue pair that is gone, so the message cannot be answered.
            status = Status::CANCELED;
        }
        self.count(id, kind);
        if silent && !has_failed {
            return None;
        }
        // A silent request that has failed was not counted.
        self.outstanding += u32::from(silent);
        if status != Status::SUCCESS {
            return Some(Done::failed_with(id, kind, status));
        }
        let received = kind == OpKind::Receive;
        let (flags, told) = match extra.note {
            Note::Immediate(data) if received => (Done::IMMEDIATE, data.to_be()),
            Note::Invalidated(key) if received => (Done::INVALIDATED, key),
            _ => (0, 0),
        };
        Some(Done { opcode: Done::opcode_of(kind), length: bytes, flags, told, ..done })
    }

    /// Gives the slots of a request, of which this is the first, to the program. Those of a silent one that has succeeded become free.
    /// Returns the kind of the request, and whether it is silent; `None` if there is none.
    pub(super) fn reclaim(&mut self, slot: u32, payload: Payload, succeeded: bool) -> Option<(OpKind, bool)> {
        let Special { kind, silent, others } = match self.slots.state(slot)? {
            SlotState::Posted(kind) => Special { kind, silent: false, others: SmallVec::new() },
            SlotState::Special => self.rare.special.remove(&slot)?,
            SlotState::Free | SlotState::Held | SlotState::Part => return None,
        };
        let slots = || iter::once(slot).chain(others.iter().copied());
        self.restore(slots(), payload);
        for slot in slots() {
            if silent && succeeded { self.slots.free(slot) } else { self.slots.hold(slot) }
        }
        Some((kind, silent))
    }

    /// Puts the memory of a request back into its slots. A request whose bytes were copied has left it there.
    pub(super) fn restore(&mut self, slots: impl IntoIterator<Item = u32>, payload: Payload) {
        for (slot, part) in slots.into_iter().zip(payload) {
            self.slots.restore_memory(slot, reclaim(part));
        }
    }

    /// Counts a completed request.
    #[inline]
    fn count(&mut self, id: u64, kind: OpKind) {
        let queue_pair = QueuePairId((id >> 32) as u32);
        let received = kind == OpKind::Receive;
        if received && self.rare.shared.is_some() {
            self.rare.shared_room += 1;
        } else if let Some(member) = self.member(queue_pair) {
            if received {
                member.receive_room += 1
            } else {
                member.send_room += 1
            }
            if member.state == LaneState::Ended {
                self.release_ended(queue_pair.place());
            }
        }
    }
}
