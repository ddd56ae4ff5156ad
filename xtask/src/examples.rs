//! The `examples` step: builds the examples from the package that would be published, as a user would but without optimization,
//! checks the packages that depend on it, runs the commands of their READMEs, and compares the output with the documented one.

mod transcript;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use self::transcript::{Readme, Transcript};
use crate::exec::{self, minutes};
use crate::steps;
use crate::tally::Tally;
use crate::test::Settings;

/// The README of the examples that are not published.
const FRAMEWORKS: &str = "examples/frameworks/README.md";

/// A stand-in for cargo that runs what is built, instead of building it again for each command: an example of the package, or,
/// if it needs features or is of another package, that of the workspace.
const CARGO: &str = r#"#!/bin/sh
folder=target/xtask/examples/debug/examples
while [ $# -gt 0 ]; do
    case $1 in
        --example) name=$2; shift 2 ;;
        --features | -p) folder=target/debug/examples; shift 2 ;;
        --) shift; break ;;
        *) shift ;;
    esac
done
exec "$folder/$name" "$@"
"#;

/// The folder for the examples of the package: those of the workspace, which tests run meanwhile, have the same names.
const BUILT: &str = "target/xtask/examples";

/// The folder of the stand-in, which precedes the others of `PATH`.
const SHIM: &str = "target/xtask/bin";

/// The time limit of a script: far more than it needs on a busy machine.
const SCRIPT_LIMIT: Duration = minutes(3);

/// The packages that are published: the first, and those that need it.
const PACKAGES: [&str; 3] = ["tokio-rdma", "tokio-rdma-rpc", "rdma-top"];

/// How many crates the first example may take to build. Compiling them has to take a minute or two.
const MOST_CRATES: usize = 95;

/// The step: one check for each build, one for each script, and one for the list of examples.
pub(crate) fn step(settings: &Settings) -> Tally {
    let mut tally = Tally::check(count_crates());
    let packages = unpack();
    let package = packages.and_then(|[package, others @ ..]| {
        build(&package)?;
        others.iter().try_for_each(|other| check(other, &package))?;
        Ok(package)
    });
    tally += Tally::check(package.as_ref().map(drop).map_err(Clone::clone));
    tally += Tally::check(steps::build_programs());
    let Ok(package) = package else { return tally };
    if tally.failed == 0 {
        tally += scripts(settings, &package.join("examples/README.md"), &package.join("examples"));
        tally += scripts(settings, Path::new(FRAMEWORKS), Path::new("examples/frameworks"));
    }
    tally
}

/// Runs the scripts of a README, which has a section for each example in the folder.
fn scripts(settings: &Settings, readme: &Path, folder: &Path) -> Tally {
    let text = fs::read_to_string(readme).map_err(|error| format!("{}: {error}", readme.display()));
    let parsed = text.and_then(|text| Readme::parse(&text));
    let shim = fs::create_dir_all(SHIM).and_then(|()| {
        let file = Path::new(SHIM).join("cargo");
        fs::write(&file, CARGO)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
    });
    match (parsed, shim) {
        (Ok(readme), Ok(())) => {
            let mut tally = Tally::check(is_complete(&readme, folder));
            for transcript in &readme.transcripts {
                tally += if transcript.root && !can_unshare() {
                    println!("skipped: {}: needs CAP_SYS_ADMIN", transcript.section);
                    if settings.ci { Tally::FAILED } else { Tally::SKIPPED }
                } else {
                    Tally::check(run(transcript))
                };
            }
            tally
        }
        (Err(sentence), _) => Tally::check(Err(sentence)),
        (_, Err(error)) => Tally::check(Err(format!("{SHIM}: {error}"))),
    }
}

/// Whether each example, which is a file or a folder with a `main.rs`, has a section of its name.
fn is_complete(readme: &Readme, folder: &Path) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let examples: BTreeSet<String> = paths
        .filter(|path| {
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists()
        })
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    let missing: Vec<_> = examples.iter().filter(|name| !readme.sections.contains(name)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("the README has no section for {missing:?}")) }
}

/// Whether this process may create network namespaces.
fn can_unshare() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "true"]);
    exec::quietly(command, minutes(1)).is_ok()
}

/// Runs a script and compares its output.
fn run(transcript: &Transcript) -> Result<(), String> {
    let mut command = Command::new("sh");
    command.args(["-c", "sh -ec \"$0\" || echo \"(exit status: $?)\""]).arg(&transcript.script);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{SHIM}:{path}")).env("NO_COLOR", "1");
    command.env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    println!("{}: $ {}", transcript.section, transcript.script.replace('\n', "\n    "));
    let mut printed = Vec::new();
    exec::quiet_lines(command, SCRIPT_LIMIT, |line| {
        println!("{line}");
        printed.push(line.to_owned());
    })?;
    transcript.compare(&printed).map_err(|error| format!("{}: {error}", transcript.section))
}

/// Makes the packages as they would be published; returns the folders with what is in them, in the order of `PACKAGES`.
fn unpack() -> Result<[PathBuf; 3], String> {
    let folder = Path::new("target/package");
    // Another version may have been left there.
    let _ = fs::remove_dir_all(folder);
    let mut package = exec::cargo(&["package", "--no-verify", "--allow-dirty"]);
    package.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    exec::show(package, minutes(5))?;
    let files = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let crates: Vec<PathBuf> = files
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "crate"))
        .collect();
    let mut unpacked = Vec::new();
    for name in PACKAGES {
        let package = crates.iter().find(|path| is_of(path, name));
        let package = package.ok_or_else(|| format!("no package of {name} is in {}", folder.display()))?;
        let mut tar = Command::new("tar");
        // Files in a package have a fixed time, by which cargo would take every package for the one that it has built before.
        tar.arg("-xzmf").arg(package).arg("-C").arg(folder);
        exec::show(tar, minutes(1))?;
        unpacked.push(package.with_extension(""));
    }
    unpacked.try_into().map_err(|_| "packages are missing".to_owned())
}

/// Whether a file is the package of this name: a hyphen and the version follow.
fn is_of(path: &Path, name: &str) -> bool {
    let file = path.file_name().and_then(|file| file.to_str());
    let version = file.and_then(|file| file.strip_prefix(name)?.strip_prefix('-'));
    version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
}

/// Checks that a package has all that it needs, with the first package as the one that is published. The features of that of calls in
/// messages are those of the step `features`, which has built what is on the way.
fn check(package: &Path, other: &Path) -> Result<(), String> {
    let mut command = exec::cargo(&["check", "--lib", "--bins", "--target-dir", BUILT, "--config"]);
    command.arg(format!("patch.crates-io.{}.path='{}'", PACKAGES[0], crate::root().join(other).display()));
    command.arg("--manifest-path").arg(package.join("Cargo.toml"));
    command.env("CARGO_BUILD_BUILD_DIR", crate::root().join("target"));
    exec::show(command, minutes(10))
}

/// Builds its examples. What is on the way to them is where that of the workspace is: the crates that both need are built once.
fn build(package: &Path) -> Result<(), String> {
    let mut command = exec::cargo(&["build", "--examples", "--target-dir", BUILT, "--manifest-path"]);
    // A cargo before 1.91 does not know the variable, and builds all of them.
    command.arg(package.join("Cargo.toml")).env("CARGO_BUILD_BUILD_DIR", crate::root().join("target"));
    exec::show(command, minutes(30))
}

/// Counts the crates that a fresh clone builds before the first example runs.
fn count_crates() -> Result<(), String> {
    let tree = exec::cargo(&["tree", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"]);
    let mut crates = Vec::new();
    exec::lines(tree, minutes(1), |line| {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version)) = (words.next(), words.next().filter(|word| word.starts_with('v')))
        {
            crates.push(format!("{name} {version}"));
        }
    })?;
    crates.sort_unstable();
    crates.dedup();
    println!("the first example takes {} crates, and may take {MOST_CRATES}", crates.len());
    if (1..=MOST_CRATES).contains(&crates.len()) {
        return Ok(());
    }
    Err(format!("{} crates before the first example runs, and not 1 to {MOST_CRATES}", crates.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_told_apart_by_their_versions() {
        let file = Path::new("target/package/tokio-rdma-rpc-0.1.0.crate");
        assert!(is_of(file, "tokio-rdma-rpc"));
        assert!(!is_of(file, "tokio-rdma") && !is_of(file, "rdma-rpc"));
    }
}
