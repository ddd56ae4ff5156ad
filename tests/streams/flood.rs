//! Listeners for streams and messages with many peers that connect and then say nothing, over the soft provider.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use common::crowd::{Crowd, hello, raise_descriptors, request};
use common::messages::listening_for_messages;
use common::process::{OwnTime, alone};
use common::stream::listening;
use common::*;
use tokio_rdma::{Messages, MessagesConfig, RdmaStream, StreamConfig};

/// As long as an honest peer may wait for the others.
const DELAY: Duration = Duration::from_secs(1);

/// Peers that have sent nothing, or their request and nothing more.
const PEERS: usize = 2000;

/// Connects again and again, while that crowd is there.
async fn assert_delay<C, A>(
    address: SocketAddr,
    words: Vec<u8>,
    connect: impl AsyncFn() -> C,
    accept: impl AsyncFn() -> io::Result<A>,
) {
    assert!(raise_descriptors() > 2 * PEERS + 100, "too few descriptors for this test");
    let mut crowd = Crowd::new(address, PEERS, words).await;
    let mut delays = Vec::new();
    for _ in 0..9 {
        crowd.renewed(100).await;
        let begin = OwnTime::begin();
        let (_connected, accepted) = within(async { tokio::join!(connect(), accept()) }).await;
        accepted.expect("accepted");
        delays.push(begin.elapsed());
    }
    delays.sort();
    // Tests share the machine.
    assert!(delays[delays.len() / 2] < DELAY, "{delays:?}");
}

/// Streams, with a crowd that says nothing, or asks for streams and does not complete them.
async fn streams(asks: bool) {
    // Small ones, so that the time of a test without optimisation is not that of their preparation.
    let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
    let (adapter, config) = (adapter(), config.send_depth(16).receive_depth(16));
    let hello = hello(&adapter, async |to| RdmaStream::connect_on(&adapter, to, &config).await).await;
    let listener = listening(&adapter, &config);
    let address = listener.local_addr().expect("bound");
    let words = if asks { request(&hello) } else { Vec::new() };
    let connect = async || RdmaStream::connect_on(&adapter, address, &config).await.expect("connected");
    assert_delay(address, words, connect, async || listener.accept().await).await;
}

// IO-10, SEC-07
#[tokio::test]
async fn silent_peers_delay_no_stream() {
    if alone(module_path!(), "silent_peers_delay_no_stream") {
        streams(false).await;
    }
}

// IO-10
#[tokio::test]
async fn peers_that_do_not_complete_delay_no_stream() {
    if alone(module_path!(), "peers_that_do_not_complete_delay_no_stream") {
        streams(true).await;
    }
}

// IO-10
#[tokio::test]
async fn peers_that_do_not_complete_delay_no_messages() {
    if !alone(module_path!(), "peers_that_do_not_complete_delay_no_messages") {
        return;
    }
    let (adapter, config) = (adapter(), MessagesConfig::default().max_message(1 << 10));
    let hello = hello(&adapter, async |to| Messages::connect_on(&adapter, to, &config).await).await;
    let listener = listening_for_messages(&adapter, &config);
    let address = listener.local_addr().expect("bound");
    let connect = async || Messages::connect_on(&adapter, address, &config).await.expect("connected");
    assert_delay(address, request(&hello), connect, async || listener.accept().await).await;
}
