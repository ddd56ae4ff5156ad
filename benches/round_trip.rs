//! Criterion: 64 bytes there and back, both ends in one process.

mod common;

use std::io;
use std::time::{Duration, Instant};

use common::Stage;
use criterion::{Criterion, criterion_group, criterion_main};
use tokio_rdma::{Adapter, QueuePair};

const MESSAGE: usize = 64;

/// Sends back what comes, until the connection ends.
async fn echo(adapter: Adapter, queue_pair: QueuePair) -> io::Result<()> {
    let mut next = queue_pair.receive(adapter.buffer(MESSAGE)?)?;
    loop {
        let spare = queue_pair.receive(adapter.buffer(MESSAGE)?)?;
        let (outcome, message) = std::mem::replace(&mut next, spare).await;
        outcome?;
        queue_pair.send(message)?.await.0?;
    }
}

/// So many round trips.
async fn trips(adapter: &Adapter, queue_pair: &QueuePair, count: u64) -> io::Result<Duration> {
    let (mut out, mut back) = (adapter.buffer(MESSAGE)?, adapter.buffer(MESSAGE)?);
    let start = Instant::now();
    for _ in 0..count {
        let receive = queue_pair.receive(back)?;
        let (outcome, sent) = queue_pair.send(out)?.await;
        outcome?;
        let (outcome, received) = receive.await;
        outcome?;
        (out, back) = (sent, received);
    }
    Ok(start.elapsed())
}

fn round_trip(criterion: &mut Criterion) {
    let runtime = common::runtime();
    let prepare = async {
        let stage = Stage::new()?;
        let (here, there) = (stage.queue_pair()?, stage.queue_pair()?);
        let echo = tokio::spawn(echo(stage.adapter.clone(), there.clone()));
        let ends = stage.connect(&here, &there).await?;
        io::Result::Ok((stage, here, ends, echo))
    };
    let (stage, here, _ends, _echo) = runtime.block_on(prepare).expect("a connection");
    criterion.bench_function("64 B round trip", |b| {
        b.iter_custom(|count| {
            let (adapter, here) = (stage.adapter.clone(), here.clone());
            let trips = runtime.spawn(async move { trips(&adapter, &here, count).await });
            runtime.block_on(trips).expect("a task").expect("round trips")
        });
    });
}

criterion_group!(benches, round_trip);
criterion_main!(benches);
