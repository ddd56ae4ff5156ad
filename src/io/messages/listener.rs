//! The passive side of messages.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::net::ToSocketAddrs;

use super::{Messages, MessagesConfig};
use crate::cm::{Adapter, Listener};
use crate::error::StreamError;
use crate::io::acceptor::Acceptor;
use crate::io::naming;

/// Waits for peers that want to exchange [`Messages`].
///
/// Handshakes go on in the background, so a peer that is slow, or says nothing more, holds up nobody; after
/// [`handshake_timeout`](MessagesConfig::handshake_timeout) it is dropped. A request for something else is rejected. Dropping
/// the listener disconnects those that were not yet accepted; the others live on.
///
/// # Peers that are up to no good
/// Anybody who connects costs the memory of its receives, with the default settings 768 KiB
/// ([`MessagesConfig`]). Up to 256 peers of a listener may be between their request and [`accept`](Self::accept), which is
/// 192 MiB; further ones wait with the adapter. Where that is too much, make the messages shorter or fewer.
///
/// The timeout ends with the handshake. A peer that has connected is accepted, and may then say nothing: to one that does
/// not even begin, nothing is sent, so that a flush waits for as long as it likes. Who does not trust its peers gives the
/// first exchange with them a deadline.
///
/// It is a [`Stream`] of those who have come. When it cannot go on, it yields one error and then `None`.
pub struct MessageListener {
    acceptor: Acceptor<Messages>,
}

impl MessageListener {
    /// Listens at this address of this adapter; the unspecified address stands for all of the adapter's, port 0 for any.
    ///
    /// # Errors
    /// `Bind`; `OutOfRange` for settings that the adapter cannot have.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind_on(
        adapter: &Adapter,
        address: SocketAddr,
        config: &MessagesConfig,
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
        Self::bind_with(address, &MessagesConfig::default()).await
    }

    /// [`bind`](Self::bind) with settings.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); `OutOfRange`.
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind_with<A: ToSocketAddrs>(
        address: A,
        config: &MessagesConfig,
    ) -> Result<Self, StreamError> {
        Self::new(naming::listeners(address).await?, *config)
    }

    /// Of listeners that listen, all on the same port.
    fn new(listeners: Vec<(Adapter, Listener)>, config: MessagesConfig) -> Result<Self, StreamError> {
        for (adapter, _) in &listeners {
            config.hello(&adapter.info())?;
        }
        let answer = move |adapter: Adapter, request| async move {
            Messages::accept_on(&adapter, request, &config).await
        };
        Ok(Self { acceptor: Acceptor::new(listeners, config.handshake_timeout, answer)? })
    }

    /// The local address, with the port.
    pub fn local_addr(&self) -> SocketAddr {
        self.acceptor.local_addr()
    }

    /// The next peer, and its address.
    ///
    /// # Errors
    /// When the listener has ended: its last adapter was removed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nobody. Any number of tasks may accept.
    pub async fn accept(&self) -> io::Result<(Messages, SocketAddr)> {
        let messages = self.acceptor.accept().await?;
        let peer = messages.peer_addr();
        Ok((messages, peer))
    }
}

impl Stream for MessageListener {
    type Item = io::Result<Messages>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.acceptor.poll_next(cx)
    }
}

impl fmt::Debug for MessageListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageListener").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}
