//! Runs on: guest
//!
//! Our verbs provider over the siw that is built with peer-to-peer mode and required CRC, in which the initiator sends
//! first: with other programs on the same device, and with itself.
//!
//! Each test reloads siw. A process keeps a device that it has opened, so each test runs in a separate process.

use common::guest::{Stage, in_peer_to_peer_mode};
use common::rping::{MTUS, both_ours, cases, original_client, original_server};
use common::{peers, perftest};

fn on_siw(name: &str, test: impl FnOnce(&Stage)) {
    in_peer_to_peer_mode(module_path!(), name, || {
        if let Some(stage) = Stage::verbs("SIW") {
            test(&stage);
        }
    });
}

#[test]
fn rping_on_siw() {
    on_siw("rping_on_siw", |stage| {
        for case in cases().into_iter().filter(|case| case.mtu == MTUS[0] && !case.crc) {
            original_client(stage, case);
            original_server(stage, case);
            both_ours(stage, case);
        }
    });
}

#[test]
fn librdmacm_on_siw() {
    on_siw("librdmacm_on_siw", peers::all_between_siw);
}

#[test]
fn perftest_on_siw() {
    on_siw("perftest_on_siw", perftest::all);
}
