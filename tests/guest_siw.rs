//! Runs on: guest
//!
//! What is peculiar about the kernel's siw, and has to be lived with: seen on the real one.

mod common;

use common::guest::{FAR, NEAR, Siw, Stage, is_guest, port, start};
use common::raw::success;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Access, Adapter, ConnectParams, Provider, QueuePairConfig, ReadLimits, RemoteRegion};

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

#[test]
fn frames_right_behind_the_reply_of_siw_as_it_is() {
    frames_right_behind_the_reply(Siw::Stock);
}

#[test]
fn frames_right_behind_the_reply_of_siw_in_peer_to_peer_mode() {
    frames_right_behind_the_reply(Siw::PeerToPeer);
}
