//! The weight of a connection, both ends of which are in this process: idle, or in use.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Args, ValueEnum};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::{JoinHandle, yield_now};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePairConfig, StreamConfig};

use super::bytes::{Network, Rdma, Tcp};
use super::grpc::{Over, spawn, used_channel};
use super::{Carrier, say};
use crate::scale::resident;

/// The length of an echo, and the number of them that makes 1 MiB.
const ECHO: usize = 8 << 10;
const ECHOES: usize = (1 << 20) / ECHO;
/// The length of a message of a stream that is in use, and the number of them, there and back, before memory is looked at.
const MESSAGE: usize = 1 << 10;
const MESSAGES: usize = 32;

/// Prints how many bytes of memory one connection takes.
#[derive(Args)]
pub(crate) struct Idle {
    #[arg(value_enum)]
    carrier: Carrier,
    /// How many connections are weighed together.
    #[arg(long, default_value_t = 2000)]
    count: usize,
    /// What the ends of a byte stream have done before, and do.
    #[arg(long, value_enum, default_value_t = State::New)]
    state: State,
}

/// The state of the ends of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Nothing was sent.
    New,
    /// Nothing was sent, and a task at each end waits for a byte.
    NewWaiting,
    /// 1 MiB was sent there and back.
    Echoed,
    /// 1 MiB was sent there and back, and a task at each end waits for a byte.
    EchoedWaiting,
    /// A message of 1 KiB is on the way there or back, between two tasks.
    InUse,
}

impl Idle {
    /// Opens them, and looks at the process before and after.
    pub(crate) fn run(self) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (count, state) = (self.count, self.state);
        let weight = match self.carrier {
            Carrier::Soft => runtime.block_on(soft(count)),
            Carrier::Raw => runtime.block_on(streams(Tcp, count, state)),
            Carrier::Stream => runtime.block_on(streams(Rdma::kept(StreamConfig::default()), count, state)),
            Carrier::GrpcTcp => runtime.block_on(channels(Over::Tcp, count)),
            Carrier::GrpcMessages => runtime.block_on(channels(Over::Messages, count)),
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
    weigh_in_use(count, connect, async |_: &[T]| {
        settle().await;
        resident()
    })
    .await
}

/// Like [`weigh`], of connections that `work` uses. It returns the memory in the midst of that.
async fn weigh_in_use<T, F: Future<Output = io::Result<T>>>(
    count: usize,
    connect: impl Fn() -> F,
    work: impl AsyncFn(&[T]) -> io::Result<u64>,
) -> io::Result<u64> {
    let mut held = Vec::with_capacity(count + count / 10);
    for _ in 0..count / 10 {
        held.push(connect().await?);
    }
    // A connection that has just been made may have something left to do; no event tells.
    settle().await;
    let before = work(&held).await?;
    for _ in 0..count {
        held.push(connect().await?);
    }
    settle().await;
    let grown = work(&held).await?.saturating_sub(before);
    drop(held);
    Ok(grown / count as u64)
}

/// Lets everything run that can.
async fn settle() {
    for _ in 0..1000 {
        yield_now().await;
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

/// Connections of TCP or of byte streams.
async fn streams<N: Network>(network: N, count: usize, state: State) -> io::Result<u64> {
    let (listener, address) = network.bind((Ipv4Addr::LOCALHOST, 0).into()).await?;
    let pair = || connected(&network, &listener, address);
    let echoed = || async {
        let mut pair = pair().await?;
        echo::<N>(&mut pair).await?;
        Ok(pair)
    };
    match state {
        State::New => weigh(count, pair).await,
        State::NewWaiting => weigh(count, || async { Ok(wait::<N>(pair().await?)) }).await,
        State::Echoed => weigh(count, echoed).await,
        State::EchoedWaiting => weigh(count, || async { Ok(wait::<N>(echoed().await?)) }).await,
        State::InUse => {
            let (round, done) = (watch::Sender::new(0), Arc::new(AtomicUsize::new(0)));
            let talking = || async { Ok(talk::<N>(pair().await?, round.subscribe(), done.clone())) };
            weigh_in_use(count, talking, async |pairs| in_rounds(&round, &done, pairs.len()).await).await
        }
    }
}

/// Connects and accepts.
async fn connected<N: Network>(
    network: &N,
    listener: &N::Listener,
    address: SocketAddr,
) -> io::Result<(N::Stream, N::Stream)> {
    tokio::try_join!(network.connect(address), N::accept(listener))
}

/// Sends 1 MiB there and back, in messages.
async fn echo<N: Network>((one, other): &mut (N::Stream, N::Stream)) -> io::Result<()> {
    let mut bytes = vec![7; ECHO];
    for _ in 0..ECHOES {
        one.write_all(&bytes).await?;
        other.read_exact(&mut bytes).await?;
        other.write_all(&bytes).await?;
        one.read_exact(&mut bytes).await?;
    }
    Ok(())
}

/// Waits for a byte at each end, in a task of its own.
fn wait<N: Network>((one, other): (N::Stream, N::Stream)) -> [JoinHandle<io::Result<u8>>; 2] {
    [one, other].map(|mut stream| tokio::spawn(async move { stream.read_u8().await }))
}

/// Sends a message there and back in each round, between two tasks that wait for it, and counts the messages that are back.
fn talk<N: Network>(
    (mut one, mut other): (N::Stream, N::Stream),
    mut round: watch::Receiver<usize>,
    done: Arc<AtomicUsize>,
) -> [JoinHandle<io::Result<()>>; 2] {
    let asks = async move {
        let mut bytes = [7; MESSAGE];
        while round.changed().await.is_ok() {
            one.write_all(&bytes).await?;
            one.read_exact(&mut bytes).await?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let answers = async move {
        let mut bytes = [0; MESSAGE];
        loop {
            other.read_exact(&mut bytes).await?;
            other.write_all(&bytes).await?;
        }
    };
    [tokio::spawn(asks), tokio::spawn(answers)]
}

/// Has so many pairs of tasks send their messages, all at once in each round. Returns the most memory that was in use meanwhile.
async fn in_rounds(round: &watch::Sender<usize>, done: &AtomicUsize, pairs: usize) -> io::Result<u64> {
    let mut most = 0;
    for _ in 0..MESSAGES {
        let goal = done.load(Ordering::Relaxed) + pairs;
        round.send_modify(|round| *round += 1);
        while done.load(Ordering::Relaxed) < goal {
            yield_now().await;
            most = most.max(resident()?);
        }
    }
    Ok(most)
}

/// Channels of tonic's clients, and the connections of their server.
async fn channels(over: Over, count: usize) -> io::Result<u64> {
    let address = spawn(over, (Ipv4Addr::LOCALHOST, 0).into()).await?;
    weigh(count, || used_channel(over, address)).await
}
