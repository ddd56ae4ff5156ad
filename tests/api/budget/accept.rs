//! Accepts of connections that are ready: a loop over them yields.
//!
//! Runs on: soft, sim

use common::device::settled;
use common::stream::listening as listening_for_streams;
use tokio_rdma::{AcceptorConfig, RdmaStream, StreamConfig};

use super::*;

/// More connections than a task of tokio has budget for in two turns.
const READY: usize = 300;

async fn assert_yields(what: &str, once: impl AsyncFnMut()) {
    let turns = turns_of_another_task(READY, once).await;
    assert!(turns >= 2, "{what}: {turns} turns of another task in {READY} accepts");
}

// Results that `accept` returns at once still leave other tasks their turns (SEC-01).
#[tokio::test]
async fn accepts_of_an_acceptor_yield() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let config = AcceptorConfig::default().handshakes(READY);
    // What is ready need not be a connection.
    let acceptor = listener.acceptor(config, |request| async move {
        drop(request);
        Ok(())
    });
    let acceptor = acceptor.expect("it listens");
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    for _ in 0..READY {
        let connect = connector.connect(&queue_pair, address, ConnectParams::default());
        within(connect).await.expect_err("the request was dropped");
    }
    settled().await;
    assert_yields("Acceptor::accept", async || acceptor.accept().await.expect("ready")).await;
}

// Streams that `accept` returns at once still leave other tasks their turns (SEC-01).
#[tokio::test]
async fn accepts_of_a_listener_for_streams_yield() {
    let adapter = adapter();
    let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
    let config = config.send_depth(16).receive_depth(16).handshakes(READY);
    let listener = listening_for_streams(&adapter, &config);
    let address = listener.local_addr().expect("bound");
    let mut streams = Vec::new();
    for _ in 0..READY {
        let connect = RdmaStream::connect_on(&adapter, address, &config);
        streams.push(within(connect).await.expect("connected"));
    }
    settled().await;
    // They are dropped later: the ends of streams give other tasks their turns, too.
    assert_yields("RdmaListener::accept", async || streams.push(listener.accept().await.expect("ready").0))
        .await;
}
