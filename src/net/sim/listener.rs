//! The listening sockets of a simulated host.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use super::host::Host;
use super::limits::Claim;
use super::socket::{Phase, register};
use super::stream::Stream;
use super::world::{Listening, State};
use crate::error::BindError;
use crate::net::errno;
use crate::net::leases::PortLease;

/// The most connections that wait for [`Listener::accept`]: Linux's `net.core.somaxconn`.
const BACKLOG: usize = 4096;

/// A port that may listen.
#[derive(Debug)]
pub(crate) struct BoundListener {
    host: Host,
    lease: PortLease,
    listens: bool,
    _descriptor: Claim,
}

impl BoundListener {
    pub(super) fn new(host: Host, lease: PortLease, descriptor: Claim) -> Self {
        Self { host, lease, listens: false, _descriptor: descriptor }
    }

    pub(crate) fn port(&self) -> u16 {
        self.lease.port()
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// `InvalidState` if it does.
    pub(crate) fn listen(&mut self) -> Result<Listener, BindError> {
        if std::mem::replace(&mut self.listens, true) {
            return Err(BindError::InvalidState("the listener listens already"));
        }
        let local = SocketAddr::new(self.lease.ip(), self.lease.port());
        let id = self.host.world.with(|state| {
            let id = state.number();
            state.trace.note(state.now, format!("{local} listens"));
            let listening = Listening {
                id,
                host: self.host.number,
                backlog: BACKLOG,
                queue: Default::default(),
                waiters: Vec::new(),
            };
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
                let frozen = state.is_frozen(self.host.number);
                let up = state.places.get(self.host.number).is_some_and(|place| place.up);
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
