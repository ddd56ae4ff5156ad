//! The host of an adapter: its addresses, and the sockets that are made on it.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::task::ready;
use std::time::Duration;

use tokio::net::TcpListener;

use super::descriptors::Descriptors;
use super::kernel::options::{SocketError, SocketOptions};
use super::ports::{Namespace, PortLease, PortRange};
#[cfg(feature = "sim")]
use super::sim;
use super::stream::Stream;
use super::{Interface, errno, kernel};
use crate::error::BindError;
use crate::memory::Owned;
use crate::sync::Mutex;

/// The host that an adapter of the soft provider belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) enum Host {
    /// This machine.
    #[default]
    Kernel,
    /// A host of a simulated network.
    #[cfg(feature = "sim")]
    Sim(sim::Host),
}

impl Host {
    /// Returns the namespace of the host's ports, for sockets that the calling thread makes.
    pub(crate) fn namespace(&self) -> Namespace {
        match self {
            Self::Kernel => Namespace::of_thread(),
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.namespace(),
        }
    }

    /// Returns the budgets of the descriptors that peers hold.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        static PROCESS: LazyLock<Descriptors> = LazyLock::new(Descriptors::of_process);
        match self {
            Self::Kernel => &PROCESS,
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.descriptors(),
        }
    }

    /// Returns a random number that a peer cannot guess; `None` if the system has none.
    pub(crate) fn random(&self) -> Option<u32> {
        match self {
            Self::Kernel => getrandom::u32().ok(),
            #[cfg(feature = "sim")]
            Self::Sim(host) => Some(host.random()),
        }
    }

    /// Counts memory of a program; `None` if so much is not left.
    pub(crate) fn charge(&self, memory: Owned) -> Option<Owned> {
        match self {
            // The system has counted it.
            Self::Kernel => Some(memory),
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.charge(memory),
        }
    }

    /// Runs a task of a program of this host, as long as the host runs its programs.
    ///
    /// # Cancel safety
    /// That of the task.
    pub(crate) async fn run<F: Future>(self, task: F) -> F::Output {
        match self {
            Self::Kernel => task.await,
            #[cfg(feature = "sim")]
            Self::Sim(host) => {
                let mut task = std::pin::pin!(task);
                std::future::poll_fn(|cx| {
                    std::task::ready!(host.poll_running(cx));
                    task.as_mut().poll(cx)
                })
                .await
            }
        }
    }

    /// Lists the interfaces, with and without addresses.
    ///
    /// # Errors
    /// Those of getifaddrs(3).
    pub(crate) fn interfaces(&self) -> io::Result<Vec<Interface>> {
        match self {
            Self::Kernel => kernel::interfaces::interfaces(),
            #[cfg(feature = "sim")]
            Self::Sim(host) => Ok(host.interfaces()),
        }
    }

    /// Returns the interface that has this address; `None` if this host does not have the address.
    ///
    /// # Errors
    /// Those of [`interfaces`](Self::interfaces).
    pub(crate) fn interface_of(&self, ip: IpAddr) -> io::Result<Option<Interface>> {
        match self {
            Self::Kernel => kernel::interfaces::interface_of(ip),
            #[cfg(feature = "sim")]
            Self::Sim(host) => Ok(host.interface_of(ip)),
        }
    }

    /// Returns the local address from which `remote` is reached.
    ///
    /// # Errors
    /// `ENETUNREACH` and its kin when there is no route; `EADDRNOTAVAIL` for an address that can never be a peer's.
    pub(crate) fn source_for(&self, remote: IpAddr) -> io::Result<IpAddr> {
        match self {
            Self::Kernel => kernel::interfaces::source_for(remote),
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.source_for(remote),
        }
    }

    /// Returns whether an adapter could use this address right now.
    ///
    /// # Errors
    /// Those of [`interfaces`](Self::interfaces), and of socket(2).
    pub(crate) fn is_usable(&self, ip: IpAddr) -> io::Result<bool> {
        match self {
            Self::Kernel => kernel::interfaces::is_usable(ip),
            #[cfg(feature = "sim")]
            Self::Sim(host) => Ok(host.interface_of(ip).is_some()),
        }
    }

    /// Watches the addresses from now on.
    ///
    /// # Errors
    /// No descriptor is left, there is no netlink, or this is no tokio runtime.
    pub(crate) fn monitor(&self) -> io::Result<Monitor> {
        match self {
            Self::Kernel => kernel::interfaces::AddressMonitor::open().map(Monitor::Kernel),
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.monitor().map(Monitor::Sim),
        }
    }

    /// Binds a socket for a connection to come: see [`kernel::bind::bind_connector`].
    ///
    /// # Errors
    /// Those of [`kernel::bind::bind_connector`].
    pub(crate) fn bind_connector(
        &self,
        local: SocketAddr,
        range: PortRange,
        options: &SocketOptions,
    ) -> Result<BoundSocket, SocketError> {
        match self {
            Self::Kernel => kernel::bind::bind_connector(local, range, options).map(BoundSocket::Kernel),
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.bind_connector(local, range, options).map(BoundSocket::Sim),
        }
    }

    /// Binds a socket to an address and port that were this caller's until now: see [`kernel::bind::bind_again`].
    ///
    /// # Errors
    /// Those of [`bind_connector`](Self::bind_connector) but `TooManyAddresses`.
    pub(crate) fn bind_again(
        &self,
        local: SocketAddr,
        options: &SocketOptions,
    ) -> Result<BoundSocket, SocketError> {
        match self {
            Self::Kernel => kernel::bind::bind_again(local, options).map(BoundSocket::Kernel),
            #[cfg(feature = "sim")]
            // The port is given: no range is needed.
            Self::Sim(host) => {
                host.bind_connector(local, PortRange::EPHEMERAL, options).map(BoundSocket::Sim)
            }
        }
    }

    /// Takes one port on each of the addresses: see [`kernel::listen::bind_listener`].
    ///
    /// # Errors
    /// Those of [`kernel::listen::bind_listener`].
    pub(crate) fn bind_listener(
        &self,
        addresses: &[IpAddr],
        port: u16,
        range: PortRange,
        options: &SocketOptions,
    ) -> Result<BoundListener, SocketError> {
        match self {
            Self::Kernel => {
                kernel::listen::bind_listener(addresses, port, range, options).map(BoundListener::Kernel)
            }
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.bind_listener(addresses, port, range).map(BoundListener::Sim),
        }
    }
}

/// Notices that the addresses of a host may have changed.
#[derive(Debug)]
pub(crate) enum Monitor {
    /// Of this machine.
    Kernel(kernel::interfaces::AddressMonitor),
    /// Of a host of a simulated network.
    #[cfg(feature = "sim")]
    Sim(sim::Monitor),
}

impl Monitor {
    /// Resolves when anything may have changed since the last call, or since it was opened.
    ///
    /// # Errors
    /// The monitor can no longer be used.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        match self {
            Self::Kernel(monitor) => monitor.changed().await,
            #[cfg(feature = "sim")]
            Self::Sim(monitor) => {
                monitor.changed().await;
                Ok(())
            }
        }
    }
}

/// A socket with a local address, not connected.
#[derive(Debug)]
pub(crate) enum BoundSocket {
    /// Of this machine.
    Kernel(kernel::bind::BoundSocket),
    /// Of a host of a simulated network.
    #[cfg(feature = "sim")]
    Sim(sim::BoundSocket),
}

/// A connected stream.
#[derive(Debug)]
pub(crate) struct Connected {
    /// The stream; see [`Stream::prepare`].
    pub(crate) stream: Stream,
    /// Its local address, now in full.
    pub(crate) local: SocketAddr,
    /// Keeps the port from the rest of the process; keep it as long as the stream.
    pub(crate) lease: PortLease,
}

/// A connect that has failed.
#[derive(Debug)]
pub(crate) struct ConnectFailure {
    /// The error: see [`kernel::connect::ConnectFailure`].
    pub(crate) error: io::Error,
    /// The socket, still bound and good for another attempt, unless it could not be saved.
    pub(crate) bound: Option<BoundSocket>,
}

impl BoundSocket {
    /// Returns the local address, with a port that is not 0; unspecified if the socket was bound to every address of
    /// the family.
    pub(crate) fn local(&self) -> SocketAddr {
        match self {
            Self::Kernel(bound) => bound.local,
            #[cfg(feature = "sim")]
            Self::Sim(bound) => bound.local(),
        }
    }

    /// Replaces the socket by a new one with other options, at the same address: see [`kernel::bind::BoundSocket::renew`].
    ///
    /// # Errors
    /// Those of [`Host::bind_again`]. The socket is as it was.
    pub(crate) fn renew(&mut self, options: &SocketOptions) -> Result<(), SocketError> {
        match self {
            Self::Kernel(bound) => bound.renew(options),
            #[cfg(feature = "sim")]
            Self::Sim(bound) => bound.renew(options),
        }
    }

    /// Connects to `peer`: see [`kernel::connect::connect`].
    ///
    /// # Errors
    /// See [`ConnectFailure`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket, which abandons the attempt, and releases the port.
    pub(crate) async fn connect(
        self,
        peer: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<Connected, ConnectFailure> {
        match self {
            Self::Kernel(bound) => match kernel::connect::connect(bound, peer, timeout).await {
                Ok(kernel::connect::Connected { stream, local, lease }) => {
                    Ok(Connected { stream: Stream::Kernel(stream), local, lease })
                }
                Err(kernel::connect::ConnectFailure { error, bound }) => {
                    Err(ConnectFailure { error, bound: bound.map(Self::Kernel) })
                }
            },
            #[cfg(feature = "sim")]
            Self::Sim(bound) => match bound.connect(peer, timeout).await {
                Ok((stream, local, lease)) => Ok(Connected { stream: Stream::Sim(stream), local, lease }),
                Err((error, bound)) => Err(ConnectFailure { error, bound: Some(Self::Sim(bound)) }),
            },
        }
    }
}

/// A listener's addresses and port, held but perhaps not listened on yet: see [`kernel::listen::BoundListener`].
#[derive(Debug)]
pub(crate) enum BoundListener {
    /// Of this machine.
    Kernel(kernel::listen::BoundListener),
    /// Of a host of a simulated network.
    #[cfg(feature = "sim")]
    Sim(sim::BoundListener),
}

impl BoundListener {
    /// Returns the port.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Kernel(bound) => bound.local_addresses().next().map_or(0, |first| first.port()),
            #[cfg(feature = "sim")]
            Self::Sim(bound) => bound.port(),
        }
    }

    /// Starts to listen, and hands the listening sockets out, in the order of the addresses.
    ///
    /// # Errors
    /// Those of [`kernel::listen::BoundListener::listen`].
    pub(crate) fn listen(&mut self) -> Result<Vec<Listener>, BindError> {
        match self {
            Self::Kernel(bound) => {
                let listening = bound.listen()?.into_iter();
                Ok(listening.map(|socket| Listener::Kernel(Mutex::new(Some(socket)))).collect())
            }
            #[cfg(feature = "sim")]
            Self::Sim(bound) => Ok(vec![Listener::Sim(bound.listen()?)]),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    /// Of this machine, until it is closed.
    Kernel(Mutex<Option<TcpListener>>),
    /// Of a host of a simulated network.
    #[cfg(feature = "sim")]
    Sim(sim::Listener),
}

impl Listener {
    /// Returns the local address. It is that of each connection, too, unless it is unspecified.
    ///
    /// # Errors
    /// Those of getsockname(2); `EINVAL` after [`close`](Self::close).
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(listener) => {
                listener.lock().as_ref().map_or_else(|| Err(errno(libc::EINVAL)), TcpListener::local_addr)
            }
            #[cfg(feature = "sim")]
            Self::Sim(listener) => Ok(listener.local_addr()),
        }
    }

    /// Takes the next connection. For one task at a time: [`close`](Self::close) does not wake it.
    ///
    /// # Errors
    /// Those of accept(2); `EINVAL` after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// No connection is lost.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Kernel(listener) => {
                poll_fn(|cx| {
                    let listener = listener.lock();
                    let Some(socket) = listener.as_ref() else { return Err(errno(libc::EINVAL)).into() };
                    let (stream, peer) = ready!(socket.poll_accept(cx))?;
                    Ok((Stream::Kernel(stream), peer)).into()
                })
                .await
            }
            #[cfg(feature = "sim")]
            Self::Sim(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream::Sim(stream), peer))
            }
        }
    }

    /// Closes the socket: the port is free, also for a bind that does not share it, and connections that were not
    /// accepted are refused.
    pub(crate) fn close(&self) {
        match self {
            Self::Kernel(listener) => {
                let socket = listener.lock().take();
                drop(socket);
            }
            #[cfg(feature = "sim")]
            Self::Sim(listener) => listener.close(),
        }
    }
}
