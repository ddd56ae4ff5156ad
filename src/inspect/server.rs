//! Serves snapshots at a Unix socket, to the user of the process.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::list::empty_snapshot;
use super::snapshot;

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
