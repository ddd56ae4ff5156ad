//! Byte streams: TCP by tokio's `TcpStream`, the limit that everything is measured against, written as one would for
//! speed; and this crate's stream by the same code.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rdma::{RdmaConnector, RdmaListener, RdmaStream, StreamConfig};

use super::{End, Laps, Orders, answer, median, say, several, unsupported};
use crate::order::{Order, Posting, WINDOW};

/// The least room of one read when the stream is read in bulk.
pub(super) const BULK: usize = 64 * 1024;

/// A source of byte streams.
pub(super) trait Network: Clone + Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    type Listener: Send + Sync + 'static;

    async fn bind(&self, address: SocketAddr) -> io::Result<(Self::Listener, SocketAddr)>;
    fn accept(listener: &Self::Listener) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

#[derive(Clone)]
pub(super) struct Tcp;

impl Network for Tcp {
    type Stream = TcpStream;
    type Listener = TcpListener;

    async fn bind(&self, address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// This crate, over its soft provider.
#[derive(Clone)]
pub(super) struct Rdma {
    config: StreamConfig,
    /// The connector that is kept; without it each stream is connected by `RdmaStream::connect`.
    connector: Option<RdmaConnector>,
}

impl Rdma {
    /// Connects by a connector with these settings.
    pub(super) fn kept(config: StreamConfig) -> Self {
        Self { config, connector: Some(RdmaConnector::new().config(config)) }
    }

    /// Connects by `RdmaStream::connect`, which has the default settings.
    pub(super) fn one_off() -> Self {
        Self { config: StreamConfig::default(), connector: None }
    }

    fn of(end: &End) -> Self {
        let mut config = StreamConfig::default();
        if let Some(micros) = end.spin {
            config = config.spin(Duration::from_micros(micros));
        }
        if let Some(kibibytes) = end.send_buffer {
            config = config.send_buffer(kibibytes << 10);
        }
        if let Some(kibibytes) = end.receive_buffer {
            config = config.receive_buffer(kibibytes << 10);
        }
        Self::kept(config)
    }
}

impl Network for Rdma {
    type Stream = RdmaStream;
    type Listener = RdmaListener;

    async fn bind(&self, address: SocketAddr) -> io::Result<(RdmaListener, SocketAddr)> {
        let adapter = tokio_rdma::Adapter::open(address.ip())?;
        let listener = RdmaListener::bind_on(&adapter, address, &self.config)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &RdmaListener) -> io::Result<RdmaStream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<RdmaStream> {
        match &self.connector {
            Some(connector) => Ok(connector.connect(address).await?),
            None => RdmaStream::connect(address).await,
        }
    }
}

/// Either end over TCP, until the orders end.
pub(super) async fn tcp(end: End, orders: Orders) -> io::Result<()> {
    run(Tcp, end, orders).await
}

/// Either end over this crate's stream, until the orders end.
pub(super) async fn stream(end: End, orders: Orders) -> io::Result<()> {
    run(Rdma::of(&end), end, orders).await
}

async fn run<N: Network>(network: N, end: End, mut orders: Orders) -> io::Result<()> {
    match end.peer {
        None => {
            let (listener, address) = network.bind(end.listen).await?;
            say(&address.to_string())?;
            let stream = N::accept(&listener).await?;
            tokio::spawn(greet::<N>(listener));
            let mut passive = Passive { stream, block: Vec::new() };
            while let Some(order) = orders.next().await {
                passive.obey(order).await?;
                answer(Duration::ZERO)?;
            }
        }
        Some(address) => {
            let stream = network.connect(address).await?;
            let orderly = end.orderly;
            let mut active =
                Active { network, stream, address, orderly, block: Vec::new(), held: Vec::new() };
            while let Some(order) = orders.next().await {
                answer(active.obey(order).await?)?;
            }
        }
    }
    Ok(())
}

/// Answers every further connection with the byte that it sends, and waits for its end.
async fn greet<N: Network>(listener: N::Listener) -> io::Result<()> {
    loop {
        let mut stream = N::accept(&listener).await?;
        tokio::spawn(async move {
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
            stream.read(&mut [0]).await
        });
    }
}

/// A connection that is known to work: the peer has answered.
async fn greeted<N: Network>(network: N, address: SocketAddr) -> io::Result<N::Stream> {
    let mut stream = network.connect(address).await?;
    stream.write_u8(7).await?;
    stream.read_u8().await?;
    Ok(stream)
}

/// Ends a connection, and waits until the peer has done so, too.
pub(super) async fn part(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    while stream.read(&mut [0]).await? > 0 {}
    Ok(())
}

/// The end that begins.
struct Active<N: Network> {
    network: N,
    stream: N::Stream,
    address: SocketAddr,
    orderly: bool,
    block: Vec<u8>,
    held: Vec<N::Stream>,
}

impl<N: Network> Active<N> {
    async fn obey(&mut self, order: Order) -> io::Result<Duration> {
        let start = Instant::now();
        match order {
            Order::Ping { size, count } => {
                self.block.resize(2 * size, 0);
                let (out, back) = self.block.split_at_mut(size);
                let mut laps = Laps::default();
                for _ in 0..count {
                    let stream = &mut self.stream;
                    laps.lap(async {
                        stream.write_all(out).await?;
                        stream.read_exact(&mut back[..size]).await
                    })
                    .await?;
                }
                return Ok(median(laps.0));
            }
            Order::Write { size, count, how } => {
                // To a stream a batch is one larger write.
                let group = if how == Posting::Batch { WINDOW } else { 1 };
                let block = vec![0; size * group];
                let start = Instant::now();
                for _ in 0..count / group {
                    self.stream.write_all(&block).await?;
                }
                self.stream.read_u8().await?;
                return Ok(start.elapsed());
            }
            Order::Read { size, count } => {
                self.block.resize(size, 0);
                self.stream.write_u8(0).await?;
                for _ in 0..count {
                    self.stream.read_exact(&mut self.block).await?;
                }
            }
            Order::Cycle { at_once, count } => {
                let orderly = self.orderly;
                let cycle = || {
                    let greeted = greeted(self.network.clone(), self.address);
                    async move {
                        let stream = greeted.await?;
                        if orderly { part(stream).await } else { Ok(()) }
                    }
                };
                several(at_once, count, cycle).await?;
            }
            Order::Grow { total } => {
                let more = total.saturating_sub(self.held.len());
                let connect = || greeted(self.network.clone(), self.address);
                self.held.extend(several(WINDOW, more, connect).await?);
            }
            _ => return Err(unsupported(order)),
        }
        Ok(start.elapsed())
    }
}

/// The end that answers.
struct Passive<S> {
    stream: S,
    block: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Passive<S> {
    async fn obey(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Ping { size, count } => {
                self.block.resize(size, 0);
                for _ in 0..count {
                    self.stream.read_exact(&mut self.block).await?;
                    self.stream.write_all(&self.block).await?;
                }
            }
            Order::Write { size, .. } => {
                self.block.resize(size.max(BULK), 0);
                let mut left = order.bytes();
                while left > 0 {
                    match self.stream.read(&mut self.block).await? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        length => left -= length,
                    }
                }
                self.stream.write_u8(0).await?;
            }
            Order::Read { size, count } => {
                self.block.resize(size, 0);
                self.stream.read_u8().await?;
                for _ in 0..count {
                    self.stream.write_all(&self.block).await?;
                }
            }
            // These are for `greet`.
            Order::Cycle { .. } | Order::Grow { .. } => {}
            _ => return Err(unsupported(order)),
        }
        Ok(())
    }
}
