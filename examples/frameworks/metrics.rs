//! The metrics of a service for Prometheus: connections, the duration of each phase, bytes, waits and failures; and its
//! log, by connection.
//!
//! ```sh
//! RUST_LOG=info cargo run --release -p frameworks --example metrics
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

use std::io;

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::{RdmaListener, RdmaStream};
use tracing::Instrument;
use tracing_subscriber::EnvFilter;

/// The buckets of the histograms, in seconds.
const BUCKETS: &[f64] = &[0.0001, 0.001, 0.01, 0.1, 1.0, 10.0];

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    // First of all: what was there before the recorder is not counted.
    let prometheus = PrometheusBuilder::new().set_buckets(BUCKETS)?.install_recorder()?;
    tokio_rdma::metrics::describe();

    let listener = RdmaListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            // Whatever is logged for it names the connection.
            let span = stream.connection().span();
            tokio::spawn(answer(stream).instrument(span));
        }
    });

    let mut stream = RdmaStream::connect(address).await?;
    for length in [10, 100, 1000] {
        let mut bytes = vec![7; length];
        stream.write_all(&bytes).await?;
        stream.read_exact(&mut bytes).await?;
    }
    stream.shutdown().await?;
    stream.read_to_end(&mut Vec::new()).await?;
    // Nobody is there: an error to be counted.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    if let Err(error) = RdmaStream::connect(nobody).await {
        tracing::info!(%nobody, %error, "as expected");
    }

    // What an HTTP server would answer to `GET /metrics`.
    print!("{}", prometheus.render());
    Ok(())
}

/// Sends back what comes, until the peer has said its end.
async fn answer(mut stream: RdmaStream) -> io::Result<()> {
    let mut bytes = vec![0; 4096];
    loop {
        match stream.read(&mut bytes).await? {
            0 => return stream.shutdown().await,
            length => {
                tracing::info!(bytes = length, "asked");
                stream.write_all(&bytes[..length]).await?;
            }
        }
    }
}
