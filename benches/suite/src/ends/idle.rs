//! The weight of an idle connection, both ends of which are in this process.

use std::io;
use std::net::Ipv4Addr;

use clap::Args;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePairConfig};

use super::grpc::{Over, spawn, used_channel};
use super::{Carrier, say};
use crate::scale::resident;

/// Prints how many bytes of memory one connection takes.
#[derive(Args)]
pub(crate) struct Idle {
    #[arg(value_enum)]
    carrier: Carrier,
    /// How many connections are weighed together.
    #[arg(long, default_value_t = 2000)]
    count: usize,
}

impl Idle {
    /// Opens them, and looks at the process before and after.
    pub(crate) fn run(self) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let weight = match self.carrier {
            Carrier::Soft => runtime.block_on(soft(self.count)),
            Carrier::Raw => runtime.block_on(raw(self.count)),
            Carrier::GrpcTcp => runtime.block_on(channels(Over::Tcp, self.count)),
            Carrier::GrpcMessages => runtime.block_on(channels(Over::Messages, self.count)),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        say(&weight?.to_string())
    }
}

/// The weight of one of `count` connections, after a tenth as many that fill caches and pools.
async fn weigh<T, F: Future<Output = io::Result<T>>>(
    count: usize,
    connect: impl Fn() -> F,
) -> io::Result<u64> {
    let mut held = Vec::with_capacity(count + count / 10);
    for _ in 0..count / 10 {
        held.push(connect().await?);
    }
    // A connection that has just been made may have something left to do; no event tells.
    settle().await;
    let before = resident()?;
    for _ in 0..count {
        held.push(connect().await?);
    }
    settle().await;
    let grown = resident()?.saturating_sub(before);
    drop(held);
    Ok(grown / count as u64)
}

/// Lets everything run that can.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// Connections of the soft provider, with queue pairs of the default size.
async fn soft(count: usize) -> io::Result<u64> {
    let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
    let listener = adapter.listener();
    listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    listener.listen(0)?;
    let address = listener.local_addr()?;
    let pair = || async {
        let (here, there) = (
            adapter.queue_pair(QueuePairConfig::default())?,
            adapter.queue_pair(QueuePairConfig::default())?,
        );
        let active = async {
            let connector = adapter.connector();
            io::Result::Ok(connector.connect_and_complete(&here, address, ConnectParams::default()).await?)
        };
        let passive = async { io::Result::Ok(listener.accept_next(&there, AcceptParams::default()).await?) };
        let ends = tokio::try_join!(active, passive)?;
        Ok((here, there, ends))
    };
    weigh(count, pair).await
}

/// TCP connections of tokio.
async fn raw(count: usize) -> io::Result<u64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let pair = || async { Ok((TcpStream::connect(address).await?, listener.accept().await?)) };
    weigh(count, pair).await
}

/// Channels of tonic's clients, and the connections of their server.
async fn channels(over: Over, count: usize) -> io::Result<u64> {
    let address = spawn(over, (Ipv4Addr::LOCALHOST, 0).into()).await?;
    weigh(count, || used_channel(over, address)).await
}
