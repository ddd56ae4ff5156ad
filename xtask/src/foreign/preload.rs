//! `cargo xtask foreign preload`: programs with plain sockets under librspreload of the newest rdma-core, which knows epoll, with the
//! example `proxy` at the other end: on `rxe0`, and on `siw0` with the soft provider on another host.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

use super::{Script, debian};
use crate::exec::{self, minutes};
use crate::packages;
use crate::tally::Tally;

/// The checks.
pub(super) const SCRIPT: &str = include_str!("preload.sh");

/// Our end.
const EXAMPLE: &str = "target/debug/examples/proxy";

/// What rdma-core is built with, besides programs.
const PACKAGES: &[&str] = &["gcc", "libnl-3-dev", "libnl-route-3-dev", "pkg-config"];

/// What it is built with, and the programs of the checks: those of the packages cmake, ninja-build, iperf3, memcached,
/// netcat-traditional, redis-server and redis-tools.
const PROGRAMS: &[&str] =
    &["cmake", "ninja", "iperf3", "memcached", "nc.traditional", "redis-server", "redis-cli"];

/// The parts of rdma-core that are built.
const TARGETS: &[&str] = &["ibverbs", "rdmacm", "rspreload"];

/// The devices, whose drivers are built.
const DEVICES: [&str; 2] = ["rxe", "siw"];

/// Builds both, and runs the checks on both devices.
pub(super) fn run() -> Tally {
    let libraries = match build() {
        Ok(libraries) => libraries,
        Err(sentence) => return Tally::check(Err(sentence)),
    };
    let mut tally = Tally::default();
    for device in DEVICES {
        let paths = [libraries.as_path(), Path::new(EXAMPLE)];
        tally += Script { text: SCRIPT, paths: &paths, words: &[device], limit: minutes(20) }.run();
    }
    tally
}

/// Builds rdma-core and the example; returns the folder of the libraries.
fn build() -> Result<PathBuf, String> {
    packages::lacking(PACKAGES).map_or(Ok(()), Err)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let missing = missing(PROGRAMS, &env::split_paths(&path).collect::<Vec<_>>());
    if !missing.is_empty() {
        return Err(format!("these programs are missing: {}", missing.join(" ")));
    }
    let folder = debian::source("rdma-core")?.join("build");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    println!("rdma-core is built");
    let mut cmake = Command::new("cmake");
    // Programs find the libraries, and these their drivers, where they are built.
    cmake.args(["-GNinja", "-DIN_PLACE=1", "-DNO_PYVERBS=1", "-DNO_MAN_PAGES=1", ".."]).current_dir(&folder);
    exec::quietly(cmake, minutes(10))?;
    let version = driver_version(&fs::read_to_string(folder.join("build.ninja")).unwrap_or_default())
        .ok_or("rdma-core builds no driver of rxe")?;
    let mut ninja = Command::new("ninja");
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    ninja.arg(format!("-j{jobs}")).args(TARGETS).current_dir(&folder);
    ninja.args(DEVICES.map(|device| format!("{device}-rdmav{version}")));
    exec::quietly(ninja, minutes(30))?;
    keep_drivers(&folder.join("etc/libibverbs.d"))?;
    exec::quietly(exec::cargo(&["build", "--features", "verbs", "--example", "proxy"]), minutes(30))?;
    Ok(folder.join("lib"))
}

/// Returns those of the programs that are in none of the folders.
fn missing<'a>(programs: &[&'a str], folders: &[PathBuf]) -> Vec<&'a str> {
    let is_missing = |name: &&str| !folders.iter().any(|folder| folder.join(name).is_file());
    programs.iter().copied().filter(is_missing).collect()
}

/// Returns the version of the interface between the library and its drivers, which is in their names.
fn driver_version(ninja: &str) -> Option<u32> {
    let (_, rest) = ninja.split_once("librxe-rdmav")?;
    rest.split(|next: char| !next.is_ascii_digit()).next()?.parse().ok()
}

/// Deletes the names of the drivers that are not built: the library would print a line for each.
fn keep_drivers(folder: &Path) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let name = path.file_stem().unwrap_or_default();
        if !DEVICES.iter().any(|device| name == *device) {
            fs::remove_file(&path).map_err(wrong)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_name_of_a_driver() {
        assert_eq!(driver_version("  TARGET_PDB = lib/librxe-rdmav65.pdb\nlib/librxe-rdmav66.so"), Some(65));
        assert_eq!(driver_version("build lib/libsiw-rdmav65.so: LINK\n"), None);
    }

    #[test]
    fn missing_programs_are_named() {
        let folders = [PathBuf::from("/no/such/folder"), PathBuf::from("/bin")];
        assert_eq!(missing(&["sh", "no-such-program"], &folders), ["no-such-program"]);
    }
}
