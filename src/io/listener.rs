//! The passive side of streams and of messages.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::net::ToSocketAddrs;

use super::acceptor::Acceptor;
use super::bind;
use super::config::StreamConfig;
use super::messages::{Messages, MessagesConfig};
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

/// The methods of a listener whose connections are `$connection`s, with settings that `$check` compares to an adapter.
macro_rules! listener {
    ($listener:ident, $connection:ident, $config:ident, $check:ident) => {
        impl $listener {
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
                config: &$config,
            ) -> Result<Self, StreamError> {
                Self::new(vec![(adapter.clone(), bind::listener(adapter, address)?)], *config)
            }

            /// Listens at an address, or at the first address of a name that can be bound, with the default settings. The
            /// unspecified address stands for every address of its family that this machine has, with devices and without,
            /// all on one port.
            ///
            /// # Errors
            /// `Resolve`, `NoAddress`; of an only address its own error, `Open` or `Bind`; of several `Attempts`.
            ///
            /// # Cancel safety
            /// Dropping the future binds nothing.
            pub async fn bind<A: ToSocketAddrs>(address: A) -> Result<Self, StreamError> {
                Self::bind_with(address, &$config::default()).await
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
                config: &$config,
            ) -> Result<Self, StreamError> {
                Self::new(bind::listeners(address).await?, *config)
            }

            /// Of listeners that listen, all on the same port.
            fn new(listeners: Vec<(Adapter, Listener)>, config: $config) -> Result<Self, StreamError> {
                for (adapter, _) in &listeners {
                    config.$check(&adapter.info())?;
                }
                let answer = move |adapter: Adapter, request| async move {
                    $connection::accept_on(&adapter, request, &config).await
                };
                Ok(Self { acceptor: Acceptor::new(listeners, config.handshake_timeout, answer)? })
            }

            /// The local address, with the port.
            pub fn local_addr(&self) -> SocketAddr {
                self.acceptor.local_addr()
            }

            /// The next that has connected, and the address of its peer.
            ///
            /// # Errors
            /// When the listener has ended: its last adapter was removed.
            ///
            /// # Cancel safety
            /// Dropping the future loses nobody. Any number of tasks may accept.
            pub async fn accept(&self) -> io::Result<($connection, SocketAddr)> {
                let connection = self.acceptor.accept().await?;
                let peer = connection.peer_addr();
                Ok((connection, peer))
            }
        }

        impl Stream for $listener {
            type Item = io::Result<$connection>;

            fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                self.acceptor.poll_next(cx)
            }
        }

        impl fmt::Debug for $listener {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($listener))
                    .field("local", &self.local_addr())
                    .finish_non_exhaustive()
            }
        }
    };
}

listener!(RdmaListener, RdmaStream, StreamConfig, on);
listener!(MessageListener, Messages, MessagesConfig, hello);
