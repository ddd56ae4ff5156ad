//! The part of a failed test's output that the end of the run shows: enough to understand it, and never a flood.

use std::collections::VecDeque;
use std::fmt;

/// How many lines are kept from the beginning of the output: where the first panic says what was wrong.
const FIRST: usize = 20;
/// How many are kept from its end: where a property test shows its smallest case.
const LAST: usize = 40;
/// How many characters are kept of a line.
const WIDTH: usize = 200;

/// A test that failed, and the beginning and the end of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name.
    name: String,
    /// The first lines.
    first: Vec<String>,
    /// How many came between them and the last ones.
    left_out: usize,
    /// The last lines so far.
    last: VecDeque<String>,
}

impl Failure {
    /// The test with this name; nothing is known of its output yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), first: Vec::new(), left_out: 0, last: VecDeque::new() }
    }

    /// The same, named with the place where it ran.
    pub fn at(mut self, place: &str) -> Self {
        self.name = format!("{place}: {}", self.name);
        self
    }

    /// One more line of its output. Empty ones say nothing.
    pub fn push(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        if self.first.len() < FIRST {
            return self.first.push(shortened(line));
        }
        if self.last.len() == LAST {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(shortened(line));
    }
}

/// Indented, so that no line of it can be taken for one of ours.
impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "-- {}", self.name)?;
        for line in &self.first {
            write!(out, "\n    {line}")?;
        }
        if self.left_out > 0 {
            write!(out, "\n    ... {} lines are left out, all of them stand above ...", self.left_out)?;
        }
        for line in &self.last {
            write!(out, "\n    {line}")?;
        }
        Ok(())
    }
}

/// The line, or its beginning.
fn shortened(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}...", &line[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure with this many numbered lines.
    fn failure(lines: usize) -> Failure {
        let mut failure = Failure::new("a::test");
        failure.push("");
        for line in 0..lines {
            failure.push(&format!("line {line}"));
        }
        failure
    }

    #[test]
    fn a_short_output_is_shown_whole() {
        assert_eq!(failure(0).to_string(), "-- a::test");
        let shown = failure(FIRST + LAST).to_string();
        let expected: Vec<_> = (0..FIRST + LAST).map(|line| format!("    line {line}")).collect();
        assert_eq!(shown, format!("-- a::test\n{}", expected.join("\n")));
    }

    #[test]
    fn long_output_keeps_beginning_and_end() {
        let shown = failure(1_000_000).to_string();
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 1 + FIRST + 1 + LAST);
        assert_eq!((lines[1], lines[FIRST]), ("    line 0", "    line 19"));
        assert!(lines[FIRST + 1].contains("999940 lines"), "{}", lines[FIRST + 1]);
        assert_eq!((lines[FIRST + 2], lines[FIRST + 1 + LAST]), ("    line 999960", "    line 999999"));
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        assert_eq!(shortened(&"ä".repeat(WIDTH)), "ä".repeat(WIDTH));
        assert_eq!(shortened(&"ä".repeat(WIDTH + 1)), format!("{}...", "ä".repeat(WIDTH)));
    }
}
