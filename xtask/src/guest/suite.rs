//! The steps of `cargo xtask test` that run test programs in the guest machine.
//!
//! A line `//! Runs on: soft, rxe, siw` in the header of a file of tests has it run there on each of these devices,
//! `//! Runs on: guest` once. A file without one is for the host alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::image;
use super::machine::{Clock, Machine, Siw};
use super::progress::Progress;
use crate::exec::{self, cargo, minutes};
use crate::packages;
use crate::steps;
use crate::tally::Tally;
use crate::test::Settings;

/// What runs the programs in the guest, one after the other.
const RUNNER: &str = include_str!("../../guest/tests.sh");

/// How long a suite may take in all. What has not been run by then counts as failed.
const SUITE_LIMIT: Duration = minutes(25);

/// How many times as long everything takes with AddressSanitizer.
const SANITIZED: u32 = 3;

/// The tests of one device, or those that need the machine for something else.
#[derive(Debug)]
struct Suite {
    /// The word in the line `Runs on`.
    word: &'static str,
    /// What the reader is told.
    place: &'static str,
    /// The device that the tests find in the environment.
    device: Option<&'static str>,
    /// How long one program may take, in seconds; the machine is ten to twenty times slower than the host.
    seconds: u64,
}

/// All of them.
const SUITES: [Suite; 4] = [
    Suite { word: "soft", place: "guest soft", device: Some("soft"), seconds: 300 },
    Suite { word: "rxe", place: "guest rxe", device: Some("rxe"), seconds: 300 },
    Suite { word: "siw", place: "guest siw", device: Some("siw"), seconds: 300 },
    Suite { word: "guest", place: "guest interop", device: None, seconds: 900 },
];

/// The step for the soft provider.
pub(crate) fn soft(settings: &Settings) -> Tally {
    step(&SUITES[0], settings)
}

/// The step for rxe.
pub(crate) fn rxe(settings: &Settings) -> Tally {
    step(&SUITES[1], settings)
}

/// The step for siw.
pub(crate) fn siw(settings: &Settings) -> Tally {
    step(&SUITES[2], settings)
}

/// The step for programs and drivers that are not ours.
pub(crate) fn interop(settings: &Settings) -> Tally {
    unless_lacking(settings, || {
        // A test of this suite runs its program, and is skipped if there is none.
        let built = steps::build_async_rdma().map_or_else(failed, |()| Tally::default());
        let mut tally = SUITES[3].run(settings).unwrap_or_else(failed);
        tally += built;
        tally
    })
}

/// One step.
fn step(suite: &Suite, settings: &Settings) -> Tally {
    unless_lacking(settings, || suite.run(settings).unwrap_or_else(failed))
}

/// Does something that is skipped where packages are missing.
fn unless_lacking(settings: &Settings, run: impl FnOnce() -> Tally) -> Tally {
    let packages = [packages::VERBS, packages::ASYNC_RDMA, packages::GUEST].concat();
    packages::skipped(&packages, settings).unwrap_or_else(run)
}

/// Something other than a test has failed.
fn failed(sentence: String) -> Tally {
    println!("error: {sentence}");
    Tally::FAILED
}

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// The name of its file in `tests/`, without the ending.
    pub(super) name: String,
    /// Where it is.
    path: String,
}

#[cfg(test)]
impl Program {
    /// One that is somewhere.
    pub(super) fn new(name: &str, path: &str) -> Self {
        Self { name: name.to_owned(), path: path.to_owned() }
    }
}

impl Suite {
    /// Runs the programs in as few starts of the machine as it takes: one, unless its kernel breaks.
    fn run(&self, settings: &Settings) -> Result<Tally, String> {
        let files = files(Path::new("tests"))?;
        let wanted = |file: &&File| file.runs_on.contains(&self.word);
        let names: Vec<&str> = files.iter().filter(wanted).map(|file| file.name.as_str()).collect();
        if names.is_empty() {
            println!("no test says that it runs on {}", self.word);
            return Ok(Tally::default());
        }
        let image = image::prepare()?;
        // All files of all suites at once, so that the next suite finds them built.
        let every: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let mut programs = build(&every, settings.sanitizer)?;
        programs.retain(|program| names.contains(&program.name.as_str()));

        let factor = if settings.sanitizer { SANITIZED } else { 1 };
        let seconds = self.seconds * u64::from(factor);
        let deadline = Instant::now() + SUITE_LIMIT * factor;
        let mut tally = Tally::default();
        let mut left = &programs[..];
        while !left.is_empty() {
            let time = deadline.saturating_duration_since(Instant::now());
            if time.is_zero() {
                println!("error: no time is left for {} programs", left.len());
                tally.failed += left.len();
                break;
            }
            let folder = crate::root();
            let machine = Machine {
                image: &image,
                siw: Siw::Stock,
                limit: time,
                folder: &folder,
                clock: Clock::Device,
            };
            let mut progress = Progress::new(self.place, left, seconds, settings);
            let command = self.command(left, seconds);
            let ended = machine.run_lines(&command, |line| progress.line(line));
            let (begun, sum) = progress.finish(ended.map(|_| ()));
            tally += sum;
            if begun == 0 {
                tally.failed += left.len().saturating_sub(1);
                break;
            }
            left = &left[begun..];
        }
        Ok(tally)
    }

    /// The command in the guest.
    fn command(&self, programs: &[Program], seconds: u64) -> Vec<String> {
        let root = crate::root();
        let mut words = vec!["env".to_owned(), "RUST_BACKTRACE=0".to_owned()];
        // As cargo would have it for these programs; it is that of this one otherwise.
        words.push(format!("CARGO_MANIFEST_DIR={}", root.display()));
        words.extend(self.device.map(|device| format!("TOKIO_RDMA_TEST_DEVICE={device}")));
        words.extend(["sh", "-c", RUNNER, "tests"].map(str::to_owned));
        words.push(seconds.to_string());
        words.extend(programs.iter().map(|program| program.path.clone()));
        words
    }
}

/// A file of tests that the machine is for.
#[derive(Debug)]
struct File {
    /// Its name without the ending.
    name: String,
    /// The words of the suites that it belongs to.
    runs_on: Vec<&'static str>,
}

/// The files of tests in a folder that name a suite, in the order of their names.
fn files(folder: &Path) -> Result<Vec<File>, String> {
    let wrong = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| wrong(folder, &error))? {
        paths.push(entry.map_err(|error| wrong(folder, &error))?.path());
    }
    paths.retain(|path: &PathBuf| path.extension().is_some_and(|ending| ending == "rs"));
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| wrong(&path, &error))?;
        let runs_on = runs_on(&text).map_err(|error| wrong(&path, &error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !runs_on.is_empty() {
            files.push(File { name, runs_on });
        }
    }
    Ok(files)
}

/// The suites that the header of a file names. A word that is none is an error: the file would be left out unseen.
fn runs_on(text: &str) -> Result<Vec<&'static str>, String> {
    let header = text.lines().take_while(|line| line.starts_with("//!"));
    let words =
        header.filter_map(|line| line[3..].trim().strip_prefix("Runs on: ")).flat_map(|rest| rest.split(','));
    words
        .map(|word| {
            let word = word.trim().trim_end_matches('.');
            let suite = SUITES.iter().find(|suite| suite.word == word);
            suite.map(|suite| suite.word).ok_or_else(|| format!("nothing runs on `{word}`"))
        })
        .collect()
}

/// Builds files of tests, and the examples that they run, with the feature `verbs`.
fn build(names: &[&str], sanitizer: bool) -> Result<Vec<Program>, String> {
    let cargo = |arguments: &[&str]| {
        let mut command = cargo(arguments);
        if sanitizer {
            // With a target named, the flags are not for what runs while it builds.
            command.args(["--target", "x86_64-unknown-linux-gnu", "--target-dir", "target/asan"]);
            command.envs([("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", "-Zsanitizer=address")]);
            // Enough to name the lines of a report, and a fraction of the size.
            command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        }
        command
    };
    exec::show(cargo(&["build", "--examples", "--features", "verbs"]), minutes(30))?;
    let mut command: Command =
        cargo(&["test", "--no-run", "--features", "verbs", "--message-format=json-render-diagnostics"]);
    for name in names {
        command.args(["--test", name]);
    }
    let mut programs = Vec::new();
    exec::lines(command, minutes(30), |line| {
        if line.starts_with('{') {
            programs.extend(program(line));
        } else if !line.trim_start().starts_with("Executable ") {
            println!("{line}");
        }
    })?;
    programs.sort_by(|one: &Program, other| one.name.cmp(&other.name));
    match names.iter().find(|name| !programs.iter().any(|program| program.name == **name)) {
        Some(name) => Err(format!("cargo has not said where the program of tests/{name}.rs is")),
        None => Ok(programs),
    }
}

/// The test program that a message of cargo tells of, if it does.
fn program(message: &str) -> Option<Program> {
    if !message.contains("\"reason\":\"compiler-artifact\"") || !message.contains("\"kind\":[\"test\"]") {
        return None;
    }
    Some(Program { name: text_of(message, "name")?, path: text_of(message, "executable")? })
}

/// The text with this name in a line of JSON: the first, wherever it is.
fn text_of(message: &str, name: &str) -> Option<String> {
    let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
    let mut text = String::new();
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            // Of what can be escaped, a path has these two.
            '\\' => text.push(characters.next()?),
            character => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_file_says_where_it_runs() {
        let text = "//! Tests.\n//!\n//! Runs on: soft, rxe, siw\n\nuse x;\n//! Runs on: guest\n";
        assert_eq!(runs_on(text), Ok(vec!["soft", "rxe", "siw"]));
        assert_eq!(runs_on("//! Runs on: guest.\n"), Ok(vec!["guest"]));
        assert_eq!(runs_on("//! Of what runs on: nothing.\nmod common;\n"), Ok(vec![]));
    }

    #[test]
    fn a_wrong_word_does_not_leave_a_file_out() {
        assert!(runs_on("//! Runs on: soft, rex\n").is_err());
        assert!(runs_on("//! Runs on: soft rxe\n").is_err());
    }

    #[test]
    fn a_message_of_cargo_names_the_program() {
        let message = r#"{"reason":"compiler-artifact","package_id":"x","target":{"kind":["test"],"name":"cm","src_path":"/a/tests/cm.rs"},"executable":"/a \"b\"/deps/cm-1","fresh":true}"#;
        let program = program(message).expect("a program");
        assert_eq!((program.name.as_str(), program.path.as_str()), ("cm", "/a \"b\"/deps/cm-1"));
    }

    #[test]
    fn other_messages_of_cargo_name_none() {
        for message in [
            r#"{"reason":"build-finished","success":true}"#,
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"x"},"executable":null}"#,
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"x"},"executable":null}"#,
        ] {
            assert_eq!(program(message), None);
        }
    }
}
