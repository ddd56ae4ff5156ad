//! What the peer sends, and what must come of it.

use std::cell::Cell;
use std::rc::Rc;

use super::{Known, Session, Verdict, pattern};
use crate::internals::input::Input;
use crate::internals::peer::{SECRET, Wanted};
use crate::types::Access;
use crate::wire::crc::{crc32c, to_wire};
use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::extensions::{Atomic, AtomicRequest, AtomicResponse, Immediate};
use crate::wire::mpa::{LENGTH_SIZE, pad_length};
use crate::wire::rdmap::{Opcode, ReadRequest, queue};

impl Session<'_> {
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
        let (flags, opcode) = (input.byte(), input.byte() & 15);
        let wrong = |bit: u8| flags >> bit & 1 != 0;
        let last = !wrong(6);
        let region = input.byte();
        let known = Opcode::from_number(opcode);
        let (key, size) = self.target(region);
        let key = if wrong(0) { input.half().into() } else { key };
        let to = if wrong(1) { input.number(size) } else { 0 };
        let mut bytes = if known.is_some_and(Opcode::is_tagged) {
            let length = self.payload_length(input).min(Tagged::MAX_PAYLOAD);
            let header = Tagged { last, opcode: known.unwrap_or(Opcode::Write), stag: key, to };
            [&header.encode(length)[..], &pattern(7, length)].concat()
        } else {
            let (qn, msn) = match known {
                Some(Opcode::ReadRequest | Opcode::AtomicRequest) => (queue::READ_REQUEST, self.read_msn),
                Some(Opcode::AtomicResponse) => (queue::ATOMIC_RESPONSE, 1),
                Some(Opcode::Terminate) => (queue::TERMINATE, 1),
                _ => (queue::SEND, self.send_msn),
            };
            let payload = match known {
                Some(Opcode::ReadRequest) => {
                    let length =
                        if wrong(1) { input.number(size) as u32 } else { self.payload_length(input) as u32 };
                    let (sink_stag, sink_to) = (u32::from(opcode) + 9, 0);
                    let request = ReadRequest { sink_stag, sink_to, length, source_stag: key, source_to: to };
                    let mut payload = request.encode().to_vec();
                    if wrong(4) {
                        payload.resize(input.length().min(Untagged::MAX_PAYLOAD), 0);
                    }
                    payload
                }
                Some(Opcode::AtomicRequest) => {
                    let (operand, bits) = (input.number(size), input.byte());
                    let atomic = if bits & 1 == 0 {
                        Atomic::FetchAdd { add: operand, mask: u64::from(bits) << 40 }
                    } else {
                        Atomic::CompareSwap {
                            swap: operand,
                            swap_mask: !0,
                            compare: 0,
                            compare_mask: bits.into(),
                        }
                    };
                    // What is not aligned is wrong, too.
                    let to = if wrong(1) { to } else { u64::from(input.byte() & 0xf8) };
                    let request = AtomicRequest { identifier: self.read_msn, stag: key, to, atomic };
                    request.encode().to_vec()
                }
                Some(Opcode::AtomicResponse) => {
                    AtomicResponse { identifier: input.byte().into(), original: key.into() }.encode().to_vec()
                }
                Some(Opcode::Immediate | Opcode::ImmediateSolicited) => {
                    Immediate(input.number(size) as u32).encode().to_vec()
                }
                Some(Opcode::Terminate) => input.bytes(usize::from(flags >> 4) * 4).to_vec(),
                _ => {
                    let length = self.payload_length(input).min(Untagged::MAX_PAYLOAD);
                    pattern(self.messages.len() + self.message.len(), length)
                }
            };
            let header = Untagged {
                last,
                opcode: known.unwrap_or(Opcode::Send),
                invalidate: key,
                qn: if wrong(4) { input.byte().into() } else { qn },
                msn: if wrong(2) { msn.wrapping_add_signed((input.byte() as i8).into()) } else { msn },
                mo: match qn {
                    _ if wrong(3) => input.number(1) as u32,
                    queue::SEND => self.message.len() as u32,
                    _ => 0,
                },
            };
            [&header.encode(payload.len())[..], &payload].concat()
        };
        if known.is_none() {
            bytes[3] = bytes[3] & 0xf0 | opcode;
        }
        if wrong(4) {
            bytes[2] ^= input.byte();
            bytes[3] ^= input.byte();
        }
        self.emit(bytes, wrong(5), wrong(7).then(|| input.length()));
    }

    /// A Write that is granted.
    pub(super) fn valid_write(&mut self, input: &mut Input<'_>) {
        let place = input.byte();
        let (stag, size) = self.target(place);
        let length = self.payload_length(input).min(size as usize).min(Tagged::MAX_PAYLOAD);
        let to = u64::from(input.byte()).min(size - length as u64);
        let header = Tagged { last: input.flag(), opcode: Opcode::Write, stag, to };
        let bytes = [&header.encode(length)[..], &pattern(input.byte().into(), length)].concat();
        self.emit(bytes, false, None);
    }

    /// The answer to the oldest read of our end.
    pub(super) fn answer(&mut self, input: &mut Input<'_>) {
        let (flags, size) = (input.byte(), input.length().max(1));
        let Some((stag, length)) = self.reader.asked.pop_front() else { return };
        if flags & 7 == 7 {
            self.reader.clean = false;
        }
        let bytes = pattern(length, length);
        let size = size.max(length / 16).min(Tagged::MAX_PAYLOAD);
        let mut at = 0;
        loop {
            let piece = &bytes[at..(at + size).min(length)];
            let last = at + piece.len() == length;
            let (mut stag, mut to) = (stag, at as u64);
            if flags & 7 == 7 {
                stag ^= u32::from(flags >> 3 & 1);
                to = to.wrapping_add(u64::from(flags >> 4 & 1));
            }
            let header = Tagged { last: last && flags != 0xff, opcode: Opcode::ReadResponse, stag, to };
            let clean = std::mem::replace(&mut self.reader.clean, false);
            self.emit([&header.encode(piece.len())[..], piece].concat(), false, None);
            self.reader.clean = clean;
            at += piece.len();
            if last {
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

    /// Completes a frame, notes what must come of it, and sends it, or as much of it as `cut` says.
    pub(super) fn emit(&mut self, mut bytes: Vec<u8>, bad_crc: bool, cut: Option<usize>) {
        let ulpdu = bytes.len() - LENGTH_SIZE;
        bytes.resize(bytes.len() + pad_length(ulpdu), 0);
        let checksum = if self.crc { crc32c(&bytes) } else { 0 };
        bytes.extend_from_slice(&to_wire(checksum ^ u32::from(bad_crc)));
        let cut = cut.filter(|cut| *cut < bytes.len());
        let crc_error = bad_crc && self.crc;
        let was_clean = self.reader.clean;
        let verdict = self.judge(&bytes, crc_error);
        if let Some(cut) = cut {
            bytes.truncate(cut);
            (self.reader.clean, self.reader.framed) = (false, false);
        }
        self.must_end |= was_clean && cut.is_none() && verdict == Verdict::Illegal;
        self.reader.clean &= verdict == Verdict::Legal;
        self.peer.queue(&bytes);
    }

    /// Whether a whole frame is legal now; what it does is done in the model.
    fn judge(&mut self, frame: &[u8], crc_error: bool) -> Verdict {
        let Ok((header, length, used)) = Header::decode(frame) else { return Verdict::Illegal };
        if crc_error {
            return Verdict::Illegal;
        }
        if !self.reader.clean {
            self.guess(&header, length);
            if let (Opcode::AtomicRequest, Ok(request)) =
                (header.opcode(), AtomicRequest::decode(&frame[used..]))
            {
                self.counts(&request);
            }
            return Verdict::Unsure;
        }
        let payload = &frame[used..used + length];
        match header {
            Header::Tagged(header) => match header.opcode {
                Opcode::Write if length == 0 => Verdict::Legal,
                Opcode::Write => match self.writes(&header, length) {
                    Some((place, at)) => {
                        let known = &mut self.regions[place];
                        known.bytes[at..at + length].copy_from_slice(payload);
                        known.changes();
                        Verdict::Legal
                    }
                    None => Verdict::Illegal,
                },
                _ => Verdict::Unsure,
            },
            Header::Untagged(header) => {
                let good = |qn, msn, mo| header.qn == qn && header.msn == msn && header.mo == mo;
                match header.opcode {
                    Opcode::Send | Opcode::SendSolicited => {
                        if good(queue::SEND, self.send_msn, self.message.len() as u32) {
                            self.judge_send(payload, header.last)
                        } else {
                            Verdict::Illegal
                        }
                    }
                    Opcode::ReadRequest => {
                        let good = good(queue::READ_REQUEST, self.read_msn, 0) && header.last;
                        match ReadRequest::decode(payload) {
                            Ok(request) if good && length == ReadRequest::LEN => self.judge_read(&request),
                            _ => Verdict::Illegal,
                        }
                    }
                    Opcode::Immediate | Opcode::ImmediateSolicited => {
                        let whole = header.last && length == Immediate::LEN && !self.in_message;
                        if whole && good(queue::SEND, self.send_msn, 0) && Immediate::decode(payload).is_ok()
                        {
                            self.judge_send(&[], true)
                        } else {
                            Verdict::Illegal
                        }
                    }
                    Opcode::AtomicRequest => {
                        let good = good(queue::READ_REQUEST, self.read_msn, 0) && header.last;
                        match AtomicRequest::decode(payload) {
                            Ok(request) if good && length == AtomicRequest::LEN => {
                                self.judge_atomic(&request)
                            }
                            _ => Verdict::Illegal,
                        }
                    }
                    // Our user has asked for nothing that it would answer.
                    Opcode::AtomicResponse | Opcode::Terminate => Verdict::Illegal,
                    // What is invalidated may be unknown, or in use.
                    _ => Verdict::Unsure,
                }
            }
        }
    }

    fn judge_send(&mut self, payload: &[u8], last: bool) -> Verdict {
        self.in_message = !last;
        self.message.extend_from_slice(payload);
        match self.rooms.front() {
            Some(room) if self.message.len() > *room => return Verdict::Illegal,
            // In a burst it may still be posted in time.
            None if self.burst => return Verdict::Unsure,
            None => return Verdict::Illegal,
            Some(_) => {}
        }
        if last {
            self.rooms.pop_front();
            self.messages.push(std::mem::take(&mut self.message));
            self.send_msn += 1;
        }
        Verdict::Legal
    }

    /// After something illegal: what may be placed all the same, and which numbers would be next.
    fn guess(&mut self, header: &Header, length: usize) {
        match header {
            Header::Tagged(header) if header.opcode == Opcode::Write => {
                self.writes(header, length);
            }
            Header::Untagged(header)
                if matches!(header.opcode, Opcode::Immediate | Opcode::ImmediateSolicited)
                    && header.msn == self.send_msn =>
            {
                self.message.clear();
                self.send_msn += 1;
            }
            Header::Untagged(header) if header.opcode.is_send() && header.msn == self.send_msn => {
                if header.last {
                    self.message.clear();
                    self.send_msn += 1;
                } else {
                    self.message.resize(self.message.len() + length, 0);
                }
            }
            Header::Untagged(header)
                if matches!(header.opcode, Opcode::ReadRequest | Opcode::AtomicRequest)
                    && header.msn == self.read_msn =>
            {
                self.read_msn += 1;
            }
            _ => {}
        }
    }

    fn judge_read(&mut self, request: &ReadRequest) -> Verdict {
        self.read_msn += 1;
        let length = request.length as usize;
        if length > 0 && !self.reader.outbound.reads_at_all() {
            return Verdict::Illegal;
        }
        // In a burst it is not known how many the other end has at once.
        if self.burst || !self.reader.outbound.may_read() {
            return Verdict::Unsure;
        }
        let stale = Rc::new(Cell::new(false));
        let mut wanted = Wanted { bytes: Vec::new(), stale: stale.clone() };
        if length > 0 {
            let with_key = |known: &&mut Known| known.region.key().0 == request.source_stag;
            let Some(known) = self.regions.iter_mut().find(with_key) else { return Verdict::Illegal };
            let start = usize::try_from(request.source_to).unwrap_or(usize::MAX);
            let Some(bytes) = known.bytes.get(start..start.saturating_add(length)) else {
                return Verdict::Illegal;
            };
            if !known.registered || !known.region.access().contains(Access::REMOTE_READ) {
                return Verdict::Illegal;
            }
            wanted.bytes = bytes.to_vec();
            stale.set(known.local);
            known.readers.push(stale);
        }
        self.reader.outbound.read(Some(wanted), request.sink_stag, length);
        Verdict::Legal
    }

    fn judge_atomic(&mut self, request: &AtomicRequest) -> Verdict {
        self.read_msn += 1;
        let Some(place) = self.counts(request) else { return Verdict::Illegal };
        if !self.reader.outbound.reads_at_all() {
            return Verdict::Illegal;
        }
        // In a burst it is not known how many the other end has at once.
        if self.burst || !self.reader.outbound.may_read() {
            return Verdict::Unsure;
        }
        let known = &mut self.regions[place];
        let at = request.to as usize;
        let word = &mut known.bytes[at..at + 8];
        let original = word.to_vec();
        let value = u64::from_ne_bytes(original[..].try_into().expect("eight bytes"));
        word.copy_from_slice(&request.atomic.apply(value).to_ne_bytes());
        known.changes();
        let stale = Rc::new(Cell::new(known.local));
        known.readers.push(stale.clone());
        self.reader.outbound.atomic(Some(Wanted { bytes: original, stale }));
        Verdict::Legal
    }

    /// The region that an atomic works on, if it is granted.
    fn counts(&mut self, request: &AtomicRequest) -> Option<usize> {
        let place = self.regions.iter().position(|known| known.region.key().0 == request.stag)?;
        let known = &mut self.regions[place];
        let granted = known.registered && known.region.access().contains(Access::REMOTE_ATOMIC);
        let at = usize::try_from(request.to).ok()?;
        let end = at.checked_add(8)?;
        if !granted || end > known.bytes.len() || at % 8 != 0 {
            return None;
        }
        known.granted[at..end].fill(true);
        Some(place)
    }

    /// The region and place that a Write goes to, if it is granted.
    fn writes(&mut self, header: &Tagged, length: usize) -> Option<(usize, usize)> {
        let place = self.regions.iter().position(|known| known.region.key().0 == header.stag)?;
        let known = &mut self.regions[place];
        let granted = known.registered && known.region.access().contains(Access::REMOTE_WRITE);
        let at = usize::try_from(header.to).ok()?;
        let end = at.checked_add(length)?;
        if !granted || end > known.bytes.len() {
            return None;
        }
        known.granted[at..end].fill(true);
        Some((place, at))
    }
}
