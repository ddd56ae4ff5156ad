//! The objects that a snapshot looks at.

use std::sync::{Arc, LazyLock, Weak};

use slab::Slab;
use tracing::info;

use super::{ConnectionReport, Snapshot, causes};
use crate::sync::Mutex;

/// An object that snapshots look at.
///
/// Crates that build on this one implement it for what they have: `tokio-rdma-rpc` for its channels.
pub trait Inspect: Send + Sync {
    /// Adds the report of the object. It is called by [`snapshot`], in any thread, and must not wait.
    fn inspect(&self, snapshot: &mut Snapshot);
}

static OBJECTS: LazyLock<Mutex<Slab<Weak<dyn Inspect>>>> = LazyLock::new(Mutex::default);

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
    Place(OBJECTS.lock().insert(object))
}

/// Returns the state of every object of this crate in the process, with the reason why it waits.
///
/// It takes the lock of each object for a moment, one after the other, and waits for nothing else. It may be called in any thread,
/// but of objects of a simulated network only a thread of its runtime knows the time.
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
    let objects: Vec<Arc<dyn Inspect>> =
        OBJECTS.lock().iter().filter_map(|(_, object)| object.upgrade()).collect();
    let mut snapshot =
        Snapshot { version: Snapshot::VERSION, process: std::process::id(), ..Snapshot::default() };
    snapshot.program = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default();
    objects.iter().for_each(|object| object.inspect(&mut snapshot));
    causes::explain(&mut snapshot);
    snapshot
}

/// Logs why a connection has waited, which this time limit ends. The caller has no locks.
pub(crate) fn log_cause(report: &ConnectionReport, limit: &str) {
    if let Some(waits_for) = causes::connection(report) {
        info!(connection = report.id, limit, %waits_for, "time limit ends connection");
    }
}
