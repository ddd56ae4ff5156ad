//! Runs on: guest
//!
//! Our stream over the soft provider, with programs that use rsocket over the kernel's siw on another host: those of
//! librdmacm, and unmodified ones under its preload library.

use common::guest::{Siw, Stage, is_guest};
use common::{preload, rsocket};

// IO-05: the programs of librdmacm and preloaded ones, in both roles, and one that exits without closing.
#[test]
fn siw_as_it_is() {
    if !is_guest() {
        return;
    }
    let stage = Stage::soft(Siw::Stock);
    rsocket::rstream(&stage);
    rsocket::rcopy(&stage);
    preload::plain_sockets(&stage);
    preload::exit_without_close(&stage);
    preload::netcat(&stage);
    preload::http(&stage);
}

#[test]
fn siw_with_peer_to_peer_mode_and_checksums() {
    if !is_guest() {
        return;
    }
    // Only what goes on before the first byte is different.
    let stage = Stage::soft(Siw::PeerToPeer);
    rsocket::rstream_both_versions(&stage);
    rsocket::rcopy(&stage);
}
