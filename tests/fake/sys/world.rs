//! All objects of the device, behind one lock.
//!
//! Objects are found by the addresses of their C structures. An address that is not in the table is that of an object that
//! was destroyed: the process ends with a sentence about it.

use std::collections::HashMap;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::channel::CompletionChannel;
use super::cm::Cm;
use super::completion::CompletionQueue;
use super::control::{self, Script};
use super::device::{Context, Devices};
use super::dress::Card;
use super::memory::{Domain, Key, Region, Window};
use super::queue_pair::QueuePair;
use super::shared::SharedQueue;
use super::timers::Timers;
use super::{Answer, set_errno};

/// Objects by their addresses.
pub(super) type Table<T> = HashMap<usize, T>;

#[derive(Default)]
pub(super) struct World {
    pub(super) card: Card,
    pub(super) devices: Devices,
    pub(super) contexts: Table<Context>,
    pub(super) channels: Table<CompletionChannel>,
    pub(super) queues: Table<CompletionQueue>,
    pub(super) domains: Table<Domain>,
    pub(super) regions: Table<Region>,
    pub(super) windows: Table<Window>,
    pub(super) shared: Table<SharedQueue>,
    pub(super) queue_pairs: Table<QueuePair>,
    /// The queue pairs by their numbers.
    pub(super) numbers: HashMap<u32, usize>,
    /// The owners of the keys that peers and requests name.
    pub(super) keys: HashMap<u32, Key>,
    pub(super) cm: Cm,
    pub(super) timers: Timers,
    pub(super) script: Script,
    /// The number of calls that do not return.
    pub(super) held: usize,
    last: u32,
}

// SAFETY: the pointers in the tables are to structures that belong to the device, and are used under the lock.
unsafe impl Send for World {}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(control::begin()));
/// Something has changed that a call or the device's thread may wait for.
pub(super) static CHANGED: Condvar = Condvar::new();

pub(super) fn lock() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change.
pub(super) fn wait(world: MutexGuard<'static, World>) -> MutexGuard<'static, World> {
    CHANGED.wait(world).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change, and not longer than that.
pub(super) fn wait_for(world: MutexGuard<'static, World>, time: Duration) -> MutexGuard<'static, World> {
    CHANGED.wait_timeout(world, time).unwrap_or_else(PoisonError::into_inner).0
}

/// Begins a call that the script may delay or fail.
pub(super) fn enter(call: &'static str) -> Answer<MutexGuard<'static, World>> {
    let mut world = lock();
    let (delay, error) = world.script.called(call);
    if !delay.is_zero() {
        drop(world);
        std::thread::sleep(delay);
        world = lock();
    }
    let passes = world.script.passes(call);
    while !passes && world.script.holds(call) {
        world.held += 1;
        world = wait(world);
        world.held -= 1;
    }
    match error {
        None => Ok(world),
        Some(error) => {
            set_errno(error);
            Err(error)
        }
    }
}

impl World {
    /// A number that nothing else of the device has.
    pub(super) fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The number of objects of each kind.
    pub(super) fn counts(&self) -> [(&'static str, usize); 10] {
        [
            ("context", self.contexts.len()),
            ("channel", self.channels.len()),
            ("cq", self.queues.len()),
            ("pd", self.domains.len()),
            ("mr", self.regions.len()),
            ("mw", self.windows.len()),
            ("srq", self.shared.len()),
            ("qp", self.queue_pairs.len()),
            ("cm_channel", self.cm.channels.len()),
            ("cm_id", self.cm.ids.len()),
        ]
    }
}

/// The object at this address.
///
/// # Panics
/// If it was destroyed.
pub(super) fn live<T, P>(table: &mut Table<T>, at: *const P) -> &mut T {
    let kind = std::any::type_name::<P>().rsplit("::").next().unwrap_or_default();
    table.get_mut(&at.addr()).unwrap_or_else(|| panic!("{kind} {at:?} is used after it was destroyed"))
}
