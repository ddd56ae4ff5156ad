//! Runs on: guest
//!
//! ucmatose, cmtime, rdma_client and rdma_server of rdma-core over siw, in both roles, with our soft provider.

use common::guest::{Siw, Stage, is_guest};
use common::peers::{self, Cmatose};

#[test]
fn siw_as_it_is() {
    if is_guest() {
        peers::all(&Stage::soft(Siw::Stock));
    }
}

#[test]
fn siw_with_peer_to_peer_mode_and_checksums() {
    if is_guest() {
        peers::all(&Stage::soft(Siw::PeerToPeer));
    }
}

#[test]
fn siw_over_a_bad_cable() {
    if is_guest() {
        let stage = Stage::soft(Siw::Stock);
        stage.cable.as_ref().expect("there is one").impair();
        peers::cmatose(&stage, 0, Cmatose { connections: 3, messages: 100, size: 9000 });
        peers::hello(&stage);
    }
}
