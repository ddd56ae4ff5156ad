//! The memory that one end lets its peer use, and what may be in it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use tokio_rdma::{Access, Adapter, MemoryWindow, Region, RemoteRegion};

/// The value around everything that somebody may write.
pub(crate) const CANARY: u8 = 0xC5;
/// The bytes between two places.
const GAP: usize = 64;
/// The places that the peer writes: each byte of one is the number of the write. The last two are one window.
pub(crate) const SLOTS: usize = 4;
/// The first place of the window.
pub(crate) const WINDOWED: usize = 2;
/// The number of the last write of a place.
const LAST: u8 = 0xC0;

/// Memory under a key, with two places that are also in a window, a place that is only read, and a counter.
pub(crate) struct Exposed {
    pub(crate) region: Region,
    pub(crate) window: MemoryWindow,
    length: usize,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The last write of each place that was posted with a valid key.
    posted: [u8; SLOTS],
    /// The write of each place that has arrived at the latest.
    floor: [u8; SLOTS],
    /// The number of additions to the counter that were posted.
    additions: u64,
    /// The values that they have found.
    found: BTreeSet<u64>,
    /// The window was bound.
    bound: bool,
    /// The window's invalidation was posted, and may still be under way.
    unbinds: bool,
    /// Somebody takes a key back.
    withdraws: bool,
    /// The window as it was when its key became invalid.
    window: Option<Vec<u8>>,
    /// All of it as it was when its key became invalid.
    region: Option<Vec<u8>>,
}

impl Exposed {
    /// Registers memory with places of this length, a multiple of 8.
    pub(crate) async fn new(adapter: &Adapter, length: usize) -> Option<Self> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let size = 3 * length + GAP + 2 * (length + GAP) + 8 + 2 * GAP;
        let region = adapter.register(size, access).await.ok()?;
        let exposed =
            Self { region, window: adapter.memory_window().ok()?, length, state: RefCell::default() };
        exposed.region.write(0, &exposed.initial()).expect("in bounds");
        Some(exposed)
    }

    /// The places of a window lie together, all others apart.
    pub(crate) fn slot(&self, number: usize) -> Range<usize> {
        let start = GAP + number * self.length + number.min(WINDOWED) * GAP;
        start..start + self.length
    }

    fn windowed(&self) -> Range<usize> {
        self.slot(WINDOWED).start..self.slot(SLOTS - 1).end
    }

    /// The part that the window is bound to.
    pub(crate) fn windowed_slice(&self) -> tokio_rdma::RegionSlice {
        self.region.slice(self.windowed()).expect("in bounds")
    }

    fn readable(&self) -> Range<usize> {
        let start = self.windowed().end + GAP;
        start..start + self.length
    }

    fn counter(&self) -> Range<usize> {
        let start = (self.readable().end + GAP).next_multiple_of(8);
        start..start + 8
    }

    /// The content of the place that is only read.
    pub(crate) fn pattern(&self) -> Vec<u8> {
        (0..self.length).map(|place| (place as u8).wrapping_mul(31)).collect()
    }

    fn initial(&self) -> Vec<u8> {
        let mut bytes = vec![CANARY; self.region.len()];
        (0..SLOTS).for_each(|slot| bytes[self.slot(slot)].fill(0));
        bytes[self.readable()].copy_from_slice(&self.pattern());
        bytes[self.counter()].fill(0);
        bytes
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    fn part(&self, range: Range<usize>) -> RemoteRegion {
        self.region.remote_part(range).expect("in bounds")
    }

    /// The remote places.
    pub(crate) fn remote_slot(&self, number: usize) -> RemoteRegion {
        self.part(self.slot(number))
    }

    pub(crate) fn remote_readable(&self) -> RemoteRegion {
        self.part(self.readable())
    }

    pub(crate) fn remote_counter(&self) -> RemoteRegion {
        self.part(self.counter())
    }

    /// A place of the window, under its key.
    pub(crate) fn of_window(&self, window: &RemoteRegion, number: usize) -> RemoteRegion {
        let start = (number - WINDOWED) * self.length;
        window.part(start as u32..(start + self.length) as u32).expect("in bounds")
    }

    /// The number of the next write of this place, unless there were too many.
    pub(crate) fn next_write(&self, slot: usize) -> Option<u8> {
        let last = self.state.borrow().posted[slot];
        (last < LAST).then_some(last + 1)
    }

    /// A write was posted.
    pub(crate) fn posted(&self, slot: usize, number: u8) {
        self.state.borrow_mut().posted[slot] = number;
    }

    /// The writes that were posted.
    pub(crate) fn writes(&self) -> [u8; SLOTS] {
        self.state.borrow().posted
    }

    /// These writes have arrived.
    pub(crate) fn arrived(&self, writes: [u8; SLOTS]) {
        let mut state = self.state.borrow_mut();
        for (floor, write) in state.floor.iter_mut().zip(writes) {
            *floor = write.max(*floor);
        }
    }

    /// Checks what a read of a place has found. These writes were posted before it on the same queue.
    pub(crate) fn check_read(&self, slot: usize, before: u8, found: &[u8]) {
        let posted = self.state.borrow().posted[slot];
        assert!(
            found.iter().all(|byte| (before..=posted).contains(byte)),
            "a read of {slot} has found {found:?}"
        );
    }

    pub(crate) fn add_posted(&self) {
        self.state.borrow_mut().additions += 1;
    }

    /// An addition of one has found this.
    pub(crate) fn added(&self, found: u64) {
        let mut state = self.state.borrow_mut();
        assert!(
            found < state.additions && state.found.insert(found),
            "{found}, not alone: {:?}",
            state.found
        );
    }

    /// A key is about to become invalid.
    pub(crate) fn withdraws(&self) {
        self.state.borrow_mut().withdraws = true;
    }

    /// Returns whether a key has become invalid, or is about to.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.state.borrow().withdraws
    }

    pub(crate) fn bound(&self) {
        self.state.borrow_mut().bound = true;
    }

    pub(crate) fn was_bound(&self) -> bool {
        self.state.borrow().bound
    }

    pub(crate) fn unbinds(&self) {
        self.state.borrow_mut().unbinds = true;
    }

    /// Returns whether the window may be bound.
    pub(crate) fn may_be_bound(&self) -> bool {
        self.window.remote().is_some() || self.state.borrow().unbinds
    }

    pub(crate) fn window_has_ended(&self) -> bool {
        self.state.borrow().window.is_some()
    }

    /// The key of the window is invalid from now on.
    pub(crate) fn window_ends(&self) {
        let bytes = self.bytes()[self.windowed()].to_vec();
        self.state.borrow_mut().window.get_or_insert(bytes);
    }

    /// The key of the region is invalid from now on.
    pub(crate) fn region_ends(&self) {
        let bytes = self.bytes();
        self.state.borrow_mut().region.get_or_insert(bytes);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.len()];
        self.region.read(0, &mut bytes).expect("in bounds");
        bytes
    }

    /// Checks every byte.
    pub(crate) fn check(&self) {
        let (bytes, state) = (self.bytes(), self.state.borrow());
        for slot in 0..SLOTS {
            let allowed = state.floor[slot]..=state.posted[slot];
            let found = &bytes[self.slot(slot)];
            assert!(found.iter().all(|byte| allowed.contains(byte)), "{found:?} in {slot}, not {allowed:?}");
        }
        let count = bytes[self.counter()].try_into().map(u64::from_ne_bytes).expect("eight bytes");
        let least = state.found.last().map_or(0, |last| last + 1);
        assert!((least..=state.additions).contains(&count), "{count} in the counter, {least} or more");
        let (mut rest, initial) = (bytes.clone(), self.initial());
        for range in (0..SLOTS).map(|slot| self.slot(slot)).chain([self.counter()]) {
            rest[range.clone()].copy_from_slice(&initial[range]);
        }
        assert!(rest == initial, "bytes that nobody may write have changed");
        if let Some(window) = &state.window {
            assert!(bytes[self.windowed()] == window[..], "the window has changed after it was invalidated");
        }
        if let Some(region) = &state.region {
            assert!(bytes == *region, "the region has changed after it was deregistered");
        }
    }
}
