//! The steps of `cargo xtask test` that run test programs in the guest machine: one or two machines for each device, side by side.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rdma_guest::image::{self, Image};
use rdma_guest::machine::Processors;
use rdma_guest::permits::{self, Permit};
use rdma_guest::{messages, suite};

use super::modules::{self, Module, Tests};
use crate::bindings;
use crate::exec::{self, minutes};
use crate::fake;
use crate::packages;
use crate::skips;
use crate::steps;
use crate::tally::Tally;
use crate::test::Settings;

/// The word in the line `Runs on` that stands for the soft provider, which the tests of the host use.
const HOST: &str = "soft";

/// The word that stands for the simulated network, which needs no machine.
const SIM: &str = "sim";

/// How long a suite may take in all. What has not been run by then counts as failed.
const SUITE_LIMIT: Duration = minutes(35);

/// How many times as long everything takes with AddressSanitizer.
const SANITIZED: u32 = 3;

/// The tests of one device, or those that need the machine for something else.
#[derive(Debug)]
struct Suite {
    /// The word in the line `Runs on`.
    word: &'static str,
    /// The place that the reader is told.
    place: &'static str,
    /// The device that the tests find in the environment.
    device: Option<&'static str>,
    /// How long one module may take, in seconds; the machine is ten to twenty times slower than the host.
    seconds: u64,
    /// How many machines share its modules, if so many may run.
    machines: usize,
}

/// All of them.
const SUITES: [Suite; 3] = [
    Suite { word: "rxe", place: "guest rxe", device: Some("rxe"), seconds: 300, machines: 1 },
    // The last: two machines end sooner than one that has the host to itself.
    Suite { word: "siw", place: "guest siw", device: Some("siw"), seconds: 300, machines: 2 },
    Suite { word: "guest", place: "guest interop", device: None, seconds: 900, machines: 1 },
];

/// The words that may stand in the line `Runs on`.
pub(crate) fn words() -> Vec<&'static str> {
    [&[HOST, SIM, fake::OWN, fake::IWARP], &SUITES.each_ref().map(|suite| suite.word)[..]].concat()
}

/// The step for rxe.
pub(crate) fn rxe(settings: &Settings) -> Tally {
    step(&SUITES[0], settings)
}

/// The step for siw.
pub(crate) fn siw(settings: &Settings) -> Tally {
    step(&SUITES[1], settings)
}

/// The step for the machine itself, which is made once.
pub(crate) fn image(settings: &Settings) -> Tally {
    packages::skipped(&packages::guest(), settings)
        .unwrap_or_else(|| Tally::check(image::prepare(&super::places().cache).map(drop)))
}

/// The step for programs and drivers that are not ours.
pub(crate) fn interop(settings: &Settings) -> Tally {
    unless_lacking(settings, |permit| {
        // Tests of this suite run their programs, and are skipped if there are none.
        let built = steps::build_async_rdma().and_then(|()| bindings::build());
        let built = built.map_or_else(failed, |()| Tally::default());
        let mut tally = SUITES[2].run(settings, permit).unwrap_or_else(failed);
        tally += built;
        tally
    })
}

/// One step.
fn step(suite: &Suite, settings: &Settings) -> Tally {
    unless_lacking(settings, |permit| suite.run(settings, permit).unwrap_or_else(failed))
}

/// Does something with a machine of its own; it is skipped where packages are missing.
fn unless_lacking(settings: &Settings, run: impl FnOnce(Permit) -> Tally) -> Tally {
    // First of all: the steps run in the order in which they are listed.
    let permit = permits::acquire();
    let packages = [packages::RDMA_SYS, packages::ASYNC_RDMA, &packages::guest()].concat();
    packages::skipped(&packages, settings).unwrap_or_else(|| run(permit))
}

/// Something other than a test has failed.
fn failed(sentence: String) -> Tally {
    println!("error: {sentence}");
    Tally::FAILED
}

/// The inputs of all suites, which the first suite prepares.
struct Prepared {
    /// The parts of the machine.
    image: Image,
    /// All modules of tests.
    modules: Vec<Module>,
    /// All test programs.
    programs: Vec<Program>,
}

impl Prepared {
    /// Makes the machine and builds the programs.
    fn get(sanitizer: bool) -> Result<&'static Self, String> {
        static PREPARED: OnceLock<Result<Prepared, String>> = OnceLock::new();
        let prepare = || {
            let modules = modules::all(&words())?;
            let image = image::prepare(&super::places().cache)?;
            let programs = build(sanitizer)?;
            let is_built = |module: &&Module| programs.iter().any(|program| program.name == module.program);
            match modules.iter().find(|module| !module.runs_on.is_empty() && !is_built(module)) {
                Some(module) => Err(format!("cargo has not said where the program {} is", module.program)),
                None => Ok(Self { image, modules, programs }),
            }
        };
        PREPARED.get_or_init(prepare).as_ref().map_err(String::clone)
    }
}

impl Suite {
    /// Runs the modules, whose first machine has `permit`.
    fn run(&self, settings: &Settings, permit: Permit) -> Result<Tally, String> {
        let Prepared { image, modules, programs } = Prepared::get(settings.sanitizer)?;
        let mut units = Vec::new();
        for program in programs {
            let found = modules::units(self.word, modules, &program.name, &program.path)?;
            units.extend(found.into_iter().map(Tests::unit));
        }
        if units.is_empty() {
            println!("no test says that it runs on {}", self.word);
            return Ok(Tally::default());
        }
        let permitted = skips::permitted(self.place);
        // Each machine returns its permit when it ends, so that one permit is enough for all of them.
        let run = |units: &[suite::Unit], permit: Permit| {
            self.run_units(settings, (image, units), permit.processors(), &permitted)
        };
        Ok(thread::scope(|scope| {
            let mut parts = dealt(units, self.machines).into_iter();
            let first = parts.next().unwrap_or_default();
            let others: Vec<_> =
                parts.map(|units| scope.spawn(move || run(&units, permits::acquire()))).collect();
            let mut tally = run(&first, permit);
            for other in others {
                tally += other.join().unwrap_or(Tally::FAILED);
            }
            tally
        }))
    }

    /// Runs these modules in one machine.
    fn run_units(
        &self,
        settings: &Settings,
        (image, units): (&Image, &[suite::Unit]),
        processors: Processors,
        permitted: &[String],
    ) -> Tally {
        let factor = if settings.sanitizer { SANITIZED } else { 1 };
        let root = crate::root();
        let suite = suite::Suite {
            place: self.place,
            device: self.device,
            // Some modules use both.
            devices: &suite::DEVICES,
            image,
            units,
            // As cargo would have it for these programs; it is that of this one otherwise.
            variables: &[
                ("RUST_BACKTRACE".into(), "0".into()),
                ("CARGO_MANIFEST_DIR".into(), root.display().to_string()),
            ],
            named: &[],
            folder: &root,
            runs: &super::places().runs,
            seconds: self.seconds * u64::from(factor),
            limit: SUITE_LIMIT * factor,
            processors,
            ci: settings.ci,
            permitted: Some(permitted),
            shows_all: false,
        };
        let (tally, failures) = suite.run();
        settings.remember(failures);
        tally
    }
}

/// Deals the modules to so many machines: neighbours, which take alike long, to different ones.
fn dealt(units: Vec<suite::Unit>, machines: usize) -> Vec<Vec<suite::Unit>> {
    let mut parts = vec![Vec::new(); machines.min(units.len())];
    for (place, unit) in units.into_iter().enumerate() {
        parts[place % machines].push(unit);
    }
    parts
}

/// The programs with tests that run over the simulated network, each with the names of these tests.
///
/// # Errors
/// A sentence, if a program cannot be built, or if a file cannot be read or says wrongly where it runs.
pub(crate) fn simulated() -> Result<Vec<(PathBuf, Vec<String>)>, String> {
    let modules = modules::all(&words())?;
    let mut found = Vec::new();
    for program in build(false)? {
        let units = modules::units(SIM, &modules, &program.name, &program.path)?;
        let tests: Vec<_> = units.into_iter().flat_map(|unit| unit.tests).collect();
        if !tests.is_empty() {
            found.push((program.path, tests));
        }
    }
    Ok(found)
}

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The name of its folder.
    pub(crate) name: String,
    /// Its path.
    pub(crate) path: PathBuf,
}

/// Builds every test program, and the examples that they run: what the step `tests` has built is not built again.
pub(crate) fn build(sanitizer: bool) -> Result<Vec<Program>, String> {
    let cargo = |arguments: &[&str]| {
        let mut command = exec::cargo(arguments);
        command.args(steps::EVERYTHING);
        if sanitizer {
            // With a target named, the flags are not for what runs while it builds.
            command.args(["--target", "x86_64-unknown-linux-gnu", "--target-dir", "target/asan"]);
            command.envs([("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", "-Zsanitizer=address")]);
        }
        command
    };
    exec::show(cargo(&["build", "--examples"]), minutes(30))?;
    let mut programs = Vec::new();
    let command = cargo(&["test", "--no-run", "--tests", "--message-format=json-render-diagnostics"]);
    exec::lines(command, minutes(30), |line| {
        if line.starts_with('{') {
            programs.extend(program(line));
        } else if !line.trim_start().starts_with("Executable ") {
            println!("{line}");
        }
    })?;
    programs.sort_by(|one: &Program, other| one.name.cmp(&other.name));
    Ok(programs)
}

/// The test program that a message of cargo tells of, if it does.
fn program(message: &str) -> Option<Program> {
    let messages::Program { name, path, source, is_test, .. } = messages::Program::parse(message)?;
    let is_ours = is_test && source.ends_with(format!("tests/{name}/main.rs"));
    is_ours.then_some(Program { name, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_share_the_modules() {
        let unit = |name: &str| suite::Unit { name: name.into(), command: Vec::new(), tests: None };
        let units = ["a", "b", "c"].map(unit);
        let names = |machines| -> Vec<String> {
            let parts = dealt(units.to_vec(), machines);
            parts.iter().map(|part| part.iter().map(|unit| &*unit.name).collect()).collect()
        };
        assert_eq!(names(1), ["abc"]);
        assert_eq!(names(2), ["ac", "b"]);
        assert_eq!(names(4), ["a", "b", "c"]);
    }
}
