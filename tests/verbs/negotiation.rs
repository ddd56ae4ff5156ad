//! Read limits of an iWARP device and of a peer that is nothing but a socket.
//!
//! Runs on: siw

use common::raw::{CRC, ENHANCED, REPLY_KEY, REQUEST_KEY, Raw, Start, TERMINATE};
use common::tcp::TcpListener;
use common::verbs::driver;
use common::*;
use tokio_rdma::error::ConnectError;
use tokio_rdma::{ConnectParams, ReadLimits, Reply};

/// The outcome of a connect whose peer replies with these limits, and that peer.
async fn replied(inbound: u16, outbound: u16) -> (Result<Reply, ConnectError>, Raw) {
    let adapter = adapter();
    let (listener, address) = TcpListener::bind(v4()).await.expect("bound");
    let own = queue_pair(&adapter);
    let peer = async {
        let mut raw = Raw::answer_the_phone(&listener).await;
        let request = raw.start_frame(REQUEST_KEY).await;
        assert_ne!(request.flags & ENHANCED, 0, "{request:?}");
        let flags = request.flags & (ENHANCED | CRC);
        let reply = Start { flags, words: Some((inbound, outbound)), data: Vec::new(), ..request };
        raw.say(&reply.encode(REPLY_KEY)).await;
        raw.crc = flags & CRC != 0;
        raw
    };
    let connector = adapter.connector();
    let params = ConnectParams::default().read_limits(ReadLimits::new(4, 4));
    let (raw, outcome) = within(async { tokio::join!(peer, connector.connect(&own, address, params)) }).await;
    (outcome, raw)
}

// SEC-15: RFC 6581 section 9.1: insufficient IRD resources. siw raises its own limit as far as the device goes.
#[tokio::test]
async fn excessive_read_limits_end_the_connection() {
    if driver().is_none() {
        return;
    }
    let most = u16::try_from(adapter().info().max_read_limits.inbound).expect("fits the frame");
    for (announced, accepted) in [(4, true), (most, true), (most + 1, false), (0x3ffe, false)] {
        let (outcome, mut peer) = replied(4, announced).await;
        assert_eq!(outcome.is_ok(), accepted, "{announced}: {outcome:?}");
        drop(outcome);
        let terminate = peer.message().await;
        if accepted {
            assert_eq!(terminate, None, "{announced}");
            continue;
        }
        let terminate = terminate.expect("the peer is told why");
        // siw swaps the halves of the first byte, see `bad_input` of the program `wire`.
        assert_eq!((terminate.opcode(), &terminate.payload()[..2]), (TERMINATE, &[0x02, 0x06][..]));
        assert_eq!(peer.message().await, None, "{announced}");
    }
}
