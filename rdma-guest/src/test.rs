//! `cargo rdma-guest test`: the tests of a project, built on the host and run in the machine for each device.

use std::env;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use crate::command::{Places, seconds, variable};
use crate::failure::Failure;
use crate::image::{self, Image};
use crate::messages::Program;
use crate::suite::{DEVICES, Suite, Unit};
use crate::tally::Tally;
use crate::{Usage, exec, permits};

/// How long a test program may take unless it is told otherwise.
const DEFAULT_SECONDS: u64 = 600;

/// How long the build may take.
const BUILD_LIMIT: Duration = exec::minutes(120);

/// How long the machine may take beside its programs.
const SPARE: Duration = exec::minutes(5);

/// The options of `cargo test` whose value is the next word.
#[rustfmt::skip]
const WITH_VALUE: &[&str] = &[
    "-p", "--package", "--exclude", "-j", "--jobs", "-F", "--features", "--test", "--bin", "--example", "--bench", "--profile",
    "--target", "--target-dir", "--manifest-path", "--lockfile-path", "--color", "--config", "-Z",
];

/// A command line of `test`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The devices.
    devices: Vec<&'static str>,
    /// Whether the machine of each has the other device, too.
    together: bool,
    /// How long a test program may take, in seconds.
    seconds: u64,
    /// Variables that the tests are given besides those of the list.
    named: Vec<String>,
    /// The arguments of `cargo test` that tell what is built.
    cargo: Vec<String>,
    /// The arguments of the test programs.
    arguments: Vec<String>,
}

impl Request {
    /// Reads the command line: that of `cargo test`, with options of ours before `--`.
    ///
    /// # Errors
    /// A sentence on what is wrong with it.
    pub fn parse(arguments: &[String]) -> Result<Self, Usage> {
        let mut request = Self {
            devices: DEVICES.to_vec(),
            together: false,
            seconds: DEFAULT_SECONDS,
            named: Vec::new(),
            cargo: Vec::new(),
            arguments: Vec::new(),
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let missing = || Usage(format!("`{name}` needs a value"));
            let mut value = || value.clone().or_else(|| words.next().cloned()).ok_or_else(missing);
            match name {
                "--" => break,
                "--device" => request.devices = devices(&value()?)?,
                "--together" => request.together = true,
                "--timeout" => request.seconds = seconds(&value()?)?,
                "--env" => request.named.push(variable(value()?)?),
                // They all run in any case.
                "--no-fail-fast" => {}
                "--doc" | "--no-run" | "--message-format" => {
                    return Err(Usage(format!("`{name}` cannot be used with tests in the machine")));
                }
                _ if WITH_VALUE.contains(&name) && word == name => {
                    let value = value()?;
                    request.cargo.extend([word.clone(), value]);
                }
                _ if name.starts_with('-') => request.cargo.push(word.clone()),
                // The filter.
                _ => request.arguments.push(word.clone()),
            }
        }
        request.arguments.extend(words.cloned());
        // The runner in the machine separates arguments by lines.
        if request.arguments.iter().any(|word| word.is_empty() || word.contains('\n')) {
            return Err(Usage("an argument of the tests is empty or has a line break".into()));
        }
        Ok(request)
    }

    /// Builds the tests and runs them; whether all have passed.
    ///
    /// # Errors
    /// A sentence, if they cannot be built, or if the machine cannot be made.
    pub fn run(&self, places: &Places, folder: &Path) -> Result<bool, String> {
        let image = image::prepare(&places.cache)?;
        let units: Vec<Unit> = self.build()?.iter().map(|program| self.unit(program)).collect();
        if units.is_empty() {
            return Err("cargo has built no test program".into());
        }
        let results = thread::scope(|scope| {
            let (image, units) = (&image, &units[..]);
            let run =
                |&device| (device, scope.spawn(move || self.suite(device, image, units, places, folder)));
            let threads: Vec<_> = self.devices.iter().map(run).collect();
            let lost = |_| (Tally::FAILED, Vec::new());
            let end =
                |(device, thread): (_, ScopedJoinHandle<'_, _>)| (device, thread.join().unwrap_or_else(lost));
            threads.into_iter().map(end).collect::<Vec<_>>()
        });
        println!();
        for failure in results.iter().flat_map(|(_, (_, failures))| failures) {
            println!("{failure}\n");
        }
        for (device, (tally, _)) in &results {
            println!("{device}: {tally}");
        }
        Ok(results.iter().all(|(_, (tally, _))| tally.failed == 0))
    }

    /// Builds them on the host, as `cargo test` does.
    fn build(&self) -> Result<Vec<Program>, String> {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(&self.cargo);
        if stderr().is_terminal() && env::var_os("CARGO_TERM_COLOR").is_none() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        let mut programs = Vec::new();
        exec::quiet_lines(command, BUILD_LIMIT, |line| {
            if line.starts_with('{') {
                programs.extend(Program::parse(line).filter(|program| program.is_test));
            } else {
                eprintln!("{line}");
            }
        })
        .map_err(|error| format!("the tests cannot be built: {error}"))?;
        Ok(programs)
    }

    /// A program as it runs in the machine: in the folder of its package, as cargo has it.
    fn unit(&self, program: &Program) -> Unit {
        let package = program.package.display();
        let mut command = ["env", "-C"].map(str::to_owned).to_vec();
        command.extend([package.to_string(), format!("CARGO_MANIFEST_DIR={package}")]);
        command.push(program.path.display().to_string());
        command.extend(self.arguments.iter().cloned());
        Unit { name: format!("{} {}", program.kind, program.name), command, tests: None }
    }

    /// Runs all programs for one device.
    fn suite(
        &self,
        device: &'static str,
        image: &Image,
        units: &[Unit],
        places: &Places,
        folder: &Path,
    ) -> (Tally, Vec<Failure>) {
        let permit = permits::acquire();
        let own = [device];
        let programs = u32::try_from(units.len()).unwrap_or(u32::MAX);
        let suite = Suite {
            place: device,
            device: Some(device),
            devices: if self.together { &DEVICES[..] } else { &own },
            image,
            units,
            variables: &[],
            named: &self.named,
            folder,
            runs: &places.runs,
            seconds: self.seconds,
            limit: Duration::from_secs(self.seconds).saturating_mul(programs) + SPARE,
            processors: permit.processors(),
            ci: false,
            permitted: None,
            shows_all: true,
        };
        suite.run()
    }
}

/// The argument of `--device`.
fn devices(word: &str) -> Result<Vec<&'static str>, Usage> {
    let chosen: Vec<_> = DEVICES.into_iter().filter(|device| word == "both" || word == *device).collect();
    if chosen.is_empty() {
        Err(Usage(format!("there is no device `{word}`, only rxe, siw and both")))
    } else {
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request of a command line.
    fn parse(line: &str) -> Result<Request, Usage> {
        Request::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_for_cargo_or_for_the_programs() {
        let line = "--device siw -p one --features=a,b name --env X --test two --release -- --nocapture --test-threads=1";
        let request = parse(line).expect("a good command line");
        assert_eq!((&request.devices[..], request.together), (&["siw"][..], false));
        assert!(parse("--together --test two").expect("a good command line").together);
        assert_eq!(request.cargo, ["-p", "one", "--features=a,b", "--test", "two", "--release"]);
        assert_eq!(request.arguments, ["name", "--nocapture", "--test-threads=1"]);
        assert_eq!(request.named, ["X"]);
        assert_eq!(parse("").expect("a good command line").devices, ["rxe", "siw"]);
        assert_eq!(parse("--device=both --timeout=3").expect("a good command line").seconds, 3);
    }

    #[test]
    fn a_wrong_command_line_is_refused() {
        for line in ["--device", "--device ib", "--doc", "--no-run", "--env A-B", "-p", "--timeout 0"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(Request::parse(&["--".into(), String::new()]).is_err());
    }

    #[test]
    fn program_starts_in_its_package_folder() {
        let program = Program {
            name: "echo".into(),
            path: "/t/echo-1".into(),
            source: "/p/tests/echo.rs".into(),
            package: "/p".into(),
            kind: "test".into(),
            is_test: true,
        };
        let unit = parse("name").expect("a good command line").unit(&program);
        assert_eq!(unit.name, "test echo");
        assert_eq!(unit.command, ["env", "-C", "/p", "CARGO_MANIFEST_DIR=/p", "/t/echo-1", "name"]);
    }
}
