//! A queue pair: its two queues, their completions, and the connection it belongs to.
//!
//! Requests finish in the order of the posts, whatever the order of the completions: the next one is always the front of
//! [`WorkQueue::outstanding`]. [`post`] adds them, [`complete`] takes them. When a connection ends, the queue pair of the
//! device is destroyed, see [`teardown`], and what is outstanding finishes CANCELED. The user's queue pair gets a new one of
//! the device when the old one was only an attempt: [`Generations`] say which is meant. Completions that come while another thread has the lock are deferred, as
//! [`DeferredCompletions`], see [`completion_queue`](super::completion_queue).
//!
//! Calls that the driver may take long for are made without the lock. The ones that end a queue pair of the device are handed
//! to the caller as a [`Job`].

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::{io, ptr};

use tokio::sync::Notify;
use tracing::debug;

use super::completion_queue::{CompletionGroup, LOST};
use super::context::AdapterContext;
use super::limits;
use super::news::Membership;
use super::receive_queue::SharedReceives;
use super::routes::{CmId, CompletionHandler, Effects};
use super::work_queue::{Outstanding, WorkQueue};
use crate::error::{OpenError, Reason, WcError};
#[cfg(feature = "inspect")]
use crate::inflight::CompletionSink;
use crate::inflight::WakeList;
#[cfg(feature = "inspect")]
use crate::inspect::{QueuePairReport, SendState};
use crate::proto::qp::{Busy, QueuePairState};
use crate::provider::connector::{FLUSHED, Job};
use crate::provider::info::Path;
use crate::provider::params::{self, Options, QueuePairParts};
use crate::provider::registry::{Member, Registered};
use crate::status::{DeviceEvent, Status};
use crate::sync::{Mutex, MutexGuard};
use crate::sys::{self, Capacities, Completions, Element, QpState};
use crate::types::{ConnectionId, ReadLimits};
use complete::{DeferredCompletions, RawCompletion};
use device::Generations;
use keepalive::Silence;

pub(super) use device::DeviceQp;
pub(super) use post::{is_read, translate};

mod complete;
mod device;
mod keepalive;
mod post;
mod teardown;

/// The queue pair, shared by its handle and its connection.
pub(crate) struct QueuePair {
    pub(crate) adapter: Arc<AdapterContext>,
    me: Weak<Self>,
    /// The number of requests of the send queue that the user may have outstanding.
    send_depth: u32,
    capacities: Capacities,
    /// The peer has a receive for each message.
    credited: bool,
    queues: Queues,
    /// The lane that posts to it and polls its completions, in place of this file's neighbours.
    lane: Option<Membership>,
    state: Mutex<State>,
    /// Completions that are not processed yet.
    deferred_completions: DeferredCompletions,
    /// Notified when a job has ended a queue pair of the device.
    settled: Notify,
    /// The last handle of the user is being dropped. Written with the lock.
    released: AtomicBool,
    _registered: Registered,
}

/// The queues that it uses. Its completion queues are the groups in which it completes.
pub(crate) type Queues = params::Queues<Arc<SharedReceives>, Arc<CompletionGroup>>;

/// The connector of a queue pair, as the queue pair sees it.
pub(crate) trait QueuePairUser: Send + Sync {
    /// Returns the id of its connection.
    fn connection(&self) -> ConnectionId;

    /// Returns the cause of the loss of its connection, if it was lost.
    fn cause(&self) -> Option<Reason>;

    /// Ends the connection as broken, and disconnects: its queue pair has ended, so nothing more will come for the
    /// peer.
    fn broken(&self, status: Status, reason: Reason);

    /// Ends the connection like [`broken`](Self::broken), for a caller that returns when the device no longer uses the
    /// memory.
    fn broken_here(&self, status: Status, reason: Reason);

    /// Ends the connection like [`broken`](Self::broken), but only if it still uses the device's queue pair with this
    /// key: the connector may be at another attempt by now.
    fn broken_by(&self, key: u32, status: Status, reason: Reason);

    /// Disconnects, and leaves the queue pair as it is. Returns `false` if there is no connection, or the call fails.
    fn disconnect_first(&self) -> bool;

    /// Handles a message that has arrived before the one that establishes the connection.
    fn data_arrived(&self);

    /// Ends the attempt or the connection: its queue pair was dropped or flushed, or has lost a result.
    fn queue_pair_removed(&self);
}

/// The facts about a queue pair that a snapshot has.
#[cfg(feature = "inspect")]
pub(super) struct Facts {
    pub(super) number: Option<u32>,
    pub(super) is_closed: bool,
    /// Of the send queue, and of the receive queue.
    pub(super) depths: (usize, usize),
    pub(super) shared_receives: bool,
    pub(super) sends: CompletionSink,
    pub(super) receives: CompletionSink,
}

/// The state of a queue pair.
///
/// A receive that was posted stands in one place until it finishes:
///
/// | place | why |
/// |---|---|
/// | `receives` | the newest queue pair of the device has it, or had it when it ended |
/// | the [`Receives`](super::receive_queue::Receives) of a shared queue | whichever queue pair of the device a message comes for takes it |
/// | `waiting` | a job replaces the queue pair of the device, and no device has it yet |
/// | `receives.failed` | the device has given it back. If a connection ends, it fails after that (`X3`); if only an attempt does, the next queue pair of the device gets it (`CM-21`) |
struct State {
    phase: QueuePairState,
    /// The connection it is being used for.
    connector: Option<Weak<dyn QueuePairUser>>,
    device: Generations,
    /// Receives for the next queue pair of the device.
    waiting: VecDeque<Outstanding>,
    /// The other list of deferred completions, which is empty: the two are exchanged to be read.
    reading: Vec<RawCompletion>,
    /// The requests of the newest queue pair of the device.
    initiator: WorkQueue,
    receives: WorkQueue,
    /// The report of the device on the first request that failed, which was passed to the connector.
    broken: Option<WcError>,
}

impl State {
    /// Returns the connector that has the queue pair, if it still exists.
    fn user(&self) -> Option<Arc<dyn QueuePairUser>> {
        self.connector.as_ref().and_then(Weak::upgrade)
    }

    fn queue(&mut self, receive: bool) -> &mut WorkQueue {
        if receive { &mut self.receives } else { &mut self.initiator }
    }

    /// Takes the receives that the queue pair of the device after one that has ended is to have. `free` is whether the
    /// memory of what that one has not completed is free.
    fn take_receives(&mut self, flushed: bool, free: bool) -> VecDeque<Outstanding> {
        let mut kept = VecDeque::new();
        if !flushed {
            // Receives that the end of the attempt has flushed were not used either.
            let failed = std::mem::take(&mut self.receives.failed).into_iter();
            kept.extend(failed.map(|(ticket, completed)| Outstanding::new(ticket, completed.payload)));
            if free {
                kept.append(&mut self.receives.outstanding);
            }
        }
        kept.append(&mut self.waiting);
        kept
    }

    /// Returns whether the device has completed every request that was posted to it.
    fn is_flushed(&self) -> bool {
        self.initiator.outstanding.is_empty() && self.receives.outstanding.is_empty()
    }
}

impl QueuePair {
    /// Creates a queue pair, and its first queue pair of the device.
    ///
    /// # Errors
    /// `InvalidParameter` for more requests than the device can have with so many entries and inline bytes, or more inline bytes
    /// than it gives; `Os` when it has no room.
    pub(crate) fn new(
        adapter: Arc<AdapterContext>,
        parts: QueuePairParts,
        queues: Queues,
    ) -> Result<Arc<Self>, OpenError> {
        Self::with(adapter, parts, queues, None)
    }

    /// Returns the facts for a snapshot.
    #[cfg(feature = "inspect")]
    pub(super) fn facts(&self) -> Facts {
        let state = self.lock();
        Facts {
            number: state.device.current().map(|current| current.qp.queue_pair.number),
            is_closed: state.phase == QueuePairState::Over,
            depths: (self.send_depth as usize, self.capacities.receive as usize),
            shared_receives: self.queues.shared.is_some(),
            sends: state.initiator.sink.clone(),
            receives: state.receives.sink.clone(),
        }
    }

    /// Creates a queue pair like [`new`](Self::new), which a lane may have.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub(crate) fn with(
        adapter: Arc<AdapterContext>,
        parts: QueuePairParts,
        queues: Queues,
        lane: Option<Membership>,
    ) -> Result<Arc<Self>, OpenError> {
        // Every one of them was checked against the device.
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let send_depth = small(parts.send_depth);
        let capacities = Capacities {
            receive: small(parts.receive_depth),
            send: keepalive::slots(&adapter, send_depth),
            receive_entries: small(parts.receive_entries),
            send_entries: small(parts.send_entries),
            inline: small(parts.inline),
        };
        let (device, asked) = (adapter.clone(), (capacities, send_depth, queues.shared.is_some()));
        let registry = adapter.registry().clone();
        let make = |me: &Weak<Self>, registered| Self {
            me: me.clone(),
            send_depth,
            capacities,
            credited: parts.credited,
            queues,
            lane,
            state: Mutex::new(State {
                phase: QueuePairState::Unconnected,
                connector: None,
                device: Generations::default(),
                waiting: VecDeque::new(),
                reading: Vec::new(),
                initiator: WorkQueue::new(parts.initiator),
                receives: WorkQueue::new(parts.receive),
                broken: None,
            }),
            deferred_completions: DeferredCompletions::default(),
            settled: Notify::new(),
            released: AtomicBool::new(false),
            adapter,
            _registered: registered,
        };
        let begin = |core: &Self| -> io::Result<()> {
            let device = core.make()?;
            core.lock().device.begin(device);
            core.check_completions();
            Ok(())
        };
        let made = registry.try_create(make, begin);
        made.map_err(|source| match source.raw_os_error() {
            Some(libc::ENODEV) => OpenError::DeviceRemoved,
            _ => limits::queue_pair_refused(&device, asked, source),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the state of the connection, and the connector that has the queue pair.
    fn phase_and_user(&self) -> (QueuePairState, Option<Arc<dyn QueuePairUser>>) {
        let state = self.lock();
        (state.phase, state.user())
    }

    /// Returns the key of the device's queue pair that it uses.
    pub(crate) fn key(&self) -> Option<u32> {
        self.lock().device.current().map(|current| current.qp.key())
    }

    /// Gives the queue pair to a connector.
    ///
    /// # Errors
    /// Another one has it, or had, and it has not [`settled`](Self::settled).
    pub(crate) fn associate(&self, connector: Weak<dyn QueuePairUser>) -> Result<(), Busy> {
        let mut state = self.lock();
        if state.device.ending().is_some() {
            return Err(Busy);
        }
        state.phase.associate()?;
        state.connector = Some(connector);
        Ok(())
    }

    /// Returns the device's queue pair for a call that names it, and moves it in some drivers. It lives on until that
    /// call has returned. It is good for one attempt: InfiniBand's connection manager refuses a request for a number of
    /// which it still has an earlier one ("stale connection"), and it is not known when the peer has dropped the
    /// earlier one.
    pub(crate) fn lend(&self) -> Option<Arc<DeviceQp>> {
        let mut state = self.lock();
        let current = state.device.current_mut()?;
        current.used = true;
        current.lent = self.adapter.is_iwarp();
        Some(current.qp.clone())
    }

    /// Takes a queue pair of the device from its first state to ready-to-send, by what the id has negotiated. Returns its path. On RoCE
    /// the kernel looks for the peer's hardware address during the call, which may take long.
    ///
    /// # Errors
    /// Those of rdma_init_qp_attr(3) and ibv_modify_qp(3); `ECANCELED` if the queue pair has ended.
    pub(crate) fn ready(
        &self,
        device: &DeviceQp,
        id: &CmId,
        limits: ReadLimits,
        options: Options,
    ) -> io::Result<Path> {
        // Limits are capped to the device, which knows no more than 255.
        let reads = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
        let opened = self.adapter.opened().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        device.agree_on_options(id)?;
        device.modify(&opened.initial_for(id)?)?;
        // For the reply of the passive side: the driver has accepted some of the options.
        device.tell_options(id);
        let mut receive = id.qp_attributes(QpState::ReadyToReceive)?;
        receive.set_max_dest_rd_atomic(reads(limits.inbound));
        if let Some(code) = options.rnr_timer() {
            receive.set_min_rnr_timer(code);
        }
        device.modify(&receive)?;
        let mut send = id.qp_attributes(QpState::ReadyToSend)?;
        send.set_max_rd_atomic(reads(limits.outbound));
        device.modify(&send)?;
        self.set_reads(limits);
        Ok(device.path(id, Some(&receive)))
    }

    /// Sets the number of reads that may be outstanding at once. The connection need not be established: a message of the peer may
    /// come before, and be answered.
    pub(crate) fn set_reads(&self, limits: ReadLimits) {
        if let Some(current) = self.lock().device.current_mut() {
            current.reads = limits.outbound;
        }
    }

    /// Marks the queue pair as connected: from now on all kinds of requests may be posted.
    pub(crate) fn establish(&self, limits: ReadLimits) {
        let mut state = self.lock();
        if let Some(current) = state.device.current_mut() {
            current.reads = limits.outbound;
            current.lent = false;
            current.silence = Silence::default();
        }
        state.phase.establish();
        drop(state);
        self.tell_lane();
    }

    /// Waits until no job ends a queue pair of the device of it: what was outstanding has finished.
    pub(crate) async fn settled(&self) {
        let mut settled = pin!(self.settled.notified());
        loop {
            settled.as_mut().enable();
            if self.lock().device.ending().is_none() {
                return;
            }
            settled.as_mut().await;
            settled.set(self.settled.notified());
        }
    }

    /// Ends a queue pair of the device whose completion queue has lost a completion while it was made.
    fn check_completions(&self) {
        let lost = self.lock().device.current().is_some_and(|current| !current.qp.is_served());
        if lost {
            self.device_error(LOST);
        }
    }

    /// Makes a new queue pair of the device.
    fn make(&self) -> io::Result<Arc<DeviceQp>> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let (opened, me) = (self.adapter.opened().ok_or_else(gone)?, self.me.upgrade().ok_or_else(gone)?);
        let receives =
            self.queues.shared.as_ref().map(|shared| shared.receives().ok_or_else(gone)).transpose()?;
        let memory = self.lane.as_ref().map(|lane| lane.memory.upgrade().ok_or_else(gone)).transpose()?;
        let of_lane = memory.as_ref().and_then(|memory| memory.receives().cloned());
        let queue = receives.as_ref().map(|receives| &receives.queue).or(of_lane.as_ref());
        let lane = self.lane.as_ref().zip(memory);
        let Queues { sends, receives: received, .. } = &self.queues;
        let rooms = ((sends, self.capacities.send), (received, self.capacities.receive));
        let me: Weak<dyn CompletionHandler> = Arc::<Self>::downgrade(&me);
        let device = DeviceQp::new(&self.adapter, me, rooms, receives.clone(), lane, |sends, receives| {
            let queue_pair = sys::QueuePair::new(&opened.domain, sends, receives, queue, self.capacities)?;
            limits::check_inline(queue_pair.inline, self.capacities.inline)?;
            opened.initialize(&queue_pair)?;
            Ok(queue_pair)
        })?;
        Ok(Arc::new(device))
    }

    /// Ends the queue pair after a completion queue of it has lost a result: nothing can be relied upon.
    pub(crate) fn overrun(&self) {
        match self.phase_and_user() {
            (QueuePairState::Connected, Some(connector)) => {
                connector.broken(Status::CANCELED, Reason::Local("a completion queue overran"));
            }
            (_, connector) => {
                if let Some(connector) = connector {
                    connector.queue_pair_removed();
                }
                self.finish_apart(self.lock(), Status::CANCELED);
            }
        }
    }

    /// Finishes everything as CANCELED. A connection does not survive it, nor does an attempt: only without its queue pair of
    /// the device are receives given back.
    pub(crate) fn flush(&self) {
        let mut state = self.lock();
        match (state.phase, state.user()) {
            (QueuePairState::Unconnected, _) => {
                state.device.flush();
                // While a job ends the queue pair of the device, no device has these.
                let (mut wakes, status) = (WakeList::default(), self.status_of_the_rest());
                for waiting in std::mem::take(&mut state.waiting) {
                    let (ticket, completed) = waiting.ended(status, true, &mut wakes);
                    state.receives.sink.complete(ticket, completed, &mut wakes);
                }
                run(self.renew(state));
                wakes.wake_all();
            }
            (QueuePairState::Associated, Some(connector)) => {
                state.device.flush();
                drop(state);
                connector.queue_pair_removed();
            }
            (QueuePairState::Connected, Some(connector)) => {
                drop(state);
                connector.broken_here(Status::CANCELED, Reason::Local(FLUSHED));
            }
            _ => {}
        }
    }

    /// Has the device refuse what the peer still writes, and disconnects. Returns whether it does so: then the caller calls
    /// [`flush`](Self::flush) when the peer has had the time to get an answer. A queue pair in the error state gives none. Over iWARP the
    /// end of TCP is the answer.
    pub(crate) fn refuse(&self) -> bool {
        if self.adapter.is_iwarp() {
            return false;
        }
        let state = self.lock();
        let (QueuePairState::Connected, Some(connector)) = (state.phase, state.user()) else { return false };
        let Some(device) = state.device.current().map(|current| current.qp.clone()) else { return false };
        drop(state);
        if let Err(error) = device.revoke_access() {
            // It goes on to acknowledge the writes, which is an answer, too.
            debug!(%error, "access of the peer not revoked");
        }
        drop(device);
        connector.disconnect_first()
    }

    /// Handles the drop of the user's last handle: ends an attempt or a connection, and finishes the receives of a
    /// queue pair without one.
    pub(crate) fn released(&self) {
        let connector = self.lock().user();
        if let Some(connector) = connector {
            connector.queue_pair_removed();
        }
        let state = self.lock();
        self.released.store(true, Ordering::Relaxed);
        if state.phase == QueuePairState::Unconnected {
            run(self.finish(state, Status::CANCELED));
        } else {
            drop(state);
        }
        // Behind the flag, so that they do not find it again. Only these groups have remembered it.
        self.queues.sends.forget(self);
        self.queues.receives.forget(self);
    }
}

/// Does a job here, for a caller that returns when the device no longer uses the memory.
fn run(job: Option<Job>) {
    if let Some(job) = job {
        job();
    }
}

impl CompletionHandler for QueuePair {
    fn deliver(&self, key: u32, completions: Completions<'_>, effects: Option<&mut Effects<'_, '_>>) -> bool {
        let results = completions.results().map(|(id, result)| (key, id, result));
        // Another thread with the lock of the queue pair may wait for that of the completion queue, so this does not wait.
        let (Some(effects), Some(mut state)) = (effects, self.state.try_lock()) else {
            self.deferred_completions.add(results);
            return true;
        };
        // First the completions that came before.
        self.read_current(&mut state, effects);
        for (key, id, result) in results {
            self.read(&mut state, key, id, result, effects);
        }
        self.check_flushed(&state, &mut effects.wakes);
        drop(state);
        self.apply_later(effects);
        false
    }

    fn is_remembered(&self, group: &dyn Member) -> bool {
        let Queues { sends, receives, .. } = &self.queues;
        let completes_here =
            ptr::addr_eq(&raw const **sends, group) || ptr::addr_eq(&raw const **receives, group);
        completes_here && !self.released.load(Ordering::Relaxed)
    }

    fn progress(&self) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        self.read_current(&mut state, &mut effects);
        self.check_flushed(&state, &mut effects.wakes);
        drop(state);
        self.apply(effects);
    }

    fn number(&self) -> Option<u32> {
        self.lock().device.current().map(|current| current.qp.queue_pair.number)
    }

    fn uses(&self, element: Element) -> bool {
        let key = match element {
            Element::CompletionQueue(key) => {
                return self.lock().device.current().is_some_and(|current| current.qp.completes_in(key));
            }
            Element::SharedReceiveQueue(key) => key,
            Element::QueuePair(_) | Element::Port(_) | Element::Device => return false,
        };
        if self.lane.as_ref().and_then(|lane| lane.receives) == Some(key) {
            return true;
        }
        self.queues.shared.as_ref().is_some_and(|shared| shared.key() == key)
    }

    fn last_receive(&self, key: u32) {
        self.lock().device.takes_no_receive(key);
    }

    fn device_error(&self, reason: Reason) {
        debug!(%reason, "queue pair error");
        let state = self.lock();
        let Some(connector) = state.user() else {
            return self.finish_apart(state, Status::INTERNAL_ERROR);
        };
        drop(state);
        // The request that was wrong is one of the peer. Those of this side are canceled, as on the soft provider.
        let refused = matches!(reason, Reason::Event(DeviceEvent::QP_REQ_ERR | DeviceEvent::QP_ACCESS_ERR));
        connector.broken(if refused { Status::CANCELED } else { Status::INTERNAL_ERROR }, reason);
    }

    /// Releases the shared queue. Its receives come back when the last queue pair that uses it has ended; those of a lane stay with it,
    /// and end it.
    fn shared_lost(&self) {
        if let Some(lane) = &self.lane {
            lane.news.note_loss();
            self.tell_lane();
        }
        if let Some(shared) = &self.queues.shared {
            shared.released();
        }
    }

    fn data_arrived(&self) {
        if let (QueuePairState::Associated, Some(connector)) = self.phase_and_user() {
            connector.data_arrived();
        }
    }

    fn tick(&self) {
        self.count_silence();
    }
}

impl Member for QueuePair {
    fn device_removed(&self) {
        let state = self.lock();
        state.device.stop_waiting();
        // A connection or an attempt does it for itself.
        if state.phase == QueuePairState::Unconnected {
            run(self.finish(state, Status::DEVICE_REMOVED));
        }
    }
}

/// The state of a queue pair, as its lane sees it.
pub(crate) struct Look {
    pub(crate) phase: QueuePairState,
    /// The queue pair of the device; `None` once a job ends it.
    pub(crate) device: Option<Arc<DeviceQp>>,
    /// The number of reads and atomics that may be outstanding at once.
    pub(crate) reads: u32,
    /// A part of the path timeout has passed since the last look of a poll.
    pub(crate) ticked: bool,
}

impl QueuePair {
    /// Has the lane look at the queue pair. The caller may hold the locks of connectors.
    fn tell_lane(&self) {
        if let Some(lane) = &self.lane {
            lane.news.mark();
            let news = lane.news.clone();
            // A waker is foreign code.
            self.adapter.runtime.spawn(async move { news.wake() });
        }
    }

    /// Returns the state, for the lane. `polls` says that the lane polls next, and counts the part of the path timeout.
    pub(crate) fn look(&self, polls: bool) -> Look {
        let ticked = self.lane.as_ref().map(|lane| &lane.ticked);
        let ticked = ticked.is_some_and(|ticked| ticked.fetch_and(!polls, Ordering::Relaxed));
        let state = self.lock();
        let current = state.device.current();
        let (device, reads) = (current.map(|current| current.qp.clone()), current.map_or(0, |c| c.reads));
        Look { phase: state.phase, device, reads, ticked }
    }

    /// Handles the first message that the lane has polled, perhaps before the one that establishes the connection. Returns whether it
    /// can be answered.
    pub(crate) fn received_early(&self) -> bool {
        let mut state = self.lock();
        let associated = state.phase == QueuePairState::Associated;
        if let Some(current) = state.device.current_mut().filter(|_| associated) {
            current.has_received = true;
            drop(state);
            self.data_arrived();
            return true;
        }
        false
    }

    /// Ends the connection because a request has failed, which the lane has polled. The key is that of the queue pair of the device.
    pub(crate) fn failed(&self, error: WcError, key: u32) {
        self.lock().broken.get_or_insert(error);
        self.broke(error, key);
    }

    /// Ends the connection because the device has refused requests of the lane.
    pub(crate) fn refused_by_device(&self, key: u32) {
        self.doorbell_refused(key);
    }

    /// Ends the connection, whose peer has given no sign of life for as long as the path timeout.
    pub(crate) fn gone_silent(&self, key: u32) {
        self.silent(key, Reason::PathTimeout);
    }
}

#[cfg(feature = "inspect")]
impl QueuePair {
    /// Returns its report.
    pub(super) fn report(&self) -> QueuePairReport {
        let mut report = QueuePairReport::default();
        let facts = self.facts();
        report.number = facts.number;
        if facts.is_closed {
            report.send_state = SendState::Closed;
        }
        (report.sends.depth, report.receives.depth) = facts.depths;
        report.shared_receives = facts.shared_receives;
        facts.sends.inspect(false, &mut report.sends);
        if !report.shared_receives {
            facts.receives.inspect(true, &mut report.receives);
        }
        report
    }
}
