//! A connected TCP stream, of this machine or of a simulated network.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::MsgFlags;
use socket2::{Protocol, SockRef};
use tokio::io::{AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;

use super::capture::{Capture, Captured};
use super::descriptors::Held;
use super::host::Host;
use super::kernel;
use super::kernel::options::{SocketError, SocketOptions};
#[cfg(feature = "sim")]
use super::sim;
use crate::memory;
use crate::types::Role;

/// A connected TCP stream.
///
/// The methods without `poll` and `async` never wait: they fail with `WouldBlock`. Those whose names end in `now` ask
/// the socket itself, the others only if the runtime has seen an event of it.
#[derive(Debug)]
pub(crate) enum Stream {
    /// A socket of this machine.
    Kernel(TcpStream),
    /// A socket of this machine whose bytes are captured.
    Captured(Captured),
    /// A stream of a simulated network.
    #[cfg(feature = "sim")]
    Sim(sim::Stream),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Kernel(stream)
    }
}

impl Stream {
    /// Captures the bytes of the stream from now on. A simulated network has its own capture.
    pub(crate) fn captured(self, capture: Option<&Capture>, peer: SocketAddr, role: Role) -> Self {
        match (self, capture) {
            (Self::Kernel(stream), Some(capture)) => match stream.local_addr() {
                Ok(local) => Self::Captured(Captured::new(stream, capture, local, peer, role)),
                Err(_) => Self::Kernel(stream),
            },
            (stream, _) => stream,
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => stream.local_addr(),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.local_addr(),
        }
    }

    /// Polls for the programs of the host to run.
    #[inline]
    #[cfg_attr(not(feature = "sim"), expect(unused_variables, reason = "this machine asks nobody"))]
    pub(crate) fn poll_running(&self, cx: &Context<'_>) -> Poll<()> {
        match self {
            Self::Kernel(_) | Self::Captured(_) => Poll::Ready(()),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.poll_running(cx),
        }
    }

    /// Takes a place among the sockets of the host that linger, if there is one.
    pub(crate) fn linger(&self) -> Option<Held> {
        match self {
            Self::Kernel(_) | Self::Captured(_) => Host::Kernel.descriptors().ended.try_hold(),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.host().descriptors().ended.try_hold(),
        }
    }

    /// Polls for readiness to read: bytes, the end, or an error. One task waits at a time.
    #[inline]
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => stream.poll_read_ready(cx),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Polls for readiness to write: room, or an error. One task waits at a time.
    #[inline]
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => stream.poll_write_ready(cx),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Waits until there may be something to read: bytes, the end, or an error. One task waits at a time.
    ///
    /// # Errors
    /// The runtime is gone.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Reads into a buffer, as [`try_receive`](Self::try_receive) does; 0 is the end of the stream.
    ///
    /// # Errors
    /// Those of [`try_receive`](Self::try_receive).
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let asked = bytes.len();
        self.try_receive(&mut [memory::Target::Bytes(bytes)], asked)
    }

    /// Reads to the end of the stream, or until it fails, and throws the bytes away.
    ///
    /// # Cancel safety
    /// The bytes that were read are gone.
    pub(crate) async fn discard(&self) {
        while self.readable().await.is_ok() {
            // Otherwise a peer that floods would keep the thread.
            consume_budget().await;
            let mut bytes = [0; 1024];
            match self.try_read(&mut bytes) {
                Ok(length) if length > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Reads into the targets, which have room for `asked` bytes; 0 is the end of the stream. A read that comes back
    /// short has emptied the socket: that is reported to tokio, which waits for the next event without another system
    /// call.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::receive`].
    #[inline]
    pub(crate) fn try_receive(&self, targets: &mut [memory::Target<'_>], asked: usize) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => {
                let mut short = None;
                let outcome =
                    stream.try_io(Interest::READABLE, || match memory::receive(stream.as_fd(), targets) {
                        Ok(length) if length > 0 && length < asked => {
                            short = Some(length);
                            Err(io::ErrorKind::WouldBlock.into())
                        }
                        other => other,
                    });
                short.map_or(outcome, Ok)
            }
            Self::Captured(stream) => stream.try_receive(targets),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.receive(targets),
        }
    }

    /// Reads into the targets, without asking the runtime and without a report to it.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::receive`].
    #[inline]
    pub(crate) fn receive_now(&self, targets: &mut [memory::Target<'_>]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => memory::receive(stream.as_fd(), targets),
            Self::Captured(stream) => stream.receive_now(targets),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.receive(targets),
        }
    }

    /// Writes the pieces, in order. Returns how many bytes the socket took.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::send`].
    #[inline]
    pub(crate) fn try_send<'a>(&self, pieces: impl Iterator<Item = memory::Piece<'a>>) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => {
                stream.try_io(Interest::WRITABLE, || memory::send(stream.as_fd(), pieces))
            }
            Self::Captured(stream) => stream.try_send(pieces),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.send(pieces),
        }
    }

    /// Writes the pieces, as [`try_send`](Self::try_send) does, without asking the runtime and without a report to it.
    ///
    /// # Errors
    /// Those of [`try_send`](Self::try_send).
    pub(crate) fn send_pieces_now<'a>(
        &self,
        pieces: impl Iterator<Item = memory::Piece<'a>>,
    ) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => memory::send(stream.as_fd(), pieces),
            Self::Captured(stream) => stream.send_pieces_now(pieces),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.send(pieces),
        }
    }

    /// Writes pieces of `offered` bytes, as [`try_send`](Self::try_send) does. A write that comes back short has filled
    /// the socket: that is reported to tokio, which waits for the next event without another system call.
    ///
    /// # Errors
    /// Those of [`try_send`](Self::try_send).
    #[inline]
    pub(crate) fn try_send_all<'a>(
        &self,
        pieces: impl Iterator<Item = memory::Piece<'a>>,
        offered: usize,
    ) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => {
                let mut short = None;
                let outcome =
                    stream.try_io(Interest::WRITABLE, || match memory::send(stream.as_fd(), pieces) {
                        Ok(length) if length < offered => {
                            short = Some(length);
                            Err(io::ErrorKind::WouldBlock.into())
                        }
                        other => other,
                    });
                short.map_or(outcome, Ok)
            }
            _ => self.try_send(pieces),
        }
    }

    /// Reads what has arrived, without asking the runtime, which has only seen the last event.
    ///
    /// # Errors
    /// `WouldBlock`, and those of recv(2).
    pub(crate) fn read_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => receive_now(stream, bytes, MsgFlags::empty()),
            Self::Captured(stream) => stream.receive_now(&mut [memory::Target::Bytes(bytes)]),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.read(bytes),
        }
    }

    /// Reads what has arrived like [`read_now`](Self::read_now), without taking it.
    ///
    /// # Errors
    /// `WouldBlock`, and those of recv(2).
    pub(crate) fn peek_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => {
                receive_now(stream, bytes, MsgFlags::MSG_PEEK)
            }
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.peek(bytes),
        }
    }

    /// Writes a buffer without asking the runtime. Returns how many bytes the socket took.
    ///
    /// # Errors
    /// `WouldBlock`, and those of send(2).
    pub(crate) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => SockRef::from(stream).send(bytes),
            Self::Captured(stream) => stream.send_now(bytes),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.send([memory::Piece::Bytes(bytes)].into_iter()),
        }
    }

    /// Ends one direction of the stream or both.
    ///
    /// # Errors
    /// Those of shutdown(2).
    pub(crate) fn shut_down(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Kernel(stream) => SockRef::from(stream).shutdown(how),
            Self::Captured(captured) => {
                if how != Shutdown::Read {
                    captured.end();
                }
                SockRef::from(&captured.stream).shutdown(how)
            }
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.shut_down(how),
        }
    }

    /// Makes the drop of this stream send a reset instead of an orderly end, and forget unsent data.
    ///
    /// # Errors
    /// Those of setsockopt(2); the drop is then an ordinary close.
    pub(crate) fn abort(&self) -> io::Result<()> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => kernel::options::abort(stream),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => {
                stream.set_aborting(true);
                Ok(())
            }
        }
    }

    /// Makes the drop of this stream an orderly end again, after a call of [`abort`](Self::abort).
    pub(crate) fn clear_abort(&self) {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => {
                // It can only fail on what is not a socket.
                let _ = SockRef::from(stream).set_linger(None);
            }
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.set_aborting(false),
        }
    }

    /// Returns whether the drop of this stream sends a reset.
    pub(crate) fn is_aborting(&self) -> bool {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => {
                matches!(SockRef::from(stream).linger(), Ok(Some(Duration::ZERO)))
            }
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.is_aborting(),
        }
    }

    /// Takes the error that the stream has met since the last call, if there is one.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => stream.take_error(),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => Ok(stream.take_error()),
        }
    }

    /// Returns the number of bytes that were written and not acknowledged by the host of the peer.
    ///
    /// # Errors
    /// Those of [`memory::unacknowledged`].
    pub(crate) fn unacknowledged(&self) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => {
                memory::unacknowledged(stream.as_fd())
            }
            #[cfg(feature = "sim")]
            Self::Sim(stream) => Ok(stream.unacknowledged()),
        }
    }

    /// Returns the time since the last packet of the peer's host, if what was sent since is repeated. Of several paths
    /// the kernel reports only the first, so `None` with MPTCP.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub(crate) fn unanswered(&self) -> io::Result<Option<Duration>> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. })
                if SockRef::from(stream).protocol()? == Some(Protocol::MPTCP) =>
            {
                Ok(None)
            }
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => {
                memory::unanswered(stream.as_fd())
            }
            #[cfg(feature = "sim")]
            Self::Sim(stream) => Ok(stream.unanswered()),
        }
    }

    /// Sets up a stream that has just been connected: see [`kernel::options::prepare`].
    ///
    /// # Errors
    /// `NotSupported("path timeout")` when there is no keepalive on this kind of socket. Otherwise setsockopt(2)'s error.
    pub(crate) fn prepare(&self, options: &SocketOptions) -> Result<(), SocketError> {
        match self {
            Self::Kernel(stream) | Self::Captured(Captured { stream, .. }) => {
                kernel::options::prepare(stream, options)
            }
            #[cfg(feature = "sim")]
            Self::Sim(stream) => {
                stream.prepare(options);
                Ok(())
            }
        }
    }

    /// Sets up a stream that has just been accepted. One of the kernel has the options of its listener.
    #[cfg_attr(not(feature = "sim"), expect(unused_variables, reason = "they are those of the listener"))]
    pub(crate) fn prepare_accepted(&self, options: &SocketOptions) {
        match self {
            Self::Kernel(_) | Self::Captured(_) => {}
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.prepare(options),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Captured(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_flush(cx),
            Self::Captured(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Captured(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Asks the socket for what has arrived. If the socket is readable for tokio, as each one is that was just accepted,
/// and has nothing, tokio then waits for the next event.
///
/// # Errors
/// `WouldBlock`, and those of recv(2).
fn receive_now(stream: &TcpStream, bytes: &mut [u8], flags: MsgFlags) -> io::Result<usize> {
    let flags = flags | MsgFlags::MSG_DONTWAIT;
    let mut receive = || Ok(nix::sys::socket::recv(stream.as_raw_fd(), bytes, flags)?);
    let mut asked = false;
    let outcome = stream.try_io(Interest::READABLE, || {
        asked = true;
        receive()
    });
    if asked { outcome } else { receive() }
}
