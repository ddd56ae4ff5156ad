//! Runs on: guest
//!
//! Our stream over the verbs provider, with programs that use rsocket on the same device: those of librdmacm, and
//! unmodified ones under its preload library.

use common::guest::{Stage, is_guest};
use common::{preload, rsocket};

fn stage(device: &str) -> Option<Stage> {
    if is_guest() { Stage::verbs(device) } else { None }
}

fn programs_of_librdmacm(device: &str) {
    if let Some(stage) = stage(device) {
        rsocket::rstream(&stage);
        rsocket::rcopy(&stage);
    }
}

fn preloaded_programs(device: &str) {
    if let Some(stage) = stage(device) {
        preload::plain_sockets(&stage);
        preload::exit_without_close(&stage);
        preload::netcat(&stage);
        preload::http(&stage);
    }
}

// IO-05: in both roles, with immediate data.
#[test]
fn programs_of_librdmacm_on_rxe() {
    programs_of_librdmacm("RXE");
}

// In both roles, over iWARP (IO-05).
#[test]
fn programs_of_librdmacm_on_siw() {
    programs_of_librdmacm("SIW");
}

// Unmodified programs run on rsocket by librspreload, over RoCE (IO-05).
#[test]
fn preloaded_programs_on_rxe() {
    preloaded_programs("RXE");
}

// Unmodified programs run on rsocket by librspreload, over iWARP (IO-05).
#[test]
fn preloaded_programs_on_siw() {
    preloaded_programs("SIW");
}

// A program can close its end while bytes of it are on their way to a stream that is reset (IO-05).
#[test]
fn close_of_reset_streams_ends_on_rxe() {
    if let Some(stage) = stage("RXE") {
        preload::close_of_reset_streams(&stage);
    }
}
