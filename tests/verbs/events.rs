//! Asynchronous events of a device: completion overrun, shared receive queues in error, ports that go down, failure, removal.
//!
//! Runs on: fake, fake-iwarp

use std::time::Duration;

use common::cm::exchange;
use common::life::eventually;
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::verbs::{fake, fake_reset, hold, nothing_is_left};
use common::*;
use futures::future::join_all;
use tokio_rdma::error::DisconnectError;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, DisconnectReason, Op, QueuePairConfig, SharedReceiveConfig,
    SharedReceiveQueue, Status, WorkBuffer,
};

/// A message arrives in a receive of the shared queue.
async fn exchange_shared(adapter: &Adapter, queue: &SharedReceiveQueue, pair: &Pair) {
    let receive = queue.receive(room(adapter, 8)).expect("posted");
    success(pair.active.queue_pair.send(bytes(adapter, b"received")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"received");
}

/// A connected pair whose passive end has these settings.
async fn pair_with(adapter: &Adapter, config: QueuePairConfig) -> Pair {
    let passive = adapter.queue_pair(config).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, queue_pair(adapter), passive, connect, accept).await
}

/// The connection ends at both sides because of what the device says: each is told so, unless its peer was faster.
async fn is_lost(pair: &Pair) {
    let reasons = [
        within(pair.active.connection.disconnected()).await,
        within(pair.passive.connection.disconnected()).await,
    ];
    let lost = |reason: &DisconnectReason| matches!(reason, DisconnectReason::Lost { .. });
    assert!(reasons.iter().any(lost), "{reasons:?}");
    assert!(reasons.iter().all(|reason| lost(reason) || *reason == DisconnectReason::Peer), "{reasons:?}");
}

/// The status of a request, which ends.
async fn ended<B: WorkBuffer>(op: Op<B>) -> (Status, B) {
    let (outcome, buffer) = within(op).await;
    (outcome.map_or_else(|error| error.status(), |_| Status::SUCCESS), buffer)
}

// HW-16: a completion queue that has lost a completion ends the connections that use it, and no others. What is made later uses
// another one.
#[tokio::test]
async fn an_overrun_ends_the_connections_of_its_queue() {
    if !alone(module_path!(), "an_overrun_ends_the_connections_of_its_queue") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let hit = connected(&adapter).await;
    let unconnected = queue_pair(&adapter);
    // There is no room for this depth in the queues of the others, which are made first.
    let deep = || adapter.queue_pair(QueuePairConfig::default().send_depth(1000)).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let other = connected_queue_pairs(&adapter, deep(), deep(), connect, accept).await;
    let posted = unconnected.receive(room(&adapter, 8)).expect("posted");
    let receives = [(); 3].map(|()| hit.passive.queue_pair.receive(room(&adapter, 8)).expect("posted"));
    fake("overrun 1");
    let sent = hit.active.queue_pair.send(bytes(&adapter, b"lost")).expect("posted");
    is_lost(&hit).await;
    let _ = ended(sent).await;
    for receive in receives {
        let (status, buffer) = ended(receive).await;
        assert_ne!(status, Status::SUCCESS);
        assert_eq!(buffer.len(), 8);
    }
    assert_eq!(ended(posted).await.0, Status::INTERNAL_ERROR);
    exchange(&adapter, &other.active.queue_pair, &other.passive.queue_pair).await;
    for _ in 0..3 {
        let pair = connected(&adapter).await;
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    }
    drop((hit, other, unconnected, adapter));
    nothing_is_left().await;
}

// HW-16: the receives of a shared queue that are posted after the overrun complete where something looks for them.
#[tokio::test]
async fn shared_receive_queue_survives_completion_overrun() {
    if !alone(module_path!(), "shared_receive_queue_survives_completion_overrun") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(8)).expect("a queue");
    let config = || QueuePairConfig::default().shared_receives(&queue);
    let pair = pair_with(&adapter, config()).await;
    exchange_shared(&adapter, &queue, &pair).await;
    let lost = queue.receive(room(&adapter, 8)).expect("posted");
    fake("overrun 1");
    let sent = pair.active.queue_pair.send(bytes(&adapter, b"lost")).expect("posted");
    is_lost(&pair).await;
    let _ = ended(sent).await;
    drop(pair);
    for _ in 0..2 {
        let pair = pair_with(&adapter, config()).await;
        exchange_shared(&adapter, &queue, &pair).await;
    }
    // A longer queue has room in the new one.
    queue.modify(Some(16), None).expect("longer");
    let pair = pair_with(&adapter, config()).await;
    exchange_shared(&adapter, &queue, &pair).await;
    // The device has not said what has become of the receive.
    drop((pair, queue));
    assert_eq!(ended(lost).await.0, Status::CANCELED);
    drop(adapter);
    nothing_is_left().await;
}

// HW-16: a shared receive queue that the device has lost ends its connections, and its receives come back.
#[tokio::test]
async fn lost_shared_receive_queue_returns_its_receives() {
    if !alone(module_path!(), "lost_shared_receive_queue_returns_its_receives") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let new = || adapter.shared_receive_queue(SharedReceiveConfig::default().depth(4)).expect("a queue");
    let queue = new();
    let pair = pair_with(&adapter, QueuePairConfig::default().shared_receives(&queue)).await;
    let receives = [(); 4].map(|()| queue.receive(room(&adapter, 8)).expect("posted"));
    let other = connected(&adapter).await;
    fake("lose shared_queues");
    let reason = within(pair.passive.connection.disconnected()).await;
    assert!(matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
    for receive in receives {
        let (status, buffer) = ended(receive).await;
        assert_eq!((status, buffer.len()), (Status::CANCELED, 8));
    }
    assert!(queue.receive(room(&adapter, 8)).is_err());
    exchange(&adapter, &other.active.queue_pair, &other.passive.queue_pair).await;
    let queue = new();
    let pair = pair_with(&adapter, QueuePairConfig::default().shared_receives(&queue)).await;
    exchange_shared(&adapter, &queue, &pair).await;
}

// HW-16: connections outlive a port that is down for a moment. A connect while it is down fails and says that nobody can be
// reached, and the same connector and queue pair connect later.
#[tokio::test]
async fn a_port_goes_down_and_comes_up() {
    if !alone(module_path!(), "a_port_goes_down_and_comes_up") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (listener, address) = listening(&adapter);
    let (connector, active, passive) = (adapter.connector(), queue_pair(&adapter), queue_pair(&adapter));
    let kept = active.receive(room(&adapter, 8)).expect("posted");
    for _ in 0..2 {
        fake("port 1 down");
        let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        let sent = pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted");
        let error = within(connector.connect(&active, address, ConnectParams::default())).await;
        assert_eq!(error.map(drop).expect_err("no port").status(), Status::HOST_UNREACHABLE);
        assert!(pair.active.connection.is_connected() && pair.passive.connection.is_connected());
        fake("port 1 up");
        success(sent).await;
        assert_eq!(&success(receive).await.1[..], b"received");
    }
    assert!(!adapter.is_removed());
    let (near, _far) = joined(
        connector.connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    if adapter.info().passive_sends_first {
        success(passive.send(bytes(&adapter, b"received")).expect("posted")).await;
        assert_eq!(&success(kept).await.1[..], b"received");
    } else {
        success(active.send(()).expect("posted")).await;
        drop(near);
        assert_eq!(failure(kept).await, Status::CANCELED);
    }
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

/// Connections with requests pending on both sides, one of them with messages that have found no receive.
async fn loaded(adapter: &Adapter, count: usize) -> (Vec<Pair>, Vec<Op<tokio_rdma::Buffer>>) {
    let (mut pairs, mut pending) = (Vec::new(), Vec::new());
    for number in 0..count {
        let pair = connected(adapter).await;
        exchange(adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
        let [active, passive] = [&pair.active, &pair.passive].map(|end| &end.queue_pair);
        for _ in 0..4 {
            pending.push(passive.receive(room(adapter, 64)).expect("posted"));
            // Without a receive a message over iWARP ends its connection.
            if number % 2 == 0 && !adapter.info().iwarp {
                pending.push(passive.send(bytes(adapter, b"waits")).expect("posted"));
            } else {
                pending.push(active.receive(room(adapter, 64)).expect("posted"));
            }
        }
        pairs.push(pair);
    }
    (pairs, pending)
}

/// Sends messages and writes on every pair for as long as that goes well.
fn traffic(
    adapter: &Adapter,
    pairs: &[Pair],
    region: &tokio_rdma::Region,
) -> Vec<tokio::task::JoinHandle<()>> {
    let run = |pair: &Pair| {
        let (queue, adapter, remote) = (pair.active.queue_pair.clone(), adapter.clone(), region.remote());
        tokio::spawn(async move {
            loop {
                let Ok(buffer) = adapter.buffer(32) else { return };
                let Ok(write) = queue.write(buffer, &remote) else { return };
                if write.await.0.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        })
    };
    pairs.iter().map(run).collect()
}

// HW-16: a device is taken out while many connections have requests pending, some of them in the middle of traffic, one
// connect is under way and one is accepted: all of it ends, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_removed_under_load() {
    const PAIRS: usize = 64;
    if !alone(module_path!(), "a_device_is_removed_under_load") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (pairs, pending) = loaded(&adapter, PAIRS).await;
    let region = adapter.register(4096, Access::REMOTE_WRITE).await.expect("registered");
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let sharing = pair_with(&adapter, QueuePairConfig::default().shared_receives(&queue)).await;
    let shared = [(); 16].map(|()| queue.receive(room(&adapter, 8)).expect("posted"));
    let tasks = traffic(&adapter, &pairs, &region);
    exchange_shared_later(&adapter, &sharing).await;
    fake("remove");
    for task in tasks {
        within(task).await.expect("no panic");
    }
    for op in pending {
        let (status, buffer) = ended(op).await;
        assert!(matches!(status, Status::DEVICE_REMOVED | Status::CANCELED), "{status:?}");
        assert!(!buffer.is_empty(), "the device has nothing any more");
    }
    for pair in pairs.iter().chain([&sharing]) {
        for end in [&pair.active, &pair.passive] {
            let reason = within(end.connection.disconnected()).await;
            assert_eq!(reason, DisconnectReason::DeviceRemoved);
        }
    }
    drop((pairs, sharing, queue, region, adapter));
    for (status, _) in within(join_all(shared.map(ended))).await {
        assert!(matches!(status, Status::SUCCESS | Status::DEVICE_REMOVED), "{status:?}");
    }
    nothing_is_left().await;
}

// AD-05: whatever else happens to a connection while the device is being removed, the removal is the reason of its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_failure_during_a_removal_is_no_loss() {
    if !alone(module_path!(), "a_failure_during_a_removal_is_no_loss") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let pairs = [connected(&adapter).await, connected(&adapter).await];
    let _held = hold("ibv_destroy_qp");
    fake("remove");
    // A second one is held if the call that connected had the queue pair last.
    eventually("the end of a connection is held", || fake("held") >= Some(1)).await;
    assert!(adapter.is_removed());
    // It has a thread of its own, so that the test ends where the call is held.
    let flushed = pairs[1].active.queue_pair.clone();
    within(tokio::task::spawn_blocking(move || flushed.flush())).await.expect("no panic");
    let leaving = tokio::spawn(pairs[1].passive.connection.disconnect());
    fake("reset");
    assert_eq!(within(leaving).await.expect("no panic"), Err(DisconnectError::DeviceRemoved));
    for end in pairs.iter().flat_map(|pair| [&pair.active, &pair.passive]) {
        let error = within(end.connection.disconnect()).await.expect_err("there is no device");
        assert_eq!(error, DisconnectError::DeviceRemoved);
    }
    let ends = [&pairs[0].active, &pairs[0].passive, &pairs[1].active];
    for end in ends {
        assert_eq!(within(end.connection.disconnected()).await, DisconnectReason::DeviceRemoved);
    }
    drop((pairs, adapter));
    nothing_is_left().await;
}

/// A message to a pair whose passive end has shared receives.
async fn exchange_shared_later(adapter: &Adapter, pair: &Pair) {
    success(pair.active.queue_pair.send(bytes(adapter, b"first")).expect("posted")).await;
}

// HW-16: a device fails while there is traffic. No command of it succeeds any more, so that its queue pairs cannot be destroyed, and it
// writes on. All requests end, and what they give back is memory that it does not write to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_device_writes_no_returned_memory() {
    const PAIRS: usize = 16;
    if !alone(module_path!(), "failed_device_writes_no_returned_memory") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (pairs, pending) = loaded(&adapter, PAIRS).await;
    let region = adapter.register(4096, Access::REMOTE_WRITE).await.expect("registered");
    let tasks = traffic(&adapter, &pairs, &region);
    tokio::task::yield_now().await;
    fake("fatal");
    for task in tasks {
        within(task).await.expect("no panic");
    }
    let mut returned = Vec::new();
    for op in pending {
        let (status, buffer) = ended(op).await;
        assert!(matches!(status, Status::DEVICE_REMOVED | Status::CANCELED), "{status:?}");
        returned.push(buffer);
    }
    for pair in &pairs {
        for end in [&pair.active, &pair.passive] {
            assert_eq!(within(end.connection.disconnected()).await, DisconnectReason::DeviceRemoved);
        }
    }
    assert!(adapter.is_removed());
    drop((pairs, region, adapter));
    // The allocator has used again what was freed.
    let others: Vec<_> = (0..1000).map(|_| vec![0_u8; 64]).collect();
    assert!(fake("scribble") >= Some(64), "the device has receives");
    assert!(
        others.iter().flatten().all(|byte| *byte == 0),
        "the device has written to memory that was freed"
    );
    for buffer in &returned {
        assert!(
            buffer.iter().all(|byte| *byte != 0xee),
            "the device has written to memory that was given back"
        );
    }
}

// HW-16: the word of a failure comes while connects are under way, and all of them end with it.
#[tokio::test]
async fn a_device_that_fails_ends_connects_and_accepts() {
    if !alone(module_path!(), "a_device_that_fails_ends_connects_and_accepts") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    let kept = active.receive(room(&adapter, 8)).expect("posted");
    let waiting = connector.connect(&active, address, ConnectParams::default());
    let failing = async {
        let request = listener.request().await.expect("the connect above");
        fake("fatal");
        let error = within(listener.request()).await.map(drop).expect_err("no device");
        (request, error.status())
    };
    let (waited, (_request, status)) = within(async { tokio::join!(waiting, failing) }).await;
    assert_eq!(waited.map(drop).expect_err("no device").status(), Status::DEVICE_REMOVED);
    assert_eq!(status, Status::DEVICE_REMOVED);
    assert_eq!(ended(kept).await.0, Status::DEVICE_REMOVED);
    let again = tokio::time::timeout(
        Duration::from_secs(60),
        connector.connect(&active, address, ConnectParams::default()),
    );
    assert_eq!(
        again.await.expect("at once").map(drop).expect_err("no device").status(),
        Status::DEVICE_REMOVED
    );
}

// HW-16: the device loses a completion while a queue pair is made whose completions have room in the same queue: nothing would look
// for them, so it ends at once.
#[tokio::test]
async fn an_overrun_ends_queue_pairs_in_the_making() {
    if !alone(module_path!(), "an_overrun_ends_queue_pairs_in_the_making") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let hit = connected(&adapter).await;
    let _receive = hit.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    fake("hold ibv_create_qp");
    let making = tokio::task::spawn_blocking({
        let adapter = adapter.clone();
        move || adapter.queue_pair(QueuePairConfig::default())
    });
    eventually("it is being made", || fake("held") == Some(1)).await;
    fake("overrun 1");
    let _sent = hit.active.queue_pair.send(bytes(&adapter, b"lost")).expect("posted");
    is_lost(&hit).await;
    fake("reset");
    let made = within(making).await.expect("no panic").expect("a queue pair");
    let (status, _) = ended(made.receive(room(&adapter, 8)).expect("it comes back")).await;
    assert_ne!(status, Status::SUCCESS);
    drop((made, hit));
    let pair = connected(&adapter).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

// AD-05: the removal of the device wakes the tasks that wait for requests.
#[tokio::test]
async fn a_removal_wakes_who_waits_for_requests() {
    if !alone(module_path!(), "a_removal_wakes_who_waits_for_requests") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (listener, _) = listening(&adapter);
    let waiting = [(); 2].map(|()| {
        let listener = listener.clone();
        tokio::spawn(async move { listener.request().await.map(drop) })
    });
    // The tasks run up to their waits.
    tokio::task::yield_now().await;
    fake("remove");
    for waiting in waiting {
        let error = within(waiting).await.expect("no panic").expect_err("there is no device");
        assert_eq!(error.status(), Status::DEVICE_REMOVED);
    }
}

// HW-03: the event of the last receive ends the wait for it. The clock of the runtime stands still, so no time limit does.
#[tokio::test]
async fn the_last_receive_ends_the_wait_for_it() {
    if !alone(module_path!(), "the_last_receive_ends_the_wait_for_it") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let pair = pair_with(&adapter, QueuePairConfig::default().shared_receives(&queue)).await;
    exchange_shared(&adapter, &queue, &pair).await;
    tokio::time::pause();
    drop(pair);
    let begun = std::time::Instant::now();
    while fake("count qp") != Some(0) {
        assert!(begun.elapsed() < patience(), "it waits for no event");
        // A runtime with a task that can go on does not advance the clock.
        tokio::task::yield_now().await;
    }
}
