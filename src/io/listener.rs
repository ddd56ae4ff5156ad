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

/// Listens for byte streams.
///
/// Handshakes run in the background, so a slow or silent peer delays no other. A peer that does not complete its handshake
/// within [`handshake_timeout`](StreamConfig::handshake_timeout) is dropped. A request that does not use the rsocket protocol is
/// rejected. Dropping the listener rejects peers that were not yet accepted, and frees the port.
///
/// The listener answers up to 256 peers ahead of [`accept`](Self::accept). Each holds the buffers of one stream. Further
/// requests stay in the backlog of the adapter.
///
/// The listener is a [`Stream`] of accepted connections, for servers that take one (tonic's `serve_with_incoming`). If
/// the listener fails, it yields one error and then `None`.
pub struct RdmaListener {
    acceptor: Acceptor<RdmaStream>,
}

/// Listens for peers that exchange [`Messages`].
///
/// Handshakes run in the background, so a slow or silent peer delays no other. A peer that does not complete its handshake
/// within [`handshake_timeout`](MessagesConfig::handshake_timeout) is dropped. A request for anything else is rejected.
/// Dropping the listener disconnects peers that were not yet accepted. Accepted connections stay open.
///
/// # Untrusted peers
/// Each peer that connects costs the memory of its receives: 768 KiB with the default settings ([`MessagesConfig`]). Up to
/// 256 peers of a listener can be between their request and [`accept`](Self::accept), which is 192 MiB. Further requests
/// stay in the backlog of the adapter. To use less memory, configure shorter or fewer messages.
///
/// The timeout covers only the handshake. An accepted peer may never send its first message, and until then nothing is sent to
/// it, so a flush waits without limit. If peers are not trusted, put a deadline on the first exchange with each.
///
/// The listener is a [`Stream`] of accepted connections. If the listener fails, it yields one error and then `None`.
pub struct MessageListener {
    acceptor: Acceptor<Messages>,
}

/// The methods of a listener whose connections are `$connection`s, with settings that `$check` compares to an adapter.
macro_rules! listener {
    ($listener:ident, $connection:ident, $config:ident, $check:ident) => {
        impl $listener {
            /// Listens on an address of an adapter. The unspecified address means all addresses of the adapter, and port 0
            /// any free port.
            ///
            /// # Errors
            /// `Bind`; `OutOfRange` if a setting exceeds the limits of the adapter.
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

            /// Listens on an address, or on the first address of a name that can be bound, with the default settings.
            ///
            /// The unspecified address means every address of its family on this machine, with devices and without, all on
            /// one port.
            ///
            /// # Errors
            /// `Resolve` or `NoAddress` if the name has no address. If one address was tried, its `Open` or `Bind` error; if
            /// several, `Attempts` with the error of each.
            ///
            /// # Cancel safety
            /// Dropping the future binds nothing.
            pub async fn bind<A: ToSocketAddrs>(address: A) -> Result<Self, StreamError> {
                Self::bind_with(address, &$config::default()).await
            }

            /// Listens like [`bind`](Self::bind), with the given settings.
            ///
            /// # Errors
            /// Those of [`bind`](Self::bind); `OutOfRange` if a setting exceeds the limits of an adapter.
            ///
            /// # Cancel safety
            /// Dropping the future binds nothing.
            pub async fn bind_with<A: ToSocketAddrs>(
                address: A,
                config: &$config,
            ) -> Result<Self, StreamError> {
                Self::new(bind::listeners(address).await?, *config)
            }

            /// Accepts from these listeners, which all have the same port.
            fn new(listeners: Vec<(Adapter, Listener)>, config: $config) -> Result<Self, StreamError> {
                for (adapter, _) in &listeners {
                    config.$check(&adapter.info())?;
                }
                let answer = move |adapter: Adapter, request| async move {
                    $connection::accept_on(&adapter, request, &config).await
                };
                Ok(Self { acceptor: Acceptor::new(listeners, config.handshake_timeout, answer)? })
            }

            /// Returns the local address, with the port.
            pub fn local_addr(&self) -> SocketAddr {
                self.acceptor.local_addr()
            }

            /// Accepts the next connection. Returns it with the address of its peer.
            ///
            /// Any number of tasks may call this method at the same time.
            ///
            /// # Errors
            /// If the listener has ended, because its last adapter was removed.
            ///
            /// # Cancel safety
            /// Dropping the future loses no connection: the next call returns it.
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
