//! The passive side of streams.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};
use tokio::net::ToSocketAddrs;

use super::bind::{self, Bound};
use super::config::StreamConfig;
use super::places;
use super::stream::RdmaStream;
use crate::cm::{Acceptor, AcceptorParts, Adapter, Provider, Request, none_later};
use crate::error::{BindError, StreamError};
use crate::metrics::AcceptMetrics;

/// Listens for byte streams.
///
/// Handshakes run in the background, so a slow or silent peer delays no other. A peer that does not complete its handshake
/// within [`handshake_timeout`](StreamConfig::handshake_timeout) is dropped. A request that does not use the rsocket protocol is
/// rejected. Dropping the listener rejects peers that were not yet accepted, and frees the port.
///
/// The listener answers up to 256 peers ahead of [`accept`](Self::accept) ([`handshakes`](StreamConfig::handshakes)).
/// Each holds the buffers of one stream, because the reply contains their addresses. If there is no place for another
/// peer, the oldest handshake of the address that has most is dropped, so peers that do not complete delay others only
/// briefly. Up to 2048 further peers wait, with a socket and their request.
///
/// The listener is a [`Stream`] of accepted connections, for servers that take one (tonic's `serve_with_incoming`). If
/// the listener fails, it yields one error and then `None`.
pub struct RdmaListener {
    acceptor: Acceptor<RdmaStream>,
    local: SocketAddr,
}

impl RdmaListener {
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
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        let listener = places::listener(adapter, address)?;
        let local = listener.local_addr().map_err(|_| BindError::DeviceRemoved)?;
        let listeners = vec![(adapter.clone(), listener)];
        Self::new(Bound { local, listeners, later: none_later() }, *config)
    }

    /// Listens on an address, or on the first address of a name that can be bound, with the default settings.
    ///
    /// The unspecified address means every address of this machine, now and later, all on one port: `0.0.0.0` those of
    /// IPv4, `[::]` those of both families. If no device has an address, the listener accepts wherever a listener of TCP does:
    /// at all of `127.0.0.0/8`, at addresses of local routes, and on a machine that has no address yet. Each stream belongs to
    /// the adapter with its local address. Such a listener does not end.
    ///
    /// If devices have addresses, they serve these, and the soft provider serves the others that the interfaces list. Addresses
    /// that are added later are served, too, if the port is free there. They must fit the settings; an address that cannot
    /// be served is logged. Such a listener ends when its last adapter is removed, and does not wait for addresses to come back.
    ///
    /// A device may take an address some time after the kernel has it, and may be plugged in later. From then on the device
    /// serves its addresses, too, at most 30 seconds later.
    ///
    /// # Errors
    /// `Resolve` or `NoAddress` if the name has no address. If one address was tried, its `Open` or `Bind` error; if
    /// several, `Attempts` with the error of each. The type is that of tokio's method; the [`StreamError`] is inside, for
    /// [`get_ref`](io::Error::get_ref).
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind<A: ToSocketAddrs>(address: A) -> io::Result<Self> {
        Ok(Self::bind_with(address, &StreamConfig::default()).await?)
    }

    /// Listens like [`bind`](Self::bind), with the given settings.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); `OutOfRange` if a setting exceeds the limits of an adapter.
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind_with<A: ToSocketAddrs>(address: A, config: &StreamConfig) -> Result<Self, StreamError> {
        Self::new(bind::listeners(None, address).await?, *config)
    }

    /// Listens like [`bind`](Self::bind), at the addresses of one provider, with the given settings.
    ///
    /// The settings of the provider apply to every stream, also of addresses that are added later. It is the counterpart of
    /// [`RdmaConnector::provider`](super::RdmaConnector::provider).
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tokio_rdma::error::StreamError> {
    /// use tokio_rdma::soft::SoftConfig;
    /// use tokio_rdma::{Provider, RdmaListener, StreamConfig};
    ///
    /// // Detects corruption that the checksums of TCP do not.
    /// let provider = Provider::soft_with(SoftConfig::default().crc(true));
    /// let listener = RdmaListener::bind_with_provider(&provider, "0.0.0.0:0", &StreamConfig::default()).await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// Those of [`bind_with`](Self::bind_with).
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind_with_provider<A: ToSocketAddrs>(
        provider: &Provider,
        address: A,
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        Self::new(bind::listeners(Some(provider), address).await?, *config)
    }

    /// Accepts from these listeners, which all have the same port.
    fn new(bound: Bound, config: StreamConfig) -> Result<Self, StreamError> {
        let Bound { local, listeners, later } = bound.checked(move |info| config.on(info).map(drop))?;
        let answer = move |adapter: Adapter, request: Request| async move {
            let adapter = request.adapter().unwrap_or(adapter);
            RdmaStream::accept_on(&adapter, request, &config).await
        };
        let acceptor = Acceptor::new(AcceptorParts {
            listeners,
            later,
            config: config.acceptor,
            metrics: AcceptMetrics::new("stream"),
            answer,
        })?;
        Ok(Self { acceptor, local })
    }

    /// Returns the address to which the listener was bound, with the port.
    ///
    /// It is unspecified if the listener was bound to the unspecified address, as with tokio's `TcpListener`. The local address
    /// of an accepted stream is the one that the peer connected to. `Provider::addresses` lists those of the machine.
    ///
    /// # Errors
    /// None. The type is that of the method of tokio's `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Accepts the next connection. Returns it with the address of its peer.
    ///
    /// Any number of tasks may call this method at the same time.
    ///
    /// # Errors
    /// If the listener has ended, because its last adapter was removed. The end is final: calls that are pending fail at once,
    /// and each call that is made after the first error fails after 1 s, so that a loop that continues after errors does not
    /// occupy a processor.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection: the next call returns it.
    pub async fn accept(&self) -> io::Result<(RdmaStream, SocketAddr)> {
        self.acceptor.accept().await.map(RdmaStream::with_peer)
    }

    /// Accepts the next connection like [`accept`](Self::accept).
    ///
    /// Only the waker of the last `poll_accept`, or of the last poll of the [`Stream`], is woken.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(RdmaStream, SocketAddr)>> {
        self.acceptor.poll_accept(cx).map_ok(RdmaStream::with_peer)
    }
}

impl RdmaStream {
    /// Returns it with the address of its peer.
    fn with_peer(self) -> (Self, SocketAddr) {
        let peer = self.connection().peer_addr();
        (self, peer)
    }
}

impl Stream for RdmaListener {
    type Item = io::Result<RdmaStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.acceptor.poll_next_unpin(cx)
    }
}

impl fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaListener").field("local", &self.local).finish_non_exhaustive()
    }
}
