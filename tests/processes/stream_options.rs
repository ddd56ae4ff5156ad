//! Settings of the connections of streams, seen on the wire and at the peer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use common::net::*;
use common::stream::{listening, streams_with};
use common::*;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Barrier;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    Connection, Provider, RdmaConnector, RdmaListener, RdmaStream, ReadLimits, Status, StreamConfig,
};

/// An address that no route begins with.
const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 9));
/// Expedited forwarding, 46 shifted past the two bits of congestion control.
const CLASS: u8 = 46 << 2;
const PORT: u16 = 7000;
/// The limits of each side, and what they agree on as the active side sees it.
const LIMITS: [ReadLimits; 2] =
    [ReadLimits { inbound: 3, outbound: 4 }, ReadLimits { inbound: 2, outbound: 9 }];
const AGREED: ReadLimits = ReadLimits { inbound: 3, outbound: 2 };

/// How many packets a counter of the namespace has.
fn packets(counter: &str) -> u64 {
    let text = nft(&format!("list counter inet t {counter}"));
    let words: Vec<_> = text.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "packets").expect("a counter");
    words[place + 1].parse().expect("a number")
}

fn count_packets() {
    nft(&format!(
        "table inet t {{ counter others {{ }}; counter classed {{ }}; chain c {{ type filter hook input priority 0; \
         tcp dport {PORT} ip dscp != 46 counter name others; tcp dport {PORT} ip dscp 46 counter name classed; }}; }}"
    ));
}

fn assert_source_and_limits(active: &Connection) {
    assert_eq!((active.local_addr().ip(), active.read_limits()), (SOURCE, AGREED));
}

/// Checks the address and the limits that the passive side has seen.
fn assert_seen(passive: &Connection) {
    assert_eq!(passive.peer_addr().ip(), SOURCE);
    assert_eq!(passive.read_limits(), ReadLimits { inbound: AGREED.outbound, outbound: AGREED.inbound });
    let (classed, others) = (packets("classed"), packets("others"));
    assert!(classed > 3 && others == 0, "{classed} and {others}");
    heal();
}

// IO-08: the traffic class is in every packet, the source is the peer's address, and the read limits are agreed on.
#[test]
fn options_of_streams_are_on_the_wire() {
    let turns = Arc::new(Barrier::new(2));
    let other = turns.clone();
    two_hosts(
        async move || {
            ip(&format!("address add {SOURCE}/24 dev left"));
            let peer = SocketAddr::new(RIGHT[0], PORT);
            let provider = Provider::soft_with(SoftConfig::default());
            within(turns.wait()).await;
            let config = StreamConfig::default().traffic_class(CLASS).source(SOURCE).read_limits(LIMITS[0]);
            let connector = RdmaConnector::new().provider(provider).config(config);
            let mut stream = within(connector.connect(peer)).await.expect("connected");
            assert_source_and_limits(&stream.connection());
            within(stream.write_all(&[7; 100_000])).await.expect("written");
            within(stream.shutdown()).await.expect("shut down");
            within(turns.wait()).await;
        },
        async move || {
            let (adapter, local) = (adapter_at(RIGHT[0]), SocketAddr::new(RIGHT[0], PORT));
            count_packets();
            let config = StreamConfig::default().read_limits(LIMITS[1]);
            let listener = RdmaListener::bind_on(&adapter, local, &config).expect("bound");
            within(other.wait()).await;
            let (mut stream, _) = within(listener.accept()).await.expect("accepted");
            within(stream.read_to_end(&mut Vec::new())).await.expect("read");
            within(other.wait()).await;
            assert_seen(&stream.connection());
        },
    );
}

/// How many MPTCP sockets the namespace has.
fn multipath_sockets() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/protocols").expect("a table");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[0].starts_with("MPTCP")).map(|row| row[2].parse::<usize>().expect("a number")).sum()
}

// IO-08, CM-37: several paths are had, or refused.
#[test]
fn several_paths_are_had_or_refused() {
    isolated(async || {
        let (adapter, config) = (adapter(), StreamConfig::default());
        let listener = listening(&adapter, &config);
        let address = listener.local_addr().expect("bound");
        let connect = async |config: StreamConfig| RdmaStream::connect_on(&adapter, address, &config).await;
        let (plain, accepted) = within(async { tokio::join!(connect(config), listener.accept()) }).await;
        let _plain = (plain.expect("connected"), accepted.expect("accepted"));
        let before = multipath_sockets();
        let kernel_has_it = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_ok();
        match within(connect(config.multipath(true))).await {
            Ok(_stream) => assert!(kernel_has_it && multipath_sockets() > before),
            Err(error) => {
                assert_eq!((error.status(), kernel_has_it), (Status::NOT_SUPPORTED, false), "{error}");
            }
        }
    });
}

// IO-08: what only devices have is refused, on both sides.
#[tokio::test]
async fn options_of_devices_are_refused() {
    let (adapter, plain) = (adapter(), StreamConfig::default());
    let listener = listening(&adapter, &plain);
    let address = listener.local_addr().expect("bound");
    for config in [plain.retry_count(3), plain.rnr_retry_count(2), plain.rnr_timer(1), plain.ack_timeout(18)]
    {
        let error = within(RdmaStream::connect_on(&adapter, address, &config)).await.expect_err("refused");
        assert_eq!(error.status(), Status::NOT_SUPPORTED, "{error}");
    }
    for config in [plain.rnr_retry_count(2), plain.rnr_timer(1), plain.ack_timeout(18)] {
        let listener = listening(&adapter, &config);
        let address = listener.local_addr().expect("bound");
        within(RdmaStream::connect_on(&adapter, address, &plain)).await.expect_err("rejected");
    }
    // A source that the adapter does not have.
    let config = StreamConfig::default().source(SOURCE);
    let error = within(RdmaStream::connect_on(&adapter, address, &config)).await.expect_err("not ours");
    assert_eq!(error.status(), Status::INVALID_ADDRESS, "{error}");
    // Nothing has stayed behind.
    streams_with(&adapter, &StreamConfig::default(), &StreamConfig::default()).await;
}
