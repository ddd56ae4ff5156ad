//! Peers that deviate from the standards in the same ways as Linux siw.

use std::time::Duration;

use common::raw::{self, Frame, REPLY_KEY, REQUEST_KEY, Raw, Start, bytes, room, success};
use common::*;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, ReadLimits};

/// Nothing but what is tested may break the silence.
fn quiet() -> Adapter {
    adapter_with(SoftConfig::default().path_timeout(None))
}

/// An empty RDMA Write: it changes nothing, wherever it says to go.
fn is_empty_write(frame: &Frame) -> bool {
    frame.opcode() == raw::WRITE && frame.is_last() && frame.payload().is_empty()
}

#[tokio::test]
async fn responder_missing_first_frame_gets_another() {
    let adapter = quiet();
    for start in [Start::enhanced(4, 4), Start::peer_to_peer(4, 4), Start::plain(1)] {
        let (end, mut peer, _) = raw::raw_accepts(&adapter, start.clone()).await;
        let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
        success(end.queue_pair.send(bytes(&adapter, b"question")).expect("posted")).await;
        // Everything up to here came before siw began to listen. It looks at it when something follows.
        let peer_to_peer = start.words.is_some_and(|(ird, _)| ird & raw::PEER_TO_PEER != 0);
        let rtr = if peer_to_peer { Some(peer.frame().await.expect("the RTR frame")) } else { None };
        assert!(rtr.iter().all(is_empty_write));
        assert_eq!(peer.frame().await.expect("the question").payload(), b"question");
        let another = peer.frame().await.expect("another frame");
        assert!(is_empty_write(&another), "{start:?}: {another:?}");
        peer.post(&raw::send(1, b"answer")).await;
        assert_eq!(success(receive).await.0, b"answer".len(), "{start:?}");
    }
}

#[tokio::test]
async fn a_responder_that_answers_is_not_disturbed() {
    let adapter = quiet();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(4, 4)).await;
    let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
    success(end.queue_pair.send(bytes(&adapter, b"question")).expect("posted")).await;
    assert_eq!(peer.frame().await.expect("the question").payload(), b"question");
    peer.post(&raw::send(1, b"answer")).await;
    success(receive).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    success(end.queue_pair.send(bytes(&adapter, b"next")).expect("posted")).await;
    assert_eq!(peer.frame().await.expect("the next question").payload(), b"next");
}

#[tokio::test]
async fn client_awaiting_first_message_is_served() {
    let adapter = quiet();
    for start in [Start::enhanced(4, 4), Start::plain(1), Start::enhanced(4, 4).flag(raw::CRC)] {
        let (end, mut peer, _) = raw::raw_connects(&adapter, start.clone(), AcceptParams::default()).await;
        tokio::time::pause();
        let send = end.queue_pair.send(bytes(&adapter, b"welcome")).expect("posted");
        // Not together with the reply: siw would drop the connection.
        assert_eq!(peer.message_now().await, None, "{start:?}");
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        assert_eq!(peer.message().await.expect("the greeting").payload(), b"welcome", "{start:?}");
        success(send).await;
        let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
        peer.post(&raw::send(1, b"thanks")).await;
        assert_eq!(success(receive).await.0, b"thanks".len(), "{start:?}");
    }
}

/// A start-up frame whose length field has lost 256.
fn wrapped(start: &Start, key: &[u8; 16]) -> Vec<u8> {
    let mut bytes = start.encode(key);
    assert_eq!(bytes[18], 1, "long enough");
    bytes[18] = 0;
    bytes
}

#[tokio::test]
async fn private_data_whose_length_has_wrapped_arrives_whole() {
    let adapter = adapter();
    for length in 252..=255 {
        let data: Vec<u8> = (0..).take(length).collect();
        let start = Start::enhanced(4, 2).data(&data);

        let (listener, address) = listening(&adapter);
        let mut peer = Raw::dial(address).await;
        peer.say(&wrapped(&start, REQUEST_KEY)).await;
        let request = within(listener.request()).await.expect("a request");
        assert_eq!(request.private_data()[..], data);
        assert_eq!(request.read_limits(), ReadLimits::new(2, 4));

        let (half, _peer, _, _queue_pair) = raw::raw_replies(&adapter, &wrapped(&start, REPLY_KEY)).await;
        assert_eq!(half.expect("accepted").private_data()[..], data);
    }
}

#[tokio::test]
async fn request_falsely_claiming_wrap_times_out() {
    let adapter = adapter_with(SoftConfig::default().request_timeout(Duration::from_millis(100)));
    let (listener, address) = listening(&adapter);
    let mut peer = Raw::dial(address).await;
    let mut bytes = Start::enhanced(0, 0).encode(REQUEST_KEY);
    bytes.truncate(20);
    bytes[19] = 0;
    peer.say(&bytes).await;
    assert_eq!(peer.rest().await, b"", "nothing but the end");
    // The listener is none the worse.
    let queue_pair = queue_pair(&adapter);
    let connector = adapter.connector();
    let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
    let passive = common::queue_pair(&adapter);
    let accept = listener.accept_next(&passive, AcceptParams::default());
    let (active, passive) = within(async { tokio::join!(connect, accept) }).await;
    active.expect("connected");
    passive.expect("accepted");
}
