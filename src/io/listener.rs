//! The passive side of streams.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;

use super::acceptor::Acceptor;
use super::config::StreamConfig;
use super::stream::RdmaStream;
use crate::cm::{Adapter, Listener};
use crate::error::{BindError, StreamError};

/// Listens for streams.
///
/// Handshakes go on in the background, so a peer that is slow, or says nothing more, holds up nobody; after
/// [`handshake_timeout`](StreamConfig::handshake_timeout) it is dropped. A request that is not rsocket's is rejected. Dropping the
/// listener refuses those that were not yet accepted.
///
/// As a [`Stream`] it is what servers take that accept from one (tonic's `serve_with_incoming`); when it cannot go on, it
/// yields one error and then `None`.
pub struct RdmaListener {
    acceptor: Acceptor<RdmaStream>,
    local: SocketAddr,
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
        let listener = adapter.listener();
        listener.bind(address)?;
        Self::new([(adapter.clone(), listener)], *config)
    }

    /// Of listeners that are bound, all to the same port.
    pub(super) fn new(
        listeners: impl IntoIterator<Item = (Adapter, Listener)>,
        config: StreamConfig,
    ) -> Result<Self, StreamError> {
        let mut local = None;
        let mut answers = Vec::new();
        for (adapter, listener) in listeners {
            config.on(&adapter.info())?;
            listener.listen(0)?;
            local = local.or(listener.local_addr().ok());
            let answer = move |request| {
                let adapter = adapter.clone();
                async move { RdmaStream::accept_on(&adapter, request, &config).await }
            };
            answers.push((listener, answer));
        }
        let local = local.ok_or(BindError::InvalidAddress)?;
        Ok(Self { acceptor: Acceptor::new(answers, config.handshake_timeout), local })
    }

    /// The local address, with the port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next stream, and the address of its peer.
    ///
    /// # Errors
    /// When the listener has ended: its adapter was removed.
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
        f.debug_struct("RdmaListener").field("local", &self.local).finish_non_exhaustive()
    }
}
