//! Memory after the call by which it was taken back has returned: no byte of it changes, and none is sent.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{Access, Buffer, Op, Region, RemoteRegion, WorkOptions};

use crate::{End, SECOND, connected, hosts};

/// Of several segments and frames.
const LENGTH: usize = 20_000;

/// Written by the owner when the memory is its own again, and by nobody else.
const CANARY: u8 = 0xca;

/// The same, in memory that peers read from or that was to be sent.
const SECRET: u8 = 0xee;

#[track_caller]
fn assert_no_secret(bytes: &[u8]) {
    assert!(!bytes.contains(&SECRET), "sent after it was taken back");
}

async fn region(end: &End, fill: u8) -> Region {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = end.adapter.register(LENGTH, access).await.expect("registered");
    region.write(0, &[fill; LENGTH]).expect("as long");
    region
}

#[track_caller]
fn assert_is_all(region: &Region, fill: u8) {
    let mut bytes = vec![0; LENGTH];
    region.read(0, &mut bytes).expect("as long");
    assert!(bytes.iter().all(|byte| *byte == fill), "a stale byte");
}

/// A connection over a link with small segments, each of which takes its time.
async fn uneven(network: &Network, server: &Host, client: &Host) -> (End, End) {
    // Without any, an attack would take no time, and never end.
    let latency = Duration::from_millis(1)..=Duration::from_millis(network.random(1..=20));
    network.link(server, client).latency(latency).segments(1..=network.random(100..=9000) as usize);
    network.buffers(network.random(1000..=50_000) as usize, network.random(1000..=50_000) as usize);
    connected(server, client).await
}

/// Reads or writes again and again, until that fails.
async fn attack(end: &End, remote: RemoteRegion, reads: bool) {
    loop {
        let post = || {
            let buffer = end.adapter.buffer_from(&[7; LENGTH]).expect("memory");
            if reads { end.queue_pair.read(buffer, &remote) } else { end.queue_pair.write(buffer, &remote) }
        };
        let posted: Result<Vec<Op<Buffer>>, _> = (0..4).map(|_| post()).collect();
        let Ok(posted) = posted else { return };
        for (result, buffer) in join_all(posted).await {
            assert_no_secret(&buffer);
            if result.is_err() {
                return;
            }
        }
    }
}

/// The ways in which memory is taken back from a peer.
#[derive(Clone, Copy, Debug)]
enum TakenBack {
    Deregistered,
    Dropped,
    Invalidated,
    Disconnected,
}

// SEC-18: of a peer that writes there or reads from there, under a key that was valid a moment ago.
#[test]
fn memory_that_was_taken_back_from_a_peer() {
    for way in [TakenBack::Deregistered, TakenBack::Dropped, TakenBack::Invalidated, TakenBack::Disconnected]
    {
        sim::check(0..30, async |network: Network| {
            let (server, client) = hosts(&network);
            let (theirs, ours) = uneven(&network, &server, &client).await;
            let reads = network.random(0..=1) == 0;
            let fill = if reads { SECRET } else { CANARY };
            let mut regions = vec![region(&theirs, 0).await];
            let window = theirs.adapter.memory_window().expect("a window");
            let slice = regions[0].slice(0..LENGTH).expect("in bounds");
            let mut remote = regions[0].remote();
            if let TakenBack::Invalidated = way {
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                let bind = theirs.queue_pair.bind(&window, &slice, access, WorkOptions::default());
                bind.expect("posted").await.0.expect("bound");
                remote = window.remote().expect("bound");
            }
            drop(slice);
            let taking = async {
                sleep(Duration::from_millis(network.random(0..=300))).await;
                match way {
                    TakenBack::Deregistered => regions[0].deregister().await.expect("deregistered"),
                    TakenBack::Invalidated => {
                        let invalidate = theirs.queue_pair.invalidate(&window, WorkOptions::default());
                        let _ = invalidate.expect("posted").await;
                    }
                    TakenBack::Disconnected => theirs.connection.disconnect().await.expect("in order"),
                    TakenBack::Dropped => {
                        regions.clear();
                        // The heap gives the memory to the next who ask for as much.
                        for _ in 0..4 {
                            regions.push(region(&theirs, fill).await);
                        }
                    }
                }
                for region in &regions {
                    region.write(0, &[fill; LENGTH]).expect("as long");
                }
            };
            let attacking = timeout(30 * SECOND, attack(&ours, remote, reads));
            let (ended, ()) = tokio::join!(attacking, taking);
            ended.unwrap_or_else(|_| panic!("{way:?}: the peer goes on, reads: {reads}"));
            sleep(10 * SECOND).await;
            for region in &regions {
                assert_is_all(region, fill);
            }
        });
    }
}

/// The ways in which requests end before they are done.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Flushed,
    Disconnected,
    Lost,
    /// The connection, its queue pair and the futures are dropped.
    Dropped,
}

// SEC-18: a buffer that has come back from a request changes no more, and no byte of it is sent.
#[test]
fn buffers_that_have_come_back() {
    for way in [Ended::Flushed, Ended::Disconnected, Ended::Lost, Ended::Dropped] {
        sim::check(0..30, async |network: Network| {
            let (server, client) = hosts(&network);
            let (theirs, ours) = uneven(&network, &server, &client).await;
            let target = region(&theirs, 0).await;
            let source = region(&theirs, 7).await;
            let fresh = |fill| ours.adapter.buffer_from(&[fill; LENGTH]).expect("memory");
            let queue_pair = &ours.queue_pair;
            let writes: Vec<_> =
                (0..4).map(|_| queue_pair.write(fresh(7), &target.remote()).expect("posted")).collect();
            let reads: Vec<_> =
                (0..4).map(|_| queue_pair.read(fresh(0), &source.remote()).expect("posted")).collect();
            sleep(Duration::from_millis(network.random(0..=50))).await;
            let End { adapter: _adapter, queue_pair, connection } = ours;
            let mut buffers = Vec::new();
            match way {
                Ended::Flushed => queue_pair.flush(),
                Ended::Disconnected => drop(connection.disconnect().await),
                Ended::Lost => network.partition(&server, &client, 1000 * SECOND),
                Ended::Dropped => drop((queue_pair, connection)),
            }
            for (_, mut buffer) in timeout(200 * SECOND, join_all(writes)).await.expect("they end") {
                buffer.fill(SECRET);
                buffers.push((buffer, SECRET));
            }
            for (_, mut buffer) in timeout(200 * SECOND, join_all(reads)).await.expect("they end") {
                buffer.fill(CANARY);
                buffers.push((buffer, CANARY));
            }
            sleep(10 * SECOND).await;
            assert!(
                buffers.iter().all(|(buffer, fill)| buffer.iter().all(|byte| byte == fill)),
                "a stale byte"
            );
            let mut bytes = vec![0; LENGTH];
            target.read(0, &mut bytes).expect("as long");
            assert_no_secret(&bytes);
        });
    }
}

// MR-04, MW-04: what is bound for the peer ends with the connection, however that ends, and holds the region no longer.
#[test]
fn window_is_bound_until_connection_ends() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let (owner, peer) = connected(&server, &client).await;
        let region = region(&owner, 1).await;
        let window = owner.adapter.memory_window().expect("a window");
        let part = region.slice(0..LENGTH).expect("in bounds");
        // It is the only request of the connection.
        let bind = owner.queue_pair.bind(&window, &part, Access::REMOTE_READ, WorkOptions::default());
        bind.expect("posted").await.0.expect("bound");
        let remote = window.remote().expect("it is bound");
        let (result, _) = peer
            .queue_pair
            .read(peer.adapter.buffer(8).expect("memory"), &remote.part(0..8).expect("in bounds"))
            .expect("posted")
            .await;
        result.expect("read");
        region.deregister().await.expect_err("something is bound to it");
        match network.seed() % 3 {
            0 => owner.connection.disconnect().await.expect("disconnected"),
            1 => peer.connection.disconnect().await.expect("disconnected"),
            _ => drop(network.reset(&server, &client)),
        }
        owner.connection.disconnected().await;
        assert_eq!(window.remote(), None);
        region.deregister().await.expect("nothing is bound to it any more");
    });
}
