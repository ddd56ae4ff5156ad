//! Streams with a session, and bytes both ways over them while their connections fail.

use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rdma::error::StreamError;
use tokio_rdma::io::{PathChanges, SessionPath};
use tokio_rdma::{RdmaListener, RdmaStream, SessionConfig, StreamConfig};

use super::stream::pattern;
use super::within;

/// The bytes of a stage, each way.
const STAGE: usize = 1 << 20;
/// The most bytes of a write, and of a read. Neither divides a stage.
const PIECES: [usize; 2] = [50_021, 40_009];
/// The wait for all bytes. A silent path takes one path timeout for each stage, and what a connection attempt takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// Settings of a stream with a session.
pub fn config() -> StreamConfig {
    StreamConfig::default().session(SessionConfig::default())
}

/// Both ends of a stream with a session.
pub async fn connected(
    listener: &RdmaListener,
    connecting: impl Future<Output = Result<RdmaStream, StreamError>>,
) -> (RdmaStream, RdmaStream) {
    let (ours, theirs) = within(async { tokio::join!(connecting, listener.accept()) }).await;
    let (ours, (theirs, _)) = (ours.expect("connected"), theirs.expect("accepted"));
    assert!(ours.session().is_some() && theirs.session().is_some(), "the stream has no session");
    (ours, theirs)
}

/// The place in a stage behind which the connection fails.
fn middle(stage: usize) -> usize {
    stage * STAGE + STAGE / 4
}

/// The progress of a transfer.
struct Progress {
    /// The number of bytes of each direction that have been written, and read.
    written: [watch::Sender<usize>; 2],
    read: [watch::Sender<usize>; 2],
    /// The number of failures so far.
    failures: watch::Sender<usize>,
}

impl Progress {
    /// Writes all stages. Each one but the first begins when the connection has failed in the midst of the one before.
    async fn write(&self, direction: usize, mut to: impl AsyncWrite + Unpin, stages: usize) {
        let mut failures = self.failures.subscribe();
        for stage in 0..stages {
            failures.wait_for(|failures| *failures >= stage).await.expect("the transfer goes on");
            for chunk in pattern(stage * STAGE, STAGE).chunks(PIECES[0]) {
                to.write_all(chunk).await.expect("written");
                self.written[direction].send_modify(|written| *written += chunk.len());
            }
            to.flush().await.expect("flushed");
        }
        to.shutdown().await.expect("shut down");
    }

    /// Reads up to the end, which is behind the last stage. Each byte is the next one. In the midst of a stage nothing is read until the
    /// connection has failed, so that it takes bytes along.
    async fn read(&self, direction: usize, mut from: impl AsyncRead + Unpin, stages: usize) {
        let mut failures = self.failures.subscribe();
        let mut read = 0;
        loop {
            let due = (0..stages - 1).filter(|stage| read > middle(*stage)).count();
            failures.wait_for(|failures| *failures >= due).await.expect("the transfer goes on");
            let mut bytes = vec![0; PIECES[1]];
            let count = from.read(&mut bytes).await.expect("read");
            if count == 0 {
                break;
            }
            assert!(bytes[..count] == pattern(read, count), "wrong bytes at {read}");
            read += count;
            self.read[direction].send_replace(read);
        }
        assert_eq!(read, stages * STAGE);
    }

    /// Has the connection fail in the midst of each stage but the last.
    async fn fail(&self, stages: usize, mut fail: impl AsyncFnMut(usize)) {
        for stage in 0..stages - 1 {
            for (written, read) in self.written.iter().zip(&self.read) {
                let is_midst = |read: &usize| *read > middle(stage);
                let read = *read.subscribe().wait_for(is_midst).await.expect("the transfer goes on");
                let is_ahead = |written: &usize| *written > read;
                written.subscribe().wait_for(is_ahead).await.expect("the transfer goes on");
            }
            fail(stage).await;
            self.failures.send_replace(stage + 1);
        }
    }
}

/// Sends as many stages both ways, calls `fail` in the midst of each but the last, and asserts that every byte arrives once and in
/// order, and the end behind them.
pub async fn transfer(
    ours: &mut (impl AsyncRead + AsyncWrite + Unpin),
    theirs: &mut (impl AsyncRead + AsyncWrite + Unpin),
    stages: usize,
    fail: impl AsyncFnMut(usize),
) {
    let (written, read, failures) = Default::default();
    let progress = Progress { written, read, failures };
    let ((our_reads, our_writes), (their_reads, their_writes)) =
        (tokio::io::split(ours), tokio::io::split(theirs));
    let all = async {
        tokio::join!(
            progress.write(0, our_writes, stages),
            progress.write(1, their_writes, stages),
            progress.read(1, our_reads, stages),
            progress.read(0, their_reads, stages),
            progress.fail(stages, fail),
        )
    };
    timeout(PATIENCE, all).await.expect("the stream goes on");
}

/// The path of a stream, as a test that does not have the stream sees it.
pub struct Path {
    /// The newest path.
    pub now: SessionPath,
    changes: PathChanges,
}

impl Path {
    /// That of a stream with a session.
    pub fn of(stream: &RdmaStream) -> Self {
        // Before the path is read: a change in between is not missed.
        let changes = stream.path_changes();
        Self { now: path(stream), changes }
    }

    /// Waits until the path is as wanted, and returns it.
    pub async fn until(&mut self, is_wanted: impl Fn(&SessionPath) -> bool) -> &SessionPath {
        let changed = async {
            while !is_wanted(&self.now) {
                self.now = self.changes.next().await.expect("the session goes on");
            }
        };
        within(changed).await;
        &self.now
    }
}

/// The path of a stream with a session.
pub fn path(stream: &RdmaStream) -> SessionPath {
    stream.session().expect("a session")
}

/// Resolves when a stream has gone on over as many other connections. `changes` are those from before on.
pub async fn resumed(changes: &mut PathChanges, resumes: u64) -> SessionPath {
    within(async {
        loop {
            let path = changes.next().await.expect("the session goes on");
            if path.resumes >= resumes {
                return path;
            }
        }
    })
    .await
}
