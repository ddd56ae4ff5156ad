//! TLS over streams on a simulated network, with many peers that begin no handshake.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;
use tokio_rdma::io::TlsListener;
use tokio_rdma::sim::{self, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};
use tokio_rustls::rustls::pki_types::ServerName;

use crate::authority::{Authority, NAME};

/// Longer than the test: peers that make no room for others would delay them for that time.
const HOUR: Duration = Duration::from_secs(3600);

/// Peers that come again and again.
const PEERS: usize = 2000;

/// As long as an honest peer may wait for the others.
const DELAY: Duration = Duration::from_secs(1);

// IO-10
#[test]
fn peers_that_begin_no_handshake_delay_nobody() {
    sim::check([0], async |network: Network| {
        let (server, client, crowd) =
            (network.host("10.0.0.1"), network.host("10.0.0.2"), network.host("10.0.0.66"));
        let places = SoftConfig::default().half_open(512).request_timeout(HOUR);
        let passive = server.provider_with(places).open(server.address()).expect("opened");
        let (active, idle) = (client.adapter().expect("opened"), crowd.adapter().expect("opened"));
        let address = SocketAddr::new(server.address(), 4433);
        let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
        let config = config.send_depth(16).receive_depth(16).handshake_timeout(HOUR);
        let authority = Authority::new();
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let mut listener = TlsListener::new(listener, authority.server()).handshake_timeout(HOUR);
        let (accepted, mut peers) = tokio::sync::mpsc::unbounded_channel();
        let serving = async {
            loop {
                let (stream, peer) = listener.accept().await.expect("it goes on");
                let _ = accepted.send((stream, peer));
            }
        };
        // Every other one does not even ask for a stream.
        let silent = join_all((0..PEERS).map(async |peer| {
            sleep(Duration::from_millis(network.random(0..=2000))).await;
            loop {
                if peer % 2 == 0 {
                    let stream = RdmaStream::connect_on(&idle, address, &config).await;
                    sleep(Duration::from_millis(network.random(1000..=4000))).await;
                    drop(stream);
                } else {
                    let stream = crowd.tcp_connect(address).await;
                    sleep(Duration::from_millis(network.random(1000..=4000))).await;
                    drop(stream);
                }
            }
        }));
        let honest = async {
            // The crowd has come.
            sleep(Duration::from_secs(3)).await;
            for _ in 0..5 {
                let begin = network.elapsed();
                let stream = RdmaStream::connect_on(&active, address, &config).await.expect("connected");
                let own = stream.local_addr().expect("connected");
                let name = ServerName::try_from(NAME).expect("a name");
                let (client, server) = tokio::join!(authority.good().connect(name, stream), peers.recv());
                client.expect("secured");
                assert_eq!(server.expect("accepted").1, own);
                let delay = network.elapsed() - begin;
                assert!(delay <= DELAY, "{delay:?}");
                sleep(Duration::from_millis(network.random(0..=300))).await;
            }
        };
        tokio::select! {
            biased;
            () = honest => {}
            () = serving => unreachable!("it goes on"),
            _ = silent => unreachable!("it goes on"),
        }
    });
}

// IO-10: a peer that needs a place takes that of one other.
#[test]
fn one_peer_replaces_one_other() {
    sim::check([0], async |network: Network| {
        let [server, clients @ ..] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(|ip| network.host(ip));
        let (passive, authority) = (server.adapter().expect("opened"), Authority::new());
        let (address, config) = (SocketAddr::new(server.address(), 4433), StreamConfig::default());
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let listener = TlsListener::new(listener, authority.server()).handshakes(2);
        let mut listener = listener.handshake_timeout(HOUR);
        let serving = async {
            let mut accepted = Vec::new();
            loop {
                accepted.push(listener.accept().await.expect("it goes on"));
            }
        };
        let connecting = async {
            let mut streams = Vec::new();
            for client in &clients {
                let adapter = client.adapter().expect("opened");
                let stream = RdmaStream::connect_on(&adapter, address, &config).await;
                streams.push(stream.expect("connected"));
                // For longer than a place is certain.
                sleep(Duration::from_secs(2)).await;
            }
            let name = ServerName::try_from(NAME).expect("a name");
            let secure = streams.into_iter().map(|stream| authority.good().connect(name.clone(), stream));
            join_all(secure).await
        };
        let outcomes = tokio::select! {
            biased;
            outcomes = connecting => outcomes,
            () = serving => unreachable!("it goes on"),
        };
        let secured: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
        assert!(secured[2] && secured[0] != secured[1], "{secured:?}");
    });
}
