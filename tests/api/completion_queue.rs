//! Completion queues that the application polls.
//!
//! Runs on: soft, sim, rxe, siw

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use common::life::{Log, eventually, poll_once, poll_with};
use common::raw::{bytes, room, success};
use common::results::collect;
use common::*;
use futures::FutureExt;
use futures::future::{join_all, select_all};
use tokio::sync::Semaphore;
use tokio_rdma::error::{NotifyError, OpenError, ResizeError};
use tokio_rdma::types::{OpKind, RemoteKey};
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, CompletionQueue, CompletionQueueConfig, ConnectParams, NotifyKind,
    Op, ProviderKind, QueuePair, QueuePairConfig, Status, WorkCompletion, WorkOptions,
};

fn queue(adapter: &Adapter, depth: usize) -> CompletionQueue {
    adapter.completion_queue(CompletionQueueConfig::default().depth(depth)).expect("a completion queue")
}

/// Connects a pair whose passive end reports its receives to `queue`.
async fn received_into(adapter: &Adapter, queue: &CompletionQueue, context: u64) -> Pair {
    let config = QueuePairConfig::default().receive_completions(queue).context(context);
    let passive = adapter.queue_pair(config).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, queue_pair(adapter), passive, params.0, params.1).await
}

fn post(adapter: &Adapter, queue_pair: &QueuePair, count: u64) -> Vec<Op<Buffer>> {
    let post = |context| queue_pair.receive_with(room(adapter, 16), context).expect("posted");
    (0..count).map(post).collect()
}

async fn send(adapter: &Adapter, queue_pair: &QueuePair, message: &[u8], options: WorkOptions) {
    success(queue_pair.send_with(bytes(adapter, message), options).expect("posted")).await;
}

fn polled(queue: &CompletionQueue, most: usize) -> Vec<WorkCompletion> {
    let mut results = Vec::new();
    let count = queue.poll(most, &mut results);
    assert_eq!(count, results.len());
    results
}

#[tokio::test]
async fn results_are_polled_in_order_before_futures_resolve() {
    let adapter = adapter();
    let results = queue(&adapter, 64);
    let pair = received_into(&adapter, &results, 77).await;
    let receives = post(&adapter, &pair.passive.queue_pair, 10);
    for length in 0..10 {
        send(&adapter, &pair.active.queue_pair, &[7; 16][..length], WorkOptions::default()).await;
    }
    within(results.wait(10)).await.expect("all have come");
    assert_eq!(results.len(), 10);
    let mut receives = receives.into_iter();
    let mut expected = 0;
    // A poll takes up to the number asked for, and the rest stays in order (CQ-01).
    for (most, count) in [(4, 4), (1, 1), (100, 5), (100, 0)] {
        let taken = polled(&results, most);
        assert_eq!(taken.len(), count);
        for result in taken {
            // Each result names its kind, its queue pair, its request and its length (CQ-09).
            let WorkCompletion {
                status,
                kind,
                bytes,
                queue_pair_context: queue_pair,
                context,
                immediate,
                invalidated,
                ..
            } = result;
            assert_eq!((status, kind, queue_pair), (Status::SUCCESS, OpKind::Receive, 77));
            assert_eq!((bytes as u64, context), (expected, expected), "in the order of the posts");
            assert_eq!((immediate, invalidated), (None, None));
            expected += 1;
            let receive = receives.next().expect("as many as were posted");
            let (outcome, _buffer) = receive.now_or_never().expect("polled, so it is ready");
            assert_eq!(outcome.expect("received").bytes, bytes);
        }
        if let Some(next) = receives.as_mut_slice().first_mut() {
            assert!(next.now_or_never().is_none(), "its result has not been polled");
        }
    }
    assert_eq!(expected, 10);
    assert!(results.is_empty());
}

// CQ-10: neither one too early nor one too late, whether the results come before the wait or after it.
#[tokio::test]
async fn wait_for_many_ends_with_the_last_result() {
    const COUNT: usize = 10;
    let adapter = adapter();
    let results = queue(&adapter, COUNT + 1);
    let pair = received_into(&adapter, &results, 0).await;
    let _receives = post(&adapter, &pair.passive.queue_pair, 2 * COUNT as u64);
    for early in [0, 1, COUNT - 1, COUNT] {
        for _ in 0..early {
            send(&adapter, &pair.active.queue_pair, b"1", WorkOptions::default()).await;
        }
        within(results_len(&results, early)).await;
        let mut waiting = Box::pin(results.wait(COUNT));
        for held in early..COUNT {
            assert!(futures::poll!(&mut waiting).is_pending(), "{held} of {COUNT}, {early} before the wait");
            send(&adapter, &pair.active.queue_pair, b"1", WorkOptions::default()).await;
            within(results_len(&results, held + 1)).await;
        }
        within(waiting).await.expect("all have come");
        assert_eq!(polled(&results, 2 * COUNT).len(), COUNT);
        post_more(&adapter, &pair.passive.queue_pair, COUNT);
    }
    // No more can come than it holds, so that is enough; and nothing is what there is at once.
    results.resize(2).expect("it is empty");
    let mut waiting = Box::pin(results.wait(COUNT));
    results.wait(0).now_or_never().expect("at once").expect("nothing is asked for");
    for held in 0..2 {
        assert!(futures::poll!(&mut waiting).is_pending(), "{held} of 2");
        send(&adapter, &pair.active.queue_pair, b"1", WorkOptions::default()).await;
        within(results_len(&results, held + 1)).await;
    }
    within(waiting).await.expect("it is full");
    assert_eq!(polled(&results, 9).len(), 2);
    // The end of the queue ends the wait, once there is less than was asked for.
    let waiting = results.wait(3);
    pair.passive.queue_pair.flush();
    assert_eq!(within(waiting).await, Ok(()), "two fill it");
    assert_eq!(polled(&results, 9).len(), 2);
    assert_eq!(within(results.wait(1)).await, Err(NotifyError::Overrun { depth: 2 }));
}

/// Posts receives and drops their futures.
fn post_more(adapter: &Adapter, queue_pair: &QueuePair, count: usize) {
    drop(post(adapter, queue_pair, count as u64));
}

// CAN-02, CQ-12: ndcq's first test: notifications of one queue end together, in the order in which they were asked for.
#[tokio::test]
async fn ndcq_notifications_complete_in_request_order() {
    let adapter = adapter();
    let results = queue(&adapter, 64);
    let pair = received_into(&adapter, &results, 0).await;
    for round in 0..often(1000, 30) {
        // A turn of its own, in which the task has its whole budget.
        tokio::task::yield_now().await;
        let _receive = post(&adapter, &pair.passive.queue_pair, 1);
        let log = Log::default();
        let mut waits: Vec<_> = (0..10).map(|_| results.notify(NotifyKind::Any)).collect();
        // The order is that of the calls, not that of the first polls.
        for (number, wait) in waits.iter_mut().enumerate().rev() {
            assert!(poll_with(wait, &log.waker(number)).is_pending(), "round {round}");
        }
        send(&adapter, &pair.active.queue_pair, b"x", WorkOptions::default()).await;
        assert_eq!(log.at_least(10).await, (0..10).collect::<Vec<_>>(), "round {round}");
        for wait in waits {
            wait.now_or_never().expect("woken, so it is ready").expect("told");
        }
        assert_eq!(polled(&results, 9).len(), 1);
    }
}

// CAN-01, CAN-02, CQ-12: ndcq's second test. A notification is cancelled by its drop, one by one: the others stay, and end
// in their order.
#[tokio::test]
async fn ndcq_cancel_keeps_the_order_of_remaining_notifications() {
    let adapter = adapter();
    let results = queue(&adapter, 64);
    let pair = received_into(&adapter, &results, 0).await;
    for round in 0..often(1000, 30) {
        // A turn of its own, in which the task has its whole budget.
        tokio::task::yield_now().await;
        let _receive = post(&adapter, &pair.passive.queue_pair, 1);
        let log = Log::default();
        let mut waits: Vec<_> = (0..10).map(|_| Some(results.notify(NotifyKind::Any))).collect();
        for (number, wait) in waits.iter_mut().enumerate() {
            assert!(poll_with(wait.as_mut().expect("pending"), &log.waker(number)).is_pending());
        }
        // Another choice each time, and once all but the last.
        let stays = |number: usize| number == 9 || (round % 512) >> number & 1 == 1;
        for (number, wait) in waits.iter_mut().enumerate() {
            if !stays(number) {
                drop(wait.take());
            }
        }
        let left: Vec<_> = (0..10).filter(|number| stays(*number)).collect();
        assert_eq!(log.lines(), [0; 0], "a cancel wakes nobody");
        send(&adapter, &pair.active.queue_pair, b"x", WorkOptions::default()).await;
        assert_eq!(log.at_least(left.len()).await, left, "round {round}");
        for wait in waits.into_iter().flatten() {
            wait.now_or_never().expect("woken, so it is ready").expect("told");
        }
        assert_eq!(polled(&results, 9).len(), 1);
    }
}

// CAN-02, CQ-12: ndcq's third test: what is cancelled on one object leaves another alone, a queue that ends as well.
#[tokio::test]
async fn ndcq_cancel_on_one_object_spares_another() {
    let adapter = adapter();
    let queues = [queue(&adapter, 8), queue(&adapter, 8)];
    let (listener, _) = listening(&adapter);
    let pair = received_into(&adapter, &queues[1], 0).await;
    for round in 0..often(1000, 30) {
        // A turn of its own, in which the task has its whole budget.
        tokio::task::yield_now().await;
        let _receive = post(&adapter, &pair.passive.queue_pair, 1);
        let log = Log::default();
        let mut first: Vec<_> = (0..3).map(|_| queues[0].notify(NotifyKind::Any)).collect();
        let mut second: Vec<_> = (10..13).map(|_| queues[1].notify(NotifyKind::Any)).collect();
        for (number, wait) in first.iter_mut().enumerate() {
            assert!(poll_with(wait, &log.waker(number)).is_pending());
        }
        for (number, wait) in second.iter_mut().enumerate() {
            assert!(poll_with(wait, &log.waker(10 + number)).is_pending());
        }
        if round % 2 == 0 {
            drop(first);
            first = Vec::new();
        }
        listener.cancel();
        assert_eq!(log.lines(), [0; 0], "nobody has been told of anything");
        send(&adapter, &pair.active.queue_pair, b"x", WorkOptions::default()).await;
        assert_eq!(log.at_least(3).await, [10, 11, 12], "round {round}");
        assert!(second.into_iter().all(|wait| wait.now_or_never().is_some()));
        assert!(first.iter_mut().all(|wait| wait.now_or_never().is_none()), "its queue has nothing");
        assert_eq!(polled(&queues[1], 9).len(), 1);
    }
    // A queue ends: its own waits fail, in their order, and those of the other queue do not.
    let log = Log::default();
    let mut own: Vec<_> = (0..10).map(|_| queues[1].notify(NotifyKind::Any)).collect();
    let mut other = queues[0].notify(NotifyKind::Any);
    for (number, wait) in own.iter_mut().enumerate() {
        assert!(poll_with(wait, &log.waker(number)).is_pending());
    }
    assert!(poll_with(&mut other, &log.waker(99)).is_pending());
    let _receives = post(&adapter, &pair.passive.queue_pair, 9);
    pair.passive.queue_pair.flush();
    assert_eq!(log.at_least(10).await, (0..10).collect::<Vec<_>>());
    assert!(poll_once(&mut other).is_pending());
}

/// The fields of a result that depend on the request, and on what its message has carried.
type Fields = (OpKind, usize, u64, Option<u32>, Option<RemoteKey>);

/// Returns the next result, which is a success.
async fn next(queue: &CompletionQueue) -> Fields {
    let [result] = collect(queue, 1).await[..] else { panic!("one result") };
    let WorkCompletion { status, kind, bytes, context, immediate, invalidated, .. } = result;
    assert_eq!(status, Status::SUCCESS, "{result:?}");
    (kind, bytes, context, immediate, invalidated)
}

// CQ-09, QP-13, QP-23: a result says which kind of request has completed, and what its message has carried beside the bytes.
#[tokio::test]
async fn results_have_the_kinds_of_their_requests() {
    let adapter = adapter();
    let info = adapter.info();
    let (sent, received) = (queue(&adapter, 64), queue(&adapter, 64));
    let active =
        adapter.queue_pair(QueuePairConfig::default().send_completions(&sent)).expect("a queue pair");
    let passive = QueuePairConfig::default().receive_completions(&received);
    let passive = adapter.queue_pair(passive).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, passive, params.0, params.1).await;
    let (sender, receiver) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let mut access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::READ_SINK;
    access.set(Access::REMOTE_ATOMIC, info.atomics);
    let region = adapter.register(64, access).await.expect("registered");
    let own = || region.slice(0..8).expect("in bounds");
    let there = region.remote_part(8..16).expect("in bounds");
    let options = |context| WorkOptions::default().context(context);
    let plain = |kind, context| (kind, 8, context, None, None);

    let _write = sender.write_with(own(), &there, options(1)).expect("posted");
    assert_eq!(next(&sent).await, plain(OpKind::Write, 1));
    let _read = sender.read_with(own(), &there, options(2)).expect("posted");
    assert_eq!(next(&sent).await, plain(OpKind::Read, 2));
    if info.atomics {
        let _add = sender.fetch_add(own(), &there, 1, options(3)).expect("posted");
        assert_eq!(next(&sent).await, plain(OpKind::FetchAdd, 3));
        let _swap = sender.compare_swap(own(), &there, 1, 2, options(4)).expect("posted");
        assert_eq!(next(&sent).await, plain(OpKind::CompareSwap, 4));
    }
    if info.memory_windows {
        let window = adapter.memory_window().expect("a window");
        let _bind = sender.bind(&window, &own(), Access::REMOTE_READ, options(5)).expect("posted");
        assert_eq!(next(&sent).await, (OpKind::Bind, 0, 5, None, None));
        let _invalidate = sender.invalidate(&window, options(6)).expect("posted");
        assert_eq!(next(&sent).await, (OpKind::Invalidate, 0, 6, None, None));
    }
    let _receives = post(&adapter, receiver, 4);
    let mut place = 0;
    if info.immediate {
        let _write = sender.write_with(own(), &there, options(7).immediate(77)).expect("posted");
        assert_eq!(next(&sent).await, plain(OpKind::Write, 7));
        assert_eq!(next(&received).await, (OpKind::Receive, 0, place, Some(77), None));
        place += 1;
    }
    if info.immediate_send {
        let _send = sender.send_with(own(), options(8).immediate(u32::MAX)).expect("posted");
        assert_eq!(next(&sent).await, plain(OpKind::Send, 8));
        assert_eq!(next(&received).await, (OpKind::Receive, 8, place, Some(u32::MAX), None));
        place += 1;
    }
    if info.invalidates {
        let window = adapter.memory_window().expect("a window");
        let bind =
            receiver.bind(&window, &own(), Access::REMOTE_READ, WorkOptions::default()).expect("posted");
        within(bind).await.0.expect("bound");
        let key = window.remote().expect("bound").key();
        let _send = sender.send_with(own(), options(9).invalidate(key)).expect("posted");
        assert_eq!(next(&sent).await, plain(OpKind::Send, 9));
        assert_eq!(next(&received).await, (OpKind::Receive, 8, place, None, Some(key)));
        place += 1;
    }
    let _send = sender.send_with(own(), options(10)).expect("posted");
    assert_eq!(next(&sent).await, plain(OpKind::Send, 10));
    assert_eq!(next(&received).await, plain(OpKind::Receive, place));
}

#[tokio::test]
async fn the_queues_of_a_queue_pair_are_separate() {
    let adapter = adapter();
    let (sent, received) = (queue(&adapter, 8), queue(&adapter, 8));
    // Each direction of a queue pair has a completion queue of its own (QP-01).
    let config = QueuePairConfig::default().send_completions(&sent).receive_completions(&received);
    let [active, passive] =
        [1, 2].map(|context| adapter.queue_pair(config.clone().context(context)).expect("a queue pair"));
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, passive, params.0, params.1).await;
    let receive = pair.passive.queue_pair.receive_with(room(&adapter, 8), 20).expect("posted");
    let options = WorkOptions::default().context(10);
    let send = pair.active.queue_pair.send_with(bytes(&adapter, b"hello"), options).expect("posted");
    let [sent] = collect(&sent, 1).await[..] else { panic!("one result") };
    let [received] = collect(&received, 1).await[..] else { panic!("one result") };
    assert_eq!((sent.kind, sent.bytes, sent.queue_pair_context, sent.context), (OpKind::Send, 5, 1, 10));
    assert_eq!((received.kind, received.bytes), (OpKind::Receive, 5));
    assert_eq!((received.queue_pair_context, received.context), (2, 20));
    assert!(send.now_or_never().expect("polled").0.is_ok());
    assert_eq!(&receive.now_or_never().expect("polled").1[..5], b"hello");
}

// Of two queues of the program one is polled all the time: each has its own results and wakes its own waiters (HW-08,
// CQ-13).
#[tokio::test]
async fn two_queues_do_not_affect_each_other() {
    let adapter = adapter();
    let busy = CompletionQueueConfig::default().depth(64).busy_poll(true);
    let queues = [adapter.completion_queue(busy).expect("a completion queue"), queue(&adapter, 64)];
    let pairs = [received_into(&adapter, &queues[0], 0).await, received_into(&adapter, &queues[1], 1).await];
    let _receives = pairs.each_ref().map(|pair| post(&adapter, &pair.passive.queue_pair, 20));
    for turn in [0, 1, 1, 0, 0, 1] {
        send(&adapter, &pairs[turn].active.queue_pair, b"polled", WorkOptions::default()).await;
        let mut found = Vec::new();
        within(async {
            while queues[turn].poll(8, &mut found) == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(
            (found.len(), found[0].queue_pair_context, found[0].status),
            (1, turn as u64, Status::SUCCESS)
        );
        // Each queue in turn notifies of results that come during the wait, and of results from before it.
        for before in [false, true] {
            if before {
                send(&adapter, &pairs[turn].active.queue_pair, b"before", WorkOptions::default()).await;
            }
            let notified = queues[turn].notify(NotifyKind::Any);
            if !before {
                send(&adapter, &pairs[turn].active.queue_pair, b"meanwhile", WorkOptions::default()).await;
            }
            within(notified).await.expect("told");
            assert_eq!(polled(&queues[turn], 9).len(), 1);
        }
        assert_eq!(polled(&queues[1 - turn], 9), []);
    }
}

#[tokio::test]
async fn result_that_meets_one_notification_releases_all() {
    let adapter = adapter();
    let results = queue(&adapter, 64);
    let pair = received_into(&adapter, &results, 0).await;
    let _receives = post(&adapter, &pair.passive.queue_pair, 20);
    let sender = &pair.active.queue_pair;
    // One completion releases every notification that was requested before it (CQ-03).
    let mut waits: Vec<_> = (0..3).map(|_| results.notify(NotifyKind::Any)).collect();
    assert!(waits.iter_mut().all(|wait| wait.now_or_never().is_none()));
    send(&adapter, sender, b"any", WorkOptions::default()).await;
    for wait in within(join_all(waits)).await {
        wait.expect("told");
    }
    assert_eq!(polled(&results, 9).len(), 1);
    // CQ-04: a message is no failure.
    let mut errors = results.notify(NotifyKind::Errors);
    send(&adapter, sender, b"any", WorkOptions::default()).await;
    send(&adapter, sender, b"solicited", WorkOptions::default().solicited()).await;
    within(results_len(&results, 2)).await;
    assert!((&mut errors).now_or_never().is_none());
    // Any dominates: what meets it releases the others.
    within(results.notify(NotifyKind::Any)).await.expect("told");
    within(errors).await.expect("told");
    assert_eq!(polled(&results, 9).len(), 2);
    // A failure is one for everybody.
    let waits = [NotifyKind::Any, NotifyKind::Solicited, NotifyKind::Errors].map(|kind| results.notify(kind));
    pair.passive.queue_pair.flush();
    for wait in within(join_all(waits)).await {
        wait.expect("told");
    }
    let statuses: Vec<_> = collect(&results, 17).await.iter().map(|result| result.status).collect();
    assert!(statuses.iter().all(|status| *status == Status::CANCELED), "{statuses:?}");
}

#[tokio::test]
async fn solicited_notification_waits_for_a_solicited_send() {
    let adapter = adapter();
    let results = queue(&adapter, 64);
    let pair = received_into(&adapter, &results, 0).await;
    let _receives = post(&adapter, &pair.passive.queue_pair, 20);
    let sender = &pair.active.queue_pair;
    // A message that is not solicited does not release the notification on soft. No completion of a device says whether it was (CQ-04).
    let mut solicited = results.notify(NotifyKind::Solicited);
    send(&adapter, sender, b"any", WorkOptions::default()).await;
    within(results_len(&results, 1)).await;
    let told = (&mut solicited).now_or_never().is_some();
    let is_device = adapter.info().provider == ProviderKind::Verbs;
    assert_eq!(told, is_device, "an ordinary message is not what it waits for");
    if told {
        solicited = results.notify(NotifyKind::Solicited);
    }
    // The flag of the send releases the notification at the receiver (QP-11).
    send(&adapter, sender, b"solicited", WorkOptions::default().solicited()).await;
    within(solicited).await.expect("told");
    let lengths: Vec<_> = collect(&results, 2).await.iter().map(|result| result.bytes).collect();
    assert_eq!(lengths, [3, 9]);
}

/// Waits for so many results, without a notification.
async fn results_len(queue: &CompletionQueue, count: usize) {
    while queue.len() < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_result_is_told_once_and_never_forgotten() {
    let adapter = adapter();
    let results = queue(&adapter, 64);
    let pair = received_into(&adapter, &results, 0).await;
    let _receives = post(&adapter, &pair.passive.queue_pair, 20);
    // A result from before the call resolves the notification at once (CQ-02).
    send(&adapter, &pair.active.queue_pair, b"1", WorkOptions::default()).await;
    within(results_len(&results, 1)).await;
    results.notify(NotifyKind::Any).now_or_never().expect("at once").expect("told");
    let mut next = results.notify(NotifyKind::Any);
    assert!((&mut next).now_or_never().is_none(), "it has been told of");
    send(&adapter, &pair.active.queue_pair, b"2", WorkOptions::default()).await;
    within(results_len(&results, 2)).await;
    // The notification was met and then dropped, so the next one resolves instead.
    drop(next);
    results.notify(NotifyKind::Any).now_or_never().expect("at once").expect("told");
    // A result that has been polled is no news.
    send(&adapter, &pair.active.queue_pair, b"3", WorkOptions::default()).await;
    within(results_len(&results, 3)).await;
    assert_eq!(polled(&results, 9).len(), 3);
    assert!(results.notify(NotifyKind::Any).now_or_never().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost() {
    const WINDOW: usize = 64;
    let adapter = adapter();
    let results = queue(&adapter, 2 * WINDOW);
    let pair = received_into(&adapter, &results, 0).await;
    let rounds = often(2_000, 100);
    let Pair { active, passive } = pair;
    // As many may be sent as have a receive.
    let room_for = Arc::new(Semaphore::new(0));
    let sender = tokio::spawn({
        let (adapter, room_for) = (adapter.clone(), room_for.clone());
        async move {
            for round in 0..rounds {
                // Bursts of every length, some of one.
                let burst = 1 + round * 7 % 9;
                let permits = u32::try_from(burst).expect("small");
                room_for.acquire_many(permits).await.expect("open").forget();
                let ops: Vec<_> = (0..burst)
                    .map(|_| active.queue_pair.send(bytes(&adapter, b"x")).expect("posted"))
                    .collect();
                for op in ops {
                    success(op).await;
                }
                tokio::task::yield_now().await;
            }
            active
        }
    });
    let total: usize = (0..rounds).map(|round| 1 + round * 7 % 9).sum();
    let mut posted = 0;
    let mut receives = std::collections::VecDeque::new();
    let mut seen = 0;
    // A completion between the empty poll and the notification is not missed (CQ-02).
    within(async {
        while seen < total {
            while posted < (seen + WINDOW).min(total) {
                receives.push_back(passive.queue_pair.receive(room(&adapter, 1)).expect("posted"));
                posted += 1;
                room_for.add_permits(1);
            }
            let mut taken = Vec::new();
            if results.poll(WINDOW, &mut taken) == 0 {
                results.notify(NotifyKind::Any).await.expect("it lives");
                continue;
            }
            for result in taken {
                assert_eq!(result.status, Status::SUCCESS, "{result:?}");
                receives.pop_front();
                seen += 1;
            }
        }
    })
    .await;
    within(sender).await.expect("no panic");
}

#[tokio::test]
async fn a_queue_that_overruns_ends_its_connections() {
    let adapter = adapter();
    let results = queue(&adapter, 1);
    let pair = received_into(&adapter, &results, 0).await;
    let other = received_into(&adapter, &results, 1).await;
    let receives = post(&adapter, &pair.passive.queue_pair, 3);
    let waiting = results.notify(NotifyKind::Errors);
    // The second message overruns a queue of depth 1 (CQ-05).
    for message in [b"1", b"2"] {
        let send = pair.active.queue_pair.send(bytes(&adapter, message)).expect("posted");
        // The second one may come too late for the peer, whose connection ends.
        let _ = within(send).await;
    }
    let error = within(waiting).await.expect_err("overrun");
    assert_eq!((error, error.status()), (NotifyError::Overrun { depth: 1 }, Status::BUFFER_OVERFLOW));
    assert_eq!(within(results.wait(1)).await, Ok(()), "what there is can be had");
    assert_eq!(
        within(results.notify(NotifyKind::Any)).await,
        Err(NotifyError::Overrun { depth: 1 }),
        "every time"
    );
    for connection in [&pair.passive.connection, &pair.active.connection, &other.passive.connection] {
        within(connection.disconnected()).await;
    }
    // The first one is still to be polled; the others are lost to the queue, but not to their futures.
    let mut receives = receives.into_iter();
    let mut first = pin!(receives.next().expect("three"));
    assert!(first.as_mut().now_or_never().is_none());
    for receive in receives {
        let _ = within(receive).await;
    }
    let [result] = polled(&results, 9)[..] else { panic!("one result") };
    assert_eq!((result.status, result.bytes), (Status::SUCCESS, 1));
    assert_eq!(first.now_or_never().expect("polled").0.expect("received").bytes, 1);
    let error = results.resize(9).expect_err("it has ended");
    assert!(matches!(error, ResizeError::Ended(NotifyError::Overrun { depth: 1 })), "{error:?}");
    assert_eq!(error.status(), Status::BUFFER_OVERFLOW);
}

#[tokio::test]
async fn resizing_loses_nothing() {
    let adapter = adapter();
    let results = queue(&adapter, 4);
    let pair = received_into(&adapter, &results, 0).await;
    let _receives = post(&adapter, &pair.passive.queue_pair, 20);
    for _ in 0..4 {
        send(&adapter, &pair.active.queue_pair, b"1", WorkOptions::default()).await;
    }
    within(results_len(&results, 4)).await;
    // A depth below the number of held results is refused, and no change of the depth loses a result (CQ-06).
    let error = results.resize(3).expect_err("it holds more");
    assert!(matches!(error, ResizeError::TooSmall { asked: 3, held: 4 }), "{error:?}");
    assert_eq!((error.status(), results.depth(), results.len()), (Status::BUFFER_OVERFLOW, 4, 4));
    let most = adapter.info().max_completion_depth;
    for size in [0, most + 1] {
        let error = results.resize(size).expect_err("no size");
        assert!(
            matches!(error, ResizeError::OutOfRange { asked, maximum } if (asked, maximum) == (size, most)),
            "{error:?}"
        );
        assert_eq!(error.status(), Status::INVALID_PARAMETER);
    }
    results.resize(6).expect("resized");
    for _ in 0..2 {
        send(&adapter, &pair.active.queue_pair, b"22", WorkOptions::default()).await;
    }
    within(results_len(&results, 6)).await;
    let lengths: Vec<_> = polled(&results, 9).iter().map(|result| result.bytes).collect();
    assert_eq!(lengths, [1, 1, 1, 1, 2, 2]);
    results.resize(1).expect("it is empty");
    assert_eq!(results.depth(), 1);
}

#[tokio::test]
async fn its_arguments_are_checked_and_numbered() {
    let adapter = adapter();
    let most = adapter.info().max_completion_depth;
    let config = CompletionQueueConfig::default();
    // CQ-07: what no processor can be is refused, and what any may be is taken.
    for (wrong, number, range) in [
        (config.depth(0), 3, format!("between 1 and {most}")),
        (config.depth(most + 1), 3, format!("between 1 and {most}")),
        (config.affinity(usize::MAX), 5, "between 0 and 8191".to_owned()),
    ] {
        let error = adapter.completion_queue(wrong).expect_err("out of range");
        let OpenError::InvalidParameter { argument, what } = &error else { panic!("{error:?}") };
        assert_eq!(*argument, number, "{error:?}");
        assert!(what.ends_with(&range), "{what}");
    }
    assert_eq!(queue(&adapter, 1).affinity(), None);
    // CQ-07: a hint to a processor that this machine has, and to one that it has not: both queues serve.
    for processor in [0, 8191] {
        let hinted = adapter.completion_queue(config.affinity(processor)).expect("a completion queue");
        assert_eq!(hinted.affinity(), Some(processor));
        let pair = received_into(&adapter, &hinted, 0).await;
        let _receive = post(&adapter, &pair.passive.queue_pair, 1);
        send(&adapter, &pair.active.queue_pair, b"works", WorkOptions::default()).await;
        assert_eq!(collect(&hinted, 1).await[0].bytes, 5);
    }
}

#[tokio::test]
async fn flush_spares_other_queue_pairs_sharing_the_queue() {
    const PAIRS: u64 = 5;
    let adapter = adapter();
    let results = queue(&adapter, 256);
    let mut pairs = Vec::new();
    for context in 0..PAIRS {
        pairs.push(received_into(&adapter, &results, context).await);
    }
    let _receives: Vec<_> = pairs.iter().map(|pair| post(&adapter, &pair.passive.queue_pair, 8)).collect();
    for pair in &pairs {
        send(&adapter, &pair.active.queue_pair, b"one", WorkOptions::default()).await;
    }
    // Results name their queue pair, and the flush of one queue pair cancels nothing of the others (CQ-08).
    let mut owners: Vec<_> =
        collect(&results, 5).await.iter().map(|result| result.queue_pair_context).collect();
    owners.sort_unstable();
    assert_eq!(owners, (0..PAIRS).collect::<Vec<_>>());
    pairs[2].passive.queue_pair.flush();
    for result in collect(&results, 7).await {
        assert_eq!((result.queue_pair_context, result.status), (2, Status::CANCELED));
    }
    for (context, pair) in (0..PAIRS).zip(&pairs).filter(|(context, _)| *context != 2) {
        send(&adapter, &pair.active.queue_pair, b"more", WorkOptions::default()).await;
        let [result] = collect(&results, 1).await[..] else { panic!("one result") };
        assert_eq!((result.queue_pair_context, result.bytes), (context, 4));
    }
}

#[tokio::test]
async fn one_task_waits_for_many_queues() {
    let adapter = adapter();
    let mut ends = Vec::new();
    for context in 0..4 {
        let results = queue(&adapter, 8);
        let pair = received_into(&adapter, &results, context).await;
        let receives = post(&adapter, &pair.passive.queue_pair, 2);
        ends.push((results, pair, receives));
    }
    // One future over the notifications of many queues does the work of a CNO (CQ-11).
    for chosen in [2, 0, 3, 3] {
        let waits = ends.iter().map(|(results, ..)| results.notify(NotifyKind::Any));
        let all = select_all(waits);
        send(&adapter, &ends[chosen].1.active.queue_pair, b"1", WorkOptions::default()).await;
        let (told, index, _others) = within(all).await;
        told.expect("told");
        assert_eq!(index, chosen);
        assert_eq!(polled(&ends[index].0, 9).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spinning_queue_finds_results_and_sleeps_when_idle() {
    let adapter = adapter();
    let config = CompletionQueueConfig::default().spin(Duration::from_micros(200));
    let results = adapter.completion_queue(config).expect("a completion queue");
    let pair = received_into(&adapter, &results, 0).await;
    let _receives = post(&adapter, &pair.passive.queue_pair, 100);
    for _ in 0..50 {
        send(&adapter, &pair.active.queue_pair, b"1", WorkOptions::default()).await;
        assert_eq!(collect(&results, 1).await[0].bytes, 1);
    }
    // The wait also resolves after the queue has stopped polling: each poll but the last asks for another one.
    let mut waiting = results.notify(NotifyKind::Any);
    let wakes = Log::default();
    eventually("it looks no more", || {
        let before = wakes.lines().len();
        let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(&wakes.waker(())));
        assert!(polled.is_pending(), "there is nothing");
        wakes.lines().len() == before
    })
    .await;
    send(&adapter, &pair.active.queue_pair, b"1", WorkOptions::default()).await;
    within(waiting).await.expect("told");
}

#[tokio::test]
async fn results_outlive_a_dropped_queue_pair() {
    let adapter = adapter();
    let results = queue(&adapter, 16);
    let config = QueuePairConfig::default().completions(&results).context(3);
    let queue_pair = adapter.queue_pair(config).expect("a queue pair");
    let receives = post(&adapter, &queue_pair, 3);
    drop(receives);
    drop(queue_pair);
    // CAN-09: their memory, too, is in the queue.
    let found: Vec<_> =
        collect(&results, 3).await.iter().map(|result| (result.status, result.context)).collect();
    assert_eq!(found, [0, 1, 2].map(|context| (Status::CANCELED, context)));
}

#[tokio::test]
async fn results_of_a_dropped_queue_reach_their_futures() {
    let adapter = adapter();
    let results = queue(&adapter, 16);
    let queue_pair =
        adapter.queue_pair(QueuePairConfig::default().completions(&results)).expect("a queue pair");
    let receives = post(&adapter, &queue_pair, 2);
    drop((queue_pair, results));
    for receive in receives {
        assert_eq!(within(receive).await.0.expect_err("cancelled").status(), Status::CANCELED);
    }
}

#[tokio::test]
async fn connect_fails_after_completion_queue_overrun() {
    let adapter = adapter();
    let results = queue(&adapter, 1);
    let config = QueuePairConfig::default().completions(&results);
    let first = adapter.queue_pair(config.clone()).expect("a queue pair");
    let receives = post(&adapter, &first, 2);
    // The flush of two receives overruns a queue of depth 1 (CQ-05).
    first.flush();
    assert_eq!(within(results.notify(NotifyKind::Errors)).await, Err(NotifyError::Overrun { depth: 1 }));
    drop(receives);
    let (listener, address) = listening(&adapter);
    let late = adapter.queue_pair(config).expect("a queue pair");
    let connector = adapter.connector();
    connector.connect(&late, address, ConnectParams::default()).await.map(drop).expect_err("it is over");
    drop(listener);
}
