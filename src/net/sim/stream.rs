//! The ports of a simulated host: connecting sockets, listeners, and their streams.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::host::{Claim, Host};
use super::socket::{Kind, Phase, Socket, register};
use super::world::{Listening, Place, State};
use crate::error::BindError;
#[cfg(feature = "inspect")]
use crate::inspect::TcpReport;
use crate::memory;
use crate::net::kernel::options::{SocketError, SocketOptions, keepalive_times};
use crate::net::ports::{PortLease, PortRange, lease};
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

/// A port that may listen.
#[derive(Debug)]
pub(crate) struct BoundListener {
    host: Host,
    lease: PortLease,
    listens: bool,
    _descriptor: Claim,
}

impl BoundListener {
    pub(crate) fn port(&self) -> u16 {
        self.lease.port()
    }

    /// Starts to listen.
    pub(crate) fn listen(&mut self) -> Result<Listener, BindError> {
        if std::mem::replace(&mut self.listens, true) {
            return Err(BindError::InvalidState("the listener listens already"));
        }
        let local = SocketAddr::new(self.lease.ip(), self.lease.port());
        let id = self.host.world.with(|state| {
            let id = state.number();
            state.trace.note(state.now, format!("{local} listens"));
            let listening = Listening { id, host: self.host.number, ..Listening::default() };
            state.listening.insert(local, listening);
            id
        });
        Ok(Listener { host: self.host.clone(), local, id })
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    host: Host,
    local: SocketAddr,
    id: u64,
}

impl Listener {
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Takes the next connection.
    ///
    /// # Errors
    /// `EINVAL` after [`close`](Self::close); `EMFILE` and `ENOBUFS` if the host has no descriptor or memory left.
    ///
    /// # Cancel safety
    /// No connection is lost.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        poll_fn(|cx| {
            self.host.world.with(|state| {
                let Place { frozen, up, .. } = state.places[self.host.number];
                while let Some(listening) = self.find(state) {
                    if frozen || listening.queue.is_empty() {
                        register(&mut listening.waiters, cx);
                        return Poll::Pending;
                    }
                    // Without one the connection stays in the queue, as on Linux.
                    let descriptor = Arc::new(self.host.descriptor()?);
                    let Some(id) = listening.queue.pop_front() else { continue };
                    if let Some(socket) = state.sockets.get(&id).filter(|socket| socket.phase == Phase::Open)
                    {
                        let stream = Stream::new(self.host.clone(), id, descriptor);
                        return Poll::Ready(Ok((stream, socket.remote)));
                    }
                    // It was reset in between.
                    state.remove_socket(id);
                }
                // A host that has crashed reports nothing.
                if up { Poll::Ready(Err(errno(libc::EINVAL))) } else { Poll::Pending }
            })
        })
        .await
    }

    /// Returns the socket, while it listens.
    fn find<'a>(&self, state: &'a mut State) -> Option<&'a mut Listening> {
        state.listening.get_mut(&self.local).filter(|listening| listening.id == self.id)
    }

    /// Stops to listen, and resets the connections that were not accepted.
    pub(crate) fn close(&self) {
        self.host.world.with(|state| {
            if self.find(state).is_none() {
                return;
            }
            if let Some(mut listening) = state.listening.remove(&self.local) {
                state.wakes.append(&mut listening.waiters);
                listening.queue.into_iter().for_each(|id| state.reset(id));
            }
        });
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

impl BoundSocket {
    /// Sets other options, as [`kernel::connect::BoundSocket::renew`](crate::net::kernel::connect::BoundSocket::renew).
    pub(crate) fn renew(&mut self, options: &SocketOptions) -> Result<(), SocketError> {
        check_options(options)?;
        self.options = *options;
        Ok(())
    }
}

/// Refuses a type of service with the bits that belong to congestion notification (RFC 3168).
fn check_options(options: &SocketOptions) -> Result<(), SocketError> {
    if options.tos.is_some_and(|tos| tos & 0b11 != 0) {
        return Err(SocketError::NotSupported("quality of service"));
    }
    Ok(())
}

impl Host {
    /// Takes a port, as [`kernel::connect::bind_connector`](crate::net::kernel::connect::bind_connector).
    pub(crate) fn bind_connector(
        &self,
        local: SocketAddr,
        range: PortRange,
        options: &SocketOptions,
    ) -> Result<BoundSocket, SocketError> {
        check_options(options)?;
        let lease = self.take_port(local.ip().to_canonical(), local.port(), range)?;
        let local = SocketAddr::new(lease.ip(), lease.port());
        let descriptor = Arc::new(self.descriptor().map_err(|error| SocketError::os("socket", error))?);
        Ok(BoundSocket { host: self.clone(), local, lease, options: *options, descriptor })
    }

    /// Takes one port on each address, as
    /// [`kernel::listen::bind_listener`](crate::net::kernel::listen::bind_listener).
    pub(crate) fn bind_listener(
        &self,
        addresses: &[IpAddr],
        port: u16,
        range: PortRange,
    ) -> Result<BoundListener, SocketError> {
        // There is only one of each family.
        let first = addresses.first().copied();
        let first = first.ok_or(BindError::InvalidAddress(Ipv4Addr::UNSPECIFIED.into()))?;
        let lease = self.take_port(first.to_canonical(), port, range)?;
        let _descriptor = self.descriptor().map_err(|error| SocketError::os("socket", error))?;
        Ok(BoundListener { host: self.clone(), lease, listens: false, _descriptor })
    }

    fn take_port(&self, ip: IpAddr, port: u16, range: PortRange) -> Result<PortLease, BindError> {
        if (!ip.is_unspecified() && !self.addresses().contains(&ip)) || self.index().is_none() {
            return Err(BindError::InvalidAddress(ip));
        }
        let namespace = Some(self.namespace);
        if port != 0 {
            return lease(namespace, ip, port)
                .ok_or_else(|| BindError::SharingViolation(SocketAddr::new(ip, port)));
        }
        // A port that is named need not be one of those that are left.
        let limit = self.ports.limit();
        // Counted only if there is a limit, which is seldom set: the ports of all hosts are in one table.
        let are_left = limit > usize::from(u16::MAX) || self.namespace.held() < limit;
        for _ in 0..if are_left { range.count() } else { 0 } {
            let place = self.world.with(|state| {
                let next_port = &mut state.places[self.number].next_port;
                *next_port += 1;
                *next_port
            });
            if let Some(lease) = lease(namespace, ip, range.at(place)) {
                return Ok(lease);
            }
        }
        Err(BindError::TooManyAddresses(ip))
    }
}
