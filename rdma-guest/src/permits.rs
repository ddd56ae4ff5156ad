//! Limits how many guest machines run at once, by the memory and the processors that there are.

use std::fs;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;

use crate::machine::Processors;

/// The memory of one machine in KiB, with what QEMU adds.
const MACHINE: usize = 3 << 20;

/// How many machines run at the same time at most.
const MOST: usize = 3;

/// A semaphore.
struct Semaphore {
    /// How many processors each machine has.
    processors: Processors,
    /// How many permits are left.
    permits: Mutex<usize>,
    /// Notified when a permit is returned.
    returned: Condvar,
}

/// The permission to run one machine, until it is dropped.
pub struct Permit(&'static Semaphore);

/// Waits until one more machine may run.
pub fn acquire() -> Permit {
    static MACHINES: OnceLock<Semaphore> = OnceLock::new();
    let semaphore = MACHINES.get_or_init(|| {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let machines = machines(available(&memory), processors);
        Semaphore {
            processors: share(machines, processors),
            permits: Mutex::new(machines),
            returned: Condvar::new(),
        }
    });
    let permits = semaphore.permits.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = semaphore.returned.wait_while(permits, |permits| *permits == 0);
    *wait.unwrap_or_else(PoisonError::into_inner) -= 1;
    Permit(semaphore)
}

impl Permit {
    /// How many processors the machine is to have.
    pub fn processors(&self) -> Processors {
        self.0.processors
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.permits.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.returned.notify_one();
    }
}

/// How many machines fit into this much memory, with a processor for each: an emulated machine that has to wait for one
/// misses the time limits of its tests. One is tried in any case.
fn machines(available: usize, processors: usize) -> usize {
    (available / MACHINE).min(processors).clamp(1, MOST)
}

/// How many processors each of these machines has.
fn share(machines: usize, processors: usize) -> Processors {
    if processors >= 2 * machines { Processors::Two } else { Processors::One }
}

/// The available memory in KiB, from the text of `/proc/meminfo`.
fn available(memory: &str) -> usize {
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_processors_limit_the_machines() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   24000000 kB\n"), 24_000_000);
        assert_eq!((machines(24_000_000, 8), machines(7_000_000, 8), machines(0, 8)), (3, 2, 1));
        assert_eq!((machines(24_000_000, 2), machines(24_000_000, 0)), (2, 1));
        assert_eq!(available("nothing"), 0);
    }

    #[test]
    fn machines_short_of_host_processors_have_one() {
        assert_eq!((share(1, 2), share(2, 4)), (Processors::Two, Processors::Two));
        assert_eq!(
            (share(1, 1), share(2, 2), share(2, 3)),
            (Processors::One, Processors::One, Processors::One)
        );
    }
}
