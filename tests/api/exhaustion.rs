//! Exhausted resources are refused with their status, and everything works again afterwards.
//!
//! Limits are those of a process, so the tests run in separate ones. Limits of devices are in `verbs::exhaustion`.
//!
//! Runs on: soft, sim, rxe

use std::fs::File;
use std::io;
use std::time::Duration;

use common::cm::{assert_usable, exchange};
use common::device::is_emulated;
use common::process::alone;
use common::raw::{room, success};
use common::resources::held;
use common::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_rdma::error::{PostErrorKind, RegisterError};
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, PoolConfig, QueuePairConfig, Status,
};

/// Opens files until there are no descriptors left.
fn all_descriptors() -> Vec<File> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, held()["descriptors"] as u64 + 32, most).expect("lowered");
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                return files;
            }
        }
    }
}

// The process holds every descriptor of its limit: what needs one fails, and works again when they are closed (SEC-16).
#[tokio::test]
async fn descriptors() {
    if device::skips(Device::Sim, "a simulated network needs no descriptors") {
        return;
    }
    if !alone(module_path!(), "descriptors") {
        return;
    }
    let adapter = adapter();
    let (pair, (listener, address)) = (connected(&adapter).await, listening(&adapter));
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    let mut files = all_descriptors();

    let other = adapter.listener();
    // Connections of a device have none.
    let sockets = Device::under_test().has_sockets();
    if sockets {
        let error = within(connector.connect(&active, address, ConnectParams::default())).await;
        let error = error.expect_err("there is no socket");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
        // ERR-10: another descriptor may be free soon.
        assert!(error.is_retryable() && error.is_connector_usable());
        let error = other.bind((v4(), 0).into()).expect_err("there is no socket");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    }
    let error = Adapter::open(v4()).expect_err("the addresses cannot be watched");
    assert_eq!(Status::from_io(&io::Error::from(error)), Status::INSUFFICIENT_RESOURCES);
    // Work that needs no descriptor goes on.
    let queue = adapter.completion_queue(CompletionQueueConfig::default());
    if sockets {
        queue.expect("a completion queue");
    } else {
        // HW-08: a queue of a device has a channel of its own.
        let error = queue.expect_err("there is no channel");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES, "{error}");
    }
    adapter.register(4096, Access::empty()).await.expect("registered");
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;

    if sockets {
        // One for who connects, and none for who accepts: the peer is not served, and waits.
        files.pop();
        let params = ConnectParams::default().timeout(Duration::from_millis(100));
        let error = within(connector.connect(&active, address, params)).await.expect_err("nobody accepts");
        assert_eq!(error.status(), Status::IO_TIMEOUT);
    }

    drop(files);
    other.bind((v4(), 0).into()).expect("as before");
    let passive = queue_pair(&adapter);
    let accept = async {
        loop {
            // The first one has given up.
            match listener.accept_next(&passive, AcceptParams::default()).await {
                Ok(connection) => return Ok::<_, tokio_rdma::error::AcceptError>(connection),
                Err(error) => assert_ne!(error.status(), Status::INSUFFICIENT_RESOURCES, "{error:?}"),
            }
        }
    };
    let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
    let _ends = joined(connect, accept).await;
    exchange(&adapter, &active, &passive).await;
}

// RLIMIT_AS leaves a quarter of the memory that is asked for (SEC-16).
#[tokio::test]
async fn memory() {
    if !alone(module_path!(), "memory") {
        return;
    }
    let much = if is_emulated() { 1 << 29 } else { 1 << 30 };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (before, most) = getrlimit(Resource::RLIMIT_AS).expect("a limit");
    let pages = std::fs::read_to_string("/proc/self/statm").expect("a Linux system");
    let pages: u64 = pages.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    setrlimit(Resource::RLIMIT_AS, pages * 4096 + (much as u64 / 4), most).expect("lowered");

    let refused = |error: RegisterError| {
        assert!(matches!(error, RegisterError::OutOfMemory { .. }), "{error:?}");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    };
    refused(adapter.register(much, Access::LOCAL_WRITE).await.expect_err("not so much"));
    refused(adapter.buffer(much).expect_err("not so much"));
    let pool = adapter.pool(PoolConfig::new(much, 1)).expect("a pool of nothing yet");
    for _ in 0..3 {
        refused(within(pool.get()).await.expect_err("not so much"));
    }
    adapter.register(1 << 20, Access::LOCAL_WRITE).await.expect("less");
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;

    setrlimit(Resource::RLIMIT_AS, before, most).expect("as before");
    adapter.register(much, Access::LOCAL_WRITE).await.expect("there is as much");
    within(pool.get()).await.expect("there is as much");
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

// A full queue returns the buffer, and takes as many requests again once they have completed (SEC-16).
#[tokio::test]
async fn queues() {
    const DEPTH: usize = 4;
    let adapter = adapter();
    let config = || QueuePairConfig::default().send_depth(DEPTH).receive_depth(DEPTH);
    let [active, passive] = [(); 2].map(|()| adapter.queue_pair(config()).expect("a queue pair"));
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, passive, params.0, params.1).await;
    let (from, to) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    for _ in 0..3 {
        let receives: Vec<_> = (0..DEPTH).map(|_| to.receive(room(&adapter, 8)).expect("posted")).collect();
        let error = to.receive(room(&adapter, 8)).expect_err("the queue is full");
        assert!(
            matches!(error.kind, PostErrorKind::QueueFull { depth: DEPTH, .. }) && error.buffer.len() == 8,
            "{error:?}"
        );
        let batch = from.batch();
        let sends: Vec<_> = (0..DEPTH).map(|_| batch.send(room(&adapter, 8)).expect("posted")).collect();
        let error = batch.send(room(&adapter, 8)).expect_err("the queue is full");
        assert!(
            matches!(error.kind, PostErrorKind::QueueFull { depth: DEPTH, .. }) && error.buffer.len() == 8,
            "{error:?}"
        );
        drop(batch);
        for request in sends.into_iter().chain(receives) {
            success(request).await;
        }
    }
    assert_usable(&adapter, &queue_pair(&adapter)).await;
}
