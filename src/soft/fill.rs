//! Frames queued requests and responses as FPDUs, in the order the protocol allows.

use smallvec::SmallVec;

use super::registration::RemoteAccess;
use super::send::{
    Answer, Entry, FramingTurn, ReadOwner, RequestState, Response, SendQueue, Work, deregistered,
};
use crate::inflight::{self, Payload};
use crate::proto::rdmap::SendOptions;
use crate::provider::work::{Flags, Operation, RemoteAddress};
use crate::wire::ddp::Tagged;
use crate::wire::extensions::{Atomic, AtomicRequest, AtomicResponse, Immediate};
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate};

/// The largest payload of an FPDU: a whole FPDU then fills the 16-bit length and needs no padding.
pub(super) const MAX_TAGGED: usize = 65_520;
pub(super) const MAX_UNTAGGED: usize = 65_516;

impl SendQueue {
    /// Frames as much as a batch holds. Returns false if there is nothing to send now.
    pub(super) fn fill(&mut self) -> bool {
        if self.held {
            return false;
        }
        if self.closed {
            if let Some(terminate) = self.terminate.take() {
                let mut payload = Vec::with_capacity(terminate.payload_len());
                terminate.encode(&mut payload);
                self.batch.untagged(&Terminate::HEADER, &payload);
            }
            return !self.batch.is_empty();
        }
        // In turn, so that neither a peer that reads nor a caller that writes starves the other.
        let mut progress = true;
        while progress && self.has_unframed() && self.batch.has_room() {
            let answered = self.turn != FramingTurn::Request && self.fill_response();
            let requested = self.turn != FramingTurn::Response && self.fill_request();
            progress = answered || requested;
        }
        !self.batch.is_empty()
    }

    /// Frames segments of the oldest unfinished response.
    fn fill_response(&mut self) -> bool {
        let Some(response) = self.responses.front_mut() else { return false };
        if !self.batch.admits(response.access.as_ref()) {
            return false;
        }
        // Small or checksummed payload is copied here, so it has to be valid here; payload that stays in
        // place is checked again when it is written.
        let access = response.access.clone();
        let held = match access.as_ref().map(RemoteAccess::guard) {
            Some(None) => {
                self.broken.get_or_insert_with(deregistered);
                return false;
            }
            other => other.flatten(),
        };
        let Response { start, length, framed, answer, .. } = response;
        let payload = &held.as_ref().map_or_else(Payload::new, |held| held.part(*start, *length));
        let (stag, to) = match *answer {
            Answer::Read { sink } => sink,
            Answer::Atomic { atomic, identifier } => {
                // Executed in its turn: the reads before it must see the value before it. Bytes of a read
                // that are still in place are fetched when the batch is written, so the atomic waits for the
                // next batch.
                if self.batch.access().is_some() {
                    return false;
                }
                // One step, so that no other atomic comes between, of whichever connection.
                let original = payload.first().and_then(|word| word.update(|value| atomic.apply(value)));
                let Some(original) = original else {
                    self.broken.get_or_insert_with(deregistered);
                    return false;
                };
                let header = self.outbound.answer_atomic();
                self.batch.untagged(&header, &AtomicResponse { identifier, original }.encode());
                self.responses.pop_front();
                return true;
            }
        };
        self.turn = FramingTurn::Response;
        while self.batch.has_room() {
            let size = (*length - *framed).min(MAX_TAGGED);
            let last = *framed + size == *length;
            // The peer chose the sink, and may choose one that wraps around.
            let to = to.wrapping_add(*framed as u64);
            let header = Tagged { last, opcode: Opcode::ReadResponse, stag, to };
            let parts = inflight::range(payload, *framed, size);
            self.batch.tagged(&header, &parts, access.as_ref());
            *framed += size;
            if last {
                self.responses.pop_front();
                self.turn = FramingTurn::Any;
                break;
            }
        }
        true
    }

    /// Frames segments of the oldest unfinished request, or executes it if it needs no frame.
    fn fill_request(&mut self) -> bool {
        let sequence = self.head + self.framed as u64;
        let Some(entry) = self.entries.get_mut(self.framed) else { return false };
        // The queue is in order: requests behind one that may not start yet wait with it.
        if entry.framed == 0 && entry.flags.contains(Flags::FENCE) && self.outbound.has_reads() {
            return false;
        }
        let operation = match &entry.work {
            Work::Transfer(operation) => *operation,
            Work::Window(window_op) => {
                window_op.commit();
                entry.state = RequestState::Done;
                self.framed += 1;
                return true;
            }
        };
        let atomic = match operation {
            Operation::Send { .. } | Operation::Write { .. } => return self.fill_message(),
            _ if !self.outbound.may_read() => return false,
            Operation::Read { from } => {
                // The name of the sink is never looked up, see `Outbound::read`; this one is just easy to
                // recognise.
                let name = (sequence as u32).wrapping_shl(8) | 1;
                let header = self.outbound.read(ReadOwner::Request(sequence), name, entry.length);
                // Posting checked that the length fits.
                let length = u32::try_from(entry.length).unwrap_or(u32::MAX);
                let RemoteAddress { key: source_stag, address: source_to } = from;
                let request = ReadRequest { sink_stag: name, sink_to: 0, length, source_stag, source_to };
                self.batch.untagged(&header, &request.encode());
                None
            }
            Operation::CompareSwap { at, compare, swap } => Some((at, Atomic::compare_swap(compare, swap))),
            Operation::FetchAdd { at, add } => Some((at, Atomic::fetch_add(add))),
        };
        if let Some((RemoteAddress { key: stag, address: to }, atomic)) = atomic {
            let (header, identifier) = self.outbound.atomic(ReadOwner::Request(sequence));
            self.batch.untagged(&header, &AtomicRequest { identifier, stag, to, atomic }.encode());
        }
        entry.state = RequestState::Framed;
        self.framed += 1;
        true
    }

    /// Frames segments of the oldest unfinished request, which is a Send or a Write.
    fn fill_message(&mut self) -> bool {
        let Some(entry) = self.entries.get_mut(self.framed) else { return false };
        let Entry { work, payload, flags, length, framed, state, .. } = entry;
        let solicited = flags.contains(Flags::SOLICITED);
        let (written, options, immediate) = match *work {
            Work::Transfer(Operation::Write { to, immediate }) => {
                (Some(to), SendOptions::default(), immediate)
            }
            Work::Transfer(Operation::Send { invalidate, .. }) => {
                (None, SendOptions { invalidate, solicited }, None)
            }
            _ => return false,
        };
        self.turn = FramingTurn::Request;
        while self.batch.has_room() {
            let maximum = if written.is_some() { MAX_TAGGED } else { MAX_UNTAGGED };
            let size = (*length - *framed).min(maximum);
            let last = *framed + size == *length;
            let parts: SmallVec<_> = inflight::range(payload, *framed, size);
            if let Some(RemoteAddress { key: stag, address }) = written {
                let to = address.wrapping_add(*framed as u64);
                self.batch.tagged(&Tagged { last, opcode: Opcode::Write, stag, to }, &parts, None);
            } else {
                // Posting checked that the header can express every offset.
                let Some(header) = self.outbound.send(*framed, last, options) else { return false };
                self.batch.untagged_parts(&header, &parts);
            }
            *framed += size;
            if last {
                if let Some(value) = immediate {
                    // A message of its own, behind the Write, whose data is in place when it arrives.
                    let header = self.outbound.immediate(solicited);
                    self.batch.untagged(&header, &Immediate(value).encode());
                }
                *state = RequestState::Framed;
                self.framed += 1;
                self.turn = FramingTurn::Any;
                break;
            }
        }
        true
    }
}
