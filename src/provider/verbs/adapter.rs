//! An opened adapter: one device, our own context of it with a protection domain, and all that must end with it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::cm_id::{CmId, EventHandler, EventRouter};
use super::completions::Completions;
use super::config::VerbsConfig;
use super::devices::{self, Device, without_scope};
use super::info;
use super::limits::Limits;
use super::queue_pair::QueuePair;
use super::reactor;
use super::work_queue::RequestId;
use super::workers::Workers;
use crate::error::OpenError;
use crate::provider::info::AdapterInfo;
use crate::provider::net::kernel::interfaces::{is_link_local, scoped_source_for};
use crate::provider::next_domain;
use crate::provider::registry::Registry;
use crate::sync::{Mutex, MutexGuard};
use crate::sys::{
    AccessFlags, CmEvent, CompletionChannel, Context, DeviceAttributes, EventChannel, ProtectionDomain,
    QpAttributes, QpState, Quirks, Transport, device_names, event, forget_removed_devices,
};
use crate::types::AdapterId;

/// The number of times that a removed device is looked for in the list of devices, and the pauses between
/// them: each is twice as long as the one before.
const FORGET_TRIES: u32 = 20;
const FORGET_PAUSE: Duration = Duration::from_millis(20);
const FORGET_MOST: Duration = Duration::from_secs(1);

/// The open objects of a device.
pub(crate) struct Opened {
    /// An id that is bound to an address of the device: it tells when the device goes.
    _anchor: Arc<CmId>,
    /// The first state of every queue pair.
    pub(crate) initial: QpAttributes,
    /// The rights of peers in it.
    rights: AccessFlags,
    /// The port and the P_Key in it.
    path: (u8, u16),
    pub(crate) channel: Arc<CompletionChannel>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) context: Arc<Context>,
}

/// A device of which no address is watched yet.
struct Parts {
    attributes: DeviceAttributes,
    channel: Arc<CompletionChannel>,
    domain: Arc<ProtectionDomain>,
    context: Arc<Context>,
}

impl Parts {
    /// Opens the device with this name.
    ///
    /// # Errors
    /// No permission, or no memory.
    fn open(name: &str) -> Result<Self, OpenError> {
        let context = Context::open(name).map_err(failed("ibv_open_device"))?;
        let attributes = context.attributes().map_err(failed("ibv_query_device"))?;
        let domain = ProtectionDomain::new(&context).map_err(failed("ibv_alloc_pd"))?;
        let channel = CompletionChannel::new(&context).map_err(failed("ibv_create_comp_channel"))?;
        Ok(Self { attributes, channel, domain, context })
    }

    /// The limits of its queues.
    fn limits(&self) -> Limits {
        Limits::of(&self.context, &self.channel, &self.domain, &self.attributes)
    }

    /// All that is open, with the id that watches an address of it; `None` when that id has lost the device.
    fn into_opened(self, anchor: Arc<CmId>) -> Option<Arc<Opened>> {
        let Self { attributes, channel, domain, context } = self;
        let mut initial = anchor.qp_attributes(QpState::Init).ok()?;
        // The rights of a peer depend on each region.
        let remote = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let atomics = if attributes.atomics { AccessFlags::REMOTE_ATOMIC } else { AccessFlags::empty() };
        let rights = AccessFlags::LOCAL_WRITE | remote | atomics;
        initial.set_access(rights);
        let path = anchor.path();
        Some(Arc::new(Opened { _anchor: anchor, initial, rights, path, channel, domain, context }))
    }
}

impl Opened {
    /// The first state of a queue pair for the connection of this id, if its path is another than that of the anchor: by
    /// another port of the device, or in another partition.
    ///
    /// # Errors
    /// Those of rdma_init_qp_attr(3).
    pub(crate) fn initial_for(&self, id: &CmId) -> io::Result<Option<QpAttributes>> {
        if id.path() == self.path {
            return Ok(None);
        }
        let mut initial = id.qp_attributes(QpState::Init)?;
        initial.set_access(self.rights);
        Ok(Some(initial))
    }
}

/// The error of a call of the system that makes something. `EAGAIN` is a limit then.
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

/// The queue pairs of the device by the keys in their requests. A key is used again only after all the others.
#[derive(Default)]
struct QueuePairs {
    by_key: HashMap<u32, Weak<QueuePair>>,
    /// The keys by the device's numbers, of those with a shared receive queue.
    by_number: HashMap<u32, u32>,
    next: u32,
}

/// One opened adapter, shared by everything created from it.
pub(crate) struct Adapter {
    /// Unique in the process, one per open.
    pub(crate) domain: u64,
    pub(crate) device: Device,
    /// The addresses that led to the device when it was last asked, with port 0.
    addresses: Mutex<Vec<SocketAddr>>,
    pub(crate) config: VerbsConfig,
    pub(crate) runtime: Handle,
    pub(crate) router: Arc<EventRouter>,
    pub(crate) events: Arc<EventChannel>,
    attributes: DeviceAttributes,
    info: Arc<AdapterInfo>,
    vectors: u32,
    /// `None` once the device is removed: some drivers cannot let it go before the last of these is closed.
    opened: Mutex<Option<Arc<Opened>>>,
    removed: AtomicBool,
    /// The runtime has shut down, and with it the reactor.
    stopped: AtomicBool,
    registry: Arc<Registry>,
    /// Registered memory, which goes after the queue pairs that may use it.
    pub(crate) regions: Arc<Registry>,
    pub(crate) completions: Completions,
    queue_pairs: Mutex<QueuePairs>,
    /// For the calls that connect. They do not wait for those that end what was connected.
    pub(crate) setup: Arc<Workers>,
    pub(crate) teardown: Arc<Workers>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Adapter {
    /// Opens the device with this id and begins to wait for its events.
    ///
    /// # Errors
    /// No such device, no runtime, no permission, or no memory.
    pub(crate) fn open(id: AdapterId, config: VerbsConfig) -> Result<Arc<Self>, OpenError> {
        let runtime = crate::provider::runtime::current()?;
        let device = devices::devices(&config)?
            .into_iter()
            .find(|device| device.id == id)
            .ok_or(OpenError::InvalidAdapter(id))?;
        let parts = Parts::open(&device.name)?;
        let events = devices::channel()?;
        let core = Arc::new_cyclic(|me| Self::new(me, device, config, runtime, events, parts));
        core.start()?;
        info!(adapter = %core.device.name, domain = core.domain, "adapter opened");
        Ok(core)
    }

    /// An adapter that is bound to an address of its device, if that can be done: otherwise nothing is open.
    fn new(
        me: &Weak<Self>,
        device: Device,
        config: VerbsConfig,
        runtime: Handle,
        events: Arc<EventChannel>,
        parts: Parts,
    ) -> Self {
        let (limits, attributes) = (parts.limits(), parts.attributes.clone());
        let vectors = parts.context.completion_vectors();
        let iwarp = parts.context.transport() == Transport::Iwarp;
        let router = Arc::<EventRouter>::default();
        let anchor = router
            .create(&events, me.clone())
            .ok()
            .filter(|anchor| device.addresses.iter().any(|address| anchor.bind(*address).is_ok()));
        let port = anchor.as_ref().and_then(|anchor| anchor.device()).map(|device| device.port);
        let max_message = port.and_then(|port| parts.context.max_message(port).ok()).unwrap_or(0);
        let opened = anchor.and_then(|anchor| parts.into_opened(anchor));
        Self {
            domain: next_domain(),
            info: Arc::new(info::of(&device, &attributes, iwarp, max_message, limits)),
            addresses: Mutex::new(device.addresses.clone()),
            device,
            config,
            setup: Workers::new(runtime.clone()),
            teardown: Workers::new(runtime.clone()),
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
            completions: Completions::default(),
            queue_pairs: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Makes the first completion queue, and begins to wait for events.
    ///
    /// # Errors
    /// The device is gone, or the system has no room.
    fn start(self: &Arc<Self>) -> Result<(), OpenError> {
        // Its addresses were there a moment ago.
        let opened = self.opened().ok_or(OpenError::DeviceRemoved)?;
        self.completions.open(self, &opened).map_err(failed("ibv_create_cq"))?;
        let tasks = reactor::start(self, &opened).map_err(failed("epoll_ctl"))?;
        *self.tasks.lock() = tasks;
        Ok(())
    }

    /// Returns the open objects; `None` once the device is removed.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.lock().clone()
    }

    /// The protection domain.
    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// Its properties, limits and abilities, with the addresses that it had when it was opened.
    pub(crate) fn info(&self) -> &Arc<AdapterInfo> {
        &self.info
    }

    /// Its properties, limits and abilities, with the addresses that it has now.
    pub(crate) fn current_info(&self) -> AdapterInfo {
        AdapterInfo { addresses: without_scope(&self.current_addresses()), ..self.info.as_ref().clone() }
    }

    /// Returns whether the device speaks iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        self.info.iwarp
    }

    /// Returns the deviations of its driver.
    pub(crate) fn quirks(&self) -> &'static Quirks {
        self.attributes.quirks
    }

    /// The vector for completions that are best handled on this processor: by custom they are spread over them.
    pub(crate) fn vector(&self, processor: Option<usize>) -> u32 {
        let processor = processor.and_then(|processor| u32::try_from(processor).ok()).unwrap_or(0);
        processor.checked_rem(self.vectors).unwrap_or(0)
    }

    /// Returns whether it was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns whether its runtime has shut down.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The objects that end with the adapter.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Takes what the device has completed, as the reactor does when it is told.
    pub(crate) fn progress(&self) {
        for queue in self.completions.all() {
            queue.collect(self).iter().for_each(|(_, queue_pair)| queue_pair.progress());
        }
    }

    fn queue_pairs(&self) -> MutexGuard<'_, QueuePairs> {
        self.queue_pairs.lock()
    }

    /// A key for a queue pair of the device: completions that carry it are for this one.
    pub(crate) fn enlist(&self, queue_pair: Weak<QueuePair>) -> u32 {
        let mut all = self.queue_pairs();
        // There are fewer queue pairs than keys.
        while all.next == RequestId::SHARED || all.by_key.contains_key(&all.next) {
            all.next = all.next.wrapping_add(1);
        }
        let key = all.next;
        all.next = key.wrapping_add(1);
        all.by_key.insert(key, queue_pair);
        key
    }

    /// The completions of receives of a shared queue name the queue pair by this number.
    pub(crate) fn enlist_number(&self, number: u32, key: u32) {
        self.queue_pairs().by_number.insert(number, key);
    }

    /// The key of the queue pair with this number, of those with a shared receive queue.
    pub(crate) fn key_by_number(&self, number: u32) -> Option<u32> {
        self.queue_pairs().by_number.get(&number).copied()
    }

    /// The device says that the queue pair with this number takes no receive of a shared queue any more.
    pub(crate) fn last_receive(&self, number: u32) {
        let key = self.key_by_number(number);
        if let Some((key, queue_pair)) = key.and_then(|key| Some((key, self.queue_pair_by_key(key)?))) {
            queue_pair.last_receive(key);
        }
    }

    /// Forgets the key of a queue pair, and its number.
    pub(crate) fn strike(&self, key: u32, number: Option<u32>) {
        let mut all = self.queue_pairs();
        let _queue_pair = all.by_key.remove(&key);
        if let Some(number) = number
            && all.by_number.get(&number) == Some(&key)
        {
            // Not that of a later one with the same number.
            all.by_number.remove(&number);
        }
    }

    /// The queue pair with this key.
    pub(crate) fn queue_pair_by_key(&self, key: u32) -> Option<Arc<QueuePair>> {
        self.queue_pairs().by_key.get(&key).and_then(Weak::upgrade)
    }

    /// The queue pair with this number. Only for events that are rare.
    pub(crate) fn queue_pair_by_number(&self, number: u32) -> Option<Arc<QueuePair>> {
        self.all_queue_pairs().into_iter().find(|queue_pair| queue_pair.number() == Some(number))
    }

    /// Every queue pair that there is.
    pub(crate) fn all_queue_pairs(&self) -> Vec<Arc<QueuePair>> {
        self.queue_pairs().by_key.values().filter_map(Weak::upgrade).collect()
    }

    /// The addresses that lead to the device now, with port 0. If the system does not tell, those of the last time.
    ///
    /// Addresses come and go with interfaces, leases and bonds. They are asked for at moments at which it costs little, because
    /// rdma_cm announces none of that, and an announcement of the kernel would come before the device has the address.
    pub(crate) fn current_addresses(&self) -> Vec<SocketAddr> {
        let found = match self.is_removed() {
            true => None,
            false => devices::addresses_of(&self.device.name, &self.events, &self.config).ok(),
        };
        let mut known = self.addresses.lock();
        if let Some(found) = found {
            if *known != found {
                debug!(adapter = %self.device.name, addresses = ?found, "addresses changed");
            }
            *known = found;
        }
        known.clone()
    }

    /// Returns whether an id is bound to the device, or to none yet because its address is unspecified.
    pub(crate) fn has(&self, id: &CmId) -> bool {
        id.device().is_none_or(|device| device.name == self.device.name)
    }

    /// The addresses that one stands for when listening: itself, or all of its family that need no scope.
    pub(crate) fn expand(&self, address: SocketAddr) -> Vec<SocketAddr> {
        if !address.ip().is_unspecified() {
            return vec![address];
        }
        let all = self.current_addresses();
        let mut all: Vec<_> = all.into_iter().filter(|other| is_like(other, address)).collect();
        all.iter_mut().for_each(|other| other.set_port(address.port()));
        all
    }

    /// The address to connect from, with port 0, when the caller has not chosen one: what the kernel would use, if it is ours.
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
        // Either has come since.
        let known = self.current_addresses();
        let either = [Some(itself), kernel].into_iter().flatten().find(|address| known.contains(address));
        either.or_else(|| known.into_iter().find(|other| is_like(other, peer)))
    }

    /// Returns the maximum length of a completion queue.
    pub(crate) fn max_completions(&self) -> u32 {
        self.attributes.max_cqe
    }

    /// Returns the maximum number of entries of a receive of a shared queue.
    pub(crate) fn max_shared_entries(&self) -> usize {
        usize::try_from(self.attributes.max_srq_sge).unwrap_or(usize::MAX)
    }

    /// Has a thread end everything: the device is gone.
    pub(crate) fn remove(self: &Arc<Self>) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        warn!(adapter = %self.device.name, "adapter removed");
        let adapter = self.clone();
        self.teardown.run_next(Box::new(move || adapter.end()));
    }

    /// Ends all objects of the device, and gives its own back.
    fn end(&self) {
        let opened = self.opened.lock().take();
        if let Some(opened) = &opened {
            opened.context.mark_removed();
        }
        self.registry.device_removed();
        self.regions.device_removed();
        self.completions.close();
        self.stop();
        drop(opened);
        self.runtime.spawn(forget(self.device.name.clone(), self.router.clone()));
    }

    /// The runtime has shut down: nobody reads events any more, and nobody may be left waiting for one.
    pub(crate) fn runtime_ended(&self) {
        if !self.is_removed() && !self.stopped.swap(true, Ordering::AcqRel) {
            self.registry.runtime_ended();
        }
    }

    /// Ends the reactor.
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

/// Has librdmacm close its own context of a device that was removed, when the device has left the list, of which it is
/// told a little before, and no id is left, of which the kernel may take a minute to destroy the last: until then the
/// removal waits in the kernel.
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

impl EventHandler for Adapter {
    fn event(self: Arc<Self>, event: CmEvent) {
        match event.kind {
            event::DEVICE_REMOVAL => self.remove(),
            // Of the address that the adapter watches: it stays bound to the device, which is all that is asked of it.
            event::ADDR_CHANGE => drop(self.current_addresses()),
            kind => {
                debug!(adapter = %self.device.name, event = event::name(kind), status = event.status, "event ignored")
            }
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.stop();
    }
}
