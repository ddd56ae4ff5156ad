//! The passive side of streams and of messages.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};
use tokio::net::ToSocketAddrs;

use super::bind::{self, Bound};
use super::config::StreamConfig;
use super::messages::{Messages, MessagesConfig};
use super::places;
use super::stream::RdmaStream;
use crate::cm::{Acceptor, AcceptorParts, Adapter, none_later};
use crate::error::StreamError;
use crate::metrics::AcceptMetrics;

/// Listens for byte streams.
///
/// Handshakes run in the background, so a slow or silent peer delays no other. A peer that does not complete its handshake
/// within [`handshake_timeout`](StreamConfig::handshake_timeout) is dropped. A request that does not use the rsocket protocol is
/// rejected. Dropping the listener rejects peers that were not yet accepted, and frees the port.
///
/// The listener answers up to 256 peers ahead of [`accept`](Self::accept) ([`handshakes`](StreamConfig::handshakes)). Each
/// holds the buffers of one stream, because the reply tells the peer where they are. If there is no place for another peer, the
/// oldest handshake of the address that has most is dropped, so peers that do not complete delay others only briefly. Up to
/// 2048 further peers wait, with a socket and their request.
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
/// Each peer that connects costs the memory of its receives: 768 KiB with the default settings ([`MessagesConfig`]). The
/// receives are posted before the reply, because the first messages may follow the end of the handshake at once. Up to 256
/// peers of a listener can be between their request and [`accept`](Self::accept)
/// ([`handshakes`](MessagesConfig::handshakes)), which is 192 MiB. If there is no place for another peer, the oldest handshake
/// of the address that has most is dropped. Up to 2048 further peers wait, with a socket and their request. To use less memory,
/// configure shorter or fewer messages, or fewer handshakes.
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
    ($listener:ident, $connection:ident, $config:ident, $check:ident, $kind:literal) => {
        impl $listener {
            /// Listens on an address of an adapter. The unspecified address means all addresses of its family that the
            /// adapter has now, and port 0 any free port.
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
                let listeners = vec![(adapter.clone(), places::listener(adapter, address)?)];
                Self::new(Bound { listeners, later: none_later() }, *config)
            }

            /// Listens on an address, or on the first address of a name that can be bound, with the default settings.
            ///
            /// The unspecified address means every address of this machine, with devices and without, all on one port:
            /// `0.0.0.0` those of IPv4, `[::]` those of both families. Addresses that are added later are served, too, if
            /// the port is free there. They must fit the settings; an address that cannot be served is logged.
            /// A device may take an address some time after the kernel has it. From then on the device serves it, too, at most
            /// 30 seconds later.
            ///
            /// The listener ends when its last adapter is removed, and does not wait for addresses to come back.
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
            fn new(bound: Bound, config: $config) -> Result<Self, StreamError> {
                let Bound { listeners, later } = bound.checked(move |info| config.$check(info).map(drop))?;
                let answer = move |adapter: Adapter, request| async move {
                    $connection::accept_on(&adapter, request, &config).await
                };
                let acceptor = Acceptor::new(AcceptorParts {
                    listeners,
                    later,
                    config: config.acceptor,
                    metrics: AcceptMetrics::new($kind),
                    answer,
                })?;
                Ok(Self { acceptor })
            }

            /// Returns the local address, with the port.
            ///
            /// # Errors
            /// None. The type is that of the method of tokio's `TcpListener`.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.acceptor.local_addr())
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
                self.acceptor.accept().await.map($connection::with_peer)
            }

            /// Accepts the next connection like [`accept`](Self::accept).
            ///
            /// Only the waker of the last `poll_accept`, or of the last poll of the [`Stream`], is woken.
            ///
            /// # Errors
            /// Those of [`accept`](Self::accept).
            pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<($connection, SocketAddr)>> {
                self.acceptor.poll_accept(cx).map_ok($connection::with_peer)
            }
        }

        impl $connection {
            /// Returns it with the address of its peer.
            fn with_peer(self) -> (Self, SocketAddr) {
                let peer = self.connection().peer_addr();
                (self, peer)
            }
        }

        impl Stream for $listener {
            type Item = io::Result<$connection>;

            fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                self.acceptor.poll_next_unpin(cx)
            }
        }

        impl fmt::Debug for $listener {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($listener))
                    .field("local", &self.acceptor.local_addr())
                    .finish_non_exhaustive()
            }
        }
    };
}

listener!(RdmaListener, RdmaStream, StreamConfig, on, "stream");
listener!(MessageListener, Messages, MessagesConfig, hello, "messages");
