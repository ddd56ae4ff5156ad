//! Each fault, and what the two ends of a connection make of it.

use std::time::Duration;

use common::raw::{REPLY_KEY, Start};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::Reason;
use tokio_rdma::sim::{self, Network};
use tokio_rdma::{Access, AdapterEvent, ConnectParams, DisconnectReason, ReadLimits, Status};

use crate::{
    NOTICED, PATH_TIMEOUT, PORT, SECOND, adapter, connect, connected, exchange, hosts, joined, listening,
    queue_pair, starved,
};

/// The seeds of each test here.
const SEEDS: std::ops::Range<u64> = 0..20;

/// Links whose latency differs from segment to segment.
fn uneven(network: &Network, server: &sim::Host, client: &sim::Host) {
    let latency = Duration::from_millis(1)..=Duration::from_millis(20);
    network.link(server, client).latency(latency).segments(1..=1460);
}

fn is_path_timeout(reason: &DisconnectReason) -> bool {
    matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. })
}

// Both ends notice the silence within the path timeout, and the pending receive is flushed (SIM-03, DIS-11, SEC-04).
#[test]
fn partition_is_a_loss_at_path_timeout() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        uneven(&network, &server, &client);
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
        sleep(Duration::from_millis(network.random(3000..=60_000))).await;
        let begin = network.elapsed();
        network.partition(&server, &client, 100 * SECOND);
        let read = ours.queue_pair.receive(ours.adapter.buffer(8).expect("memory")).expect("posted");
        for end in [&ours, &theirs] {
            let reason = end.connection.disconnected().await;
            assert!(is_path_timeout(&reason), "{reason:?}");
        }
        let silence = network.elapsed() - begin;
        // The last sign of life may be half of the path timeout old, because no probe is sent earlier.
        assert!(silence >= PATH_TIMEOUT / 2 - SECOND && silence <= NOTICED, "{silence:?}");
        assert_eq!(read.await.0.expect_err("no message").status(), Status::CANCELED);
    });
}

// SEC-04: the path breaks between the TCP connection and the request. A connect has no other limit than that of the path.
#[test]
fn undelivered_request_times_out() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let foreign = server.tcp_listener(PORT).expect("listening");
        let (active, address) = (adapter(&client), (server.address(), PORT).into());
        let (connector, ours) = (active.connector(), queue_pair(&active));
        let cutting = async {
            let accepted = foreign.accept().await.expect("accepted");
            network.partition(&server, &client, 100 * SECOND);
            (accepted, network.elapsed())
        };
        let connecting = connector.connect(&ours, address, ConnectParams::default());
        let (outcome, (_accepted, begin)) = tokio::join!(connecting, cutting);
        let error = outcome.map(drop).expect_err("nobody hears the request");
        assert_eq!(error.status(), Status::IO_TIMEOUT, "{error:?}");
        assert!(error.is_connector_usable());
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT - SECOND && silence <= NOTICED, "{silence:?}");
    });
}

// A request that arrives late is answered: the path is broken for half of the path timeout.
#[test]
fn a_request_survives_a_short_partition() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let foreign = server.tcp_listener(PORT).expect("listening");
        let (active, address) = (adapter(&client), (server.address(), PORT).into());
        let (connector, ours) = (active.connector(), queue_pair(&active));
        let answering = async {
            let (mut stream, _) = foreign.accept().await.expect("accepted");
            network.partition(&server, &client, PATH_TIMEOUT / 2);
            let mut request = [0; 24];
            stream.read_exact(&mut request).await.expect("a request");
            // The peer takes its time, which is its own affair.
            sleep(4 * PATH_TIMEOUT).await;
            stream.write_all(&Start::peer_to_peer(4, 4).encode(REPLY_KEY)).await.expect("written");
            stream
        };
        let connecting = connector.connect(&ours, address, ConnectParams::default());
        let (outcome, _stream) = tokio::join!(connecting, answering);
        drop(outcome.expect("a reply"));
    });
}

// SEC-04: without reads a peer cannot be asked, but its kernel has to acknowledge what was sent.
#[test]
fn a_partition_is_a_loss_without_reads_too() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, _) = listening(&passive, &server);
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        let params = ConnectParams::default().read_limits(ReadLimits::new(0, 0));
        let (_accepted, connection) =
            connect((&listener, &theirs), (&active.connector(), &ours), params).await;
        assert_eq!(connection.read_limits(), ReadLimits::new(0, 0));
        sleep(4 * PATH_TIMEOUT).await;
        assert!(connection.is_connected(), "nobody owes anything");
        let begin = network.elapsed();
        network.partition(&server, &client, 100 * SECOND);
        let message = active.buffer_from(b"nobody hears it").expect("memory");
        ours.send(message).expect("posted").await.0.expect("with the kernel");
        let reason = connection.disconnected().await;
        assert!(is_path_timeout(&reason), "{reason:?}");
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT / 2 && silence <= NOTICED, "{silence:?}");
    });
}

// SEC-04: without reads only keepalive of TCP tells either end that the host of its idle peer is gone.
#[test]
fn crash_of_idle_peer_is_noticed_without_reads() {
    for client_crashes in [true, false] {
        sim::check(SEEDS, async |network: Network| {
            let (server, client) = hosts(&network);
            let (passive, active) = (adapter(&server), adapter(&client));
            let (listener, _) = listening(&passive, &server);
            let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
            let params = ConnectParams::default().read_limits(ReadLimits::new(0, 0));
            let (accepted, connection) =
                connect((&listener, &theirs), (&active.connector(), &ours), params).await;
            sleep(4 * PATH_TIMEOUT).await;
            let begin = network.elapsed();
            let (host, survivor) = if client_crashes { (client, accepted) } else { (server, connection) };
            host.crash();
            let reason = survivor.disconnected().await;
            assert!(is_path_timeout(&reason), "{reason:?}");
            let silence = network.elapsed() - begin;
            assert!(silence >= PATH_TIMEOUT / 2 - SECOND && silence <= NOTICED, "{silence:?}");
        });
    }
}

// SEC-04: the host of the peer has acknowledged the request, and is gone before the program replies.
#[test]
fn crash_before_reply_is_noticed() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let foreign = server.tcp_listener(PORT).expect("listening");
        let (active, address) = (adapter(&client), (server.address(), PORT).into());
        let (connector, ours) = (active.connector(), queue_pair(&active));
        let crashing = async {
            let (mut stream, _) = foreign.accept().await.expect("accepted");
            let mut request = [0; 24];
            stream.read_exact(&mut request).await.expect("a request");
            sleep(Duration::from_millis(network.random(0..=60_000))).await;
            server.crash();
            network.elapsed()
        };
        let connecting = connector.connect(&ours, address, ConnectParams::default());
        let (outcome, begin) = tokio::join!(connecting, crashing);
        let error = outcome.map(drop).expect_err("the host is gone");
        assert_eq!(error.status(), Status::IO_TIMEOUT, "{error:?}");
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT / 2 - SECOND && silence <= NOTICED, "{silence:?}");
    });
}

// One end receives nothing, and the other one no answers, so both are lost (SIM-03).
#[test]
fn one_way_partition_is_loss_for_both() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let begin = network.elapsed();
        network.partition_one_way(&server, &client, 200 * SECOND);
        let ends = [theirs.connection.disconnected(), ours.connection.disconnected()];
        for reason in futures::future::join_all(ends).await {
            assert!(matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
        }
        // One end gives up, and its reset may be the loss of the other one.
        assert!(network.elapsed() - begin <= 2 * NOTICED, "{:?}", network.elapsed() - begin);
    });
}

// SIM-03: TCP sends again what was lost.
#[test]
fn healed_partition_is_a_delay() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        uneven(&network, &server, &client);
        let (theirs, ours) = connected(&server, &client).await;
        network.partition(&server, &client, Duration::from_millis(network.random(1..=10_000)));
        exchange(&theirs, &ours).await;
        network.partition(&server, &client, 1000 * SECOND);
        sleep(SECOND).await;
        network.heal(&server, &client);
        exchange(&theirs, &ours).await;
    });
}

// The write is delayed by the stall, and its bytes are complete (SIM-03).
#[test]
fn a_stall_is_a_delay() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        uneven(&network, &server, &client);
        let (theirs, ours) = connected(&server, &client).await;
        let region = theirs.adapter.register(300_000, Access::REMOTE_WRITE).await.expect("registered");
        let bytes: Vec<u8> = (0..300_000).map(|place| (place % 253) as u8).collect();
        let buffer = ours.adapter.buffer_from(&bytes).expect("memory");
        let write = ours.queue_pair.write(buffer, &region.remote()).expect("posted");
        sleep(Duration::from_millis(network.random(0..=100))).await;
        let begin = network.elapsed();
        network.stall(&server, &client, 7 * SECOND);
        write.await.0.expect("written");
        // A send behind it arrives behind it.
        exchange(&theirs, &ours).await;
        assert!(network.elapsed() - begin >= 7 * SECOND);
        let mut found = vec![0; bytes.len()];
        region.read(0, &mut found).expect("in bounds");
        assert!(found == bytes);
    });
}

// 100 KB/s are busy for 20 s, and no connection is lost (SIM-03).
#[test]
fn a_slow_link_is_not_a_dead_one() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).bandwidth(100_000);
        let (theirs, ours) = connected(&server, &client).await;
        let region = theirs.adapter.register(1_000_000, Access::REMOTE_WRITE).await.expect("registered");
        let begin = network.elapsed();
        for _ in 0..2 {
            let buffer = ours.adapter.buffer(1_000_000).expect("memory");
            ours.queue_pair.write(buffer, &region.remote()).expect("posted").await.0.expect("written");
        }
        exchange(&theirs, &ours).await;
        let time = network.elapsed() - begin;
        assert!(time >= 20 * SECOND && time < 22 * SECOND, "{time:?}");
    });
}

// Both ends report ECONNRESET, and the pending receive is flushed (SIM-03).
#[test]
fn a_reset_is_a_loss_for_both() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
        let pending = ours.queue_pair.receive(ours.adapter.buffer(8).expect("memory")).expect("posted");
        assert_eq!(network.reset(&server, &client), 1);
        for end in [&theirs, &ours] {
            let reason = end.connection.disconnected().await;
            let DisconnectReason::Lost { reason: Reason::Errno(errno), .. } = reason else {
                panic!("{reason:?}")
            };
            assert_eq!(std::io::Error::from_raw_os_error(errno).kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert_eq!(pending.await.0.expect_err("no message").status(), Status::CANCELED);
        assert_eq!(network.reset(&server, &client), 0, "there is none any more");
    });
}

// SIM-03 SEC-04: no FIN and no RST leaves a host that crashes.
#[test]
fn a_crash_is_noticed_at_the_path_timeout() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        sleep(3 * SECOND).await;
        exchange(&theirs, &ours).await;
        let begin = network.elapsed();
        server.crash();
        let reason = theirs.connection.disconnected().await;
        assert_eq!(reason, DisconnectReason::DeviceRemoved);
        assert!(theirs.adapter.is_removed() && server.adapter().is_err());
        let reason = ours.connection.disconnected().await;
        assert!(is_path_timeout(&reason), "{reason:?}");
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT - SECOND && silence <= NOTICED, "{silence:?}");
    });
}

// SEC-03 SEC-04: the server reads nothing, because a message waits for a receive. Only TCP can tell it that the client is gone.
#[test]
fn crash_is_noticed_while_message_awaits_receive() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_receives, theirs, _ours) = starved(&server, &client).await;
        timeout(600 * SECOND, theirs.connection.disconnected()).await.expect_err("it waits for ten minutes");
        let begin = network.elapsed();
        client.crash();
        let reason = theirs.connection.disconnected().await;
        assert_eq!(
            reason,
            DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: Reason::PathTimeout }
        );
        // The last acknowledgement was half a second old, or less.
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT - SECOND && silence <= NOTICED, "{silence:?}");
    });
}

// The host that comes back has no connection, and answers its peer's data with a reset (SIM-03).
#[test]
fn restarted_host_resets_old_connections() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
        server.crash();
        sleep(SECOND).await;
        server.restart();
        // The send completes when TCP has it; the answer is a reset.
        ours.send(b"still there?").await;
        let reason = timeout(SECOND, ours.connection.disconnected()).await.expect("at once");
        assert!(matches!(reason, DisconnectReason::Lost { reason: Reason::Errno(_), .. }), "{reason:?}");
        drop((theirs, ours));
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
    });
}

// SIM-03: the programs of the peer stop for less than the path timeout, and then read what has come.
#[test]
fn freeze_within_path_timeout_is_a_delay() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let begin = network.elapsed();
        let time = Duration::from_millis(network.random(1000..=14_000));
        let receive = theirs.queue_pair.receive(theirs.adapter.buffer(8).expect("memory")).expect("posted");
        server.freeze();
        ours.send(b"knock").await;
        sleep(time).await;
        server.thaw();
        receive.await.0.expect("received");
        assert!(network.elapsed() - begin >= time);
        sleep(100 * SECOND).await;
        exchange(&theirs, &ours).await;
    });
}

// The kernel of a stopped process still acknowledges, but the process does not answer (SIM-03, SEC-04).
#[test]
fn a_freeze_for_longer_is_a_loss() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_theirs, ours) = connected(&server, &client).await;
        let begin = network.elapsed();
        server.freeze();
        ours.send(b"knock").await;
        let reason = ours.connection.disconnected().await;
        assert!(is_path_timeout(&reason), "{reason:?}");
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT - SECOND && silence <= NOTICED, "{silence:?}");
    });
}

// SIM-03: the question of the path timeout, after half of it, keeps the connection known.
#[test]
fn a_box_that_forgets_idle_connections_is_reminded() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).idle_limit(20 * SECOND);
        let (theirs, ours) = connected(&server, &client).await;
        sleep(600 * SECOND).await;
        exchange(&theirs, &ours).await;
        // One that forgets sooner is a broken path.
        network.link(&server, &client).idle_limit(10 * SECOND);
        let begin = network.elapsed();
        let reason = ours.connection.disconnected().await;
        assert!(is_path_timeout(&reason), "{reason:?}");
        assert!(network.elapsed() - begin <= NOTICED, "{:?}", network.elapsed() - begin);
    });
}

// The host without the interface reports DEVICE_REMOVED, its peer a path timeout, and the host recovers (SIM-03).
#[test]
fn removed_interface_removes_its_adapter() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let pending = ours.queue_pair.receive(ours.adapter.buffer(8).expect("memory")).expect("posted");
        client.remove_interface();
        assert_eq!(ours.connection.disconnected().await, DisconnectReason::DeviceRemoved);
        assert_eq!(pending.await.0.expect_err("no message").status(), Status::DEVICE_REMOVED);
        assert!(ours.adapter.is_removed() && client.adapter().is_err());
        let reason = theirs.connection.disconnected().await;
        assert!(is_path_timeout(&reason), "{reason:?}");
        drop((theirs, ours));
        client.restore_interface();
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
    });
}

// AD-09: a further address and the loss of the interface are events.
#[test]
fn changes_of_the_interface_are_events() {
    sim::check(SEEDS, async |network: Network| {
        let (server, _) = hosts(&network);
        let adapter = adapter(&server);
        let mut events = adapter.events();
        server.add_address("2001:db8::77");
        assert_eq!(events.recv().await, Some(AdapterEvent::AddressesChanged));
        server.remove_interface();
        assert_eq!(events.recv().await, Some(AdapterEvent::Removed));
        assert_eq!(events.recv().await, None);
        // The host has an adapter again, and the removed one has no further event.
        server.restore_interface();
        assert_eq!(adapter.events().collect::<Vec<_>>().await, [AdapterEvent::Removed]);
        let mut events = server.adapter().expect("there is an interface").events();
        assert_eq!(events.recv().await, None, "nothing keeps the adapter open");
    });
}

// SEC-04: the silence begins with the last byte, also if that came before the first tick, and no task read it.
#[test]
fn silence_begins_with_the_last_message() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = tokio_rdma::soft::SoftConfig::default().path_timeout(Some(TIMEOUT));
        let [passive, active] = [&server, &client]
            .map(|host| host.provider_with(config.clone()).open(host.address()).expect("opened"));
        let (theirs, ours) = joined(&server, (&passive, queue_pair(&passive)), &active).await;
        for number in 0..network.random(1..=5) {
            let receive = ours.queue_pair.receive(active.buffer(8).expect("memory")).expect("posted");
            let sent = theirs.queue_pair.send(passive.buffer(8).expect("memory")).expect("posted");
            sent.await.0.expect("sent");
            receive.await.0.expect("received");
            sleep(Duration::from_millis(number)).await;
        }
        let begin = network.elapsed();
        network.partition(&server, &client, 100 * SECOND);
        let reason = ours.connection.disconnected().await;
        assert!(is_path_timeout(&reason), "{reason:?}");
        let silence = network.elapsed() - begin;
        assert!(silence <= TIMEOUT + TIMEOUT / 10, "{silence:?}");
    });
}

// SEC-04: the path timeout is that of the adapter.
#[test]
fn a_shorter_path_timeout_notices_sooner() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let short = tokio_rdma::soft::SoftConfig::default().path_timeout(Some(2 * SECOND));
        let hasty = client.provider_with(short).open(client.address()).expect("opened");
        let passive = queue_pair(&theirs.adapter);
        let (_second, second) = joined(&server, (&theirs.adapter, passive), &hasty).await;
        let begin = network.elapsed();
        network.partition(&server, &client, 100 * SECOND);
        let reason = second.connection.disconnected().await;
        assert!(is_path_timeout(&reason), "{reason:?}");
        let silence = network.elapsed() - begin;
        assert!(silence <= Duration::from_millis(2000 + 125 + 2), "{silence:?}");
        assert!(ours.connection.is_connected(), "the other one has more time");
    });
}
