//! The connector as a tower service.

use std::io;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::Uri;
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
