//! The connector and the connection information of hyper.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::connector::RdmaConnector;
use super::stream::RdmaStream;
use super::tower::place;
use crate::cm::{self, ProviderKind};
use crate::error::StreamError;
use crate::types::ConnectionId;

/// An [`RdmaConnector`] for hyper's clients and for the crates that use them: tonic's `Endpoint::connect_with_connector`,
/// hyper-rustls.
///
/// It is the same service with another response: [`TokioIo`] wraps each stream, because hyper has its own traits for
/// reading and writing.
///
/// Streams are not encrypted. A URI of `https` is an error, so that data meant to be secret is not sent in plain text. If a
/// layer above adds TLS to the streams, call [`enforce_http(false)`](Self::enforce_http). For tonic, with or without TLS,
/// use `RdmaConnector::tonic`.
///
#[cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/hyper.md"))]
#[derive(Clone, Debug, Default)]
pub struct HttpConnector {
    connector: RdmaConnector,
    /// Another layer adds TLS, so that `https` is allowed.
    secured: bool,
}

impl HttpConnector {
    /// Sets whether a URI of `https` is an error. Default: `true`.
    ///
    /// With `false` the stream is still not encrypted. The caller adds TLS, for example with hyper-rustls or with tonic's
    /// `ClientTlsConfig`.
    ///
    #[cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/tonic_tls.md"))]
    #[must_use]
    pub fn enforce_http(mut self, enforce: bool) -> Self {
        self.secured = !enforce;
        self
    }
}

impl RdmaConnector {
    /// Converts this connector into one for hyper and tonic.
    pub fn http(self) -> HttpConnector {
        HttpConnector { connector: self, secured: false }
    }
}

/// # Errors
/// Those of the service of [`RdmaConnector`]; `Destination` for a URI of `https`, see [`HttpConnector::enforce_http`].
impl Service<Uri> for HttpConnector {
    type Response = TokioIo<RdmaStream>;
    type Error = StreamError;
    type Future = BoxFuture<'static, Result<Self::Response, StreamError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        if !self.secured && uri.scheme() == Some(&Scheme::HTTPS) {
            let error = format!(
                "the scheme of {} is https, and the connector has no TLS: call enforce_http(false) if a layer above \
                 it adds TLS, or make the connector by RdmaConnector::tonic() if that layer is tonic",
                place(&uri),
            );
            return ready(Err(StreamError::Destination(error))).boxed();
        }
        self.connector.call(uri).map(|stream| stream.map(TokioIo::new)).boxed()
    }
}

/// The connection of a request or a response: its addresses, its provider, and its number in `tracing` output.
///
/// Every response of hyper-util's client has one in its extensions. In an axum handler, `ConnectInfo<HttpInfo>` extracts that
/// of the request, if the router was served by `into_make_service_with_connect_info::<HttpInfo>()`. In a tonic service it is in
/// the extensions of the request, if the server was given `RdmaListener::tonic`. A server of hyper itself has the stream when
/// it begins to serve it, and converts its [`connection`](RdmaStream::connection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpInfo {
    /// The local address of the connection.
    pub local_addr: SocketAddr,
    /// The address of the peer.
    pub peer_addr: SocketAddr,
    /// The provider of the connection.
    pub provider: ProviderKind,
    /// The number of the connection in `tracing` output.
    pub connection: ConnectionId,
}

impl From<&cm::Connection> for HttpInfo {
    fn from(connection: &cm::Connection) -> Self {
        Self {
            local_addr: connection.local_addr(),
            peer_addr: connection.peer_addr(),
            provider: connection.provider(),
            connection: connection.id(),
        }
    }
}

impl Connection for RdmaStream {
    fn connected(&self) -> Connected {
        Connected::new().extra(HttpInfo::from(self.connection()))
    }
}
