//! A lane: one owner posts to the queue pairs of the device and polls their completions, without a lock, an allocation, a reference
//! count or a future for each request.
//!
//! The state of its slots says whose the memory is, see [`Slots`]. A request that is posted waits in a chain, which is handed to the
//! device by [`ring`](Lane::ring), by a request for another queue pair, when it is full, or by the next poll. So what is plain is done
//! in this file; the rest is in its folder, out of the way: completions of failures, of shared receives and of requests with options
//! (`settle`), what happens to queue pairs (`members`), and requests with options (`request`). Plain requests are in `post`.
//!
//! A queue pair of a lane is a [`QueuePair`], which the connection manager knows like any other. Only its queue pair of the device is
//! used by the lane itself, which holds it: it is destroyed once the lane has seen each of its requests, or has waited long enough.
//! When the lane is dropped, the connections end as if the queue pairs were, and the queue pairs of the device keep the memory until
//! they are destroyed.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;
use tokio::io::unix::AsyncFd;
use tracing::debug;

use super::completion_queue::{CompletionGroup, GroupUser, Room};
use super::context::{AdapterContext, failed};
use super::news::{LaneMemory, News};
use super::queue_pair::{DeviceQp, QueuePair};
use super::reactor::Patience;
use crate::error::{NotifyError, OpenError, RegisterError};
use crate::inflight::{Done, ReadPlace};
use crate::memory::{Mapping, Owned, Pages, SlotState, Slots};
use crate::net::kernel::readable;
use crate::provider::work::LaneParts;
use crate::sync::KeyHasher;
use crate::sys::{CompletionChannel, Keys, Polled, ReceiveChain, SendChain, SharedReceiveQueue};
use crate::types::{OpKind, QueuePairId};

mod members;
mod post;
mod settle;

/// The id of no queue pair: a lane has fewer places than this one names.
const NONE: u32 = u32::MAX;
/// What no id of a request of a queue pair begins with. The program may name such a queue pair nevertheless: [`Done::EMPTY`] does.
const CLOSED: u64 = Done::id_of(QueuePairId(NONE), 0);
/// The most queue pairs of a lane.
const MOST_MEMBERS: u16 = u16::MAX - 1;

/// A lane of a device.
pub(crate) struct Lane {
    sends: SendChain,
    /// The queue pair that the requests in the chain are for, as their ids begin with it, as long as plain requests can be posted to it,
    /// and its completions are those of plain requests; otherwise [`CLOSED`]. What may change that [closes](Self::close_ways) it.
    sending: u64,
    /// The room that it has, beside that of its member, which it is added to when this is closed. Then it is 0, so that
    /// nothing can be posted.
    sends_left: u32,
    /// Not 0 if it has completions that are not yet counted as signs of life of the peer.
    completed: u32,
    /// Its place.
    sends_of: usize,
    receives: ReceiveChain,
    /// The queue pair that the receives in the chain are for, in the same way, as long as receives can be posted to it; otherwise
    /// [`CLOSED`].
    receiving: u64,
    /// As for sends.
    receives_left: u32,
    receives_of: usize,
    slots: Slots,
    members: Box<[Member]>,
    completions: Polled,
    news: Arc<News>,
    /// A poll has more to do than to poll: there are completions that no device has reported, a queue pair of the device is to be
    /// destroyed, or the lane has ended.
    halted: bool,
    /// The number of bytes up to which a request is copied as it is posted.
    inline: u32,
    /// The number of requests that no poll has returned.
    outstanding: u32,
    /// All bits if the completion of a request is no sign of life of the peer: a device of iWARP has only handed it to its TCP.
    deaf: u32,
    rare: Box<Rare>,
}

/// What a plain request needs none of.
struct Rare {
    context: Arc<AdapterContext>,
    group: Arc<CompletionGroup>,
    /// It keeps the queue in the group, and has the entries of shared receives.
    room: Room,
    source: AsyncFd<Arc<CompletionChannel>>,
    /// The queue raises an event when a completion comes.
    armed: bool,
    /// A queue pair of the device is to be destroyed once what is in the queue by now has been polled.
    releasing: bool,
    /// The number of completions that were polled in the present round of [`release_behind`](Lane::release_behind).
    polled: usize,
    patience: Patience,
    /// The receive queue that the queue pairs share.
    shared: Option<Arc<SharedReceiveQueue>>,
    /// The room in it.
    shared_room: u32,
    /// The places of the queue pairs by their numbers, by which completions of shared receives name them.
    numbers: HashMap<u32, u16, BuildHasherDefault<KeyHasher>>,
    /// Completions that no device has reported, whose slots still have their requests.
    failed: VecDeque<Done>,
    /// The number of the next request without a slot.
    loose: u32,
    /// The requests that are more than their kind, by their first slot.
    special: HashMap<u32, Special, BuildHasherDefault<KeyHasher>>,
    /// Places of reads that are no longer in flight, until what they completed with is counted: dropping them calls wakers.
    places: Vec<ReadPlace>,
    /// The memory of the lane, which the queue pairs of the device keep. The last field that has the shared queue.
    memory: Arc<LaneMemory>,
    parameters: LaneParts,
    /// The reason why the lane can no longer be used.
    ended: Option<NotifyError>,
}

/// A request that is more than its kind.
struct Special {
    kind: OpKind,
    /// Its success is not shown, and its slots are free then.
    silent: bool,
    /// The slots that it has beside the first.
    others: SmallVec<[u32; 4]>,
    /// Its place among the reads in flight of the adapter, if it has one.
    place: Option<ReadPlace>,
}

/// A queue pair of a lane. It has a cache line of its own, which is all that a plain request needs.
#[repr(align(64))]
struct Member {
    /// Its id, as long as requests of its send queue can be posted the plain way; otherwise [`NONE`].
    open: u32,
    /// Its id, as long as its completions are those of plain requests; otherwise [`NONE`].
    plain: u32,
    /// Its id, as long as receives can be posted; otherwise [`NONE`].
    receiving: u32,
    send_room: u32,
    receive_room: u32,
    /// The parts of the path timeout without a sign of life.
    quiet: u32,
    /// Something of the one that was here before may be in the completion queue, or wait for a poll.
    left: bool,
    /// That has waited since before the present round of [`release_behind`](Lane::release_behind), or the end of the queue pair has.
    waited: bool,
    id: QueuePairId,
    /// The queue pair of the device, until it is destroyed.
    device: Option<Arc<DeviceQp>>,
    rare: Option<Box<members::RareMember>>,
}

impl Lane {
    /// Creates a lane.
    ///
    /// # Errors
    /// Those of the memory, the completion queue and the shared receive queue.
    pub(crate) fn new(context: &Arc<AdapterContext>, parts: LaneParts) -> Result<Self, OpenError> {
        let opened = context.opened().ok_or(OpenError::DeviceRemoved)?;
        let length = Slots::bytes_for(parts.slots, parts.slot_length).unwrap_or(usize::MAX);
        let of_memory = |error: RegisterError| failed("ibv_reg_mr")(error.into());
        let memory = allocate(context, length, parts.pages).map_err(of_memory)?;
        let none = || of_memory(RegisterError::OutOfMemory { length });
        let slots = Slots::new(memory, parts.slots, parts.slot_length).ok_or_else(none)?;
        let members = u32::from(parts.queue_pairs.min(MOST_MEMBERS));
        // With the request that asks an idle peer for a sign of life.
        let sends = parts.send_depth.saturating_add(1).saturating_mul(members);
        let receivers = if parts.shared_receives { 1 } else { members };
        let entries = sends.saturating_add(parts.receive_depth.saturating_mul(receivers));
        let vector = parts.processor.and_then(|processor| u32::try_from(processor).ok()).unwrap_or(0);
        let channel = CompletionChannel::new(&opened.context).map_err(failed("ibv_create_comp_channel"))?;
        let user = GroupUser::Lane { entries };
        let group = CompletionGroup::new(context, channel.clone(), vector % context.vectors, user);
        // Receives that are not shared have theirs with their queue pair.
        let shared_room = if parts.shared_receives { parts.receive_depth } else { 0 };
        let room = Room::new(&group, shared_room).map_err(failed("ibv_create_cq"))?;
        let shared = match parts.shared_receives {
            true => {
                let queue =
                    SharedReceiveQueue::new(&opened.domain, parts.receive_depth, 1, context.router.key());
                Some(queue.map_err(failed("ibv_create_srq"))?)
            }
            false => None,
        };
        let source = {
            let _guard = context.runtime.enter();
            readable(channel).map_err(failed("epoll_ctl"))?
        };
        let completions = Polled::new(room.completions().clone());
        let mut receives = ReceiveChain::new(slots.key(), parts.slot_length);
        if let Some(shared) = &shared {
            // SAFETY: `rare` keeps the queue as long as the lane.
            unsafe { receives.aim_shared(shared) };
        }
        let rare = Rare {
            context: context.clone(),
            source,
            armed: false,
            releasing: false,
            polled: 0,
            patience: Patience::default(),
            memory: LaneMemory::new(slots.memory().clone(), shared.clone()),
            shared,
            shared_room,
            numbers: HashMap::default(),
            failed: VecDeque::new(),
            loose: 0,
            special: HashMap::default(),
            places: Vec::new(),
            group,
            room,
            ended: None,
            parameters: parts.clone(),
        };
        Ok(Self {
            sends: SendChain::new(slots.key()),
            sending: CLOSED,
            sends_left: 0,
            completed: 0,
            sends_of: 0,
            receives,
            receiving: CLOSED,
            receives_left: 0,
            receives_of: 0,
            members: (0..members).map(|place| Member::empty(place as u16)).collect(),
            completions,
            slots,
            news: News::of(context.registry()),
            halted: false,
            inline: parts.inline,
            outstanding: 0,
            deaf: if context.is_iwarp() { u32::MAX } else { 0 },
            rare: Box::new(rare),
        })
    }

    /// Returns the slots, for a caller that reads or writes those that the program holds.
    #[inline]
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    #[inline]
    pub(crate) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    /// Returns the number of requests that no poll has returned.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Hands the requests that wait to the device, receives first: an answer must find the one that was posted for it.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if !self.receives.is_empty() {
            self.ring_receives();
        }
        if !self.sends.is_empty() {
            self.ring_sends();
        }
    }

    #[inline(never)]
    fn ring_sends(&mut self) {
        self.post_sends();
    }

    /// Hands the requests of the chain to the device, of which there are some.
    #[inline(always)]
    fn post_sends(&mut self) {
        // SAFETY: the entries are parts of slots that are lent to the requests, of memory that is registered, and that the queue pair of the
        // device keeps. They stay lent until the requests have completed or that is destroyed: `reclaim` says so.
        if let Err(refused) = unsafe { self.sends.post() } {
            self.sends_refused(refused);
        }
    }

    /// Hands the receives of the chain to the device, of which there are some.
    #[inline(never)]
    fn ring_receives(&mut self) {
        // SAFETY: as for sends. The memory is that of this process. The queue pairs of the device keep a shared queue.
        if let Err(refused) = unsafe { self.receives.post() } {
            self.receives_refused(refused);
        }
    }

    /// Takes completions, as many as there are and fit. Returns their number; more than fit if the lane has [ended](Self::ended).
    #[inline(never)]
    pub(crate) fn poll(&mut self, into: &mut [Done]) -> usize {
        if self.halted || self.news.is_pending() {
            return self.poll_rare(into);
        }
        // As `ring` does.
        if !self.receives.is_empty() {
            self.ring_receives();
        }
        if !self.sends.is_empty() {
            self.post_sends();
        }
        let count = self.completions.poll_into(into);
        let Some(polled) = into.get(..count) else { return self.lose() };
        if count == 0 {
            return 0;
        }
        let (first, mut rest) = (self.sending, polled.iter());
        if first == CLOSED {
            return self.settle_rest(into, 0, count).0;
        }
        while let Some(done) = rest.next() {
            if !settle_sent(&mut self.slots, first, done) {
                let at = count - rest.len() - 1;
                return self.settle_from(into, at, count);
            }
        }
        self.count_sent(count);
        self.outstanding -= count as u32;
        count
    }

    /// Counts requests of the queue pair that is [sending](Self::sending) that have completed.
    #[inline(always)]
    fn count_sent(&mut self, sent: usize) {
        self.sends_left += sent as u32;
        self.completed |= sent as u32;
    }

    /// Settles polled completions from the one at `from` on, as [`settle_rest`](Self::settle_rest) does; those before are of the queue pair
    /// that is [sending](Self::sending).
    #[inline(never)]
    fn settle_from(&mut self, into: &mut [Done], from: usize, count: usize) -> usize {
        self.count_sent(from);
        self.settle_rest(into, from, count).0
    }

    /// Settles polled completions from the one at `from` on; those before are, and the room for them is counted. If nothing is to be seen
    /// of all that there was room for, polls again. Returns the number of completions in the memory, as [`poll`](Self::poll) does, and
    /// whether the queue has been found empty.
    #[inline(never)]
    fn settle_rest(&mut self, into: &mut [Done], from: usize, count: usize) -> (usize, bool) {
        let (mut at, mut count) = (from, count);
        loop {
            while let Some(done) = into.get(at).filter(|_| at < count) {
                if !self.settle_plain(done) {
                    break;
                }
                at += 1;
            }
            let empty = count < into.len();
            if at == count {
                self.outstanding -= count as u32;
                return (count, empty);
            }
            let shown = self.settle_others(into, at, count);
            // More may have come, for which there is no event.
            if shown > 0 || empty {
                return (shown, empty);
            }
            (at, count) = (0, self.completions.poll_into(into));
            if count > into.len() {
                return (self.lose(), false);
            }
        }
    }

    /// Gives the slot of a plain request that has succeeded back to the program. Returns whether it is one.
    #[inline(always)]
    fn settle_plain(&mut self, done: &Done) -> bool {
        let (queue_pair, slot) = (done.queue_pair(), done.slot().0);
        let Some(member) = self.members.get_mut(queue_pair.place()) else { return false };
        let Some(state) = self.slots.state(slot) else { return false };
        let odd = done.status | done.flags;
        if odd != 0 || member.plain != queue_pair.0 || done.length > self.slots.length() {
            return false;
        }
        match state {
            SlotState::Receive => {
                member.receive_room += 1;
                member.quiet = 0;
            }
            SlotState::Send | SlotState::Write => {
                member.send_room += 1;
                member.quiet &= self.deaf;
            }
            SlotState::Read => {
                member.send_room += 1;
                member.quiet = 0;
            }
            _ => return false,
        }
        // SAFETY: the device has completed the request that has the slot: its id names both, and the queue pair is in use.
        unsafe { self.slots.reclaim(slot, false) };
        true
    }

    /// Waits for completions, and takes them as [`poll`](Self::poll) does.
    ///
    /// # Errors
    /// The lane has ended.
    pub(crate) fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [Done],
    ) -> Poll<Result<usize, NotifyError>> {
        loop {
            // One look of the reactor takes as long as several of these.
            let count = (0..LOOKS).map(|_| self.poll(into)).find(|count| *count > 0).unwrap_or(0);
            if count > into.len() {
                return Poll::Ready(Err(self.ended()));
            }
            if count > 0 || into.is_empty() {
                self.rare.patience.rewarded();
                return Poll::Ready(Ok(count));
            }
            if !self.rare.armed && self.rare.patience.looks_again() {
                continue;
            }
            self.news.waker.register(cx.waker());
            if self.halted || self.news.is_pending() {
                // It came between the two.
                continue;
            }
            if !mem::replace(&mut self.rare.armed, true) {
                if let Err(error) = self.completions.arm() {
                    debug!(%error, "completion queue not armed");
                    self.lose();
                }
                // Completions that have come before cause no event.
                continue;
            }
            match ready!(self.rare.source.poll_read_ready(cx)) {
                Ok(mut ready) => {
                    let mut told = Keys::default();
                    // There is no other: the queue raises one each time that it is armed.
                    let outcome = ready.get_inner().next(1, &mut told);
                    ready.clear_ready();
                    self.rare.armed &= told.is_empty();
                    if let Err(error) = outcome {
                        // Such a channel is that of a device which was taken away, and this may be the first report of it.
                        debug!(%error, "completion channel not read");
                        self.rare.context.remove();
                        self.lose();
                    }
                }
                // The runtime has shut down.
                Err(_) => drop(self.lose()),
            }
        }
    }
}

/// The number of times that a wait polls before it decides whether to sleep.
const LOOKS: u32 = 4;

/// Gives the slot of a Send or Write back to the program, if it is one of the queue pair whose ids begin with this one, and has succeeded.
/// Returns whether it is.
#[inline(always)]
fn settle_sent(slots: &mut Slots, first: u64, done: &Done) -> bool {
    // One number says both that it has succeeded, and its kind.
    let kind = (u64::from(done.opcode) << 32 | u64::from(done.status)).rotate_left(32);
    if kind > u64::from(Done::opcode_of(OpKind::Write)) {
        return false;
    }
    // Greater than the number of any slot, if the queue pair is another one.
    let slot = done.id.wrapping_sub(first);
    // SAFETY: the device has completed the request that has the slot: its id names both, and the queue pair is in use.
    unsafe { slots.reclaim_from(slot, SlotState::Send as u8 + kind as u8) }
}

/// Allocates memory that requests can use, and no peer.
fn allocate(context: &AdapterContext, length: usize, pages: Pages) -> Result<Owned, RegisterError> {
    if pages == Pages::Base {
        return context.allocate(length);
    }
    let (memory, _returned) = Owned::lend(Mapping::new(length, pages)?);
    context.attach_private(memory)
}

impl Drop for Lane {
    fn drop(&mut self) {
        let leave = |member: &mut Member| member.leave(&self.rare.memory);
        let members: Vec<(Arc<QueuePair>, Option<Arc<DeviceQp>>)> =
            self.members.iter_mut().filter_map(leave).collect();
        // These reads are in flight until then, too.
        let places = self.rare.special.drain().filter_map(|(_, special)| special.place);
        self.rare.memory.add_places(places);
        // Commands of the device, off the threads of the runtime. The queue pairs of the device keep the memory.
        self.rare.context.teardown.run(Box::new(move || {
            for (queue_pair, device) in members {
                queue_pair.released();
                drop(device);
            }
        }));
    }
}
