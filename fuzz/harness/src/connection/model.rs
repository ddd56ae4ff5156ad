//! The model: it judges each frame of the peer by the rules of RFC 5040, RFC 5041 and RFC 7306, and does what the frame does.

use std::cell::Cell;
use std::rc::Rc;

use common::raw::{READ_REQUEST, SEND, TERMINATE, WRITE, announced};
use tokio_rdma::Access;

use super::{Known, Session};
use crate::frame::{
    ATOMIC_REQUEST, ATOMIC_RESPONSE, Atomic, Header, IMMEDIATE, IMMEDIATE_SOLICITED, Place, READ_QUEUE, Read,
    SEND_QUEUE, SEND_SOLICITED, is_immediate, is_send, parse,
};
use crate::reader::{Asked, Awaited, Wanted};

/// The most announced segments that our end reads at once.
const MOST_AT_ONCE: usize = 16;

/// The consequence of a frame of the peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is granted.
    Legal,
    /// The connection ends.
    Illegal,
    /// It depends.
    Unsure,
}

impl Session {
    /// Judges a whole frame, and does in the model what it does.
    pub(super) fn judge(&mut self, ulpdu: &[u8], crc_error: bool) -> Verdict {
        let Some((header, payload)) = parse(ulpdu) else { return Verdict::Illegal };
        if crc_error {
            return Verdict::Illegal;
        }
        if let (true, WRITE, Place::Tagged { stag, to }) = (self.announces, header.opcode, header.place) {
            // What follows may be placed before its header is looked at.
            let rest = announced(ulpdu).min(MOST_AT_ONCE) * header.full();
            self.writes(stag, to.wrapping_add(payload.len() as u64), rest);
        }
        if !self.reader.clean {
            self.guess(&header, payload);
            return Verdict::Unsure;
        }
        if !self.is_as_announced(&header, payload.len(), announced(ulpdu)) {
            return Verdict::Illegal;
        }
        match header.place {
            Place::Tagged { .. } if header.opcode != WRITE => Verdict::Unsure,
            Place::Tagged { .. } if payload.is_empty() => Verdict::Legal,
            Place::Tagged { stag, to } => match self.writes(stag, to, payload.len()) {
                Some((place, at)) => {
                    let overtakes = self.reader.awaits_atomic();
                    let known = &mut self.regions[place];
                    known.disputed |= overtakes;
                    known.bytes[at..at + payload.len()].copy_from_slice(payload);
                    known.changes();
                    Verdict::Legal
                }
                None => Verdict::Illegal,
            },
            Place::Untagged { queue, number, offset } => {
                self.judge_untagged(&header, (queue, number, offset), payload)
            }
        }
    }

    /// Returns whether a segment may come behind what was announced, and notes what it announces.
    fn is_as_announced(&mut self, header: &Header, length: usize, count: usize) -> bool {
        if !self.announces || header.opcode == TERMINATE {
            return true;
        }
        let allowed = match self.announced {
            Some((next, behind)) => {
                let counted = count == behind || (count == 63 && behind == 62);
                *header == next && length == header.full() && counted
            }
            None => count == 0 || !header.last,
        };
        self.announced = (count > 0).then(|| (header.next(length, count == 1), count - 1));
        allowed
    }

    fn judge_untagged(&mut self, header: &Header, at: (u32, u32, u32), payload: &[u8]) -> Verdict {
        let next_send = (SEND_QUEUE, self.send_msn, self.message.len() as u32);
        let next_read = (READ_QUEUE, self.read_msn, 0);
        match header.opcode {
            SEND | SEND_SOLICITED if at == next_send => self.judge_send(payload, header.last),
            SEND | SEND_SOLICITED => Verdict::Illegal,
            IMMEDIATE | IMMEDIATE_SOLICITED => {
                let whole = header.last && !self.in_message && at == next_send;
                if whole && is_immediate(payload) { self.judge_send(&[], true) } else { Verdict::Illegal }
            }
            READ_REQUEST => match Read::parse(payload).filter(|_| header.last && at == next_read) {
                Some(request) => self.judge_read(&request),
                None => Verdict::Illegal,
            },
            ATOMIC_REQUEST => match Atomic::parse(payload).filter(|_| header.last && at == next_read) {
                Some(request) => self.judge_atomic(&request),
                None => Verdict::Illegal,
            },
            // Our user has asked for nothing that it would answer.
            ATOMIC_RESPONSE | TERMINATE => Verdict::Illegal,
            // The key to invalidate may be unknown, or in use.
            _ => Verdict::Unsure,
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

    /// After something illegal, notes the bytes that may be placed all the same, and the numbers that would be next.
    fn guess(&mut self, header: &Header, payload: &[u8]) {
        match (header.opcode, header.place) {
            (WRITE, Place::Tagged { stag, to }) => {
                self.writes(stag, to, payload.len());
            }
            (IMMEDIATE | IMMEDIATE_SOLICITED, Place::Untagged { number, .. }) if number == self.send_msn => {
                self.message.clear();
                self.send_msn += 1;
            }
            (opcode, Place::Untagged { number, .. }) if is_send(opcode) && number == self.send_msn => {
                if header.last {
                    self.message.clear();
                    self.send_msn += 1;
                } else {
                    self.message.resize(self.message.len() + payload.len(), 0);
                }
            }
            (READ_REQUEST | ATOMIC_REQUEST, Place::Untagged { number, .. }) => {
                self.read_msn += u32::from(number == self.read_msn);
            }
            _ => {}
        }
        if let (ATOMIC_REQUEST, Some(request)) = (header.opcode, Atomic::parse(payload)) {
            self.counts(&request);
        }
    }

    fn judge_read(&mut self, request: &Read) -> Verdict {
        self.read_msn += 1;
        if request.length > 0 && !self.reader.reads_at_all() {
            return Verdict::Illegal;
        }
        // In a burst it is not known how many the other end has at once.
        if self.burst || !self.reader.may_read() {
            return Verdict::Unsure;
        }
        let stale = Rc::new(Cell::new(false));
        let mut wanted = Wanted { bytes: Vec::new(), stale: stale.clone() };
        if request.length > 0 {
            let with_key = |known: &&mut Known| known.region.key().0 == request.source;
            let Some(known) = self.regions.iter_mut().find(with_key) else { return Verdict::Illegal };
            let start = usize::try_from(request.from).unwrap_or(usize::MAX);
            let Some(bytes) = known.bytes.get(start..start.saturating_add(request.length)) else {
                return Verdict::Illegal;
            };
            if !known.registered || !known.region.access().contains(Access::REMOTE_READ) {
                return Verdict::Illegal;
            }
            wanted.bytes = bytes.to_vec();
            stale.set(!known.is_known());
            known.readers.push(stale);
        }
        let awaited = Awaited::Read { sink: request.sink, length: request.length, received: 0 };
        self.reader.reads.push_back(Asked { awaited, wanted: Some(wanted) });
        Verdict::Legal
    }

    fn judge_atomic(&mut self, request: &Atomic) -> Verdict {
        self.read_msn += 1;
        let Some(place) = self.counts(request) else { return Verdict::Illegal };
        if !self.reader.reads_at_all() {
            return Verdict::Illegal;
        }
        // In a burst it is not known how many the other end has at once.
        if self.burst || !self.reader.may_read() {
            return Verdict::Unsure;
        }
        let known = &mut self.regions[place];
        let at = request.to as usize;
        let word = &mut known.bytes[at..at + 8];
        let original = word.to_vec();
        let value = u64::from_ne_bytes(original[..].try_into().expect("eight bytes"));
        word.copy_from_slice(&request.apply(value).to_ne_bytes());
        known.changes();
        let stale = Rc::new(Cell::new(!known.is_known()));
        known.readers.push(stale.clone());
        let awaited = Awaited::Atomic { identifier: request.identifier };
        self.reader.reads.push_back(Asked { awaited, wanted: Some(Wanted { bytes: original, stale }) });
        Verdict::Legal
    }

    /// The region that an atomic works on, if it is granted.
    fn counts(&mut self, request: &Atomic) -> Option<usize> {
        let (place, at) = self.grants(Access::REMOTE_ATOMIC, request.stag, request.to, 8)?;
        if at % 8 != 0 {
            return None;
        }
        self.regions[place].granted[at..at + 8].fill(true);
        Some(place)
    }

    /// The region and place that a Write goes to, if it is granted.
    fn writes(&mut self, stag: u32, to: u64, length: usize) -> Option<(usize, usize)> {
        let (place, at) = self.grants(Access::REMOTE_WRITE, stag, to, length)?;
        self.regions[place].granted[at..at + length].fill(true);
        Some((place, at))
    }

    /// The region with this key and the place in it, if they give the right.
    fn grants(&self, right: Access, stag: u32, to: u64, length: usize) -> Option<(usize, usize)> {
        let place = self.regions.iter().position(|known| known.region.key().0 == stag)?;
        let known = &self.regions[place];
        let granted = known.registered && known.region.access().contains(right);
        let at = usize::try_from(to).ok()?;
        let end = at.checked_add(length)?;
        (granted && end <= known.bytes.len()).then_some((place, at))
    }
}
