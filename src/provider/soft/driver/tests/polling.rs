//! What a poll of a completion queue does between two steps of the task.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::reading::{drive, feed};
use super::*;
use crate::provider::soft::send::Next;

/// Counts how often a task is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// An end whose socket is full, and whose task waits for room.
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
        let written = end.connection.send_queue().written;
        if is_full && std::mem::replace(&mut before, written) == written {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    tokio::time::timeout(LIMIT, waits).await.expect("it fills up");
    assert!(end.connection.send_queue().blocked);
    (end, driver)
}

/// More than two sockets hold.
const LENGTH: usize = 32 << 20;

// CQ-01: a poll that was writing when the connection ended, and has found no room, tells the task that waits for it.
#[tokio::test]
async fn a_poll_without_room_wakes_the_task_that_waits_for_it() {
    let (end, mut driver) = full().await;
    let socket = driver.socket.clone();
    let mut wakes = WakeList::default();
    let next = end.connection.send_queue().begin(&mut wakes);
    assert!(matches!(next, Next::Write(_)));
    end.connection.command(Command::Abandon(Status::CANCELED));
    drive(&mut driver, |driver| matches!(driver.state, State::Flushing { .. })).await;
    let task = tokio::spawn(driver);
    tokio::task::yield_now().await;
    assert!(!task.is_finished(), "somebody is writing");
    let written = end.connection.send_queue().written;
    if end.connection.go_on_now(&socket, end.connection.send_queue(), next, &mut wakes) {
        end.connection.wake_driver();
    }
    assert_eq!(end.connection.send_queue().written, written, "there is no room");
    assert_eq!(end.log.take(1).await, ["closed"]);
    task.await.expect("no panic");
}

// CQ-01: a task that finds a poll writing waits for room all the same, as the poll may find none.
#[tokio::test]
async fn a_task_that_finds_a_poll_writing_waits_for_room() {
    let (mut end, mut driver) = full().await;
    let mut wakes = WakeList::default();
    let next = end.connection.send_queue().begin(&mut wakes);
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
    assert!(matches!(end.connection.send_queue().offered(batch, full, &mut wakes), Next::Blocked));
    let woken = async {
        while count.0.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, woken).await.expect("the task goes on");
    drop(driver);
}
