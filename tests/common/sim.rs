//! The device `sim`: a host of a simulated network. Each runtime has its own network, in virtual time.
//!
//! Virtual time needs a runtime of one thread. In others the network takes real time, and the seed repeats nothing.

use std::future::pending;
use std::sync::{LazyLock, Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Id, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;
use tokio_rdma::sim::{Host, Network};

use super::device::{v4, v6};

/// The seed of every network.
const SEED: &str = "TOKIO_RDMA_SIM_SEED";

/// The number of events that are shown of a test that hangs.
const EVENTS: usize = 100;

/// The host of a runtime.
struct RuntimeHost {
    runtime: Id,
    network: Network,
    host: Host,
    /// It ends with the runtime.
    end: JoinHandle<()>,
}

/// One for each runtime that uses the device.
static HOSTS: Mutex<Vec<RuntimeHost>> = Mutex::new(Vec::new());

/// A runtime that never runs, for tests without one: the addresses of its host can be listed.
static NEVER_RUN: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// Returns the host of this runtime.
pub fn host() -> Host {
    let outside = Handle::try_current().is_err();
    let _inside = outside.then(|| NEVER_RUN.enter());
    let is_virtual = || !outside && Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
    find().unwrap_or_else(|| create(is_virtual()))
}

/// Lets the clock of this runtime run, for a test that waits for other threads. Only before the device is used.
///
/// # Panics
/// If the device has been used.
pub fn run_clock() {
    assert!(find().is_none(), "the device has been used");
    create(false);
}

fn find() -> Option<Host> {
    let runtime = Handle::current().id();
    let hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    hosts.iter().find(|one| one.runtime == runtime && !one.end.is_finished()).map(|one| one.host.clone())
}

fn create(is_virtual: bool) -> Host {
    if is_virtual {
        tokio::time::pause();
    }
    let seed = std::env::var(SEED).map_or(1, |text| text.parse().expect("a number"));
    let network = Network::new(seed);
    // Shown if the test fails.
    eprintln!("{SEED}={seed}");
    let host = network.host(v4());
    host.add_address(v6());
    // As long as those of the loopback interface, and cut at random.
    network.link(&host, &host).segments(1..=65_000);
    let one = RuntimeHost {
        runtime: Handle::current().id(),
        network,
        host: host.clone(),
        end: tokio::spawn(pending()),
    };
    let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    let ended: Vec<_> = hosts.extract_if(.., |one| one.end.is_finished()).collect();
    hosts.push(one);
    drop(hosts);
    drop(ended);
    host
}

/// The last events of the network of this runtime, a line each.
pub fn last_events() -> String {
    let runtime = Handle::current().id();
    let hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    let events = hosts.iter().find(|one| one.runtime == runtime).map(|one| one.network.trace());
    let events = events.unwrap_or_default();
    let lines: Vec<_> = events.lines().collect();
    lines[lines.len().saturating_sub(EVENTS)..].iter().flat_map(|line| ["\n", line]).collect()
}
