//! Runs on: guest
//!
//! The soft provider on both hosts, over a cable that delays, loses and reorders packets.

use common::guest::{Cable, FAR, NEAR, Siw, is_guest};
use common::transfer::transfer;
use tokio_rdma::Provider;

#[test]
fn soft_to_soft() {
    if !is_guest() {
        return;
    }
    let cable = Cable::new(Siw::Stock);
    // Long packets, of which fewer have to be emulated.
    cable.set_mtu(9000);
    cable.impair();
    for near_is_passive in [false, true] {
        let soft = || Provider::soft().expect("compiled in");
        transfer(&cable, [NEAR[0], FAR[0]], soft, near_is_passive);
    }
}
