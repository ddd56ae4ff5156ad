//! A relay of TCP connections between a stream and its peer, which loses them when a test wants it.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How the connections of a relay end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both ends receive a reset.
    Reset,
    /// Nothing passes any more, and the kernel of the relay acknowledges all the same.
    Silence,
}

/// A relay of TCP connections, which a test can cut.
pub struct Relay {
    /// The address that it relays from.
    pub address: SocketAddr,
    cuts: watch::Sender<Cut>,
    _task: JoinSet<()>,
}

impl Relay {
    /// Starts a relay to this address.
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let (address, cuts) = (listener.local_addr().expect("an address"), watch::Sender::new(Cut::Reset));
        let mut task = JoinSet::new();
        task.spawn(Self::run(listener, to, cuts.clone()));
        Self { address, cuts, _task: task }
    }

    /// Ends the connections of the moment.
    pub fn cut(&self, cut: Cut) {
        self.cuts.send_replace(cut);
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
