//! A relay between a client and a server, which holds bytes back and resets connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    /// Ends with the relay.
    _serving: JoinSet<()>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    is_held: watch::Sender<bool>,
    /// Each resets a connection.
    resets: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Relay {
    pub(crate) async fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            is_held: watch::Sender::new(false),
            resets: Mutex::default(),
        });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, shared.clone()));
        Self { address, shared, _serving: serving }
    }

    /// Has the next connections lead to another server.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock().expect("no panic") = target;
    }

    /// Passes nothing on, or goes on.
    pub(crate) fn hold(&self, is_held: bool) {
        self.shared.is_held.send_replace(is_held);
    }

    /// Resets so many connections, if there are as many.
    pub(crate) fn reset(&self, count: usize) {
        let mut resets = self.shared.resets.lock().expect("no panic");
        let first = resets.len().saturating_sub(count);
        for reset in resets.drain(first..) {
            // It may have ended.
            let _ = reset.send(());
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (near, _) = accepted.expect("accepted");
                let target = *shared.target.lock().expect("no panic");
                let (reset, is_reset) = oneshot::channel();
                let mut resets = shared.resets.lock().expect("no panic");
                resets.retain(|reset| !reset.is_closed());
                resets.push(reset);
                connections.spawn(connection(near, target, shared.is_held.subscribe(), is_reset));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(
    near: TcpStream,
    target: SocketAddr,
    is_held: watch::Receiver<bool>,
    is_reset: oneshot::Receiver<()>,
) {
    // The server may have been killed.
    let Ok(far) = TcpStream::connect(target).await else { return };
    let ((from_near, mut to_near), (from_far, mut to_far)) = (near.into_split(), far.into_split());
    tokio::select! {
        _ = async {
            let back = pass(from_far, &mut to_near, is_held.clone());
            tokio::join!(pass(from_near, &mut to_far, is_held), back)
        } => {}
        Ok(()) = is_reset => {
            for end in [to_near, to_far] {
                SockRef::from(end.as_ref()).set_linger(Some(Duration::ZERO)).expect("set");
            }
        }
    }
}

/// Passes on what comes, up to its end.
async fn pass(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, mut is_held: watch::Receiver<bool>) {
    let mut room = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut room).await {
        let goes_on = is_held.wait_for(|is_held| !is_held).await.is_ok();
        if !goes_on || to.write_all(&room[..count]).await.is_err() {
            break;
        }
    }
    // It may have been reset.
    let _ = to.shutdown().await;
}
