//! Streams on devices: addresses that are added, peers that die, and settings of connections.
//!
//! Runs on: rxe, siw

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use common::crowd::hello;
use common::device::Device;
use common::path::noticed;
use common::stream::listening;
use common::verbs::{Link, driver, is_rxe, one_at_a_time, run};
use common::*;
use futures::future::join;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::StreamBroken;
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    Access, ConnectParams, DisconnectReason, Provider, QueuePairConfig, RdmaConnector, RdmaListener,
    RdmaStream, ReadLimits, Status, StreamConfig,
};

/// A new device, one at a time.
fn new_link() -> Option<Link> {
    let driver = driver()?;
    let _turn = one_at_a_time();
    Some(Link::new(driver))
}

// IO-09: both ends are idle, and neither is told of the end of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_peer_of_idle_stream_is_noticed() {
    const PATH_TIMEOUT: Duration = Duration::from_secs(8);
    let Some(link) = new_link() else { return };
    let provider = VerbsConfig::default().path_timeout(Some(PATH_TIMEOUT));
    let provider = Provider::verbs_with(provider).expect("devices");
    let id = provider.resolve(link.address).expect("a device has the address");
    let adapter = provider.open(id).expect("opened");
    let config = StreamConfig::default();
    let listener = RdmaListener::bind_on(&adapter, SocketAddr::new(link.address, 0), &config).expect("bound");
    let connect = RdmaStream::connect_on(&adapter, listener.local_addr().expect("bound"), &config);
    let (left, right) = within(async { tokio::join!(connect, listener.accept()) }).await;
    let (mut left, mut right) = (left.expect("connected"), right.expect("accepted").0);
    within(left.write_all(b"alive")).await.expect("written");
    within(right.read_exact(&mut [0; 5])).await.expect("read");
    link.cut();
    let (mut one, mut other) = ([0], [0]);
    let reads = join(left.read(&mut one), right.read(&mut other));
    for outcome in <[_; 2]>::from(noticed(PATH_TIMEOUT, reads).await) {
        let error = outcome.expect_err("the peer is dead");
        let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>());
        // The device may give up first.
        let Some(StreamBroken::Connection(DisconnectReason::Lost { status, .. })) = broken else {
            panic!("{error:?}")
        };
        assert_eq!(*status, Status::IO_TIMEOUT, "{error:?}");
    }
}

// IO-11: addresses that are added to the interface of a device are served by the device, on the same port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_address_is_served_by_device() {
    let Some(link) = new_link() else { return };
    let IpAddr::V4(own) = link.address else { panic!("{:?}", link.address) };
    let [a, b, c, _] = own.octets();
    let listener = RdmaListener::bind("[::]:0").await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let connector = RdmaConnector::new().provider(Device::under_test().provider());
    for added in [[a, b, c, 9], [a, b, c, 10]].map(IpAddr::from) {
        run("ip", &format!("address add {added}/24 dev {}", link.name));
        // The listener hears of the address a little later.
        let connect = async {
            loop {
                match connector.connect((added, port)).await {
                    Ok(stream) => break stream,
                    Err(_) => sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let (mut connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
        let mut accepted = accepted.expect("accepted").0;
        let ends = (connected.peer_addr().expect("connected"), accepted.local_addr().expect("connected"));
        assert_eq!(ends, (SocketAddr::new(added, port), SocketAddr::new(added, port)));
        within(connected.write_all(b"served")).await.expect("written");
        within(accepted.read_exact(&mut [0; 6])).await.expect("read");
    }
}

/// The connection request that a stream with these settings sends to a host that never answers, without its head, and the
/// traffic class of its packet. The layout is that of the InfiniBand specification, volume 1, section 12.6.5.
async fn request_of(link: &Link, config: StreamConfig) -> (u8, Vec<u8>) {
    /// ETH_P_ALL (packet(7)).
    const ALL: i32 = 3;
    /// The destination port of RoCE.
    const ROCE: [u8; 2] = 4791_u16.to_be_bytes();
    /// Ethernet, IPv4, UDP, BTH and DETH; then the head of the management datagram.
    const IP: usize = 14;
    const UDP: usize = 34;
    const MAD: usize = 62;
    const REQUEST: usize = 86;
    let protocol = Protocol::from(i32::from(u16::try_from(ALL).expect("small").to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let adapter = link.open();
    let peer = SocketAddr::new(link.silent, 7);
    let connecting = tokio::spawn(async move { RdmaStream::connect_on(&adapter, peer, &config).await });
    let captured = tokio::task::spawn_blocking(move || {
        let mut packet = [0; 2048];
        loop {
            let length = (&socket).read(&mut packet).expect("a packet");
            let packet = &packet[..length];
            // The class of connection management, and the attribute of a request.
            let is_request = length > REQUEST + 140
                && packet[UDP + 2..UDP + 4] == ROCE
                && packet[MAD + 1] == 7
                && packet[MAD + 16..MAD + 18] == [0, 0x10];
            if is_request {
                return (packet[IP + 1], packet[REQUEST..].to_vec());
            }
        }
    });
    let captured = within(captured).await.expect("a request");
    connecting.abort();
    captured
}

// IO-08: the traffic class, the source, the retries, the acknowledge timeout and the read limits are in the request of a
// stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_of_a_stream_are_in_its_request() {
    if !is_rxe("the request of iWARP has no such fields") {
        return;
    }
    let Some(link) = new_link() else { return };
    let IpAddr::V4(own) = link.address else { panic!("{:?}", link.address) };
    let [a, b, c, _] = own.octets();
    let source = IpAddr::from([a, b, c, 9]);
    run("ip", &format!("address add {source}/24 dev {}", link.name));
    let config = StreamConfig::default()
        .source(source)
        .traffic_class(46 << 2)
        .retry_count(3)
        .rnr_retry_count(2)
        .ack_timeout(17)
        .read_limits(ReadLimits::new(5, 6));
    let (class, request) = request_of(&link, config).await;
    assert_eq!(class, 46 << 2, "of the packet");
    assert_eq!((request[35], request[39]), (5, 6), "read limits");
    assert_eq!((request[47] & 7, request[50] & 7), (3, 2), "retries");
    assert_eq!(request[56 + 12..72], [a, b, c, 9], "the source");
    assert_eq!(
        (request[92], request[95] >> 3),
        (46 << 2, 17),
        "traffic class and acknowledge timeout of the path"
    );
    let (_, usual) = request_of(&link, StreamConfig::default()).await;
    assert_eq!((usual[47] & 7, usual[50] & 7, usual[92]), (7, 7, 0));
}

// IO-08: an accept says how often the peer's device repeats a message for which there is no receive, and agrees on read
// limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accept_options_reach_the_peer_device() {
    /// More than the receives, which nobody polls.
    const SENDS: usize = 40;
    if !is_rxe("iWARP has TCP repeat what is lost") {
        return;
    }
    let (adapter, plain) = (adapter(), StreamConfig::default().receive_depth(16));
    // The stream may write to the memory of its peer as soon as it is connected.
    let memory =
        adapter.register(1 << 12, Access::LOCAL_WRITE | Access::REMOTE_WRITE).await.expect("registered");
    let (targets, data) = (memory.remote(), memory.remote_part(64..memory.len()).expect("in bounds"));
    let mut hello = hello(&adapter, async |to| RdmaStream::connect_on(&adapter, to, &plain).await).await;
    hello[8..16].copy_from_slice(&targets.address().to_be_bytes());
    hello[16..20].copy_from_slice(&targets.key().0.to_be_bytes());
    hello[24..40].copy_from_slice(&data.to_bytes());
    for (patient, count) in [(false, 0), (true, 7)] {
        let config = plain.rnr_retry_count(count).read_limits(ReadLimits::new(2, 3));
        let listener = listening(&adapter, &config);
        let active = QueuePairConfig::default().send_depth(SENDS).receive_depth(16);
        let active = adapter.queue_pair(active).expect("a queue pair");
        let _receives: Vec<_> = (0..16).map(|_| active.receive(()).expect("posted")).collect();
        let params = ConnectParams::default().private_data(&hello).read_limits(ReadLimits::new(5, 6));
        let connector = adapter.connector();
        let address = listener.local_addr().expect("bound");
        let connect = connector.connect_and_complete(&active, address, params);
        let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
        let (connection, stream) = (connected.expect("connected"), accepted.expect("accepted").0);
        assert_eq!(connection.read_limits(), ReadLimits::new(3, 2));
        assert_eq!(stream.connection().read_limits(), ReadLimits::new(2, 3));
        // If the connection is lost meanwhile, the rest is not posted.
        let sends: Vec<_> = (0..SENDS).map_while(|_| active.send(()).ok()).collect();
        if patient {
            assert_eq!(sends.len(), SENDS);
            timeout(Duration::from_secs(5), connection.disconnected()).await.expect_err("it is repeated");
        } else {
            assert!(matches!(within(connection.disconnected()).await, DisconnectReason::Lost { .. }));
        }
        drop(stream);
    }
}
