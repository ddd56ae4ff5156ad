//! The highest rate of small messages: a server that answers each message of 64 bytes, and a client with 64 of them under way, each a
//! thread on a core of its own.
//!
//! Measured with a [`Lane`] at both ends, and in the same run with frames of 64 bytes over plain tokio TCP, which answers all frames of a
//! read with one write. Both either always wait, or look some times before, which keeps the cores busy: a lane polls, and a task over
//! TCP yields to the runtime, as tokio reads a socket only when its event loop has seen bytes.
#![allow(clippy::print_stdout, reason = "a program that prints")]

#[path = "report/mod.rs"]
mod report;

use std::io::{self, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rdma::qp::{Done, Lane, LaneConfig, QueuePairId};
use tokio_rdma::types::OpKind;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams};

/// The length of a message.
const LENGTH: usize = 64;
/// The number of messages under way.
const UNDER_WAY: usize = 64;
/// The slots of each end. The server has receives for the next messages while it answers.
const SLOTS: usize = 2 * UNDER_WAY;
/// The number of clients of a server, one after the other: the first fills caches, the second is measured, the last asks for nothing.
const CLIENTS: usize = 3;
/// The number of polls before a wait.
const POLLS: usize = 100;

/// Small messages over lanes and over TCP.
#[derive(Parser)]
struct Args {
    /// The number of measurements of each kind.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The number of messages of a measurement.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
}

/// Messages per second, and per second of processor time of both threads.
type Rate = [f64; 2];

fn main() -> std::result::Result<(), report::Report> {
    let Args { rounds, messages } = Args::parse();
    println!("{:<12} {:>12} {:>12}    ratios to TCP that waits", "", "messages/s", "per core");
    for _ in 0..rounds {
        let tcp = measure(messages, tcp_server::<0>, tcp_client::<0>)?;
        let tcp_polls = measure(messages, tcp_server::<POLLS>, tcp_client::<POLLS>)?;
        let waits = measure(messages, lane_server::<0>, lane_client::<0>)?;
        let polls = measure(messages, lane_server::<POLLS>, lane_client::<POLLS>)?;
        for (name, rate) in
            [("TCP, waits", tcp), ("TCP, polls", tcp_polls), ("lane, waits", waits), ("lane, polls", polls)]
        {
            let [by_time, by_core] = [rate[0] / tcp[0], rate[1] / tcp[1]];
            println!("{name:<12} {:>12.0} {:>12.0}    {by_time:.2} {by_core:.2}", rate[0], rate[1]);
        }
    }
    Ok(())
}

/// The address of a server that listens, and what serves its clients.
type Server = (SocketAddr, Box<dyn FnOnce(&Runtime) -> Result<()> + Send>);

/// Runs a server and its clients. Returns the rate.
fn measure(
    messages: u64,
    server: fn(&Runtime) -> Result<Server>,
    client: fn(&Runtime, SocketAddr, u64) -> Result<()>,
) -> Result<Rate> {
    let cores = sched_getaffinity(Pid::from_raw(0))?;
    let runtime = || Builder::new_current_thread().enable_all().build();
    let there = runtime()?;
    let (address, serve) = server(&there)?;
    let server = thread::spawn(move || {
        stay_on(&cores, 1);
        serve(&there)
    });
    let client = thread::spawn(move || {
        stay_on(&cores, 0);
        let here = runtime()?;
        client(&here, address, messages / 10)?;
        let (began, before) = (Instant::now(), processor_time()?);
        client(&here, address, messages)?;
        let (time, used) = (began.elapsed(), processor_time()?.saturating_sub(before));
        client(&here, address, 0)?;
        Result::Ok([time, used].map(|time| messages as f64 / time.as_secs_f64()))
    });
    let panicked = |_| io::Error::other("a thread has panicked");
    let rate = client.join().map_err(panicked)??;
    server.join().map_err(panicked)??;
    Ok(rate)
}

/// Keeps this thread on a core of its own, if there are as many.
fn stay_on(cores: &CpuSet, thread: usize) {
    let mine = (0..CpuSet::count()).filter(|core| cores.is_set(*core).unwrap_or(false)).nth(thread);
    let mut set = CpuSet::new();
    if mine.is_some_and(|core| set.set(core).is_ok()) {
        // Not being allowed to is no reason not to measure.
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// Returns the processor time of the process so far.
fn processor_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let time = |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

/// Checks that this is the answer to the message with this number.
fn check(answer: &[u8], number: u64) -> Result<()> {
    if answer.first() == Some(&(number as u8)) { Ok(()) } else { Err(io::Error::other("a wrong answer")) }
}

fn lane_server<const POLLS: usize>(runtime: &Runtime) -> Result<Server> {
    let _inside = runtime.enter();
    let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
    let listener = adapter.listener();
    listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    listener.listen(1)?;
    let address = listener.local_addr()?;
    let serve = move |runtime: &Runtime| {
        runtime.block_on(async {
            for _ in 0..CLIENTS {
                let mut lane = adapter.lane(&LaneConfig::new(SLOTS, LENGTH))?;
                let (id, end) = lane.queue_pair()?;
                let slots: Vec<_> = std::iter::from_fn(|| lane.take()).collect();
                lane.receive_all(id, slots)?;
                let _connection = listener.accept_next(&end, AcceptParams::default()).await?;
                answer::<POLLS>(&mut lane).await?;
            }
            Ok(())
        })
    };
    Ok((address, Box::new(serve)))
}

/// Answers each message in the slot that it came in, until the client leaves.
async fn answer<const POLLS: usize>(lane: &mut Lane) -> Result<()> {
    let mut room = [Done::EMPTY; SLOTS];
    loop {
        let count = completions::<POLLS>(lane, &mut room).await?;
        for done in &room[..count] {
            match done.kind() {
                _ if !done.is_success() => return Ok(()),
                OpKind::Receive => lane.send(done.queue_pair(), done.slot(), done.bytes())?,
                _ => lane.receive(done.queue_pair(), done.slot())?,
            }
        }
    }
}

/// Polls some times for completions, and then waits for them. Returns their number.
async fn completions<const POLLS: usize>(lane: &mut Lane, room: &mut [Done]) -> Result<usize> {
    for _ in 0..POLLS {
        let count = lane.poll(room)?.len();
        if count > 0 {
            return Ok(count);
        }
    }
    Ok(lane.ready(room).await?.len())
}

fn lane_client<const POLLS: usize>(runtime: &Runtime, server: SocketAddr, messages: u64) -> Result<()> {
    runtime.block_on(async {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
        let mut lane = adapter.lane(&LaneConfig::new(SLOTS, LENGTH))?;
        let (id, end) = lane.queue_pair()?;
        let receives: Vec<_> = (0..UNDER_WAY).filter_map(|_| lane.take()).collect();
        lane.receive_all(id, receives)?;
        let connector = adapter.connector();
        let connection = connector.connect_and_complete(&end, server, ConnectParams::default()).await?;
        ask::<POLLS>(&mut lane, id, messages).await?;
        connection.disconnect().await?;
        Ok(())
    })
}

/// Sends messages, with as many under way as there may be, and waits for the answers.
async fn ask<const POLLS: usize>(lane: &mut Lane, id: QueuePairId, messages: u64) -> Result<()> {
    let (mut sent, mut answered) = (0, 0);
    let mut room = [Done::EMPTY; SLOTS];
    while answered < messages {
        while sent < messages.min(answered + UNDER_WAY as u64)
            && let Some(slot) = lane.take()
        {
            lane.bytes_mut(slot)[0] = sent as u8;
            lane.send(id, slot, LENGTH)?;
            sent += 1;
        }
        let count = completions::<POLLS>(lane, &mut room).await?;
        for done in &room[..count] {
            done.ok()?;
            if done.kind() == OpKind::Receive {
                check(lane.bytes(done.slot()), answered)?;
                answered += 1;
                lane.receive(id, done.slot())?;
            } else {
                lane.give(done.slot());
            }
        }
    }
    Ok(())
}

fn tcp_server<const POLLS: usize>(runtime: &Runtime) -> Result<Server> {
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let serve = move |runtime: &Runtime| {
        runtime.block_on(async {
            for _ in 0..CLIENTS {
                let (mut stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let mut input = Vec::with_capacity(SLOTS * LENGTH);
                while read::<POLLS>(&mut stream, &mut input).await? > 0 {
                    let whole = input.len() - input.len() % LENGTH;
                    stream.write_all(&input[..whole]).await?;
                    input.drain(..whole);
                }
            }
            Ok(())
        })
    };
    Ok((address, Box::new(serve)))
}

fn tcp_client<const POLLS: usize>(runtime: &Runtime, server: SocketAddr, messages: u64) -> Result<()> {
    runtime.block_on(async {
        let mut stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (mut sent, mut answered) = (0, 0);
        let (mut input, mut output) = (Vec::with_capacity(SLOTS * LENGTH), Vec::new());
        while answered < messages {
            while sent < messages.min(answered + UNDER_WAY as u64) {
                output.extend_from_slice(&[sent as u8; LENGTH]);
                sent += 1;
            }
            stream.write_all(&output).await?;
            output.clear();
            if read::<POLLS>(&mut stream, &mut input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let whole = input.len() - input.len() % LENGTH;
            for frame in input[..whole].chunks_exact(LENGTH) {
                check(frame, answered)?;
                answered += 1;
            }
            input.drain(..whole);
        }
        Ok(())
    })
}

/// Looks some times for bytes, and then waits for them. Returns their number; 0 at the end of the stream.
async fn read<const POLLS: usize>(stream: &mut TcpStream, input: &mut Vec<u8>) -> Result<usize> {
    for _ in 0..POLLS {
        match stream.try_read_buf(input) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            outcome => return outcome,
        }
    }
    stream.read_buf(input).await
}
