//! Peers that say nothing to `divide`, over the simulated network, in virtual time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::sim::{Host, Network};
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};
use tokio_rdma_rpc::{Channel, Config, divide, serve};

use super::call;
use super::peers::HELLO;

/// More peers than may be silent at once.
const MANY: usize = 300;
/// Less than the time that a silent peer has, and far more than a call takes.
const LIMIT: Duration = Duration::from_secs(5);

async fn connect(host: &Host, address: SocketAddr) -> io::Result<RdmaStream> {
    let adapter = host.adapter().map_err(io::Error::other)?;
    RdmaStream::connect_on(&adapter, address, &StreamConfig::default()).await.map_err(io::Error::other)
}

#[tokio::test(start_paused = true)]
async fn silent_peers_delay_no_others() {
    let network = Network::new(0);
    let [server, silent, slow, client] =
        [1, 2, 3, 4].map(|number| network.host(IpAddr::from([10, 0, 0, number])));
    let address = SocketAddr::from((server.address(), 7000));
    let adapter = server.adapter().expect("opened");
    let listener = RdmaListener::bind_on(&adapter, address, &StreamConfig::default()).expect("bound");
    let (in_messages, _others) = divide(listener);
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
