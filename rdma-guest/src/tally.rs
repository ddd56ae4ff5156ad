//! Counts of tests and checks.

use std::fmt;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};

/// The sentences of the checks of this process that failed.
static FAILED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// How many tests and checks passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Did what they should.
    pub passed: usize,
    /// Did not.
    pub failed: usize,
    /// Could not run here.
    pub skipped: usize,
}

impl Tally {
    /// One check that passed.
    pub const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    /// One check that failed.
    pub const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    /// One check that could not run here.
    pub const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    /// One check, from its result; prints the sentence of a failure, and keeps it for the end of the run.
    pub fn check(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Self::PASSED,
            Err(sentence) => {
                println!("error: {sentence}");
                FAILED.lock().unwrap_or_else(PoisonError::into_inner).push(sentence);
                Self::FAILED
            }
        }
    }

    /// Takes the sentences of the checks that failed so far.
    pub fn take_failed() -> Vec<String> {
        std::mem::take(&mut *FAILED.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The closing line of `cargo xtask test`.
impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(out, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_plain() {
        let mut sum = Tally { passed: 12, failed: 0, skipped: 0 };
        assert_eq!(sum.to_string(), "12 passed, 0 failed");
        sum += Tally::SKIPPED;
        sum += Tally::FAILED;
        sum += Tally::PASSED;
        assert_eq!(sum.to_string(), "13 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn the_sentences_of_failed_checks_are_kept() {
        assert_eq!(Tally::check(Ok(())), Tally::PASSED);
        assert_eq!(Tally::check(Err("the sky is green".to_owned())), Tally::FAILED);
        // Other tests of this process may have failed checks, too.
        let has_it = || Tally::take_failed().iter().any(|sentence| sentence == "the sky is green");
        assert!(has_it() && !has_it());
    }
}
