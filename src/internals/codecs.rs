//! Single steps of the codecs, for the benchmark of them.

use bytes::Bytes;

use crate::wire::crc::crc32c;
use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::mpa::{StartFrame, StartKind};
use crate::wire::rdmap::Opcode;

/// A header of a Write with its length field.
#[must_use]
pub fn encode_tagged(to: u64, payload: usize) -> [u8; 16] {
    Tagged { last: true, opcode: Opcode::Write, stag: 7, to }.encode(payload)
}

/// A header of a Send with its length field.
#[must_use]
pub fn encode_untagged(msn: u32, payload: usize) -> [u8; 20] {
    Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn, mo: 0 }.encode(payload)
}

/// How long the payload behind the header is; nothing when there is no header.
#[must_use]
pub fn decode_header(bytes: &[u8]) -> Option<usize> {
    Header::decode(bytes).ok().map(|(_, length, _)| length)
}

/// The checksum of a frame.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes)
}

/// A start-up frame with private data, there and back: how long it is.
#[must_use]
pub fn start_frame(private_data: &Bytes, room: &mut Vec<u8>) -> Option<usize> {
    let frame = StartFrame {
        kind: StartKind::Request,
        markers: false,
        crc: true,
        reject: false,
        enhanced: false,
        revision: 1,
        private_data: private_data.clone(),
    };
    room.clear();
    frame.encode(room);
    StartFrame::decode(StartKind::Request, room).ok().map(|(_, length)| length)
}
