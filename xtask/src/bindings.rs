//! The `bindings` step, and the unit tests of `src/sys` as programs for the guest machine: with the libraries loaded, and with
//! the libraries linked.

use std::fs;
use std::path::PathBuf;

use rdma_guest::messages::Program;

use crate::exec::{self, minutes};
use crate::packages;
use crate::steps;
use crate::tally::Tally;
use crate::test::Settings;

/// The folder for the programs, each with the name of its feature. The tests in the guest machine look for them there.
const FOLDER: &str = "target/bindings";

/// The step: the unit tests with the libraries linked. Those with the libraries loaded are among all unit tests.
pub(crate) fn step(settings: &Settings) -> Tally {
    packages::skipped(packages::RDMA_SYS, settings)
        .unwrap_or_else(|| steps::cargo_test(settings, &["--lib", "--features", "rdma-sys"], &["sys::"]))
}

/// Builds the programs for the guest machine, one for each of the features that choose how the libraries are called. With the arguments
/// of the steps `tests` and `bindings` nothing is built again.
///
/// # Errors
/// A sentence, if one cannot be built.
pub(crate) fn build() -> Result<(), String> {
    let folder = crate::root().join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let loaded = [&["--tests"], &steps::EVERYTHING[..]].concat();
    let linked = ["--lib", "--features", "rdma-sys"];
    for (feature, arguments) in [("verbs", &loaded[..]), ("rdma-sys", &linked)] {
        let mut built: Option<PathBuf> = None;
        let format = "--message-format=json-render-diagnostics";
        let command = exec::cargo(&[&["test", "--no-run", format], arguments].concat());
        exec::lines(command, minutes(30), |line| match line.strip_prefix('{') {
            Some(message) => {
                let is_meant = |program: &Program| program.kind == "lib" && program.package == crate::root();
                let program = Program::parse(message).filter(is_meant);
                built = program.map(|program| program.path).or(built.take());
            }
            None if line.trim_start().starts_with("Executable ") => {}
            None => println!("{line}"),
        })?;
        let built =
            built.ok_or_else(|| format!("cargo has not said where the unit tests with {feature} are"))?;
        let copy = folder.join(feature);
        fs::copy(&built, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    }
    Ok(())
}
