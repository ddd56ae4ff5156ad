//! An opened adapter: one network interface, its protection domain, and all that must end when it goes away.
//!
//! A listener at every address has an adapter of its own, which also serves addresses that no interface
//! lists.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info, warn};

use super::config::SoftConfig;
use super::memory::{KeyTable, Registration};
use super::timers::Metronome;
use crate::error::{OpenError, RegisterError};
use crate::events::{AdapterEvent, Announcer, Subscription};
#[cfg(feature = "inspect")]
use crate::inspect::{AdapterReport, Inspect, Mark, Place, Snapshot, register};
use crate::memory::{Owned, Shared};
use crate::net::descriptors::Holder;
use crate::net::host::Reserve;
use crate::net::kernel::options::SocketOptions;
use crate::net::ports::{Namespace, PortRange};
use crate::net::{Host, Interface, Monitor, Stream, route_error};
use crate::provider::info::{AdapterInfo, PortInfo, PortState, ProviderKind};
use crate::provider::next_domain;
use crate::provider::registry::Registry;
use crate::sync::{Mutex, Throttle, current_runtime, runtime_with_timers};
use crate::types::{Access, AdapterId, ReadLimits};

/// The read limits of the soft provider; like its other limits they do not depend on the machine.
pub(crate) const READ_LIMITS: ReadLimits = ReadLimits::new(128, 128);
/// Linux `siw` takes no more than 256 bytes, four of which carry the read limits (RFC 6581 section 4.1).
pub(crate) const MAX_PRIVATE_DATA: usize = 252;
/// The offset of a message has 32 bits, and so has the length of a read.
pub(crate) const MAX_TRANSFER: usize = u32::MAX as usize;
const MAX_REGISTRATION: usize = 1 << 40;
const MAX_DEPTH: usize = 1 << 16;
const MAX_ENTRIES: usize = 16;
/// Inline data is copied when it is posted.
const MAX_INLINE: usize = 4096;
const MAX_COMPLETIONS: usize = 1 << 20;

/// Time until the addresses are listed again after listing them has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One opened adapter, shared by everything created from it.
pub(crate) struct Adapter {
    /// Unique in the process, one per open: the protection domain.
    pub(crate) domain: u64,
    /// The interface as it was when it was opened. Only its addresses change.
    pub(crate) interface: Interface,
    /// The addresses that the interface had when they were last listed.
    addresses: Mutex<Vec<IpAddr>>,
    /// Held while the addresses are listed.
    listing: Mutex<()>,
    info: Arc<AdapterInfo>,
    /// The host that has the interface.
    pub(crate) host: Host,
    namespace: Namespace,
    pub(crate) config: SoftConfig,
    pub(crate) keys: Arc<KeyTable>,
    pub(crate) runtime: Handle,
    pub(crate) metronome: Metronome,
    pub(crate) lingering_close: LingeringClose,
    /// Limits log lines about peers of its listeners that sent something else than a request.
    pub(crate) foreign_logged: Throttle,
    removed: AtomicBool,
    registry: Arc<Registry>,
    events: Announcer,
    monitor: Mutex<Option<AbortHandle>>,
    /// The adapters that the adapter of every interface has opened.
    of_interfaces: Mutex<Vec<Arc<Adapter>>>,
    /// When it was opened, and its place among what snapshots look at.
    #[cfg(feature = "inspect")]
    inspected: (Mark, Place),
}

impl Adapter {
    /// Opens the interface with this id and begins to watch its addresses.
    ///
    /// # Errors
    /// No such interface, no runtime, or no netlink.
    pub(crate) fn open(host: Host, id: AdapterId, config: SoftConfig) -> Result<Arc<Self>, OpenError> {
        let runtime = if host.is_this_machine() { current_runtime()? } else { runtime_with_timers()? };
        let interface = list(&host)?
            .into_iter()
            .find(|interface| u64::from(interface.index) == id.0 && !interface.addresses.is_empty())
            .ok_or(OpenError::InvalidAdapter(id))?;
        let monitor =
            host.monitor().map_err(|source| OpenError::Os { call: "netlink", source: source.into() })?;
        let core = Self::new(host, runtime, interface, config);
        // Made here, so that a task that is dropped before it has ever run also ends the events.
        let watched = Watched(Arc::downgrade(&core));
        let watch = core.runtime.spawn(watch(watched, monitor)).abort_handle();
        *core.monitor.lock() = Some(watch);
        info!(adapter = %core.interface.name, domain = core.domain, "adapter opened");
        Ok(core)
    }

    fn new(host: Host, runtime: Handle, interface: Interface, config: SoftConfig) -> Arc<Self> {
        let refused = host.descriptors().refused.holder();
        let lingering_close = LingeringClose::new(runtime.clone(), config.half_open, refused);
        Arc::new_cyclic(|_me: &Weak<Self>| Self {
            domain: next_domain(),
            info: Arc::new(info(&interface)),
            addresses: Mutex::new(interface.addresses.clone()),
            listing: Mutex::default(),
            interface,
            namespace: host.namespace(),
            metronome: Metronome::new(&runtime),
            config,
            keys: Arc::new(KeyTable::new(host.clone())),
            host,
            lingering_close,
            foreign_logged: Throttle::default(),
            runtime,
            removed: AtomicBool::new(false),
            registry: Arc::default(),
            events: Announcer::default(),
            monitor: Mutex::default(),
            of_interfaces: Mutex::default(),
            #[cfg(feature = "inspect")]
            inspected: (Mark::now(), register(_me.clone())),
        })
    }

    /// Allocates memory that work requests of this side can use, and peers cannot.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn allocate(&self, length: usize) -> Result<Owned, RegisterError> {
        let memory = Owned::zeroed(length).and_then(|memory| self.host.charge(memory));
        memory.ok_or(RegisterError::OutOfMemory { length })
    }

    /// Registers memory under a key.
    ///
    /// # Errors
    /// `OutOfMemory`, `InsufficientResources`.
    pub(crate) fn register(
        &self,
        memory: Owned,
        access: Access,
    ) -> Result<(Arc<Registration>, Shared), RegisterError> {
        let length = memory.len();
        let memory = self.host.charge(memory).ok_or(RegisterError::OutOfMemory { length })?.share();
        Ok((self.keys.register(memory.clone(), access)?, memory))
    }

    /// Returns `None`: registering does not block, so it needs no runtime.
    pub(crate) fn blocking(&self) -> Option<&Handle> {
        None
    }

    /// Returns the registry of the objects that end with the adapter.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the port, which is the interface as it is now.
    ///
    /// # Errors
    /// `DeviceRemoved` if the interface no longer exists; `Os`.
    pub(crate) fn port_info(&self) -> Result<Vec<PortInfo>, OpenError> {
        let is_running = self.is_everywhere()
            || list(&self.host)?
                .into_iter()
                .find(|other| other.index == self.interface.index)
                .ok_or(OpenError::DeviceRemoved)?
                .running;
        Ok(vec![PortInfo {
            number: PORT,
            state: if is_running { PortState::Active } else { PortState::Down },
            mtu: None,
            speed: None,
            link_layer: None,
            lid: None,
            gid: None,
        }])
    }

    /// Returns the events of the adapter from now on.
    pub(crate) fn subscribe(&self) -> Arc<Subscription> {
        self.events.subscribe()
    }

    /// Returns the protection domain.
    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// Returns the adapter's properties, limits and abilities, with the addresses that it had when it was
    /// opened.
    pub(crate) fn info(&self) -> &Arc<AdapterInfo> {
        &self.info
    }

    /// Returns the adapter's properties, limits and abilities, with the addresses that it has now.
    pub(crate) fn current_info(&self) -> AdapterInfo {
        AdapterInfo { addresses: self.current_addresses(), ..self.info.as_ref().clone() }
    }

    /// Returns whether the adapter was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns the interface with the addresses that it has now, `None` if the interface no longer exists.
    ///
    /// # Errors
    /// Those of [`Host::interfaces`].
    fn list_addresses(&self) -> io::Result<Option<Interface>> {
        // One at a time, so that an older answer never replaces a newer one. Connects need not wait for it.
        let listing = self.listing.lock();
        let found = self.host.interfaces()?.into_iter().find(|other| other.index == self.interface.index);
        *self.addresses.lock() =
            found.as_ref().map_or_else(Vec::new, |interface| interface.addresses.clone());
        drop(listing);
        Ok(found)
    }

    /// Returns the addresses that the interface has now. If listing them fails, or the adapter was removed,
    /// the addresses of the last listing. The adapter of every interface has no list of its own.
    pub(crate) fn current_addresses(&self) -> Vec<IpAddr> {
        if !self.is_removed() && !self.is_everywhere() {
            // Nothing is logged here, because callers have locks.
            let _ = self.list_addresses();
        }
        self.addresses.lock().clone()
    }

    /// Returns the addresses that the adapter had when they were last listed.
    #[cfg(feature = "inspect")]
    pub(super) fn listed_addresses(&self) -> Vec<IpAddr> {
        self.addresses.lock().clone()
    }

    /// Returns the time when it was opened.
    #[cfg(feature = "inspect")]
    pub(super) fn opened_at(&self) -> Mark {
        self.inspected.0
    }

    /// Returns whether the adapter had an address when they were last listed.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.addresses.lock().is_empty()
    }

    /// Returns whether this was one of the adapter's addresses when they were last listed.
    pub(crate) fn has_listed(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        (self.interface.loopback && ip.is_loopback()) || self.addresses.lock().contains(&ip)
    }

    /// Returns a random number that a peer cannot guess; `None` if the system has none.
    pub(crate) fn random(&self) -> Option<u128> {
        let mut reserve = Reserve::default();
        (0..4).try_fold(0, |all, _| Some(all << u32::BITS | u128::from(self.host.random(&mut reserve)?)))
    }

    /// Returns the number of the network that the adapter is in: 0 for that of this machine.
    pub(crate) fn network(&self) -> u64 {
        self.host.network()
    }

    /// Returns whether the calling thread is in the network namespace of the adapter.
    pub(crate) fn is_of_this_thread(&self) -> bool {
        self.host.namespace() == self.namespace
    }

    /// Returns whether this is one of the adapter's addresses; the unspecified ones stand for all of them. An
    /// address that is not in the list may have been added since.
    pub(crate) fn owns(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_unspecified() || self.has_listed(ip) || self.current_addresses().contains(&ip)
    }

    /// Returns the addresses to listen at for `ip`: itself, or if it is unspecified all that the adapter has
    /// now of its family.
    pub(crate) fn expand(&self, ip: IpAddr) -> Vec<IpAddr> {
        if !ip.is_unspecified() {
            return vec![ip];
        }
        self.current_addresses().into_iter().filter(|other| other.is_ipv4() == ip.is_ipv4()).collect()
    }

    /// Returns the address to connect from when the caller has not chosen one: what the kernel would use, if
    /// it is one of this adapter's. The address may have been removed since the addresses were listed;
    /// binding it fails then.
    pub(crate) fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let any: IpAddr =
            if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        match self.listed_like(peer) {
            // There is nothing to choose, and the kernel need not be asked.
            (Some(only), None) => Some(only),
            (None, _) => self.expand(any).first().copied(),
            _ => {
                let kernel = self.host.source_for(peer).ok().filter(|ip| self.owns(*ip));
                kernel.or_else(|| self.listed_like(peer).0)
            }
        }
    }

    /// Returns the first two listed addresses of the same family as `other`.
    fn listed_like(&self, other: IpAddr) -> (Option<IpAddr>, Option<IpAddr>) {
        let known = self.addresses.lock();
        let mut alike = known.iter().copied().filter(|ip| ip.is_ipv4() == other.is_ipv4());
        (alike.next(), alike.next())
    }

    /// Returns the range of ports to choose from when the caller gives port 0.
    pub(crate) fn ports(&self) -> PortRange {
        let (first, last) = (*self.config.ephemeral_ports.start(), *self.config.ephemeral_ports.end());
        PortRange::new(first, last).unwrap_or_default()
    }

    /// Returns the options of a socket for a connection.
    pub(crate) fn socket_options(&self, tos: Option<u8>, multipath: bool) -> SocketOptions {
        SocketOptions {
            path_timeout: self.config.path_timeout,
            tos,
            multipath,
            namespace: Some(self.namespace),
        }
    }

    /// Announces the changes of its interface.
    fn announce(&self, before: &Interface, now: &Interface) {
        if before.running != now.running {
            debug!(adapter = %self.interface.name, running = now.running, "port changed");
            self.events.announce(match now.running {
                true => AdapterEvent::PortUp { port: PORT },
                false => AdapterEvent::PortDown { port: PORT },
            });
        }
        if before.addresses != now.addresses {
            debug!(adapter = %self.interface.name, addresses = ?now.addresses, "addresses changed");
            self.events.announce(AdapterEvent::AddressesChanged);
        }
    }

    /// Ends all that was created from the adapter, because its interface or its addresses are gone.
    fn remove(&self) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        warn!(adapter = %self.interface.name, "adapter removed");
        self.events.end(Some(AdapterEvent::Removed));
        self.registry.device_removed();
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let monitor = self.monitor.get_mut();
        if let Some(monitor) = monitor.take() {
            monitor.abort();
        }
    }
}

/// Returns the properties, limits and abilities of an adapter of this interface.
fn info(interface: &Interface) -> AdapterInfo {
    AdapterInfo {
        version: AdapterInfo::VERSION,
        provider: ProviderKind::Soft,
        id: AdapterId(interface.index.into()),
        name: interface.name.clone(),
        vendor_id: 0,
        device_id: 0,
        firmware: String::new(),
        node_guid: 0,
        ports: 1,
        addresses: interface.addresses.clone(),
        max_read_limits: READ_LIMITS,
        max_request_data: MAX_PRIVATE_DATA,
        max_reply_data: MAX_PRIVATE_DATA,
        max_reject_data: MAX_PRIVATE_DATA,
        max_active_reject_data: 0,
        max_transfer: MAX_TRANSFER,
        max_registration: MAX_REGISTRATION,
        max_queue_depth: MAX_DEPTH,
        max_entries: MAX_ENTRIES,
        max_read_entries: MAX_ENTRIES,
        iwarp: true,
        three_phase: true,
        exact_private_data: true,
        loopback: true,
        // The bytes of a message are placed in order, because TCP delivers them so.
        in_order_dma: true,
        // A request completes when TCP has its bytes.
        early_completion: true,
        // Requests that the passive side posts first wait for the peer's first message.
        passive_sends_first: true,
        per_request_errors: true,
        accept_limits_reads: true,
        detects_withdrawal: true,
        checks_remote_read: true,
        // The provider knows which reads it has requested.
        read_sink_required: false,
        answer_timeout: None,
        max_inline: MAX_INLINE,
        max_completion_depth: MAX_COMPLETIONS,
        max_shared_depth: MAX_DEPTH,
        memory_windows: true,
        atomics: true,
        // Atomics are instructions of the processor, for peers and for this side.
        global_atomics: true,
        invalidates: true,
        solicited_events: true,
        checks_window_bounds: true,
        waits_for_shared_receives: true,
        immediate: true,
        // RFC 7306 has no Send with immediate data.
        immediate_send: false,
    }
}

/// The number of the one port of an adapter.
const PORT: u8 = 1;

/// A guard that ends the events of an adapter when the task that watches it ends, as all do when the runtime shuts down.
struct Watched(Weak<Adapter>);

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(adapter) = self.0.upgrade() {
            adapter.events.end(None);
        }
    }
}

/// Announces the changes of an adapter. Removes it when its interface is gone, or has had no address for longer than the address
/// timeout.
async fn watch(adapter: Watched, monitor: Monitor) {
    // The interface as it was announced last.
    let mut known: Option<Interface> = None;
    // The time at which an interface without an address is removed.
    let mut deadline = None;
    loop {
        // List first: the addresses may have changed between their listing and the opening of the monitor.
        {
            let Some(adapter) = adapter.0.upgrade() else { return };
            let listed = adapter.list_addresses();
            if let Ok(Some(interface)) = &listed {
                let before = known.get_or_insert_with(|| adapter.interface.clone());
                adapter.announce(before, interface);
                before.clone_from(interface);
            }
            match listed {
                // The process may be out of descriptors, which passes.
                Err(_) => {
                    drop(adapter);
                    tokio::time::sleep(LOOK_AGAIN).await;
                    continue;
                }
                Ok(None) => return adapter.remove(),
                Ok(Some(interface)) if interface.addresses.is_empty() => {
                    let now = Instant::now();
                    let limit = *deadline.get_or_insert_with(|| now + adapter.config.address_timeout);
                    if limit <= now {
                        return adapter.remove();
                    }
                }
                Ok(Some(_)) => deadline = None,
            }
        }
        let changed = match deadline {
            Some(deadline) => timeout_at(deadline, monitor.changed()).await.unwrap_or(Ok(())),
            None => monitor.changed().await,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Returns the adapter that has this address.
///
/// # Errors
/// `InvalidAddress` if no adapter has it.
pub(crate) fn resolve(host: &Host, ip: IpAddr) -> Result<AdapterId, OpenError> {
    host.interface_of(ip)
        .map_err(|source| OpenError::Os { call: "getifaddrs", source: source.into() })?
        .map(|interface| AdapterId(interface.index.into()))
        .ok_or(OpenError::InvalidAddress(ip))
}

/// Lists the interfaces of a host.
///
/// # Errors
/// `Os` if the system call fails.
fn list(host: &Host) -> Result<Vec<Interface>, OpenError> {
    host.interfaces().map_err(|source| OpenError::Os { call: "getifaddrs", source: source.into() })
}

/// Lists the addresses of all interfaces that are up.
///
/// # Errors
/// `Os` if the system call fails.
pub(crate) fn addresses(host: &Host) -> Result<Vec<IpAddr>, OpenError> {
    let up = list(host)?.into_iter().filter(|interface| interface.up);
    Ok(up.flat_map(|interface| interface.addresses).collect())
}

/// Returns the local address from which a peer is reached.
///
/// # Errors
/// `Unreachable` without a route; `InvalidAddress` for an address that can never be a peer; `Os`.
pub(crate) fn local_for(host: &Host, remote: IpAddr) -> Result<IpAddr, OpenError> {
    host.source_for(remote).map_err(|error| route_error(error, remote))
}

/// The number that no interface has.
const EVERY_INTERFACE: u32 = 0;

impl Adapter {
    /// Opens the adapter of a listener at every address of this machine. Its addresses are the unspecified
    /// ones, which never go away, so that it is not removed.
    ///
    /// # Errors
    /// `Unsupported` without a runtime, or if the runtime lacks I/O or timers.
    pub(crate) fn everywhere(config: SoftConfig) -> Result<Arc<Self>, OpenError> {
        let runtime = current_runtime()?;
        let interface = Interface {
            index: EVERY_INTERFACE,
            name: "any".into(),
            addresses: vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
            up: true,
            running: true,
            loopback: false,
        };
        Ok(Self::new(Host::Kernel, runtime, interface, config))
    }

    /// Returns whether this is the adapter of every interface.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.interface.index == EVERY_INTERFACE
    }

    /// Returns the adapter for a connection to this local address: this one, or if this is the adapter of
    /// every interface, the adapter of the interface that has the address. That adapter is opened once, and
    /// stays open as long as this one.
    ///
    /// No adapter lists link-local addresses, and no interface lists those of a local route (`ip route add
    /// local`). This adapter serves them, and the addresses of an interface whose adapter cannot be opened.
    pub(crate) fn serving(self: &Arc<Self>, local: SocketAddr) -> Arc<Self> {
        if !self.is_everywhere() {
            return self.clone();
        }
        let opened = self.opened(|adapter| adapter.has_listed(local.ip()));
        opened.or_else(|| self.open_serving(local)).unwrap_or_else(|| self.clone())
    }

    /// Returns the first open adapter that `is_wanted`.
    fn opened(&self, is_wanted: impl Fn(&Self) -> bool) -> Option<Arc<Self>> {
        let mut opened = self.of_interfaces.lock();
        let removed: Vec<_> = opened.extract_if(.., |adapter| adapter.is_removed()).collect();
        let found = opened.iter().find(|adapter| is_wanted(adapter)).cloned();
        drop(opened);
        drop(removed);
        found
    }

    /// Returns the adapter of the interface that has the address now, opening it if necessary.
    fn open_serving(&self, local: SocketAddr) -> Option<Arc<Self>> {
        // Another network namespace has other interfaces.
        let is_link_local = matches!(local, SocketAddr::V6(v6) if v6.scope_id() != 0);
        if is_link_local || !self.is_of_this_thread() {
            return None;
        }
        let id = resolve(&self.host, local.ip()).ok()?;
        let is_same = |adapter: &Self| u64::from(adapter.interface.index) == id.0;
        if let Some(known) = self.opened(is_same) {
            return Some(known);
        }
        // The tasks of the new adapter run on this adapter's runtime, whichever task calls.
        let _home = self.runtime.enter();
        let adapter = Self::open(self.host.clone(), id, self.config.clone())
            .inspect_err(|error| debug!(%local, %error, "served without the adapter of its interface"))
            .ok()?;
        // Another task may have opened the same adapter since `opened` was called.
        let mut opened = self.of_interfaces.lock();
        let first = opened.iter().find(|other| is_same(other) && !other.is_removed()).cloned();
        if first.is_none() {
            opened.push(adapter.clone());
        }
        drop(opened);
        Some(first.unwrap_or(adapter))
    }
}

/// The time that a refused peer has to read the last message before the socket is closed.
const LINGER: Duration = Duration::from_secs(1);

/// Closes sockets after their peers have read the last message: a limited number at a time, so that a flood
/// of peers that are refused does not use up the descriptors.
pub(crate) struct LingeringClose {
    runtime: Handle,
    places: Arc<Semaphore>,
    descriptors: Arc<Holder>,
}

impl LingeringClose {
    pub(crate) fn new(runtime: Handle, most: usize, descriptors: Arc<Holder>) -> Self {
        Self { runtime, places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))), descriptors }
    }

    /// Sends a few last bytes and closes once the peer has ended its half, or has had the time to.
    pub(crate) fn close_after(&self, stream: Stream, last_words: Bytes) {
        // At once, so that they are sent even when the runtime is shutting down; a fresh socket has room for
        // them.
        let sent = stream.send_now(&last_words).unwrap_or(0);
        let rest = last_words.slice(sent..);
        // Without a place the socket is closed at once, and the peer may lose the message.
        let Ok(place) = self.places.clone().try_acquire_owned() else { return };
        let Some(descriptor) = self.descriptors.try_hold() else { return };
        self.runtime.spawn(async move {
            let close = async {
                stream.write_all(&rest).await?;
                // A peer that has reset the connection makes no difference: the rest is discarded all the same.
                let _ = stream.shut_down(Shutdown::Write);
                // Closing with unread bytes would send a reset, which may overtake the last words.
                stream.discard().await;
                std::io::Result::Ok(())
            };
            // The outcome is not used: no caller waits for it.
            let _ = tokio::time::timeout(LINGER, close).await;
            drop((place, descriptor));
        });
    }
}

#[cfg(feature = "inspect")]
impl Inspect for Adapter {
    fn inspect(&self, snapshot: &mut Snapshot) {
        let mut report =
            AdapterReport { id: self.domain, age: self.opened_at().age(), ..AdapterReport::default() };
        report.name.clone_from(&self.interface.name);
        report.provider = "soft".into();
        report.addresses = self.listed_addresses();
        report.is_removed = self.is_removed();
        snapshot.adapters.push(report);
        self.registry().inspect(self.domain, snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The adapter does not own addresses of other interfaces, or of none: it neither listens nor connects
    // there.
    #[tokio::test]
    async fn loopback_adapter_owns_only_its_network() {
        let id = resolve(&Host::Kernel, Ipv4Addr::LOCALHOST.into()).expect("the loopback interface");
        let adapter = Adapter::open(Host::Kernel, id, SoftConfig::default()).expect("opened");
        for own in ["127.0.0.1", "127.0.0.7", "::ffff:127.0.0.1", "0.0.0.0", "::"] {
            assert!(adapter.owns(own.parse().expect("an address")), "{own}");
        }
        for foreign in ["192.0.2.1", "128.0.0.1", "2001:db8::1"] {
            assert!(!adapter.owns(foreign.parse().expect("an address")), "{foreign}");
        }
    }
}
