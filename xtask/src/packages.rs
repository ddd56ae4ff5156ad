//! Debian packages that some checks need, and the `packages` step, which installs them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

pub(crate) use rdma_guest::packages::lacking;
pub(crate) use rdma_guest::packages::missing;
use rdma_guest::packages::{MACHINE, has_apt, how_to_install};

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

/// The programs of others that tests run in the guest machine.
#[rustfmt::skip]
pub(crate) const PROGRAMS: &[&str] = &[
    "rdma-core", "ibverbs-utils", "rdmacm-utils", "perftest", "curl", "netcat-traditional", "wget",
];

/// The programs of others that run through two proxies.
#[rustfmt::skip]
pub(crate) const PROXIED: &[&str] = &[
    "iproute2", "ethtool", "util-linux", "postgresql", "redis-server", "redis-tools", "nginx-light", "nghttp2-client", "apache2-utils",
];

/// To make the guest machine, to run it, and what tests run in it.
pub(crate) fn guest() -> Vec<&'static str> {
    [MACHINE, PROGRAMS].concat()
}

/// Whether we run as root: the owner of our own entry in /proc is our effective user.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
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

/// The step: nothing to do, or install what is missing, or say how to.
///
/// Without the packages what needs them says that it was skipped, so only CI fails here.
pub(crate) fn step(settings: &Settings) -> Tally {
    let guest = if settings.guest { guest() } else { Vec::new() };
    let mut wanted = [NETWORK, DISSECTOR, RDMA_SYS, ASYNC_RDMA, VALGRIND, &guest[..]].concat();
    wanted.sort_unstable();
    wanted.dedup();
    let packages = missing(&wanted);
    if packages.is_empty() {
        println!("present: {}", wanted.join(" "));
        return Tally::PASSED;
    }
    match install(&packages, settings.install) {
        Ok(()) => Tally::PASSED,
        Err(sentence) => {
            println!("{sentence}");
            if settings.ci { Tally::FAILED } else { Tally::SKIPPED }
        }
    }
}

/// Installs these packages if that is allowed and this process runs as root.
///
/// # Errors
/// The command that a person would type, or what went wrong.
pub(crate) fn install(packages: &[&str], allowed: bool) -> Result<(), String> {
    if !has_apt() || !allowed || !is_root() {
        return Err(how_to_install(packages));
    }
    let install = ["install", "-y", "--no-install-recommends"];
    let run = |arguments: &[&str]| exec::show(apt_get(arguments), exec::minutes(10));
    run(&["update"]).and_then(|()| run(&[&install[..], packages].concat()))
}

/// The tally of a check without its packages: `None` if it has them.
pub(crate) fn skipped(packages: &[&'static str], settings: &Settings) -> Option<Tally> {
    let sentence = lacking(packages)?;
    println!("skipped: {sentence}");
    Some(if settings.ci { Tally::FAILED } else { Tally::SKIPPED })
}
