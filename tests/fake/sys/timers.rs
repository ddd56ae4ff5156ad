//! Things that happen later, on a thread of the device.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::world::{self, World};
use super::{cm, execute};

/// An event of the timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The queue pair with this number tries again.
    Resume(u32),
    /// The queue pair with this number has no receive of a shared queue any more.
    LastReceive(u32),
    /// The id with this serial number has waited for its peer's answer for as long as it does.
    Unanswered(u64),
    /// The id with this serial number leaves the state in which late packets are expected.
    TimeWait(u64),
    /// An event of the id with this serial number comes.
    Deliver(u64),
    /// The resolution of an address for the id with this serial number ends with an error.
    Unresolved(u64),
}

#[derive(Default)]
pub(super) struct Timers {
    pending: BinaryHeap<Reverse<(Instant, Timer)>>,
    started: bool,
}

impl World {
    /// Has something happen after a while.
    pub(super) fn after(&mut self, delay: Duration, timer: Timer) {
        self.timers.pending.push(Reverse((Instant::now() + delay, timer)));
        if !std::mem::replace(&mut self.timers.started, true) {
            let thread = std::thread::Builder::new().name("fake device".into());
            thread.spawn(run).expect("the device needs a thread");
        }
        world::CHANGED.notify_all();
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Resume(number) => execute::resume(self, number),
            Timer::LastReceive(number) => self.last_receive(number),
            Timer::Unanswered(serial) => cm::unanswered(self, serial),
            Timer::TimeWait(serial) => cm::time_wait_over(self, serial),
            Timer::Deliver(serial) => cm::deliver(self, serial),
            Timer::Unresolved(serial) => cm::unresolved(self, serial),
        }
    }
}

fn run() {
    let mut world = world::lock();
    loop {
        let now = Instant::now();
        match world.timers.pending.peek() {
            Some(Reverse((at, timer))) if *at <= now => {
                let timer = *timer;
                world.timers.pending.pop();
                world.fire(timer);
                // The lock is not fair: requests that are tried again after pauses shorter than the work would keep it for ever from the
                // calls of the program.
                drop(world);
                std::thread::yield_now();
                world = world::lock();
            }
            Some(Reverse((at, _))) => {
                let left = at.duration_since(now);
                world = world::wait_for(world, left);
            }
            None => world = world::wait(world),
        }
    }
}
