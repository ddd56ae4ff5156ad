//! The listener and the connection information of axum.

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
#[cfg(feature = "rustls")]
use tokio_rustls::server::TlsStream;
use tracing::error;

use super::listener::RdmaListener;
use super::stream::{ConnectionInfo, RdmaStream};
#[cfg(feature = "rustls")]
use super::tls::TlsListener;

/// `axum::serve` takes the listener as it takes tokio's `TcpListener`.
///
/// `accept` has no error in axum: if the listener ends, because its last adapter was removed, the error is logged, and
/// `accept` never resolves.
///
#[cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/axum.md"))]
impl Listener for RdmaListener {
    type Io = RdmaStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (RdmaStream, SocketAddr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            Err(error) => ended(&error).await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// Like [`RdmaListener`], with TLS.
#[cfg(feature = "rustls")]
impl Listener for TlsListener {
    type Io = TlsStream<RdmaStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TlsStream<RdmaStream>, SocketAddr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            Err(error) => ended(&error).await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// Logs the end of the listener and never resolves. Requests in progress continue, and so does a graceful shutdown.
async fn ended<T>(error: &io::Error) -> T {
    error!(%error, "listener closed");
    pending().await
}

impl Connected<IncomingStream<'_, RdmaListener>> for ConnectionInfo {
    fn connect_info(stream: IncomingStream<'_, RdmaListener>) -> Self {
        stream.io().info()
    }
}

#[cfg(feature = "rustls")]
impl Connected<IncomingStream<'_, TlsListener>> for ConnectionInfo {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        stream.io().get_ref().0.info()
    }
}
