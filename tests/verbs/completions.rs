//! Polls of completion queues that fail or end early, and what a device says of a failure beside its status.
//!
//! Runs on: fake

use common::cm::exchange;
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::results::collect;
use common::stream::streams;
use common::verbs::{fake, nothing_is_left};
use common::*;
use tokio_rdma::error::{CompletionError, Reason, WcError};
use tokio_rdma::status::porting::CmEvent;
use tokio_rdma::status::{DeviceEvent, WcStatus};
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, CompletionQueueConfig, ConnectParams, DisconnectReason, QueuePairConfig,
    RemoteRegion, SharedReceiveConfig, Status, WorkOptions,
};

// HW-16: a poll that fails has taken the completions in front of the one that it cannot read. They are delivered, and the connections
// of the queue end, because nothing is known of the request whose completion is lost.
#[tokio::test]
async fn a_failing_poll_delivers_the_completions_before_it() {
    if !alone(module_path!(), "a_failing_poll_delivers_the_completions_before_it") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let hit = connected(&adapter).await;
    // There is no room for this depth in the queue of the first pair.
    let deep = || adapter.queue_pair(QueuePairConfig::default().send_depth(1000)).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let other = connected_queue_pairs(&adapter, deep(), deep(), connect, accept).await;
    let [one, two, three] =
        [(); 3].map(|()| hit.passive.queue_pair.receive(room(&adapter, 8)).expect("posted"));
    // Each message is a completion of the receive, and then one of the send.
    fake("spoil 3");
    let [first, second, third] = [b"first", b"other", b"third"]
        .map(|text| hit.active.queue_pair.send(bytes(&adapter, text)).expect("posted"));
    assert_eq!(&success(one).await.1[..5], b"first");
    success(first).await;
    let reasons = [
        within(hit.active.connection.disconnected()).await,
        within(hit.passive.connection.disconnected()).await,
    ];
    assert!(reasons.iter().any(|reason| matches!(reason, DisconnectReason::Lost { .. })), "{reasons:?}");
    // The third completion was that of this receive: its id was stored, and no status.
    let (outcome, buffer) = within(two).await;
    outcome.expect_err("its completion could not be read");
    assert!(!buffer.is_empty(), "the buffer comes back");
    drop(buffer);
    for op in [three, second, third] {
        assert!(!within(op).await.1.is_empty(), "the buffer comes back");
    }
    exchange(&adapter, &other.active.queue_pair, &other.passive.queue_pair).await;
    // What is made later uses another queue.
    for _ in 0..3 {
        let pair = connected(&adapter).await;
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    }
    drop((hit, other, adapter));
    nothing_is_left().await;
}

// HW-16: a poll may end where the completion queue was resized. A connection that ends then has all messages that have arrived.
#[tokio::test]
async fn queue_resize_hides_no_message_at_end() {
    if !alone(module_path!(), "queue_resize_hides_no_message_at_end") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(4)).expect("a queue");
    // The completion queue of the shared receives is resized with them.
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let config = || QueuePairConfig::default().receive_completions(&results);
    let sharing = adapter.queue_pair(config().shared_receives(&queue)).expect("a queue pair");
    fake("cut off");
    for (before, depth) in [(0, 8), (1, 16), (2, 32)] {
        let passive = adapter.queue_pair(config()).expect("a queue pair");
        let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
        let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, connect, accept).await;
        let receives = [(); 3].map(|()| pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted"));
        let resizes = fake("calls ibv_resize_cq");
        // No task has a turn until the end.
        let sends = [0, 1, 2].map(|number| {
            if number == before {
                queue.modify(Some(depth), None).expect("longer");
            }
            pair.active.queue_pair.send(bytes(&adapter, &[number; 8])).expect("posted")
        });
        assert!(fake("calls ibv_resize_cq") > resizes, "a queue was resized");
        pair.passive.queue_pair.flush();
        assert_eq!(collect(&results, 3).await.len(), 3);
        for (number, receive) in (0..).zip(receives) {
            assert_eq!(success(receive).await.1[..], [number; 8], "{before} before");
        }
        drop(sends);
    }
    drop((sharing, queue));
}

// QP-11: no device says which of the messages that have arrived was solicited, so only the fake one shows that the flag goes out.
#[tokio::test]
async fn a_solicited_request_asks_for_a_solicited_event() {
    if !alone(module_path!(), "a_solicited_request_asks_for_a_solicited_event") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (sender, receiver) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
    for (options, count) in
        [(WorkOptions::default(), 0), (WorkOptions::default().solicited(), 1), (WorkOptions::default(), 1)]
    {
        let receive = receiver.receive(room(&adapter, 8)).expect("posted");
        success(sender.send_with(bytes(&adapter, b"received"), options).expect("posted")).await;
        success(receive).await;
        assert_eq!(fake("solicited"), Some(count), "{options:?}");
    }
    for (options, count) in
        [(WorkOptions::default().immediate(1), 1), (WorkOptions::default().immediate(1).solicited(), 2)]
    {
        let receive = receiver.receive(()).expect("posted");
        success(sender.write_with(bytes(&adapter, b"received"), &region.remote(), options).expect("posted"))
            .await;
        success(receive).await;
        assert_eq!(fake("solicited"), Some(count), "{options:?}");
    }
}

// SEC-11: a device that says nothing of an error flushes the receives before the peer leaves, and that is no orderly end.
#[tokio::test]
async fn failed_queue_pair_reports_loss_not_disconnect() {
    if !alone(module_path!(), "failed_queue_pair_reports_loss_not_disconnect") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    fake("lose errors");
    let pair = connected(&adapter).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
    let write = pair.active.queue_pair.write(room(&adapter, 8), &nowhere).expect("posted");
    assert_eq!(failure(write).await, Status::ACCESS_VIOLATION);
    let reason = within(pair.passive.connection.disconnected()).await;
    let flushed = WcError::new(WcStatus::WR_FLUSH_ERR, 0x5005);
    assert_eq!(reason, lost(Status::CANCELED, Reason::Completion(flushed)));
    assert_eq!(within(receive).await.0, Err(failed(Status::CANCELED, flushed)));
    assert!(!pair.passive.connection.is_connected());
}

fn lost(status: Status, reason: Reason) -> DisconnectReason {
    DisconnectReason::Lost { status, reason }
}

fn failed(status: Status, device: WcError) -> CompletionError {
    let mut error = CompletionError::new(status);
    error.device = Some(device);
    error
}

// ERR-05, SEC-11: the status of the device and the error code of its vendor are in the error of the request, in the polled result, and in
// the cause of the loss. The side that refused the request has the event of its queue pair.
#[tokio::test]
async fn a_failure_has_the_report_of_the_device() {
    if !alone(module_path!(), "a_failure_has_the_report_of_the_device") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let refused = WcError::new(WcStatus::REM_ACCESS_ERR, 0x500a);
    for polled in [false, true] {
        let mut config = QueuePairConfig::default();
        if polled {
            config = config.send_completions(&results);
        }
        let active = adapter.queue_pair(config).expect("a queue pair");
        let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
        let pair = connected_queue_pairs(&adapter, active, queue_pair(&adapter), connect, accept).await;
        let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
        let write = pair.active.queue_pair.write(room(&adapter, 8), &nowhere).expect("posted");
        let receive = pair.active.queue_pair.receive(room(&adapter, 8)).expect("posted");
        if polled {
            let [result] = collect(&results, 1).await[..] else { panic!("one result") };
            assert_eq!((result.status, result.device), (Status::ACCESS_VIOLATION, Some(refused)));
        }
        let error = within(write).await.0.expect_err("refused");
        assert_eq!(error, failed(Status::ACCESS_VIOLATION, refused));
        assert_eq!(
            error.to_string(),
            "the request completed with ACCESS_VIOLATION: IBV_WC_REM_ACCESS_ERR (10), vendor error 0x500a: \
             the peer refused the access to its memory"
        );
        let reason = within(pair.active.connection.disconnected()).await;
        assert_eq!(reason, lost(Status::ACCESS_VIOLATION, Reason::Completion(refused)));
        let reason = within(pair.passive.connection.disconnected()).await;
        assert_eq!(reason, lost(Status::CANCELED, Reason::Event(DeviceEvent::QP_ACCESS_ERR)));
        assert_eq!(
            reason.to_string(),
            "the connection was lost: the device reports IBV_EVENT_QP_ACCESS_ERR (3): it refused an access of the peer to \
             memory (CANCELED)"
        );
        assert_eq!(failure(receive).await, Status::CANCELED);
    }
}

// QP-15: a device that refuses a request behind the doorbell has those before it, and the connection ends.
#[tokio::test]
async fn a_refused_doorbell_ends_the_connection() {
    if !alone(module_path!(), "a_refused_doorbell_ends_the_connection") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let batch = pair.active.queue_pair.batch();
    let sends = [b"first", b"other", b"third"].map(|text| batch.send(bytes(&adapter, text)).expect("posted"));
    fake(&format!("fail ibv_post_send 2 {}", libc::EINVAL));
    drop(batch);
    let mut statuses = Vec::new();
    for send in sends {
        statuses.push(within(send).await.0.map_or_else(|error| error.status(), |_| Status::SUCCESS));
    }
    assert_eq!(statuses, [Status::SUCCESS, Status::CANCELED, Status::CANCELED]);
    assert_eq!(&success(receive).await.1[..5], b"first");
    let reason = Reason::Local("the device refused requests behind the doorbell");
    let ended = within(pair.active.connection.disconnected()).await;
    assert_eq!(ended, lost(Status::INVALID_DEVICE_REQUEST, reason));
}

// SEC-11: whatever the device has said by the time that a disconnect is handled is the cause, also where the disconnect was reported first.
#[tokio::test]
async fn device_errors_take_precedence_before_disconnect() {
    if !alone(module_path!(), "device_errors_take_precedence_before_disconnect") {
        return;
    }
    const DISCONNECTED: u32 = CmEvent::DISCONNECTED.code();
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let refused = Reason::Completion(WcError::new(WcStatus::REM_ACCESS_ERR, 0x500a));
    for hidden in [false, true] {
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        if hidden {
            fake("lose errors");
        }
        // No task has a turn until all of it has been reported.
        fake(&format!("report {DISCONNECTED} 0"));
        let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
        let write = pair.active.queue_pair.write(room(&adapter, 8), &nowhere).expect("posted");
        let passive = if hidden {
            Reason::Completion(WcError::new(WcStatus::WR_FLUSH_ERR, 0x5005))
        } else {
            Reason::Event(DeviceEvent::QP_ACCESS_ERR)
        };
        let reason = within(pair.active.connection.disconnected()).await;
        assert_eq!(reason, lost(Status::ACCESS_VIOLATION, refused));
        let reason = within(pair.passive.connection.disconnected()).await;
        assert_eq!(reason, lost(Status::CANCELED, passive), "hidden: {hidden}");
        assert_eq!(
            (failure(write).await, failure(receive).await),
            (Status::ACCESS_VIOLATION, Status::CANCELED)
        );
    }
}

// IO-12: a call that does not wait polls the device itself. No task has a turn in between.
#[tokio::test]
async fn reads_that_never_wait_poll_the_device() {
    if fake("count qp").is_none() {
        return;
    }
    let (left, right) = streams(&adapter()).await;
    for round in 0..3 {
        assert_eq!(left.try_write(&[round; 5]).expect("there is room"), 5);
        let mut found = [9; 8];
        assert_eq!(right.try_read(&mut found).expect("it has arrived"), 5);
        assert_eq!(found[..5], [round; 5]);
    }
}
