//! A session of peers that share a queue of receives: some leave in the middle of a message, and no receive is lost by
//! that.

use std::cell::RefCell;
use std::convert::Infallible;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::sim::Host;
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, ConnectParams, Connection, Listener, Op, QueuePair, QueuePairConfig,
    SharedReceiveConfig, SharedReceiveQueue,
};

use crate::world::World;

/// The length of a message, which most links carry in more than one segment.
const LENGTH: usize = 3000;

/// The receives that are posted.
const DEPTH: usize = 4;

/// The number of the peer that comes last, which is in each byte of its messages.
const LAST: u8 = 0xFF;

/// Peers that come one after the other, and then one for whose messages there have to be all receives.
pub(crate) async fn session(world: &World, port: u16) {
    if let Some(server) = Server::new(world, port) {
        let _ = server.live().await;
    }
}

struct Server<'a> {
    world: &'a World,
    address: (&'a Host, u16),
    /// The adapters of the server and of its peers.
    passive: Adapter,
    active: Adapter,
    listener: Listener,
    shared: SharedReceiveQueue,
    receives: RefCell<FuturesUnordered<Op<Buffer>>>,
}

/// A queue pair and its connection.
type End = (QueuePair, Connection);

impl<'a> Server<'a> {
    /// Makes everything, unless a host is down.
    fn new(world: &'a World, port: u16) -> Option<Self> {
        let (server, client) = world.two_hosts();
        let (passive, active) = (world.adapter(server)?, world.adapter(client)?);
        let config = SharedReceiveConfig::default().depth(DEPTH);
        let shared = passive.shared_receive_queue(config).ok()?;
        let listener = passive.listener();
        let bound = listener.bind((server.address(), port).into()).and_then(|()| listener.listen(0));
        assert!(bound.is_ok() || !world.calm, "{bound:?}");
        bound.ok()?;
        let address = (server, port);
        Some(Self { world, address, passive, active, listener, shared, receives: RefCell::default() })
    }

    async fn live(&self) -> Option<()> {
        for _ in 0..DEPTH {
            self.post()?;
        }
        let peers = async {
            for number in 1..=self.world.draw(1..=4) as u8 {
                if let Some(ends) = self.connect().await {
                    self.interrupt(ends, number).await;
                }
            }
            self.connect().await
        };
        let (ours, theirs) = tokio::select! {
            biased;
            ends = peers => ends?,
            _ = self.receive() => return None,
        };
        let sends = self.send(&theirs.0, LAST, DEPTH);
        tokio::select! {
            biased;
            () = self.receive_all() => {}
            reason = ours.1.disconnected() => assert!(!self.world.calm, "{reason:?}"),
        }
        drop(sends);
        Some(())
    }

    /// Posts a receive, unless the adapter is gone.
    fn post(&self) -> Option<()> {
        self.world.count();
        let outcome = self.shared.receive(self.passive.buffer(LENGTH).ok()?);
        assert!(outcome.is_ok() || self.passive.is_removed(), "{outcome:?}");
        self.receives.borrow().push(outcome.ok()?);
        Some(())
    }

    /// Receives messages, and posts the next receive for each. Ends if the adapter is gone.
    async fn receive(&self) -> Option<Infallible> {
        loop {
            self.next().await;
            self.post()?;
        }
    }

    /// Receives as many messages of the last peer as there are receives.
    async fn receive_all(&self) {
        let mut missing = DEPTH;
        while missing > 0 {
            let next = self.world.within("a shared receive", self.next()).await;
            if next == Some(LAST) {
                missing -= 1;
            } else if self.post().is_none() {
                return;
            }
        }
    }

    /// The number of the peer whose message comes next, or nothing if the receive fails.
    async fn next(&self) -> Option<u8> {
        let next = std::future::poll_fn(|cx| self.receives.borrow_mut().poll_next_unpin(cx));
        let (outcome, buffer) = next.await.expect("one is posted");
        let number = buffer[0];
        outcome.ok().inspect(|done| {
            assert!(done.bytes == LENGTH && buffer.iter().all(|byte| *byte == number), "a message");
        })?;
        Some(number)
    }

    /// Posts messages of a peer.
    fn send(&self, queue_pair: &QueuePair, number: u8, count: usize) -> Vec<Op<Buffer>> {
        let send = |_| {
            self.world.count();
            let message = self.active.buffer_from(&[number; LENGTH]).ok()?;
            queue_pair.send(message).ok()
        };
        (0..count).map_while(send).collect()
    }

    /// A peer sends, and leaves at any time without a word.
    async fn interrupt(&self, (ours, theirs): (End, End), number: u8) {
        let count = self.world.draw(1..=DEPTH as u64 + 1) as usize;
        let sends = self.send(&theirs.0, number, count);
        sleep(self.world.time(*self.world.pick(&[1, 20, 100]))).await;
        drop((sends, theirs));
        // A message that waits for a receive keeps what is behind it waiting, too.
        self.world.within("the end of a peer", ours.1.disconnected()).await;
    }

    /// Connects a peer, unless a fault prevents it: the end of the server, and that of the peer.
    async fn connect(&self) -> Option<(End, End)> {
        let config = QueuePairConfig::default().send_depth(DEPTH + 1);
        let theirs = self.active.queue_pair(config.clone()).ok()?;
        let ours = self.passive.queue_pair(config.shared_receives(&self.shared)).ok()?;
        self.world.count();
        let (host, port) = self.address;
        let connector = self.active.connector();
        let connect =
            connector.connect_and_complete(&theirs, (host.address(), port).into(), ConnectParams::default());
        let accept = self.listener.accept_next(&ours, AcceptParams::default());
        let both = async { tokio::join!(connect, accept) };
        let (connected, accepted) = timeout(self.world.patience(), both).await.ok()?;
        assert!(connected.is_ok() && accepted.is_ok() || !self.world.calm, "{connected:?}, {accepted:?}");
        Some(((ours, accepted.ok()?), (theirs, connected.ok()?)))
    }
}
