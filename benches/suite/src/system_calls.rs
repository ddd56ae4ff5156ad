//! System calls of a round trip and of a connection, counted by strace.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::contenders::{Make, Started, on_path};
use crate::order::Order;
use crate::statistics::{Goal, Quartiles};

/// One contender whose calls are counted.
struct Subject {
    /// The operation, and the contender.
    name: &'static str,
    make: Make,
    /// Two runs: what they do not have in common is what the operations cost.
    orders: [Order; 2],
    goal: Option<Goal>,
}

impl Subject {
    const fn round_trip(name: &'static str, make: Make) -> Self {
        let orders = [Order::Ping { size: 64, count: 200 }, Order::Ping { size: 64, count: 1200 }];
        Self { name, make, orders, goal: None }
    }

    const fn cycle(name: &'static str, make: Make) -> Self {
        let orders = [Order::Cycle { at_once: 1, count: 64 }, Order::Cycle { at_once: 1, count: 320 }];
        Self { name, make, orders, goal: None }
    }

    const fn goal(self, most: f64) -> Self {
        Self { goal: Some(Goal::AtMost(most)), ..self }
    }
}

/// The ends are two processes, so each of them waits in places where two ends of one runtime do not: a connection takes two calls of
/// `epoll_wait` more than in `benches/instructions`.
const SUBJECTS: &[Subject] = &[
    Subject::round_trip("64 B round trip: raw tokio TCP, multi_thread", Make::Own(&["raw"])),
    Subject::round_trip("64 B round trip: soft, multi_thread", Make::Own(&["soft"])).goal(3.0),
    Subject::round_trip(
        "64 B round trip: raw tokio TCP, current_thread",
        Make::Own(&["raw", "--workers", "0"]),
    ),
    Subject::round_trip("64 B round trip: soft, current_thread", Make::Own(&["soft", "--workers", "0"]))
        .goal(4.0),
    Subject::round_trip("64 B round trip: libfabric tcp", Make::Fabric(false)),
    Subject::cycle("connection: raw tokio TCP, orderly end", Make::Own(&["raw", "--orderly"])),
    Subject::cycle("connection: soft (goal for both ends)", Make::Own(&["soft"])).goal(32.0),
];

/// The calls of one contender for an operation.
pub(crate) struct Calls {
    name: &'static str,
    /// Whether the goal is for both ends together, and not for each.
    is_for_both: bool,
    goal: Option<Goal>,
    /// Of the active and the passive end.
    each: [f64; 2],
}

/// Counts, where strace is installed and may be used.
///
/// # Errors
/// A program that does not run, or not under strace.
pub(crate) fn count() -> io::Result<Vec<Calls>> {
    if !on_path("strace") {
        return Ok(Vec::new());
    }
    let present = SUBJECTS.iter().filter(|subject| subject.make.is_present());
    present
        .map(|&Subject { name, make, orders: [less, more], goal }| {
            let (few, many) = (totals(make, less)?, totals(make, more)?);
            let operations = (more.operations() - less.operations()) as f64;
            let each = [0, 1].map(|end| (many[end] - few[end]) / operations);
            Ok(Calls { name, is_for_both: matches!(more, Order::Cycle { .. }), goal, each })
        })
        .collect()
}

/// All calls of each end in a run.
fn totals(make: Make, order: Order) -> io::Result<[f64; 2]> {
    let file = |active: bool| -> PathBuf {
        std::env::temp_dir().join(format!("suite-strace-{}-{active}", std::process::id()))
    };
    let wrap = |active: bool| -> Vec<OsString> {
        let words = ["strace", "-f", "-c", "-o"].map(OsString::from);
        words.into_iter().chain([file(active).into_os_string()]).collect()
    };
    let mut started = Started::start(make, [Some(0), Some(1)], wrap)?;
    started.run(order)?;
    started.finish()?;
    let totals = [total(&file(true)), total(&file(false))];
    let _ = [fs::remove_file(file(true)), fs::remove_file(file(false))];
    let [active, passive] = totals;
    Ok([active?, passive?])
}

/// The sum in a table of strace.
fn total(file: &Path) -> io::Result<f64> {
    let table = fs::read_to_string(file)?;
    sum(&table).ok_or_else(|| io::Error::other(format!("strace said: {table}")))
}

/// The number of calls in the last line: `100.00 0.123 1 4567 89 total`.
fn sum(table: &str) -> Option<f64> {
    let last = table.lines().rev().find(|line| line.trim_end().ends_with(" total"))?;
    last.split_whitespace().nth(3)?.parse().ok()
}

impl Calls {
    /// Whether the goal is reached.
    fn verdict(&self) -> Option<&'static str> {
        let judged = self.judged();
        self.goal.map(|goal| goal.verdict(Quartiles { low: judged, median: judged, high: judged }))
    }

    /// The calls of the end that needs more, or of both, to one digit: the rest is timers and late wake-ups.
    fn judged(&self) -> f64 {
        let [active, passive] = self.each;
        let judged = if self.is_for_both { active + passive } else { active.max(passive) };
        (judged * 10.0).round() / 10.0
    }

    /// A row of the report.
    pub(crate) fn row(&self) -> [String; 5] {
        let [active, passive] = self.each;
        [
            self.name.to_owned(),
            self.goal.map(Goal::text).unwrap_or_default(),
            format!("{active:.2}"),
            format!("{passive:.2}"),
            self.verdict().unwrap_or_default().to_owned(),
        ]
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "goal": self.goal.map(Goal::text),
            "active": self.each[0],
            "passive": self.each[1],
            "verdict": self.verdict(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_the_fourth_column() {
        let table = "% time seconds usecs/call calls errors syscall\n 90.00 0.1 1 400 writev\n------\n\
                     100.00    0.123456           1      4567        89 total\n";
        assert_eq!(sum(table), Some(4567.0));
        assert_eq!(sum("100.00 0.1 1 4567 total\n"), Some(4567.0), "without errors that column is empty");
        assert_eq!(sum("strace: attach: not permitted\n"), None);
    }
}
