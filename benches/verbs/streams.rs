//! A byte stream that does what `rstream` does: some writes one way, then as many the other way, several times.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};

use crate::Open;

/// The buffers that rstream asks for.
const BUFFER: usize = 1 << 19;
/// The number of bytes that both ends exchange before the clock starts, as there.
const GREETING: usize = 16;

/// The load of the stream, in the words of rstream.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Load {
    /// Bytes of a write (-S).
    #[arg(long)]
    pub(crate) size: usize,
    /// Writes in one direction before it turns (-C).
    #[arg(long)]
    pub(crate) count: usize,
    /// How often that goes there and back (-I).
    #[arg(long)]
    pub(crate) iterations: usize,
}

fn config(open: Open) -> StreamConfig {
    StreamConfig::default().send_buffer(BUFFER).receive_buffer(BUFFER).spin(open.spin)
}

async fn send(stream: &mut RdmaStream, bytes: &[u8], count: usize) -> io::Result<()> {
    for _ in 0..count {
        stream.write_all(bytes).await?;
    }
    Ok(())
}

async fn receive(stream: &mut RdmaStream, bytes: &mut [u8], count: usize) -> io::Result<()> {
    for _ in 0..count {
        stream.read_exact(bytes).await?;
    }
    Ok(())
}

/// Serves one client after the other, until killed.
pub(crate) async fn serve(open: Open, address: SocketAddr, load: Load) -> io::Result<()> {
    let adapter = open.adapter(&open.provider()?)?;
    let listener = RdmaListener::bind_on(&adapter, address, &config(open))?;
    println!("listening");
    let mut bytes = vec![0; load.size];
    loop {
        let (mut stream, _) = listener.accept().await?;
        receive(&mut stream, &mut [0; GREETING], 1).await?;
        send(&mut stream, &[0; GREETING], 1).await?;
        for _ in 0..load.iterations {
            receive(&mut stream, &mut bytes, load.count).await?;
            send(&mut stream, &bytes, load.count).await?;
        }
        stream.shutdown().await?;
    }
}

/// The other end; prints the nanoseconds of a write.
pub(crate) async fn call(open: Open, address: SocketAddr, load: Load) -> io::Result<()> {
    let adapter = open.adapter(&open.provider()?)?;
    let mut stream = RdmaStream::connect_on(&adapter, address, &config(open)).await?;
    let mut bytes = vec![0; load.size];
    send(&mut stream, &[0; GREETING], 1).await?;
    receive(&mut stream, &mut [0; GREETING], 1).await?;
    let start = Instant::now();
    for _ in 0..load.iterations {
        send(&mut stream, &bytes, load.count).await?;
        receive(&mut stream, &mut bytes, load.count).await?;
    }
    let writes = load.iterations * load.count * 2;
    println!("{}", start.elapsed().as_nanos() as f64 / writes as f64);
    stream.shutdown().await
}
