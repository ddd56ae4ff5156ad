//! Criterion: a whole connection, from Connect to the end of its Disconnect.

mod common;

use std::io;

use common::Stage;
use criterion::{Criterion, criterion_group, criterion_main};

fn handshake(criterion: &mut Criterion) {
    let runtime = common::runtime();
    let stage = runtime.block_on(async { Stage::new() }).expect("a stage");
    let cycle = || async {
        let (here, there) = (stage.queue_pair()?, stage.queue_pair()?);
        let [active, passive] = stage.connect(&here, &there).await?;
        let (left, _) = tokio::join!(active.disconnect(), passive.disconnected());
        left?;
        io::Result::Ok(())
    };
    criterion.bench_function("connect, accept, complete, disconnect", |b| {
        b.iter(|| runtime.block_on(cycle()).expect("a cycle"));
    });
}

criterion_group!(benches, handshake);
criterion_main!(benches);
