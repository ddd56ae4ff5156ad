//! How much memory this process may lock: its limit, and the capability that lifts the limit.
//!
//! The kernel asks for the capability in the first user namespace (`ib_umem_get`), and only one that is in effect counts: a container
//! that adds `IPC_LOCK` puts it into the bounding set, which gives it to root alone (capabilities(7)).

use std::fs;

use super::diagnose::Fault;
use crate::error::RegisterError;
use crate::sys::memlock_limit;

/// The number of `CAP_IPC_LOCK`.
const IPC_LOCK: u32 = 14;

/// The capabilities of this process that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpcLock {
    /// The limit does not count.
    Effective,
    /// It has none, and none was added for it.
    Missing,
    /// It was added to a container, and is not in effect, for this reason.
    InVain(&'static str),
}

impl IpcLock {
    /// Reads the state of this process.
    fn of_process() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let last = read("/proc/sys/kernel/cap_last_cap").trim().parse().unwrap_or(u32::MAX);
        Self::of(&read("/proc/self/status"), &read("/proc/self/uid_map"), last)
    }

    /// Returns the state by the files `status` and `uid_map` of a process, and the number of the last capability of the kernel.
    fn of(status: &str, uid_map: &str, last: u32) -> Self {
        let set = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
        };
        let has = |set: u64| set & (1 << IPC_LOCK) != 0;
        let (effective, bounding) = (set("CapEff"), set("CapBnd"));
        // Another user namespace maps fewer numbers, or other ones.
        let is_first = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
        match (has(effective), has(bounding)) {
            (true, _) if is_first => Self::Effective,
            (true, _) => Self::InVain("this process is in a user namespace of its own"),
            // Outside of containers every program has all capabilities in this set.
            (false, true) if bounding.count_ones() <= last => {
                Self::InVain("this process does not run as root")
            }
            _ => Self::Missing,
        }
    }
}

/// Returns the number of bytes that this process may lock; `None` if there is no limit.
pub(crate) fn limit() -> Option<u64> {
    memlock_limit().filter(|_| IpcLock::of_process() != IpcLock::Effective)
}

/// Returns the fault of a process that may not lock the memory of a registration.
pub(crate) fn fault(error: RegisterError) -> Fault {
    match IpcLock::of_process() {
        IpcLock::InVain(reason) => Fault::IpcLockInVain { error, reason },
        IpcLock::Effective | IpcLock::Missing => Fault::MemoryLock(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The map of the first user namespace.
    const FIRST: &str = "         0          0 4294967295\n";
    /// The number of the last capability of recent kernels.
    const LAST: u32 = 40;

    /// Returns the status of a process with these sets.
    fn status(effective: &str, bounding: &str) -> String {
        format!(
            "Name:\tdoctor\nCapInh:\t0000000000000000\nCapEff:\t{effective}\nCapBnd:\t{bounding}\nCapAmb:\t0\n"
        )
    }

    // HW-19: the sets of root and of a user, on a host and in a container with and without the capability.
    #[test]
    fn only_an_effective_capability_lifts_the_limit() {
        let (all, none) = ("000001ffffffffff", "0000000000000000");
        let (usual, added) = ("00000000a80425fb", "00000000a80465fb");
        let user = "this process does not run as root";
        for (effective, bounding, expected) in [
            (all, all, IpcLock::Effective),
            (none, all, IpcLock::Missing),
            (usual, usual, IpcLock::Missing),
            (none, usual, IpcLock::Missing),
            (added, added, IpcLock::Effective),
            (none, added, IpcLock::InVain(user)),
            // A program with the capability of its file.
            ("0000000000004000", added, IpcLock::Effective),
        ] {
            assert_eq!(
                IpcLock::of(&status(effective, bounding), FIRST, LAST),
                expected,
                "{effective} {bounding}"
            );
        }
        let rootless = IpcLock::of(&status(all, all), "0 1000 1\n1 100000 65536\n", LAST);
        assert_eq!(rootless, IpcLock::InVain("this process is in a user namespace of its own"));
        assert_eq!(IpcLock::of("", "", LAST), IpcLock::Missing, "no such files");
    }
}
