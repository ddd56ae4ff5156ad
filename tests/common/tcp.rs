//! Plain TCP over the network of the device under test: that of the kernel, or a simulated one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
#[cfg(feature = "sim")]
use tokio_rdma::sim;

#[cfg(feature = "sim")]
use super::device::Device;

/// A stream of bytes.
pub enum TcpStream {
    Kernel(tokio::net::TcpStream),
    #[cfg(feature = "sim")]
    Simulated(sim::TcpStream),
}

/// A listener for them.
pub enum TcpListener {
    Kernel(tokio::net::TcpListener),
    #[cfg(feature = "sim")]
    Simulated(sim::TcpListener),
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl TcpStream {
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if Device::under_test() == Device::Sim {
            return super::sim::host().tcp_connect(address).await.map(Self::Simulated);
        }
        tokio::net::TcpStream::connect(address).await.and_then(Self::of_kernel)
    }

    fn of_kernel(stream: tokio::net::TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Kernel(stream))
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(stream) => stream.local_addr(),
            #[cfg(feature = "sim")]
            Self::Simulated(stream) => Ok(stream.local_addr()),
        }
    }

    /// Closes by a reset.
    pub fn reset(self) -> io::Result<()> {
        match self {
            Self::Kernel(stream) => stream.set_zero_linger(),
            #[cfg(feature = "sim")]
            Self::Simulated(stream) => {
                stream.reset();
                Ok(())
            }
        }
    }

    /// The socket.
    ///
    /// # Panics
    /// Over a simulated network.
    pub fn socket(&self) -> socket2::SockRef<'_> {
        match self {
            Self::Kernel(stream) => stream.into(),
            #[cfg(feature = "sim")]
            Self::Simulated(_) => panic!("not a socket"),
        }
    }

    fn duplex(self: Pin<&mut Self>) -> Pin<&mut dyn Duplex> {
        let stream: &mut dyn Duplex = match self.get_mut() {
            Self::Kernel(stream) => stream,
            #[cfg(feature = "sim")]
            Self::Simulated(stream) => stream,
        };
        Pin::new(stream)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.duplex().poll_read(cx, bytes)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.duplex().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex().poll_shutdown(cx)
    }
}

impl TcpListener {
    /// One at a free port of this address, with both. A host of the simulated network has one address.
    pub async fn bind(ip: IpAddr) -> io::Result<(Self, SocketAddr)> {
        #[cfg(feature = "sim")]
        if Device::under_test() == Device::Sim {
            let listener = super::sim::host().tcp_listener(0)?;
            let address = listener.local_addr();
            return Ok((Self::Simulated(listener), address));
        }
        let listener = tokio::net::TcpListener::bind((ip, 0)).await?;
        let address = listener.local_addr()?;
        Ok((Self::Kernel(listener), address))
    }

    pub async fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Self::Kernel(listener) => {
                listener.accept().await.and_then(|(stream, _)| TcpStream::of_kernel(stream))
            }
            #[cfg(feature = "sim")]
            Self::Simulated(listener) => Ok(TcpStream::Simulated(listener.accept().await?.0)),
        }
    }
}
