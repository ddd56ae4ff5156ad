//! Exhausted resources of a device and of its drivers are refused with their status, and everything works again afterwards.
//!
//! Runs on: rxe
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use common::cm::{EPHEMERAL, assert_usable};
use common::process::alone;
use common::verbs::{driver, run};
use common::*;
use tokio_rdma::error::{OpenError, RegisterError};
use tokio_rdma::{
    AcceptParams, Access, CompletionQueueConfig, ConnectParams, QueuePairConfig, SharedReceiveConfig, Status,
};

/// A control group whose processes may have so many objects of RDMA devices. This process is in it until it is dropped.
struct Limited {
    group: PathBuf,
    before: PathBuf,
}

impl Limited {
    fn new(objects: usize) -> Option<Self> {
        let root = PathBuf::from("/sys/fs/cgroup");
        if !root.join("cgroup.controllers").exists() {
            run("mount", "-t cgroup2 none /sys/fs/cgroup");
        }
        if !fs::read_to_string(root.join("cgroup.controllers")).is_ok_and(|names| names.contains("rdma")) {
            eprintln!("skipped: needs the rdma controller of control groups");
            return None;
        }
        fs::write(root.join("cgroup.subtree_control"), "+rdma").expect("delegated");
        let group = root.join(format!("tokio-rdma-{}", std::process::id()));
        fs::create_dir(&group).expect("a group");
        let device = std::env::var("TOKIO_RDMA_RXE_DEVICE").expect("named by the machine");
        fs::write(group.join("rdma.max"), format!("{device} hca_object={objects}")).expect("limited");
        let limited = Self { group, before: root };
        limited.join(&limited.group);
        Some(limited)
    }

    fn join(&self, group: &Path) {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("moved");
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.join(&self.before);
        let _ = fs::remove_dir(&self.group);
    }
}

/// Makes objects until that is refused, twice, and gives them back; `works` is asked when there is nothing left.
async fn exhaust<T, E: Debug>(
    what: &str,
    status: impl Fn(&E) -> Status,
    make: impl AsyncFn() -> Result<T, E>,
    works: impl AsyncFn(),
) {
    for _ in 0..2 {
        let mut made = Vec::new();
        let error = loop {
            match make().await {
                Ok(object) => made.push(object),
                Err(error) => break error,
            }
        };
        assert_eq!(status(&error), Status::INSUFFICIENT_RESOURCES, "{what}: {error:?}");
        assert!(made.len() > 1, "{what}: {} of them, and then {error:?}", made.len());
        works().await;
    }
    make().await.expect(what);
}

/// As many as the test may have of all kinds.
const OBJECTS: usize = 100;

// SEC-16: queue pairs, shared receive queues and memory. The device has more of them than a machine has memory for, so the limit
// is that of a control group.
#[tokio::test]
async fn objects() {
    if driver().is_none() || !alone(module_path!(), "objects") {
        return;
    }
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let works = async || {
        // From memory that is registered.
        let (active, passive) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        let receive = passive.receive(()).expect("posted");
        within(active.send(()).expect("posted")).await.0.expect("sent");
        within(receive).await.0.expect("received");
    };
    works().await;
    let Some(limited) = Limited::new(OBJECTS) else { return };
    let queue_pair = async || adapter.queue_pair(QueuePairConfig::default());
    exhaust("queue pairs", OpenError::status, queue_pair, &works).await;
    let shared = async || adapter.shared_receive_queue(SharedReceiveConfig::default());
    exhaust("shared receive queues", OpenError::status, shared, &works).await;
    let region = async || adapter.register(4096, Access::REMOTE_WRITE).await;
    exhaust("regions", RegisterError::status, region, &works).await;
    exhaust("buffers", RegisterError::status, async || adapter.buffer(4096), &works).await;
    exhaust("windows", RegisterError::status, async || adapter.memory_window(), &works).await;

    // The last queue pairs that there are connect, though nothing else can be made.
    let (listener, address) = listening(&adapter);
    let mut held = Vec::new();
    while let Ok(queue_pair) = adapter.queue_pair(QueuePairConfig::default()) {
        held.push(queue_pair);
    }
    let passive = held.pop().expect("many");
    let active = held.pop().expect("many");
    let connector = adapter.connector();
    let attempt = connector.connect_and_complete(&active, address, ConnectParams::default());
    let ends = joined(attempt, listener.accept_next(&passive, AcceptParams::default())).await;
    works().await;
    // HW-08: a completion queue is one of the device.
    let mut queues = Vec::new();
    let error = loop {
        match adapter.completion_queue(CompletionQueueConfig::default()) {
            Ok(queue) => queues.push(queue),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES, "{error}");
    works().await;
    drop((queues, held, ends, limited));
    assert_usable(&adapter, &common::queue_pair(&adapter)).await;
}

// Connectors hold every port of the range, and one that is freed can be bound again (SEC-16).
#[tokio::test]
async fn ports() {
    if driver().is_none() || !alone(module_path!(), "ports") {
        return;
    }
    let adapter = adapter();
    let mut held = Vec::new();
    let refused = loop {
        let connector = adapter.connector();
        match connector.bind((v4(), 0).into()) {
            Ok(()) => held.push(connector),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.status(), Status::TOO_MANY_ADDRESSES, "{refused:?}");
    assert!(held.len() > EPHEMERAL.len() / 2, "{} ports", held.len());
    let error = adapter.listener().bind((v4(), 0).into()).expect_err("none is left");
    assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
    let freed = held.pop().expect("many");
    let port = freed.local_addr().expect("bound").port();
    drop(freed);
    let again = adapter.connector();
    again.bind((v4(), 0).into()).expect("one is left");
    assert_eq!(again.local_addr().expect("bound").port(), port);
    drop((again, held));
    assert_usable(&adapter, &queue_pair(&adapter)).await;
}
