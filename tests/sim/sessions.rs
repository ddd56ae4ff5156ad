//! Sessions over a network that loses their connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use tokio_rdma::error::StreamBroken;
use tokio_rdma::io::RdmaConnector;
use tokio_rdma::sim::{self, Fault, Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaListener, RdmaStream, SessionConfig, StreamConfig};

use super::hosts;

const PORT: u16 = 7471;
const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn config() -> StreamConfig {
    let session = SessionConfig::default().give_up_after(600 * SECOND);
    StreamConfig::default().session(session).close_timeout(600 * SECOND)
}

pub(crate) fn provider(host: &Host) -> Provider {
    host.provider_with(SoftConfig::default().path_timeout(Some(5 * SECOND)))
}

pub(crate) async fn listen(host: &Host, config: &StreamConfig) -> RdmaListener {
    let adapter = provider(host).open(host.address()).expect("opened");
    RdmaListener::bind_on(&adapter, (host.address(), PORT).into(), config).expect("bound")
}

/// A server with two addresses: its program listens at both.
fn rails(network: &Network) -> [Host; 2] {
    ["10.0.1.1", "10.0.2.1"].map(|address| network.host(address))
}

/// Connects a stream with a session to a server with two addresses, of which the first is better.
async fn connect_by_rails(
    rails: &[Host; 2],
    client: &Host,
    config: &StreamConfig,
) -> ([RdmaListener; 2], RdmaStream, RdmaStream) {
    let listeners = [listen(&rails[0], config).await, listen(&rails[1], config).await];
    let connector = RdmaConnector::new().provider(provider(client)).config(*config);
    let addresses: Vec<_> = rails.iter().map(|rail| SocketAddr::new(rail.address(), PORT)).collect();
    let (ours, theirs) = tokio::join!(connector.connect(&addresses[..]), listeners[0].accept());
    (listeners, ours.expect("connected"), theirs.expect("accepted").0)
}

/// Connects a stream with a session. The listener stays: it takes the later connections.
pub(crate) async fn connect(
    server: &Host,
    client: &Host,
    config: &StreamConfig,
) -> (RdmaListener, RdmaStream, RdmaStream) {
    let listener = listen(server, config).await;
    let connector = RdmaConnector::new().provider(provider(client)).config(*config);
    let connecting = connector.connect((server.address(), PORT));
    let (ours, theirs) = tokio::join!(connecting, listener.accept());
    (listener, ours.expect("connected"), theirs.expect("accepted").0)
}

/// The reason of a stream in its error.
pub(crate) fn broken(error: &io::Error) -> StreamBroken {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>()).cloned();
    inner.unwrap_or_else(|| panic!("{error:?}"))
}

/// Sends a word each way.
pub(crate) async fn exchange(ours: &mut RdmaStream, theirs: &mut RdmaStream) {
    let mut bytes = [0; 4];
    ours.write_all(b"ping").await.expect("written");
    theirs.read_exact(&mut bytes).await.expect("read");
    assert_eq!(&bytes, b"ping");
    theirs.write_all(b"pong").await.expect("written");
    ours.read_exact(&mut bytes).await.expect("read");
    assert_eq!(&bytes, b"pong");
}

fn byte(place: usize) -> u8 {
    (place % 251) as u8
}

/// Sends bytes one way, in pieces that the seed draws, and reads them all at the other end, and its end of file.
async fn send(
    network: &Network,
    mut from: impl AsyncWriteExt + Unpin,
    mut to: impl AsyncReadExt + Unpin,
    length: usize,
) {
    let writing = async {
        let mut written = 0;
        while written < length {
            let piece = usize::try_from(network.random(1..=20_000)).unwrap().min(length - written);
            let bytes: Vec<u8> = (written..written + piece).map(byte).collect();
            from.write_all(&bytes).await.expect("written");
            written += piece;
            if network.random(0..=9) == 0 {
                sleep(Duration::from_millis(network.random(0..=2000))).await;
            }
        }
        from.shutdown().await.expect("shut down");
        from
    };
    let reading = async {
        let mut found = 0;
        loop {
            let mut bytes = vec![0; usize::try_from(network.random(1..=30_000)).unwrap()];
            let count = to.read(&mut bytes).await.expect("read");
            if count == 0 {
                break;
            }
            for (place, byte_found) in bytes[..count].iter().enumerate() {
                assert_eq!(*byte_found, byte(found + place), "at {}", found + place);
            }
            found += count;
            if network.random(0..=9) == 0 {
                sleep(Duration::from_millis(network.random(0..=2000))).await;
            }
        }
        assert_eq!(found, length);
        to
    };
    tokio::join!(writing, reading);
}

// A loss that the system tells of (SES-01).
#[test]
fn stream_goes_on_after_reset() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let (_listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        assert!(ours.session().is_some() && theirs.session().is_some());
        ours.write_all(b"before").await.expect("written");
        let mut bytes = [0; 6];
        theirs.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"before");
        let mut changes = ours.path_changes();
        ours.write_all(b"during").await.expect("written");
        assert_eq!(network.reset(&server, &client), 1);
        theirs.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"during");
        theirs.write_all(b"behind").await.expect("written");
        ours.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"behind");
        let path = changes.next().await.expect("a change");
        assert_eq!((path.resumes, path.is_lost), (1, false));
        assert!(path.pause < Duration::from_millis(250), "{path:?}");
    });
}

// Nothing is lost, nothing comes twice, in order, whatever fails, and the end of each direction neither (SES-01, SES-09).
#[test]
fn every_byte_arrives_once_whatever_fails() {
    sim::check(0..300, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(30)).segments(1..=9000);
        let (_listener, ours, theirs) = connect(&server, &client, &config()).await;
        let (our_reads, our_writes) = ours.into_split();
        let (their_reads, their_writes) = theirs.into_split();
        let kinds = [
            Fault::Partition,
            Fault::PartitionOneWay,
            Fault::Stall,
            Fault::Reset,
            Fault::Reset,
            Fault::IdleLimit,
        ];
        let faults = network.faults([&server, &client]).kinds(kinds).count(0..=12).within(30 * SECOND);
        tokio::join!(
            send(&network, our_writes, their_reads, 200_000),
            send(&network, their_writes, our_reads, 150_000),
            faults.run(),
        );
    });
}

// The path is lost in silence: the stream goes on over the other one after the path timeout, and comes back to the better one,
// while the worse is alive (SES-04, SES-07).
#[test]
fn stream_takes_another_path_and_comes_back() {
    sim::check(0..20, async |network: Network| {
        let (rails, client) = (rails(&network), network.host("10.0.0.2"));
        let (_listeners, mut ours, mut theirs) = connect_by_rails(&rails, &client, &config()).await;
        let peers = |stream: &RdmaStream| stream.connection().peer_addr().ip();
        assert_eq!(peers(&ours), rails[0].address());
        let mut changes = ours.path_changes();
        network.partition(&rails[0], &client, 60 * SECOND);
        ours.write_all(b"over the other").await.expect("written");
        let mut bytes = [0; 14];
        theirs.read_exact(&mut bytes).await.expect("read");
        assert_eq!((&bytes, peers(&ours)), (b"over the other", rails[1].address()));
        // Lost, and then back on the better path when it can be used again.
        let mut last = ours.session().expect("a session");
        while last.connection.peer_addr().ip() != rails[0].address() || last.is_lost {
            last = changes.next().await.expect("a change");
        }
        assert!(network.elapsed() > 60 * SECOND);
        theirs.write_all(b"over the first").await.expect("written");
        ours.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"over the first");
    });
}

// Nothing is lost while one path after the other vanishes and returns, and the interface of the client with them
// (SES-01).
#[test]
fn every_byte_arrives_once_over_changing_paths() {
    sim::check(0..200, async |network: Network| {
        let (rails, client) = (rails(&network), network.host("10.0.0.2"));
        let (_listeners, ours, theirs) = connect_by_rails(&rails, &client, &config()).await;
        let (our_reads, our_writes) = ours.into_split();
        let (their_reads, their_writes) = theirs.into_split();
        let kinds = [Fault::Partition, Fault::PartitionOneWay, Fault::Stall, Fault::Reset, Fault::Reset];
        let faults = |rail| network.faults([rail, &client]).kinds(kinds).count(0..=6).within(40 * SECOND);
        let removals = network.faults([&client]).kinds([Fault::NoInterface]).count(0..=3).within(40 * SECOND);
        tokio::join!(
            send(&network, our_writes, their_reads, 300_000),
            send(&network, their_writes, our_reads, 300_000),
            faults(&rails[0]).run(),
            faults(&rails[1]).run(),
            removals.run(),
        );
    });
}

// An end that has read everything closes, and its listener goes. The other has been told: it does not look for another connection.
#[test]
fn close_ends_the_session_at_both_ends() {
    sim::check(0..300, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::ZERO..=Duration::from_millis(30)).segments(1..=100);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        theirs.shutdown().await.expect("shut down");
        assert_eq!(ours.read(&mut [0]).await.expect("read"), 0);
        let close = async {
            assert_eq!(theirs.read(&mut [0]).await.expect("read"), 0);
            drop((theirs, listener));
        };
        let (shutdown, ()) = tokio::join!(ours.shutdown(), close);
        shutdown.expect("confirmed");
    });
}
