//! An adapter of the program: it opens a device, and has the completion queues of requests that complete through
//! futures.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tracing::{debug, info};

use super::completion_queue::{CompletionGroup, GroupUser};
use super::config::VerbsConfig;
use super::context::{AdapterContext, ContextParts, Opened, failed};
use super::devices::{self, Device};
use super::limits::{Limits, info_of};
use super::reactor;
use super::routes::EventRouter;
use crate::error::OpenError;
use crate::sync::Mutex;
use crate::sys::{AccessFlags, CompletionChannel, Context, EventChannel, ProtectionDomain};
use crate::types::AdapterId;

/// An opened adapter. Everything made from it holds its context.
pub(crate) struct Adapter {
    pub(crate) context: Arc<AdapterContext>,
    /// The completion queues of requests that complete through futures: as many groups as the runtime has threads, or the device
    /// vectors, each of which is made when a queue pair is first made for it.
    shared: Mutex<Vec<Arc<CompletionGroup>>>,
    /// The number of groups that there may be.
    most: usize,
    /// The number of times that a group was chosen.
    chosen: AtomicUsize,
}

impl Deref for Adapter {
    type Target = Arc<AdapterContext>;

    fn deref(&self) -> &Arc<AdapterContext> {
        &self.context
    }
}

impl Adapter {
    /// Opens the device with this id and begins to wait for its events.
    ///
    /// # Errors
    /// No such device, no runtime, no permission, or no memory.
    pub(crate) fn open(id: AdapterId, config: VerbsConfig) -> Result<Arc<Self>, OpenError> {
        let runtime = crate::sync::current_runtime()?;
        let events = devices::channel()?;
        let device = devices::by_id(id, &events, &config)?.ok_or(OpenError::InvalidAdapter(id))?;
        let context = context(device, config, runtime, events)?;
        // The device had addresses a moment ago.
        let opened = context.opened().ok_or(OpenError::DeviceRemoved)?;
        let tasks = reactor::start(&context, &opened).map_err(failed("epoll_ctl"))?;
        context.set_tasks(tasks);
        #[cfg(feature = "inspect")]
        context.show();
        let first = begin(CompletionGroup::new(&context, opened.channel.clone(), 0, GroupUser::Futures))?;
        let vectors = usize::try_from(context.vectors).unwrap_or(usize::MAX);
        let most = context.runtime.metrics().num_workers().clamp(1, vectors);
        let (shared, chosen) = (Mutex::new(vec![first]), AtomicUsize::new(0));
        info!(adapter = %context.device.name, domain = context.domain, "adapter opened");
        Ok(Arc::new(Self { context, shared, most, chosen }))
    }

    /// Returns completion queues for a queue pair that completes through futures. They are of another group than those
    /// of the call before, so that each thread of the runtime has its part.
    pub(crate) fn shared_completions(&self) -> Result<Arc<CompletionGroup>, OpenError> {
        let turn = self.chosen.fetch_add(1, Ordering::Relaxed);
        let count = {
            let shared = self.shared.lock();
            if let Some(group) = shared.get(turn % self.most) {
                return Ok(group.clone());
            }
            shared.len()
        };
        match self.group(u32::try_from(count).unwrap_or(0), GroupUser::Futures) {
            Err(error @ OpenError::DeviceRemoved) => return Err(error),
            // There is at least one, which has room for this queue pair, too.
            Err(error) => {
                debug!(adapter = %self.context.device.name, %error, "no further completion channel")
            }
            Ok(group) => {
                let mut shared = self.shared.lock();
                // Other callers may have made some since.
                if shared.len() < self.most {
                    shared.push(group);
                }
            }
        }
        let shared = self.shared.lock();
        let place = turn.checked_rem(shared.len()).unwrap_or(0);
        shared.get(place).cloned().ok_or(OpenError::DeviceRemoved)
    }

    /// Makes a group of completion queues behind a channel of its own.
    fn group(&self, vector: u32, user: GroupUser) -> Result<Arc<CompletionGroup>, OpenError> {
        let opened = self.context.opened().ok_or(OpenError::DeviceRemoved)?;
        let channel = CompletionChannel::new(&opened.context).map_err(failed("ibv_create_comp_channel"))?;
        begin(CompletionGroup::new(&self.context, channel, vector, user))
    }

    /// Makes a completion queue of the program, of this depth. Its events come by the vector for this processor: by
    /// custom the vectors are spread over the processors. `polled` says that the program polls the queue all the time.
    pub(crate) fn completion_queue(
        &self,
        depth: usize,
        processor: Option<usize>,
        polled: bool,
    ) -> Result<Arc<CompletionGroup>, OpenError> {
        let processor = processor.and_then(|processor| u32::try_from(processor).ok()).unwrap_or(0);
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        self.group(processor % self.context.vectors, GroupUser::Program { depth, polled })
    }
}

/// Makes the first queue of a group, and begins to wait for its events.
fn begin(group: Arc<CompletionGroup>) -> Result<Arc<CompletionGroup>, OpenError> {
    group.begin().map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => OpenError::DeviceRemoved,
        _ => failed("ibv_create_cq")(source),
    })?;
    reactor::read_completions(&group).map_err(failed("epoll_ctl"))?;
    Ok(group)
}

/// Opens a device and creates the context of its adapter. Its id is bound to the first address of the device that can be bound;
/// without one nothing is open.
fn context(
    device: Device,
    config: VerbsConfig,
    runtime: Handle,
    events: Arc<EventChannel>,
) -> Result<Arc<AdapterContext>, OpenError> {
    let context = Context::open(&device.name).map_err(failed("ibv_open_device"))?;
    let attributes = context.attributes().map_err(failed("ibv_query_device"))?;
    let domain = ProtectionDomain::new(&context).map_err(failed("ibv_alloc_pd"))?;
    let channel = CompletionChannel::new(&context).map_err(failed("ibv_create_comp_channel"))?;
    let limits = Limits::of(&channel, &domain, &attributes);
    let vectors = context.completion_vectors().max(1);
    let iwarp = context.is_iwarp();
    let router = Arc::<EventRouter>::default();
    // The rights of a peer depend on each region.
    let remote = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let atomics = if attributes.atomics { AccessFlags::REMOTE_ATOMIC } else { AccessFlags::empty() };
    let rights = AccessFlags::LOCAL_WRITE | remote | atomics;
    Ok(Arc::new_cyclic(|me: &Weak<AdapterContext>| {
        let anchor = router
            .create(&events, me.clone())
            .ok()
            .filter(|anchor| device.addresses.iter().any(|address| anchor.bind(*address).is_ok()));
        let port = anchor.as_ref().and_then(|anchor| anchor.device()).map(|device| device.port);
        let max_message = port.and_then(|port| context.max_message(port).ok()).unwrap_or(0);
        // An id that has lost the device opens nothing either.
        let opened = anchor.and_then(|anchor| Opened::new(anchor, rights, channel, domain, context).ok());
        let info = info_of(&device, &attributes, iwarp, max_message, limits);
        AdapterContext::new(ContextParts {
            device,
            config,
            runtime,
            router,
            events,
            attributes,
            info,
            vectors,
            opened: opened.map(Arc::new),
        })
    }))
}
