//! Addresses that no interface lists, and the provider of a listener.

use std::net::SocketAddr;
use std::time::Duration;

use common::raw::{CRC, Raw};
use common::within;
use tokio::io::AsyncReadExt;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, ProviderKind, RdmaListener, RdmaStream, StreamConfig};

use super::works;

// IO-11: Debian maps the name of a machine to 127.0.1.1.
#[tokio::test]
async fn unspecified_address_covers_loopback_network() {
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

/// Returns whether the listener asks for checksums.
async fn has_checksums(address: SocketAddr) -> bool {
    let (_raw, reply) = Raw::asks_for_stream(address).await;
    reply.flags & CRC != 0
}

// IO-11: the settings of a provider apply at every address.
#[tokio::test]
async fn the_provider_of_a_listener_decides_its_settings() {
    let config = SoftConfig::default().crc(true).request_timeout(Duration::from_millis(20));
    let (provider, streams) = (Provider::soft_with(config), StreamConfig::default());
    for at in ["0.0.0.0:0", "[::]:0", "127.0.0.3:0"] {
        let bound = RdmaListener::bind_with_provider(&provider, at, &streams);
        let listener = bound.await.expect("bound");
        let mut address = listener.local_addr().expect("an address");
        address.set_ip([127, 0, 0, 3].into());
        assert!(has_checksums(address).await, "{at}");
        let mut silent = Raw::dial(address).await;
        assert_eq!(within(silent.stream.read(&mut [0; 1])).await.expect("closed"), 0, "{at}");
    }
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    assert!(!has_checksums(listener.local_addr().expect("an address")).await, "not by default");
}

#[tokio::test]
async fn a_provider_without_the_address_is_an_error() {
    let (provider, streams) = (Provider::soft().expect("compiled in"), StreamConfig::default());
    // 192.0.2.0/24 is for documentation: no machine has it.
    let bound = RdmaListener::bind_with_provider(&provider, "192.0.2.1:0", &streams);
    let error = bound.await.expect_err("nobody has the address");
    assert_eq!(error.to_string(), "no network interface that can be used has the address 192.0.2.1");
}
