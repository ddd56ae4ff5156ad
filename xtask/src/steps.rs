//! The steps of `cargo xtask test` that are a cargo command or two.

use std::env;
use std::process::Command;

use crate::api;
use crate::bare;
use crate::exec::{self, cargo, minutes};
use crate::guest;
use crate::layers;
use crate::libtest::Report;
use crate::packages;
use crate::rows;
use crate::skips;
use crate::tally::Tally;
use crate::test::{self, Settings};

/// How long anything that may have to compile the whole tree can take.
const BUILD_MINUTES: u64 = 30;

/// Is the source formatted?
pub(crate) fn fmt(_settings: &Settings) -> Tally {
    Tally::check(exec::show(cargo(&["fmt", "--all", "--check"]), minutes(2)))
}

/// Does clippy have nothing to say, of everything there is and of the set of features that a user has by default?
pub(crate) fn clippy(settings: &Settings) -> Tally {
    let with = |set: &[&str]| {
        let command = cargo(&[&["clippy"], set, &["--", "-D", "warnings"]].concat());
        exec::show(command, minutes(BUILD_MINUTES))
    };
    let mut tally = Tally::check(with(&[&["--all-targets"], &EVERYTHING[..]].concat()));
    let linked = [&LIBRARIES[..], &EVERYTHING[..], &["--features", "tokio-rdma/rdma-sys"]].concat();
    tally += if_rdma_sys(settings, || with(&linked));
    tally += Tally::check(with(&[]));
    tally
}

/// The features besides the providers: each has to build without the others.
const OPTIONAL: &[&str] = &["axum", "hyper", "inspect", "metrics", "rustls", "sim", "tonic", "tower"];

/// Do the crate and the package of calls in messages build with other sets of features? A new set is a new line.
pub(crate) fn features(_settings: &Settings) -> Tally {
    let check = |set: &[&str]| exec::show(cargo(&[&["check"], set].concat()), minutes(BUILD_MINUTES));
    let mut tally = Tally::default();
    for feature in OPTIONAL {
        tally += Tally::check(check(&["--features", feature]));
    }
    // The tests have all of them.
    for feature in ["", "inspect", "metrics,rustls", "tonic"] {
        tally += Tally::check(check(&["--package", "tokio-rdma-rpc", "--features", feature]));
    }
    // HW-12: `verbs` alone, which builds with nothing but Rust.
    tally += Tally::check(bare::check());
    tally += Tally::check(no_provider());
    tally
}

/// Does a build without a provider fail with the sentence that says so?
fn no_provider() -> Result<(), String> {
    let mut said = false;
    let command = cargo(&["check", "--no-default-features"]);
    let built =
        exec::lines(command, minutes(BUILD_MINUTES), |line| said |= line.contains("needs a provider"));
    match built {
        Err(_) if said => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err("a build without a provider passes".to_owned()),
    }
}

/// Do the docs build without a warning, broken links included? Are the public names those that are listed?
pub(crate) fn doc(_settings: &Settings) -> Tally {
    let mut tally = Tally::check(doc_of(&EVERYTHING));
    let built = doc_of_all_features();
    tally += Tally::check(built.clone());
    if built.is_ok() {
        tally += Tally::check(api::check());
    }
    tally
}

/// Builds the docs of the library as docs.rs has them.
pub(crate) fn doc_of_all_features() -> Result<(), String> {
    doc_of(&["--features", &[&["verbs"], OPTIONAL].concat().join(",")])
}

/// Builds the docs of these packages and features.
fn doc_of(set: &[&str]) -> Result<(), String> {
    let mut command = cargo(&[&["doc", "--no-deps"], set].concat());
    let flags = env::var("RUSTDOCFLAGS").unwrap_or_default();
    command.env("RUSTDOCFLAGS", format!("{flags} -D warnings").trim_start());
    exec::show(command, minutes(BUILD_MINUTES))
}

/// One more check, of what links the libraries: skipped where that cannot be built.
fn if_rdma_sys(settings: &Settings, check: impl FnOnce() -> Result<(), String>) -> Tally {
    packages::skipped(packages::RDMA_SYS, settings).unwrap_or_else(|| Tally::check(check()))
}

/// Does every module use only its own layer and those below?
pub(crate) fn layers(_settings: &Settings) -> Tally {
    Tally::check(layers::check_tree())
}

/// Does a test cite every row of the feature table?
pub(crate) fn rows(_settings: &Settings) -> Tally {
    Tally::check(rows::check_tree(false))
}

/// Every package with every feature that the tests need, for cargo: with one and the same selection nothing is built twice,
/// be it for the host or for the guest machine.
pub(crate) const EVERYTHING: [&str; 3] = [
    "--workspace",
    "--features",
    "tokio-rdma/sim,tokio-rdma/verbs,tokio-rdma-rpc/inspect,tokio-rdma-rpc/metrics",
];

/// The libraries, and one example: for the sake of an example cargo chooses the features of all dependencies as it does for tests.
/// Without one it would choose fewer, and build most crates once more.
const LIBRARIES: [&str; 3] = ["--lib", "--example", "retry"];

/// Builds every library, every example and the programs of every package.
///
/// # Errors
/// A sentence, if one of them cannot be built.
pub(crate) fn build_programs() -> Result<(), String> {
    let command = cargo(&[&["build", "--lib", "--bins", "--examples"], &EVERYTHING[..]].concat());
    exec::show(command, minutes(BUILD_MINUTES))
}

/// Unit tests and integration tests.
pub(crate) fn tests(settings: &Settings) -> Tally {
    // Some tests run the examples, which `cargo test` does not build when it is given targets to choose.
    if let Err(sentence) = build_programs() {
        return Tally::check(Err(sentence));
    }
    cargo_test(settings, &[&["--tests"], &EVERYTHING[..]].concat(), &[])
}

/// The tests of every device, over the simulated network.
pub(crate) fn sim(settings: &Settings) -> Tally {
    let programs = match guest::simulated() {
        Ok(programs) => programs,
        Err(sentence) => return Tally::check(Err(sentence)),
    };
    let mut tally = Tally::default();
    for (program, tests) in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        println!("$ TOKIO_RDMA_TEST_DEVICE='sim' {name} ({} tests)", tests.len());
        let mut command = Command::new(&program);
        command.args(["--exact", "--show-output"]).args(tests).env("TOKIO_RDMA_TEST_DEVICE", "sim");
        // As cargo would have it for these programs; it is that of this one otherwise.
        command.env("CARGO_MANIFEST_DIR", crate::root());
        tally += counted_quietly(settings, "sim", command);
    }
    tally
}

/// Unit tests of the crate with its default features, and the tests of what it says about the verbs provider.
pub(crate) fn default_set(settings: &Settings) -> Tally {
    cargo_test(settings, &["--lib", "--test", "catalogue"], &[])
}

/// Loom's exploration of what the queues of completions do.
pub(crate) fn model(settings: &Settings) -> Tally {
    cargo_test(settings, &["-p", "model", "--lib"], &["inflight::model"])
}

/// The crate outside the workspace that joins async-rdma to this one.
const ASYNC_RDMA: [&str; 5] = [
    // Nothing resolves its dependencies anew: some have been withdrawn.
    "--locked",
    "--manifest-path",
    "interop/async-rdma/Cargo.toml",
    // Crates that both need are built once. The tests in the guest machine look for the program here, whatever the environment says.
    "--target-dir",
    "target",
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
    let packages = [packages::RDMA_SYS, packages::ASYNC_RDMA].concat();
    packages::skipped(&packages, settings).unwrap_or_else(|| {
        let built = Tally::check(build_async_rdma());
        if built.failed > 0 {
            return built;
        }
        let mut tally = built;
        tally += cargo_test(settings, &ASYNC_RDMA, &[]);
        tally
    })
}

/// Code in the documentation. The package `model` has modules of the library, and not the names that their examples use.
pub(crate) fn doctests(settings: &Settings) -> Tally {
    cargo_test(settings, &[&["--doc", "--exclude", "model"], &EVERYTHING[..]].concat(), &[])
}

/// Runs `cargo test` and counts its tests: all of them, or those that a filter names.
pub(crate) fn cargo_test(settings: &Settings, arguments: &[&str], filters: &[&str]) -> Tally {
    let mut command = cargo(&["test", "--no-fail-fast"]);
    command.args(arguments).args(["--", "--show-output"]).args(filters);
    counted(settings, test::HOST, command)
}

/// Runs a `cargo test` and counts its tests. The place decides which of them may be skipped.
pub(crate) fn counted(settings: &Settings, place: &str, command: Command) -> Tally {
    println!("{}", exec::shown(&command));
    counted_quietly(settings, place, command)
}

/// The same, without a line that tells which command it is.
fn counted_quietly(settings: &Settings, place: &str, mut command: Command) -> Tally {
    // A property test panics once for every case it tries on the way to the smallest one, each with its backtrace.
    command.env("RUST_BACKTRACE", "0");
    let mut report = Report::new(settings.ci).permitting(Some(&skips::permitted(place)));
    let outcome = exec::quiet_lines(command, minutes(BUILD_MINUTES), |line| {
        if let Some(shown) = report.line(line) {
            println!("{shown}");
        }
    });
    settings.remember(report.take_failures());
    report.finish(outcome)
}
