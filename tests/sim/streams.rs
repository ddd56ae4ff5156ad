//! Byte streams over the simulated network.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::time::Duration;

use futures::{FutureExt, poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::{StreamBroken, StreamError};
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{DisconnectReason, RdmaConnector, RdmaListener, RdmaStream, Status, StreamConfig};

use crate::{NOTICED, PATH_TIMEOUT, PORT, SECOND, adapter, hosts};

/// Connects the two ends of a stream: that of the server, and that of the client.
async fn streams(server: &Host, client: &Host) -> (RdmaStream, RdmaStream) {
    streams_with(server, client, &StreamConfig::default()).await
}

/// Connects the two ends of a stream, with settings for both.
async fn streams_with(server: &Host, client: &Host, config: &StreamConfig) -> (RdmaStream, RdmaStream) {
    let (passive, active) = (adapter(server), adapter(client));
    let address = (server.address(), PORT).into();
    let listener = RdmaListener::bind_on(&passive, address, config).expect("bound");
    let (accepted, connected) =
        tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, config));
    (accepted.expect("accepted").0, connected.expect("connected"))
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 7 % 253) as u8).collect()
}

/// Writes, ends the direction, and has the other end read to the end of the file.
async fn transfer(from: &mut RdmaStream, to: &mut RdmaStream, bytes: &[u8]) {
    let mut found = Vec::new();
    let writing = async {
        from.write_all(bytes).await.expect("written");
        from.shutdown().await.expect("the direction has ended");
    };
    let (read, ()) = tokio::join!(to.read_to_end(&mut found), writing);
    read.expect("read");
    assert!(found == bytes, "{} of {} bytes", found.len(), bytes.len());
}

// A shutdown waits for as long as the peer's host acknowledges something (IO-03).
#[test]
fn a_slow_path_does_not_end_a_shutdown() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).bandwidth(20_000);
        let config = StreamConfig::default().close_timeout(5 * SECOND);
        let (mut theirs, mut ours) = streams_with(&server, &client, &config).await;
        let begin = network.elapsed();
        transfer(&mut ours, &mut theirs, &pattern(600_000)).await;
        assert!(network.elapsed() - begin >= 20 * SECOND, "the path is slow");
    });
}

// IO-03: a stall of 7 s, and a link of 160 KB/s.
#[test]
fn every_byte_arrives_however_slow_the_path() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).bandwidth(160_000).segments(1..=1460);
        let (mut theirs, mut ours) = streams(&server, &client).await;
        let bytes = pattern(400_000);
        let stalling = async {
            sleep(Duration::from_millis(network.random(0..=2000))).await;
            network.stall(&server, &client, 7 * SECOND);
        };
        tokio::join!(transfer(&mut ours, &mut theirs, &bytes), stalling);
        // The other direction is open.
        transfer(&mut theirs, &mut ours, &bytes).await;
    });
}

#[test]
fn every_byte_arrives_across_cuts() {
    sim::check(0..50, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(30)).segments(1..=9000);
        network.buffers(network.random(1..=20_000) as usize, network.random(1..=20_000) as usize);
        let (mut theirs, mut ours) = streams(&server, &client).await;
        let bytes = pattern(100_000);
        let cutting = async {
            for _ in 0..5 {
                sleep(Duration::from_millis(network.random(0..=1000))).await;
                let time = Duration::from_millis(network.random(1..=3000));
                match network.random(0..=2) {
                    0 => network.partition_one_way(&server, &client, time),
                    1 => network.partition_one_way(&client, &server, time),
                    _ => network.partition(&client, &server, time),
                }
            }
        };
        tokio::join!(transfer(&mut ours, &mut theirs, &bytes), cutting);
        transfer(&mut theirs, &mut ours, &bytes).await;
    });
}

// The reader gets the bytes that came before the partition, and the error behind them (IO-02).
#[test]
fn bytes_before_loss_precede_its_error() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let (mut theirs, mut ours) = streams(&server, &client).await;
        ours.write_all(b"the last words").await.expect("written");
        ours.flush().await.expect("flushed");
        sleep(SECOND).await;
        network.partition(&server, &client, 1000 * SECOND);
        let mut found = Vec::new();
        theirs.read_to_end(&mut found).await.expect_err("the stream is broken");
        assert_eq!(found, b"the last words");
        let mut byte = [0];
        ours.read(&mut byte).await.expect_err("the stream is broken here, too");
    });
}

/// Rings that are full soon.
fn small() -> StreamConfig {
    StreamConfig::default().send_buffer(2048).receive_buffer(2048).send_depth(16).receive_depth(16)
}

/// Writes as much as there is room for.
async fn fill(network: &Network, stream: &mut RdmaStream) -> usize {
    let bytes = pattern(1 << 23);
    let mut written = 0;
    let mut begin = network.elapsed();
    // Bytes that are on their way make room when they are there.
    while network.elapsed() - begin < SECOND {
        match stream.try_write(&bytes[written..written + 1000]) {
            Ok(count) => (written, begin) = (written + count, network.elapsed()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        sleep(Duration::from_millis(1)).await;
        assert!(written + 1000 < bytes.len(), "somebody takes it all");
    }
    written
}

// IO-01: reads and writes that are polled for a time and dropped, vectored writes and flushes, in any order.
#[test]
fn random_polls_and_drops_conserve_bytes() {
    const LENGTH: usize = 50_000;
    sim::check(0..30, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(5)).segments(1..=2000);
        let (mut theirs, mut ours) = streams_with(&server, &client, &small()).await;
        let bytes = pattern(LENGTH);
        let patience = || Duration::from_millis(network.random(0..=10));
        let writing = async {
            let mut written = 0;
            while written < LENGTH {
                let end = LENGTH.min(written + network.random(1..=5000) as usize);
                let (first, rest) = bytes[written..end].split_at((end - written) / 2);
                let parts = [first, rest].map(IoSlice::new);
                let outcome = match network.random(0..=3) {
                    0 => timeout(patience(), ours.write(&bytes[written..end])).await,
                    1 => timeout(patience(), ours.write_vectored(&parts)).await,
                    // Polled once.
                    2 => Ok(ours.write(&bytes[written..end]).now_or_never().unwrap_or(Ok(0))),
                    _ => timeout(patience(), ours.flush()).await.map(|flushed| flushed.map(|()| 0)),
                };
                // A future that was dropped has written nothing.
                written += outcome.map_or(0, |count| count.expect("written"));
                sleep(Duration::from_millis(1)).await;
            }
            ours.shutdown().await.expect("shut down");
            assert_eq!(ours.write(b"x").await.expect_err("after the end").kind(), ErrorKind::BrokenPipe);
        };
        let reading = async {
            let mut found = Vec::new();
            loop {
                let mut buffer = vec![0; network.random(1..=5000) as usize];
                match timeout(patience(), theirs.read(&mut buffer)).await {
                    Ok(Ok(0)) => return found,
                    Ok(count) => found.extend_from_slice(&buffer[..count.expect("read")]),
                    Err(_) => {}
                }
            }
        };
        let (found, ()) = tokio::join!(reading, writing);
        assert!(found == bytes, "{} bytes", found.len());
        assert_eq!(theirs.read(&mut [0; 8]).await.expect("the end, again"), 0);
    });
}

// IO-02: each direction ends for itself, and the end of the file follows the last byte.
#[test]
fn each_direction_ends_for_itself() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(50)).segments(1..=100);
        let (mut theirs, mut ours) = streams(&server, &client).await;
        if network.random(0..=1) == 0 {
            std::mem::swap(&mut theirs, &mut ours);
        }
        transfer(&mut ours, &mut theirs, &pattern(3000)).await;
        sleep(Duration::from_millis(network.random(0..=100_000))).await;
        transfer(&mut theirs, &mut ours, &pattern(30_000)).await;
        drop(ours);
        assert_eq!(theirs.read(&mut [0; 8]).await.expect("the end, again"), 0);
    });
}

// IO-03: the peer has read everything and is gone, and the way back from it is cut for longer than its disconnect waits. Its
// answer, and the end of its stream, still come. Without them nothing is certain.
#[test]
fn shutdown_outlives_peer_that_read_everything() {
    sim::check(0..50, async |network: Network| {
        let (server, client) = hosts(&network);
        // Bytes that are on their way when the cut comes have not arrived.
        let latency = Duration::from_millis(1)..=Duration::from_millis(network.random(1..=30));
        network.link(&server, &client).latency(latency).segments(1..=network.random(1..=3000) as usize);
        let (mut theirs, mut ours) = streams(&server, &client).await;
        transfer(&mut theirs, &mut ours, &pattern(1000)).await;
        let bytes = pattern(network.random(0..=100_000) as usize);
        let heals = !network.seed().is_multiple_of(5);
        // The peer's clock asks for signs of life, and the answers are the last that it sends.
        sleep(network.random(0..=1) as u32 * PATH_TIMEOUT).await;
        let writing = async {
            ours.write_all(&bytes).await.expect("written");
            ours.shutdown().await
        };
        let leaving = async {
            let mut found = Vec::new();
            theirs.read_to_end(&mut found).await.expect("read");
            assert!(found == bytes, "{} of {} bytes", found.len(), bytes.len());
            let cut =
                if heals { Duration::from_millis(network.random(5000..=12_000)) } else { 1000 * SECOND };
            network.partition_one_way(&server, &client, cut);
            drop(theirs);
        };
        let (ended, ()) = tokio::join!(writing, leaving);
        match ended {
            Ok(()) => assert!(heals, "nobody has said so"),
            Err(error) => assert!(!heals && error.kind() == ErrorKind::TimedOut, "{error:?}"),
        }
    });
}

// IO-03: thirty seconds without a byte, while the last ones have been written and the direction has ended.
#[test]
fn bytes_written_before_shutdown_arrive() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let (mut theirs, mut ours) = streams(&server, &client).await;
        let bytes = pattern(60_000);
        ours.write_all(&bytes).await.expect("written");
        network.stall(&server, &client, 29 * SECOND);
        let mut found = Vec::new();
        let (ended, read) = tokio::join!(ours.shutdown(), theirs.read_to_end(&mut found));
        ended.expect("ended");
        read.expect("read");
        assert!(found == bytes);
    });
}

// A direction goes on while the other one, whose rings are full, is not polled (IO-06).
#[test]
fn a_direction_needs_no_poll_of_the_other() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, mut ours) = streams_with(&server, &client, &small()).await;
        let written = fill(&network, &mut ours).await;
        assert!(written >= 1024, "{written} bytes without a reader");
        let ((mut idle_reader, mut writer), (mut reader, mut idle_writer)) =
            (theirs.into_split(), ours.into_split());
        let mut waiting = Box::pin(idle_writer.write_all(b"x"));
        assert!(poll!(&mut waiting).is_pending());
        let (bytes, mut found) = (pattern(100_000), vec![0; 100_000]);
        let moved = async { tokio::try_join!(writer.write_all(&bytes), reader.read_exact(&mut found)) };
        timeout(100 * SECOND, moved).await.expect("it goes on").expect("moved");
        assert!(found == bytes && poll!(&mut waiting).is_pending(), "nobody has read");
        let mut held = vec![0; written + 1];
        let (read, waited) = tokio::join!(idle_reader.read_exact(&mut held), waiting);
        read.expect("read");
        waited.expect("written");
        assert!(held[..written] == pattern(written) && held[written] == b'x');
    });
}

// TCP accepts and no reply follows. One limit holds for all addresses, and the error has the outcome of each (IO-07).
#[test]
fn a_connect_has_a_limit_for_all_addresses() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let other = network.host("10.0.0.3");
        let (first, second) = (adapter(&server), adapter(&other));
        let bind = |adapter, host: &Host| {
            RdmaListener::bind_on(adapter, (host.address(), PORT).into(), &StreamConfig::default())
                .expect("bound")
        };
        let listeners = [bind(&first, &server), bind(&second, &other)];
        let addresses: [SocketAddr; 2] = [(server.address(), PORT).into(), (other.address(), PORT).into()];
        server.freeze();
        // The other one answers: it is tried 250 ms later, and is the one that connects.
        let connector = RdmaConnector::new().adapter(&adapter(&client));
        let begin = network.elapsed();
        let (stream, accepted) = tokio::join!(connector.connect(&addresses[..]), listeners[1].accept());
        assert_eq!(stream.expect("connected").peer_addr().expect("connected"), addresses[1]);
        drop(accepted.expect("accepted"));
        let time = network.elapsed() - begin;
        assert!(time >= SECOND / 4 && time <= SECOND / 2, "{time:?}");

        other.freeze();
        let begin = network.elapsed();
        let error = connector.connect(&addresses[..]).await.expect_err("nobody answers");
        let time = network.elapsed() - begin;
        assert!(time >= 10 * SECOND && time <= 10 * SECOND + SECOND / 10, "{time:?}");
        let StreamError::Attempts(attempts) = &error else { panic!("{error:?}") };
        assert_eq!(attempts.iter().map(|(address, _)| *address).collect::<Vec<_>>(), addresses);
        for (_, error) in attempts {
            assert!(matches!(error, StreamError::TimedOut { .. }), "{error:?}");
            assert_eq!(error.status(), Status::IO_TIMEOUT);
        }
    });
}

// IO-09: nothing is read or written when the peer crashes, is frozen, or cut off.
#[test]
fn dead_peer_of_idle_stream_is_noticed() {
    sim::check(0..30, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_theirs, ours) = streams(&server, &client).await;
        sleep(Duration::from_millis(network.random(100_000..=200_000))).await;
        assert!(ours.try_read(&mut [0; 8]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        let begin = network.elapsed();
        match network.seed() % 3 {
            0 => server.crash(),
            1 => server.freeze(),
            _ => network.partition(&server, &client, 1000 * SECOND),
        }
        ours.readable().await.expect("there is an error to read");
        let silence = network.elapsed() - begin;
        assert!(silence >= PATH_TIMEOUT / 2 - SECOND && silence <= NOTICED, "{silence:?}");
        let error = ours.try_read(&mut [0; 8]).expect_err("the peer is dead");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let broken = error.get_ref().and_then(|error| error.downcast_ref::<StreamBroken>());
        let lost = |reason: &DisconnectReason| {
            matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. })
        };
        assert!(matches!(broken, Some(StreamBroken::Connection(reason)) if lost(reason)), "{broken:?}");
    });
}

// IO-12: the methods of tokio's `TcpStream`.
#[test]
fn streams_peek_try_wait_and_abort() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (address, config) = ((server.address(), PORT).into(), StreamConfig::default());
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let accept = poll_fn(|cx| listener.poll_accept(cx));
        let (accepted, ours) = tokio::join!(accept, RdmaStream::connect_on(&active, address, &config));
        let ((theirs, _), mut ours) = (accepted.expect("accepted"), ours.expect("connected"));
        theirs.set_nodelay(true).expect("accepted");
        assert_eq!(theirs.try_read(&mut [0; 8]).expect_err("nothing").kind(), ErrorKind::WouldBlock);
        assert!(theirs.readable().now_or_never().is_none());
        ours.writable().await.expect("there is room");
        assert_eq!(ours.try_write(b"seven b").expect("there is room"), 7);
        theirs.readable().await.expect("readable");
        let mut found = [0; 16];
        assert_eq!(theirs.peek(&mut found).await.expect("bytes"), 7);
        assert_eq!(theirs.try_read(&mut found).expect("bytes"), 7);
        assert_eq!(&found[..7], b"seven b");

        fill(&network, &mut ours).await;
        assert!(ours.writable().now_or_never().is_none());
        // Bytes that have not arrived are thrown away.
        ours.set_zero_linger().expect("set");
        drop(ours);
        let mut theirs = theirs;
        let error = theirs.read_to_end(&mut Vec::new()).await.expect_err("aborted");
        assert!(
            matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe
            ),
            "{error:?}"
        );
    });
}

/// Returns a listener that has ended, because its host has crashed.
async fn ended_listener(network: &Network) -> RdmaListener {
    let (server, _) = hosts(network);
    let address = (server.address(), PORT).into();
    let listener =
        RdmaListener::bind_on(&adapter(&server), address, &StreamConfig::default()).expect("bound");
    server.crash();
    listener
}

#[test]
fn accept_loop_after_listener_end_is_idle() {
    sim::check(0..1, async |network: Network| {
        let listener = ended_listener(&network).await;
        listener.accept().await.expect_err("the adapter was removed");
        let mut begun = network.elapsed();
        for _ in 0..3 {
            let error = listener.accept().await.expect_err("the listener has ended");
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            assert!(network.elapsed() - begun >= SECOND, "it did not wait");
            begun = network.elapsed();
            let error = poll_fn(|cx| listener.poll_accept(cx)).await.expect_err("the listener has ended");
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            assert!(network.elapsed() - begun >= SECOND, "it did not wait");
            begun = network.elapsed();
        }
    });
}

#[test]
fn listener_end_ends_every_pending_accept() {
    sim::check(0..1, async |network: Network| {
        let (server, _) = hosts(&network);
        let address = (server.address(), PORT).into();
        let listener =
            RdmaListener::bind_on(&adapter(&server), address, &StreamConfig::default()).expect("bound");
        let (mut first, mut second) = (Box::pin(listener.accept()), Box::pin(listener.accept()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        let begun = network.elapsed();
        server.crash();
        first.await.expect_err("the adapter was removed");
        second.await.expect_err("the listener has ended");
        assert!(network.elapsed() - begun < SECOND, "one of them has waited");
    });
}

// IO-17: a reader does not poll: time would not go on meanwhile.
#[test]
fn waits_take_virtual_time_only() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = StreamConfig::default().spin(3600 * SECOND);
        let (mut theirs, mut ours) = streams_with(&server, &client, &config).await;
        for number in 0..100 {
            let answer = async {
                let question = theirs.read_u8().await.expect("read");
                sleep(SECOND).await;
                theirs.write_u8(question).await.expect("written");
            };
            let ask = async {
                ours.write_u8(number).await.expect("written");
                ours.read_u8().await.expect("read")
            };
            assert_eq!(tokio::join!(answer, ask).1, number);
        }
        assert!(network.elapsed() >= 100 * SECOND);
    });
}
