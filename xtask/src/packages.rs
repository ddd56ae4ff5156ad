//! Debian packages that some checks need: which are missing, and the `packages` step, which installs them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use crate::exec;
use crate::tally::Tally;
use crate::test::Settings;

/// For tests that make network namespaces.
const NETWORK: &[&str] = &["iproute2", "nftables"];

/// Reads in a test what we put on the wire.
const DISSECTOR: &[&str] = &["tshark"];

/// To build with the feature `rdma-sys`, and to compare the bindings of the feature `verbs` with the headers of C.
pub(crate) const RDMA_SYS: &[&str] = &["libibverbs-dev", "librdmacm-dev", "libclang-dev", "pkg-config"];

/// To build `interop/async-rdma` besides, which compiles a C library.
pub(crate) const ASYNC_RDMA: &[&str] = &["make"];

/// To count instructions.
pub(crate) const VALGRIND: &[&str] = &["valgrind"];

/// To make the guest machine, to run it, and the programs of others that tests run in it.
#[rustfmt::skip]
pub(crate) const GUEST: &[&str] = &[
    "qemu-system-x86", "busybox-static", "cpio", "kmod", "make", "gcc-12", "binutils", "xz-utils",
    "rdma-core", "ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "perftest",
    "curl", "netcat-traditional", "wget",
];

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

/// Whether we run as root: the owner of our own entry in /proc is our effective user.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

/// Whether this system installs packages with apt.
fn has_apt() -> bool {
    folders().any(|folder| folder.join("apt-get").is_file())
}

/// Those of the packages that are not installed: all of them on a system that is not Debian's.
fn missing(packages: &[&'static str]) -> Vec<&'static str> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Status} ${Package}\\n"]).args(packages);
    let mut lines = Vec::new();
    // It fails when it does not know one of them, and still tells of the others.
    let _ = exec::quiet_lines(query, exec::minutes(1), |line| lines.push(line.to_owned()));
    not_installed(packages, &lines)
}

/// Those of the packages that no line tells to be installed.
fn not_installed(packages: &[&'static str], lines: &[String]) -> Vec<&'static str> {
    let installed = |package: &str| lines.iter().any(|line| line.strip_prefix("installed ") == Some(package));
    packages.iter().copied().filter(|package| !installed(package)).collect()
}

/// A sentence on how to install the missing ones of these packages; none if there are none.
pub(crate) fn lacking(packages: &[&'static str]) -> Option<String> {
    let missing = missing(packages);
    (!missing.is_empty()).then(|| how_to_install(&missing))
}

/// The command that a person would type.
fn how_to_install(packages: &[&str]) -> String {
    let list = packages.join(" ");
    if has_apt() {
        format!("missing: sudo apt-get update && sudo apt-get install --no-install-recommends {list}")
    } else {
        format!("missing: what Debian 12 calls {list} (this system has no apt-get)")
    }
}

/// The address of Debian's archive that apt uses here.
pub(crate) fn debian_archive() -> Option<String> {
    let mut query = Command::new("apt-get");
    query.args(["indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"]);
    let mut found = None;
    let _ = exec::quiet_lines(query, exec::minutes(1), |line| {
        if let Some(address) = line.strip_prefix("Debian ") {
            found.get_or_insert(address.to_owned());
        }
    });
    found
}

/// apt-get, which asks no questions.
fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
    command
}

/// Fetches the lists of packages, if we may. What then fails for want of them says so.
pub(crate) fn update_lists() {
    if is_root() && has_apt() {
        let _ = exec::quiet_lines(apt_get(&["update"]), exec::minutes(5), |_| {});
    }
}

/// The step: nothing to do, or install what is missing, or say how to.
///
/// Without the packages what needs them says that it was skipped, so only CI fails here.
pub(crate) fn step(settings: &Settings) -> Tally {
    let guest = if settings.guest { GUEST } else { &[] };
    let mut wanted = [NETWORK, DISSECTOR, RDMA_SYS, ASYNC_RDMA, VALGRIND, guest].concat();
    wanted.sort_unstable();
    wanted.dedup();
    let packages = missing(&wanted);
    if packages.is_empty() {
        println!("present: {}", wanted.join(" "));
        return Tally::PASSED;
    }
    let result = if !has_apt() || !settings.install || !is_root() {
        Err(how_to_install(&packages))
    } else {
        let install = ["install", "-y", "--no-install-recommends"];
        let run = |arguments: &[&str]| exec::show(apt_get(arguments), exec::minutes(10));
        run(&["update"]).and_then(|()| run(&[&install[..], &packages[..]].concat()))
    };
    match result {
        Ok(()) => Tally::PASSED,
        Err(sentence) => {
            println!("{sentence}");
            if settings.ci { Tally::FAILED } else { Tally::SKIPPED }
        }
    }
}

/// What a check without its packages counts as: `None` if it has them.
pub(crate) fn skipped(packages: &[&'static str], settings: &Settings) -> Option<Tally> {
    let sentence = lacking(packages)?;
    println!("skipped: {sentence}");
    Some(if settings.ci { Tally::FAILED } else { Tally::SKIPPED })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_missing_unless_it_is_installed_whole() {
        let lines =
            ["installed a", "config-files b", "dpkg-query: no packages found matching c", "installed dd"];
        let lines = lines.map(str::to_owned);
        assert_eq!(not_installed(&["a", "b", "c", "d"], &lines), ["b", "c", "d"]);
        assert_eq!(not_installed(&["a", "b"], &[]), ["a", "b"]);
    }

    #[test]
    fn how_to_install_names_every_package() {
        assert!(how_to_install(&["a", "b"]).contains("a b"));
        assert_eq!(lacking(&[]), None);
    }
}
