//! TLS over streams with many peers that begin no handshake, over the soft provider.
//!
//! No time limit of a listener is over while they are there: peers that make no room for others would delay them for an hour.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::authority::{Authority, NAME};
use common::crowd::{
    Crowd, CrowdProcess, be_crowd, connect_and_be_silent, hello, limit_descriptors, raise_descriptors, visit,
};
use common::process::alone;
use common::stream::listening;
use common::*;
use tokio_rdma::io::TlsListener;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaStream, StreamConfig};
use tokio_rustls::rustls::pki_types::ServerName;

const HOUR: Duration = Duration::from_secs(3600);

/// The places for handshakes.
const HANDSHAKES: usize = 256;

/// Peers that begin no handshake.
const PEERS: usize = 2000;

// IO-10: those that have a stream would have the places of the TLS handshakes.
#[tokio::test]
async fn peers_that_begin_no_handshake_delay_nobody() {
    if !alone(module_path!(), "peers_that_begin_no_handshake_delay_nobody") {
        return;
    }
    assert!(raise_descriptors() > 2 * PEERS + 100, "too few descriptors for this test");
    // Small ones, so that the time of a test without optimisation is not that of their preparation.
    let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
    let config = config.send_depth(16).receive_depth(16).handshake_timeout(HOUR).connect_timeout(None);
    let own_adapter = adapter_with(SoftConfig::default().half_open(512).request_timeout(HOUR));
    let authority = Authority::new();
    let listener = TlsListener::new(listening(&own_adapter, &config), authority.server());
    let mut listener = listener.handshake_timeout(HOUR);
    let address = listener.local_addr().expect("bound");
    let (accepted, mut peers) = tokio::sync::mpsc::unbounded_channel();
    let server = tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let _ = accepted.send((stream, peer));
        }
    });
    let hello = hello(&own_adapter, async |to| RdmaStream::connect_on(&own_adapter, to, &config).await).await;
    let (hello, complete, visits) = (Arc::new(hello), Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let count = complete.clone();
    let mut crowd = Crowd::with(PEERS, move |connected| {
        let (hello, count) = (hello.clone(), count.clone());
        // Every other one does not even ask for a stream.
        let asks = visits.fetch_add(1, Ordering::Relaxed) % 2 == 0;
        async move {
            if asks {
                connect_and_be_silent(address, &hello, connected, &count).await;
            } else {
                visit(address, Arc::default(), connected).await;
            }
        }
    })
    .await;
    for _ in 0..5 {
        crowd.renewed(50).await;
        let stream = within(RdmaStream::connect_on(&own_adapter, address, &config)).await.expect("connected");
        let (own, name) =
            (stream.local_addr().expect("connected"), ServerName::try_from(NAME).expect("a name"));
        let (client, server) =
            within(async { tokio::join!(authority.good().connect(name, stream), peers.recv()) }).await;
        client.expect("secured");
        assert_eq!(server.expect("accepted").1, own);
    }
    server.abort();
    let complete = complete.load(Ordering::Relaxed);
    assert!(complete > HANDSHAKES, "{complete} have come as far as TLS");
}

/// The limit of the descriptors of a process, and the number of peers that come to it.
const LIMIT: u64 = 1024;
const MANY: usize = 1100;

/// Not a test by itself: the peers of a listener.
#[test]
fn crowd() {
    let complete: &'static AtomicUsize = Box::leak(Box::default());
    be_crowd(MANY, move |address, hello, connected| async move {
        connect_and_be_silent(address, &hello, connected, complete).await;
    });
}

// SEC-16: peers that begin no TLS handshake leave a process the descriptors for its other work.
#[tokio::test]
async fn tls_handshakes_leave_descriptors() {
    if !alone(module_path!(), "tls_handshakes_leave_descriptors") {
        return;
    }
    let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
    let config = config.send_depth(16).receive_depth(16);
    let own_adapter = adapter();
    let authority = Authority::new();
    let mut listener = TlsListener::new(listening(&own_adapter, &config), authority.server());
    let address = listener.local_addr().expect("bound");
    let (accepted, mut peers) = tokio::sync::mpsc::unbounded_channel();
    let server = tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let _ = accepted.send((stream, peer));
        }
    });
    let hello = hello(&own_adapter, async |to| RdmaStream::connect_on(&own_adapter, to, &config).await).await;
    limit_descriptors(LIMIT);
    let mut crowd = CrowdProcess::new(module_path!(), "crowd", address, &hello);
    for round in 0..12 {
        crowd.renewed().await;
        let files: Vec<_> = (0..300).map_while(|_| std::fs::File::open("/dev/null").ok()).collect();
        assert_eq!(files.len(), 300, "round {round}");
    }
    drop(crowd);
    let stream = within(RdmaStream::connect_on(&own_adapter, address, &config)).await.expect("connected");
    let name = ServerName::try_from(NAME).expect("a name");
    let (client, server_end) =
        within(async { tokio::join!(authority.good().connect(name, stream), peers.recv()) }).await;
    client.expect("secured");
    server_end.expect("accepted");
    server.abort();
}

// IO-10: what a peer has that is dropped is freed at once, though it confirms nothing.
#[tokio::test]
async fn dropped_peer_is_freed_without_waiting() {
    let own_adapter = adapter();
    let config = StreamConfig::default().close_timeout(Duration::from_secs(3600));
    let listener = TlsListener::new(listening(&own_adapter, &config), Authority::new().server());
    let mut listener = listener.handshake_timeout(Duration::from_millis(20));
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(async move { listener.accept().await.map(drop) });
    let hello = hello(&own_adapter, async |to| RdmaStream::connect_on(&own_adapter, to, &config).await).await;
    let (hello, complete) = (Arc::new(hello), Arc::new(AtomicUsize::new(0)));
    let count = complete.clone();
    let mut crowd = Crowd::with(1, move |connected| {
        let (hello, count) = (hello.clone(), count.clone());
        async move { connect_and_be_silent(address, &hello, connected, &count).await }
    })
    .await;
    crowd.renewed(3).await;
    assert!(complete.load(Ordering::Relaxed) >= 3);
    server.abort();
}
