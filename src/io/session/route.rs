//! The paths to the peer of a session, and which of them is better.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::{ProtocolError, StreamError};
use crate::io::connector::RdmaConnector;
use crate::io::engine::StreamEngine;

/// The order of the paths, the best first: those of devices before those over TCP, and each to the addresses in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::io) struct Rank {
    pub(in crate::io) is_soft: bool,
    /// The place of the address.
    pub(in crate::io) place: usize,
}

impl Rank {
    /// That of the passive end, which chooses none.
    pub(super) const BEST: Self = Self { is_soft: false, place: 0 };

    /// That of no path: every path is better.
    pub(in crate::io) const WORST: Self = Self { is_soft: true, place: usize::MAX };

    /// Returns whether there can be no better path.
    pub(super) fn is_best(self, route: &Route) -> bool {
        self.place == 0 && !(self.is_soft && route.connector.has_choice())
    }
}

/// The way to the peer: over any adapter of a connector, to any of these addresses.
pub(in crate::io) struct Route {
    connector: RdmaConnector,
    addresses: Vec<SocketAddr>,
}

impl Route {
    pub(in crate::io) fn new(connector: RdmaConnector, addresses: Vec<SocketAddr>) -> Self {
        Self { connector, addresses }
    }

    /// Connects over the best path that there is, if it is better than `worst`. The one that has just `failed` comes last.
    ///
    /// # Errors
    /// There is none, or the peer wants no session.
    pub(super) async fn connect(
        &self,
        worst: Rank,
        failed: Option<Rank>,
    ) -> Result<(Arc<StreamEngine>, Rank), StreamError> {
        let (engine, rank) = self.connector.connect_engine(&self.addresses, worst, failed).await?;
        if !engine.has_session() {
            let peer = engine.connection.peer_addr();
            return Err(StreamError::Protocol { peer, error: ProtocolError::Foreign });
        }
        Ok((engine.shared(), rank))
    }
}
