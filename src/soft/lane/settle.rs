//! The completions of a lane.

use super::{Lane, Special};
use crate::inflight::{Arrived, Completed, Done, Note, Outcome, Payload, Ticket};
use crate::memory::Owned;
use crate::provider::lane::{LOOSE, LaneState, is_silent, loose_kind};
use crate::soft::lane::slots::SlotState;
use crate::status::Status;
use crate::types::{OpKind, QueuePairId};

/// Returns the ticket and the memory of a request that uses a whole slot.
pub(super) fn whole(slot: u32, memory: Option<Owned>) -> (Ticket, Payload) {
    (Ticket::of_slot(slot), memory.into_iter().map(|memory| memory.share().whole()).collect())
}

impl Lane {
    /// Gives the slots of a completed request to the program. Returns the completion; `None` if nobody waits for it.
    #[inline]
    pub(super) fn settle(&mut self, arrived: Arrived) -> Option<Done> {
        let Arrived { id, outcome } = arrived;
        let slot = id as u32;
        let done = Done { id, status: 0, ..Done::EMPTY };
        match outcome {
            Outcome::Copied => {
                let kind = if let Some(SlotState::Posted(kind)) = self.slots.state(slot) {
                    kind
                } else {
                    OpKind::Send
                };
                self.slots.hold(slot);
                self.count(id, kind);
                Some(Done { opcode: Done::opcode_of(kind), ..done })
            }
            Outcome::Received { memory, length } => {
                self.slots.restore_memory(slot, memory);
                self.slots.hold(slot);
                self.count(id, OpKind::Receive);
                Some(Done { opcode: Done::RECEIVED, length, ..done })
            }
            Outcome::Other(completed) => self.settle_other(done, *completed),
        }
    }

    /// Settles a completion that has its memory with it, or has failed.
    fn settle_other(&mut self, done: Done, completed: Completed) -> Option<Done> {
        let (id, slot, queue_pair) = (done.id, done.slot().0, done.queue_pair());
        let Completed { mut status, bytes, payload, extra } = completed;
        let hidden = extra.silent && status == Status::SUCCESS;
        let kind = if slot >= LOOSE { loose_kind(slot) } else { self.reclaim(slot, payload, hidden)? };
        if kind == OpKind::Receive && self.rare.shared.is_some() && self.member(queue_pair).is_none() {
            // A late one, whose message nobody can answer.
            status = Status::CANCELED;
        }
        let is_silent = extra.silent || slot >= LOOSE && is_silent(slot);
        self.count(id, kind);
        if hidden {
            return None;
        }
        // A silent request that has failed was not counted.
        self.outstanding += u32::from(is_silent);
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

    /// Gives the slots of a request, of which this is the first, to the program, or with `free` to nobody. Returns the kind of the
    /// request; `None` if there is none.
    pub(super) fn reclaim(&mut self, slot: u32, payload: Payload, free: bool) -> Option<OpKind> {
        let (kind, others) = match self.slots.state(slot)? {
            SlotState::Posted(kind) => (kind, None),
            SlotState::Special => {
                let Special { kind, others } = self.rare.special.remove(&slot)?;
                (kind, Some(others))
            }
            SlotState::Free | SlotState::Held | SlotState::Part => return None,
        };
        let slots = || std::iter::once(slot).chain(others.iter().flatten().copied());
        self.restore(slots(), payload);
        for slot in slots() {
            if free { self.slots.free(slot) } else { self.slots.hold(slot) }
        }
        Some(kind)
    }

    /// Puts the memory of a request back into its slots. A request whose bytes were copied has left it there.
    pub(super) fn restore(&mut self, slots: impl IntoIterator<Item = u32>, payload: Payload) {
        for (slot, part) in slots.into_iter().zip(payload) {
            self.slots.restore_memory(slot, part.into_shared().reclaim());
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
