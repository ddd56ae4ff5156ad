//! A mixed workload with faults that are drawn from the seed, and what holds whatever happens.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_rdma::error::CompletionError;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Access, Completion, DisconnectReason, Op, Region, RemoteRegion, Status, WorkBuffer};

use crate::{End, SECOND, connected, hosts, joined, queue_pair};

/// The parts of the region of the server: a canary, the pattern that is read, the place that is written, and a canary.
const PART: usize = 4096;
const CANARY: [u8; PART] = [0xC5; PART];
const READ: std::ops::Range<usize> = PART..2 * PART;
const WRITTEN: std::ops::Range<usize> = 2 * PART..3 * PART;

/// The most messages of a connection: so many receives are posted before the first.
const MESSAGES: u64 = 40;

/// No wait is longer. The longest fault lasts for a minute; a partition is noticed by the path timeout of 30 s; the end is
/// awaited for the disconnect timeout of 5 s.
const PATIENCE: Duration = Duration::from_secs(200);

/// The statuses of requests whose connection has ended under them.
const ENDED: [Status; 3] = [Status::CANCELED, Status::IO_TIMEOUT, Status::REMOTE_ERROR];

fn pattern(number: u64) -> Vec<u8> {
    (0..PART as u64).map(|place| (place.wrapping_mul(2 * number + 1) >> 3) as u8).collect()
}

/// Waits for a request, which ends in time: whether it has succeeded, and its buffer.
async fn ended<B: WorkBuffer>(op: Op<B>) -> (Option<Completion>, B) {
    let (result, buffer) = timeout(PATIENCE, op).await.expect("a request ends");
    let is_listed = |error: &CompletionError| ENDED.contains(&error.status());
    assert!(result.as_ref().err().is_none_or(is_listed), "{result:?}");
    (result.ok(), buffer)
}

/// Receives numbered messages until the connection ends: how many there were. They come in order, each once.
async fn serve(end: &End) -> u64 {
    let receive = || end.queue_pair.receive(end.adapter.buffer(64).expect("memory")).expect("posted");
    let mut posted: VecDeque<_> = (0..MESSAGES).map(|_| receive()).collect();
    let mut count = 0_u64;
    while let Some(next) = posted.pop_front() {
        let (result, buffer) = next.await;
        match result {
            Ok(done) => assert_eq!(buffer[..done.bytes], count.to_be_bytes(), "message {count}"),
            Err(error) if ENDED.contains(&error.status()) => return count,
            Err(error) => panic!("{error:?}"),
        }
        count += 1;
    }
    count
}

/// The requests that a client has completed.
#[derive(Default)]
struct Done {
    sends: u64,
    /// The number of the pattern that was written last.
    written: Option<u64>,
    /// Every request has succeeded.
    whole: bool,
}

/// Posts requests of all kinds, until one fails.
async fn work(network: &Network, end: &End, region: &[RemoteRegion; 2]) -> Done {
    let mut done = Done::default();
    let buffer = |bytes: &[u8]| end.adapter.buffer_from(bytes).expect("memory");
    for round in 0..network.random(1..=MESSAGES) {
        let queue_pair = &end.queue_pair;
        let success = match network.random(0..=3) {
            0 => match queue_pair.write(buffer(&pattern(round)), &region[1]) {
                Ok(write) => {
                    let success = ended(write).await.0.is_some();
                    // One that has failed may have arrived.
                    done.written = if success { Some(round) } else { None };
                    success
                }
                Err(_) => false,
            },
            1 => match queue_pair.read(end.adapter.buffer(PART).expect("memory"), &region[0]) {
                // Its buffer belongs to the provider until it is over.
                Ok(read) if network.random(0..=3) == 0 => {
                    let _ = timeout(SECOND / 100, read).await;
                    true
                }
                Ok(read) => {
                    let (success, bytes) = ended(read).await;
                    assert!(success.is_none() || bytes[..] == pattern(0)[..], "the bytes that were read");
                    success.is_some()
                }
                Err(_) => false,
            },
            _ => match queue_pair.send(buffer(&done.sends.to_be_bytes())) {
                Ok(send) => {
                    let success = ended(send).await.0.is_some();
                    done.sends += u64::from(success);
                    success
                }
                Err(_) => false,
            },
        };
        if !success {
            return done;
        }
        sleep(Duration::from_millis(network.random(0..=2000))).await;
    }
    done.whole = true;
    done
}

/// One connection from its beginning to its end.
async fn life(network: &Network, (theirs, ours): (End, End)) {
    assert_eq!(theirs.connection.read_limits().inbound, ours.connection.read_limits().outbound);
    assert_eq!(theirs.connection.read_limits().outbound, ours.connection.read_limits().inbound);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region: Region = theirs.adapter.register(4 * PART, access).await.expect("registered");
    region.write(0, &CANARY).expect("in bounds");
    region.write(READ.start, &pattern(0)).expect("in bounds");
    region.write(3 * PART, &CANARY).expect("in bounds");
    let parts = [READ, WRITTEN].map(|part| region.remote_part(part).expect("in bounds"));

    let client = async {
        let done = work(network, &ours, &parts).await;
        let ended = timeout(PATIENCE, ours.connection.disconnect()).await.expect("a disconnect ends");
        (done, ended.is_ok())
    };
    let server = async {
        let count = serve(&theirs).await;
        (count, theirs.connection.disconnected().await)
    };
    let ((done, orderly), (count, reason)) = tokio::join!(client, server);

    let mut bytes = vec![0; 4 * PART];
    region.read(0, &mut bytes).expect("in bounds");
    assert!(bytes[..PART] == CANARY && bytes[READ] == pattern(0) && bytes[3 * PART..] == CANARY);
    // Requests that completed before an orderly end have arrived, also if this end did not wait for the answer.
    assert!(!orderly || reason == DisconnectReason::Peer, "{reason:?}");
    if done.whole && reason == DisconnectReason::Peer {
        assert_eq!(count, done.sends);
        assert!(done.written.is_none_or(|number| bytes[WRITTEN] == pattern(number)));
    }
    assert!(count <= done.sends + 1, "the last send may have failed here and arrived there");
}

// SEC-17: each request ends in time with a listed status; messages come in order, each once; bytes are where they belong and nowhere
// else; what completed before an orderly end arrives.
#[test]
fn every_request_ends_with_bytes_in_place() {
    sim::check(0..200, async |network: Network| {
        let (server, client) = hosts(&network);
        let latency = Duration::ZERO..=Duration::from_millis(network.random(0..=100));
        network.link(&server, &client).latency(latency).segments(1..=network.random(1..=3000) as usize);
        network.buffers(network.random(100..=100_000) as usize, network.random(100..=100_000) as usize);
        let mut ends = Vec::new();
        for _ in 0..network.random(1..=3) {
            ends.push(connected(&server, &client).await);
        }
        let lives = ends.into_iter().map(|ends| life(&network, ends));
        let faults = network.faults([&server, &client]);
        tokio::join!(futures::future::join_all(lives), faults.run());
    });
}

// A read of several segments, of which a part arrives together with the one before.
#[test]
fn long_reads_arrive_whole_with_and_without_checksums() {
    const LENGTH: usize = 300_000;
    for crc in [false, true] {
        sim::check(0..5, async |network: Network| {
            let (server, client) = hosts(&network);
            let config = SoftConfig::default().crc(crc);
            let open = |host: &Host| host.provider_with(config.clone()).open(host.address()).expect("opened");
            let (passive, active) = (open(&server), open(&client));
            let (_theirs, ours) = joined(&server, (&passive, queue_pair(&passive)), &active).await;
            let bytes: Vec<u8> = (0..LENGTH).map(|place| (place % 251) as u8).collect();
            let region = passive.register(LENGTH, Access::REMOTE_READ).await.expect("registered");
            region.write(0, &bytes).expect("in bounds");
            let sink = active.buffer(LENGTH).expect("memory");
            let read = ours.queue_pair.read(sink, &region.remote()).expect("posted");
            let (result, found) = timeout(PATIENCE, read).await.expect("a request ends");
            assert_eq!(result.expect("read").bytes, LENGTH);
            assert!(found[..] == bytes[..], "CRC {crc}");
        });
    }
}
