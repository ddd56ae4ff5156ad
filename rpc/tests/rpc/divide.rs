//! Peers that say nothing to `divide`, or have no server, over the simulated network, in virtual time.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use futures::StreamExt;
use http::Request;
use http_body_util::Empty;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::sim::{Host, Network};
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};
use tokio_rdma_rpc::{Channel, Config, Divided, divide, serve};

use super::call;
use super::peers::HELLO;

/// More peers than may be silent at once.
const MANY: usize = 300;
/// The most peers that wait to be sorted.
const PLACES: usize = 256;
/// Less than the time that a silent peer has, and far more than a call takes.
const LIMIT: Duration = Duration::from_secs(5);

async fn connect(host: &Host, address: SocketAddr) -> io::Result<RdmaStream> {
    let adapter = host.adapter().map_err(io::Error::other)?;
    RdmaStream::connect_on(&adapter, address, &StreamConfig::default()).await.map_err(io::Error::other)
}

/// Listens on a host, and divides.
fn divided(host: &Host) -> (SocketAddr, Divided, Divided) {
    let address = SocketAddr::from((host.address(), 7000));
    let adapter = host.adapter().expect("opened");
    let listener = RdmaListener::bind_on(&adapter, address, &StreamConfig::default()).expect("bound");
    let (in_messages, others) = divide(listener);
    (address, in_messages, others)
}

#[tokio::test(start_paused = true)]
async fn silent_peers_delay_no_others() {
    let network = Network::new(0);
    let [server, silent, slow, client] =
        [1, 2, 3, 4].map(|number| network.host(IpAddr::from([10, 0, 0, number])));
    let (address, in_messages, _others) = divided(&server);
    let router = Router::new().route("/", get(async || "answered"));
    let _server = tokio::spawn(serve(in_messages, router));

    // It is the first, and not one of the many.
    let mut slow = connect(&slow, address).await.expect("connected");
    let mut many = Vec::new();
    for _ in 0..MANY {
        many.push(connect(&silent, address).await.expect("connected"));
    }
    let channel = Channel::with_connector("server", false, Config::default(), move || {
        let client = client.clone();
        async move { connect(&client, address).await }
    });
    let request = Request::get("/").body(Empty::<Bytes>::new()).expect("a request");
    assert_eq!(call(&channel, request).await.expect("answered").into_body(), "answered");
    slow.write_all(HELLO).await.expect("written");
    slow.read_exact(&mut [0; 32]).await.expect("the hello of the server");
    assert!(network.elapsed() < LIMIT, "{:?}", network.elapsed());
    // The oldest of the many has made room.
    many[0].read_exact(&mut [0]).await.expect_err("dropped");
    assert!(network.elapsed() < LIMIT, "{:?}", network.elapsed());
}

// Who owns one address of IPv6 owns 2^64: a peer with a new one for each connection is one peer.
#[tokio::test(start_paused = true)]
async fn networks_of_ipv6_count_as_one() {
    let network = Network::new(0);
    let host = |network_number: u128, number: u128| {
        network.host(IpAddr::from(Ipv6Addr::from_bits(0xFD << 120 | network_number << 64 | number)))
    };
    let (server, other) = (host(1, 1), host(2, 1));
    let (address, mut in_messages, _others) = divided(&server);
    // It is the oldest, and from an address that has no other connection; so are the many.
    let mut first = connect(&other, address).await.expect("connected");
    let mut many = Vec::new();
    for number in 0..MANY as u128 {
        many.push(connect(&host(3, number << 48 | 1), address).await.expect("connected"));
    }
    many[0].read_exact(&mut [0]).await.expect_err("dropped");
    first.write_all(HELLO).await.expect("written");
    let stream =
        timeout(LIMIT, in_messages.next()).await.expect("in time").expect("a stream").expect("no error");
    assert_eq!(stream.info().peer_addr.ip(), other.address());
}

// What they have to say is there, but not their server.
#[tokio::test(start_paused = true)]
async fn silent_peers_go_before_those_that_have_spoken() {
    let network = Network::new(0);
    let [server, speaking, silent] = [1, 2, 3].map(|number| network.host(IpAddr::from([10, 0, 0, number])));
    let (address, _in_messages, mut others) = divided(&server);
    let mut speakers = Vec::new();
    // The first one needs no place: it is handed to its server, which does not take it yet.
    for _ in 0..PLACES {
        let mut stream = connect(&speaking, address).await.expect("connected");
        stream.write_all(b"PRI").await.expect("written");
        speakers.push(stream);
    }
    let mut silent = connect(&silent, address).await.expect("connected");
    // Nothing else happens at this time: what was written has been seen.
    sleep(Duration::from_secs(1)).await;
    // It takes the last place, and of its address there are most.
    let _last = connect(&speaking, address).await.expect("connected");
    silent.read_exact(&mut [0]).await.expect_err("dropped");
    assert!(network.elapsed() < LIMIT, "{:?}", network.elapsed());
    for speaker in &speakers {
        let stream =
            timeout(LIMIT, others.next()).await.expect("in time").expect("a stream").expect("no error");
        assert_eq!(stream.info().peer_addr, speaker.info().local_addr, "in their order");
    }
}
