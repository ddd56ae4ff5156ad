//! The byte stream over the soft provider, with raw sockets as peers.

use std::time::Duration;

use common::life::poll_once;
use common::raw::{REQUEST_KEY, Raw, Start};
use common::stream::listening;
use common::*;
use futures::FutureExt;
use tokio_rdma::StreamConfig;

/// The private data of a peer with memory that it does not have.
fn hello() -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[0] = 1;
    bytes[2..4].copy_from_slice(&100_u16.to_be_bytes());
    bytes[23] = 2;
    bytes[39] = 64;
    bytes
}

#[tokio::test]
async fn who_takes_too_long_is_dropped() {
    let config = StreamConfig::default().handshake_timeout(Duration::from_millis(20));
    let listener = listening(&adapter(), &config);
    let mut raw = Raw::dial(listener.local_addr()).await;
    let request = Start::peer_to_peer(16, 16).data(&hello());
    raw.say(&request.encode(REQUEST_KEY)).await;
    // It answers, and waits for the first frame, which never comes; then it hangs up.
    let answer = within(raw.rest()).await;
    assert!(answer.starts_with(b"MPA ID Rep Frame"), "{answer:?}");
    assert!(poll_once(&mut listener.accept().boxed()).is_pending(), "nobody to be accepted");
}

#[tokio::test]
async fn who_waits_for_the_first_frame_is_no_hindrance() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let mut raw = Raw::dial(listener.local_addr()).await;
    raw.say(&Start::peer_to_peer(16, 16).data(&hello()).encode(REQUEST_KEY)).await;
    raw.start_frame(common::raw::REPLY_KEY).await;
    let config = StreamConfig::default();
    let adapter = adapter();
    let stream = tokio_rdma::RdmaStream::connect_on(&adapter, listener.local_addr(), &config);
    let (stream, accepted) = within(async { tokio::join!(stream, listener.accept()) }).await;
    assert_eq!(accepted.expect("accepted").1, stream.expect("connected").local_addr());
}
