//! An opened adapter: one network interface, its protection domain, and all that must end when it goes away.

mod everywhere;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::config::SoftConfig;
use super::handshake::LingeringClose;
use super::registration::Registration;
use super::remote_keys::KeyTable;
use crate::error::{OpenError, RegisterError};
use crate::memory::Owned;
use crate::provider::info::{AdapterInfo, ProviderKind};
use crate::provider::net::errors::route_error;
use crate::provider::net::leases::Namespace;
use crate::provider::net::options::SocketOptions;
use crate::provider::net::ports::PortRange;
use crate::provider::net::{Host, Interface, Monitor};
use crate::provider::next_domain;
use crate::provider::registry::Registry;
use crate::provider::runtime;
use crate::sync::Mutex;
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
/// Copied when it is posted.
const MAX_INLINE: usize = 4096;
const MAX_COMPLETIONS: usize = 1 << 20;

/// When to list the addresses again after that has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One opened adapter, shared by everything created from it.
pub(crate) struct Adapter {
    /// Unique in the process, one per open: the protection domain.
    pub(crate) domain: u64,
    pub(crate) interface: Interface,
    info: Arc<AdapterInfo>,
    /// The host that has the interface.
    pub(crate) host: Host,
    namespace: Namespace,
    pub(crate) config: SoftConfig,
    pub(crate) keys: Arc<KeyTable>,
    pub(crate) runtime: Handle,
    pub(crate) lingering_close: LingeringClose,
    removed: AtomicBool,
    registry: Arc<Registry>,
    monitor: Mutex<Option<AbortHandle>>,
    /// The adapters that the adapter of every interface has opened.
    of_interfaces: Mutex<Vec<Arc<Adapter>>>,
}

impl Adapter {
    /// Opens the interface with this id and begins to watch its addresses.
    ///
    /// # Errors
    /// No such interface, no runtime, or no netlink.
    pub(crate) fn open(host: Host, id: AdapterId, config: SoftConfig) -> Result<Arc<Self>, OpenError> {
        let runtime = match &host {
            Host::Kernel => runtime::current()?,
            #[cfg(feature = "sim")]
            Host::Sim(_) => runtime::with_timers()?,
        };
        let interface = list(&host)?
            .into_iter()
            .find(|interface| u64::from(interface.index) == id.0 && !interface.addresses.is_empty())
            .ok_or(OpenError::InvalidAdapter(id))?;
        let monitor =
            host.monitor().map_err(|source| OpenError::Os { call: "netlink", source: source.into() })?;
        let core = Self::new(host, runtime, interface, config);
        let watch = core.runtime.spawn(watch(Arc::downgrade(&core), monitor)).abort_handle();
        *core.monitor.lock() = Some(watch);
        info!(adapter = %core.interface.name, domain = core.domain, "adapter opened");
        Ok(core)
    }

    fn new(host: Host, runtime: Handle, interface: Interface, config: SoftConfig) -> Arc<Self> {
        let lingering_close = LingeringClose::new(runtime.clone(), config.half_open_places());
        Arc::new(Self {
            domain: next_domain(),
            info: Arc::new(info(&interface)),
            interface,
            namespace: host.namespace(),
            config,
            keys: Arc::new(KeyTable::new(host.clone())),
            host,
            lingering_close,
            runtime,
            removed: AtomicBool::new(false),
            registry: Arc::default(),
            monitor: Mutex::default(),
            of_interfaces: Mutex::default(),
        })
    }

    /// Memory that work requests can use, and no peer.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn allocate(&self, length: usize) -> Result<Owned, RegisterError> {
        let memory = Owned::zeroed(length).and_then(|memory| self.host.charge(memory));
        memory.ok_or(RegisterError::OutOfMemory { length })
    }

    /// Puts memory under a key.
    ///
    /// # Errors
    /// `OutOfMemory`, `InsufficientResources`.
    pub(crate) fn register(&self, memory: Owned, access: Access) -> Result<Arc<Registration>, RegisterError> {
        let length = memory.len();
        let memory = self.host.charge(memory).ok_or(RegisterError::OutOfMemory { length })?;
        self.keys.register(memory.share(), access)
    }

    /// No runtime: registering takes no time.
    pub(crate) fn blocking(&self) -> Option<&Handle> {
        None
    }

    /// The objects that end with the adapter.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The protection domain.
    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// Its properties, limits and abilities.
    pub(crate) fn info(&self) -> &Arc<AdapterInfo> {
        &self.info
    }

    /// The same: it goes with the last of the addresses that it had when it was opened.
    pub(crate) fn current_info(&self) -> AdapterInfo {
        self.info.as_ref().clone()
    }

    /// Returns whether it was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns whether this is one of the adapter's addresses; the unspecified ones stand for all of them.
    pub(crate) fn owns(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_unspecified()
            || self.interface.addresses.contains(&ip)
            || (self.interface.loopback && ip.is_loopback())
    }

    /// The addresses that `ip` stands for when listening: itself, or all of its family.
    pub(crate) fn expand(&self, ip: IpAddr) -> Vec<IpAddr> {
        if !ip.is_unspecified() {
            return vec![ip];
        }
        self.interface.addresses.iter().copied().filter(|other| other.is_ipv4() == ip.is_ipv4()).collect()
    }

    /// The address to connect from when the caller has not chosen one: what the kernel would use, if it is ours.
    pub(crate) fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let any: IpAddr =
            if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        match self.expand(any)[..] {
            [] => None,
            // There is nothing to choose, and the kernel need not be asked.
            [only] => Some(only),
            [first, ..] => Some(self.host.source_for(peer).ok().filter(|ip| self.owns(*ip)).unwrap_or(first)),
        }
    }

    /// The ports to choose from when the caller gives port 0.
    pub(crate) fn ports(&self) -> PortRange {
        let (first, last) = (*self.config.ephemeral_ports.start(), *self.config.ephemeral_ports.end());
        PortRange::new(first, last).unwrap_or_default()
    }

    /// The options of a socket for a connection.
    pub(crate) fn socket_options(&self, tos: Option<u8>, multipath: bool) -> SocketOptions {
        SocketOptions {
            path_timeout: self.config.path_timeout,
            tos,
            multipath,
            namespace: Some(self.namespace),
        }
    }

    /// Ends everything: the address is gone.
    fn remove(&self) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        warn!(adapter = %self.interface.name, "adapter removed");
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

/// The properties, limits and abilities of an adapter of this interface.
fn info(interface: &Interface) -> AdapterInfo {
    AdapterInfo {
        version: AdapterInfo::VERSION,
        provider: ProviderKind::Soft,
        id: AdapterId(interface.index.into()),
        name: interface.name.clone(),
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
        // The requests that the passive side posts first wait for the peer's first word.
        passive_sends_first: true,
        per_request_errors: true,
        accept_limits_reads: true,
        detects_withdrawal: true,
        checks_remote_read: true,
        // It knows what it has asked for.
        read_sink_required: false,
        answer_timeout: None,
        max_inline: MAX_INLINE,
        max_completion_depth: MAX_COMPLETIONS,
        max_shared_depth: MAX_DEPTH,
        memory_windows: true,
        atomics: true,
        invalidates: true,
        solicited_events: true,
        checks_window_bounds: true,
        waits_for_shared_receives: true,
        immediate: true,
        // RFC 7306 has no Send that carries any.
        immediate_send: false,
    }
}

/// Removes the adapter when the last address that it had when it was opened is gone.
async fn watch(adapter: Weak<Adapter>, monitor: Monitor) {
    loop {
        // Look first: something may have changed between the listing of the addresses and the opening of the monitor.
        {
            let Some(adapter) = adapter.upgrade() else { return };
            let Ok(now) = adapter.host.interfaces() else {
                drop(adapter);
                // Out of descriptors, perhaps: that passes.
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            };
            let mine = now.iter().find(|interface| interface.index == adapter.interface.index);
            let left = mine.is_some_and(|interface| {
                adapter.interface.addresses.iter().any(|address| interface.addresses.contains(address))
            });
            if !left {
                return adapter.remove();
            }
        }
        if monitor.changed().await.is_err() {
            return;
        }
    }
}

/// The adapter that has this address.
///
/// # Errors
/// `InvalidAddress` when none does.
pub(crate) fn resolve(host: &Host, ip: IpAddr) -> Result<AdapterId, OpenError> {
    host.interface_of(ip)
        .map_err(|source| OpenError::Os { call: "getifaddrs", source: source.into() })?
        .map(|interface| AdapterId(interface.index.into()))
        .ok_or(OpenError::InvalidAddress(ip))
}

/// The interfaces of a host.
///
/// # Errors
/// `Os` when the system does not tell.
fn list(host: &Host) -> Result<Vec<Interface>, OpenError> {
    host.interfaces().map_err(|source| OpenError::Os { call: "getifaddrs", source: source.into() })
}

/// Every address that can be served.
///
/// # Errors
/// `Os` when the system does not tell.
pub(crate) fn addresses(host: &Host) -> Result<Vec<IpAddr>, OpenError> {
    let up = list(host)?.into_iter().filter(|interface| interface.up);
    Ok(up.flat_map(|interface| interface.addresses).collect())
}

/// The local address from which a peer is reached.
///
/// # Errors
/// `Unreachable` without a route; `InvalidAddress` for what can never be a peer; `Os`.
pub(crate) fn local_for(host: &Host, remote: IpAddr) -> Result<IpAddr, OpenError> {
    host.source_for(remote).map_err(|error| route_error(error, remote))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of what another interface has, or nobody, this one is not the owner: it neither listens nor connects there.
    #[tokio::test]
    async fn the_loopback_interface_owns_all_of_its_network_and_nothing_else() {
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
