//! Connections come and go: does anything stay behind?
//!
//! Both sides run in one process over loopback. Many times over, one side connects, the other accepts, and the first
//! disconnects; at the end as many descriptors and tasks must be open as at the beginning, and the memory must not have
//! grown with the number of connections. `--hold` keeps many connections open at once, tells what each costs (both
//! ends of it), and closes them again. The exit status is 1 when something stays behind.
//!
//! ```sh
//! cargo run --release --example churn -- --cycles 100000 --json
//! cargo run --release --example churn -- --hold 5000
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io};

use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Listener, QueuePair, QueuePairConfig};
use tracing_subscriber::EnvFilter;

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

/// What the process has.
#[derive(Clone, Copy)]
struct Usage {
    fds: u64,
    tasks: u64,
    rss_kib: u64,
}

impl Usage {
    fn now() -> io::Result<Self> {
        // The listing itself is one of them.
        let fds = fs::read_dir("/proc/self/fd")?.count() as u64 - 1;
        let status = fs::read_to_string("/proc/self/status")?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kib = rss.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse().ok());
        let tasks = Handle::current().metrics().num_alive_tasks() as u64;
        Ok(Self { fds, tasks, rss_kib: rss_kib.ok_or(io::ErrorKind::InvalidData)? })
    }

    /// Waits until no more is open than `before`: connections are closed in the background. No event tells when that
    /// is done, so this looks again and again, for ten seconds at most.
    async fn settled(before: Self) -> io::Result<Self> {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Self::now()?;
            if (now.fds <= before.fds && now.tasks <= before.tasks) || Instant::now() >= patience {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// One end of a connection, with the queue pair that it needs.
type End = (QueuePair, Connection);

/// Ends a connection: the active side says so, the other notices.
async fn close(active: bool, (queue_pair, connection): End) -> io::Result<()> {
    if active {
        connection.disconnect().await?;
    } else {
        connection.disconnected().await;
    }
    // Not before: without its queue pair a connection ends.
    drop(queue_pair);
    Ok(())
}

/// Makes `count` connections, `concurrency` at a time, and hands both ends of each to `keep`.
async fn connections<K, F>(stage: &Stage, count: u64, keep: K) -> io::Result<()>
where
    K: Fn(bool, End) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = io::Result<()>> + Send,
{
    let mut workers = JoinSet::new();
    for active in [true, false] {
        let left = Arc::new(AtomicU64::new(count));
        for _ in 0..stage.concurrency.min(count) {
            let (stage, left, keep) = (stage.clone(), left.clone(), keep.clone());
            workers.spawn(async move {
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    keep(active, stage.one_end(active).await?).await?;
                }
                io::Result::Ok(())
            });
        }
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}

#[derive(Clone)]
struct Stage {
    adapter: Adapter,
    listener: Listener,
    address: SocketAddr,
    concurrency: u64,
}

impl Stage {
    fn new(concurrency: u64) -> io::Result<Self> {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST.into())?;
        let listener = adapter.listener();
        listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        listener.listen(0)?;
        let address = listener.local_addr()?;
        Ok(Self { adapter, listener, address, concurrency })
    }

    async fn one_end(&self, active: bool) -> io::Result<End> {
        let config = QueuePairConfig::default().receive_depth(16).initiator_depth(16);
        let queue_pair = self.adapter.queue_pair(config)?;
        let connection = if active {
            let connector = self.adapter.connector();
            connector.connect_and_complete(&queue_pair, self.address, ConnectParams::default()).await?
        } else {
            self.listener.accept_next(&queue_pair, AcceptParams::default()).await?
        };
        Ok((queue_pair, connection))
    }

    /// Connects and disconnects.
    async fn churn(&self, count: u64) -> io::Result<()> {
        connections(self, count, close).await
    }

    /// Opens `count` connections, looks, and closes them all.
    async fn hold(&self, count: u64) -> io::Result<Usage> {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        connections(self, count, move |active, end| {
            // The receiver outlives this.
            let _ = sender.send((active, end));
            async { Ok(()) }
        })
        .await?;
        let mut held = Vec::new();
        while let Some(end) = receiver.recv().await {
            held.push(end);
        }
        let usage = Usage::now();
        let mut closing = JoinSet::new();
        for (active, end) in held {
            closing.spawn(close(active, end));
        }
        while let Some(closed) = closing.join_next().await {
            closed??;
        }
        usage
    }
}

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let options = Options::parse();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;

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
