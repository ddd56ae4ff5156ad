//! The objects that a snapshot looks at.

use std::sync::{Arc, LazyLock, Weak};

use slab::Slab;
#[cfg(feature = "sim")]
use tokio::runtime::Handle;
use tokio::runtime::Id;
use tracing::info;
use tracing::level_filters::LevelFilter;

use super::{ConnectionReport, SessionReport, Snapshot, StreamReport, causes};
use crate::sync::Mutex;

/// An object that snapshots look at.
///
/// Crates that build on this one implement it for what they have: `tokio-rdma-rpc` for its channels.
pub trait Inspect: Send + Sync {
    /// Adds the report of the object. It is called by [`snapshot`], in any thread, and must not wait.
    fn inspect(&self, snapshot: &mut Snapshot);
}

struct Listed {
    object: Weak<dyn Inspect>,
    /// The runtime of the simulated network that the object belongs to: only its threads know the time there.
    home: Option<Id>,
}

static OBJECTS: LazyLock<Mutex<Slab<Listed>>> = LazyLock::new(Mutex::default);

/// The place of an object among those that snapshots look at, which ends with this value.
#[derive(Debug)]
pub struct Place(usize);

impl Drop for Place {
    fn drop(&mut self) {
        let object = OBJECTS.lock().try_remove(self.0);
        drop(object);
    }
}

/// Adds an object to those that snapshots look at, until the returned value is dropped.
pub fn register(object: Weak<dyn Inspect>) -> Place {
    let home = simulated_runtime();
    Place(OBJECTS.lock().insert(Listed { object, home }))
}

/// The runtimes that have a simulated network, once for each.
#[cfg(feature = "sim")]
static SIMULATED: LazyLock<Mutex<Vec<Id>>> = LazyLock::new(Mutex::default);

/// Notes that the runtime of this thread has a simulated network, as long as this exists.
#[cfg(feature = "sim")]
#[derive(Debug)]
pub(crate) struct Simulated(Id);

#[cfg(feature = "sim")]
impl Simulated {
    /// Notes the runtime of this thread.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn note() -> Self {
        let id = Handle::current().id();
        SIMULATED.lock().push(id);
        Self(id)
    }
}

#[cfg(feature = "sim")]
impl Drop for Simulated {
    fn drop(&mut self) {
        let mut all = SIMULATED.lock();
        if let Some(place) = all.iter().position(|id| *id == self.0) {
            all.swap_remove(place);
        }
    }
}

/// Returns the runtime of this thread if it has a simulated network.
fn simulated_runtime() -> Option<Id> {
    #[cfg(feature = "sim")]
    return Handle::try_current().ok().map(|runtime| runtime.id()).filter(|id| SIMULATED.lock().contains(id));
    #[cfg(not(feature = "sim"))]
    None
}

/// Returns the state of every object of this crate in the process, with the reason why it waits.
///
/// It takes the lock of each object for a moment, one after the other, and waits for nothing else. It may be called in any thread.
/// Objects of a simulated network are only seen by the threads of its runtime, which know the time there. An object whose last handle
/// is dropped at this moment may end a moment later, in the calling thread.
///
/// # Panics
/// If the [`Inspect::inspect`] of another crate does.
///
/// Do not call it in a waker, in a recorder of metrics, or in a subscriber of `tracing` for events at the level `trace`: some of these
/// run while an object is locked, and the call would wait for itself.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use tokio_rdma::{Adapter, inspect};
///
/// let adapter = Adapter::open("127.0.0.1")?;
/// let snapshot = inspect::snapshot();
/// assert_eq!(snapshot.adapters[0].provider, "soft");
/// for connection in &snapshot.connections {
///     println!("{}: {:?}", connection.id, connection.waits_for);
/// }
/// # drop(adapter);
/// # Ok(())
/// # }
/// ```
pub fn snapshot() -> Snapshot {
    let here = simulated_runtime();
    let is_seen = |listed: &&Listed| listed.home.is_none() || listed.home == here;
    let objects: Vec<Arc<dyn Inspect>> = {
        let all = OBJECTS.lock();
        all.iter()
            .map(|(_, listed)| listed)
            .filter(is_seen)
            .filter_map(|listed| listed.object.upgrade())
            .collect()
    };
    let mut snapshot = empty_snapshot();
    objects.iter().for_each(|object| object.inspect(&mut snapshot));
    causes::explain(&mut snapshot);
    snapshot
}

/// Returns the snapshot of this process without any object.
pub(super) fn empty_snapshot() -> Snapshot {
    let mut snapshot =
        Snapshot { version: Snapshot::VERSION, process: std::process::id(), ..Snapshot::default() };
    snapshot.program = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default();
    snapshot
}

/// Returns whether the log may have the causes of what time limits end: a report is made for it alone.
pub(crate) fn is_logged() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// Logs why a connection has waited, which this time limit ends. The caller has no locks.
pub(crate) fn log_cause(report: &ConnectionReport, limit: &str) {
    if let Some(waits_for) = causes::silence(report) {
        info!(connection = report.id, limit, %waits_for, "time limit ends connection");
    }
}

/// Logs why the peer has not confirmed the end of a stream, for which its close timeout waits no longer. The caller has no locks.
pub(crate) fn log_unconfirmed(
    stream: &StreamReport,
    connection: &ConnectionReport,
    session: Option<&SessionReport>,
) {
    if let Some(waits_for) = causes::unconfirmed(stream, connection, session) {
        info!(connection = connection.id, limit = "close timeout", %waits_for, "time limit ends close of stream");
    }
}

/// Logs why a session has no connection, which gives up now. The caller has no locks.
pub(crate) fn log_given_up(report: &SessionReport) {
    if let Some(waits_for) = causes::session(report) {
        info!(connection = report.connection, limit = "give up after", %waits_for, "time limit ends session");
    }
}
