//! A leak test: opens and closes many connections.
//!
//! It measures the cost of a connection, and is a pattern for the leak test of a service.
//!
//! Both sides run in one process over loopback. Repeatedly, one side connects, the other accepts, and the first
//! disconnects. At the end as many descriptors and tasks must be open as at the beginning, and the memory must not have
//! grown with the number of connections. `--hold` keeps many connections open at the same time, prints the cost of each
//! (both ends together), and closes them. The exit status is 1 if a resource is leaked.
//!
//! ```sh
//! cargo run --release --example churn -- --cycles 100000 --json
//! cargo run --release --example churn -- --hold 10000
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

mod connections;
mod usage;

use std::io;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use connections::Stage;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;
use usage::Usage;

/// Connects and disconnects, and looks for what stays behind.
#[derive(Parser)]
struct Options {
    /// How often to connect and disconnect.
    #[arg(long, default_value_t = 1000)]
    cycles: u64,
    /// How many do so at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    concurrency: u64,
    /// How many connections to hold open at once afterwards.
    #[arg(long, default_value_t = 0)]
    hold: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Descriptors that are no connection's, generously.
const OTHERS: u64 = 100;

/// Raises the limit of descriptors to what is needed: both ends of a connection have one each.
fn allow(descriptors: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Beyond the hard limit only root gets.
    let most = hard.max(descriptors);
    setrlimit(Resource::RLIMIT_NOFILE, most, most).map_err(|error| {
        io::Error::other(format!("{descriptors} descriptors are needed, {hard} are allowed: {error}"))
    })
}

#[tokio::main]
async fn main() -> Result<ExitCode, report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let options = Options::parse();
    allow(2 * (options.hold + options.concurrency) + OTHERS)?;

    let stage = Stage::new(options.concurrency)?;
    let before = Usage::now()?;
    // The first ones fill caches and pools, which stay.
    let warm_up = options.cycles.div_ceil(20);
    stage.churn(warm_up).await?;
    let warm = Usage::settled(before).await?;
    let start = Instant::now();
    stage.churn(options.cycles - warm_up).await?;
    let rate = (options.cycles - warm_up) as f64 / start.elapsed().as_secs_f64();
    let mut after = Usage::settled(before).await?;
    let growth = after.rss_kib as i64 - warm.rss_kib as i64;

    let mut report = serde_json::json!({
        "cycles": options.cycles,
        "cycles_per_s": rate.round(),
        "rss_growth_kib": growth,
    });
    if options.hold > 0 {
        let held = stage.hold(options.hold).await?;
        let each = |held: u64, before: u64| held.saturating_sub(before) as f64 / options.hold as f64;
        report["held"] = options.hold.into();
        report["fds_per_connection"] = each(held.fds, after.fds).into();
        report["tasks_per_connection"] = each(held.tasks, after.tasks).into();
        report["rss_kib_per_connection"] = each(held.rss_kib, after.rss_kib).into();
        after = Usage::settled(before).await?;
    }
    report["fds_before"] = before.fds.into();
    report["fds_after"] = after.fds.into();
    report["tasks_before"] = before.tasks.into();
    report["tasks_after"] = after.tasks.into();
    if options.json {
        println!("{report}");
    } else if let Some(fields) = report.as_object() {
        for (name, value) in fields {
            println!("{name:<24}{value}");
        }
    }
    let leaks = after.fds > before.fds || after.tasks > before.tasks;
    Ok(if leaks { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
