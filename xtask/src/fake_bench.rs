//! `cargo xtask fake-bench`: what the verbs provider costs on a device that costs nothing, and its smoke test.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::{Usage, exec, fake, packages};

/// The program that measures; see `benches/fake/README.md`.
const PROGRAM: &str = "fake-bench";
/// The program that it is compared with, and what that is made of.
const C: (&str, &str) = ("target/whole/examples/fake-bench-c", "benches/fake/posts.c");

/// The packages of the C program.
const C_PACKAGES: &[&str] = &["gcc", "libc6-dev", "libibverbs-dev"];

/// How long a build may take.
const BUILD_LIMIT: Duration = exec::minutes(30);
/// How long the comparison may take.
const LIMIT: Duration = exec::minutes(30);

/// The command: `storm` with its argument, or the arguments of the program's `compare`.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    Ok(match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    })
}

/// Builds both programs and the device, and measures.
///
/// # Errors
/// A sentence that says what could not be built, or did not run.
fn run(arguments: &[String]) -> Result<(), String> {
    let packages = ["-p", "tokio-rdma", "-p", "fake", "--features", "tokio-rdma/verbs"];
    let targets = ["build", "--profile", "whole", "--lib", "--example", PROGRAM];
    exec::quietly(exec::cargo(&[&targets[..], &packages].concat()), BUILD_LIMIT)?;
    fake::link_names(fake::WHOLE_FOLDER, "whole")?;
    if let [first, arguments @ ..] = arguments
        && first == "storm"
    {
        return exec::pass(storm("whole", fake::WHOLE_FOLDER, arguments), LIMIT);
    }
    let mut compare = program("whole", fake::WHOLE_FOLDER);
    compare.arg("compare").args(arguments);
    let (c, source) = C;
    if let Some(sentence) = packages::lacking(C_PACKAGES) {
        eprintln!("the C program is left out, {sentence}");
    } else {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-pthread", "-o", c, source]);
        // The device itself: it has no versions of symbols, which the loader would ask for.
        cc.args(["-L", fake::WHOLE_FOLDER, "-l:libibverbs.so.1"]);
        exec::quietly(cc, BUILD_LIMIT)?;
        compare.args(["--c", c]);
    }
    if let Some(sentence) = packages::lacking(packages::VALGRIND) {
        eprintln!("the instructions are left out, {sentence}");
        compare.arg("--no-instructions");
    }
    exec::pass(compare, LIMIT)
}

/// The program of this profile over the device in this folder.
fn program(profile: &str, device: &str) -> Command {
    let mut command = Command::new(Path::new("target").join(profile).join("examples").join(PROGRAM));
    command.env("LD_LIBRARY_PATH", crate::root().join(device)).env("FAKE_CONTROL", "instant");
    command
}

/// The loss of many connections, on a device that takes its time.
fn storm(profile: &str, device: &str, arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = program(profile, device);
    command.env_remove("FAKE_CONTROL").arg("storm").args(arguments);
    command
}

/// Runs each line once, with the program and the device that the tests have built.
///
/// # Errors
/// A sentence, if one of them could not be built or has failed.
pub(crate) fn smoke() -> Result<(), String> {
    fake::lay_out()?;
    let mut lines = program("debug", fake::FOLDER);
    lines.arg("smoke");
    exec::show(lines, exec::minutes(5))?;
    exec::show(storm("debug", fake::FOLDER, &["20"]), exec::minutes(5))
}
