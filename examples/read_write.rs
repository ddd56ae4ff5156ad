//! One-sided transfers: the active side writes and reads the peer's memory without the peer's participation.
//!
//! For large data and for data that is read more often than it changes: no task of the peer wakes up, and nothing is
//! copied into a message. The example `kv` builds a service on it.
//!
//! The passive side registers two regions and sends their keys in the private data of its accept. The active side
//! writes one and reads the other. A message at the end announces that the write is complete, because on one connection
//! a message is delivered after the writes before it.
//!
//! ```sh
//! cargo run --release --example read_write
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use clap::Parser;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Listener, QueuePairConfig, Region, RemoteRegion,
};
use tracing_subscriber::EnvFilter;

/// RDMA Write and RDMA Read, with keys that travel in private data.
#[derive(Parser)]
struct Options {
    /// The size of each region in bytes.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    bytes: u32,
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let length = usize::try_from(Options::parse().bytes).map_err(io::Error::other)?;
    let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
    let listener = adapter.listener();
    listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    listener.listen(0)?;
    let address = listener.local_addr()?;
    tokio::try_join!(passive(&adapter, &listener, length), active(&adapter, address))?;
    Ok(())
}

/// The content of the region that is read: any byte tells where it belongs.
fn pattern(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

async fn passive(adapter: &Adapter, listener: &Listener, length: usize) -> io::Result<()> {
    let inbox: Region = adapter.register(length, Access::REMOTE_WRITE).await?;
    let outbox: Region = adapter.register(length, Access::REMOTE_READ).await?;
    outbox.write(0, &pattern(length))?;

    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let done = queue_pair.receive(adapter.buffer(16)?)?;
    let keys = [inbox.remote().to_bytes(), outbox.remote().to_bytes()].concat();
    println!("passive: two regions of {length} bytes, {} bytes of private data name them", keys.len());
    let connection = listener.accept_next(&queue_pair, AcceptParams::default().private_data(keys)).await?;

    done.await.0?;
    let mut written = vec![0; length];
    inbox.read(0, &mut written)?;
    let good = written.iter().rev().copied().eq(pattern(length));
    println!("passive: the peer has written: {}", if good { "as it should" } else { "something else" });

    // From here on the keys are worth nothing.
    inbox.deregister().await?;
    outbox.deregister().await?;
    connection.disconnected().await;
    if good { Ok(()) } else { Err(io::Error::other("the memory differs")) }
}

async fn active(adapter: &Adapter, address: SocketAddr) -> io::Result<()> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let reply = adapter.connector().connect(&queue_pair, address, ConnectParams::default()).await?;
    let keys = reply.private_data().clone();
    let inbox = RemoteRegion::decode(&keys);
    let outbox = keys.get(RemoteRegion::LEN..).and_then(RemoteRegion::decode);
    let (Some(inbox), Some(outbox)) = (inbox, outbox) else {
        return Err(io::Error::other("the peer sent no keys"));
    };
    let connection = reply.complete().await?;

    // The sink of a read may be private memory: only the adapter writes to it.
    let length = usize::try_from(outbox.len()).map_err(io::Error::other)?;
    let (outcome, mut buffer) = queue_pair.read(adapter.buffer(length)?, &outbox)?.await;
    println!("active:  read {} bytes", outcome?.bytes);

    // Back they go, the other way round.
    buffer.reverse();
    let write = queue_pair.write(buffer, &inbox)?;
    let send = queue_pair.send(adapter.buffer_from(b"done")?)?;
    println!("active:  wrote {} bytes", write.await.0?.bytes);
    send.await.0?;
    connection.disconnect().await?;
    Ok(())
}
