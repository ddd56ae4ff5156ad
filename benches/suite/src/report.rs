//! The files that are left behind: `benchmarks.md` for people, `benchmarks.json` with every figure, and the charts.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::chart;
use crate::contenders::Make;
use crate::lines::Line;
use crate::machine::{self, Fact};
use crate::memory::Weight;
use crate::race::Outcome;
use crate::scale::Curve;
use crate::statistics::{Goal, Quartiles};
use crate::system_calls::Calls;

/// Everything that was measured.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) facts: Vec<Fact>,
    pub(crate) command: String,
    pub(crate) races: Vec<Outcome>,
    pub(crate) calls: Vec<Calls>,
    pub(crate) curves: Vec<Curve>,
    pub(crate) memory: Vec<Weight>,
    /// The figures that `verbs-bench` gave in the guest machine, as it gave them.
    pub(crate) guest: Option<Value>,
    /// The things that were not there to be measured.
    pub(crate) absent: Vec<String>,
}

/// A row of a table.
fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// The head of a table.
fn head(cells: &[&str]) -> String {
    format!("| {} |\n|{}\n", cells.join(" | "), "---|".repeat(cells.len()))
}

/// A value with its quartiles.
fn spread(value: Quartiles, digits: usize) -> String {
    let Quartiles { low, median, high } = value;
    format!("{median:.digits$} ({low:.digits$} to {high:.digits$})")
}

impl Report {
    /// Writes all files to a folder.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let json = serde_json::to_string_pretty(&self.json())?;
        fs::write(folder.join("benchmarks.json"), json + "\n")?;
        fs::write(folder.join("benchmarks.md"), self.markdown())?;
        chart::ratios(&self.races, &folder.join("benchmarks.svg"))?;
        if !self.curves.is_empty() {
            chart::curves(&self.curves, &folder.join("benchmarks-scale.svg"))?;
        }
        Ok(())
    }

    /// Every figure.
    fn json(&self) -> Value {
        json!({
            "machine": machine::json(&self.facts),
            "command": self.command,
            "races": self.races.iter().map(Outcome::json).collect::<Vec<_>>(),
            "system_calls": self.calls.iter().map(Calls::json).collect::<Vec<_>>(),
            "many_connections": self.curves.iter().map(Curve::json).collect::<Vec<_>>(),
            "memory_of_stream_ends": self.memory.iter().map(Weight::json).collect::<Vec<_>>(),
            "verbs_in_the_guest": self.guest,
            "absent": self.absent,
        })
    }

    fn markdown(&self) -> String {
        let mut text = String::from("# Benchmarks\n\n");
        text += &format!(
            "Written by `{}`; every figure is in [benchmarks.json](benchmarks.json).\n\n",
            self.command
        );
        text += "Contenders take turns in short batches. A ratio is that of two batches in one turn; the values are \
                 medians, with the quartiles in brackets. A verdict says *within the spread* when the goal lies between \
                 the quartiles.\n\n";
        text += &head(&["", ""]);
        for (name, value) in &self.facts {
            text += &row(&[(*name).to_owned(), value.clone()]);
        }
        text += "\n## Goals\n\nRatios are to the first contender of a line: raw tokio TCP, if nothing else is said.\n\n";
        text += &head(&["figure", "goal", "measured", "verdict", "faster than ours"]);
        for cells in self.goals() {
            text += &row(&cells);
        }
        text += "\n![speed beside the first contender](benchmarks.svg)\n";
        for race in &self.races {
            text += &Self::race(race);
        }
        if !self.calls.is_empty() {
            text += "\n## System calls\n\nBy `strace -f -c` around each end, in two runs of \
                     different length. Verdicts are on one digit: the rest is timers and late wake-ups.\n\n";
            text += &head(&["operation and contender", "goal", "active end", "passive end", "verdict"]);
            self.calls.iter().for_each(|calls| text += &row(&calls.row()));
        }
        if !self.curves.is_empty() {
            text += &self.many();
        }
        if !self.memory.is_empty() {
            text += "\n## Memory of the ends of byte streams\n\nBoth ends are in one process, and each figure is half of what a \
                     connection takes (`suite idle --state`). With a reader that waits, its task is in the figure; in use, the \
                     task and its buffer of 1 KiB.\n\n";
            text += &head(&Weight::head());
            self.memory.iter().for_each(|weight| text += &row(&weight.row()));
        }
        if let Some(guest) = &self.guest {
            text += &in_the_guest(guest);
        }
        if !self.absent.is_empty() {
            text += "\n## Not measured\n\n";
            self.absent.iter().for_each(|sentence| text += &format!("- {sentence}\n"));
        }
        text
    }

    /// The rows of the first table.
    fn goals(&self) -> Vec<[String; 5]> {
        let mut rows = Vec::new();
        for race in &self.races {
            for result in race.results.iter().filter(|result| result.contender.is_ours()) {
                let goal = result.contender.goal;
                let measured = race.ratio(result);
                let verdict = goal.zip(measured).map(|(goal, measured)| goal.verdict(measured));
                let failure = result.failure.clone().unwrap_or_default();
                rows.push([
                    format!("{}: {}", race.line.title, result.contender.name),
                    goal.map(Goal::text).unwrap_or_default(),
                    measured.map_or(failure, |measured| spread(measured, 3)),
                    verdict.unwrap_or_default().to_owned(),
                    race.faster_peers(result).join(", "),
                ]);
            }
        }
        for calls in &self.calls {
            let [name, goal, active, passive, verdict] = calls.row();
            if !goal.is_empty() {
                let what = format!("system calls: {name}");
                rows.push([what, goal, format!("{active} and {passive}"), verdict, String::new()]);
            }
        }
        let memory = self.memory.iter().map(Weight::goal);
        for [what, goal, measured, verdict] in self.curves.iter().flat_map(Curve::goals).chain(memory) {
            rows.push([what, goal, measured, verdict, String::new()]);
        }
        rows
    }

    /// One race with all of its contenders.
    fn race(race: &Outcome) -> String {
        let Line { title, unit, cores, order, .. } = race.line;
        let is_one_process =
            race.line.contenders.iter().all(|contender| matches!(contender.make, Make::Both(_)));
        let place =
            if is_one_process { "Cores of the process of both ends" } else { "Cores of the two ends" };
        let mut text = format!("\n## {title}\n\n{place}: {} and {}.\n\n", cores[0], cores[1]);
        let ends: &[&str] = if is_one_process { &["both ends"] } else { &["active end", "passive end"] };
        let ends: Vec<_> = ends.iter().map(|end| format!("{}, {end}", unit.processor_text())).collect();
        let names = ["contender", unit.text(), "ratio"].into_iter();
        let names: Vec<_> = names.chain(ends.iter().map(String::as_str)).chain(["command"]).collect();
        text += &head(&names);
        for result in &race.results {
            let times = result.processor_time().into_iter().take(ends.len());
            let value = Quartiles::of(result.samples.iter().copied());
            let mut cells = vec![
                result.contender.name.to_owned(),
                value.map_or_else(|| "failed".to_owned(), |value| spread(value, 2)),
                race.ratio(result).map(|ratio| spread(ratio, 3)).unwrap_or_default(),
            ];
            cells.extend(times.map(|time| time.map(|time| spread(time, 3)).unwrap_or_default()));
            cells.push(format!("`{}`", result.contender.make.text(result.contender.order(*order))));
            text += &row(&cells);
        }
        text
    }

    /// Many connections.
    fn many(&self) -> String {
        let mut text = String::from(
            "\n## Many connections\n\n![with more and more connections](benchmarks-scale.svg)\n\n",
        );
        text += "One end of each connection is in either process. The round trip is that of a connection beside which \
                 the others are idle, its ratio to the one of a pair of processes without others. The rate is that at \
                 which the connections since the row before were made, 16 at once.\n\n";
        text += &head(&["contender", "open", "64 B round trip, µs", "ratio to one open", "made, 1000/s"]);
        for curve in &self.curves {
            for step in &curve.steps {
                let micros = Quartiles::of(step.round_trips.iter().copied());
                text += &row(&[
                    curve.name.to_owned(),
                    step.open.to_string(),
                    micros.map(|micros| spread(micros, 1)).unwrap_or_default(),
                    step.ratio().map(|ratio| spread(ratio, 3)).unwrap_or_default(),
                    if step.rate > 0.0 { format!("{:.1}", step.rate) } else { String::new() },
                ]);
            }
        }
        text += "\nMemory of one idle connection, both ends in one process (`suite idle`):\n\n";
        text += &head(&["contender", "KiB"]);
        for curve in &self.curves {
            text += &row(&[
                curve.name.to_owned(),
                curve.memory.map(|memory| spread(memory, 1)).unwrap_or_default(),
            ]);
        }
        text
    }
}

/// The races of `verbs-bench`.
fn in_the_guest(guest: &Value) -> String {
    let mut text = String::from(
        "\n## The verbs provider over rxe, in the guest machine\n\nBy `cargo xtask guest-bench` (`benches/verbs`); \
         ratios to the first contender.\n",
    );
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    for (title, race) in guest.as_object().into_iter().flatten() {
        let unit = race["unit"].as_str().unwrap_or_default();
        text += &format!("\n### {title}\n\n");
        text += &head(&["contender", unit, "ratio"]);
        for (name, figure) in race["figures"].as_object().into_iter().flatten() {
            let quartiles = &figure["ratio_quartiles"];
            let [low, median, high] = [0, 1, 2].map(|place| number(&quartiles[place]));
            let ratio = spread(Quartiles { low, median, high }, 3);
            text += &row(&[name.trim().to_owned(), format!("{:.1}", number(&figure["median"])), ratio]);
        }
    }
    text
}
