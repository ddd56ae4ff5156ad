//! Flushes of a queue pair, in each state that it can be in.
//!
//! Runs on: soft, sim, rxe, siw

use common::cm::*;
use common::deviation::*;
use common::raw::{failure, room};
use common::*;
use tokio_rdma::error::{AcceptError, ConnectError};
use tokio_rdma::{Adapter, Buffer, ConnectParams, DisconnectReason, Op, QueuePair, Status};

/// Posts two receives.
fn posted(adapter: &Adapter, queue_pair: &QueuePair) -> [Op<Buffer>; 2] {
    [(); 2].map(|()| queue_pair.receive(room(adapter, 16)).expect("posted"))
}

async fn assert_canceled(receives: [Op<Buffer>; 2]) {
    for receive in receives {
        assert_eq!(failure(receive).await, Status::CANCELED);
    }
}

// QP-16, ERR-04: the peer has the request.
#[tokio::test]
async fn a_flush_cancels_a_connect() {
    let adapter = adapter();
    for ip in both() {
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        let receives = posted(&adapter, &asked.active);
        asked.active.flush();
        let error = outcome(asked.connecting).await.expect_err("flushed");
        assert!(matches!(error, ConnectError::Canceled), "{error:?}");
        assert_canceled(receives).await;
        assert_usable(&adapter, &asked.active).await;
    }
}

// QP-16, ERR-04: the peer has accepted.
#[tokio::test]
async fn flush_cancels_a_connect_after_its_reply() {
    let adapter = adapter();
    for ip in both() {
        let open = half_open(&adapter, ip).await;
        let receives = posted(&adapter, &open.active);
        open.active.flush();
        assert_canceled(receives).await;
        let error = within(open.reply.complete()).await.expect_err("flushed");
        assert!(matches!(error, ConnectError::Canceled), "{error:?}");
        assert_usable(&adapter, &open.active).await;
        assert_refused(&adapter, outcome(open.accepting)).await;
    }
}

// QP-16, ERR-04: the reply is out. Where there are two phases there is a connection, which is lost.
#[tokio::test]
async fn a_flush_cancels_an_accept() {
    let adapter = adapter();
    for ip in both() {
        let open = half_open(&adapter, ip).await;
        let receives = posted(&adapter, &open.passive);
        if three_phase(&adapter) {
            open.passive.flush();
            let error = outcome(open.accepting).await.expect_err("flushed");
            assert!(matches!(error, AcceptError::Canceled), "{error:?}");
            assert_canceled(receives).await;
            assert_usable(&adapter, &open.passive).await;
        } else {
            let connection = outcome(open.accepting).await.expect("accepted");
            open.passive.flush();
            let reason = within(connection.disconnected()).await;
            assert!(matches!(reason, DisconnectReason::Lost { status: Status::CANCELED, .. }), "{reason:?}");
            assert_canceled(receives).await;
        }
    }
}

// QP-16: the connection does not survive it. Nothing is left for a second flush, or for one of the other end.
#[tokio::test]
async fn flush_of_connected_queue_pair_ends_its_connection() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let receives = posted(&adapter, &pair.active.queue_pair);
    pair.active.queue_pair.flush();
    let reason = within(pair.active.connection.disconnected()).await;
    assert!(matches!(reason, DisconnectReason::Lost { status: Status::CANCELED, .. }), "{reason:?}");
    assert_canceled(receives).await;
    assert_ended(&pair.passive.connection).await;
    pair.active.queue_pair.flush();
    pair.passive.queue_pair.flush();
    assert_used_up(&adapter, &pair.active.queue_pair).await;
}

// QP-16: before an attempt, between two of them, and after them.
#[tokio::test]
async fn a_flush_leaves_a_free_queue_pair_free() {
    let adapter = adapter();
    let queue_pair = queue_pair(&adapter);
    let receives = posted(&adapter, &queue_pair);
    queue_pair.flush();
    assert_canceled(receives).await;
    let connector = adapter.connector();
    let refused = connector.connect(&queue_pair, nobody(v4()), ConnectParams::default());
    assert!(matches!(within(refused).await, Err(ConnectError::Refused { .. })));
    let receives = posted(&adapter, &queue_pair);
    queue_pair.flush();
    assert_canceled(receives).await;
    assert_usable(&adapter, &queue_pair).await;
}
