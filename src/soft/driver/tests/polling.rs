//! Tests polls of a completion queue between two steps of the task.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::reading::{comes, drive, feed, with_shared};
use super::*;
use crate::error::Reason;
use crate::net::Host;
use crate::provider::params::QueuePairParts;
use crate::soft::adapter::{self, Adapter};
use crate::soft::completion_queue::CompletionQueue;
use crate::soft::queue_pair::{QueuePair, QueuePairUser, Queues};
use crate::soft::receive_queue::SharedReceives;
use crate::soft::receive_queue::tests::{Count, post, shared_receives};
use crate::soft::send_queue::Next;

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

/// A queue pair whose requests complete in this queue, and that a connector has taken.
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
    let connection = end.connection.clone();
    let holders = Arc::strong_count(&connection);
    let establishing = std::thread::spawn({
        let queue_pair = queue_pair.clone();
        move || queue_pair.establish(&connection, &mut WakeList::default())
    });
    // The queue pair has the connection next, and is not connected yet.
    until(|| Arc::strong_count(&end.connection) > holders).await;
    queue.progress(|| false);
    assert!(end.table.take(receive).is_none(), "nothing can be posted yet");
    drop(state);
    establishing.join().expect("no panic");
    queue.progress(|| false);
    assert_eq!(end.table.take(receive).expect("read").status, Status::SUCCESS);
}
