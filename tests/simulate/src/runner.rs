//! Running seeds, one after the other on each thread, and adding up their results.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::time::{sleep, timeout};
use tokio_rdma::sim::Network;

use crate::world::World;
use crate::{faults, frames, lanes, sessions, shared, streams, verbs};

/// The longest a seed runs, in virtual time.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// The time after the last handle was dropped in which connections that linger close, and dead peers are given up.
const CLOSING: Duration = Duration::from_secs(300);

/// The result of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The hash over every segment and every fault.
    pub trace: u64,
    /// The time that has passed in the network.
    pub virtual_time: Duration,
    /// The number of calls and requests.
    pub operations: u64,
}

/// The result of many seeds.
#[derive(Debug, Default)]
pub struct Report {
    /// The seeds that failed, in order, each with its reason.
    pub failures: Vec<(u64, String)>,
    /// The hash over the traces, in the order of the seeds. A seed that failed counts as 0.
    pub trace: u64,
    /// The sum of the times in the networks.
    pub virtual_time: Duration,
    /// The number of calls and requests.
    pub operations: u64,
}

thread_local! {
    /// The panics on this thread while a seed runs, also in tasks that nobody awaits.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs the workload of a seed.
///
/// # Errors
/// The first thing that was wrong.
pub fn run(seed: u64) -> Result<Run, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(keep_panics);
    PANICS.set(Some(Vec::new()));
    let once = || {
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async { timeout(LIMIT, live(seed)).await })
    };
    let outcome = panic::catch_unwind(AssertUnwindSafe(once));
    let panics = PANICS.take().unwrap_or_default();
    if let Some(first) = panics.into_iter().next() {
        return Err(first);
    }
    outcome.map_err(|_| "a panic without a message")?.map_err(|_| format!("it has not ended after {LIMIT:?}"))
}

/// Keeps what panics while a seed runs, instead of printing it.
fn keep_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let kept =
            PANICS.with_borrow_mut(|panics| panics.as_mut().map(|panics| panics.push(info.to_string())));
        if kept.is_none() {
            print(info);
        }
    }));
}

/// Runs the seeds from `first` on, on so many threads.
pub fn run_all(first: u64, count: u64, threads: usize) -> Report {
    let next = AtomicU64::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let result = run(first + number);
                    results.lock().expect("no panic").push((first + number, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no panic");
    results.sort_unstable_by_key(|(seed, _)| *seed);
    let mut report = Report::default();
    for (seed, result) in results {
        let trace = result.as_ref().map_or(0, |run| run.trace);
        // FNV-1a over words.
        report.trace = (report.trace ^ trace).wrapping_mul(0x0100_0000_01b3);
        match result {
            Ok(run) => {
                report.virtual_time += run.virtual_time;
                report.operations += run.operations;
            }
            Err(reason) => report.failures.push((seed, reason)),
        }
    }
    report
}

/// The life of a network.
async fn live(seed: u64) -> Run {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let network = Network::new(seed);
    let before = tasks();
    let world = World::new(network.clone());
    let count = world.draw(1..=3);
    let sessions = (0..count).map(|number| {
        let (world, port) = (&world, 7000 + number as u16);
        async move {
            match world.draw(0..=7) {
                0 if world.once_in(2) => {
                    world.within_a("stream with a session", sessions::session(world, port)).await
                }
                0 => world.within_a("stream", streams::session(world, port)).await,
                1 => world.within_a("exchange of frames", frames::session(world, port)).await,
                2 => world.within_a("queue of receives that peers share", shared::session(world, port)).await,
                3 => world.within_a("connection of lanes", lanes::session(world, port)).await,
                _ => world.within_a("connection of queue pairs", verbs::session(world, port)).await,
            }
        }
    });
    tokio::join!(futures::future::join_all(sessions), faults::draw(&world));
    let operations = world.operations();
    drop(world);
    sleep(CLOSING).await;
    assert_eq!(network.sockets(), 0, "sockets are left");
    assert_eq!(tasks(), before, "tasks are left");
    Run { trace: network.trace_hash(), virtual_time: network.elapsed(), operations }
}
