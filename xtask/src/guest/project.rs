//! The step for `cargo rdma-guest`: a project outside the workspace runs its tests with it, as anyone's would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::exec::{self, minutes};
use crate::packages;
use crate::tally::Tally;
use crate::test::Settings;

/// The project.
const SAMPLE: &str = "rdma-guest/sample";

/// Its dependency on this checkout, which has another path from where the copy is.
const DEPENDENCY: &str = "path = \"../..\"";

/// The folder for the copy, and for what is built of it.
const FOLDER: &str = "target/rdma-guest";

/// How long a command may take: the first one builds the project, and the machine if there is none yet.
const LIMIT: Duration = minutes(20);

/// The step.
pub(crate) fn step(settings: &Settings) -> Tally {
    if settings.sanitizer {
        println!("nothing to do: the project is built as its user builds it");
        return Tally::default();
    }
    packages::skipped(&packages::guest(), settings).unwrap_or_else(|| {
        let prepared = copy().and_then(|folder| Ok((folder, build()?)));
        let (folder, program) = match prepared {
            Ok(prepared) => prepared,
            Err(sentence) => return Tally::check(Err(sentence)),
        };
        let mut tally = Tally::check(tests_pass(&folder, &program));
        tally += Tally::check(failures_are_told(&folder, &program));
        tally += Tally::check(commands_run(&folder, &program));
        tally
    })
}

/// Copies the project, with the lock file of the workspace: all crates of that have been fetched.
fn copy() -> Result<PathBuf, String> {
    let (from, to) = (Path::new(SAMPLE), crate::root().join(FOLDER).join("sample"));
    let _ = fs::remove_dir_all(&to);
    for folder in ["", "src", "tests"] {
        copy_files(&from.join(folder), &to.join(folder)).map_err(|error| format!("{SAMPLE}: {error}"))?;
    }
    let wrong = |error: std::io::Error| format!("{}: {error}", to.display());
    fs::copy("Cargo.lock", to.join("Cargo.lock")).map_err(wrong)?;
    let manifest = fs::read_to_string(to.join("Cargo.toml")).map_err(wrong)?;
    if !manifest.contains(DEPENDENCY) {
        return Err(format!("{SAMPLE}/Cargo.toml has no `{DEPENDENCY}`"));
    }
    let path = format!("path = \"{}\"", crate::root().display());
    fs::write(to.join("Cargo.toml"), manifest.replace(DEPENDENCY, &path)).map_err(wrong)?;
    Ok(to)
}

/// Copies the files of one folder.
fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Builds the command; its program.
pub(crate) fn build() -> Result<PathBuf, String> {
    exec::show(exec::cargo(&["build", "--package", "rdma-guest"]), minutes(10))?;
    Ok(crate::root().join("target/debug/cargo-rdma-guest"))
}

/// The tests of the project pass on both devices.
fn tests_pass(folder: &Path, program: &Path) -> Result<(), String> {
    let (ended, output) = run(test(folder, program, &["--device", "both"]));
    ended?;
    contains(&output, &["rxe: 2 passed, 0 failed", "siw: 2 passed, 0 failed"])
}

/// A test program that fails makes the command fail.
fn failures_are_told(folder: &Path, program: &Path) -> Result<(), String> {
    let arguments = ["--device", "rxe", "--lib", "--", "--no-such-option"];
    let (ended, output) = run(test(folder, program, &arguments));
    ended_with(1, ended)?;
    contains(&output, &["rxe: 0 passed, 1 failed", "-- rxe: lib sample"])
}

/// C programs run, variables are passed on unless they may be secrets, and the exit status is that of the command.
fn commands_run(folder: &Path, program: &Path) -> Result<(), String> {
    let script = "sh rping.sh; env; exit 7";
    let mut command = command(folder, program);
    command.args(["run", "--env", "SAMPLE_NAMED", "--", "sh", "-c", script]);
    command.envs([
        ("CARGO_REGISTRY_TOKEN", "1"),
        ("SAMPLE_OTHER", "2"),
        ("SAMPLE_NAMED", "3"),
        ("RUST_LOG", "4"),
    ]);
    let (ended, output) = run(command);
    ended_with(7, ended)?;
    let rping = ["rping works over 10.77.0.1", "rping works over 10.78.0.1"];
    contains(&output, &[&rping[..], &["SAMPLE_NAMED=3", "RUST_LOG=4"]].concat())?;
    match output.iter().find(|line| line.contains("TOKEN") || line.contains("SAMPLE_OTHER")) {
        Some(line) => Err(format!("the machine was given {line}")),
        None => Ok(()),
    }
}

/// The command, in the folder of the project, with the machine of the other steps.
pub(crate) fn command(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("rdma-guest").current_dir(folder);
    command.envs(super::places().cache.parent().map(|cache| ("XDG_CACHE_HOME", cache)));
    command
}

/// `cargo rdma-guest test`.
fn test(folder: &Path, program: &Path, arguments: &[&str]) -> Command {
    let mut command = command(folder, program);
    command.args(["test", "--offline", "--target-dir"]).arg(crate::root().join(FOLDER).join("build"));
    command.args(arguments);
    command
}

/// Runs a command; how it ended, and its output.
fn run(command: Command) -> (Result<(), String>, Vec<String>) {
    let mut output = Vec::new();
    let ended = exec::lines(command, LIMIT, |line| {
        // Indented, or its tests would be taken for those of this step.
        println!("  {line}");
        output.push(line.to_owned());
    });
    (ended, output)
}

/// Whether a command ended with this exit status.
fn ended_with(status: u8, ended: Result<(), String>) -> Result<(), String> {
    match ended {
        Err(sentence) if sentence.ends_with(&format!("exit status: {status}")) => Ok(()),
        other => Err(format!("the command has to end with exit status {status}: {other:?}")),
    }
}

/// Whether all of these are lines of the output.
fn contains(output: &[String], lines: &[&str]) -> Result<(), String> {
    match lines.iter().find(|line| !output.iter().any(|one| one == *line)) {
        Some(line) => Err(format!("the output has no line `{line}`")),
        None => Ok(()),
    }
}
