//! The list of the objects that a snapshot looks at, and the Unix socket that serves snapshots to the user of the process.

use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;
use std::{fs, io};

use nix::unistd::geteuid;
use slab::Slab;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::level_filters::LevelFilter;
use tracing::{debug, info, warn};

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

/// The time that a client has to take its snapshot.
const CLIENT: Duration = Duration::from_secs(5);
/// The number of clients whose connection waits while another is served.
const BACKLOG: i32 = 16;

/// Serves snapshots at a Unix socket until it is dropped.
///
/// A client connects, and gets one [`Snapshot`](super::Snapshot) as JSON in one line, and the end of the stream. It sends nothing. If the
/// snapshot cannot be made, because the [`Inspect`](super::Inspect) of a crate panics, the line has the head of the process and an
/// [`error`](super::Snapshot::error), and the server goes on.
/// `cargo rdma-top` is such a client. Only the user of the process, and root, can connect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// // In a program, where it begins. Any problem with it is no reason not to start.
/// let _server = tokio_rdma::inspect::Server::start().inspect_err(|error| eprintln!("no inspector: {error}"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    task: AbortHandle,
}

impl Server {
    /// Serves snapshots at the [default path](default_path), where `cargo rdma-top` finds the process.
    ///
    /// It must be called in a tokio runtime that has I/O and time.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind), and of the creation of the directory; `PermissionDenied` if the directory belongs to another
    /// user, or others may write it.
    pub fn start() -> io::Result<Self> {
        let directory = directory();
        make_directory(&directory)?;
        remove_ended(&directory);
        Self::bind(default_path())
    }

    /// Serves snapshots at this path. A socket that a process has left behind there is replaced.
    ///
    /// It must be called in a tokio runtime that has I/O and time.
    ///
    /// # Errors
    /// `AddrInUse` if a process serves there, `AlreadyExists` if the path is that of something else; the errors of the system;
    /// `Other` without such a runtime.
    pub fn bind(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let listener = listen(&path)?;
        // tokio reports a lack of either only by a panic. Found here, it does not hit the task later.
        let listener = catch_unwind(|| {
            drop(tokio::time::sleep(Duration::ZERO));
            UnixListener::from_std(listener)
        });
        let lacking = |_| {
            io::Error::other("the tokio runtime has no I/O driver or no timers: build it with enable_all")
        };
        let listener = listener.map_err(lacking).and_then(|listener| listener).inspect_err(|_| {
            let _ = fs::remove_file(&path);
        })?;
        let task = runtime.spawn(serve(listener)).abort_handle();
        info!(path = %path.display(), "serving snapshots");
        Ok(Self { path, task })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // Another process may have replaced it; then it is gone for that one, which has to start again.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the directory of the sockets of this user: `tokio-rdma` in `XDG_RUNTIME_DIR`, or `/tmp/tokio-rdma-UID`.
pub fn directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => Path::new(&directory).join("tokio-rdma"),
        None => PathBuf::from(format!("/tmp/tokio-rdma-{}", geteuid())),
    }
}

/// Returns the path of the socket of this process: its number, and `.sock`, in the [directory](directory()) of the user.
pub fn default_path() -> PathBuf {
    directory().join(format!("{}.sock", std::process::id()))
}

/// Makes a directory that only this user can enter, or checks that it is one.
fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        outcome => return outcome,
    }
    // In `/tmp` every user can make directories, and the one who has made this could replace the socket.
    let found = fs::symlink_metadata(directory)?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let problem = format!("{} is not a directory that only this user can change", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

/// Removes the sockets of processes that have ended without a drop of their server.
fn remove_ended(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let process = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        // A process of another namespace has no entry here, and its socket may be served.
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = remove_stale(&path);
        }
    }
}

/// Listens at a socket that only this user can connect to.
fn listen(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    let address = SockAddr::unix(path)?;
    if let Err(error) = socket.bind(&address) {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(error);
        }
        remove_stale(path)?;
        socket.bind(&address)?;
    }
    // No connect succeeds before `listen`, whatever the mode is.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Removes a socket at which no process listens.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let problem = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    // It does not wait for a process that takes no clients.
    let client = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    match client.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Serves one client after the other.
async fn serve(listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => match timeout(CLIENT, answer(client)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "client of the inspector failed"),
                Err(_elapsed) => debug!("client of the inspector did not read"),
            },
            Err(error) => {
                debug!(%error, "no client of the inspector could be accepted");
                tokio::time::sleep(CLIENT).await;
            }
        }
    }
}

/// Sends a snapshot, or why there is none.
async fn answer(mut client: UnixStream) -> io::Result<()> {
    // The locks of this crate survive a panic, and the snapshot is dropped.
    let made = catch_unwind(AssertUnwindSafe(|| serde_json::to_vec(&snapshot())));
    let problem = match made {
        Ok(Ok(line)) => return send(&mut client, line).await,
        Ok(Err(error)) => format!("the snapshot cannot be written as JSON: {error}"),
        Err(_panic) => {
            "the report of an object has panicked; the message is where the program writes those".into()
        }
    };
    warn!(problem, "no snapshot");
    let mut head = empty_snapshot();
    head.error = Some(problem);
    send(&mut client, serde_json::to_vec(&head)?).await
}

/// Sends a line, and the end of the stream.
async fn send(client: &mut UnixStream, mut line: Vec<u8>) -> io::Result<()> {
    line.push(b'\n');
    client.write_all(&line).await?;
    client.shutdown().await
}
