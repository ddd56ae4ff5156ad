//! In place of `std::net`: peers of tokio's tests that are threads without a runtime.
//!
//! Their streams belong to one runtime with threads of its own, and a call parks the caller's thread until it completes.

use std::future::Future;
use std::io::{self, Read, Write};
use std::sync::LazyLock;

pub use std::net::*;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::unconstrained;
use tokio_rdma::{RdmaListener, RdmaStream};

/// The runtime of all blocking peers.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
});

/// Waits for a call. The caller may be a task of another runtime, and its budget must not matter.
fn wait<F: Future>(call: F) -> F::Output {
    let _entered = RUNTIME.enter();
    futures::executor::block_on(unconstrained(call))
}

/// In place of [`std::net::TcpListener`].
#[derive(Debug)]
pub struct TcpListener(RdmaListener);

impl TcpListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// Those of [`RdmaListener::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        wait(RdmaListener::bind(&addresses[..])).map(Self)
    }

    /// Returns the address.
    ///
    /// # Errors
    /// Those of [`RdmaListener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Waits for a peer.
    ///
    /// # Errors
    /// Those of [`RdmaListener::accept`].
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        wait(self.0.accept()).map(|(stream, peer)| (TcpStream(stream), peer))
    }
}

/// In place of [`std::net::TcpStream`].
#[derive(Debug)]
pub struct TcpStream(RdmaStream);

impl TcpStream {
    /// Connects to a listener.
    ///
    /// # Errors
    /// Those of [`RdmaStream::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        wait(RdmaStream::connect(&addresses[..])).map(Self)
    }

    /// Does nothing: calls wait in any case, and those of the stream that it becomes do not.
    ///
    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, _nonblocking: bool) -> io::Result<()> {
        Ok(())
    }
}

impl TryFrom<TcpStream> for RdmaStream {
    type Error = io::Error;

    fn try_from(stream: TcpStream) -> io::Result<Self> {
        Ok(stream.0)
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        wait(self.0.read(buffer))
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        wait(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        wait(self.0.flush())
    }
}
