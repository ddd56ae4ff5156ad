// SPDX-License-Identifier: GPL-3.0-only
//! Two ends that learn of each other's queue pairs by a three-phase connection, and then use them.
//!
//! ```text
//! active                                              passive
//!   endpoint of a new queue pair
//!   connect ──────── private data: endpoint ────────▶ request
//!                                                     endpoint of a new queue pair
//!                                                     ibv_connect
//!   reply   ◀─────── private data: endpoint ───────── accept
//!   ibv_connect
//!   complete ───────────────────────────────────────▶ the accept is over: both queue pairs are connected
//! ```
//!
//! What CompleteConnect adds is that neither end uses its queue pair before the other's is connected, and that each
//! hears of it when the other cannot connect its own: the passive end's accept fails, or the active end's connect.

use std::io;
use std::net::SocketAddr;

use async_rdma::QueuePairEndpoint;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Listener, QueuePair, QueuePairConfig};

use crate::endpoint::{decode, encode};

/// A queue pair of another library, which needs to know its peer's address.
pub(crate) trait Peer {
    /// The address that the peer needs.
    fn endpoint(&self) -> QueuePairEndpoint;

    /// Connects to the peer. What the peer sends from now on is taken.
    ///
    /// # Errors
    /// What the library says.
    async fn connect(&mut self, peer: QueuePairEndpoint) -> io::Result<()>;
}

impl Peer for async_rdma::Rdma {
    fn endpoint(&self) -> QueuePairEndpoint {
        self.get_qp_endpoint()
    }

    async fn connect(&mut self, peer: QueuePairEndpoint) -> io::Result<()> {
        self.ibv_connect(peer).await
    }
}

/// A connection that has carried two endpoints, and now tells either end when the other leaves.
pub(crate) struct Rendezvous {
    /// The connection.
    pub(crate) connection: Connection,
    /// A connection needs one; nothing is posted to it.
    _queue_pair: QueuePair,
}

/// The end that waits for the other.
///
/// # Errors
/// The other sent no endpoint, one of the queue pairs could not be connected, or the other went away.
pub(crate) async fn passive(
    adapter: &Adapter,
    listener: &Listener,
    peer: &mut impl Peer,
) -> io::Result<Rendezvous> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let request = listener.request().await?;
    // If anything fails from here on, dropping the request refuses it.
    peer.connect(decode(request.private_data())?).await?;
    let params = AcceptParams::default().private_data(encode(&peer.endpoint()).to_vec());
    let connection = request.accept(&queue_pair, params).await.map_err(|failure| failure.error)?;
    Ok(Rendezvous { connection, _queue_pair: queue_pair })
}

/// The end that goes to the other.
///
/// # Errors
/// As for [`passive`].
pub(crate) async fn active(
    adapter: &Adapter,
    address: SocketAddr,
    peer: &mut impl Peer,
) -> io::Result<Rendezvous> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let params = ConnectParams::default().private_data(encode(&peer.endpoint()).to_vec());
    let reply = adapter.connector().connect(&queue_pair, address, params).await?;
    // If anything fails from here on, dropping the reply says no.
    peer.connect(decode(reply.private_data())?).await?;
    let connection = reply.complete().await?;
    Ok(Rendezvous { connection, _queue_pair: queue_pair })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio_rdma::DisconnectReason;

    use super::*;
    use crate::endpoint::LENGTH;

    /// A queue pair that only remembers; it refuses peers whose queue pair has number zero.
    struct Memory {
        /// Its own address.
        own: QueuePairEndpoint,
        /// Its peer's.
        peer: Option<QueuePairEndpoint>,
    }

    impl Memory {
        /// One with this number.
        fn new(number: u8) -> Self {
            let mut bytes = [number; LENGTH];
            bytes[..3].fill(0);
            Self { own: decode(&bytes).expect("long enough"), peer: None }
        }
    }

    impl Peer for Memory {
        fn endpoint(&self) -> QueuePairEndpoint {
            self.own
        }

        async fn connect(&mut self, peer: QueuePairEndpoint) -> io::Result<()> {
            if *peer.qp_num() == 0 {
                return Err(io::Error::other("queue pair 0 is not for us"));
            }
            self.peer = Some(peer);
            Ok(())
        }
    }

    /// Both ends meet, whose queue pairs have these numbers.
    async fn meet(numbers: [u8; 2]) -> ([io::Result<Rendezvous>; 2], [Memory; 2]) {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST).expect("loopback");
        let listener = adapter.listener();
        listener.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        listener.listen(0).expect("bound");
        let address = listener.local_addr().expect("bound");
        let mut ends = numbers.map(Memory::new);
        let [first, second] = &mut ends;
        let outcomes =
            tokio::join!(active(&adapter, address, first), passive(&adapter, &listener, second)).into();
        (outcomes, ends)
    }

    #[tokio::test]
    async fn each_end_learns_of_the_other() {
        let (outcomes, [active, passive]) = meet([1, 2]).await;
        assert_eq!((active.peer, passive.peer), (Some(passive.own), Some(active.own)));
        let [active, passive] = outcomes.map(|outcome| outcome.expect("connected"));
        let (left, ended) = tokio::join!(active.connection.disconnect(), passive.connection.disconnected());
        left.expect("connected");
        assert_eq!(ended, DisconnectReason::Peer);
    }

    #[tokio::test]
    async fn an_end_that_cannot_connect_tells_the_other() {
        for numbers in [[0, 2], [1, 0]] {
            let (outcomes, _) = meet(numbers).await;
            for outcome in outcomes {
                assert!(outcome.is_err(), "{numbers:?}");
            }
        }
    }
}
