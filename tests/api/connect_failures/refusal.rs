//! Responses of a raw socket as peer, and the state of the connector after each.

use common::raw::{self, REPLY_KEY, REQUEST_KEY, Raw, Start};
use common::*;
use tokio_rdma::ConnectParams;
use tokio_rdma::error::ConnectError;

// CM-19: whatever it was that answered, a bound connector that was refused is still bound.
#[tokio::test]
async fn invalid_reply_leaves_the_connector_bound() {
    let adapter = adapter();
    let bad_rtr = Start::enhanced(4 | raw::PEER_TO_PEER | raw::RTR_SEND, 4).encode(REPLY_KEY);
    for reply in [b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), bad_rtr] {
        let (listener, address) = Raw::listener().await;
        let queue_pair = queue_pair(&adapter);
        let connector = adapter.connector();
        connector.bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let bound = connector.local_addr().expect("bound");
        // The peer does not hang up, so nothing but this side ends the stream.
        let peer = async {
            let mut peer = Raw::answer_the_phone(&listener).await;
            peer.start_frame(REQUEST_KEY).await;
            peer.say(&reply).await;
            peer
        };
        let params = ConnectParams::default();
        let (_peer, outcome) =
            within(async { tokio::join!(peer, connector.connect(&queue_pair, address, params)) }).await;
        assert!(matches!(outcome, Err(ConnectError::Refused { .. })), "{outcome:?}");
        assert_eq!(connector.local_addr(), Ok(bound), "still");
    }
}
