//! The behaviour of cards that the drivers without a card do not have.
//!
//! Runs on: fake

use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::{connected_at, fake};
use common::*;
use tokio_rdma::{AcceptParams, ConnectParams};

/// A message arrives, and a read is answered.
async fn exchange(adapter: &tokio_rdma::Adapter, pair: &Pair) {
    let receive = pair.passive.queue_pair.receive(room(adapter, 8)).expect("posted");
    success(pair.active.queue_pair.send(bytes(adapter, b"received")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"received");
}

// HW-02: an adapter has two ports, and an address in a partition: each connection uses what its own address is of.
#[tokio::test]
async fn each_connection_uses_the_port_and_the_partition_of_its_address() {
    if !alone(module_path!(), "each_connection_uses_the_port_and_the_partition_of_its_address") {
        return;
    }
    for place in ["1 1", "2 0", "2 1"] {
        let Some(_) = fake(&format!("place ::1 {place}")) else { return };
        let adapter = adapter();
        for ip in [v4(), v6(), v4()] {
            let pair = connected_at(&adapter, ip).await;
            exchange(&adapter, &pair).await;
        }
    }
}

// H1: without an end to the tries a receiver that is not ready for a moment does not stop its peer for 655 ms.
#[tokio::test]
async fn a_receiver_that_is_tried_for_ever_is_tried_soon() {
    /// 655.36 ms, and 0.64 ms.
    const LONG: &str = "rnr_timer 0";
    const SHORT: &str = "rnr_timer 12";

    if !alone(module_path!(), "a_receiver_that_is_tried_for_ever_is_tried_soon") {
        return;
    }
    let Some(0) = fake(SHORT) else { return };
    let adapter = adapter();
    let counted = connected(&adapter).await;
    assert_eq!((fake(LONG), fake(SHORT)), (Some(2), Some(0)), "as many tries as take five seconds");
    let connect = ConnectParams::default().rnr_retry_count(7);
    let endless = connected_with(&adapter, connect, AcceptParams::default().rnr_retry_count(7)).await;
    assert_eq!((fake(LONG), fake(SHORT)), (Some(2), Some(2)));
    exchange(&adapter, &endless).await;
    drop(counted);
}
