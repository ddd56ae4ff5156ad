//! The passive side of streams.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::net::ToSocketAddrs;

use super::acceptor::Acceptor;
use super::config::StreamConfig;
use super::naming;
use super::stream::RdmaStream;
use crate::cm::{Adapter, Listener};
use crate::error::StreamError;

/// Listens for streams.
///
/// Handshakes go on in the background, so a peer that is slow, or says nothing more, holds up nobody; after
/// [`handshake_timeout`](StreamConfig::handshake_timeout) it is dropped. A request that is not rsocket's is rejected. Dropping the
/// listener refuses those that were not yet accepted, and frees the port.
///
/// Of those who are not accepted yet at most 256 have been answered; each holds the memory of a stream. Further ones wait
/// with the adapter.
///
/// As a [`Stream`] it is what servers take that accept from one (tonic's `serve_with_incoming`); when it cannot go on, it
/// yields one error and then `None`.
pub struct RdmaListener {
    acceptor: Acceptor<RdmaStream>,
}

impl RdmaListener {
    /// Listens at this address of this adapter; the unspecified address stands for all of the adapter's, port 0 for any.
    ///
    /// # Errors
    /// `Bind`; `OutOfRange`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind_on(
        adapter: &Adapter,
        address: SocketAddr,
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        Self::new(vec![(adapter.clone(), naming::listener(adapter, address)?)], *config)
    }

    /// Listens at an address, or at the first address of a name that can be bound, with the default settings. The unspecified
    /// address stands for every address of its family that this machine has, with devices and without, all on one port.
    ///
    /// # Errors
    /// `Resolve`, `NoAddress`; of an only address its own error, `Open` or `Bind`; of several `Attempts`.
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind<A: ToSocketAddrs>(address: A) -> Result<Self, StreamError> {
        Self::bind_with(address, &StreamConfig::default()).await
    }

    /// [`bind`](Self::bind) with settings.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); `OutOfRange`.
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind_with<A: ToSocketAddrs>(address: A, config: &StreamConfig) -> Result<Self, StreamError> {
        Self::new(naming::listeners(address).await?, *config)
    }

    /// Of listeners that listen, all on the same port.
    fn new(listeners: Vec<(Adapter, Listener)>, config: StreamConfig) -> Result<Self, StreamError> {
        for (adapter, _) in &listeners {
            config.on(&adapter.info())?;
        }
        let answer = move |adapter: Adapter, request| async move {
            RdmaStream::accept_on(&adapter, request, &config).await
        };
        Ok(Self { acceptor: Acceptor::new(listeners, config.handshake_timeout, answer)? })
    }

    /// The local address, with the port.
    pub fn local_addr(&self) -> SocketAddr {
        self.acceptor.local_addr()
    }

    /// The next stream, and the address of its peer.
    ///
    /// # Errors
    /// When the listener has ended: its last adapter was removed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nobody. Any number of tasks may accept.
    pub async fn accept(&self) -> io::Result<(RdmaStream, SocketAddr)> {
        let stream = self.acceptor.accept().await?;
        let peer = stream.peer_addr();
        Ok((stream, peer))
    }
}

impl Stream for RdmaListener {
    type Item = io::Result<RdmaStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.acceptor.poll_next(cx)
    }
}

impl fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaListener").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}
