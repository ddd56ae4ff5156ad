//! The metrics of a service for Prometheus: connections, the duration of each phase, bytes, waits and failures; and its log,
//! in which the trace of a call goes from the client to the server.
//!
//! ```sh
//! RUST_LOG=info cargo run --release -p frameworks --example metrics
//! ```
//!
//! `dashboard.json` beside this file shows the metrics in Grafana.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../../report/mod.rs"]
mod report;
mod service;
mod trace_context;

use std::io;

use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::EnvFilter;

/// The buckets of the histograms, in seconds.
const BUCKETS: &[f64] = &[0.0001, 0.001, 0.01, 0.1, 1.0, 10.0];

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    // First of all: what was there before the recorder is not counted.
    let prometheus = PrometheusBuilder::new().set_buckets(BUCKETS)?.install_recorder()?;
    tokio_rdma::metrics::describe();
    service::calls().await?;
    service::failures().await?;
    // The answer that an HTTP server would give to `GET /metrics`.
    print!("{}", prometheus.render());
    Ok(())
}
