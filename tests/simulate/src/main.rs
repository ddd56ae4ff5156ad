//! Runs the mixed workload for many seeds: `cargo xtask simulate`.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use simulate::run_all;

const USAGE: &str = "simulate [--seeds N] [--first K] [--threads T] [--json]";

/// The failures that are printed in full.
const SHOWN: usize = 5;

struct Arguments {
    seeds: u64,
    first: u64,
    threads: usize,
    json: bool,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut arguments = Arguments { seeds: 20_000, first: 0, threads, json: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => arguments.seeds = words.next()?.parse().ok()?,
            "--first" => arguments.first = words.next()?.parse().ok()?,
            "--threads" => arguments.threads = words.next()?.parse().ok()?,
            "--json" => arguments.json = true,
            _ => return None,
        }
    }
    // The last seed has to exist.
    arguments.first.checked_add(arguments.seeds).map(|_| arguments)
}

fn main() -> ExitCode {
    let Some(Arguments { seeds, first, threads, json }) = arguments(std::env::args().skip(1)) else {
        eprintln!("usage: {USAGE}");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    let report = run_all(first, seeds, threads);
    let wall = start.elapsed();
    for (seed, reason) in report.failures.iter().take(SHOWN) {
        eprintln!(
            "seed {seed} fails: {reason}\nto repeat it: cargo xtask simulate --first {seed} --seeds 1\n"
        );
    }
    let (failures, trace) = (report.failures.len(), format!("{:016x}", report.trace));
    let (virtual_s, wall_s) = (report.virtual_time.as_secs_f64(), wall.as_secs_f64());
    if json {
        let failed: Vec<u64> = report.failures.iter().map(|(seed, _)| *seed).collect();
        println!(
            "{}",
            json!({
                "seeds": seeds, "failures": failures, "failed": failed, "trace": trace,
                "virtual_s": virtual_s, "wall_s": wall_s, "operations": report.operations,
            })
        );
    } else {
        println!("{seeds} seeds from {first} on, {failures} failures, trace {trace}");
        println!("{} operations, {virtual_s:.0} s of virtual time in {wall_s:.1} s", report.operations);
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
