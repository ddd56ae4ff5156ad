//! Addresses that a network interface gets and loses while its device is open, and its link-local address.
//!
//! Runs on: rxe, siw

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use common::life::eventually;
use common::raw::{bytes, room, success};
use common::verbs::{Link, connected_at, driver, run};
use common::*;
use tokio_rdma::error::BindError;
use tokio_rdma::{AcceptParams, Adapter, AdapterEvent, AdapterEvents, ConnectParams};

/// The flag of an address that another host may have (IFA_F_TENTATIVE).
const TENTATIVE: u32 = 0x40;

/// The link-local address of an interface, with its scope and port 0; `None` while it has none that can be used.
fn link_local(interface: &str) -> Option<SocketAddr> {
    // The address, the number of the interface, the length of the prefix, the scope, the flags, the name (if_inet6).
    let all = fs::read_to_string("/proc/net/if_inet6").expect("a Linux system");
    let lines = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut own = lines.filter(|words| matches!(words[..], [_, _, _, "20", _, name] if name == interface));
    let words = own.next()?;
    let flags = u32::from_str_radix(words[4], 16).expect("a number");
    if flags & TENTATIVE != 0 {
        return None;
    }
    let ip = u128::from_str_radix(words[0], 16).expect("an address");
    let scope = u32::from_str_radix(words[1], 16).expect("a number");
    Some(SocketAddrV6::new(Ipv6Addr::from(ip), 0, 0, scope).into())
}

/// A message from one queue pair to another.
async fn message(adapter: &Adapter, from: &tokio_rdma::QueuePair, to: &tokio_rdma::QueuePair) {
    let receive = to.receive(room(adapter, 8)).expect("posted");
    success(from.send(bytes(adapter, b"received")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"received");
}

// HW-10: an adapter serves an address that its interface gets, and not one that it has lost.
#[tokio::test]
async fn addresses_of_an_interface_come_and_go() {
    let Some(driver) = driver() else { return };
    let link = Link::new(driver);
    let adapter = link.open();
    let IpAddr::V4(first) = link.address else { panic!("{}", link.address) };
    let [a, b, c, _] = first.octets();
    let added = IpAddr::from([a, b, c, 9]);
    assert!(matches!(adapter.listener().bind((added, 0).into()), Err(BindError::InvalidAddress(_))));
    run("ip", &format!("address add {added}/24 dev {}", link.name));
    // A work queue of the kernel tells a RoCE device.
    eventually("the device has it", || adapter.info().addresses.contains(&added)).await;
    let pair = connected_at(&adapter, added).await;
    message(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    drop(pair);
    run("ip", &format!("address del {added}/24 dev {}", link.name));
    eventually("the device has lost it", || !adapter.info().addresses.contains(&added)).await;
    assert!(matches!(adapter.listener().bind((added, 0).into()), Err(BindError::InvalidAddress(_))));
    assert!(adapter.info().addresses.contains(&link.address));
    let pair = connected_at(&adapter, link.address).await;
    message(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

/// Reads events until this one comes: drivers raise further ones.
async fn until(events: &mut AdapterEvents, awaited: AdapterEvent) {
    loop {
        let event = within(events.recv()).await.expect("the adapter is open");
        assert!(!matches!(event, AdapterEvent::Removed | AdapterEvent::Missed { .. }), "{event:?}");
        if event == awaited {
            return;
        }
    }
}

// AD-09: the interface of a device goes down, comes up, and gets and loses an address; at last the device is removed.
#[tokio::test]
async fn changes_of_the_interface_are_events() {
    let Some(driver) = driver() else { return };
    let link = Arc::new(Link::new(driver));
    let adapter = link.open();
    let mut events = adapter.events();
    run("ip", &format!("link set {} down", link.name));
    until(&mut events, AdapterEvent::PortDown { port: 1 }).await;
    run("ip", &format!("link set {} up", link.name));
    until(&mut events, AdapterEvent::PortUp { port: 1 }).await;
    let IpAddr::V4(first) = link.address else { panic!("{}", link.address) };
    let [a, b, c, _] = first.octets();
    let added = IpAddr::from([a, b, c, 9]);
    run("ip", &format!("address add {added}/24 dev {}", link.name));
    let mut has_added = false;
    while !has_added {
        until(&mut events, AdapterEvent::AddressesChanged).await;
        has_added = adapter.info().addresses.contains(&added);
    }
    run("ip", &format!("address del {added}/24 dev {}", link.name));
    while has_added {
        until(&mut events, AdapterEvent::AddressesChanged).await;
        has_added = adapter.info().addresses.contains(&added);
    }
    let removed = link.begin_to_remove();
    while within(events.recv()).await.expect("the removal") != AdapterEvent::Removed {}
    assert_eq!(within(events.recv()).await, None);
    drop(adapter);
    within(removed).await.expect("removed");
}

// HW-10: a link-local address with its scope is bound, and connected from and to.
#[tokio::test]
async fn link_local_addresses_are_served() {
    let Some(driver) = driver() else { return };
    let link = Link::new(driver);
    let adapter = link.open();
    let mut listener = adapter.listener();
    eventually("it has one", || {
        listener = adapter.listener();
        link_local(&link.name).is_some_and(|address| listener.bind(address).is_ok())
    })
    .await;
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("listening");
    let local = link_local(&link.name).expect("it has one");
    assert_eq!(SocketAddr::V6(with_port(local, address.port())), address);
    assert!(Adapter::open(address).expect("by its address").info().addresses.contains(&link.address));
    assert!(!adapter.info().addresses.contains(&address.ip()), "an IpAddr has no scope");
    for bound in [true, false] {
        let (connector, active, passive) = (adapter.connector(), queue_pair(&adapter), queue_pair(&adapter));
        if bound {
            connector.bind(local).expect("bound");
        }
        let (ours, _theirs) = joined(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
        .await;
        assert_eq!((ours.peer_addr(), ours.local_addr().ip()), (address, local.ip()));
        message(&adapter, &active, &passive).await;
    }
}

fn with_port(address: SocketAddr, port: u16) -> SocketAddrV6 {
    match address {
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), port, 0, v6.scope_id()),
        SocketAddr::V4(v4) => panic!("{v4}"),
    }
}
