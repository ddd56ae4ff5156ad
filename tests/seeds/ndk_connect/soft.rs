//! `NdkConnect`: the return codes that need a separate network, a port range or a limit. The module `ndk_connect`
//! follows the rest of the page.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::task::Poll;

use common::net::{ip, isolated};
use common::process::alone;
use common::seeds::*;
use common::*;
use futures::poll;
use tokio_rdma::ConnectParams;
use tokio_rdma::error::{BindError, ConnectError};
use tokio_rdma::status::porting::Outcome;

use super::{failure, is};

// Inline: this provider takes its only resource, a socket, when the call begins (X29).
#[tokio::test]
async fn status_insufficient_resources() {
    if !alone(module_path!(), "status_insufficient_resources") {
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
    is(&error, Outcome::OutOfResources, "STATUS_INSUFFICIENT_RESOURCES", 0xC000_009A);
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-17, CM-19
#[test]
fn status_network_unreachable_and_status_host_unreachable() {
    isolated(async || {
        let adapter = adapter();
        let connector = adapter.connector();
        ip("route add unreachable 198.51.100.0/24");
        let error = failure(&adapter, &connector, ([203, 0, 113, 1], 7).into()).await;
        is(&error, Outcome::NetworkUnreachable, "STATUS_NETWORK_UNREACHABLE", 0xC000_023C);
        let error = failure(&adapter, &connector, ([198, 51, 100, 1], 7).into()).await;
        is(&error, Outcome::HostUnreachable, "STATUS_HOST_UNREACHABLE", 0xC000_023D);
        connects(&connector, &adapter, &queue_pair(&adapter)).await;
    });
}

// CM-03: by Bind, and by the implicit one of Connect.
#[tokio::test]
async fn status_too_many_addresses() {
    let (adapter, _holder) = without_ports();
    let (_listener, address) = {
        let other = common::adapter();
        listening(&other)
    };
    let connector = adapter.connector();
    let explicit = connector.bind((Ipv4Addr::LOCALHOST, 0).into()).expect_err("no port is left");
    assert!(matches!(explicit, BindError::TooManyAddresses(_)), "{explicit:?}");
    let error = failure(&adapter, &connector, address).await;
    assert!(matches!(error, ConnectError::Bind(BindError::TooManyAddresses(_))), "{error:?}");
    is(&error, Outcome::PortsExhausted, "STATUS_TOO_MANY_ADDRESSES", 0xC000_0209);
    assert_eq!(explicit.status(), error.status());
}

// CM-05
#[tokio::test]
async fn status_address_already_exists() {
    let (adapter, connector, _listener, address, _socket) = doubled();
    let error = failure(&adapter, &connector, address).await;
    is(&error, Outcome::ConnectionExists, "STATUS_ADDRESS_ALREADY_EXISTS", 0xC000_020A);
}
