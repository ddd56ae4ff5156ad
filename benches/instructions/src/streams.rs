//! Byte streams, over the soft provider.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};

use crate::ends::Ends;
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
