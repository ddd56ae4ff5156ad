//! An opened adapter: one device, our own context of it with a protection domain, and all that must end with it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tracing::{debug, warn};

use super::catalogue::{self, Device};
use super::completions::Completions;
use super::config::VerbsConfig;
use super::identifier::{Identifier, Target, Targets};
use super::queue_pair::QueuePairCore;
use super::reactor;
use super::requests::RequestId;
use crate::error::OpenError;
use crate::provider::net::interfaces::source_for;
use crate::provider::registry::Registry;
use crate::provider::{Capabilities, ProviderKind, next_domain};
use crate::sync::{Mutex, MutexGuard};
use crate::sys::{
    AccessFlags, Capacities, CmEvent, CompletionChannel, CompletionQueue, Context, DeviceAttributes,
    EventChannel, ProtectionDomain, QpAttributes, QpState, QueuePair, RXE_VENDOR, SIW_VENDOR, Transport,
    device_names, event, forget_removed_devices,
};
use crate::types::{AdapterId, ReadLimits};

/// What fits behind the header of rdma_cm in the three messages of InfiniBand's connection manager.
const IB_REQUEST_DATA: usize = 56;
const IB_REPLY_DATA: usize = 196;
const IB_REJECT_DATA: usize = 148;
/// `siw` counts private data in a byte, four of which carry the read limits.
const IWARP_DATA: usize = 251;
/// How long `siw` waits for the answer to its request.
const IWARP_ANSWER: Duration = Duration::from_secs(10);
/// InfiniBand's connection manager repeats its request 15 times, 4.3 s apart.
const IB_ANSWER: Duration = Duration::from_secs(60);
/// The most that a message of any device can carry in our API, whose lengths have 32 bits.
const MAX_TRANSFER: usize = 1 << 30;
/// How many entries a request has room for unless the user says otherwise.
const USUAL_ENTRIES: u32 = 4;
/// The sizes that a device is asked for inline.
const INLINE: [u32; 5] = [512, 256, 128, 64, 32];
/// Limits in a connection request have 8 bits.
const MAX_READS: u32 = 255;
/// How often a removed device is looked for in the list of devices, and after what time: twice as long each time.
const FORGET_TRIES: u32 = 20;
const FORGET_PAUSE: Duration = Duration::from_millis(20);
const FORGET_MOST: Duration = Duration::from_secs(1);

/// What is open of a device.
pub(crate) struct Opened {
    /// An id that is bound to an address of the device: it tells when the device goes.
    _anchor: Arc<Identifier>,
    /// The first state of every queue pair.
    pub(crate) initial: QpAttributes,
    pub(crate) channel: Arc<CompletionChannel>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) context: Arc<Context>,
}

/// The queue pairs of the device by the keys in their requests. A key is used again only after all the others.
#[derive(Default)]
struct QueuePairs {
    by_key: HashMap<u32, Weak<QueuePairCore>>,
    /// The keys by the device's numbers, of those with a shared receive queue.
    by_number: HashMap<u32, u32>,
    next: u32,
}

/// One opened adapter, shared by everything created from it.
pub(crate) struct AdapterCore {
    /// Unique in the process, one per open.
    pub(crate) number: u64,
    pub(crate) device: Device,
    pub(crate) config: VerbsConfig,
    pub(crate) runtime: Handle,
    pub(crate) targets: Arc<Targets>,
    pub(crate) events: Arc<EventChannel>,
    attributes: DeviceAttributes,
    iwarp: bool,
    max_message: u32,
    /// How many bytes a request can have inline.
    inline: usize,
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
    tasks: Mutex<Vec<AbortHandle>>,
}

impl AdapterCore {
    /// Opens the device with this id and begins to wait for its events.
    ///
    /// # Errors
    /// No such device, no runtime, no permission, or no memory.
    pub(crate) fn open(id: AdapterId, config: VerbsConfig) -> Result<Arc<Self>, OpenError> {
        let runtime =
            Handle::try_current().map_err(|_| OpenError::Unsupported("it needs a tokio runtime"))?;
        let failed = |call| move |source| OpenError::Os { call, source };
        let device = catalogue::devices()?
            .into_iter()
            .find(|device| device.id == id)
            .ok_or(OpenError::InvalidAdapter)?;
        let context = Context::open(&device.name).map_err(failed("ibv_open_device"))?;
        let attributes = context.attributes().map_err(failed("ibv_query_device"))?;
        let domain = ProtectionDomain::new(&context).map_err(failed("ibv_alloc_pd"))?;
        let channel = CompletionChannel::new(&context).map_err(failed("ibv_create_comp_channel"))?;
        let events = catalogue::channel()?;
        let targets = Arc::<Targets>::default();
        // With as many entries as are usual, which share the room with the bytes.
        let inline = inline(&context, &domain, &channel, attributes.max_sge.min(USUAL_ENTRIES));
        let vectors = context.completion_vectors();
        let iwarp = context.transport() == Transport::Iwarp;
        let core = Arc::new_cyclic(|me: &Weak<Self>| {
            let anchor = targets.create(&events, me.clone()).ok().filter(|anchor| {
                device.addresses.iter().any(|ip| anchor.bind(SocketAddr::new(*ip, 0)).is_ok())
            });
            let port = anchor.as_ref().and_then(|anchor| anchor.device()).map(|device| device.port);
            let max_message = port.and_then(|port| context.max_message(port).ok()).unwrap_or(0);
            let opened = anchor.and_then(|anchor| {
                let mut initial = anchor.qp_attributes(QpState::Init).ok()?;
                // What a peer may do is up to each region.
                let remote = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
                let atomics =
                    if attributes.atomics { AccessFlags::REMOTE_ATOMIC } else { AccessFlags::empty() };
                initial.set_access(AccessFlags::LOCAL_WRITE | remote | atomics);
                Some(Arc::new(Opened { _anchor: anchor, initial, channel, domain, context }))
            });
            Self {
                number: next_domain(),
                device,
                config,
                runtime,
                targets,
                events,
                attributes,
                iwarp,
                max_message,
                inline,
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
        });
        // Its addresses were there a moment ago.
        let opened = core.opened().ok_or(OpenError::DeviceRemoved)?;
        core.completions.open(&core, &opened).map_err(failed("ibv_create_cq"))?;
        let tasks = reactor::start(&core, &opened).map_err(failed("epoll_ctl"))?;
        *core.tasks.lock() = tasks;
        debug!(adapter = %core.device.name, number = core.number, "opened");
        Ok(core)
    }

    /// What is open; `None` once the device is removed.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.lock().clone()
    }

    pub(crate) fn is_iwarp(&self) -> bool {
        self.iwarp
    }

    pub(crate) fn is_rxe(&self) -> bool {
        self.attributes.vendor_id == RXE_VENDOR
    }

    /// Whether it writes the answer to a read as the peer's writes, which the memory must permit. So do the cards that
    /// speak iWARP, where a read names its sink to the peer; `siw` looks at who asked for the bytes.
    pub(crate) fn requires_read_sink(&self) -> bool {
        self.iwarp && self.attributes.vendor_id != SIW_VENDOR
    }

    pub(crate) fn has_atomics(&self) -> bool {
        self.attributes.atomics
    }

    /// Whether keys can be given by requests, and taken back.
    pub(crate) fn has_windows(&self) -> bool {
        self.attributes.windows && self.attributes.invalidates
    }

    /// The vector for completions that are best handled on this processor: by custom they are spread over them.
    pub(crate) fn vector(&self, processor: Option<usize>) -> u32 {
        let processor = processor.and_then(|processor| u32::try_from(processor).ok()).unwrap_or(0);
        processor.checked_rem(self.vectors).unwrap_or(0)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// What ends with the adapter.
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
    pub(crate) fn enlist(&self, queue_pair: Weak<QueuePairCore>) -> u32 {
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

    pub(crate) fn key_by_number(&self, number: u32) -> Option<u32> {
        self.queue_pairs().by_number.get(&number).copied()
    }

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

    pub(crate) fn queue_pair_by_key(&self, key: u32) -> Option<Arc<QueuePairCore>> {
        self.queue_pairs().by_key.get(&key).and_then(Weak::upgrade)
    }

    /// The queue pair with this number. Only for events that are rare.
    pub(crate) fn queue_pair_by_number(&self, number: u32) -> Option<Arc<QueuePairCore>> {
        self.all_queue_pairs().into_iter().find(|queue_pair| queue_pair.number() == Some(number))
    }

    pub(crate) fn all_queue_pairs(&self) -> Vec<Arc<QueuePairCore>> {
        self.queue_pairs().by_key.values().filter_map(Weak::upgrade).collect()
    }

    /// Whether this is one of the adapter's addresses; the unspecified ones stand for all of them.
    pub(crate) fn owns(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_unspecified() || self.device.addresses.contains(&ip)
    }

    /// The addresses that `ip` stands for when listening: itself, or all of its family.
    pub(crate) fn expand(&self, ip: IpAddr) -> Vec<IpAddr> {
        let ip = ip.to_canonical();
        if !ip.is_unspecified() {
            return vec![ip];
        }
        self.device.addresses.iter().copied().filter(|other| other.is_ipv4() == ip.is_ipv4()).collect()
    }

    /// The address to connect from when the caller has not chosen one: what the kernel would use, if it is ours.
    pub(crate) fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let peer = peer.to_canonical();
        let itself = Some(peer).filter(|ip| self.device.addresses.contains(ip));
        let kernel = || source_for(peer).ok().filter(|ip| self.device.addresses.contains(ip));
        let any: IpAddr =
            if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        itself.or_else(kernel).or_else(|| self.expand(any).first().copied())
    }

    /// How many reads the device serves and issues.
    pub(crate) fn read_limits(&self) -> ReadLimits {
        ReadLimits::new(
            self.attributes.max_qp_rd_atom.min(MAX_READS),
            self.attributes.max_qp_init_rd_atom.min(MAX_READS),
        )
    }

    pub(crate) fn request_data(&self) -> usize {
        if self.is_iwarp() { IWARP_DATA } else { IB_REQUEST_DATA }
    }

    pub(crate) fn reply_data(&self) -> usize {
        if self.is_iwarp() { IWARP_DATA } else { IB_REPLY_DATA }
    }

    pub(crate) fn reject_data(&self) -> usize {
        if self.is_iwarp() { IWARP_DATA } else { IB_REJECT_DATA }
    }

    /// What the reject of the active side carries: nothing where the connection is already established by then.
    pub(crate) fn active_reject_data(&self) -> usize {
        if self.is_iwarp() { 0 } else { IB_REJECT_DATA }
    }

    /// How long a completion queue can be.
    pub(crate) fn max_completions(&self) -> u32 {
        self.attributes.max_cqe
    }

    pub(crate) fn max_transfer(&self) -> usize {
        usize::try_from(self.max_message).unwrap_or(MAX_TRANSFER).min(MAX_TRANSFER)
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        let iwarp = self.is_iwarp();
        let size = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        // A queue pair has one completion queue for both its queues.
        let depth = self.attributes.max_qp_wr.min(self.max_completions() / 2);
        Capabilities {
            kind: ProviderKind::Verbs,
            id: self.device.id,
            name: self.device.name.clone(),
            addresses: self.device.addresses.clone(),
            read_limits: self.read_limits(),
            request_data: self.request_data(),
            reply_data: self.reply_data(),
            reject_data: self.reject_data(),
            active_reject_data: self.active_reject_data(),
            transfer: self.max_transfer(),
            registration: usize::try_from(self.attributes.max_mr_size)
                .unwrap_or(usize::MAX)
                .min(isize::MAX as usize),
            depth: size(depth),
            entries: size(self.attributes.max_sge),
            read_entries: size(self.attributes.max_sge_rd),
            iwarp,
            three_phase: !iwarp,
            exact_private_data: iwarp,
            loopback: true,
            in_order: false,
            early_completion: iwarp,
            passive_sends_first: !iwarp,
            per_request_errors: !iwarp,
            accept_limits_reads: !iwarp,
            // The kernel has no event for it before the request is answered.
            detects_withdrawal: false,
            checks_remote_read: !iwarp,
            read_sink: self.requires_read_sink(),
            answer_timeout: Some(if iwarp { IWARP_ANSWER } else { IB_ANSWER }),
            inline: self.inline,
            completions: 1 << 20,
            // All of them may complete on one queue pair, beside the requests of its send queue.
            shared_depth: if self.attributes.max_srq > 0 {
                size(self.attributes.max_srq_wr.min(self.max_completions() / 2))
            } else {
                0
            },
            windows: self.has_windows(),
            atomics: self.attributes.atomics,
            // `siw` invalidates whole regions, and does not say which.
            invalidates: !iwarp && self.attributes.invalidates,
            immediate: (!iwarp, !iwarp),
            // A completion does not say so, only the kind of interrupt does.
            solicited_events: false,
            // Up to now `rxe` looks at the bounds of the region.
            checks_window_bounds: !self.is_rxe(),
            // There is no way to say over iWARP that a receiver is not ready.
            waits_for_shared_receives: !iwarp,
        }
    }

    /// Ends everything: the device is gone.
    pub(crate) fn remove(&self) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        warn!(adapter = %self.device.name, "removed");
        let opened = self.opened.lock().take();
        if let Some(opened) = &opened {
            opened.context.mark_removed();
        }
        self.registry.device_removed();
        self.regions.device_removed();
        self.completions.close();
        self.stop();
        drop(opened);
        self.runtime.spawn(forget(self.device.name.clone(), self.targets.clone()));
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

/// How many bytes a request can have inline. The device does not say, so it is asked for less and less.
fn inline(
    context: &Arc<Context>,
    domain: &Arc<ProtectionDomain>,
    channel: &Arc<CompletionChannel>,
    send_entries: u32,
) -> usize {
    let room = |inline| Capacities { send: 1, receive: 1, send_entries, receive_entries: 1, inline };
    let Ok(queue) = CompletionQueue::new(context, channel, 2, 0, 0) else { return 0 };
    let made = INLINE.into_iter().find_map(|inline| {
        let queue_pair = QueuePair::new(domain, &queue, &queue, None, room(inline)).ok()?;
        Some(queue_pair.inline().max(inline))
    });
    made.and_then(|inline| usize::try_from(inline).ok()).unwrap_or(0)
}

/// Has librdmacm close its own context of a device that was removed, when the device has left the list, of which it is
/// told a little before, and no id is left, of which the kernel may take a minute to destroy the last: until then the
/// removal waits in the kernel.
async fn forget(device: String, targets: Arc<Targets>) {
    let mut pause = FORGET_PAUSE;
    let mut tries = 0;
    while tries < FORGET_TRIES || !targets.is_empty() {
        tokio::time::sleep(pause).await;
        pause = FORGET_MOST.min(pause * 2);
        tries += 1;
        let left = targets.is_empty();
        if device_names().is_ok_and(|names| !names.contains(&device)) {
            forget_removed_devices();
            if left {
                return;
            }
        }
    }
}

impl Target for AdapterCore {
    fn event(self: Arc<Self>, event: CmEvent) {
        match event.kind {
            event::DEVICE_REMOVAL => self.remove(),
            kind => {
                debug!(adapter = %self.device.name, event = event::name(kind), status = event.status, "ignored")
            }
        }
    }
}

impl Drop for AdapterCore {
    fn drop(&mut self) {
        self.stop();
    }
}
