//! The sockets of the processes, and what they serve.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio_rdma::inspect::Snapshot;

/// The longest snapshot that is read: about 100,000 connections.
const LONGEST: usize = 64 << 20;
/// The number of processes that are read at once.
const AT_ONCE: usize = 64;

/// The processes to look at.
#[derive(Debug)]
pub(crate) enum Processes {
    /// Those with a socket in this directory.
    All(PathBuf),
    /// Those with these sockets.
    Named(Vec<PathBuf>),
}

/// The reader of snapshots.
#[derive(Debug)]
pub(crate) struct Source {
    /// The processes to look at.
    pub(crate) processes: Processes,
    /// The time that each has for its snapshot.
    pub(crate) limit: Duration,
}

/// What one process has served.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The path of its socket.
    pub(crate) path: PathBuf,
    /// The snapshot, or the reason why there is none.
    pub(crate) outcome: Result<Answer, Failure>,
}

impl Reading {
    /// Returns the number of the process, if it is known.
    pub(crate) fn process(&self) -> Option<u32> {
        match &self.outcome {
            Ok(answer) => Some(answer.snapshot.process),
            Err(_) => self.path.file_stem()?.to_str()?.parse().ok(),
        }
    }
}

/// The answer of a process.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The snapshot.
    pub(crate) snapshot: Snapshot,
    /// The bytes that it was read from. A later version of tokio-rdma may have put more into them.
    pub(crate) json: Vec<u8>,
}

/// The reason why a process has served no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No process listens at the socket, or there is no socket.
    Ended,
    /// The process has not answered in time.
    Silent,
    /// The socket cannot be used, or what it serves is no snapshot.
    Wrong(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("no process serves snapshots there"),
            Self::Silent => {
                f.write_str("no answer in time: the process is stopped, or its runtime is blocked")
            }
            Self::Wrong(reason) => f.write_str(reason),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, TimedOut, WouldBlock};
        match error.kind() {
            NotFound | ConnectionRefused | ConnectionReset => Self::Ended,
            // The first if as many clients wait as may.
            WouldBlock | TimedOut => Self::Silent,
            _ => Self::Wrong(error.to_string()),
        }
    }
}

impl Source {
    /// Reads every process. It returns soon after the limit, whatever the processes do.
    ///
    /// Sockets in the directory at which no process listens are left out.
    pub(crate) fn read(&self) -> Vec<Reading> {
        let paths = match &self.processes {
            Processes::All(directory) => list(directory),
            Processes::Named(paths) => paths.clone(),
        };
        let mut readings = Vec::new();
        for paths in paths.chunks(AT_ONCE) {
            let outcomes = thread::scope(|scope| {
                let threads: Vec<_> =
                    paths.iter().map(|path| scope.spawn(|| read(path, self.limit))).collect();
                let ended = |_| Err(Failure::Wrong("the snapshot cannot be read".to_owned()));
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(ended)).collect::<Vec<_>>()
            });
            let pairs = paths.iter().zip(outcomes);
            readings.extend(pairs.map(|(path, outcome)| Reading { path: path.clone(), outcome }));
        }
        if let Processes::All(_) = self.processes {
            readings.retain(|reading| !matches!(reading.outcome, Err(Failure::Ended)));
        }
        readings
    }
}

/// Returns the sockets in a directory, by the numbers of their processes.
fn list(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u32>().ok();
    let mut paths: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .map(|path| (number(&path), path))
        .collect();
    paths.sort();
    paths.into_iter().map(|(_, path)| path).collect()
}

/// Reads the snapshot that is served at a socket.
fn read(path: &Path, limit: Duration) -> Result<Answer, Failure> {
    let deadline = Instant::now() + limit;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    // It does not wait if others do before it.
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    let json = read_all(socket, deadline, LONGEST)?;
    parse(json)
}

/// Reads a JSON text.
fn parse(json: Vec<u8>) -> Result<Answer, Failure> {
    let snapshot: Snapshot = serde_json::from_slice(&json).map_err(|error| not_a_snapshot(&json, &error))?;
    if snapshot.version != Snapshot::VERSION {
        return Err(other_version(snapshot.version.into()));
    }
    if let Some(error) = snapshot.error {
        return Err(Failure::Wrong(format!("no snapshot: {error}")));
    }
    Ok(Answer { snapshot, json })
}

/// Returns the failure for bytes that are no snapshot of the version that is known here.
fn not_a_snapshot(json: &[u8], error: &serde_json::Error) -> Failure {
    let value: Option<serde_json::Value> = serde_json::from_slice(json).ok();
    match value.and_then(|value| value.get("version")?.as_u64()) {
        Some(version) if version != u64::from(Snapshot::VERSION) => other_version(version),
        _ => Failure::Wrong(format!("not a snapshot: {error}")),
    }
}

/// Returns the failure for a version that is not known here.
fn other_version(version: u64) -> Failure {
    let known = Snapshot::VERSION;
    Failure::Wrong(format!("the snapshot has version {version}, and this program reads version {known}"))
}

/// Reads a socket to its end, which has to come before the deadline and before this number of bytes.
fn read_all(mut socket: Socket, deadline: Instant, longest: usize) -> Result<Vec<u8>, Failure> {
    let mut read = Vec::new();
    let mut part = vec![0; 1 << 16];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Silent);
        }
        socket.set_read_timeout(Some(left))?;
        let length = match socket.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            length => length?,
        };
        if length == 0 {
            // It ends without a byte if the process ends before it has answered.
            return if read.is_empty() { Err(Failure::Ended) } else { Ok(read) };
        }
        if read.len() + length > longest {
            return Err(Failure::Wrong(format!("the snapshot is longer than {} MiB", longest >> 20)));
        }
        read.extend_from_slice(&part[..length]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Returns the two ends of a connection.
    fn pair() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::STREAM, None).expect("a pair")
    }

    #[test]
    fn reads_end_at_the_longest_length() {
        for (length, fits) in [(1 << 20, true), ((1 << 20) + 1, false)] {
            let (mut server, client) = pair();
            let writer = thread::spawn(move || server.write_all(&vec![b' '; length]));
            let outcome = read_all(client, Instant::now() + Duration::from_secs(60), 1 << 20);
            assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
            // It fails if the reader has ended before it.
            let _ = writer.join().expect("no panic");
        }
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let (mut server, client) = pair();
        server.write_all(b"{").expect("room");
        let outcome = read_all(client, Instant::now() + Duration::from_millis(20), LONGEST);
        assert_eq!(outcome, Err(Failure::Silent));
    }

    #[test]
    fn other_versions_are_named() {
        let reason = |json: &[u8]| parse(json.to_vec()).expect_err("no snapshot").to_string();
        let expected = "the snapshot has version 2, and this program reads version 1";
        assert_eq!(reason(br#"{"version":2,"all":[]}"#), expected);
        let readings = crate::samples::readings();
        let json = &readings[0].outcome.as_ref().expect("an answer").json;
        let json = String::from_utf8(json.clone()).expect("text");
        assert_eq!(reason(json.replace("\"version\":1", "\"version\":2").as_bytes()), expected);
        assert!(reason(b"HTTP/1.1 400\r\n").starts_with("not a snapshot: "));
        assert!(reason(br#"{"version":1,"adapters":"none"}"#).starts_with("not a snapshot: invalid type"));
    }

    #[test]
    fn a_process_without_a_snapshot_says_why() {
        let json = br#"{"version":1,"process":7,"program":"server","error":"a report has panicked"}"#;
        let failure = parse(json.to_vec()).expect_err("no snapshot");
        assert_eq!(failure, Failure::Wrong("no snapshot: a report has panicked".into()));
    }

    #[test]
    fn an_end_without_a_byte_is_that_of_the_process() {
        let (server, client) = pair();
        drop(server);
        assert_eq!(read_all(client, Instant::now() + Duration::from_secs(60), 1), Err(Failure::Ended));
    }
}
