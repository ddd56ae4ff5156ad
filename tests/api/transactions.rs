//! Transactions as of dapltest and ndmpic: many tasks on many threads, each with many queue pairs, which send, write and read
//! at once and look at every byte.
//!
//! Runs on: soft, sim, rxe, siw

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use common::deviation::lacks_buffer_sinks;
use common::device::is_emulated;
use common::dice::Dice;
use common::raw::{room, success};
use common::*;
use futures::future::{join_all, try_join_all};
use tokio::sync::Barrier;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Connection, Listener, Op, QueuePair, Region,
    RemoteRegion,
};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// The longest message, write or read.
const LONGEST: usize = 48 << 10;
/// The announcement of a write: its length and its seed, and behind them the region that is meant.
const HEAD: usize = 16;

/// As many pieces of data as there can be seeds.
const SEEDS: usize = 1 << 16;

/// Bytes of which each seed names a piece: no two begin alike, and what is in a wrong place is found.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dice = Dice::of(1, 1);
    (0..SEEDS + LONGEST).map(|_| dice.below(256) as u8).collect()
});

/// The data of this seed.
fn data(seed: u64, length: usize) -> &'static [u8] {
    let start = seed as usize % SEEDS;
    &NOISE[start..start + length]
}

#[track_caller]
fn validate(found: &[u8], seed: u64, what: &str) {
    let expected = data(seed, found.len());
    if found != expected {
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        panic!("{what} of {} bytes with the seed {seed:x} is wrong at {wrong:?}", found.len());
    }
}

/// How many messages an end may send before it has to hear one.
const AHEAD: usize = 3;

/// One end of a connection, with memory that the other end writes and reads, and receives that are always posted.
struct End {
    adapter: Adapter,
    queue_pair: QueuePair,
    own: Region,
    theirs: RemoteRegion,
    receives: VecDeque<Op<Buffer>>,
    connection: Connection,
}

/// The state of an end before it is connected: the receives are there before anything can come.
async fn prepared(adapter: &Adapter) -> (QueuePair, Region, VecDeque<Op<Buffer>>) {
    let queue_pair = queue_pair(adapter);
    let receive = |_| queue_pair.receive(room(adapter, LONGEST)).expect("posted");
    let receives = (0..AHEAD).map(receive).collect();
    (queue_pair, within(adapter.register(LONGEST, ALL)).await.expect("registered"), receives)
}

impl End {
    async fn connect(adapter: &Adapter, server: SocketAddr) -> Self {
        let (queue_pair, own, receives) = prepared(adapter).await;
        let params = ConnectParams::default().private_data(own.remote().to_bytes());
        let reply = within(adapter.connector().connect(&queue_pair, server, params)).await.expect("accepted");
        let theirs = RemoteRegion::decode(reply.private_data()).expect("a region");
        let connection = within(reply.complete()).await.expect("connected");
        Self { adapter: adapter.clone(), queue_pair, own, theirs, receives, connection }
    }

    async fn accept(adapter: &Adapter, listener: &Listener) -> Self {
        let request = within(listener.request()).await.expect("a request");
        let (queue_pair, own, receives) = prepared(adapter).await;
        let theirs = RemoteRegion::decode(request.private_data()).expect("a region");
        let params = AcceptParams::default().private_data(own.remote().to_bytes());
        let connection = within(request.accept(&queue_pair, params)).await.expect("accepted");
        Self { adapter: adapter.clone(), queue_pair, own, theirs, receives, connection }
    }

    async fn send(&self, bytes: &[u8]) {
        let buffer = self.adapter.buffer_from(bytes).expect("memory");
        assert_eq!(success(self.queue_pair.send(buffer).expect("posted")).await.0, bytes.len());
    }

    /// The next message; another receive takes the place of its own before it is answered.
    async fn receive(&mut self) -> Vec<u8> {
        let (length, buffer) = success(self.receives.pop_front().expect("posted")).await;
        let message = buffer[..length].to_vec();
        self.receives.push_back(self.queue_pair.receive(buffer).expect("posted"));
        message
    }

    /// A message of random length, which the other end sends back with another seed.
    async fn call(&mut self, dice: &mut Dice) {
        let (seed, length) = (dice.below(1 << 30) as u64, 8 + dice.below(LONGEST - 8));
        let mut message = data(seed, length).to_vec();
        message[..8].copy_from_slice(&seed.to_be_bytes());
        self.send(&message).await;
        let answer = self.receive().await;
        assert_eq!(answer.len(), length);
        validate(&answer, !seed, "an answer");
    }

    async fn answer(&mut self) {
        let message = self.receive().await;
        let seed = u64::from_be_bytes(message[..8].try_into().expect("eight"));
        assert!(message[8..] == data(seed, message.len())[8..], "a message of {} bytes", message.len());
        self.send(data(!seed, message.len())).await;
    }

    /// Writes into the other end's memory, tells it what, and reads back what it has put there instead.
    async fn write_and_read(&mut self, dice: &mut Dice) {
        let length = 1 + dice.below(LONGEST - 1);
        let at = dice.below(LONGEST - length);
        let seed = dice.below(1 << 30) as u64;
        let there = self.theirs.part(at as u32..(at + length) as u32).expect("in bounds");
        let buffer = self.adapter.buffer_from(data(seed, length)).expect("memory");
        let write = self.queue_pair.write(buffer, &there).expect("posted");
        let head = [(at as u32).to_be_bytes(), (length as u32).to_be_bytes()].concat();
        self.send(&[head, seed.to_be_bytes().to_vec()].concat()).await;
        success(write).await;
        assert_eq!(self.receive().await, b"changed");
        let (count, found) =
            success(self.queue_pair.read(room(&self.adapter, length), &there).expect("posted")).await;
        assert_eq!(count, length);
        validate(&found, !seed, "a read");
        // The other end may use its memory again.
        self.send(b"read").await;
    }

    async fn is_written_and_read(&mut self) {
        let told = self.receive().await;
        assert_eq!(told.len(), HEAD);
        let word = |at: usize| u32::from_be_bytes(told[at..at + 4].try_into().expect("four")) as usize;
        let (at, length) = (word(0), word(4));
        let seed = u64::from_be_bytes(told[8..].try_into().expect("eight"));
        let mut found = vec![0; length];
        self.own.read(at, &mut found).expect("in bounds");
        validate(&found, seed, "a write");
        self.own.write(at, data(!seed, length)).expect("in bounds");
        self.send(b"changed").await;
        assert_eq!(self.receive().await, b"read");
    }

    async fn finish(self) {
        within(self.connection.disconnected()).await;
    }
}

/// The work of the client of one queue pair; the server does the other half of it. Nobody leaves before everybody has
/// finished: the last message of the server may be here before its send has completed there.
async fn client(
    adapter: Adapter,
    server: SocketAddr,
    rounds: usize,
    mut dice: Dice,
    finished: &Barrier,
) -> usize {
    let mut end = End::connect(&adapter, server).await;
    for _ in 0..rounds {
        end.call(&mut dice).await;
        end.write_and_read(&mut dice).await;
        end.is_written_and_read().await;
        end.answer().await;
    }
    // However long the others take: each of their waits has a limit.
    finished.wait().await;
    within(end.connection.disconnect()).await.expect("disconnected");
    rounds
}

async fn server(mut end: End, rounds: usize, mut dice: Dice, finished: Arc<Barrier>) {
    for _ in 0..rounds {
        end.answer().await;
        end.is_written_and_read().await;
        end.write_and_read(&mut dice).await;
        end.call(&mut dice).await;
    }
    finished.wait().await;
    end.finish().await;
}

// SEC-17: dapltest's T: threads, each with queue pairs, each with rounds of Send, Write and Read both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_queue_pairs_send_write_and_read_concurrently() {
    const THREADS: usize = 4;
    let pairs = if is_emulated() { 2 } else { 4 };
    let rounds = often(40, 4);
    let seed = Dice::seed();
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let (listener, address) = listening(&adapter);
    // Both ends of each connection.
    let finished = Arc::new(Barrier::new(2 * THREADS * pairs));
    let serving = tokio::spawn({
        let (adapter, finished) = (adapter.clone(), finished.clone());
        async move {
            let mut servers = Vec::new();
            for number in 0..THREADS * pairs {
                let end = End::accept(&adapter, &listener).await;
                let dice = Dice::of(seed, 1000 + number);
                servers.push(tokio::spawn(server(end, rounds, dice, finished.clone())));
            }
            try_join_all(servers).await.expect("no panic");
        }
    });
    // A task of each thread has many queue pairs, which it works on by turns.
    let clients = (0..THREADS).map(|thread| {
        let (adapter, finished) = (adapter.clone(), finished.clone());
        tokio::spawn(async move {
            let clients = (0..pairs).map(|pair| {
                let dice = Dice::of(seed, thread * pairs + pair);
                client(adapter.clone(), address, rounds, dice, &finished)
            });
            join_all(clients).await.iter().sum::<usize>()
        })
    });
    // The first that fails ends the test, as the others may wait for it.
    let (done, ()) = tokio::try_join!(try_join_all(clients), serving).expect("no panic");
    assert_eq!(done, [pairs * rounds; THREADS]);
}

/// Connects one of the ranks with all others: to those above it by itself, the others come. The rank that connects has the
/// first word.
async fn joined_by_all(
    adapter: &Adapter,
    listener: Listener,
    rank: usize,
    addresses: &[SocketAddr],
) -> Vec<End> {
    let connects = addresses[rank + 1..].iter().map(|address| async {
        let mut end = End::connect(adapter, *address).await;
        end.send(b"hello").await;
        assert_eq!(end.receive().await, b"welcome");
        end
    });
    let accepts = async {
        let mut ends = Vec::new();
        for _ in 0..rank {
            let mut end = End::accept(adapter, &listener).await;
            assert_eq!(end.receive().await, b"hello");
            end.send(b"welcome").await;
            ends.push(end);
        }
        ends
    };
    let (mut active, passive) = within(async { tokio::join!(join_all(connects), accepts) }).await;
    active.extend(passive);
    active
}

// SEC-17: ndmpic: four ranks, each connected with every other, all of them sending to all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_ranks_exchange_messages_concurrently() {
    const RANKS: usize = 4;
    let rounds = often(200, 10);
    let adapters: Vec<_> = (0..RANKS).map(|_| adapter()).collect();
    let (listeners, addresses): (Vec<_>, Vec<_>) = adapters.iter().map(listening).unzip();
    let barrier = Arc::new(Barrier::new(RANKS));
    let ranks = adapters.into_iter().zip(listeners).enumerate().map(|(rank, (adapter, listener))| {
        let (addresses, barrier) = (addresses.clone(), barrier.clone());
        tokio::spawn(async move {
            let mut ends = joined_by_all(&adapter, listener, rank, &addresses).await;
            assert_eq!(ends.len(), RANKS - 1);
            for round in 0..rounds as u64 {
                let talks = ends.iter_mut().map(|end| async move {
                    let length = 1 + (round as usize * 977) % LONGEST;
                    // Neither sends again before it has heard the other, which may be a message further by then.
                    end.send(data(round, length)).await;
                    let found = end.receive().await;
                    assert_eq!(found.len(), length);
                    validate(&found, round, "a message");
                });
                join_all(talks).await;
            }
            // Nobody leaves before everybody has heard the last word.
            barrier.wait().await;
            ends.len() * rounds
        })
    });
    // Each wait has a limit, except that for the others; the first that fails ends the test.
    let heard = try_join_all(ranks).await.expect("no panic");
    assert_eq!(heard, [(RANKS - 1) * rounds; RANKS]);
}
