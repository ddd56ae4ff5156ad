//! Runs on: guest
//!
//! The example `rping` over the soft provider, with the original over the kernel's siw on another host.

use common::guest::{Siw, Stage, is_guest};
use common::rping::{cases, original_client, original_server};

fn every_case(siw: Siw) {
    if !is_guest() {
        return;
    }
    let stage = Stage::soft(siw);
    for case in cases() {
        stage.cable.as_ref().expect("there is one").set_mtu(case.mtu);
        original_client(&stage, case);
        original_server(&stage, case);
    }
}

#[test]
fn siw_as_it_is() {
    every_case(Siw::Stock);
}

#[test]
fn siw_with_peer_to_peer_mode_and_checksums() {
    every_case(Siw::PeerToPeer);
}
