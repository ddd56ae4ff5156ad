//! Concurrent calls of connect on one connector.

use std::sync::Barrier;

use common::raw::Raw;
use common::{adapter, queue_pair};
use futures::FutureExt;
use tokio_rdma::ConnectParams;
use tokio_rdma::error::ConnectError;

// CM-22: two connects at once on one connector: one of them has its queue pair, and the other's is free.
#[tokio::test]
async fn losing_concurrent_connect_leaves_its_queue_pair_free() {
    const ROUNDS: usize = 2000;
    let adapter = adapter();
    let (_listener, address) = Raw::listener().await;
    let start = Barrier::new(2);
    let connectors: Vec<_> = (0..ROUNDS).map(|_| adapter.connector()).collect();
    // A queue pair that is lost once fails every round from then on.
    let work = || {
        let queue_pair = queue_pair(&adapter);
        let mut good = 0;
        for connector in &connectors {
            start.wait();
            let attempt = connector.connect(&queue_pair, address, ConnectParams::default()).now_or_never();
            let first = matches!(attempt, None | Some(Err(ConnectError::Active)));
            start.wait();
            let other = adapter.connector();
            let attempt = other.connect(&queue_pair, address, ConnectParams::default()).now_or_never();
            good += usize::from(first && attempt.is_none());
        }
        good
    };
    let good = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!(good, [ROUNDS; 2]);
}
