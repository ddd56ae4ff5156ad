//! Runs on: guest
//!
//! Peculiarities of the kernel's siw that the crate works around, shown on the real driver.

use std::net::SocketAddr;

use common::guest::{FAR, NEAR, Siw, Stage, c_program, is_guest, port, start};
use common::raw::success;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Connection, Provider, QueuePair, QueuePairConfig,
    ReadLimits, RemoteRegion,
};

/// How often: siw misses the first frame of about one connection in fifty.
const CONNECTIONS: usize = 200;

/// An adapter whose connections do nothing by themselves but what siw needs.
fn quiet(address: std::net::IpAddr) -> Adapter {
    let provider = Provider::soft_with(SoftConfig::default().path_timeout(None));
    let id = provider.resolve(address).expect("an adapter has the address");
    provider.open(id).expect("opened")
}

/// siw replies before it listens for frames. Each connection sends at once, and goes on only when it is answered.
fn frames_right_behind_the_reply(siw: Siw) {
    if !is_guest() {
        return;
    }
    let stage = Stage::soft(siw);
    let port = port();
    let server = (NEAR[0], port).into();
    let mut program = start("rping", &format!("-s -P -a {} -p {port}", NEAR[0]), Some(port));
    let connections = stage.begin(0, async move |_| {
        let adapter = quiet(FAR[0]);
        let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
        for _ in 0..CONNECTIONS {
            let queue_pair = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
            let receive = queue_pair.receive(adapter.buffer(16).expect("memory")).expect("posted");
            let connector = adapter.connector();
            let params = ConnectParams::default().read_limits(ReadLimits::new(1, 1));
            let reply = connector.connect(&queue_pair, server, params).await.expect("accepted");
            let connection = reply.complete().await.expect("connected");
            let message = adapter.buffer_from(&region.remote().to_bytes()).expect("memory");
            success(queue_pair.send(message).expect("posted")).await;
            // The server has read our memory when it says so.
            let (length, _) = success(receive).await;
            assert_eq!(length, RemoteRegion::LEN);
            connection.disconnect().await.expect("disconnected");
        }
    });
    connections.end();
    assert!(program.is_running(), "{}", program.said());
}

/// Up to 251 bytes siw says how many there are; for more, 256 fewer.
const SENT_BY_SIW: [usize; 4] = [0, 251, 252, 255];
/// siw takes as many, and its accept sends as many; more is refused.
const MOST_OF_SIW: usize = 252;

fn counting(length: usize) -> Vec<u8> {
    (0..).take(length).collect()
}

/// A message, upon which the peer disconnects. That has to be the peer: a connection that ends before siw has told its own
/// kernel that it is there makes that kernel panic.
async fn greet(adapter: &Adapter, queue_pair: &QueuePair, connection: &Connection) {
    success(queue_pair.send(adapter.buffer(16).expect("memory")).expect("posted")).await;
    connection.disconnected().await;
}

fn private_data(siw: Siw) {
    if !is_guest() {
        return;
    }
    let program = c_program("private_data", "-lrdmacm -libverbs");
    let stage = Stage::soft(siw);
    for theirs in SENT_BY_SIW {
        let ours = theirs.min(MOST_OF_SIW);
        let server = SocketAddr::new(FAR[0], port());
        let serving = stage.begin_serving(server, async move |adapter, listener| {
            let request = listener.request().await.expect("a request");
            assert_eq!(request.private_data()[..], counting(theirs));
            let queue_pair = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
            let params = AcceptParams::default().private_data(counting(ours));
            let connection = request.accept(&queue_pair, params).await.expect("accepted");
            greet(&adapter, &queue_pair, &connection).await;
        });
        let arguments = format!("connect {} {} {theirs}", server.ip(), server.port());
        let outcome = start(&program, &arguments, None).finish().expect_success();
        serving.end();
        assert_eq!(outcome.stdout, format!("received {ours}\n"));

        let theirs = theirs.min(MOST_OF_SIW);
        let server = SocketAddr::new(NEAR[0], port());
        let arguments = format!("listen {} {} {theirs}", server.ip(), server.port());
        let program = start(&program, &arguments, Some(server.port()));
        let connecting = stage.begin(0, async move |adapter| {
            let queue_pair = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
            let params = ConnectParams::default().private_data(counting(ours));
            let reply = adapter.connector().connect(&queue_pair, server, params).await;
            let reply = reply.unwrap_or_else(|error| panic!("{theirs} bytes: {error:?}"));
            assert_eq!(reply.private_data()[..], counting(theirs));
            let connection = reply.complete().await.expect("connected");
            greet(&adapter, &queue_pair, &connection).await;
        });
        connecting.end();
        let outcome = program.finish().expect_success();
        assert_eq!(outcome.stdout, format!("received {ours}\n"));
    }
}

#[test]
fn private_data_of_siw_as_it_is() {
    private_data(Siw::Stock);
}

#[test]
fn private_data_of_peer_to_peer_siw() {
    private_data(Siw::PeerToPeer);
}

#[test]
fn frames_behind_reply_of_stock_siw() {
    frames_right_behind_the_reply(Siw::Stock);
}

#[test]
fn frames_behind_reply_of_peer_to_peer_siw() {
    frames_right_behind_the_reply(Siw::PeerToPeer);
}
