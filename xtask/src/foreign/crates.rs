//! Tests of other crates for RDMA, in the guest machine: does it serve programs that know nothing of this project?
//!
//! `interop/crates.txt` lists the crates, and the tests that cannot pass on a device, with the reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::Usage;
use crate::exec::{self, cargo, minutes};
use crate::tally::Tally;

/// The list.
const LIST_FILE: &str = "interop/crates.txt";

/// The folder for the copies of the packages.
const FOLDER: &str = "target/foreign/crates";

/// The folder for what is built of them: hardly a crate has the version that it has elsewhere.
const TARGET: &str = "target/foreign/build";

/// The devices of the guest machine.
const DEVICES: [&str; 2] = ["rxe", "siw"];

/// A package of crates.io.
#[derive(Debug, Default, PartialEq, Eq)]
struct Package {
    /// Its name.
    name: String,
    /// Its version.
    version: String,
    /// The arguments of the command that runs its tests.
    arguments: Vec<String>,
    /// A lock file to fetch it with.
    lock: Option<String>,
    /// The programs that its build calls.
    needs: Vec<String>,
    /// The examples that are run as tests.
    examples: Vec<String>,
    /// The examples that are built, for a test of ours in the guest machine.
    peers: Vec<String>,
    /// The tests that fail: the device, and the name.
    fails: BTreeSet<(String, String)>,
    /// The tests that are left out: the device, and the name.
    skips: Vec<(String, String)>,
    /// The devices that it does not support.
    without: Vec<String>,
    /// Why it has no tests.
    empty: Option<String>,
}

impl Package {
    /// The devices that it supports.
    fn devices(&self) -> impl Iterator<Item = &'static str> {
        DEVICES.into_iter().filter(|device| self.without.iter().all(|other| other != device))
    }
}

/// The command: all packages, or those that are named.
pub(super) fn main(names: &[String]) -> Result<ExitCode, Usage> {
    let list = fs::read_to_string(LIST_FILE).map_err(|error| error.to_string()).and_then(|list| parse(&list));
    let packages = match list {
        Ok(packages) => packages,
        Err(sentence) => {
            println!("error: {LIST_FILE}: {sentence}");
            return Ok(ExitCode::FAILURE);
        }
    };
    if let Some(name) = names.iter().find(|name| packages.iter().all(|package| package.name != **name)) {
        return Err(Usage(format!("{LIST_FILE} has no package `{name}`")));
    }
    let mut tally = Tally::default();
    for package in packages.iter().filter(|package| names.is_empty() || names.contains(&package.name)) {
        println!("\n== {} {}", package.name, package.version);
        tally += test(package);
    }
    println!("\n{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads the list.
fn parse(list: &str) -> Result<Vec<Package>, String> {
    let mut packages: Vec<Package> = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("not understood: {line}");
        if let Some(head) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let (name, version) = head.split_once(' ').ok_or_else(wrong)?;
            packages.push(Package { name: name.into(), version: version.into(), ..Package::default() });
            continue;
        }
        let package = packages.last_mut().ok_or_else(wrong)?;
        match line.split_once(' ').ok_or_else(wrong)? {
            ("arguments", words) => package.arguments = words.split(' ').map(str::to_owned).collect(),
            ("example", name) => package.examples.push(name.to_owned()),
            ("peer", name) => package.peers.push(name.to_owned()),
            ("lock", path) => package.lock = Some(path.to_owned()),
            ("needs", program) => package.needs.push(program.to_owned()),
            ("empty", reason) => package.empty = Some(reason.to_owned()),
            ("without", rest) => {
                let (device, _reason) = rest.split_once(": ").ok_or_else(wrong)?;
                package.without.push(device.to_owned());
            }
            ("skip", rest) => package.skips.push(result(rest).ok_or_else(wrong)?),
            ("fails", rest) => _ = package.fails.insert(result(rest).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        }
    }
    Ok(packages)
}

/// The device and the name in `DEVICE NAME: REASON`.
fn result(line: &str) -> Option<(String, String)> {
    let (device, rest) = line.split_once(' ').filter(|(device, _)| DEVICES.contains(device))?;
    let (name, _reason) = rest.split_once(": ")?;
    Some((device.to_owned(), name.to_owned()))
}

/// Runs the tests of a package; counts those with the result that is listed.
fn test(package: &Package) -> Tally {
    if let Some(reason) = &package.empty {
        println!("skipped: {reason}");
        return Tally::SKIPPED;
    }
    if let Some(program) = package.needs.iter().find(|program| !is_installed(program)) {
        println!("skipped: needs {program}");
        return Tally::SKIPPED;
    }
    let ran = copy(package).and_then(|folder| {
        for peer in &package.peers {
            let mut build = cargo(&["build", "--locked", "--example", peer, "--target-dir"]);
            build.arg(crate::root().join(TARGET)).current_dir(&folder);
            exec::show(build, minutes(30))?;
        }
        run(package, &folder)
    });
    match ran {
        Ok(said) => judge(package, &said),
        Err(sentence) => Tally::check(Err(sentence)),
    }
}

/// Whether a program can be called.
fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version");
    exec::quietly(command, minutes(1)).is_ok()
}

/// Copies the source of a package, which cargo downloads as a dependency of a package that has nothing else.
fn copy(package: &Package) -> Result<PathBuf, String> {
    let Package { name, version, .. } = package;
    let root = crate::root().join(FOLDER);
    let folder = root.join(name);
    let (fetcher, wrong) = (root.join(format!("fetch-{name}")), |error| format!("{name}: {error}"));
    fs::create_dir_all(fetcher.join("src")).map_err(wrong)?;
    fs::write(fetcher.join("src/lib.rs"), "").map_err(wrong)?;
    let manifest = format!(
        "[package]\nname = \"fetch\"\nedition = \"2024\"\n\n[dependencies]\n{name} = \"={version}\"\n\n[workspace]\n"
    );
    fs::write(fetcher.join("Cargo.toml"), manifest).map_err(wrong)?;
    if let Some(lock) = &package.lock {
        fs::copy(lock, fetcher.join("Cargo.lock")).map_err(wrong)?;
    }
    let mut metadata = cargo(&["metadata", "--format-version", "1", "--filter-platform"]);
    metadata.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH)).current_dir(&fetcher);
    let (mut found, mut output) = (None, String::new());
    let fetched = exec::quiet_lines(metadata, minutes(10), |line| {
        found = found.take().or_else(|| super::folder_of(name, line));
        if !line.starts_with('{') {
            output += line;
            output.push('\n');
        }
    });
    fetched.map_err(|error| format!("{output}{error}"))?;
    let source = found.ok_or_else(|| format!("cargo's metadata has no package {name}"))?;
    let _ = fs::remove_dir_all(&folder);
    let mut copy = Command::new("cp");
    // With their times, or all of it would be built again.
    copy.args(["--recursive", "--preserve=timestamps"]).arg(&source).arg(&folder);
    exec::quietly(copy, minutes(1))?;
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(wrong)?;
    let text = package.examples.iter().fold(text, |text, example| {
        let head = format!("[[example]]\nname = \"{example}\"\n");
        text.replace(&head, &format!("{head}test = true\nharness = false\n"))
    });
    fs::write(&manifest, text + "\n[workspace]\n").map_err(wrong)?;
    // Newer compilers warn of more, as they may of a dependency.
    let library = folder.join("src/lib.rs");
    let text = fs::read_to_string(&library).map_err(wrong)?;
    fs::write(&library, text.replace("#![deny(", "#![warn(")).map_err(wrong)?;
    Ok(folder)
}

/// Runs the tests on both devices, one after the other, as the user of `cargo rdma-guest` would; what it says.
fn run(package: &Package, folder: &Path) -> Result<Vec<String>, String> {
    let program = crate::guest::project::build()?;
    let mut said = Vec::new();
    for device in package.devices() {
        let mut command = crate::guest::project::command(folder, &program);
        command.args(["test", "--device", device, "--timeout", "300", "--target-dir"]);
        command.arg(crate::root().join(TARGET)).args(&package.arguments);
        command.args(package.examples.iter().flat_map(|example| ["--example", example]));
        let skips: Vec<_> = package.skips.iter().filter(|(on, _)| on == device).collect();
        if !skips.is_empty() {
            command.arg("--").args(skips.iter().flat_map(|(_, name)| ["--skip", name]));
        }
        let ended = exec::lines(command, minutes(60), |line| {
            println!("  {line}");
            said.push(line.to_owned());
        });
        if !said.iter().any(|line| counts(line, device).is_some()) {
            ended?;
            return Err(format!("the output has no counts of {device}"));
        }
    }
    Ok(said)
}

/// How many tests have passed, and how many have failed, if this is the last line about a device.
fn counts(line: &str, device: &str) -> Option<(usize, usize)> {
    let (passed, rest) = line.strip_prefix(device)?.strip_prefix(": ")?.split_once(" passed, ")?;
    let (failed, _) = rest.split_once(" failed")?;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

/// Compares what the command has said with the list.
fn judge(package: &Package, said: &[String]) -> Tally {
    let failed: BTreeSet<_> = said.iter().filter_map(|line| failure(line)).collect();
    let mut tally = Tally::default();
    for device in package.devices() {
        let counts = said.iter().rev().find_map(|line| counts(line, device));
        tally.passed += counts.map_or(0, |(passed, _)| passed);
    }
    for (device, name) in failed.difference(&package.fails) {
        tally += Tally::check(Err(format!("{device}: {name} fails, and is not listed")));
    }
    for (device, name) in package.fails.difference(&failed) {
        tally += Tally::check(Err(format!("{device}: {name} is listed as one that fails, and does not")));
    }
    println!("as listed: {} fail", package.fails.intersection(&failed).count());
    tally
}

/// The device and the name of a test or a program, if this is the head of what it said when it failed.
fn failure(line: &str) -> Option<(String, String)> {
    let (device, rest) = line.strip_prefix("-- ")?.split_once(": ")?;
    // Before its name is that of its program, behind a word such as `test`.
    let (_kind, name) = rest.split_once(' ')?;
    DEVICES.contains(&device).then(|| (device.to_owned(), name.replacen(": ", "::", 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# A list.
[a 1.0.0]
needs cmake
lock a/Cargo.lock
arguments --locked --lib
example two
peer three
fails siw loop::main: it has a reason: this
skip rxe wait: for ever

[b 2.0.0]
without siw: a reason
empty it has none
";

    #[test]
    fn a_list_is_read() {
        let packages = parse(LIST).expect("a good list");
        let text = str::to_owned;
        let one = Package {
            name: text("a"),
            version: text("1.0.0"),
            arguments: vec![text("--locked"), text("--lib")],
            needs: vec![text("cmake")],
            lock: Some(text("a/Cargo.lock")),
            examples: vec![text("two")],
            peers: vec![text("three")],
            fails: [(text("siw"), text("loop::main"))].into(),
            skips: vec![(text("rxe"), text("wait"))],
            ..Package::default()
        };
        assert_eq!(packages[0], one);
        assert_eq!((packages[0].devices().count(), packages[1].devices().next()), (2, Some("rxe")));
        assert_eq!(packages[1].devices().count(), 1);
        assert_eq!(packages[1].empty.as_deref(), Some("it has none"));
        for wrong in ["needs a", "[a]", "[a 1]\nfails ib b: c", "[a 1]\nfails rxe b", "[a 1]\nnever b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_committed_list_is_understood() {
        let list = fs::read_to_string(crate::root().join(LIST_FILE)).expect("the list");
        assert!(parse(&list).is_ok_and(|packages| packages.len() > 3));
    }

    #[test]
    fn each_result_has_to_be_the_listed_one() {
        let packages = parse(LIST).expect("a good list");
        let judged = |lines: &[&str]| {
            let said: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
            judge(&packages[0], &said)
        };
        let (rxe, siw) = ("rxe: 2 passed, 0 failed", "siw: 1 passed, 1 failed, 1 skipped");
        let expected = Tally { passed: 3, failed: 0, skipped: 0 };
        assert_eq!(judged(&[rxe, "-- siw: test loop: main", siw]), expected);
        assert_eq!(judged(&[rxe, siw]).failed, 1);
        assert_eq!(judged(&[rxe, "-- siw: test loop: main", "-- rxe: lib b", siw]).failed, 1);
        assert_eq!(failure("-- rxe: lib b"), Some(("rxe".to_owned(), "b".to_owned())));
        assert_eq!(failure("-- rxe: lib b: c::d"), Some(("rxe".to_owned(), "b::c::d".to_owned())));
        assert_eq!(failure("-- ib: lib b"), None);
    }
}
