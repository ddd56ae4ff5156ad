//! Connecting sockets of a simulated host, and their streams.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::host::{Claim, Host};
use super::socket::{Kind, Phase, Socket};
use super::world::State;
#[cfg(feature = "inspect")]
use crate::inspect::TcpReport;
use crate::memory;
use crate::net::kernel::options::{SocketOptions, keepalive_times};
use crate::net::ports::PortLease;
use crate::net::{ConnectFailure, Connected, canonical, errno};

/// A socket that holds a port, and may connect.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(super) host: Host,
    pub(crate) local: SocketAddr,
    pub(super) lease: PortLease,
    pub(super) options: SocketOptions,
    /// Shared with the stream that comes of it.
    pub(super) descriptor: Arc<Claim>,
}

impl BoundSocket {
    /// Connects like [`kernel::connect::connect`](crate::net::kernel::connect::connect).
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt.
    pub(crate) async fn connect(
        self,
        peer: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<Connected<Stream>, ConnectFailure<Self>> {
        let attempt = async {
            let stream = self.begin(canonical(peer))?;
            let established = poll_fn(|cx| stream.poll_established(cx));
            match timeout {
                None => established.await?,
                Some(limit) => match tokio::time::timeout(limit, established).await {
                    Ok(outcome) => outcome?,
                    Err(_elapsed) => return Err(errno(libc::ETIMEDOUT)),
                },
            }
            let local = stream.local_addr()?;
            Ok((stream, local))
        };
        match attempt.await {
            Ok((stream, local)) => Ok(Connected { stream, local, lease: self.lease }),
            Err(error) => Err(ConnectFailure { error, bound: Some(self) }),
        }
    }

    /// Asks for the connection.
    fn begin(&self, peer: SocketAddr) -> io::Result<Stream> {
        let Self { host, options, descriptor, .. } = self;
        if peer.is_ipv4() != self.local.is_ipv4() {
            return Err(errno(libc::EAFNOSUPPORT));
        }
        let source = host.source_for(peer.ip())?;
        let ip = if self.local.ip().is_unspecified() { source } else { self.local.ip() };
        let local = SocketAddr::new(ip, self.local.port());
        // No socket listens at a port that connects.
        if peer == local {
            return Err(errno(libc::ECONNREFUSED));
        }
        host.world.with(|state| {
            if state.pairs.contains_key(&(local, peer)) {
                return Err(errno(libc::EADDRNOTAVAIL));
            }
            let SocketOptions { tos, multipath, .. } = options;
            let asked = format!("{local} connects to {peer}, tos {tos:?}, multipath {multipath}");
            state.trace.note(state.now, asked);
            let (id, connection) = (state.number(), state.number());
            let socket = Socket::new(host.number, (local, peer), connection, Phase::Connecting);
            state.add_socket(id, socket, Kind::Syn);
            Ok(Stream::new(host.clone(), id, descriptor.clone()))
        })
    }
}

/// A connected stream. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) host: Host,
    id: u64,
    _descriptor: Arc<Claim>,
}

impl Stream {
    pub(super) fn new(host: Host, id: u64, descriptor: Arc<Claim>) -> Self {
        Self { host, id, _descriptor: descriptor }
    }

    /// Returns the local address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.with_socket(|socket| socket.local).ok_or_else(|| errno(libc::ENOTCONN))
    }

    /// Runs `act` on the state of the network, with whether the programs of the host are stopped.
    fn with<R>(&self, act: impl FnOnce(&mut State, bool) -> R) -> R {
        self.host.world.with(|state| {
            let frozen = state.places[self.host.number].frozen;
            act(state, frozen)
        })
    }

    /// Changes the socket.
    ///
    /// # Errors
    /// `WouldBlock` while the programs of its host do not run; those of `act`.
    fn try_with<R>(&self, act: impl FnOnce(&mut Socket) -> io::Result<R>) -> io::Result<R> {
        self.with(|state, frozen| match state.sockets.get_mut(&self.id) {
            Some(socket) if !frozen => act(socket),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        })
    }

    /// Runs `act` on the socket, unless it is gone.
    fn with_socket<R>(&self, act: impl FnOnce(&mut Socket) -> R) -> Option<R> {
        self.with(|state, _| state.sockets.get_mut(&self.id).map(act))
    }

    /// Polls the socket, for which the poll has whether the programs of the host are stopped.
    fn poll<R>(&self, poll: impl FnOnce(&mut Socket, bool) -> Poll<R>) -> Poll<R> {
        self.with(|state, frozen| {
            state.sockets.get_mut(&self.id).map_or(Poll::Pending, |socket| poll(socket, frozen))
        })
    }

    fn poll_established(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket, frozen| {
            ready!(socket.poll_writable(frozen, cx));
            Poll::Ready(socket.error.take().map_or(Ok(()), |error| Err(errno(error))))
        })
    }

    pub(crate) fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket, frozen| socket.poll_readable(frozen, cx)).map(Ok)
    }

    pub(crate) fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket, frozen| socket.poll_writable(frozen, cx)).map(Ok)
    }

    /// Reads into the targets, and lets the peer send more if there is room again.
    pub(crate) fn receive(&self, targets: &mut [memory::Target<'_>]) -> io::Result<usize> {
        let (length, owes_window) = self.try_with(|socket| {
            let length = memory::scatter(socket.readable()?, targets)?;
            socket.input.advance(length);
            Ok((length, socket.owes_window()))
        })?;
        if owes_window {
            self.with(|state, _| state.acknowledge(self.id));
        }
        Ok(length)
    }

    /// Reads into a buffer.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(&mut [memory::Target::Bytes(buffer)])
    }

    /// Reads into a buffer like [`read`](Self::read), without taking the bytes.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_with(|socket| memory::scatter(socket.readable()?, &mut [memory::Target::Bytes(buffer)]))
    }

    /// Writes the pieces.
    pub(crate) fn send<'a>(&self, pieces: impl Iterator<Item = memory::Piece<'a>>) -> io::Result<usize> {
        let length = self.try_with(|socket| {
            let room = socket.room()?;
            memory::gather(pieces, room, &mut socket.output)
        })?;
        self.with(|state, _| state.pump(self.id));
        Ok(length)
    }

    pub(crate) fn shut_down(&self, how: Shutdown) -> io::Result<()> {
        self.with(|state, _| {
            let Some(socket) = state.sockets.get_mut(&self.id) else { return Ok(()) };
            if socket.phase != Phase::Open {
                return Err(errno(libc::ENOTCONN));
            }
            socket.deaf |= how != Shutdown::Write;
            socket.ends |= how != Shutdown::Read;
            state.wake_socket(self.id);
            state.pump(self.id);
            Ok(())
        })
    }

    pub(crate) fn set_aborting(&self, aborting: bool) {
        self.with_socket(|socket| socket.aborting = aborting);
    }

    pub(crate) fn is_aborting(&self) -> bool {
        self.with_socket(|socket| socket.aborting).unwrap_or(false)
    }

    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.with_socket(|socket| socket.error.take().map(errno))?
    }

    pub(crate) fn unacknowledged(&self) -> usize {
        self.with_socket(|socket| socket.unacknowledged()).unwrap_or(0)
    }

    /// Returns the time since the last segment of the peer, if what was sent since, or the probe of a peer without
    /// room, has been repeated.
    pub(crate) fn unanswered(&self) -> Option<Duration> {
        self.with(|state, _| {
            let times = &state.sockets.get(&self.id)?.times;
            (times.unheard > 1).then(|| state.now.saturating_sub(times.heard))
        })
    }

    /// Returns the report for a snapshot. Data and acknowledgements of the peer count alike.
    #[cfg(feature = "inspect")]
    pub(crate) fn report(&self, unacknowledged: usize) -> TcpReport {
        let mut report = TcpReport { unacknowledged, ..TcpReport::default() };
        self.with(|state, _| {
            let Some(socket) = state.sockets.get(&self.id) else { return };
            let since = |time: Duration| state.now.saturating_sub(time);
            let times = &socket.times;
            report.state = "ESTAB".into();
            report.unsent = socket.output.len() - socket.in_flight();
            report.peer_window = socket.sendable();
            report.unanswered_probes = times.unheard;
            report.since_sent = since(times.unanswered.unwrap_or(times.heard));
            (report.since_received, report.since_acknowledged) = (since(times.heard), since(times.heard));
        });
        report
    }

    /// Sets keepalive, with the times that the kernel's streams have.
    pub(crate) fn keep_alive(&self, path_timeout: Duration) {
        self.with(|state, _| {
            if let Some(socket) = state.sockets.get_mut(&self.id) {
                socket.times.keepalive = Some(keepalive_times(path_timeout));
            }
            state.set_clock(self.id);
        });
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.with(|state, _| state.close(self.id));
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let progress = ready!(tokio::task::coop::poll_proceed(cx));
        ready!(self.poll_read_ready(cx))?;
        progress.made_progress();
        let length = self.read(buffer.initialize_unfilled())?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let progress = ready!(tokio::task::coop::poll_proceed(cx));
        ready!(self.poll_write_ready(cx))?;
        progress.made_progress();
        Poll::Ready(self.send([memory::Piece::Bytes(bytes)].into_iter()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut_down(Shutdown::Write))
    }
}
