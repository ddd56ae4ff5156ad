//! A host, as the soft provider has it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::sync::Semaphore;

use super::limits::{Claim, Resource};
use super::listener::BoundListener;
use super::socket::register;
use super::stream::BoundSocket;
use super::world::{Place, World};
use crate::error::BindError;
use crate::memory::{Attachment, Owned};
use crate::provider::net::MOST_LINGERING;
use crate::provider::net::errors::is_peer_address;
use crate::provider::net::leases::{Namespace, PortLease, lease};
use crate::provider::net::options::{SocketError, SocketOptions};
use crate::provider::net::ports::PortRange;
use crate::provider::net::{Interface, errno};

/// A host of a network.
#[derive(Clone, Debug)]
pub(crate) struct Host(Arc<Inner>);

/// The part of a host that never changes.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
    address: IpAddr,
    namespace: Namespace,
    /// The ports that it holds are those of its namespace.
    pub(super) ports: Resource,
    pub(super) sockets: Arc<Resource>,
    pub(super) memory: Arc<Resource>,
    lingering: Semaphore,
}

impl Deref for Host {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Host {
    /// Adds a host with this address; `None` if the network has it.
    pub(crate) fn new(world: &Arc<World>, address: IpAddr) -> Option<Self> {
        let namespace = Namespace::simulated();
        let number = world.with(|state| {
            if state.addresses.contains_key(&address) {
                return None;
            }
            let number = state.places.len();
            state.places.push(Place {
                address,
                second: None,
                up: true,
                attached: true,
                frozen: false,
                version: 0,
                index: 1,
                watchers: Vec::new(),
                stopped: Vec::new(),
                next_port: state.rng.next() >> 1,
            });
            state.addresses.insert(address, number);
            Some(number)
        })?;
        Some(Self(Arc::new(Inner {
            world: world.clone(),
            number,
            address,
            namespace,
            ports: Resource::default(),
            sockets: Arc::default(),
            memory: Arc::default(),
            lingering: Semaphore::new(MOST_LINGERING),
        })))
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Adds an address of the other family. Returns whether it could: the host has one of each family at most, and the network
    /// has each address once.
    pub(crate) fn add_address(&self, address: IpAddr) -> bool {
        self.world.with(|state| {
            let Some(place) = state.places.get_mut(self.number) else { return false };
            let known = place.second.is_some() || place.address.is_ipv4() == address.is_ipv4();
            if known || state.addresses.contains_key(&address) {
                return false;
            }
            place.second = Some(address);
            state.addresses.insert(address, self.number);
            true
        })
    }

    /// The addresses, the first one first.
    fn addresses(&self) -> Vec<IpAddr> {
        let second = self.world.with(|state| state.places.get(self.number).and_then(|place| place.second));
        [Some(self.address), second].into_iter().flatten().collect()
    }

    /// The address of the same family as another one.
    pub(super) fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses().into_iter().find(|ip| ip.is_ipv4() == other.is_ipv4())
    }

    pub(crate) fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// A random number for a key.
    pub(crate) fn random(&self) -> u32 {
        // The high half.
        self.world.with(|state| u32::try_from(state.rng.next() >> 32).unwrap_or(0))
    }

    /// Counts memory of its programs, if there is as much left.
    pub(crate) fn charge(&self, memory: Owned) -> Option<Owned> {
        let claim = self.memory.claim(memory.len())?;
        memory.attach(|_, _| Ok::<_, Infallible>(Arc::new(claim) as Arc<dyn Attachment>)).ok()
    }

    /// The places of sockets that linger.
    pub(crate) fn lingering(&self) -> &Semaphore {
        &self.lingering
    }

    /// Ready while the programs of the host run.
    pub(crate) fn poll_running(&self, cx: &Context<'_>) -> Poll<()> {
        self.world.with(|state| match state.places.get_mut(self.number) {
            Some(place) if place.frozen => {
                register(&mut place.stopped, cx);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
    }

    /// The descriptor of a new socket.
    ///
    /// # Errors
    /// `EMFILE` if no descriptor is left, `ENOBUFS` if no memory is left.
    pub(super) fn descriptor(&self) -> io::Result<Claim> {
        if self.memory.is_exhausted() {
            return Err(errno(libc::ENOBUFS));
        }
        self.sockets.claim(1).ok_or_else(|| errno(libc::EMFILE))
    }

    /// The number of the interface, while it is there.
    fn index(&self) -> Option<u32> {
        self.world.with(|state| {
            state.places.get(self.number).filter(|place| place.is_on_line()).map(|place| place.index)
        })
    }

    /// The interface, while it is there.
    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        let interface = |index| Interface {
            index,
            name: "sim0".into(),
            addresses: self.addresses(),
            up: true,
            loopback: false,
        };
        self.index().map(interface).into_iter().collect()
    }

    pub(crate) fn interface_of(&self, ip: IpAddr) -> Option<Interface> {
        let ip = ip.to_canonical();
        self.interfaces().into_iter().find(|interface| interface.addresses.contains(&ip))
    }

    /// The local address from which `remote` is reached.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for what can never be a peer; `ENETUNREACH` without the interface, for an address that no host has, or of a
    /// family of which this host has none.
    pub(crate) fn source_for(&self, remote: IpAddr) -> io::Result<IpAddr> {
        let remote = remote.to_canonical();
        if !is_peer_address(remote) {
            return Err(errno(libc::EADDRNOTAVAIL));
        }
        let known = self.world.with(|state| state.addresses.contains_key(&remote));
        let source = self.address_like(remote).filter(|_| known && self.index().is_some());
        source.ok_or_else(|| errno(libc::ENETUNREACH))
    }

    /// Watches the interface from now on.
    ///
    /// # Errors
    /// Those of a new socket: the kernel has one for this.
    pub(crate) fn monitor(&self) -> io::Result<Monitor> {
        let descriptor = self.descriptor()?;
        let seen = self.world.with(|state| state.places.get(self.number).map_or(0, |place| place.version));
        Ok(Monitor { host: self.clone(), seen: AtomicU64::new(seen), _descriptor: descriptor })
    }

    /// Takes a port, as [`kernel::bind::bind_connector`](crate::provider::net::kernel::bind::bind_connector).
    ///
    /// # Errors
    /// `SharingViolation`, `TooManyAddresses`, `InvalidAddress`; `NotSupported` for a type of service with the bits that belong
    /// to congestion notification (RFC 3168); those of a new socket.
    pub(crate) fn bind_connector(
        &self,
        local: SocketAddr,
        range: PortRange,
        options: &SocketOptions,
    ) -> Result<BoundSocket, SocketError> {
        if options.tos.is_some_and(|tos| tos & 0b11 != 0) {
            return Err(SocketError::NotSupported("quality of service"));
        }
        let lease = self.take_port(local.ip().to_canonical(), local.port(), range)?;
        let local = SocketAddr::new(lease.ip(), lease.port());
        let descriptor = Arc::new(self.descriptor().map_err(|error| SocketError::os("socket", error))?);
        Ok(BoundSocket { host: self.clone(), local, lease, options: *options, descriptor })
    }

    /// Takes one port on each address, as
    /// [`kernel::listen::bind_listener`](crate::provider::net::kernel::listen::bind_listener).
    ///
    /// # Errors
    /// Those of [`bind_connector`](Self::bind_connector).
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
        let descriptor = self.descriptor().map_err(|error| SocketError::os("socket", error))?;
        Ok(BoundListener::new(self.clone(), lease, descriptor))
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
        // Whoever names a port does not need one that is left.
        let tries = if self.namespace.held() < self.ports.limit() { range.count() } else { 0 };
        for _ in 0..tries {
            let place = self.world.with(|state| {
                state.places.get_mut(self.number).map_or(0, |place| {
                    place.next_port += 1;
                    place.next_port
                })
            });
            if let Some(lease) = lease(namespace, ip, range.at(place)) {
                return Ok(lease);
            }
        }
        Err(BindError::TooManyAddresses(ip))
    }
}

/// Notices that the interface has come or gone.
#[derive(Debug)]
pub(crate) struct Monitor {
    host: Host,
    /// The version of the host that was reported last.
    seen: AtomicU64,
    _descriptor: Claim,
}

impl Monitor {
    /// Resolves when the interface has come or gone since the last call.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn changed(&self) {
        poll_fn(|cx| {
            self.host.world.with(|state| {
                let Some(place) = state.places.get_mut(self.host.number) else { return Poll::Pending };
                if self.seen.swap(place.version, Ordering::Relaxed) != place.version {
                    return Poll::Ready(());
                }
                register(&mut place.watchers, cx);
                Poll::Pending
            })
        })
        .await;
    }
}
