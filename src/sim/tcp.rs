//! Plain streams of bytes, for peers that are not this crate.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::network::Host;
use crate::error::ConnectError;
use crate::memory::Piece;
use crate::net::kernel::options::SocketOptions;
use crate::net::ports::{PortLease, PortRange};
use crate::net::{Connected, canonical, sim};

impl Host {
    /// Connects a plain byte stream, from a port that the network chooses. A test plays a peer with it that violates the
    /// protocol, or that is not this crate.
    ///
    /// # Errors
    /// `ConnectionRefused` without a listener at the address, `TimedOut` if its host does not answer,
    /// `NetworkUnreachable` if the network has no such host, `AddrNotAvailable` if this host has crashed or has lost
    /// its interface.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt.
    pub async fn tcp_connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let (local, options) = (SocketAddr::new(self.address(), 0), SocketOptions::default());
        let bound = self.net().bind_connector(local, PortRange::EPHEMERAL, &options);
        let bound = bound.map_err(ConnectError::from)?;
        let connected = bound.connect(address, None).await.map_err(|failure| failure.error)?;
        let Connected { stream, local, lease } = connected;
        Ok(TcpStream { stream, local, peer: canonical(address), _lease: Some(lease) })
    }

    /// Listens for plain byte streams at a port; with 0 the network chooses the port.
    ///
    /// # Errors
    /// `AddrInUse` if a connection or a listener of this host has the port, `AddrNotAvailable` as
    /// [`tcp_connect`](Self::tcp_connect).
    pub fn tcp_listener(&self, port: u16) -> io::Result<TcpListener> {
        let bound = self.net().bind_listener(&[self.address()], port, PortRange::EPHEMERAL);
        let mut bound = bound.map_err(ConnectError::from)?;
        let listener = bound.listen()?;
        Ok(TcpListener { listener, _bound: bound })
    }
}

/// A plain stream of bytes on the simulated network: what tokio's `TcpStream` is on the kernel's.
///
/// [`shutdown`](tokio::io::AsyncWriteExt::shutdown) ends one direction; the other one goes on. Dropping the stream closes it: by
/// an orderly end, or by a reset if bytes have arrived that were not read, as Linux does it.
#[derive(Debug)]
pub struct TcpStream {
    stream: sim::Stream,
    local: SocketAddr,
    peer: SocketAddr,
    _lease: Option<PortLease>,
}

impl TcpStream {
    /// Returns the address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Closes the stream by a reset. Bytes that have not arrived are lost.
    pub fn reset(self) {
        self.stream.set_aborting(true);
    }

    /// Reads what has arrived, without waiting; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived, and how the connection ended.
    pub fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.read(bytes)
    }

    /// Writes as many of the bytes as the send buffer has room for, without waiting. Returns their number.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, and how the connection ended.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.send([Piece::Bytes(bytes)].into_iter())
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// A listener for plain streams of bytes on the simulated network: what tokio's `TcpListener` is on the kernel's.
///
/// Dropping it resets the connections that were not accepted.
#[derive(Debug)]
pub struct TcpListener {
    listener: sim::Listener,
    /// Keeps the port.
    _bound: sim::BoundListener,
}

impl TcpListener {
    /// Returns the address.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Accepts the next stream, with the address of its other end. Does not resolve while the host has crashed.
    ///
    /// # Errors
    /// `InvalidInput` if the host was started again after a crash: its listeners are gone.
    ///
    /// # Cancel safety
    /// No stream is lost.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.listener.accept().await?;
        Ok((TcpStream { stream, local: self.local_addr(), peer, _lease: None }, peer))
    }
}
