//! What a snapshot tells of peers that are cut off or stopped, in virtual time, and the log when a time limit ends a connection.

use std::io::{self, Write};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use futures::poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use tokio_rdma::inspect::{self, Snapshot};
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{Access, ConnectParams, Connection, RdmaListener, RdmaStream, SessionConfig, StreamConfig};
use tracing_subscriber::fmt::MakeWriter;

use crate::{End, NOTICED, PORT, SECOND, adapter, connect, hosts, listening, queue_pair, sessions};

/// Connects two ends: that of the server, and that of the client.
async fn ends(server: &Host, client: &Host) -> (End, End) {
    let (passive, active) = (adapter(server), adapter(client));
    let (listener, _) = listening(&passive, server);
    let (theirs, ours, connector) = (queue_pair(&passive), queue_pair(&active), active.connector());
    let (there, here) = connect((&listener, &theirs), (&connector, &ours), ConnectParams::default()).await;
    let end = |adapter, queue_pair, connection| End { adapter, queue_pair, connection };
    (end(passive, theirs, there), end(active, ours, here))
}

/// Returns why a connection waits.
fn cause(connection: &Connection) -> String {
    let Snapshot { connections, .. } = inspect::snapshot();
    let report = connections.into_iter().find(|report| report.id == connection.id().0).expect("it exists");
    report.waits_for.unwrap_or_default()
}

/// Returns why the stream over a connection waits.
fn stream_cause(connection: &Connection) -> String {
    let Snapshot { streams, .. } = inspect::snapshot();
    let report = streams.into_iter().find(|report| report.connection == connection.id().0);
    report.expect("it exists").waits_for.unwrap_or_default()
}

// OBS-03: the host of the peer does not answer, or its program is stopped: the host answers that it has no room.
#[test]
fn a_cut_cable_and_a_stopped_peer_are_told_apart() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (address, config) = ((server.address(), PORT).into(), StreamConfig::default());
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let (accepted, connected) =
            tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
        let (mut ours, _theirs) = (connected.expect("connected"), accepted.expect("accepted").0);
        let connection = ours.connection();
        let writing = tokio::spawn(async move {
            loop {
                ours.write_all(&[7; 65536]).await.expect("written");
            }
        });
        network.partition(&server, &client, 10 * SECOND);
        sleep(5 * SECOND).await;
        let why = stream_cause(&connection);
        assert!(why.contains("the peer has acknowledged nothing for"), "{why}");
        sleep(30 * SECOND).await;
        let why = stream_cause(&connection);
        assert!(why.starts_with("no credit: the program of the peer has not read"), "{why}");
        writing.abort();
    });
}

// OBS-03: the network is slow, and the program of the peer reads all that comes.
#[test]
fn a_slow_network_is_not_the_program_of_the_peer() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).bandwidth(10_000);
        let (passive, active) = (adapter(&server), adapter(&client));
        let config = StreamConfig::default().receive_buffer(32 << 10);
        let address = (server.address(), PORT).into();
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let (accepted, connected) =
            tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
        let (mut ours, mut theirs) = (connected.expect("connected"), accepted.expect("accepted").0);
        let connection = ours.connection();
        let writing = tokio::spawn(async move { while ours.write_all(&[7; 65536]).await.is_ok() {} });
        let reading =
            tokio::spawn(async move { while theirs.read(&mut [0; 65536]).await.is_ok_and(|n| n > 0) {} });
        for _ in 0..60 {
            sleep(SECOND).await;
            let why = stream_cause(&connection);
            assert!(!why.contains("the program of the peer has not read"), "{why}");
        }
        writing.abort();
        reading.abort();
    });
}

// OBS-03: the process of the peer is stopped, and its host takes no more: that the stream has no credit either does not make the network slow.
#[test]
fn closed_window_of_a_stopped_peer_is_named() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        // More than the host of the peer keeps for its process, and less than both hosts keep.
        let config = StreamConfig::default().receive_buffer(192 << 10);
        let address = (server.address(), PORT).into();
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let (accepted, connected) =
            tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
        let (mut ours, _theirs) = (connected.expect("connected"), accepted.expect("accepted").0);
        let connection = ours.connection();
        server.freeze();
        let writing = tokio::spawn(async move { while ours.write_all(&[7; 65536]).await.is_ok() {} });
        sleep(5 * SECOND).await;
        let why = stream_cause(&connection);
        assert!(why.starts_with("no credit: the peer has read nothing for "), "{why}");
        assert!(why.ends_with(", and its window is closed"), "{why}");
        writing.abort();
        server.thaw();
    });
}

// OBS-03: the process of the peer is stopped, and its host acknowledges the request.
#[test]
fn an_unanswered_read_is_named() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = ends(&server, &client).await;
        let region = theirs.adapter.register(4096, Access::REMOTE_READ).await.expect("registered");
        server.freeze();
        let sink = ours.adapter.buffer(4096).expect("memory");
        let read = ours.queue_pair.read(sink, &region.remote()).expect("posted");
        sleep(5 * SECOND).await;
        let why = cause(&ours.connection);
        assert_eq!(why, "Read of 4,096 bytes pending: the peer has not answered for 5.0 s");
        server.thaw();
        read.await.0.expect("read");
    });
}

// OBS-03: the only path of a session is cut.
#[test]
fn a_session_without_a_path_is_named() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_listener, mut ours, mut theirs) =
            sessions::connect(&server, &client, &sessions::config()).await;
        sessions::exchange(&mut ours, &mut theirs).await;
        network.partition(&server, &client, 60 * SECOND);
        ours.write_all(b"more").await.expect("kept");
        sleep(30 * SECOND).await;
        let why = stream_cause(&ours.connection());
        assert!(why.starts_with("no path: every attempt has failed for "), "{why}");
        assert!(why.ends_with("gives up after 10 min 0 s"), "{why}");
        let why = stream_cause(&theirs.connection());
        assert!(why.starts_with("no path: the peer has not connected again for "), "{why}");
        sleep(60 * SECOND).await;
        assert!(!stream_cause(&ours.connection()).starts_with("no path"));
    });
}

/// The lines of a test's log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut *self.0.lock().expect("not poisoned"), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Returns the lines about time limits that the log has after a test.
fn limits<F: Future<Output = ()>>(test: impl Fn(Network) -> F) -> Vec<String> {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    sim::check(0..1, test);
    let lines = String::from_utf8(log.0.lock().expect("not poisoned").clone()).expect("text");
    lines.lines().filter(|line| line.contains("time limit ends")).map(str::to_owned).collect()
}

// OBS-04: the sentence is in the log.
#[test]
fn the_log_says_why_the_path_timeout_ends_a_connection() {
    let found = limits(async |network: Network| {
        let (server, client) = hosts(&network);
        let (_theirs, ours) = ends(&server, &client).await;
        network.partition(&server, &client, 600 * SECOND);
        let _sent = ours.queue_pair.send(ours.adapter.buffer(16).expect("memory")).expect("posted");
        let _receive = ours.queue_pair.receive(ours.adapter.buffer(16).expect("memory")).expect("posted");
        sleep(2 * NOTICED).await;
    });
    let is_named = |line: &&String| {
        line.contains("time limit ends connection")
            && line.contains("waits_for=the peer has acknowledged nothing for")
    };
    assert!(found.iter().any(|line| is_named(&line)), "{found:#?}");
}

// OBS-04: a shutdown, and then the drop of the stream, wait for a peer whose process is stopped.
#[test]
fn log_says_why_close_timeout_ends_stream() {
    let found = limits(async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (address, config) = ((server.address(), PORT).into(), StreamConfig::default());
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let config = config.close_timeout(2 * SECOND);
        let (accepted, connected) =
            tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
        let (mut ours, _theirs) = (connected.expect("connected"), accepted.expect("accepted").0);
        server.freeze();
        ours.write_all(b"bytes").await.expect("written");
        let error = ours.shutdown().await.expect_err("the peer answers nothing");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let id = ours.connection().id().0;
        let report = || {
            let Snapshot { streams, .. } = inspect::snapshot();
            streams.into_iter().find(|report| report.connection == id).expect("it exists")
        };
        assert_eq!(report().write_waits, None, "the shutdown has returned");
        assert!(poll!(pin!(ours.read_u8())).is_pending());
        assert!(report().read_waits.is_some());
        drop(ours);
        sleep(SECOND).await;
        let found = report();
        assert!(found.read_waits.is_none() && found.write_waits.is_some(), "{found:?}");
        let why = found.waits_for.expect("it waits");
        assert!(why.starts_with("Read of 0 bytes pending: the peer has not answered for"), "{why}");
        sleep(5 * SECOND).await;
        server.thaw();
    });
    assert_eq!(found.len(), 2, "{found:#?}");
    for line in &found {
        assert!(line.contains("time limit ends close of stream"), "{line}");
        let cause = "waits_for=Read of 0 bytes pending: the peer has not answered for";
        assert!(line.contains(cause), "{line}");
    }
}

// OBS-04: both ends of a session give up.
#[test]
fn log_says_why_session_gives_up() {
    let found = limits(async |network: Network| {
        let (server, client) = hosts(&network);
        let config = sessions::config().session(SessionConfig::default().give_up_after(20 * SECOND));
        let (_listener, mut ours, mut theirs) = sessions::connect(&server, &client, &config).await;
        sessions::exchange(&mut ours, &mut theirs).await;
        network.partition(&server, &client, 600 * SECOND);
        let outcome = tokio::join!(ours.read_u8(), theirs.read_u8());
        assert!(outcome.0.is_err() && outcome.1.is_err(), "{outcome:?}");
    });
    let causes = ["every attempt has failed", "the peer has not connected again"];
    for cause in causes {
        let sentence = format!("waits_for=no path: {cause} for 20.0 s; gives up after 20.0 s");
        let is_named = |line: &&String| line.contains("time limit ends session") && line.contains(&sentence);
        assert_eq!(found.iter().filter(is_named).count(), 1, "{found:#?}");
    }
}
