//! Forwarding of messages without a copy: each is sent from the memory that it was received into.
//!
//! For brokers and replicas, which pass on more than they look at.
//!
//! A producer sends to a relay, and the relay forwards each message to two consumers. The buffers of the relay come
//! from a [`Pool`]. A received buffer is frozen, is lent to each send, and returns to the pool when the last send has
//! completed. An empty message is the receipt for a message, so that no side sends before the other has posted a
//! receive.
//!
//! ```sh
//! cargo run --release --example relay
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;

use clap::Parser;
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Connection, Listener, Op, PoolConfig, QueuePair, QueuePairConfig,
};
use tracing_subscriber::EnvFilter;

/// Sends messages to a relay, which passes them on to two consumers.
#[derive(Parser, Clone, Copy)]
struct Options {
    /// How many messages.
    #[arg(long, default_value_t = 1000)]
    messages: usize,
    /// The length of the longest one, in bytes.
    #[arg(long, default_value = "4096")]
    length: NonZeroUsize,
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let options = Options::parse();
    let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
    let listener = adapter.listener();
    listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    listener.listen(0)?;
    let address = listener.local_addr()?;
    tokio::try_join!(
        relay(&adapter, &listener, options),
        producer(&adapter, address, options),
        consumer(&adapter, address, options, "left"),
        consumer(&adapter, address, options, "right"),
    )?;
    Ok(())
}

/// Waits for a request of one's own, and says how long it was.
async fn done<B: tokio_rdma::WorkBuffer>(request: Op<B>) -> io::Result<(usize, B)> {
    let (outcome, buffer) = request.await;
    Ok((outcome?.bytes, buffer))
}

/// The next peer that connects, and the name that it gives itself.
async fn accept(adapter: &Adapter, listener: &Listener) -> io::Result<(String, QueuePair, Connection)> {
    let request = listener.request().await?;
    let name = String::from_utf8_lossy(request.private_data()).into_owned();
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let connection = request.accept(&queue_pair, AcceptParams::default()).await?;
    Ok((name, queue_pair, connection))
}

async fn relay(adapter: &Adapter, listener: &Listener, options: Options) -> io::Result<()> {
    let mut peers = Vec::new();
    for _ in 0..3 {
        peers.push(accept(adapter, listener).await?);
    }
    let place = peers.iter().position(|(name, ..)| name == "producer");
    let place = place.ok_or_else(|| io::Error::other("none of the three peers is the producer"))?;
    let (_, producer, _connection) = peers.remove(place);

    let pool = adapter.pool(PoolConfig::new(options.length.get(), 8))?;
    let mut copies = 0;
    for _ in 0..options.messages {
        let incoming = producer.receive(pool.get().await?)?;
        // A receipt for the message before, or the word to begin.
        done(producer.send(())?).await?;
        let (length, buffer) = done(incoming).await?;
        let message = buffer.freeze(length);
        let mut requests = Vec::new();
        for (_, consumer, _) in &peers {
            let receipt = consumer.receive(())?;
            let lent = pool.lend(message.clone()).await?;
            copies += usize::from(lent.as_ptr() != message.as_ptr());
            requests.push((consumer.send(lent)?, receipt));
        }
        for (sent, receipt) in requests {
            done(sent).await?;
            done(receipt).await?;
        }
    }
    println!(
        "relay: {} messages to {} consumers from a pool of {}, {copies} copied",
        options.messages,
        peers.len(),
        pool.allocated(),
    );
    for (_, _, connection) in &peers {
        connection.disconnect().await?;
    }
    Ok(())
}

async fn connect(
    adapter: &Adapter,
    relay: SocketAddr,
    queue_pair: &QueuePair,
    name: &str,
) -> io::Result<Connection> {
    let params = ConnectParams::default().private_data(name);
    Ok(adapter.connector().connect_and_complete(queue_pair, relay, params).await?)
}

/// The byte that the message with this number is full of, and its length.
fn message(number: usize, options: Options) -> (u8, usize) {
    ((number % 251) as u8, number % options.length + 1)
}

async fn producer(adapter: &Adapter, relay: SocketAddr, options: Options) -> io::Result<()> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let mut receipt = queue_pair.receive(())?;
    let _connection = connect(adapter, relay, &queue_pair, "producer").await?;
    for number in 0..options.messages {
        done(receipt).await?;
        receipt = queue_pair.receive(())?;
        let (byte, length) = message(number, options);
        done(queue_pair.send(adapter.buffer_from(&vec![byte; length])?)?).await?;
    }
    println!("producer: {} messages sent", options.messages);
    // The relay has the last one when its consumers do: it does not leave before.
    let (_outcome, ()) = receipt.await;
    Ok(())
}

async fn consumer(adapter: &Adapter, relay: SocketAddr, options: Options, name: &str) -> io::Result<()> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let mut receive = queue_pair.receive(adapter.buffer(options.length.get())?)?;
    let connection = connect(adapter, relay, &queue_pair, name).await?;
    for number in 0..options.messages {
        let (length, buffer) = done(receive).await?;
        let (byte, expected) = message(number, options);
        if length != expected || buffer[..length].iter().any(|found| *found != byte) {
            return Err(io::Error::other(format!("message {number} differs from the one that was sent")));
        }
        receive = queue_pair.receive(buffer)?;
        done(queue_pair.send(())?).await?;
    }
    println!("{name}: {} messages received", options.messages);
    connection.disconnected().await;
    Ok(())
}
