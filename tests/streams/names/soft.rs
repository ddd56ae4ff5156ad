//! Addresses that no interface lists.

use std::net::SocketAddr;

use common::within;
use tokio_rdma::{ProviderKind, RdmaListener, RdmaStream};

use super::works;

// IO-11: Debian maps the name of a machine to 127.0.1.1.
#[tokio::test]
async fn the_unspecified_address_is_all_of_the_loopback_network() {
    for any in ["0.0.0.0", "::"] {
        let listener = RdmaListener::bind((any, 0)).await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        for to in ["127.0.0.1", "127.0.1.1", "127.0.0.2"] {
            let address: SocketAddr = (to.parse::<std::net::Ipv4Addr>().expect("an address"), port).into();
            works(RdmaStream::connect(address), &listener).await;
            let connect = RdmaStream::connect(address);
            let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
            let info = accepted.expect("accepted").0.info();
            assert_eq!((info.local_addr, info.provider), (address, ProviderKind::Soft));
            assert_eq!(info.adapter, connected.expect("connected").info().adapter, "the same interface");
        }
    }
}
