//! Streams by name: the choice of address and adapter, and the errors.
//!
//! Runs on: rxe

mod soft;

use std::fmt::Debug;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use common::device::{Holder, nobody, silent};
use common::stream::listening;
use common::*;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rdma::error::{ConnectError, OpenError, StreamError};
use tokio_rdma::{Provider, RdmaConnector, RdmaListener, RdmaStream, Status, StreamConfig};

fn connector() -> RdmaConnector {
    RdmaConnector::new().provider(Device::under_test().provider())
}

/// Accepts one stream, and answers its first byte with the next.
async fn answer(listener: &RdmaListener) -> SocketAddr {
    let (mut stream, peer) = listener.accept().await.expect("accepted");
    let asked = stream.read_u8().await.expect("a byte");
    stream.write_u8(asked + 1).await.expect("written");
    stream.shutdown().await.expect("shut down");
    peer
}

/// The stream that comes of a connect works, in both directions.
async fn works(
    connect: impl Future<Output = Result<RdmaStream, impl Debug>>,
    listener: &RdmaListener,
) -> RdmaStream {
    let asking = async {
        let mut stream = connect.await.expect("connected");
        stream.write_u8(1).await.expect("written");
        assert_eq!(stream.read_u8().await.expect("an answer"), 2);
        stream
    };
    let (stream, peer) = within(async { tokio::join!(asking, answer(listener)) }).await;
    assert_eq!(stream.local_addr().expect("an address"), peer);
    stream
}

#[tokio::test]
async fn name_connects_to_its_listening_address() {
    // A name with two addresses on most machines. No device has them: it is the soft provider that leads there.
    for ip in ["127.0.0.1", "::1"] {
        let listener = RdmaListener::bind((ip, 0)).await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let known: Vec<_> = tokio::net::lookup_host(("localhost", port)).await.expect("known").collect();
        if known.contains(&listener.local_addr().expect("an address")) {
            let stream = works(RdmaStream::connect(("localhost", port)), &listener).await;
            assert_eq!(stream.peer_addr().expect("an address"), listener.local_addr().expect("an address"));
        }
    }
}

#[tokio::test]
async fn peer_is_reached_through_its_device() {
    let adapter = adapter();
    let listener = listening(&adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    for connector in [RdmaConnector::new(), connector(), connector().adapter(&adapter)] {
        let stream = works(connector.connect(address), &listener).await;
        assert_eq!(stream.peer_addr().expect("an address"), address);
        assert!(
            adapter.info().addresses.contains(&stream.local_addr().expect("an address").ip()),
            "{stream:?}"
        );
    }
}

#[tokio::test]
async fn refusing_address_gives_way_to_next() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let addresses = [nobody(v4()), nobody(v6()), listener.local_addr().expect("an address")];
    let stream = works(connector().connect(&addresses[..]), &listener).await;
    assert_eq!(stream.peer_addr().expect("an address"), listener.local_addr().expect("an address"));
}

#[tokio::test]
async fn silent_address_gives_way_and_is_abandoned() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let (silence, address) = silent(v4());
    let addresses = [address, listener.local_addr().expect("an address")];
    let stream = works(connector().connect(&addresses[..]), &listener).await;
    assert_eq!(stream.peer_addr().expect("an address"), listener.local_addr().expect("an address"));
    // The other one was asked, and then left alone. A device's peer is not told that a request was withdrawn.
    if let Holder::Tcp(silence) = silence {
        silence.set_nonblocking(true).expect("a socket");
        let silence = tokio::net::TcpListener::from_std(silence).expect("a socket");
        let (mut asked, _) = within(silence.accept()).await.expect("accepted");
        let mut request = Vec::new();
        within(asked.read_to_end(&mut request)).await.expect("to the end");
        assert!(request.starts_with(b"MPA ID Req Frame"), "{request:?}");
    }
}

#[tokio::test]
async fn an_error_tells_every_attempt() {
    let addresses = [nobody(v4()), nobody(v4()), nobody(v6())];
    let error = within(connector().connect(&addresses[..])).await.expect_err("nobody");
    assert_eq!(error.status(), Status::CONNECTION_REFUSED);
    assert!(error.is_retryable(), "somebody may listen soon");
    let StreamError::Attempts(attempts) = &error else { panic!("{error:?}") };
    let parts: Vec<_> = attempts.iter().map(|(_, failed)| failed.to_string()).collect();
    assert_eq!(error.to_string(), format!("all addresses failed: {}", parts.join("; ")));
    // The families take turns.
    let tried: Vec<_> = attempts.iter().map(|(address, _)| *address).collect();
    assert_eq!(tried, [addresses[0], addresses[2], addresses[1]]);
    for (address, failed) in attempts {
        assert!(matches!(failed, StreamError::Connect(ConnectError::Refused { .. })), "{failed:?}");
        // ERR-09: each with its address, once.
        assert!(failed.to_string().starts_with(&format!("{address} refused the connection")), "{failed}");
        assert_eq!(error.to_string().matches(&address.to_string()).count(), 1, "{error}");
    }
    // Of an only address it is just what went wrong there.
    let error = within(connector().connect(addresses[0])).await.expect_err("nobody");
    assert!(matches!(error, StreamError::Connect(ConnectError::Refused { .. })), "{error:?}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn unknown_names_are_an_error() {
    let error = within(connector().connect("host.invalid:7")).await.expect_err("no such host");
    assert!(matches!(error, StreamError::Resolve(_)) && error.is_retryable(), "{error:?}");
    // The texts say which step failed, and what is wrong with the text of an address (ERR-09).
    assert!(error.to_string().starts_with("cannot resolve the name: "), "{error}");
    let error = within(connector().connect("localhost")).await.expect_err("no port");
    let text = "the text is no address with a port, such as \"localhost:7000\": invalid socket address";
    assert_eq!(error.to_string(), text);
    assert!(matches!(error, StreamError::Resolve(_)) && !error.is_retryable(), "{error:?}");
    let error = within(connector().connect(&[][..])).await.expect_err("no address");
    assert!(matches!(error, StreamError::NoAddress) && !error.is_retryable(), "{error:?}");
    let error = within(connector().connect("224.0.0.1:7")).await.expect_err("a group");
    assert!(matches!(error, StreamError::Open(OpenError::InvalidAddress(_))), "{error:?}");
    // 192.0.2.0/24 is for documentation: no machine has it.
    let config = StreamConfig::default();
    let error = within(RdmaListener::bind_with("192.0.2.1:0", &config)).await.expect_err("not ours");
    assert!(matches!(error, StreamError::Open(OpenError::InvalidAddress(_))), "{error:?}");
}

// IO-12: the errors of `connect` and `bind` have the type and the kind of tokio's.
#[tokio::test]
async fn errors_match_tokio_in_type_and_kind() {
    async fn connect(address: SocketAddr) -> io::Result<RdmaStream> {
        match timeout(Duration::from_secs(20), RdmaStream::connect(address)).await {
            Ok(outcome) => outcome,
            Err(elapsed) => Err(elapsed.into()),
        }
    }
    let taken = listening(&adapter(), &StreamConfig::default());
    let held = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let kinds = [
        connect(nobody(v4())).await.expect_err("nobody").kind(),
        RdmaListener::bind(taken.local_addr().expect("bound")).await.expect_err("taken").kind(),
        RdmaListener::bind("192.0.2.1:0").await.expect_err("not ours").kind(),
    ];
    let of_tokio = [
        tokio::net::TcpStream::connect(nobody(Ipv4Addr::LOCALHOST.into())).await.expect_err("nobody").kind(),
        tokio::net::TcpListener::bind(held.local_addr().expect("bound")).await.expect_err("taken").kind(),
        tokio::net::TcpListener::bind("192.0.2.1:0").await.expect_err("not ours").kind(),
    ];
    assert_eq!(kinds, of_tokio);
    // The error of this crate is inside.
    let error = connect(nobody(v4())).await.expect_err("nobody");
    let inside = error.get_ref().and_then(|error| error.downcast_ref::<StreamError>());
    assert!(matches!(inside, Some(StreamError::Connect(ConnectError::Refused { .. }))), "{error:?}");
}

#[tokio::test]
async fn many_may_connect_at_once_by_one_connector() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let (connector, many) = (connector(), often(100, 10));
    let address = listener.local_addr().expect("an address");
    let connects = (0..many).map(|_| {
        let connector = connector.clone();
        async move { connector.connect(address).await.expect("connected") }
    });
    let accepts = async {
        let mut accepted = Vec::new();
        for _ in 0..many {
            accepted.push(listener.accept().await.expect("accepted").0);
        }
        accepted
    };
    let (connected, accepted) = within(async { tokio::join!(join_all(connects), accepts) }).await;
    let sorted = |mut ends: Vec<_>| {
        ends.sort();
        ends
    };
    assert_eq!(
        sorted(
            connected
                .iter()
                .map(|stream| (
                    stream.local_addr().expect("an address"),
                    stream.peer_addr().expect("an address")
                ))
                .collect()
        ),
        sorted(
            accepted
                .iter()
                .map(|stream| (
                    stream.peer_addr().expect("an address"),
                    stream.local_addr().expect("an address")
                ))
                .collect()
        )
    );
}

// IO-11: as tokio has it, `::` is both families.
#[tokio::test]
async fn the_unspecified_address_is_every_address() {
    for (unspecified, both) in [("0.0.0.0", false), ("::", true)] {
        let listener = RdmaListener::bind((unspecified, 0)).await.expect("bound");
        let local = listener.local_addr().expect("an address");
        let port = local.port();
        assert_eq!(local.ip().to_string(), unspecified);
        // On the loopback interface, and on whatever the device has: one listener, two providers.
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), v4(), v6()] {
            if both || ip.is_ipv4() {
                let stream = works(RdmaStream::connect((ip, port)), &listener).await;
                assert_eq!(stream.peer_addr().expect("an address"), SocketAddr::new(ip, port));
            } else {
                let refused = within(RdmaStream::connect((ip, port))).await.expect_err("not of its family");
                assert_eq!(Status::from_io(&refused), Status::CONNECTION_REFUSED, "{refused:?}");
            }
        }
        let other = RdmaListener::bind((unspecified, port)).await.expect_err("taken");
        assert_eq!(Status::from_io(&other), Status::SHARING_VIOLATION, "{other:?}");
    }
}

#[tokio::test]
async fn every_available_provider_can_be_chosen() {
    for provider in Provider::all() {
        let own: Vec<_> = provider
            .addresses()
            .expect("addresses")
            .into_iter()
            .filter(|ip| provider.is_usable(*ip))
            .collect();
        let ip = *own.iter().find(|ip| both().contains(ip)).expect("one of the device's");
        let id = provider.resolve(ip).expect("an adapter");
        let adapter = provider.open(id).expect("opened");
        let listener =
            RdmaListener::bind_on(&adapter, (ip, 0).into(), &StreamConfig::default()).expect("bound");
        let connector = RdmaConnector::new().provider(provider);
        works(connector.connect(listener.local_addr().expect("an address")), &listener).await;
    }
}
