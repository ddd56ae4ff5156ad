//! Sessions over a network that loses their connections.

use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use tokio_rdma::io::RdmaConnector;
use tokio_rdma::sim::{self, Fault, Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaListener, RdmaStream, SessionConfig, StreamConfig};

use super::hosts;

const PORT: u16 = 7471;
const SECOND: Duration = Duration::from_secs(1);

fn config() -> StreamConfig {
    let session = SessionConfig::default().give_up_after(600 * SECOND);
    StreamConfig::default().session(session).close_timeout(600 * SECOND)
}

fn provider(host: &Host) -> Provider {
    host.provider_with(SoftConfig::default().path_timeout(Some(5 * SECOND)))
}

async fn listen(host: &Host, config: &StreamConfig) -> RdmaListener {
    let adapter = provider(host).open(host.address()).expect("opened");
    RdmaListener::bind_on(&adapter, (host.address(), PORT).into(), config).expect("bound")
}

/// Connects a stream with a session. The listener stays: it takes the later connections.
async fn connect(
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

// Nothing is lost, nothing comes twice, in order, whatever fails.
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
