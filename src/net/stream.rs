//! A connected TCP stream, of this machine or of a simulated network.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, send};
use socket2::{Protocol, SockRef};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;

use super::capture::{Capture, Captured};
use super::descriptors::Held;
use super::host::Host;
use super::kernel;
use super::kernel::options::{SocketError, SocketOptions};
#[cfg(feature = "sim")]
use super::sim;
#[cfg(feature = "inspect")]
use crate::inspect::TcpReport;
use crate::memory::{self, Piece, Target, TcpInfo};
use crate::types::Role;

/// Calls the socket of this machine, whether or not its bytes are captured, or the stream of a simulated network.
macro_rules! dispatch {
    ($self:expr, $stream:pat => $call:expr, $simulated:pat => $on_simulated:expr) => {
        match $self {
            Self::Kernel($stream) | Self::Captured(Captured { stream: $stream, .. }) => $call,
            #[cfg(feature = "sim")]
            Self::Sim($simulated) => $on_simulated,
        }
    };
    ($self:expr, $stream:ident => $call:expr) => {
        dispatch!($self, $stream => $call, $stream => $call)
    };
}

/// A connected TCP stream.
///
/// The methods without `poll` and `async` never wait: they fail with `WouldBlock`. Those whose names end in `now` ask
/// the socket itself, the others only if the runtime has seen an event of it. The errors are those of the system calls.
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

/// While so many bytes are copied, others come, most likely.
const MUCH: usize = 256 * 1024;

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
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        dispatch!(self, stream => stream.local_addr())
    }

    /// Polls for the programs of the host to run.
    #[inline]
    #[cfg_attr(not(feature = "sim"), expect(unused_variables, reason = "this machine asks nobody"))]
    pub(crate) fn poll_running(&self, cx: &Context<'_>) -> Poll<()> {
        dispatch!(self, _ => Poll::Ready(()), stream => stream.host.poll_running(cx))
    }

    /// Takes a place among the sockets of the host that linger, if there is one.
    pub(crate) fn linger(&self) -> Option<Held> {
        let descriptors =
            dispatch!(self, _ => Host::Kernel.descriptors(), stream => &stream.host.descriptors);
        descriptors.ended.try_hold()
    }

    /// Polls for readiness to read: bytes, the end, or an error. One task waits at a time.
    #[inline]
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        dispatch!(self, stream => stream.poll_read_ready(cx))
    }

    /// Polls for readiness to write: room, or an error. One task waits at a time.
    #[inline]
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        dispatch!(self, stream => stream.poll_write_ready(cx))
    }

    /// Waits until there may be something to read: bytes, the end, or an error. One task waits at a time.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Reads into a buffer, as [`try_receive`](Self::try_receive) does; 0 is the end of the stream.
    #[inline]
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let asked = bytes.len();
        match self {
            Self::Kernel(stream) => {
                let is_short = |length| length > 0 && length < asked;
                try_whole(stream, Interest::READABLE, is_short, || receive(stream, bytes, MsgFlags::empty()))
            }
            _ => self.try_receive(&mut [Target::Bytes(bytes)], asked),
        }
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
    /// call, unless it has brought [`MUCH`].
    #[inline]
    pub(crate) fn try_receive(&self, targets: &mut [Target<'_>], asked: usize) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => {
                let is_short = |length| length > 0 && length < asked.min(MUCH);
                try_whole(stream, Interest::READABLE, is_short, || memory::receive(stream.as_fd(), targets))
            }
            Self::Captured(captured) => captured.receive(targets, TcpStream::try_read),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.receive(targets),
        }
    }

    /// Reads into the targets, without asking the runtime and without a report to it.
    #[inline]
    pub(crate) fn receive_now(&self, targets: &mut [Target<'_>]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => memory::receive(stream.as_fd(), targets),
            Self::Captured(captured) => captured.receive(targets, |stream, bytes| {
                memory::receive(stream.as_fd(), &mut [Target::Bytes(bytes)])
            }),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.receive(targets),
        }
    }

    /// Writes the pieces, in order. Returns how many bytes the socket took.
    #[inline]
    pub(crate) fn try_send<'a>(&self, pieces: impl Iterator<Item = Piece<'a>>) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => {
                stream.try_io(Interest::WRITABLE, || memory::send(stream.as_fd(), pieces))
            }
            Self::Captured(captured) => captured.send(pieces, TcpStream::try_write),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.send(pieces),
        }
    }

    /// Writes the pieces, as [`try_send`](Self::try_send) does, without asking the runtime and without a report to it.
    pub(crate) fn send_pieces_now<'a>(&self, pieces: impl Iterator<Item = Piece<'a>>) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => memory::send(stream.as_fd(), pieces),
            Self::Captured(captured) => captured.send(pieces, |stream, bytes| {
                memory::send(stream.as_fd(), [Piece::Bytes(bytes)].into_iter())
            }),
            #[cfg(feature = "sim")]
            Self::Sim(stream) => stream.send(pieces),
        }
    }

    /// Writes pieces of `offered` bytes, as [`try_send`](Self::try_send) does. A write that comes back short has filled
    /// the socket: that is reported to tokio, which waits for the next event without another system call.
    #[inline]
    pub(crate) fn try_send_all<'a>(
        &self,
        pieces: impl Iterator<Item = Piece<'a>>,
        offered: usize,
    ) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => {
                let is_short = |length| length < offered;
                try_whole(stream, Interest::WRITABLE, is_short, || memory::send(stream.as_fd(), pieces))
            }
            _ => self.try_send(pieces),
        }
    }

    /// Writes a buffer as [`try_send_all`](Self::try_send_all) writes pieces.
    #[inline]
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => {
                let is_short = |length| length < bytes.len();
                let send = || Ok(send(stream.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)?);
                try_whole(stream, Interest::WRITABLE, is_short, send)
            }
            _ => self.try_send([Piece::Bytes(bytes)].into_iter()),
        }
    }

    /// Reads what has arrived, without asking the runtime, which has only seen the last event.
    pub(crate) fn read_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => read_now(stream, bytes, MsgFlags::empty()),
            _ => self.receive_now(&mut [Target::Bytes(bytes)]),
        }
    }

    /// Reads what has arrived like [`read_now`](Self::read_now), without taking it.
    pub(crate) fn peek_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        dispatch!(self, stream => read_now(stream, bytes, MsgFlags::MSG_PEEK), stream => stream.peek(bytes))
    }

    /// Writes a buffer without asking the runtime. Returns how many bytes the socket took.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_pieces_now([Piece::Bytes(bytes)].into_iter())
    }

    /// Writes a buffer to its end. The runtime, which does not know a new socket yet, is asked only when the socket takes nothing.
    ///
    /// # Cancel safety
    /// A part of the buffer may have been written.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        if let Poll::Ready(Err(error)) = self.poll_write_ready(&mut Context::from_waker(Waker::noop())) {
            // The runtime has ended.
            return Err(error);
        }
        let mut written = self.send_now(bytes);
        loop {
            match written {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if bytes.is_empty() {
                return Ok(());
            }
            poll_fn(|cx| self.poll_write_ready(cx)).await?;
            written = self.try_write(bytes);
        }
    }

    /// Ends one direction of the stream or both.
    pub(crate) fn shut_down(&self, how: Shutdown) -> io::Result<()> {
        if let Self::Captured(captured) = self
            && how != Shutdown::Read
        {
            captured.end();
        }
        dispatch!(self, stream => SockRef::from(stream).shutdown(how), stream => stream.shut_down(how))
    }

    /// Makes the drop of this stream send a reset instead of an orderly end, and forget unsent data. After an error the drop
    /// is an ordinary close.
    pub(crate) fn abort(&self) -> io::Result<()> {
        dispatch!(self, stream => kernel::options::abort(stream), stream => {
            stream.set_aborting(true);
            Ok(())
        })
    }

    /// Makes the drop of this stream an orderly end again, after a call of [`abort`](Self::abort).
    pub(crate) fn clear_abort(&self) {
        // The call of the kernel can only fail on what is not a socket.
        dispatch!(
            self,
            stream => drop(SockRef::from(stream).set_linger(None)),
            stream => stream.set_aborting(false)
        );
    }

    /// Returns whether the drop of this stream sends a reset.
    pub(crate) fn is_aborting(&self) -> bool {
        dispatch!(self, stream => kernel::options::is_aborting(stream), stream => stream.is_aborting())
    }

    /// Takes the error that the stream has met since the last call, if there is one.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        dispatch!(self, stream => stream.take_error(), stream => Ok(stream.take_error()))
    }

    /// Returns the number of bytes that were written and not acknowledged by the host of the peer.
    pub(crate) fn unacknowledged(&self) -> io::Result<usize> {
        dispatch!(
            self,
            stream => memory::unacknowledged(stream.as_fd()),
            stream => Ok(stream.unacknowledged())
        )
    }

    /// Returns the time since the last packet of the peer's host, if what was sent since is repeated. Of several paths
    /// the kernel reports only the first, so `None` with MPTCP.
    pub(crate) fn unanswered(&self) -> io::Result<Option<Duration>> {
        dispatch!(
            self,
            stream => match SockRef::from(stream).protocol()? {
                Some(Protocol::MPTCP) => Ok(None),
                _ => Ok(TcpInfo::of(stream.as_fd())?.unanswered()),
            },
            stream => Ok(stream.unanswered())
        )
    }

    /// Returns the report of the TCP connection for a snapshot.
    #[cfg(feature = "inspect")]
    pub(crate) fn report(&self) -> io::Result<TcpReport> {
        let unacknowledged = self.unacknowledged()?;
        dispatch!(
            self,
            stream => match SockRef::from(stream).protocol()? {
                // Of several paths the kernel reports only the first.
                Some(Protocol::MPTCP) => Err(io::ErrorKind::Unsupported.into()),
                _ => Ok(TcpInfo::of(stream.as_fd())?.report(unacknowledged)),
            },
            stream => Ok(stream.report(unacknowledged))
        )
    }

    /// Sets up a stream that has just been connected: see [`kernel::options::send_at_once`].
    pub(crate) fn send_at_once(&self) -> Result<(), SocketError> {
        dispatch!(self, stream => kernel::options::send_at_once(stream), _ => Ok(()))
    }

    /// Lets silence on an idle connection end it: see [`kernel::options::keep_alive`]. A kernel may lack that for multipath.
    /// The task of the connection, which asks the peer for signs of life, still notices most dead paths, so an error is only logged.
    pub(crate) fn keep_alive(&self, path_timeout: Duration) {
        dispatch!(
            self,
            stream => if let Err(error) = kernel::options::keep_alive(stream, path_timeout) {
                tracing::debug!(?error, "no keepalive of TCP");
            },
            stream => stream.keep_alive(path_timeout)
        );
    }

    /// Sets up a stream that has just been accepted. One of the kernel has the options of its listener.
    #[cfg_attr(not(feature = "sim"), expect(unused_variables, reason = "they are those of the listener"))]
    pub(crate) fn prepare_accepted(&self, options: &SocketOptions) {
        dispatch!(self, _ => {}, stream => {
            if let Some(timeout) = options.path_timeout {
                stream.keep_alive(timeout);
            }
        });
    }
}

/// Does `io` if the runtime has seen an event of the socket. That it came back short is reported to the runtime, which waits
/// for the next event then.
#[inline]
fn try_whole(
    stream: &TcpStream,
    interest: Interest,
    is_short: impl FnOnce(usize) -> bool,
    io: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut short = None;
    let outcome = stream.try_io(interest, || match io() {
        Ok(length) if is_short(length) => {
            short = Some(length);
            Err(io::ErrorKind::WouldBlock.into())
        }
        other => other,
    });
    short.map_or(outcome, Ok)
}

/// Asks the socket for what has arrived. If the socket is readable for tokio, as each one is that was just accepted,
/// and has nothing, tokio then waits for the next event.
fn read_now(stream: &TcpStream, bytes: &mut [u8], flags: MsgFlags) -> io::Result<usize> {
    let mut asked = false;
    let outcome = stream.try_io(Interest::READABLE, || {
        asked = true;
        receive(stream, bytes, flags)
    });
    if asked { outcome } else { receive(stream, bytes, flags) }
}

/// Reads what has arrived by one system call.
#[inline]
fn receive(stream: &TcpStream, bytes: &mut [u8], flags: MsgFlags) -> io::Result<usize> {
    Ok(nix::sys::socket::recv(stream.as_raw_fd(), bytes, flags | MsgFlags::MSG_DONTWAIT)?)
}
