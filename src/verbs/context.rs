//! The context of an adapter, which everything made from the adapter holds: its device, our own context of that with a
//! protection domain, and the lists of the objects that end with the adapter.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "inspect")]
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tracing::{debug, warn};

use super::config::VerbsConfig;
use super::devices::{self, Device, without_scope};
use super::routes::{CmId, EventHandler, EventRouter, Routes};
use super::workers::Workers;
use crate::error::{OpenError, PostErrorKind};
use crate::events::{AdapterEvent, Announcer};
use crate::inflight::{ReadPlace, ReadPlaces};
#[cfg(feature = "inspect")]
use crate::inspect::{AdapterReport, Inspect, Mark, Place, Snapshot, register};
use crate::net::kernel::interfaces::{is_link_local, scoped_source_for};
use crate::provider::info::AdapterInfo;
use crate::provider::next_domain;
use crate::provider::registry::Registry;
use crate::provider::work::Flags;
use crate::status::porting::CmEvent as EventKind;
use crate::sync::Mutex;
use crate::sys::{
    AccessFlags, CmEvent, CompletionChannel, Context, DeviceAttributes, EventChannel, ProtectionDomain,
    QpAttributes, QpState, QueuePair, Quirks, device_names, forget_removed_devices,
};

/// The number of times that a removed device is looked for in the list of devices, and the pauses between
/// them: each is twice as long as the one before.
const FORGET_TRIES: u32 = 20;
const FORGET_PAUSE: Duration = Duration::from_millis(20);
const FORGET_MOST: Duration = Duration::from_secs(1);

/// The open objects of a device.
pub(crate) struct Opened {
    /// An id that is bound to an address of the device: its events report the removal of the device.
    anchor: Arc<CmId>,
    /// The first state of every queue pair, in which it has no peer yet.
    initial: QpAttributes,
    /// The rights of peers in it.
    rights: AccessFlags,
    pub(crate) channel: Arc<CompletionChannel>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) context: Arc<Context>,
}

impl Opened {
    /// Creates the open objects of a device, from the id that watches an address of it and the rights that peers have
    /// in every queue pair.
    pub(super) fn new(
        anchor: Arc<CmId>,
        rights: AccessFlags,
        channel: Arc<CompletionChannel>,
        domain: Arc<ProtectionDomain>,
        context: Arc<Context>,
    ) -> io::Result<Self> {
        let initial = initial(&anchor, rights)?;
        Ok(Self { anchor, initial, rights, channel, domain, context })
    }

    /// Returns the port of the address that it watches, and the GID of this address.
    pub(crate) fn gid(&self) -> Option<(u8, Ipv6Addr)> {
        let [own, _] = self.anchor.gids();
        Some((self.anchor.device()?.port, own?))
    }

    /// Takes a new queue pair of the device to its first state, in which it can have receives.
    pub(crate) fn initialize(&self, queue_pair: &QueuePair) -> io::Result<()> {
        queue_pair.modify(&self.initial).or_else(|error| match error.raw_os_error() {
            // The entry of the P_Key table may be empty by now.
            Some(libc::EINVAL) => queue_pair.modify(&initial(&self.anchor, self.rights)?),
            _ => Err(error),
        })
    }

    /// Returns the first state of a queue pair for the connection of this id. Its path may be by another port than that
    /// of the anchor, or in another partition, and the index of a P_Key changes whenever the subnet manager writes the
    /// table anew.
    pub(crate) fn initial_for(&self, id: &CmId) -> io::Result<QpAttributes> {
        initial(id, self.rights)
    }
}

/// Returns the first state of a queue pair on the path of this id, with these rights of the peer.
fn initial(id: &CmId, rights: AccessFlags) -> io::Result<QpAttributes> {
    let mut initial = id.qp_attributes(QpState::Init)?;
    initial.set_access(rights);
    Ok(initial)
}

/// Returns the error of a system call that makes something. `EAGAIN` is a limit then.
pub(super) fn failed(call: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| {
        let source = match source.raw_os_error() {
            Some(libc::EAGAIN) => {
                let limit = "a limit is reached, such as `rdma.max` of the control group (EAGAIN)";
                io::Error::new(io::ErrorKind::OutOfMemory, limit)
            }
            _ => source,
        };
        OpenError::Os { call, source: source.into() }
    }
}

/// The parts of a [`AdapterContext`].
pub(super) struct ContextParts {
    pub(super) device: Device,
    pub(super) config: VerbsConfig,
    pub(super) runtime: Handle,
    pub(super) router: Arc<EventRouter>,
    pub(super) events: Arc<EventChannel>,
    pub(super) attributes: DeviceAttributes,
    pub(super) info: AdapterInfo,
    pub(super) vectors: u32,
    pub(super) opened: Option<Arc<Opened>>,
}

/// The addresses as they were announced.
#[derive(Default)]
pub(super) struct AnnouncedAddresses {
    pub(super) known: Vec<SocketAddr>,
    /// There is a task that waits for the announcements of the kernel.
    pub(super) is_watched: bool,
}

/// One opened adapter, shared by everything created from it.
pub(crate) struct AdapterContext {
    /// Unique in the process, one per open.
    pub(crate) domain: u64,
    pub(crate) device: Device,
    /// The addresses that led to the device when it was last asked, with port 0.
    addresses: Mutex<Vec<SocketAddr>>,
    /// They have changed, and that is not logged yet.
    has_unlogged_addresses: AtomicBool,
    pub(crate) config: VerbsConfig,
    pub(crate) runtime: Handle,
    pub(crate) router: Arc<EventRouter>,
    pub(crate) events: Arc<EventChannel>,
    pub(super) attributes: DeviceAttributes,
    info: Arc<AdapterInfo>,
    /// The number of vectors by which completions come.
    pub(super) vectors: u32,
    /// `None` once the device is removed: some drivers cannot let it go before the last of these is closed.
    opened: Mutex<Option<Arc<Opened>>>,
    removed: AtomicBool,
    /// The runtime has shut down, and with it the reactor.
    stopped: AtomicBool,
    registry: Arc<Registry>,
    /// Registered memory, which goes after the queue pairs that may use it.
    pub(crate) regions: Arc<Registry>,
    /// The completion queues, which go after what reports to them.
    pub(crate) groups: Arc<Registry>,
    /// Every queue pair of the device.
    pub(crate) routes: Routes,
    /// The threads for the calls that ask for a route. Those that connect do not wait for them: each may wait for
    /// another service of the machine.
    pub(crate) resolution: Arc<Workers>,
    /// The threads for the calls that connect. These calls do not wait for those that end connections.
    pub(crate) setup: Arc<Workers>,
    pub(crate) teardown: Arc<Workers>,
    tasks: Mutex<Vec<AbortHandle>>,
    /// The places of connects in progress, if their number is limited. Closed at the end of the adapter.
    connects: Option<Arc<Semaphore>>,
    /// The places of reads in flight, if their number is limited. Closed at the end of the adapter.
    pub(super) reads: Option<ReadPlaces>,
    /// When it was opened, and its place among what snapshots look at.
    #[cfg(feature = "inspect")]
    inspected: (Mark, OnceLock<Place>),
    pub(super) announcer: Announcer,
    pub(super) announced: Mutex<AnnouncedAddresses>,
    /// Held while an event of the device is taken and added for its readers, so that they get the events in their order.
    pub(super) event_order: Mutex<()>,
}

impl AdapterContext {
    /// Creates the context of an adapter.
    pub(super) fn new(parts: ContextParts) -> Self {
        let ContextParts { device, config, runtime, router, events, attributes, info, vectors, opened } =
            parts;
        Self {
            domain: next_domain(),
            info: Arc::new(info),
            addresses: Mutex::new(device.addresses.clone()),
            has_unlogged_addresses: AtomicBool::new(false),
            device,
            connects: config.max_connects.map(|connects| Arc::new(Semaphore::new(connects))),
            reads: config.max_reads.map(ReadPlaces::new),
            config,
            resolution: Workers::new(runtime.clone(), false),
            setup: Workers::new(runtime.clone(), false),
            teardown: Workers::new(runtime.clone(), attributes.quirks.ends_on_the_processor),
            runtime,
            router,
            events,
            attributes,
            vectors,
            opened: Mutex::new(opened),
            removed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            registry: Arc::default(),
            regions: Arc::default(),
            groups: Arc::default(),
            routes: Routes::default(),
            tasks: Mutex::default(),
            #[cfg(feature = "inspect")]
            inspected: (Mark::now(), OnceLock::new()),
            announcer: Announcer::default(),
            announced: Mutex::default(),
            event_order: Mutex::default(),
        }
    }

    /// Returns the open objects; `None` once the device is removed.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.lock().clone()
    }

    /// Returns the number of the protection domain, which is unique in the process.
    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// Returns the properties, limits and abilities of the adapter, with the address by which it was opened.
    pub(crate) fn info(&self) -> &Arc<AdapterInfo> {
        &self.info
    }

    /// Returns the properties, limits and abilities of the adapter, with the addresses that it has now.
    pub(crate) fn current_info(&self) -> AdapterInfo {
        AdapterInfo { addresses: without_scope(&self.update_addresses()), ..self.info.as_ref().clone() }
    }

    /// Returns whether the device speaks iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        self.info.iwarp
    }

    /// Returns the deviations of its driver.
    pub(crate) fn quirks(&self) -> &Quirks {
        &self.attributes.quirks
    }

    /// Returns whether it was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns whether its runtime has shut down.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits for a place among the connects in progress, which is free again when the permit is dropped. `None` without a limit, and
    /// once the adapter is removed or its runtime has shut down.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line.
    pub(super) async fn connect_place(&self) -> Option<OwnedSemaphorePermit> {
        self.connects.clone()?.acquire_owned().await.ok()
    }

    /// Returns the place among the reads in flight of one that is being posted, if their number is limited.
    ///
    /// # Errors
    /// `ReadsFull`.
    pub(super) fn read_place(&self, flags: Flags, length: usize) -> Result<Option<ReadPlace>, PostErrorKind> {
        self.reads
            .as_ref()
            .map_or(Ok(None), |places| places.place_for(flags.contains(Flags::RESERVED), length))
    }

    /// Returns the registry of the objects that end with the adapter.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Lets snapshots see it, as long as it exists.
    #[cfg(feature = "inspect")]
    pub(super) fn show(self: &Arc<Self>) {
        let object: Weak<Self> = Arc::downgrade(self);
        let _ = self.inspected.1.set(register(object));
    }

    /// Returns the time when it was opened.
    #[cfg(feature = "inspect")]
    pub(super) fn opened_at(&self) -> Mark {
        self.inspected.0
    }

    /// Returns the addresses that lead to the device now, with port 0. If the system does not list them, returns those
    /// of the last time.
    ///
    /// Addresses come and go with interfaces, leases and bonds. They are asked for at moments at which it costs little, because
    /// rdma_cm announces none of that, and an announcement of the kernel would come before the device has the address.
    pub(crate) fn update_addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.list_addresses();
        self.log_addresses();
        addresses
    }

    /// Returns the addresses like [`update_addresses`](Self::update_addresses), for callers that hold a lock. They call
    /// [`log_addresses`](Self::log_addresses) once it is released, because a subscriber may call anything.
    pub(super) fn list_addresses(&self) -> Vec<SocketAddr> {
        let found = match self.is_removed() {
            true => None,
            false => devices::addresses_of(&self.device.name, &self.events, &self.config).ok(),
        };
        let mut known = self.addresses.lock();
        let changed = found.filter(|found| *known != *found);
        if let Some(addresses) = &changed {
            known.clone_from(addresses);
        }
        let addresses = known.clone();
        drop(known);
        if changed.is_some() {
            self.has_unlogged_addresses.store(true, Ordering::Release);
        }
        addresses
    }

    /// Logs the addresses if they have changed since the last time. The caller holds no lock.
    pub(super) fn log_addresses(&self) {
        if self.has_unlogged_addresses.load(Ordering::Relaxed)
            && self.has_unlogged_addresses.swap(false, Ordering::Acquire)
        {
            let addresses = self.addresses.lock().clone();
            debug!(adapter = %self.device.name, ?addresses, "addresses changed");
        }
    }

    /// Returns the addresses that led to the device when it was last asked, in an order of their own.
    pub(super) fn known_addresses(&self) -> Vec<SocketAddr> {
        let mut known = self.addresses.lock().clone();
        known.sort_unstable();
        known
    }

    /// Returns whether an id is bound to the device, or to none yet because its address is unspecified.
    pub(crate) fn has(&self, id: &CmId) -> bool {
        id.device().is_none_or(|device| device.name == self.device.name)
    }

    /// Returns the addresses that `address` stands for when listening: itself, or all of its family that need no scope.
    /// The caller logs the addresses, like one of [`list_addresses`](Self::list_addresses).
    pub(crate) fn expand(&self, address: SocketAddr) -> Vec<SocketAddr> {
        if !address.ip().is_unspecified() {
            return vec![address];
        }
        let mut all: Vec<_> =
            self.list_addresses().into_iter().filter(|other| is_like(other, address)).collect();
        all.iter_mut().for_each(|other| other.set_port(address.port()));
        all
    }

    /// Returns the address to connect from, with port 0, if the caller has not chosen one: the peer's address if it is
    /// ours, or the one that the kernel would use if that is ours, or any of the same family. The caller logs the
    /// addresses, like one of [`list_addresses`](Self::list_addresses).
    pub(crate) fn source_for(&self, peer: SocketAddr) -> Option<SocketAddr> {
        let mut itself = peer;
        itself.set_port(0);
        if self.addresses.lock().contains(&itself) {
            return Some(itself);
        }
        let kernel = scoped_source_for(peer).ok();
        if let Some(kernel) = kernel.filter(|kernel| self.addresses.lock().contains(kernel)) {
            return Some(kernel);
        }
        // Either may have been added since.
        let known = self.list_addresses();
        let either = [Some(itself), kernel].into_iter().flatten().find(|address| known.contains(address));
        either.or_else(|| known.into_iter().find(|other| is_like(other, peer)))
    }

    /// Has a thread end everything: the device is gone.
    pub(crate) fn remove(self: &Arc<Self>) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        warn!(adapter = %self.device.name, "adapter removed");
        self.announcer.end(Some(AdapterEvent::Removed));
        let adapter = self.clone();
        self.teardown.run_next(Box::new(move || adapter.end()));
        self.close_places();
    }

    /// Ends the waits for places among the connects and the reads.
    fn close_places(&self) {
        self.connects.iter().for_each(|places| places.close());
        self.reads.iter().for_each(ReadPlaces::close);
    }

    /// Ends all objects of the device, and closes our context of it.
    fn end(&self) {
        let opened = self.opened.lock().take();
        if let Some(opened) = &opened {
            opened.context.mark_removed();
        }
        self.registry.device_removed();
        self.regions.device_removed();
        self.groups.device_removed();
        self.stop();
        drop(opened);
        self.runtime.spawn(forget(self.device.name.clone(), self.router.clone()));
    }

    /// Ends everything that waits for an event: the runtime has shut down, and no task reads events.
    pub(crate) fn runtime_ended(&self) {
        if !self.is_removed() && !self.stopped.swap(true, Ordering::AcqRel) {
            self.announcer.end(None);
            self.close_places();
            self.registry.runtime_ended();
        }
    }

    /// Sets the tasks that end with the context.
    pub(super) fn set_tasks(&self, tasks: Vec<AbortHandle>) {
        *self.tasks.lock() = tasks;
    }

    /// Adds a task that ends with the context.
    pub(super) fn add_task(&self, task: AbortHandle) {
        self.tasks.lock().push(task);
    }

    /// Ends the tasks.
    fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.into_iter().for_each(|task| task.abort());
    }
}

/// Returns whether an address can lead to a peer with another: it is of its family, and if one of them is link-local, so is the
/// other, on the same link.
fn is_like(address: &SocketAddr, other: SocketAddr) -> bool {
    match (address, other) {
        (SocketAddr::V6(own), SocketAddr::V6(peer)) if is_link_local(address) => {
            is_link_local(&other) && own.scope_id() == peer.scope_id()
        }
        _ => address.is_ipv4() == other.is_ipv4() && !is_link_local(&other),
    }
}

/// Has librdmacm close its own context of a device that was removed. That works once the device has left the list,
/// which it does a little after the event, and once no id is left, of which the kernel may take a minute to destroy the
/// last. Until then the removal waits in the kernel.
async fn forget(device: String, router: Arc<EventRouter>) {
    let mut pause = FORGET_PAUSE;
    let mut tries = 0;
    while tries < FORGET_TRIES || !router.is_empty() {
        tokio::time::sleep(pause).await;
        pause = FORGET_MOST.min(pause * 2);
        tries += 1;
        let left = router.is_empty();
        if device_names().is_ok_and(|names| !names.contains(&device)) {
            forget_removed_devices();
            if left {
                return;
            }
        }
    }
}

impl EventHandler for AdapterContext {
    fn event(self: Arc<Self>, event: CmEvent) {
        match event.kind {
            EventKind::DEVICE_REMOVAL => self.remove(),
            // Of the address that the adapter watches: it stays bound to the device, which is all that is needed.
            EventKind::ADDR_CHANGE => self.announce_addresses(),
            kind => {
                debug!(adapter = %self.device.name, event = kind.name().unwrap_or("unknown"), status = event.status, "event ignored")
            }
        }
    }
}

impl Drop for AdapterContext {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(feature = "inspect")]
impl Inspect for AdapterContext {
    fn inspect(&self, snapshot: &mut Snapshot) {
        let mut report =
            AdapterReport { id: self.domain, age: self.opened_at().age(), ..AdapterReport::default() };
        report.name.clone_from(&self.device.name);
        report.provider = "verbs".into();
        report.addresses = self.known_addresses().iter().map(SocketAddr::ip).collect();
        report.is_removed = self.is_removed();
        snapshot.adapters.push(report);
        self.registry().inspect(self.domain, snapshot);
    }
}
