//! One line: contenders take turns in short batches, so that all of them see the same machine.

use std::io;

use serde_json::{Value, json};

use crate::children::Core;
use crate::contenders::{Make, Started};
use crate::lines::{Contender, Line};
use crate::order::Order;
use crate::statistics::{Quartiles, ratios};

/// The results of one contender.
pub(crate) struct Result {
    pub(crate) contender: Contender,
    /// One a batch, in the unit of the line.
    pub(crate) samples: Vec<f64>,
    /// The processor time of the active and the passive end, one a batch; empty if it is not known.
    pub(crate) processor_times: [Vec<f64>; 2],
    /// Why there are none.
    pub(crate) failure: Option<String>,
}

/// A race that has been run.
pub(crate) struct Outcome {
    pub(crate) line: &'static Line,
    /// Those of the contenders that are installed, in the order of the line.
    pub(crate) results: Vec<Result>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) batches: usize,
    /// Turns before those that count: the kernel lets the buffers of a connection grow with what is read from it, for some
    /// hundred megabytes.
    pub(crate) warm_up: usize,
    /// Whether batches are shorter, too.
    pub(crate) short: bool,
}

/// A contender between its batches.
struct Runner {
    result: Result,
    started: Option<Started>,
}

/// Runs one race with all that is installed.
pub(crate) fn run(line: &'static Line, plan: Plan) -> Outcome {
    take_turns(line, plan, line.cores.map(Some), |contender| contender.make.is_present())
}

/// Runs it with what every machine has, on whatever cores.
pub(crate) fn run_own(line: &'static Line, plan: Plan) -> Outcome {
    let own = |contender: &Contender| match contender.make {
        Make::Own(words) => words.first() != Some(&"quinn"),
        Make::Both(_) => true,
        Make::Fabric(_) | Make::Ucx(_) => false,
    };
    take_turns(line, plan, [None, None], own)
}

/// The turns. A contender that fails is left out, and says why.
fn take_turns(
    line: &'static Line,
    plan: Plan,
    cores: [Core; 2],
    takes_part: impl Fn(&Contender) -> bool,
) -> Outcome {
    let mut runners = Vec::new();
    for &contender in line.contenders.iter().filter(|contender| takes_part(contender)) {
        let started = Started::start(contender.make, cores, |_| Vec::new());
        let failure = started.as_ref().err().map(io::Error::to_string);
        let result = Result { contender, samples: Vec::new(), processor_times: Default::default(), failure };
        runners.push(Runner { result, started: started.ok() });
    }
    for turn in 0..plan.warm_up + plan.batches {
        for runner in &mut runners {
            let order = runner.result.contender.order(line.order);
            let order = if plan.short { order.shorter() } else { order };
            let Some(started) = &mut runner.started else { continue };
            match measure(started, order) {
                Ok(_) if turn < plan.warm_up => {}
                Ok((nanoseconds, processor_times)) => {
                    runner.result.samples.push(line.unit.of(order, nanoseconds));
                    for (all, time) in runner.result.processor_times.iter_mut().zip(processor_times) {
                        all.extend(time.map(|time| line.unit.processor_time(order, time)));
                    }
                }
                Err(error) => {
                    runner.result.failure = Some(error.to_string());
                    runner.result.samples.clear();
                    runner.result.processor_times = Default::default();
                    runner.started = None;
                }
            }
        }
    }
    Outcome { line, results: runners.into_iter().map(|runner| runner.result).collect() }
}

/// Runs an order. Returns the nanoseconds that it took, and the processor time of each end, if it is known.
fn measure(started: &mut Started, order: Order) -> io::Result<(f64, [Option<f64>; 2])> {
    let before = started.processor_time()?;
    let took = started.run(order)?;
    let after = started.processor_time()?;
    Ok((took, [0, 1].map(|end| before[end].zip(after[end]).map(|(before, after)| after - before))))
}

impl Result {
    /// The quartiles of the processor time of each end; those of the active one are of both if they are one process.
    pub(crate) fn processor_time(&self) -> [Option<Quartiles>; 2] {
        self.processor_times.each_ref().map(|times| Quartiles::of(times.iter().copied()))
    }
}

impl Outcome {
    /// The contender that the others are measured against, if it is installed: the first one of the line.
    pub(crate) fn reference(&self) -> Option<&Result> {
        self.results.iter().find(|result| self.is_reference(result))
    }

    fn is_reference(&self, result: &Result) -> bool {
        self.line.contenders.first().is_some_and(|first| first.name == result.contender.name)
    }

    /// The ratio of a contender to that one, batch by batch.
    pub(crate) fn ratio(&self, result: &Result) -> Option<Quartiles> {
        Quartiles::of(ratios(&result.samples, &self.reference()?.samples))
    }

    /// The ratio of ours to another contender, batch by batch.
    fn against(&self, ours: &Result, other: &Result) -> Option<Quartiles> {
        Quartiles::of(ratios(&ours.samples, &other.samples))
    }

    /// Which of the others, raw TCP apart, are not slower than ours.
    pub(crate) fn faster_peers(&self, ours: &Result) -> Vec<&'static str> {
        let is_other = |result: &&Result| !self.is_reference(result) && !result.contender.is_ours();
        let ahead = |other: &&Result| {
            let is_raw = other.contender.name.starts_with("raw");
            let ratio = self.against(ours, other).map_or(f64::NAN, |ratio| ratio.median);
            !is_raw && !ratio.is_nan() && !self.line.unit.is_better(ratio, 1.0)
        };
        self.results.iter().filter(is_other).filter(ahead).map(|other| other.contender.name).collect()
    }

    /// For the person who waits.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} ({})\n", self.line.title, self.line.id);
        for result in &self.results {
            let name = result.contender.name;
            let Some(value) = Quartiles::of(result.samples.iter().copied()) else {
                let failure = result.failure.as_deref().unwrap_or("no samples");
                text += &format!("  {name:<30} failed: {failure}\n");
                continue;
            };
            text += &format!("  {name:<30} {:>9.2} {:<6}", value.median, self.line.unit.text());
            if let Some(ratio) = self.ratio(result) {
                text += &format!(" ratio {:.3} ({:.3} to {:.3})", ratio.median, ratio.low, ratio.high);
                if let Some(goal) = result.contender.goal {
                    text += &format!("  {}: {}", goal.text(), goal.verdict(ratio));
                }
            }
            let unit = self.line.unit.processor_text();
            match result.processor_time() {
                [Some(active), Some(passive)] => {
                    text += &format!("  {unit} {:.3} and {:.3}", active.median, passive.median);
                }
                [Some(both), None] => text += &format!("  {unit} {:.3}", both.median),
                [None, _] => {}
            }
            text.push('\n');
        }
        text
    }

    /// Every figure.
    pub(crate) fn json(&self) -> Value {
        let results: Vec<Value> = self
            .results
            .iter()
            .map(|result| {
                let order = result.contender.order(self.line.order);
                let ratio = self.ratio(result);
                let verdict = result.contender.goal.zip(ratio).map(|(goal, ratio)| goal.verdict(ratio));
                json!({
                    "name": result.contender.name,
                    "command": result.contender.make.text(order),
                    "value": Quartiles::of(result.samples.iter().copied()).map(|value| value.json()),
                    "ratio": ratio.map(|ratio| ratio.json()),
                    "goal": result.contender.goal.map(|goal| goal.text()),
                    "verdict": verdict,
                    "processor_time_unit": self.line.unit.processor_text(),
                    "processor_time": result.processor_time().map(|time| time.map(Quartiles::json)),
                    "samples": result.samples,
                    "failure": result.failure,
                })
            })
            .collect();
        json!({
            "id": self.line.id,
            "title": self.line.title,
            "unit": self.line.unit.text(),
            "cores": self.line.cores,
            "contenders": results,
        })
    }
}
