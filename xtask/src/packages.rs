//! The `packages` step: system packages that some tests need.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use crate::exec;
use crate::tally::Tally;
use crate::test::Settings;

/// A program, and the Debian package that has it.
const NEEDED: &[(&str, &str)] = &[("ip", "iproute2"), ("nft", "nftables")];

/// Folders that hold system programs but are not on every user's path.
const SYSTEM_FOLDERS: &[&str] = &["/usr/sbin", "/sbin"];

/// Every folder in which programs are looked for.
fn folders() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own: Vec<PathBuf> = env::split_paths(&path).collect();
    own.into_iter().chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
}

/// The variable `PATH` with the system's folders, for a script that calls such programs.
pub(crate) fn path_with_system_folders() -> OsString {
    env::join_paths(folders()).unwrap_or_else(|_| env::var_os("PATH").unwrap_or_default())
}

/// Whether a program can be found.
fn is_installed(program: &str) -> bool {
    folders().any(|folder| folder.join(program).is_file())
}

/// Fetches the lists of packages, if we may. What then fails for want of them says so.
pub(crate) fn update_lists() {
    if is_root() && is_installed("apt-get") {
        let _ = exec::quiet_lines(apt_get(&["update"]), exec::minutes(5), |_| {});
    }
}

/// Whether we run as root: the owner of our own entry in /proc is our effective user.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

/// The packages whose program is missing.
fn missing(is_installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    NEEDED.iter().filter(|(program, _)| !is_installed(program)).map(|&(_, package)| package).collect()
}

/// apt-get, which asks no questions.
fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
    command
}

/// The step: nothing to do, or install what is missing, or say how to.
///
/// Without the packages the tests that need them say that they were skipped, so only CI fails here.
pub(crate) fn step(settings: &Settings) -> Tally {
    let packages = missing(is_installed);
    if packages.is_empty() {
        let names: Vec<&str> = NEEDED.iter().map(|&(_, package)| package).collect();
        println!("present: {}", names.join(" "));
        return Tally::PASSED;
    }
    let list = packages.join(" ");
    let result = if !is_installed("apt-get") {
        Err(format!("this system has no apt-get; install what it calls {list}"))
    } else if !settings.install || !is_root() {
        Err(format!(
            "to run every test: sudo apt-get update && sudo apt-get install --no-install-recommends {list}"
        ))
    } else {
        let install = ["install", "-y", "--no-install-recommends"];
        let run = |arguments: &[&str]| exec::show(apt_get(arguments), exec::minutes(10));
        run(&["update"]).and_then(|()| run(&[&install[..], &packages[..]].concat()))
    };
    match result {
        Ok(()) => Tally::PASSED,
        Err(sentence) => {
            println!("missing: {list}\n{sentence}");
            if settings.ci { Tally::FAILED } else { Tally::SKIPPED }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_follow_from_missing_programs() {
        assert_eq!(missing(|_| true), [""; 0]);
        assert_eq!(missing(|program| program == "ip"), ["nftables"]);
        assert_eq!(missing(|_| false), ["iproute2", "nftables"]);
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program"));
    }
}
