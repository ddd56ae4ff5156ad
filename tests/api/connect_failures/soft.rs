//! Failures of the active side that occur only over TCP.

use std::net::SocketAddr;
use std::sync::Arc;

use common::cm::*;
use common::*;
use tokio_rdma::error::{ConnectError, Reason};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{ConnectParams, Connector, QueuePair, Status};

async fn connect_error(connector: &Connector, queue_pair: &QueuePair, peer: SocketAddr) -> ConnectError {
    within(connector.connect(queue_pair, peer, ConnectParams::default())).await.expect_err("it fails")
}

// CM-33: and from one that hung up.
#[tokio::test]
async fn closing_peer_refuses_connect_with_its_own_reason() {
    let adapter = adapter();
    let stranger = std::net::TcpListener::bind((v4(), 0)).expect("a port");
    let address = stranger.local_addr().expect("its address");
    let (connector, active) = (Arc::new(adapter.connector()), queue_pair(&adapter));
    let connecting = connecting(&connector, &active, address, ConnectParams::default());
    let hang_up = tokio::task::spawn_blocking(move || stranger.accept().map(drop));
    outcome(hang_up).await.expect("hung up");
    let error = outcome(connecting).await.expect_err("hung up");
    assert!(error.is_connector_usable());
    let ConnectError::Refused { reason, .. } = error else { panic!("{error:?}") };
    // Which of the two depends on whether our request had arrived.
    assert!(matches!(reason, Reason::PeerClosed | Reason::Errno(libc::ECONNRESET)), "{reason:?}");
    assert_usable(&adapter, &active).await;
}

// CM-05: somebody else has the very connection that would come of this connect.
#[tokio::test]
async fn the_four_of_addresses_and_ports_exist_already() {
    let (_taken, peer) = silent(v4());
    let stranger =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    stranger.set_reuse_address(true).expect("an option");
    stranger.bind(&nobody(v4()).into()).expect("bound");
    stranger.connect(&peer.into()).expect("connected");
    let local = stranger.local_addr().expect("an address").as_socket().expect("of IP");

    let adapter = adapter_with(SoftConfig::default().ephemeral_ports(local.port()..=local.port()));
    for bound in [false, true] {
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        if bound {
            connector.bind((v4(), 0).into()).expect("the kernel lets both have the port");
            assert_eq!(connector.local_addr(), Ok(local));
        }
        let error = connect_error(&connector, &active, peer).await;
        assert_eq!(error.status(), Status::ADDRESS_ALREADY_EXISTS);
        // CM-20: not one of the four that may be tried again.
        assert!(!error.is_connector_usable());
        assert!(matches!(connect_error(&connector, &active, nobody(v4())).await, ConnectError::Active));
        // CM-21: the queue pair is free for another connector, and that one gets as far.
        drop(connector);
        let error = connect_error(&adapter.connector(), &active, peer).await;
        assert_eq!(error.status(), Status::ADDRESS_ALREADY_EXISTS);
    }
}
