//! The MPA start-up: both sides of it against any bytes, and our own two ends with a wire between them that changes
//! some (RFC 5044 section 7.1, RFC 6581).

mod initiator;
mod responder;
mod wire;

use common::raw::{self, CRC, PEER_TO_PEER, RTR_READ, RTR_SEND, RTR_WRITE};
use tokio::time::Instant;
use tokio_rdma::{QueuePair, QueuePairConfig, ReadLimits, RemoteRegion};

use crate::connection::{Opened, Options};
use crate::input::Input;
use crate::peer::Peer;
use crate::stage::{PATIENCE, idle, run};

/// A word that says no limit, and the mask of one.
const NO_LIMIT: u16 = 0x3fff;
/// The most that our stack says.
const MOST: u32 = 0x3ffe;

/// Runs one start-up.
///
/// # Panics
/// When our end does anything that it must not.
pub fn start_up(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => run(responder::run(&mut input)),
        1 => run(initiator::run(&mut input)),
        2 => run(wire::run(&mut input)),
        _ => run(frame(input.rest())),
    }
}

fn limits(input: &mut Input<'_>) -> ReadLimits {
    ReadLimits::new(input.half().into(), input.half().into())
}

/// The rest of the input in two: how long the pieces are, and the stream. The key is put before it unless the input has one.
fn stream(input: &mut Input<'_>, key: &[u8; 16], has_key: bool) -> (usize, Vec<u8>) {
    let piece = usize::from(input.byte()).max(1);
    let rest = input.rest();
    (piece, if has_key { rest.to_vec() } else { [key, rest].concat() })
}

/// The limits that the words of a frame say, as its sender has them.
fn said((ird, ord): (u16, u16)) -> ReadLimits {
    ReadLimits::new((ird & NO_LIMIT).into(), (ord & NO_LIMIT).into())
}

/// The words of our stack for these limits, without a bit.
fn words(limits: ReadLimits) -> (u16, u16) {
    (limits.inbound.min(MOST) as u16, limits.outbound.min(MOST) as u16)
}

fn bit(set: bool, bit: u16) -> u16 {
    if set { bit } else { 0 }
}

/// The frame that the words of a reply ask for, as a ULPDU; none unless it is peer-to-peer.
fn rtr(reply: Option<(u16, u16)>) -> Option<Vec<u8>> {
    match reply? {
        (ird, _) if ird & PEER_TO_PEER == 0 => None,
        (_, ord) if ord & RTR_WRITE != 0 => Some(raw::write(0, 0, &[])),
        (_, ord) if ord & RTR_READ != 0 => Some(raw::read_request(1, (0, 0), 0, (0, 0))),
        (ird, _) if ird & RTR_SEND != 0 => Some(Vec::new()),
        _ => None,
    }
}

/// A Terminate of MPA.
fn terminate(code: u8, crc: bool) -> Vec<u8> {
    raw::fpdu(&raw::terminate(&[0x20, code, 0, 0]), crc)
}

fn queue_pair(adapter: &tokio_rdma::Adapter) -> QueuePair {
    adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair")
}

/// Sends all that is queued, and waits until our end has taken it.
async fn deliver(peer: &mut Peer) {
    loop {
        let moved = peer.transfer();
        idle(Instant::now()).await;
        if !moved && !peer.transfer() {
            return;
        }
    }
}

/// Everything up to the end of the stream.
async fn last_words(peer: &mut Peer) -> Vec<u8> {
    let begin = Instant::now();
    while !peer.ended {
        assert!(begin.elapsed() < PATIENCE, "the stream of a peer that is not served does not end");
        idle(begin).await;
        peer.transfer();
    }
    std::mem::take(&mut peer.incoming)
}

/// The bytes of a region's name, and one frame on a connection that is well otherwise.
async fn frame(bytes: &[u8]) {
    if let Some(region) = RemoteRegion::decode(bytes) {
        assert_eq!(region.to_bytes(), bytes[..RemoteRegion::LEN]);
    }
    let mut opened = Opened::new(Options::new(&mut Input::new(&[0, 0, 0x48, 8]))).await;
    opened.frame(bytes).await;
    opened.close().await;
}

/// The flag that asks for CRC.
fn crc_flag(asks: bool) -> u16 {
    bit(asks, CRC)
}
