//! Futures that are ready at once: a loop over them uses up the budget of its task, and other tasks run in between.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

mod accept;

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::cm::{half_open, requested};
use common::raw::{bytes, room};
use common::*;
use futures::StreamExt;
use tokio_rdma::error::{DisconnectError, RegisterError};
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, NotifyKind, PoolConfig,
    QueuePairConfig, RegionSlice, SharedReceiveConfig, Status,
};

/// More awaits than a task of tokio has budget for in four turns.
const AWAITS: usize = 600;

/// Awaits `once` so often in one task of a runtime with one thread, and returns how many turns another task had
/// between.
async fn turns_of_another_task(awaits: usize, mut once: impl AsyncFnMut()) -> usize {
    let turns = Arc::new(AtomicUsize::new(0));
    let another = tokio::spawn({
        let turns = turns.clone();
        async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    for _ in 0..awaits {
        once().await;
    }
    another.abort();
    turns.load(Ordering::Relaxed)
}

async fn assert_yields(what: &str, once: impl AsyncFnMut()) {
    let turns = turns_of_another_task(AWAITS, once).await;
    assert!(turns >= 4, "{what}: {turns} turns of another task in {AWAITS} awaits");
}

/// Returns a slice of one byte for local use.
async fn one_byte(adapter: &Adapter) -> RegionSlice {
    let region = adapter.register(1, Access::LOCAL_WRITE).await.expect("registered");
    region.slice(0..1).expect("in bounds")
}

// SEC-01: the loop that sends and awaits, as long as the socket takes bytes.
#[tokio::test]
async fn a_loop_of_awaited_writes_yields() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let sink = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
    let (remote, writer) = (sink.remote(), &pair.active.queue_pair);
    assert_yields("write", async || {
        let (result, _buffer) = writer.write(bytes(&adapter, b"8 bytes."), &remote).expect("posted").await;
        result.expect("written");
    })
    .await;
}

// SEC-01: requests that have completed before they are awaited. Whether a task has asked for them before makes no difference: a
// set of futures asks for each, and is given the next one while it is still busy with the last.
#[tokio::test]
async fn requests_that_are_complete_yield() {
    let adapter = adapter();
    for (what, asked) in [("a new Op", false), ("an Op that was pending", true)] {
        let queue_pair =
            adapter.queue_pair(QueuePairConfig::default().receive_depth(AWAITS)).expect("a queue pair");
        let slice = one_byte(&adapter).await;
        let mut receives: Vec<_> =
            (0..AWAITS).map(|_| queue_pair.receive(slice.clone()).expect("posted")).collect();
        for receive in receives.iter_mut().filter(|_| asked) {
            assert!(futures::poll!(receive).is_pending());
        }
        queue_pair.flush();
        assert_yields(what, async || {
            let (result, _slice) = receives.pop().expect("as many as awaits").await;
            assert_eq!(result.expect_err("flushed").status, Status::CANCELED);
        })
        .await;
    }
}

// A `wait` for no result and a `notify` after an overrun resolve at once, and other tasks still have their turns
// (SEC-01).
#[tokio::test]
async fn notifications_of_completion_queues_yield() {
    let adapter = adapter();
    let queue = adapter.completion_queue(CompletionQueueConfig::default().depth(1)).expect("a queue");
    assert_yields("wait", async || queue.wait(0).await.expect("open")).await;

    // Two results where there is room for one: it overruns, and every notification fails at once.
    let config = QueuePairConfig::default().receive_completions(&queue);
    let queue_pair = adapter.queue_pair(config).expect("a queue pair");
    let receives = [(); 2].map(|()| queue_pair.receive(room(&adapter, 1)).expect("posted"));
    queue_pair.flush();
    assert_yields("notify", async || {
        queue.notify(NotifyKind::Any).await.expect_err("it has overrun");
    })
    .await;
    drop(receives);
}

// A queue without receives is below its threshold, so the future resolves at once (SEC-01).
#[tokio::test]
async fn low_water_of_shared_receive_queues_yields() {
    let adapter = adapter();
    let config = SharedReceiveConfig::default().threshold(1);
    let Ok(shared) = adapter.shared_receive_queue(config) else {
        eprintln!("skipped: the device has no shared receive queues");
        return;
    };
    assert_yields("below_threshold", async || shared.below_threshold().await.expect("there are none")).await;
}

// A connection that has ended resolves both calls at once (SEC-01).
#[tokio::test]
async fn the_ends_of_connections_yield() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    let connection = &pair.active.connection;
    assert_yields("disconnected", async || {
        connection.disconnected().await;
    })
    .await;
    assert_yields("disconnect", async || {
        let error = connection.disconnect().await.expect_err("it has ended");
        assert!(matches!(error, DisconnectError::Invalid), "{error:?}");
    })
    .await;
}

// SEC-01: calls that fail at once, such as those of a loop that tries again without a pause.
#[tokio::test]
async fn calls_of_connection_management_that_fail_yield() {
    let adapter = adapter();
    let (listener, queue_pair) = (adapter.listener(), queue_pair(&adapter));
    assert_yields("request", async || drop(listener.request().await.expect_err("it does not listen"))).await;
    let accept = async || {
        listener.accept_next(&queue_pair, AcceptParams::default()).await.expect_err("it does not listen");
    };
    assert_yields("accept_next", accept).await;
    assert_yields("requests", async || {
        listener.requests().next().await.expect("the error").expect_err("it does not listen");
    })
    .await;
    let (connector, too_long) = (adapter.connector(), vec![0; 1 << 12]);
    let peer = (v4(), 7).into();
    assert_yields("connect", async || {
        let params = ConnectParams::default().private_data(too_long.clone());
        connector.connect(&queue_pair, peer, params).await.expect_err("too long");
    })
    .await;
}

// An answer with too much data fails at once and returns its handle for the next call (SEC-01).
#[tokio::test]
async fn answers_that_are_refused_yield() {
    let (adapter, too_long) = (adapter(), vec![0; 1 << 12]);
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let queue_pair = queue_pair(&adapter);
    let mut request = Some(asked.request);
    assert_yields("Request::reject", async || {
        let refused = request.take().expect("a request").reject(&too_long).await;
        request = refused.expect_err("too long").handle;
    })
    .await;
    assert_yields("Request::accept", async || {
        let params = AcceptParams::default().private_data(too_long.clone());
        let refused = request.take().expect("a request").accept(&queue_pair, params).await;
        request = refused.expect_err("too long").handle;
    })
    .await;
    drop(request);
    let half = half_open(&adapter, v4()).await;
    let mut reply = Some(half.reply);
    assert_yields("Reply::reject", async || {
        let refused = reply.take().expect("a reply").reject(&too_long).await;
        reply = refused.expect_err("too long").handle;
    })
    .await;
}

// Each call succeeds or fails at once, without the network (SEC-01).
#[tokio::test]
async fn memory_yields() {
    let adapter = adapter();
    let pool = adapter.pool(PoolConfig::new(16, 2)).expect("a pool");
    assert_yields("get", async || drop(pool.get().await.expect("memory"))).await;
    let lent = pool.get().await.expect("memory").freeze(16);
    assert_yields("lend", async || drop(pool.lend(lent.clone()).await.expect("its own"))).await;
    assert_yields("register", async || {
        let error = adapter.register(0, Access::empty()).await.expect_err("nothing");
        assert!(matches!(error, RegisterError::Empty), "{error:?}");
    })
    .await;
    let file = File::open("/dev/null").expect("a file");
    assert_yields("register_dmabuf", async || {
        adapter.register_dmabuf(file.as_fd(), 0, 0, 0, Access::empty()).await.expect_err("nothing");
    })
    .await;
    let region = adapter.register(8, Access::empty()).await.expect("registered");
    assert_yields("register_again", async || {
        let error = region.register_again(Access::empty()).await.expect_err("it is registered");
        assert!(matches!(error, RegisterError::Busy), "{error:?}");
    })
    .await;
    assert_yields("deregister", async || region.deregister().await.expect("deregistered")).await;
}

// SEC-01: the budget is that of tasks of the runtime. Elsewhere nothing is held back.
#[test]
fn without_a_task_nothing_waits_for_a_budget() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (adapter, queue) = {
        let _entered = runtime.enter();
        let adapter = adapter();
        let queue = adapter.completion_queue(CompletionQueueConfig::default()).expect("a queue");
        (adapter, queue)
    };
    for _ in 0..AWAITS {
        assert!(common::life::poll_once(&mut Box::pin(queue.wait(0))).is_ready());
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(adapter);
}
