//! A stream that outlives its network cards: a session over two paths, of which one is cut while bytes pass both ways.
//!
//! The program makes two hosts, each a network namespace on a thread of its own, with two cables between them, which are pairs of
//! virtual interfaces. The client of the stream knows both addresses of the server. When the first cable is cut, both ends give the
//! connection up after the path timeout, and the client connects again over the second cable. Later the first
//! one is plugged in again and the second one cut. Each end checks that every block of the other comes, once and in order.
//!
//! ```sh
//! cargo run --release --example failover
//! ```
//!
//! It needs the command `ip`, and root or the permission to make user namespaces. The network of the machine is left alone.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::cell::Cell;
use std::future::pending;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io, thread};

use clap::Parser;
use futures::StreamExt;
use nix::sched::{CloneFlags, unshare};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::time::{Instant, interval_at, sleep_until};
use tokio_rdma::io::{PathChanges, SessionPath};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener, RdmaStream, SessionConfig, StreamConfig};
use tracing_subscriber::EnvFilter;

/// Moves a stream from one cable to the other and back, while bytes pass both ways.
#[derive(Parser)]
struct Options {
    /// How many seconds bytes are sent.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..))]
    seconds: u16,
}

/// The addresses of the client and of the server, one at each end of each cable.
const CABLES: [[&str; 2]; 2] = [["10.77.1.1", "10.77.1.2"], ["10.77.2.1", "10.77.2.2"]];
const PORT: u16 = 7471;
const BLOCK: usize = 64 * 1024;
/// The time after which a silent path is given up.
const PATH_TIMEOUT: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);

fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let time = Duration::from_secs(Options::parse().seconds.into());
    // While the process has one thread: a user namespace is that of all threads.
    enter_namespace()?;
    let (listens, listening) = mpsc::channel();
    let server = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        for (cable, [_, address]) in CABLES.iter().enumerate() {
            let client = std::process::id();
            ip(&format!("link add cable{cable} type veth peer name cable{cable} netns {client}"))?;
            set_up(cable, address)?;
        }
        block_on(serve(time, listens))
    });
    let client = match listening.recv() {
        Ok(()) => {
            CABLES.iter().enumerate().try_for_each(|(cable, [address, _])| set_up(cable, address))?;
            block_on(client(time))?
        }
        // The server has failed: its error follows.
        Err(mpsc::RecvError) => Progress::default(),
    };
    let server = server.join().map_err(|_| "the server has panicked")??;
    if [client.written.get(), server.written.get()] != [server.read.get(), client.read.get()] {
        return Err("the last blocks are lost".into());
    }
    println!(
        "done: {:.0} MiB to the server and {:.0} MiB to the client, each block once; the longest pause took {:.2} s",
        mebibytes(server.read.get()),
        mebibytes(client.read.get()),
        client.pause.get().max(server.pause.get()).as_secs_f64(),
    );
    Ok(())
}

/// Moves the process to a network namespace of its own, and to a user namespace if it may not otherwise.
fn enter_namespace() -> Result<(), String> {
    if unshare(CloneFlags::CLONE_NEWNET).is_ok() {
        return Ok(());
    }
    let enter = || {
        let process = fs::metadata("/proc/self")?;
        let (user, group) = (process.uid(), process.gid());
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
        // In the new namespace this user is root.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1"))
    };
    enter().map_err(|error| {
        format!("this system does not permit network namespaces: run the program as root, or allow user namespaces: {error}")
    })
}

/// Runs `ip` with these arguments, in the namespace of the calling thread.
fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("cannot run `ip`: {error}")))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("ip {arguments}: {stderr}"))) }
}

/// Gives this end of a cable its address.
fn set_up(cable: usize, address: &str) -> io::Result<()> {
    ip(&format!("address add {address}/24 dev cable{cable}"))?;
    ip(&format!("link set cable{cable} up"))
}

/// The provider and the settings of both ends, which keep the stream for a minute without a path.
fn settings() -> (Provider, StreamConfig) {
    let session = SessionConfig::default().give_up_after(Duration::from_secs(60));
    let provider = Provider::soft_with(SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)));
    (provider, StreamConfig::default().session(session))
}

/// Runs a future on this thread, and so in its namespace.
fn block_on<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Accepts one stream at every address of its host. The listener stays, because it takes the later connections of the session.
async fn serve(time: Duration, listens: mpsc::Sender<()>) -> io::Result<Progress> {
    let (provider, config) = settings();
    let listener = RdmaListener::bind_with_provider(&provider, ("0.0.0.0", PORT), &config).await?;
    let _ = listens.send(());
    let (mut stream, _) = listener.accept().await?;
    let progress = Progress::default();
    exchange(&mut stream, time, &progress).await?;
    closed(stream).await;
    Ok(progress)
}

/// Closes a stream. Its peer is told by tasks of the runtime, which is to last as long as the session.
async fn closed(stream: RdmaStream) {
    let changes = stream.path_changes();
    drop(stream);
    changes.for_each(async |_| {}).await;
}

/// Connects to the server at both of its addresses, and cuts one cable after the other.
async fn client(time: Duration) -> io::Result<Progress> {
    let servers = CABLES.map(|[_, server]| format!("{server}:{PORT}").parse());
    let servers = servers.into_iter().collect::<Result<Vec<SocketAddr>, _>>().map_err(io::Error::other)?;
    let (provider, config) = settings();
    let mut stream = RdmaConnector::new().provider(provider).config(config).connect(&servers[..]).await?;
    let path = stream.session().ok_or(io::Error::other("the server wants no session"))?;
    let (changes, progress) = (stream.path_changes(), Progress::default());
    tokio::select! {
        outcome = exchange(&mut stream, time, &progress) => outcome?,
        outcome = cut(time) => outcome?,
        () = report(path, changes, &progress) => {}
    }
    closed(stream).await;
    Ok(progress)
}

/// Cuts the first cable, and later the second one. Ends only with an error.
async fn cut(time: Duration) -> io::Result<()> {
    let begin = Instant::now();
    let acts = [(0, "down", 0.2), (0, "up", 0.5), (1, "down", 0.6), (1, "up", 0.9)];
    for (cable, state, part) in acts {
        sleep_until(begin + time.mul_f64(part)).await;
        ip(&format!("link set cable{cable} {state}"))?;
        println!("      cable {cable} is {state}");
    }
    pending().await
}

/// Prints a line a second. Does not end.
async fn report(mut path: SessionPath, mut changes: PathChanges, progress: &Progress) {
    let mut seconds = interval_at(Instant::now() + SECOND, SECOND);
    let (mut second, mut before) = (0, [0; 2]);
    loop {
        tokio::select! {
            Some(next) = changes.next() => path = next,
            _ = seconds.tick() => {
                second += 1;
                let now = [progress.written.get(), progress.read.get()];
                let [out, back] = [0, 1].map(|way| mebibytes(now[way] - before[way]));
                before = now;
                let (local, peer) = (path.connection.local_addr().ip(), path.connection.peer_addr().ip());
                let state = if path.is_lost { " lost" } else { "" };
                let pause = progress.pause.get().as_secs_f64();
                println!(
                    "{second:>3} s {local} - {peer}{state} {out:>7.1} MiB/s out {back:>7.1} MiB/s in, longest pause {pause:.2} s"
                );
            }
        }
    }
}

/// The progress of an end.
#[derive(Default)]
struct Progress {
    /// The numbers of blocks so far.
    written: Cell<u64>,
    read: Cell<u64>,
    /// The longest time for which no block came.
    pause: Cell<Duration>,
}

fn mebibytes(blocks: u64) -> f64 {
    (blocks * BLOCK as u64) as f64 / 1024.0 / 1024.0
}

/// Writes blocks for some time, and reads those of the peer up to their end.
async fn exchange(stream: &mut RdmaStream, time: Duration, progress: &Progress) -> io::Result<()> {
    let (reads, writes) = stream.split();
    tokio::try_join!(write(writes, time, progress), read(reads, progress)).map(drop)
}

/// Returns a block: its number, over and over.
fn block(number: u64) -> Vec<u8> {
    number.to_be_bytes().repeat(BLOCK / 8)
}

/// Writes blocks.
async fn write(mut to: impl AsyncWrite + Unpin, time: Duration, progress: &Progress) -> io::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        to.write_all(&block(progress.written.get())).await?;
        progress.written.set(progress.written.get() + 1);
    }
    to.shutdown().await
}

/// Reads blocks and checks them.
async fn read(mut from: impl AsyncRead + Unpin, progress: &Progress) -> io::Result<()> {
    let (mut bytes, mut last) = (vec![0; BLOCK], Instant::now());
    loop {
        match from.read_exact(&mut bytes).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            outcome => outcome?,
        };
        let number = progress.read.get();
        if bytes != block(number) {
            return Err(io::Error::other(format!("block {number} is lost, comes twice or is damaged")));
        }
        progress.read.set(number + 1);
        progress.pause.set(progress.pause.get().max(last.elapsed()));
        last = Instant::now();
    }
}
