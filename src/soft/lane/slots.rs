//! The slots of a lane: pieces of memory of one length, each of which is free, or the program or a request has it.
//!
//! The memory of each slot is exclusive. It leaves its slot for a receive, and for a request whose bytes stay in place until they
//! are sent or have arrived; its completion brings it back. So bytes can only be reached while no request has them.

use std::io;
use std::sync::Arc;

use crate::error::OpenError;
use crate::memory::Owned;
use crate::types::OpKind;

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
