//! The implementation of tonic's `Connected` for streams.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{Stream, TryStreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::connector::RdmaConnector;
use super::listener::RdmaListener;
use super::split::{async_read, async_write};
use super::stream::{ConnectionInfo, RdmaStream};
use super::tower::HttpConnector;

impl RdmaConnector {
    /// Converts this connector into one for tonic's `Endpoint::connect_with_connector`, with and without TLS.
    ///
    /// A URI of `https` is allowed, because tonic itself adds TLS to it, and fails without
    /// `Endpoint::tls_config`.
    ///
    #[cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/tonic_tls.md"))]
    pub fn tonic(self) -> HttpConnector {
        self.http().enforce_http(false)
    }
}

/// tonic's `Request::remote_addr` and `Request::local_addr` return the addresses of the connection. tonic reads them
/// from the type that it uses for TCP, so this is that type. [`RdmaListener::tonic`] has more information for a request.
impl Connected for RdmaStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo {
            local_addr: Some(self.connection().local_addr()),
            remote_addr: Some(self.connection().peer_addr()),
        }
    }
}

impl RdmaListener {
    /// Converts this listener into connections for tonic's `serve_with_incoming` whose requests have a [`ConnectionInfo`] in
    /// their extensions, with the provider, the adapter and the number of the connection.
    ///
    /// tonic's `Request::remote_addr`, `Request::local_addr` and `Request::peer_certs` return `None` for them, because tonic
    /// reads these from the type that it uses for TCP. [`ConnectionInfo`] has both addresses. With tonic's own TLS, the extensions
    /// also have a `TlsConnectInfo<ConnectionInfo>`, which has the certificates of the peer:
    /// `request.extensions().get::<TlsConnectInfo<ConnectionInfo>>().and_then(|info| info.peer_certs())`.
    pub fn tonic(self) -> impl Stream<Item = io::Result<TonicStream>> + Send + Unpin + 'static {
        self.map_ok(TonicStream)
    }
}

/// A stream of [`RdmaListener::tonic`].
#[derive(Debug)]
pub struct TonicStream(RdmaStream);

impl TonicStream {
    /// Returns a reference to the stream.
    pub fn get_ref(&self) -> &RdmaStream {
        &self.0
    }

    /// Returns the stream.
    pub fn into_inner(self) -> RdmaStream {
        self.0
    }
}

impl Connected for TonicStream {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.0.info()
    }
}

async_read!(TonicStream, |this| this.0);
async_write!(TonicStream, |this| this.0);
