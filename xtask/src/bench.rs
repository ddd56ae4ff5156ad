//! `cargo xtask bench`: the soft provider beside raw TCP, libfabric, UCX and quinn; and the `bench` step of `test`.

use std::env;
use std::fs;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::tally::Tally;
use crate::test::Settings;
use crate::{Usage, exec, fake_bench, packages, steps};

/// The program that measures, and where a release build puts it.
const SUITE: &str = "target/release/suite";
/// The C program for libfabric, beside it, and what it is made of.
const FABRIC: (&str, &str) = ("target/release/suite-fi", "benches/suite/c/fi.c");
/// The file with what `verbs-bench` said in the guest machine.
const GUEST: &str = "target/release/guest-bench.json";
/// The folder that the report goes to.
const FOLDER: &str = "docs";

/// The packages of each contender that is not ours, and what is left out without them.
const OTHERS: &[(&str, &[&str])] = &[
    ("libfabric", &["gcc", "libfabric-dev", "pkg-config"]),
    ("UCX", &["ucx-utils", "libucx-dev", "pkg-config"]),
    ("the count of system calls", &["strace"]),
];

/// How long a build may take.
const BUILD_LIMIT: Duration = exec::minutes(30);
/// How long the measurements may take.
const LIMIT: Duration = exec::minutes(60);

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// Whether the verbs provider is measured, too, in the guest machine.
    guest: bool,
    /// Whether the report is written where else it would not be.
    write: bool,
    /// The arguments that the suite is given.
    passed: Vec<String>,
}

impl Options {
    /// Reads the command line.
    fn parse(arguments: &[String]) -> Result<Self, Usage> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--guest" => options.guest = true,
                "--write" => options.write = true,
                "--quick" => options.passed.push(argument.clone()),
                "--only" | "--batches" => {
                    let value =
                        arguments.next().ok_or_else(|| Usage(format!("`{argument}` needs a value")))?;
                    options.passed.extend([argument.clone(), value.clone()]);
                }
                _ => return Err(Usage(format!("unexpected argument `{argument}`"))),
            }
        }
        Ok(options)
    }

    /// Whether this run is the whole of it, or was told that it will do.
    fn writes(&self) -> bool {
        self.write || self.passed.iter().all(|word| word != "--quick" && word != "--only")
    }
}

/// The command.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let options = Options::parse(arguments)?;
    Ok(match run(&options, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    })
}

/// Builds everything and measures.
///
/// # Errors
/// A sentence that says what could not be built, or did not run.
fn run(options: &Options, arguments: &[String]) -> Result<(), String> {
    let mut absent = Vec::new();
    for (what, packages) in OTHERS {
        absent.extend(packages::lacking(packages).map(|sentence| format!("{what} is left out, {sentence}")));
    }
    exec::show(exec::cargo(&["build", "--release", "-p", "suite", "--features", "quinn"]), BUILD_LIMIT)?;
    let (program, source) = FABRIC;
    if packages::lacking(OTHERS[0].1).is_none() {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-o", program, source, "-lfabric"]);
        exec::show(cc, BUILD_LIMIT)?;
    } else {
        // One that an earlier run has left would be measured.
        let _ = fs::remove_file(program);
    }
    let mut suite = undisturbed();
    let typed = [&["cargo", "xtask", "bench"].map(str::to_owned)[..], arguments].concat().join(" ");
    suite.arg("run").args(&options.passed).args(["--command", &typed]);
    if options.writes() {
        suite.args(["--write", FOLDER]);
    }
    if options.guest {
        measure_in_guest()?;
        suite.args(["--guest", GUEST]);
    } else {
        absent
            .push("the verbs provider is left out: `cargo xtask bench --guest` measures it, too".to_owned());
    }
    for sentence in absent {
        suite.args(["--absent", &sentence]);
    }
    exec::pass(suite, LIMIT)
}

/// The suite, with a real-time priority where that is allowed: the work of others on this machine waits meanwhile.
fn undisturbed() -> Command {
    let priority = ["-r", "5"];
    let mut trial = Command::new("chrt");
    trial.args(priority).arg("true");
    if exec::quiet_lines(trial, exec::minutes(1), |_| {}).is_err() {
        return Command::new(SUITE);
    }
    let mut suite = Command::new("chrt");
    suite.args(priority).arg(SUITE);
    suite
}

/// Runs `guest-bench` and keeps what it says.
///
/// # Errors
/// A sentence, if it fails or says nothing.
fn measure_in_guest() -> Result<(), String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(["guest-bench", "--json"]);
    let mut said = None;
    exec::lines(command, LIMIT, |line| {
        if line.starts_with('{') {
            said = Some(line.to_owned());
        }
    })?;
    let said = said.ok_or("guest-bench said nothing")?;
    fs::write(GUEST, said).map_err(|error| format!("cannot write {GUEST}: {error}"))
}

/// The step: whether every line of ours still runs. How fast does not matter, so the program is the one that the step
/// `tests` has built.
pub(crate) fn step(_settings: &Settings) -> Tally {
    let mut tally = Tally::check(steps::build_programs().and_then(|()| {
        let mut suite = Command::new("target/debug/suite");
        suite.arg("smoke");
        exec::show(suite, exec::minutes(5))
    }));
    tally += Tally::check(fake_bench::smoke());
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options of a command line.
    fn parse(line: &str) -> Result<Options, Usage> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn only_a_whole_run_overwrites_the_report() {
        let writes = |line| parse(line).expect("a good command line").writes();
        assert!(writes("") && writes("--guest --batches 9") && writes("--quick --write"));
        assert!(!writes("--quick") && !writes("--only write"));
    }

    #[test]
    fn the_suite_is_given_what_is_its_own() {
        let options = parse("--guest --only write --quick").expect("a good command line");
        assert_eq!(options.passed, ["--only", "write", "--quick"]);
        assert!(options.guest && !options.write);
        assert!(parse("--only").is_err() && parse("--fast").is_err());
    }
}
