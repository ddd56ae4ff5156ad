//! Tests the reads of a task beside the reader of a stream, ahead of a receive, and before it ends, those that are made where the runtime
//! reports the socket, and polls of a completion queue between two steps of the task.

use std::sync::atomic::Ordering;
use std::sync::{Barrier, Weak};

use tokio::io::ReadBuf;
use tokio::net::TcpSocket;

use super::*;
use crate::error::Reason;
use crate::inflight::{RING, STREAM_KEY, StreamInbox};
use crate::net::Host;
use crate::provider::params::QueuePairParts;
use crate::provider::stream::StreamRoom;
use crate::soft::adapter::{self, Adapter};
use crate::soft::completion_queue::CompletionQueue;
use crate::soft::queue_pair::{QueuePair, QueuePairUser, Queues};
use crate::soft::receive_queue::SharedReceives;
use crate::soft::receive_queue::tests::{Count, post, shared_receives};
use crate::soft::receiver::reader::tasks_run;
use crate::soft::send_queue::Next;
use crate::types::Access;
use crate::wire::ddp::Tagged;

const KIB: usize = 1024;

/// Polls the task until `until` holds. Its connection lasts so long.
pub(super) async fn drive(driver: &mut Driver<Log>, mut until: impl FnMut(&Driver<Log>) -> bool) {
    let polls = std::future::poll_fn(|cx| {
        assert!(Pin::new(&mut *driver).poll(cx).is_pending(), "the connection lasts");
        if until(driver) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    tokio::time::timeout(LIMIT, polls).await.expect("in time");
}

/// Returns how many unread bytes have arrived, up to `most`.
fn unread(driver: &Driver<Log>, most: usize) -> usize {
    driver.socket.stream().peek_now(&mut vec![0; most]).unwrap_or(0)
}

/// Waits until `bytes` unread bytes have arrived.
pub(super) async fn comes(driver: &Driver<Log>, bytes: usize) {
    until(|| unread(driver, bytes) >= bytes).await;
}

/// Sends to the task, which reads all of it.
pub(super) async fn feed(end: &mut End, driver: &mut Driver<Log>, bytes: &[u8]) {
    end.peer.write_all(bytes).await.expect("written");
    comes(driver, bytes.len()).await;
    drive(driver, |driver| unread(driver, 1) == 0).await;
}

async fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener")
}

/// Creates the passive end of a connection to a listener with these receives.
async fn with(receives: impl FnOnce(CompletionSink) -> Arc<ReceiveQueue>) -> (End, Driver<Log>) {
    End::passive_at(&SoftConfig::default(), listener().await, receives).await
}

/// Creates the passive end of a connection whose receives are shared.
pub(super) async fn with_shared(shared: &Arc<SharedReceives>) -> (End, Driver<Log>) {
    with(|sink| ReceiveQueue::with_shared(shared.clone(), sink)).await
}

// The reader of a stream takes a reset from the socket on another thread while the task is being polled. The
// kernel reports it once, and the task would find an orderly end behind it (SEC-11).
#[tokio::test]
async fn a_reset_that_a_reader_takes_is_reported() {
    const ROUNDS: usize = 200;
    const LENGTH: usize = 20_000;
    for round in 0..ROUNDS {
        let inbox = StreamInbox::new(4, 2 * LENGTH as u64);
        let (mut end, mut driver) = with(|sink| ReceiveQueue::to_stream(inbox, sink)).await;
        let write = Tagged { last: true, opcode: Opcode::Write, stag: STREAM_KEY, to: RING };
        let write = [&write.encode(LENGTH)[..], &[7; LENGTH], &[0; 4]].concat();
        feed(&mut end, &mut driver, &[&rtr_frame(Rtr::Write, false)[..], &write].concat()).await;
        assert!(driver.reader.receiver().expects_large());
        let End { log, peer, connection, .. } = end;
        peer.set_zero_linger().expect("an option");
        drop(peer);
        driver.socket.stream().readable().await.expect("a socket");
        let (reader, start) = (driver.reader.clone(), Arc::new(Barrier::new(2)));
        let other = std::thread::spawn({
            let start = start.clone();
            move || {
                let mut bytes = [0; 64];
                let mut into = ReadBuf::new(&mut bytes);
                let place = RemoteAddress { key: STREAM_KEY, address: RING + LENGTH as u64 };
                let (mut room, mut wakes) = (StreamRoom::new(&mut into, 64, place), WakeList::default());
                start.wait();
                if reader.read(Some(&mut room), Waker::noop(), false, &mut wakes) {
                    connection.wake_driver();
                }
                wakes.wake_all();
            }
        });
        start.wait();
        tokio::time::timeout(LIMIT, driver).await.expect("it ends");
        other.join().expect("no panic");
        assert_eq!(log.take(3).await, ["established", "ended: lost", "closed"], "round {round}");
    }
}

// A peer decides how long a message waits for a shared receive, and all that was read behind it, also if a
// read of this side is being answered (SEC-12).
#[tokio::test]
async fn little_waits_behind_a_message_in_a_read() {
    const SEGMENT: usize = 16 * KIB;
    const FLOOD: usize = 160 * KIB;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(1 << 20).expect("an option");
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
    let (shared, _table) = shared_receives();
    let receives = |sink| ReceiveQueue::with_shared(shared, sink);
    let listener = socket.listen(1).expect("a listener");
    let (mut end, mut driver) = End::passive_at(&SoftConfig::default(), listener, receives).await;
    feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
    let ticket = end.ticket(OpKind::Read);
    let payload = Payload::from_iter([Owned::zeroed(512 * KIB).expect("memory").share().whole()]);
    let read = WorkRequest { ticket, operation: READ, payload, flags: Flags::empty() };
    assert!(end.connection.post(read).is_ok());
    let segment = Tagged { last: false, opcode: Opcode::ReadResponse, stag: 1, to: 0 };
    let segment = [&segment.encode(SEGMENT)[..], &[7; SEGMENT], &[0; 4]].concat();
    let (first, rest) = segment.split_at(1000);
    feed(&mut end, &mut driver, first).await;
    let messages = message().repeat(FLOOD / message().len());
    let flood = [rest, &messages].concat();
    end.peer.write_all(&flood).await.expect("room for all of it");
    comes(&driver, flood.len()).await;
    drive(&mut driver, |driver| driver.reader.receiver().awaits_receive()).await;
    let kept = driver.reader.receiver().memory();
    assert!((1..=64 * KIB).contains(&kept), "{kept} bytes");
}

// A Terminate reports that data was lost, wherever this end has read to in it when it begins to disconnect
// (ERR-08).
#[tokio::test]
async fn a_terminate_is_not_lost_in_a_disconnect() {
    for crc in [false, true] {
        let terminate = terminate_fpdu(&Terminate::NO_BUFFER, crc);
        for cut in [0, 1, 2, 4, 19, 20, 21, terminate.len() - 5, terminate.len() - 1] {
            let (mut end, mut driver) = End::passive_with(&SoftConfig::default().crc(crc)).await;
            feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, crc)).await;
            let (first, rest) = terminate.split_at(cut);
            feed(&mut end, &mut driver, first).await;
            end.connection.command(Command::Disconnect(deadline(LIMIT)));
            drive(&mut driver, |driver| matches!(driver.state, State::Closing(_))).await;
            end.peer.write_all(rest).await.expect("written");
            end.peer.shutdown().await.expect("the end of the stream");
            tokio::time::timeout(LIMIT, driver).await.expect("it ends");
            let reports = end.log.take(3).await;
            assert_eq!(reports, ["established", "ended: lost", "closed"], "{cut} bytes, CRC {crc}");
        }
    }
}

/// Logs whether the receiving half is locked when it is woken.
struct Locked(Arc<Reader>, Arc<Log>);

impl Wake for Locked {
    fn wake(self: Arc<Self>) {
        self.1.add(if self.0.is_locked() { "locked" } else { "free" });
    }
}

// Wakers are foreign code, and may do anything: also take the same lock.
#[tokio::test]
async fn a_restored_receive_wakes_without_a_lock() {
    let (shared, table) = shared_receives();
    let (mut end, mut driver) = with_shared(&shared).await;
    post(&shared, &table);
    feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
    let header = Untagged { last: false, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 1, mo: 0 };
    feed(&mut end, &mut driver, &[&header.encode(4)[..], b"half", &[0; 4]].concat()).await;
    let waker = Waker::from(Arc::new(Locked(driver.reader.clone(), end.log.clone())));
    assert!(shared.poll_ready(u64::MAX, &mut Context::from_waker(&waker)).is_pending());
    driver.restore_receive();
    assert_eq!(end.log.take(2).await, ["established", "free"]);
}

/// Creates an established end whose task was polled once more, and does not run again by itself. Also returns
/// the count of the wakes of the task.
async fn resting() -> (End, Driver<Log>, Arc<Count>) {
    let (mut end, mut driver) = End::passive().await;
    feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
    assert_eq!(end.log.take(1).await, ["established"]);
    let count = Arc::<Count>::default();
    rest(&mut driver, &count);
    (end, driver, count)
}

/// Polls the task, which then waits.
fn rest(driver: &mut Driver<Log>, count: &Arc<Count>) {
    let waker = Waker::from(count.clone());
    assert!(Pin::new(driver).poll(&mut Context::from_waker(&waker)).is_pending());
}

fn wakes(count: &Count) -> usize {
    count.0.load(Ordering::SeqCst)
}

// A program that polls nothing serves its peer all the same, and no task has to run for it.
#[tokio::test]
async fn small_frames_need_no_task() {
    let (mut end, driver, count) = resting().await;
    let memory = Owned::zeroed(FLOOD_BYTES).expect("memory").share();
    let region = end.connection.keys.register(memory, Access::REMOTE_READ).expect("registered");
    end.receive();
    let read = read_frame(1, 8, region.key(), region.address());
    end.peer.write_all(&[read, message()].concat()).await.expect("written");
    assert_eq!(end.log.take(1).await, ["receive"]);
    end.peer.read_exact(&mut [0; 16 + 8 + 4]).await.expect("the response");
    assert_eq!(wakes(&count), 0);
    drop(driver);
}

// What a peer sends after this end has disconnected must not succeed (DIS-10).
#[tokio::test]
async fn nothing_completes_after_a_disconnect() {
    let (mut end, mut driver, count) = resting().await;
    let receive = end.receive();
    end.connection.command(Command::Disconnect(deadline(LIMIT)));
    assert_eq!(wakes(&count), 1, "for the command");
    // Registered again, but the command is not executed yet.
    let old = end.connection.poll_command(&Context::from_waker(&Waker::from(count.clone())));
    end.peer.write_all(&message()).await.expect("written");
    until(|| wakes(&count) > 1).await;
    assert!(end.is_pending(receive, "receive"));
    end.connection.command(old.command.expect("the command"));
    run_to(&end, &mut driver, "receive", |_| ()).await;
    assert_eq!(end.completed(receive).await.status, Status::CANCELED);
}

// The thread that reports sockets takes so many turns, however many peers send, until tasks have run (SEC-01).
#[tokio::test]
async fn turns_at_once_are_limited() {
    let (mut end, mut driver, count) = resting().await;
    for _ in 0..2 {
        tasks_run();
        let before = wakes(&count);
        let mut turns = 0;
        while wakes(&count) == before {
            let received = driver.reader.receiver().received;
            end.peer.write_all(&rtr_frame(Rtr::Write, false)).await.expect("written");
            until(|| wakes(&count) > before || driver.reader.receiver().received > received).await;
            turns += 1;
        }
        assert_eq!(turns, 65);
        rest(&mut driver, &count);
    }
}

// A flood of one peer takes a short turn, and the task the rest (SEC-01).
#[tokio::test]
async fn a_turn_at_once_is_short() {
    let (mut end, driver, count) = resting().await;
    let received = driver.reader.receiver().received;
    end.peer.write_all(&rtr_frame(Rtr::Write, false).repeat(200)).await.expect("written");
    until(|| wakes(&count) > 0).await;
    let receiver = driver.reader.receiver();
    assert!(receiver.received > received, "a turn was taken");
    assert!(receiver.needs_task(), "and the rest is left");
}

// The memory of a message for a dropped future is freed in a task, and the next one needs none.
#[tokio::test]
async fn a_dropped_receive_holds_up_no_other() {
    let (mut end, driver, count) = resting().await;
    let dropped = end.receive();
    end.table.abandon(dropped);
    end.receive();
    let header = Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 2, mo: 0 };
    let next = [&header.encode(4)[..], b"next", &[0; 4]].concat();
    end.peer.write_all(&[message(), next].concat()).await.expect("written");
    assert_eq!(end.log.take(1).await, ["receive"]);
    assert_eq!(wakes(&count), 0);
    drop(driver);
}

/// A waker that panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the test panics");
    }
}

// It would end the thread that reports the sockets of all connections.
#[tokio::test]
async fn panicking_waker_ends_its_connection_alone() {
    let (mut end, driver, count) = resting().await;
    let (mut other, other_driver, _) = resting().await;
    let receive = end.receive();
    let waker = Waker::from(Arc::new(Bomb));
    assert!(end.table.poll(receive, &mut Context::from_waker(&waker)).is_pending());
    end.peer.write_all(&message()).await.expect("written");
    until(|| wakes(&count) > 0).await;
    let task = tokio::spawn(driver);
    assert_eq!(end.log.take(2).await, ["ended: lost", "closed"]);
    task.await.expect("the task has not panicked");
    assert_eq!(end.completed(receive).await.status, Status::SUCCESS, "it had completed before");
    other.receive();
    other.peer.write_all(&message()).await.expect("written");
    assert_eq!(other.log.take(1).await, ["receive"]);
    drop(other_driver);
}

/// Creates an end whose socket is full, and whose task waits for room.
async fn full() -> (End, Driver<Log>) {
    let config = SoftConfig::default().path_timeout(None);
    let (mut end, mut driver) = End::passive_with(&config).await;
    feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
    assert_eq!(end.log.take(1).await, ["established"]);
    let payload = Payload::from_iter([Owned::zeroed(LENGTH).expect("memory").share().whole()]);
    let ticket = end.ticket(OpKind::Send);
    let work = WorkRequest { ticket, operation: SEND, payload, flags: Flags::empty() };
    assert!(end.connection.post(work).is_ok());
    let mut before = 0;
    let waits = std::future::poll_fn(|cx| {
        assert!(Pin::new(&mut driver).poll(cx).is_pending(), "the connection lasts");
        let is_full = driver.socket.stream().poll_write_ready(cx).is_pending();
        let written = end.connection.sending().queue.written;
        if is_full && std::mem::replace(&mut before, written) == written {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    tokio::time::timeout(LIMIT, waits).await.expect("it fills up");
    assert!(end.connection.sending().queue.is_blocked());
    (end, driver)
}

/// More bytes than two sockets hold.
const LENGTH: usize = 32 << 20;

// A poll that was writing when the connection ended, and has found no room, wakes the task that waits for it
// (CQ-01).
#[tokio::test]
async fn poll_without_room_wakes_waiting_task() {
    let (end, mut driver) = full().await;
    let socket = driver.socket.clone();
    let mut wakes = WakeList::default();
    let next = end.connection.sending().queue.begin(&mut wakes);
    assert!(matches!(next, Next::Write(_)));
    end.connection.command(Command::Abandon(Status::CANCELED));
    drive(&mut driver, |driver| matches!(driver.state, State::Flushing { .. })).await;
    let task = tokio::spawn(driver);
    tokio::task::yield_now().await;
    assert!(!task.is_finished(), "somebody is writing");
    let written = end.connection.sending().queue.written;
    let sending = end.connection.sending();
    let (transmitted, _) = end.connection.write_batches(&socket, sending, next, Extent::Poll, &mut wakes);
    assert_eq!(transmitted, Transmitted::Blocked, "the task has to go on");
    end.connection.wake_driver();
    assert_eq!(end.connection.sending().queue.written, written, "there is no room");
    assert_eq!(end.log.take(1).await, ["closed"]);
    task.await.expect("no panic");
}

// A task that finds a poll writing waits for room nevertheless, as the poll may find none (CQ-01).
#[tokio::test]
async fn task_waits_for_room_while_poll_writes() {
    let (mut end, mut driver) = full().await;
    let mut wakes = WakeList::default();
    let next = end.connection.sending().queue.begin(&mut wakes);
    let Next::Write(batch) = next else { panic!("there is more to write") };
    let mut room = vec![0; 16 << 20];
    while driver.socket.stream().poll_write_ready(&mut Context::from_waker(Waker::noop())).is_pending() {
        let read = end.peer.read(&mut room).await.expect("the peer reads");
        assert!(read > 0);
    }
    let count = Arc::<Count>::default();
    let waker = Waker::from(count.clone());
    assert!(Pin::new(&mut driver).poll(&mut Context::from_waker(&waker)).is_pending());
    let full = Err(io::ErrorKind::WouldBlock.into());
    assert!(matches!(end.connection.sending().queue.offered(batch, full, &mut wakes), Next::Blocked));
    until(|| count.0.load(Ordering::SeqCst) > 0).await;
    drop(driver);
}

/// Creates an end whose first message waits for a shared receive.
async fn starved(shared: &Arc<SharedReceives>) -> (End, Driver<Log>) {
    let (mut end, mut driver) = with_shared(shared).await;
    let bytes = [&rtr_frame(Rtr::Write, false)[..], &message()].concat();
    feed(&mut end, &mut driver, &bytes).await;
    drive(&mut driver, |driver| driver.reader.receiver().awaits_receive()).await;
    (end, driver)
}

// After the task has found a message waiting, and before it waits for a receive, a poll goes on with the
// message (SRQ-02).
#[tokio::test]
async fn message_resumed_by_poll_gets_no_grant() {
    let (shared, table) = shared_receives();
    let (end, mut driver) = starved(&shared).await;
    shared.forget(end.connection.number);
    post(&shared, &table);
    end.connection.poll_now();
    assert!(!driver.reader.receiver().awaits_receive(), "the poll has gone on");
    let mut wakes = WakeList::default();
    _ = driver.poll_awaited(&mut Context::from_waker(Waker::noop()), &mut wakes);
    let next = post(&shared, &table);
    assert_eq!(shared.take(end.connection.number + 1).expect("free for others").ticket, next);
}

// The task does not read on behind an end that the poll has met (SRQ-02).
#[tokio::test]
async fn task_with_receive_reads_nothing_after_terminate() {
    let (shared, table) = shared_receives();
    let (mut end, mut driver) = starved(&shared).await;
    let bytes = [&terminate_fpdu(&Terminate::NO_BUFFER, false)[..], &message()].concat();
    end.peer.write_all(&bytes).await.expect("written");
    comes(&driver, bytes.len()).await;
    post(&shared, &table);
    end.connection.poll_now();
    let left = post(&shared, &table);
    let mut wakes = WakeList::default();
    let awaited = driver.poll_awaited(&mut Context::from_waker(Waker::noop()), &mut wakes);
    assert!(matches!(awaited, Poll::Ready(Ok(TurnOutcome { read: false, .. }))), "it looks again");
    assert_eq!(shared.take(end.connection.number + 1).expect("nobody has taken it").ticket, left);
    drop(awaited);
    tokio::time::timeout(LIMIT, driver).await.expect("it ends");
    assert_eq!(end.log.take(3).await, ["established", "ended: lost", "closed"]);
}

// The first message is held back until the connection is established, and a poll overtakes it with no other
// (QP-17).
#[tokio::test]
async fn a_poll_does_not_overtake_the_first_message() {
    let (mut end, driver) = End::passive().await;
    let [first, second] = [(); 2].map(|()| end.ticket(OpKind::Receive));
    for (ticket, name) in [(first, "first"), (second, "second")] {
        assert!(end.connection.receives.post(Receive { ticket, payload: memory() }).is_ok());
        assert!(end.is_pending(ticket, name));
    }
    let connection = end.connection.clone();
    *end.log.at_established.lock() = Some(Box::new(move || connection.poll_now()));
    let header = Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 2, mo: 0 };
    let next = [&header.encode(4)[..], b"next", &[0; 4]].concat();
    end.peer.write_all(&[message(), next].concat()).await.expect("written");
    tokio::spawn(driver);
    assert_eq!(end.log.take(3).await, ["established", "first", "second"]);
}

// Nothing succeeds once the program has ended the connection (DIS-06).
#[tokio::test]
async fn a_poll_reads_nothing_after_a_command() {
    for command in [Command::Abandon(Status::CANCELED), Command::Disconnect(deadline(LIMIT))] {
        let (mut end, mut driver) = End::passive_with(&read_by_task()).await;
        feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
        let receive = end.receive();
        end.peer.write_all(&message()).await.expect("written");
        comes(&driver, message().len()).await;
        end.connection.command(command);
        end.connection.poll_now();
        assert!(end.table.take(receive).is_none(), "{command:?}");
        tokio::spawn(driver);
        assert_eq!(end.log.take(2).await[..2], ["established", "receive"]);
        assert_eq!(end.completed(receive).await.status, Status::CANCELED, "{command:?}");
    }
}

// A program whose subscriber panics loses no buffer.
#[tokio::test]
async fn the_first_message_completes_if_its_report_panics() {
    let (mut end, driver) = End::passive().await;
    let receive = end.receive();
    *end.log.at_established.lock() = Some(Box::new(|| std::panic::resume_unwind(Box::new("a subscriber"))));
    end.peer.write_all(&message()).await.expect("written");
    assert!(tokio::spawn(driver).await.is_err_and(|error| error.is_panic()));
    assert_eq!(end.log.take(3).await, ["ended: lost", "receive", "closed"]);
    let completed = end.completed(receive).await;
    assert_eq!((completed.status, completed.bytes), (Status::SUCCESS, 4));
}

// Connections that are left keep their turns, whichever of the others have ended (CQ-08).
#[tokio::test]
async fn connections_leave_a_queue_in_any_order() {
    let queue = Arc::<CompletionQueue>::default();
    let mut ends = Vec::new();
    for _ in 0..5 {
        let (mut end, mut driver) = End::passive_with(&read_by_task()).await;
        feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
        let receive = end.receive();
        let membership = Some(queue.add(&end.connection));
        end.peer.write_all(&message()).await.expect("written");
        comes(&driver, message().len()).await;
        ends.push((end, driver, receive, membership));
    }
    for place in [1, 4, 0] {
        ends[place].3 = None;
    }
    queue.progress(|| false);
    let has_completed: Vec<_> =
        ends.iter().map(|(end, _, receive, _)| end.table.take(*receive).is_some()).collect();
    assert_eq!(has_completed, [false, false, true, true, false]);
}

/// The connector of a queue pair that is not told of anything.
struct Nobody;

impl QueuePairUser for Nobody {
    fn abandon(&self, _why: &'static str) {}

    fn queue_pair_removed(&self) {}

    fn loss(&self) -> Option<Reason> {
        None
    }
}

/// Creates a queue pair whose requests complete in this queue, and that a connector has taken.
fn associated(queue: &Arc<CompletionQueue>) -> Arc<QueuePair> {
    let id = adapter::resolve(&Host::Kernel, Ipv4Addr::LOCALHOST.into()).expect("the loopback interface");
    let adapter = Adapter::open(Host::Kernel, id, SoftConfig::default()).expect("opened");
    let sink = CompletionSink::to_futures(Arc::default());
    let queues = Queues { shared: None, sends: Some(queue.clone()), receives: Some(queue.clone()) };
    let parts = QueuePairParts {
        receive_depth: 1,
        send_depth: 1,
        receive_entries: 1,
        send_entries: 1,
        inline: 0,
        receive: sink.clone(),
        initiator: sink,
        inbox: None,
        credited: false,
    };
    let queue_pair = QueuePair::new(adapter, parts, queues);
    assert!(queue_pair.associate(Weak::<Nobody>::new()).is_ok());
    queue_pair
}

// CQ-01, QP-06: no poll completes a message before its queue pair is connected: whoever polls one can answer it.
#[tokio::test]
async fn poll_reads_nothing_before_queue_pair_connects() {
    let queue = Arc::<CompletionQueue>::default();
    let queue_pair = associated(&queue);
    let (mut end, mut driver) = End::passive_with(&read_by_task()).await;
    feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
    let receive = end.receive();
    end.peer.write_all(&message()).await.expect("written");
    comes(&driver, message().len()).await;
    let state = queue_pair.hold();
    let establishing = std::thread::spawn({
        let (queue_pair, connection) = (queue_pair.clone(), end.connection.clone());
        move || queue_pair.establish(&connection, &mut WakeList::default())
    });
    // The queue pair has the connection then, and is not connected yet.
    until(|| queue_pair.has_connection()).await;
    queue.progress(|| false);
    assert!(end.table.take(receive).is_none(), "nothing can be posted yet");
    drop(state);
    establishing.join().expect("no panic");
    queue.progress(|| false);
    assert_eq!(end.table.take(receive).expect("read").status, Status::SUCCESS);
}
