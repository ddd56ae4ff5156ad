//! The sending half of a connection: work requests to FPDUs, FPDUs to the socket.
//!
//! Whoever posts also writes, as long as the socket takes it; the driver of the connection goes on when the socket
//! was full. [`SendQueue`] has one lock; the writer takes the batch out of it and offers that to the socket without the
//! lock, one writer at a time.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use super::batch::Batch;
use super::keys::Registration;
use super::link::Command;
use crate::error::PostErrorKind;
use crate::flight::{self, Aftermath, Completed, Outlet, Payload};
use crate::proto::mpa::{Rtr, rtr_frame};
use crate::proto::rdmap::{Outbound, SendOptions};
use crate::provider::work::{Flags, Target, Verb, Work};
use crate::status::Status;
use crate::types::OpKind;
use crate::wire::ddp::Tagged;
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate};

/// The largest payload of an FPDU: what makes a whole FPDU fill the 16-bit length and need no padding.
pub(crate) const MAX_TAGGED: usize = 65_520;
const MAX_UNTAGGED: usize = 65_516;

/// How many batches one call writes at most before it lets the driver go on, so that no caller is held for long.
pub(crate) const MAX_BATCHES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not all of it is in a batch yet.
    Queued,
    /// In a batch that the socket has not taken in full.
    Framed,
    /// A read that awaits its answer.
    Waiting,
    /// Over, but an earlier request is not: completions come in post order (`QP-17`).
    Done,
}

struct Entry {
    request: Work,
    length: usize,
    framed: usize,
    stage: Stage,
}

/// A Read Request of the peer that is being answered.
struct Response {
    registration: Option<Arc<Registration>>,
    payload: Payload,
    length: usize,
    sink: (u32, u64),
    framed: usize,
}

/// Who asked for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The request with this sequence number.
    Request(u64),
    /// We did, to hear whether the peer is still there.
    Probe,
}

/// Which message is cut in two by the end of a batch: messages of one class must not mix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Any,
    Request,
    Response,
}

/// The state of the sending half.
pub(crate) struct SendQueue {
    entries: VecDeque<Entry>,
    /// Sequence number of the first of `entries`.
    head: u64,
    /// How many of `entries` have been framed in full.
    cursor: usize,
    /// How many of `entries` the socket has taken in full.
    taken: usize,
    depth: usize,
    outbound: Outbound<Reader>,
    responses: VecDeque<Response>,
    turn: Turn,
    batch: Batch,
    crc: bool,
    terminate: Option<Terminate>,
    /// The responder may not send before the first FPDU of the initiator (RFC 5044 section 7.1.3).
    pub(crate) held: bool,
    /// Nothing more may be posted.
    closed: bool,
    /// Somebody has the batch and is offering it to the socket, without the lock.
    writing: bool,
    /// The socket was full: the driver writes on when it has room.
    pub(crate) blocked: bool,
    /// Why the socket takes nothing any more.
    pub(crate) broken: Option<io::Error>,
    pub(crate) driver: Option<Waker>,
    pub(crate) command: Option<Command>,
}

/// What to do after a batch has been offered to the socket.
#[derive(Debug)]
pub(crate) enum Next {
    /// Offer this one.
    Write(Batch),
    /// Everything that may be sent now is with the socket.
    Idle,
    /// The socket is full: the driver goes on when it has room.
    Blocked,
}

impl SendQueue {
    pub(crate) fn new(depth: usize, read_limit: u32, crc: bool) -> Self {
        Self {
            entries: VecDeque::new(),
            head: 0,
            cursor: 0,
            taken: 0,
            depth,
            outbound: Outbound::new(read_limit),
            responses: VecDeque::new(),
            turn: Turn::Any,
            batch: Batch::new(crc),
            crc,
            terminate: None,
            held: false,
            closed: false,
            writing: false,
            blocked: false,
            broken: None,
            driver: None,
            command: None,
        }
    }

    /// The ready-to-receive frame of the handshake goes first. When it is a Read Request, its answer is one more read
    /// that is outstanding, whatever the limit.
    pub(crate) fn preface(&mut self, rtr: Rtr) {
        self.batch.framed(&rtr_frame(rtr, self.crc));
        if rtr == Rtr::Read {
            let _counted = self.outbound.read(Reader::Probe, 0, 0);
        }
    }

    /// A zero-length RDMA Write: it names no memory, says nothing, and wakes a peer that missed what came before.
    pub(crate) fn nudge(&mut self) {
        if self.turn == Turn::Any && !self.closed && !self.writing {
            self.batch.framed(&rtr_frame(Rtr::Write, self.crc));
        }
    }

    /// Whether another request can be posted.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn admits(&self, kind: OpKind) -> Result<(), PostErrorKind> {
        if self.closed {
            Err(PostErrorKind::ConnectionInvalid)
        } else if self.entries.len() >= self.depth {
            Err(PostErrorKind::QueueFull)
        } else if kind == OpKind::Read && !self.outbound.reads_at_all() {
            Err(PostErrorKind::NoReads)
        } else {
            Ok(())
        }
    }

    pub(crate) fn post(&mut self, request: Work) {
        let length = flight::length(&request.payload);
        self.entries.push_back(Entry { request, length, framed: 0, stage: Stage::Queued });
    }

    /// Whether writing has to wait for the driver, or for the peer.
    pub(crate) fn is_busy(&self) -> bool {
        self.blocked || self.held
    }

    /// Whether somebody is writing right now.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing
    }

    /// Answers a Read Request of the peer.
    pub(crate) fn respond(
        &mut self,
        registration: Option<Arc<Registration>>,
        payload: Payload,
        sink: (u32, u64),
    ) {
        let length = flight::length(&payload);
        self.responses.push_back(Response { registration, payload, length, sink, framed: 0 });
    }

    /// How many reads of the peer have not been answered in full. One whose answer is in the batch counts as answered:
    /// the end of it may have reached the peer, and brought the next read, before the socket has taken the rest.
    pub(crate) fn serving(&self) -> usize {
        self.responses.len()
    }

    /// Asks the peer for nothing, which it has to answer. False when the read limit leaves no room.
    pub(crate) fn probe(&mut self) -> bool {
        if !self.outbound.may_read()
            || self.writing
            || !self.batch.is_empty()
            || self.turn != Turn::Any
            || self.closed
        {
            return false;
        }
        let header = self.outbound.read(Reader::Probe, 1, 0);
        let request = ReadRequest { sink_stag: 1, sink_to: 0, length: 0, source_stag: 0, source_to: 0 };
        self.batch.untagged(&header, &request.encode());
        true
    }

    pub(crate) fn has_reads(&self) -> bool {
        self.outbound.has_reads()
    }

    /// Nothing but what is already framed, and these last words, goes out from now on.
    pub(crate) fn close(&mut self, terminate: Option<Terminate>) {
        self.closed = true;
        self.responses.clear();
        self.terminate = terminate;
        self.held = false;
    }

    /// Whether all that is to be sent after `close` has been.
    pub(crate) fn is_drained(&self) -> bool {
        self.batch.is_empty() && self.terminate.is_none()
    }

    /// Takes the role of the writer, if nobody has it and there is something to write. There is one writer at a time,
    /// and it works without the lock: whoever posts meanwhile leaves the rest to it.
    pub(crate) fn begin(&mut self) -> Next {
        if self.writing || self.broken.is_some() {
            return Next::Idle;
        }
        self.next()
    }

    /// The writer has offered the batch to the socket.
    pub(crate) fn offered(
        &mut self,
        mut batch: Batch,
        outcome: io::Result<usize>,
        outlet: &Outlet,
        after: &mut Aftermath,
    ) -> Next {
        self.writing = false;
        match outcome {
            Ok(sent) => batch.advance(sent),
            Err(error) => {
                self.batch = batch;
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.blocked = true;
                } else {
                    // The driver finds out why.
                    self.broken = Some(error);
                    self.blocked = false;
                }
                return Next::Blocked;
            }
        }
        self.batch = batch;
        if self.batch.is_empty() {
            self.taken(outlet, after);
        }
        self.next()
    }

    /// The writer stops early, so that no caller is held for long: the driver goes on.
    pub(crate) fn pause(&mut self, batch: Batch) {
        self.writing = false;
        self.batch = batch;
        self.blocked = true;
    }

    fn next(&mut self) -> Next {
        if self.batch.is_empty() && !self.fill() {
            self.blocked = false;
            return Next::Idle;
        }
        self.writing = true;
        Next::Write(std::mem::replace(&mut self.batch, Batch::new(self.crc)))
    }

    /// The socket has taken the whole batch.
    fn taken(&mut self, outlet: &Outlet, after: &mut Aftermath) {
        for entry in self.entries.range_mut(self.taken..self.cursor) {
            match entry.stage {
                Stage::Framed if entry.request.verb.kind() == OpKind::Read => entry.stage = Stage::Waiting,
                Stage::Framed => entry.stage = Stage::Done,
                // A read may have been answered while the rest of its batch was still on the way.
                Stage::Queued | Stage::Waiting | Stage::Done => {}
            }
        }
        self.taken = self.cursor;
        self.retire(outlet, after);
    }

    /// Completes what is over, in post order.
    fn retire(&mut self, outlet: &Outlet, after: &mut Aftermath) {
        while self.entries.front().is_some_and(|entry| entry.stage == Stage::Done) {
            let Some(entry) = self.pop() else { return };
            let Work { ticket, payload, flags, .. } = entry.request;
            let mut completed = Completed::done(entry.length, payload);
            completed.extra.silent = flags.contains(Flags::SILENT);
            outlet.complete(ticket, completed, after);
        }
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.head += 1;
        self.cursor = self.cursor.saturating_sub(1);
        self.taken = self.taken.saturating_sub(1);
        Some(entry)
    }

    /// Nothing is posted after this, and everything completes as flushed: the oldest with `first`, which may say
    /// what went wrong, the others with `rest`.
    pub(crate) fn flush(&mut self, first: Status, rest: Status, outlet: &Outlet, after: &mut Aftermath) {
        self.closed = true;
        self.batch.clear();
        self.responses.clear();
        let mut status = first;
        while let Some(Entry { request: Work { ticket, payload, .. }, .. }) = self.pop() {
            outlet.complete(ticket, Completed::failed(status, payload), after);
            status = rest;
        }
    }

    /// Gives back what a burst left behind.
    pub(crate) fn trim(&mut self) {
        self.batch.trim();
    }

    /// The memory that a segment of a Read Response goes to.
    ///
    /// # Errors
    /// The Terminate for one that nobody asked for.
    pub(crate) fn response(
        &mut self,
        (stag, to): (u32, u64),
        length: usize,
        last: bool,
    ) -> Result<Payload, Terminate> {
        let head = self.head;
        let piece = self.outbound.response(stag, to, length, last)?;
        Ok(match *piece.owner {
            Reader::Probe => Payload::new(),
            Reader::Request(sequence) => usize::try_from(sequence - head)
                .ok()
                .and_then(|index| self.entries.get(index))
                .map(|entry| flight::range(&entry.request.payload, piece.offset, length))
                .unwrap_or_default(),
        })
    }

    /// The oldest outstanding read has been answered, and its sink is no longer in use.
    pub(crate) fn answered(&mut self, outlet: &Outlet, after: &mut Aftermath) {
        if let Some(Reader::Request(sequence)) = self.outbound.answered() {
            let index = usize::try_from(sequence - self.head).ok();
            if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
                entry.stage = Stage::Done;
            }
            self.retire(outlet, after);
        }
    }

    /// Frames as much as a batch holds. False when there is nothing to send now.
    fn fill(&mut self) -> bool {
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
        // Turn by turn, so that neither a peer that reads nor a caller that writes starves the other.
        let mut progress = true;
        while progress && self.batch.has_room() {
            let answered = self.turn != Turn::Request && self.fill_response();
            let requested = self.turn != Turn::Response && self.fill_request();
            progress = answered || requested;
        }
        !self.batch.is_empty()
    }

    /// Frames segments of the oldest unfinished answer.
    fn fill_response(&mut self) -> bool {
        let Some(response) = self.responses.front_mut() else { return false };
        if !self.batch.admits(response.registration.as_ref()) {
            return false;
        }
        // Small or checksummed payload is copied here, so it has to be valid here; what stays in place is checked again
        // when it is written.
        let registration = response.registration.clone();
        let _valid = match registration.as_deref().map(Registration::hold) {
            Some(None) => {
                self.broken.get_or_insert_with(deregistered);
                return false;
            }
            other => other.flatten(),
        };
        self.turn = Turn::Response;
        while self.batch.has_room() {
            let size = (response.length - response.framed).min(MAX_TAGGED);
            let last = response.framed + size == response.length;
            let (stag, to) = response.sink;
            // The peer chose the sink; where it wraps around is the peer's affair.
            let to = to.wrapping_add(response.framed as u64);
            let header = Tagged { last, opcode: Opcode::ReadResponse, stag, to };
            let parts = flight::range(&response.payload, response.framed, size);
            self.batch.tagged(&header, &parts, registration.as_ref());
            response.framed += size;
            if last {
                self.responses.pop_front();
                self.turn = Turn::Any;
                break;
            }
        }
        true
    }

    /// Frames segments of the oldest unfinished request.
    fn fill_request(&mut self) -> bool {
        let sequence = self.head + self.cursor as u64;
        let Some(entry) = self.entries.get_mut(self.cursor) else { return false };
        let written = match entry.request.verb {
            Verb::Read { from } => {
                // The queue is in order: what is behind a read that may not start yet waits with it.
                if !self.outbound.may_read() {
                    return false;
                }
                // The name of the sink is never looked up, see `Outbound::read`; this one is just easy to recognise.
                let name = (sequence as u32).wrapping_shl(8) | 1;
                let header = self.outbound.read(Reader::Request(sequence), name, entry.length);
                // Posting checked that the length fits.
                let length = u32::try_from(entry.length).unwrap_or(u32::MAX);
                let Target { key: source_stag, address: source_to } = from;
                let request = ReadRequest { sink_stag: name, sink_to: 0, length, source_stag, source_to };
                self.batch.untagged(&header, &request.encode());
                entry.stage = Stage::Framed;
                self.cursor += 1;
                return true;
            }
            Verb::Write { to, .. } => Some(to),
            _ => None,
        };
        self.turn = Turn::Request;
        while self.batch.has_room() {
            let maximum = if written.is_some() { MAX_TAGGED } else { MAX_UNTAGGED };
            let size = (entry.length - entry.framed).min(maximum);
            let last = entry.framed + size == entry.length;
            let parts: SmallVec<_> = flight::range(&entry.request.payload, entry.framed, size);
            if let Some(Target { key: stag, address }) = written {
                let to = address.wrapping_add(entry.framed as u64);
                self.batch.tagged(&Tagged { last, opcode: Opcode::Write, stag, to }, &parts, None);
            } else {
                // Posting checked that every offset can be said.
                let Some(header) = self.outbound.send(entry.framed, last, SendOptions::default()) else {
                    return false;
                };
                self.batch.untagged_parts(&header, &parts);
            }
            entry.framed += size;
            if last {
                entry.stage = Stage::Framed;
                self.cursor += 1;
                self.turn = Turn::Any;
                break;
            }
        }
        true
    }
}

/// Ends a connection whose peer reads memory that has been deregistered meanwhile.
pub(crate) fn deregistered() -> io::Error {
    io::Error::other("deregistered while it was being read")
}
