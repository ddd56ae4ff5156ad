//! The two ends of a contender, each a process that waits for orders.
//!
//! The passive one prints its address. Both are given the same orders; the active one answers with nanoseconds, the
//! passive one with a zero when its part is done.

pub(crate) mod both;
mod bytes;
pub(crate) mod flood;
mod framed;
mod grpc;
pub(crate) mod idle;
mod quic;
mod relay;
mod soft;

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::order::Order;

/// The carrier of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Carrier {
    /// This crate's soft provider.
    Soft,
    /// Frames of `LengthDelimitedCodec` over this crate's byte stream.
    Framed,
    /// The same frames over TCP.
    FramedTcp,
    /// TCP by tokio's own `TcpStream`.
    Raw,
    /// This crate's byte stream, over its soft provider.
    Stream,
    /// QUIC by quinn.
    Quinn,
    /// tonic over this crate's byte stream.
    Grpc,
    /// tonic over TCP.
    GrpcTcp,
    /// tonic's services and clients in messages.
    GrpcMessages,
}

/// One end.
#[derive(Args)]
pub(crate) struct End {
    #[arg(value_enum)]
    carrier: Carrier,
    /// The address of the passive end; without it this is the passive end.
    #[arg(long)]
    peer: Option<SocketAddr>,
    /// The address on which the passive end listens.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Worker threads of tokio's multi_thread runtime; 0 is its current_thread runtime.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Wait for the end of the peer before a connection is closed, as a disconnect does (TCP and byte streams).
    #[arg(long)]
    orderly: bool,
    /// Ask for a CRC in every frame.
    #[arg(long)]
    crc: bool,
    /// How large the ring is that a byte stream sends from, in KiB, if not as large as it is by default.
    #[arg(long)]
    send_buffer: Option<usize>,
    /// The same of the one that it receives into.
    #[arg(long)]
    receive_buffer: Option<usize>,
    /// How long to look for completions or bytes before going to sleep, in microseconds, if not as long as by default.
    #[arg(long)]
    spin: Option<u64>,
}

/// Orders as they come in, and where the answers go.
pub(crate) struct Orders(mpsc::Receiver<Order>);

impl Orders {
    /// Reads them on a thread of its own, so that the runtime goes on meanwhile.
    fn start() -> Self {
        let (sender, receiver) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                match line.parse() {
                    Ok(order) if sender.blocking_send(order).is_ok() => {}
                    Ok(_) => break,
                    Err(sentence) => eprintln!("{sentence}"),
                }
            }
        });
        Self(receiver)
    }

    /// The next order; `None` at the end of standard input.
    async fn next(&mut self) -> Option<Order> {
        self.0.recv().await
    }
}

/// Says how long it took.
fn answer(took: Duration) -> io::Result<()> {
    say(&took.as_nanos().to_string())
}

/// Prints a line, at once.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// The median of single times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Times one thing after the other.
#[derive(Default)]
struct Laps(Vec<Duration>);

impl Laps {
    /// Times this one.
    async fn lap<T>(&mut self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let start = Instant::now();
        let result = work.await?;
        self.0.push(start.elapsed());
        Ok(result)
    }
}

/// Makes `count` of something, so many at once, and hands them over.
async fn several<T, F>(at_once: usize, count: usize, make: impl Fn() -> F) -> io::Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut all = Vec::with_capacity(count);
    let mut workers = JoinSet::new();
    for _ in 0..count {
        if workers.len() == at_once
            && let Some(made) = workers.join_next().await
        {
            all.push(made??);
        }
        workers.spawn(make());
    }
    while let Some(made) = workers.join_next().await {
        all.push(made??);
    }
    Ok(all)
}

/// An order that this contender has no answer to.
fn unsupported(order: Order) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("cannot {order}"))
}

impl End {
    /// Runs it until standard input ends.
    pub(crate) fn run(self) -> io::Result<()> {
        let runtime = runtime(self.workers)?;
        let orders = Orders::start();
        let several = self.workers > 0;
        let result = match self.carrier {
            Carrier::Soft => drive(&runtime, several, soft::run(self, orders)),
            Carrier::Framed => drive(&runtime, several, framed::run(framed::Over::Stream, self, orders)),
            Carrier::FramedTcp => drive(&runtime, several, framed::run(framed::Over::Tcp, self, orders)),
            Carrier::Raw => drive(&runtime, several, bytes::tcp(self, orders)),
            Carrier::Stream => drive(&runtime, several, bytes::stream(self, orders)),
            Carrier::Quinn => drive(&runtime, several, quic::run(self, orders)),
            Carrier::Grpc => drive(&runtime, several, grpc::run(grpc::Over::Stream, self, orders)),
            Carrier::GrpcTcp => drive(&runtime, several, grpc::run(grpc::Over::Tcp, self, orders)),
            Carrier::GrpcMessages => drive(&runtime, several, grpc::run(grpc::Over::Messages, self, orders)),
        };
        // The thread that reads orders may be waiting for another one.
        runtime.shutdown_background();
        result
    }
}

/// Starts tokio's multi_thread runtime with so many workers, or its current_thread runtime.
fn runtime(workers: usize) -> io::Result<Runtime> {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(workers.max(1)).enable_all().build()
}

/// Runs an end as programs do on such a runtime: a task with workers, `block_on` without.
fn drive(
    runtime: &Runtime,
    several: bool,
    end: impl Future<Output = io::Result<()>> + Send + 'static,
) -> io::Result<()> {
    if several { runtime.block_on(runtime.spawn(end))? } else { runtime.block_on(end) }
}
