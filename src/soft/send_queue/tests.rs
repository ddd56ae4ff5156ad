//! What the send queue does by itself: the order of its requests, and the room that it keeps.

use super::*;
use crate::inflight::{RequestMeta, Table};
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
