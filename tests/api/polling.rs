//! Programs that poll a completion queue in a loop, as those of `ibv_poll_cq` do, and take the results without awaiting.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::time::Instant;

use common::device::{Device, is_emulated, skips};
use common::raw::{bytes, room};
use common::results::collect;
use common::*;
use futures::future::join_all;
use tokio_rdma::error::OpenError;
use tokio_rdma::types::OpKind;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, CompletionQueue, CompletionQueueConfig, ConnectParams, NotifyKind,
    Op, QueuePairConfig, SharedReceiveConfig, SharedReceiveQueue, Status, WorkCompletion, WorkOptions,
};

fn queue(adapter: &Adapter, depth: usize) -> CompletionQueue {
    adapter.completion_queue(CompletionQueueConfig::default().depth(depth)).expect("a completion queue")
}

/// A connected pair whose ends have these settings.
async fn pair_with(adapter: &Adapter, active: QueuePairConfig, passive: QueuePairConfig) -> Pair {
    let [active, passive] = [active, passive].map(|config| adapter.queue_pair(config).expect("a queue pair"));
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, active, passive, connect, accept).await
}

/// Polls until there are so many results. The thread does nothing else: no task of its runtime runs.
fn poll_in_a_loop(queue: &CompletionQueue, count: usize) -> Vec<WorkCompletion> {
    let (mut results, limit) = (Vec::new(), Instant::now() + patience());
    while results.len() < count {
        if queue.poll(count - results.len(), &mut results) == 0 {
            assert!(Instant::now() < limit, "{} of {count}: the loop makes no progress", results.len());
        }
    }
    results
}

/// Whether no task has to run for a message to arrive.
fn arrives_by_itself() -> bool {
    !skips(Device::Sim, "time passes on the simulated network while all tasks wait, and no task waits here")
}

/// A shared receive queue, where the adapter has any; where not, it says so.
fn shared(adapter: &Adapter) -> Option<SharedReceiveQueue> {
    match adapter.shared_receive_queue(SharedReceiveConfig::default()) {
        Ok(queue) => Some(queue),
        Err(error) => {
            let has_none = adapter.info().max_shared_depth == 0 && matches!(error, OpenError::Unsupported(_));
            assert!(has_none, "{error}");
            eprintln!("skipped: the adapter has no shared receive queues, and has said so");
            None
        }
    }
}

// CQ-01: a loop around `poll` needs nobody else, on a runtime whose only thread it has. So do waits in between.
#[tokio::test]
async fn poll_loop_receives_on_a_current_thread_runtime() {
    if !arrives_by_itself() {
        return;
    }
    for (adapter, variant) in device::variants() {
        let results = queue(&adapter, 64);
        let config = QueuePairConfig::default();
        let pair = pair_with(&adapter, config.clone(), config.receive_completions(&results)).await;
        for round in 0..10_u8 {
            let receive = pair.passive.queue_pair.receive(room(&adapter, 16)).expect("posted");
            let send = pair.active.queue_pair.send(bytes(&adapter, &[round; 5])).expect("posted");
            if round % 3 == 2 {
                // What a poll has read is not waited for, and the next message is.
                assert_eq!(collect(&results, 1).await.len(), 1, "{variant}");
            } else {
                let [result] = poll_in_a_loop(&results, 1)[..] else { panic!("one result") };
                assert_eq!((result.status, result.bytes), (Status::SUCCESS, 5), "{variant}");
            }
            let (outcome, buffer) = receive.take().expect("polled");
            assert_eq!(&buffer[..outcome.expect("received").bytes], [round; 5], "{variant}");
            within(send).await.0.expect("sent");
        }
    }
}

// CQ-01: so it is if the socket is full: a poll writes on, too.
#[tokio::test]
async fn poll_loop_moves_more_than_a_socket_holds() {
    if !arrives_by_itself() {
        return;
    }
    let (count, length) = if is_emulated() { (4, 64 * 1024) } else { (32, 1 << 20) };
    let adapter = adapter();
    let results = queue(&adapter, 128);
    let config = QueuePairConfig::default().completions(&results).send_depth(count).receive_depth(count);
    let pair = pair_with(&adapter, config.clone().context(1), config.context(2)).await;
    let receives: Vec<_> = (0..count)
        .map(|_| pair.passive.queue_pair.receive(room(&adapter, length)).expect("posted"))
        .collect();
    let sends: Vec<_> = (0..count)
        .map(|round| {
            pair.active.queue_pair.send(bytes(&adapter, &vec![round as u8; length])).expect("posted")
        })
        .collect();
    let polled = poll_in_a_loop(&results, 2 * count);
    assert!(polled.iter().all(|result| result.status == Status::SUCCESS));
    let received = polled.iter().filter(|result| result.queue_pair_context == 2);
    assert!(received.clone().all(|result| (result.kind, result.bytes) == (OpKind::Receive, length)));
    assert_eq!(received.count(), count);
    for (round, receive) in (0..).zip(receives) {
        let (_, buffer) = receive.take().expect("polled");
        assert!(buffer.iter().all(|byte| *byte == round as u8));
    }
    assert!(sends.into_iter().all(|send| send.take().is_ok()));
}

// CQ-01: so it is if the queue is never empty, as a send is posted for each that has completed.
#[tokio::test]
async fn poll_loop_that_always_sends_still_receives() {
    if !arrives_by_itself() {
        return;
    }
    for most in [1, 8] {
        let (adapter, limit) = (adapter(), Instant::now() + patience());
        let results = queue(&adapter, 1024);
        let depths = |config: QueuePairConfig| config.send_depth(64).receive_depth(64);
        let config = depths(QueuePairConfig::default()).completions(&results).context(1);
        let pair = pair_with(&adapter, depths(QueuePairConfig::default()), config).await;
        let region = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
        let receive = pair.passive.queue_pair.receive_with(room(&adapter, 8), 7).expect("posted");
        within(pair.active.queue_pair.send(bytes(&adapter, b"hello")).expect("posted"))
            .await
            .0
            .expect("sent");
        let (mut found, mut writes) = (Vec::new(), 0);
        while !found.iter().any(|result: &WorkCompletion| result.context == 7) {
            found.clear();
            let write =
                pair.passive.queue_pair.write_inline(&[b"x"], &region.remote(), WorkOptions::default());
            drop(write.expect("posted"));
            while results.poll(most, &mut found) == 0 {}
            writes += 1;
            // On soft the message is there before. More writes than these would fill the socket, and make a poll find nothing.
            let is_late = if Device::under_test().is_soft() { writes > 200 } else { Instant::now() > limit };
            assert!(!is_late, "asked for {most}: nothing is received");
        }
        assert_eq!(&receive.take().expect("polled").1[..5], b"hello");
    }
}

// CQ-08: with more connections than one poll looks at, each has its turn, although the first ones always have something.
#[tokio::test]
async fn poll_loop_serves_all_of_many_connections() {
    if !arrives_by_itself() {
        return;
    }
    let (adapter, count) = (adapter(), often(40, 20) as u64);
    let results = queue(&adapter, 1024);
    let mut pairs = Vec::new();
    for context in 0..count {
        let config = QueuePairConfig::default().receive_completions(&results).context(context);
        pairs.push(pair_with(&adapter, QueuePairConfig::default(), config).await);
    }
    let post = |pair: &Pair| drop(pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted"));
    let send = |pair: &Pair| drop(pair.active.queue_pair.send(bytes(&adapter, b"served")).expect("posted"));
    for pair in &pairs {
        (0..2).for_each(|_| post(pair));
        send(pair);
    }
    let (mut served, mut polls) = (vec![0; pairs.len()], 0);
    while served.contains(&0) {
        // On soft the first half sends again whenever it was served. The order of a device is its own.
        let [result] = poll_in_a_loop(&results, 1)[..] else { panic!("one result") };
        let context = result.queue_pair_context as usize;
        served[context] += 1;
        if Device::under_test().is_soft() && context < pairs.len() / 2 {
            post(&pairs[context]);
            send(&pairs[context]);
        }
        polls += 1;
        assert!(polls < 20 * pairs.len(), "{served:?}");
    }
}

// CQ-08: connections that have ended take no turns of the others, although their queue pairs live.
#[tokio::test]
async fn ended_connections_take_no_place_in_a_poll() {
    if !arrives_by_itself() {
        return;
    }
    /// The number of sockets that a poll looks at.
    const SOCKETS: usize = 16;
    let adapter = adapter();
    let results = queue(&adapter, 64);
    let config = QueuePairConfig::default().receive_completions(&results);
    let mut ended = Vec::new();
    for _ in 0..SOCKETS {
        let pair = pair_with(&adapter, QueuePairConfig::default(), config.clone()).await;
        within(pair.active.connection.disconnect()).await.expect("the peer answers");
        within(pair.passive.connection.disconnected()).await;
        ended.push(pair.passive.queue_pair);
    }
    let pair = pair_with(&adapter, QueuePairConfig::default(), config).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let send = pair.active.queue_pair.send(bytes(&adapter, b"message")).expect("posted");
    let (mut found, mut polls, limit) = (Vec::new(), 1, Instant::now() + patience());
    while results.poll(1, &mut found) == 0 {
        assert!(Instant::now() < limit, "nothing is received");
        polls += 1;
    }
    if Device::under_test().is_soft() {
        // The message is there before, and the second poll in a row that finds nothing looks at the sockets.
        assert_eq!(polls, 2, "it looks at those of ended connections");
    }
    assert_eq!(&receive.take().expect("polled").1[..7], b"message");
    within(send).await.0.expect("sent");
    drop(ended);
}

// SRQ-02: a message that waits for a receive goes on when one is posted, although its task does not run.
#[tokio::test]
async fn poll_loop_serves_a_message_awaiting_a_receive() {
    if !arrives_by_itself() {
        return;
    }
    let adapter = adapter();
    let Some(receives) = shared(&adapter) else { return };
    if !adapter.info().waits_for_shared_receives {
        eprintln!(
            "skipped: a message that finds no shared receive ends its connection, and the adapter has said so"
        );
        return;
    }
    let results = queue(&adapter, 64);
    let config = QueuePairConfig::default().shared_receives(&receives).receive_completions(&results);
    let first = pair_with(&adapter, QueuePairConfig::default(), config.clone().context(1)).await;
    let other = pair_with(&adapter, QueuePairConfig::default(), config.context(2)).await;
    for _ in 0..3 {
        let sends = [&first, &other].map(|pair| pair.active.queue_pair.send(bytes(&adapter, b"waits")));
        let mut found = Vec::new();
        assert_eq!(results.poll(8, &mut found), 0, "there is no receive");
        let [one, two] = [(); 2].map(|()| receives.receive(room(&adapter, 16)).expect("posted"));
        let mut owners: Vec<_> =
            poll_in_a_loop(&results, 2).iter().map(|result| result.queue_pair_context).collect();
        owners.sort_unstable();
        assert_eq!(owners, [1, 2]);
        for receive in [one, two] {
            assert_eq!(&receive.take().expect("polled").1[..5], b"waits");
        }
        for send in sends {
            within(send.expect("posted")).await.0.expect("sent");
        }
    }
}

// CQ-01: polls of one thread and the tasks of others get in each other's way, and lose nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_and_concurrent_tasks_lose_nothing() {
    let adapter = adapter();
    let count = often(2000, 100);
    let results = queue(&adapter, 2 * count);
    let config = QueuePairConfig::default().receive_depth(count).receive_completions(&results);
    let pair = pair_with(&adapter, QueuePairConfig::default(), config).await;
    let receives: Vec<_> = (0..count as u64)
        .map(|context| pair.passive.queue_pair.receive_with(room(&adapter, 8), context).expect("posted"))
        .collect();
    let sender = pair.active.queue_pair.clone();
    let sending = tokio::spawn(async move {
        for round in 0..count as u64 {
            sender
                .send_inline(&[&round.to_be_bytes()], WorkOptions::default())
                .expect("posted")
                .await
                .0
                .expect("sent");
        }
    });
    let mut found = Vec::new();
    within(async {
        while found.len() < count {
            match found.len() % 50 {
                // Now and then there is nothing to do for the loop but to wait for the tasks.
                49 if results.is_empty() => results.notify(NotifyKind::Any).await.expect("it lives"),
                _ => tokio::task::yield_now().await,
            }
            results.poll(7, &mut found);
        }
    })
    .await;
    within(sending).await.expect("no panic");
    assert!(found.iter().map(|result| result.context).eq(0..count as u64), "in order");
    for (round, receive) in (0_u64..).zip(receives) {
        assert_eq!(receive.take().expect("polled").1[..8], round.to_be_bytes());
    }
}

// CAN-07: what is there can be taken, as much as it is: no budget of a task is used.
#[tokio::test]
async fn three_hundred_polled_requests_are_taken_at_once() {
    const COUNT: usize = 300;
    let adapter = adapter();
    let results = queue(&adapter, COUNT);
    let config = QueuePairConfig::default().receive_depth(COUNT).receive_completions(&results);
    let pair = pair_with(&adapter, QueuePairConfig::default(), config).await;
    let receives: Vec<_> = (0..COUNT as u64)
        .map(|context| pair.passive.queue_pair.receive_with(room(&adapter, 8), context).expect("posted"))
        .collect();
    // One that has not completed comes back as it was.
    let mut receives: Vec<Op<Buffer>> =
        receives.into_iter().map(|receive| receive.take().expect_err("nothing has come")).collect();
    for round in 0..COUNT as u64 {
        within(pair.active.queue_pair.send(bytes(&adapter, &round.to_be_bytes())).expect("posted"))
            .await
            .0
            .expect("sent");
    }
    within(results.wait(COUNT)).await.expect("it lives");
    let last = receives.pop().expect("one").take().expect_err("has completed, and was not polled");
    receives.push(last);
    assert_eq!(results.poll(COUNT, &mut Vec::new()), COUNT);
    let taken: Vec<_> = receives.into_iter().map_while(|receive| receive.take().ok()).collect();
    assert_eq!(taken.len(), COUNT);
    for (round, (outcome, buffer)) in (0_u64..).zip(taken) {
        assert_eq!(outcome.expect("received").bytes, 8);
        assert_eq!(buffer[..8], round.to_be_bytes());
    }
}

// SRQ-01, CQ-09: a completion names the queue pair, also one that is awaited: of a shared receive queue nothing else does.
#[tokio::test]
async fn completions_of_futures_name_the_queue_pair() {
    let adapter = adapter();
    let Some(receives) = shared(&adapter) else { return };
    let mut pairs = Vec::new();
    for context in 1..4 {
        let config = QueuePairConfig::default().shared_receives(&receives).context(context);
        pairs.push(pair_with(&adapter, QueuePairConfig::default().context(10 * context), config).await);
    }
    let posted: Vec<_> = (0..6).map(|_| receives.receive(room(&adapter, 16)).expect("posted")).collect();
    for _ in 0..2 {
        for (context, pair) in (1_u8..).zip(&pairs) {
            let send = pair.active.queue_pair.send(bytes(&adapter, &[context])).expect("posted");
            let sent = within(send).await.0.expect("sent");
            assert_eq!(sent.queue_pair_context, 10 * u64::from(context));
        }
    }
    for (outcome, buffer) in within(join_all(posted)).await {
        let received = outcome.expect("received");
        assert_eq!(received.queue_pair_context, u64::from(buffer[0]));
    }
    let inline = pairs[0].active.queue_pair.send_inline(&[b"x"], WorkOptions::default());
    let _receive = receives.receive(room(&adapter, 16)).expect("posted");
    let sent = within(inline.expect("posted")).await.0.expect("sent");
    assert_eq!(sent.queue_pair_context, 10);
}
