//! A client that starts before its server: it connects with the same connector until the server listens.
//!
//! For services that start in any order, and come back after an upgrade.
//!
//! After a refusal, an unreachable destination or a timeout, the connector can be used again and keeps its local port
//! if it is bound, and the queue pair keeps its receives. [`ConnectError::is_retryable`] distinguishes these from
//! failures that another attempt does not cure, such as a rejection by the application of the server.
//!
//! ```sh
//! cargo run --release --example retry
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use tokio::sync::oneshot;
use tokio_rdma::error::ConnectError;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Connector, QueuePair, QueuePairConfig};
use tracing_subscriber::EnvFilter;

/// Connects before there is a listener, and goes on until there is one.
#[derive(Parser)]
struct Options {
    /// How often the client is refused before the server starts.
    #[arg(long, default_value_t = 3)]
    refusals: u32,
    /// The first pause between two attempts, in milliseconds; each further one is twice as long, up to a second.
    #[arg(long, default_value_t = 10)]
    pause: u64,
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let options = Options::parse();
    let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
    // A port that nobody listens on, so far.
    let server_address = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let (start, started) = oneshot::channel();

    let server = async {
        if started.await.is_err() {
            return Ok(());
        }
        let listener = adapter.listener();
        listener.bind(server_address)?;
        listener.listen(0)?;
        println!("server: listens");
        let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
        let connection = listener.accept_next(&queue_pair, AcceptParams::default()).await?;
        println!("server: connected");
        connection.disconnected().await;
        io::Result::Ok(())
    };
    let client = async {
        let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
        let connector = adapter.connector();
        connector.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let bound = connector.local_addr()?;
        let (mut start, mut attempts) = (Some(start), 0);
        let refused = |error: &ConnectError| {
            attempts += 1;
            println!("client: attempt {attempts}: {error}");
            if attempts >= options.refusals
                && let Some(start) = start.take()
            {
                let _ = start.send(());
            }
        };
        let pause = Duration::from_millis(options.pause);
        let connection = connect(&connector, &queue_pair, server_address, pause, refused).await?;
        println!(
            "client: connected, by the same connector from the same port: {}",
            connection.local_addr() == bound
        );
        Ok(connection.disconnect().await?)
    };
    tokio::try_join!(server, client)?;
    Ok(())
}

/// Connects, and again as long as that makes sense; `failed` is told of each attempt that came to nothing.
async fn connect(
    connector: &Connector,
    queue_pair: &QueuePair,
    peer: SocketAddr,
    mut pause: Duration,
    mut failed: impl FnMut(&ConnectError),
) -> Result<Connection, ConnectError> {
    loop {
        match connector.connect_and_complete(queue_pair, peer, ConnectParams::default()).await {
            Err(error) if error.is_retryable() => failed(&error),
            outcome => return outcome,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
