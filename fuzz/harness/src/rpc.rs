//! Calls in messages (`tokio-rdma-rpc`): each end of a connection against a peer that the input controls.
//!
//! The peer is the other end of a stream in memory. The input is a list of commands to it, and to the user of our end. A
//! judge reads what our end says, and knows what it may say; a peer that has kept the rules is served to the end.

mod client;
mod direction;
mod peer;
mod server;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use tokio_rdma_rpc::BoxError;

use self::peer::{Options, Peer};
use crate::input::Input;
use crate::stage::run;

/// The most commands of one run.
const COMMANDS: usize = 48;

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Runs one connection, or some that follow each other.
///
/// # Panics
/// When our end does anything that it must not.
pub fn rpc(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mode = input.byte();
    // Most inputs are commands; the others are what the peer says, byte by byte.
    let is_raw = mode & 6 == 6;
    if mode & 1 == 0 { run(server::run(&mut input, is_raw)) } else { run(client::run(&mut input, is_raw)) }
}

/// Says the rest of the input, perhaps behind a hello.
async fn say_rest(peer: &mut Peer, input: &mut Input<'_>) {
    if input.flag() {
        peer.hello();
        peer.settle().await;
    }
    peer.is_wild = true;
    peer.emit(input.rest());
    peer.settle().await;
}

/// Returns whether all bytes are this one. It has no branch for each: that of a fuzzer would be counted.
fn is_filled(bytes: &[u8], filler: u8) -> bool {
    bytes.iter().fold(0, |others, byte| others | (byte ^ filler)) == 0
}
