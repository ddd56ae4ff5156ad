//! The operations that are measured, as a program would write them. Each thread has a lane.

use std::io;
use std::net::SocketAddr;

use clap::ValueEnum;
use futures::FutureExt;
use tokio::runtime::{Builder, Runtime};
use tokio_rdma::qp::{CompletionQueueConfig, Op, WorkCompletion, WorkOptions};
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, CompletionQueue, ConnectParams, Connection, Provider, QueuePair,
    QueuePairConfig,
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
}

/// The work of a thread.
pub(crate) trait Lane {
    /// Does what comes before all operations of a batch.
    fn prepare(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Does so many operations.
    fn run(&mut self, count: usize) -> io::Result<()>;
}

/// Makes a lane on the thread that runs it.
pub(crate) type MakeLane = Box<dyn FnOnce() -> io::Result<Box<dyn Lane>> + Send>;

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
    let listener = adapter.listener();
    listener.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    listener.listen(1)?;
    let address = listener.local_addr()?;
    let queue_pair = adapter.queue_pair(config)?;
    let peer = adapter.queue_pair(self::config())?;
    let connector = adapter.connector();
    let accepted =
        async { listener.accept_next(&peer, AcceptParams::default()).await.map_err(io::Error::from) };
    let connected = async {
        let params = ConnectParams::default();
        connector.connect_and_complete(&queue_pair, address, params).await.map_err(io::Error::from)
    };
    let (accepted, connected) = tokio::try_join!(accepted, connected)?;
    Ok(Connected { queue_pair, _peer: peer, connections: [accepted, connected] })
}

/// A lane for this line. Those with a completion queue of their own share the adapter; the others need its reactor on their
/// thread, and open one each.
pub(crate) async fn lane(adapter: &Adapter, line: Line) -> io::Result<MakeLane> {
    match line {
        Line::Future => return Ok(Box::new(|| Ok(Box::new(Futures::new()?)))),
        Line::Receive => return Ok(Box::new(|| Ok(Box::new(Receives::new()?)))),
        Line::Polled | Line::Inline | Line::Batch => {}
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

impl Lane for Futures {
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
        // It has resolved: the queue was polled for its completion.
        let (outcome, buffer) = request.now_or_never().ok_or(io::ErrorKind::BrokenPipe)?;
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

impl Lane for Polled {
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

impl Lane for Receives {
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
