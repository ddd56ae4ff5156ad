//! Instructions of user space, as callgrind counts them: exact on any machine.
//!
//! The difference of two runs with different numbers of operations has nothing of what a program does once.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::{env, fs, process};

/// The operations of the first run, which are those of both runs that come before the ones that count.
const FEW: usize = 1024;
/// Those that the second run has more.
const MORE: usize = 3072;
/// The device, which is neither ours nor C's.
const DEVICE: &str = "libfake.so";

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

/// The instructions of a whole run.
#[derive(Default)]
struct Totals {
    device: u64,
    own: u64,
}

fn profile(command: &[OsString], operations: usize) -> io::Result<Totals> {
    let file = env::temp_dir().join(format!("fake-bench-{}.callgrind", process::id()));
    let mut out = OsString::from("--callgrind-out-file=");
    out.push(&file);
    let mut child = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(out)
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
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
    Ok(totals(&text?))
}

/// Sums the costs of a file of callgrind by objects. See "Callgrind Format Specification" of valgrind's manual.
fn totals(text: &str) -> Totals {
    let mut sums = Totals::default();
    // Names are abbreviated: `(3) name` the first time, then `(3)`.
    let mut names: HashMap<&str, bool> = HashMap::new();
    let mut all = 0;
    let mut in_device = false;
    // Where the next call leads, if not to the same object; and whether the next line is the cost of a call.
    let mut leads_to_device = None;
    let mut call = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            let (id, name) = name.split_once(' ').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(id, name.ends_with(DEVICE));
            }
            let is_device = names.get(id).copied().unwrap_or(false);
            match line.starts_with("ob=") {
                true => in_device = is_device,
                false => leads_to_device = Some(is_device),
            }
        } else if line.starts_with("calls=") {
            call = Some(leads_to_device.take().unwrap_or(in_device));
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse().ok()).unwrap_or(0);
            match call.take() {
                // All that the device has a library do is its own.
                Some(to_device) if in_device && !to_device => sums.device += cost,
                // Counted in the function that was called.
                Some(_) => {}
                None => {
                    all += cost;
                    sums.device += if in_device { cost } else { 0 };
                }
            }
        }
    }
    sums.own = all - sums.device;
    sums
}
