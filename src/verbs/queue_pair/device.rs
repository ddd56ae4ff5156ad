//! A queue pair of the device, the way of its completions to its owner, and the queue pairs of the device that a queue pair has had.
//!
//! A thread in a call that connects the queue pair holds it, too. The device may use the memory of its requests until
//! the last holder has destroyed it, and only then the owner is notified: [`DeviceQp::when_destroyed`].
//!
//! One is good for one attempt to connect, or for one connection. [`Generations`] are those that there were, one after the other. The
//! newest is in use, or a job ends it; after that the next one is in use, or none. Earlier ones may drain: the device may still
//! complete their receives of a shared queue.

use std::io;
use std::sync::{Arc, Weak};

use tokio::sync::Notify;
use tracing::debug;

use super::keepalive::Silence;
use super::post::Deferred;
use crate::inflight::{Payload, Ticket, WakeList};
use crate::provider::connector::Job;
use crate::provider::info::{Ece, Path};
use crate::status::Status;
use crate::sync::Mutex;
use crate::sys::{self, CompletionQueue, QpAttributes, WcResult};
use crate::verbs::completion_queue::{CompletionGroup, Ready, Room};
use crate::verbs::context::AdapterContext;
use crate::verbs::memory::Window;
use crate::verbs::news::{EndNotice, LaneMemory, Membership};
use crate::verbs::receive_queue::Receives;
use crate::verbs::routes::{CmId, CompletionHandler};
use crate::verbs::work_queue::WorkQueue;
use crate::verbs::workers;

/// A queue pair of the device, its key, and the room that its completions have. It is destroyed when it is dropped.
pub(crate) struct DeviceQp {
    // Dropped in this order: completions of the destruction still need the room, and the receives are unused only after
    // it.
    pub(crate) queue_pair: sys::QueuePair,
    route: Route,
    /// The shared receives that it takes from.
    pub(crate) receives: Option<Arc<Receives>>,
    /// Notified when the device reports that it takes no further receive of a shared queue.
    pub(crate) last_receive: Arc<Notify>,
    changes: Mutex<Changes>,
    /// The end of it, for the lane that posts to it.
    end: Option<EndNotice>,
    /// The last of them: everything else is gone when it runs.
    destroyed: Destroyed,
}

/// The changes of the state of a queue pair of the device.
#[derive(Default)]
struct Changes {
    /// A thread is in the call that makes one.
    busy: bool,
    /// It goes to the error state, and makes no other change.
    ended: bool,
}

/// The end of a queue pair of the device, and what follows from it.
struct Destroyed {
    /// The device no longer uses the memory of its requests.
    free: bool,
    then: Arc<Sequel>,
}

/// The job that follows the end of a queue pair of the device, once. Its argument is whether the memory of the requests
/// is free.
#[derive(Default)]
pub(crate) struct Sequel(Mutex<Option<Then>>);

type Then = Box<dyn FnOnce(bool) + Send>;

impl Sequel {
    /// Returns the job of it, unless that was taken.
    pub(crate) fn take(&self, free: bool) -> Option<Job> {
        let then = self.0.lock().take()?;
        Some(Box::new(move || then(free)))
    }
}

impl Drop for Destroyed {
    fn drop(&mut self) {
        if let Some(job) = self.then.take(self.free) {
            workers::execute(job);
        }
    }
}

/// A group of completion queues, and the number of entries that are needed there.
pub(crate) type Wanted<'a> = (&'a Arc<CompletionGroup>, u32);

impl DeviceQp {
    /// Makes a queue pair whose completions are for `owner`: those of its send queue in the first group, and those of its receives
    /// in the second. It may use the shared receives, which have room of their own there. `make` is given the completion queues of
    /// its send queue and of its receives. A lane alone posts to it, and polls its completions.
    pub(crate) fn new(
        context: &Arc<AdapterContext>,
        owner: Weak<dyn CompletionHandler>,
        (sends, received): (Wanted<'_>, Wanted<'_>),
        receives: Option<Arc<Receives>>,
        lane: Option<(&Membership, Arc<LaneMemory>)>,
        make: impl FnOnce(&Arc<CompletionQueue>, &Arc<CompletionQueue>) -> io::Result<sys::QueuePair>,
    ) -> io::Result<Self> {
        let mut route = loop {
            let route = Route::new(context, &owner, (sends, received), receives.as_deref())?;
            if route.rooms().all(Room::is_served) {
                break route;
            }
        };
        let queue_pair = make(route.sends.completions(), route.received().completions())?;
        if receives.is_some() {
            route.add_number(queue_pair.number);
        }
        let destroyed = Destroyed { free: false, then: Arc::default() };
        let (last_receive, changes) = (Arc::default(), Mutex::default());
        let end = lane.map(|(membership, memory)| membership.end_notice(memory));
        Ok(Self { queue_pair, route, receives, last_receive, changes, end, destroyed })
    }

    /// Changes its state and attributes, unless it has ended: no call takes a queue pair out of the error state.
    ///
    /// # Errors
    /// Those of ibv_modify_qp(3); `ECANCELED` if it has ended.
    pub(crate) fn modify(&self, attributes: &QpAttributes) -> io::Result<()> {
        self.change(|queue_pair| queue_pair.modify(attributes))
    }

    /// Makes a call that changes it, unless it has ended. The library expects one such call at a time.
    fn change(&self, call: impl FnOnce(&sys::QueuePair) -> io::Result<()>) -> io::Result<()> {
        let canceled = || Err(io::Error::from_raw_os_error(libc::ECANCELED));
        let mut changes = self.changes.lock();
        if changes.ended {
            return canceled();
        }
        changes.busy = true;
        // Without the lock: on RoCE the kernel may look for the peer's hardware address for a second.
        drop(changes);
        let outcome = call(&self.queue_pair);
        let mut changes = self.changes.lock();
        changes.busy = false;
        let ended = changes.ended;
        drop(changes);
        if ended {
            // The caller of `end` has left it to this thread.
            let _ = self.queue_pair.to_error();
            return canceled();
        }
        outcome
    }

    /// Has the device refuse the reads, writes and atomics of the peer, unless it has ended.
    ///
    /// # Errors
    /// Those of ibv_modify_qp(3); `ECANCELED` if it has ended.
    pub(crate) fn revoke_access(&self) -> io::Result<()> {
        self.change(sys::QueuePair::revoke_access)
    }

    /// Moves it to the error state, for good. A thread that is changing its state does it after that change.
    pub(crate) fn end(&self) -> io::Result<()> {
        let mut changes = self.changes.lock();
        changes.ended = true;
        let busy = changes.busy;
        drop(changes);
        if busy { Ok(()) } else { self.queue_pair.to_error() }
    }

    /// Runs `then` when the last holder has destroyed the queue pair, with whether that was possible: otherwise the
    /// device may use the memory of its requests at any later time. The caller drops its handle next. The returned job
    /// is for a caller that finds before that that the queue pair has no request left.
    pub(crate) fn when_destroyed(&self, then: impl FnOnce(bool) + Send + 'static) -> Arc<Sequel> {
        *self.destroyed.then.0.lock() = Some(Box::new(then));
        self.destroyed.then.clone()
    }

    /// Takes over the options that the peer has sent in its request or reply, as far as they are of the same vendor.
    /// They are in effect from the next change of state on.
    ///
    /// # Errors
    /// Those of ibv_set_ece(3); `ECANCELED` if it has ended.
    pub(crate) fn agree_on_options(&self, id: &CmId) -> io::Result<()> {
        self.change(|queue_pair| {
            let Some(own) = queue_pair.ece() else { return Ok(()) };
            match queue_pair.set_ece(own.agreed(id.remote_ece())) {
                // A driver that has some and takes none.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
                outcome => outcome,
            }
        })
    }

    /// Adds the options of its vendor, if there are any, to the next request or reply.
    pub(crate) fn tell_options(&self, id: &CmId) {
        if let Some(own) = self.queue_pair.ece()
            && let Err(error) = id.set_local_ece(own)
        {
            // The peer then uses none.
            debug!(%error, "options of the vendor not offered");
        }
    }

    /// Returns the path of its connection by this id. Over InfiniBand and RoCE, `receive` has the attributes with which it becomes ready
    /// to receive.
    pub(crate) fn path(&self, id: &CmId, receive: Option<&QpAttributes>) -> Path {
        let [gid, peer_gid] = if receive.is_some() { id.gids() } else { [None; 2] };
        let ece = self.queue_pair.ece();
        Path {
            port: id.device().map(|device| device.port),
            queue_pair: Some(self.queue_pair.number),
            peer_queue_pair: receive.and_then(QpAttributes::peer_number),
            mtu: receive.and_then(QpAttributes::path_mtu),
            gid,
            peer_gid,
            ece: ece.map(|sys::id::Ece { vendor, options }| Ece { vendor_id: vendor, options }),
        }
    }

    /// Returns whether its completions are polled. A thread that finds that a queue has lost one marks the queue before
    /// it looks for the queue pairs that use it; so the owner asks once it has stored this queue pair.
    pub(crate) fn is_served(&self) -> bool {
        self.route.rooms().all(Room::is_served)
    }

    /// Returns whether its completions come in the queue whose events carry this key.
    pub(crate) fn completes_in(&self, key: u64) -> bool {
        self.route.rooms().any(|room| room.is_in(key))
    }

    /// Returns the key that its completions carry.
    pub(crate) fn key(&self) -> u32 {
        self.route.key
    }

    /// Has the owners defer all completions of its queues. Its own owner then processes them.
    pub(crate) fn collect(&self) {
        self.route.collect();
    }
}

impl Drop for DeviceQp {
    fn drop(&mut self) {
        self.destroyed.free = self.queue_pair.destroy().is_ok();
        if !self.destroyed.free {
            // It has the receives that it took, too.
            self.route.rooms().for_each(Room::withhold);
            self.receives.iter().for_each(|receives| receives.withhold());
            self.end.iter().for_each(EndNotice::withhold);
        }
        if let Some(end) = &mut self.end {
            end.free = self.destroyed.free;
        }
    }
}

/// The way of the completions of a queue pair of the device to its owner.
struct Route {
    sends: Room,
    /// The room in which its own receives complete, if that is another group.
    receives: Option<Room>,
    /// The room in which its receives complete, if they are of a shared queue.
    shared: Option<Arc<Room>>,
    key: u32,
    /// The number of the queue pair, if its receives are of a shared queue: their completions name the queue pair by
    /// it.
    number: Option<u32>,
    context: Arc<AdapterContext>,
}

impl Route {
    /// Reserves room for the completions, and registers the owner under a new key.
    fn new(
        context: &Arc<AdapterContext>,
        owner: &Weak<dyn CompletionHandler>,
        (sends, received): (Wanted<'_>, Wanted<'_>),
        receives: Option<&Receives>,
    ) -> io::Result<Self> {
        let (mut at_sends, mut at_receives) = (sends.1, received.1);
        if receives.is_some() {
            at_receives = 0;
        } else if Arc::ptr_eq(sends.0, received.0) {
            at_sends = at_sends.saturating_add(std::mem::take(&mut at_receives));
        }
        let sends = Room::new(sends.0, at_sends)?;
        let shared = receives.map(|receives| receives.room(received.0)).transpose()?;
        let receives = if at_receives > 0 { Some(Room::new(received.0, at_receives)?) } else { None };
        let key = context.routes.register(owner.clone());
        let route = Self { sends, receives, shared, key, number: None, context: context.clone() };
        route.rooms().for_each(|room| room.group.routes.add(key, owner.clone()));
        Ok(route)
    }

    /// Returns the room in which its receives complete.
    fn received(&self) -> &Room {
        self.shared.as_deref().or(self.receives.as_ref()).unwrap_or(&self.sends)
    }

    fn rooms(&self) -> impl Iterator<Item = &Room> {
        std::iter::once(&self.sends).chain(&self.receives).chain(self.shared.as_deref())
    }

    /// Registers the number of the queue pair, by which completions of shared receives name it.
    fn add_number(&mut self, number: u32) {
        self.number = Some(number);
        self.received().group.routes.add_number(number, self.key);
        self.context.routes.add_number(number, self.key);
    }

    /// Has the owners defer all completions of its queues. The caller may hold the lock of a queue pair, so the others
    /// process theirs in a task of their own.
    fn collect(&self) {
        let mut others = Ready::default();
        self.rooms().for_each(|room| room.collect(&mut others));
        let others = others.without(self.key);
        if !others.is_empty() {
            self.context.runtime.spawn(async move { others.progress() });
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // The room is only free when nothing of this queue pair is left in it.
        self.collect();
        self.rooms().for_each(|room| room.group.routes.deregister(self.key, self.number));
        self.context.routes.deregister(self.key, self.number);
    }
}

/// The queue pairs of the device that a queue pair has had.
#[derive(Default)]
pub(super) struct Generations {
    newest: Newest,
    /// The one that is ending is among them as soon as its requests were taken from the owner.
    pub(super) draining: Vec<Draining>,
}

/// The last queue pair of the device that was made.
#[derive(Default)]
enum Newest {
    /// It has ended, and there is no other.
    #[default]
    Ended,
    Current(Current),
    Ending(Ending),
}

/// The queue pair of the device in use: requests are posted to it.
pub(super) struct Current {
    pub(super) qp: Arc<DeviceQp>,
    /// It has left the state in which it was made, for an attempt.
    pub(super) used: bool,
    /// See [`Ending::flushed`].
    pub(super) flushed: bool,
    /// It was given to a driver that connects it by itself, and may not have done so yet.
    pub(super) lent: bool,
    /// A message of the peer has come, before the connection manager has established the connection: the device is
    /// connected, and may send.
    pub(super) has_received: bool,
    /// The device has refused deferred requests: nothing can be posted behind them.
    pub(super) refused: bool,
    /// The number of reads and atomics that may be outstanding at once. It is set when the connection is made.
    pub(super) reads: u32,
    /// The number of last requests in a row that the device will not report.
    pub(super) unsignaled: u32,
    /// The state of the detection of a silent peer.
    pub(super) silence: Silence,
    /// Requests that wait for the doorbell: the last of the send queue.
    pub(super) deferred: Vec<Deferred>,
    /// The bytes of requests that are inline, until they have been posted: empty when none waits.
    pub(super) copies: Vec<u8>,
    /// The windows that were bound on it.
    pub(super) windows: Vec<Weak<Window>>,
}

/// The queue pair of the device that a job ends, as its owner needs it for what still completes.
pub(super) struct Ending {
    key: u32,
    receives: Option<Arc<Receives>>,
    last_receive: Arc<Notify>,
    /// The user has flushed the queue pair during the attempt, or before the next queue pair of the device was made: the end
    /// does not keep its receives.
    flushed: bool,
    silence: Silence,
    /// The job that follows the destruction, while a thread in a call holds the queue pair. It may also run once the
    /// device has completed every request.
    pub(super) sequel: Option<Arc<Sequel>>,
}

/// A queue pair of the device that has ended, and may still complete receives of a shared queue.
pub(super) struct Draining {
    pub(super) key: u32,
    /// `None` while it is being destroyed.
    pub(super) qp: Option<Arc<DeviceQp>>,
    pub(super) receives: Arc<Receives>,
    /// The requests of its send queue, and the status with which they finish.
    pub(super) requests: WorkQueue,
    pub(super) status: Status,
}

impl Generations {
    /// Returns the queue pair of the device in use.
    pub(super) fn current(&self) -> Option<&Current> {
        if let Newest::Current(current) = &self.newest { Some(current) } else { None }
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut Current> {
        if let Newest::Current(current) = &mut self.newest { Some(current) } else { None }
    }

    /// Returns the one that a job ends.
    pub(super) fn ending(&self) -> Option<&Ending> {
        if let Newest::Ending(ending) = &self.newest { Some(ending) } else { None }
    }

    pub(super) fn ending_mut(&mut self) -> Option<&mut Ending> {
        if let Newest::Ending(ending) = &mut self.newest { Some(ending) } else { None }
    }

    /// Returns the key of the one whose requests are those of the owner's queues.
    pub(super) fn key(&self) -> Option<u32> {
        match &self.newest {
            Newest::Current(current) => Some(current.qp.key()),
            Newest::Ending(ending) => Some(ending.key),
            Newest::Ended => None,
        }
    }

    /// Uses this one from now on.
    pub(super) fn begin(&mut self, qp: Arc<DeviceQp>) {
        self.newest = Newest::Current(Current {
            qp,
            used: false,
            flushed: false,
            lent: false,
            has_received: false,
            refused: false,
            reads: 0,
            unsignaled: 0,
            silence: Silence::default(),
            deferred: Vec::new(),
            copies: Vec::new(),
            windows: Vec::new(),
        });
    }

    /// Takes the one in use, for the calls that end it. From then on nothing is posted to it, and its key is that of the
    /// one that is ending.
    pub(super) fn detach(&mut self) -> Option<Current> {
        let newest = std::mem::take(&mut self.newest);
        let Newest::Current(mut current) = newest else {
            self.newest = newest;
            return None;
        };
        self.newest = Newest::Ending(Ending {
            key: current.qp.key(),
            receives: current.qp.receives.clone(),
            last_receive: current.qp.last_receive.clone(),
            flushed: current.flushed,
            silence: std::mem::take(&mut current.silence),
            sequel: None,
        });
        Some(current)
    }

    /// Records the end of the one that was ending. Returns whether it was flushed.
    pub(super) fn settle(&mut self) -> bool {
        let Newest::Ending(Ending { flushed, .. }) = self.newest else { return false };
        self.newest = Newest::Ended;
        flushed
    }

    /// Records that the user has flushed the queue pair: the end of the newest one does not keep its receives.
    pub(super) fn flush(&mut self) {
        match &mut self.newest {
            Newest::Current(Current { flushed, .. }) | Newest::Ending(Ending { flushed, .. }) => {
                *flushed = true
            }
            Newest::Ended => {}
        }
    }

    /// Returns the silence of the peer of the newest one.
    pub(super) fn silence(&mut self) -> Option<&mut Silence> {
        match &mut self.newest {
            Newest::Current(Current { silence, .. }) | Newest::Ending(Ending { silence, .. }) => {
                Some(silence)
            }
            Newest::Ended => None,
        }
    }

    /// Takes the receive at this place of the shared queue, which the newest one has completed.
    pub(super) fn take_shared(&self, place: u32) -> Option<(Ticket, Payload)> {
        let receives = match &self.newest {
            Newest::Current(current) => current.qp.receives.as_ref(),
            Newest::Ending(ending) => ending.receives.as_ref(),
            Newest::Ended => None,
        };
        receives.and_then(|receives| receives.take(place))
    }

    /// Returns the one with this key that drains.
    pub(super) fn draining(&mut self, key: u32) -> Option<&mut Draining> {
        self.draining.iter_mut().find(|draining| draining.key == key)
    }

    /// Removes the one with this key that drains, which is destroyed.
    pub(super) fn drained(&mut self, key: u32) -> Option<Draining> {
        let place = self.draining.iter().position(|draining| draining.key == key)?;
        Some(self.draining.swap_remove(place))
    }

    /// Ends the wait for the last receive of the one with this key, which takes no further receive of a shared queue. If
    /// it is in use, it has failed: when it ends, there is nothing to wait for.
    pub(super) fn takes_no_receive(&self, key: u32) {
        match &self.newest {
            Newest::Current(current) if current.qp.key() == key => current.qp.last_receive.notify_one(),
            Newest::Ending(ending) if ending.key == key => ending.last_receive.notify_one(),
            _ => {}
        }
        self.draining.iter().filter(|draining| draining.key == key).for_each(Draining::notify);
    }

    /// Ends the waits for the last receives.
    pub(super) fn stop_waiting(&self) {
        self.draining.iter().for_each(Draining::notify);
    }
}

impl Current {
    /// Adds a window that was bound on it, without those that are gone.
    pub(super) fn add_window(&mut self, window: &Arc<Window>) {
        self.windows.retain(|other| other.strong_count() > 0);
        if !self.windows.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(window))) {
            self.windows.push(Arc::downgrade(window));
        }
    }
}

impl Draining {
    /// Finishes the requests up to one that the device has completed: their memory is free.
    pub(super) fn complete(&mut self, sequence: u32, result: WcResult, wakes: &mut WakeList) {
        self.requests.finished(sequence, result);
        while let Some((outstanding, _)) = self.requests.pop() {
            let (ticket, completed) = outstanding.ended(self.status, true, wakes);
            self.requests.sink.complete(ticket, completed, wakes);
        }
    }

    /// Ends the wait for the last receive: no receive is to come, or the device will not report it.
    fn notify(&self) {
        if let Some(qp) = &self.qp {
            qp.last_receive.notify_one();
        }
    }
}
