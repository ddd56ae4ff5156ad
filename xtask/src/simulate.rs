//! The mixed workload over the simulated network: the command `simulate`, and the step that runs 20,000 seeds of it.

use std::process::{Command, ExitCode};

use crate::Usage;
use crate::exec::{self, cargo, minutes};
use crate::tally::Tally;
use crate::test::Settings;

/// The program, in a profile of its own: without optimization it takes ten times as long, and with more the compiler does.
const PROGRAM: &str = "target/simulate/simulate";

/// The longest that a million seeds take.
const LIMIT_MINUTES: u64 = 180;

/// Runs the workload with these arguments.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let mut build = build();
    build.arg("--quiet");
    let mut run = Command::new(PROGRAM);
    run.args(arguments);
    let outcome = exec::pass(build, minutes(30)).and_then(|()| exec::pass(run, minutes(LIMIT_MINUTES)));
    Ok(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    })
}

/// The step: the first 20,000 seeds.
pub(crate) fn step(_settings: &Settings) -> Tally {
    let run = || exec::show(Command::new(PROGRAM), minutes(15));
    Tally::check(exec::show(build(), minutes(30)).and_then(|()| run()))
}

/// Builds the program.
fn build() -> Command {
    cargo(&["build", "--profile", "simulate", "-p", "simulate"])
}
