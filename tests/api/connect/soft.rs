//! The active side of the soft provider: its ports are TCP ports.

use common::cm::*;
use common::*;
use tokio_rdma::error::{BindError, ConnectError};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, ConnectParams, Status};

#[tokio::test]
async fn no_ephemeral_port_left() {
    let holder = adapter();
    let held = holder.connector();
    held.bind((v4(), 0).into()).expect("bound");
    let port = held.local_addr().expect("bound").port();
    let adapter = adapter_with(SoftConfig::default().ephemeral_ports(port..=port));
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));

    // The range has one port, which is taken, so connector and listener fail alike (CM-03, SEC-16).
    let error = connector.bind((v4(), 0).into()).expect_err("the only port is taken");
    assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
    let listener = adapter.listener();
    assert_eq!(listener.bind((v4(), 0).into()).expect_err("taken").status(), Status::TOO_MANY_ADDRESSES);
    // CM-03: the implicit bind of a connect says the same.
    let (listening, address) = listening(&holder);
    let error = within(connector.connect(&active, address, ConnectParams::default())).await;
    let error = error.expect_err("the only port is taken");
    assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
    assert!(matches!(error, ConnectError::Bind(BindError::TooManyAddresses(_))));

    drop(held);
    // CM-19, X2: a bind that failed leaves the connector, and CM-21: the queue pair, as they were.
    let passive = queue_pair(&holder);
    let (ours, theirs) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listening.accept_next(&passive, AcceptParams::default())
        )
    })
    .await;
    let _theirs = theirs.expect("accepted");
    assert_eq!(ours.expect("the port is free again").local_addr().port(), port);
}

// CM-03, CM-19: a connect that was refused gives the port back, to itself first of all.
#[tokio::test]
async fn refused_connect_releases_the_only_ephemeral_port() {
    let free = nobody(v4()).port();
    let adapter = adapter_with(SoftConfig::default().ephemeral_ports(free..=free));
    let peer = common::adapter();
    let (listener, address) = listening(&peer);
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    for _ in 0..3 {
        let rejecting = async {
            listener.request().await.expect("a request").reject(b"").await.expect("rejected");
        };
        let connect = connector.connect(&active, address, ConnectParams::default());
        let (error, ()) = within(async { tokio::join!(connect, rejecting) }).await;
        let error = error.expect_err("rejected");
        assert_eq!(error.status(), Status::CONNECTION_REFUSED, "{error:?}");
    }
}

// A port that another program holds counts as taken (CM-04).
#[tokio::test]
async fn a_port_of_another_program_is_not_bound() {
    let adapter = adapter();
    for ip in both() {
        let connector = adapter.connector();
        let stranger = std::net::TcpListener::bind((ip, 0)).expect("a port");
        let theirs = stranger.local_addr().expect("its address");
        assert!(matches!(connector.bind(theirs), Err(BindError::SharingViolation(_))));
        // X2: the failure leaves the connector as it was.
        connector.bind((ip, 0).into()).expect("bound");
    }
}
