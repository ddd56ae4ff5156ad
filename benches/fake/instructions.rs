//! The instructions of an operation, in the difference of two runs.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::Stdio;
use std::{env, fs, process};

use crate::callgrind::{self, Totals};

/// The operations of the first run, which are those of both runs that come before the ones that count.
const FEW: usize = 1024;
/// Those that the second run has more.
const MORE: usize = 3072;

/// The instructions of an operation.
#[derive(Clone, Copy, Default)]
pub(crate) struct Instructions {
    /// Those of the device, and of what it calls.
    pub(crate) device: f64,
    /// Those of the program, and of the libraries that it calls.
    pub(crate) own: f64,
}

/// Counts those of a line of a program.
pub(crate) fn count(command: &[OsString]) -> io::Result<Instructions> {
    let [few, many] = [FEW, FEW + MORE].map(|operations| profile(command, operations));
    let (few, many) = (few?, many?);
    let per_operation = |more: u64, less: u64| (more as f64 - less as f64) / MORE as f64;
    Ok(Instructions { device: per_operation(many.device, few.device), own: per_operation(many.own, few.own) })
}

fn profile(command: &[OsString], operations: usize) -> io::Result<Totals> {
    let file = env::temp_dir().join(format!("fake-bench-{}.callgrind", process::id()));
    let mut child =
        callgrind::command(&file).args(command).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    writeln!(input, "{operations}")?;
    drop(input);
    let status = child.wait()?;
    let text = fs::read_to_string(&file);
    // It may not have been written.
    let _ = fs::remove_file(&file);
    if !status.success() {
        return Err(io::Error::other(format!("valgrind {command:?}: {status}")));
    }
    Ok(callgrind::totals(&text?))
}
