//! The connector as a service of tower, and as the connector of hyper.

use std::io;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
#[cfg(feature = "hyper")]
use futures::future::ready;
use http::Uri;
#[cfg(feature = "hyper")]
use http::uri::Scheme;
#[cfg(feature = "hyper")]
use hyper_util::client::legacy::connect::{Connected, Connection};
#[cfg(feature = "hyper")]
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::connector::RdmaConnector;
use super::stream::RdmaStream;
use crate::error::StreamError;

/// Connects to the host and port of a URI.
///
/// Without a port, the port of the scheme is used: 80 for `http`, 443 for `https`. The service is always ready, so it can be
/// combined with tower's layers: timeout, retry, reconnect, balance, limits.
///
#[cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/tower.md"))]
///
/// # Errors
/// Those of [`RdmaConnector::connect`]; `Destination` if the URI has no host, or no port and no scheme with a known port.
impl Service<Uri> for RdmaConnector {
    type Response = RdmaStream;
    type Error = StreamError;
    type Future = BoxFuture<'static, Result<RdmaStream, StreamError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        let connect = async move {
            let (host, port) = destination(&uri)?;
            connector.connect((host, port)).await.map_err(|error| match error {
                // The error of the resolver does not contain the name.
                StreamError::Resolve(error) => {
                    let text = format!("{host}:{port}: {error}");
                    StreamError::Resolve(io::Error::new(error.kind(), text).into())
                }
                error => error,
            })
        };
        connect.boxed()
    }
}

/// Names a URI in an error, without the parts that may be secret: the user, the path and the query.
pub(super) fn place(uri: &Uri) -> String {
    format!("{}://{}", uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default())
}

/// Returns the host and the port of a URI.
fn destination(uri: &Uri) -> Result<(&str, u16), StreamError> {
    let host = uri.host().filter(|host| !host.is_empty());
    let host =
        host.ok_or_else(|| StreamError::Destination(format!("the URI of {} has no host", place(uri))))?;
    let port = uri.port_u16().or_else(|| match uri.scheme_str() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    });
    let none = || format!("the URI of {} has no port, and its scheme has no default port", place(uri));
    let port = port.ok_or_else(|| StreamError::Destination(none()))?;
    // An IPv6 address stands in brackets in a URI, and without them elsewhere.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Ok((bare.unwrap_or(host), port))
}

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
#[cfg(feature = "hyper")]
#[cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/hyper.md"))]
#[derive(Clone, Debug, Default)]
pub struct HttpConnector {
    connector: RdmaConnector,
    /// Another layer adds TLS, so that `https` is allowed.
    secured: bool,
}

#[cfg(feature = "hyper")]
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

#[cfg(feature = "hyper")]
impl RdmaConnector {
    /// Converts this connector into one for hyper and tonic.
    pub fn http(self) -> HttpConnector {
        HttpConnector { connector: self, secured: false }
    }
}

/// # Errors
/// Those of the service of [`RdmaConnector`]; `Destination` for a URI of `https`, see [`HttpConnector::enforce_http`].
#[cfg(feature = "hyper")]
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
#[cfg(feature = "hyper")]
impl Connection for RdmaStream {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.info())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_leads_to_its_host_and_port() {
        for (uri, host, port) in [
            ("http://a.example", "a.example", 80),
            ("https://a.example/path?query", "a.example", 443),
            ("http://a.example:8080/", "a.example", 8080),
            ("rdma://user@[2001:db8::1]:7", "2001:db8::1", 7),
            ("http://[::1]", "::1", 80),
            ("192.0.2.1:7", "192.0.2.1", 7),
        ] {
            let uri = uri.parse().expect("a URI");
            assert_eq!(destination(&uri).expect("a destination"), (host, port));
        }
    }

    #[test]
    fn incomplete_uri_error_names_missing_part() {
        for (uri, missing) in [
            ("/path", "no host"),
            ("*", "no host"),
            ("a.example", "no port"),
            ("rdma://a.example/", "no port"),
        ] {
            let uri = uri.parse().expect("a URI");
            let error = destination(&uri).expect_err("nowhere");
            assert!(error.to_string().contains(missing), "{uri}: {error}");
        }
    }
}
