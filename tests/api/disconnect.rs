//! The end of a connection between two ends that follow the protocol.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

mod causes;
mod lost;
mod silence;

use common::deviation::*;
use common::life::*;
use common::raw::failure;
use common::*;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Wake, Waker};

use futures::FutureExt;
use futures::future::join_all;
use tokio_rdma::error::{AcceptError, BindError, ConnectError, DisconnectError, PostErrorKind, Reason};
use tokio_rdma::{
    AcceptParams, Access, CompletionQueueConfig, ConnectParams, Connection, DisconnectReason, NotifyKind,
    QueuePairConfig, ReadLimits, Status, WorkOptions,
};

/// Waits for the end and says how it was.
async fn end_of(connection: &Connection) -> DisconnectReason {
    within(connection.disconnected()).await
}

// The peer's disconnect wakes the waker of `disconnected`, and the disconnect of this end does not wake it again
// (DIS-02).
#[tokio::test]
async fn the_peer_is_told_exactly_once() {
    for ip in both() {
        let adapter = adapter_at(ip);
        let (listener, address) = listening_at(&adapter, ip);
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = adapter.connector();
        let (active, passive) = within(async {
            tokio::join!(
                connector.connect_and_complete(&active, address, ConnectParams::default()),
                listener.accept_next(&passive, AcceptParams::default()),
            )
        })
        .await;
        let (active, passive) = (active.expect("connected"), passive.expect("accepted"));
        let log = Log::default();
        let mut told = Box::pin(passive.disconnected());
        assert!(poll_with(&mut told, &log.waker("told")).is_pending(), "nobody has disconnected yet");
        within(active.disconnect()).await.expect("in order");
        assert_eq!(log.at_least(1).await, ["told"]);
        assert_eq!(poll_once(&mut told), Poll::Ready(DisconnectReason::Peer));
        within(passive.disconnect()).await.expect("still owed");
        assert_eq!(log.lines(), ["told"], "woken once");
    }
}

// `disconnected` resolves at its first poll once the connection has ended, however often it is called (DIS-03).
#[tokio::test]
async fn asked_after_the_fact_it_answers_at_once() {
    let Pair { active, passive } = connected(&adapter()).await;
    within(active.connection.disconnect()).await.expect("in order");
    end_of(&passive.connection).await;
    for _ in 0..3 {
        assert_eq!(passive.connection.disconnected().now_or_never(), Some(DisconnectReason::Peer));
        assert_eq!(active.connection.disconnected().now_or_never(), Some(DisconnectReason::Local));
    }
}

// Each of 64 waiting tasks receives the reason (DIS-04).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_may_wait_and_all_are_told() {
    let Pair { active, passive } = connected(&adapter()).await;
    let waiters: Vec<_> = (0..64)
        .map(|_| {
            let connection = passive.connection.clone();
            tokio::spawn(async move { connection.disconnected().await })
        })
        .collect();
    // One that gives up does not take the answer of the others with it.
    let mut dropped = Box::pin(passive.connection.disconnected());
    assert!(poll_once(&mut dropped).is_pending());
    drop(dropped);
    within(active.connection.disconnect()).await.expect("in order");
    for reason in within(join_all(waiters)).await {
        assert_eq!(reason.expect("no panic"), DisconnectReason::Peer);
    }
}

// Messages that were sent arrive, and only the receives beyond them are flushed (DIS-05).
#[tokio::test]
async fn sent_messages_arrive_before_the_end() {
    const MESSAGES: usize = 100;
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let receives: Vec<_> = (0..MESSAGES + 3)
        .map(|_| passive.queue_pair.receive(adapter.buffer(4096).expect("memory")).expect("posted"))
        .collect();
    let sends: Vec<_> = (0..MESSAGES)
        .map(|i| {
            let bytes = vec![i as u8; 1 + i * 40];
            active.queue_pair.send(adapter.buffer_from(&bytes).expect("memory")).expect("posted")
        })
        .collect();
    for (outcome, _) in within(join_all(sends)).await {
        outcome.expect("sent");
    }
    within(active.connection.disconnect()).await.expect("in order");
    let outcomes = within(join_all(receives)).await;
    for (i, (outcome, buffer)) in outcomes.iter().enumerate() {
        match outcome {
            Ok(completion) => {
                assert!(i < MESSAGES && completion.bytes == 1 + i * 40);
                assert!(buffer[..completion.bytes].iter().all(|byte| *byte == i as u8), "message {i}");
            }
            Err(error) => assert!(i >= MESSAGES && error.status() == Status::CANCELED, "message {i}"),
        }
    }
    assert_eq!(end_of(&passive.connection).await, DisconnectReason::Peer);
}

// Receives without a message complete with CANCELED at both ends, and their buffers are unchanged (DIS-06).
#[tokio::test]
async fn everything_outstanding_is_flushed_at_both_ends() {
    const RECEIVES: usize = 37;
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let mut receives = Vec::new();
    for end in [&active, &passive] {
        for i in 0..RECEIVES {
            let buffer = adapter.buffer_from(&[i as u8; 16]).expect("memory");
            receives.push((i, end.queue_pair.receive(buffer).expect("posted")));
        }
    }
    within(active.connection.disconnect()).await.expect("in order");
    for (i, receive) in receives {
        let (outcome, buffer) = within(receive).await;
        assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
        assert_eq!(&buffer[..], [i as u8; 16], "as it was posted");
    }
}

// DIS-01, DIS-06: requests of every kind are outstanding when an end disconnects. When that is done so are they: each either
// in time, or CANCELED with its buffer as it was. What never had its turn is CANCELED.
#[tokio::test]
async fn disconnect_leaves_no_request_outstanding() {
    const SIZE: usize = 1 << 20;
    const EACH: usize = 12;
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    for passive_leaves in [false, true] {
        let one = ReadLimits::new(1, 1);
        let (connect, accept) =
            (ConnectParams::default().read_limits(one), AcceptParams::default().read_limits(one));
        let Pair { active, passive } = connected_with(&adapter, connect, accept).await;
        speak_first((&adapter, &active.queue_pair), (&adapter, &passive.queue_pair)).await;
        let (leaver, other) = if passive_leaves { (&passive, &active) } else { (&active, &passive) };
        let source = adapter.register(SIZE, Access::REMOTE_READ | Access::REMOTE_WRITE).await;
        let source = source.expect("registered");
        let buffer = |byte: u8, size: usize| adapter.buffer_from(&vec![byte; size]).expect("memory");
        let _theirs: Vec<_> =
            (0..EACH).map(|_| other.queue_pair.receive(buffer(0, 8)).expect("posted")).collect();
        let queue_pair = &leaver.queue_pair;
        let mut requests: Vec<_> = (0..EACH as u8)
            .map(|number| (number, queue_pair.receive(buffer(number, 8)).expect("posted")))
            .collect();
        // Reads one at a time, and behind a fence what has to wait for all of them.
        let mut fenced = Vec::new();
        for number in 1..=EACH as u8 {
            let read = queue_pair.read(buffer(number, SIZE), &source.remote()).expect("posted");
            requests.push((number, read));
        }
        let fence = || WorkOptions::default().fence();
        for number in 1..=EACH as u8 {
            let part = source.remote_part(0..8).expect("in bounds");
            fenced.push((number, queue_pair.send_with(buffer(number, 8), fence()).expect("posted")));
            fenced.push((number, queue_pair.write_with(buffer(number, 8), &part, fence()).expect("posted")));
        }
        let all = requests.len() + fenced.len();
        within(leaver.connection.disconnect()).await.expect("in order");
        // A turn of its own, in which the task has its whole budget.
        tokio::task::yield_now().await;
        let (mut canceled, mut done) = (0, 0);
        for (number, request) in requests.into_iter().chain(fenced) {
            let (outcome, buffer) = request.now_or_never().expect("finished with the disconnect");
            match outcome {
                Ok(completion) => {
                    done += 1;
                    assert!(completion.bytes == buffer.len());
                }
                Err(error) => {
                    canceled += 1;
                    assert_eq!(error.status(), Status::CANCELED);
                    // A read may have been cut short.
                    assert!(buffer.len() == SIZE || buffer.iter().all(|byte| *byte == number));
                }
            }
        }
        assert_eq!(done + canceled, all);
        assert!(canceled >= EACH, "its receives at the least: {canceled}");
        // On siw an answer to a read may meet the end, which is an error of the queue pair.
        let end = end_of(&other.connection).await;
        let met = adapter.info().iwarp && !Device::under_test().is_soft();
        assert!(
            end == DisconnectReason::Peer || met && matches!(end, DisconnectReason::Lost { .. }),
            "{end:?}"
        );
    }
}

/// A waker that records what a connection says of its end at the moment when it is first run.
struct Witness {
    connection: Connection,
    seen: OnceLock<(bool, Option<DisconnectReason>)>,
}

impl Wake for Witness {
    fn wake(self: Arc<Self>) {
        let connected = self.connection.is_connected();
        self.seen.get_or_init(|| (connected, self.connection.disconnected().now_or_never()));
    }
}

// A task panics when it is woken for the end of the connection, or for the end of a request, and what is behind it goes on
// (CAN-09).
#[tokio::test]
async fn panicking_waker_keeps_no_other_waiting() {
    for of_request in [false, true] {
        let adapter = adapter();
        let Pair { active, passive } = connected(&adapter).await;
        let receive = || active.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
        let (mut first, second) = (receive(), receive());
        let mut watch = Box::pin(active.connection.disconnected());
        let waker = panicking_waker();
        let is_pending = if of_request {
            poll_with(&mut first, &waker).is_pending()
        } else {
            poll_with(&mut watch, &waker).is_pending()
        };
        assert!(is_pending);
        // On a device the call ends the connection, on soft the task of the connection.
        let _ = catch_unwind(AssertUnwindSafe(|| active.queue_pair.flush()));
        assert_eq!(failure(second).await, Status::CANCELED);
        assert_eq!(failure(first).await, Status::CANCELED);
        assert!(within(watch).await != DisconnectReason::Peer);
        let _ = within(active.connection.disconnect()).await;
        within(passive.connection.disconnected()).await;
    }
}

// X3: which task runs first is the scheduler's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_is_known_at_the_first_cancellation() {
    device::run_clock();
    let adapter = adapter();
    for _ in 0..often(100, 10) {
        let Pair { active, passive } = connected(&adapter).await;
        let mut waiting = Vec::new();
        for end in [&active, &passive] {
            let connection = end.connection.clone();
            let witness = Arc::new(Witness { connection, seen: OnceLock::new() });
            let mut receive = end.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
            assert!(poll_with(&mut receive, &Waker::from(witness.clone())).is_pending());
            waiting.push((witness, receive));
        }
        within(active.connection.disconnect()).await.expect("in order");
        for ((witness, receive), reason) in
            waiting.into_iter().zip([DisconnectReason::Local, DisconnectReason::Peer])
        {
            eventually("the receive is over", || witness.seen.get().is_some()).await;
            assert_eq!(witness.seen.get(), Some(&(false, Some(reason))));
            assert_eq!(failure(receive).await, Status::CANCELED);
        }
    }
}

// X3: the same for a program that polls, which need not wait for anything else.
#[tokio::test]
async fn disconnect_is_known_when_cancellation_is_polled() {
    let adapter = adapter();
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let passive = adapter.queue_pair(QueuePairConfig::default().receive_completions(&results));
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let passive = passive.expect("a queue pair");
    let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, connect, accept).await;
    let receive = pair.passive.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let mut found = Vec::new();
    let polled = async {
        results.notify(NotifyKind::Any).await.expect("it lives");
        assert_eq!(results.poll(1, &mut found), 1);
        let connection = &pair.passive.connection;
        (connection.is_connected(), connection.disconnected().now_or_never())
    };
    let (disconnected, seen) =
        within(async { tokio::join!(pair.active.connection.disconnect(), polled) }).await;
    disconnected.expect("in order");
    assert_eq!(seen, (false, Some(DisconnectReason::Peer)));
    assert_eq!(found[0].status, Status::CANCELED);
    assert_eq!(failure(receive).await, Status::CANCELED);
}

// X3
#[tokio::test]
async fn the_end_is_told_before_anything_is_flushed() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let log = Log::default();
    let ends =
        [(&active, ["active told", "active flushed"]), (&passive, ["passive told", "passive flushed"])];
    let (mut told, mut flushed) = (Vec::new(), Vec::new());
    for (end, [first, second]) in ends {
        let mut receive = end.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
        assert!(poll_with(&mut receive, &log.waker(second)).is_pending());
        flushed.push(receive);
        let mut disconnected = Box::pin(end.connection.disconnected());
        assert!(poll_with(&mut disconnected, &log.waker(first)).is_pending());
        told.push(disconnected);
    }
    within(active.connection.disconnect()).await.expect("in order");
    let lines = log.at_least(4).await;
    for (_, order) in ends {
        let seen: Vec<_> = lines.iter().filter(|line| order.contains(line)).collect();
        assert_eq!(seen, order.iter().collect::<Vec<_>>());
    }
}

// Both calls return success, although each may find that the peer has begun a disconnect (DIS-07).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_may_disconnect_at_once() {
    let adapter = adapter();
    for _ in 0..often(200, 10) {
        let Pair { active, passive } = connected(&adapter).await;
        let (a, p) = (active.connection.clone(), passive.connection.clone());
        let (a, p) = within(async {
            tokio::join!(
                tokio::spawn(async move { a.disconnect().await }),
                tokio::spawn(async move { p.disconnect().await }),
            )
        })
        .await;
        assert_eq!((a.expect("no panic"), p.expect("no panic")), (Ok(()), Ok(())));
    }
}

// Every request has completed when `disconnect` returns (DIS-01), also if the peer disconnects in this very moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_disconnects_return_after_their_requests() {
    let adapter = adapter();
    for _ in 0..often(500, 10) {
        let Pair { active, passive } = connected(&adapter).await;
        let ends = [active, passive].map(|end| {
            let buffer = || adapter.buffer(8).expect("a buffer");
            let receives: Vec<_> =
                (0..8).map(|_| end.queue_pair.receive(buffer()).expect("posted")).collect();
            tokio::spawn(async move {
                // The queue pair, too, which would end the connection if it were dropped.
                let end = end;
                let outcome = within(end.connection.disconnect()).await;
                (outcome, receives.into_iter().filter_map(FutureExt::now_or_never).count())
            })
        });
        for end in ends {
            assert_eq!(end.await.expect("no panic"), (Ok(()), 8));
        }
    }
}

// A flush of the queue pair ends the disconnect, which still returns after the requests (DIS-01).
#[tokio::test]
async fn flushed_disconnect_returns_after_its_requests() {
    let adapter = adapter();
    let Pair { active, passive: _passive } = connected(&adapter).await;
    let receive = active.queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted");
    let mut disconnecting = pin!(active.connection.disconnect());
    assert!(poll_once(&mut disconnecting).is_pending());
    active.queue_pair.flush();
    let _ = within(disconnecting).await;
    let (outcome, _) = receive.now_or_never().expect("completed");
    assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
}

// The peer's disconnect arrives after this end has begun its own, and the reason stays `Local` (DIS-08).
#[tokio::test]
async fn an_indication_that_comes_late_hurts_nobody() {
    let Pair { active, passive } = connected(&adapter()).await;
    let mut waiting = Box::pin(active.connection.disconnected());
    assert!(poll_once(&mut waiting).is_pending());
    let (a, p) =
        within(async { tokio::join!(active.connection.disconnect(), passive.connection.disconnect()) }).await;
    assert_eq!((a, p), (Ok(()), Ok(())));
    assert_eq!(within(waiting).await, DisconnectReason::Local, "its own end came first");
    active.connection.cancel();
    assert_eq!(
        end_of(&active.connection).await,
        DisconnectReason::Local,
        "and that does not change any more"
    );
}

// A second disconnect fails, and a connection that the peer has ended takes exactly one (DIS-09).
#[tokio::test]
async fn disconnect_needs_a_connection() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let mut first = pin!(active.connection.disconnect());
    assert!(poll_once(&mut first).is_pending());
    let second = active.connection.disconnect().now_or_never();
    assert_eq!(second, Some(Err(DisconnectError::Invalid)), "somebody else is at it");
    within(first).await.expect("in order");
    let third = active.connection.disconnect().await.expect_err("it is over");
    assert_eq!(third.status(), Status::CONNECTION_INVALID);
    // A connection that the peer has ended is still owed one disconnect, and only one.
    end_of(&passive.connection).await;
    assert_eq!(within(passive.connection.disconnect()).await, Ok(()));
    assert_eq!(within(passive.connection.disconnect()).await, Err(DisconnectError::Invalid));
    // Before a connection there is no handle that could be disconnected, and the rest says so.
    let never = adapter.connector();
    assert_eq!(never.peer_addr().expect_err("nobody").status(), Status::CONNECTION_INVALID);
    let refused = queue_pair(&adapter).send(adapter.buffer(1).expect("memory")).expect_err("not connected");
    assert_eq!(refused.status(), Status::CONNECTION_INVALID);
}

// A disconnect that was dropped goes on (DIS-13). The calls on its connection do not wait for it (DIS-09); the requests do.
#[tokio::test]
async fn a_dropped_disconnect_cannot_be_awaited_again() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let receive = active.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let mut disconnect = Box::pin(active.connection.disconnect());
    assert!(poll_once(&mut disconnect).is_pending());
    drop(disconnect);
    assert_eq!(active.connection.disconnect().now_or_never(), Some(Err(DisconnectError::Invalid)));
    assert_eq!(active.connection.disconnected().now_or_never(), Some(DisconnectReason::Local));
    assert_eq!(within(receive).await.0.expect_err("flushed").status(), Status::CANCELED);
    assert_eq!(end_of(&passive.connection).await, DisconnectReason::Peer);
}

// After a disconnect the queue pair takes no send and flushes receives, and nothing connects it or the connector again
// (DIS-10).
#[tokio::test]
async fn neither_queue_pair_nor_connector_is_used_twice() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (used, other) = (queue_pair(&adapter), queue_pair(&adapter));
    let connector = adapter.connector();
    let (connection, accepted) = within(async {
        tokio::join!(
            connector.connect_and_complete(&used, address, ConnectParams::default()),
            listener.accept_next(&other, AcceptParams::default()),
        )
    })
    .await;
    let (connection, _accepted) = (connection.expect("connected"), accepted.expect("accepted"));
    within(connection.disconnect()).await.expect("in order");

    let posted = used.send(adapter.buffer(1).expect("memory")).expect_err("over");
    assert_eq!(posted.kind, PostErrorKind::ConnectionInvalid);
    let (outcome, _) = within(used.receive(adapter.buffer(1).expect("memory")).expect("accepted")).await;
    assert_eq!(outcome.expect_err("flushed at once").status(), Status::CANCELED);

    let fresh = queue_pair(&adapter);
    let again = connector.connect(&fresh, address, ConnectParams::default()).await.expect_err("burnt");
    assert!(matches!(again, ConnectError::Active), "{again:?}");
    let bind = connector.bind((v4(), 0).into()).expect_err("burnt");
    assert!(matches!(bind, BindError::InvalidState(_)), "{bind:?}");
    let again = adapter.connector().connect(&used, address, ConnectParams::default()).await;
    assert!(matches!(again, Err(ConnectError::QueuePairActive)));

    let connector = adapter.connector();
    let mut connect = pin!(connector.connect(&fresh, address, ConnectParams::default()));
    let request = within(async {
        tokio::select! {
            _ = &mut connect => panic!("nobody has accepted"),
            request = listener.request() => request.expect("a request"),
        }
    })
    .await;
    let retained = request.accept(&used, AcceptParams::default()).await.expect_err("used");
    assert!(matches!(retained.error, AcceptError::Active));
    assert!(retained.handle.is_some(), "the request may be accepted otherwise");
}

// While connecting there is no `Connection`, so `Connector::cancel` ends the attempt and frees the queue pair (DIS-12).
#[tokio::test]
async fn to_disconnect_while_connecting_is_to_cancel() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let free = queue_pair(&adapter);
    let receive = free.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let connector = adapter.connector();
    let mut connect = pin!(connector.connect(&free, address, ConnectParams::default()));
    let request = within(async {
        tokio::select! {
            _ = &mut connect => panic!("nobody has accepted"),
            request = listener.request() => request.expect("a request"),
        }
    })
    .await;
    connector.cancel();
    let error = within(connect).await.expect_err("cancelled");
    assert!(matches!(error, ConnectError::Canceled) && !error.is_connector_usable());
    let theirs = queue_pair(&adapter);
    assert_withdrawn(&adapter, within(request.accept(&theirs, AcceptParams::default())).await).await;
    let burnt = connector.connect(&free, address, ConnectParams::default()).await;
    assert!(matches!(burnt, Err(ConnectError::Active)));

    // The queue pair is as it was: the same receive, and free for another connector.
    let other = queue_pair(&adapter);
    let again = adapter.connector();
    let (_active, _passive) = joined(
        again.connect_and_complete(&free, address, ConnectParams::default()),
        listener.accept_next(&other, AcceptParams::default()),
    )
    .await;
    speak_first((&adapter, &free), (&adapter, &other)).await;
    within(other.send(adapter.buffer_from(b"so be it").expect("memory")).expect("posted"))
        .await
        .0
        .expect("sent");
    let (outcome, buffer) = within(receive).await;
    assert_eq!((outcome.expect("received").bytes, &buffer[..]), (8, &b"so be it"[..]));
}

/// Whose last handle goes in [`the_last_release_disconnects`].
#[derive(Clone, Copy, Debug)]
enum Released {
    Connection,
    QueuePair,
    Both,
}

// Dropping the connection, the queue pair or both is an orderly disconnect, and the message before it arrives (DIS-13).
#[tokio::test]
async fn the_last_release_disconnects() {
    let adapter = adapter();
    for released in [Released::Connection, Released::QueuePair, Released::Both] {
        let Pair { active, passive } = connected(&adapter).await;
        let receives =
            [0, 1].map(|_| passive.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted"));
        let mut told = Box::pin(passive.connection.disconnected());
        assert!(poll_once(&mut told).is_pending());
        // A copy that goes is not the last one.
        drop((active.queue_pair.clone(), active.connection.clone()));
        let sent = active.queue_pair.send(adapter.buffer_from(b"last one").expect("memory")).expect("posted");
        within(sent).await.0.expect("sent");
        let End { queue_pair, connection } = active;
        match released {
            Released::Connection => {
                drop(connection);
                assert_eq!(within(told).await, DisconnectReason::Peer, "{released:?}");
                drop(queue_pair);
            }
            Released::QueuePair => {
                drop(queue_pair);
                assert_eq!(within(told).await, DisconnectReason::Peer, "{released:?}");
                assert_eq!(end_of(&connection).await, DisconnectReason::Local);
            }
            Released::Both => {
                drop((queue_pair, connection));
                assert_eq!(within(told).await, DisconnectReason::Peer, "{released:?}");
            }
        }
        let [received, flushed] = receives;
        let (outcome, buffer) = within(received).await;
        assert_eq!((outcome.expect("received").bytes, &buffer[..]), (8, &b"last one"[..]), "{released:?}");
        assert_eq!(within(flushed).await.0.expect_err("flushed").status(), Status::CANCELED);
    }
}

// The dropped `disconnect()` has begun the disconnect, which stays orderly when the handles are dropped (DIS-13).
#[tokio::test]
async fn dropped_disconnect_is_still_orderly() {
    let adapter = adapter();
    for round in 0..often(50, 10) {
        let Pair { active: End { queue_pair, connection }, passive } = connected(&adapter).await;
        let receive = passive.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
        let sent = queue_pair.send(adapter.buffer_from(b"last one").expect("memory")).expect("posted");
        within(sent).await.0.expect("sent");
        let mut disconnect = Box::pin(connection.disconnect());
        assert!(poll_once(&mut disconnect).is_pending());
        drop(disconnect);
        // In any order.
        if round % 2 == 0 {
            drop(connection);
            drop(queue_pair);
        } else {
            drop(queue_pair);
            drop(connection);
        }
        let (outcome, _) = within(receive).await;
        assert_eq!(outcome.expect("received").bytes, 8);
        assert_eq!(end_of(&passive.connection).await, DisconnectReason::Peer);
    }
}

/// Asserts that every call on a lost connection fails with this reason.
async fn assert_lost(adapter: &tokio_rdma::Adapter, end: &End, reason: Reason) {
    assert!(!end.connection.is_connected());
    let refused = end.queue_pair.send(adapter.buffer(1).expect("memory")).expect_err("lost");
    assert_eq!(refused.kind, PostErrorKind::ConnectionLost { reason });
    assert_eq!(refused.status(), Status::CONNECTION_INVALID);
    for _ in 0..2 {
        let error = within(end.connection.disconnect()).await.expect_err("lost");
        assert!(matches!(error, DisconnectError::Lost { reason: found, .. } if found == reason), "{error:?}");
        assert_eq!(error.status(), Status::CONNECTION_INVALID);
        assert!(error.to_string().contains(&reason.to_string()), "{error}");
    }
}

// ERR-08: the peer has not agreed to anything.
#[tokio::test]
async fn send_and_disconnect_report_a_lost_connection() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    assert!(active.connection.is_connected() && passive.connection.is_connected());
    active.queue_pair.flush();
    for end in [&active, &passive] {
        match end_of(&end.connection).await {
            DisconnectReason::Lost { reason, .. } => assert_lost(&adapter, end, reason).await,
            // A device's last word to its peer is a disconnect in any case.
            other => {
                assert_eq!(other, DisconnectReason::Peer);
                assert!(!Device::under_test().is_soft());
                assert_eq!(within(end.connection.disconnect()).await, Ok(()));
            }
        }
    }
}

// ERR-08: what completed early and did not arrive is known at the latest from the disconnect.
#[tokio::test]
async fn loss_of_an_unreceived_message_is_reported() {
    let adapter = adapter();
    let Pair { active, passive } = connected_impatiently(&adapter).await;
    let sent = active.queue_pair.send(adapter.buffer(8).expect("memory")).expect("posted");
    let (outcome, _) = within(sent).await;
    assert!(outcome.is_ok() || !adapter.info().early_completion, "{outcome:?}");
    let reason = match end_of(&active.connection).await {
        DisconnectReason::Lost { reason, .. } => reason,
        // siw reports a Terminate of the peer as an orderly disconnect.
        other => return assert_eq!((other, Device::under_test()), (DisconnectReason::Peer, Device::Siw)),
    };
    assert_lost(&adapter, &active, reason).await;
    if Device::under_test().is_soft() {
        assert!(reason.to_string().contains("no receive was posted"), "{reason}");
        let DisconnectReason::Lost { reason, .. } = end_of(&passive.connection).await else { panic!("lost") };
        assert_lost(&adapter, &passive, reason).await;
    }
}

// The error of `complete` contains the reason for which the peer's side ended, also in its text (ERR-08).
#[tokio::test]
async fn completing_what_the_peer_has_left_tells_how() {
    let adapter = adapter();
    if !three_phase(&adapter) {
        return eprintln!(
            "skipped: a connection that has been accepted is established, and its end is that of a connection"
        );
    }
    let open = common::cm::half_open(&adapter, v4()).await;
    common::cm::abandon(open.accepting).await;
    let error = match within(open.reply.complete()).await {
        Err(error) => error,
        // Its end is on the way.
        Ok(connection) => {
            assert!(!detects_withdrawal(&adapter));
            within(connection.disconnected()).await;
            return eprintln!("skipped: the device did not notice before the call that the peer had left");
        }
    };
    let told = matches!(&error, ConnectError::Aborted { reason, .. } if error.to_string().contains(&reason.to_string()));
    assert!(told, "{error:?}");
}

// An orderly end is a SUCCESS at both ends, and the reason names the side that began it (DIS-15).
#[tokio::test]
async fn the_reason_tells_who_ended_it_in_order() {
    let Pair { active, passive } = connected(&adapter()).await;
    within(passive.connection.disconnect()).await.expect("in order");
    let reason = within(active.connection.disconnected()).await;
    assert_eq!((&reason, reason.status()), (&DisconnectReason::Peer, Status::SUCCESS));
    let reason = within(passive.connection.disconnected()).await;
    assert_eq!((&reason, reason.status()), (&DisconnectReason::Local, Status::SUCCESS));
}

// A flush is no orderly disconnect: this end reports `Lost` with CANCELED (DIS-15).
#[tokio::test]
async fn flush_of_connected_queue_pair_is_local_loss() {
    let Pair { active, passive } = connected(&adapter()).await;
    active.queue_pair.flush();
    match within(active.connection.disconnected()).await {
        DisconnectReason::Lost { status, reason: Reason::Local(_) } => assert_eq!(status, Status::CANCELED),
        other => panic!("{other:?}"),
    }
    assert_ne!(within(passive.connection.disconnected()).await, DisconnectReason::Local);
}
