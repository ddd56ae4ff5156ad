//! Takes the ports of a simulated host, and listens at them.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;

use super::host::{Claim, Host};
use super::socket::{Phase, register};
use super::stream::{BoundSocket, Stream};
use super::world::{Listening, Place, State};
use crate::error::BindError;
use crate::net::errno;
use crate::net::kernel::options::{SocketError, SocketOptions};
use crate::net::ports::{PortLease, PortRange, lease};

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
    /// Sets other options, as [`kernel::bind::BoundSocket::renew`](crate::net::kernel::bind::BoundSocket::renew).
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
    /// Takes a port, as [`kernel::bind::bind_connector`](crate::net::kernel::bind::bind_connector).
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
