//! The connector of hyper.

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
use crate::error::StreamError;

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

/// The extensions of each response of hyper-util's client contain a [`ConnectionInfo`](super::ConnectionInfo).
impl Connection for RdmaStream {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.info())
    }
}
