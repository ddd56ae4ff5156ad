//! Runs on: guest
//!
//! ib_send_lat and ib_write_bw of perftest over siw, in both roles, with our soft provider. The programs must complete;
//! their measurements on an emulated machine have no meaning.

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
