//! A queue pair can be used again when its failed accept has returned.
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::*;
use common::*;
use tokio_rdma::error::AcceptError;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Status};

/// Accepts, over and over, a peer that looks at the offer and then does `answer`, with one and the same queue pair.
async fn refused_again_and_again<F: Future<Output = ()>>(answer: impl Fn(tokio_rdma::Reply) -> F) {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    if !three_phase(&adapter) {
        return connected_again_and_again(&adapter, answer).await;
    }
    // It stays posted all the while.
    let receive = passive.receive(adapter.buffer(16).expect("a buffer")).expect("posted");
    for round in 0..often(300, 20) {
        let connect = async {
            let connector = adapter.connector();
            answer(connector.connect(&active, address, ConnectParams::default()).await.expect("accepted"))
                .await;
        };
        let (outcome, ()) =
            within(async { tokio::join!(listener.accept_next(&passive, AcceptParams::default()), connect) })
                .await;
        let error = outcome.expect_err("the peer does not complete");
        assert!(matches!(error, AcceptError::Refused { .. }), "round {round}: {error:?}");
    }
    let connector = adapter.connector();
    let (near, far) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
    })
    .await;
    let (_near, _far) = (near.expect("connected"), far.expect("accepted"));
    let send = active.send(adapter.buffer_from(b"at last").expect("a buffer")).expect("posted");
    within(send).await.0.expect("sent");
    assert_eq!(within(receive).await.0.expect("received").bytes, 7);
}

/// Answers accepts again and again on a device with two phases: the accept succeeds, and the end of its connection uses
/// the queue pair up.
async fn connected_again_and_again<F: Future<Output = ()>>(
    adapter: &Adapter,
    answer: impl Fn(tokio_rdma::Reply) -> F,
) {
    let (listener, address) = listening(adapter);
    for _ in 0..often(300, 20) {
        let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
        let receive = passive.receive(adapter.buffer(16).expect("a buffer")).expect("posted");
        let connector = adapter.connector();
        let mut accept = Offer::new(listener.accept_next(&passive, AcceptParams::default()));
        let connect = connector.connect(&active, address, ConnectParams::default());
        answer(accept.answered(adapter, connect).await).await;
        assert_refused(adapter, accept.outcome()).await;
        assert_eq!(within(receive).await.0.expect_err("flushed").status(), Status::CANCELED);
        assert_unused(adapter, &passive).await;
    }
}

// CM-24: the queue pair of a failed accept is as it was, at once, with its receives.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn accept_with_rejected_reply_frees_its_queue_pair() {
    refused_again_and_again(|reply| async move { reply.reject(&[]).await.expect("rejected") }).await;
}

// The drop of a reply rejects it, and the queue pair of the failed accept keeps its receives (CM-24).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn accept_with_dropped_reply_frees_its_queue_pair() {
    refused_again_and_again(|reply| async move { drop(reply) }).await;
}
