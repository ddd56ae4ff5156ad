//! The cost of the verbs provider on a device that costs nothing: single requests of 64 bytes and their completions, beside a C
//! program that makes the same calls (`posts.c`). `cargo xtask fake-bench` runs it over the device of `tests/fake`; see
//! `README.md`.
#![allow(clippy::print_stdout, reason = "a program that prints")]

#[path = "../../xtask/src/callgrind.rs"]
#[allow(dead_code, reason = "the ends of a connection are not counted apart here")]
mod callgrind;
#[path = "../verbs/children.rs"]
#[allow(dead_code, reason = "the other comparison starts other programs, too")]
mod children;
mod compare;
#[path = "../verbs/figures.rs"]
#[allow(dead_code, reason = "the other comparison prints tables of its own")]
mod figures;
mod instructions;
mod storm;
mod table;
mod threads;
mod tracks;

use std::io;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::tracks::Line;

/// The verbs provider beside C.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Run both programs in turns, and print the ratios and the instructions.
    Compare(Compare),
    /// For every number on standard input so many operations on each thread; prints the nanoseconds of one.
    Run {
        line: Line,
        #[arg(default_value_t = 1)]
        threads: usize,
    },
    /// Lose many connections at once, on a device whose commands take 100 us; print how long others had to wait meanwhile.
    Storm {
        #[arg(default_value_t = 10_000)]
        connections: usize,
    },
    /// Run each line once: whether it runs, not how fast.
    Smoke,
}

#[derive(clap::Args)]
struct Compare {
    /// The C program; without it nothing is beside ours.
    #[arg(long)]
    c: Option<PathBuf>,
    /// How often the programs take turns.
    #[arg(long, default_value_t = 60)]
    batches: usize,
    /// Operations of a batch; a quarter of that where they are awaited.
    #[arg(long, default_value_t = 3200)]
    operations: usize,
    /// Count no instructions, which valgrind does.
    #[arg(long)]
    no_instructions: bool,
    /// Print one JSON object instead of the tables.
    #[arg(long)]
    json: bool,
}

fn main() -> io::Result<()> {
    match Args::parse().role {
        Role::Compare(plan) => compare::run(&plan),
        Role::Run { line, threads } => threads::serve(line, threads),
        Role::Storm { connections } => storm::run(connections),
        Role::Smoke => Line::value_variants().iter().try_for_each(|line| threads::smoke(*line)),
    }
}
