//! The steps of `cargo xtask test` that are a cargo command or two.

use std::env;
use std::process::Command;

use crate::exec::{self, cargo, minutes};
use crate::layers;
use crate::libtest::Report;
use crate::packages;
use crate::rows;
use crate::tally::Tally;
use crate::test::Settings;

/// How long anything that may have to compile the whole tree can take.
const BUILD_MINUTES: u64 = 30;

/// Is the source formatted?
pub(crate) fn fmt(_settings: &Settings) -> Tally {
    Tally::check(exec::show(cargo(&["fmt", "--all", "--check"]), minutes(2)))
}

/// Does clippy have nothing to say, as a user builds and with everything?
pub(crate) fn clippy(settings: &Settings) -> Tally {
    let with = |feature: &[&str]| {
        let start = ["clippy", "--workspace", "--all-targets"];
        cargo(&[&start[..], feature, &["--", "-D", "warnings"]].concat())
    };
    let mut tally = Tally::check(exec::show(with(&[]), minutes(BUILD_MINUTES)));
    tally += if_verbs(settings, || exec::show(with(&["--all-features"]), minutes(BUILD_MINUTES)));
    tally
}

/// The features for what is above streams: each has to build without the others.
const FRAMEWORKS: &[&str] = &["hyper", "metrics", "rustls", "tarpc", "tonic", "tower"];

/// Does the crate build with other sets of features? A new set is a new line.
pub(crate) fn features(settings: &Settings) -> Tally {
    let check = |set: &[&str]| exec::show(cargo(&[&["check"], set].concat()), minutes(BUILD_MINUTES));
    let mut tally = Tally::check(check(&["--no-default-features"]));
    for framework in FRAMEWORKS {
        tally += Tally::check(check(&["--no-default-features", "--features", framework]));
    }
    tally += if_verbs(settings, || check(&["--no-default-features", "--features", "verbs"]));
    tally
}

/// Do the docs build without a warning, broken links included?
pub(crate) fn doc(settings: &Settings) -> Tally {
    let doc = |feature: &[&str]| {
        let mut command = cargo(&[&["doc", "--no-deps", "--workspace"], feature].concat());
        let flags = env::var("RUSTDOCFLAGS").unwrap_or_default();
        command.env("RUSTDOCFLAGS", format!("{flags} -D warnings").trim_start());
        exec::show(command, minutes(BUILD_MINUTES))
    };
    let mut tally = Tally::check(doc(&[]));
    tally += if_verbs(settings, || doc(&["--all-features"]));
    tally
}

/// One more check, of what has the verbs provider in it: skipped where that cannot be built.
fn if_verbs(settings: &Settings, check: impl FnOnce() -> Result<(), String>) -> Tally {
    packages::skipped(packages::VERBS, settings).unwrap_or_else(|| Tally::check(check()))
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

/// Loom's exploration of what the queues of completions do; a build of its own, with loom's locks in it.
pub(crate) fn model(settings: &Settings) -> Tally {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    let mut command = cargo(&["test", "--no-fail-fast", "--lib", "--target-dir", "target/model"]);
    command.args(["flight::model", "--", "--show-output"]);
    command.env("RUSTFLAGS", format!("{flags} --cfg tokio_rdma_model").trim_start());
    counted(settings, command)
}

/// Unit tests of a build that has the verbs provider in it.
pub(crate) fn verbs(settings: &Settings) -> Tally {
    packages::skipped(packages::VERBS, settings)
        .unwrap_or_else(|| cargo_test(settings, &["--lib", "--features", "verbs"]))
}

/// The crate outside the workspace that joins async-rdma to this one.
const ASYNC_RDMA: [&str; 5] = [
    // Nothing resolves its dependencies anew: some have been withdrawn.
    "--locked",
    "--manifest-path",
    "interop/async-rdma/Cargo.toml",
    // Where its tests in the guest machine look for the program, whatever the environment says.
    "--target-dir",
    "interop/async-rdma/target",
];

/// Builds that crate.
///
/// # Errors
/// A sentence, if it cannot be built.
pub(crate) fn build_async_rdma() -> Result<(), String> {
    exec::show(cargo(&[&["build"], &ASYNC_RDMA[..]].concat()), minutes(BUILD_MINUTES))
}

/// Does that crate build, and do its tests pass that need no device?
pub(crate) fn async_rdma(settings: &Settings) -> Tally {
    let packages = [packages::VERBS, packages::ASYNC_RDMA].concat();
    packages::skipped(&packages, settings).unwrap_or_else(|| {
        let built = Tally::check(build_async_rdma());
        if built.failed > 0 {
            return built;
        }
        let mut tally = built;
        tally += cargo_test(settings, &ASYNC_RDMA);
        tally
    })
}

/// Code in the documentation.
pub(crate) fn doctests(settings: &Settings) -> Tally {
    cargo_test(settings, &["--doc"])
}

/// Runs `cargo test` and counts its tests.
fn cargo_test(settings: &Settings, arguments: &[&str]) -> Tally {
    let mut command = cargo(&["test", "--no-fail-fast"]);
    command.args(arguments).args(["--", "--show-output"]);
    counted(settings, command)
}

/// Runs a `cargo test` and counts its tests.
fn counted(settings: &Settings, mut command: Command) -> Tally {
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
