//! A host of a simulated network, as the soft provider uses it, and its limited resources.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use super::socket::register;
use super::world::{Place, World};
use crate::memory::{Attachment, Memory, Owned};
use crate::net::descriptors::Descriptors;
use crate::net::ports::Namespace;
use crate::net::{Interface, errno, is_peer_address};

/// A host of a network.
#[derive(Clone, Debug)]
pub(crate) struct Host(Arc<Inner>);

/// The part of a host that never changes.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
    pub(crate) address: IpAddr,
    pub(crate) namespace: Namespace,
    /// The limit of the ports that may be held when another one is chosen. Those that it holds are those of its namespace.
    pub(crate) ports: Resource,
    /// The descriptors.
    pub(crate) sockets: Arc<Resource>,
    /// The bytes that programs have allocated.
    pub(crate) memory: Arc<Resource>,
    /// The budgets of the descriptors that peers hold.
    pub(crate) descriptors: Descriptors,
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
            // Its sockets are no descriptors.
            descriptors: Descriptors::new(|| usize::MAX),
        })))
    }

    /// Adds an address of the other family. Returns whether it could: the host has one of each family at most, and the network
    /// has each address once.
    pub(crate) fn add_address(&self, address: IpAddr) -> bool {
        self.world.with(|state| {
            let place = &mut state.places[self.number];
            let known = place.second.is_some() || place.address.is_ipv4() == address.is_ipv4();
            if known || state.addresses.contains_key(&address) {
                return false;
            }
            place.second = Some(address);
            state.addresses.insert(address, self.number);
            state.readdress(self.number);
            true
        })
    }

    /// Returns the addresses, the first one first.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let second = self.world.with(|state| state.places[self.number].second);
        [Some(self.address), second].into_iter().flatten().collect()
    }

    /// Returns the address of the same family as another one.
    pub(super) fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses().into_iter().find(|ip| ip.is_ipv4() == other.is_ipv4())
    }

    /// Returns a random number for a key.
    pub(crate) fn random(&self) -> u32 {
        // The high half.
        self.world.with(|state| u32::try_from(state.rng.next() >> 32).unwrap_or(0))
    }

    /// Counts memory of its programs, if there is as much left.
    pub(crate) fn charge(&self, memory: Owned) -> Option<Owned> {
        let claim = self.memory.claim(memory.len())?;
        memory.attach(|_, _| Ok::<_, Infallible>(Arc::new(claim) as Arc<dyn Attachment>)).ok()
    }

    /// Polls for the programs of the host to run.
    pub(crate) fn poll_running(&self, cx: &Context<'_>) -> Poll<()> {
        self.world.with(|state| {
            let place = &mut state.places[self.number];
            if place.frozen {
                register(&mut place.stopped, cx);
                return Poll::Pending;
            }
            Poll::Ready(())
        })
    }

    /// Takes the descriptor of a new socket.
    ///
    /// # Errors
    /// `EMFILE` if no descriptor is left, `ENOBUFS` if no memory is left.
    pub(super) fn descriptor(&self) -> io::Result<Claim> {
        if self.memory.is_exhausted() {
            return Err(errno(libc::ENOBUFS));
        }
        self.sockets.claim(1).ok_or_else(|| errno(libc::EMFILE))
    }

    /// Returns the number of the interface, while the host is up and has it.
    pub(super) fn index(&self) -> Option<u32> {
        self.world.with(|state| {
            let place = &state.places[self.number];
            place.is_on_line().then_some(place.index)
        })
    }

    /// Returns the interface, while the host is up and has it.
    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        let interface = |index| Interface {
            index,
            name: "sim0".into(),
            addresses: self.addresses(),
            up: true,
            running: true,
            loopback: false,
        };
        self.index().map(interface).into_iter().collect()
    }

    pub(crate) fn interface_of(&self, ip: IpAddr) -> Option<Interface> {
        let ip = ip.to_canonical();
        self.interfaces().into_iter().find(|interface| interface.addresses.contains(&ip))
    }

    /// Returns the local address from which `remote` is reached.
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
    pub(crate) fn monitor(&self) -> io::Result<Monitor> {
        let descriptor = self.descriptor()?;
        let seen = self.world.with(|state| state.places[self.number].version);
        Ok(Monitor { host: self.clone(), seen: AtomicU64::new(seen), _descriptor: descriptor })
    }
}

/// Notices that the interface has come or gone, or has a further address.
#[derive(Debug)]
pub(crate) struct Monitor {
    host: Host,
    /// The version of the host that was reported last.
    seen: AtomicU64,
    _descriptor: Claim,
}

impl Monitor {
    /// Resolves when the interface has come or gone since the last call, or has got an address.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn changed(&self) {
        poll_fn(|cx| {
            self.host.world.with(|state| {
                let place = &mut state.places[self.host.number];
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

impl Host {
    /// Limits one of its resources, which the trace calls `what`.
    pub(crate) fn limit(&self, resource: &Resource, what: &str, limit: Option<usize>) {
        resource.set_limit(limit);
        let text = limit.map_or_else(|| format!("any number of {what}"), |limit| format!("{limit} {what}"));
        self.world.with(|state| state.note(self.number, &text));
    }
}

/// A resource: how much of it is in use, and the most that may be.
#[derive(Debug)]
pub(crate) struct Resource {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl Default for Resource {
    fn default() -> Self {
        Self { used: AtomicUsize::new(0), limit: AtomicUsize::new(usize::MAX) }
    }
}

impl Resource {
    /// Sets the limit. What is in use beyond it stays in use.
    pub(super) fn set_limit(&self, limit: Option<usize>) {
        self.limit.store(limit.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns whether nothing is left.
    pub(super) fn is_exhausted(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.limit()
    }

    /// Takes so much of it, if that is left.
    pub(super) fn claim(self: &Arc<Self>, amount: usize) -> Option<Claim> {
        let enough = |used: usize| used.checked_add(amount).filter(|sum| amount == 0 || *sum <= self.limit());
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).ok()?;
        Some(Claim { resource: self.clone(), amount })
    }
}

/// A part of a resource that is in use, until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    resource: Arc<Resource>,
    amount: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.resource.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// Memory has its claim for as long as it exists.
impl Attachment for Claim {
    #[cfg(feature = "verbs")]
    fn local_key(&self) -> u32 {
        0
    }

    #[cfg(feature = "verbs")]
    fn address(&self) -> u64 {
        0
    }

    fn detach(&self) -> bool {
        true
    }

    fn retire(&self, memory: Memory) {
        drop(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_ends_with_its_value() {
        let resource = Arc::new(Resource::default());
        let first = resource.claim(10).expect("without limit");
        resource.set_limit(Some(15));
        let second = resource.claim(5).expect("the rest");
        assert!(resource.is_exhausted() && resource.claim(1).is_none());
        resource.claim(0).expect("nothing is always there");
        drop(second);
        assert!(resource.claim(6).is_none() && resource.claim(5).is_some());
        resource.set_limit(Some(3));
        assert!(resource.claim(1).is_none());
        drop(first);
        assert!(resource.claim(3).is_some());
    }
}
