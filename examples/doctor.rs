//! Says what keeps programs from the RDMA devices of this machine, and what to type; then which adapter serves which address.
//!
//! On a machine without a device this comes first, with what would have to be done if it should have one. With a device, and a limit of
//! the memory that may be locked, it says how many streams that is enough for.
//!
//! ```sh
//! cargo run --features verbs --example doctor               # every device
//! cargo run --features verbs --example doctor -- 192.0.2.1  # one local address
//! cargo install tokio-rdma --features verbs --example doctor # without a checkout; then: doctor
//! ```
//!
//! The exit status is 1 if something stands in the way of a device, or of the address that was named.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use std::io;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use tokio_rdma::verbs::{CheckUp, check_up};
use tokio_rdma::{Adapter, Provider, ProviderKind, StreamConfig};
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
    // Without a device, nothing is wrong with the machine, unless the user has named an address for one.
    let is_without_device = found.devices.is_empty() && address.is_none();
    if is_without_device {
        println!("this machine has no RDMA device: its programs use the provider soft");
    }
    let word = if is_without_device { "if it should have one" } else { "fault" };
    for fault in &found.faults {
        println!("{word}: {fault}\n    {}", fault.remedy());
    }
    for choice in &found.choices {
        println!("{choice}");
    }
    if let Some(line) = streams(&found) {
        println!("{line}");
    }
    if address.is_none() && Provider::soft().is_ok() {
        println!("any other address: the provider soft, because no device can be used for it");
    }
    if found.faults.is_empty() || is_without_device { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the line about the streams that the limit of locked memory is enough for. `None` without a limit or a device.
fn streams(found: &CheckUp) -> Option<String> {
    let limit = found.memory_lock?;
    let device = found.choices.iter().find(|choice| choice.provider == ProviderKind::Verbs)?;
    let each = StreamConfig::default().locked_memory(&Adapter::open(device.address).ok()?).ok()?;
    let streams = limit / u64::try_from(each).ok()?;
    Some(format!(
        "ulimit -l: the process may lock {limit} bytes, enough for {streams} idle streams of {each} bytes"
    ))
}
