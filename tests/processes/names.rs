//! Streams by name while adapters are added and removed.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use common::net::*;
use common::raw::{Raw, send};
use common::*;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::{OpenError, StreamError};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener, RdmaStream, StreamConfig};

/// A stream to the interface `right`, and the end that was accepted.
async fn connected_to_right(connector: &RdmaConnector) -> (RdmaStream, RdmaStream) {
    let listener = RdmaListener::bind((RIGHT[0], 0)).await.expect("bound");
    let connect = connector.connect(listener.local_addr().expect("an address"));
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    (connected.expect("connected"), accepted.expect("accepted").0)
}

#[test]
fn an_adapter_that_was_removed_is_opened_again() {
    with_two_interfaces(async || {
        let connector = RdmaConnector::new().provider(Provider::soft_with(SoftConfig::default()));
        let (mut before, _accepted) = connected_to_right(&connector).await;
        ip("address flush dev right");
        pass(WITHOUT_ADDRESS).await;
        within(before.read_u8()).await.expect_err("the adapter was removed");
        let gone = connector.connect((RIGHT[0], 7)).await.expect_err("nobody has the address");
        assert!(
            matches!(gone, StreamError::Connect(_) | StreamError::Open(OpenError::Unreachable(_))),
            "{gone:?}"
        );

        ip(&format!("address add {}/24 dev right", RIGHT[0]));
        connected_to_right(&connector).await;
    });
}

#[test]
fn a_listener_at_every_address_outlives_all_adapters() {
    with_two_interfaces(async || {
        let listener = RdmaListener::bind("0.0.0.0:0").await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let connector = RdmaConnector::new();
        let connected = async |listener: &RdmaListener, to| {
            let connect = connector.connect((to, port));
            let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
            (connected.expect("connected"), accepted.expect("accepted").0)
        };
        let (_connected, mut accepted) = connected(&listener, RIGHT[0]).await;
        ip("address flush dev right");
        pass(WITHOUT_ADDRESS).await;
        within(accepted.read_u8()).await.expect_err("the adapter was removed");
        for _ in 0..3 {
            connected(&listener, LEFT[0]).await;
        }
        ip("address flush dev left");
        ip("address flush dev lo");
        pass(WITHOUT_ADDRESS).await;
        ip("address add 127.0.0.1/8 dev lo");
        ip(&format!("address add {}/24 dev left", LEFT[0]));
        connected(&listener, LEFT[0]).await;
    });
}

#[test]
fn a_listener_ends_with_its_adapter() {
    with_two_interfaces(async || {
        let mut listener = RdmaListener::bind((RIGHT[0], 0)).await.expect("bound");
        ip("link delete right");
        let last = within(listener.next()).await.expect("an error");
        last.expect_err("the adapter was removed");
        assert!(within(listener.next()).await.is_none(), "one error");
        let error = within(listener.accept()).await.expect_err("no peer will come");
        assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
    });
}

// IO-11: as a listener of TCP, on a machine that has no address yet.
#[test]
fn listener_is_bound_before_any_address_exists() {
    isolated(async || {
        ip("address flush dev lo");
        for asked in ["0.0.0.0", "::"] {
            let asked: IpAddr = asked.parse().expect("an address");
            let listener = RdmaListener::bind((asked, 7000)).await.expect("bound");
            assert_eq!(listener.local_addr().expect("bound"), SocketAddr::new(asked, 7000));
            ip("address add 127.0.0.1/8 dev lo");
            let connect = RdmaStream::connect("127.0.0.1:7000");
            let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
            connected.expect("connected");
            assert_eq!(accepted.expect("accepted").0.info().adapter.as_ref(), "lo");
            drop(listener);
            ip("address flush dev lo");
        }
    });
}

// IO-11: addresses of a local route, and link-local ones.
#[test]
fn a_listener_serves_addresses_that_no_interface_lists() {
    with_two_interfaces(async || {
        ip("route add local 10.88.0.0/16 dev lo");
        let source = StreamConfig::default().source("127.0.0.1".parse().expect("an address"));
        let connector = RdmaConnector::new().config(source);
        let to: SocketAddr = "10.88.1.2:7000".parse().expect("an address");
        // At the address itself, and at all.
        for at in ["10.88.1.2:7000", "[::]:7000"] {
            let listener = RdmaListener::bind(at).await.expect("bound");
            let connect = connector.connect(to);
            let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
            let (mut connected, mut accepted) =
                (connected.expect("connected"), accepted.expect("accepted").0);
            assert_eq!(accepted.local_addr().expect("connected"), to);
            connected.write_u8(7).await.expect("written");
            assert_eq!(within(accepted.read_u8()).await.expect("read"), 7);
        }

        let listener = RdmaListener::bind("[::]:7000").await.expect("bound");
        ip("address add fe80::77/64 dev left nodad");
        let index = nix::net::if_::if_nametoindex("left").expect("an interface");
        let to = SocketAddrV6::new("fe80::77".parse().expect("an address"), 7000, 0, index);
        let (mut raw, _) = Raw::asks_for_stream(to.into()).await;
        // An empty message: a keepalive.
        raw.post(&send(1, &(7_u32 << 29 | 1).to_le_bytes())).await;
        let (accepted, _) = within(listener.accept()).await.expect("accepted");
        assert_eq!(accepted.local_addr().expect("connected"), to.into());
        // The adapter of the interface is removed with its other addresses, and this stream is not.
        assert_eq!(accepted.info().adapter.as_ref(), "any");
    });
}

// IO-11: addresses that are added to an interface that is served already, and to one that was not there.
#[test]
fn unspecified_listener_serves_added_addresses() {
    with_two_interfaces(async || {
        let listener = RdmaListener::bind("[::]:0").await.expect("bound");
        let port = listener.local_addr().expect("bound").port();
        let connector = RdmaConnector::new();
        let serves = async |to: &str| {
            let to: IpAddr = to.parse().expect("an address");
            // The listener hears of the address a little later.
            let connect = async {
                loop {
                    match connector.connect((to, port)).await {
                        Ok(stream) => break stream,
                        Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
                    }
                }
            };
            let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
            assert_eq!(
                (
                    connected.peer_addr().expect("connected").ip(),
                    accepted.expect("accepted").0.local_addr().expect("connected").ip()
                ),
                (to, to)
            );
        };
        ip("address add 10.77.9.1/24 dev left");
        serves("10.77.9.1").await;
        ip("address add fd77:9::1/64 dev left nodad");
        serves("fd77:9::1").await;
        ip("link add new type veth peer name newer");
        ip("address add 10.77.10.1/24 dev new");
        ip("link set new up");
        serves("10.77.10.1").await;
        // One that goes and comes back, with its interface.
        ip("link delete new");
        ip("link add new type veth peer name newer");
        ip("address add 10.77.10.1/24 dev new");
        ip("link set new up");
        serves("10.77.10.1").await;
    });
}
