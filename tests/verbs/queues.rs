//! Completion queues of the program on a device: each has a queue, a channel and a task of its own there.
//!
//! Runs on: fake, fake-iwarp

use common::cm::exchange;
use common::life::{eventually, panicking_waker, poll_once, poll_with};
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::results::collect;
use common::verbs::fake;
use common::*;
use nix::sys::resource::{Resource, getrlimit};
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::mr::Entry;
use tokio_rdma::types::{OpKind, QueueKind};
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, CompletionQueue, CompletionQueueConfig, ConnectParams,
    DisconnectReason, NotifyKind, Op, Provider, QueuePairConfig, SharedReceiveConfig, Status, WorkCompletion,
};

/// The number that the device answers.
pub(super) fn number(line: &str) -> i64 {
    fake(line).expect("a fake device")
}

/// An adapter that looks into no queue by itself, as one that asks for signs of life does now and then.
pub(super) fn calm() -> Adapter {
    let provider = Provider::verbs_with(VerbsConfig::default().path_timeout(None)).expect("devices");
    let id = provider.resolve(v4()).expect("a device has the address");
    provider.open(id).expect("opened")
}

/// A completion queue with these settings.
pub(super) fn queue(adapter: &Adapter, config: CompletionQueueConfig) -> CompletionQueue {
    adapter.completion_queue(config).expect("a completion queue")
}

/// A connected pair whose passive end has these settings.
async fn pair_with(adapter: &Adapter, config: QueuePairConfig) -> Pair {
    let passive = adapter.queue_pair(config).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, queue_pair(adapter), passive, connect, accept).await
}

/// A connected pair whose passive end leaves the completions of its receives in `queue`.
async fn received_into(adapter: &Adapter, queue: &CompletionQueue, context: u64) -> Pair {
    pair_with(adapter, QueuePairConfig::default().receive_completions(queue).context(context)).await
}

/// A message to the passive end, which has a receive for it. Nothing looks for its completion.
async fn send(adapter: &Adapter, pair: &Pair) -> Op<Buffer> {
    let receive = pair.passive.queue_pair.receive(room(adapter, 8)).expect("posted");
    success(pair.active.queue_pair.send(bytes(adapter, b"received")).expect("posted")).await;
    receive
}

/// The contexts of the queue pairs of these completions.
fn contexts(completions: &[WorkCompletion]) -> Vec<u64> {
    completions.iter().map(|completion| completion.queue_pair_context).collect()
}

// HW-08 CQ-07: a queue has a queue and a channel of the device, with the vector of its processor, for as long as it or a queue
// pair of it lives.
#[tokio::test]
async fn each_queue_has_its_channel_and_vector() {
    if !alone(module_path!(), "each_queue_has_its_channel_and_vector") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let count = || ["channel", "cq"].map(|kind| number(&format!("count {kind}")));
    let vectors = || [0, 1, 2, 3].map(|vector| number(&format!("vector {vector}")));
    let ([channels, queues], before) = (count(), vectors());
    let of = |processor| queue(&adapter, CompletionQueueConfig::default().affinity(processor));
    let mut all: Vec<_> = (0..8).map(of).collect();
    assert_eq!(count(), [channels + 8, queues + 8]);
    assert_eq!(vectors(), before.map(|count| count + 2), "the device has four vectors");
    let last = all.pop().expect("eight");
    let pair = received_into(&adapter, &last, 1).await;
    drop((all, last));
    eventually("the others are gone", || number("count channel") == channels + 1).await;
    let receive = send(&adapter, &pair).await;
    drop(pair);
    eventually("the last one is gone", || count() == [channels, queues]).await;
    drop(receive);
}

// HW-08: who polls one queue has the device asked for that one alone, and no queue pair of another one hears of it.
#[tokio::test]
async fn polling_a_queue_touches_no_other() {
    if !alone(module_path!(), "polling_a_queue_touches_no_other") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = calm();
    // Nothing but the program looks into these.
    let own = |_| queue(&adapter, CompletionQueueConfig::default().busy_poll(true));
    let [one, other] = [0, 1].map(own);
    let (first, second) = (received_into(&adapter, &one, 1).await, received_into(&adapter, &other, 2).await);
    let mut waiting = [send(&adapter, &first).await, send(&adapter, &second).await];
    let mut found = Vec::new();
    let before = number("calls ibv_poll_cq");
    assert_eq!(one.poll(8, &mut found), 1);
    assert_eq!(number("calls ibv_poll_cq"), before + 1);
    assert_eq!(contexts(&found), [1]);
    assert_eq!(other.len(), 0, "nobody has looked");
    assert!(poll_once(&mut waiting[0]).is_ready() && poll_once(&mut waiting[1]).is_pending());
    assert_eq!(other.poll(8, &mut found), 1);
    assert_eq!(contexts(&found), [1, 2]);
    assert!(poll_once(&mut waiting[1]).is_ready());
}

// HW-08 HW-16: a queue that the device has lost a completion of takes its own connections with it.
#[tokio::test]
async fn an_overrun_of_one_queue_leaves_the_others() {
    if !alone(module_path!(), "an_overrun_of_one_queue_leaves_the_others") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let [one, other] = [0, 1].map(|_| queue(&adapter, CompletionQueueConfig::default()));
    let config = |queue| QueuePairConfig::default().completions(queue);
    let (hit, well) = (pair_with(&adapter, config(&one)).await, pair_with(&adapter, config(&other)).await);
    let futures = connected(&adapter).await;
    let receive = hit.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    fake("overrun 1");
    let _sent = hit.active.queue_pair.send(bytes(&adapter, b"lost")).expect("posted");
    let reason = within(hit.passive.connection.disconnected()).await;
    assert!(matches!(reason, DisconnectReason::Lost { .. } | DisconnectReason::Peer), "{reason:?}");
    let found = collect(&one, 1).await;
    assert_ne!(found[0].status, Status::SUCCESS);
    drop(receive);
    exchange(&adapter, &futures.active.queue_pair, &futures.passive.queue_pair).await;
    let _receive = send(&adapter, &well).await;
    assert_eq!(collect(&other, 1).await[0].status, Status::SUCCESS);
    // The program's queue goes on with another one of the device.
    let again = pair_with(&adapter, config(&one)).await;
    let _receive = send(&adapter, &again).await;
    assert_eq!(collect(&one, 1).await[0].status, Status::SUCCESS);
}

// HW-08: more queue pairs than a queue of the device has room for get another one, behind the same channel.
#[tokio::test]
async fn a_queue_grows_with_its_queue_pairs() {
    const PAIRS: u64 = 12;
    if !alone(module_path!(), "a_queue_grows_with_its_queue_pairs") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let queue = queue(&adapter, CompletionQueueConfig::default().depth(64));
    let before = ["channel", "cq"].map(|kind| number(&format!("count {kind}")));
    let mut pairs = Vec::new();
    for context in 0..PAIRS {
        pairs.push(received_into(&adapter, &queue, context).await);
    }
    let after = ["channel", "cq"].map(|kind| number(&format!("count {kind}")));
    assert!(after[0] == before[0] && after[1] > before[1], "{before:?}, {after:?}");
    let mut receives = Vec::new();
    for pair in &pairs {
        receives.push(send(&adapter, pair).await);
    }
    let found = collect(&queue, pairs.len()).await;
    let mut found = contexts(&found);
    found.sort_unstable();
    assert_eq!(found, (0..PAIRS).collect::<Vec<_>>());
    drop((pairs, receives));
    eventually("one is left", || number("count cq") == before[1]).await;
}

// HW-08: each side of a queue pair may complete elsewhere, one of them in futures; and queue pairs with shared receives where each
// of them says.
#[tokio::test]
async fn queue_pair_sides_complete_where_configured() {
    if !alone(module_path!(), "queue_pair_sides_complete_where_configured") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let [sent, received] = [0, 1].map(|_| queue(&adapter, CompletionQueueConfig::default()));
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let base = QueuePairConfig::default;
    let both = base().send_completions(&sent).receive_completions(&received).context(1);
    let active = adapter.queue_pair(both).expect("a queue pair");
    let passive = adapter.queue_pair(base().send_completions(&sent).context(2)).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, passive, connect, accept).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let there = pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted");
    assert_eq!(&success(receive).await.1[..], b"received");
    let back = pair.active.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let answer = pair.passive.queue_pair.send(bytes(&adapter, b"answered")).expect("posted");
    let mut sends = contexts(&collect(&sent, 2).await);
    sends.sort_unstable();
    assert_eq!(sends, [1, 2]);
    let receives = collect(&received, 1).await;
    assert_eq!((receives[0].queue_pair_context, receives[0].kind), (1, OpKind::Receive));
    for op in [there, back, answer] {
        success(op).await;
    }
    for (context, queue) in [(3, &sent), (4, &received), (5, &sent)] {
        let config = base().shared_receives(&shared).receive_completions(queue).context(context);
        let pair = pair_with(&adapter, config).await;
        let receive = shared.receive(room(&adapter, 8)).expect("posted");
        success(pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted")).await;
        assert_eq!(contexts(&collect(queue, 1).await), [context]);
        success(receive).await;
    }
}

// HW-08: a shared receive queue does not keep the completion queues that the program has let go.
#[tokio::test]
async fn a_shared_receive_queue_lets_completion_queues_go() {
    if !alone(module_path!(), "a_shared_receive_queue_lets_completion_queues_go") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let before = number("count channel");
    for context in 0..8 {
        let queue = queue(&adapter, CompletionQueueConfig::default());
        let config = QueuePairConfig::default().shared_receives(&shared).receive_completions(&queue);
        let pair = pair_with(&adapter, config.context(context)).await;
        let receive = shared.receive(room(&adapter, 8)).expect("posted");
        success(pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted")).await;
        assert_eq!(contexts(&collect(&queue, 1).await), [context]);
        success(receive).await;
    }
    // The last one is kept until the next queue pair looks.
    eventually("the others are gone", || number("count channel") <= before + 1).await;
}

// HW-08, CQ-13: a queue that the program polls all the time has no events, but for who waits.
#[tokio::test]
async fn polled_queue_has_events_only_for_waiters() {
    if !alone(module_path!(), "polled_queue_has_events_only_for_waiters") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = calm();
    let queue = queue(&adapter, CompletionQueueConfig::default().busy_poll(true));
    let pair = received_into(&adapter, &queue, 1).await;
    let mut found = Vec::new();
    let mut receives = Vec::new();
    for count in 1..=8 {
        receives.push(send(&adapter, &pair).await);
        assert_eq!(queue.len(), 0, "no task has looked");
        assert_eq!(queue.poll(8, &mut found), 1);
        assert_eq!(found.len(), count);
    }
    // A completion that came before is told, too.
    receives.push(send(&adapter, &pair).await);
    within(queue.notify(NotifyKind::Any)).await.expect("told");
    assert_eq!(queue.poll(8, &mut found), 1);
    for _ in 0..4 {
        let mut notified = queue.notify(NotifyKind::Any);
        assert!(poll_once(&mut notified).is_pending());
        receives.push(send(&adapter, &pair).await);
        within(notified).await.expect("told");
        assert_eq!(queue.poll(8, &mut found), 1);
    }
    // A success is not what this one waits for: it is told of the failure behind it.
    let mut failed = queue.notify(NotifyKind::Errors);
    receives.push(send(&adapter, &pair).await);
    eventually("the success has come", || queue.len() == 1).await;
    assert!(poll_once(&mut failed).is_pending());
    receives.push(pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted"));
    pair.passive.queue_pair.flush();
    within(failed).await.expect("told");
    drop(receives);
}

// CQ-13: a queue that the program polls is as quiet after a wait as before it: at most one event is on its way when the wait ends.
#[tokio::test]
async fn a_polled_queue_is_quiet_after_a_wait() {
    const MESSAGES: usize = 8;
    if !alone(module_path!(), "a_polled_queue_is_quiet_after_a_wait") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = calm();
    let queue = queue(&adapter, CompletionQueueConfig::default().busy_poll(true));
    let pair = received_into(&adapter, &queue, 1).await;
    let mut notified = queue.notify(NotifyKind::Any);
    assert!(poll_once(&mut notified).is_pending());
    let mut receives = vec![send(&adapter, &pair).await];
    within(notified).await.expect("told");
    let mut found = Vec::new();
    assert_eq!(queue.poll(8, &mut found), 1);
    let mut looks = 0;
    for _ in 0..MESSAGES {
        receives.push(send(&adapter, &pair).await);
        looks += queue.len();
        assert_eq!(queue.poll(8, &mut found), 1);
    }
    assert!(looks <= 1, "a task has looked at {looks} of {MESSAGES}");
}

// HW-08: the removal of a device ends whoever waits at a queue of the program, and nothing of the queue is left.
#[tokio::test]
async fn a_removal_ends_the_queues_of_the_program() {
    if !alone(module_path!(), "a_removal_ends_the_queues_of_the_program") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let all = [false, true].map(|busy| queue(&adapter, CompletionQueueConfig::default().busy_poll(busy)));
    let pair = received_into(&adapter, &all[0], 1).await;
    let waiting = all.each_ref().map(|queue| queue.notify(NotifyKind::Any));
    fake("remove");
    for notified in waiting {
        within(notified).await.expect_err("no device");
    }
    assert!(adapter.completion_queue(CompletionQueueConfig::default()).is_err());
    drop(pair);
    // The handles of the program do not keep the device.
    for kind in ["cq", "channel", "context"] {
        eventually(kind, || number(&format!("count {kind}")) == 0).await;
    }
    drop(all);
}

// HW-08: a panic of a waker ends the task that completes requests. Whoever waits there is told, and does not wait for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_while_requests_complete_leaves_nobody_waiting() {
    if !alone(module_path!(), "a_panic_while_requests_complete_leaves_nobody_waiting") {
        return;
    }
    let Some(_) = fake("forgive") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    // In the same completion queues as the others: there are as many groups as threads.
    let others = [connected(&adapter).await, connected(&adapter).await];
    let waiting = others.each_ref().map(|pair| {
        let ends = [&pair.active, &pair.passive];
        ends.map(|end| end.queue_pair.receive(room(&adapter, 8)).expect("posted"))
    });
    let mut receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    assert!(poll_with(&mut receive, &panicking_waker()).is_pending());
    let _sent = pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted");
    for op in waiting.into_iter().flatten() {
        assert_eq!(failure(op).await, Status::CANCELED);
    }
}

// HW-08: the queue pairs that complete through futures need a descriptor for each thread of the runtime at most, and do without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_pairs_need_no_descriptor() {
    if !alone(module_path!(), "queue_pairs_need_no_descriptor") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let files: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    assert!(files.len() as u64 <= limit);
    let queue_pairs: Vec<_> = (0..8).map(|_| queue_pair(&adapter)).collect();
    let error = adapter.completion_queue(CompletionQueueConfig::default()).expect_err("it has a channel");
    assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    drop(files);
    drop(queue_pairs);
    let pair = connected(&adapter).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

// HW-07 HW-08: shared receives have room once for all queue pairs that complete through futures, whichever thread those are for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_receives_have_room_in_one_group() {
    const DEPTH: usize = 4096;
    if !alone(module_path!(), "shared_receives_have_room_in_one_group") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(DEPTH)).expect("a queue");
    let before = number("count cqe");
    let config = || QueuePairConfig::default().shared_receives(&shared).send_depth(1);
    let mut pairs = Vec::new();
    for _ in 0..8 {
        pairs.push(pair_with(&adapter, config()).await);
    }
    let more = number("count cqe") - before;
    assert!(more < 2 * DEPTH as i64, "{more}");
    for pair in &pairs {
        let receive = shared.receive(room(&adapter, 8)).expect("posted");
        success(pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted")).await;
        assert_eq!(&success(receive).await.1[..], b"received");
    }
}

// SRQ-01, HW-03: a queue pair that no connection has used takes no receive of its shared queue. Its end waits for none.
#[tokio::test]
async fn an_unused_queue_pair_waits_for_no_receive() {
    if !alone(module_path!(), "an_unused_queue_pair_waits_for_no_receive") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let unused =
        adapter.queue_pair(QueuePairConfig::default().shared_receives(&shared)).expect("a queue pair");
    assert_eq!(number("count qp"), 1);
    drop(unused);
    assert_eq!(number("count qp"), 0, "it is gone when the drop returns");
}

// HW-05: a queue pair without requests is destroyed as it is, where the driver leaves its states to the provider.
#[tokio::test]
async fn idle_queue_pairs_are_destroyed_without_a_change() {
    if !alone(module_path!(), "idle_queue_pairs_are_destroyed_without_a_change") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    if adapter.info().iwarp {
        return skipped("the driver connects and ends the queue pairs");
    }
    let [idle, busy] = [(); 2].map(|()| queue_pair(&adapter));
    let receive = busy.receive(room(&adapter, 8)).expect("posted");
    fake("reset");
    drop(idle);
    assert_eq!((number("calls ibv_modify_qp"), number("calls ibv_destroy_qp")), (0, 1));
    drop(busy);
    assert_eq!((number("calls ibv_modify_qp"), number("calls ibv_destroy_qp")), (1, 2));
    assert_eq!(failure(receive).await, Status::CANCELED);
}

// CQ-07, ERR-09: a receive too many is refused by its depth, and the device is not asked.
#[tokio::test]
async fn a_full_receive_queue_is_not_posted_to() {
    const DEPTH: usize = 2;
    if !alone(module_path!(), "a_full_receive_queue_is_not_posted_to") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let queue_pair =
        adapter.queue_pair(QueuePairConfig::default().receive_depth(DEPTH)).expect("a queue pair");
    let receive = || queue_pair.receive(room(&adapter, 8));
    let _receives = [(); DEPTH].map(|()| receive().expect("there is room"));
    fake("reset");
    let error = receive().expect_err("one too many");
    assert_eq!(error.kind, PostErrorKind::QueueFull { queue: QueueKind::Receive, depth: DEPTH });
    assert_eq!(number("calls ibv_post_recv"), 0);
}

// ERR-09: more bytes than a message can have, in several parts of a region, are refused with the limit.
#[tokio::test]
async fn a_message_longer_than_the_limit_is_refused() {
    if !alone(module_path!(), "a_message_longer_than_the_limit_is_refused") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let maximum = adapter.info().max_transfer;
    let half = adapter.register(maximum / 2 + 1, Access::empty()).await.expect("registered");
    let part = |length| Entry::from(half.slice(0..length).expect("within"));
    let parts = vec![part(maximum / 2), part(maximum / 2 + 1)];
    let error = pair.active.queue_pair.send(parts).map(drop).expect_err("too long");
    assert_eq!(error.kind, PostErrorKind::TooLong { length: maximum + 1, maximum });
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}
