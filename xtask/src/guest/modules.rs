//! The modules of tests that run on several devices, and the tests that are theirs.
//!
//! A test program is a folder with a `main.rs`; each of its files is a module. A line `//! Runs on: soft, sim, rxe, siw` in
//! the header of a file has its tests run on each of these devices: on the host over the soft provider and over the simulated
//! network, in the machine over the others. `//! Runs on: guest` has them run in the machine once. A file without a line is for the host alone, whatever
//! the file above it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rdma_guest::suite::Unit;

use crate::exec::{self, minutes};
use crate::layers;

/// The folders with test programs.
const FOLDERS: &[&str] = &["tests", "examples/frameworks/tests", "rpc/tests"];

/// A file of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// The name of its test program.
    pub(crate) program: String,
    /// Its path in that, such as `accept::refused`; empty for `main.rs`.
    path: String,
    /// The suites that run it, as its header names them.
    pub(crate) runs_on: Vec<String>,
}

/// A module with its tests, as one process runs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tests {
    /// Its name in the output, such as `api accept::refused`.
    pub(crate) name: String,
    /// The path of the program.
    pub(crate) program: PathBuf,
    /// The names of its tests, as the program knows them.
    pub(crate) tests: Vec<String>,
}

impl Tests {
    /// The process that runs them.
    pub(crate) fn unit(self) -> Unit {
        let tests = Some(self.tests.len());
        let mut command = vec![self.program.display().to_string()];
        command.extend(self.tests);
        command.extend(["--exact", "--test-threads=2", "--show-output"].map(str::to_owned));
        Unit { name: self.name, command, tests }
    }
}

/// Every file of every test program, in the order of their names.
///
/// # Errors
/// A sentence, if a file cannot be read or names a suite that is not among `words`.
pub(crate) fn all(words: &[&str]) -> Result<Vec<Module>, String> {
    let wrong = |path: &str, error: &dyn std::fmt::Display| format!("{path}: {error}");
    let mut modules = Vec::new();
    for folder in FOLDERS {
        let mut files = Vec::new();
        layers::list(Path::new(folder), &mut files).map_err(|error| wrong(folder, &error))?;
        files.sort();
        for file in &files {
            let text = fs::read_to_string(file).map_err(|error| wrong(file, &error))?;
            let runs_on = runs_on(&text, words).map_err(|error| wrong(file, &error))?;
            let is_program = |program: &str| Path::new(folder).join(program).join("main.rs").is_file();
            match place(folder, file).filter(|(program, _)| is_program(program)) {
                Some((program, path)) => modules.push(Module { program, path, runs_on }),
                None if runs_on.is_empty() => {} // of a library
                None => {
                    return Err(wrong(file, &"it says where it runs, and is in no folder with a main.rs"));
                }
            }
        }
    }
    Ok(modules)
}

/// The program and the module of a file: `api` and `accept::refused` for `tests/api/accept/refused.rs`.
fn place(folder: &str, file: &str) -> Option<(String, String)> {
    let inside = file.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
    let (program, path) = inside.split_once('/')?;
    let path = if path == "main" { String::new() } else { path.replace('/', "::") };
    Some((program.to_owned(), path))
}

/// The suites that the header of a file names. A word that is none is an error: the file would be left out unseen.
fn runs_on(text: &str, words: &[&str]) -> Result<Vec<String>, String> {
    let header = text.lines().take_while(|line| line.starts_with("//!"));
    let named =
        header.filter_map(|line| line[3..].trim().strip_prefix("Runs on: ")).flat_map(|rest| rest.split(','));
    named
        .map(|word| word.trim().trim_end_matches('.'))
        .map(|word| if words.contains(&word) { Ok(word.to_owned()) } else { Err(word) })
        .collect::<Result<_, _>>()
        .map_err(|word| format!("nothing runs on `{word}`"))
}

/// The units of a suite that are in one program.
///
/// # Errors
/// A sentence, if the program does not list its tests, or if a module has none: they would be left out unseen.
pub(crate) fn units(
    word: &str,
    modules: &[Module],
    name: &str,
    program: &Path,
) -> Result<Vec<Tests>, String> {
    let mut command = Command::new(program);
    command.args(["--list", "--format", "terse"]);
    let mut tests = Vec::new();
    exec::quiet_lines(command, minutes(1), |line| {
        tests.extend(line.strip_suffix(": test").map(str::to_owned));
    })
    .map_err(|error| format!("the tests of {name}: {error}"))?;
    let modules: Vec<&Module> = modules.iter().filter(|module| module.program == name).collect();
    let mut units = Vec::new();
    for module in modules.iter().filter(|module| module.runs_on.iter().any(|one| one == word)) {
        let tests = tests_of(module, &modules, &tests);
        let name = format!("{name} {}", module.path).trim_end().to_owned();
        if tests.is_empty() {
            return Err(format!("{name} says that it runs on {word}, and has no test"));
        }
        units.push(Tests { name, program: program.to_owned(), tests });
    }
    Ok(units)
}

/// The tests that are in a module, and not in the file of another that is below it.
fn tests_of(module: &Module, all: &[&Module], tests: &[String]) -> Vec<String> {
    let is_in = |path: &str, test: &str| {
        path.is_empty() || test.strip_prefix(path).is_some_and(|rest| rest.starts_with("::"))
    };
    let owner = |test: &str| all.iter().filter(|one| is_in(&one.path, test)).max_by_key(|one| one.path.len());
    let is_own = |test: &&String| owner(test).is_some_and(|owner| owner.path == module.path);
    tests.iter().filter(is_own).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &[&str] = &["soft", "sim", "fake", "rxe", "siw", "guest"];

    #[test]
    fn file_header_names_where_it_runs() {
        let text = "//! Tests.\n//!\n//! Runs on: soft, sim, rxe, siw\n\nuse x;\n//! Runs on: guest\n";
        assert_eq!(runs_on(text, WORDS).expect("four words"), ["soft", "sim", "rxe", "siw"]);
        assert_eq!(runs_on("//! Runs on: guest.\n", WORDS).expect("a word"), ["guest"]);
        assert_eq!(runs_on("//! Of what runs on: nothing.\nuse x;\n", WORDS).expect("none"), [""; 0]);
    }

    #[test]
    fn unknown_word_in_header_is_an_error() {
        assert!(runs_on("//! Runs on: soft, rex\n", WORDS).is_err());
        assert!(runs_on("//! Runs on: soft rxe\n", WORDS).is_err());
    }

    #[test]
    fn a_file_is_a_module_of_a_program() {
        let place = |file| place("tests", file);
        assert_eq!(place("tests/api/accept/refused.rs"), Some(("api".into(), "accept::refused".into())));
        assert_eq!(place("tests/api/main.rs"), Some(("api".into(), String::new())));
        assert_eq!(place("tests/alone.rs"), None);
    }

    /// Modules of one program.
    fn modules(paths: &[&str]) -> Vec<Module> {
        let module = |path: &&str| Module {
            program: "api".into(),
            path: (*path).to_owned(),
            runs_on: vec!["rxe".into()],
        };
        paths.iter().map(module).collect()
    }

    #[test]
    fn test_belongs_to_the_file_containing_it() {
        let modules = modules(&["", "connect", "connect::soft", "nd_connect"]);
        let all: Vec<&Module> = modules.iter().collect();
        let tests =
            ["alone", "connect::a", "connect::inner::b", "connect::soft::c", "nd_connect::d", "connected::e"];
        let tests = tests.map(str::to_owned);
        let of = |index: usize| tests_of(&modules[index], &all, &tests);
        assert_eq!(of(0), ["alone", "connected::e"]);
        assert_eq!(of(1), ["connect::a", "connect::inner::b"]);
        assert_eq!(of(2), ["connect::soft::c"]);
        assert_eq!(of(3), ["nd_connect::d"]);
    }

    #[test]
    fn a_module_without_a_test_is_an_error() {
        // `true` lists no test.
        let error = units("rxe", &modules(&["connect"]), "api", Path::new("true")).expect_err("no test");
        assert!(error.contains("api connect"), "{error}");
        assert_eq!(units("siw", &modules(&["connect"]), "api", Path::new("true")), Ok(vec![]));
    }
}
