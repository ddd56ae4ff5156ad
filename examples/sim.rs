//! A replicated key-value service, tested on a simulated network: a primary and its backup. What a client was told is
//! stored has to survive a crash of the primary.
//!
//! For bugs that appear only if a failure comes at the wrong moment: the test draws the moment, runs in virtual time, and
//! repeats what it has found.
//!
//! The service has a bug: the primary answers before the backup has the pair. A seed finds it, and repeats it. With
//! `--mended` the primary waits for the backup, and every seed passes.
//!
//! ```sh
//! cargo run --example sim --features sim
//! cargo run --example sim --features sim -- --mended
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clap::Parser;
use futures::{SinkExt, StreamExt};
use tokio::time::timeout;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// Runs the test of the service for many seeds.
#[derive(Clone, Copy, Parser)]
struct Options {
    /// The primary waits for its backup.
    #[arg(long)]
    mended: bool,
    /// The number of seeds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
}

const PORT: u16 = 7000;

/// The pairs of a server; the first byte of a message is the key.
type Store = Arc<Mutex<BTreeMap<u8, Bytes>>>;

/// Messages that keep their boundaries.
type Frames = Framed<RdmaStream, LengthDelimitedCodec>;

fn frames(stream: RdmaStream) -> Frames {
    Framed::new(stream, LengthDelimitedCodec::new())
}

fn insert(store: &Store, pair: &BytesMut) {
    let value = Bytes::copy_from_slice(&pair[1..]);
    store.lock().expect("no panic holds the lock").insert(pair[0], value);
}

fn listen(host: &Host) -> io::Result<RdmaListener> {
    let address = SocketAddr::new(host.address(), PORT);
    Ok(RdmaListener::bind_on(&host.adapter()?, address, &StreamConfig::default())?)
}

async fn connect(from: &Host, to: &Host) -> io::Result<Frames> {
    let address = SocketAddr::new(to.address(), PORT);
    Ok(frames(RdmaStream::connect_on(&from.adapter()?, address, &StreamConfig::default()).await?))
}

/// Sends a pair and waits until the server has answered.
async fn put(server: &mut Frames, pair: Bytes) -> io::Result<()> {
    server.send(pair).await?;
    server.next().await.ok_or(io::ErrorKind::UnexpectedEof)?.map(drop)
}

/// The backup: stores what the primary sends.
async fn backup(listener: RdmaListener, store: Store) -> io::Result<()> {
    let mut primary = frames(listener.accept().await?.0);
    while let Some(pair) = primary.next().await {
        insert(&store, &pair?);
        primary.send(Bytes::from_static(b"stored")).await?;
    }
    Ok(())
}

/// The primary: stores what the client sends, and has the backup store it.
async fn primary(listener: RdmaListener, mut backup: Frames, mended: bool) -> io::Result<()> {
    let store = Store::default();
    let mut client = frames(listener.accept().await?.0);
    while let Some(pair) = client.next().await {
        let pair = pair?;
        insert(&store, &pair);
        if mended {
            put(&mut backup, pair.freeze()).await?;
            client.send(Bytes::from_static(b"stored")).await?;
        } else {
            // The bug: the backup may not have the pair when the client is answered.
            client.send(Bytes::from_static(b"stored")).await?;
            put(&mut backup, pair.freeze()).await?;
        }
    }
    Ok(())
}

/// Stores pairs until the primary crashes, and then looks for them at the backup.
async fn scenario(network: Network, options: Options) -> io::Result<()> {
    let [first, second, third] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| network.host(address));
    let latency = Duration::from_millis(1)..=Duration::from_millis(20);
    network.link(&first, &second).latency(latency.clone());
    network.link(&first, &third).latency(latency);

    let survivor = Store::default();
    let serving = tokio::spawn(backup(listen(&second)?, survivor.clone()));
    let to_backup = connect(&first, &second).await?;
    tokio::spawn(primary(listen(&first)?, to_backup, options.mended));
    let mut client = connect(&third, &first).await?;

    // The path to the backup fails for a moment, and the primary crashes: perhaps in that moment.
    let random = |longest| Duration::from_millis(network.random(0..=longest));
    let (failure, time, crash) = (random(2000), random(200), random(2000));
    let (now, primary) = (network.elapsed(), first.clone());
    network.at(now + failure, move |network| network.partition(&first, &second, time));
    network.at(now + crash, move |_| primary.crash());
    let mut stored = BTreeMap::new();
    for key in 0..=u8::MAX {
        let value = Bytes::from(network.random(0..=u64::MAX).to_string());
        let pair = Bytes::from([&[key][..], &value].concat());
        match timeout(Duration::from_secs(60), put(&mut client, pair)).await {
            Ok(Ok(())) => stored.insert(key, value),
            // The primary has crashed: whether this pair is stored is open.
            _ => break,
        };
    }
    // The backup gives the primary up, too: by then it has all that it will ever have.
    let _ = serving.await?;
    let survivor = survivor.lock().expect("no panic holds the lock");
    for (key, value) in &stored {
        assert_eq!(survivor.get(key), Some(value), "key {key} was stored, and is lost after {crash:?}");
    }
    Ok(())
}

fn main() {
    let options = Options::parse();
    sim::check(0..options.seeds, |network| scenario(network, options));
    println!("no seed finds a bug");
}
