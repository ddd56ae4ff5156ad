//! Streams with sessions that end for want of a connection or of a peer, and streams without.

use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::StreamBroken;
use tokio_rdma::io::RdmaConnector;
use tokio_rdma::sim::{self, Network};
use tokio_rdma::{RdmaStream, SessionConfig, StreamConfig};

use crate::sessions::{broken, config, connect, exchange, listen, provider};
use crate::{PORT, SECOND, hosts};

/// Reads what has arrived, and returns the error behind it, which writes have, too.
async fn fails_after(stream: &mut RdmaStream, arrived: &[u8]) -> StreamBroken {
    let mut bytes = Vec::new();
    let error = stream.read_to_end(&mut bytes).await.expect_err("it is no end of file");
    assert_eq!(bytes, arrived);
    let reason = broken(&error);
    let error = stream.write(b"x").await.expect_err("neither does it take any");
    assert_eq!(broken(&error), reason);
    assert!(stream.session().is_some_and(|path| path.is_over && path.is_lost));
    reason
}

/// Returns the number of connections that were tried.
fn attempts(network: &Network) -> usize {
    network.trace().lines().filter(|line| line.contains("connects to")).count()
}

// The shorter time of both ends counts, and what had arrived is read before the error (SES-06).
#[test]
fn stream_without_a_path_is_given_up() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let short = SessionConfig::default().give_up_after(30 * SECOND);
        let configs = [config().session(short), config()];
        let [first, second] = if network.seed().is_multiple_of(2) { [0, 1] } else { [1, 0] };
        let listener = listen(&server, &configs[first]).await;
        let connector = RdmaConnector::new().provider(provider(&client)).config(configs[second]);
        let (ours, theirs) = tokio::join!(connector.connect((server.address(), PORT)), listener.accept());
        let (mut ours, mut theirs) = (ours.expect("connected"), theirs.expect("accepted").0);
        ours.write_all(b"arrived").await.expect("written");
        theirs.write_all(b"this, too").await.expect("written");
        sleep(SECOND).await;
        network.partition(&server, &client, 10_000 * SECOND);
        ours.write_all(b"lost").await.expect("kept");
        theirs.write_all(b"lost").await.expect("kept");
        let (left, right) =
            tokio::join!(fails_after(&mut ours, b"this, too"), fails_after(&mut theirs, b"arrived"));
        for reason in [left, right] {
            assert!(
                matches!(&reason, StreamBroken::NoPath { after, .. } if *after == 30 * SECOND),
                "{reason:?}"
            );
        }
    });
}

#[test]
fn reads_and_writes_that_wait_fail_with_the_session() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let short = SessionConfig::default().give_up_after(30 * SECOND).window(1000);
        let (_listener, ours, theirs) = connect(&server, &client, &config().session(short)).await;
        network.partition(&server, &client, 10_000 * SECOND);
        let waits = async |stream: RdmaStream| {
            let (mut reads, mut writes) = stream.into_split();
            let (read, written) = tokio::join!(reads.read_u8(), writes.write_all(&[7; 5000]));
            for error in [read.map(drop).expect_err("no byte"), written.expect_err("no room")] {
                let reason = broken(&error);
                assert!(matches!(reason, StreamBroken::NoPath { .. }), "{reason:?}");
            }
        };
        tokio::join!(waits(ours), waits(theirs));
    });
}

// A listener keeps so many sessions without a connection; the one that has waited longest makes room (SES-08).
#[test]
fn oldest_lost_session_makes_room() {
    sim::check(0..10, async |network: Network| {
        let server = network.host("10.0.0.1");
        let session = SessionConfig::default().give_up_after(600 * SECOND).lost_sessions(2);
        let config = config().session(session);
        let listener = listen(&server, &config).await;
        let (mut clients, mut streams) = (Vec::new(), Vec::new());
        for number in 2..5 {
            let client = network.host(&*format!("10.0.0.{number}"));
            let connector = RdmaConnector::new().provider(provider(&client)).config(config);
            let (ours, theirs) = tokio::join!(connector.connect((server.address(), PORT)), listener.accept());
            streams.push((ours.expect("connected"), theirs.expect("accepted").0));
            clients.push(client);
        }
        // An order that is not that of the connections.
        for number in [1, 2, 0] {
            assert!(streams.iter().all(|(_, theirs)| theirs.session().is_some_and(|path| !path.is_over)));
            streams[number].1.write_all(b"kept").await.expect("written");
            network.partition(&server, &clients[number], 10_000 * SECOND);
            sleep(20 * SECOND).await;
        }
        let reason = fails_after(&mut streams[1].1, b"").await;
        assert!(matches!(&reason, StreamBroken::NoPath { after, .. } if *after < 600 * SECOND), "{reason:?}");
        for client in &clients {
            network.heal(&server, client);
        }
        let reason = fails_after(&mut streams[1].0, b"").await;
        assert!(matches!(reason, StreamBroken::SessionUnknown { .. }), "{reason:?}");
        for number in [0, 2] {
            let (ours, theirs) = &mut streams[number];
            ours.read_exact(&mut [0; 4]).await.expect("it was kept");
            exchange(ours, theirs).await;
            assert_eq!(theirs.session().map(|path| path.resumes), Some(1));
        }
    });
}

// A server that has started again does not know the stream: the client need not wait until it gives up (SES-06).
#[test]
fn session_that_the_peer_has_lost_ends_at_once() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (listener, mut ours, theirs) = connect(&server, &client, &config()).await;
        ours.write_all(b"lost").await.expect("written");
        network.partition(&server, &client, 100 * SECOND);
        theirs.set_zero_linger().expect("set");
        drop((theirs, listener));
        sleep(20 * SECOND).await;
        let _listener = listen(&server, &config()).await;
        let failing = timeout(120 * SECOND, fails_after(&mut ours, b""));
        let reason = failing.await.expect("long before it gives up");
        assert!(matches!(reason, StreamBroken::SessionUnknown { .. }), "{reason:?}");
    });
}

// An orderly end while there is no connection is an orderly end for the peer.
#[test]
fn end_without_a_connection_reaches_the_peer() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_listener, ours, theirs) = connect(&server, &client, &config()).await;
        let (mut closed, mut open) =
            if network.seed().is_multiple_of(2) { (ours, theirs) } else { (theirs, ours) };
        network.partition(&server, &client, 100 * SECOND);
        closed.write_all(b"the last").await.expect("kept");
        drop(closed);
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes).await.expect("an end of file");
        assert_eq!(bytes, b"the last");
    });
}

// A session needs both ends (SES-05).
#[test]
fn both_ends_have_to_want_a_session() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        for (passive, active) in [(StreamConfig::default(), config()), (config(), StreamConfig::default())] {
            let listener = listen(&server, &passive).await;
            let connector = RdmaConnector::new().provider(provider(&client)).config(active);
            let (ours, theirs) = tokio::join!(connector.connect((server.address(), PORT)), listener.accept());
            let (mut ours, mut theirs) = (ours.expect("connected"), theirs.expect("accepted").0);
            assert!(ours.session().is_none() && theirs.session().is_none());
            exchange(&mut ours, &mut theirs).await;
            network.reset(&server, &client);
            let error = ours.read_u8().await.expect_err("it ends with its connection");
            assert!(matches!(broken(&error), StreamBroken::Connection(_)), "{error:?}");
        }
    });
}

// Networks of one seed have the same ids, and are processes of their own: what has ended in one is unknown in the other.
#[test]
fn hosts_of_other_networks_know_no_session() {
    for is_first in [true, false] {
        sim::check(0..3, async |network: Network| {
            let (server, client) = hosts(&network);
            let (listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
            if is_first {
                drop(ours);
                assert_eq!(theirs.read(&mut [0]).await.expect("an end of file"), 0);
                drop(theirs);
                return sleep(SECOND).await;
            }
            theirs.set_zero_linger().expect("set");
            network.partition(&server, &client, 20 * SECOND);
            drop((theirs, listener));
            sleep(10 * SECOND).await;
            let _listener = listen(&server, &config()).await;
            let reason = fails_after(&mut ours, b"").await;
            assert!(matches!(reason, StreamBroken::SessionUnknown { .. }), "{reason:?}");
        });
    }
}

// A drop ends the stream in order, also if the connection is lost with the last bytes, with their end, or with the answer to it (SES-09).
#[test]
fn drop_is_an_end_of_file_whatever_is_lost() {
    sim::check(0..300, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(30)).segments(1..=9000);
        let (_listener, ours, theirs) = connect(&server, &client, &config()).await;
        let is_active = network.random(0..=1) == 0;
        let (mut closed, mut open) = if is_active { (ours, theirs) } else { (theirs, ours) };
        let length = network.random(1..=20_000) as usize;
        let losses = async {
            for _ in 0..network.random(0..=6) {
                sleep(Duration::from_millis(network.random(0..=60))).await;
                network.reset(&server, &client);
            }
        };
        let closing = async {
            closed.write_all(&vec![7; length]).await.expect("taken");
            drop(closed);
        };
        let reading = async {
            sleep(Duration::from_millis(network.random(0..=100))).await;
            let mut bytes = Vec::new();
            open.read_to_end(&mut bytes).await.expect("an end of file");
            assert!(bytes == vec![7; length], "{} of {length} bytes", bytes.len());
            open.write_all(b"nobody takes it").await.unwrap_or_default();
        };
        timeout(60 * SECOND, async { tokio::join!(losses, closing, reading) }).await.expect("in time");
    });
}

// The passive end cannot connect: if it has closed the stream and the answer is lost, the active end says that it has arrived.
#[test]
fn closed_passive_end_learns_that_all_has_arrived() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        let mut changes = theirs.path_changes();
        theirs.write_all(b"the last").await.expect("written");
        drop(theirs);
        // All of it arrives, and no answer.
        network.partition_one_way(&client, &server, 20 * SECOND);
        let is_dropped = network.seed().is_multiple_of(2);
        if !is_dropped {
            sleep(10 * SECOND).await;
        }
        let mut bytes = Vec::new();
        ours.read_to_end(&mut bytes).await.expect("an end of file");
        assert_eq!(bytes, b"the last");
        if is_dropped {
            // Its disconnect gets no answer.
            drop(ours);
        }
        let ended = async { while changes.next().await.is_some() {} };
        timeout(120 * SECOND, ended).await.expect("long before it gives up");
    });
}

// Both ends say at the same time that they write no more, and go as soon as they know that all has arrived. The one that still waits
// for that word learns it over another connection (SES-09).
#[test]
fn ends_that_cross_are_confirmed_whatever_is_lost() {
    sim::check(0..400, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(30));
        let (_listener, ours, theirs) = connect(&server, &client, &config()).await;
        let ends = async |mut stream: RdmaStream| {
            stream.write_all(b"the last").await.expect("taken");
            stream.shutdown().await.expect("all has arrived");
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.expect("an end of file");
            assert_eq!(bytes, b"the last");
        };
        let loss = async {
            sleep(Duration::from_millis(network.random(0..=90))).await;
            network.reset(&server, &client);
        };
        let all = async { tokio::join!(ends(ours), ends(theirs), loss) };
        timeout(60 * SECOND, all).await.expect("in time");
    });
}

/// Reads what has arrived, and checks that the peer has given the stream up.
async fn is_abandoned(stream: &mut RdmaStream, arrived: &[u8]) {
    let mut changes = stream.path_changes();
    let mut bytes = Vec::new();
    let error = stream.read_to_end(&mut bytes).await.expect_err("it is no end of file");
    assert_eq!(bytes, arrived);
    for error in [error, stream.write(b"x").await.expect_err("neither does it take any")] {
        assert!(matches!(broken(&error), StreamBroken::SessionUnknown { .. }), "{error:?}");
    }
    while !stream.session().is_some_and(|path| path.is_over) {
        changes.next().await.expect("a change");
    }
}

// A drop after `set_zero_linger` is no lost connection: the peer does not look for another, or wait for one (SES-06).
#[test]
fn abandoned_stream_fails_at_once_for_the_peer() {
    sim::check(0..40, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(30)).segments(1..=9000);
        let (_listener, ours, theirs) = connect(&server, &client, &config()).await;
        let (mut closed, mut open) =
            if network.seed().is_multiple_of(2) { (ours, theirs) } else { (theirs, ours) };
        closed.write_all(b"arrived").await.expect("written");
        sleep(SECOND).await;
        let before = network.elapsed();
        closed.set_zero_linger().expect("set");
        drop(closed);
        is_abandoned(&mut open, b"arrived").await;
        assert!(network.elapsed() - before < SECOND / 5, "after one way, and no other connection");
        sleep(2 * SECOND).await;
        assert_eq!(attempts(&network), 1);
        drop(open);
        // Nothing of it is left, apart from the socket of the listener.
        sleep(2 * SECOND).await;
        assert_eq!(network.sockets(), 1);
    });
}

// The connecting end gives up what the listening end could only wait for (SES-06).
#[test]
fn abandoned_stream_without_a_connection_fails_for_the_peer() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        theirs.write_all(b"not read").await.expect("written");
        ours.write_all(b"arrived").await.expect("written");
        sleep(SECOND).await;
        network.partition(&server, &client, 20 * SECOND);
        ours.set_zero_linger().expect("set");
        if network.seed().is_multiple_of(2) {
            sleep(10 * SECOND).await;
        }
        drop(ours);
        timeout(120 * SECOND, is_abandoned(&mut theirs, b"arrived")).await.expect("long before it gives up");
    });
}

// An end that closes the stream, and cannot send its last bytes in time, fails it for the peer (SES-06).
#[test]
fn close_that_takes_too_long_fails_for_the_peer() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = config().close_timeout(30 * SECOND);
        let (_listener, mut ours, mut theirs) = connect(&server, &client, &config).await;
        network.partition(&server, &client, 100 * SECOND);
        ours.write_all(b"lost").await.expect("kept");
        drop(ours);
        timeout(200 * SECOND, is_abandoned(&mut theirs, b"")).await.expect("long before it gives up");
    });
}

// An end that has to tell its peer of the end of the stream leaves a host alone on which nothing listens, and asks a silent one ever
// more rarely.
#[test]
fn end_is_not_announced_for_long_where_nothing_listens() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        let mut changes = theirs.path_changes();
        theirs.write_all(b"the last").await.expect("written");
        drop(theirs);
        network.partition_one_way(&client, &server, 20 * SECOND);
        sleep(10 * SECOND).await;
        drop(listener);
        ours.read_to_end(&mut Vec::new()).await.expect("an end of file");
        drop(ours);
        let is_silent = network.seed().is_multiple_of(2);
        if is_silent {
            network.partition(&server, &client, 10_000 * SECOND);
        } else {
            network.heal(&server, &client);
        }
        while changes.next().await.is_some() {}
        // Each takes ten seconds if there is no answer.
        let expected = if is_silent { 20..40 } else { 5..15 };
        assert!(
            expected.contains(&attempts(&network)),
            "{} attempts, silent: {is_silent}",
            attempts(&network)
        );
    });
}
