//! System calls of one round trip, counted by strace.

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
    name: &'static str,
    make: Make,
    goal: Option<Goal>,
}

const SUBJECTS: &[Subject] = &[
    Subject { name: "raw tokio TCP, multi_thread", make: Make::Own(&["raw"]), goal: None },
    Subject { name: "soft, multi_thread", make: Make::Own(&["soft"]), goal: Some(Goal::AtMost(3.0)) },
    Subject {
        name: "raw tokio TCP, current_thread",
        make: Make::Own(&["raw", "--workers", "0"]),
        goal: None,
    },
    Subject {
        name: "soft, current_thread",
        make: Make::Own(&["soft", "--workers", "0"]),
        goal: Some(Goal::AtMost(4.0)),
    },
    Subject { name: "libfabric tcp", make: Make::Fabric(false), goal: None },
];

/// Two runs of so many round trips each: what they do not have in common is what the round trips cost.
const ROUND_TRIPS: [usize; 2] = [200, 1200];

/// The calls of one contender for a round trip.
pub(crate) struct Calls {
    name: &'static str,
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
        .map(|&Subject { name, make, goal }| {
            let [few, many] = [totals(make, ROUND_TRIPS[0])?, totals(make, ROUND_TRIPS[1])?];
            let trips = (ROUND_TRIPS[1] - ROUND_TRIPS[0]) as f64;
            let each = [0, 1].map(|end| (many[end] - few[end]) / trips);
            Ok(Calls { name, goal, each })
        })
        .collect()
}

/// All calls of both ends in a run of so many round trips.
fn totals(make: Make, round_trips: usize) -> io::Result<[f64; 2]> {
    let file = |active: bool| -> PathBuf {
        std::env::temp_dir().join(format!("suite-strace-{}-{active}", std::process::id()))
    };
    let wrap = |active: bool| -> Vec<OsString> {
        let words = ["strace", "-f", "-c", "-o"].map(OsString::from);
        words.into_iter().chain([file(active).into_os_string()]).collect()
    };
    let mut started = Started::start(make, [Some(0), Some(1)], wrap)?;
    started.run(Order::Ping { size: 64, count: round_trips })?;
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
    /// Whether both ends reach the goal.
    fn verdict(&self) -> Option<&'static str> {
        let most = self.most();
        self.goal.map(|goal| goal.verdict(Quartiles { low: most, median: most, high: most }))
    }

    /// The end that needs more, to one digit: the rest is timers and late wake-ups.
    fn most(&self) -> f64 {
        (self.each[0].max(self.each[1]) * 10.0).round() / 10.0
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
