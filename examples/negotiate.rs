//! Negotiation in three phases: each side inspects the terms before it agrees.
//!
//! For services that have versions or limited resources: a mismatch is found before the connection is established, and
//! the reason reaches the other side. Both sides run in one process over loopback and make three attempts:
//!
//! 1. the passive side rejects the request, with the reason as data;
//! 2. the passive side accepts, and the active side rejects the offered limits;
//! 3. both agree, and the active side sends a message.
//!
//! ```sh
//! cargo run --release --example negotiate
//! RUST_LOG=tokio_rdma=debug cargo run --release --example negotiate    # every state, on stderr
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use clap::Parser;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Listener, PrivateData, QueuePairConfig, ReadLimits};
use tracing_subscriber::EnvFilter;

/// Two sides negotiate read limits and private data.
#[derive(Parser)]
struct Options {
    /// The reads that the active side asks for at first, each way.
    #[arg(long, default_value_t = 64)]
    reads: u32,
}

/// The most reads that the passive side serves at once.
const SERVED: u32 = 8;

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let options = Options::parse();
    let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
    let listener = adapter.listener();
    listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    listener.listen(0)?;
    let address = listener.local_addr()?;
    tokio::try_join!(passive(&adapter, &listener), active(&adapter, address, options.reads))?;
    Ok(())
}

fn text(data: &PrivateData) -> String {
    // InfiniBand and RoCE have zeros behind it.
    String::from_utf8_lossy(data).trim_end_matches('\0').to_owned()
}

/// Serves `SERVED` reads at most, to peers that say which version they speak.
async fn passive(adapter: &Adapter, listener: &Listener) -> io::Result<()> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    // Posted once: an attempt that fails leaves the queue pair as it was, receives included.
    let receive = queue_pair.receive(adapter.buffer(64)?)?;
    let connection = loop {
        let request = listener.request().await?;
        let (limits, data) = (request.read_limits(), text(request.private_data()));
        println!("passive: asked for reads: {limits}, {data:?}",);
        if data != "version=2" {
            println!("passive: rejects");
            request.reject(b"speak version=2").await?;
            continue;
        }
        let offer = AcceptParams::default()
            .read_limits(ReadLimits::new(SERVED, SERVED))
            .private_data(format!("reads<={SERVED}"));
        println!("passive: accepts with at most {SERVED} reads each way");
        match request.accept(&queue_pair, offer).await {
            Ok(connection) => break connection,
            Err(failure) => println!("passive: {}", failure.error),
        }
    };
    let (outcome, buffer) = receive.await;
    let length = outcome?.bytes;
    println!("passive: received {:?}", String::from_utf8_lossy(&buffer[..length]));
    println!("passive: the connection is over: {}", connection.disconnected().await);
    Ok(())
}

/// Wants `reads` reads; settles for fewer once it knows how many it can get.
async fn active(adapter: &Adapter, address: SocketAddr, reads: u32) -> io::Result<()> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let ask = |version, reads| {
        ConnectParams::default()
            .private_data(format!("version={version}"))
            .read_limits(ReadLimits::new(reads, reads))
    };

    let connector = adapter.connector();
    let Err(error) = connector.connect(&queue_pair, address, ask(1, reads)).await else {
        return Err(io::Error::other("version 1 was accepted"));
    };
    println!("active:  {error}");

    // Being refused burns nothing: the same connector asks again.
    let reply = connector.connect(&queue_pair, address, ask(2, reads)).await?;
    let offer = reply.read_limits();
    println!("active:  offered {} outbound reads, {:?}", offer.outbound, text(reply.private_data()));
    let enough = if offer.outbound < reads {
        println!("active:  rejects the offer, {reads} were wanted");
        reply.reject(&[]).await?;
        offer.outbound
    } else {
        drop(reply);
        reads
    };

    // Having said no does: a connector is good for one agreement. The queue pair is as it was.
    let reply = adapter.connector().connect(&queue_pair, address, ask(2, enough)).await?;
    println!("active:  offered {} outbound reads, and takes them", reply.read_limits().outbound);
    let connection = reply.complete().await?;
    let (outcome, _buffer) = queue_pair.send(adapter.buffer_from(b"hello")?)?.await;
    outcome?;
    connection.disconnect().await?;
    Ok(())
}
