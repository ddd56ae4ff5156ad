//! Runs external commands, as [`rdma_guest::exec`] does, and cargo.

use std::env;
use std::fs;
use std::process::Command;

pub(crate) use rdma_guest::exec::*;

/// The cargo that started us, with these arguments. It builds in `target`, where the steps look for what it has built.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).env_remove("CARGO_TARGET_DIR");
    command
}

/// Lowers the priority of this thread, and so of the processes that it starts, for a step that only computes: the tests beside it wait
/// most of the time, but not for a processor.
pub(crate) fn lower_priority() {
    let Ok(thread) = fs::read_link("/proc/thread-self") else { return };
    let mut renice = Command::new("renice");
    renice.args(["-n", "10", "-p"]).args(thread.file_name());
    // Without it the step does the same.
    let _ = quietly(renice, minutes(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The priority of this thread.
    fn priority() -> Option<i32> {
        let stat = fs::read_to_string("/proc/thread-self/stat").ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
    }

    #[test]
    fn priority_is_lowered_for_one_thread() {
        let before = priority();
        let lowered = std::thread::spawn(|| {
            lower_priority();
            priority()
        });
        assert!(lowered.join().expect("no panic") >= Some(10));
        assert_eq!(priority(), before);
    }
}
