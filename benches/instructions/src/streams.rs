//! Byte streams, over the soft provider.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};

use crate::ends::{Ends, runtime};
use crate::queue_pairs::open;

const ECHO: usize = 64;
const BLOCK: usize = 64 * 1024;

fn any() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A stream, each end on a runtime of its own.
fn streams(ends: &Ends) -> io::Result<(RdmaStream, RdmaStream)> {
    let config = StreamConfig::default();
    let (active, listener) = ends.prepare(async { open(SoftConfig::default()) }, async {
        Ok(RdmaListener::bind_on(&open(SoftConfig::default())?, any(), &config)?)
    })?;
    let address = listener.local_addr()?;
    ends.prepare(async { Ok(RdmaStream::connect_on(&active, address, &config).await?) }, async {
        Ok(listener.accept().await?.0)
    })
}

/// Bytes there and back. An end reads, and writes the next ones.
pub(crate) fn echo(count: usize) -> io::Result<()> {
    let ends = Ends::new()?;
    let (mut active, mut passive) = streams(&ends)?;
    let (mut here, mut there) = ([0; ECHO], [0; ECHO]);
    ends.active(async { active.write_all(&here).await })?;
    for _ in 0..count {
        ends.passive(async {
            passive.read_exact(&mut there).await?;
            passive.write_all(&there).await
        })?;
        ends.active(async {
            active.read_exact(&mut here).await?;
            active.write_all(&here).await
        })?;
    }
    Ok(())
}

/// Blocks one way.
pub(crate) fn write(count: usize) -> io::Result<()> {
    let ends = Ends::new()?;
    let (mut active, mut passive) = streams(&ends)?;
    let (out, mut back) = (vec![7; BLOCK], vec![0; BLOCK]);
    for _ in 0..count {
        ends.active(async { active.write_all(&out).await })?;
        ends.passive(async { passive.read_exact(&mut back).await })?;
    }
    Ok(())
}

/// Connect and accept of streams, and the shutdown of both ends, which are tasks of one runtime.
pub(crate) fn connect(count: usize) -> io::Result<()> {
    runtime()?.block_on(async {
        let adapter = open(SoftConfig::default())?;
        let config = StreamConfig::default();
        let listener = RdmaListener::bind_on(&adapter, any(), &config)?;
        let address = listener.local_addr()?;
        for _ in 0..count {
            let active = async { close(RdmaStream::connect_on(&adapter, address, &config).await?).await };
            let passive = async { close(listener.accept().await?.0).await };
            tokio::try_join!(active, passive)?;
        }
        Ok(())
    })
}

/// Shuts this end down, and waits for the other one.
async fn close(mut stream: RdmaStream) -> io::Result<()> {
    stream.shutdown().await?;
    match stream.read(&mut [0]).await? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
