//! Messages that keep their boundaries: a stream in the frames of `LengthDelimitedCodec`, over this crate's stream and over TCP.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::{Sink, SinkExt, Stream, StreamExt, TryStreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tokio_util::codec::LengthDelimitedCodec;

use super::{End, Laps, Orders, answer, median, say, unsupported};
use crate::order::{AT_ONCE, Order};

/// The longest message that is measured.
const LONGEST: usize = 1 << 20;

/// The carrier of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Stream,
    Tcp,
}

/// Either end, until the orders end.
pub(super) async fn run(over: Over, end: End, orders: Orders) -> io::Result<()> {
    match (over, end.peer) {
        (Over::Stream, None) => {
            let listener = RdmaListener::bind(end.listen).await?;
            say(&listener.local_addr()?.to_string())?;
            echo(framed(listener.accept().await?.0), orders).await
        }
        (Over::Stream, Some(address)) => {
            ask(framed(RdmaConnector::new().connect(address).await?), orders).await
        }
        (Over::Tcp, None) => {
            let listener = TcpListener::bind(end.listen).await?;
            say(&listener.local_addr()?.to_string())?;
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            echo(framed(stream), orders).await
        }
        (Over::Tcp, Some(address)) => ask(framed(connect(address).await?), orders).await,
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The messages of a stream.
fn framed<S: AsyncRead + AsyncWrite>(
    stream: S,
) -> impl Sink<Bytes, Error = io::Error> + Stream<Item = io::Result<Bytes>> {
    LengthDelimitedCodec::builder().max_frame_length(LONGEST).new_framed(stream).map_ok(BytesMut::freeze)
}

/// Sends every message back. Those that have come together go out together.
async fn echo<C>(connection: C, mut orders: Orders) -> io::Result<()>
where
    C: Sink<Bytes, Error = io::Error> + Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    let (sink, stream) = connection.split();
    tokio::spawn(stream.forward(sink));
    while orders.next().await.is_some() {
        answer(Duration::ZERO)?;
    }
    Ok(())
}

async fn ask<C>(connection: C, mut orders: Orders) -> io::Result<()>
where
    C: Sink<Bytes, Error = io::Error> + Stream<Item = io::Result<Bytes>>,
{
    let mut connection = pin!(connection);
    while let Some(order) = orders.next().await {
        answer(match order {
            Order::Ping { size, count } => {
                let message = Bytes::from(vec![7; size]);
                let mut laps = Laps::default();
                for _ in 0..count {
                    laps.lap(async {
                        connection.send(message.clone()).await?;
                        take(&mut connection, size).await
                    })
                    .await?;
                }
                median(laps.0)
            }
            Order::Echo { size, count } => {
                let start = Instant::now();
                let room = Semaphore::new(AT_ONCE);
                let (mut sink, mut stream) = connection.as_mut().split();
                // Both at once: a connection is full in one direction while nobody reads the other.
                let send = async {
                    let message = Bytes::from(vec![7; size]);
                    for _ in 0..count {
                        if room.available_permits() == 0 {
                            sink.flush().await?;
                        }
                        room.acquire().await.map_err(io::Error::other)?.forget();
                        sink.feed(message.clone()).await?;
                    }
                    sink.flush().await
                };
                let receive = async {
                    for _ in 0..count {
                        take(&mut stream, size).await?;
                        room.add_permits(1);
                    }
                    Ok(())
                };
                tokio::try_join!(send, receive)?;
                start.elapsed()
            }
            order => return Err(unsupported(order)),
        })?;
    }
    Ok(())
}

async fn take<C>(connection: &mut C, size: usize) -> io::Result<()>
where
    C: Stream<Item = io::Result<Bytes>> + Unpin,
{
    let message = connection.next().await.ok_or(io::ErrorKind::UnexpectedEof)??;
    if message.len() == size { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
