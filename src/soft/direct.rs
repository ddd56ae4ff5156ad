//! Frames, writes and completes a request within the posting call, if nothing is ahead of it.
//!
//! Such a request has no entry in the send queue, and no slot: both are for requests that wait. If the socket
//! does not take all of its frame, or another request was posted while it was written, it gets both after
//! all. Frames of the provider's own, which are the end of a stream and the answer to an empty Read, are written so, too.

use std::io;
use std::mem::MaybeUninit;

use tokio::io::ReadBuf;

use super::connection::{ConnectionShared, Extent, Sending, Socket, Transmitted};
use super::framing::{Batch, COPY_BELOW, TRAILER_ROOM, append_trailer};
use crate::inflight::{Payload, WakeList};
use crate::memory::Piece;
use crate::provider::work::{DirectOutcome, DirectRequest, Operation, Source, WorkRequest};
use crate::sync::MutexGuard;
use crate::wire::ddp::{Header, Untagged};
use crate::wire::mpa;

/// The most bytes of a frame whose payload is copied.
const MAX_COPIED: usize = mpa::LENGTH_SIZE + Untagged::LEN + COPY_BELOW + TRAILER_ROOM;

/// The memory of a frame, on the stack of the posting call.
type Room = [MaybeUninit<u8>; MAX_COPIED];

/// The one frame of a request.
struct DirectFrame<'a> {
    header: Header,
    /// The payload, if it stays in place.
    in_place: Option<&'a Payload>,
    /// The number of bytes of payload.
    payload: usize,
    /// The frame, without a payload that stays in place.
    bytes: ReadBuf<'a>,
    /// The number of bytes of length field and header, behind which the payload is.
    start: usize,
}

impl<'a> DirectFrame<'a> {
    fn new(room: &'a mut Room, header: Header, source: Source<'a>, payload: usize, crc: bool) -> Self {
        let mut bytes = ReadBuf::uninit(room);
        match &header {
            Header::Tagged(header) => bytes.put_slice(&header.encode(payload)),
            Header::Untagged(header) => bytes.put_slice(&header.encode(payload)),
        }
        let start = bytes.filled().len();
        let in_place = match source {
            Source::Memory(parts) if payload > COPY_BELOW => Some(parts),
            Source::Memory(parts) => {
                for part in parts {
                    part.append_to(part.len(), &mut bytes);
                }
                None
            }
            Source::Bytes(parts) => {
                parts.iter().for_each(|part| bytes.put_slice(part));
                None
            }
        };
        debug_assert!(
            in_place.is_some() || bytes.filled().len() == start + payload,
            "all memory is that of the host",
        );
        append_trailer(&mut bytes, 0, start - mpa::LENGTH_SIZE + payload, crc);
        Self { header, in_place, payload, bytes, start }
    }

    /// Returns the number of bytes of the frame.
    fn length(&self) -> usize {
        self.bytes.filled().len() + self.in_place.map_or(0, |_| self.payload)
    }

    /// Returns the pieces of a frame with this payload in place.
    fn pieces<'f>(&'f self, parts: &'f Payload) -> impl Iterator<Item = Piece<'f>> {
        let (before, behind) = self.bytes.filled().split_at(self.start);
        let payload = parts.iter().map(|slice| Piece::Memory { slice, part: 0..slice.len() });
        std::iter::once(Piece::Bytes(before)).chain(payload).chain(std::iter::once(Piece::Bytes(behind)))
    }

    /// Returns the frame as a batch of the send queue.
    #[cold]
    fn batch(&self, crc: bool) -> Batch {
        let mut batch = Batch::new(crc);
        match self.in_place {
            Some(parts) => batch.segment(&self.header, 0, parts, None),
            // The bytes under the checksum, and not others that are in the memory now.
            None => batch.framed(self.bytes.filled()),
        }
        batch
    }
}

impl ConnectionShared {
    /// Executes a request within the call, if it is one frame and nothing is ahead of it. It is neither
    /// deferred nor fenced.
    pub(crate) fn post_direct(&self, request: DirectRequest<'_>) -> DirectOutcome {
        let DirectRequest { operation, source, flags, table, label } = request;
        if !matches!(operation, Operation::Send { .. } | Operation::Write { .. }) {
            return DirectOutcome::Declined;
        }
        let length = source.length();
        let in_place = !self.crc && length <= Untagged::FULL && matches!(source, Source::Memory(_));
        if !(length <= COPY_BELOW || in_place) {
            return DirectOutcome::Declined;
        }
        let mut sending = self.sending();
        if !sending.queue.admits_direct() {
            return DirectOutcome::Declined;
        }
        let Some(socket) = sending.socket.clone() else { return DirectOutcome::Declined };
        let Some(header) = sending.queue.begin_direct(operation, flags) else {
            return DirectOutcome::Declined;
        };
        drop(sending);
        let mut room = [MaybeUninit::uninit(); MAX_COPIED];
        let frame = DirectFrame::new(&mut room, header, source, length, self.crc);
        let outcome = self.report_sent(match frame.in_place {
            None => socket.stream.try_write(frame.bytes.filled()),
            Some(parts) => socket.stream.try_send(frame.pieces(parts)),
        });
        let mut sending = self.sending();
        if let Ok(sent) = outcome
            && sent == frame.length()
            && sending.queue.direct_sent(sent)
        {
            return DirectOutcome::Completed(length);
        }
        let (operation, payload) = (*operation, source.payload());
        let ticket = table.open(label, || length);
        let request = WorkRequest { ticket, operation, payload, flags };
        self.queue_direct(&socket, sending, request, &frame, outcome)
    }

    /// Writes frames that belong to no request, for which [the queue is idle](super::send_queue::SendQueue::is_idle). `is_message`: of the
    /// end of a stream. Returns the number of bytes written.
    pub(super) fn write_own(
        &self,
        mut sending: MutexGuard<'_, Sending>,
        frames: &[u8],
        is_message: bool,
        extent: Extent,
        wakes: &mut WakeList,
    ) -> usize {
        let Some(socket) = sending.socket.clone() else {
            sending.queue.batch.framed(frames);
            return 0;
        };
        sending.queue.begin_own(is_message);
        drop(sending);
        let outcome = self.report_sent(socket.stream.try_write(frames));
        let mut sending = self.sending();
        let sent = *outcome.as_ref().unwrap_or(&0);
        if sent == frames.len() && sending.queue.own_sent(sent) {
            return sent;
        }
        let mut batch = Batch::new(self.crc);
        batch.framed(frames);
        let next = sending.queue.offered(batch, outcome, wakes);
        let (transmitted, written) = self.write_batches(&socket, sending, next, extent, wakes);
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        sent + written
    }

    /// Queues a request whose frame was offered to the socket, and goes on.
    #[cold]
    fn queue_direct(
        &self,
        socket: &Socket,
        mut sending: MutexGuard<'_, Sending>,
        request: WorkRequest,
        frame: &DirectFrame<'_>,
        outcome: io::Result<usize>,
    ) -> DirectOutcome {
        let (ticket, length) = (request.ticket, frame.payload);
        let mut wakes = WakeList::default();
        let batch = frame.batch(self.crc);
        sending.queue.queue_direct(request, length);
        let next = sending.queue.offered(batch, outcome, &mut wakes);
        let (transmitted, _bytes) = self.write_batches(socket, sending, next, Extent::Call, &mut wakes);
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        wakes.wake_all();
        DirectOutcome::Posted(ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::super::framing::{OWN, frame_empty_answer};
    use super::super::send_queue::{Answer, Next, SendQueue};
    use super::*;
    use crate::error::PostErrorKind;
    use crate::inflight::{CompletionSink, RequestMeta, Table, Ticket};
    use crate::memory::{Owned, gather};
    use crate::provider::work::{Flags, RemoteAddress};
    use crate::status::Status;
    use crate::types::{OpKind, QueueKind};
    use crate::wire::ddp::Tagged;
    use crate::wire::rdmap::Opcode;

    const SEND: Operation = Operation::Send { invalidate: None, immediate: None };

    fn payload(length: usize) -> Payload {
        let mut memory = Owned::zeroed(length).expect("memory");
        memory.iter_mut().enumerate().for_each(|(place, byte)| *byte = place as u8);
        let memory = memory.share();
        let cut = length / 3;
        [memory.slice(0, cut), memory.slice(cut, length - cut)].into_iter().flatten().collect()
    }

    /// Returns room for a frame.
    fn room() -> Room {
        [MaybeUninit::uninit(); MAX_COPIED]
    }

    /// Returns the bytes that [`DirectFrame::send`] writes.
    fn sent(frame: &DirectFrame<'_>) -> Vec<u8> {
        frame.in_place.map_or_else(|| frame.bytes.filled().to_vec(), |parts| bytes(frame.pieces(parts)))
    }

    fn bytes<'a>(pieces: impl Iterator<Item = Piece<'a>>) -> Vec<u8> {
        let mut found = Vec::new();
        gather(pieces, usize::MAX, &mut found).expect("memory of the host");
        found
    }

    #[test]
    fn a_frame_is_that_of_the_send_queue() {
        let send = Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 1, mo: 0 };
        let write = Tagged { last: true, opcode: Opcode::Write, stag: 7, to: 9 };
        for length in (0..40).chain([COPY_BELOW, COPY_BELOW + 1, COPY_BELOW + 2, 4096, Untagged::FULL]) {
            for header in [Header::Untagged(send), Header::Tagged(write)] {
                let payload = payload(length);
                let crc = length <= COPY_BELOW && length % 2 == 1;
                let mut batch = Batch::new(crc);
                batch.segment(&header, 0, &payload, None);
                let expected = bytes(batch.pieces(None));
                let mut room = room();
                let frame = DirectFrame::new(&mut room, header, Source::Memory(&payload), length, crc);
                assert_eq!((sent(&frame), frame.length()), (expected.clone(), expected.len()));
                assert_eq!(bytes(frame.batch(crc).pieces(None)), expected, "{length}");
                if length <= COPY_BELOW {
                    let copy =
                        bytes(payload.iter().map(|slice| Piece::Memory { slice, part: 0..slice.len() }));
                    let (first, second) = copy.split_at(length / 2);
                    let parts = [first, &[], second];
                    let mut room = self::room();
                    let inline = DirectFrame::new(&mut room, header, Source::Bytes(&parts), length, crc);
                    assert_eq!((sent(&inline), inline.length()), (expected.clone(), expected.len()));
                }
            }
        }
    }

    fn queue(depth: u32) -> (SendQueue, Arc<Table>) {
        let table = Arc::<Table>::default();
        (SendQueue::new(depth, 1, false, CompletionSink::to_futures(table.clone())), table)
    }

    fn request(table: &Table) -> WorkRequest {
        let ticket = table.open(RequestMeta { kind: OpKind::Send, context: 0 }, || 0);
        WorkRequest { ticket, operation: SEND, payload: Payload::new(), flags: Flags::empty() }
    }

    fn is_complete(table: &Table, ticket: Ticket) -> bool {
        matches!(table.poll(ticket, &mut Context::from_waker(Waker::noop())), Poll::Ready(Some(_)))
    }

    // QP-17: requests that are posted while a direct request is being written come behind it, on the wire and
    // in completion.
    #[test]
    fn requests_that_come_meanwhile_are_behind_it() {
        let (mut queue, table) = queue(4);
        let mut wakes = WakeList::default();
        assert!(queue.admits_direct());
        let header = queue.begin_direct(&SEND, Flags::empty()).expect("a Send");
        assert!(!queue.admits_direct(), "somebody writes");
        let second = request(&table);
        let behind = second.ticket;
        queue.post(second);
        assert!(matches!(queue.begin(&mut wakes), Next::Idle));
        let (payload, mut room) = (Payload::new(), room());
        let frame = DirectFrame::new(&mut room, header, Source::Memory(&payload), 0, false);
        let sent = frame.length();
        assert!(!queue.direct_sent(sent), "one waits behind it");
        let first = request(&table);
        let ticket = first.ticket;
        queue.queue_direct(first, 0);
        let Next::Write(batch) = queue.offered(frame.batch(false), Ok(sent), &mut wakes) else {
            panic!("the second one is next")
        };
        assert!(is_complete(&table, ticket) && !is_complete(&table, behind));
        let Header::Untagged(Untagged { msn: 2, .. }) =
            Header::decode(&bytes(batch.pieces(None))).expect("a header").0
        else {
            panic!("the second message")
        };
        assert!(matches!(queue.offered(batch, Ok(24), &mut wakes), Next::Idle));
        assert!(is_complete(&table, behind));
        assert_eq!((queue.written, queue.completed), (48, 48));
    }

    // Copied or in place, the frame is the same.
    #[test]
    fn partially_written_frame_completes_at_its_end() {
        for (length, first) in [(4000, 1000), (COPY_BELOW, 1), (64, 0)] {
            let (mut queue, table) = queue(1);
            let mut wakes = WakeList::default();
            let header = queue.begin_direct(&SEND, Flags::empty()).expect("a Send");
            let (payload, mut room) = (payload(length), room());
            let frame = DirectFrame::new(&mut room, header, Source::Memory(&payload), length, false);
            let whole = sent(&frame);
            // The payload of an inline request is empty: its bytes are in the frame alone.
            let request = request(&table);
            let ticket = request.ticket;
            queue.queue_direct(request, length);
            let full = || Err(io::ErrorKind::WouldBlock.into());
            let mut batch = frame.batch(false);
            if first > 0 {
                let Next::Write(rest) = queue.offered(batch, Ok(first), &mut wakes) else {
                    panic!("the rest is next")
                };
                batch = rest;
            }
            assert_eq!(bytes(batch.pieces(None)), whole[first..]);
            assert!(matches!(queue.offered(batch, full(), &mut wakes), Next::Blocked));
            assert!(!is_complete(&table, ticket));
            let Next::Write(batch) = queue.begin(&mut wakes) else { panic!("the rest is next") };
            assert!(matches!(queue.offered(batch, Ok(whole.len() - first), &mut wakes), Next::Idle));
            let completed = table.take(ticket).expect("the whole frame was taken");
            assert_eq!((completed.status, completed.bytes as usize), (Status::SUCCESS, length));
            assert!(queue.admits_direct());
        }
    }

    #[test]
    fn it_counts_as_outstanding() {
        let (mut queue, _) = queue(1);
        let to = RemoteAddress { key: 1, address: 0 };
        assert!(queue.begin_direct(&Operation::Write { to, immediate: Some(1) }, Flags::empty()).is_none());
        queue.begin_direct(&SEND, Flags::empty()).expect("a Send");
        let full = PostErrorKind::QueueFull { queue: QueueKind::Send, depth: 1 };
        assert_eq!(queue.admits(OpKind::Send).expect_err("full").to_string(), full.to_string());
        assert!(queue.direct_sent(24) && queue.admits(OpKind::Send).is_ok() && queue.completed == 24);
    }

    // The driver waits for the writer, and flushes behind it.
    #[test]
    fn a_halt_is_not_overlooked() {
        let (mut queue, _) = queue(1);
        queue.begin_direct(&SEND, Flags::empty()).expect("a Send");
        queue.halt();
        assert!(!queue.direct_sent(24) && queue.is_writing());
    }

    // In whatever way it is written, and wherever the socket is full.
    #[test]
    fn frames_of_its_own_are_those_of_a_batch() {
        const WORD: [u8; 4] = *b"last";
        for crc in [false, true] {
            let queue = || SendQueue::new(4, 1, crc, CompletionSink::to_futures(Arc::default()));
            let batch = |queue: &mut SendQueue| {
                let Next::Write(batch) = queue.begin(&mut WakeList::default()) else {
                    panic!("frames are due")
                };
                bytes(batch.pieces(None))
            };
            let mut queued = queue();
            queued.end_stream(WORD, true);
            let expected = batch(&mut queued);
            for taken in [0, 1, expected.len() - 1, expected.len()] {
                let mut queue = queue();
                queue.end_stream(WORD, true);
                let mut room = [MaybeUninit::uninit(); OWN];
                let frames = queue.frame_stream_end(&mut room).filled().to_vec();
                assert_eq!(frames, expected);
                queue.begin_own(true);
                if taken == frames.len() {
                    assert!(queue.own_sent(taken) && queue.is_idle());
                } else {
                    let mut batch = Batch::new(crc);
                    batch.framed(&frames);
                    let Next::Write(rest) = queue.offered(batch, Ok(taken), &mut WakeList::default()) else {
                        panic!("the rest is next")
                    };
                    assert_eq!(bytes(rest.pieces(None)), frames[taken..]);
                    let left = frames.len() - taken;
                    assert!(matches!(queue.offered(rest, Ok(left), &mut WakeList::default()), Next::Idle));
                }
                assert_eq!((queue.written, queue.completed), (80, 80), "{taken}");
            }
            let sink = (7, 1 << 40);
            let mut queued = queue();
            queued.respond(None, Answer::Read { sink });
            let (expected, mut direct) = (batch(&mut queued), queue());
            let mut room = [MaybeUninit::uninit(); OWN];
            assert_eq!(frame_empty_answer(&mut room, sink, crc).filled(), expected);
            direct.begin_own(false);
            assert!(direct.own_sent(expected.len()));
            assert_eq!((direct.written, direct.completed), (20, 0), "no message is awaited by a close");
        }
    }

    // QP-17: the writer goes on with a request that was posted during the write.
    #[test]
    fn frames_of_its_own_leave_later_requests_to_the_writer() {
        let (mut queue, table) = queue(4);
        queue.begin_own(false);
        queue.post(request(&table));
        assert!(!queue.own_sent(20) && queue.is_writing());
    }
}
