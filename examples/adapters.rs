//! Lists providers, their addresses, and the limits and flags of each adapter.
//!
//! For a look at a new machine, and as the code of a program that adapts itself: before it relies on atomics, on a queue
//! depth or on a length of private data, it asks [`Adapter::info`](tokio_rdma::Adapter::info).
//!
//! ```sh
//! cargo run --release --example adapters                       # everything
//! cargo run --release --example adapters -- --hardware         # without software providers
//! cargo run --release --example adapters -- --check 127.0.0.1  # can this local address be used? (exit status 1: no)
//! cargo run --release --example adapters -- --from 192.0.2.1   # the best local address for a peer
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::io;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use tokio_rdma::error::OpenError;
use tokio_rdma::{AdapterInfo, Provider};
use tracing_subscriber::EnvFilter;

/// Lists providers, addresses and adapters.
#[derive(Parser)]
struct Options {
    /// Only tell whether this local address can be used.
    #[arg(long, value_name = "ADDR", conflicts_with = "from")]
    check: Option<IpAddr>,
    /// Only tell from which local address this peer is best reached.
    #[arg(long, value_name = "ADDR")]
    from: Option<IpAddr>,
    /// Leave software providers out.
    #[arg(long)]
    hardware: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let options = Options::parse();
    let mut providers = Provider::all();
    providers.retain(|provider| !(options.hardware && provider.is_software()));

    if let Some(address) = options.check {
        let usable = providers.iter().any(|provider| provider.is_usable(address));
        println!("{address}: {}", if usable { "usable" } else { "not usable" });
        return Ok(if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Some(peer) = options.from {
        let mut best = Err(OpenError::Unsupported("no provider is left"));
        for provider in &providers {
            best = provider.local_for(peer);
            if best.is_ok() {
                break;
            }
        }
        println!("{}", best?);
        return Ok(ExitCode::SUCCESS);
    }
    for provider in &providers {
        list(provider)?;
    }
    if let Err(error) = Provider::verbs() {
        println!("provider verbs: {error}");
    }
    Ok(ExitCode::SUCCESS)
}

/// One provider: its addresses, then its adapters.
fn list(provider: &Provider) -> Result<(), OpenError> {
    let software = if provider.is_software() { ", software" } else { "" };
    println!("provider {}{software}", provider.kind());
    let addresses = provider.addresses()?;
    println!("  addresses: {}", join(&addresses));
    let mut ids = Vec::new();
    for address in addresses {
        // An address may go between the listing and the question.
        let Ok(id) = provider.resolve(address) else { continue };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    for id in ids {
        show(&provider.open(id)?.info());
    }
    Ok(())
}

fn join(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// `NdAdapterInfo`'s output, more or less.
fn show(info: &AdapterInfo) {
    println!("  adapter {} (id {}, info version {})", info.name, info.id.0, info.version);
    println!("    vendor_id                 {:#x}", info.vendor_id);
    println!("    device_id                 {:#x}", info.device_id);
    let firmware = if info.firmware.is_empty() { "none" } else { &info.firmware };
    println!("    firmware                  {firmware}");
    println!("    node_guid                 {:#x}", info.node_guid);
    println!("    ports                     {}", info.ports);
    println!("    addresses                 {}", join(&info.addresses));
    println!(
        "    max_read_limits           {} inbound, {} outbound",
        info.max_read_limits.inbound, info.max_read_limits.outbound
    );
    for (name, limit) in [
        ("max_request_data", info.max_request_data),
        ("max_reply_data", info.max_reply_data),
        ("max_reject_data", info.max_reject_data),
        ("max_active_reject_data", info.max_active_reject_data),
        ("max_transfer", info.max_transfer),
        ("max_registration", info.max_registration),
        ("max_queue_depth", info.max_queue_depth),
        ("max_entries", info.max_entries),
        ("max_read_entries", info.max_read_entries),
        ("max_inline", info.max_inline),
        ("max_completion_depth", info.max_completion_depth),
        ("max_shared_depth", info.max_shared_depth),
    ] {
        println!("    {name:<25} {limit}");
    }
    let timeout = info.answer_timeout.map_or("none".to_owned(), |limit| format!("{} s", limit.as_secs()));
    println!("    {:<25} {timeout}", "answer_timeout");
    for (name, flag) in [
        ("iwarp", info.iwarp),
        ("three_phase", info.three_phase),
        ("exact_private_data", info.exact_private_data),
        ("loopback", info.loopback),
        ("in_order_dma", info.in_order_dma),
        ("early_completion", info.early_completion),
        ("passive_sends_first", info.passive_sends_first),
        ("per_request_errors", info.per_request_errors),
        ("accept_limits_reads", info.accept_limits_reads),
        ("detects_withdrawal", info.detects_withdrawal),
        ("checks_remote_read", info.checks_remote_read),
        ("read_sink_required", info.read_sink_required),
        ("memory_windows", info.memory_windows),
        ("checks_window_bounds", info.checks_window_bounds),
        ("atomics", info.atomics),
        ("global_atomics", info.global_atomics),
        ("invalidates", info.invalidates),
        ("solicited_events", info.solicited_events),
        ("waits_for_shared_receives", info.waits_for_shared_receives),
        ("immediate", info.immediate),
        ("immediate_send", info.immediate_send),
    ] {
        println!("    {name:<25} {}", if flag { "yes" } else { "no" });
    }
}
