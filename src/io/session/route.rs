//! The way to the peer of a session.

use std::net::SocketAddr;

use crate::error::{ProtocolError, StreamError};
use crate::io::connector::RdmaConnector;
use crate::io::engine::StreamEngine;

/// The way to the peer: over any adapter of a connector, to any of these addresses.
pub(in crate::io) struct Route {
    connector: RdmaConnector,
    addresses: Vec<SocketAddr>,
}

impl Route {
    pub(in crate::io) fn new(connector: RdmaConnector, addresses: Vec<SocketAddr>) -> Self {
        Self { connector, addresses }
    }

    /// Connects over the first path that there is, those of devices first.
    ///
    /// # Errors
    /// There is none, or the peer wants no session.
    pub(super) async fn connect(&self) -> Result<StreamEngine, StreamError> {
        let engine = self.connector.connect_engine(&self.addresses).await?;
        if !engine.has_session() {
            let peer = engine.connection.peer_addr();
            return Err(StreamError::Protocol { peer, error: ProtocolError::Foreign });
        }
        Ok(engine)
    }
}
