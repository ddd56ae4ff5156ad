//! What the send queue does by itself: the order of its requests, and the room that it keeps.

use super::*;
use crate::inflight::{RequestMeta, STREAM_KEY, Table};
use crate::memory::{Owned, Piece};
use crate::soft::memory::{KeyTable, RemoteAccess};
use crate::types::Access;
use crate::wire::mpa;

fn queue(depth: u32, crc: bool) -> SendQueue {
    SendQueue::new(depth, 9, crc, CompletionSink::to_futures(std::sync::Arc::default()))
}

// With a checksum the payload is copied, and the room for it is the thread's (SEC-12).
#[test]
fn blocked_small_batch_keeps_no_large_buffer() {
    let mut queue = queue(4, true);
    let mut wakes = WakeList::default();
    let large = Payload::from_iter([Owned::zeroed(60_000).expect("memory").share().whole()]);
    let header = Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 1, mo: 0 };
    queue.batch.segment(&Header::Untagged(header), 0, &large, None);
    queue.batch.clear();
    queue.nudge();
    let Next::Write(batch) = queue.begin(&mut wakes) else { panic!("a frame is there") };
    assert!(batch.arena.capacity() > 60_000, "it has the room of the batch before");
    let full = Err(io::ErrorKind::WouldBlock.into());
    assert!(matches!(queue.offered(batch, full, &mut wakes), Next::Blocked));
    assert!(queue.batch.arena.capacity() < 16 * 1024 && !queue.batch.is_empty());
    // The end of a message of a stream does not keep it either.
    let mut queue = self::queue(4, false);
    let mut large_batch = Batch::new(true);
    large_batch.framed(&[0; 60_000]);
    large_batch.clear();
    let mut rest = Batch::new(false);
    rest.framed(&[0; 100]);
    assert!(rest.arena.capacity() >= 60_000 && queue.begin_message().is_some());
    assert!(matches!(queue.message_offered(1, rest, &mut wakes), Next::Blocked));
    assert!(queue.batch.arena.capacity() < 16 * 1024 && !queue.batch.is_empty());
}

// The last handle to a window revokes its key, and waits for transfers by it: not with the lock of the
// queue.
#[tokio::test]
async fn a_window_is_dropped_without_the_lock() {
    use crate::{net::Host, provider::work::BindTarget, soft};
    let id = soft::adapter::resolve(&Host::Kernel, "127.0.0.1".parse().expect("an address"));
    let id = id.expect("the loopback interface");
    let adapter = soft::adapter::Adapter::open(Host::Kernel, id, soft::config::SoftConfig::default());
    let adapter = adapter.expect("opened");
    let memory = Owned::zeroed(8).expect("memory");
    let (registration, _) = adapter.register(memory, Access::LOCAL_WRITE).expect("registered");
    for flushes in [false, true] {
        let table = std::sync::Arc::<Table>::default();
        let mut queue = SendQueue::new(4, 1, false, CompletionSink::to_futures(table.clone()));
        let window = soft::memory::Window::new(&adapter.keys).expect("a window");
        let kept = std::sync::Arc::downgrade(&window);
        let target = BindTarget { registration: &registration, range: 0..8, access: Access::REMOTE_READ };
        let window_op = window.bind(target, 1).expect("bound");
        drop(window);
        let ticket = table.open(RequestMeta { kind: OpKind::Bind, context: 0 }, || 0);
        queue.post_window(WindowRequest { ticket, flags: Flags::empty() }, window_op);
        let mut wakes = WakeList::default();
        if flushes {
            queue.flush(Status::CANCELED, Status::CANCELED, &mut wakes);
        } else {
            assert!(matches!(queue.begin(&mut wakes), Next::Idle));
        }
        assert!(queue.entries.is_empty() && kept.strong_count() == 1, "flushed: {flushes}");
        wakes.wake_all();
        assert_eq!(kept.strong_count(), 0, "flushed: {flushes}");
    }
}

// An idle connection keeps room for a few requests, however many there were (SEC-12).
#[test]
fn a_burst_leaves_little_room_behind() {
    let table = std::sync::Arc::<Table>::default();
    let mut queue = SendQueue::new(1000, 1, false, CompletionSink::to_futures(table.clone()));
    for _ in 0..1000 {
        let ticket = table.open(RequestMeta { kind: OpKind::Send, context: 0 }, || 0);
        let operation = Operation::Send { invalidate: None, immediate: None };
        let request = WorkRequest { ticket, operation, payload: Payload::new(), flags: Flags::empty() };
        queue.post(request);
    }
    queue.flush(Status::CANCELED, Status::CANCELED, &mut WakeList::default());
    assert!(queue.entries.is_empty() && queue.entries.capacity() <= KEEP_ENTRIES);
}

// The bytes of a long response are fetched when it is written, which is after an atomic in the same batch
// (QP-23).
#[test]
fn an_atomic_waits_for_the_read_before_it() {
    let keys = KeyTable::default();
    let memory = Owned::zeroed(2000).expect("memory").share();
    let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let registration = keys.register(memory.clone(), access).expect("registered");
    let access = RemoteAccess::new(registration, None);
    let mut queue = queue(4, false);
    let mut wakes = WakeList::default();
    let read = Answer::Read { sink: (1, 0) };
    let atomic = Answer::Atomic { atomic: Atomic::fetch_add(1), identifier: 1 };
    for (length, answer) in [(2000, read), (8, atomic)] {
        queue.respond(Some(Grant { access: access.clone(), part: 0..length }), answer);
    }
    let word = || {
        let mut bytes = [0; 8];
        memory.slice(0, 8).expect("in bounds").read(0, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    let Next::Write(batch) = queue.begin(&mut wakes) else { panic!("an answer is due") };
    assert_eq!((word(), queue.serving()), (0, 1));
    let length = 16 + 2000 + mpa::CRC_SIZE;
    let Next::Write(batch) = queue.offered(batch, Ok(length), &mut wakes) else { panic!("one is left") };
    assert_eq!((word(), queue.serving()), (1, 0));
    drop(batch);
}

// The probes of a silent peer do not pile up, and are sent neither early nor late.
#[test]
fn nothing_is_interjected_while_something_waits() {
    let queue = || queue(4, false);
    let mut busy = queue();
    assert!(busy.probe());
    let frames = |queue: &SendQueue| {
        let pieces = queue.batch.pieces(None);
        pieces.map(|piece| if let Piece::Bytes(bytes) = piece { bytes.len() } else { 0 }).sum::<usize>()
    };
    let length = frames(&busy);
    busy.nudge();
    assert!(!busy.probe() && frames(&busy) == length, "it waits for the socket");
    let (mut held, mut closed) = (queue(), queue());
    held.hold();
    closed.close(None);
    assert!(!held.probe() && !closed.probe());
    let mut writing = queue();
    writing.nudge();
    let writer = writing.begin(&mut WakeList::default());
    assert!(matches!(writer, Next::Write(_)) && !writing.probe(), "somebody is writing");
}

const SEND: Operation = Operation::Send { invalidate: None, immediate: None };

/// Returns the bytes of a batch.
fn bytes(batch: &Batch) -> Vec<u8> {
    let mut found = Vec::new();
    crate::memory::gather(batch.pieces(None), usize::MAX, &mut found).expect("memory of the host");
    found
}

/// Has the socket take all that is due, and returns it.
fn sent(queue: &mut SendQueue) -> Vec<u8> {
    let (mut all, mut wakes) = (Vec::new(), WakeList::default());
    let mut next = queue.begin(&mut wakes);
    while let Next::Write(batch) = next {
        let bytes = bytes(&batch);
        next = queue.offered(batch, Ok(bytes.len()), &mut wakes);
        all.extend(bytes);
    }
    all
}

fn request(table: &Table, operation: Operation, payload: Payload) -> WorkRequest {
    let ticket = table.open(RequestMeta { kind: operation.kind(), context: 0 }, || 0);
    WorkRequest { ticket, operation, payload, flags: Flags::empty() }
}

const WORD: [u8; 4] = *b"last";

// The end of a stream is what a Send and an empty Read were, as a peer in any version expects.
#[test]
fn end_of_a_stream_is_framed_as_requests_are() {
    for (crc, is_last) in [(false, false), (false, true), (true, true)] {
        let table = Table::default();
        let mut word = Owned::zeroed(4).expect("memory");
        word.copy_from_slice(&WORD);
        let [mut send, mut read, mut end] = [(); 3].map(|()| queue(4, crc));
        send.post(request(&table, SEND, Payload::from_iter([word.share().whole()])));
        let from = RemoteAddress { key: if is_last { STREAM_KEY } else { 0 }, address: 0 };
        read.post(request(&table, Operation::Read { from }, Payload::new()));
        end.end_stream(WORD, is_last);
        assert_eq!(sent(&mut end), [sent(&mut send), sent(&mut read)].concat(), "crc {crc}");
        assert_eq!((end.completed, end.written), (80, 80), "the Send is awaited by a close");
    }
}

/// Returns a queue whose end of a stream has been sent.
fn ended(table: &std::sync::Arc<Table>, is_last: bool) -> SendQueue {
    let mut queue = SendQueue::new(4, 1, false, CompletionSink::to_futures(table.clone()));
    queue.end_stream(WORD, is_last);
    assert_eq!(sent(&mut queue).len(), 80);
    queue
}

// With a read limit of one, the message does not wait for the answer to a probe, and the Read does.
#[test]
fn end_of_a_stream_is_behind_all_requests() {
    let table = std::sync::Arc::<Table>::default();
    let mut queue = SendQueue::new(4, 1, false, CompletionSink::to_futures(table.clone()));
    assert!(queue.probe());
    let writer = queue.begin(&mut WakeList::default());
    queue.end_stream(WORD, true);
    queue.post(request(&table, SEND, Payload::new()));
    let Next::Write(probe) = writer else { panic!("a probe") };
    let length = bytes(&probe).len();
    let Next::Write(rest) = queue.offered(probe, Ok(length), &mut WakeList::default()) else {
        panic!("two Sends")
    };
    let (send, end) = (24, 28);
    assert_eq!(bytes(&rest).len(), send + end);
    assert!(matches!(queue.offered(rest, Ok(send + end), &mut WakeList::default()), Next::Idle));
    assert!(!queue.complete_read(&mut WakeList::default()), "the probe");
    assert!(!sent(&mut queue).is_empty() && queue.ends.own == StreamEnd::Asked);
    assert!(queue.complete_read(&mut WakeList::default()));
}

// A peer that has closed answers bytes with a reset, and takes back what it had sent last.
#[test]
fn only_answers_follow_both_ends_of_a_stream() {
    let table = std::sync::Arc::<Table>::default();
    let answer = Answer::Read { sink: (1, 0) };
    for (is_last, is_peer_last) in [(true, true), (true, false), (false, true)] {
        let mut queue = ended(&table, is_last);
        // Behind bytes that the socket did not take.
        queue.nudge();
        let Next::Write(batch) = queue.begin(&mut WakeList::default()) else { panic!("a nudge") };
        let (nudge, full) = (bytes(&batch).len(), Err(io::ErrorKind::WouldBlock.into()));
        assert!(matches!(queue.offered(batch, full, &mut WakeList::default()), Next::Blocked));
        let waiting = request(&table, SEND, Payload::new());
        let ticket = waiting.ticket;
        queue.post(waiting);
        queue.respond(None, answer);
        if is_peer_last {
            queue.peer_ends_stream();
        }
        let ends = is_last && is_peer_last;
        let (response, send) = (20, if ends { 0 } else { 24 });
        assert_eq!(sent(&mut queue).len(), nudge + response + send, "{is_last} {is_peer_last}");
        assert!(table.take(ticket).is_some_and(|completed| completed.status == Status::SUCCESS));
        assert!(!queue.is_stream_over(), "it is not confirmed");
        assert!(queue.complete_read(&mut WakeList::default()));
        assert_eq!((queue.is_stream_over(), queue.admits_direct()), (ends, !ends));
        queue.nudge();
        assert_eq!((queue.probe(), sent(&mut queue).is_empty()), (false, ends));
        queue.post(request(&table, SEND, Payload::new()));
        assert_eq!(sent(&mut queue).is_empty(), ends);
        assert!(queue.entries.is_empty() && queue.is_stream_over() == ends);
        // An answer is still owed, though an honest peer does not ask.
        queue.respond(None, answer);
        assert!(!queue.is_stream_over());
        assert_eq!(sent(&mut queue).len(), response);
    }
}

// The answer to a question that was asked before the peer's end comes behind it.
#[test]
fn a_stream_is_not_over_before_the_answer_to_a_probe() {
    let mut queue = ended(&std::sync::Arc::default(), true);
    assert!(queue.complete_read(&mut WakeList::default()) && queue.probe());
    sent(&mut queue);
    queue.respond(None, Answer::Read { sink: (1, 0) });
    queue.peer_ends_stream();
    sent(&mut queue);
    assert!(queue.sends_no_more() && !queue.is_stream_over());
    queue.complete_read(&mut WakeList::default());
    assert!(queue.is_stream_over());
}
