//! Measures the soft provider beside raw TCP, libfabric, UCX and quinn: `cargo xtask bench`.

mod chart;
mod children;
mod contenders;
mod ends;
mod lines;
mod machine;
mod memory;
mod network;
mod order;
mod race;
mod report;
mod scale;
mod statistics;
mod system_calls;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::lines::LINES;
use crate::memory::Amount;
use crate::race::Plan;
use crate::report::Report;

/// Measures the soft provider, and others beside it.
#[derive(Parser)]
enum Role {
    /// All lines, one after the other; a table on standard output.
    Run(Run),
    /// A few operations of each of this crate's own lines: whether they work, not how fast.
    Smoke,
    /// One end of a contender, which waits for orders.
    End(ends::End),
    /// Both ends of a contender in one process, which waits for orders.
    Both(ends::both::Both),
    /// The memory of a connection that is idle or in use.
    Idle(ends::idle::Idle),
    /// The waits of another task while many peers flood the runtime.
    Flood(ends::flood::Flood),
}

/// How the lines are run.
#[derive(clap::Args)]
struct Run {
    /// Only lines whose word contains this one; `calls`, `scale` and `memory` are such words, too.
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Turns of each line.
    #[arg(long, default_value_t = 25)]
    batches: usize,
    /// Fewer and shorter batches: two minutes.
    #[arg(long)]
    quick: bool,
    /// The folder that the report goes to; without it there is none.
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
    /// The file with what `verbs-bench compare --json` said in the guest machine, to be part of the report.
    #[arg(long, value_name = "FILE")]
    guest: Option<PathBuf>,
    /// The command that a person has typed, for the report.
    #[arg(long, default_value = "suite run")]
    command: String,
    /// A sentence on something that is not installed, for the report.
    #[arg(long, value_name = "SENTENCE")]
    absent: Vec<String>,
}

fn main() -> io::Result<ExitCode> {
    match Role::parse() {
        Role::Run(run) => run.run().map(|()| ExitCode::SUCCESS),
        Role::Smoke => smoke(),
        Role::End(end) => end.run().map(|()| ExitCode::SUCCESS),
        Role::Both(both) => both.run().map(|()| ExitCode::SUCCESS),
        Role::Idle(idle) => idle.run().map(|()| ExitCode::SUCCESS),
        Role::Flood(flood) => scale::raise_limit().and_then(|()| flood.run()).map(|()| ExitCode::SUCCESS),
    }
}

impl Run {
    fn run(self) -> io::Result<()> {
        // First: it needs a process of one thread.
        let network = network::isolate();
        scale::raise_limit()?;
        let facts = machine::facts(&network);
        facts.iter().for_each(|(name, value)| println!("{name}: {value}"));
        self.absent.iter().for_each(|sentence| println!("{sentence}"));
        println!();
        let plan = Plan {
            batches: if self.quick { self.batches.min(7) } else { self.batches },
            warm_up: 4,
            short: self.quick,
        };
        let wanted = |id: &str| self.only.as_ref().is_none_or(|word| id.contains(word.as_str()));
        let mut report = Report { facts, command: self.command, absent: self.absent, ..Report::default() };
        for line in LINES.iter().filter(|line| wanted(line.id)) {
            let outcome = race::run(line, plan);
            println!("{}", outcome.text());
            report.races.push(outcome);
        }
        if wanted("calls") {
            report.calls = system_calls::count()?;
            report.calls.iter().for_each(|calls| println!("system calls: {}", calls.row().join("  ")));
            println!();
        }
        if wanted("scale") {
            report.curves = scale::run(plan);
            report.curves.iter().for_each(|curve| println!("{}", curve.text()));
        }
        if wanted("memory") {
            report.memory = memory::weigh(Amount::of(self.quick));
            println!("memory, KiB: {}", memory::Weight::head().join("  "));
            report.memory.iter().for_each(|weight| println!("  {}", weight.row().join("  ")));
            println!();
        }
        if let Some(file) = self.guest {
            report.guest = Some(serde_json::from_str(&fs::read_to_string(file)?)?);
        }
        match self.write {
            Some(folder) => report.write(&folder),
            None => Ok(()),
        }
    }
}

/// Runs every line of ours once, as short as it can be, with everything that the report is made of.
///
/// # Errors
/// Those of an end, or of the report.
fn smoke() -> io::Result<ExitCode> {
    scale::raise_limit()?;
    let plan = Plan { batches: 1, warm_up: 0, short: true };
    let mut report = Report::default();
    let mut failures = 0;
    for line in LINES {
        let outcome = race::run_own(line, plan);
        for failed in outcome.results.iter().filter(|result| result.samples.is_empty()) {
            println!("{}: {} failed: {:?}", line.id, failed.contender.name, failed.failure);
            failures += 1;
        }
        println!("{}: ran", line.id);
        report.races.push(outcome);
    }
    report.memory = memory::weigh(Amount { connections: 10, runs: 1 });
    for failure in report.memory.iter().filter_map(memory::Weight::failure) {
        println!("memory: failed: {failure}");
        failures += 1;
    }
    println!("memory: ran");
    let folder = std::env::temp_dir().join(format!("suite-smoke-{}", std::process::id()));
    report.write(&folder)?;
    fs::remove_dir_all(folder)?;
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
