//! Runs on: guest
//!
//! Our verbs provider, with other programs on the same device, and with our soft provider on another host.
//!
//! A process that has opened a device keeps it, so this module does not reload siw.

use common::guest::{Cable, MACHINE_FAR, Stage, addresses, has_verbs, is_guest};
use common::peers;
use common::perftest;
use common::rping::{MTUS, both_ours, cases, original_client, original_server};
use common::transfer::transfer;
use tokio_rdma::Provider;

fn stage(device: &str) -> Option<Stage> {
    if is_guest() { Stage::verbs(device) } else { None }
}

fn rping(device: &str) {
    let Some(stage) = stage(device) else { return };
    // The device has its packets to itself: neither checksums nor their size are ours to choose.
    for case in cases().into_iter().filter(|case| case.mtu == MTUS[0] && !case.crc) {
        original_client(&stage, case);
        original_server(&stage, case);
        both_ours(&stage, case);
    }
}

#[test]
fn rping_on_rxe() {
    rping("RXE");
}

#[test]
fn rping_on_siw() {
    rping("SIW");
}

#[test]
fn librdmacm_on_rxe() {
    if let Some(stage) = stage("RXE") {
        peers::all(&stage);
    }
}

#[test]
fn librdmacm_on_siw() {
    if let Some(stage) = stage("SIW") {
        peers::all_between_siw(&stage);
    }
}

#[test]
fn perftest_on_rxe() {
    if let Some(stage) = stage("RXE") {
        perftest::all(&stage);
    }
}

#[test]
fn perftest_on_siw() {
    if let Some(stage) = stage("SIW") {
        perftest::all(&stage);
    }
}

#[test]
fn siw_to_soft_over_a_bad_cable() {
    if !is_guest() || !has_verbs() {
        return;
    }
    let cable = Cable::of_the_machine();
    cable.set_mtu(9000);
    cable.impair();
    for near_is_passive in [false, true] {
        let verbs = || Provider::verbs().expect("compiled in");
        transfer(&cable, [addresses("SIW")[0], MACHINE_FAR[0]], verbs, near_is_passive);
    }
}
