//! The waits of another task of a runtime while many peers flood its connections.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::time::ClockId;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, QueuePair, QueuePairConfig, RemoteRegion, WorkOptions,
};

use super::say;

/// Prints how long a task that is ready waits for its turn.
#[derive(Args)]
pub(crate) struct Flood {
    /// How many peers send at once.
    #[arg(long, default_value_t = 1000)]
    count: usize,
    /// Worker threads of tokio's multi_thread runtime; 0 is its current_thread runtime.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// They write to memory of this end, which nothing holds up; without it they send, and wait for credits of this end.
    #[arg(long)]
    writes: bool,
    /// How long it is measured.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The address of the process that is flooded; this one has its peers.
    #[arg(long)]
    peer: Option<SocketAddr>,
}

/// Receives that each connection has posted.
const RECEIVES: usize = 16;
/// A credit is for so many messages.
const CREDIT: usize = 8;
/// The bytes of a message.
const MESSAGE: usize = 16;

impl Flood {
    pub(crate) fn run(self) -> io::Result<()> {
        match self.peer {
            Some(address) => runtime(1)?.block_on(self.flood(address)),
            None => runtime(self.workers)?.block_on(self.measure()),
        }
    }

    /// Accepts the peers, and times the turns of a task beside theirs.
    async fn measure(self) -> io::Result<()> {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
        let listener = adapter.listener();
        listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        listener.listen(0)?;
        let mut peers = Command::new(std::env::current_exe()?);
        let (address, count) = (listener.local_addr()?.to_string(), self.count.to_string());
        peers.args(["flood", "--peer", &address, "--count", &count]).args(self.writes.then_some("--writes"));
        let region = adapter.register(MESSAGE, Access::REMOTE_WRITE).await?;
        let mut peers = peers.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let received = Arc::new(AtomicU64::new(0));
        for _ in 0..self.count {
            let config = QueuePairConfig::default().receive_depth(RECEIVES);
            let queue_pair = adapter.queue_pair(config)?;
            let params = AcceptParams::default().private_data(region.remote().to_bytes());
            let connection = listener.accept_next(&queue_pair, params).await?;
            let (adapter, received) = (adapter.clone(), received.clone());
            tokio::spawn(async move {
                let outcome = receive(&adapter, &queue_pair, &received).await;
                drop(connection);
                outcome
            });
        }
        // The peers begin when all are connected.
        let mut line = String::new();
        let output = peers.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        tokio::task::spawn_blocking(move || BufReader::new(output).read_line(&mut line)).await??;
        drop(peers.stdin.take());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, start) = (received.load(Ordering::Relaxed), Instant::now());
        let mut waits = tokio::spawn(wait(Duration::from_secs(self.seconds))).await??;
        let rate = (received.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
        peers.kill()?;
        peers.wait()?;
        waits.sort_unstable();
        let total: Duration = waits.iter().sum();
        let (mut before, mut text) = (Duration::ZERO, String::from("wait in us of processor time:"));
        // Of the time that is waited, not of the turns: most of these find nothing to do.
        let mut parts = [(0.5, "half"), (0.99, "99 %"), (1.0, "all")].into_iter().peekable();
        for wait in &waits {
            before += *wait;
            while let Some((_, name)) = parts.next_if(|(part, _)| before >= total.mul_f64(*part)) {
                text += &format!(" {name} up to {:.1},", wait.as_secs_f64() * 1e6);
            }
        }
        say(&format!("{text} {} turns, {rate:.0} messages/s", waits.len()))
    }

    /// Connects the peers, and sends from all of them until this process is killed.
    async fn flood(&self, address: SocketAddr) -> io::Result<()> {
        let adapter = Adapter::open(address.ip())?;
        let mut peers = Vec::new();
        for _ in 0..self.count {
            let queue_pair = adapter.queue_pair(QueuePairConfig::default().receive_depth(RECEIVES))?;
            let connector = adapter.connector();
            let reply = connector.connect(&queue_pair, address, ConnectParams::default()).await?;
            let target = RemoteRegion::decode(reply.private_data()).ok_or(io::ErrorKind::InvalidData)?;
            peers.push((queue_pair, self.writes.then_some(target), reply.complete().await?));
        }
        say("connected")?;
        tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())).await??;
        let mut sending = JoinSet::new();
        for (queue_pair, target, connection) in peers {
            let adapter = adapter.clone();
            sending.spawn(async move {
                let outcome = send(&adapter, &queue_pair, target).await;
                drop(connection);
                outcome
            });
        }
        // Without an end, unless one fails.
        while let Some(outcome) = sending.join_next().await {
            outcome??;
        }
        Ok(())
    }
}

fn runtime(workers: usize) -> io::Result<Runtime> {
    match workers {
        0 => Builder::new_current_thread().enable_all().build(),
        workers => Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
    }
}

/// Yields for so long. Returns the time that the thread has worked until each next turn. Turns between which the task has moved to
/// another thread are left out.
async fn wait(total: Duration) -> io::Result<Vec<Duration>> {
    let (start, mut waits) = (Instant::now(), Vec::new());
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    while start.elapsed() < total {
        let (thread, before) = (thread::current().id(), clock.now()?);
        tokio::task::yield_now().await;
        if thread::current().id() == thread {
            waits.push((clock.now()? - before).into());
        }
    }
    Ok(waits)
}

/// Receives until the connection ends, and gives the peer credits.
async fn receive(adapter: &Adapter, queue_pair: &QueuePair, received: &AtomicU64) -> io::Result<()> {
    let mut posted = VecDeque::new();
    for _ in 0..RECEIVES {
        posted.push_back(queue_pair.receive(adapter.buffer(MESSAGE)?)?);
    }
    let mut messages = 0;
    while let Some(oldest) = posted.pop_front() {
        let (outcome, buffer) = oldest.await;
        outcome?;
        received.fetch_add(1, Ordering::Relaxed);
        posted.push_back(queue_pair.receive(buffer)?);
        messages += 1;
        if messages % CREDIT == 0 {
            queue_pair.send_inline(&[], WorkOptions::default())?.await.0?;
        }
    }
    Ok(())
}

/// Sends or writes to the peer until the connection ends.
async fn send(adapter: &Adapter, queue_pair: &QueuePair, target: Option<RemoteRegion>) -> io::Result<()> {
    let mut credits = VecDeque::new();
    for _ in 0..=RECEIVES / CREDIT {
        credits.push_back(queue_pair.receive(adapter.buffer(0)?)?);
    }
    loop {
        for _ in 0..CREDIT {
            let sent = match &target {
                Some(target) => queue_pair.write_inline(&[&[0; MESSAGE]], target, WorkOptions::default())?,
                None => queue_pair.send_inline(&[&[0; MESSAGE]], WorkOptions::default())?,
            };
            sent.await.0?;
        }
        if target.is_none()
            && let Some(credit) = credits.pop_front()
        {
            let (outcome, buffer) = credit.await;
            outcome?;
            credits.push_back(queue_pair.receive(buffer)?);
        }
    }
}
