//! Requests: accepts that fail, rejects, and requests that are dropped.
//!
//! Runs on: soft, sim, rxe, siw

mod refused;
mod soft;

use common::cm::*;
use common::deviation::*;
use common::*;
use tokio_rdma::error::AcceptError;
use tokio_rdma::{AcceptParams, Adapter, Buffer, ConnectParams, Op, QueuePair, Status};

// LS-15, X1: NdConnClose. The active side releases what it was offered: refused.
#[tokio::test]
async fn nd_conn_close_accept_sees_the_release() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        // CM-21, LS-16: what was posted stays.
        let receive = open.passive.receive(adapter.buffer(16).expect("memory")).expect("posted");
        drop(open.reply);
        assert_refused(&adapter, outcome(open.accepting)).await;
        assert_kept(&adapter, &open.passive, receive).await;
    }
}

/// Asserts that a receive of a queue pair whose accept failed waits for the next connection. With two phases the first
/// connection has flushed it.
async fn assert_kept(adapter: &Adapter, queue_pair: &QueuePair, receive: Op<Buffer>) {
    if !three_phase(adapter) {
        assert_eq!(within(receive).await.0.expect_err("flushed").status(), Status::CANCELED);
        return assert_unused(adapter, queue_pair).await;
    }
    let link = connect_on(adapter, queue_pair, &adapter.connector()).await;
    let send = link.passive.send(adapter.buffer_from(b"kept").expect("memory")).expect("posted");
    within(send).await.0.expect("sent");
    let (received, buffer) = within(receive).await;
    assert_eq!(&buffer[..received.expect("received").bytes], b"kept");
}

// LS-15: the active side is gone before the accept, and it shows without a wait for the peer's answer.
#[tokio::test]
async fn accept_sees_that_the_peer_left_before() {
    for ip in both() {
        let adapter = adapter();
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        abandon(asked.connecting).await;
        let passive = queue_pair(&adapter);
        let accepted = within(asked.request.accept(&passive, AcceptParams::default())).await;
        let connected = accepted.is_ok();
        assert_withdrawn(&adapter, accepted).await;
        if connected {
            assert_used_up(&adapter, &passive).await;
            continue;
        }
        assert_usable(&adapter, &passive).await;
    }
}

// LS-16: what fails before anything has happened gives the request back, with its status.
#[tokio::test]
async fn nd_large_private_data_failed_accept_keeps_request() {
    let adapter = adapter();
    let maximum = adapter.info().max_reply_data;
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let passive = queue_pair(&adapter);
    let too_long = AcceptParams::default().private_data(vec![7; maximum + 1]);
    let retained = within(asked.request.accept(&passive, too_long)).await.expect_err("too long");
    assert_eq!(retained.status(), Status::INVALID_BUFFER_SIZE);
    let request = retained.handle.expect("as it was");
    // A queue pair that is in use (P8).
    let pair = connected(&adapter).await;
    let busy = &pair.active.queue_pair;
    let retained = within(request.accept(busy, AcceptParams::default())).await.expect_err("in use");
    assert_eq!(retained.status(), Status::CONNECTION_ACTIVE);
    let request = retained.handle.expect("as it was");
    // LS-23: one of another adapter.
    let foreign = queue_pair(&common::adapter());
    let retained = within(request.accept(&foreign, AcceptParams::default())).await.expect_err("foreign");
    assert!(matches!(retained.error, AcceptError::ForeignQueuePair));
    assert_eq!(retained.status(), Status::INVALID_PARAMETER);
    let request = retained.handle.expect("as it was");
    // None of it has reached the peer, and the accept after them succeeds.
    assert!(!asked.connecting.is_finished());
    let accepting = tokio::spawn({
        let passive = passive.clone();
        let params = AcceptParams::default().private_data(vec![7; maximum]);
        async move { request.accept(&passive, params).await }
    });
    let reply = outcome(asked.connecting).await.expect("the peer accepts");
    assert_data(&adapter, reply.private_data(), &vec![7; maximum]);
    let _ours = within(reply.complete()).await.expect("complete");
    let _theirs = outcome(accepting).await.expect("accepted");
    exchange(&adapter, &asked.active, &passive).await;
}

// No byte, one byte and the maximum arrive with the reject, over IPv4 and IPv6 (LS-17).
#[tokio::test]
async fn reject_carries_data_of_any_length() {
    let adapter = adapter();
    let maximum = max_reject_data(&adapter);
    for ip in both() {
        for length in [0, 1, maximum] {
            let asked = requested(&adapter, ip, ConnectParams::default()).await;
            let data: Vec<u8> = (0..=u8::MAX).cycle().skip(1).take(length).collect();
            within(asked.request.reject(&data)).await.expect("rejected");
            let error = outcome(asked.connecting).await.expect_err("rejected");
            assert_eq!(error.status(), Status::CONNECTION_REFUSED);
            assert_bytes(&adapter, error.private_data(), &data);
            assert_usable(&adapter, &asked.active).await;
        }
    }
}

// A reject that is too long is not sent, so the request can still be answered (LS-17, PD-04).
#[tokio::test]
async fn oversized_reject_data_returns_the_request() {
    let adapter = adapter();
    let maximum = max_reject_data(&adapter);
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let retained = within(asked.request.reject(&vec![0; maximum + 1])).await.expect_err("too long");
    assert_eq!(retained.status(), Status::INVALID_BUFFER_SIZE);
    within(retained.handle.expect("as it was").reject(b"short")).await.expect("rejected");
    let error = outcome(asked.connecting).await.expect_err("rejected");
    assert_bytes(&adapter, error.private_data(), b"short");
}

// An adapter that detects the withdrawal reports it, and on any other the reject succeeds (LS-18).
#[tokio::test]
async fn reject_sees_that_the_peer_left_before() {
    for ip in both() {
        let adapter = adapter();
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        abandon(asked.connecting).await;
        let rejected = within(asked.request.reject(b"no")).await;
        if !adapter.info().detects_withdrawal {
            // The reject is sent to a peer that has gone, and the device does not report that.
            rejected.expect("said");
            continue;
        }
        let retained = rejected.expect_err("nobody is there");
        assert!(matches!(retained.error, AcceptError::Aborted { .. }));
        assert_eq!(retained.status(), Status::CONNECTION_ABORTED);
        assert!(retained.handle.is_none());
    }
}

// The drop is no rejection by the application, so the peer may try again (LS-22).
#[tokio::test]
async fn dropping_a_request_refuses_the_peer() {
    for ip in both() {
        let adapter = adapter();
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        drop(asked.request);
        let error = outcome(asked.connecting).await.expect_err("refused");
        // The drop is no rejection, so a later attempt may succeed (ERR-10).
        assert_refused_for_now(&error);
        // PD-03: nor has the connector any data.
        assert!(asked.connector.private_data().is_err());
        assert_usable(&adapter, &asked.active).await;
    }
}

// ERR-10, LS-17: an application says no, even with the very words that the provider has for "not now".
#[tokio::test]
async fn application_reject_differs_from_a_provider_refusal() {
    const WORDS: &[u8] = b"tokio-rdma: the connection cannot be taken for now";
    let adapter = adapter();
    let mut data = WORDS.to_vec();
    for length in [WORDS.len(), max_reject_data(&adapter)] {
        data.resize(length, 1);
        let asked = requested(&adapter, v4(), ConnectParams::default()).await;
        within(asked.request.reject(&data)).await.expect("rejected");
        let error = outcome(asked.connecting).await.expect_err("rejected");
        assert_rejected(&adapter, &error);
        assert_bytes(&adapter, error.private_data(), &data);
    }
}

// LS-16, P16: the future of an accept is dropped, and the queue pair is free and whole.
#[tokio::test]
async fn dropped_accept_refuses_peer_and_frees_queue_pair() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        let receive = open.passive.receive(adapter.buffer(16).expect("memory")).expect("posted");
        take_back(&adapter, open.accepting).await;
        assert_usable(&adapter, &queue_pair(&adapter)).await;
        assert_kept(&adapter, &open.passive, receive).await;
    }
}

// The queue pair is dropped while its accept is pending, and its receives complete (P16).
#[tokio::test]
async fn dropping_the_queue_pair_finishes_its_receives() {
    let adapter = adapter();
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let passive = queue_pair(&adapter);
    let receive = passive.receive(adapter.buffer(16).expect("memory")).expect("posted");
    let mut accepting = Box::pin(asked.request.accept(&passive, AcceptParams::default()));
    assert!(futures::poll!(&mut accepting).is_pending());
    let reply = outcome(asked.connecting).await.expect("the peer accepts");
    drop(accepting);
    drop(passive);
    let (received, _) = within(receive).await;
    assert_eq!(received.expect_err("the queue pair is gone").status(), Status::CANCELED);
    drop(reply);
}
