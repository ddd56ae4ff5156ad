//! A lane: one owner posts to the queue pairs of the device and polls their completions, without a lock, an allocation, a reference
//! count or a future for each request.
//!
//! The state of its slots says whose the memory is, see [`Slots`]. A request that is posted waits in a chain, which is handed to the
//! device by [`ring`](Lane::ring), by a request for another queue pair, when it is full, or by the next poll. So what is plain is done
//! in this file; the rest is in its folder, out of the way: completions of failures, of shared receives and of requests with options
//! (`settle`), what happens to queue pairs (`members`), and requests with options (`request`).
//!
//! A queue pair of a lane is a [`QueuePair`], which the connection manager knows like any other. Only its queue pair of the device is
//! used by the lane itself, which holds it: it is destroyed once the lane has seen each of its requests, or has waited long enough.
//! When the lane is dropped, the connections end as if the queue pairs were, and the queue pairs of the device keep the memory until
//! they are destroyed.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;
use tokio::io::unix::AsyncFd;
use tracing::debug;

use super::completion_queue::{CompletionGroup, GroupUser, Room};
use super::context::{AdapterContext, failed};
use super::news::{LaneMemory, News};
use super::patience::Patience;
use super::queue_pair::{DeviceQp, QueuePair};
use crate::error::{NotifyError, OpenError, PostErrorKind, RegisterError};
use crate::inflight::Done;
use crate::memory::{Mapping, Owned, Pages, SlotState, Slots};
use crate::net::kernel::readable;
use crate::provider::lane::LaneParts;
use crate::provider::work::{Operation, RemoteAddress};
use crate::sync::hash::KeyHasher;
use crate::sys::{
    CompletionChannel, CompletionQueue, Keys, Piece, ReceiveChain, RefusedFrom, RemoteMemory, SendChain,
    SharedReceiveQueue,
};
use crate::types::{OpKind, QueuePairId, Slot};

mod members;
mod request;
mod settle;

/// The id of no queue pair: a lane has fewer places than this one names.
const NONE: u32 = u32::MAX;
/// The most queue pairs of a lane.
const MOST_MEMBERS: u16 = u16::MAX - 1;

/// A lane of a device.
pub(crate) struct Lane {
    sends: SendChain,
    /// The queue pair that the requests in the chain are for, as long as plain requests can be posted to it; otherwise [`NONE`]. What
    /// may change that sets it so.
    sending: u32,
    /// Its place.
    sends_of: usize,
    receives: ReceiveChain,
    receives_of: usize,
    slots: Slots,
    members: Box<[Member]>,
    completions: Arc<CompletionQueue>,
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
        let completions = room.completions().clone();
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
            group,
            room,
            ended: None,
            parameters: parts.clone(),
        };
        Ok(Self {
            sends: SendChain::new(slots.key()),
            sending: NONE,
            sends_of: 0,
            receives: ReceiveChain::new(slots.key(), parts.slot_length),
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

    /// Posts a Send of the first bytes of a slot.
    #[inline]
    pub(crate) fn send(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        length: usize,
    ) -> Result<(), PostErrorKind> {
        if self.post(queue_pair, (slot, 0, length), SlotState::Send, SendChain::send) {
            return Ok(());
        }
        let operation = Operation::Send { invalidate: None, immediate: None };
        self.post_otherwise(queue_pair, (slot, 0, length), operation)
    }

    /// Posts an RDMA Write of a part of a slot.
    #[inline]
    pub(crate) fn write(
        &mut self,
        queue_pair: QueuePairId,
        (slot, part): (Slot, Range<usize>),
        to: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        let (part, remote) =
            ((slot, part.start, part.end), RemoteMemory { address: to.address, key: to.key });
        let add = |sends: &mut SendChain, piece, inline| sends.write(piece, remote, inline);
        if self.post(queue_pair, part, SlotState::Write, add) {
            return Ok(());
        }
        self.post_otherwise(queue_pair, part, Operation::Write { to, immediate: None })
    }

    /// Posts an RDMA Read into a part of a slot.
    #[inline]
    pub(crate) fn read(
        &mut self,
        queue_pair: QueuePairId,
        (slot, part): (Slot, Range<usize>),
        from: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        self.admits_reads(queue_pair)?;
        let part = (slot, part.start, part.end);
        let remote = RemoteMemory { address: from.address, key: from.key };
        let add = |sends: &mut SendChain, piece, _| sends.read(piece, remote);
        if self.post(queue_pair, part, SlotState::Read, add) {
            return Ok(());
        }
        self.post_otherwise(queue_pair, part, Operation::Read { from })
    }

    /// Lends a part of a slot to a plain request, and puts that in the chain with `add`, whose argument says whether the bytes are
    /// copied. Returns whether it did: if not, nothing has changed.
    #[inline(always)]
    fn post(
        &mut self,
        queue_pair: QueuePairId,
        (slot, start, end): (Slot, usize, usize),
        state: SlotState,
        mut add: impl FnMut(&mut SendChain, Piece, bool) -> bool,
    ) -> bool {
        let place = queue_pair.place();
        if self.sending != queue_pair.0 && !self.send_to(queue_pair) {
            return false;
        }
        if end > self.slots.length() as usize || start >= end {
            return false;
        }
        let Some(member) = self.members.get_mut(place).filter(|member| member.send_room > 0) else {
            return false;
        };
        if !self.slots.lend(slot.0, state, place as u16) {
            return false;
        }
        member.send_room -= 1;
        self.outstanding += 1;
        let address = self.slots.device_address(slot.0) + start as u64;
        let (id, length) = (Done::id_of(queue_pair, slot.0), (end - start) as u32);
        let (piece, inline) = (Piece { id, address, length }, length <= self.inline);
        if add(&mut self.sends, piece, inline) {
            return true;
        }
        self.ring_apart();
        if self.sending != queue_pair.0 {
            // The doorbell has found the end: nothing is posted behind what was refused.
            self.take_back(queue_pair, slot);
            return false;
        }
        add(&mut self.sends, piece, inline)
    }

    /// Posts a receive into a slot.
    #[inline]
    pub(crate) fn receive(&mut self, queue_pair: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        let place = queue_pair.place();
        let Some(member) = self.members.get_mut(place) else { return Err(PostErrorKind::ConnectionInvalid) };
        if member.receiving != queue_pair.0 || member.receive_room == 0 {
            return self.receive_otherwise(queue_pair, slot);
        }
        if !self.slots.lend(slot.0, SlotState::Receive, place as u16) {
            return Err(PostErrorKind::NotHeld { slot: slot.0 });
        }
        member.receive_room -= 1;
        self.outstanding += 1;
        if self.receives_of != place {
            self.ring_receives();
            self.receives_of = place;
        }
        self.chain_receive(Done::id_of(queue_pair, slot.0), slot);
        Ok(())
    }

    /// Adds a receive to the chain.
    #[inline]
    fn chain_receive(&mut self, id: u64, slot: Slot) {
        let address = self.slots.device_address(slot.0);
        if !self.receives.receive(id, address) {
            self.ring_receives();
            self.receives.receive(id, address);
        }
    }

    /// Makes room in the chain, which is full.
    #[cold]
    #[inline(never)]
    fn ring_apart(&mut self) {
        self.ring();
    }

    /// Takes back what was lent to a request of the queue pair that is not posted.
    #[cold]
    fn take_back(&mut self, queue_pair: QueuePairId, slot: Slot) {
        if let Some(member) = self.members.get_mut(queue_pair.place()) {
            member.send_room += 1;
        }
        self.outstanding -= 1;
        // SAFETY: no device has the request.
        unsafe { self.slots.reclaim(slot.0, false) };
        // Those before it may have waited for this one.
        self.pass_refused(queue_pair);
    }

    /// Lets plain requests be posted to a queue pair, if it is open for them. Those that wait for another one are handed to the device.
    #[cold]
    #[inline(never)]
    fn send_to(&mut self, queue_pair: QueuePairId) -> bool {
        if self.news.is_pending() {
            self.look();
        }
        let place = queue_pair.place();
        if self.sends_of != place {
            self.ring();
            self.sends_of = place;
        }
        let open = self.members.get(place).is_some_and(|member| member.open == queue_pair.0);
        self.sending = if open { queue_pair.0 } else { NONE };
        open
    }

    /// Hands the requests that wait to the device, receives first: an answer must find the one that was posted for it.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.receives.len() > 0 {
            self.ring_receives();
        }
        if self.sends.len() == 0 {
            return;
        }
        let device = self.members.get(self.sends_of).and_then(|member| member.device.as_ref());
        let posted = match device {
            // SAFETY: the entries are parts of slots that are lent to the requests, of memory that is registered, and that the queue
            // pair of the device keeps. They stay lent until the requests have completed or that is destroyed: `reclaim` says so.
            Some(device) => unsafe { self.sends.post(&device.queue_pair) },
            None => Err(RefusedFrom(0)),
        };
        if let Err(RefusedFrom(place)) = posted {
            self.sends_refused(place);
        }
        self.sends.clear();
    }

    #[inline(never)]
    fn ring_receives(&mut self) {
        if self.receives.len() == 0 {
            return;
        }
        let device = self.members.get(self.receives_of).and_then(|member| member.device.as_ref());
        let posted = match (&self.rare.shared, device) {
            // SAFETY: as for sends. The memory is that of this process. The queue pairs of the device keep the queue.
            (Some(shared), _) => unsafe { self.receives.post_shared(shared) },
            // SAFETY: as above; the queue pair has a receive queue of its own.
            (None, Some(device)) => unsafe { self.receives.post(&device.queue_pair) },
            (None, None) => Err(RefusedFrom(0)),
        };
        if let Err(RefusedFrom(place)) = posted {
            self.receives_refused(place);
        }
        self.receives.clear();
    }

    /// Takes completions, as many as there are and fit. Returns their number; more than fit if the lane has [ended](Self::ended).
    #[inline(never)]
    pub(crate) fn poll(&mut self, into: &mut [Done]) -> usize {
        if self.halted || self.news.is_pending() {
            return self.poll_rare(into);
        }
        self.poll_device(into, |_| {})
    }

    /// Polls the queue of the device. Calls `found_empty` if that has been found empty.
    #[inline(always)]
    fn poll_device(&mut self, into: &mut [Done], found_empty: impl FnOnce(&mut Self)) -> usize {
        self.ring();
        let (shown, empty) = loop {
            let Ok(count) = self.completions.poll_into(into) else { return self.lose() };
            let mut at = 0;
            while let Some(done) = into.get(at).filter(|_| at < count) {
                if !self.settle_plain(done) {
                    break;
                }
                at += 1;
            }
            let empty = count < into.len();
            if at == count {
                self.outstanding -= count as u32;
                break (count, empty);
            }
            let shown = self.settle_others(into, at, count);
            // If nothing is to be seen of all that there was room for, more may have come, for which there is no event.
            if shown > 0 || empty {
                break (shown, empty);
            }
        };
        if empty {
            found_empty(self);
        }
        shown
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
        // Commands of the device, off the threads of the runtime. The queue pairs of the device keep the memory.
        self.rare.context.teardown.run(Box::new(move || {
            for (queue_pair, device) in members {
                queue_pair.released();
                drop(device);
            }
        }));
    }
}
