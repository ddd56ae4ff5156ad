//! Tests the reads of a task beside the reader of a stream, ahead of a receive, and before it ends.

use std::sync::Barrier;

use tokio::io::ReadBuf;
use tokio::net::TcpSocket;

use super::*;
use crate::provider::stream::{StreamInbox, StreamRoom};
use crate::soft::receive_queue::SharedReceives;
use crate::soft::receive_queue::tests::{post, shared_receives};
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
        let (mut end, mut driver) = with(|sink| ReceiveQueue::to_stream(StreamInbox::new(4, 0), sink)).await;
        let memory = Owned::zeroed(2 * LENGTH).expect("memory").share();
        let region = end.connection.keys.register(memory, Access::REMOTE_WRITE).expect("registered");
        let write = Tagged { last: true, opcode: Opcode::Write, stag: region.key(), to: 0 };
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
                let place = RemoteAddress { key: region.key(), address: LENGTH as u64 };
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

// A peer decides how long a message waits for a shared receive, and all that was read behind it, also if the
// segments of a read of this side were expected there (SEC-12).
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

// Not every Send announces data. So the stream is given the end of the last Write to its ring, and keeps the
// ring until messages have announced all of it (IO-04).
#[tokio::test]
async fn send_does_not_hide_an_earlier_write() {
    const RING: u64 = 64;
    let (mut end, mut driver) = with(|sink| ReceiveQueue::to_stream(StreamInbox::new(4, RING), sink)).await;
    let memory = Owned::zeroed(128).expect("memory").share();
    let region = end.connection.keys.register(memory, Access::REMOTE_WRITE).expect("registered");
    let write = |to| {
        let header = Tagged { last: true, opcode: Opcode::Write, stag: region.key(), to };
        [&header.encode(8)[..], &[7; 8], &[0; 4]].concat()
    };
    feed(&mut end, &mut driver, &rtr_frame(Rtr::Write, false)).await;
    let steps = [(Vec::new(), None), (write(RING + 8), Some(RING + 16)), (message(), Some(RING + 16))];
    for (frame, expected) in steps.into_iter().chain([(write(16), Some(RING + 16))]) {
        feed(&mut end, &mut driver, &frame).await;
        let mut written = None;
        end.connection.if_quiet(&mut |end| written = Some(end));
        assert_eq!(written, Some(expected));
    }
}
