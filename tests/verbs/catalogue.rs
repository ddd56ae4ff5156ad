//! The catalogue of a machine with a device: the device is found by its address and by its name, and precedes the soft
//! provider.
//!
//! Runs on: rxe, siw

use std::net::{IpAddr, SocketAddr};

use common::resources::held;
use common::verbs::driver;
use common::*;
use tokio_rdma::error::OpenError;
use tokio_rdma::types::AdapterId;
use tokio_rdma::{Access, Adapter, Provider, ProviderKind, Status};

fn verbs() -> Provider {
    Provider::verbs().expect("a device")
}

// The verbs provider comes first, and is the only one that is left without software (PRV-01, PRV-02).
#[test]
fn the_catalogue_has_devices_before_the_soft_provider() {
    if driver().is_none() {
        return;
    }
    let kinds: Vec<_> = Provider::all().iter().map(Provider::kind).collect();
    assert_eq!(kinds, [ProviderKind::Verbs, ProviderKind::Soft]);
    assert!(!verbs().is_software());
    let hardware: Vec<_> = Provider::all().into_iter().filter(|provider| !provider.is_software()).collect();
    assert_eq!(hardware.iter().map(Provider::kind).collect::<Vec<_>>(), [ProviderKind::Verbs]);
}

// PRV-03: the addresses are those that lead to a device, and every one of them opens it.
#[tokio::test]
async fn every_listed_address_opens_its_device() {
    if driver().is_none() {
        return;
    }
    let provider = verbs();
    let addresses = provider.addresses().expect("known");
    assert!(both().iter().all(|own| addresses.contains(own)), "{addresses:?}");
    assert!(addresses.iter().all(|ip| !ip.is_loopback()), "{addresses:?}");
    for address in both() {
        let id = provider.resolve(address).expect("listed");
        assert_eq!(provider.resolve(address).expect("listed"), id, "the answer is stable");
        let info = provider.open(id).expect("opened").info();
        assert_eq!((info.id, info.provider), (id, ProviderKind::Verbs));
        assert!(info.addresses.contains(&address), "{address} of {info:?}");
    }
}

// A slice that is too short stays unchanged, and the error contains the number of addresses (PRV-03).
#[test]
fn short_address_slice_reports_count_and_stays_unchanged() {
    if driver().is_none() {
        return;
    }
    let all = verbs().addresses().expect("known");
    let mark = IpAddr::from([203, 0, 113, 77]);
    let mut place = vec![mark; all.len() - 1];
    let error = verbs().copy_addresses(&mut place).expect_err("too short");
    assert_eq!(error.status(), Status::BUFFER_OVERFLOW);
    assert!(matches!(error, OpenError::TooShort(short) if short.needed == all.len()), "{error:?}");
    assert!(place.iter().all(|one| *one == mark), "{place:?}");
    let mut place = vec![mark; all.len() + 1];
    assert_eq!(verbs().copy_addresses(&mut place).expect("long enough"), all.len());
    assert_eq!(place, [all, vec![mark]].concat());
}

// PRV-04: the address decides who serves it, unless the caller does.
#[tokio::test]
async fn opening_by_address_prefers_device_to_soft() {
    if driver().is_none() {
        return;
    }
    for ip in both() {
        assert_eq!(Adapter::open(ip).expect("a device").info().provider, ProviderKind::Verbs);
        let soft = Provider::soft().expect("compiled in");
        let id = soft.resolve(ip).expect("an interface has the address");
        assert_eq!(soft.open(id).expect("opened").info().provider, ProviderKind::Soft);
    }
    let loopback = IpAddr::from([127, 0, 0, 1]);
    assert_eq!(Adapter::open(loopback).expect("loopback").info().provider, ProviderKind::Soft);
    assert!(matches!(verbs().resolve(loopback), Err(OpenError::InvalidAddress(_))));
}

// `resolve` and `open` of the verbs provider refuse the same addresses and ids as those of soft (PRV-04).
#[tokio::test]
async fn addresses_and_ids_of_nobody() {
    if driver().is_none() {
        return;
    }
    for text in ["203.0.113.77", "2001:db8::77", "0.0.0.0", "::", "224.0.0.1", "255.255.255.255"] {
        let error = verbs().resolve(text.parse().expect("an address")).expect_err(text);
        assert!(matches!(error, OpenError::InvalidAddress(_)), "{text}: {error:?}");
    }
    for id in [0, u64::MAX] {
        let error = verbs().open(AdapterId(id)).expect_err("no such adapter");
        assert!(matches!(error, OpenError::InvalidAdapter(_)), "{error:?}");
    }
}

// An adapter runs its tasks on the current runtime, so `open` fails without one (PRV-04).
#[test]
fn opening_needs_a_runtime_and_says_so() {
    if driver().is_none() {
        return;
    }
    let id = verbs().resolve(v4()).expect("the device");
    let error = verbs().open(id).expect_err("no runtime here");
    assert_eq!(error.status(), Status::NOT_SUPPORTED, "{error:?}");
}

// The route of the peer leads from the address of the device, and no route is NETWORK_UNREACHABLE (PRV-05).
#[test]
fn local_address_follows_the_route_to_the_peer() {
    if driver().is_none() {
        return;
    }
    let peer = device::absent().expect("a network").ip();
    assert_eq!(verbs().local_for(peer).expect("a route"), v4());
    let error = verbs().local_for(IpAddr::from([203, 0, 113, 7])).expect_err("no route");
    assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
    assert_eq!(error.status(), Status::NETWORK_UNREACHABLE);
}

// The loopback address is not usable, because no device has it (PRV-06).
#[test]
fn an_address_is_usable_or_not() {
    if driver().is_none() {
        return;
    }
    for ip in both() {
        assert!(verbs().is_usable(ip), "{ip}");
    }
    for text in ["203.0.113.77", "0.0.0.0", "224.0.0.1", "127.0.0.1"] {
        assert!(!verbs().is_usable(text.parse().expect("an address")), "{text}");
    }
}

// PRV-07: and nothing of it is left in the device.
#[tokio::test]
async fn everything_reopens_after_being_dropped() {
    if driver().is_none() {
        return;
    }
    let mut port = 0;
    for _ in 0..3 {
        let adapter = adapter();
        let listener = adapter.listener();
        listener.bind(SocketAddr::new(v4(), port)).expect("free again");
        listener.listen(0).expect("listening");
        port = listener.local_addr().expect("listening").port();
        let region = adapter.register(4096, Access::REMOTE_WRITE).await.expect("registered");
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(adapter.buffer(16).expect("a buffer")).expect("posted");
        assert!(held()["qp"] >= 2, "{:?}", held());
        drop((adapter, listener, region, pair));
        let (outcome, _buffer) = within(receive).await;
        assert_eq!(outcome.expect_err("flushed").status, Status::CANCELED);
    }
}
