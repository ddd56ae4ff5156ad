//! Requests of queue pairs, over the soft provider.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::Sender;

use futures::FutureExt;
use tokio::task::yield_now;
use tokio_rdma::qp::{CompletionQueueConfig, Op, WorkCompletion, WorkOptions};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, CompletionQueue, ConnectParams, Connection, Listener, Provider,
    QueuePair, QueuePairConfig, Region, RegionSlice, RemoteRegion,
};

use crate::ends::{Ends, runtime, tasks};

const MESSAGE: usize = 64;
const LONG_MESSAGE: usize = 1024;
const PAGE: usize = 4096;
const BLOCK: usize = 64 * 1024;
const MEGABYTE: usize = 1024 * 1024;
/// Writes with one doorbell.
const CHAIN: usize = 16;
/// Writes before a message. All of them are less than the first receive window of a connection, so that the kernel delivers each
/// at once.
const BURST: usize = 8;

/// An adapter of the soft provider, whatever else has the address.
pub(crate) fn open(config: SoftConfig) -> io::Result<Adapter> {
    let provider = Provider::soft_with(config);
    Ok(provider.open(provider.resolve(Ipv4Addr::LOCALHOST.into())?)?)
}

fn small() -> QueuePairConfig {
    QueuePairConfig::default().receive_entries(1).send_entries(1).inline(MESSAGE)
}

/// One end of a connection. Its messages have one length, and one receive is posted.
struct End {
    queue_pair: QueuePair,
    buffer: Option<Buffer>,
    receive: Option<Op<Buffer>>,
    region: Region,
    remote: RemoteRegion,
    /// The queue to which all completions go, if the program polls for them.
    queue: Option<CompletionQueue>,
    found: Vec<WorkCompletion>,
    _connection: Connection,
    _adapter: Adapter,
}

/// The resources of an end that is not connected yet.
struct Resources {
    adapter: Adapter,
    queue: Option<CompletionQueue>,
    queue_pair: QueuePair,
    buffer: Buffer,
    receive: Op<Buffer>,
    region: Region,
}

impl Resources {
    async fn new(plan: &Plan) -> io::Result<Self> {
        let adapter = open(plan.soft.clone())?;
        let mut config = small();
        let mut queue = None;
        if plan.polled {
            let queue = queue.insert(adapter.completion_queue(CompletionQueueConfig::default())?);
            config = config.completions(queue);
        }
        let queue_pair = adapter.queue_pair(config)?;
        let buffer = adapter.buffer(plan.message)?;
        let receive = queue_pair.receive(adapter.buffer(plan.message)?)?;
        let region = adapter.register(plan.region, Access::REMOTE_READ | Access::REMOTE_WRITE).await?;
        Ok(Self { adapter, queue, queue_pair, buffer, receive, region })
    }

    /// Listens for one peer.
    fn listen(&self) -> io::Result<Listener> {
        let listener = self.adapter.listener();
        listener.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        listener.listen(1)?;
        Ok(listener)
    }

    async fn connect(self, address: SocketAddr) -> io::Result<End> {
        let params = ConnectParams::default().private_data(self.region.remote().to_bytes());
        let reply = self.adapter.connector().connect(&self.queue_pair, address, params).await?;
        let remote = RemoteRegion::decode(reply.private_data()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(self.connected(reply.complete().await?, remote))
    }

    async fn accept(self, listener: &Listener) -> io::Result<End> {
        let request = listener.request().await?;
        let remote = RemoteRegion::decode(request.private_data()).ok_or(io::ErrorKind::InvalidData)?;
        let params = AcceptParams::default().private_data(self.region.remote().to_bytes());
        let connection = request.accept(&self.queue_pair, params).await?;
        Ok(self.connected(connection, remote))
    }

    fn connected(self, connection: Connection, remote: RemoteRegion) -> End {
        let Self { adapter, queue, queue_pair, buffer, receive, region } = self;
        End {
            queue_pair,
            buffer: Some(buffer),
            receive: Some(receive),
            region,
            remote,
            queue,
            found: Vec::new(),
            _connection: connection,
            _adapter: adapter,
        }
    }
}

impl End {
    /// Sends a message and awaits its completion.
    async fn send(&mut self) -> io::Result<()> {
        let buffer = self.buffer.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (outcome, buffer) = self.queue_pair.send(buffer)?.await;
        outcome?;
        self.buffer = Some(buffer);
        Ok(())
    }

    /// The same with bytes that the call copies.
    async fn send_inline(&mut self) -> io::Result<()> {
        self.queue_pair.send_inline(&[&[7; MESSAGE]], WorkOptions::default())?.await.0?;
        Ok(())
    }

    /// Awaits the next message, and posts its receive again.
    async fn receive(&mut self) -> io::Result<()> {
        let receive = self.receive.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (outcome, buffer) = receive.await;
        outcome?;
        self.receive = Some(self.queue_pair.receive(buffer)?);
        Ok(())
    }

    /// Polls the queue for one completion, and waits if there is none.
    async fn poll(&mut self) -> io::Result<()> {
        let queue = self.queue.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        self.found.clear();
        while queue.poll(CHAIN, &mut self.found) == 0 {
            queue.wait(1).await?;
        }
        let failed = self.found.iter().any(|completion| !completion.status.is_success());
        if failed { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Sends a message, whose completion comes from the queue.
    async fn send_polled(&mut self) -> io::Result<()> {
        let buffer = self.buffer.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let send = self.queue_pair.send(buffer)?;
        self.poll().await?;
        self.buffer = Some(take_back(send)?);
        Ok(())
    }

    /// The next message, whose completion comes from the queue.
    async fn receive_polled(&mut self) -> io::Result<()> {
        let receive = self.receive.take().ok_or(io::ErrorKind::BrokenPipe)?;
        self.poll().await?;
        self.receive = Some(self.queue_pair.receive(take_back(receive)?)?);
        Ok(())
    }

    fn local(&self, length: usize) -> io::Result<RegionSlice> {
        Ok(self.region.slice(0..length)?)
    }

    async fn write(&self, length: usize) -> io::Result<()> {
        self.queue_pair.write(self.local(length)?, &self.remote)?.await.0?;
        Ok(())
    }

    /// Writes with one doorbell, and their completions.
    async fn write_chain(&self) -> io::Result<()> {
        let batch = self.queue_pair.batch();
        let mut posted = Vec::with_capacity(CHAIN);
        for _ in 0..CHAIN {
            posted.push(batch.write(self.local(PAGE)?, &self.remote)?);
        }
        batch.submit();
        for write in posted {
            write.await.0?;
        }
        Ok(())
    }
}

/// The buffer of a request whose completion was polled.
fn take_back(request: Op<Buffer>) -> io::Result<Buffer> {
    let (outcome, buffer) = request.now_or_never().ok_or(io::ErrorKind::BrokenPipe)?;
    outcome?;
    Ok(buffer)
}

/// The settings of a line.
struct Plan {
    soft: SoftConfig,
    message: usize,
    region: usize,
    polled: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { soft: SoftConfig::default(), message: MESSAGE, region: BLOCK, polled: false }
    }
}

/// A connection, each end on a runtime of its own.
struct Pair {
    ends: Ends,
    active: End,
    passive: End,
}

impl Pair {
    fn new(plan: &Plan) -> io::Result<Self> {
        let ends = Ends::new()?;
        let (active, passive) = ends.prepare(Resources::new(plan), Resources::new(plan))?;
        let listener = passive.listen()?;
        let address = listener.local_addr()?;
        let (active, passive) = ends.prepare(active.connect(address), passive.accept(&listener))?;
        Ok(Self { ends, active, passive })
    }

    /// A message, and its receive.
    fn message(&mut self) -> io::Result<()> {
        self.ends.active(self.active.send())?;
        self.ends.passive(self.passive.receive())
    }
}

pub(crate) fn send(count: usize) -> io::Result<()> {
    messages(Plan::default(), count)
}

pub(crate) fn send_long(count: usize) -> io::Result<()> {
    messages(Plan { message: LONG_MESSAGE, ..Plan::default() }, count)
}

fn messages(plan: Plan, count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&plan)?;
    (0..count).try_for_each(|_| pair.message())
}

pub(crate) fn send_inline(count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&Plan::default())?;
    for _ in 0..count {
        pair.ends.active(pair.active.send_inline())?;
        pair.ends.passive(pair.passive.receive())?;
    }
    Ok(())
}

pub(crate) fn send_polled(count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&Plan { polled: true, ..Plan::default() })?;
    for _ in 0..count {
        pair.ends.active(pair.active.send_polled())?;
        pair.ends.passive(pair.passive.receive_polled())?;
    }
    Ok(())
}

/// Messages there and back.
pub(crate) fn send_tasks(count: usize) -> io::Result<()> {
    let passive = move |sender: Sender<SocketAddr>| async move {
        let passive = Resources::new(&Plan::default()).await?;
        let listener = passive.listen()?;
        sender.send(listener.local_addr()?).map_err(io::Error::other)?;
        let mut passive = passive.accept(&listener).await?;
        for _ in 0..count {
            passive.receive().await?;
            passive.send().await?;
        }
        Ok(())
    };
    tasks(passive, move |address| async move {
        let mut active = Resources::new(&Plan::default()).await?.connect(address).await?;
        for _ in 0..count {
            active.send().await?;
            active.receive().await?;
        }
        Ok(())
    })
}

/// Writes that are awaited one by one. A message follows eight of them: the peer would not wake up otherwise.
pub(crate) fn write(count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&Plan::default())?;
    for _ in 0..count / BURST {
        let active = &pair.active;
        pair.ends.active(async {
            for _ in 0..BURST {
                active.write(PAGE).await?;
            }
            Ok(())
        })?;
        pair.message()?;
    }
    Ok(())
}

pub(crate) fn write_chain(count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&Plan::default())?;
    for _ in 0..count / CHAIN {
        pair.ends.active(pair.active.write_chain())?;
        pair.message()?;
    }
    Ok(())
}

/// Large writes with a checksum in each frame, and a message behind each.
pub(crate) fn write_checksums(count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&Plan { soft: SoftConfig::default().crc(true), ..Plan::default() })?;
    for _ in 0..count {
        pair.ends.active(pair.active.write(BLOCK))?;
        pair.message()?;
    }
    Ok(())
}

/// Writes of a megabyte, in many segments each, and a message behind each.
pub(crate) fn write_megabytes(count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&Plan { region: MEGABYTE, ..Plan::default() })?;
    for _ in 0..count {
        let (active, passive) = (&mut pair.active, &mut pair.passive);
        let send = async {
            active.write(MEGABYTE).await?;
            active.send().await
        };
        pair.ends.both(send, passive.receive())?;
    }
    Ok(())
}

/// Reads one by one, each with a message behind the request that wakes up the peer.
pub(crate) fn read(count: usize) -> io::Result<()> {
    let mut pair = Pair::new(&Plan::default())?;
    for _ in 0..count {
        let active = &mut pair.active;
        let (read, send) = pair.ends.active(async {
            let buffer = active.buffer.take().ok_or(io::ErrorKind::BrokenPipe)?;
            let read = active.queue_pair.read(active.local(PAGE)?, &active.remote)?;
            Ok((read, active.queue_pair.send(buffer)?))
        })?;
        let passive = &mut pair.passive;
        pair.ends.passive(async {
            passive.receive().await?;
            // The driver of the connection sends the response before this goes on.
            yield_now().await;
            Ok(())
        })?;
        let active = &mut pair.active;
        pair.ends.active(async {
            read.await.0?;
            // It completes behind the read.
            let (outcome, buffer) = send.await;
            outcome?;
            active.buffer = Some(buffer);
            Ok(())
        })?;
    }
    Ok(())
}

/// Connect, Accept, CompleteConnect and Disconnect, both ends on one runtime.
pub(crate) fn connection(count: usize) -> io::Result<()> {
    runtime()?.block_on(async {
        let adapter = open(SoftConfig::default())?;
        let listener = adapter.listener();
        listener.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        listener.listen(1)?;
        let address = listener.local_addr()?;
        for _ in 0..count {
            let active = async {
                let queue_pair = adapter.queue_pair(small())?;
                let params = ConnectParams::default();
                let connector = adapter.connector();
                let connection = connector.connect_and_complete(&queue_pair, address, params).await?;
                io::Result::Ok(connection.disconnect().await?)
            };
            let passive = async {
                let queue_pair = adapter.queue_pair(small())?;
                let connection = listener.accept_next(&queue_pair, AcceptParams::default()).await?;
                connection.disconnected().await;
                io::Result::Ok(())
            };
            tokio::try_join!(active, passive)?;
        }
        Ok(())
    })
}
