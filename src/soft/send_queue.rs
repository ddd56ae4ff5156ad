//! The send queue of a connection: requests that are queued, in flight, or done.
//!
//! The call that posts also writes, as long as the socket takes the bytes; the driver of the connection goes
//! on when the socket was full. [`SendQueue`] has one lock; the writer takes the batch out of it and offers
//! the batch to the socket without the lock, one writer at a time.

use std::collections::VecDeque;
use std::io;
use std::task::Waker;

use super::framing::Batch;
use super::memory::{Grant, WindowOp};
use crate::error::PostErrorKind;
use crate::inflight::{self, Completed, CompletionSink, Payload, Ticket, WORD, WakeList};
use crate::inspect::PolledWait;
use crate::proto::mpa::Rtr;
use crate::proto::rdmap::{Outbound, SendOptions};
use crate::provider::work::{Flags, Operation, RemoteAddress, WindowRequest, WorkRequest};
use crate::status::Status;
use crate::types::{OpKind, QueueKind};
use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::extensions::{Atomic, AtomicResponse};
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate};

/// The most batches that one call writes before it lets the driver go on, so that no caller is held for long.
pub(crate) const MAX_BATCHES: usize = 8;

/// The progress of a posted request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestState {
    /// Not all of the request is in a batch yet.
    Queued,
    /// In a batch that the socket has not taken in full.
    Framed,
    /// A read or an atomic that awaits its answer.
    Waiting,
    /// Done, but an earlier request is not: completions come in post order (`QP-17`).
    Done,
}

/// The number of requests for which room is kept when the queue is empty.
const KEEP_ENTRIES: usize = 32;

/// A posted request that has not completed.
pub(super) struct Entry {
    pub(super) ticket: Ticket,
    pub(super) work: Work,
    pub(super) payload: Payload,
    pub(super) flags: Flags,
    pub(super) length: usize,
    pub(super) framed: usize,
    pub(super) state: RequestState,
}

/// The effect of a request when its turn comes.
pub(super) enum Work {
    /// It moves bytes.
    Transfer(Operation),
    /// It changes a window, which needs no frame.
    Window(WindowOp),
}

impl Entry {
    /// Creates an entry of which nothing has been framed.
    fn new(request: WorkRequest) -> Self {
        let WorkRequest { ticket, operation, payload, flags } = request;
        let (work, length) = (Work::Transfer(operation), inflight::length(&payload));
        Self { ticket, work, payload, flags, length, framed: 0, state: RequestState::Queued }
    }
}

/// A request of the peer that is being answered.
pub(super) struct Response {
    /// The payload; `None` if it is empty. The peer's access alone keeps the memory.
    pub(super) grant: Option<Grant>,
    pub(super) framed: usize,
    pub(super) answer: Answer,
}

/// The answer to a request of the peer.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// The payload, for this sink.
    Read { sink: (u32, u64) },
    /// The original value of the word to which this operation is applied.
    Atomic { atomic: Atomic, identifier: u32 },
}

/// The owner of a read or an atomic that awaits its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOwner {
    /// The request with this sequence number.
    Request(u64),
    /// A probe, by which this end checks whether the peer is alive.
    Probe,
    /// The end of a byte stream.
    StreamEnd,
}

/// The ends of both directions of a byte stream. That of each is a message, and behind it an empty Read, which the peer answers when it
/// has received everything.
///
/// The Read behind the last message has the key of the stream, and is a promise: an end that has sent its own, and has begun to answer
/// that of the peer, sends nothing more but answers ([`sends_no_more`](SendQueue::sends_no_more)). All this is decided under one lock,
/// so no frame comes between. An end that has the answer to its own Read therefore knows that the peer had answered before, and if it
/// awaits no other answer, that only the end of the socket comes ([`is_stream_over`](SendQueue::is_stream_over)). It may close: its
/// kernel finds no bytes for which it would send a reset, and the peer would take that for a loss.
#[derive(Debug, Default)]
pub(super) struct StreamEnds {
    pub(super) own: StreamEnd,
    /// The Read of this end is behind its last message.
    pub(super) is_last: bool,
    /// The Read behind the peer's last message has been answered.
    is_peer_done: bool,
    /// The wait for the answer, for snapshots.
    pub(super) wait: PolledWait,
}

/// The end of the direction of this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StreamEnd {
    #[default]
    None,
    /// This message is to be framed behind all requests.
    Due([u8; WORD]),
    /// The Read is to be framed as soon as the read limit allows it.
    Announced,
    /// The Read awaits its answer.
    Asked,
    Confirmed,
}

/// The message that is cut in two by the end of a batch: messages of one class must not mix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FramingTurn {
    Any,
    Request,
    Response,
}

/// The use of the socket by writers, of which there is one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// No one writes.
    Idle,
    /// A writer has the batch and is offering it to the socket, without the lock.
    Writing,
    /// As `Writing`, with the frame of a request that is not in the queue.
    Direct,
    /// The socket was full, or a writer has stopped early: the driver writes on when the socket has room.
    Blocked,
    /// As `Writing`, after `Blocked`. The driver waits for room nevertheless, until all has been written: the
    /// writer may be a poll of a completion queue, which does not report to the driver that it found none.
    Resuming,
}

/// What may be posted and sent. It never goes back to an earlier phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Anything may be posted, and nothing sent: the responder waits for the first FPDU of the initiator (RFC
    /// 5044 section 7.1.3).
    Held,
    Open,
    /// Nothing more may be posted. The batch is sent, and then the Terminate.
    Closed,
    /// No write begins: the requests are flushed as soon as no writer is left.
    Halted,
}

/// The state of the sending half.
pub(crate) struct SendQueue {
    pub(super) entries: VecDeque<Entry>,
    /// Sequence number of the first of `entries`.
    pub(super) head: u64,
    /// The number of `entries` that have been framed in full.
    pub(super) framed: usize,
    /// The number of `entries` that the socket has taken in full.
    sent: u32,
    depth: u32,
    pub(super) outbound: Outbound<ReadOwner>,
    pub(super) responses: VecDeque<Response>,
    pub(super) turn: FramingTurn,
    pub(super) batch: Batch,
    /// The headers of segments contain how many follow.
    pub(super) announces: bool,
    /// The sink where its requests complete.
    sink: CompletionSink,
    pub(super) terminate: Option<Box<Terminate>>,
    phase: Phase,
    writer: Writer,
    /// A window was bound for the peer.
    pub(super) has_bound: bool,
    /// The number of bytes that the socket has taken.
    pub(super) written: u64,
    /// The number of written bytes up to the end of the last Send or Write that has completed.
    pub(super) completed: u64,
    /// The error after which the socket takes nothing more.
    pub(crate) broken: Option<io::Error>,
    /// The end of a message of a stream is in the batch.
    pub(super) streamed: bool,
    pub(super) ends: StreamEnds,
    /// Wakes the writer of a stream when the queue has nothing to send.
    idle: Option<Waker>,
}

/// The next step after a batch has been offered to the socket.
pub(crate) enum Next {
    /// Offer this one.
    Write(Batch),
    /// Everything that may be sent now is with the socket.
    Idle,
    /// The socket is full: the driver goes on when it has room.
    Blocked,
}

impl SendQueue {
    pub(crate) fn new(depth: u32, read_limit: u32, crc: bool, sink: CompletionSink) -> Self {
        Self {
            entries: VecDeque::new(),
            head: 0,
            framed: 0,
            sent: 0,
            depth,
            outbound: Outbound::new(read_limit),
            responses: VecDeque::new(),
            turn: FramingTurn::Any,
            batch: Batch::new(crc),
            announces: false,
            sink,
            terminate: None,
            phase: Phase::Open,
            writer: Writer::Idle,
            has_bound: false,
            written: 0,
            completed: 0,
            broken: None,
            streamed: false,
            ends: StreamEnds::default(),
            idle: None,
        }
    }

    /// Records an attempt to write this frame before all others: the rest of it is queued. Returns whether the socket has failed.
    #[must_use]
    pub(super) fn prefaced(&mut self, frame: &[u8], outcome: io::Result<usize>) -> bool {
        let sent = match outcome {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => {
                // The driver reports the error.
                self.broken = Some(error);
                return true;
            }
        };
        self.written += sent as u64;
        if sent < frame.len() {
            self.batch.framed(&frame[sent..]);
        }
        false
    }

    /// Holds back all frames of a new connection until [`release`](Self::release).
    pub(crate) fn hold(&mut self) {
        self.phase = Phase::Held;
    }

    /// Allows sending to the peer, which is ready. Returns false if nothing was held back.
    pub(super) fn release(&mut self) -> bool {
        let is_held = self.is_held();
        if is_held {
            self.phase = Phase::Open;
        }
        is_held
    }

    /// Queues a zero-length RDMA Write: it names no memory, carries no data, and shows the peer that this end
    /// is alive.
    pub(crate) fn nudge(&mut self) {
        if self.may_interject() {
            self.batch.rtr(Rtr::Write);
        }
    }

    /// Returns whether a frame of the provider's own can go next: between two messages, and with nothing that
    /// waits for the socket, so that frames that a silent peer causes do not pile up.
    fn may_interject(&self) -> bool {
        let nothing_waits = self.turn == FramingTurn::Any && self.batch.is_empty();
        nothing_waits && !self.is_writing() && self.phase == Phase::Open && !self.sends_no_more()
    }

    /// Checks that another request can be posted.
    ///
    /// # Errors
    /// The reason why no request can be posted.
    pub(crate) fn admits(&self, kind: OpKind) -> Result<(), PostErrorKind> {
        if self.is_closed() {
            Err(PostErrorKind::ConnectionInvalid)
        } else if self.entries.len() + usize::from(self.writer == Writer::Direct) >= self.depth as usize {
            Err(PostErrorKind::QueueFull { queue: QueueKind::Send, depth: self.depth as usize })
        } else if awaits_answer(kind) && !self.outbound.reads_at_all() {
            Err(PostErrorKind::NoReads)
        } else {
            Ok(())
        }
    }

    /// Adds a request.
    pub(crate) fn post(&mut self, request: WorkRequest) {
        self.entries.push_back(Entry::new(request));
    }

    /// Adds a request to change a window.
    pub(crate) fn post_window(&mut self, request: WindowRequest, window_op: WindowOp) {
        let WindowRequest { ticket, flags } = request;
        self.has_bound |= window_op.binds();
        let (work, payload, state) = (Work::Window(window_op), Payload::new(), RequestState::Queued);
        self.entries.push_back(Entry { ticket, work, payload, flags, length: 0, framed: 0, state });
    }

    /// Queues the message of the end of a stream, and the Read behind it. `is_last`: only answers are sent once the peer has sent its
    /// last message, too.
    pub(super) fn end_stream(&mut self, message: [u8; WORD], is_last: bool) {
        (self.ends.own, self.ends.is_last) = (StreamEnd::Due(message), is_last);
        self.ends.wait.polled();
    }

    /// Notes that the Read behind the last message of the peer's stream is being answered.
    pub(super) fn peer_ends_stream(&mut self) {
        self.ends.is_peer_done = true;
    }

    /// Returns whether only answers are sent from now on, because both ends of a stream have ended.
    pub(super) fn sends_no_more(&self) -> bool {
        let StreamEnds { own, is_last, is_peer_done, .. } = self.ends;
        is_peer_done && is_last && matches!(own, StreamEnd::Asked | StreamEnd::Confirmed)
    }

    /// Returns whether both ends of a stream have received everything, and nothing is left to be sent: only the end of the socket comes.
    pub(super) fn is_stream_over(&self) -> bool {
        // The own Read is among those that have been answered.
        let has_answers = self.sends_no_more() && !self.outbound.has_reads();
        has_answers && self.is_idle() && self.entries.is_empty()
    }

    /// Returns whether the peer is not ready yet.
    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Returns whether the driver has to wait for room and to write on.
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(self.writer, Writer::Blocked | Writer::Resuming)
    }

    /// Returns whether the next request is a read or an atomic, and as many as allowed are unanswered.
    #[cfg(feature = "inspect")]
    pub(super) fn awaits_read(&self) -> bool {
        let next = self.entries.get(self.framed);
        next.is_some_and(|entry| entry.work.awaits_answer()) && !self.outbound.may_read()
    }

    /// Returns whether a writer is at work.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(self.writer, Writer::Writing | Writer::Direct | Writer::Resuming)
    }

    /// Returns whether nothing more may be posted.
    pub(super) fn is_closed(&self) -> bool {
        self.phase >= Phase::Closed
    }

    /// Returns whether no further write begins.
    pub(super) fn is_halted(&self) -> bool {
        self.phase == Phase::Halted
    }

    /// Lets no write begin from now on.
    pub(super) fn halt(&mut self) {
        self.phase = Phase::Halted;
    }

    /// Queues the response to a request of the peer, behind the earlier ones.
    pub(crate) fn respond(&mut self, grant: Option<Grant>, answer: Answer) {
        self.responses.push_back(Response { grant, framed: 0, answer });
    }

    /// Returns the number of reads and atomics of the peer that have not been answered in full. One whose
    /// response is in the batch counts as answered: the end of it may have reached the peer, and brought the
    /// next request, before the socket has taken the rest.
    pub(crate) fn serving(&self) -> usize {
        self.responses.len()
    }

    /// Queues an empty Read Request, which the peer has to answer. Returns false if the read limit or a
    /// waiting frame leaves no room.
    pub(crate) fn probe(&mut self) -> bool {
        if !self.outbound.may_read() || !self.may_interject() {
            return false;
        }
        let header = self.outbound.read(ReadOwner::Probe, 1, 0);
        let request = ReadRequest { sink_stag: 1, sink_to: 0, length: 0, source_stag: 0, source_to: 0 };
        self.batch.untagged(&header, &request.encode());
        true
    }

    /// Closes the queue: from now on only the frames in the batch, and then `terminate`, are sent.
    pub(crate) fn close(&mut self, terminate: Option<Terminate>) {
        self.phase = self.phase.max(Phase::Closed);
        self.responses.clear();
        self.terminate = terminate.map(Box::new);
    }

    /// Returns whether all frames after `close` have been sent.
    pub(crate) fn is_drained(&self) -> bool {
        !self.is_writing() && self.batch.is_empty() && self.terminate.is_none()
    }

    /// Becomes the writer, if there is none and frames can be written. There is one writer at a time, and it
    /// works without the lock: calls that post while it writes leave their requests to it.
    pub(crate) fn begin(&mut self, wakes: &mut WakeList) -> Next {
        if self.is_writing() || self.broken.is_some() { Next::Idle } else { self.next(wakes) }
    }

    /// Processes the outcome of offering the batch to the socket.
    pub(crate) fn offered(
        &mut self,
        mut batch: Batch,
        outcome: io::Result<usize>,
        wakes: &mut WakeList,
    ) -> Next {
        match outcome {
            Ok(sent) => {
                self.written += sent as u64;
                batch.advance(sent);
                self.batch = batch;
                if self.batch.is_empty() {
                    self.batch_sent(wakes);
                }
                self.next(wakes)
            }
            Err(error) => {
                batch.trim();
                self.batch = batch;
                self.writer = Writer::Blocked;
                if error.kind() != io::ErrorKind::WouldBlock {
                    // The driver reports the error.
                    self.broken = Some(error);
                    self.writer = Writer::Idle;
                }
                Next::Blocked
            }
        }
    }

    /// Stops the writer early, so that no caller is held for long: the driver goes on.
    pub(crate) fn pause(&mut self, batch: Batch) {
        self.batch = batch;
        self.writer = Writer::Blocked;
    }

    /// Takes the batch for the writer, which has nothing else; without a batch it stops.
    fn next(&mut self, wakes: &mut WakeList) -> Next {
        if self.is_halted() {
            self.writer = Writer::Idle;
            return Next::Idle;
        }
        if self.batch.is_empty() {
            let filled = self.has_unframed() && self.fill();
            // Requests that are executed here need no frame, so they complete at once.
            self.retire(wakes);
            if !filled {
                self.writer = Writer::Idle;
                wakes.extend(self.idle.take());
                return Next::Idle;
            }
        }
        self.writer = if self.is_blocked() { Writer::Resuming } else { Writer::Writing };
        Next::Write(self.batch.take())
    }

    /// Becomes the writer of a message of a stream, if nothing is to be sent before it. Returns the header of
    /// its Send. [`message_offered`](Self::message_offered) follows.
    pub(super) fn begin_message(&mut self) -> Option<Untagged> {
        if !self.is_idle() {
            return None;
        }
        self.writer = Writer::Writing;
        Some(self.outbound.next_send())
    }

    /// Returns whether nothing is to be sent or completed before a request that is posted now.
    pub(super) fn admits_direct(&self) -> bool {
        self.entries.is_empty() && self.depth > 0 && self.is_idle() && !self.sends_no_more()
    }

    /// Becomes the writer of a Send or a Write of one frame, if [the queue allows it](Self::admits_direct).
    /// Returns the header of the frame. [`direct_sent`](Self::direct_sent) follows.
    pub(super) fn begin_direct(&mut self, operation: &Operation, flags: Flags) -> Option<Header> {
        let header = match *operation {
            Operation::Send { invalidate, immediate: None } => {
                let options = SendOptions { invalidate, solicited: flags.contains(Flags::SOLICITED) };
                Header::Untagged(self.outbound.send(0, true, options)?)
            }
            Operation::Write { to: RemoteAddress { key: stag, address: to }, immediate: None } => {
                Header::Tagged(Tagged { last: true, opcode: Opcode::Write, stag, to })
            }
            _ => return None,
        };
        self.writer = Writer::Direct;
        Some(header)
    }

    /// Becomes the writer of Sends and Writes of one frame each, if [the queue allows it](Self::admits_direct).
    /// [`direct_sent`](Self::direct_sent) follows for all of them.
    pub(super) fn begin_copied(&mut self) {
        self.writer = Writer::Direct;
    }

    /// Becomes the writer of frames of the provider's own, if [the queue is idle](Self::is_idle). `is_message`: of the end of a stream.
    /// [`own_sent`](Self::own_sent) follows.
    pub(super) fn begin_own(&mut self, is_message: bool) {
        self.writer = Writer::Writing;
        self.streamed = is_message;
    }

    /// Processes the write of frames of the provider's own, of which the socket has taken all. Returns false if other work is due first:
    /// [`offered`](Self::offered) follows then.
    pub(super) fn own_sent(&mut self, sent: usize) -> bool {
        let completed = self.completed;
        let is_done = self.direct_sent(sent);
        if is_done && !std::mem::take(&mut self.streamed) {
            self.completed = completed;
        }
        is_done
    }

    /// Completes a direct request whose whole frame the socket has taken. Returns false if other work is due
    /// first: [`queue_direct`](Self::queue_direct) follows then.
    pub(super) fn direct_sent(&mut self, sent: usize) -> bool {
        // A phase behind `Open` comes with a Terminate, a flush that the writer carries out, or a driver that
        // waits for the writer.
        if self.has_unframed() || self.idle.is_some() || self.phase != Phase::Open {
            return false;
        }
        self.writer = Writer::Idle;
        self.written += sent as u64;
        self.completed = self.written;
        true
    }

    /// Queues the direct request that is being written, before those that were posted after it.
    /// [`offered`](Self::offered) follows, with the number of bytes that the socket has taken of its frame.
    pub(super) fn queue_direct(&mut self, request: WorkRequest, length: usize) {
        self.writer = Writer::Writing;
        let state = RequestState::Framed;
        // Not the length of its payload, which is empty: the bytes of an inline request are in the frame.
        self.entries.push_front(Entry { length, framed: length, state, ..Entry::new(request) });
        self.framed += 1;
    }

    /// Returns whether a frame that is made now can be written at once, behind all others.
    pub(super) fn is_idle(&self) -> bool {
        let may_write = self.writer == Writer::Idle && self.phase == Phase::Open && self.broken.is_none();
        may_write && self.batch.is_empty() && !self.has_unframed()
    }

    /// Registers this waker for the time when [`is_idle`](Self::is_idle) may have changed. Returns the waker
    /// that it replaces, which the caller drops without the lock.
    #[must_use]
    pub(super) fn wait_for_idle(&mut self, waker: &Waker) -> Option<Waker> {
        let known = self.idle.as_ref().is_some_and(|known| known.will_wake(waker));
        if known { None } else { self.idle.replace(waker.clone()) }
    }

    /// Processes the write of a stream's message, of which the socket has taken all `sent` bytes. Returns false
    /// if other work is due first: [`message_offered`](Self::message_offered) follows then.
    pub(super) fn message_sent(&mut self, sent: usize) -> bool {
        let is_done = self.direct_sent(sent);
        if is_done {
            self.outbound.count_send();
        }
        is_done
    }

    /// Processes the write of a stream's message, of which the socket has taken `sent` bytes and `rest` is
    /// left.
    pub(super) fn message_offered(&mut self, sent: usize, mut rest: Batch, wakes: &mut WakeList) -> Next {
        self.written += sent as u64;
        self.outbound.count_send();
        rest.trim();
        self.batch = rest;
        if !self.batch.is_empty() {
            self.streamed = true;
            self.writer = Writer::Blocked;
            return Next::Blocked;
        }
        self.completed = self.written;
        self.next(wakes)
    }

    /// Completes the requests of a batch that the socket has taken in full.
    fn batch_sent(&mut self, wakes: &mut WakeList) {
        if std::mem::take(&mut self.streamed) {
            self.completed = self.written;
        }
        for entry in self.entries.range_mut(self.sent as usize..self.framed) {
            match entry.state {
                RequestState::Framed if entry.work.awaits_answer() => entry.state = RequestState::Waiting,
                RequestState::Framed => {
                    entry.state = RequestState::Done;
                    self.completed = self.written;
                }
                // A response may have come while the rest of its batch was still being written.
                RequestState::Queued | RequestState::Waiting | RequestState::Done => {}
            }
        }
        // No more are framed than were posted.
        self.sent = self.framed as u32;
        self.retire(wakes);
    }

    /// Returns whether requests, responses or a Terminate wait that are in no batch.
    pub(super) fn has_unframed(&self) -> bool {
        let ends = matches!(self.ends.own, StreamEnd::Due(_) | StreamEnd::Announced);
        self.framed < self.entries.len() || !self.responses.is_empty() || self.terminate.is_some() || ends
    }

    /// Returns whether the oldest request is done.
    fn has_done(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.state == RequestState::Done)
    }

    /// Completes requests that are done, in post order.
    #[inline]
    fn retire(&mut self, wakes: &mut WakeList) {
        if self.has_done() {
            self.retire_done(wakes);
        }
    }

    fn retire_done(&mut self, wakes: &mut WakeList) {
        while self.has_done() {
            let Some(entry) = self.pop() else { return };
            let Entry { ticket, work, payload, flags, length, .. } = entry;
            work.free_window(wakes);
            let mut completed = Completed::done(length, payload);
            completed.extra.silent = flags.contains(Flags::SILENT);
            self.sink.complete(ticket, completed, wakes);
        }
        self.shrink();
    }

    /// Frees the entries of a burst once the queue is empty.
    fn shrink(&mut self) {
        if self.entries.is_empty() && self.entries.capacity() > KEEP_ENTRIES {
            self.entries = VecDeque::new();
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.head += 1;
        self.framed = self.framed.saturating_sub(1);
        self.sent = self.sent.saturating_sub(1);
        Some(entry)
    }

    /// Closes the queue and completes every request as flushed: the oldest with `first`, which may be the
    /// status of an error, the others with `rest`.
    pub(crate) fn flush(&mut self, first: Status, rest: Status, wakes: &mut WakeList) {
        self.halt();
        self.batch.clear();
        self.responses.clear();
        self.ends.wait.end();
        wakes.extend(self.idle.take());
        let mut status = first;
        while let Some(Entry { ticket, work, payload, .. }) = self.pop() {
            if let Work::Window(window_op) = &work {
                window_op.rollback();
            }
            work.free_window(wakes);
            self.sink.complete(ticket, Completed::failed(status, payload), wakes);
            status = rest;
        }
        self.shrink();
    }

    /// Returns the memory for a segment of a Read Response.
    ///
    /// # Errors
    /// The Terminate for a response without a request.
    pub(crate) fn response(
        &mut self,
        (stag, to): (u32, u64),
        length: usize,
        last: bool,
    ) -> Result<Payload, Terminate> {
        let (&owner, offset) = self.outbound.response(stag, to, length, last)?;
        let entry = self.entry_of(owner);
        Ok(entry.map(|entry| inflight::range(&entry.payload, offset, length)).unwrap_or_default())
    }

    /// Returns the request that the peer answers; `None` for a read of the provider's own.
    fn entry_of(&mut self, owner: ReadOwner) -> Option<&mut Entry> {
        let ReadOwner::Request(sequence) = owner else { return None };
        self.entries.get_mut(usize::try_from(sequence.checked_sub(self.head)?).ok()?)
    }

    /// Returns the rest of the sink of the read that is being answered, from `offset` on.
    pub(crate) fn sink_from(&mut self, offset: usize) -> Payload {
        let entry = self.outbound.oldest().copied().and_then(|owner| self.entry_of(owner));
        entry.map(|entry| inflight::range(&entry.payload, offset, usize::MAX)).unwrap_or_default()
    }

    /// Places the original value of an atomic of this side; [`complete_read`](Self::complete_read) follows.
    ///
    /// # Errors
    /// The Terminate for a response without a request.
    pub(crate) fn atomic_response(&mut self, response: &AtomicResponse) -> Result<(), Terminate> {
        let owner = *self.outbound.atomic_response(response)?;
        if let Some(entry) = self.entry_of(owner) {
            let mut original = &response.original.to_ne_bytes()[..];
            for part in &entry.payload {
                let (here, rest) = original.split_at(part.len().min(original.len()));
                part.write(0, here);
                original = rest;
            }
        }
        Ok(())
    }

    /// Marks the oldest outstanding read or atomic as done. Its sink is no longer in use. Returns whether it was that of the end of a
    /// stream.
    pub(crate) fn complete_read(&mut self, wakes: &mut WakeList) -> bool {
        let owner = self.outbound.remove_answered();
        let is_end = owner == Some(ReadOwner::StreamEnd);
        if is_end {
            self.ends.own = StreamEnd::Confirmed;
            self.ends.wait.end();
        } else if let Some(entry) = owner.and_then(|owner| self.entry_of(owner)) {
            entry.state = RequestState::Done;
            self.retire(wakes);
        }
        is_end
    }
}

impl Work {
    /// Drops the window of a completed request without the lock: the last handle to a window waits for transfers
    /// by its key.
    fn free_window(self, wakes: &mut WakeList) {
        if let Self::Window(window_op) = self {
            wakes.run(move || drop(window_op));
        }
    }

    /// Returns whether it completes only when the peer has answered it.
    fn awaits_answer(&self) -> bool {
        matches!(self, Self::Transfer(operation) if awaits_answer(operation.kind()))
    }
}

/// Returns whether a request of this kind completes only with a response of the peer.
fn awaits_answer(kind: OpKind) -> bool {
    matches!(kind, OpKind::Read | OpKind::CompareSwap | OpKind::FetchAdd)
}

#[cfg(test)]
mod tests;
