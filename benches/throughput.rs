//! Criterion: RDMA Writes and Reads, several in flight, both ends in one process.

mod common;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use common::Stage;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokio_rdma::{Access, Op, QueuePair, RegionSlice, RemoteRegion};

const WINDOW: usize = 16;
const LARGEST: usize = 1 << 20;

/// So many blocks, one way or the other.
async fn transfer(
    queue_pair: &QueuePair,
    local: &RegionSlice,
    remote: &RemoteRegion,
    write: bool,
    count: u64,
) -> io::Result<Duration> {
    let mut flying: VecDeque<Op<RegionSlice>> = VecDeque::new();
    let start = Instant::now();
    for _ in 0..count {
        if flying.len() == WINDOW
            && let Some(oldest) = flying.pop_front()
        {
            oldest.await.0?;
        }
        let local = local.clone();
        let op = if write { queue_pair.write(local, remote)? } else { queue_pair.read(local, remote)? };
        flying.push_back(op);
    }
    for op in flying {
        op.await.0?;
    }
    Ok(start.elapsed())
}

fn throughput(criterion: &mut Criterion) {
    let runtime = common::runtime();
    let prepare = async {
        let stage = Stage::new()?;
        let (here, there) = (stage.queue_pair()?, stage.queue_pair()?);
        let ends = stage.connect(&here, &there).await?;
        let local = stage.adapter.register(LARGEST, Access::LOCAL_WRITE).await?;
        let remote = stage.adapter.register(LARGEST, Access::REMOTE_READ | Access::REMOTE_WRITE).await?;
        io::Result::Ok((here, there, ends, local, remote))
    };
    let (here, _there, _ends, local, remote) = runtime.block_on(prepare).expect("a connection");
    for (name, write) in [("RDMA Write", true), ("RDMA Read", false)] {
        let mut group = criterion.benchmark_group(name);
        for size in [4096, LARGEST] {
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                b.iter_custom(|count| {
                    let (here, remote) = (here.clone(), remote.remote());
                    let local = local.slice(0..size).expect("in bounds");
                    let moved =
                        runtime.spawn(async move { transfer(&here, &local, &remote, write, count).await });
                    runtime.block_on(moved).expect("a task").expect("a transfer")
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, throughput);
criterion_main!(benches);
