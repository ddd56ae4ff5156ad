//! One connector in the hands of two tasks, each with a queue pair of its own.
//!
//! Runs on: soft, sim, rxe, siw

use std::pin::pin;
use std::sync::Arc;

use common::cm::*;
use common::device::{settled, skips};
use common::life::poll_once;
use common::*;
use futures::FutureExt;
use tokio_rdma::error::ConnectError;
use tokio_rdma::{Connector, QueuePair};

/// Makes so many calls. Returns how many were refused by the peer, not because the other task's call was in progress.
async fn call_often(connector: Arc<Connector>, queue_pair: QueuePair, calls: usize) -> usize {
    let address = nobody(v4());
    let mut refused = 0;
    for call in 0..calls {
        let outcome = within(connector.connect(&queue_pair, address, Default::default())).await;
        match outcome.expect_err("nobody listens") {
            ConnectError::Active => tokio::task::yield_now().await,
            ConnectError::Refused { .. } => refused += 1,
            error => panic!("call {call}: {error:?}"),
        }
    }
    refused
}

// A second call is Active as long as the first has not returned (CM-22), and each has its own answer (CM-15).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_two_tasks_gets_its_own_refusals() {
    let adapter = adapter();
    let connector = Arc::new(adapter.connector());
    let calls = often(10_000, 100);
    let tasks = [(); 2].map(|()| tokio::spawn(call_often(connector.clone(), queue_pair(&adapter), calls)));
    let mut refused = 0;
    for task in tasks {
        refused += task.await.expect("no panic");
    }
    assert!(refused > 0);
}

// On a device the attempt fails without the task that has asked for it. Its call is in progress until that has the answer (CM-22), and then
// the connector connects again (CM-19).
#[tokio::test]
async fn answer_is_kept_for_its_call() {
    if [Device::Soft, Device::Sim].iter().any(|device| skips(*device, "a refusal is there at once")) {
        return;
    }
    let adapter = adapter();
    let connector = adapter.connector();
    let (mine, other) = (queue_pair(&adapter), queue_pair(&adapter));
    let address = nobody(v4());
    let mut first = pin!(connector.connect(&mine, address, Default::default()));
    assert!(poll_once(&mut first).is_pending());
    settled().await;
    let second = connector.connect(&other, address, Default::default()).now_or_never();
    assert!(matches!(second, Some(Err(ConnectError::Active))), "{second:?}");
    let error = within(first).await.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let error = within(connector.connect(&other, address, Default::default())).await;
    let error = error.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}
