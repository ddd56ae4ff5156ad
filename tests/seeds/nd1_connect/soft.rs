//! NetworkDirect v1's `INDConnector::Connect`: the return codes that need a separate network. The module `nd1_connect`
//! follows the rest of the page.

use std::net::Ipv4Addr;

use common::net::{ip, isolated};
use common::seeds::*;
use common::*;
use tokio_rdma::Status;
use tokio_rdma::status::porting::Outcome;

use super::{failure, fresh, is};

// AD-05
#[test]
fn nd_device_removed() {
    isolated(async || {
        let adapter = adapter();
        let (connector, queue_pair) = fresh(&adapter);
        remove(&adapter).await;
        let error = failure(&connector, &queue_pair, (Ipv4Addr::LOCALHOST, 7).into()).await;
        is(&error, Outcome::DeviceRemoved, Status::DEVICE_REMOVED);
    });
}

// CM-17: v1 has one status for both ways of being unreachable.
#[test]
fn nd_host_unreachable() {
    isolated(async || {
        let adapter = adapter();
        let (connector, queue_pair) = fresh(&adapter);
        ip("route add unreachable 198.51.100.0/24");
        let error = failure(&connector, &queue_pair, ([198, 51, 100, 1], 7).into()).await;
        is(&error, Outcome::HostUnreachable, Status::HOST_UNREACHABLE);
        let error = failure(&connector, &queue_pair, ([203, 0, 113, 1], 7).into()).await;
        is(&error, Outcome::NetworkUnreachable, Status::HOST_UNREACHABLE);
    });
}
