//! This crate's soft provider.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Connection, Listener, Op, Provider, QueuePair,
    QueuePairConfig, Region, RegionSlice, RemoteRegion,
};

use super::{End, Laps, Orders, answer, median, say, several, unsupported};
use crate::order::{Order, Posting, WINDOW};

/// The largest block.
const LARGEST: usize = 1 << 20;
/// The largest message, which is never a block.
const MESSAGE: usize = 64;

/// Either end, until the orders end.
pub(super) async fn run(end: End, mut orders: Orders) -> io::Result<()> {
    let adapter = open(end.peer.unwrap_or(end.listen).ip(), &end)?;
    let access = match end.peer {
        None => Access::REMOTE_READ | Access::REMOTE_WRITE,
        // Only requests of this end use it.
        Some(_) => Access::LOCAL_WRITE,
    };
    let region = adapter.register(LARGEST, access).await?;
    match end.peer {
        None => {
            let listener = adapter.listener();
            listener.bind(end.listen)?;
            listener.listen(0)?;
            say(&listener.local_addr()?.to_string())?;
            let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
            // Before the accept: the first message may come with the end of the handshake.
            let mut passive = Passive::new(&adapter, queue_pair)?;
            let params = AcceptParams::default().private_data(region.remote().to_bytes());
            let _connection = listener.accept_next(&passive.queue_pair, params).await?;
            tokio::spawn(greet(adapter, listener));
            while let Some(order) = orders.next().await {
                passive.obey(order).await?;
                answer(Duration::ZERO)?;
            }
        }
        Some(address) => {
            let mut active = Active::connect(adapter, region, address).await?;
            while let Some(order) = orders.next().await {
                answer(active.obey(order).await?)?;
            }
        }
    }
    Ok(())
}

/// An adapter with the settings of the command line.
fn open(address: IpAddr, end: &End) -> io::Result<Adapter> {
    let config = SoftConfig::default().crc(end.crc).spin(Duration::from_micros(end.spin.unwrap_or(0)));
    let provider = Provider::soft_with(config);
    Ok(provider.open(provider.resolve(address)?)?)
}

/// As large as a connection of one request at a time needs it.
fn small() -> QueuePairConfig {
    QueuePairConfig::default().receive_depth(1).send_depth(1).receive_entries(1).send_entries(1)
}

/// Accepts all further connections, and waits for the end of each.
async fn greet(adapter: Adapter, listener: Listener) -> io::Result<()> {
    loop {
        let request = listener.request().await?;
        let adapter = adapter.clone();
        tokio::spawn(async move {
            let queue_pair = adapter.queue_pair(small())?;
            let connection = request.accept(&queue_pair, AcceptParams::default()).await?;
            connection.disconnected().await;
            io::Result::Ok(())
        });
    }
}

/// A connection that both sides have completed.
async fn greeted(adapter: &Adapter, address: SocketAddr) -> io::Result<(QueuePair, Connection)> {
    let queue_pair = adapter.queue_pair(small())?;
    let reply = adapter.connector().connect(&queue_pair, address, ConnectParams::default()).await?;
    Ok((queue_pair, reply.complete().await?))
}

/// A request of the send queue in flight.
type Flying = VecDeque<Op<RegionSlice>>;

/// Waits for the oldest one.
async fn finish(flying: &mut Flying) -> io::Result<()> {
    let oldest = flying.pop_front().ok_or(io::ErrorKind::UnexpectedEof)?;
    oldest.await.0?;
    Ok(())
}

/// The end that begins.
struct Active {
    adapter: Adapter,
    address: SocketAddr,
    queue_pair: QueuePair,
    _connection: Connection,
    local: Region,
    remote: RemoteRegion,
    messages: Option<(Buffer, Buffer)>,
    held: Vec<(QueuePair, Connection)>,
}

impl Active {
    async fn connect(adapter: Adapter, local: Region, address: SocketAddr) -> io::Result<Self> {
        let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
        let connector = adapter.connector();
        let reply = connector.connect(&queue_pair, address, ConnectParams::default()).await?;
        let remote = RemoteRegion::decode(reply.private_data()).ok_or(io::ErrorKind::InvalidData)?;
        let connection = reply.complete().await?;
        let messages = Some((adapter.buffer(MESSAGE)?, adapter.buffer(MESSAGE)?));
        let held = Vec::new();
        Ok(Self { adapter, address, queue_pair, _connection: connection, local, remote, messages, held })
    }

    async fn obey(&mut self, order: Order) -> io::Result<Duration> {
        let start = Instant::now();
        match order {
            Order::Ping { size: MESSAGE, count } => {
                let mut laps = Laps::default();
                for _ in 0..count {
                    laps.lap(self.ping()).await?;
                }
                return Ok(median(laps.0));
            }
            Order::Write { size, count, how } => {
                let local = self.block(size)?;
                match how {
                    Posting::Single => {
                        for _ in 0..count {
                            self.queue_pair.write(local.clone(), &self.remote)?.await.0?;
                        }
                    }
                    Posting::Window => {
                        self.window(count, |queue_pair, remote| Ok(queue_pair.write(local.clone(), remote)?))
                            .await?;
                    }
                    Posting::Batch => {
                        for _ in 0..count / WINDOW {
                            self.batch(&local).await?;
                        }
                    }
                }
                // A message behind the blocks is answered when they have arrived.
                self.ping().await?;
            }
            Order::Read { size, count } => {
                let local = self.block(size)?;
                self.window(count, |queue_pair, remote| Ok(queue_pair.read(local.clone(), remote)?)).await?;
                // The peer waits for it.
                self.ping().await?;
            }
            Order::Cycle { at_once, count } => {
                let (adapter, address) = (self.adapter.clone(), self.address);
                several(at_once, count, || {
                    let adapter = adapter.clone();
                    async move {
                        let (_queue_pair, connection) = greeted(&adapter, address).await?;
                        Ok(connection.disconnect().await?)
                    }
                })
                .await?;
            }
            Order::Grow { total } => {
                let (adapter, address) = (self.adapter.clone(), self.address);
                let connect = || {
                    let adapter = adapter.clone();
                    async move { greeted(&adapter, address).await }
                };
                self.held.extend(several(WINDOW, total.saturating_sub(self.held.len()), connect).await?);
            }
            _ => return Err(unsupported(order)),
        }
        Ok(start.elapsed())
    }

    /// One message there and back.
    async fn ping(&mut self) -> io::Result<()> {
        let (out, back) = self.messages.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let receive = self.queue_pair.receive(back)?;
        let (outcome, out) = self.queue_pair.send(out)?.await;
        outcome?;
        let (outcome, back) = receive.await;
        outcome?;
        self.messages = Some((out, back));
        Ok(())
    }

    /// Local memory of this length.
    fn block(&self, size: usize) -> io::Result<RegionSlice> {
        Ok(self.local.slice(0..size)?)
    }

    /// So many requests, several in flight.
    async fn window(
        &self,
        count: usize,
        post: impl Fn(&QueuePair, &RemoteRegion) -> io::Result<Op<RegionSlice>>,
    ) -> io::Result<()> {
        let mut flying = Flying::new();
        for _ in 0..count {
            if flying.len() == WINDOW {
                finish(&mut flying).await?;
            }
            // All to the same place, as TCP has one block too.
            let part = self.remote;
            flying.push_back(post(&self.queue_pair, &part)?);
        }
        while !flying.is_empty() {
            finish(&mut flying).await?;
        }
        Ok(())
    }

    /// Several writes at once, and their completions.
    async fn batch(&self, local: &RegionSlice) -> io::Result<()> {
        let mut flying = Flying::new();
        let batch = self.queue_pair.batch();
        for _ in 0..WINDOW {
            flying.push_back(batch.write(local.clone(), &self.remote)?);
        }
        batch.submit();
        while !flying.is_empty() {
            finish(&mut flying).await?;
        }
        Ok(())
    }
}

/// The end that answers.
struct Passive {
    queue_pair: QueuePair,
    /// Posted, in the order in which messages take them.
    receives: VecDeque<Op<Buffer>>,
}

impl Passive {
    /// Posts the first receives.
    fn new(adapter: &Adapter, queue_pair: QueuePair) -> io::Result<Self> {
        let receive = || Ok(queue_pair.receive(adapter.buffer(MESSAGE)?)?);
        let receives = [receive(), receive()].into_iter().collect::<io::Result<_>>()?;
        Ok(Self { queue_pair, receives })
    }

    async fn obey(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Ping { size: MESSAGE, count } => {
                for _ in 0..count {
                    self.echo().await?;
                }
            }
            // The blocks need no help; a message says that the last one is through.
            Order::Write { .. } | Order::Read { .. } => self.echo().await?,
            // These are for `greet`.
            Order::Cycle { .. } | Order::Grow { .. } => {}
            _ => return Err(unsupported(order)),
        }
        Ok(())
    }

    /// Sends the next message back.
    async fn echo(&mut self) -> io::Result<()> {
        let receive = self.receives.pop_front().ok_or(io::ErrorKind::UnexpectedEof)?;
        let (outcome, message) = receive.await;
        outcome?;
        let (outcome, message) = self.queue_pair.send(message)?.await;
        outcome?;
        self.receives.push_back(self.queue_pair.receive(message)?);
        Ok(())
    }
}
