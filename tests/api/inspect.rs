//! Snapshots: planted hangs, each of which the snapshot names.
//!
//! Runs on: soft, sim, rxe, siw

use common::cm::{abandon, connecting, half_open, requested};
use common::life::eventually;
use common::raw::{bytes, room, success};
use common::*;
use tokio_rdma::inspect::{self, ConnectionReport, ConnectionState, Snapshot};
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneState, Local, Slot};
use tokio_rdma::{
    AcceptParams, Access, CompletionQueueConfig, ConnectParams, NotifyKind, ProviderKind, QueuePairConfig,
    SharedReceiveConfig, WorkOptions,
};

/// Returns what a snapshot tells of a connection.
fn report(id: tokio_rdma::types::ConnectionId) -> ConnectionReport {
    let Snapshot { connections, .. } = inspect::snapshot();
    connections.into_iter().find(|connection| connection.id == id.0).expect("it exists")
}

/// Returns why a connection waits.
fn cause(id: tokio_rdma::types::ConnectionId) -> String {
    report(id).waits_for.unwrap_or_default()
}

// OBS-03: whose decision it is that both ends wait for.
#[tokio::test]
async fn a_request_waits_for_the_decision_of_the_program() {
    let asked = requested(&adapter(), v4(), ConnectParams::default()).await;
    let (request, connector) = (asked.request.id(), asked.connector.id());
    assert!(cause(request).starts_with("request pending: the program has neither accepted nor rejected"));
    assert!(cause(connector).starts_with("connect pending: the peer has not answered for"));
    assert_eq!(report(request).peer.map(|peer| peer.ip()), Some(v4()));
    drop(asked.request);
    let _ = within(asked.connecting).await;
}

// OBS-03: an accept without its completion.
#[tokio::test]
async fn an_accept_waits_for_the_completion_of_the_peer() {
    let adapter = adapter();
    if !adapter.info().three_phase {
        return device::skipped("the reply establishes the connection already");
    }
    let half = half_open(&adapter, v4()).await;
    let reply = half.connector.id();
    assert!(cause(reply).starts_with("reply pending: the program has neither completed nor rejected"));
    let accepting = |snapshot: &Snapshot| {
        let is_here = |report: &&ConnectionReport| {
            report.state == ConnectionState::Accepting && report.peer == half.connector.local_addr().ok()
        };
        snapshot.connections.iter().find(is_here).and_then(|report| report.waits_for.clone())
    };
    let why = accepting(&inspect::snapshot()).expect("it is accepting");
    assert!(why.starts_with("accept pending: the peer has not completed for"), "{why}");
    drop(half.reply);
    let _ = within(half.accepting).await;
}

// OBS-03: nobody takes requests.
#[tokio::test]
async fn requests_wait_for_a_program_that_takes_none() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let connector = std::sync::Arc::new(adapter.connector());
    let connecting = connecting(&connector, &queue_pair(&adapter), address, ConnectParams::default());
    let why = || {
        let Snapshot { listeners, .. } = inspect::snapshot();
        let report = listeners.into_iter().find(|report| report.local == Some(address));
        report.and_then(|report| report.waits_for).unwrap_or_default()
    };
    eventually("a request waits", || why().starts_with("1 request waits: the program has taken none for"))
        .await;
    drop(listener);
    abandon(connecting).await;
}

// OBS-03: a read of which the peer's host has not heard yet, and its length and age.
#[tokio::test]
async fn requests_are_listed_with_length_and_age() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 48)).expect("posted");
    let report = report(pair.passive.connection.id());
    let queue = report.queue_pair.expect("it is connected").receives;
    assert_eq!((queue.outstanding, queue.uncollected), (1, 0));
    assert_eq!((&*queue.oldest[0].kind, queue.oldest[0].bytes), ("Receive", 48));
    let why = report.waits_for.expect("it waits");
    assert!(why.starts_with("1 receive posted: no message has come for the oldest in"), "{why}");
    success(pair.active.queue_pair.send(bytes(&adapter, b"message")).expect("posted")).await;
    let done = || cause(pair.passive.connection.id());
    eventually("it has come", || done() == "1 request completed: the program has not taken the results")
        .await;
    success(receive).await;
    let report = self::report(pair.passive.connection.id());
    assert_eq!(report.queue_pair.expect("it is connected").receives.completed, 1);
    let report = self::report(pair.active.connection.id());
    assert_eq!(report.queue_pair.expect("it is connected").sends.completed, 1);
}

// OBS-03: a completion that nobody is told of, as the program waits without a notification, or for another kind.
#[tokio::test]
async fn completions_wait_for_a_program_that_was_not_notified() {
    let adapter = adapter();
    // No other queue has this depth.
    let queue = adapter.completion_queue(CompletionQueueConfig::default().depth(61)).expect("a queue");
    let passive = adapter.queue_pair(QueuePairConfig::default().receive_completions(&queue)).expect("made");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
    let _receive = pair.passive.queue_pair.receive(room(&adapter, 16)).expect("posted");
    success(pair.active.queue_pair.send(bytes(&adapter, b"message")).expect("posted")).await;
    let why = || {
        let Snapshot { completion_queues, .. } = inspect::snapshot();
        let report = completion_queues.into_iter().find(|report| report.depth == 61).expect("it exists");
        report.waits_for.unwrap_or_default()
    };
    let nobody = |why: String| {
        why.starts_with("1 completion not polled for") && why.ends_with("no task waits for a notification")
    };
    eventually("a completion waits", || nobody(why())).await;
    let _notified = queue.notify(NotifyKind::Errors);
    assert!(why().ends_with("the tasks that wait are not notified of these"), "{}", why());
    let mut results = Vec::new();
    queue.poll(16, &mut results);
    assert_eq!(why(), "");
}

// OBS-03: a message that finds no shared receive. On soft it waits at the receiver, which says so; on a device at the sender, whose
// device repeats it.
#[tokio::test]
async fn a_message_waits_for_a_shared_receive() {
    let adapter = adapter();
    if !adapter.info().waits_for_shared_receives {
        return device::skipped("the device ends the connection");
    }
    // No other queue has this depth.
    let config = SharedReceiveConfig::default().depth(59);
    let queue = adapter.shared_receive_queue(config).expect("a queue");
    let passive = adapter.queue_pair(QueuePairConfig::default().shared_receives(&queue)).expect("made");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
    let send = pair.active.queue_pair.send(bytes(&adapter, b"message")).expect("posted");
    let why = || {
        let Snapshot { connections, shared_receive_queues, .. } = inspect::snapshot();
        let of = |end: &End| {
            let report =
                connections.iter().find(|report| report.id == end.connection.id().0).expect("it exists");
            report.waits_for.clone().unwrap_or_default()
        };
        let queue = shared_receive_queues.into_iter().find(|report| report.depth == 59).expect("it exists");
        (of(&pair.active), of(&pair.passive), queue.waits_for.unwrap_or_default())
    };
    let is_soft = adapter.info().provider == ProviderKind::Soft;
    let is_named = |(active, passive, queue): &(String, String, String)| {
        if is_soft {
            passive == "shared receive queue empty: a message of the peer waits for a receive"
                && queue == "empty: 1 connection with a message for it"
        } else {
            active.starts_with("Send of 7 bytes pending: the device has not completed it for")
                && active.ends_with("the peer may have posted no receive")
        }
    };
    eventually("a message waits", || is_named(&why())).await;
    success(queue.receive(room(&adapter, 16)).expect("posted")).await;
    success(send).await;
    eventually("it has come", || !is_named(&why())).await;
}

// OBS-03: a lane whose owner does something else.
#[tokio::test]
async fn a_lane_waits_for_a_program_that_does_not_poll() {
    let adapter = adapter();
    // No other lane has as many slots.
    let mut lane = adapter.lane(&LaneConfig::new(57, 64)).expect("a lane");
    let (id, _end) = lane.queue_pair().expect("a queue pair");
    let slot = lane.take().expect("a slot");
    lane.receive(id, slot).expect("posted");
    let _ = lane.poll(&mut [Done::EMPTY]).expect("polled");
    let report = || {
        let Snapshot { lanes, .. } = inspect::snapshot();
        lanes.into_iter().find(|report| report.slots == 57).expect("it exists")
    };
    let why = || report().waits_for.unwrap_or_default();
    eventually("it is seen", || why().starts_with("1 request outstanding: the program has not polled for"))
        .await;
    let before = report().polls;
    let _ = lane.poll(&mut [Done::EMPTY]).expect("polled");
    assert_eq!((report().polls, why()), (before + 1, String::new()));
}

// OBS-03: each call that rings the doorbell leaves the number of requests, also without a poll.
#[tokio::test]
async fn lane_report_counts_requests_of_each_doorbell() {
    let adapter = adapter();
    // No other lane has as many slots.
    let mut lane = adapter.lane(&LaneConfig::new(61, 64)).expect("a lane");
    let (id, end) = lane.queue_pair().expect("a queue pair");
    let peer = queue_pair(&adapter);
    let _receives: Vec<_> = (0..5).map(|_| peer.receive(room(&adapter, 64)).expect("posted")).collect();
    let (listener, address) = listening(&adapter);
    let connector = adapter.connector();
    let connecting = connector.connect_and_complete(&end, address, ConnectParams::default());
    let _ends = joined(connecting, listener.accept_next(&peer, AcceptParams::default())).await;
    assert_eq!(lane.state(id), LaneState::Connected);
    let slots: [Slot; 7] = std::array::from_fn(|_| lane.take().expect("a slot"));
    let reported = |lane: &Lane, expected: usize| {
        let Snapshot { lanes, .. } = inspect::snapshot();
        let report = lanes.into_iter().find(|report| report.slots == 61).expect("it exists");
        assert_eq!((report.outstanding, lane.outstanding() as usize), (expected, expected));
    };
    lane.receive_all(id, [slots[0], slots[1]]).expect("posted");
    reported(&lane, 2);
    lane.send_all(id, [(slots[2], 8), (slots[3], 8)]).expect("posted");
    reported(&lane, 4);
    lane.send(id, slots[4], 8).expect("posted");
    lane.ring();
    reported(&lane, 5);
    lane.send_now(id, slots[5], 8).expect("posted");
    reported(&lane, 6);
    lane.send_with(id, Local::Slots(&[(slots[6], 0..8)]), WorkOptions::default()).expect("posted");
    reported(&lane, 7);
}

// OBS-03: what has ended is in no snapshot.
#[tokio::test]
async fn objects_leave_the_snapshot_with_their_last_handle() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
    let ids = [pair.active.connection.id(), pair.passive.connection.id()];
    let count = || {
        let Snapshot { connections, .. } = inspect::snapshot();
        connections.iter().filter(|report| ids.iter().any(|id| id.0 == report.id)).count()
    };
    assert_eq!(count(), 2);
    drop((pair, region));
    eventually("they are gone", || count() == 0).await;
}

// OBS-03: a task that waited for completions was dropped.
#[tokio::test]
async fn a_lane_whose_wait_was_dropped_is_not_polled() {
    let adapter = adapter();
    // No other lane has as many slots.
    let mut lane = adapter.lane(&LaneConfig::new(53, 64)).expect("a lane");
    let report = || {
        let Snapshot { lanes, .. } = inspect::snapshot();
        lanes.into_iter().find(|report| report.slots == 53).expect("it exists")
    };
    {
        let mut done = [Done::EMPTY];
        let mut ready = std::pin::pin!(lane.ready(&mut done));
        assert!(futures::poll!(&mut ready).is_pending());
        assert!(report().is_waiting);
    }
    assert!(!report().is_waiting);
}
