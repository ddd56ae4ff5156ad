//! Listeners of the soft provider that many peers connect to at once, most of whom say nothing.
//!
//! No time limit of a listener is over while a test runs: peers that make no room for others would delay them for an hour. The
//! time that an honest peer waits is a test of the simulated network.

use std::net::SocketAddr;
use std::time::Duration;

use common::crowd::{Crowd, raise_descriptors, request};
use common::process::{alone, one_test};
use common::raw::{self, REJECT};
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, AcceptorConfig, ConnectParams, QueuePairConfig};

const HOUR: Duration = Duration::from_secs(3600);

// SEC-07: the table of half-open peers has 1024 places, and the honest peer has the address of the others.
#[tokio::test]
async fn silent_peers_delay_nobody() {
    const SILENT: usize = 2200;
    if !alone(module_path!(), "silent_peers_delay_nobody") {
        return;
    }
    assert!(raise_descriptors() > 2 * SILENT + 100, "too few descriptors for this test");
    let adapter = adapter_with(SoftConfig::default().half_open(1024).request_timeout(HOUR));
    let (listener, address) = listening(&adapter);
    let mut crowd = Crowd::new(address, SILENT, Vec::new()).await;
    for _ in 0..9 {
        crowd.renewed(100).await;
        let (active, passive, connector) = (queue_pair(&adapter), queue_pair(&adapter), adapter.connector());
        let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
        let accept = listener.accept_next(&passive, AcceptParams::default());
        let (connected, accepted) = within(async { tokio::join!(connect, accept) }).await;
        drop((connected.expect("connected"), accepted.expect("accepted")));
    }
}

/// A peer that asks for a connection, and completes it if it is accepted. Returns whether it was accepted: a reject, or the end
/// of its connection, is a refusal. Any other failure of TCP is none.
async fn ask(address: SocketAddr) -> bool {
    let reply = async {
        let mut peer = TcpStream::connect(address).await?;
        peer.write_all(&request(b"")).await?;
        let mut header = [0; 20];
        peer.read_exact(&mut header).await?;
        std::io::Result::Ok((peer, header))
    };
    let (mut peer, header) = match reply.await {
        Ok(reply) => reply,
        Err(error) => {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
            assert!(matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof), "{error:?}");
            return false;
        }
    };
    let accepted = u16::from_be_bytes([header[16], header[17]]) & REJECT == 0;
    if accepted {
        let _ = peer.write_all(&raw::fpdu(&raw::write(0, 0, &[]), false)).await;
        // It stays until the listener has had enough of it.
        let _ = peer.read_to_end(&mut Vec::new()).await;
    }
    accepted
}

/// The number of peers that connect at once. A build without optimisation needs ten times as long for each.
const AT_ONCE: usize = if cfg!(debug_assertions) { 1_000 } else { 10_000 };

/// The address of the listener, in the process of its peers.
const LISTENER: &str = "TOKIO_RDMA_TEST_LISTENER";

/// Not a test by itself: the peers of the listener, in a process of their own, which has their descriptors. Prints how many were
/// accepted, when all have been answered.
#[test]
#[allow(clippy::print_stdout, reason = "the process that started this one reads it")]
fn peers() {
    let Ok(address) = std::env::var(LISTENER) else { return };
    let address = address.parse().expect("an address");
    assert!(raise_descriptors() > AT_ONCE + 100, "too few descriptors for this test");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let asked = runtime.block_on(async {
        let asking: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(ask(address))).collect();
        within(futures::future::join_all(asking)).await
    });
    let accepted = asked.into_iter().filter(|accepted| *accepted.as_ref().expect("answered")).count();
    println!("\naccepted: {accepted}");
}

// SEC-19: a peer does not try again, so one that is neither served nor refused is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_are_served_or_refused() {
    if !alone(module_path!(), "many_at_once_are_served_or_refused") {
        return;
    }
    assert!(raise_descriptors() > AT_ONCE + 500, "too few descriptors for this test");
    let adapter = adapter_with(SoftConfig::default().request_timeout(HOUR));
    let (listener, address) = listening(&adapter);
    let acceptor = listener.acceptor(AcceptorConfig::default().handshake_timeout(HOUR), move |request| {
        let config = QueuePairConfig::default().send_depth(4).receive_depth(4);
        let queue_pair = adapter.queue_pair(config);
        async move { Ok(request.accept(&queue_pair?, AcceptParams::default()).await?) }
    });
    let acceptor = acceptor.expect("it listens");
    let server = tokio::spawn(async move {
        while let Ok(connection) = acceptor.accept().await {
            drop(connection);
        }
    });
    let mut peers = one_test(module_path!(), "peers");
    peers.env(LISTENER, address.to_string());
    let output = tokio::task::spawn_blocking(move || peers.output()).await.expect("no panic");
    server.abort();
    let output = output.expect("started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let accepted = printed.lines().find_map(|line| line.strip_prefix("accepted: "));
    let accepted = accepted.and_then(|accepted| accepted.parse::<usize>().ok());
    assert!(accepted.is_some_and(|accepted| accepted > AT_ONCE / 10), "{output:?}");
}
