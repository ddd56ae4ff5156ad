//! Both ends of byte streams in one process: the time of a connect together with its accept, and what a reader receives over a
//! path that is slow or breaks.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use futures::future::try_join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio_rdma::StreamConfig;

use super::bytes::{BULK, Network, Rdma, Tcp, part};
use super::relay::{Path, Relay};
use super::{Carrier, Orders, answer, median, runtime, say, several, unsupported};
use crate::order::Order;

/// The rate of the slow path, 100 Mbit/s, in bytes a second.
const RATE: u32 = 12_500_000;
/// The length of the message before a write on a connection that is in use.
const SHORT: usize = 100;

/// Both ends.
#[derive(Args)]
pub(crate) struct Both {
    #[arg(value_enum)]
    carrier: Carrier,
    /// Worker threads of tokio's multi_thread runtime; 0 is its current_thread runtime.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Connect each stream by `RdmaStream::connect`, instead of by one connector that is kept.
    #[arg(long)]
    one_off: bool,
}

impl Both {
    /// Runs them until standard input ends. They are the future of `block_on`, as in a program with `#[tokio::main]`.
    pub(crate) fn run(self) -> io::Result<()> {
        let runtime = runtime(self.workers)?;
        let orders = Orders::start();
        let result = match self.carrier {
            Carrier::Raw => runtime.block_on(run(Tcp, orders)),
            Carrier::Stream if self.one_off => runtime.block_on(run(Rdma::one_off(), orders)),
            Carrier::Stream => runtime.block_on(run(Rdma::kept(StreamConfig::default()), orders)),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        // The thread that reads orders may be waiting for another one.
        runtime.shutdown_background();
        result
    }
}

async fn run<N: Network>(network: N, mut orders: Orders) -> io::Result<()> {
    let mut ends = Ends::new(network).await?;
    while let Some(order) = orders.next().await {
        match order {
            Order::Pairs { at_once, count } => answer(ends.pairs(at_once, count).await?)?,
            Order::FirstByte { size, count, is_fresh } => {
                answer(ends.first_byte(size, count, is_fresh).await?)?;
            }
            Order::Lose { size } => say(&ends.lose(size).await?.to_string())?,
            _ => return Err(unsupported(order)),
        }
    }
    Ok(())
}

/// The two ends of a connection: the one that connected, and the accepted one.
type Pair<N> = (<N as Network>::Stream, <N as Network>::Stream);

/// A listener, and the ways to it.
struct Ends<N: Network> {
    network: N,
    listener: Arc<N::Listener>,
    address: SocketAddr,
    slow: Relay,
    fast: Relay,
    /// The connection over the slow path that is in use.
    used: Option<Pair<N>>,
}

impl<N: Network> Ends<N> {
    async fn new(network: N) -> io::Result<Self> {
        let (listener, address) = network.bind((Ipv4Addr::LOCALHOST, 0).into()).await?;
        let (slow, fast) = (Relay::start(address, Path::Slow(RATE))?, Relay::start(address, Path::Fast)?);
        Ok(Self { network, listener: Arc::new(listener), address, slow, fast, used: None })
    }

    /// Connects to the listener by this address, and accepts.
    async fn pair(&self, address: SocketAddr) -> io::Result<Pair<N>> {
        tokio::try_join!(self.network.connect(address), N::accept(&self.listener))
    }

    /// Times connects with their accepts. The ends are closed afterwards, so that this takes no time of another contender.
    async fn pairs(&self, at_once: usize, count: usize) -> io::Result<Duration> {
        let mut ends = Vec::with_capacity(2 * count);
        let start = Instant::now();
        if at_once == 1 {
            for _ in 0..count {
                ends.extend(<[N::Stream; 2]>::from(self.pair(self.address).await?));
            }
        } else {
            let listener = self.listener.clone();
            let accepting = tokio::spawn(async move {
                let mut accepted = Vec::with_capacity(count);
                for _ in 0..count {
                    accepted.push(N::accept(&listener).await?);
                }
                io::Result::Ok(accepted)
            });
            let connect = || {
                let (network, address) = (self.network.clone(), self.address);
                async move { network.connect(address).await }
            };
            ends.extend(several(at_once, count, connect).await?);
            ends.extend(accepting.await??);
        }
        let took = start.elapsed();
        try_join_all(ends.into_iter().map(part)).await?;
        Ok(took)
    }

    /// Times writes over the slow path, from their begin to the first byte that a waiting reader receives.
    async fn first_byte(&mut self, size: usize, count: usize, is_fresh: bool) -> io::Result<Duration> {
        let block = vec![7; size];
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let used = if is_fresh { None } else { self.used.take() };
            let (mut writer, mut reader) = match used {
                Some(pair) => pair,
                None => self.pair(self.slow.address).await?,
            };
            if !is_fresh {
                writer.write_all(&block[..SHORT]).await?;
                reader.read_exact(&mut [0; SHORT]).await?;
            }
            let (waits, is_waiting) = oneshot::channel();
            let reading = tokio::spawn(async move {
                let mut bytes = vec![0; BULK];
                // Fails only if the writer has failed.
                let _ = waits.send(());
                let mut left = size - reader.read(&mut bytes).await?;
                let first = Instant::now();
                while left > 0 {
                    match reader.read(&mut bytes).await? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        length => left -= length,
                    }
                }
                io::Result::Ok((reader, first))
            });
            is_waiting.await.map_err(io::Error::other)?;
            let start = Instant::now();
            writer.write_all(&block).await?;
            let (reader, first) = reading.await??;
            times.push(first - start);
            if is_fresh {
                tokio::try_join!(part(writer), part(reader))?;
            } else {
                self.used = Some((writer, reader));
            }
        }
        Ok(median(times))
    }

    /// Writes over a path that breaks after half as many bytes have arrived. Returns how many a reader receives.
    async fn lose(&self, size: usize) -> io::Result<usize> {
        self.fast.heal();
        let (mut writer, mut reader) = self.pair(self.fast.address).await?;
        // Behind these nothing of the connection's begin is on the way.
        writer.write_u8(7).await?;
        reader.read_u8().await?;
        reader.write_u8(7).await?;
        writer.read_u8().await?;
        self.fast.cut_after(size / 2);
        let writing = tokio::spawn(async move { writer.write_all(&vec![7; size]).await });
        let (mut bytes, mut received) = (vec![0; BULK], 0);
        while let Ok(length @ 1..) = reader.read(&mut bytes).await {
            received += length;
        }
        // The write succeeds if a socket takes all of it before the path breaks.
        let _ = writing.await?;
        Ok(received)
    }
}
