//! How many guest machines there may be at once: as many as memory allows.

use std::fs;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

/// The memory that one machine takes, in KiB: its own, and what QEMU adds.
const MACHINE: usize = 3 << 20;

/// Machines that may be started.
struct Turns {
    /// How many more.
    left: Mutex<usize>,
    /// Told when one has ended.
    ended: Condvar,
}

/// The right to run one machine. Dropping it gives it back.
pub(super) struct Turn(&'static Turns);

/// Waits until one more machine may run.
pub(super) fn take() -> Turn {
    static TURNS: OnceLock<Turns> = OnceLock::new();
    let turns = TURNS.get_or_init(|| {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Turns { left: Mutex::new(at_once(available(&memory))), ended: Condvar::new() }
    });
    let left = turns.left.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = turns.ended.wait_while(left, |left| *left == 0).unwrap_or_else(PoisonError::into_inner);
    *left -= 1;
    Turn(turns)
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.left.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.ended.notify_one();
    }
}

/// How many machines there may be, of so much memory; one has to be tried.
fn at_once(available: usize) -> usize {
    (available / MACHINE).max(1)
}

/// The memory that can be had, in KiB, from `/proc/meminfo`.
fn available(memory: &str) -> usize {
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_run_as_memory_allows() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   24000000 kB\n"), 24_000_000);
        assert_eq!((at_once(24_000_000), at_once(7_000_000), at_once(0)), (7, 2, 1));
        assert_eq!(available("nothing"), 0);
    }
}
