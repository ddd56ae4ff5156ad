//! The frames of the peer.

use common::raw::{
    READ_REQUEST, READ_RESPONSE, TERMINATE, WRITE, announcing, fpdu, read_payload, tagged, untagged,
};

use super::model::Verdict;
use super::{PAYLOAD, Session, pattern};
use crate::frame::{
    ATOMIC_QUEUE, ATOMIC_REQUEST, ATOMIC_RESPONSE, Atomic, FULL_TAGGED, IMMEDIATE, IMMEDIATE_SOLICITED,
    MOST_TAGGED, MOST_UNTAGGED, READ_QUEUE, SEND_QUEUE, TERMINATE_QUEUE, parse,
};
use crate::input::Input;
use crate::reader::SECRET;

/// The flaws of a frame, a bit each.
#[derive(Clone, Copy)]
struct Flaws(u8);

impl Flaws {
    /// Another key, another place, another number, another offset, other control bytes, another checksum, not the last
    /// segment, not the whole frame: from 0 on.
    fn has(self, bit: u8) -> bool {
        self.0 >> bit & 1 != 0
    }
}

impl Session {
    pub(super) fn raw(&mut self, input: &mut Input<'_>) {
        let count = input.byte();
        let mut bytes = input.bytes(count.into()).to_vec();
        bytes.iter_mut().filter(|byte| **byte == SECRET).for_each(|byte| *byte = 0);
        if !bytes.is_empty() {
            (self.reader.clean, self.reader.framed) = (false, false);
            self.peer.queue(&bytes);
        }
    }

    /// One FPDU with as much of it wrong as the input wants.
    pub(super) fn frame(&mut self, input: &mut Input<'_>) {
        let (flaws, opcode) = (Flaws(input.byte()), input.byte() & 15);
        let last = !flaws.has(6);
        let (key, size) = self.target(input.byte());
        let key = if flaws.has(0) { input.half().into() } else { key };
        let to = if flaws.has(1) { input.number(size) } else { 0 };
        let mut ulpdu = if matches!(opcode, WRITE | READ_RESPONSE) {
            let length = self.payload_length(input).min(MOST_TAGGED);
            tagged(opcode, last, key, to, &pattern(7, length))
        } else {
            let payload = self.untagged_payload(input, flaws, opcode, (key, to, size));
            self.untagged_frame(input, flaws, (opcode, last, key), &payload)
        };
        if flaws.has(4) {
            ulpdu[0] ^= input.byte();
            ulpdu[1] ^= input.byte();
        }
        self.emit(ulpdu, flaws.has(5), flaws.has(7).then(|| input.length()));
    }

    /// The payload of an untagged frame that names this key and place of a region with this size.
    fn untagged_payload(
        &mut self,
        input: &mut Input<'_>,
        flaws: Flaws,
        opcode: u8,
        (key, to, size): (u32, u64, u64),
    ) -> Vec<u8> {
        match opcode {
            READ_REQUEST => {
                let length =
                    if flaws.has(1) { input.number(size) as u32 } else { self.payload_length(input) as u32 };
                let mut payload = read_payload((u32::from(opcode) + 9, 0), length, (key, to));
                if flaws.has(4) {
                    payload.resize(input.length().min(MOST_UNTAGGED), 0);
                }
                payload
            }
            ATOMIC_REQUEST => {
                let (operand, bits) = (input.number(size), input.byte());
                let swaps = bits & 1 != 0;
                let operands = if swaps {
                    [operand, !0, 0, bits.into()]
                } else {
                    [operand, u64::from(bits) << 40, 0, 0]
                };
                // A place that is not aligned is a flaw, too.
                let to = if flaws.has(1) { to } else { u64::from(input.byte() & 0xf8) };
                Atomic { identifier: self.read_msn, stag: key, to, swaps, operands }.encode()
            }
            ATOMIC_RESPONSE => [u32::from(input.byte()).to_be_bytes(), [0; 4], key.to_be_bytes()].concat(),
            IMMEDIATE | IMMEDIATE_SOLICITED => [(input.number(size) as u32).to_be_bytes(), [0; 4]].concat(),
            TERMINATE => input.bytes(usize::from(flaws.0 >> 4) * 4).to_vec(),
            _ => {
                let length = self.payload_length(input).min(MOST_UNTAGGED);
                pattern(self.messages.len() + self.message.len(), length)
            }
        }
    }

    fn untagged_frame(
        &self,
        input: &mut Input<'_>,
        flaws: Flaws,
        (opcode, last, key): (u8, bool, u32),
        payload: &[u8],
    ) -> Vec<u8> {
        let (queue, number) = match opcode {
            READ_REQUEST | ATOMIC_REQUEST => (READ_QUEUE, self.read_msn),
            ATOMIC_RESPONSE => (ATOMIC_QUEUE, 1),
            TERMINATE => (TERMINATE_QUEUE, 1),
            _ => (SEND_QUEUE, self.send_msn),
        };
        let other_queue = if flaws.has(4) { input.byte().into() } else { queue };
        let number =
            if flaws.has(2) { number.wrapping_add_signed((input.byte() as i8).into()) } else { number };
        let offset = match queue {
            _ if flaws.has(3) => input.number(1) as u32,
            SEND_QUEUE => self.message.len() as u32,
            _ => 0,
        };
        let mut ulpdu = untagged(opcode, last, other_queue, number, offset, payload);
        ulpdu[2..6].copy_from_slice(&key.to_be_bytes());
        ulpdu
    }

    /// A Write that is granted.
    pub(super) fn valid_write(&mut self, input: &mut Input<'_>) {
        let (stag, size) = self.target(input.byte());
        let length = self.payload_length(input).min(size as usize).min(MOST_TAGGED);
        let to = u64::from(input.byte()).min(size - length as u64);
        let (last, seed) = (input.flag(), input.byte());
        // Its first segment is short, and the others are full.
        let most = if self.options.narrow { 0 } else { size.saturating_sub(to) as usize };
        let full = most.saturating_sub(length).min(PAYLOAD.saturating_sub(self.payload)) / FULL_TAGGED;
        if !self.announces || full == 0 || self.announced.is_some() || !input.flag() {
            self.emit(tagged(WRITE, last, stag, to, &pattern(seed.into(), length)), false, None);
            return;
        }
        self.payload += full * FULL_TAGGED;
        let bytes = pattern(seed.into(), length + full * FULL_TAGGED);
        let mut from = 0;
        for follow in (0..=full).rev() {
            let end = bytes.len() - follow * FULL_TAGGED;
            let segment = tagged(WRITE, follow == 0, stag, to + from as u64, &bytes[from..end]);
            self.emit(announcing(segment, follow), false, None);
            from = end;
        }
    }

    /// The answer to the oldest read of our end.
    pub(super) fn answer(&mut self, input: &mut Input<'_>) {
        let (flags, size) = (input.byte(), input.length().max(1));
        if self.announced.is_some() {
            return;
        }
        let Some((sink, length)) = self.reader.asked.pop_front() else { return };
        let wrong = flags & 7 == 7;
        self.reader.clean &= !wrong;
        let (sink, shift) =
            if wrong { (sink ^ u32::from(flags >> 3 & 1), u64::from(flags >> 4 & 1)) } else { (sink, 0) };
        let bytes = pattern(length, length);
        let size = size.max(length / 16).min(MOST_TAGGED);
        let mut at = 0;
        loop {
            let piece = &bytes[at..(at + size).min(length)];
            let ends = at + piece.len() == length;
            let last = ends && flags != 0xff;
            let clean = std::mem::replace(&mut self.reader.clean, false);
            self.emit(tagged(READ_RESPONSE, last, sink, at as u64 + shift, piece), false, None);
            self.reader.clean = clean;
            at += piece.len();
            if ends {
                break;
            }
        }
    }

    /// The key and length of a region; key 0, which is nobody's, without one.
    fn target(&self, place: u8) -> (u32, u64) {
        let place = usize::from(place).checked_rem(self.regions.len());
        place.map_or((0, 0), |place| {
            let region = &self.regions[place].region;
            (region.key().0, region.len() as u64)
        })
    }

    /// Completes a frame, judges it, and sends it, or only the bytes before `cut`.
    pub(super) fn emit(&mut self, ulpdu: Vec<u8>, bad_crc: bool, cut: Option<usize>) {
        let mut bytes = fpdu(&ulpdu, self.crc);
        let place = bytes.len() - 4;
        bytes[place] ^= u8::from(bad_crc);
        let cut = cut.filter(|cut| *cut < bytes.len());
        let was_clean = self.reader.clean;
        if let Some(cut) = cut {
            // The next bytes become a part of it.
            bytes.truncate(cut);
            (self.reader.clean, self.reader.framed) = (false, false);
        }
        let verdict = self.judge(&ulpdu, bad_crc && self.crc);
        self.reader.sent.push(bytes[..bytes.len().min(48)].to_vec());
        let violates = was_clean && cut.is_none() && verdict == Verdict::Illegal;
        self.must_end |= violates;
        // A Terminate is not answered by another one.
        let is_terminate = parse(&ulpdu).is_some_and(|(header, _)| header.opcode == TERMINATE);
        self.must_terminate |= violates && !is_terminate;
        self.reader.clean &= verdict == Verdict::Legal;
        self.peer.queue(&bytes);
    }
}
