//! The machine and the tools that it was measured with: nothing that names the machine, its user or its folders.

use std::ffi::OsString;
use std::fs;

use serde_json::{Value, json};

use crate::children::output;

/// The file that says which versions of the crates were built.
const LOCK: &str = include_str!("../../../Cargo.lock");
/// The crates whose versions matter.
const CRATES: &[&str] = &["tokio", "quinn"];

/// One fact: what, and its value.
pub(crate) type Fact = (&'static str, String);

/// All facts.
pub(crate) fn facts(network: &str) -> Vec<Fact> {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|rest| rest.trim_start_matches([':', ' ', '\t']).to_owned());
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let hypervisor = if cpus.contains(" hypervisor") { ", in a virtual machine" } else { "" };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let mut facts = vec![
        ("date", said(&["date", "-u", "+%F"])),
        ("processor", format!("{count} x {}{hypervisor}", model.unwrap_or_default())),
        ("kernel", format!("Linux {}", version(&kernel))),
        ("network", network.to_owned()),
        ("load at the start", load.to_owned()),
        ("scheduling", scheduling()),
        ("copies", "without `rep movsb`, whose speed depends on addresses".to_owned()),
        ("memory", "`malloc` keeps what is freed, but for the lines of memory".to_owned()),
        ("compiler", said(&["rustc", "--version"])),
        ("libfabric", said(&["pkg-config", "--modversion", "libfabric"])),
        ("UCX", said(&["pkg-config", "--modversion", "ucx"])),
        ("strace", said(&["strace", "--version"])),
    ];
    facts.extend(CRATES.iter().filter_map(|name| Some((*name, locked(LOCK, name)?))));
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// Whether the work of others can get in between.
fn scheduling() -> String {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may contain anything, the policy is the 39th field.
    let policy = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38));
    match policy {
        Some("1" | "2") => "real-time: the work of others waits".to_owned(),
        _ => "as that of any program: the work of others is in the spread of the figures".to_owned(),
    }
}

/// The numbers at the start of a kernel's release: what follows may name who built it.
fn version(release: &str) -> &str {
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
    release[..end].trim_end_matches('.')
}

/// The first line that a program says; nothing when it cannot be run.
fn said(words: &[&str]) -> String {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let said = output(&words, None).unwrap_or_default();
    said.lines().next().unwrap_or_default().to_owned()
}

/// The version of a crate in a lock file.
fn locked(lock: &str, name: &str) -> Option<String> {
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// For programs.
pub(crate) fn json(facts: &[Fact]) -> Value {
    facts
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_is_read() {
        assert!(CRATES.iter().all(|name| locked(LOCK, name).is_some()));
        assert_eq!(locked(LOCK, "no-such-crate"), None);
    }

    #[test]
    fn a_kernel_is_named_by_its_numbers() {
        assert_eq!(version("6.1.0-28-amd64\n"), "6.1.0");
        assert_eq!(version("6.18.4.\n"), "6.18.4");
    }
}
