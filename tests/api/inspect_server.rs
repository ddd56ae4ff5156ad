//! The server of snapshots: who may connect, what a client gets, and sockets that are left behind.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use common::*;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio_rdma::CompletionQueueConfig;
use tokio_rdma::inspect::{self, Inspect, Server, Snapshot};

/// A path that nothing else uses, which is removed in the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("inspect-{}-{name}", std::process::id())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Connects, and reads to the end of the stream.
async fn ask(place: &Place) -> std::io::Result<String> {
    let mut client = UnixStream::connect(&place.0).await?;
    let mut text = String::new();
    within(client.read_to_string(&mut text)).await?;
    Ok(text)
}

// OBS-04: one line, for the user of the process alone, and nothing is left.
#[tokio::test]
async fn a_client_gets_one_snapshot() {
    let place = Place::new("one");
    let server = Server::bind(&place.0).expect("bound");
    assert_eq!(server.path(), place.0);
    let mode = std::fs::metadata(&place.0).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let text = ask(&place).await.expect("served");
    assert_eq!(text.matches('\n').count(), 1);
    let snapshot: Snapshot = serde_json::from_str(&text).expect("a snapshot");
    assert_eq!((snapshot.version, snapshot.process), (Snapshot::VERSION, std::process::id()));
    let id = pair.active.connection.id().0;
    assert!(snapshot.connections.iter().any(|report| report.id == id));
    drop(server);
    assert_eq!(ask(&place).await.expect_err("nothing is there").kind(), ErrorKind::NotFound);
}

// OBS-04: the next client is served when the time of one that reads nothing is up.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_delays_the_next_one() {
    let adapter = adapter();
    // Their reports are more than a socket holds.
    let queue = |_| adapter.completion_queue(CompletionQueueConfig::default()).expect("a queue");
    let _queues: Vec<_> = (0..4000).map(queue).collect();
    let place = Place::new("slow");
    let _server = Server::bind(&place.0).expect("bound");
    let deaf = UnixStream::connect(&place.0).await.expect("connected");
    let text = ask(&place).await.expect("served");
    assert!(text.len() > 300_000 && text.ends_with("}\n"), "{} bytes", text.len());
    drop(deaf);
}

// OBS-04: neither a process that serves nor a file loses its place.
#[tokio::test]
async fn only_a_socket_that_is_left_behind_is_replaced() {
    let place = Place::new("stale");
    // A socket without a process.
    drop(std::os::unix::net::UnixListener::bind(&place.0).expect("bound"));
    let server = Server::bind(&place.0).expect("it replaces the socket");
    let error = Server::bind(&place.0).expect_err("a process serves there");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(ask(&place).await.is_ok(), "it still does");
    drop(server);
    std::fs::write(&place.0, "a file").expect("written");
    let error = Server::bind(&place.0).expect_err("that is no socket");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&place.0).expect("it is still there"), "a file");
}

// OBS-04: an error, and no panic in a task, and no socket that is left behind.
#[test]
fn a_runtime_without_drivers_is_refused() {
    let place = Place::new("bare");
    let refused = |runtime: tokio::runtime::Runtime| {
        let _entered = runtime.enter();
        assert_eq!(Server::bind(&place.0).expect_err("it lacks something").kind(), ErrorKind::Other);
        assert!(!place.0.exists());
    };
    refused(tokio::runtime::Builder::new_current_thread().build().expect("a runtime"));
    refused(tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime"));
    refused(tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"));
}

// OBS-04: a process whose runtime is blocked serves there, and clients that gave up have filled its backlog.
#[test]
fn a_blocked_process_does_not_block_the_next() {
    let place = Place::new("blocked");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // It runs no task.
    let blocked = runtime();
    let guard = blocked.enter();
    let _server = Server::bind(&place.0).expect("bound");
    drop(guard);
    for _ in 0..17 {
        std::os::unix::net::UnixStream::connect(&place.0).expect("in the backlog");
    }
    let path = place.0.clone();
    let (sender, bound) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = runtime();
        let _guard = runtime.enter();
        let _ = sender.send(Server::bind(path).map(drop).map_err(|error| error.kind()));
    });
    let outcome = bound.recv_timeout(device::patience());
    assert_eq!(outcome, Ok(Err(ErrorKind::AddrInUse)));
}

/// An object without a report: for the snapshots of one thread it panics.
struct Broken(ThreadId);

impl Inspect for Broken {
    fn inspect(&self, _snapshot: &mut Snapshot) {
        assert_ne!(thread::current().id(), self.0, "this object has no report");
    }
}

// OBS-04: the client gets a reason, and the next one a snapshot.
#[tokio::test]
async fn server_survives_a_report_that_panics() {
    let place = Place::new("panic");
    let _server = Server::bind(&place.0).expect("bound");
    let broken = Arc::new(Broken(thread::current().id()));
    let object: Weak<Broken> = Arc::downgrade(&broken);
    let listed = inspect::register(object);
    for _ in 0..2 {
        let text = ask(&place).await.expect("served");
        let snapshot: Snapshot = serde_json::from_str(&text).expect("a line of JSON");
        assert_eq!((snapshot.version, snapshot.process), (Snapshot::VERSION, std::process::id()));
        let error = snapshot.error.expect("a reason");
        assert!(error.starts_with("the report of an object has panicked"), "{error}");
    }
    drop(listed);
    let text = ask(&place).await.expect("served");
    let snapshot: Snapshot = serde_json::from_str(&text).expect("a snapshot");
    assert_eq!((snapshot.error, text.contains("\"error\"")), (None, false));
}
