//! The steps of `cargo xtask test` that are a cargo command or two.

use std::env;

use crate::exec::{self, cargo, minutes};
use crate::layers;
use crate::libtest::Report;
use crate::rows;
use crate::tally::Tally;
use crate::test::Settings;

/// How long anything that may have to compile the whole tree can take.
const BUILD_MINUTES: u64 = 30;

/// Is the source formatted?
pub(crate) fn fmt(_settings: &Settings) -> Tally {
    Tally::check(exec::show(cargo(&["fmt", "--all", "--check"]), minutes(2)))
}

/// Does clippy have nothing to say?
pub(crate) fn clippy(_settings: &Settings) -> Tally {
    let command = cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    Tally::check(exec::show(command, minutes(BUILD_MINUTES)))
}

/// Does the crate build with other sets of features? A new set is a new line.
pub(crate) fn features(_settings: &Settings) -> Tally {
    let sets: &[&[&str]] = &[&["--no-default-features"]];
    let mut tally = Tally::default();
    for set in sets {
        let command = cargo(&[&["check"], *set].concat());
        tally += Tally::check(exec::show(command, minutes(BUILD_MINUTES)));
    }
    tally
}

/// Do the docs build without a warning, broken links included?
pub(crate) fn doc(_settings: &Settings) -> Tally {
    let mut command = cargo(&["doc", "--no-deps", "--workspace"]);
    let flags = env::var("RUSTDOCFLAGS").unwrap_or_default();
    command.env("RUSTDOCFLAGS", format!("{flags} -D warnings").trim_start());
    Tally::check(exec::show(command, minutes(BUILD_MINUTES)))
}

/// Does every module use only its own layer and those below?
pub(crate) fn layers(_settings: &Settings) -> Tally {
    Tally::check(layers::check_tree())
}

/// Does a test cite every row of the feature table?
pub(crate) fn rows(_settings: &Settings) -> Tally {
    Tally::check(rows::check_tree(false))
}

/// Unit tests, integration tests, and tests inside examples.
pub(crate) fn tests(settings: &Settings) -> Tally {
    // Some tests run the examples; `cargo test` builds those as programs only when it is given no targets to choose.
    if let Err(sentence) = exec::show(cargo(&["build", "--examples"]), minutes(BUILD_MINUTES)) {
        return Tally::check(Err(sentence));
    }
    cargo_test(settings, &["--workspace", "--lib", "--bins", "--tests", "--examples"])
}

/// Code in the documentation.
pub(crate) fn doctests(settings: &Settings) -> Tally {
    cargo_test(settings, &["--doc"])
}

/// Runs `cargo test` and counts its tests.
fn cargo_test(settings: &Settings, arguments: &[&str]) -> Tally {
    let mut command = cargo(&["test", "--no-fail-fast"]);
    command.args(arguments).args(["--", "--show-output"]);
    // A property test panics once for every case it tries on the way to the smallest one, each with its backtrace.
    command.env("RUST_BACKTRACE", "0");
    let mut report = Report::new(settings.ci);
    let outcome = exec::lines(command, minutes(BUILD_MINUTES), |line| {
        if let Some(shown) = report.line(line) {
            println!("{shown}");
        }
    });
    settings.remember(report.take_failures());
    report.finish(outcome)
}
