//! The measurements: RDMA and raw TCP alternately, so that the load of the machine is the same, and the ratio of each
//! batch.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rdma::{Access, Adapter, Buffer, Op, QueuePair, RegionSlice, RemoteRegion};

use crate::figure::{Figure, Plan, quantile};

/// The size of a message, in bytes.
pub(crate) const MESSAGE: usize = 64;
const BLOCK: usize = crate::SHARED;
/// How many writes or reads are in flight at once.
const WINDOW: usize = 16;

/// Measures round trips, writes and reads; `progress` is called once a batch.
pub(crate) async fn all(
    adapter: &Adapter,
    queue_pair: &QueuePair,
    region: &RemoteRegion,
    raw: SocketAddr,
    plan: &Plan,
    progress: impl Fn(),
) -> io::Result<Vec<Figure>> {
    let mut tcp = TcpStream::connect(raw).await?;
    tcp.set_nodelay(true)?;
    let mut round_trip = Figure::new("rtt_64b", "us");
    let mut messages = (adapter.buffer(MESSAGE)?, adapter.buffer(MESSAGE)?);
    let local =
        adapter.register(BLOCK, Access::LOCAL_WRITE).await?.slice(0..BLOCK).map_err(io::Error::from)?;
    // The first batch only warms up.
    for batch in 0..=plan.batches {
        let (mut samples, mut raw_samples) = (Vec::new(), Vec::new());
        tcp.write_u8(b'e').await?;
        tcp.write_u32(plan.round_trips).await?;
        for _ in 0..plan.round_trips {
            let start = Instant::now();
            tcp.write_all(&messages.0).await?;
            tcp.read_exact(&mut messages.1).await?;
            raw_samples.push(micros(start));
        }
        for _ in 0..plan.round_trips {
            let start = Instant::now();
            messages = ping(queue_pair, messages).await?;
            samples.push(micros(start));
        }
        if batch > 0 {
            round_trip.rdma.push(quantile(samples.iter().copied(), 0.5));
            round_trip.tcp.push(quantile(raw_samples.into_iter(), 0.5));
            round_trip.samples.extend(samples);
            progress();
        }
    }
    let (mut write, mut read) = (Figure::new("write_1mib", "GB/s"), Figure::new("read_1mib", "GB/s"));
    let mut block = vec![0; BLOCK];
    for (figure, what) in [(&mut write, b'w'), (&mut read, b'r')] {
        for batch in 0..=plan.batches {
            let start = Instant::now();
            tcp.write_u8(what).await?;
            tcp.write_u32(plan.blocks).await?;
            for _ in 0..plan.blocks {
                if what == b'w' {
                    tcp.write_all(&block).await?;
                } else {
                    tcp.read_exact(&mut block).await?;
                }
            }
            if what == b'w' {
                tcp.read_u8().await?;
            }
            let raw_speed = gigabytes_per_second(plan.blocks, start);
            let start = Instant::now();
            transfer(queue_pair, region, &local, plan.blocks, what == b'w').await?;
            if what == b'w' {
                // A message behind the writes comes back when they have arrived.
                messages = ping(queue_pair, messages).await?;
            }
            if batch > 0 {
                figure.rdma.push(gigabytes_per_second(plan.blocks, start));
                figure.tcp.push(raw_speed);
                progress();
            }
        }
    }
    Ok(vec![round_trip, write, read])
}

/// One message there and back.
async fn ping(queue_pair: &QueuePair, (out, back): (Buffer, Buffer)) -> io::Result<(Buffer, Buffer)> {
    let receive = queue_pair.receive(back)?;
    let (outcome, out) = queue_pair.send(out)?.await;
    outcome?;
    let (outcome, back) = receive.await;
    outcome?;
    Ok((out, back))
}

/// `count` blocks by RDMA Write or Read of the same memory, as TCP has one block too; `WINDOW` of them in flight.
async fn transfer(
    queue_pair: &QueuePair,
    remote: &RemoteRegion,
    local: &RegionSlice,
    count: u32,
    write: bool,
) -> io::Result<()> {
    let mut flying = VecDeque::new();
    for _ in 0..count {
        if flying.len() == WINDOW {
            finish(&mut flying).await?;
        }
        let local = local.clone();
        let op = if write { queue_pair.write(local, remote)? } else { queue_pair.read(local, remote)? };
        flying.push_back(op);
    }
    while !flying.is_empty() {
        finish(&mut flying).await?;
    }
    Ok(())
}

async fn finish(flying: &mut VecDeque<Op<RegionSlice>>) -> io::Result<()> {
    let oldest = flying.pop_front().ok_or(io::ErrorKind::UnexpectedEof)?;
    oldest.await.0?;
    Ok(())
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn gigabytes_per_second(blocks: u32, start: Instant) -> f64 {
    f64::from(blocks) * BLOCK as f64 / start.elapsed().as_secs_f64() / 1e9
}
