//! tokio's own tests of TCP, over the streams of the soft provider.
//!
//! They are in the package of tokio that the crate is built with, wherever cargo keeps it. `interop/tokio` has what they find in place
//! of sockets, and the list of what is replaced and of what cannot hold.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use rdma_guest::failure::Failure;
use rdma_guest::libtest::Report;
use rdma_guest::messages::Program;

use super::list::{self, File, WHOLE};
use crate::Usage;
use crate::exec::{self, cargo, minutes};
use crate::tally::Tally;
use crate::test::Settings;

/// The package with the library and the list.
const PACKAGE: &str = "interop/tokio";

/// The folder for its copy, with the tests.
const FOLDER: &str = "target/foreign/tokio";

/// The dependency of the package on this checkout, which has another path from where the copy is.
const DEPENDENCY: &str = "path = \"../..\"";

/// How long the tests of a file may take. A test that waits for ever says so after a minute.
const LIMIT: Duration = minutes(2);

/// How long a test may take that is listed as one that fails: some of them wait for ever.
const FAILS_WITHIN: Duration = Duration::from_secs(3);

/// The command: exit status 1 if a test does not have the result that is listed.
pub(super) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    Usage::none(arguments)?;
    let tally = step(&Settings::default());
    println!("\n{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The step: each test has the result that is listed.
pub(crate) fn step(settings: &Settings) -> Tally {
    match prepare() {
        Ok(Some(prepared)) => run(settings, &prepared),
        Ok(None) if settings.ci => Tally::FAILED,
        Ok(None) => Tally::SKIPPED,
        Err(sentence) => Tally::check(Err(sentence)),
    }
}

/// The folder of the copy, and what is in it.
struct Prepared {
    /// The folder.
    folder: PathBuf,
    /// The files of the list.
    files: Vec<File>,
    /// The programs that must not be built: the name of each, and the test that it is about.
    refused: Vec<(String, String)>,
}

/// Copies the package and the tests; `None` if a crate that tokio's tests need cannot be had.
fn prepare() -> Result<Option<Prepared>, String> {
    let list = Path::new(PACKAGE).join("tests.txt");
    let files = list::parse(&read(&list)?).map_err(|error| format!("{}: {error}", list.display()))?;
    let folder = crate::root().join(FOLDER);
    let manifest = read(&Path::new(PACKAGE).join("Cargo.toml"))?;
    if !manifest.contains(DEPENDENCY) {
        return Err(format!("{PACKAGE}/Cargo.toml has no `{DEPENDENCY}`"));
    }
    let path = format!("path = \"{}\"", crate::root().display());
    write(&folder.join("Cargo.toml"), &manifest.replace(DEPENDENCY, &path))?;
    for name in ["lib.rs", "blocking.rs"] {
        write(&folder.join("src").join(name), &read(&Path::new(PACKAGE).join("src").join(name))?)?;
    }
    if !lock(&folder)? {
        return Ok(None);
    }
    let source = source_of_tokio()?;
    println!("the tests are those of {}", source.display());
    let refused = copy_tests(&source.join("tests"), &folder.join("tests"), &files)?;
    Ok(Some(Prepared { folder, files, refused }))
}

/// Chooses the versions of the workspace's lock file, and adds the crates that only these tests need. Returns whether they could be had.
fn lock(folder: &Path) -> Result<bool, String> {
    let ours = read(Path::new("Cargo.lock"))?;
    let copy = folder.join("workspace.lock");
    if fs::read_to_string(&copy).is_ok_and(|text| text == ours) && folder.join("Cargo.lock").is_file() {
        return Ok(true);
    }
    write(&folder.join("Cargo.lock"), &ours)?;
    let fetch = |arguments: &[&str]| {
        let mut command = cargo(&["fetch", "--target"]);
        command.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH)).args(arguments);
        command.current_dir(folder);
        exec::quietly(command, minutes(5))
    };
    if let Err(error) = fetch(&["--offline"]).or_else(|_| fetch(&[])) {
        let _ = fs::remove_file(folder.join("Cargo.lock"));
        if !["registry", "download"].iter().any(|word| error.contains(word)) {
            return Err(error);
        }
        println!("{error}\nskipped: needs the crate tokio-test, from the registry or from cargo's cache");
        return Ok(false);
    }
    write(&copy, &ours)?;
    Ok(true)
}

/// The folder of the package of tokio that the crate is built with.
fn source_of_tokio() -> Result<PathBuf, String> {
    let mut command = cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
    command.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    let mut found = None;
    exec::quiet_lines(command, minutes(5), |line| {
        found = found.take().or_else(|| super::folder_of("tokio", line))
    })?;
    found.ok_or_else(|| "cargo's metadata has no package of tokio".to_owned())
}

/// Writes the tests with their replacements, those that must not be built one by one.
fn copy_tests(from: &Path, to: &Path, files: &[File]) -> Result<Vec<(String, String)>, String> {
    let replacements = files.iter().flat_map(|file| file.replacements.iter().map(|(one, _)| one.as_str()));
    let mut unused: BTreeSet<&str> = replacements.collect();
    let mut names = Vec::new();
    let mut refused = Vec::new();
    for file in files {
        let mut source = read(&from.join(format!("{}.rs", file.name)))?;
        for (one, other) in &file.replacements {
            if source.contains(one.as_str()) {
                unused.remove(one.as_str());
                source = source.replace(one.as_str(), other);
            }
        }
        if !file.is_unbuilt() {
            write(&to.join(format!("{}.rs", file.name)), &taken_out(&source, file, None)?)?;
            names.push(file.name.clone());
        }
        for test in &file.unbuilt {
            let name = format!("refused_{}", refused.len());
            write(&to.join(format!("{name}.rs")), &taken_out(&source, file, Some(test))?)?;
            refused.push((name.clone(), format!("{}::{test}", file.name)));
            names.push(name);
        }
    }
    if !unused.is_empty() {
        return Err(format!("to be replaced, but in no file of tokio: {unused:?}"));
    }
    for entry in fs::read_dir(from.join("support")).into_iter().flatten().flatten() {
        write(&to.join("support").join(entry.file_name()), &read(&entry.path())?)?;
    }
    // Those of an earlier version of the list.
    for entry in fs::read_dir(to).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_known = path.file_stem().is_some_and(|stem| names.iter().any(|name| stem == name.as_str()));
        if path.is_file() && !is_known {
            let _ = fs::remove_file(path);
        }
    }
    Ok(refused)
}

/// The source without the tests that cannot be built, apart from one.
fn taken_out(source: &str, file: &File, apart: Option<&String>) -> Result<String, String> {
    let mut names = file.unbuilt.iter().filter(|name| *name != WHOLE && Some(*name) != apart);
    names.try_fold(source.to_owned(), |source, name| {
        list::without(&source, name).ok_or_else(|| format!("{} has no test {name}", file.name))
    })
}

/// Builds and runs everything.
fn run(settings: &Settings, prepared: &Prepared) -> Tally {
    let mut tally = Tally::check(refusals(prepared));
    let programs = match build(prepared) {
        Ok(programs) => programs,
        Err(sentence) => return Tally::check(Err(sentence)),
    };
    let mut expected = prepared.refused.len();
    for file in prepared.files.iter().filter(|file| !file.is_unbuilt()) {
        let Some(program) = programs.iter().find(|program| program.name == file.name) else {
            tally += Tally::check(Err(format!("there is no program of {}", file.name)));
            continue;
        };
        let (counts, failing) = run_file(settings, prepared, file, &program.path);
        tally += counts;
        expected += failing;
    }
    println!("as listed: {expected} cannot be built, or fail");
    tally
}

/// Whether no test can be built that is listed as one that cannot.
fn refusals(prepared: &Prepared) -> Result<(), String> {
    let mut command = cargo(&["build", "--offline", "--keep-going"]);
    command.args(prepared.refused.iter().flat_map(|(name, _)| ["--test", name.as_str()]));
    let mut output = Vec::new();
    // It fails.
    let _ = exec::quiet_lines(in_folder(command, prepared), minutes(10), |line| output.push(line.to_owned()));
    let is_refused = |name: &str| {
        let said = format!("(test \"{name}\")");
        output.iter().any(|line| line.starts_with("error: could not compile") && line.contains(&said))
    };
    let built = prepared.refused.iter().filter(|(name, _)| !is_refused(name));
    let built: Vec<_> = built.map(|(_, test)| test.as_str()).collect();
    match &built[..] {
        [] => Ok(()),
        // For example the library, whose failure is that of all of them.
        all if all.len() == prepared.refused.len() => Err(output.join("\n")),
        some => Err(format!("can be built, but is listed as `unbuilt`: {}", some.join(", "))),
    }
}

/// Builds the others; their programs.
fn build(prepared: &Prepared) -> Result<Vec<Program>, String> {
    let mut command = cargo(&["test", "--offline", "--no-run", "--message-format=json-render-diagnostics"]);
    let built = prepared.files.iter().filter(|file| !file.is_unbuilt());
    command.args(built.flat_map(|file| ["--test", file.name.as_str()]));
    let (mut programs, mut output) = (Vec::new(), String::new());
    let built = exec::quiet_lines(in_folder(command, prepared), minutes(30), |line| {
        if line.starts_with('{') {
            programs.extend(Program::parse(line).filter(|program| program.kind == "test"));
        } else {
            output += line;
            output.push('\n');
        }
    });
    // Warnings about tests of others are of no interest.
    built.map_err(|error| format!("{output}{error}"))?;
    Ok(programs)
}

/// The command in the folder of the copy. What is built is with all else.
fn in_folder(mut command: Command, prepared: &Prepared) -> Command {
    command.arg("--target-dir").arg(crate::root().join("target")).current_dir(&prepared.folder);
    command
}

/// Runs the tests of a file; their counts, and how many have failed as they should.
fn run_file(settings: &Settings, prepared: &Prepared, file: &File, program: &Path) -> (Tally, usize) {
    let mut tests = Vec::new();
    let listed = exec::quiet_lines(test(prepared, program, &["--list"]), LIMIT, |line| {
        tests.extend(line.strip_suffix(": test").map(str::to_owned));
    });
    let unknown = file.unknown(&tests);
    let sentence = format!("{} has no test {}", file.name, unknown.join(", "));
    let known = if unknown.is_empty() { Ok(()) } else { Err(sentence) };
    if let Err(error) = listed.and(known) {
        return (Tally::check(Err(error)), 0);
    }
    tests.retain(|test| file.wants(test));
    let (failing, holding): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| file.expects_failure(test));
    println!("{} ({} tests)", file.name, holding.len());
    let mut tally = match (holding.is_empty(), failing.is_empty()) {
        (false, _) => hold(settings, prepared, program, &holding),
        // What it asserts, the compiler has checked.
        (true, true) => Tally::PASSED,
        (true, false) => Tally::default(),
    };
    let (passing, count) = (passing(prepared, program, &failing), failing.len());
    for test in &passing {
        let sentence = format!("{}::{test} passes, but is listed as one that fails", file.name);
        tally += Tally::check(Err(sentence));
    }
    (tally, count - passing.len())
}

/// Runs tests that have to pass.
fn hold(settings: &Settings, prepared: &Prepared, program: &Path, tests: &[String]) -> Tally {
    let mut command = test(prepared, program, &["--exact", "--show-output"]);
    command.args(tests);
    let mut report = Report::new(settings.ci);
    let outcome = exec::quiet_lines(command, LIMIT, |line| {
        if let Some(shown) = report.line(line) {
            println!("  {shown}");
        }
    });
    settings.remember(report.take_failures().into_iter().map(|one: Failure| one.at("tokio")).collect());
    report.finish(outcome)
}

/// Runs tests that have to fail, or to wait for ever, at the same time; those that pass.
fn passing<'a>(prepared: &Prepared, program: &Path, tests: &'a [String]) -> Vec<&'a str> {
    thread::scope(|scope| {
        let runs: Vec<_> = tests
            .iter()
            .map(|name| {
                let command = test(prepared, program, &["--exact", name]);
                (name, scope.spawn(|| exec::quiet_lines(command, FAILS_WITHIN, |_| {})))
            })
            .collect();
        let passed = runs
            .into_iter()
            .filter_map(|(name, run)| run.join().is_ok_and(|ended| ended.is_ok()).then_some(name.as_str()));
        passed.collect()
    })
}

/// The command of a test program.
fn test(prepared: &Prepared, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&prepared.folder).env("RUST_BACKTRACE", "0");
    command
}

/// Reads a file.
fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file, unless it has this text: what is not changed is not built again.
fn write(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written: io::Result<()> = folder.and_then(|()| fs::write(path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_list_is_understood() {
        let list = read(&crate::root().join(PACKAGE).join("tests.txt")).expect("the list");
        let files = list::parse(&list).expect("a good list");
        assert!(files.len() > 20, "{} files", files.len());
        assert!(files.windows(2).all(|pair| pair[0].name < pair[1].name), "the files are in order");
    }
}
