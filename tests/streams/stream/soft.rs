//! The byte stream over the soft provider, with raw sockets as peers.

use std::time::Duration;

use common::life::poll_once;
use common::raw::{OFFERS_ANNOUNCEMENTS, PEER_TO_PEER, REPLY_KEY, REQUEST_KEY, Raw, Start};
use common::stream::listening;
use common::*;
use futures::FutureExt;
use tokio::io::AsyncWriteExt;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{DisconnectReason, StreamConfig};

/// The private data of a peer with memory that it does not have.
pub(crate) fn hello() -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[0] = 1;
    bytes[2..4].copy_from_slice(&100_u16.to_be_bytes());
    bytes[23] = 2;
    bytes[39] = 64;
    bytes
}

#[tokio::test]
async fn slow_handshakes_are_dropped() {
    let config = StreamConfig::default().handshake_timeout(Duration::from_millis(20));
    let listener = listening(&adapter(), &config);
    let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
    let request = Start::peer_to_peer(16, 16).data(&hello());
    raw.say(&request.encode(REQUEST_KEY)).await;
    // It answers, and waits for the first frame, which never comes; then it hangs up.
    let answer = within(raw.rest()).await;
    assert!(answer.starts_with(b"MPA ID Rep Frame"), "{answer:?}");
    assert!(poll_once(&mut listener.accept().boxed()).is_pending(), "nobody to be accepted");
}

#[tokio::test]
async fn a_wait_for_the_first_frame_delays_nobody() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
    raw.say(&Start::peer_to_peer(16, 16).data(&hello()).encode(REQUEST_KEY)).await;
    raw.start_frame(REPLY_KEY).await;
    let config = StreamConfig::default();
    let adapter = adapter();
    let stream =
        tokio_rdma::RdmaStream::connect_on(&adapter, listener.local_addr().expect("an address"), &config);
    let (stream, accepted) = within(async { tokio::join!(stream, listener.accept()) }).await;
    assert_eq!(accepted.expect("accepted").1, stream.expect("connected").local_addr().expect("an address"));
}

// IO-18: a peer of this crate is accepted with the reply, and this end may write first. The peer says nothing but its request.
#[tokio::test]
async fn peer_of_this_crate_is_accepted_with_the_reply() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
    let request = Start::peer_to_peer(16, 16).flag(OFFERS_ANNOUNCEMENTS).data(&hello());
    raw.say(&request.encode(REQUEST_KEY)).await;
    let (mut stream, _) = within(listener.accept()).await.expect("accepted");
    let reply = raw.start_frame(REPLY_KEY).await;
    assert_eq!(reply.words.expect("limits").0 & PEER_TO_PEER, 0, "no first frame is asked for");
    within(stream.write_all(b"first")).await.expect("written");
    // Behind the memory that it grants.
    while within(raw.message()).await.expect("the bytes").payload() != b"first" {}
}

#[tokio::test]
async fn stream_dropped_in_halves_waits_once() {
    const LIMIT: Duration = Duration::from_secs(3600);
    // A peer that never reads would be lost long before.
    let adapter = adapter_with(SoftConfig::default().path_timeout(None));
    let listener = listening(&adapter, &StreamConfig::default().close_timeout(LIMIT));
    let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
    // It has room for more than the sockets, and never reads.
    let mut hello = hello();
    hello[36..40].copy_from_slice(&(64_u32 << 20).to_be_bytes());
    raw.say(&Start::peer_to_peer(16, 16).data(&hello).encode(REQUEST_KEY)).await;
    raw.start_frame(common::raw::REPLY_KEY).await;
    raw.post(&common::raw::send(1, &(7_u32 << 29 | 1).to_ne_bytes())).await;
    let (mut stream, _) = within(listener.accept()).await.expect("accepted");
    // As much as the sockets take.
    while let Some(written) = tokio::task::unconstrained(stream.write(&[7; 1 << 20])).now_or_never() {
        written.expect("there is room");
    }
    let connection = stream.connection().clone();
    let (reader, writer) = stream.into_split();
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    drop(writer);
    tokio::task::yield_now().await;
    drop(reader);
    assert_eq!(connection.disconnected().await, DisconnectReason::Local);
    let waited = start.elapsed();
    assert!(waited >= LIMIT && waited < LIMIT + LIMIT / 2, "{waited:?}");
}
