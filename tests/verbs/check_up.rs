//! The check-up of a machine with a card that does not do what its driver promises.
//!
//! Runs on: fake

use std::net::IpAddr;

use common::process::alone;
use common::verbs::fake;
use common::*;
use tokio_rdma::ProviderKind;
use tokio_rdma::verbs::{CheckUp, Fault, check_up};

/// The addresses and adapters that were chosen.
fn choices(found: &CheckUp) -> Vec<(IpAddr, &str, ProviderKind)> {
    found.choices.iter().map(|choice| (choice.address, &choice.adapter[..], choice.provider)).collect()
}

// HW-17: without a fault the check-up names the device of each address.
#[tokio::test]
async fn a_device_that_works_is_chosen() {
    if !alone(module_path!(), "a_device_that_works_is_chosen") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let devices = both().map(|ip| (ip, "fake0", ProviderKind::Verbs));
    let found = within(check_up(None)).await;
    assert!(found.faults.is_empty(), "{found:?}");
    assert_eq!(choices(&found), devices);
    let found = within(check_up(Some(v6()))).await;
    assert!(found.faults.is_empty(), "{found:?}");
    assert_eq!(choices(&found), devices[1..]);
    let text = found.choices[0].to_string();
    assert_eq!(
        text,
        "::1: fake0 of the provider verbs, MTU 4096, because rdma_cm finds this device for the address"
    );
}

// HW-17: a device that rdma_cm chooses and that cannot connect to itself, at whichever call it fails.
#[tokio::test]
async fn rival_that_cannot_reach_itself_is_named() {
    if !alone(module_path!(), "rival_that_cannot_reach_itself_is_named") {
        return;
    }
    for call in ["rdma_resolve_route", "rdma_connect", "rdma_accept", "ibv_modify_qp"] {
        let Some(_) = fake("reset") else { return };
        fake(&format!("refuse {call} {}", libc::EPROTO));
        let found = within(check_up(Some(v4()))).await;
        let [Fault::Rival { device, address, .. }] = &found.faults[..] else {
            panic!("{call}: {found:?}");
        };
        assert_eq!((&device[..], *address), ("fake0", v4()), "{call}");
        let text = found.faults[0].to_string();
        assert!(
            text.contains("cannot connect to itself") && text.contains("Protocol error"),
            "{call}: {text}"
        );
        assert!(found.faults[0].remedy().contains("Provider::soft"), "{call}");
        // It is the one that programs get.
        assert_eq!(choices(&found), [(v4(), "fake0", ProviderKind::Verbs)], "{call}");
    }
}

// HW-17: an address that the device has lost is served by the soft provider.
#[tokio::test]
async fn an_address_of_no_device_is_named() {
    if !alone(module_path!(), "an_address_of_no_device_is_named") {
        return;
    }
    let Some(_) = fake(&format!("displace {}", v6())) else { return };
    let found = within(check_up(Some(v6()))).await;
    let [Fault::NotOfDevice { address, interface, others }] = &found.faults[..] else {
        panic!("{found:?}");
    };
    assert_eq!((*address, &interface[..], &others[..]), (v6(), "lo", &[v4()][..]));
    assert_eq!(choices(&found), [(v6(), "lo", ProviderKind::Soft)]);
    // Many interfaces may have this one, and it names none of them.
    let link_local = "fe80::1".parse().expect("an address");
    let found = within(check_up(Some(link_local))).await;
    let texts: Vec<_> = found.faults.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["no network interface that can be used has the address fe80::1"]);
    assert!(found.choices.is_empty(), "{found:?}");
}

// HW-17: a command of the card that fails is named with the call.
#[tokio::test]
async fn a_device_that_cannot_be_opened_is_named() {
    if !alone(module_path!(), "a_device_that_cannot_be_opened_is_named") {
        return;
    }
    let Some(_) = fake(&format!("refuse ibv_open_device {}", libc::EIO)) else { return };
    let found = within(check_up(None)).await;
    let texts: Vec<_> = found.faults.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["ibv_open_device failed: Input/output error (os error 5)"]);
}
