//! Addresses of a device: they come and go while it is open, move between the ports of a bond, and may have a scope.
//!
//! Runs on: fake, fake-iwarp

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use common::life::eventually;
use common::net::{ip, isolated};
use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::{connected_at, fake};
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::{BindError, ConnectError, OpenError};
use tokio_rdma::io::{RdmaConnector, RdmaListener, RdmaStream};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Listener, Provider, ProviderKind, Status};

/// The number of the loopback interface.
const LOOPBACK: u32 = 1;

/// A link-local address at the loopback interface.
fn link_local(port: u16) -> SocketAddr {
    let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);
    SocketAddrV6::new(ip, port, 0, LOOPBACK).into()
}

/// The same without its scope.
fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// The device that has the IPv4 address only.
fn without_v6() -> Option<Adapter> {
    fake("reset")?;
    fake(&format!("displace {}", v6()))?;
    Some(adapter())
}

/// Gives the device the IPv6 address.
fn v6_comes() {
    fake(&format!("place {} 1 0", v6()));
}

/// A message over a new connection to a listener.
async fn message_to(adapter: &Adapter, listener: &Listener, address: SocketAddr) {
    let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
    let connector = adapter.connector();
    let (_ours, _theirs) = joined(
        connector.connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    message(adapter, &active, &passive).await;
}

async fn message(adapter: &Adapter, from: &tokio_rdma::QueuePair, to: &tokio_rdma::QueuePair) {
    let receive = to.receive(room(adapter, 8)).expect("posted");
    success(from.send(bytes(adapter, b"received")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"received");
}

// HW-10: an address that comes while the adapter is open is bound, listed and connected from.
#[tokio::test]
async fn an_address_that_comes_is_served() {
    if !alone(module_path!(), "an_address_that_comes_is_served") {
        return;
    }
    let Some(adapter) = without_v6() else { return };
    assert_eq!(adapter.info().addresses, [v4()]);
    let listener = adapter.listener();
    for address in [(v6(), 0).into(), SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))] {
        let error = listener.bind(address).expect_err("not yet");
        assert!(matches!(error, BindError::InvalidAddress(_)), "{error:?}");
    }
    v6_comes();
    // No call before this one has asked for the addresses.
    let (listener, address) = listening_at(&adapter, v6());
    message_to(&adapter, &listener, address).await;
    assert_eq!(adapter.info().addresses, both());
    let connector = adapter.connector();
    connector.bind((v6(), 0).into()).expect("bound");
    let everywhere = adapter.listener();
    everywhere.bind((Ipv6Addr::UNSPECIFIED, 0).into()).expect("bound");
    everywhere.listen(0).expect("listening");
    let port = everywhere.local_addr().expect("listening").port();
    message_to(&adapter, &everywhere, (v6(), port).into()).await;
}

// HW-10: an adapter that streams keep open reaches peers by an address that has come since.
#[tokio::test]
async fn streams_use_an_address_that_comes() {
    if !alone(module_path!(), "streams_use_an_address_that_comes") {
        return;
    }
    let Some(_) = without_v6() else { return };
    let connector = RdmaConnector::new();
    for ip in both() {
        if ip == v6() {
            v6_comes();
        }
        let listener = RdmaListener::bind((ip, 0)).await.expect("listening");
        let address = listener.local_addr().expect("listening");
        let ends = within(async { tokio::join!(connector.connect(address), listener.accept()) }).await;
        let (ours, theirs) = (ends.0.expect("connected"), ends.1.expect("accepted").0);
        for stream in [ours, theirs] {
            assert_eq!(stream.local_addr().expect("connected").ip(), ip);
        }
    }
}

// HW-10: an address that has gone is an error, connections that have it go on, and it may come back.
#[tokio::test]
async fn an_address_that_goes_is_an_error() {
    if !alone(module_path!(), "an_address_that_goes_is_an_error") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected_at(&adapter, v6()).await;
    fake(&format!("displace {}", v6()));
    let error = adapter.listener().bind((v6(), 0).into()).expect_err("gone");
    assert!(matches!(error, BindError::InvalidAddress(ip) if ip == v6()), "{error:?}");
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    let connect = || connector.connect(&active, (v6(), 7).into(), ConnectParams::default());
    let error = within(connect()).await.expect_err("gone");
    assert_eq!(error.status(), Status::INVALID_ADDRESS, "{error:?}");
    assert_eq!(adapter.info().addresses, [v4()]);
    message(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    v6_comes();
    let (listener, address) = listening_at(&adapter, v6());
    message_to(&adapter, &listener, address).await;
}

// HW-10: another device has taken the address over. It is no more of this adapter.
#[tokio::test]
async fn moved_address_belongs_to_new_device() {
    if !alone(module_path!(), "moved_address_belongs_to_new_device") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let first = adapter();
    fake("device fake1");
    fake(&format!("place {} 1 0 fake1", v6()));
    let error = first.listener().bind((v6(), 0).into()).expect_err("moved");
    assert!(matches!(error, BindError::InvalidAddress(ip) if ip == v6()), "{error:?}");
    let error = first.connector().bind((v6(), 0).into()).expect_err("moved");
    assert!(matches!(error, BindError::InvalidAddress(ip) if ip == v6()), "{error:?}");
    let second = adapter_at(v6());
    assert_eq!((first.info().addresses, second.info().addresses), (vec![v4()], vec![v6()]));
    let (listener, address) = listening_at(&second, v6());
    // Bound to no address, the connector of the first has none that leads there. Nor has one that leaves it to rdma_cm.
    for bound in [false, true] {
        let (connector, active) = (first.connector(), queue_pair(&first));
        if bound {
            connector.bind((Ipv6Addr::UNSPECIFIED, 0).into()).expect("bound");
        }
        let error = within(connector.connect(&active, address, ConnectParams::default())).await;
        let error = error.expect_err("by no address of this device");
        let expected = if bound { Status::NETWORK_UNREACHABLE } else { Status::INVALID_ADDRESS };
        assert_eq!(error.status(), expected, "{error:?}");
    }
    message_to(&second, &listener, address).await;
}

// HW-10: a link-local address is one with its scope, and none without it.
#[tokio::test]
async fn link_local_addresses_have_scopes() {
    if !alone(module_path!(), "link_local_addresses_have_scopes") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    fake(&format!("place {}%{LOOPBACK} 1 0", link_local(0).ip()));
    let adapter = Adapter::open(link_local(0)).expect("the device has it");
    assert_eq!(adapter.info().provider, ProviderKind::Verbs);
    assert_eq!(adapter.info().addresses, both(), "an IpAddr has no scope");
    let other = SocketAddr::from(SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77), 0, 0, 9));
    for address in [unscoped(link_local(0)), other] {
        let error = Adapter::open(address).expect_err("of no interface");
        assert!(matches!(error, OpenError::InvalidAddress(_)), "{error:?}");
        let error = adapter.listener().bind(address).expect_err("of no interface");
        assert!(matches!(error, BindError::InvalidAddress(_)), "{error:?}");
    }
    let listener = adapter.listener();
    listener.bind(link_local(0)).expect("bound");
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("listening");
    assert_eq!(address, link_local(address.port()));
    let (connector, active, passive) = (adapter.connector(), queue_pair(&adapter), queue_pair(&adapter));
    connector.bind(link_local(0)).expect("bound");
    let local = connector.local_addr().expect("bound");
    assert_eq!(local, link_local(local.port()));
    let error = within(connector.connect(&active, unscoped(address), ConnectParams::default())).await;
    assert!(matches!(error, Err(ConnectError::InvalidAddress(_))), "{error:?}");
    let (connector, params) = (adapter.connector(), ConnectParams::default());
    connector.bind(link_local(0)).expect("bound");
    let (ours, theirs) = joined(
        connector.connect_and_complete(&active, address, params),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    assert_eq!((ours.peer_addr(), theirs.local_addr()), (address, address));
    assert_eq!(ours.local_addr(), link_local(ours.local_addr().port()));
    message(&adapter, &active, &passive).await;
}

// HW-10: the way to a link-local peer is found like any other, and streams take it, too.
#[test]
fn link_local_peers_are_reached_from_their_link() {
    if !alone(module_path!(), "link_local_peers_are_reached_from_their_link") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    isolated(async || {
        ip("address add fe80::77/64 dev lo nodad");
        fake(&format!("place {}%{LOOPBACK} 1 0", link_local(0).ip()));
        let adapter = adapter();
        let listener = adapter.listener();
        listener.bind(link_local(0)).expect("bound");
        listener.listen(0).expect("listening");
        message_to(&adapter, &listener, listener.local_addr().expect("listening")).await;
        // A device with no other address can be opened by this one.
        for own in both() {
            fake(&format!("displace {own}"));
        }
        let alone = Adapter::open("[fe80::77%1]:0").expect("by its text");
        assert_eq!((alone.info().provider, alone.info().addresses), (ProviderKind::Verbs, vec![]));
        assert!(Provider::verbs().expect("devices").addresses().expect("known").is_empty());
        let listener = RdmaListener::bind(link_local(0)).await.expect("listening");
        let address = listener.local_addr().expect("listening");
        let both = async { tokio::join!(RdmaStream::connect(address), listener.accept()) };
        let (ours, theirs) = within(both).await;
        let (mut ours, (mut theirs, peer)) = (ours.expect("connected"), theirs.expect("accepted"));
        assert_eq!((address, peer), (link_local(address.port()), link_local(peer.port())));
        within(ours.write_all(b"link")).await.expect("written");
        let mut received = [0; 4];
        within(theirs.read_exact(&mut received)).await.expect("read");
        assert_eq!(&received, b"link");
        let error = within(RdmaConnector::new().connect(unscoped(address))).await.expect_err("of no link");
        assert!(error.to_string().contains("fe80::77"), "{error}");
    });
}

// HW-10: a step of the resolution that nobody answers is repeated, within the caller's time and without a limit of it.
#[tokio::test]
async fn resolution_is_repeated() {
    if !alone(module_path!(), "resolution_is_repeated") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    for step in ["addresses", "routes"] {
        for params in [ConnectParams::default(), ConnectParams::default().timeout(Duration::from_secs(3600))]
        {
            fake(&format!("expire {step} 5"));
            let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
            let connector = adapter.connector();
            let _ends = joined(
                connector.connect_and_complete(&active, address, params),
                listener.accept_next(&passive, AcceptParams::default()),
            )
            .await;
            assert_eq!(fake("expiring"), Some(0), "{step}");
        }
    }
}

// HW-10: not beyond the caller's time.
#[tokio::test]
async fn resolution_ends_with_the_time_of_the_caller() {
    if !alone(module_path!(), "resolution_ends_with_the_time_of_the_caller") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let (_listener, address) = listening(&adapter);
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    for step in ["addresses", "routes"] {
        // More than there is time for.
        fake(&format!("expire {step} {}", usize::MAX));
        let hasty = ConnectParams::default().timeout(Duration::from_millis(30));
        let error = within(connector.connect(&active, address, hasty)).await.expect_err("never resolved");
        assert_eq!(error.status(), Status::IO_TIMEOUT, "{step}: {error:?}");
        fake("reset");
    }
}

// HW-10: ADDR_CHANGE. A listener at the address of a bond is reached after a failover; a connector that was bound before it
// connects.
#[tokio::test]
async fn listeners_follow_an_address_that_moves() {
    if !alone(module_path!(), "listeners_follow_an_address_that_moves") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (bound, connector) = (adapter.listener(), adapter.connector());
    bound.bind((v4(), 0).into()).expect("bound");
    connector.bind((v4(), 0).into()).expect("bound");
    let local = connector.local_addr().expect("bound");
    for _ in 0..3 {
        fake(&format!("move {}", v4()));
        // That of the adapter stays: it is there for the removal of the device.
        let replaced = || fake("moved") == Some(1) && fake("listening") == Some(1);
        eventually("new ids take the places of the old ones", replaced).await;
        message_to(&adapter, &listener, address).await;
    }
    assert_eq!((listener.local_addr(), connector.local_addr()), (Ok(address), Ok(local)));
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let (ours, _theirs) = joined(
        connector.connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    assert_eq!(ours.local_addr(), local);
    // One that was not listening yet begins to.
    bound.listen(0).expect("listening");
    message_to(&adapter, &bound, bound.local_addr().expect("listening")).await;
}

// HW-10: ADDR_CHANGE. A connection goes on, and so does a request that has arrived.
#[tokio::test]
async fn connections_survive_an_address_that_moves() {
    if !alone(module_path!(), "connections_survive_an_address_that_moves") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (listener, address) = listening(&adapter);
    let (connector, active, passive) = (adapter.connector(), queue_pair(&adapter), queue_pair(&adapter));
    let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
    let accept = async {
        let request = listener.request().await.map_err(|error| error.to_string())?;
        fake(&format!("move {}", v4()));
        // Its events are behind those of the address.
        drop(Box::pin(connected(&adapter)).await);
        request.accept(&passive, AcceptParams::default()).await.map_err(|error| error.to_string())
    };
    let _ends = joined(connect, accept).await;
    message(&adapter, &active, &passive).await;
    message(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    within(pair.active.connection.disconnect()).await.expect("disconnected");
}
