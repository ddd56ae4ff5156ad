//! Frames as the standards define them (RFC 5040, RFC 5041, RFC 7306), without any code under test.

/// The opcodes that `common::raw` does not have.
pub(crate) const SEND_SOLICITED: u8 = 5;
pub(crate) const SEND_SOLICITED_INVALIDATE: u8 = 6;
pub(crate) const IMMEDIATE: u8 = 8;
pub(crate) const IMMEDIATE_SOLICITED: u8 = 9;
pub(crate) const ATOMIC_REQUEST: u8 = 10;
pub(crate) const ATOMIC_RESPONSE: u8 = 11;

/// The queues of untagged messages.
pub(crate) const SEND_QUEUE: u32 = 0;
pub(crate) const READ_QUEUE: u32 = 1;
pub(crate) const TERMINATE_QUEUE: u32 = 2;
pub(crate) const ATOMIC_QUEUE: u32 = 3;

/// The most bytes of a ULPDU, and of what is behind its header.
pub(crate) const MOST_ULPDU: usize = 65_535;
pub(crate) const MOST_TAGGED: usize = MOST_ULPDU - TAGGED;
pub(crate) const MOST_UNTAGGED: usize = MOST_ULPDU - UNTAGGED;
/// The payload of a full segment.
pub(crate) const FULL_TAGGED: usize = 65_520;
pub(crate) const FULL_UNTAGGED: usize = 65_516;
const TAGGED: usize = 14;
const UNTAGGED: usize = 18;

/// The length of the payload of a Read Request, an Atomic Request, an Atomic Response and Immediate Data.
pub(crate) const READ_LENGTH: usize = 28;
pub(crate) const ATOMIC_LENGTH: usize = 52;
pub(crate) const ATOMIC_RESPONSE_LENGTH: usize = 12;
pub(crate) const IMMEDIATE_LENGTH: usize = 8;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u8,
    pub(crate) last: bool,
    pub(crate) place: Place,
}

impl Header {
    /// The next segment of the message, behind `length` bytes of payload.
    pub(crate) fn next(self, length: usize, last: bool) -> Self {
        let place = match self.place {
            Place::Tagged { stag, to } => Place::Tagged { stag, to: to.wrapping_add(length as u64) },
            Place::Untagged { queue, number, offset } => {
                Place::Untagged { queue, number, offset: offset.wrapping_add(length as u32) }
            }
        };
        Self { last, place, ..self }
    }

    /// The payload of a full segment.
    pub(crate) fn full(self) -> usize {
        if matches!(self.place, Place::Tagged { .. }) { FULL_TAGGED } else { FULL_UNTAGGED }
    }
}

/// The place of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tagged { stag: u32, to: u64 },
    Untagged { queue: u32, number: u32, offset: u32 },
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

pub(crate) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

/// The header and the payload of a ULPDU; `None` if there is no such header. Reserved bits are not looked at.
pub(crate) fn parse(ulpdu: &[u8]) -> Option<(Header, &[u8])> {
    let (ddp, rdmap) = (*ulpdu.first()?, *ulpdu.get(1)?);
    let (tagged, opcode) = (ddp & 0x80 != 0, rdmap & 0x0f);
    let payload = ulpdu.get(if tagged { TAGGED } else { UNTAGGED }..)?;
    // Only Writes and Read Responses are tagged.
    if ddp & 3 != 1 || rdmap >> 6 != 1 || opcode > ATOMIC_RESPONSE || tagged != matches!(opcode, 0 | 2) {
        return None;
    }
    let place = if tagged {
        Place::Tagged { stag: word(ulpdu, 2), to: long(ulpdu, 6) }
    } else {
        Place::Untagged { queue: word(ulpdu, 6), number: word(ulpdu, 10), offset: word(ulpdu, 14) }
    };
    Some((Header { opcode, last: ddp & 0x40 != 0, place }, payload))
}

/// A Read Request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) sink: u32,
    pub(crate) length: usize,
    pub(crate) source: u32,
    pub(crate) from: u64,
}

impl Read {
    /// `None` if the payload has another length.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        (payload.len() == READ_LENGTH).then(|| Self {
            sink: word(payload, 0),
            length: word(payload, 12) as usize,
            source: word(payload, 16),
            from: long(payload, 20),
        })
    }
}

/// An Atomic Request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) identifier: u32,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    /// Compare-and-swap, not fetch-and-add.
    pub(crate) swaps: bool,
    /// Add and its mask; or swap, its mask, compare, its mask.
    pub(crate) operands: [u64; 4],
}

impl Atomic {
    /// `None` if the payload has another length, or the operation does not exist.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let code = payload.get(3)? & 0x0f;
        if payload.len() != ATOMIC_LENGTH || !matches!(code, 0 | 2) {
            return None;
        }
        Some(Self {
            identifier: word(payload, 4),
            stag: word(payload, 8),
            to: long(payload, 12),
            swaps: code == 2,
            operands: [20, 28, 36, 44].map(|at| long(payload, at)),
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0, 0, 0, if self.swaps { 2 } else { 0 }];
        out.extend_from_slice(&self.identifier.to_be_bytes());
        out.extend_from_slice(&self.stag.to_be_bytes());
        out.extend_from_slice(&self.to.to_be_bytes());
        self.operands.iter().for_each(|operand| out.extend_from_slice(&operand.to_be_bytes()));
        out
    }

    /// The value afterwards.
    pub(crate) fn apply(&self, value: u64) -> u64 {
        let [first, mask, compare, compare_mask] = self.operands;
        if self.swaps {
            let equal = value & compare_mask == compare & compare_mask;
            return if equal { value & !mask | first & mask } else { value };
        }
        // Bit by bit: the carry is lost behind a bit of the mask.
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let total = (value >> bit & 1) + (first >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        sum
    }
}

/// Returns whether the payload is immediate data of at most 32 bits, in either half.
pub(crate) fn is_immediate(payload: &[u8]) -> bool {
    payload.len() == IMMEDIATE_LENGTH && (word(payload, 0) == 0 || word(payload, 4) == 0)
}

/// Returns whether the opcode is one of the four Sends.
pub(crate) fn is_send(opcode: u8) -> bool {
    (common::raw::SEND..=SEND_SOLICITED_INVALIDATE).contains(&opcode)
}
