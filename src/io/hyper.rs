//! What hyper asks of a connector and of a connection, beyond tower.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::connector::RdmaConnector;
use super::stream::RdmaStream;
use crate::error::StreamError;
use crate::types::ConnectionId;

/// An [`RdmaConnector`] for hyper's clients, and for what is built on them: tonic's
/// `Endpoint::connect_with_connector`, hyper-rustls.
///
/// It is the same service, but for its response: hyper has its own traits for reading and writing, which
/// [`TokioIo`] puts around a stream.
///
/// ```
/// # fn example() {
/// use http_body_util::Empty;
/// use hyper::body::Bytes;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use tokio_rdma::RdmaConnector;
///
/// let client: Client<_, Empty<Bytes>> =
///     Client::builder(TokioExecutor::new()).build(RdmaConnector::new().http());
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct HttpConnector {
    connector: RdmaConnector,
}

impl RdmaConnector {
    /// The same for hyper and tonic.
    pub fn http(self) -> HttpConnector {
        HttpConnector { connector: self }
    }
}

impl Service<Uri> for HttpConnector {
    type Response = TokioIo<RdmaStream>;
    type Error = StreamError;
    type Future = BoxFuture<'static, Result<Self::Response, StreamError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        self.connector.call(uri).map(|stream| stream.map(TokioIo::new)).boxed()
    }
}

/// Which connection a response came over: in the extensions of every response of hyper-util's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpInfo {
    /// The local address of the connection.
    pub local_addr: SocketAddr,
    /// The address of the peer.
    pub peer_addr: SocketAddr,
    /// The number of the connection in `tracing` output.
    pub connection: ConnectionId,
}

impl Connection for RdmaStream {
    fn connected(&self) -> Connected {
        Connected::new().extra(HttpInfo {
            local_addr: self.local_addr(),
            peer_addr: self.peer_addr(),
            connection: self.connection().id(),
        })
    }
}
