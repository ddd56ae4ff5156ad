//! `rping` of rdma-core, implemented with this crate. It accepts the same flags, prints the same lines, and works with
//! the original as peer, over any provider.
//!
//! For a test between two implementations: of this crate with a C program, a kernel or a card.
//!
//! The client sends the address of its text. The server reads the text by RDMA Read and confirms. The client sends the
//! address of its second buffer. The server writes the text there by RDMA Write and confirms. This is repeated `-C`
//! times.
//!
//! ```sh
//! cargo run --release --example rping -- -s -a 127.0.0.1 -v &
//! cargo run --release --example rping -- -c -a 127.0.0.1 -v -V -C 3
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

#[path = "../report/mod.rs"]
mod report;

mod client;
mod messages;
mod server;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::{ArgGroup, Parser, ValueEnum};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Adapter, Provider, ReadLimits};
use tracing_subscriber::EnvFilter;

/// Text to and fro, by RDMA Read and RDMA Write.
#[derive(Parser)]
#[command(group = ArgGroup::new("side").required(true))]
struct Options {
    /// Be the server.
    #[arg(short, group = "side")]
    server: bool,
    /// Be the client.
    #[arg(short, group = "side")]
    client: bool,
    /// The server's address, on either side.
    #[arg(short)]
    address: IpAddr,
    /// The client's own address, when the route shall not decide.
    #[arg(short = 'I')]
    source: Option<IpAddr>,
    /// The server's port.
    #[arg(short, default_value_t = 7174)]
    port: u16,
    /// How many times; 0 is for ever.
    #[arg(short = 'C', default_value_t = 0)]
    count: u32,
    /// The bytes of a text, its final zero included.
    #[arg(short = 'S', default_value_t = 64, value_parser = clap::value_parser!(u32).range(26..65_536))]
    size: u32,
    /// Print the texts.
    #[arg(short)]
    verbose: bool,
    /// The client: compare what comes back.
    #[arg(short = 'V')]
    validate: bool,
    /// Log everything to standard error.
    #[arg(short)]
    debug: bool,
    /// Only this provider; without it, the first that can reach the address.
    #[arg(long)]
    provider: Option<Choice>,
    /// Ask for checksums, where they are a choice.
    #[arg(long)]
    crc: bool,
    /// How many seconds to wait for anything that the peer has to do; without it, for ever.
    #[arg(long, value_parser = seconds)]
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Soft,
    Verbs,
}

/// As in the original: one read at a time is all that either side needs.
const LIMITS: ReadLimits = ReadLimits::new(1, 1);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), report::Report> {
    let options = Options::parse();
    let filter = if options.debug { EnvFilter::new("debug") } else { EnvFilter::from_default_env() };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let outcome = if options.server { server::run(&options).await } else { client::run(&options).await };
    Ok(outcome?)
}

impl Options {
    fn server_address(&self) -> SocketAddr {
        (self.address, self.port).into()
    }

    fn providers(&self) -> io::Result<Vec<Provider>> {
        let soft = || Provider::soft_with(SoftConfig::default().crc(self.crc));
        Ok(match self.provider {
            Some(Choice::Soft) => vec![soft()],
            Some(Choice::Verbs) => vec![Provider::verbs()?],
            None => {
                let all = Provider::all().into_iter();
                all.map(|provider| if provider.is_software() { soft() } else { provider }).collect()
            }
        })
    }

    /// The adapter of this side.
    fn adapter(&self) -> io::Result<Adapter> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for provider in self.providers()? {
            let own = match self.source {
                _ if self.server => Ok(self.address),
                Some(source) => Ok(source),
                None => provider.local_for(self.address),
            };
            match own.and_then(|own| provider.open(provider.resolve(own)?)) {
                Ok(adapter) => return Ok(adapter),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    /// Waits, but not longer than the user wants to.
    async fn wait<F: Future>(&self, future: F) -> io::Result<F::Output> {
        match self.timeout {
            Some(timeout) => Ok(tokio::time::timeout(timeout, future).await?),
            None => Ok(future.await),
        }
    }
}

/// Text up to the zero that ends it.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
