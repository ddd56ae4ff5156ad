//! Reads what `cargo test -- --show-output` prints.

use crate::failure::Failure;
use crate::tally::Tally;

/// How a test says that it could not run here: a line of its output that begins so.
const SKIPPED: &str = "skipped: ";

/// How a reason for skipping begins that is one of the machine: a package, a permission, a device.
const NEEDS: &str = "skipped: needs ";

/// The reason for skipping that must not happen in CI.
const NEEDS_ADMIN: &str = "skipped: needs CAP_NET_ADMIN";

/// The part of the output of one test binary that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    /// Between binaries: what cargo and the compiler say.
    Between,
    /// `running N tests`, then one line for each.
    Running,
    /// Output of the tests that passed, then their names.
    Successes,
    /// Output of the tests that failed, then their names.
    Failures,
}

/// The state of reading.
#[derive(Debug)]
pub struct Report {
    /// Whether a test that lacks CAP_NET_ADMIN counts as failed.
    ci: bool,
    /// The tests that may be skipped for a reason other than the machine; `None` permits all.
    permitted: Option<Vec<String>>,
    /// The counts so far.
    tally: Tally,
    /// The part that is being read.
    section: Section,
    /// The test whose output is being read, and whether it has said that it was skipped.
    current: (String, bool),
    /// Tests of this binary that passed but said they were skipped.
    skipped: usize,
    /// Those of them that must not be skipped here.
    must_run: usize,
    /// The tests that failed, of all binaries.
    failures: Vec<Failure>,
    /// The last of them is the one whose output is being read.
    in_failure: bool,
    /// Whether the result of a binary has been read.
    has_results: bool,
}

impl Report {
    /// Nothing read yet.
    pub fn new(ci: bool) -> Self {
        Self {
            ci,
            permitted: None,
            tally: Tally::default(),
            section: Section::Between,
            current: (String::new(), false),
            skipped: 0,
            must_run: 0,
            failures: Vec::new(),
            in_failure: false,
            has_results: false,
        }
    }

    /// Counts a test as failed that is skipped, unless its reason begins with "needs" or it is one of these.
    pub fn permitting(mut self, tests: Option<&[String]>) -> Self {
        self.permitted = tests.map(<[String]>::to_vec);
        self
    }

    /// Reads one line; returns what to show of it.
    pub fn line(&mut self, line: &str) -> Option<String> {
        if let Some(result) = parse_result(line).filter(|_| self.section != Section::Between) {
            self.end_binary(result);
            return Some(line.to_owned());
        }
        match self.section {
            Section::Between if is_start(line) => {
                self.section = Section::Running;
                None
            }
            Section::Running | Section::Successes if line == "failures:" => {
                self.section = Section::Failures;
                Some(line.to_owned())
            }
            Section::Running if line == "successes:" => {
                self.section = Section::Successes;
                None
            }
            Section::Running if line.starts_with(SKIPPED) => self.skip(line),
            Section::Running if is_start(line) => {
                self.lost_binary();
                self.section = Section::Running;
                None
            }
            Section::Between | Section::Running => (!line.is_empty()).then(|| line.to_owned()),
            Section::Successes => {
                if let Some(name) = header(line) {
                    self.current = (name.to_owned(), false);
                } else if line.starts_with(SKIPPED) && !self.current.1 {
                    return self.skip(line);
                }
                None
            }
            Section::Failures => {
                self.failed(line);
                Some(line.to_owned())
            }
        }
    }

    /// The tests that failed, with what they said.
    pub fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }

    /// Whether a binary has said how its tests went: those with a harness of their own do not.
    pub fn has_results(&self) -> bool {
        self.has_results
    }

    /// The counts, given how the command itself ended.
    ///
    /// A binary that died before its result line, and a command that failed without any failed test (it did
    /// not compile, it took too long), count as one failure.
    pub fn finish(mut self, outcome: Result<(), String>) -> Tally {
        if self.section != Section::Between {
            self.lost_binary();
        }
        if let Err(error) = outcome {
            println!("error: {error}");
            if self.tally.failed == 0 {
                self.tally.failed = 1;
            }
        }
        self.tally
    }

    /// A test says that it was skipped.
    fn skip(&mut self, line: &str) -> Option<String> {
        self.current.1 = true;
        self.skipped += 1;
        let name = if self.section == Section::Successes { self.current.0.as_str() } else { "?" };
        let is_unlisted = self.permitted.as_ref().is_some_and(|tests| !tests.iter().any(|test| test == name));
        let verdict = if self.ci && line.starts_with(NEEDS_ADMIN) {
            " (a failure, because CI is set)"
        } else if is_unlisted && !line.starts_with(NEEDS) {
            " (a failure, because the test is not among those that may be skipped here)"
        } else {
            ""
        };
        let shown = format!("test {name} {line}{verdict}");
        if !verdict.is_empty() {
            self.must_run += 1;
            let mut failure = Failure::new(name);
            failure.push(&format!("{line}{verdict}"));
            self.failures.push(failure);
        }
        Some(shown)
    }

    /// A line about the tests that failed: the output of each under its header, and then a list of their names.
    fn failed(&mut self, line: &str) {
        if let Some(name) = header(line) {
            self.failures.push(Failure::new(name));
            self.in_failure = true;
        } else if line == "failures:" {
            self.in_failure = false;
        } else if let Some(failure) = self.failures.last_mut().filter(|_| self.in_failure) {
            failure.push(line);
        }
    }

    /// The result line of a binary has been read.
    fn end_binary(&mut self, mut result: Tally) {
        let skipped = self.skipped.min(result.passed);
        let must_run = self.must_run.min(skipped);
        result.passed -= skipped;
        result.skipped += skipped - must_run;
        result.failed += must_run;
        self.tally += result;
        self.has_results = true;
        self.reset();
    }

    /// A binary ended without a result line.
    fn lost_binary(&mut self) {
        println!("error: a test binary ended without its result");
        self.tally += Tally::FAILED;
        self.reset();
    }

    /// Ready for the next binary.
    fn reset(&mut self) {
        let (failures, has_results) = (self.take_failures(), self.has_results);
        let permitted = self.permitted.take();
        *self = Self { permitted, tally: self.tally, failures, has_results, ..Self::new(self.ci) };
    }
}

/// Whether this is `running 12 tests`.
fn is_start(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|rest| rest.split_once(" test"));
    count.is_some_and(|(count, rest)| count.parse::<usize>().is_ok() && (rest.is_empty() || rest == "s"))
}

/// The test's name in `---- name stdout ----`.
fn header(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// The counts in `test result: ok. 12 passed; 0 failed; 1 ignored; ...`; an ignored test is a skipped one.
fn parse_result(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    let mut next = |word| counts.next()?.strip_suffix(word)?.parse().ok();
    Some(Tally { passed: next(" passed")?, failed: next(" failed")?, skipped: next(" ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two binaries: one with a skipped test and an ignored one, one with a failure.
    const OUTPUT: &str = "   Compiling tokio-rdma v0.1.0
     Running unittests src/lib.rs

running 4 tests
test a ... ok
test b ... ok
test c ... ok
test d ... ignored

successes:

---- a stdout ----
skipped: needs CAP_NET_ADMIN
skipped: twice in one test
running 7 tests

---- b stdout ----
just some output

successes:
    a
    b
    c

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/x.rs

running 2 tests
test e ... ok
test f ... FAILED

failures:

---- f stdout ----
skipped: not really

failures:
    f

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
error: test failed, to rerun pass `--test x`";

    /// Reads a whole output; returns the counts and what was shown.
    fn read(ci: bool, output: &str, outcome: Result<(), String>) -> (Tally, Vec<String>) {
        let mut report = Report::new(ci);
        let shown = output.lines().filter_map(|line| report.line(line)).collect();
        (report.finish(outcome), shown)
    }

    #[test]
    fn counts_are_summed_over_binaries() {
        let (tally, shown) = read(false, OUTPUT, Err("exit status: 101".into()));
        assert_eq!(tally, Tally { passed: 3, failed: 1, skipped: 2 });
        assert!(shown.contains(&"test a skipped: needs CAP_NET_ADMIN".to_owned()));
        assert!(shown.contains(&"---- f stdout ----".to_owned()));
        assert!(!shown.iter().any(|line| line.contains("just some output")));
    }

    #[test]
    fn failures_are_remembered_with_what_was_said() {
        let mut report = Report::new(true);
        for line in OUTPUT.lines() {
            report.line(line);
        }
        let shown: Vec<_> = report.take_failures().iter().map(Failure::to_string).collect();
        let skipped = "-- a\n    skipped: needs CAP_NET_ADMIN (a failure, because CI is set)";
        assert_eq!(shown, [skipped, "-- f\n    skipped: not really"]);
    }

    #[test]
    fn skip_for_missing_rights_fails_in_ci() {
        let (tally, _) = read(true, OUTPUT, Err("exit status: 101".into()));
        assert_eq!(tally, Tally { passed: 3, failed: 2, skipped: 1 });
    }

    #[test]
    fn a_test_that_may_not_be_skipped_fails() {
        let output = "running 3 tests\nsuccesses:\n---- a stdout ----\nskipped: no windows\n\
                      ---- b stdout ----\nskipped: no windows\n---- c stdout ----\nskipped: needs a device\n\
                      test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured";
        // The list holds for every binary of the command.
        let output = format!("{output}\n{output}");
        let tally = |permitted: Option<&[String]>| {
            let mut report = Report::new(false).permitting(permitted);
            output.lines().for_each(|line| drop(report.line(line)));
            (report.take_failures().len(), report.finish(Ok(())))
        };
        let permitted = ["a".to_owned()];
        assert_eq!(tally(Some(&permitted)), (2, Tally { passed: 0, failed: 2, skipped: 4 }));
        assert_eq!(tally(None), (0, Tally { passed: 0, failed: 0, skipped: 6 }));
    }

    #[test]
    fn a_build_that_fails_is_one_failure() {
        let (tally, shown) = read(false, "error[E0425]: no such thing", Err("exit status: 101".into()));
        assert_eq!(tally, Tally::FAILED);
        assert_eq!(shown, ["error[E0425]: no such thing"]);
    }

    #[test]
    fn a_binary_that_dies_is_one_failure() {
        let died = "running 1 test\nrunning 2 tests\ntest a ... ok\ntest b ... ok\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured";
        assert_eq!(read(false, died, Ok(())).0, Tally { passed: 2, failed: 1, skipped: 0 });
        assert_eq!(read(false, "running 1 test", Err("signal: 6".into())).0, Tally::FAILED);
    }

    #[test]
    fn a_result_line_is_read_exactly() {
        assert_eq!(parse_result("test result: ok. 1 passed; 2 failed"), None);
        assert_eq!(parse_result("test result: maybe"), None);
        assert!(is_start("running 1 test") && is_start("running 0 tests"));
        assert!(!is_start("running some tests") && !is_start("running 3 testsuites"));
    }
}
