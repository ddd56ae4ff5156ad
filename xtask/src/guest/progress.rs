//! Reads what the test programs in the guest machine print, one module after the other.

use std::time::Instant;

use super::modules::Unit;
use crate::failure::Failure;
use crate::libtest::Report;
use crate::tally::Tally;
use crate::test::Settings;

/// What our own lines begin with, in the output of the machine.
const MARK: char = '\x1e';

/// How many lines of one program are shown at most.
const SHOWN: usize = 300;

/// The state of reading.
pub(super) struct Progress<'a> {
    /// The suite, for the reader.
    place: &'static str,
    /// The modules, in the order in which they run.
    units: &'a [Unit],
    /// How long each may take, in seconds.
    seconds: u64,
    /// Where failed tests are remembered, and whether some must not be skipped.
    settings: &'a Settings,
    /// How many have begun.
    begun: usize,
    /// The one that runs.
    current: Option<Current<'a>>,
    /// The counts of those that have ended.
    tally: Tally,
}

/// A program that runs.
struct Current<'a> {
    /// Which one.
    unit: &'a Unit,
    /// Since when.
    started: Instant,
    /// What it says of its tests.
    report: Report,
    /// All that it says, in case it does not come to its end.
    said: Failure,
    /// How many lines have been shown.
    shown: usize,
}

impl<'a> Progress<'a> {
    /// Nothing read yet.
    pub(super) fn new(place: &'static str, units: &'a [Unit], seconds: u64, settings: &'a Settings) -> Self {
        Self { place, units, seconds, settings, begun: 0, current: None, tally: Tally::default() }
    }

    /// Reads one line.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(mark) = line.strip_prefix(MARK) {
            match mark.split_once(' ') {
                Some(("begin", _)) => self.begin(),
                Some(("end", status)) => self.end(outcome(status, self.seconds)),
                _ => println!("{}: {mark}", self.place),
            }
        } else if let Some(current) = &mut self.current {
            current.line(self.place, line);
        } else if !line.is_empty() {
            println!("{}: {line}", self.place);
        }
    }

    /// How many programs have begun, and the counts of these, given how the machine itself ended.
    pub(super) fn finish(mut self, ended: Result<(), String>) -> (usize, Tally) {
        if let Err(sentence) = ended {
            println!("{}: error: {sentence}", self.place);
            if self.current.is_none() {
                self.tally += Tally::FAILED;
            }
        }
        if self.current.is_some() {
            self.end(Err("the machine ended while this ran".into()));
        }
        (self.begun, self.tally)
    }

    /// The next program begins.
    fn begin(&mut self) {
        let Some(unit) = self.units.get(self.begun) else { return };
        self.begun += 1;
        self.current = Some(Current {
            unit,
            started: Instant::now(),
            report: Report::new(self.settings.ci),
            said: Failure::new(&format!("{}: {}", self.place, unit.name)),
            shown: 0,
        });
    }

    /// It has ended.
    fn end(&mut self, outcome: Result<(), String>) {
        let Some(mut current) = self.current.take() else { return };
        if let Err(sentence) = &outcome {
            current.said.push(sentence);
        }
        let mut failures = current.report.take_failures();
        let ended_well = outcome.is_ok();
        let mut tally = current.report.finish(outcome);
        let (wanted, ran) = (current.unit.tests.len(), tally.passed + tally.failed + tally.skipped);
        if ended_well && ran != wanted {
            current.said.push(&format!("{ran} tests have run, and {wanted} are in the module"));
            tally += Tally::FAILED;
        }
        if failures.is_empty() && tally.failed > 0 {
            failures.push(current.said);
        } else {
            failures = failures.into_iter().map(|failure| failure.at(self.place)).collect();
        }
        self.settings.remember(failures);
        let seconds = current.started.elapsed().as_secs_f32();
        println!("{}: {:<24} {tally}, {seconds:.1} s", self.place, current.unit.name);
        self.tally += tally;
    }
}

impl Current<'_> {
    /// One line of its output: shown unless it tells of a success, and as long as there are not too many.
    fn line(&mut self, place: &str, line: &str) {
        self.said.push(line);
        let Some(line) = self.report.line(line) else { return };
        if line.starts_with("test ") && line.ends_with(" ... ok") || line.starts_with("test result: ok.") {
            return;
        }
        self.shown += 1;
        if self.shown <= SHOWN {
            // Indented, or the tests of this would be taken for the tests that they speak of.
            println!("  {place}: {line}");
        } else if self.shown == SHOWN + 1 {
            println!("  {place}: ... more lines of this module are left out ...");
        }
    }
}

/// How a program ended, from its exit status.
fn outcome(status: &str, seconds: u64) -> Result<(), String> {
    match status {
        "0" => Ok(()),
        // What the runner says of a program that it has ended, too.
        "137" => Err(format!("the program was killed; it may take {seconds} s")),
        _ => Err(format!("the program ended with exit status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of the output of a machine in which these programs were to run.
    fn read(units: &[(&str, usize)], output: &str, ended: Result<(), String>) -> (usize, Tally, usize) {
        let units: Vec<Unit> = units.iter().map(|(name, tests)| Unit::new(name, *tests)).collect();
        let settings = Settings::default();
        let mut progress = Progress::new("guest rxe", &units, 9, &settings);
        output.lines().for_each(|line| progress.line(line));
        let (begun, tally) = progress.finish(ended);
        (begun, tally, settings.into_failures().len())
    }

    const ONE: &str = "\x1ebegin 0\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\
        why\n\nfailures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured\n\n\x1eend 101\n";
    const HUNG: &str = "\x1ebegin 1\nrunning 2 tests\ntest c ... ok\n\n\x1eend 137\n";
    const GOOD: &str = "\x1ebegin 2\nrunning 1 test\ntest d ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n\x1eend 0\n";

    #[test]
    fn a_hung_program_is_a_failure_and_the_next_one_counts() {
        let (begun, tally, remembered) =
            read(&[("x", 2), ("y", 2), ("z", 1)], &[ONE, HUNG, GOOD].concat(), Ok(()));
        assert_eq!((begun, remembered), (3, 2));
        assert_eq!(tally, Tally { passed: 2, failed: 2, skipped: 0 });
    }

    #[test]
    fn tests_running_at_a_crash_have_failed() {
        let output = [ONE, "\x1ebegin 1\nrunning 1 test\n"].concat();
        let (begun, tally, remembered) =
            read(&[("x", 2), ("y", 2), ("z", 1)], &output, Err("an oops".into()));
        assert_eq!((begun, remembered), (2, 2));
        assert_eq!(tally, Tally { passed: 1, failed: 2, skipped: 0 });
    }

    #[test]
    fn a_machine_that_does_not_start_is_a_failure() {
        let (begun, tally, _) = read(&[("x", 1)], "", Err("no machine".into()));
        assert_eq!((begun, tally), (0, Tally::FAILED));
    }

    #[test]
    fn a_status_without_a_failed_test_is_a_failure() {
        let output = GOOD.replace("end 0", "end 1");
        let (_, tally, remembered) = read(&[("x", 1)], &output, Ok(()));
        assert_eq!((tally, remembered), (Tally { passed: 1, failed: 1, skipped: 0 }, 1));
    }

    #[test]
    fn a_test_that_did_not_run_is_a_failure() {
        let (_, tally, remembered) = read(&[("x", 2)], GOOD, Ok(()));
        assert_eq!((tally, remembered), (Tally { passed: 1, failed: 1, skipped: 0 }, 1));
    }
}
