//! Connections that are accepted in the background: the answers of an acceptor, and its end.
//!
//! Runs on: soft, sim, rxe, siw

use std::future::pending;
use std::io;
use std::time::Duration;

use common::*;
use futures::StreamExt;
use tokio_rdma::error::ConnectError;
use tokio_rdma::{
    AcceptParams, Acceptor, AcceptorConfig, Adapter, ConnectParams, Connection, Listener, Request,
};

/// Answers each request as its private data asks.
fn acceptor(adapter: &Adapter, listener: &Listener) -> Acceptor<Connection> {
    let adapter = adapter.clone();
    let answer = move |request: Request| {
        let queue_pair = queue_pair(&adapter);
        async move {
            match request.private_data().first() {
                Some(b'n') => {
                    request.reject(b"").await?;
                    Err(io::Error::other("rejected"))
                }
                Some(b'?') => pending().await,
                // The connection ends with the last handle of its queue pair.
                _ => Ok(request.accept(&queue_pair, AcceptParams::default()).await?.keep_queue_pair()),
            }
        }
    };
    let config = AcceptorConfig::default().handshake_timeout(Duration::MAX);
    listener.clone().acceptor(config, answer).expect("it listens")
}

// LS-25: a peer that is rejected, and one whose answer takes for ever, are no errors of `accept` and delay nobody.
#[tokio::test]
async fn peers_that_fail_or_wait_delay_no_other() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let acceptor = acceptor(&adapter, &listener);
    let asking = |data: &[u8]| {
        let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
        let params = ConnectParams::default().private_data(data);
        async move {
            let connection = connector.connect_and_complete(&queue_pair, address, params).await?;
            Ok::<_, ConnectError>(connection.keep_queue_pair())
        }
    };
    let slow = tokio::spawn(asking(b"?"));
    within(asking(b"n")).await.expect_err("rejected");
    for _ in 0..2 {
        let (ours, theirs) = within(async { tokio::join!(asking(b"y"), acceptor.accept()) }).await;
        let (ours, theirs) = (ours.expect("connected"), theirs.expect("accepted"));
        assert_eq!(ours.local_addr(), theirs.peer_addr());
    }
    assert!(!slow.is_finished(), "nobody has answered");
    // The answer goes with the acceptor, and the request with the answer.
    drop(acceptor);
    within(slow).await.expect("no panic").expect_err("refused");
}

// LS-25: one error, and then nothing more.
#[tokio::test]
async fn end_of_the_listener_is_one_error() {
    let adapter = adapter();
    let (listener, _) = listening(&adapter);
    let mut acceptor = acceptor(&adapter, &listener);
    // A cancel is for those who wait, and the acceptor waits in a task of its own.
    tokio::task::yield_now().await;
    listener.cancel();
    within(acceptor.next()).await.expect("an error").expect_err("the listener has ended");
    assert!(within(acceptor.next()).await.is_none());
}
