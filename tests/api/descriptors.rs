//! The descriptors of a process with a listener, while one host opens more connections than the process may have.
//!
//! The limit is that of a process, so each test runs in a process of its own, and the peers in another.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::crowd::{Connected, CrowdProcess, be_crowd, hello, limit_descriptors, request};
use common::process::alone;
use common::resources::held;
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rdma::{
    AcceptParams, AcceptorConfig, Adapter, ConnectParams, Listener, QueuePairConfig, RdmaListener,
    RdmaStream, StreamConfig,
};

/// The usual limit of a process.
const LIMIT: u64 = 1024;

/// More peers than the process may have descriptors.
const PEERS: usize = 1100;

/// Not a test by itself: the peers of a listener.
#[test]
fn crowd() {
    be_crowd(PEERS, visit);
}

/// A visit of a peer that keeps its end of the connection open for a while after the listener has closed.
async fn visit(address: SocketAddr, words: Arc<Vec<u8>>, connected: Connected) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    connected.report();
    let _ = stream.write_all(&words).await;
    while matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {}
    tokio::time::sleep(Duration::from_secs(1)).await;
    let _ = stream.set_zero_linger();
}

/// Sets the limit. The adapter and the listener of the process's own connections.
fn limited() -> (Adapter, Listener, SocketAddr) {
    limit_descriptors(LIMIT);
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    (adapter, listener, address)
}

/// Opens files and connects, while the peers come to this address.
async fn assert_works(address: SocketAddr, words: &[u8]) {
    let (adapter, listener, own) = limited();
    let mut peers = CrowdProcess::new(module_path!(), "crowd", address, words);
    for round in 0..12 {
        peers.renewed().await;
        let descriptors = held()["descriptors"];
        assert!(descriptors < 600, "round {round}: {descriptors}");
        let files: Vec<_> = (0..100).map_while(|_| File::open("/dev/null").ok()).collect();
        assert_eq!(files.len(), 100, "round {round}: {:?}", held());
        drop(files);
        let (active, passive, connector) = (queue_pair(&adapter), queue_pair(&adapter), adapter.connector());
        let (active_end, passive_end) = joined(
            connector.connect_and_complete(&active, own, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
        .await;
        within(active_end.disconnect()).await.expect("disconnected");
        within(passive_end.disconnect()).await.expect("disconnected");
    }
}

/// A listener whose requests nobody takes. Afterwards they are taken, and an honest peer is among them.
async fn with_a_listener(words: &[u8]) {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    assert_works(address, words).await;
    let (active, connector) = (queue_pair(&adapter), adapter.connector());
    let accept = async {
        loop {
            // The first ones are of peers that have gone.
            let passive = queue_pair(&adapter);
            if let Ok(connection) = listener.accept_next(&passive, AcceptParams::default()).await {
                return connection;
            }
        }
    };
    let connect = async {
        loop {
            let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
            match connect.await {
                Ok(connection) => return connection,
                // The backlog is full until the first ones are taken.
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
    };
    drop(within(async { tokio::join!(connect, accept) }).await);
}

// SEC-16: peers leave a process the descriptors for its other work.
#[tokio::test]
async fn requests_that_nobody_takes_leave_descriptors() {
    if alone(module_path!(), "requests_that_nobody_takes_leave_descriptors") {
        with_a_listener(&request(b"")).await;
    }
}

// SEC-16: the same for peers that send nothing.
#[tokio::test]
async fn silent_peers_leave_descriptors() {
    if alone(module_path!(), "silent_peers_leave_descriptors") {
        with_a_listener(b"").await;
    }
}

// SEC-16: the same for peers that are refused.
#[tokio::test]
async fn invalid_requests_leave_descriptors() {
    if alone(module_path!(), "invalid_requests_leave_descriptors") {
        with_a_listener(b"GET / HTTP/1.1\r\n\r\n").await;
    }
}

// SEC-16: the same for handshakes that peers do not complete.
#[tokio::test]
async fn handshakes_leave_descriptors() {
    if !alone(module_path!(), "handshakes_leave_descriptors") {
        return;
    }
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let own = adapter.clone();
    let acceptor = listener.acceptor(AcceptorConfig::default(), move |request| {
        let queue_pair = own.queue_pair(QueuePairConfig::default());
        async move { Ok(request.accept(&queue_pair?, AcceptParams::default()).await?) }
    });
    let acceptor = acceptor.expect("it listens");
    assert_works(address, &request(b"")).await;
    let (active, connector) = (queue_pair(&adapter), adapter.connector());
    let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
    let (connected, accepted) = within(async { tokio::join!(connect, acceptor.accept()) }).await;
    drop((connected.expect("connected"), accepted.expect("accepted")));
}

/// A listener of streams at this address. Afterwards an honest peer is served.
async fn with_streams(address: &str) {
    // Small ones, so that the time of a test without optimisation is not that of their preparation.
    let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
    let config = config.send_depth(16).receive_depth(16);
    let adapter = adapter();
    let hello = hello(&adapter, async |to| RdmaStream::connect_on(&adapter, to, &config).await).await;
    let listener = RdmaListener::bind_with(address, &config).await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    assert_works(address, &request(&hello)).await;
    let connect = RdmaStream::connect_on(&adapter, address, &config);
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    drop((connected.expect("connected"), accepted.expect("accepted")));
}

// SEC-16: the same for streams.
#[tokio::test]
async fn streams_leave_descriptors() {
    if alone(module_path!(), "streams_leave_descriptors") {
        with_streams("127.0.0.1:0").await;
    }
}

// SEC-16: the same for a listener with several addresses.
#[tokio::test]
async fn streams_at_every_address_leave_descriptors() {
    if alone(module_path!(), "streams_at_every_address_leave_descriptors") {
        with_streams("[::]:0").await;
    }
}
