//! Runs on: guest
//!
//! ib_send_lat and ib_write_bw of perftest over siw, in both roles, against our soft provider. They have to complete; what
//! they measure on an emulated machine means nothing.

use common::guest::{Siw, Stage, is_guest};
use common::perftest;

#[test]
fn siw_as_it_is() {
    if is_guest() {
        perftest::all(&Stage::soft(Siw::Stock));
    }
}

#[test]
fn siw_with_peer_to_peer_mode_and_checksums() {
    if is_guest() {
        perftest::all(&Stage::soft(Siw::PeerToPeer));
    }
}
