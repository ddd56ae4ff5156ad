//! Requests of a queue pair on devices only: windows that hold kernel objects, silent requests that the device does not
//! report, queues that share a completion queue of the device.
//!
//! Runs on: rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::sync::Arc;

use common::raw::{bytes, failure, room, success};
use common::verbs::{Link, connected_at, driver, nothing_held, one_at_a_time, resources};
use common::*;
use futures::future::join_all;
use tokio::runtime::Builder;
use tokio_rdma::error::{PostErrorKind, ResizeError};
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, MemoryWindow, NotifyKind, QueuePair,
    QueuePairConfig, Region, RemoteRegion, SharedReceiveConfig, Status, WorkOptions,
};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

async fn bind(window: &MemoryWindow, queue_pair: &QueuePair, region: &Region) -> RemoteRegion {
    let part = region.slice(0..region.len()).expect("all of it");
    let bind = queue_pair.bind(window, &part, ALL, WorkOptions::default()).expect("posted");
    let remote = window.remote().expect("its key is known");
    within(bind).await.0.expect("bound");
    remote
}

async fn write(adapter: &Adapter, queue_pair: &QueuePair, remote: &RemoteRegion) {
    success(queue_pair.write(bytes(adapter, b"x"), remote).expect("posted")).await;
}

/// Returns whether the device has windows, and prints that the test is skipped if not.
fn has_windows(adapter: &Adapter) -> bool {
    if !adapter.info().memory_windows {
        eprintln!("skipped: the device has no memory windows, and has said so");
    }
    adapter.info().memory_windows
}

#[tokio::test]
async fn a_window_that_is_bound_is_bound_anew() {
    if driver().is_none() || !has_windows(&adapter()) {
        return;
    }
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (owner, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let window = adapter.memory_window().expect("a window");
    let regions = [
        adapter.register(64, ALL).await.expect("registered"),
        adapter.register(64, ALL).await.expect("registered"),
    ];
    let first = bind(&window, owner, &regions[0]).await;
    write(&adapter, peer, &first).await;
    let second = bind(&window, owner, &regions[1]).await;
    // The second bind gives another key, and only that one works (MW-01).
    assert_ne!(first.key(), second.key());
    write(&adapter, peer, &second).await;
    // No window is bound to the first region (`MR-04`), and its key gives no access.
    regions[0].deregister().await.expect("it is free");
    regions[1].deregister().await.expect_err("it is not");
    // Again and again, with and without an invalidation in between.
    for invalidated in [true, false, true, false, false] {
        if invalidated {
            let invalidate = owner.invalidate(&window, WorkOptions::default()).expect("posted");
            within(invalidate).await.0.expect("invalidated");
            assert!(window.remote().is_none());
        }
        let remote = bind(&window, owner, &regions[1]).await;
        write(&adapter, peer, &remote).await;
    }
    // The key of an earlier bind gives no access (MW-03).
    let late = peer.write(bytes(&adapter, b"x"), &second).expect("posted");
    assert_eq!(failure(late).await, Status::ACCESS_VIOLATION);
}

#[tokio::test]
async fn window_moves_and_ends_with_queue_pair() {
    if driver().is_none() || !has_windows(&adapter()) {
        return;
    }
    let adapter = adapter();
    let (before, after) = (connected(&adapter).await, connected(&adapter).await);
    let window = adapter.memory_window().expect("a window");
    let region = adapter.register(64, ALL).await.expect("registered");
    bind(&window, &before.active.queue_pair, &region).await;
    let remote = bind(&window, &after.active.queue_pair, &region).await;
    write(&adapter, &after.passive.queue_pair, &remote).await;
    // MW-04: the queue pair that had it cannot take it back.
    let refused = before.active.queue_pair.invalidate(&window, WorkOptions::default());
    assert_eq!(refused.err(), Some(PostErrorKind::NotBound));
    // Nor does its end touch it.
    within(before.active.connection.disconnect()).await.expect("disconnected");
    drop(before);
    write(&adapter, &after.passive.queue_pair, &remote).await;
    within(after.active.connection.disconnect()).await.expect("disconnected");
    assert!(window.remote().is_none(), "the end of its connection has taken it back");
    // The window that went with its connection does not keep the region registered (MR-04).
    region.deregister().await.expect("nothing is bound to it");
    // It is as good as new.
    let next = connected(&adapter).await;
    let region = adapter.register(64, ALL).await.expect("registered");
    let remote = bind(&window, &next.passive.queue_pair, &region).await;
    write(&adapter, &next.active.queue_pair, &remote).await;
    drop(window);
    region.deregister().await.expect("a window that is gone is bound to nothing");
    let late = next.active.queue_pair.write(bytes(&adapter, b"x"), &remote).expect("posted");
    // The peer has no access by the key of a window that was dropped (MW-03).
    assert_eq!(failure(late).await, Status::ACCESS_VIOLATION);
}

/// Regions and windows may be dropped in any order, bound or not.
#[test]
fn nothing_of_windows_and_shared_queues_is_left() {
    if driver().is_none() {
        return;
    }
    let _turn = one_at_a_time();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let adapter = adapter();
        let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
        let receives: Vec<_> = (0..4).map(|_| shared.receive(room(&adapter, 8)).expect("posted")).collect();
        let passive = adapter.queue_pair(QueuePairConfig::default().shared_receives(&shared)).expect("made");
        let params = (ConnectParams::default(), AcceptParams::default());
        let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
        success(pair.active.queue_pair.send(bytes(&adapter, b"one")).expect("posted")).await;
        assert!(resources().iter().any(|line| line.starts_with("srq")), "{:?}", resources());
        if has_windows(&adapter) {
            let region = adapter.register(64, ALL).await.expect("registered");
            let windows = [0, 1].map(|_| adapter.memory_window().expect("a window"));
            let remote = bind(&windows[0], &pair.active.queue_pair, &region).await;
            bind(&windows[1], &pair.active.queue_pair, &region).await;
            drop(region);
            // The window keeps it.
            write(&adapter, &pair.passive.queue_pair, &remote).await;
            let [_first, second] = windows;
            drop(second);
            drop(pair);
        } else {
            drop(pair);
        }
        drop(shared);
        let outcomes = within(join_all(receives)).await;
        // SRQ-01: the message took one; the others came back.
        let taken = outcomes.iter().filter(|(outcome, _)| outcome.is_ok()).count();
        assert_eq!(taken, 1);
        let rest = outcomes.iter().filter_map(|(outcome, _)| outcome.as_ref().err());
        assert!(rest.map(|error| error.status()).all(|status| status == Status::CANCELED));
    });
    runtime.block_on(nothing_held());
}

#[tokio::test]
async fn a_shared_queue_outgrows_its_completion_queue() {
    const MANY: usize = 1500;
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    let config = SharedReceiveConfig::default().depth(4);
    let shared = adapter.shared_receive_queue(config).expect("a queue");
    let config = CompletionQueueConfig::default().depth(MANY + 1);
    let results = adapter.completion_queue(config).expect("a completion queue");
    let config = QueuePairConfig::default().shared_receives(&shared).receive_completions(&results);
    let passive = adapter.queue_pair(config).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
    let first = shared.receive(room(&adapter, 1)).expect("posted");
    // Its result lies in the completion queue of the device while that is resized: no call polls.
    success(pair.active.queue_pair.send(bytes(&adapter, b"x")).expect("posted")).await;
    // `siw` refuses another depth with EOPNOTSUPP, and keeps the depth that it has (SRQ-04).
    match shared.modify(Some(MANY), None) {
        Ok(()) => {}
        Err(ResizeError::Os { source, .. }) if !adapter.info().waits_for_shared_receives => {
            assert_eq!(source.raw_os_error(), Some(libc::EOPNOTSUPP));
            assert_eq!(shared.depth(), 4);
            return;
        }
        Err(error) => panic!("{error}"),
    }
    let receives: Vec<_> = (0..MANY).map(|_| shared.receive(room(&adapter, 1)).expect("posted")).collect();
    for _ in 0..MANY {
        success(pair.active.queue_pair.send(bytes(&adapter, b"x")).expect("posted")).await;
    }
    within(results.wait(MANY + 1)).await.expect("all have come");
    let mut found = Vec::new();
    assert_eq!(results.poll(MANY + 1, &mut found), MANY + 1);
    assert!(found.iter().all(|result| result.status == Status::SUCCESS));
    success(first).await;
    join_all(receives.into_iter().map(success)).await;
}

#[tokio::test]
async fn silent_requests_do_not_use_up_the_queue() {
    const DEPTH: usize = 8;
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let config = QueuePairConfig::default().send_depth(DEPTH).send_completions(&results);
    let active = adapter.queue_pair(config).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, queue_pair(&adapter), params.0, params.1).await;
    let region = adapter.register(8, ALL).await.expect("registered");
    let queue_pair = &pair.active.queue_pair;
    let mut writes = Vec::new();
    let mut found = Vec::new();
    // QP-09, QP-07: full at times, and never for good.
    while writes.len() < 20 * DEPTH {
        let options = WorkOptions::default().silent();
        match queue_pair.write_with(bytes(&adapter, b"x"), &region.remote(), options) {
            Ok(write) => writes.push(write),
            Err(error) => {
                assert!(matches!(error.kind, PostErrorKind::QueueFull { .. }), "{error:?}");
                results.poll(1, &mut found);
                tokio::task::yield_now().await;
            }
        }
    }
    let last = loop {
        match queue_pair.write_with(
            bytes(&adapter, b"y"),
            &region.remote(),
            WorkOptions::default().context(9),
        ) {
            Ok(write) => break write,
            Err(error) => assert!(matches!(error.kind, PostErrorKind::QueueFull { .. }), "{error:?}"),
        }
        results.poll(1, &mut found);
        tokio::task::yield_now().await;
    };
    while found.is_empty() {
        within(results.notify(NotifyKind::Any)).await.expect("it lives");
        results.poll(16, &mut found);
    }
    assert_eq!((found.len(), found[0].context), (1, 9), "only that one is reported");
    join_all(writes.into_iter().map(success)).await;
    success(last).await;
}

#[tokio::test]
async fn completions_come_by_the_vector_of_any_processor() {
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    for processor in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        let config = CompletionQueueConfig::default().affinity(processor);
        let results = adapter.completion_queue(config).expect("a completion queue");
        // Any processor is accepted and returned, and completions arrive; the vector of the device cannot be observed
        // (CQ-07).
        assert_eq!(results.affinity(), Some(processor));
        let config = QueuePairConfig::default().receive_completions(&results);
        let passive = adapter.queue_pair(config).expect("a queue pair");
        let params = (ConnectParams::default(), AcceptParams::default());
        let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
        let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        let told = results.notify(NotifyKind::Any);
        success(pair.active.queue_pair.send(bytes(&adapter, b"told")).expect("posted")).await;
        within(told).await.expect("it lives");
        assert_eq!(results.poll(8, &mut Vec::new()), 1);
        assert_eq!(success(receive).await.0, 4);
    }
}

/// Shows that a device can be removed while windows are bound and shared receives are posted: the driver waits for all
/// of them.
#[test]
fn a_removal_takes_windows_and_shared_receives_along() {
    let Some(driver) = driver() else { return };
    // Others count what the process has.
    let _turn = one_at_a_time();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let link = Arc::new(Link::new(driver));
        let adapter = link.open();
        let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
        let pair = connected_at(&adapter, link.address).await;
        let user = adapter.queue_pair(QueuePairConfig::default().shared_receives(&shared)).expect("made");
        let receive = shared.receive(room(&adapter, 8)).expect("posted");
        let late = room(&adapter, 8);
        let mut windows = Vec::new();
        let region = adapter.register(64, ALL).await.expect("registered");
        if has_windows(&adapter) {
            for _ in 0..2 {
                windows.push(adapter.memory_window().expect("a window"));
            }
            bind(&windows[0], &pair.active.queue_pair, &region).await;
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let removed = link.clone();
        std::thread::spawn(move || {
            removed.remove_device();
            let _ = tell.send(());
        });
        assert_eq!(failure(receive).await, Status::DEVICE_REMOVED);
        within(pair.active.connection.disconnected()).await;
        assert!(windows.iter().all(|window| window.remote().is_none()));
        assert_eq!(shared.receive(late).expect_err("too late").kind, PostErrorKind::DeviceRemoved);
        // All handles are still there.
        within(told).await.expect("the device is gone");
        drop((user, windows, region, shared, adapter));
    });
}

// A fenced read is no error. `siw` ends the connection of a read with a fence, so the flag is not passed to it. Without
// the fence this passes, too: reads are answered in their order. A request that waits for a read is in
// `request_options` (QP-10).
#[tokio::test]
async fn a_read_can_be_fenced() {
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let region = adapter.register(8, ALL).await.expect("registered");
    let remote = region.remote();
    let reads: Vec<_> = (0..40)
        .map(|_| {
            let options = WorkOptions::default().fence();
            pair.active.queue_pair.read_with(room(&adapter, 8), &remote, options).expect("posted")
        })
        .collect();
    join_all(reads.into_iter().map(success)).await;
}
