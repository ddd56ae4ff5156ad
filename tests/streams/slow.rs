//! Streams over slow paths: everything that was written arrives.
//!
//! A relay between the two ends stops, or passes on little at a time. It is real time that passes, because kernels'
//! buffers take part.

use std::net::SocketAddr;
use std::time::Duration;

use common::path::noticed;
use common::stream::{listening, pattern};
use common::*;
use futures::future::join;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaStream, StreamConfig};

/// How many bytes pass at once.
const PIECE: usize = 16 << 10;

/// The path is silent for longer than the defaults of 30 seconds allow.
const PATIENT: Duration = Duration::from_secs(120);

/// The treatment of the bytes of both ends by a relay.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Full,
    Stopped,
    /// Bytes per second.
    Slow(usize),
}

/// The connection between two ends, whose pace a test sets.
struct Path {
    address: SocketAddr,
    pace: watch::Sender<Pace>,
}

impl Path {
    /// A path to this listener, for one connection.
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((v4(), 0)).await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let (pace, paces) = watch::channel(Pace::Full);
        tokio::spawn(async move {
            let (client, _) = listener.accept().await.expect("a client");
            let server = TcpStream::connect(server).await.expect("a server");
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let back = paces.clone();
            tokio::join!(relay(from_client, to_server, paces), relay(from_server, to_client, back));
        });
        Self { address, pace }
    }

    fn set(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }
}

/// Passes bytes on until one of the two has closed, and then closes.
async fn relay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut pace: watch::Receiver<Pace>) {
    let mut piece = vec![0; PIECE];
    loop {
        let now = *pace.borrow_and_update();
        match now {
            Pace::Full => {}
            Pace::Slow(rate) => sleep(Duration::from_secs_f64(PIECE as f64 / rate as f64)).await,
            Pace::Stopped => {
                if pace.changed().await.is_err() {
                    return;
                }
                continue;
            }
        }
        let count = tokio::select! {
            biased;
            changed = pace.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            count = from.read(&mut piece) => count.unwrap_or(0),
        };
        if count == 0 || to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

/// Two ends with a path between them.
async fn ends(path_timeout: Duration) -> (RdmaStream, RdmaStream, Path) {
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(path_timeout)));
    let config = StreamConfig::default().close_timeout(PATIENT);
    let listener = listening(&adapter, &config);
    let path = Path::to(listener.local_addr().expect("an address")).await;
    let connect = RdmaStream::connect_on(&adapter, path.address, &config);
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    (connected.expect("connected"), accepted.expect("accepted").0, path)
}

/// Reads to the end of file and closes.
async fn read_all(mut stream: RdmaStream, length: usize) {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.expect("an end of file");
    assert_eq!(read.len(), length, "all of it");
    assert!(read == pattern(0, length));
    stream.shutdown().await.expect("shut down");
}

/// The path is silent for so long, and `shut_down` says whether the writer waits for the end.
async fn stalled(silence: Duration, shut_down: bool) {
    const LENGTH: usize = 200_000;
    let (mut writer, reader, path) = ends(PATIENT).await;
    path.set(Pace::Stopped);
    let write = async {
        writer.write_all(&pattern(0, LENGTH)).await.expect("there is room");
        let start = Instant::now();
        if shut_down {
            writer.shutdown().await.expect("shut down");
            assert!(start.elapsed() >= silence, "the peer had nothing yet");
        }
        drop(writer);
    };
    let heal = async {
        sleep(silence).await;
        path.set(Pace::Full);
    };
    tokio::join!(write, heal, read_all(reader, LENGTH));
    drop(path);
}

/// The path passes 160 KiB each second, for longer than a disconnect waits.
async fn slow() {
    const LENGTH: usize = 1_200_000;
    let (mut writer, reader, path) = ends(PATIENT).await;
    path.set(Pace::Slow(160 << 10));
    let write = async {
        writer.write_all(&pattern(0, LENGTH)).await.expect("there is room");
        writer.shutdown().await.expect("shut down");
        drop(writer);
    };
    tokio::join!(write, read_all(reader, LENGTH));
    drop(path);
}

// IO-03: what was written before the shutdown arrives, and both ends return `Ok`. So does what was written before a drop
// within the close timeout.
#[tokio::test]
async fn written_bytes_arrive_over_a_slow_path() {
    let all = async {
        tokio::join!(
            stalled(Duration::from_secs(7), true),
            stalled(Duration::from_secs(7), false),
            stalled(Duration::from_secs(30), true),
            slow(),
        )
    };
    timeout(Duration::from_secs(90), all).await.expect("it hangs");
}

// IO-09: nothing is under way, and nobody writes.
#[tokio::test]
async fn dead_peer_of_idle_stream_is_noticed() {
    const PATH_TIMEOUT: Duration = Duration::from_secs(4);
    let (mut left, mut right, path) = ends(PATH_TIMEOUT).await;
    within(left.write_all(b"alive")).await.expect("written");
    within(right.read_exact(&mut [0; 5])).await.expect("read");
    path.set(Pace::Stopped);
    let (mut one, mut other) = ([0], [0]);
    let reads = join(left.read(&mut one), right.read(&mut other));
    for outcome in <[_; 2]>::from(noticed(PATH_TIMEOUT, reads).await) {
        let error = outcome.expect_err("the peer is dead");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error:?}");
    }
}
