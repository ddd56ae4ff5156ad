//! `IND2Connector`: ND_DEVICE_REMOVED of Accept, Reject and Disconnect, in a network that is removed. The module above
//! follows the rest of the page.

use common::net::isolated;
use common::raw::{Start, raw_accepts};
use common::seeds::*;
use common::*;
use futures::poll;
use tokio_rdma::error::DisconnectError;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason, Status};

// AD-05
#[test]
fn accept_nd_device_removed() {
    isolated(async || {
        let adapter = adapter();
        let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
        let asked = asked(&adapter, ConnectParams::default()).await;
        remove(&adapter).await;
        let pending = within(half.accepting).await.expect("joined").expect_err("removed");
        assert_eq!(pending.status(), Status::DEVICE_REMOVED);
        let late = within(asked.request.accept(&asked.queue_pair, AcceptParams::default())).await;
        assert_eq!(late.expect_err("removed").status(), Status::DEVICE_REMOVED);
    });
}

// AD-05
#[test]
fn reject_nd_device_removed() {
    isolated(async || {
        let adapter = adapter();
        let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
        let asked = asked(&adapter, ConnectParams::default()).await;
        remove(&adapter).await;
        let passive = within(asked.request.reject(b"")).await.expect_err("removed");
        assert_eq!(passive.status(), Status::DEVICE_REMOVED);
        let active = within(half.reply.reject(b"")).await.expect_err("removed");
        assert_eq!(active.status(), Status::DEVICE_REMOVED);
    });
}

// The removal ends a disconnect that waits for its peer (AD-05).
#[test]
fn disconnect_pending_nd_device_removed() {
    isolated(async || {
        // The limit of the disconnect itself does not pass meanwhile.
        let adapter = adapter_with(SoftConfig::default().disconnect_timeout(patience()));
        // This peer reads nothing, so it does not respond.
        let (end, _raw, _) = raw_accepts(&adapter, Start::enhanced(1, 1)).await;
        let mut disconnecting = Box::pin(end.connection.disconnect());
        assert!(poll!(&mut disconnecting).is_pending());
        settled().await;
        assert!(poll!(&mut disconnecting).is_pending(), "the peer has not responded");
        remove(&adapter).await;
        let error = within(disconnecting).await.expect_err("removed");
        assert_eq!((error.status(), error), (Status::DEVICE_REMOVED, DisconnectError::DeviceRemoved));
    });
}

// AD-05
#[test]
fn disconnect_nd_device_removed() {
    isolated(async || {
        let adapter = adapter();
        let pair = connected(&adapter).await;
        remove(&adapter).await;
        assert_eq!(within(pair.active.connection.disconnected()).await, DisconnectReason::DeviceRemoved);
        let error = within(pair.active.connection.disconnect()).await.expect_err("removed");
        assert_eq!(error.status(), Status::DEVICE_REMOVED);
    });
}
