//! Test programs in the machine, one after the other, in as few starts of the machine as it takes.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::image::Image;
use crate::machine::{self, Machine, Processors, Siw};
use crate::progress::{Outcome, Progress};
use crate::tally::Tally;

/// The script that runs the programs in the guest, one after the other.
const RUNNER: &str = include_str!("../guest/tests.sh");

/// The devices of the machine.
pub const DEVICES: [&str; 2] = ["rxe", "siw"];

/// A test program, or a part of its tests that runs in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its name in the output, such as `api accept::refused`.
    pub name: String,
    /// The program and its arguments. None of them is empty or has a line break.
    pub command: Vec<String>,
    /// How many tests have to run, if that is known.
    pub tests: Option<usize>,
}

/// The programs that run on one device, and how.
#[derive(Clone, Debug)]
pub struct Suite<'a> {
    /// Precedes each line of the output.
    pub place: &'a str,
    /// The device whose name and addresses the tests find in the environment: one of [`DEVICES`].
    pub device: Option<&'static str>,
    /// The devices that the machine has: some of [`DEVICES`].
    pub devices: &'a [&'static str],
    /// The parts of the machine.
    pub image: &'a Image,
    /// The programs.
    pub units: &'a [Unit],
    /// Variables that they are given, besides those of the machine.
    pub variables: &'a [(String, String)],
    /// Variables of the host that they are given besides those of the list of [`environment`](crate::environment).
    pub named: &'a [String],
    /// The folder in which they start.
    pub folder: &'a Path,
    /// The folder of all runs. Each run has a folder there that it shares with the machine.
    pub runs: &'a Path,
    /// How long one program may take, in seconds.
    pub seconds: u64,
    /// How long all of them may take. What has not been run by then counts as failed.
    pub limit: Duration,
    /// How many processors the machine has.
    pub processors: Processors,
    /// Whether a test that lacks CAP_NET_ADMIN counts as failed.
    pub ci: bool,
    /// The tests that may be skipped for a reason other than the machine; `None` permits all.
    pub permitted: Option<&'a [String]>,
    /// Whether every line of the programs is shown, and not those only that tell of failures.
    pub shows_all: bool,
}

impl Suite<'_> {
    /// Runs the programs in as few starts of the machine as it takes: one, unless its kernel breaks.
    pub fn run(&self) -> (Tally, Vec<Failure>) {
        let deadline = Instant::now() + self.limit;
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        let mut left = self.units;
        while !left.is_empty() {
            let time = deadline.saturating_duration_since(Instant::now());
            if time.is_zero() {
                println!("{}: error: no time is left for {} programs", self.place, left.len());
                tally.failed += left.len();
                break;
            }
            let machine = Machine {
                image: self.image,
                devices: self.devices,
                siw: Siw::Stock,
                limit: time,
                folder: self.folder,
                named: self.named,
                runs: self.runs,
                processors: self.processors,
            };
            if self.shows_all {
                println!("{}: the machine starts", self.place);
            }
            let mut progress = Progress::new(self, left);
            let ended = machine.run_lines(&self.command(left), |line| progress.line(line));
            let Outcome { begun, tally: sum, failures: more } = progress.finish(ended.map(|_| ()));
            tally += sum;
            failures.extend(more);
            if begun == 0 {
                // None of them has run.
                tally.failed += left.len().saturating_sub(sum.failed);
                break;
            }
            left = &left[begun..];
        }
        (tally, failures)
    }

    /// The command in the guest.
    fn command(&self, units: &[Unit]) -> Vec<String> {
        let mut words = vec!["env".to_owned()];
        words.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        words.extend(self.device.into_iter().flat_map(of_device));
        words.extend(["sh", "-c", RUNNER, "tests"].map(str::to_owned));
        words.push(self.seconds.to_string());
        words.extend(units.iter().map(|unit| unit.command.join("\n")));
        words
    }
}

/// The variables for tests that run on one device: its word and its addresses.
fn of_device(device: &str) -> Vec<String> {
    let prefix = format!("TOKIO_RDMA_{}_", device.to_ascii_uppercase());
    let own = machine::DEVICES.iter().filter_map(|(name, value)| Some((name.strip_prefix(&prefix)?, value)));
    let mut variables = vec![format!("TOKIO_RDMA_TEST_DEVICE={device}")];
    variables.extend(
        own.filter(|(name, _)| name.starts_with("ADDR"))
            .map(|(name, value)| format!("TOKIO_RDMA_TEST_{name}={value}")),
    );
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_their_device_and_its_addresses() {
        let expected = ["TEST_DEVICE=siw", "TEST_ADDR=10.78.0.1", "TEST_ADDR6=fd78::1"];
        assert_eq!(of_device("siw"), expected.map(|one| format!("TOKIO_RDMA_{one}")));
    }
}
