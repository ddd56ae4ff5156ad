//! Reads what the test programs in the guest machine print, one module after the other.

use std::time::Instant;

use crate::failure::Failure;
use crate::libtest::Report;
use crate::machine::MEMORY;
use crate::suite::{Suite, Unit};
use crate::tally::Tally;

/// The beginning of our own lines in the output of the machine.
const MARK: char = '\x1e';

/// How many lines of one program are shown at most.
const SHOWN: usize = 300;

/// The state of reading.
pub(crate) struct Progress<'a> {
    /// The suite of the programs.
    suite: &'a Suite<'a>,
    /// The programs, in the order in which they run.
    units: &'a [Unit],
    /// How many have begun.
    begun: usize,
    /// The one that runs.
    current: Option<Current<'a>>,
    /// The counts of those that have ended.
    tally: Tally,
    /// Their tests that failed.
    failures: Vec<Failure>,
}

/// The results of the programs that have begun.
pub(crate) struct Outcome {
    /// How many these are.
    pub(crate) begun: usize,
    /// The counts of their tests.
    pub(crate) tally: Tally,
    /// The tests that failed.
    pub(crate) failures: Vec<Failure>,
}

/// A program that runs.
struct Current<'a> {
    /// Which one.
    unit: &'a Unit,
    /// Since when.
    started: Instant,
    /// The results of its tests, as it prints them.
    report: Report,
    /// All that it says, in case it does not come to its end.
    said: Failure,
    /// How many lines have been shown.
    shown: usize,
}

impl<'a> Progress<'a> {
    /// Nothing read yet.
    pub(crate) fn new(suite: &'a Suite<'a>, units: &'a [Unit]) -> Self {
        Self { suite, units, begun: 0, current: None, tally: Tally::default(), failures: Vec::new() }
    }

    /// Reads one line.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(mark) = line.strip_prefix(MARK) {
            match mark.split_once(' ') {
                Some(("begin", _)) => self.begin(),
                Some(("end", report)) => self.end(outcome(report, self.suite.seconds)),
                _ => println!("{}: {mark}", self.suite.place),
            }
        } else if let Some(current) = &mut self.current {
            current.line(self.suite, line);
        } else if !line.is_empty() {
            println!("{}: {line}", self.suite.place);
        }
    }

    /// The results of the programs, given how the machine itself ended.
    pub(crate) fn finish(mut self, ended: Result<(), String>) -> Outcome {
        if let Err(sentence) = ended {
            println!("{}: error: {sentence}", self.suite.place);
            if self.current.is_none() {
                self.tally += Tally::FAILED;
            }
        }
        if self.current.is_some() {
            self.end(Err("the machine ended while this ran".into()));
        }
        Outcome { begun: self.begun, tally: self.tally, failures: self.failures }
    }

    /// The next program begins.
    fn begin(&mut self) {
        let Some(unit) = self.units.get(self.begun) else { return };
        self.begun += 1;
        self.current = Some(Current {
            unit,
            started: Instant::now(),
            report: Report::new(self.suite.ci).permitting(self.suite.permitted),
            said: Failure::new(&format!("{}: {}", self.suite.place, unit.name)),
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
        let (ended_well, has_results) = (outcome.is_ok(), current.report.has_results());
        let mut tally = current.report.finish(outcome);
        let ran = tally.passed + tally.failed + tally.skipped;
        match current.unit.tests {
            Some(wanted) if ended_well && ran != wanted => {
                current.said.push(&format!("{ran} tests have run, and {wanted} are in the module"));
                tally += Tally::FAILED;
            }
            // A program with a harness of its own is a test as a whole.
            None if ended_well && !has_results => tally += Tally::PASSED,
            _ => {}
        }
        if failures.is_empty() && tally.failed > 0 {
            failures.push(current.said);
        } else {
            let place = match current.unit.tests {
                Some(_) => self.suite.place.to_owned(),
                // The programs of a project may have tests with the same name.
                None => format!("{}: {}", self.suite.place, current.unit.name),
            };
            failures = failures.into_iter().map(|failure| failure.at(&place)).collect();
        }
        self.failures.extend(failures);
        let seconds = current.started.elapsed().as_secs_f32();
        println!("{}: {:<24} {tally}, {seconds:.1} s", self.suite.place, current.unit.name);
        self.tally += tally;
    }
}

impl Current<'_> {
    /// One line of its output: shown unless it tells of a success, and as long as there are not too many, or in any case.
    fn line(&mut self, suite: &Suite<'_>, line: &str) {
        self.said.push(line);
        let place = suite.place;
        let shown = self.report.line(line);
        if suite.shows_all {
            if !line.is_empty() {
                println!("{place}: {line}");
            }
            return;
        }
        let Some(line) = shown else { return };
        if line.starts_with("test ") && line.ends_with(" ... ok") || line.starts_with("test result: ok.") {
            return;
        }
        self.shown += 1;
        if self.shown <= SHOWN {
            // Indented, or the tests of this would be taken for the tests that they speak of.
            println!("  {place}: {line}");
        } else if self.shown == SHOWN + 1 {
            println!("  {place}: ... more lines of this program are left out ...");
        }
    }
}

/// How a program ended, from its exit status and the limit that ended it.
fn outcome(report: &str, seconds: u64) -> Result<(), String> {
    match report.split_once(' ').unwrap_or((report, "none")) {
        (_, "memory") => Err(format!(
            "the memory of the machine ran out, and its kernel killed a process: it has {MEMORY} MiB, for programs and \
             for the files that they write"
        )),
        (_, "time") => Err(format!("the program was killed, because it may take {seconds} s")),
        ("0", _) => Ok(()),
        ("137", _) => {
            Err("the program was killed by SIGKILL, and neither time nor memory had run out".into())
        }
        (status, _) => Err(format!("the program ended with exit status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::image::Image;
    use crate::machine::Processors;
    use crate::suite::DEVICES;

    /// The results that are read from the output of a machine in which these programs were to run.
    fn read(
        units: &[(&str, Option<usize>)],
        output: &str,
        ended: Result<(), String>,
    ) -> (usize, Tally, usize) {
        let (begun, tally, failures) = read_failures(units, output, ended);
        (begun, tally, failures.len())
    }

    /// The same, with what is said of each failure.
    fn read_failures(
        units: &[(&str, Option<usize>)],
        output: &str,
        ended: Result<(), String>,
    ) -> (usize, Tally, Vec<String>) {
        let unit = |(name, tests): &(&str, _)| Unit {
            name: (*name).to_owned(),
            command: vec!["/x".into()],
            tests: *tests,
        };
        let units: Vec<Unit> = units.iter().map(unit).collect();
        let image = Image { folder: "/image".into(), kernel: "6.1".into() };
        let suite = Suite {
            place: "guest rxe",
            device: None,
            devices: &DEVICES,
            image: &image,
            units: &units,
            variables: &[],
            named: &[],
            folder: Path::new("/"),
            runs: Path::new("/runs"),
            seconds: 9,
            limit: Duration::from_secs(9),
            processors: Processors::Two,
            ci: false,
            permitted: None,
            shows_all: false,
        };
        let mut progress = Progress::new(&suite, &units);
        output.lines().for_each(|line| progress.line(line));
        let outcome = progress.finish(ended);
        (outcome.begun, outcome.tally, outcome.failures.iter().map(Failure::to_string).collect())
    }

    const ONE: &str = "\x1ebegin 0\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\
        why\n\nfailures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured\n\n\x1eend 101\n";
    const HUNG: &str = "\x1ebegin 1\nrunning 2 tests\ntest c ... ok\n\n\x1eend 137 time\n";
    const GOOD: &str = "\x1ebegin 2\nrunning 1 test\ntest d ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n\x1eend 0\n";

    #[test]
    fn hung_program_fails_and_next_one_counts() {
        let (begun, tally, remembered) =
            read(&[("x", Some(2)), ("y", Some(2)), ("z", Some(1))], &[ONE, HUNG, GOOD].concat(), Ok(()));
        assert_eq!((begun, remembered), (3, 2));
        assert_eq!(tally, Tally { passed: 2, failed: 2, skipped: 0 });
    }

    #[test]
    fn failed_test_of_a_project_is_named_with_its_program() {
        let failure = |tests| read_failures(&[("test x", tests)], ONE, Ok(())).2;
        assert_eq!(failure(None), ["-- guest rxe: test x: b\n    why"]);
        assert_eq!(failure(Some(2)), ["-- guest rxe: b\n    why"]);
    }

    #[test]
    fn the_limit_that_ended_a_program_is_named() {
        let sentence = |report| outcome(report, 600).expect_err("it failed");
        assert_eq!(sentence("137 time"), "the program was killed, because it may take 600 s");
        for status in ["137 memory", "101 memory", "0 memory"] {
            assert!(sentence(status).starts_with("the memory of the machine ran out"), "{status}");
        }
        assert!(sentence("137 none").contains("neither time nor memory"));
        assert_eq!(sentence("101 none"), "the program ended with exit status 101");
        assert_eq!(outcome("0 none", 600), Ok(()));
    }

    #[test]
    fn tests_running_at_a_crash_have_failed() {
        let output = [ONE, "\x1ebegin 1\nrunning 1 test\n"].concat();
        let (begun, tally, remembered) =
            read(&[("x", Some(2)), ("y", Some(2)), ("z", Some(1))], &output, Err("an oops".into()));
        assert_eq!((begun, remembered), (2, 2));
        assert_eq!(tally, Tally { passed: 1, failed: 2, skipped: 0 });
    }

    #[test]
    fn failed_machine_start_is_a_failure() {
        let (begun, tally, _) = read(&[("x", Some(1))], "", Err("no machine".into()));
        assert_eq!((begun, tally), (0, Tally::FAILED));
    }

    #[test]
    fn nonzero_status_without_failed_test_is_failure() {
        let output = GOOD.replace("end 0", "end 1");
        let (_, tally, remembered) = read(&[("x", Some(1))], &output, Ok(()));
        assert_eq!((tally, remembered), (Tally { passed: 1, failed: 1, skipped: 0 }, 1));
    }

    #[test]
    fn missing_test_is_a_failure() {
        let (_, tally, remembered) = read(&[("x", Some(2))], GOOD, Ok(()));
        assert_eq!((tally, remembered), (Tally { passed: 1, failed: 1, skipped: 0 }, 1));
    }

    #[test]
    fn a_program_without_libtest_is_one_test() {
        let output = "\x1ebegin 0\nhello\n\x1eend 0\n";
        assert_eq!(read(&[("x", None)], output, Ok(())).1, Tally::PASSED);
        assert_eq!(read(&[("x", None)], &output.replace("end 0", "end 3"), Ok(())).1, Tally::FAILED);
        let none = "\x1ebegin 0\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n\x1eend 0\n";
        assert_eq!(read(&[("x", None)], none, Ok(())).1, Tally::default());
    }
}
