//! The operations that are measured, as a program would write them. Each thread has a track.

use std::io;
use std::net::SocketAddr;

use clap::ValueEnum;
use tokio::runtime::{Builder, Runtime};
use tokio_rdma::qp::{
    CompletionQueueConfig, Done, Endpoint, Lane, LaneConfig, Op, QueuePairId, Slot, WorkCompletion,
    WorkOptions,
};
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, CompletionQueue, ConnectParams, Connection, Provider, QueuePair,
    QueuePairConfig, RemoteRegion,
};

const MESSAGE: usize = 64;
/// The depth of a send queue.
const DEPTH: usize = 64;
/// The operations before those that are measured: a core that was idle has forgotten much.
pub(crate) const WARM_UP: usize = 512;
/// The most receives of a batch, with those before: the device keeps them.
pub(crate) const RECEIVES: usize = 4096 + WARM_UP;
/// The sends with one doorbell.
const CHAIN: usize = 16;
/// The number of completions that a poll asks for.
const MOST: usize = 16;

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Line {
    /// A Send that is awaited.
    Future,
    /// A Send, and its completion from a queue that the program polls.
    Polled,
    /// The same with bytes that the call copies.
    Inline,
    /// Sixteen Sends with one doorbell, and their completions from such a queue.
    Batch,
    /// A receive, without its completion.
    Receive,
    /// A Send of a lane, and its completion.
    LaneSend,
    /// The same, handed to the device by the posting call.
    LaneSendNow,
    /// Sixteen Sends of a lane with one doorbell, and their completions.
    LaneBatch,
    /// Writes of 1 MiB of a lane, sixteen under way.
    LaneWrite,
    /// A receive of a lane with a doorbell of its own, without its completion.
    LaneReceive,
    /// Sixteen receives of a lane with one doorbell, without their completions.
    LaneReceives,
}

impl Line {
    /// Whether the work is that of a lane.
    fn is_lane(self) -> bool {
        use Line::{LaneBatch, LaneReceive, LaneReceives, LaneSend, LaneSendNow, LaneWrite};
        matches!(self, LaneSend | LaneSendNow | LaneBatch | LaneWrite | LaneReceive | LaneReceives)
    }

    /// Whether it posts receives.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Receive | Self::LaneReceive | Self::LaneReceives)
    }
}

/// The work of a thread.
pub(crate) trait Track {
    /// Does what comes before all operations of a batch.
    fn prepare(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Does so many operations.
    fn run(&mut self, count: usize) -> io::Result<()>;
}

/// Makes a track on the thread that runs it.
pub(crate) type MakeTrack = Box<dyn FnOnce() -> io::Result<Box<dyn Track>> + Send>;

pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// The first adapter of the device. Must be called in a runtime.
pub(crate) fn adapter() -> io::Result<Adapter> {
    let provider = Provider::verbs()?;
    Ok(provider.open(provider.resolve([127, 0, 0, 1].into())?)?)
}

pub(crate) fn config() -> QueuePairConfig {
    QueuePairConfig::default().receive_depth(DEPTH).send_depth(DEPTH).receive_entries(1).send_entries(1)
}

/// A connected queue pair, and what keeps it connected.
pub(crate) struct Connected {
    queue_pair: QueuePair,
    _peer: QueuePair,
    pub(crate) connections: [Connection; 2],
}

pub(crate) async fn connect(adapter: &Adapter, config: QueuePairConfig) -> io::Result<Connected> {
    let queue_pair = adapter.queue_pair(config)?;
    let (peer, connections) = join(adapter, &queue_pair).await?;
    Ok(Connected { queue_pair, _peer: peer, connections })
}

/// Connects an end to a new queue pair.
async fn join(adapter: &Adapter, end: &impl Endpoint) -> io::Result<(QueuePair, [Connection; 2])> {
    let listener = adapter.listener();
    listener.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    listener.listen(1)?;
    let address = listener.local_addr()?;
    let peer = adapter.queue_pair(config())?;
    let connector = adapter.connector();
    let accepted =
        async { listener.accept_next(&peer, AcceptParams::default()).await.map_err(io::Error::from) };
    let connected = async {
        let params = ConnectParams::default();
        connector.connect_and_complete(end, address, params).await.map_err(io::Error::from)
    };
    let (accepted, connected) = tokio::try_join!(accepted, connected)?;
    Ok((peer, [accepted, connected]))
}

/// A track for this line. Those with a completion queue of their own share the adapter; the others need its reactor on their
/// thread, and open one each.
pub(crate) async fn track(adapter: &Adapter, line: Line) -> io::Result<MakeTrack> {
    match line {
        Line::Future => return Ok(Box::new(|| Ok(Box::new(Futures::new()?)))),
        Line::Receive => return Ok(Box::new(|| Ok(Box::new(Receives::new()?)))),
        _ if line.is_lane() => return Ok(Box::new(move || Ok(Box::new(Alone::new(line)?)))),
        _ => {}
    }
    let queue = adapter.completion_queue(CompletionQueueConfig::default().depth(2 * DEPTH))?;
    let config = config().completions(&queue).inline(MESSAGE);
    let connected = connect(adapter, config).await?;
    let buffers = (0..CHAIN).map(|_| adapter.buffer(MESSAGE)).collect::<Result<_, _>>()?;
    let polled = Polled { line, connected, queue, buffers, posted: Vec::new(), found: Vec::new() };
    Ok(Box::new(|| Ok(Box::new(polled))))
}

/// Sends that are awaited one by one.
struct Futures {
    runtime: Runtime,
    connected: Connected,
    buffer: Option<Buffer>,
    _adapter: Adapter,
}

impl Futures {
    fn new() -> io::Result<Self> {
        let runtime = runtime()?;
        let (adapter, connected, buffer) = runtime.block_on(async {
            let adapter = adapter()?;
            let connected = connect(&adapter, config()).await?;
            let buffer = adapter.buffer(MESSAGE)?;
            io::Result::Ok((adapter, connected, Some(buffer)))
        })?;
        Ok(Self { runtime, connected, buffer, _adapter: adapter })
    }
}

impl Track for Futures {
    fn run(&mut self, count: usize) -> io::Result<()> {
        let Self { runtime, connected, buffer, .. } = self;
        let queue_pair = connected.queue_pair.clone();
        let mut message = buffer.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // A task, as the work of a program would be.
        let task = runtime.spawn(async move {
            for _ in 0..count {
                let (outcome, returned) = queue_pair.send(message)?.await;
                outcome?;
                message = returned;
            }
            io::Result::Ok(message)
        });
        *buffer = Some(runtime.block_on(task)??);
        Ok(())
    }
}

/// Sends whose completions the program polls.
struct Polled {
    line: Line,
    connected: Connected,
    queue: CompletionQueue,
    buffers: Vec<Buffer>,
    posted: Vec<Op<Buffer>>,
    found: Vec<WorkCompletion>,
}

impl Polled {
    /// Polls until so many have completed.
    fn poll(&mut self, count: usize) -> io::Result<()> {
        self.found.clear();
        while self.found.len() < count {
            self.queue.poll(MOST, &mut self.found);
        }
        let failed = self.found.iter().any(|completion| !completion.status.is_success());
        if failed { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    fn send(&mut self) -> io::Result<()> {
        let buffer = self.buffers.pop().ok_or(io::ErrorKind::BrokenPipe)?;
        let request = self.connected.queue_pair.send(buffer)?;
        self.poll(1)?;
        self.take_back(request)
    }

    fn take_back(&mut self, request: Op<Buffer>) -> io::Result<()> {
        // The queue was polled for its completion.
        let (outcome, buffer) = request.take().map_err(|_| io::ErrorKind::BrokenPipe)?;
        outcome?;
        self.buffers.push(buffer);
        Ok(())
    }

    fn send_inline(&mut self) -> io::Result<()> {
        let bytes = [0; MESSAGE];
        // The bytes were copied: there is nothing to take back.
        drop(self.connected.queue_pair.send_inline(&[&bytes], WorkOptions::default())?);
        self.poll(1)
    }

    fn send_chain(&mut self) -> io::Result<()> {
        let batch = self.connected.queue_pair.batch();
        for buffer in self.buffers.drain(..) {
            self.posted.push(batch.send(buffer)?);
        }
        batch.submit();
        self.poll(CHAIN)?;
        let mut posted = std::mem::take(&mut self.posted);
        posted.drain(..).try_for_each(|request| self.take_back(request))?;
        self.posted = posted;
        Ok(())
    }
}

impl Track for Polled {
    fn run(&mut self, count: usize) -> io::Result<()> {
        match self.line {
            Line::Inline => (0..count).try_for_each(|_| self.send_inline()),
            Line::Batch => (0..count / CHAIN).try_for_each(|_| self.send_chain()),
            _ => (0..count).try_for_each(|_| self.send()),
        }
    }
}

/// Receives in which nothing arrives.
struct Receives {
    runtime: Runtime,
    adapter: Adapter,
    connected: Option<Connected>,
    buffers: Vec<Buffer>,
    posted: Vec<Op<Buffer>>,
}

impl Receives {
    fn new() -> io::Result<Self> {
        let runtime = runtime()?;
        let (adapter, buffers) = runtime.block_on(async {
            let adapter = adapter()?;
            let buffers = (0..RECEIVES).map(|_| adapter.buffer(MESSAGE)).collect::<Result<_, _>>()?;
            io::Result::Ok((adapter, buffers))
        })?;
        Ok(Self { runtime, adapter, connected: None, buffers, posted: Vec::with_capacity(RECEIVES) })
    }
}

impl Track for Receives {
    /// A new queue pair: the device keeps what was posted to the last one.
    fn prepare(&mut self) -> io::Result<()> {
        let Self { runtime, adapter, connected, buffers, posted } = self;
        runtime.block_on(async {
            if let Some(connected) = connected.take() {
                connected.queue_pair.flush();
                for request in posted.drain(..) {
                    buffers.push(request.await.1);
                }
            }
            *connected = Some(connect(adapter, config().receive_depth(RECEIVES)).await?);
            Ok(())
        })
    }

    fn run(&mut self, count: usize) -> io::Result<()> {
        let Self { connected, buffers, posted, .. } = self;
        let connected = connected.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        for _ in 0..count {
            let buffer = buffers.pop().ok_or(io::ErrorKind::OutOfMemory)?;
            posted.push(connected.queue_pair.receive(buffer)?);
        }
        Ok(())
    }
}

/// The length of a long Write.
const LONG: usize = 1 << 20;

/// A lane with one queue pair, that of one thread alone.
struct Alone {
    line: Line,
    runtime: Runtime,
    adapter: Adapter,
    lane: Lane,
    connected: Option<(QueuePairId, QueuePair, [Connection; 2])>,
    /// Nothing has been posted since it was connected.
    is_fresh: bool,
    slots: Vec<Slot>,
    room: [Done; MOST],
}

impl Alone {
    fn new(line: Line) -> io::Result<Self> {
        let runtime = runtime()?;
        let config = match line {
            Line::LaneWrite => LaneConfig::new(CHAIN, LONG),
            // Twice as many places: a queue pair leaves its own when its requests have been polled.
            _ if line.receives() => LaneConfig::new(RECEIVES, MESSAGE).receive_depth(RECEIVES).queue_pairs(2),
            _ => LaneConfig::new(CHAIN, MESSAGE),
        };
        let (adapter, lane) = runtime.block_on(async {
            let adapter = adapter()?;
            // As the C program does: the device reads the bytes where they are.
            let lane = adapter.lane(&config.send_depth(DEPTH).inline(0))?;
            io::Result::Ok((adapter, lane))
        })?;
        let room = [Done::EMPTY; MOST];
        let (connected, is_fresh, slots) = (None, true, Vec::new());
        let mut alone = Self { line, runtime, adapter, lane, connected, is_fresh, slots, room };
        alone.connect()?;
        alone.slots = std::iter::from_fn(|| alone.lane.take()).collect();
        Ok(alone)
    }

    /// A new queue pair: the device keeps what was posted to the last one.
    fn connect(&mut self) -> io::Result<()> {
        let Self { runtime, adapter, lane, connected, slots, room, .. } = self;
        runtime.block_on(async {
            if let Some((id, ..)) = connected.take() {
                lane.close(id);
                while lane.outstanding() > 0 {
                    slots.extend(lane.ready(room).await?.iter().map(Done::slot));
                }
            }
            let (id, end) = lane.queue_pair()?;
            let (peer, connections) = join(adapter, &end).await?;
            *connected = Some((id, peer, connections));
            Ok(())
        })
    }

    /// Polls until so many have completed.
    #[inline]
    fn poll(&mut self, mut count: usize) -> io::Result<()> {
        while count > 0 {
            for done in self.lane.poll(&mut self.room)? {
                if !done.is_success() {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                count -= 1;
            }
        }
        Ok(())
    }

    fn send(&mut self, id: QueuePairId, count: usize, now: bool) -> io::Result<()> {
        let slot = *self.slots.first().ok_or(io::ErrorKind::OutOfMemory)?;
        for _ in 0..count {
            match now {
                true => self.lane.send_now(id, slot, MESSAGE)?,
                false => self.lane.send(id, slot, MESSAGE)?,
            }
            self.poll(1)?;
        }
        Ok(())
    }

    fn send_chains(&mut self, id: QueuePairId, count: usize) -> io::Result<()> {
        for _ in 0..count {
            self.lane.send_all(id, self.slots.iter().map(|slot| (*slot, MESSAGE)))?;
            self.poll(CHAIN)?;
        }
        Ok(())
    }

    fn write(&mut self, id: QueuePairId, count: usize) -> io::Result<()> {
        // The device writes nothing.
        let there = RemoteRegion::new(0, RemoteKey(0), LONG as u32);
        for slot in &self.slots {
            self.lane.write(id, *slot, 0..LONG, &there)?;
        }
        for _ in 0..count {
            let Some(done) = self.lane.poll(&mut self.room[..1])?.first() else { continue };
            done.ok()?;
            self.lane.write(id, done.slot(), 0..LONG, &there)?;
        }
        self.poll(CHAIN)
    }

    fn receive(&mut self, id: QueuePairId, count: usize, chain: usize) -> io::Result<()> {
        let rest = self.slots.len().saturating_sub(count);
        let mut slots = self.slots.split_off(rest);
        for chain in slots.chunks(chain) {
            self.lane.receive_all(id, chain.iter().copied())?;
        }
        slots.clear();
        Ok(())
    }
}

impl Track for Alone {
    fn prepare(&mut self) -> io::Result<()> {
        // The device keeps what was posted before.
        if self.line.receives() && !self.is_fresh { self.connect() } else { Ok(()) }
    }

    fn run(&mut self, count: usize) -> io::Result<()> {
        self.is_fresh = false;
        let id = self.connected.as_ref().map(|(id, ..)| *id).ok_or(io::ErrorKind::NotConnected)?;
        match self.line {
            Line::LaneSendNow => self.send(id, count, true),
            Line::LaneBatch => self.send_chains(id, count / CHAIN),
            Line::LaneWrite => self.write(id, count),
            Line::LaneReceive => self.receive(id, count, 1),
            Line::LaneReceives => self.receive(id, count, CHAIN),
            _ => self.send(id, count, false),
        }
    }
}
