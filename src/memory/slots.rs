//! Memory that is cut into slots of one length, each of which either the program has, or a request of a device.
//!
//! A byte for each slot says who, and it is the only owner of that truth: a reference to the bytes of a slot is made only while the
//! program holds it, and borrows the slots, which a posting call needs exclusively. So no reference is there while a device writes.
//! No reference to all of the memory is ever made, and no slot shares a cache line with another one.

use super::{Owned, Shared};

/// The least distance of two slots: a cache line.
const LINE: usize = 64;

/// The owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotState {
    /// There is none.
    Free,
    /// The program.
    Held,
    /// A request of this kind.
    Send,
    Write,
    Read,
    Receive,
    /// A request that its owner knows more about.
    Special,
    /// A request that has another slot, too, by which its owner knows it.
    Part,
    /// A device that could not be stopped, for good.
    Withheld,
}

impl SlotState {
    /// Returns whether a request has the slot.
    #[inline]
    pub(crate) const fn is_posted(self) -> bool {
        !matches!(self, Self::Free | Self::Held | Self::Withheld)
    }
}

/// The state of a slot, and the place of the queue pair whose request has it.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
struct Entry {
    state: SlotState,
    owner: u16,
}

impl Entry {
    const FREE: Self = Self { state: SlotState::Free, owner: 0 };
    const HELD: Self = Self { state: SlotState::Held, owner: 0 };
}

/// The slots. Dropping them frees the memory once no [`Shared`] of it is left.
pub(crate) struct Slots {
    start: *mut u8,
    length: u32,
    stride: u32,
    entries: Box<[Entry]>,
    /// The free slots, the one that is taken next last.
    free: Vec<u32>,
    /// Where the device finds the memory, and the key for it.
    address: u64,
    key: u32,
    memory: Shared,
}

// SAFETY: this is plain memory that `memory` keeps; who may access a slot depends on its state, and not on the thread.
unsafe impl Send for Slots {}
// SAFETY: as above; by a shared reference the bytes of held slots can be read, and nothing changes.
unsafe impl Sync for Slots {}

impl Slots {
    /// Returns the number of bytes that slots of this number and length need; `None` if that is too much for any memory.
    pub(crate) fn bytes_for(count: u32, length: u32) -> Option<usize> {
        let stride = (length as usize).max(1).checked_next_multiple_of(LINE)?;
        stride.checked_mul(count as usize)
    }

    /// Cuts memory, which is registered, into as many slots of this length. `None` if it is too short, or not registered.
    pub(crate) fn new(memory: Owned, count: u32, length: u32) -> Option<Self> {
        let stride = u32::try_from((length as usize).max(1).checked_next_multiple_of(LINE)?).ok()?;
        let fits = Self::bytes_for(count, length)? <= memory.len();
        let memory = memory.share();
        let whole = memory.clone().whole();
        let (address, key) = whole.for_device().filter(|_| fits)?;
        let start = whole.address(0);
        let entries = vec![Entry::FREE; count as usize].into_boxed_slice();
        Some(Self { start, length, stride, entries, free: (0..count).rev().collect(), address, key, memory })
    }

    /// Returns a handle that keeps the memory.
    pub(crate) fn memory(&self) -> &Shared {
        &self.memory
    }

    /// Returns the local key.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Returns the number of bytes of a slot.
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the owner of a slot; `None` if there is no such slot.
    #[inline]
    pub(crate) fn state(&self, slot: u32) -> Option<SlotState> {
        self.entries.get(slot as usize).map(|entry| entry.state)
    }

    /// Takes a slot for the program, if one is free.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        *self.entries.get_mut(slot as usize)? = Entry::HELD;
        Some(slot)
    }

    /// Gives a slot back that the program holds. Returns whether it does.
    pub(crate) fn give(&mut self, slot: u32) -> bool {
        match self.entries.get_mut(slot as usize) {
            Some(entry) if entry.state == SlotState::Held => {
                *entry = Entry::FREE;
                self.free.push(slot);
                true
            }
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        self.state(slot) == Some(SlotState::Held)
    }

    /// Returns the bytes of a slot, if the program holds it.
    #[inline]
    pub(crate) fn bytes(&self, slot: u32) -> Option<&[u8]> {
        // SAFETY: the slot is held, so by `reclaim` no device writes to it, and no posting call can begin while `self` is borrowed. It
        // lies within the memory, which `memory` keeps and which is initialised.
        self.is_held(slot).then(|| unsafe { std::slice::from_raw_parts(self.at(slot), self.length as usize) })
    }

    /// Returns the bytes of a slot for writing, if the program holds it.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, slot: u32) -> Option<&mut [u8]> {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        self.is_held(slot)
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.at(slot), self.length as usize) })
    }

    /// Returns the bytes of two different slots, the second for writing, if the program holds both.
    pub(crate) fn pair(&mut self, read: u32, write: u32) -> Option<(&[u8], &mut [u8])> {
        if read == write || !self.is_held(read) || !self.is_held(write) {
            return None;
        }
        let length = self.length as usize;
        // SAFETY: as in `bytes`; different slots have no byte in common.
        let read = unsafe { std::slice::from_raw_parts(self.at(read), length) };
        // SAFETY: as in `bytes_mut`; different slots have no byte in common.
        let write = unsafe { std::slice::from_raw_parts_mut(self.at(write), length) };
        Some((read, write))
    }

    /// Lends a slot that the program holds to a request of the queue pair in this place. Returns whether the program held it.
    #[inline]
    pub(crate) fn lend(&mut self, slot: u32, to: SlotState, owner: u16) -> bool {
        debug_assert!(to.is_posted());
        match self.entries.get_mut(slot as usize) {
            Some(entry) if entry.state == SlotState::Held => {
                *entry = Entry { state: to, owner };
                true
            }
            _ => false,
        }
    }

    /// Returns the place of the queue pair whose request has a slot.
    pub(crate) fn owner(&self, slot: u32) -> Option<u16> {
        self.entries.get(slot as usize).filter(|entry| entry.state.is_posted()).map(|entry| entry.owner)
    }

    /// Records that the request that has this slot is of no queue pair: no device has taken it.
    pub(crate) fn disown(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.owner = u16::MAX;
        }
    }

    /// Returns whether a request has the slot that no device has taken.
    pub(crate) fn is_disowned(&self, slot: u32) -> bool {
        self.owner(slot) == Some(u16::MAX)
    }

    /// Returns the address at which the device finds a slot of this number, which there is.
    #[inline]
    pub(crate) fn device_address(&self, slot: u32) -> u64 {
        self.address.wrapping_add(u64::from(slot) * u64::from(self.stride))
    }

    /// Takes a slot back from a request, for the program to hold; with `free` it is free.
    ///
    /// # Safety
    /// No device uses the slot for a request any longer: it has completed that, or its queue pair is destroyed, or never had it.
    #[inline]
    pub(crate) unsafe fn reclaim(&mut self, slot: u32, free: bool) {
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            debug_assert!(entry.state.is_posted());
            if free {
                *entry = Entry::FREE;
                self.free.push(slot);
            } else {
                *entry = Entry::HELD;
            }
        }
    }

    /// Takes a slot back from a request, for the program to hold, if the number is that of a slot in this state. Returns whether it is.
    ///
    /// # Safety
    /// As for [`reclaim`](Self::reclaim), if it is in this state, which is that of a request.
    #[inline(always)]
    pub(crate) unsafe fn reclaim_from(&mut self, slot: u64, state: u8) -> bool {
        match usize::try_from(slot).ok().and_then(|slot| self.entries.get_mut(slot)) {
            Some(entry) if entry.state as u8 == state => {
                debug_assert!(entry.state.is_posted());
                *entry = Entry::HELD;
                true
            }
            _ => false,
        }
    }

    /// Keeps a slot from everybody for good: a device may write to it at any later time.
    pub(crate) fn withhold(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.state = SlotState::Withheld;
        }
    }

    #[inline]
    fn at(&self, slot: u32) -> *mut u8 {
        self.start.wrapping_add(slot as usize * self.stride as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Attachment, Memory};
    use super::*;

    const LENGTH: u32 = 3;

    /// The registration of memory with no device.
    struct Nowhere;

    impl Attachment for Nowhere {
        fn local_key(&self) -> u32 {
            7
        }

        fn address(&self) -> u64 {
            0
        }

        fn detach(&self) -> bool {
            true
        }

        fn retire(&self, memory: Memory) {
            drop(memory);
        }
    }

    fn slots(count: u32) -> Slots {
        let length = Slots::bytes_for(count, LENGTH).expect("small");
        let memory = Owned::zeroed(length).expect("memory");
        let register = |_, _| Ok::<_, ()>(Arc::new(Nowhere) as Arc<dyn Attachment>);
        Slots::new(memory.attach(register).expect("registered"), count, LENGTH).expect("slots")
    }

    /// A call for a slot.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Take,
        Give(u32),
        Lend(u32, SlotState),
        /// What the owner does only for a slot that a request has.
        Reclaim(u32, bool),
        /// What it does with a number of a completion: takes the slot back if a receive has it.
        ReclaimReceived(u64),
        Withhold(u32),
        Write(u32),
    }

    const SLOTS: u32 = 2;

    fn calls() -> Vec<Call> {
        let of = |slot| {
            let lends = [SlotState::Receive, SlotState::Part].map(|to| Call::Lend(slot, to));
            let others = [
                Call::Give(slot),
                Call::Reclaim(slot, false),
                Call::Reclaim(slot, true),
                Call::Withhold(slot),
                Call::Write(slot),
            ];
            lends.into_iter().chain(others)
        };
        // There is no slot of the last number but one, nor of the one that is too long; that of the first has a call more.
        let no_slot = [
            Call::Give(SLOTS),
            Call::Lend(SLOTS, SlotState::Send),
            Call::Write(SLOTS),
            Call::ReclaimReceived(1 << 32),
            Call::ReclaimReceived(0),
        ];
        std::iter::once(Call::Take).chain((0..SLOTS).flat_map(of)).chain(no_slot).collect()
    }

    /// What a slot is to be: its state, and the byte that it is filled with.
    type Model = [(SlotState, u8); SLOTS as usize];

    /// Makes a call, and says whether it changed anything that the model says it should.
    fn apply(slots: &mut Slots, model: &mut Model, call: Call) {
        let state = |model: &Model, slot: u32| model.get(slot as usize).map(|(state, _)| *state);
        let held = |model: &Model, slot| state(model, slot) == Some(SlotState::Held);
        match call {
            Call::Take => {
                let free = model.iter().filter(|(state, _)| *state == SlotState::Free).count();
                let taken = slots.take();
                assert_eq!(taken.is_some(), free > 0);
                if let Some(taken) = taken {
                    assert_eq!(state(model, taken), Some(SlotState::Free));
                    model[taken as usize].0 = SlotState::Held;
                }
            }
            Call::Give(slot) => {
                assert_eq!(slots.give(slot), held(model, slot));
                if held(model, slot) {
                    model[slot as usize].0 = SlotState::Free;
                }
            }
            Call::Lend(slot, to) => {
                assert_eq!(slots.lend(slot, to, 0), held(model, slot));
                if held(model, slot) {
                    model[slot as usize].0 = to;
                }
            }
            Call::Reclaim(slot, free) => {
                if state(model, slot).is_some_and(SlotState::is_posted) {
                    // As a device does that has it until then.
                    model[slot as usize].1 = 0xd0 + slot as u8;
                    // SAFETY: no reference to the slot exists.
                    unsafe { slots.at(slot).write_bytes(0xd0 + slot as u8, LENGTH as usize) };
                    // SAFETY: there is no device.
                    unsafe { slots.reclaim(slot, free) };
                    model[slot as usize].0 = if free { SlotState::Free } else { SlotState::Held };
                }
            }
            Call::ReclaimReceived(slot) => {
                let received =
                    u32::try_from(slot).is_ok_and(|slot| state(model, slot) == Some(SlotState::Receive));
                // SAFETY: there is no device.
                assert_eq!(unsafe { slots.reclaim_from(slot, SlotState::Receive as u8) }, received);
                if received {
                    model[slot as usize].0 = SlotState::Held;
                }
            }
            Call::Withhold(slot) => {
                if state(model, slot).is_some_and(SlotState::is_posted) {
                    slots.withhold(slot);
                    model[slot as usize].0 = SlotState::Withheld;
                }
            }
            Call::Write(slot) => {
                let bytes = slots.bytes_mut(slot);
                assert_eq!(bytes.is_some(), held(model, slot));
                if let Some(bytes) = bytes {
                    let (_, byte) = &mut model[slot as usize];
                    *byte = byte.wrapping_add(1);
                    bytes.fill(*byte);
                }
            }
        }
    }

    fn check(slots: &mut Slots, model: &Model) {
        for (slot, (state, byte)) in (0..).zip(model) {
            assert_eq!(slots.state(slot), Some(*state));
            let held = *state == SlotState::Held;
            assert_eq!(slots.bytes(slot), held.then_some(&[*byte; LENGTH as usize][..]));
        }
        assert_eq!((slots.state(SLOTS), slots.bytes(SLOTS)), (None, None));
        let both = model.iter().all(|(state, _)| *state == SlotState::Held);
        assert_eq!(slots.pair(0, 1).is_some(), both);
        if let Some((read, write)) = slots.pair(0, 1) {
            assert_eq!((read[0], write[0]), (model[0].1, model[1].1));
        }
        assert!(slots.pair(0, 0).is_none() && slots.pair(1, SLOTS).is_none());
    }

    // Each slot is what the calls until then make it, whatever they are: free, the program's, a request's, or a lost one. Its
    // bytes are reached only while the program holds it, and are those that were written last.
    #[test]
    fn every_sequence_of_calls_agrees_with_the_model() {
        // 20 calls: 3.2 million sequences, or 8,000 under Miri.
        let (calls, length) = (calls(), if cfg!(miri) { 3 } else { 5 });
        let mut sequence = vec![0; length];
        loop {
            let (mut slots, mut model) = (slots(SLOTS), [(SlotState::Free, 0); SLOTS as usize]);
            for place in &sequence {
                apply(&mut slots, &mut model, calls[*place]);
                check(&mut slots, &model);
            }
            let Some(place) = sequence.iter().rposition(|place| place + 1 < calls.len()) else { return };
            sequence[place] += 1;
            sequence[place + 1..].fill(0);
        }
    }

    // No two slots have a cache line in common, and all are within the memory.
    #[test]
    fn slots_are_apart() {
        let all = slots(9);
        let (length, start) = (Slots::bytes_for(9, LENGTH).expect("small"), all.device_address(0));
        for slot in 0..9 {
            assert_eq!(all.device_address(slot), all.at(slot).addr() as u64);
            assert_eq!(all.device_address(slot) - start, u64::from(slot) * LINE as u64);
        }
        assert_eq!(
            (length, Slots::bytes_for(2, 64), Slots::bytes_for(2, 65)),
            (9 * LINE, Some(128), Some(256))
        );
        assert!(Slots::new(Owned::zeroed(64).expect("memory"), 1, 1).is_none(), "it is not registered");
    }
}
