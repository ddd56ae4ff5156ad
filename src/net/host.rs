//! The host of an adapter: its addresses, and the sockets that are made on it.
//!
//! What is made on this machine is documented in [`kernel`]; the errors are those of there.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::task::ready;
use std::time::Duration;

use tokio::net::TcpListener;

use super::descriptors::Descriptors;
use super::kernel::options::{SocketError, SocketOptions};
use super::ports::{Namespace, PortRange};
#[cfg(feature = "sim")]
use super::sim;
use super::stream::Stream;
use super::{ConnectFailure, Connected, Interface, errno, kernel};
use crate::error::BindError;
use crate::memory::Owned;
use crate::sync::Mutex;

/// Matches with an arm for this machine, and one for a simulated network if those are compiled in.
macro_rules! by_network {
    ($self:expr, $kernel:pat => $on_kernel:expr, $sim:pat => $on_sim:expr $(,)?) => {
        match $self {
            $kernel => $on_kernel,
            #[cfg(feature = "sim")]
            $sim => $on_sim,
        }
    };
}

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
    /// Returns whether it is this machine.
    pub(crate) fn is_this_machine(&self) -> bool {
        matches!(self, Self::Kernel)
    }

    /// Returns the namespace of the host's ports, for sockets that the calling thread makes.
    pub(crate) fn namespace(&self) -> Namespace {
        by_network!(self, Self::Kernel => Namespace::of_thread(), Self::Sim(host) => host.namespace)
    }

    /// Returns the budgets of the descriptors that peers hold.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        static PROCESS: LazyLock<Descriptors> = LazyLock::new(Descriptors::of_process);
        by_network!(self, Self::Kernel => &PROCESS, Self::Sim(host) => &host.descriptors)
    }

    /// Returns a random number that a peer cannot guess; `None` if the system has none. The reserve is that of the caller.
    pub(crate) fn random(&self, reserve: &mut Reserve) -> Option<u32> {
        by_network!(self, Self::Kernel => reserve.take(), Self::Sim(host) => Some(host.random()))
    }

    /// Returns the number of the network: 0 for that of this machine, and another for each simulated one.
    pub(crate) fn network(&self) -> u64 {
        by_network!(self, Self::Kernel => 0, Self::Sim(host) => host.world.number)
    }

    /// Counts memory of a program; `None` if so much is not left. The system has counted that of this machine.
    pub(crate) fn charge(&self, memory: Owned) -> Option<Owned> {
        by_network!(self, Self::Kernel => Some(memory), Self::Sim(host) => host.charge(memory))
    }

    /// Runs a task of a program of this host, as long as the host runs its programs.
    ///
    /// # Cancel safety
    /// That of the task.
    pub(crate) async fn run<F: Future>(self, task: F) -> F::Output {
        by_network!(self, Self::Kernel => task.await, Self::Sim(host) => {
            let mut task = std::pin::pin!(task);
            poll_fn(|cx| {
                ready!(host.poll_running(cx));
                task.as_mut().poll(cx)
            })
            .await
        })
    }

    /// Lists the interfaces, with and without addresses.
    pub(crate) fn interfaces(&self) -> io::Result<Vec<Interface>> {
        by_network!(
            self,
            Self::Kernel => kernel::interfaces::interfaces(),
            Self::Sim(host) => Ok(host.interfaces()),
        )
    }

    /// Returns the interface that has this address; `None` if this host does not have the address.
    pub(crate) fn interface_of(&self, ip: IpAddr) -> io::Result<Option<Interface>> {
        by_network!(
            self,
            Self::Kernel => kernel::interfaces::interface_of(ip),
            Self::Sim(host) => Ok(host.interface_of(ip)),
        )
    }

    /// Returns the local address from which `remote` is reached.
    pub(crate) fn source_for(&self, remote: IpAddr) -> io::Result<IpAddr> {
        by_network!(
            self,
            Self::Kernel => kernel::interfaces::source_for(remote),
            Self::Sim(host) => host.source_for(remote),
        )
    }

    /// Returns whether an adapter could use this address right now.
    pub(crate) fn is_usable(&self, ip: IpAddr) -> io::Result<bool> {
        by_network!(
            self,
            Self::Kernel => kernel::interfaces::is_usable(ip),
            Self::Sim(host) => Ok(host.interface_of(ip).is_some()),
        )
    }

    /// Watches the addresses from now on.
    pub(crate) fn monitor(&self) -> io::Result<Monitor> {
        by_network!(
            self,
            Self::Kernel => kernel::interfaces::AddressMonitor::open().map(Monitor::Kernel),
            Self::Sim(host) => host.monitor().map(Monitor::Sim),
        )
    }

    /// Binds a socket for a connection to come.
    pub(crate) fn bind_connector(
        &self,
        local: SocketAddr,
        range: PortRange,
        options: &SocketOptions,
    ) -> Result<BoundSocket, SocketError> {
        by_network!(
            self,
            Self::Kernel => kernel::connect::bind_connector(local, range, options).map(BoundSocket::Kernel),
            Self::Sim(host) => host.bind_connector(local, range, options).map(BoundSocket::Sim),
        )
    }

    /// Binds a socket to an address and port that were this caller's until now.
    pub(crate) fn bind_again(
        &self,
        local: SocketAddr,
        options: &SocketOptions,
    ) -> Result<BoundSocket, SocketError> {
        by_network!(
            self,
            Self::Kernel => kernel::connect::bind_again(local, options).map(BoundSocket::Kernel),
            // The port is given: no range is needed.
            Self::Sim(host) => {
                host.bind_connector(local, PortRange::EPHEMERAL, options).map(BoundSocket::Sim)
            },
        )
    }

    /// Takes one port on each of the addresses.
    pub(crate) fn bind_listener(
        &self,
        addresses: &[IpAddr],
        port: u16,
        range: PortRange,
        options: &SocketOptions,
    ) -> Result<BoundListener, SocketError> {
        by_network!(
            self,
            Self::Kernel => {
                kernel::listen::bind_listener(addresses, port, range, options).map(BoundListener::Kernel)
            },
            Self::Sim(host) => host.bind_listener(addresses, port, range).map(BoundListener::Sim),
        )
    }
}

/// Random numbers of the system that were not used yet. Most numbers so cost no system call. A process that is
/// forked without exec begins with the numbers of its parent; tokio does not support such a process.
#[derive(Default)]
pub(crate) struct Reserve {
    numbers: [[u8; 4]; Self::COUNT],
    left: usize,
}

impl Reserve {
    const COUNT: usize = 32;

    /// Takes one, which is not kept; `None` if the system has none.
    fn take(&mut self) -> Option<u32> {
        if self.left == 0 {
            getrandom::fill(self.numbers.as_flattened_mut()).ok()?;
            self.left = Self::COUNT;
        }
        self.left -= 1;
        Some(u32::from_ne_bytes(std::mem::take(&mut self.numbers[self.left])))
    }
}

/// Notices that the addresses of a host may have changed.
#[derive(Debug)]
pub(crate) enum Monitor {
    Kernel(kernel::interfaces::AddressMonitor),
    #[cfg(feature = "sim")]
    Sim(sim::Monitor),
}

impl Monitor {
    /// Resolves when anything may have changed since the last call, or since it was opened. After an error it cannot be used.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        by_network!(self, Self::Kernel(monitor) => monitor.changed().await.map(drop), Self::Sim(monitor) => {
            monitor.changed().await;
            Ok(())
        })
    }
}

/// A socket with a local address, not connected.
#[derive(Debug)]
pub(crate) enum BoundSocket {
    Kernel(kernel::connect::BoundSocket),
    #[cfg(feature = "sim")]
    Sim(sim::BoundSocket),
}

impl BoundSocket {
    /// Returns the local address, with a port that is not 0; unspecified if the socket was bound to every address of
    /// the family.
    pub(crate) fn local(&self) -> SocketAddr {
        by_network!(self, Self::Kernel(bound) => bound.local, Self::Sim(bound) => bound.local)
    }

    /// Replaces the socket by a new one with other options, at the same address. After an error it is as it was.
    pub(crate) fn renew(&mut self, options: &SocketOptions) -> Result<(), SocketError> {
        by_network!(
            self,
            Self::Kernel(bound) => bound.renew(options),
            Self::Sim(bound) => bound.renew(options),
        )
    }

    /// Connects to `peer`: see [`kernel::connect::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket, which abandons the attempt, and releases the port.
    pub(crate) async fn connect(
        self,
        peer: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<Connected, ConnectFailure> {
        by_network!(
            self,
            Self::Kernel(bound) => match kernel::connect::connect(bound, peer, timeout).await {
                Ok(Connected { stream, local, lease }) => {
                    Ok(Connected { stream: Stream::Kernel(stream), local, lease })
                }
                Err(ConnectFailure { error, bound }) => {
                    Err(ConnectFailure { error, bound: bound.map(Self::Kernel) })
                }
            },
            Self::Sim(bound) => match bound.connect(peer, timeout).await {
                Ok(Connected { stream, local, lease }) => {
                    Ok(Connected { stream: Stream::Sim(stream), local, lease })
                }
                Err(ConnectFailure { error, bound }) => {
                    Err(ConnectFailure { error, bound: bound.map(Self::Sim) })
                }
            },
        )
    }
}

/// A listener's addresses and port, held but perhaps not listened on yet: see [`kernel::listen::BoundListener`].
#[derive(Debug)]
pub(crate) enum BoundListener {
    Kernel(kernel::listen::BoundListener),
    #[cfg(feature = "sim")]
    Sim(sim::BoundListener),
}

impl BoundListener {
    /// Returns the port.
    pub(crate) fn port(&self) -> u16 {
        by_network!(
            self,
            Self::Kernel(bound) => bound.local_addresses().next().map_or(0, |first| first.port()),
            Self::Sim(bound) => bound.port(),
        )
    }

    /// Starts to listen, and hands the listening sockets out, in the order of the addresses.
    pub(crate) fn listen(&mut self) -> Result<Vec<Listener>, BindError> {
        by_network!(
            self,
            Self::Kernel(bound) => {
                let listening = bound.listen()?.into_iter();
                Ok(listening.map(|socket| Listener::Kernel(Mutex::new(Some(socket)))).collect())
            },
            Self::Sim(bound) => Ok(vec![Listener::Sim(bound.listen()?)]),
        )
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    /// Until it is closed.
    Kernel(Mutex<Option<TcpListener>>),
    #[cfg(feature = "sim")]
    Sim(sim::Listener),
}

impl Listener {
    /// Returns the local address: `EINVAL` after [`close`](Self::close). It is that of each connection, too, unless it is
    /// unspecified.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        by_network!(
            self,
            Self::Kernel(listener) => {
                listener.lock().as_ref().map_or_else(|| Err(errno(libc::EINVAL)), TcpListener::local_addr)
            },
            Self::Sim(listener) => Ok(listener.local_addr()),
        )
    }

    /// Takes the next connection. For one task at a time: [`close`](Self::close) does not wake it.
    ///
    /// # Errors
    /// Those of accept(2); `EINVAL` after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// No connection is lost.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let accepted = by_network!(
            self,
            Self::Kernel(listener) => poll_fn(|cx| {
                let listener = listener.lock();
                let Some(socket) = listener.as_ref() else { return Err(errno(libc::EINVAL)).into() };
                let (stream, peer) = ready!(socket.poll_accept(cx))?;
                Ok((Stream::Kernel(stream), peer)).into()
            })
            .await?,
            Self::Sim(listener) => {
                let (stream, peer) = listener.accept().await?;
                (Stream::Sim(stream), peer)
            },
        );
        Ok(accepted)
    }

    /// Closes the socket: the port is free, also for a bind that does not share it, and connections that were not
    /// accepted are refused.
    pub(crate) fn close(&self) {
        by_network!(
            self,
            Self::Kernel(listener) => {
                // Closed without the lock.
                let socket = listener.lock().take();
                drop(socket);
            },
            Self::Sim(listener) => listener.close(),
        );
    }
}
