//! A lane: one owner posts to queue pairs and polls their completions, without a lock, an allocation or a future for each request.
//!
//! Plain requests wait in a list, which [`ring`](Lane::ring), a request for another queue pair, 64 of them or the next poll hand over:
//! short Sends and Writes as one copy of all their frames, with one system call. A message that arrives is copied to the memory of a
//! receive, which has left its slot until then ([`Slots`]). Completions wait in an [`Inbox`], with the memory of the requests; what
//! is handed over and completes in the same call does not even go there.
//!
//! Polls read the sockets themselves if nothing has completed, so a program that polls in a loop needs no other thread. One that
//! waits leaves the sockets to their wakers (`receiver/reader.rs`), which fill the inbox and wake the program.
//!
//! A queue pair of a lane is a [`QueuePair`], which connects like any other. The inbox has a note when its state changes, and
//! keeps the order of such changes and completions.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::adapter::Adapter;
use super::framing::COPY_BELOW;
use super::queue_pair::QueuePair;
use super::receive_queue::SharedReceives;
use super::receiver::reader::tasks_run;
use crate::error::{NotifyError, OpenError, PostErrorKind};
use crate::inflight::{Arrived, CompletionSink, Done, Inbox, LaneState, WakeList};
use crate::proto::qp::QueuePairState;
use crate::provider::params::{QueuePairParts, Queues};
use crate::provider::registry::{self, Registered};
use crate::provider::work::{LaneParts, RemoteAddress};
use crate::sync::KeyHasher;
use crate::types::{OpKind, QueueKind, QueuePairId, Slot};
use post::{Chained, Message};
use slots::{SlotState, Slots};

mod post;
mod slots;

/// The id of no queue pair: a lane has fewer places than this one names.
const NONE: QueuePairId = QueuePairId(u32::MAX);
/// The most requests that wait to be handed over.
const CHAIN: usize = 64;
/// The number of sockets that one poll reads at most.
const SOCKETS: usize = 16;
/// A poll that finds completions also reads the sockets once in this many polls.
const POLLS: u32 = 32;

/// A lane of a soft adapter.
pub(crate) struct Lane {
    slots: Slots,
    /// The requests of the send queue that wait, and the place of the queue pair that they are for.
    sends: Vec<Chained>,
    sends_of: usize,
    /// One of them is more than a copy of its bytes.
    has_long: bool,
    /// The slots of the receives that wait.
    receives: Vec<u32>,
    receives_of: usize,
    members: Box<[Member]>,
    /// Completions that were taken out of the inbox.
    arrived: VecDeque<Arrived>,
    inbox: Arc<Inbox>,
    /// The waker of a task may be in the inbox.
    waits: bool,
    /// The number of requests that no poll has returned.
    outstanding: u32,
    /// The number of polls since the sockets were read.
    polls: u32,
    rare: Box<Rare>,
}

/// What a plain request needs none of.
struct Rare {
    adapter: Arc<Adapter>,
    parameters: LaneParts,
    /// The receive queue that the queue pairs share.
    shared: Option<Arc<SharedReceives>>,
    /// The room in it.
    shared_room: u32,
    /// The requests that are more than their kind, by their first slot.
    special: HashMap<u32, Special, BuildHasherDefault<KeyHasher>>,
    /// The places of the connected queue pairs, and the one whose socket is read next.
    connected: Vec<usize>,
    next: usize,
    /// The reason why the lane can no longer be used.
    ended: Option<NotifyError>,
    _notice: Arc<Notice>,
}

/// A request that is more than its kind.
struct Special {
    kind: OpKind,
    /// Its success has no completion, and frees its slots.
    silent: bool,
    /// The slots that it has beside the first.
    others: SmallVec<[u32; 4]>,
}

/// A queue pair of a lane.
struct Member {
    id: QueuePairId,
    state: LaneState,
    /// Reads and atomics can be posted.
    reads: bool,
    send_room: u32,
    receive_room: u32,
    /// `None` if the place has no queue pair.
    queue_pair: Option<Arc<QueuePair>>,
}

/// Notifies a lane of the removal of its adapter.
struct Notice {
    inbox: Arc<Inbox>,
    _registered: Registered,
}

impl registry::Member for Notice {
    fn device_removed(&self) {
        let mut wakes = WakeList::default();
        self.inbox.note_news(&mut wakes);
        wakes.wake_all();
    }
}

impl Lane {
    /// Creates a lane. Memory is that of the heap, whatever pages are asked for: no device has an entry for each.
    ///
    /// # Errors
    /// `DeviceRemoved`, and those of the memory.
    pub(crate) fn new(adapter: &Arc<Adapter>, parts: LaneParts) -> Result<Self, OpenError> {
        if adapter.is_removed() {
            return Err(OpenError::DeviceRemoved);
        }
        let slots = Slots::new(parts.slots, parts.slot_length)?;
        let inbox = Arc::<Inbox>::default();
        let notice = adapter
            .registry()
            .create(|_, registered| Notice { inbox: inbox.clone(), _registered: registered });
        let shared = match parts.shared_receives {
            true => {
                let sink = CompletionSink::to_lane(inbox.clone(), NONE);
                Some(SharedReceives::new(adapter, parts.receive_depth as usize, 1, sink)?)
            }
            false => None,
        };
        let members = (0..parts.queue_pairs).map(|place| Member::empty(QueuePairId::new(place, 0))).collect();
        let rare = Rare {
            adapter: adapter.clone(),
            shared,
            shared_room: parts.receive_depth,
            parameters: parts,
            special: HashMap::default(),
            connected: Vec::new(),
            next: 0,
            ended: None,
            _notice: notice,
        };
        Ok(Self {
            slots,
            sends: Vec::with_capacity(CHAIN),
            sends_of: 0,
            has_long: false,
            receives: Vec::with_capacity(CHAIN),
            receives_of: 0,
            members,
            arrived: VecDeque::new(),
            inbox,
            waits: false,
            outstanding: 0,
            polls: 0,
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
    pub(crate) fn send(&mut self, id: QueuePairId, slot: Slot, length: usize) -> Result<(), PostErrorKind> {
        self.post(id, (slot, 0..length), Message::Send)
    }

    /// Posts an RDMA Write of a part of a slot.
    #[inline]
    pub(crate) fn write(
        &mut self,
        id: QueuePairId,
        from: (Slot, Range<usize>),
        to: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        self.post(id, from, Message::Write(to))
    }

    /// Posts an RDMA Read into a part of a slot.
    #[inline]
    pub(crate) fn read(
        &mut self,
        id: QueuePairId,
        into: (Slot, Range<usize>),
        from: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        self.post(id, into, Message::Read(from))
    }

    /// Adds a request of the send queue to those that wait.
    ///
    /// # Errors
    /// The reason why it was not posted: nothing has changed.
    #[inline]
    fn post(
        &mut self,
        id: QueuePairId,
        (slot, part): (Slot, Range<usize>),
        message: Message,
    ) -> Result<(), PostErrorKind> {
        let (place, kind) = (id.place(), message.kind());
        let is_open =
            |member: &Member| member.id == id && member.state == LaneState::Connected && member.send_room > 0;
        if kind == OpKind::Read || !self.members.get(place).is_some_and(is_open) {
            self.admit(id, kind)?;
        }
        let maximum = self.slots.length();
        if part.start > part.end || part.end > maximum {
            return Err(PostErrorKind::TooLong { length: part.end.max(part.start), maximum });
        }
        if !self.slots.lend(slot.0, SlotState::Posted(kind)) {
            return Err(PostErrorKind::NotHeld { slot: slot.0 });
        }
        if (self.sends_of != place || self.sends.len() == CHAIN) && !self.sends.is_empty() {
            self.ring();
        }
        self.sends_of = place;
        self.has_long |= part.len() > COPY_BELOW || kind == OpKind::Read;
        let (start, length) = (part.start as u32, part.len() as u32);
        self.sends.push(Chained { slot: slot.0, start, length, message });
        if let Some(member) = self.members.get_mut(place) {
            member.send_room = member.send_room.saturating_sub(1);
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Posts a receive into a slot.
    #[inline]
    pub(crate) fn receive(&mut self, id: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        let place = id.place();
        let is_open = |member: &Member| {
            let is_alive = matches!(member.state, LaneState::Unconnected | LaneState::Connected);
            member.id == id && is_alive && member.receive_room > 0
        };
        if !self.members.get(place).is_some_and(is_open) {
            return self.receive_otherwise(id, slot);
        }
        if !self.slots.lend(slot.0, SlotState::Posted(OpKind::Receive)) {
            return Err(PostErrorKind::NotHeld { slot: slot.0 });
        }
        if (self.receives_of != place || self.receives.len() == CHAIN) && !self.receives.is_empty() {
            self.ring_receives();
        }
        self.receives_of = place;
        self.receives.push(slot.0);
        if let Some(member) = self.members.get_mut(place) {
            member.receive_room = member.receive_room.saturating_sub(1);
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Hands the requests that wait to their queue pairs.
    #[inline]
    pub(crate) fn ring(&mut self) {
        // First, for answers to what is sent.
        if !self.receives.is_empty() {
            self.ring_receives();
        }
        if !self.sends.is_empty() {
            self.ring_sends();
        }
    }

    /// Posts Sends of the first bytes of several slots, and hands them over, until the queue is full. Returns their number.
    ///
    /// # Errors
    /// That of a Send, unless the queue is full. Those before are posted and handed over.
    pub(crate) fn send_all(
        &mut self,
        id: QueuePairId,
        of: impl IntoIterator<Item = (Slot, usize)>,
    ) -> Result<usize, PostErrorKind> {
        let posted = post_all(of, |(slot, length)| self.send(id, slot, length));
        self.ring();
        posted
    }

    /// Posts receives into several slots, as [`send_all`](Self::send_all) does.
    ///
    /// # Errors
    /// That of a receive, unless the queue is full. Those before are posted and handed over.
    pub(crate) fn receive_all(
        &mut self,
        id: QueuePairId,
        of: impl IntoIterator<Item = Slot>,
    ) -> Result<usize, PostErrorKind> {
        let posted = post_all(of, |slot| self.receive(id, slot));
        self.ring();
        posted
    }

    /// Takes completions, as many as there are and fit. Returns their number.
    ///
    /// # Errors
    /// The lane has ended.
    pub(crate) fn poll(&mut self, into: &mut [Done]) -> Result<usize, NotifyError> {
        self.ring();
        self.collect();
        self.polls += 1;
        if self.arrived.is_empty() || self.polls >= POLLS {
            self.read_sockets();
            self.collect();
        }
        self.take_done(into)
    }

    /// Takes completions that have arrived, as many as there are and fit.
    ///
    /// # Errors
    /// The lane has ended.
    fn take_done(&mut self, into: &mut [Done]) -> Result<usize, NotifyError> {
        if let Some(ended) = self.rare.ended {
            return Err(ended);
        }
        let mut count = 0;
        while let Some(place) = into.get_mut(count) {
            let Some(arrived) = self.arrived.pop_front() else { break };
            if let Some(done) = self.settle(arrived) {
                *place = done;
                count += 1;
            }
        }
        self.outstanding -= count as u32;
        Ok(count)
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
        tasks_run();
        self.ring();
        loop {
            self.collect();
            let count = self.take_done(into)?;
            if count > 0 || into.is_empty() {
                return Poll::Ready(Ok(count));
            }
            if self.inbox.wait(cx.waker()) {
                self.waits = true;
                return Poll::Pending;
            }
        }
    }

    /// Moves what has completed out of the inbox, and looks at the news.
    #[inline]
    fn collect(&mut self) {
        if self.inbox.is_pending() {
            self.waits = false;
            if self.inbox.take(&mut self.arrived) {
                self.look();
            }
        }
    }

    /// Reads the sockets of the next few connections, and writes on where a socket was full.
    fn read_sockets(&mut self) {
        self.polls = 0;
        if std::mem::take(&mut self.waits) {
            self.inbox.end_wait();
        }
        let Rare { connected, next, .. } = &mut *self.rare;
        let count = connected.len();
        let first = if *next < count { *next } else { 0 };
        for place in (first..count).chain(0..first).take(SOCKETS) {
            let member = connected.get(place).and_then(|place| self.members.get(*place));
            let queue_pair = member.and_then(|member| member.queue_pair.as_ref());
            if let Some(connection) = queue_pair.and_then(|queue_pair| queue_pair.connection()) {
                connection.poll_now();
            }
            *next = place + 1;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let queue_pairs: Vec<_> =
            self.members.iter_mut().filter_map(|member| member.queue_pair.take()).collect();
        queue_pairs.iter().for_each(|queue_pair| queue_pair.released());
        if let Some(shared) = &self.rare.shared {
            shared.released();
        }
    }
}

/// Posts requests, until the queue is full. Returns their number.
///
/// # Errors
/// That of a request, unless the queue is full. Those before are posted.
fn post_all<T>(
    of: impl IntoIterator<Item = T>,
    mut post: impl FnMut(T) -> Result<(), PostErrorKind>,
) -> Result<usize, PostErrorKind> {
    let mut posted = 0;
    for request in of {
        match post(request) {
            Ok(()) => posted += 1,
            Err(PostErrorKind::QueueFull { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(posted)
}

impl Member {
    /// Creates the member of a place that has no queue pair. The next one gets this id.
    fn empty(id: QueuePairId) -> Self {
        let state = LaneState::Gone;
        Self { id, state, reads: false, send_room: 0, receive_room: 0, queue_pair: None }
    }
}

impl Lane {
    /// Makes a queue pair.
    ///
    /// # Errors
    /// `Os` when the lane has as many as it may have, and `DeviceRemoved`.
    pub(crate) fn queue_pair(&mut self) -> Result<(QueuePairId, Arc<QueuePair>), OpenError> {
        // One that has ended may leave its place.
        self.collect();
        if self.rare.ended.is_some() {
            return Err(OpenError::DeviceRemoved);
        }
        let parts = &self.rare.parameters;
        let limit = parts.queue_pairs;
        let free = self.members.iter_mut().find(|member| member.queue_pair.is_none());
        let member = free.ok_or_else(|| {
            let full = format!("the lane has as many queue pairs as it may have, {limit}");
            let source = Arc::new(io::Error::new(io::ErrorKind::OutOfMemory, full));
            OpenError::Os { call: "Lane::queue_pair", source }
        })?;
        let sink = || CompletionSink::to_lane(self.inbox.clone(), member.id);
        let shared = self.rare.shared.clone();
        (member.send_room, member.receive_room) =
            (parts.send_depth, if shared.is_none() { parts.receive_depth } else { 0 });
        let settings = QueuePairParts {
            receive_depth: member.receive_room as usize,
            send_depth: parts.send_depth as usize,
            receive_entries: 1,
            send_entries: parts.send_entries as usize,
            inline: parts.inline as usize,
            receive: sink(),
            initiator: sink(),
            inbox: None,
            credited: false,
        };
        // Polls of the lane read the sockets.
        let queues = Queues { shared, sends: None, receives: None };
        let queue_pair = QueuePair::new(self.rare.adapter.clone(), settings, queues);
        member.queue_pair = Some(queue_pair.clone());
        member.state = LaneState::Unconnected;
        Ok((member.id, queue_pair))
    }

    /// Ends the connection of a queue pair, or its attempt to connect. What is outstanding comes out of the next polls.
    pub(crate) fn close(&mut self, id: QueuePairId) {
        self.ring();
        if let Some(queue_pair) = self.member(id).and_then(|member| member.queue_pair.clone()) {
            queue_pair.released();
        }
        self.collect();
    }

    /// Returns the progress of a queue pair.
    pub(crate) fn state(&mut self, id: QueuePairId) -> LaneState {
        self.collect();
        self.member(id).map_or(LaneState::Gone, |member| member.state)
    }

    /// Returns the queue pair with this id, unless it is gone.
    #[inline]
    fn member(&mut self, id: QueuePairId) -> Option<&mut Member> {
        let is_there = |member: &&mut Member| member.id == id && member.queue_pair.is_some();
        self.members.get_mut(id.place()).filter(is_there)
    }

    /// Checks again whether a request of the send queue can be posted.
    ///
    /// # Errors
    /// The reason why it cannot.
    #[cold]
    fn admit(&mut self, id: QueuePairId, kind: OpKind) -> Result<(), PostErrorKind> {
        self.collect();
        if self.rare.ended.is_some() {
            return Err(PostErrorKind::DeviceRemoved);
        }
        let depth = self.rare.parameters.send_depth as usize;
        let connected = self.member(id).filter(|member| member.state == LaneState::Connected);
        let member = connected.ok_or(PostErrorKind::ConnectionInvalid)?;
        let is_read = matches!(kind, OpKind::Read | OpKind::CompareSwap | OpKind::FetchAdd);
        match member.send_room {
            0 => Err(PostErrorKind::QueueFull { queue: QueueKind::Send, depth }),
            _ if is_read && !member.reads => Err(PostErrorKind::NoReads),
            _ => Ok(()),
        }
    }

    /// Looks at what has happened to the queue pairs.
    #[cold]
    fn look(&mut self) {
        if self.rare.adapter.is_removed() {
            self.rare.ended = Some(NotifyError::DeviceRemoved);
        }
        self.rare.connected.clear();
        for place in 0..self.members.len() {
            let Some(member) = self.members.get_mut(place) else { return };
            let Some(queue_pair) = &member.queue_pair else { continue };
            match queue_pair.phase() {
                QueuePairState::Unconnected | QueuePairState::Associated => {}
                QueuePairState::Connected => {
                    member.state = LaneState::Connected;
                    let connection = queue_pair.connection();
                    member.reads =
                        connection.is_some_and(|shared| shared.sending().queue.outbound.reads_at_all());
                    self.rare.connected.push(place);
                }
                QueuePairState::Over => {
                    member.state = LaneState::Ended;
                    self.release_ended(place);
                }
            }
        }
    }

    /// Removes a queue pair that has ended and has no request outstanding. The next one in its place has another id.
    #[cold]
    fn release_ended(&mut self, place: usize) {
        let parts = &self.rare.parameters;
        let receives = if self.rare.shared.is_some() { 0 } else { parts.receive_depth };
        let rooms = (parts.send_depth, receives);
        let Some(member) = self.members.get_mut(place) else { return };
        if member.state == LaneState::Ended && (member.send_room, member.receive_room) == rooms {
            let generation = (member.id.0 >> 16) as u16;
            *member = Member::empty(QueuePairId::new(place as u16, generation.wrapping_add(1)));
        }
    }
}
