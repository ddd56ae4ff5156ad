//! Both ends of byte streams in one process: the time of a connect together with its accept.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use futures::future::try_join_all;
use tokio_rdma::StreamConfig;

use super::bytes::{Network, Rdma, Tcp, part};
use super::{Carrier, Orders, answer, runtime, several, unsupported};
use crate::order::Order;

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
    let ends = Ends::new(network).await?;
    while let Some(order) = orders.next().await {
        match order {
            Order::Pairs { at_once, count } => answer(ends.pairs(at_once, count).await?)?,
            _ => return Err(unsupported(order)),
        }
    }
    Ok(())
}

/// The two ends of a connection: the one that connected, and the accepted one.
type Pair<N> = (<N as Network>::Stream, <N as Network>::Stream);

/// A listener, and what connects to it.
struct Ends<N: Network> {
    network: N,
    listener: Arc<N::Listener>,
    address: SocketAddr,
}

impl<N: Network> Ends<N> {
    async fn new(network: N) -> io::Result<Self> {
        let (listener, address) = network.bind((Ipv4Addr::LOCALHOST, 0).into()).await?;
        Ok(Self { network, listener: Arc::new(listener), address })
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
}
