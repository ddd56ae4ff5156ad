//! The step `fake`: test programs over the device of `tests/fake`, which takes the place of libibverbs and librdmacm.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::guest::{self, Program, modules};
use crate::steps;
use crate::tally::Tally;
use crate::test::Settings;

/// The test programs that are about what the public API shows of any device. Those of other programs need the kernel's devices.
const PROGRAMS: &[&str] = &["api", "seeds", "streams", "trace"];
/// The word of modules that are about this device.
pub(crate) const OWN: &str = "fake";
/// The word of modules that are about it as a card that speaks iWARP.
pub(crate) const IWARP: &str = "fake-iwarp";

/// A kind of card that the device can be.
struct Dress {
    /// The word for it.
    name: &'static str,
    /// The lines that the device is told first.
    lines: &'static str,
    /// The word of the modules that are about this kind.
    own: &'static str,
    /// The word of the kernel's device of this kind, of which the modules of `PROGRAMS` run on it, too.
    like: &'static str,
}

/// Every kind.
const DRESSES: [Dress; 3] = [
    Dress { name: "roce", lines: "dress roce", own: OWN, like: "rxe" },
    Dress { name: "infiniband", lines: "dress infiniband", own: OWN, like: "rxe" },
    // A call waits there until the device gives up a peer that does not answer, which otherwise takes a minute.
    Dress { name: "iwarp", lines: "dress iwarp;patience 20000", own: IWARP, like: "siw" },
];

impl Dress {
    /// The place in the list of the tests that may be skipped.
    fn place(&self) -> String {
        format!("fake {}", self.name)
    }
}

/// The places of all kinds in the list of the tests that may be skipped.
#[cfg(test)]
pub(crate) fn places() -> impl Iterator<Item = String> {
    DRESSES.iter().map(Dress::place)
}

/// The folder with the library under both names, beside the programs.
pub(crate) const FOLDER: &str = "target/fake";
/// The same for the one of the profile `whole`, for programs that are built so, too.
pub(crate) const WHOLE_FOLDER: &str = "target/fake-whole";
/// The names under which the verbs provider asks for the two libraries.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The step.
pub(crate) fn step(settings: &Settings) -> Tally {
    run(settings).unwrap_or_else(|sentence| Tally::check(Err(sentence)))
}

/// Builds everything, and runs each program with each kind of card in a process of its own.
fn run(settings: &Settings) -> Result<Tally, String> {
    lay_out()?;
    let modules = modules::all(&guest::words())?;
    let programs = guest::build(false)?;
    let mut tally = Tally::default();
    for dress in &DRESSES {
        for program in &programs {
            let of = |word| modules::units(word, &modules, &program.name, &program.path);
            let mut units = of(dress.own)?;
            if PROGRAMS.contains(&program.name.as_str()) {
                units.extend(of(dress.like)?);
            }
            if units.is_empty() {
                continue;
            }
            let tests = units.iter().flat_map(|unit| &unit.tests);
            let mut command = command(program, dress);
            command.args(["--exact", "--show-output"]).args(tests);
            println!("{} on the fake device, {}", program.name, dress.name);
            tally += steps::counted(settings, &dress.place(), command);
        }
    }
    Ok(tally)
}

/// A program over the device, which counts its objects at the end.
fn command(program: &Program, dress: &Dress) -> Command {
    let mut command = Command::new(&program.path);
    let root = crate::root();
    // As cargo sets it.
    command.env("CARGO_MANIFEST_DIR", &root);
    command.env("TOKIO_RDMA_TEST_DEVICE", "fake").env("LD_LIBRARY_PATH", root.join(FOLDER));
    command.env("FAKE_CONTROL", dress.lines);
    // An object that is left when a program ends is a leak.
    command.env("FAKE_COUNT", "1");
    // Most of the time they wait.
    command.env("RUST_TEST_THREADS", "8");
    command
}

/// Builds the library, and gives it the names of the two that it takes the place of.
///
/// # Errors
/// A sentence, if one of that fails.
pub(crate) fn lay_out() -> Result<(), String> {
    steps::build_programs()?;
    link_names(FOLDER, "debug")
}

/// Gives the library of this profile the two names, in a folder of `target`. Both lead to one file: they are one library to the
/// loader.
///
/// # Errors
/// A sentence that says what could not be written.
pub(crate) fn link_names(folder: &str, profile: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("{folder}: {error}");
    fs::create_dir_all(folder).map_err(failed)?;
    for name in NAMES {
        let link = Path::new(folder).join(name);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => symlink(format!("../{profile}/libfake.so"), &link).map_err(failed)?,
        }
    }
    Ok(())
}
