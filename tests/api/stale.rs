//! Memory after the call or the request by which it was taken back has returned: no byte of it changes, and none is sent.
//!
//! Runs on: soft, sim, rxe, siw

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::deviation::lacks_buffer_sinks;
use common::device::{is_emulated, skips};
use common::life::eventually;
use common::raw::success;
use common::*;
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rdma::{
    Access, Adapter, Buffer, Op, QueuePair, Region, RegionSlice, RemoteRegion, Status, WorkOptions,
};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::READ_SINK);
/// Written by the owner when the memory is its own again, and by nobody else.
const CANARY: u8 = 0xca;
/// The same, in memory that peers read from or that was to be sent.
const SECRET: u8 = 0xee;
/// The requests of one kind that are posted at a time.
const DEPTH: usize = 4;

/// How long a peer goes on at most that is not told that the memory was taken back.
const GOES_ON: Duration = Duration::from_secs(1);

/// Of several packets each.
fn length() -> usize {
    if is_emulated() { 16 << 10 } else { 64 << 10 }
}

async fn region(adapter: &Adapter, length: usize, fill: u8) -> Region {
    let region = adapter.register(length, ALL).await.expect("registered");
    overwrite(&region, fill);
    region
}

fn overwrite(region: &Region, fill: u8) {
    region.write(0, &vec![fill; region.len()]).expect("as long");
}

fn content(region: &Region) -> Vec<u8> {
    let mut content = vec![0; region.len()];
    region.read(0, &mut content).expect("as long");
    content
}

#[track_caller]
fn assert_is_all(found: &[u8], fill: u8, case: &str) {
    let stale = found.iter().position(|byte| *byte != fill);
    assert_eq!(stale, None, "{case}: a stale byte");
}

#[track_caller]
fn assert_has_no_secret(found: &[u8], case: &str) {
    assert!(!found.contains(&SECRET), "{case}: sent after it was taken back");
}

/// A peer that writes to memory and reads from it until it is stopped.
struct Attack {
    done: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Attack {
    fn new(
        adapter: &Adapter,
        queue_pair: &QueuePair,
        remote: RemoteRegion,
        way: TakenBack,
        reads: bool,
    ) -> Self {
        let done = Arc::new(AtomicUsize::new(0));
        let (adapter, queue_pair, count) = (adapter.clone(), queue_pair.clone(), done.clone());
        let task = tokio::spawn(async move {
            let length = remote.len() as usize;
            let post = || {
                let buffer = adapter.buffer_from(&vec![7; length]).expect("memory");
                if reads { queue_pair.read(buffer, &remote) } else { queue_pair.write(buffer, &remote) }
            };
            loop {
                let posted: Result<Vec<Op<Buffer>>, _> = (0..DEPTH).map(|_| post()).collect();
                let Ok(posted) = posted else { return };
                let outcomes = join_all(posted).await;
                for (_, buffer) in &outcomes {
                    assert_has_no_secret(buffer, &format!("{way:?}"));
                }
                if outcomes.iter().any(|(outcome, _)| outcome.is_err()) {
                    return;
                }
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        Self { done, task }
    }

    /// Some of it has been done, and more is under way.
    async fn under_way(&self) {
        let before = self.done.load(Ordering::Relaxed);
        eventually("it goes on", || self.done.load(Ordering::Relaxed) > before + 1).await;
    }
}

/// The ways in which memory is taken back from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakenBack {
    Deregistered,
    Dropped,
    Invalidated,
    Disconnected,
}

/// One connection whose active end accesses a region of the passive one, which then takes it back.
async fn taken_back(adapter: &Adapter, way: TakenBack, reads: bool) {
    let case = format!("{way:?}, reads: {reads}");
    let Pair { active, passive } = connected(adapter).await;
    let length = length();
    let memory = region(adapter, length, if reads { 0x11 } else { 0 }).await;
    let (mut window, mut remote) = (None, memory.remote());
    if way == TakenBack::Invalidated {
        let bound = adapter.memory_window().expect("a window");
        let slice = memory.slice(0..length).expect("in bounds");
        let bind = passive.queue_pair.bind(&bound, &slice, ALL, WorkOptions::default());
        within(bind.expect("posted")).await.0.expect("bound");
        remote = bound.remote().expect("bound");
        window = Some(bound);
    }
    let attack = Attack::new(adapter, &active.queue_pair, remote, way, reads);
    attack.under_way().await;
    let fill = if reads { SECRET } else { CANARY };
    let mut successors = vec![memory];
    match way {
        TakenBack::Deregistered => successors[0].deregister().await.expect("deregistered"),
        TakenBack::Invalidated => {
            let window = window.as_ref().expect("bound");
            let invalidate = passive.queue_pair.invalidate(window, WorkOptions::default());
            // A request of the peer that comes behind it may break the connection before this one is complete.
            if let (Err(error), ()) = within(invalidate.expect("posted")).await {
                assert_eq!(error.status(), Status::CANCELED);
            }
        }
        TakenBack::Disconnected => within(passive.connection.disconnect()).await.expect("in order"),
        // The heap gives the memory to the next who ask for as much.
        TakenBack::Dropped => {
            successors.clear();
            for _ in 0..DEPTH {
                successors.push(region(adapter, length, fill).await);
            }
        }
    }
    for memory in &successors {
        overwrite(memory, fill);
    }
    let mut attack = attack.task;
    // A read that rxe breaks off in its middle is not answered any more.
    if let Ok(ended) = timeout(GOES_ON, &mut attack).await {
        ended.expect("no panic");
    } else {
        active.queue_pair.flush();
        within(attack).await.expect("no panic");
    }
    within(active.connection.disconnected()).await;
    for memory in &successors {
        assert_is_all(&content(memory), fill, &case);
    }
}

// SEC-18: of a peer that writes there or reads from there, under a key that was valid a moment ago.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_was_taken_back_from_a_peer() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    for _ in 0..often(40, 4) {
        for way in [TakenBack::Deregistered, TakenBack::Dropped, TakenBack::Disconnected] {
            for reads in [false, true] {
                taken_back(&adapter, way, reads).await;
            }
        }
    }
}

// SEC-18: the same of memory that the peer reaches through a window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_a_window_that_was_invalidated() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter)
        || skips(Device::Rxe, "rxe looks at the key of a window in the first packet of a request only")
    {
        return;
    }
    if !adapter.info().memory_windows {
        return skipped("the adapter has no memory windows");
    }
    for _ in 0..often(40, 4) {
        for reads in [false, true] {
            taken_back(&adapter, TakenBack::Invalidated, reads).await;
        }
    }
}

/// The ways in which requests end before they are done.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Disconnected,
    Flushed,
    Dropped,
    /// Nobody waits for them any more, and then the connection is disconnected.
    Forgotten,
}

/// Receives and then sends, both of the same number, on one end; the first of them are waited for.
struct Peer {
    receives: Vec<Op<Buffer>>,
    sends: Vec<Op<Buffer>>,
    memory: Region,
}

/// One connection whose ends send to each other, and whose active end reads and writes; it ends after so many messages.
async fn ended(adapter: &Adapter, way: Ended, messages: usize) {
    let case = format!("{way:?} after {messages}");
    let Pair { active, passive } = connected(adapter).await;
    let length = length();
    let (source, sinks) =
        (region(adapter, length, 0x11).await, region(adapter, 2 * DEPTH * length, 0x33).await);
    let sink = |number: usize| sinks.slice(number * length..(number + 1) * length).expect("in bounds");
    let buffer = || adapter.buffer_from(&vec![7; length]).expect("memory");
    let mut peer = Peer {
        receives: (0..DEPTH).map(|_| passive.queue_pair.receive(buffer()).expect("posted")).collect(),
        sends: Vec::new(),
        memory: region(adapter, length, 0x22).await,
    };
    let own = &active.queue_pair;
    let mut receives: Vec<Op<RegionSlice>> =
        (0..DEPTH).map(|number| own.receive(sink(number)).expect("posted")).collect();
    let mut others: Vec<Op<RegionSlice>> = Vec::new();
    for number in 0..DEPTH {
        others.push(own.send(source.slice(0..length).expect("in bounds")).expect("posted"));
        others.push(own.read(sink(DEPTH + number), &peer.memory.remote()).expect("posted"));
        let write = source.slice(0..length).expect("in bounds");
        others.push(own.write(write, &peer.memory.remote()).expect("posted"));
    }
    // An iWARP device may not send before it has heard the active end.
    success(peer.receives.remove(0)).await;
    peer.sends = (0..DEPTH).map(|_| passive.queue_pair.send(buffer()).expect("posted")).collect();
    for _ in 0..messages {
        success(receives.remove(0)).await;
    }
    let rest = receives.into_iter().chain(others);
    match way {
        Ended::Disconnected => {
            // It returns when no memory of the queue pair is in use: nobody has to wait for the requests.
            let _ = within(active.connection.disconnect()).await;
            drop(rest);
        }
        Ended::Forgotten => {
            drop(rest);
            let _ = within(active.connection.disconnect()).await;
        }
        Ended::Flushed => {
            active.queue_pair.flush();
            within(join_all(rest)).await;
        }
        Ended::Dropped => {
            drop((active.queue_pair, active.connection));
            within(join_all(rest)).await;
        }
    }
    overwrite(&source, SECRET);
    overwrite(&sinks, CANARY);
    within(passive.connection.disconnected()).await;
    for (_, buffer) in within(join_all(peer.receives.into_iter().chain(peer.sends))).await {
        assert_has_no_secret(&buffer, &case);
    }
    assert_has_no_secret(&content(&peer.memory), &case);
    assert_is_all(&content(&sinks), CANARY, &case);
    assert_is_all(&content(&source), SECRET, &case);
}

// SEC-18: of requests that end with their connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_requests_that_ended() {
    let adapter = adapter();
    for round in 0..often(100, 5) {
        for way in [Ended::Disconnected, Ended::Flushed, Ended::Dropped, Ended::Forgotten] {
            ended(&adapter, way, round % DEPTH).await;
        }
    }
}
