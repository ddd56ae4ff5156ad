//! The memory that idle connections keep, whatever they did before.
//!
//! In a separate process, because it counts the memory of its process.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use common::process::alone;
use common::raw::success;
use common::resources::resident;
use common::*;
use futures::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Access, Adapter, Op, QueuePair, Region, RegionSlice};

/// The most that an end of an idle connection may keep.
const LIMIT: usize = 16 << 10;
/// Connections, if there are descriptors for them. More take minutes without optimisation, and show the same.
const CONNECTIONS: usize = if cfg!(debug_assertions) { 300 } else { 10_000 };
/// As many are made at a time.
const AT_ONCE: usize = 50;
/// A message with frames of every length.
const LONG: usize = 70_000;
/// The requests of a batch.
const SHORT: usize = 128;

/// Returns how many connections this process has descriptors for, two for each.
fn connections() -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("raised");
    let allowed = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(200) / 2;
    if allowed < CONNECTIONS {
        eprintln!("{allowed} connections: no more descriptors");
    }
    CONNECTIONS.min(allowed)
}

/// Moves a long message, a long write and a batch of short messages from one end to the other.
async fn use_it(memory: &Region, from: &QueuePair, to: &QueuePair) {
    let slice = |length: usize| memory.slice(0..length).expect("in bounds");
    let receive = to.receive(slice(LONG)).expect("posted");
    let send = from.send(slice(LONG)).expect("posted");
    let ((received, _), _) = tokio::join!(success(receive), success(send));
    assert_eq!(received, LONG);
    success(from.write(slice(LONG), &memory.remote()).expect("posted")).await;
    let receives: Vec<_> = (0..SHORT).map(|_| to.receive(slice(1000)).expect("posted")).collect();
    let batch = from.batch();
    let sends: Vec<_> = (0..SHORT).map(|_| batch.send(slice(1000)).expect("posted")).collect();
    drop(batch);
    join_all(receives.into_iter().chain(sends).map(success)).await;
}

/// Connects a pair, uses it both ways, and posts a receive at each end for the next message.
async fn used_connection(adapter: &Adapter, memory: &Region) -> (Pair, [Op<RegionSlice>; 2]) {
    let pair = connected(adapter).await;
    let (active, passive) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    within(use_it(memory, active, passive)).await;
    within(use_it(memory, passive, active)).await;
    let receive = |end: &QueuePair| end.receive(memory.slice(0..LONG).expect("in bounds")).expect("posted");
    let receives = [active, passive].map(receive);
    (pair, receives)
}

async fn assert_idle_connections_are_small(crc: bool) {
    let adapter = adapter_with(SoftConfig::default().crc(crc));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = adapter.register(LONG, access).await.expect("registered");
    // Memory that is there once for all, such as the room of each thread, is there.
    drop(join_all((0..AT_ONCE).map(|_| used_connection(&adapter, &memory))).await);
    let (connections, before) = (connections(), resident());
    let mut pairs = Vec::with_capacity(connections);
    while pairs.len() < connections {
        let count = AT_ONCE.min(connections - pairs.len());
        pairs.extend(join_all((0..count).map(|_| used_connection(&adapter, &memory))).await);
    }
    let each = resident().saturating_sub(before) / (2 * connections);
    assert!(each <= LIMIT, "{each} bytes for each of 2 x {connections} ends, CRC {crc}");
}

// Each end has carried long messages, writes and batches, and keeps at most 16 KiB, with checksums (SEC-12).
#[tokio::test]
async fn connections_with_crc_give_back_what_they_used() {
    if alone(module_path!(), "connections_with_crc_give_back_what_they_used") {
        assert_idle_connections_are_small(true).await;
    }
}

// Each end has carried long messages, writes and batches, and keeps at most 16 KiB, without checksums (SEC-12).
#[tokio::test]
async fn connections_without_crc_give_back_what_they_used() {
    if alone(module_path!(), "connections_without_crc_give_back_what_they_used") {
        assert_idle_connections_are_small(false).await;
    }
}
