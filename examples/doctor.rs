//! Says what keeps programs from the RDMA devices of this machine, and what to type; then which adapter serves which address.
//!
//! ```sh
//! cargo run --features verbs --example doctor               # every device
//! cargo run --features verbs --example doctor -- 192.0.2.1  # one local address
//! ```
//!
//! The exit status is 1 if something stands in the way.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use std::io;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use tokio_rdma::Provider;
use tokio_rdma::verbs::check_up;
use tracing_subscriber::EnvFilter;

/// Says what keeps programs from the RDMA devices of this machine, and what to type.
#[derive(Parser)]
struct Options {
    /// Check this local address instead of every device.
    address: Option<IpAddr>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let Options { address } = Options::parse();
    let found = check_up(address).await;
    for fault in &found.faults {
        println!("fault: {fault}\n    {}", fault.remedy());
    }
    for choice in &found.choices {
        println!("{choice}");
    }
    if address.is_none() && Provider::soft().is_ok() {
        println!("any other address: the provider soft, because no device can be used for it");
    }
    if found.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
