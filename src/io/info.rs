//! The connection of a request of a framework.

use std::net::SocketAddr;
use std::sync::Arc;

use super::stream::RdmaStream;
use crate::cm::{Adapter, ProviderKind};
use crate::types::ConnectionId;

/// The connection of a request or a response: its addresses, its provider and adapter, and its number in `tracing` output.
///
/// | framework | access |
/// |---|---|
/// | axum | `ConnectInfo<ConnectionInfo>` in a handler, if the router was served by `into_make_service_with_connect_info::<ConnectionInfo>()` |
/// | tonic, server | the extensions of a request, if the server was given `RdmaListener::tonic`; with tonic's own TLS also in a `TlsConnectInfo`, with the certificates of the peer |
/// | hyper, server | [`RdmaStream::info`] before the stream is served; [an example](#examples) inserts it into each request |
/// | hyper-util, client | the extensions of a response |
///
/// With the other frameworks, ask the stream.
///
#[cfg_attr(
    all(feature = "hyper", not(doctest)),
    doc = concat!("# Examples\n", include_str!("../../docs/snippets/hyper_server.md"))
)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The local address of the connection.
    pub local_addr: SocketAddr,
    /// The address of the peer.
    pub peer_addr: SocketAddr,
    /// The provider of the connection.
    pub provider: ProviderKind,
    /// The name of the adapter: of the device or of the network interface
    /// ([`AdapterInfo::name`](crate::AdapterInfo::name)).
    pub adapter: Arc<str>,
    /// The number of the connection in `tracing` output.
    pub connection: ConnectionId,
}

impl RdmaStream {
    /// Returns the adapter of the stream.
    pub fn adapter(&self) -> &Adapter {
        self.shared().adapter()
    }

    /// Returns the addresses, the provider, the adapter and the number of the connection.
    pub fn info(&self) -> ConnectionInfo {
        let connection = self.connection();
        ConnectionInfo {
            local_addr: connection.local_addr(),
            peer_addr: connection.peer_addr(),
            provider: connection.provider(),
            adapter: self.adapter().properties().name.as_str().into(),
            connection: connection.id(),
        }
    }
}
