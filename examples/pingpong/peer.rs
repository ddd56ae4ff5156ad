//! The passive end: accepts one connection, echoes messages, and does the same over raw TCP.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rdma::{AcceptParams, Adapter, Listener, QueuePair, QueuePairConfig};

use crate::measure::MESSAGE;
use crate::{GRANTED, PATIENCE, SHARED};

/// A listener at this address, ready for requests, and the adapter that it belongs to.
pub(crate) fn listen(address: SocketAddr) -> io::Result<(Adapter, Listener)> {
    let adapter = Adapter::open(address.ip())?;
    let listener = adapter.listener();
    listener.bind(address)?;
    listener.listen(1)?;
    Ok((adapter, listener))
}

/// Accepts one connection and serves it to its end.
pub(crate) async fn serve((adapter, listener): (Adapter, Listener)) -> io::Result<()> {
    let request = listener.request().await?;
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let region = adapter.register(SHARED, GRANTED).await?;
    let raw = TcpListener::bind((request.local_addr().ip(), 0)).await?;
    let mut data = region.remote().to_bytes().to_vec();
    data.extend_from_slice(&raw.local_addr()?.port().to_be_bytes());

    // Posted before the accept: the first message may come with the end of the handshake.
    let receive = queue_pair.receive(adapter.buffer(MESSAGE)?)?;
    let spare = queue_pair.receive(adapter.buffer(MESSAGE)?)?;
    let connection = request.accept(&queue_pair, AcceptParams::default().private_data(data)).await?;
    let tcp = tokio::spawn(async move {
        let (stream, _) = tokio::time::timeout(PATIENCE, raw.accept()).await??;
        serve_raw(stream).await
    });
    // Ends with the connection: the receive that is outstanding then is cancelled.
    let _ = echo(&queue_pair, [receive, spare]).await;
    connection.disconnected().await;
    tcp.abort();
    Ok(connection.disconnect().await?)
}

/// Sends every message back; two receives take turns, so that one is always posted.
async fn echo(
    queue_pair: &QueuePair,
    mut receives: [tokio_rdma::Op<tokio_rdma::Buffer>; 2],
) -> io::Result<()> {
    loop {
        for receive in &mut receives {
            let (outcome, message) = (&mut *receive).await;
            outcome?;
            let (outcome, message) = queue_pair.send(message)?.await;
            outcome?;
            *receive = queue_pair.receive(message)?;
        }
    }
}

/// Serves a raw connection as its peer: a letter and a number of repetitions say what it does next.
pub(crate) async fn serve_raw(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut block = vec![0; SHARED];
    loop {
        let what = stream.read_u8().await?;
        let count = stream.read_u32().await?;
        for _ in 0..count {
            match what {
                b'e' => {
                    stream.read_exact(&mut block[..MESSAGE]).await?;
                    stream.write_all(&block[..MESSAGE]).await?;
                }
                b'w' => drop(stream.read_exact(&mut block).await?),
                _ => stream.write_all(&block).await?,
            }
        }
        if what == b'w' {
            stream.write_u8(b'.').await?;
        }
    }
}
