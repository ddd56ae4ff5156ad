//! Slow, dead and hostile peers, and the causes that both ends of a connection report.

use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::time::{sleep, timeout};
use tokio_rdma::error::{ConnectError, DisconnectError, PostErrorKind, Reason};
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, DisconnectReason, QueuePair, RemoteRegion, Status,
};

use crate::{
    End, SECOND, adapter, connected, exchange, hosts, joined, listening, queue_pair, shared, starved,
};

const SEEDS: std::ops::Range<u64> = 0..20;

/// The adapter of a host, with these settings.
fn adapter_with(host: &Host, config: SoftConfig) -> Adapter {
    host.provider_with(config).open(host.address()).expect("opened")
}

// SEC-02: ten seconds of data have completed when the disconnect begins, which waits for an answer for five.
#[test]
fn completed_writes_arrive_at_160_kib_per_second() {
    const PIECE: usize = 50_000;
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).bandwidth(160 * 1024).segments(1..=1460);
        network.buffers(4 << 20, network.random(1000..=100_000) as usize);
        let (theirs, ours) = connected(&server, &client).await;
        let region = theirs.adapter.register(32 * PIECE, Access::REMOTE_WRITE).await.expect("registered");
        for place in 0..32 {
            let part = region.remote_part(place * PIECE..(place + 1) * PIECE).expect("in bounds");
            let buffer = ours.adapter.buffer_from(&[place as u8 + 1; PIECE]).expect("memory");
            ours.queue_pair.write(buffer, &part).expect("posted").await.0.expect("written");
        }
        let begin = network.elapsed();
        let (outcome, reason) = tokio::join!(ours.connection.disconnect(), theirs.connection.disconnected());
        outcome.expect("disconnected");
        assert_eq!(reason, DisconnectReason::Peer);
        assert!(network.elapsed() - begin > 8 * SECOND);
        let mut bytes = vec![0; 32 * PIECE];
        region.read(0, &mut bytes).expect("in bounds");
        assert!(bytes.chunks(PIECE).zip(1..).all(|(piece, value)| *piece == [value; PIECE]));
    });
}

// SEC-02: a peer that acknowledges a byte at a time keeps neither the call nor the socket for ever.
#[test]
fn a_peer_that_trickles_is_given_up() {
    const MOST: Duration = Duration::from_secs(600);
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        network.buffers(1 << 20, 1000);
        let (theirs, ours) = connected(&server, &client).await;
        let region = theirs.adapter.register(1 << 19, Access::REMOTE_WRITE).await.expect("registered");
        let buffer = ours.adapter.buffer(1 << 19).expect("memory");
        network.link(&server, &client).bandwidth(1).segments(1..=1);
        ours.queue_pair.write(buffer, &region.remote()).expect("posted").await.0.expect("written");
        let begin = network.elapsed();
        let outcome = ours.connection.disconnect().await;
        assert!(matches!(outcome, Err(DisconnectError::TimedOut { .. })), "{outcome:?}");
        let time = network.elapsed() - begin;
        assert!(time >= MOST && time <= MOST + SECOND, "{time:?}");
        drop(ours);
        client.limit_sockets(Some(1));
        sleep(MOST - 2 * SECOND).await;
        client.tcp_listener(0).expect_err("the last bytes are on their way");
        sleep(4 * SECOND).await;
        client.tcp_listener(0).expect("the socket is free");
        client.limit_sockets(None);
        network.reset(&server, &client);
    });
}

// A post returns before all of a long message is with the kernel: the task of the connection goes on.
#[test]
fn large_post_returns_before_it_is_written() {
    const LENGTH: usize = 24 << 20;
    sim::check(0..1, async |network: Network| {
        let (server, client) = hosts(&network);
        network.buffers(2 * LENGTH, 2 * LENGTH);
        let (theirs, ours) = connected(&server, &client).await;
        let region = theirs.adapter.register(LENGTH, Access::REMOTE_WRITE).await.expect("registered");
        let buffer = ours.adapter.buffer(LENGTH).expect("memory");
        let mut write = ours.queue_pair.write(buffer, &region.remote()).expect("posted");
        assert!(poll!(&mut write).is_pending(), "there is room for all of it");
        write.await.0.expect("written");
    });
}

// SEC-03: a path timeout of 2 s, and a minute in which one message is on its way, and one waits for a receive.
#[test]
fn a_slow_peer_is_not_a_dead_one() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = SoftConfig::default().path_timeout(Some(2 * SECOND)).message_timeout(None);
        let [passive, active] = [&server, &client].map(|host| adapter_with(host, config.clone()));
        let (receives, make) = shared(&passive);
        let (theirs, ours) = joined(&server, (&passive, make()), &active).await;
        network.link(&server, &client).bandwidth(10_000).segments(100..=1460);
        let region = passive.register(600_000, Access::REMOTE_WRITE).await.expect("registered");
        let buffer = active.buffer_from(&[7; 600_000]).expect("memory");
        let begin = network.elapsed();
        ours.queue_pair.write(buffer, &region.remote()).expect("posted").await.0.expect("written");
        ours.send(b"behind").await;
        sleep(60 * SECOND).await;
        let receive = receives.receive(passive.buffer(64).expect("memory")).expect("posted");
        let (result, bytes) = receive.await;
        assert_eq!(&bytes[..result.expect("received").bytes], b"behind");
        assert!(network.elapsed() - begin >= 60 * SECOND);
        let mut bytes = vec![0; 600_000];
        region.read(0, &mut bytes).expect("in bounds");
        assert!(bytes.iter().all(|byte| *byte == 7));
        assert!(ours.connection.is_connected() && theirs.connection.is_connected());
    });
}

// SEC-05: a peer that floods the shared receives leaves an honest one its share.
#[test]
fn a_flood_leaves_others_their_share() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active, flooding) =
            (adapter(&server), adapter(&client), adapter(&network.host("10.0.0.3")));
        let (receives, make) = shared(&passive);
        let (_first, honest) = joined(&server, (&passive, make()), &active).await;
        let (_second, flooder) = joined(&server, (&passive, make()), &flooding).await;
        let flood = async {
            loop {
                let send = || flooder.queue_pair.send(flooding.buffer_from(b"flood").expect("memory"));
                join_all((0..32).map(|_| send().expect("posted"))).await;
            }
        };
        let serve = async {
            let post = || receives.receive(passive.buffer(64).expect("memory")).expect("posted");
            let mut posted: std::collections::VecDeque<_> = (0..4).map(|_| post()).collect();
            let (mut served, mut between, mut most) = (0, 0, 0);
            while served < 50 {
                let (result, buffer) = posted.pop_front().expect("four").await;
                if &buffer[..result.expect("received").bytes] == b"honest" {
                    (served, between) = (served + 1, 0);
                } else {
                    between += 1;
                    most = most.max(between);
                }
                posted.push_back(post());
            }
            most
        };
        let speak = async {
            for _ in 0..50 {
                honest.send(b"honest").await;
            }
            std::future::pending::<()>().await;
        };
        let most = tokio::select! {
            biased;
            most = serve => most,
            () = flood => unreachable!("it goes on"),
            () = speak => unreachable!("it goes on"),
        };
        assert!(most < 4096, "{most} messages of the flooder between two of the honest peer");
    });
}

// SEC-06: half a message holds the only receive, until its time is over. Then it is for the message of another peer.
#[test]
fn half_a_message_gives_its_receive_back() {
    const LIMIT: Duration = Duration::from_secs(20);
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let other = network.host("10.0.0.3");
        let config = SoftConfig::default().path_timeout(None).message_timeout(Some(LIMIT));
        let passive = adapter_with(&server, config);
        let (receives, make) = shared(&passive);
        let receive = receives.receive(passive.buffer(100_000).expect("memory")).expect("posted");
        network.buffers(1000, 1000);
        let (holder, silent) = joined(&server, (&passive, make()), &adapter(&client)).await;
        let (_end, honest) = joined(&server, (&passive, make()), &adapter(&other)).await;
        let half = silent.queue_pair.send(silent.adapter.buffer_from(&[1; 100_000]).expect("memory"));
        sleep(Duration::from_millis(network.random(5..=100))).await;
        client.freeze();
        let begin = network.elapsed();
        honest.send(b"honest").await;
        let reason = holder.connection.disconnected().await;
        let DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: Reason::Local(text) } = reason
        else {
            panic!("{reason:?}")
        };
        assert!(text.contains("no progress"), "{text}");
        let time = network.elapsed() - begin;
        assert!(time >= LIMIT - SECOND && time <= LIMIT + 2 * SECOND, "{time:?}");
        let (result, bytes) = timeout(SECOND, receive).await.expect("at once");
        assert_eq!(&bytes[..result.expect("received").bytes], b"honest");
        drop(half);
    });
}

// SEC-06: 64 KiB within the limit are enough, and the limit is too short for a second segment.
#[test]
fn slow_message_in_shared_receive_continues() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = SoftConfig::default().path_timeout(None).message_timeout(Some(20 * SECOND));
        let (passive, active) = (adapter_with(&server, config), adapter(&client));
        let (receives, make) = shared(&passive);
        let receive = receives.receive(passive.buffer(200_000).expect("memory")).expect("posted");
        let (_theirs, ours) = joined(&server, (&passive, make()), &active).await;
        network.link(&server, &client).bandwidth(5000).segments(100..=1460);
        let begin = network.elapsed();
        ours.send(&[7; 200_000]).await;
        let (result, bytes) = receive.await;
        assert_eq!(result.expect("received").bytes, bytes.len());
        assert!(network.elapsed() - begin > 35 * SECOND);
    });
}

// SRQ-02: a receive is for the connections that are left.
#[test]
fn ended_connection_takes_no_shared_receive() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (receives, make) = shared(&passive);
        let (gone, first) = joined(&server, (&passive, make()), &active).await;
        let (_end, second) = joined(&server, (&passive, make()), &active).await;
        first.send(b"nobody takes it").await;
        sleep(SECOND).await;
        second.send(b"this one").await;
        sleep(SECOND).await;
        gone.queue_pair.flush();
        gone.connection.disconnected().await;
        let receive = receives.receive(passive.buffer(64).expect("memory")).expect("posted");
        let (result, bytes) = timeout(SECOND, receive).await.expect("it has waited");
        assert_eq!(&bytes[..result.expect("received").bytes], b"this one");
    });
}

// SRQ-02 SEC-02: the peer gives up waiting for an answer while its message waits for a receive. Nobody can say that
// the message has arrived.
#[test]
fn connection_with_unreceived_message_is_lost() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_receives, theirs, ours) = starved(&server, &client).await;
        drop(ours);
        let reason = timeout(60 * SECOND, theirs.connection.disconnected()).await.expect("it is noticed");
        let expected = Reason::Errno(libc::EPIPE);
        assert_eq!(reason, DisconnectReason::Lost { status: Status::REMOTE_ERROR, reason: expected });
    });
}

// SRQ-02 SEC-02: the peer has given up, but the receive is there when this end looks.
#[test]
fn late_receive_gets_message_before_disconnect() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (receives, theirs, ours) = starved(&server, &client).await;
        sleep(SECOND).await;
        server.freeze();
        let outcome = ours.connection.disconnect().await;
        assert!(matches!(outcome, Err(DisconnectError::TimedOut { .. })), "{outcome:?}");
        let receive = receives.receive(theirs.adapter.buffer(64).expect("memory")).expect("posted");
        sleep(Duration::from_millis(network.random(1..=60_000))).await;
        server.thaw();
        let (result, bytes) = timeout(SECOND, receive).await.expect("at once");
        assert_eq!(&bytes[..result.expect("received").bytes], b"it waits");
        let reason = timeout(SECOND, theirs.connection.disconnected()).await.expect("at once");
        assert_eq!(reason, DisconnectReason::Peer);
    });
}

// SEC-10: the socket is full when the violation comes. The Terminate follows what was framed, and nothing else does.
#[test]
fn after_a_violation_comes_the_terminate() {
    const PIECES: usize = 100;
    const PIECE: usize = 30_000;
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        network.buffers(5000, 5000);
        let (theirs, ours) = connected(&server, &client).await;
        let region = ours.adapter.register(PIECES * PIECE, Access::REMOTE_WRITE).await.expect("registered");
        let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
        let violation = ours.queue_pair.write(ours.adapter.buffer(8).expect("memory"), &nowhere);
        client.freeze();
        let write = |place: usize| {
            let part = region.remote_part(place * PIECE..(place + 1) * PIECE).expect("in bounds");
            let buffer = theirs.adapter.buffer_from(&[7; PIECE]).expect("memory");
            theirs.queue_pair.write(buffer, &part)
        };
        let writes: Vec<_> = (0..PIECES).map(|place| write(place).expect("posted")).collect();
        let reason = theirs.connection.disconnected().await;
        let DisconnectReason::Lost { reason: sent @ Reason::Terminate { sent: true, .. }, .. } = reason
        else {
            panic!("{reason:?}")
        };
        let error = write(0).expect_err("nothing new is sent").kind;
        assert!(matches!(&error, PostErrorKind::ConnectionLost { reason } if *reason == sent), "{error:?}");
        sleep(Duration::from_millis(network.random(0..=3000))).await;
        client.thaw();
        let reason = ours.connection.disconnected().await;
        let DisconnectReason::Lost { reason: Reason::Terminate { sent: false, .. }, .. } = reason else {
            panic!("{reason:?}")
        };
        // Whole writes from the first one on, and then no byte.
        let mut bytes = vec![0; PIECES * PIECE];
        region.read(0, &mut bytes).expect("in bounds");
        let written = bytes.iter().take_while(|byte| **byte == 7).count();
        assert!(written < PIECES * PIECE / 4 && bytes[written..].iter().all(|byte| *byte == 0), "{written}");
        drop((writes, violation));
    });
}

/// The cause of the end of a connection.
#[derive(Clone, Copy, Debug)]
enum Cause {
    Disconnect,
    Drop,
    Flush,
    /// A write of the client under a key that was never given.
    Key,
    /// A message of the client that the server has no receive for.
    NoReceive,
    Reset,
    Partition,
    Crash,
}

/// The reasons of the server and of the client.
fn expected(cause: Cause) -> (DisconnectReason, DisconnectReason) {
    use DisconnectReason::{DeviceRemoved, Local, Peer};
    let lost = |status, reason| DisconnectReason::Lost { status, reason };
    let terminate = |sent, etype, code| Reason::Terminate { sent, layer: 1, etype, code };
    let reset = || lost(Status::REMOTE_ERROR, Reason::Errno(libc::ECONNRESET));
    let silent = || lost(Status::IO_TIMEOUT, Reason::PathTimeout);
    match cause {
        Cause::Disconnect | Cause::Drop => (Peer, Local),
        Cause::Flush => (reset(), lost(Status::CANCELED, Reason::Local("the queue pair was flushed"))),
        Cause::Key => (
            lost(Status::CANCELED, terminate(true, 1, 0)),
            lost(Status::ACCESS_VIOLATION, terminate(false, 1, 0)),
        ),
        Cause::NoReceive => (
            lost(Status::CANCELED, terminate(true, 2, 2)),
            lost(Status::REMOTE_ERROR, terminate(false, 2, 2)),
        ),
        Cause::Reset => (reset(), reset()),
        Cause::Partition => (silent(), silent()),
        Cause::Crash => (DeviceRemoved, silent()),
    }
}

// SEC-11: the first cause is reported at both ends, whatever comes afterwards.
#[test]
fn each_end_reports_the_first_cause() {
    use Cause::{Crash, Disconnect, Drop, Flush, Key, NoReceive, Partition, Reset};
    for cause in [Disconnect, Drop, Flush, Key, NoReceive, Reset, Partition, Crash] {
        sim::check(0..8, async |network: Network| {
            let (server, client) = hosts(&network);
            let latency = Duration::ZERO..=Duration::from_millis(20);
            network.link(&server, &client).latency(latency).segments(1..=100);
            let (theirs, ours) = connected(&server, &client).await;
            exchange(&theirs, &ours).await;
            let End { adapter, queue_pair, connection } = ours;
            let mut queue_pair = Some(queue_pair);
            let post = |nowhere: Option<&RemoteRegion>| {
                let (queue_pair, buffer) =
                    (queue_pair.as_ref().expect("there"), adapter.buffer(8).expect("memory"));
                nowhere.map_or_else(
                    || queue_pair.send(adapter.buffer(8).expect("memory")),
                    |nowhere| queue_pair.write(buffer, nowhere),
                )
            };
            let mut posted = None;
            match cause {
                Disconnect => connection.disconnect().await.expect("in order"),
                Flush => queue_pair.as_ref().expect("there").flush(),
                Key => posted = Some(post(Some(&RemoteRegion::new(0, RemoteKey(0xdead_0001), 8)))),
                NoReceive => posted = Some(post(None)),
                Reset => drop(network.reset(&server, &client)),
                Partition => network.partition(&server, &client, 200 * SECOND),
                Crash => server.crash(),
                Drop => queue_pair = None,
            }
            let found = (theirs.connection.disconnected().await, connection.disconnected().await);
            assert_eq!(found, expected(cause), "{cause:?}");
            // Nothing that comes later is a cause.
            queue_pair.iter().chain([&theirs.queue_pair]).for_each(QueuePair::flush);
            network.heal(&server, &client);
            network.reset(&server, &client);
            for end in [&connection, &theirs.connection] {
                let _ = end.disconnect().await;
            }
            let again = (theirs.connection.disconnected().await, connection.disconnected().await);
            assert_eq!(again, found, "{cause:?}");
            drop(posted);
        });
    }
}

// ERR-08: every call fails with the reason of the loss.
#[test]
fn calls_on_a_lost_connection_say_why() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let cut = network.random(0..=1) == 0;
        if cut {
            network.partition(&server, &client, 200 * SECOND);
        } else {
            network.reset(&server, &client);
        }
        for end in [&theirs, &ours] {
            let DisconnectReason::Lost { reason: lost, .. } = end.connection.disconnected().await else {
                panic!("it is lost")
            };
            assert_eq!(lost == Reason::PathTimeout, cut, "{lost:?}");
            let outcome = end.connection.disconnect().await;
            let Err(DisconnectError::Lost { reason, .. }) = &outcome else { panic!("{outcome:?}") };
            assert_eq!(*reason, lost);
            let (buffer, nowhere) =
                (|| end.adapter.buffer(8).expect("memory"), RemoteRegion::new(0, RemoteKey(7), 8));
            let errors = [
                end.queue_pair.send(buffer()).expect_err("lost").kind,
                end.queue_pair.write(buffer(), &nowhere).expect_err("lost").kind,
                end.queue_pair.read(buffer(), &nowhere).expect_err("lost").kind,
            ];
            for error in errors {
                assert!(
                    matches!(&error, PostErrorKind::ConnectionLost { reason } if *reason == lost),
                    "{error:?}"
                );
            }
        }
    });
}

// A flush ends the connection: from then on posting fails, also before the task of the connection has acted.
#[test]
fn nothing_is_posted_behind_a_flush() {
    sim::check(0..1, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_theirs, ours) = connected(&server, &client).await;
        ours.queue_pair.flush();
        let late = ours.queue_pair.send(ours.adapter.buffer_from(b"late").expect("memory"));
        let kind = late.map(drop).expect_err("the connection is over").kind;
        assert!(matches!(kind, PostErrorKind::ConnectionLost { .. }), "{kind:?}");
    });
}

// ERR-08: the peer has left when its reply is completed.
#[test]
fn completing_after_the_peer_has_gone_says_why() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        let connector = active.connector();
        let accepting = async {
            let request = listener.request().await.expect("a request");
            request.accept(&theirs, AcceptParams::default()).await
        };
        let completing = async {
            let reply = connector.connect(&ours, address, ConnectParams::default()).await.expect("a reply");
            network.reset(&server, &client);
            reply.complete().await.expect_err("the peer has gone")
        };
        let (accepted, error) = tokio::join!(accepting, completing);
        accepted.map(drop).expect_err("the client has gone");
        let ConnectError::Aborted { reason, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*reason, Reason::Errno(libc::ECONNRESET));
    });
}

// SEC-09: no setting makes a panic, or a connection that does not work.
#[test]
fn extreme_settings_are_clamped() {
    let times = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    for time in times {
        for number in 0..6 {
            sim::check([1], async |network: Network| {
                let (server, client) = hosts(&network);
                let config = SoftConfig::default();
                let config = match number {
                    0 => config.path_timeout(Some(time)),
                    1 => config.disconnect_timeout(time),
                    2 => config.message_timeout(Some(time)),
                    3 => config.request_timeout(time.max(SECOND)),
                    4 => config.half_open(if time.is_zero() { 0 } else { usize::MAX }),
                    _ => config.spin(time),
                };
                network.buffers(if time.is_zero() { 0 } else { 1 << 30 }, 1);
                network
                    .link(&server, &client)
                    .latency(Duration::ZERO..=Duration::ZERO)
                    .bandwidth(u64::MAX)
                    .segments(0..=usize::MAX);
                let (near, far) = (adapter_with(&client, config.clone()), adapter_with(&server, config));
                let theirs = queue_pair(&far);
                let (theirs, ours) = joined(&server, (&far, theirs), &near).await;
                exchange(&theirs, &ours).await;
                drop((theirs, ours));
                sleep(SECOND).await;
                // And those of the network itself.
                let (theirs, ours) = connected(&server, &client).await;
                network.link(&server, &client).idle_limit(Duration::MAX).latency(time..=time);
                network.at(Duration::MAX, |_| {});
                network.partition(&server, &client, time);
                network.stall(&server, &client, time);
                network.heal(&server, &client);
                drop((theirs, ours));
            });
        }
    }
}
