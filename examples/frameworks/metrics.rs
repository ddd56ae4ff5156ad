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

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio_rdma::{MessageListener, Messages};
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

    let listener = MessageListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((messages, _peer)) = listener.accept().await {
            // Whatever is logged for it names the connection.
            let span = messages.connection().span();
            tokio::spawn(answer(messages).instrument(span));
        }
    });

    let mut messages = Messages::connect(address).await?;
    for length in [10, 100, 1000] {
        messages.send(Bytes::from(vec![7; length])).await?;
        messages.next().await.transpose()?;
    }
    messages.close().await?;
    messages.next().await.transpose()?;
    // Nobody is there: an error to be counted.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    if let Err(error) = Messages::connect(nobody).await {
        tracing::info!(%nobody, %error, "as expected");
    }

    // What an HTTP server would answer to `GET /metrics`.
    print!("{}", prometheus.render());
    Ok(())
}

/// Sends back what comes, until the peer has said its end.
async fn answer(mut messages: Messages) -> io::Result<()> {
    while let Some(message) = messages.next().await.transpose()? {
        tracing::info!(bytes = message.len(), "asked");
        messages.send(message).await?;
    }
    messages.close().await
}
