//! The failures that need a separate network, a port range or a limit. The module `failures` has the others.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::task::Poll;

use common::net::{ip, isolated};
use common::process::alone;
use common::seeds::*;
use common::*;
use futures::poll;
use tokio_rdma::error::{BindError, ConnectError};
use tokio_rdma::status::porting::{DatEvent, DatReturn, Outcome};
use tokio_rdma::{ConnectParams, Status};

use super::Dat::{Event, Return};
use super::{Row, assert_named, failure};

// CM-17. NetworkDirect v1 and uDAPL have one name for both ways of being unreachable.
#[rustfmt::skip]
const UNREACHABLE: [Row; 2] = [
    (Outcome::NetworkUnreachable, Some(Status::HOST_UNREACHABLE), Some("STATUS_NETWORK_UNREACHABLE"), Event(DatEvent::UNREACHABLE)),
    (Outcome::HostUnreachable, Some(Status::HOST_UNREACHABLE), Some("STATUS_HOST_UNREACHABLE"), Event(DatEvent::UNREACHABLE)),
];
#[rustfmt::skip]
const REMOVED: Row =
    (Outcome::DeviceRemoved, Some(Status::DEVICE_REMOVED), None, Event(DatEvent::ASYNC_IA_CATASTROPHIC));
#[rustfmt::skip]
const NO_PORT: Row =
    (Outcome::PortsExhausted, Some(Status::TOO_MANY_ADDRESSES), Some("STATUS_TOO_MANY_ADDRESSES"), Return(DatReturn::CONN_QUAL_UNAVAILABLE));
#[rustfmt::skip]
const EXISTS: Row =
    (Outcome::ConnectionExists, None, Some("STATUS_ADDRESS_ALREADY_EXISTS"), Return(DatReturn::PORT_IN_USE));
#[rustfmt::skip]
const NO_DESCRIPTOR: Row =
    (Outcome::OutOfResources, Some(Status::INSUFFICIENT_RESOURCES), Some("STATUS_INSUFFICIENT_RESOURCES"), Return(DatReturn::INSUFFICIENT_RESOURCES));

// CM-19: the same connector and queue pair connect afterwards.
#[test]
fn unreachable_has_its_names() {
    isolated(async || {
        let adapter = adapter();
        let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
        ip("route add unreachable 198.51.100.0/24");
        for (peer, row) in [[203, 0, 113, 1], [198, 51, 100, 1]].into_iter().zip(&UNREACHABLE) {
            let error = failure(&connector, &queue_pair, (peer, 7).into(), ConnectParams::default()).await;
            assert_named(&error.into(), row);
        }
        connects(&connector, &adapter, &queue_pair).await;
    });
}

// The removal of a device has its name in each interface (AD-05).
#[test]
fn removal_has_its_names() {
    isolated(async || {
        let adapter = adapter();
        let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
        remove(&adapter).await;
        let peer = (Ipv4Addr::LOCALHOST, 7).into();
        let error = failure(&connector, &queue_pair, peer, ConnectParams::default()).await;
        assert_named(&error.into(), &REMOVED);
    });
}

// CM-03: by Bind, and by the implicit one of Connect.
#[tokio::test]
async fn lack_of_ports_has_its_names() {
    let (adapter, _holder) = without_ports();
    let (_listener, address) = {
        let other = common::adapter();
        listening(&other)
    };
    let connector = adapter.connector();
    let explicit = connector.bind((Ipv4Addr::LOCALHOST, 0).into()).expect_err("no port is left");
    assert!(matches!(explicit, BindError::TooManyAddresses(_)), "{explicit:?}");
    let error = failure(&connector, &queue_pair(&adapter), address, ConnectParams::default()).await;
    assert!(matches!(error, ConnectError::Bind(BindError::TooManyAddresses(_))), "{error:?}");
    assert_named(&explicit.into(), &NO_PORT);
    assert_named(&error.into(), &NO_PORT);
}

// A second connection between the same two ports is named (CM-05).
#[tokio::test]
async fn connection_that_exists_has_its_names() {
    let (adapter, connector, _listener, address, _socket) = doubled();
    let error = failure(&connector, &queue_pair(&adapter), address, ConnectParams::default()).await;
    assert_named(&error.into(), &EXISTS);
}

// Inline: this provider takes its only resource, a socket, when the call begins (X29).
#[tokio::test]
async fn lack_of_descriptors_is_known_at_once() {
    if !alone(module_path!(), "lack_of_descriptors_is_known_at_once") {
        return;
    }
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let peer = (Ipv4Addr::LOCALHOST, 7).into();
    let mut connect = pin!(connector.connect(&queue_pair, peer, ConnectParams::default()));
    let give_back = without_descriptors();
    let first = poll!(&mut connect);
    give_back();
    let Poll::Ready(Err(error)) = first else { panic!("{first:?}") };
    assert_named(&error.into(), &NO_DESCRIPTOR);
    connects(&connector, &adapter, &queue_pair).await;
}
