//! Stopped programs, repeated segments and closed sockets are as those of a real host.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_rdma::error::Reason;
use tokio_rdma::sim::{self, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, Access, ConnectParams, DisconnectReason, Status};

use crate::{
    NOTICED, PATH_TIMEOUT, SECOND, adapter, connect, connected, exchange, hosts, listening, queue_pair,
    starved,
};

const SEEDS: std::ops::Range<u64> = 0..20;

// SIM-03: the timers of a stopped program stand still, so it does not give up a peer that lives.
#[test]
fn a_frozen_host_gives_nobody_up() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
        let receive = theirs.queue_pair.receive(theirs.adapter.buffer(8).expect("memory")).expect("posted");
        server.freeze();
        client.freeze();
        sleep(Duration::from_millis(network.random(100_000..=1_000_000))).await;
        assert!(ours.connection.is_connected() && theirs.connection.is_connected());
        let (first, second) =
            if network.random(0..=1) == 0 { (&server, &client) } else { (&client, &server) };
        first.thaw();
        sleep(Duration::from_millis(network.random(0..=10_000))).await;
        second.thaw();
        ours.send(b"awake").await;
        receive.await.0.expect("received");
        sleep(100 * SECOND).await;
        exchange(&theirs, &ours).await;
    });
}

// SIM-03: a host that was frozen for longer than its peer waits finds out when it thaws.
#[test]
fn thawed_host_finds_its_connection_lost() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
        server.freeze();
        let reason = ours.connection.disconnected().await;
        assert!(matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. }), "{reason:?}");
        sleep(1000 * SECOND).await;
        assert!(theirs.connection.is_connected(), "it does not run");
        server.thaw();
        let reason = timeout(SECOND, theirs.connection.disconnected()).await.expect("at once");
        assert!(matches!(reason, DisconnectReason::Lost { reason: Reason::Errno(_), .. }), "{reason:?}");
    });
}

// SIM-03: half of the request has come when the host freezes. The timeout of the request is late, too.
#[test]
fn a_frozen_host_accepts_when_it_thaws() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        network.link(&server, &client).bandwidth(100).segments(1..=10);
        let connector = active.connector();
        let params = ConnectParams::default().private_data(vec![7; 200]);
        let connecting = connector.connect_and_complete(&ours, address, params);
        let accepting = listener.accept_next(&theirs, AcceptParams::default());
        let thawing = async {
            sleep(SECOND).await;
            server.freeze();
            sleep(Duration::from_millis(network.random(6000..=25_000))).await;
            server.thaw();
        };
        let (connection, accepted, ()) = tokio::join!(connecting, accepting, thawing);
        drop((connection.expect("connected"), accepted.expect("accepted")));
    });
}

// SIM-03, SEC-04: TCP repeats what waits at a stall, and so knows that nobody answers. The server reads nothing, because a
// message waits for a receive: there is nothing else to tell it.
#[test]
fn a_stall_is_noticed_by_what_is_repeated() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_receives, theirs, _ours) = starved(&server, &client).await;
        sleep(Duration::from_millis(network.random(1000..=100_000))).await;
        let begin = network.elapsed();
        network.stall(&server, &client, 1000 * SECOND);
        let reason = timeout(900 * SECOND, theirs.connection.disconnected())
            .await
            .expect("long before the stall ends");
        let expected = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: Reason::PathTimeout };
        assert_eq!(reason, expected);
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT - SECOND && silence <= NOTICED, "{silence:?}");
    });
}

/// Closes so many connections whose last writes the peer has not acknowledged. Returns how many of these arrive.
async fn linger(network: &Network, count: usize) -> usize {
    const LENGTH: usize = 4000;
    let (server, client) = hosts(network);
    let config = SoftConfig::default().path_timeout(None);
    let [passive, active] = [&server, &client]
        .map(|host| host.provider_with(config.clone()).open(host.address()).expect("opened"));
    let (listener, _) = listening(&passive, &server);
    let mut ends = Vec::new();
    for _ in 0..count {
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        let (accepted, completed) =
            connect((&listener, &theirs), (&active.connector(), &ours), ConnectParams::default()).await;
        ends.push((theirs, accepted, ours, completed));
    }
    network.partition_one_way(&client, &server, 8 * SECOND);
    let mut regions = Vec::new();
    for (_, _, ours, _) in &ends {
        let region = passive.register(LENGTH, Access::REMOTE_WRITE).await.expect("registered");
        let buffer = active.buffer_from(&[7; LENGTH]).expect("memory");
        ours.write(buffer, &region.remote()).expect("posted").await.0.expect("TCP has it");
        regions.push(region);
    }
    let ending = ends.into_iter().map(async |(theirs, accepted, _ours, completed)| {
        let speaking = async {
            sleep(7 * SECOND).await;
            // A host that has closed its socket answers this with a reset.
            let _ = theirs.send(passive.buffer(8).expect("memory")).map(drop);
            accepted.disconnected().await
        };
        tokio::join!(completed.disconnect(), speaking)
    });
    futures::future::join_all(ending).await;
    sleep(100 * SECOND).await;
    let mut bytes = [0; LENGTH];
    regions.iter().filter(|region| region.read(0, &mut bytes).is_ok() && bytes == [7; LENGTH]).count()
}

// SIM-01, SEC-02: sockets that linger are counted by their host, so a run does not depend on the other runs of its process.
#[test]
fn lingering_sockets_are_of_their_host() {
    sim::check(0..3, async |network: Network| {
        let lone = Network::new(network.random(0..=1000));
        assert_eq!(linger(&lone, 20).await, 20);
        let crowd = Network::new(1);
        let (crowded, again) = tokio::join!(linger(&crowd, 300), async {
            // The others have taken all of their places by then, and keep them for the partition.
            sleep(SECOND * 11 / 2).await;
            let again = Network::new(lone.seed());
            assert_eq!(linger(&again, 20).await, 20);
            again
        });
        // As many as a host has places for are sure to arrive.
        assert!((256..=300).contains(&crowded), "{crowded}");
        assert_eq!(again.trace_hash(), lone.trace_hash());
    });
}
