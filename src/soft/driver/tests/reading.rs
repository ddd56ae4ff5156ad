//! Tests the reads of a task beside the reader of a stream, ahead of a receive, and before it ends, and those
//! that are made where the runtime reports the socket.

use std::sync::Barrier;
use std::sync::atomic::Ordering;

use tokio::io::ReadBuf;
use tokio::net::TcpSocket;

use super::*;
use crate::inflight::{RING, STREAM_KEY, StreamInbox};
use crate::provider::stream::StreamRoom;
use crate::soft::receive_queue::SharedReceives;
use crate::soft::receive_queue::tests::{Count, post, shared_receives};
use crate::soft::receiver::reader::tasks_run;
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
