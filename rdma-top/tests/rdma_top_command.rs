//! The command against a process that serves a snapshot: the one of the test.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio_rdma::inspect::{Server, snapshot};
use tokio_rdma::{RdmaListener, RdmaStream};

/// A folder that stands for the one of the user, and is removed in the end.
struct Home(PathBuf);

impl Home {
    /// Makes one for this test. The path of a socket has to be short.
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rdma-top-{}-{test}", std::process::id()));
        fs::create_dir_all(folder.join("tokio-rdma")).expect("a folder");
        Self(folder)
    }

    /// Returns the path of the socket of a process with this number.
    fn socket(&self, process: u32) -> PathBuf {
        self.0.join(format!("tokio-rdma/{process}.sock"))
    }

    /// Runs the command of this user.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cargo-rdma-top"));
        command.arg("rdma-top").args(arguments).env("XDG_RUNTIME_DIR", &self.0);
        command.output().expect("the command")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns what a command has printed, and its status.
fn printed(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

/// Writes to a stream until it waits, since the peer does not read.
async fn stuck() -> (RdmaStream, tokio::task::JoinHandle<()>) {
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let (client, server) = tokio::join!(RdmaStream::connect(address), listener.accept());
    let (mut client, (server, _)) = (client.expect("connected"), server.expect("accepted"));
    let writer = tokio::spawn(async move {
        let bytes = vec![7; 1 << 16];
        while client.write_all(&bytes).await.is_ok() {}
    });
    let waits = async {
        let is_stuck = || {
            snapshot().streams.iter().any(|stream| {
                let waits_for = stream.waits_for.as_deref().unwrap_or_default();
                stream.write_waits.is_some() && waits_for.starts_with("no credit")
            })
        };
        while !is_stuck() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waits).await.expect("a write that waits");
    (server, writer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_waits_is_printed() {
    let home = Home::new("waits");
    let _server = Server::bind(home.socket(std::process::id())).expect("bound");
    let (_stream, writer) = stuck().await;
    let process = std::process::id().to_string();

    let (table, errors, status) = printed(&home.run(&["--once", "--timeout=60"]));
    assert_eq!((errors.as_str(), status), ("", Some(0)), "{table}");
    let head = table.lines().next().expect("a line");
    assert!(head.starts_with("PROCESS ") && head.ends_with(" WAITS FOR"), "{table}");
    let line =
        table.lines().find(|line| line.contains(" stream ") && line.contains(" write ")).expect(&table);
    assert!(line.starts_with(&format!("{process} rdma_top_command")), "{line}");
    assert!(line.contains("no credit: the program of the peer has not read "), "{line}");
    assert!(!table.replace('\n', "").contains(char::is_control), "{table:?}");

    // By its number, and by its path.
    let path = home.socket(std::process::id());
    for name in [&process, &path.display().to_string()] {
        let (json, errors, status) = printed(&home.run(&["--json", "--timeout=60", name]));
        assert_eq!((errors.as_str(), status), ("", Some(0)), "{json}");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json.as_array().map(Vec::len), Some(1));
        assert_eq!(json[0]["process"], std::process::id());
        let streams = json[0]["streams"].as_array().expect("streams");
        assert!(streams.iter().any(|stream| stream["write_waits"].is_f64()), "{json}");
    }
    writer.abort();
}

/// Makes a socket at which nothing is accepted, as that of a process that is stopped.
fn silent(path: &Path) -> UnixListener {
    UnixListener::bind(path).expect("bound")
}

#[test]
fn a_process_that_cannot_be_read_is_an_error_if_it_is_named() {
    let home = Home::new("silent");
    let _silent = silent(&home.socket(7));
    // What a process that was killed leaves behind.
    drop(silent(&home.socket(8)));

    let (table, errors, status) = printed(&home.run(&["--once", "--timeout=0.1"]));
    assert_eq!(status, Some(0), "{errors}");
    let lines: Vec<_> = table.lines().skip(1).collect();
    assert_eq!(lines.len(), 1, "{table}");
    assert!(lines[0].starts_with("7 ") && lines[0].contains(" silent "), "{table}");
    assert!(lines[0].contains("no answer in time"), "{table}");
    assert!(errors.contains("7.sock: no answer in time"), "{errors}");

    let (json, errors, status) = printed(&home.run(&["--json", "--timeout=0.1", "7", "8"]));
    assert_eq!((json.as_str(), status), ("[]\n", Some(1)));
    assert!(errors.contains("8.sock: no process serves snapshots there"), "{errors}");
}

#[test]
fn without_a_process_the_switch_is_named() {
    let home = Home::new("none");
    for (argument, expected) in [("--once", ""), ("--json", "[]\n")] {
        let (output, errors, status) = printed(&home.run(&[argument]));
        assert_eq!((output.as_str(), status), (expected, Some(0)));
        assert!(errors.contains("inspect::Server::start()"), "{errors}");
    }
}

#[test]
fn the_display_needs_a_terminal() {
    let home = Home::new("terminal");
    let (output, errors, status) = printed(&home.run(&[]));
    assert_eq!((output.as_str(), status), ("", Some(2)));
    assert!(errors.contains("--once"), "{errors}");
}
