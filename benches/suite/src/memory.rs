//! The memory of the ends of byte streams: idle, idle after traffic, and in use.

use std::ffi::OsString;
use std::io;

use serde_json::{Value, json};

use crate::children::output;
use crate::statistics::{Goal, Quartiles};

/// The carriers: ours, and what is weighed beside it, by their words for the command `idle`.
const CARRIERS: [(&str, &str); 2] = [("byte stream over soft", "stream"), ("raw tokio TCP", "raw")];
/// Runs of each: memory hardly moves.
const RUNS: usize = 3;

/// One state in which ends are weighed.
struct Subject {
    /// As the report names it.
    name: &'static str,
    /// The word for the command `idle`.
    state: &'static str,
    /// The goal for an end of ours, in KiB.
    goal: f64,
}

const SUBJECTS: &[Subject] = &[
    Subject { name: "idle, nothing was sent", state: "new", goal: 6.0 },
    Subject { name: "idle, nothing was sent, a reader waits", state: "new-waiting", goal: 6.0 },
    Subject { name: "idle after 1 MiB of echoes", state: "echoed", goal: 8.0 },
    Subject { name: "idle after 1 MiB of echoes, a reader waits", state: "echoed-waiting", goal: 8.0 },
    Subject { name: "in use by messages of 1 KiB", state: "in-use", goal: 24.0 },
];

/// How much is weighed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) connections: usize,
    pub(crate) runs: usize,
}

impl Amount {
    /// That of a run, or of a first look.
    pub(crate) fn of(is_short: bool) -> Self {
        let (connections, runs) = if is_short { (100, 1) } else { (300, RUNS) };
        Self { connections, runs }
    }
}

/// The memory of an end in one state, in KiB.
pub(crate) struct Weight {
    /// The state.
    name: &'static str,
    goal: Goal,
    /// Those of [`CARRIERS`], and why there are none.
    ends: [Result<Quartiles, String>; 2],
}

/// Weighs the ends in every state.
pub(crate) fn weigh(amount: Amount) -> Vec<Weight> {
    SUBJECTS
        .iter()
        .map(|&Subject { name, state, goal }| {
            let ends = CARRIERS
                .map(|(_, carrier)| weigh_one(carrier, state, amount).map_err(|error| error.to_string()));
            Weight { name, goal: Goal::AtMost(goal), ends }
        })
        .collect()
}

/// Weighs an end, in processes that have both ends of each connection.
fn weigh_one(carrier: &str, state: &str, Amount { connections, runs }: Amount) -> io::Result<Quartiles> {
    let count = connections.to_string();
    let words = ["idle", carrier, "--state", state, "--count", &count].map(OsString::from);
    let words = [vec![std::env::current_exe()?.into_os_string()], words.to_vec()].concat();
    let connection = || output(&words, None)?.trim().parse::<f64>().map_err(io::Error::other);
    let weights: Vec<f64> = (0..runs).map(|_| connection()).collect::<io::Result<_>>()?;
    Quartiles::of(weights.into_iter().map(|bytes| bytes / 2.0 / 1024.0))
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Weight {
    /// The row of the goals: what, goal, measured, verdict.
    pub(crate) fn goal(&self) -> [String; 4] {
        let verdict = self.ends[0].as_ref().map_or("", |&memory| self.goal.verdict(memory));
        let what = format!("memory of an end of a byte stream, KiB: {}", self.name);
        [what, self.goal.text(), text(&self.ends[0]), verdict.to_owned()]
    }

    /// The head of the table.
    pub(crate) fn head() -> [&'static str; 3] {
        let [ours, other] = CARRIERS.map(|(name, _)| name);
        ["end, KiB", ours, other]
    }

    /// A row of that table.
    pub(crate) fn row(&self) -> [String; 3] {
        let [ours, other] = &self.ends;
        [self.name.to_owned(), text(ours), text(other)]
    }

    /// Why an end could not be weighed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.ends.iter().find_map(|end| end.as_ref().err()).map(String::as_str)
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let [_, goal, _, verdict] = self.goal();
        let [ours, other] = self.ends.each_ref().map(|end| end.as_ref().ok().map(|memory| memory.json()));
        let [(our_name, _), (other_name, _)] = CARRIERS;
        json!({
            "name": self.name,
            "goal": goal,
            "verdict": verdict,
            "kib": { our_name: ours, other_name: other },
            "failure": self.failure(),
        })
    }
}

/// For people.
fn text(end: &Result<Quartiles, String>) -> String {
    match end {
        Ok(Quartiles { low, median, high }) => format!("{median:.2} ({low:.2} to {high:.2})"),
        Err(failure) => format!("failed: {failure}"),
    }
}
