//! The slots of a lane, pieces of memory of one length, each of which is free, or the program or a request has it; and the completions,
//! which bring them back.
//!
//! The memory of each slot is exclusive. It leaves its slot for a receive, and for a request whose bytes stay in place until they
//! are sent or have arrived; its completion brings it back. So bytes can only be reached while no request has them.

use std::sync::Arc;
use std::{io, iter};

use smallvec::SmallVec;

use super::{Lane, Special};
use crate::error::OpenError;
use crate::inflight::{
    Arrived, Completed, Done, LOOSE, LaneState, Note, Payload, Ticket, is_silent, loose_kind,
};
use crate::memory::Owned;
use crate::soft::receive_queue::reclaim;
use crate::status::Status;
use crate::types::{OpKind, QueuePairId};

/// The owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// None: it can be taken.
    Free,
    /// The program.
    Held,
    /// A request of this kind.
    Posted(OpKind),
    /// A request that the lane knows more about.
    Special,
    /// A request that has another slot, too, by which the lane knows it.
    Part,
}

struct Slot {
    state: SlotState,
    /// `None` as long as a request has taken it out.
    memory: Option<Owned>,
}

/// The slots.
pub(crate) struct Slots {
    length: usize,
    slots: Box<[Slot]>,
    /// The free slots, the one that is taken next last.
    free: Vec<u32>,
}

impl Slots {
    /// Allocates as many slots of this length.
    ///
    /// # Errors
    /// `Os` if there is not enough memory.
    pub(super) fn new(count: u32, length: u32) -> Result<Self, OpenError> {
        let length = length as usize;
        let slot =
            |_| Owned::zeroed(length).map(|memory| Slot { state: SlotState::Free, memory: Some(memory) });
        let slots: Option<_> = (0..count).map(slot).collect();
        let none = || OpenError::Os { call: "mmap", source: Arc::new(io::ErrorKind::OutOfMemory.into()) };
        Ok(Self { length, slots: slots.ok_or_else(none)?, free: (0..count).rev().collect() })
    }

    /// Returns the number of bytes of a slot.
    #[inline]
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Takes a slot for the program, if one is free.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots.get_mut(slot as usize)?.state = SlotState::Held;
        Some(slot)
    }

    /// Gives a slot back that the program holds. Returns whether it does.
    #[inline]
    pub(crate) fn give(&mut self, slot: u32) -> bool {
        let held = self.is_held(slot);
        if held {
            self.free(slot);
        }
        held
    }

    #[inline]
    pub(super) fn is_held(&self, slot: u32) -> bool {
        self.state(slot) == Some(SlotState::Held)
    }

    /// Returns the owner of a slot; `None` if there is no such slot.
    #[inline]
    pub(super) fn state(&self, slot: u32) -> Option<SlotState> {
        self.slots.get(slot as usize).map(|slot| slot.state)
    }

    /// Returns the bytes of a slot, if the program holds it.
    #[inline]
    pub(crate) fn bytes(&self, slot: u32) -> Option<&[u8]> {
        let slot = self.slots.get(slot as usize).filter(|slot| slot.state == SlotState::Held)?;
        slot.memory.as_deref()
    }

    /// Returns the bytes of a slot for writing, if the program holds it.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, slot: u32) -> Option<&mut [u8]> {
        let slot = self.slots.get_mut(slot as usize).filter(|slot| slot.state == SlotState::Held)?;
        slot.memory.as_deref_mut()
    }

    /// Returns the bytes of two different slots, the second for writing, if the program holds both.
    pub(crate) fn pair(&mut self, read: u32, write: u32) -> Option<(&[u8], &mut [u8])> {
        let places = [read as usize, write as usize];
        let [read, write] = self.slots.get_disjoint_mut(places).ok()?;
        if [&*read, &*write].iter().any(|slot| slot.state != SlotState::Held) {
            return None;
        }
        Some((read.memory.as_deref()?, write.memory.as_deref_mut()?))
    }

    /// Lends a slot that the program holds to a request. Returns whether the program held it.
    #[inline]
    pub(super) fn lend(&mut self, slot: u32, to: SlotState) -> bool {
        match self.slots.get_mut(slot as usize) {
            Some(slot) if slot.state == SlotState::Held => {
                slot.state = to;
                true
            }
            _ => false,
        }
    }

    /// Returns the bytes of a slot whose memory has not left it.
    #[inline]
    pub(super) fn lent_bytes(&self, slot: u32) -> &[u8] {
        self.slots.get(slot as usize).and_then(|slot| slot.memory.as_deref()).unwrap_or_default()
    }

    /// Takes the memory out of a slot.
    #[inline]
    pub(super) fn take_memory(&mut self, slot: u32) -> Option<Owned> {
        self.slots.get_mut(slot as usize)?.memory.take()
    }

    /// Puts the memory back into its slot.
    #[inline]
    pub(super) fn restore_memory(&mut self, slot: u32, memory: Owned) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            debug_assert!(slot.memory.is_none());
            slot.memory = Some(memory);
        }
    }

    /// Gives a slot that a request has had to the program.
    #[inline]
    pub(super) fn hold(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.state = SlotState::Held;
        }
    }

    /// Makes a slot free.
    pub(super) fn free(&mut self, slot: u32) {
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            entry.state = SlotState::Free;
            self.free.push(slot);
        }
    }
}

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
