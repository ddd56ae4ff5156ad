//! Cancelling, and completions and their order.
//!
//! Runs on: soft, sim, rxe, siw

mod buffers;
mod sink;
mod soft;

use common::deviation::*;
use common::life::*;
use common::*;

use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use futures::FutureExt;
use futures::future::{join_all, select_all};
use tokio_rdma::error::{AcceptError, ConnectError, PostErrorKind};
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason, Listener, QueuePairConfig, Request, Status};

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Request, AcceptError>> + Send + 'a>>;

/// Waits for a request with a waker that writes `what` to the log.
fn wait_for_request<'a, T>(listener: &'a Listener, log: &Log<T>, what: T) -> Waiting<'a>
where
    T: Copy + Send + Sync + std::fmt::Debug + 'static,
{
    let mut request: Waiting<'a> = Box::pin(listener.request());
    assert!(poll_with(&mut request, &log.waker(what)).is_pending());
    request
}

// The wakers run in the order of the calls, and the listener still accepts afterwards (CAN-01, CAN-02).
#[tokio::test]
async fn listener_cancel_ends_waits_in_order() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let log = Log::default();
    let pending: Vec<_> = (0..100).map(|i| wait_for_request(&listener, &log, i)).collect();
    listener.cancel();
    assert_eq!(log.lines(), (0..100).collect::<Vec<_>>(), "in the order in which they were asked");
    for mut request in pending {
        let Poll::Ready(Err(error)) = poll_once(&mut request) else { panic!("cancelled") };
        assert!(matches!(error, AcceptError::Canceled) && error.status() == Status::CANCELED);
    }
    let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
    let mut connect = pin!(connector.connect(&queue_pair, address, ConnectParams::default()));
    let request = within(async {
        tokio::select! {
            _ = &mut connect => panic!("nobody has accepted"),
            request = listener.request() => request,
        }
    })
    .await;
    assert!(request.is_ok(), "it goes on");
}

// The reply belongs to the cancelled connector: the peer is refused, and `complete` fails (CAN-01, CAN-06).
#[tokio::test]
async fn cancelling_a_connector_cancels_its_uncompleted_reply() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (mine, theirs) = (queue_pair(&adapter), queue_pair(&adapter));
    let connector = adapter.connector();
    let mut accept = Offer::new(listener.accept_next(&theirs, AcceptParams::default()));
    let reply = accept.answered(&adapter, connector.connect(&mine, address, ConnectParams::default())).await;
    connector.cancel();
    assert_refused(&adapter, accept.outcome()).await;
    // A26: what was cancelled is no longer waiting to be completed.
    let error = within(reply.complete()).await.expect_err("cancelled");
    assert_eq!(error.status(), Status::CONNECTION_INVALID);
}

// `cancel` of either handle ends every wait with CANCELED, and messages still arrive (CAN-01, CAN-05).
#[tokio::test]
async fn cancel_ends_every_wait_but_not_the_connection() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let connector = adapter.connector();
    let (connection, peer) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
    })
    .await;
    let (connection, peer) = (connection.expect("connected"), peer.expect("accepted"));
    for by_connector in [false, true] {
        let mut pending: Vec<_> = (0..50).map(|_| Box::pin(connection.disconnected())).collect();
        assert!(pending.iter_mut().all(|wait| poll_once(wait).is_pending()));
        let receive = passive.receive(adapter.buffer(5).expect("memory")).expect("posted");
        if by_connector {
            connector.cancel();
        } else {
            connection.cancel();
        }
        for wait in &mut pending {
            let Poll::Ready(reason) = poll_once(wait) else { panic!("cancelled") };
            assert_eq!((&reason, reason.status()), (&DisconnectReason::Canceled, Status::CANCELED));
        }
        let send = active.send(adapter.buffer_from(b"alive").expect("memory")).expect("still connected");
        assert_eq!(within(send).await.0.expect("sent").bytes, 5);
        assert_eq!(within(receive).await.0.expect("received").bytes, 5);
        assert!(poll_once(&mut Box::pin(connection.disconnected())).is_pending(), "and may be watched again");
    }
    within(connection.disconnect()).await.expect("in order");
    assert_eq!(within(peer.disconnected()).await, DisconnectReason::Peer);
}

// Waits on three listeners end in the order of the `cancel` calls, as in ndcq (CAN-02).
#[tokio::test]
async fn cancelled_waits_complete_in_order() {
    let adapter = adapter();
    let listeners: Vec<_> = (0..3).map(|_| listening(&adapter).0).collect();
    for round in 0..often(1000, 30) {
        let log = Log::default();
        let _pending: Vec<_> =
            listeners.iter().enumerate().map(|(i, listener)| wait_for_request(listener, &log, i)).collect();
        let order = [round % 3, (round + 1 + round / 3 % 2) % 3, (round + 2 - round / 3 % 2) % 3];
        for i in order {
            listeners[i].cancel();
        }
        assert_eq!(log.lines(), order, "round {round}");
    }
}

// Receives complete in the order of their posts, and so do sends that were pending (CAN-02).
#[tokio::test]
async fn sends_and_receives_complete_in_posting_order() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    for round in 0..often(1000, 20) {
        let (log, sent) = (Log::default(), Log::default());
        let buffer = || adapter.buffer(16).expect("memory");
        let receives: Vec<_> = (0..8)
            .map(|i| {
                let mut receive = passive.queue_pair.receive(buffer()).expect("posted");
                assert!(poll_with(&mut receive, &log.waker(i)).is_pending());
                receive
            })
            .collect();
        let sends: Vec<_> = (0..8)
            .map(|i| {
                let mut send = active.queue_pair.send(buffer()).expect("posted");
                let early = poll_with(&mut send, &sent.waker(i));
                (early.is_pending(), send)
            })
            .collect();
        assert_eq!(log.at_least(8).await, (0..8).collect::<Vec<_>>(), "round {round}");
        assert!(sent.lines().is_sorted(), "round {round}");
        for receive in receives {
            within(receive).await.0.expect("received");
        }
        for (pending, send) in sends {
            if pending {
                within(send).await.0.expect("sent");
            }
        }
    }
}

// `flush` completes the receives in the order of their posts before it returns (CAN-02).
#[tokio::test]
async fn flushed_receives_complete_in_posting_order() {
    let adapter = adapter();
    for round in 0..often(1000, 20) {
        let queue_pair = queue_pair(&adapter);
        let log = Log::default();
        let _receives: Vec<_> = (0..20)
            .map(|i| {
                let mut receive = queue_pair.receive(adapter.buffer(1).expect("memory")).expect("posted");
                assert!(poll_with(&mut receive, &log.waker(i)).is_pending());
                receive
            })
            .collect();
        queue_pair.flush();
        assert_eq!(log.lines(), (0..20).collect::<Vec<_>>(), "round {round}");
    }
}

// A post that fails inline wakes no other request and takes no place in its queue (CAN-07).
#[tokio::test]
async fn a_ready_call_wakes_nobody() {
    let adapter = adapter();
    let config = QueuePairConfig::default().receive_depth(4).send_depth(4);
    let full = adapter.queue_pair(config).expect("a queue pair");
    let log = Log::default();
    let mut pending: Vec<_> = (0..4)
        .map(|i| {
            let mut receive = full.receive(adapter.buffer(1).expect("memory")).expect("posted");
            assert!(poll_with(&mut receive, &log.waker(i)).is_pending());
            receive
        })
        .collect();
    for _ in 0..1000 {
        let error = full.receive(adapter.buffer(1).expect("memory")).expect_err("full");
        assert!(matches!(error.kind, PostErrorKind::QueueFull { .. }), "{error:?}");
        let error = full.send(adapter.buffer(1).expect("memory")).expect_err("not connected");
        assert_eq!(error.kind, PostErrorKind::ConnectionInvalid);
    }
    assert_eq!(log.lines(), Vec::<i32>::new());
    assert!(pending.iter_mut().all(|receive| poll_once(receive).is_pending()));
    // Nothing of it took a place: the queue still holds as many as before, and they are its own.
    full.flush();
    for receive in pending {
        let (outcome, _) = receive.now_or_never().expect("flushed");
        assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
    }
    let again: Vec<_> =
        (0..4).map(|_| full.receive(adapter.buffer(1).expect("memory")).expect("room")).collect();
    assert!(full.receive(adapter.buffer(1).expect("memory")).is_err());
    full.flush();
    assert!(again.into_iter().all(|receive| receive.now_or_never().is_some()));
}

// After the end of the connection the first poll returns the result, so the waker is never called (CAN-07).
#[tokio::test]
async fn calls_after_disconnect_complete_without_a_wake() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let log = Log::default();
    within(active.connection.disconnect()).await.expect("in order");
    // The peer has gone: the wait for its end and everything that is posted are answered inline.
    within(passive.connection.disconnected()).await;
    let waker = log.waker("woken");
    let mut told = Box::pin(passive.connection.disconnected());
    assert!(poll_with(&mut told, &waker).is_ready());
    let mut receive = active.queue_pair.receive(adapter.buffer(1).expect("memory")).expect("taken");
    let Poll::Ready((outcome, _)) = poll_with(&mut receive, &waker) else { panic!("inline") };
    assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
    drop((told, receive));
    assert_eq!(log.lines(), [""; 0]);
}

// Requests in the backlog do not delay the drop of the listener, and their peers are refused (CAN-12).
#[tokio::test]
async fn dropping_a_listener_refuses_its_backlog() {
    const BACKLOG: usize = 20;
    let adapter = adapter();
    let listener = adapter.listener();
    listener.bind((v4(), 0).into()).expect("bound");
    listener.listen(BACKLOG).expect("listening");
    let address = listener.local_addr().expect("it listens");
    let peers: Vec<_> = (0..=BACKLOG).map(|_| (queue_pair(&adapter), adapter.connector())).collect();
    let begun = Instant::now();
    let connects = peers.iter().map(|(queue_pair, connector)| {
        Box::pin(connector.connect(queue_pair, address, ConnectParams::default()))
    });
    let expect_refusal = |outcome: Result<_, ConnectError>| {
        let error = outcome.map(drop).expect_err("refused");
        let refused = error.status() == Status::CONNECTION_REFUSED;
        assert!(refused || is_overdue(&adapter, begun, &error), "{error:?}");
    };
    // One is too many; now all the others are in the queue.
    let (refused, _, queued) = within(select_all(connects)).await;
    expect_refusal(refused);
    drop(listener);
    within(join_all(queued)).await.into_iter().for_each(expect_refusal);
}

// Messages that were not collected do not delay the drop, and the peer sees an orderly end (CAN-12).
#[tokio::test]
async fn a_drop_with_unread_data_is_immediate() {
    let adapter = adapter();
    for wait_for_data in [false, true] {
        let Pair { active, passive } = connected(&adapter).await;
        let mut receives: Vec<_> = (0..10)
            .map(|_| passive.queue_pair.receive(adapter.buffer(1 << 16).expect("memory")).expect("posted"))
            .collect();
        let sends: Vec<_> = (0..10)
            .map(|_| active.queue_pair.send(adapter.buffer(1 << 16).expect("memory")).expect("posted"))
            .collect();
        if wait_for_data {
            // Completed, and never looked at.
            let last = receives.pop().expect("ten");
            within(last).await.0.expect("received");
        }
        drop(passive);
        drop(receives);
        let reason = within(active.connection.disconnected()).await;
        assert_eq!(reason, DisconnectReason::Peer);
        let outcomes = within(join_all(sends)).await;
        assert!(outcomes.iter().all(|(outcome, _)| match outcome {
            Ok(completion) => completion.bytes == 1 << 16,
            Err(error) => error.status() == Status::CANCELED,
        }));
    }
}

// CAN-14: the idiom of the documentation of `receive`. What is dropped instead takes its message along.
#[tokio::test]
async fn receive_awaited_by_reference_keeps_its_message() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let receive = || passive.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let send = async |message: &[u8]| {
        let sent = active.queue_pair.send(adapter.buffer_from(message).expect("memory")).expect("posted");
        within(sent).await.0.expect("sent");
    };
    let mut waiting = receive();
    for _ in 0..3 {
        let waited = tokio::time::timeout(std::time::Duration::from_millis(1), &mut waiting).await;
        assert!(waited.is_err(), "nothing has been sent");
    }
    send(b"kept").await;
    let (outcome, buffer) = within(&mut waiting).await;
    assert_eq!(&buffer[..outcome.expect("received").bytes], b"kept");

    let (dropped, next) = (receive(), receive());
    drop(dropped);
    send(b"lost").await;
    send(b"next").await;
    let (outcome, buffer) = within(next).await;
    assert_eq!(&buffer[..outcome.expect("received").bytes], b"next");
}
