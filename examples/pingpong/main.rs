//! A connection in three phases, then measurements of Send, RDMA Write and RDMA Read, compared with raw tokio TCP in
//! the same run.
//!
//! For a first look at a machine or at a network between two of them: whether it connects, and how fast it is.
//!
//! Without arguments both ends run in this process over loopback. `--listen ADDR` and `--connect ADDR` run the two ends
//! in separate processes. `--json` prints one object instead of the table.
#![allow(clippy::print_stdout, reason = "a program that prints")]

#[path = "../report/mod.rs"]
mod report;

mod figure;
mod measure;
mod peer;

use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use figure::{Figure, Plan};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tokio::runtime::{Builder, Runtime};
use tokio_rdma::{Access, Adapter, ConnectParams, QueuePairConfig, RemoteRegion};
use tracing_subscriber::EnvFilter;

/// Three phases, three operations, and TCP beside them.
#[derive(Parser)]
struct Args {
    /// Wait for the other end at this address.
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Connect to the other end at this address.
    #[arg(long, value_name = "ADDR")]
    connect: Option<SocketAddr>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Fewer batches, for a first look.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let args = Args::parse();
    // One worker on a core of its own for each end, as two processes would have, and the ends as tasks on it.
    let (here, there) = (runtime(0)?, runtime(1)?);
    let passive = |address| {
        let _inside = there.enter();
        let end = peer::listen(address)?;
        let address = end.1.local_addr()?;
        io::Result::Ok((address, there.spawn(peer::serve(end))))
    };
    if let Some(address) = args.listen {
        let (address, server) = passive(address)?;
        println!("listening on {address}");
        return Ok(there.block_on(server)??);
    }
    let Some(address) = args.connect else {
        let (address, server) = passive((Ipv4Addr::LOCALHOST, 0).into())?;
        here.block_on(here.spawn(run(args, address)))??;
        return Ok(there.block_on(server)??);
    };
    Ok(here.block_on(here.spawn(run(args, address)))??)
}

/// A runtime whose worker stays on one of the cores that this process may use. Ends that wander between cores, or
/// share one, would measure the scheduler.
fn runtime(which: usize) -> io::Result<Runtime> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let cores: Vec<_> = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect();
    let mut mine = CpuSet::new();
    let pinned = cores.len() > 1 && mine.set(cores[which % cores.len()]).is_ok();
    let stay = move || {
        if pinned {
            // Not being allowed to is no reason not to measure.
            let _ = sched_setaffinity(Pid::from_raw(0), &mine);
        }
    };
    Builder::new_multi_thread().worker_threads(1).on_thread_start(stay).enable_all().build()
}

/// The active end.
async fn run(args: Args, address: SocketAddr) -> io::Result<()> {
    let say = |line: String| {
        if !args.json {
            println!("{line}");
        }
    };
    let adapter = Adapter::open(source_for(address.ip())?)?;
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let connector = adapter.connector();
    let params = ConnectParams::default().private_data(&b"ping?"[..]);
    let reply = connector.connect(&queue_pair, address, params).await?;
    let (data, limits) = (reply.private_data().clone(), reply.read_limits());
    let other = || io::Error::other(format!("{address} is no pingpong: its private data is too short"));
    let region = RemoteRegion::decode(&data).ok_or_else(other)?;
    let raw_port = data.get(16..18).and_then(|port| Some(u16::from_be_bytes(port.try_into().ok()?)));
    say(format!("Connect          {} -> {}, sent {:?}", reply.local_addr(), address, "ping?"));
    say(format!("Accept           by the peer, with {} bytes: {region:?}, raw TCP port", data.len()));
    say(format!("read limits      {} inbound, {} outbound", limits.inbound, limits.outbound));
    let connection = reply.complete().await?;
    say(format!("CompleteConnect  {connection:?}\n"));

    let raw = SocketAddr::new(address.ip(), raw_port.ok_or_else(other)?);
    let plan = if args.quick { Plan::QUICK } else { Plan::FULL };
    let bar = if io::stderr().is_terminal() { ProgressBar::new(plan.steps()) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::default_bar().progress_chars("=> "));
    let figures = measure::all(&adapter, &queue_pair, &region, raw, &plan, || bar.inc(1)).await?;
    bar.finish_and_clear();
    if args.json {
        let object: serde_json::Map<_, _> = figures.iter().flat_map(Figure::json).collect();
        println!("{}", serde_json::Value::Object(object));
    } else {
        figures.iter().for_each(|figure| println!("{}", figure.line()));
    }
    connection.disconnect().await?;
    say("Disconnect       done".to_owned());
    Ok(())
}

/// The local address from which the peer is reached.
fn source_for(peer: IpAddr) -> io::Result<IpAddr> {
    Ok(tokio_rdma::Provider::soft()?.local_for(peer)?)
}

/// The size of the memory that the passive end grants: enough for the measurements.
const SHARED: usize = 1 << 20;
const GRANTED: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const PATIENCE: Duration = Duration::from_secs(60);
