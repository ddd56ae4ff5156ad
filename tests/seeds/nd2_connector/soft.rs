//! `IND2Connector`: the return codes of Bind, Connect and CompleteConnect that need a separate network, a port range or
//! a setting of the soft provider. The module `nd2_connector` follows the rest of the page.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use common::net::{LEFT, RIGHT, cut, ip, isolated, with_two_interfaces};
use common::seeds::*;
use common::*;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, ConnectParams, Status};

// AD-05
#[test]
fn bind_nd_device_removed() {
    isolated(async || {
        let adapter = adapter();
        let connector = adapter.connector();
        remove(&adapter).await;
        let error = connector.bind((Ipv4Addr::LOCALHOST, 0).into()).expect_err("removed");
        assert_eq!(error.status(), Status::DEVICE_REMOVED);
    });
}

// CM-03
#[tokio::test]
async fn bind_nd_too_many_addresses() {
    let (adapter, _holder) = without_ports();
    let connector = adapter.connector();
    let error = connector.bind((Ipv4Addr::LOCALHOST, 0).into()).expect_err("no port is left");
    assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
    connector.bind(([127, 0, 0, 4], 0).into()).expect("there it is free");
}

// The port of a Bind is unique in this process only (X21): to the kernel, this socket with `SO_REUSEADDR` is that of another
// process.
#[tokio::test]
async fn bind_port_zero_may_take_foreign_port() {
    let (adapter, connector, _listener, _address, socket) = doubled();
    let foreign = socket.local_addr().expect("its address").as_socket();
    assert_eq!(connector.local_addr().ok(), foreign);
    let second =
        adapter.connector().bind(foreign.map(|local| (local.ip(), 0).into()).expect("an IP address"));
    assert_eq!(second.expect_err("unique in this process").status(), Status::TOO_MANY_ADDRESSES);
    // To another peer than that of the socket it connects from there.
    connects(&connector, &common::adapter(), &queue_pair(&adapter)).await;
}

// The remote address is not known before Connect, so that is where it comes (CM-05, X22).
#[tokio::test]
async fn bind_nd_address_already_exists_comes_with_connect() {
    let (adapter, connector, _listener, address, _socket) = doubled();
    let queue_pair = queue_pair(&adapter);
    let error = within(connector.connect(&queue_pair, address, ConnectParams::default()))
        .await
        .expect_err("there is such a connection");
    assert_eq!(error.status(), Status::ADDRESS_ALREADY_EXISTS);
    assert!(!error.is_connector_usable());
    is_burnt(&connector, &adapter).await;
}

// AD-05
#[test]
fn connect_nd_device_removed() {
    isolated(async || {
        let adapter = adapter();
        let connector = Arc::new(adapter.connector());
        let queue_pair = queue_pair(&adapter);
        let (_holder, address) = silent(v4());
        let pending = connecting(&connector, &queue_pair, address, ConnectParams::default());
        settled().await;
        remove(&adapter).await;
        for connecting in [pending, connecting(&connector, &queue_pair, address, ConnectParams::default())] {
            let error = within(connecting).await.expect("joined").expect_err("removed");
            assert_eq!(error.status(), Status::DEVICE_REMOVED);
        }
    });
}

// CM-17, CM-19
#[test]
fn connect_nd_network_or_host_unreachable_allows_retry() {
    isolated(async || {
        let adapter = adapter();
        let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
        ip("route add unreachable 198.51.100.0/24");
        ip("-6 route add unreachable 2001:db8:1::/48");
        for (peer, status) in [
            ("203.0.113.1:7", Status::NETWORK_UNREACHABLE),
            ("[2001:db8:2::1]:7", Status::NETWORK_UNREACHABLE),
            ("198.51.100.1:7", Status::HOST_UNREACHABLE),
            ("[2001:db8:1::1]:7", Status::HOST_UNREACHABLE),
        ] {
            let peer = peer.parse().expect("an address");
            let outcome = within(connector.connect(&queue_pair, peer, ConnectParams::default())).await;
            let error = outcome.expect_err("no way");
            assert_eq!(error.status(), status, "{peer}");
            assert!(error.is_connector_usable());
        }
        connects(&connector, &adapter, &queue_pair).await;
    });
}

// LS-24
#[tokio::test]
async fn connect_notes_a_slow_accept_is_waited_for() {
    let adapter = adapter_with(impatient());
    let asked = asked(&adapter, ConnectParams::default()).await;
    pass(LONG).await;
    assert!(!asked.connecting.is_finished(), "it waits still");
    let passive = queue_pair(&adapter);
    let accepting = accepting(asked.request, &passive, AcceptParams::default());
    let reply = within(asked.connecting).await.expect("joined").expect("accepted");
    within(reply.complete()).await.expect("completed");
    within(accepting).await.expect("joined").expect("accepted");
}

// AD-05
#[test]
fn complete_connect_nd_device_removed() {
    isolated(async || {
        let adapter = adapter();
        let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
        remove(&adapter).await;
        let error = within(half.reply.complete()).await.expect_err("removed");
        assert_eq!(error.status(), Status::DEVICE_REMOVED);
    });
}

// ND_IO_TIMEOUT is for providers with a time limit of their own for a slow peer (X26). Here a path that has failed between
// Accept and CompleteConnect is the loss of the peer (CM-28, LS-15), noticed within the path timeout by either call.
#[test]
fn complete_connect_nd_connection_aborted_on_failed_path() {
    let second = Duration::from_secs(1);
    with_two_interfaces(async move || {
        let adapter = |ip| soft_at(ip, SoftConfig::default().path_timeout(Some(second)));
        let (left, right) = (adapter(LEFT[0]), adapter(RIGHT[0]));
        let (listener, address) = listening_at(&right, RIGHT[0]);
        let (active, passive) = (queue_pair(&left), queue_pair(&right));
        let connector = left.connector();
        let accepting = tokio::spawn({
            let passive = passive.clone();
            async move { listener.accept_next(&passive, AcceptParams::default()).await }
        });
        let reply = within(connector.connect(&active, address, ConnectParams::default())).await;
        let reply = reply.expect("accepted");
        cut(address.port());
        // Accept
        let accepted = within(accepting).await.expect("joined").expect_err("nobody completes");
        assert_eq!(accepted.status(), Status::CONNECTION_ABORTED, "{accepted:?}");
        // The socket of this end has heard nothing for as long, or learns of it now.
        match within(reply.complete()).await {
            Err(error) => {
                assert_eq!(error.status(), Status::CONNECTION_ABORTED, "{error:?}");
                assert!(!error.is_connector_usable());
            }
            // It is complete when its last word is in the socket; the connection is lost then.
            Ok(connection) => {
                let reason = within(connection.disconnected()).await;
                assert_eq!(reason.status(), Status::IO_TIMEOUT, "{reason:?}");
            }
        }
    });
}

// LS-13
#[tokio::test]
async fn complete_connect_notes_may_come_late() {
    let adapter = adapter_with(impatient());
    let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
    pass(LONG).await;
    assert!(!half.accepting.is_finished(), "it waits still");
    within(half.reply.complete()).await.expect("completed");
    within(half.accepting).await.expect("joined").expect("accepted");
}
