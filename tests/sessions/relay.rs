//! Streams over the loopback of the kernel, whose TCP connections end.
//!
//! Runs on: soft

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener};

use crate::transfer::{config, connected, path, resumed, transfer};

const STAGES: usize = 4;
const PATH_TIMEOUT: Duration = Duration::from_secs(4);

/// How the connections of a relay end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Both ends receive a reset.
    Reset,
    /// Nothing passes any more, and the kernel of the relay acknowledges all the same.
    Silence,
}

/// A relay of TCP connections, which a test can cut.
struct Relay {
    address: SocketAddr,
    cuts: watch::Sender<Cut>,
    _task: JoinSet<()>,
}

impl Relay {
    /// Starts a relay to this address.
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let (address, cuts) = (listener.local_addr().expect("an address"), watch::Sender::new(Cut::Reset));
        let mut task = JoinSet::new();
        task.spawn(Self::run(listener, to, cuts.clone()));
        Self { address, cuts, _task: task }
    }

    async fn run(listener: TcpListener, to: SocketAddr, cuts: watch::Sender<Cut>) {
        let mut connections = JoinSet::new();
        while let Ok((from, _)) = listener.accept().await {
            let to = TcpStream::connect(to).await.expect("the server listens");
            connections.spawn(Self::connection([from, to], cuts.subscribe()));
        }
    }

    async fn connection([mut from, mut to]: [TcpStream; 2], mut cuts: watch::Receiver<Cut>) {
        tokio::select! {
            _ = copy_bidirectional(&mut from, &mut to) => return,
            cut = cuts.changed() => cut.expect("the relay runs"),
        }
        if *cuts.borrow() == Cut::Silence {
            pending::<()>().await;
        }
        for socket in [from, to] {
            socket.set_zero_linger().expect("a socket");
        }
    }
}

/// Cuts the connection of a stream several times, while bytes pass both ways.
async fn stream_outlives(cut: Cut) {
    let soft = Provider::soft_with(SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)));
    let bound = RdmaListener::bind_with_provider(&soft, "127.0.0.1:0", &config()).await;
    let listener = bound.expect("bound");
    let relay = Relay::start(listener.local_addr().expect("an address")).await;
    let connector = RdmaConnector::new().provider(soft).config(config());
    let (mut ours, mut theirs) = connected(&listener, connector.connect(relay.address)).await;
    let mut changes = ours.path_changes();
    transfer(&mut ours, &mut theirs, STAGES, async |stage| {
        relay.cuts.send_replace(cut);
        resumed(&mut changes, stage as u64 + 1).await;
    })
    .await;
    for end in [&ours, &theirs] {
        assert_eq!(path(end).resumes, STAGES as u64 - 1, "{cut:?}");
    }
}

#[tokio::test]
async fn stream_outlives_resets() {
    stream_outlives(Cut::Reset).await;
}

#[tokio::test]
async fn stream_outlives_silence() {
    stream_outlives(Cut::Silence).await;
}
