//! Receive queues that several queue pairs share.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::collections::VecDeque;

use common::device::variants;
use common::raw::{bytes, failure, room, success};
use common::*;
use futures::FutureExt;
use futures::future::join_all;
use tokio_rdma::error::{OpenError, PostErrorKind, ResizeError};
use tokio_rdma::types::{OpKind, QueueKind};
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, CompletionQueueConfig, ConnectParams, NotifyKind, Op, QueuePairConfig,
    SharedReceiveConfig, SharedReceiveQueue, Status, WorkOptions,
};

/// Makes a shared receive queue. Without such queues, prints that the test is skipped.
fn shared(adapter: &Adapter, config: SharedReceiveConfig) -> Option<SharedReceiveQueue> {
    match adapter.shared_receive_queue(config) {
        Ok(queue) => Some(queue),
        Err(error) => {
            assert!(
                adapter.info().max_shared_depth == 0 && matches!(error, OpenError::Unsupported(_)),
                "{error}"
            );
            eprintln!("skipped: the adapter has no shared receive queues, and has said so");
            None
        }
    }
}

/// Connects a pair whose passive end takes its receives from `queue`.
async fn served_by(adapter: &Adapter, queue: &SharedReceiveQueue) -> Pair {
    let config = QueuePairConfig::default().shared_receives(queue);
    let passive = adapter.queue_pair(config).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, queue_pair(adapter), passive, params.0, params.1).await
}

fn post(adapter: &Adapter, queue: &SharedReceiveQueue, count: usize) -> Vec<Op<Buffer>> {
    (0..count).map(|_| queue.receive(room(adapter, 16)).expect("posted")).collect()
}

async fn send(adapter: &Adapter, pair: &Pair, message: &[u8]) {
    success(pair.active.queue_pair.send(bytes(adapter, message)).expect("posted")).await;
}

/// Returns the messages of these receives.
async fn messages(receives: Vec<Op<Buffer>>) -> Vec<Vec<u8>> {
    let received = within(join_all(receives)).await;
    let message = |(outcome, buffer): (Result<tokio_rdma::Completion, _>, Buffer)| {
        buffer[..outcome.expect("received").bytes].to_vec()
    };
    received.into_iter().map(message).collect()
}

#[tokio::test]
async fn every_queue_pair_takes_from_the_same_receives() {
    for (adapter, variant) in variants() {
        let Some(queue) = shared(&adapter, SharedReceiveConfig::default()) else { return };
        let pairs = join_all((0..3).map(|_| served_by(&adapter, &queue))).await;
        assert!(queue.is_empty(), "{variant}");
        let receives = post(&adapter, &queue, 12);
        assert_eq!(queue.len(), 12, "{variant}");
        for round in 0..4_u8 {
            for (number, pair) in (0..).zip(&pairs) {
                send(&adapter, pair, &[number, round]).await;
            }
        }
        // SRQ-01: all of them, and those of one sender in order.
        let found = messages(receives).await;
        for number in 0..3 {
            let of_one: Vec<_> = found.iter().filter(|message| message[0] == number).collect();
            assert_eq!(
                of_one,
                [[number, 0], [number, 1], [number, 2], [number, 3]].iter().collect::<Vec<_>>()
            );
        }
        assert!(queue.is_empty(), "{variant}");
        // The other direction has receives of its own.
        let receive = pairs[0].active.queue_pair.receive(room(&adapter, 4)).expect("posted");
        success(pairs[0].passive.queue_pair.send(bytes(&adapter, b"back")).expect("posted")).await;
        assert_eq!(success(receive).await.0, 4, "{variant}");
        let error =
            pairs[0].passive.queue_pair.receive(bytes(&adapter, b"kept")).expect_err("all are shared");
        assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{variant}: {error}");
        assert_eq!(&error.buffer[..], b"kept", "{variant}");
    }
}

#[tokio::test]
async fn limits_are_checked_and_full_queue_returns_buffer() {
    let adapter = adapter();
    let Some(_) = shared(&adapter, SharedReceiveConfig::default()) else { return };
    let (most, entries) = (adapter.info().max_shared_depth, adapter.info().max_entries);
    for (config, number) in [
        (SharedReceiveConfig::default().depth(0), 3),
        (SharedReceiveConfig::default().depth(most + 1), 3),
        (SharedReceiveConfig::default().entries(0), 4),
        (SharedReceiveConfig::default().entries(entries + 1), 4),
        (SharedReceiveConfig::default().depth(4).threshold(5), 5),
    ] {
        // The numbers are those of the parameters of CreateSharedReceiveQueue (SRQ-01).
        match adapter.shared_receive_queue(config).map(drop) {
            Err(OpenError::InvalidParameter { argument, .. }) => assert_eq!(argument, number),
            other => panic!("{other:?}"),
        }
    }
    let queue = shared(&adapter, SharedReceiveConfig::default().depth(2).entries(2)).expect("there are some");
    let parts = || [room(&adapter, 1), room(&adapter, 1), room(&adapter, 1)];
    let error = queue.receive(parts()).expect_err("too many entries").kind;
    assert_eq!(error, PostErrorKind::TooManyEntries { kind: OpKind::Receive, entries: 3, maximum: 2 });
    let receives = post(&adapter, &queue, 2);
    let error = queue.receive(bytes(&adapter, b"kept")).expect_err("full");
    assert_eq!((error.status(), &error.buffer[..]), (Status::NO_MORE_ENTRIES, &b"kept"[..]));
    let foreign = common::adapter();
    let error = queue.receive(room(&foreign, 1)).expect_err("of another adapter");
    assert_eq!(error.status(), Status::ACCESS_VIOLATION);
    // Receives that are left when the last handle goes are not left hanging.
    drop(queue);
    for receive in receives {
        assert_eq!(failure(receive).await, Status::CANCELED);
    }
}

#[tokio::test]
async fn a_message_waits_until_there_is_a_receive() {
    for (adapter, variant) in variants() {
        let Some(queue) = shared(&adapter, SharedReceiveConfig::default()) else { return };
        let (first, second) = (served_by(&adapter, &queue).await, served_by(&adapter, &queue).await);
        let mut sends = Vec::new();
        for number in 0..8_u8 {
            for (who, pair) in [(1, &first), (2, &second)] {
                sends.push(pair.active.queue_pair.send(bytes(&adapter, &[who, number])).expect("posted"));
            }
        }
        if !adapter.info().waits_for_shared_receives {
            // As it announces: the connection ends, and the queue is there for others.
            for pair in [&first, &second] {
                within(pair.passive.connection.disconnected()).await;
                within(pair.active.connection.disconnected()).await;
            }
            within(join_all(sends)).await;
            let third = served_by(&adapter, &queue).await;
            let receives = post(&adapter, &queue, 1);
            send(&adapter, &third, b"well").await;
            assert_eq!(messages(receives).await, [b"well"], "{variant}");
            return;
        }
        // A violation by a message without a receive would show before this connection has come and gone.
        let bystander = connected(&adapter).await;
        within(bystander.active.connection.disconnect()).await.expect("disconnected");
        within(bystander.passive.connection.disconnected()).await;
        for pair in [&first, &second] {
            // A message without a receive waits, and its connection continues (SRQ-02).
            let broken = pair.passive.connection.disconnected().now_or_never();
            assert!(broken.is_none(), "{variant}: {broken:?}");
        }
        let mut found = Vec::new();
        for count in [1, 2, 13] {
            found.extend(messages(post(&adapter, &queue, count)).await);
        }
        for who in [1, 2] {
            let numbers: Vec<_> = found.iter().filter(|message| message[0] == who).map(|m| m[1]).collect();
            assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7], "{variant}");
        }
        join_all(sends.into_iter().map(success)).await;
        // While a message waits, its connection can be ended by either side.
        let waits = first.active.queue_pair.send(bytes(&adapter, b"lost")).expect("posted");
        within(first.passive.connection.disconnect()).await.expect("disconnected");
        within(first.active.connection.disconnected()).await;
        let _ = within(waits).await;
        let receives = post(&adapter, &queue, 1);
        send(&adapter, &second, b"well").await;
        assert_eq!(messages(receives).await, [b"well"], "{variant}");
    }
}

#[tokio::test]
async fn untaken_receives_outlive_a_queue_pair() {
    for (adapter, variant) in variants() {
        let Some(queue) = shared(&adapter, SharedReceiveConfig::default()) else { return };
        let (first, second) = (served_by(&adapter, &queue).await, served_by(&adapter, &queue).await);
        let mut receives = post(&adapter, &queue, 3);
        send(&adapter, &first, b"one").await;
        let rest = receives.split_off(1);
        assert_eq!(messages(receives).await, [b"one"], "{variant}");
        first.passive.queue_pair.flush();
        within(first.active.connection.disconnected()).await;
        drop(first);
        // SRQ-01, HW-03: what was not taken is for the others.
        assert_eq!(queue.len(), 2, "{variant}");
        send(&adapter, &second, b"two").await;
        send(&adapter, &second, b"three").await;
        assert_eq!(messages(rest).await, [&b"two"[..], b"three"], "{variant}");
    }
}

#[tokio::test]
async fn few_receives_are_told() {
    for (adapter, variant) in variants() {
        let config = SharedReceiveConfig::default().depth(8).threshold(4);
        let Some(queue) = shared(&adapter, config) else { return };
        let pair = served_by(&adapter, &queue).await;
        // SRQ-03: there are few.
        within(queue.below_threshold()).await.expect("told");
        let receives = post(&adapter, &queue, 6);
        let (mut low, forgotten) = (queue.below_threshold(), queue.below_threshold());
        drop(forgotten);
        let mut taken = receives.into_iter();
        for number in 0..3 {
            assert!((&mut low).now_or_never().is_none(), "{variant}: {number}");
            send(&adapter, &pair, &[number]).await;
            success(taken.next().expect("posted")).await;
        }
        within(low).await.expect("told");
        assert_eq!(queue.len(), 3, "{variant}");
        drop(taken);
    }
}

#[tokio::test]
async fn depth_and_threshold_can_be_changed() {
    let adapter = adapter();
    let Some(queue) = shared(&adapter, SharedReceiveConfig::default().depth(4)) else { return };
    let _receives = post(&adapter, &queue, 4);
    // More receives fit after `modify`, and a depth below the posted receives is refused (SRQ-04).
    let full = |depth| PostErrorKind::QueueFull { queue: QueueKind::SharedReceive, depth };
    assert_eq!(queue.receive(room(&adapter, 1)).expect_err("full").kind, full(4));
    let grows = match queue.modify(Some(6), None) {
        Ok(()) => {
            assert_eq!(queue.depth(), 6);
            let _more = post(&adapter, &queue, 2);
            assert_eq!(queue.receive(room(&adapter, 1)).expect_err("full").kind, full(6));
            assert!(matches!(queue.modify(Some(5), None), Err(ResizeError::TooSmall { asked: 5, held: 6 })));
            true
        }
        // A device that cannot says so.
        Err(error) => {
            let soft = device::Device::under_test().is_soft();
            assert!(!soft && matches!(error, ResizeError::Os { .. }), "{error}");
            false
        }
    };
    let (held, depth) = (queue.len(), queue.depth());
    assert_eq!(held, depth);
    for (depth, threshold) in [(Some(0), None), (Some(usize::MAX), None), (None, Some(depth + 1))] {
        assert!(matches!(queue.modify(depth, threshold), Err(ResizeError::OutOfRange { .. })));
    }
    assert!(matches!(queue.modify(Some(held - 1), Some(0)), Err(ResizeError::TooSmall { .. })));
    assert_eq!((queue.len(), queue.depth()), (held, depth), "nothing has changed");
    queue.modify(None, Some(held)).expect("changed");
    let mut low = queue.below_threshold();
    assert!((&mut low).now_or_never().is_none(), "as many as that are not few");
    if grows {
        queue.modify(Some(held + 1), Some(held + 1)).expect("changed");
        within(low).await.expect("told");
    }
}

#[tokio::test]
async fn shared_receives_complete_in_the_takers_queue() {
    for (adapter, variant) in variants() {
        let Some(queue) = shared(&adapter, SharedReceiveConfig::default().threshold(2)) else { return };
        let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
        let config =
            QueuePairConfig::default().shared_receives(&queue).receive_completions(&results).context(5);
        let passive = adapter.queue_pair(config).expect("a queue pair");
        let params = (ConnectParams::default(), AcceptParams::default());
        let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
        let receive = queue.receive_with(room(&adapter, 8), 33).expect("posted");
        let options = WorkOptions::default().solicited();
        success(pair.active.queue_pair.send_with(bytes(&adapter, b"hello"), options).expect("posted")).await;
        within(results.notify(NotifyKind::Solicited)).await.expect("told");
        let mut found = Vec::new();
        // The result appears in the completion queue of the queue pair that received, with the context of the receive
        // (SRQ-01, CQ-09).
        assert_eq!(results.poll(4, &mut found), 1, "{variant}");
        assert_eq!((found[0].bytes, found[0].context, found[0].queue_pair_context), (5, 33, 5), "{variant}");
        assert_eq!(&receive.now_or_never().expect("polled").1[..5], b"hello", "{variant}");
        assert!(queue.is_empty(), "{variant}");
    }
}

// QP-01, QP-26: CreateQueuePairWithSrq has neither depth nor entries of receives, and numbers the rest by itself.
#[tokio::test]
async fn arguments_with_shared_receives_are_checked() {
    let (adapter, stranger) = (adapter(), common::adapter());
    let info = adapter.info();
    let (depth, entries, inline) = (info.max_queue_depth, info.max_entries, info.max_inline);
    let config = SharedReceiveConfig::default();
    let (Some(own), Some(foreign)) = (shared(&adapter, config), shared(&stranger, config)) else { return };
    let results = stranger.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let sharing = || QueuePairConfig::default().shared_receives(&own);
    for (wrong, number) in [
        (sharing().receive_completions(&results), 2),
        (sharing().send_completions(&results), 3),
        (QueuePairConfig::default().shared_receives(&foreign), 4),
        (sharing().send_depth(0), 6),
        (sharing().send_depth(depth + 1), 6),
        (sharing().send_entries(0), 7),
        (sharing().send_entries(entries + 1), 7),
        (sharing().inline(inline + 1), 8),
    ] {
        let error = adapter.queue_pair(wrong).expect_err("out of range");
        assert!(
            matches!(error, OpenError::InvalidParameter { argument, .. } if argument == number),
            "{number}: {error:?}"
        );
        assert_eq!(error.status().code(), 0xC000_00EE + u32::from(number), "INVALID_PARAMETER_{number}");
    }
    // Settings of the shared queue are not looked at.
    let others = sharing().receive_depth(0).receive_entries(entries + 1);
    adapter.queue_pair(others).expect("a queue pair");
}

// SEC-05: a peer that floods leaves an honest one its share, though receives are always too few. Where the device repeats what
// finds no receive, both repeat it without end; see `pressure` of the program `wire` for the bound on soft.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_leaves_others_their_share() {
    let rounds = often(100, 20);
    let adapter = adapter();
    let Some(queue) = shared(&adapter, SharedReceiveConfig::default().depth(4)) else { return };
    // A device that waits for nothing ends the connection of a message without a receive.
    if !adapter.info().waits_for_shared_receives {
        return eprintln!("skipped: a device of iWARP does not wait for shared receives");
    }
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let config = QueuePairConfig::default().shared_receives(&queue);
        let passive = adapter.queue_pair(config).expect("a queue pair");
        let (mut connect, mut accept) = (ConnectParams::default(), AcceptParams::default());
        if !Device::under_test().is_soft() {
            (connect, accept) = (connect.rnr_retry_count(7), accept.rnr_retry_count(7));
        }
        pairs.push(connected_queue_pairs(&adapter, queue_pair(&adapter), passive, connect, accept).await);
    }
    let (honest, flooder) = (pairs.remove(0), pairs.remove(0));
    let flood = tokio::spawn({
        let adapter = adapter.clone();
        async move {
            loop {
                let send = || flooder.active.queue_pair.send(bytes(&adapter, b"flood"));
                let sends: Vec<_> = (0..32).map(|_| send().expect("posted")).collect();
                join_all(sends).await;
            }
        }
    });
    let serve = tokio::spawn({
        let adapter = adapter.clone();
        async move {
            let mut receives = VecDeque::from(post(&adapter, &queue, 4));
            let (mut served, mut between, mut most) = (0, 0, 0);
            while served < rounds {
                let (outcome, buffer) = receives.pop_front().expect("four").await;
                if &buffer[..outcome.expect("received").bytes] == b"honest" {
                    (served, between) = (served + 1, 0);
                } else {
                    between += 1;
                    most = most.max(between);
                }
                receives.push_back(queue.receive(buffer).expect("posted"));
            }
            (most, queue, receives)
        }
    });
    for _ in 0..rounds {
        send(&adapter, &honest, b"honest").await;
    }
    let (most, ..) = within(serve).await.expect("no panic");
    flood.abort();
    assert!(most < 4096, "{most} messages of the flooder between two of the honest peer");
}
