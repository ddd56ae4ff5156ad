//! Many connections: the memory of one that is idle, what one more round trip costs beside them, and how fast more of
//! them are made.

use std::fs;
use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::children::output;
use crate::contenders::{Make, Started};
use crate::order::Order;
use crate::race::Plan;
use crate::statistics::{Goal, Quartiles, ratios};

/// How many descriptors a process may have open: both ends of the largest number of connections, and then some.
const DESCRIPTORS: u64 = 24_000;
/// Numbers of idle connections.
const STEPS: &[usize] = &[1, 100, 1000, 2500, 5000, 10_000];
const QUICK_STEPS: &[usize] = &[1, 100, 1000];
/// One round trip of these, in each batch.
const PING: Order = Order::Ping { size: 64, count: 200 };
/// The goal of the last step: its round trips are compared with those of a pair without neighbours.
const NEIGHBOURS: Goal = Goal::AtMost(1.2);

/// One whose connections are weighed, and perhaps counted.
struct Contender {
    name: &'static str,
    /// How it runs with many connections.
    make: Option<Make>,
    /// Its word for the command `idle`.
    carrier: &'static str,
    /// The goal for an idle connection, both ends, in KiB. TCP has none.
    memory: Option<Goal>,
}

const CONTENDERS: [Contender; 4] = [
    Contender {
        name: "soft",
        make: Some(Make::Own(&["soft"])),
        carrier: "soft",
        memory: Some(Goal::AtMost(6.0)),
    },
    Contender { name: "raw tokio TCP", make: Some(Make::Own(&["raw"])), carrier: "raw", memory: None },
    Contender {
        name: "channel of tonic in messages over soft",
        make: None,
        carrier: "grpc-messages",
        memory: Some(Goal::AtMost(24.0)),
    },
    Contender { name: "channel of tonic over TCP", make: None, carrier: "grpc-tcp", memory: None },
];

/// Raises the limit of this process and of all that it starts.
///
/// # Errors
/// When the system does not allow so many.
pub(crate) fn raise_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Only root may raise the hard limit.
    let most = hard.max(DESCRIPTORS);
    if setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

/// One number of idle connections.
pub(crate) struct Step {
    pub(crate) open: usize,
    /// Round trips in microseconds, batch by batch.
    pub(crate) round_trips: Vec<f64>,
    /// The same beside no other connection, in the same batches.
    alone: Vec<f64>,
    /// New connections a second, in thousands, since the step before.
    pub(crate) rate: f64,
}

impl Step {
    /// The cost of the neighbours.
    pub(crate) fn ratio(&self) -> Option<Quartiles> {
        Quartiles::of(ratios(&self.round_trips, &self.alone))
    }
}

/// One contender with more and more connections.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
    /// The memory of one idle connection, both ends in one process, in KiB.
    pub(crate) memory: Option<Quartiles>,
    pub(crate) failure: Option<String>,
    /// The goal of the memory, if it is this crate.
    goal: Option<Goal>,
}

/// Measures everything that has to do with numbers.
pub(crate) fn run(plan: Plan) -> Vec<Curve> {
    let steps = if plan.short { QUICK_STEPS } else { STEPS };
    CONTENDERS
        .iter()
        .map(|contender| {
            let Contender { name, make, carrier, memory: goal } = *contender;
            let mut curve = Curve { name, steps: Vec::new(), memory: None, failure: None, goal };
            let grown = make.map_or(Ok(()), |make| curve.grow(make, plan, steps));
            let outcome = grown.and_then(|()| curve.weigh(carrier, plan));
            curve.failure = outcome.err().map(|error| error.to_string());
            curve
        })
        .collect()
}

impl Curve {
    /// Opens more and more connections, and measures beside them.
    fn grow(&mut self, make: Make, plan: Plan, steps: &[usize]) -> io::Result<()> {
        let start = || Started::start(make, [Some(0), Some(1)], |_| Vec::new());
        let (mut alone, mut crowded) = (start()?, start()?);
        let mut before = 0;
        for &open in steps {
            let took = crowded.run(Order::Grow { total: open - 1 })?;
            let rate = (open - 1 - before) as f64 / took * 1e6;
            let mut step = Step { open, round_trips: Vec::new(), alone: Vec::new(), rate };
            for batch in 0..=plan.batches {
                let pair = [alone.run(PING)? / 1e3, crowded.run(PING)? / 1e3];
                // The first batch only warms up.
                if batch > 0 {
                    step.alone.push(pair[0]);
                    step.round_trips.push(pair[1]);
                }
            }
            before = open - 1;
            self.steps.push(step);
        }
        Ok(())
    }

    /// Weighs idle connections in a process that has both ends of each.
    fn weigh(&mut self, carrier: &str, plan: Plan) -> io::Result<()> {
        let count = if plan.short { "500" } else { "2000" };
        let program = std::env::current_exe()?.into_os_string();
        let words = [program, "idle".into(), carrier.into(), "--count".into(), count.into()];
        let weights: io::Result<Vec<f64>> = (0..plan.batches.min(5))
            .map(|_| output(&words, None)?.trim().parse::<f64>().map_err(io::Error::other))
            .collect();
        self.memory = Quartiles::of(weights?.into_iter().map(|bytes| bytes / 1024.0));
        Ok(())
    }

    /// The rows of the goals: what, goal, measured, verdict.
    pub(crate) fn goals(&self) -> Vec<[String; 4]> {
        let Some(goal) = self.goal else { return Vec::new() };
        let row = |what: String, goal: Goal, measured: Quartiles| {
            let Quartiles { low, median, high } = measured;
            let value = format!("{median:.2} ({low:.2} to {high:.2})");
            [what, goal.text(), value, goal.verdict(measured).to_owned()]
        };
        let memory = self.memory.map(|memory| {
            row(format!("{}: memory of an idle connection, both ends, KiB", self.name), goal, memory)
        });
        let last = self.steps.last().and_then(|step| Some((step.open, step.ratio()?)));
        let last = last.map(|(open, ratio)| {
            row(format!("round trip with {open} connections open, to that with 1"), NEIGHBOURS, ratio)
        });
        memory.into_iter().chain(last).collect()
    }

    /// For the person who waits.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("many connections: {}\n", self.name);
        for step in &self.steps {
            let Some(ratio) = step.ratio() else { continue };
            text += &format!(
                "  {:>6} open: round trip {:.3} ({:.3} to {:.3}) x that with one, {:.1} thousand/s made\n",
                step.open, ratio.median, ratio.low, ratio.high, step.rate
            );
        }
        if let Some(memory) = self.memory {
            text += &format!("  {:.1} KiB for an idle connection, both ends\n", memory.median);
        }
        if let Some(failure) = &self.failure {
            text += &format!("  failed: {failure}\n");
        }
        text
    }

    /// Every figure.
    pub(crate) fn json(&self) -> Value {
        let steps: Vec<Value> = self
            .steps
            .iter()
            .map(|step| {
                json!({
                    "open": step.open,
                    "round_trip_us": Quartiles::of(step.round_trips.iter().copied()).map(|value| value.json()),
                    "ratio_to_one": step.ratio().map(|ratio| ratio.json()),
                    "thousand_connections_per_s": step.rate,
                })
            })
            .collect();
        json!({
            "name": self.name,
            "steps": steps,
            "memory_kib": self.memory.map(|memory| memory.json()),
            "failure": self.failure,
        })
    }
}

/// The memory that this process has in use, in bytes.
pub(crate) fn resident() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
