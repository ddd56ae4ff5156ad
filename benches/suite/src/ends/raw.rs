//! TCP by tokio's `TcpStream`: the limit that everything is measured against, written as one would for speed.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{End, Laps, Orders, answer, median, say, several};
use crate::order::{Order, Posting, WINDOW};

/// What one read takes at least when the stream is read in bulk.
const BULK: usize = 64 * 1024;

/// Either end, until the orders end.
pub(super) async fn run(end: End, mut orders: Orders) -> io::Result<()> {
    match end.peer {
        None => {
            let listener = TcpListener::bind(end.listen).await?;
            say(&listener.local_addr()?.to_string())?;
            let stream = accept(&listener).await?;
            tokio::spawn(greet(listener));
            let mut passive = Passive { stream, block: Vec::new() };
            while let Some(order) = orders.next().await {
                passive.obey(order).await?;
                answer(Duration::ZERO)?;
            }
        }
        Some(address) => {
            let stream = connect(address).await?;
            let mut active = Active { stream, address, block: Vec::new(), held: Vec::new() };
            while let Some(order) = orders.next().await {
                answer(active.obey(order).await?)?;
            }
        }
    }
    Ok(())
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Answers every further connection with the byte that it sends, and waits for its end.
async fn greet(listener: TcpListener) -> io::Result<()> {
    loop {
        let mut stream = accept(&listener).await?;
        tokio::spawn(async move {
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
            stream.read(&mut [0]).await
        });
    }
}

/// A connection that is known to work: the peer has answered.
async fn greeted(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = connect(address).await?;
    stream.write_u8(7).await?;
    stream.read_u8().await?;
    Ok(stream)
}

/// The end that begins.
struct Active {
    stream: TcpStream,
    address: SocketAddr,
    block: Vec<u8>,
    held: Vec<TcpStream>,
}

impl Active {
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
                let address = self.address;
                several(at_once, count, || async move { greeted(address).await.map(drop) }).await?;
            }
            Order::Grow { total } => {
                let (address, more) = (self.address, total.saturating_sub(self.held.len()));
                self.held.extend(several(WINDOW, more, || greeted(address)).await?);
            }
        }
        Ok(start.elapsed())
    }
}

/// The end that answers.
struct Passive {
    stream: TcpStream,
    block: Vec<u8>,
}

impl Passive {
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
            // The others are for `greet`.
            Order::Cycle { .. } | Order::Grow { .. } => {}
        }
        Ok(())
    }
}
