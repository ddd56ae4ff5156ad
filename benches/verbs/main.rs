//! The costs of the verbs provider: its round trip beside that of a C program with the same calls (`pingpong.c`), and its
//! connections a second beside cmtime's; and byte streams over it beside rstream. `cargo xtask guest-bench` runs it where
//! there are devices; see `README.md`.
#![allow(clippy::print_stdout, reason = "a program that prints")]

mod children;
mod compare;
mod connections;
mod figures;
mod lanes;
mod round_trips;
mod streams;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};
use tokio_rdma::error::OpenError;
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{Adapter, Provider};

/// The verbs provider beside C.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Run all roles in turns as processes, and print the ratios.
    Compare(Compare),
    /// Echo what one client sends.
    Serve(Process),
    /// For every number on standard input so many round trips; prints the median of their times in nanoseconds.
    Ping(Process),
    /// Accept connections until killed.
    Accept(Process),
    /// Connect so many at once and end them; prints how long that took in nanoseconds, with the adapter's opening and
    /// without.
    Connect {
        #[command(flatten)]
        process: Process,
        #[arg(long, default_value_t = 64)]
        connections: usize,
    },
    /// The server of a byte stream, for one client after the other.
    StreamServe {
        #[command(flatten)]
        process: Process,
        #[command(flatten)]
        load: streams::Load,
    },
    /// The client of a byte stream; prints how long a write of either side took, in nanoseconds.
    StreamCall {
        #[command(flatten)]
        process: Process,
        #[command(flatten)]
        load: streams::Load,
    },
}

/// One process and what it talks to.
#[derive(clap::Args)]
struct Process {
    address: SocketAddr,
    /// So many worker threads of tokio's multi_thread runtime; none is its current_thread runtime.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// How long the provider looks for completions before it sleeps, in microseconds.
    #[arg(long, default_value_t = 0)]
    spin: u64,
    /// Round trips use a lane.
    #[arg(long)]
    lane: bool,
}

#[derive(clap::Args)]
struct Compare {
    /// An address of the device.
    #[arg(long)]
    address: std::net::IpAddr,
    /// The C program; without it round trips are left out.
    #[arg(long)]
    c: Option<PathBuf>,
    /// How often everything is done.
    #[arg(long, default_value_t = 20)]
    batches: usize,
    /// Round trips of a batch; 0 leaves them out.
    #[arg(long, default_value_t = 200)]
    round_trips: usize,
    /// Connections in flight; 0 leaves them out.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// 64-byte echoes over a byte stream in a batch; 0 leaves them out.
    #[arg(long, default_value_t = 2000)]
    echoes: usize,
    /// Writes of 64 KiB to a byte stream in a batch, in each direction; 0 leaves them out.
    #[arg(long, default_value_t = 400)]
    writes: usize,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

fn main() -> io::Result<()> {
    match Args::parse().role {
        Role::Compare(plan) => compare::run(&plan),
        Role::Serve(process) if process.lane => process.block_on(lanes::serve),
        Role::Ping(process) if process.lane => process.block_on(lanes::ping),
        Role::Serve(process) => process.block_on(round_trips::serve),
        Role::Ping(process) => process.block_on(round_trips::ping),
        Role::Accept(process) => process.block_on(connections::accept),
        Role::Connect { process, connections } => process
            .block_on(async move |open, address| connections::connect(open, address, connections).await),
        Role::StreamServe { process, load } => {
            process.block_on(async move |open, address| streams::serve(open, address, load).await)
        }
        Role::StreamCall { process, load } => {
            process.block_on(async move |open, address| streams::call(open, address, load).await)
        }
    }
}

impl Process {
    /// Runs a role on the runtime that was asked for; it opens the adapter when it is ready to.
    fn block_on<F>(self, role: impl FnOnce(Open, SocketAddr) -> F) -> io::Result<()>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let open = Open { address: self.address, spin: Duration::from_micros(self.spin) };
        let runtime = self.runtime()?;
        // A task, as the work of a program would be, on the thread that runs the reactor.
        runtime.block_on(runtime.spawn(role(open, self.address)))?
    }

    fn runtime(&self) -> io::Result<Runtime> {
        let mut builder = match self.workers {
            0 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        builder.worker_threads(self.workers.max(1)).enable_all().build()
    }
}

/// How the adapter is opened.
#[derive(Clone, Copy)]
struct Open {
    address: SocketAddr,
    spin: Duration,
}

impl Open {
    /// Loads the libraries and their drivers.
    fn provider(self) -> Result<Provider, OpenError> {
        Provider::verbs_with(VerbsConfig::default().spin(self.spin))
    }

    /// The device that has the address, or the way to it.
    fn adapter(self, provider: &Provider) -> Result<Adapter, OpenError> {
        provider.open(provider.resolve(provider.local_for(self.address.ip())?)?)
    }
}
