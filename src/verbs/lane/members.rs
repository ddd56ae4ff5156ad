//! The queue pairs of a lane: their beginning, what happens to them, and their end.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::{Lane, Member, NONE, settle};
use crate::error::{NotifyError, OpenError, PostErrorKind};
use crate::inflight::{CompletionSink, Done, LaneState, Payload, ReadPlace, Table, is_silent, loose_kind};
use crate::memory::SlotState;
use crate::proto::qp::QueuePairState;
use crate::provider::params::QueuePairParts;
use crate::status::WcStatus;
use crate::sys::{Operation, RemoteMemory, SendFlags, SendRequest};
use crate::types::{OpKind, QueueKind, QueuePairId};
use crate::verbs::context::failed;
use crate::verbs::news::{LaneMemory, Membership};
use crate::verbs::queue_pair::{DeviceQp, Look, QueuePair, Queues, is_read};
use crate::verbs::routes::TICKS;
use crate::verbs::work_queue::nothing;

/// The longest wait for requests that the end of a queue pair flushes, and for those that it has taken from a shared receive queue.
/// Not every driver reports them.
const FLUSH: Duration = Duration::from_secs(1);

/// What a plain request of a queue pair needs none of.
pub(super) struct RareMember {
    pub(super) queue_pair: Arc<QueuePair>,
    /// The number by which completions of shared receives name it.
    number: u32,
    pub(super) state: LaneState,
    /// Reads and atomics can be posted.
    reads: bool,
    /// Reads can be posted the plain way: their number is not limited by the adapter.
    plain_reads: bool,
    /// A request has failed, or the device has refused one: nothing is posted behind it.
    pub(super) failed: bool,
    /// A request of the send queue has failed: none succeeds behind it.
    pub(super) broken: bool,
    /// The completions of the requests of the send queue that the device has refused, until those before have come.
    pub(super) refused: VecDeque<Done>,
    /// The requests of the send queue, from the first on whose success the device does not report.
    pub(super) following: VecDeque<u64>,
    /// The requests without a slot.
    pub(super) loose: VecDeque<Loose>,
    /// The number of last requests whose success the device does not report.
    pub(super) unsignaled: u32,
    /// The request that asks for a sign of life, if it is outstanding.
    pub(super) probe: Option<Probe>,
    /// The time at which the queue pair of the device is destroyed, whatever it has not completed by then.
    until: Option<Instant>,
}

/// A request without a slot, with its memory.
pub(super) struct Loose {
    pub(super) id: u64,
    pub(super) payload: Payload,
    /// Its place among the reads in flight of the adapter, if it has one.
    pub(super) place: Option<ReadPlace>,
}

/// An empty request that has not completed.
pub(super) struct Probe {
    /// The parts of the path timeout since it was posted.
    ticks: u32,
    /// No request is ahead of it that might wait for the peer's application.
    alone: bool,
}

impl RareMember {
    /// Takes the request without a slot that has this id off the list, if it is there.
    pub(super) fn take_loose(&mut self, id: u64) -> Option<Loose> {
        let place = self.loose.iter().position(|loose| loose.id == id);
        place.and_then(|place| self.loose.remove(place))
    }
}

impl Member {
    /// Creates the member of a place that has no queue pair.
    pub(super) fn empty(place: u16) -> Self {
        let id = QueuePairId::new(place, 0);
        Self {
            open: NONE,
            plain: NONE,
            receiving: NONE,
            send_room: 0,
            receive_room: 0,
            quiet: 0,
            left: false,
            waited: false,
            id,
            device: None,
            rare: None,
        }
    }

    /// Gives the place its next id.
    fn renew(&mut self) {
        let generation = (self.id.0 >> 16) as u16;
        self.id = QueuePairId::new(self.id.place() as u16, generation.wrapping_add(1));
    }

    /// Opens the plain ways again that are open, after a change.
    pub(super) fn refresh(&mut self) {
        let Some(rare) = &self.rare else { return };
        let follows = !rare.following.is_empty();
        let connected = rare.state == LaneState::Connected && !rare.failed;
        let when = |open: bool| if open { self.id.0 } else { NONE };
        let (open, plain) = (when(connected && !follows), when(connected && !follows));
        let alive = matches!(rare.state, LaneState::Unconnected | LaneState::Connected) && !rare.failed;
        (self.receiving, self.open, self.plain) = (when(alive), open, plain);
    }

    /// Closes the plain ways.
    fn close(&mut self) {
        (self.open, self.plain, self.receiving) = (NONE, NONE, NONE);
    }

    /// Adds a request behind one whose success the device does not report.
    pub(super) fn follow(&mut self, id: u64) {
        if let Some(rare) = self.rare.as_mut().filter(|rare| !rare.following.is_empty()) {
            rare.following.push_back(id);
            rare.unsignaled = 0;
        }
    }

    /// Takes what the end of the lane ends. The memory of requests that are outstanding is put with that of the lane.
    pub(super) fn leave(&mut self, memory: &LaneMemory) -> Option<(Arc<QueuePair>, Option<Arc<DeviceQp>>)> {
        let rare = self.rare.take()?;
        for Loose { payload, place, .. } in rare.loose {
            memory.add(payload);
            memory.add_places(place.into_iter());
        }
        Some((rare.queue_pair, self.device.take()))
    }
}

impl Lane {
    /// Makes a queue pair.
    ///
    /// # Errors
    /// `Os` when the lane has as many as it may have, and those of ibv_create_qp(3).
    pub(crate) fn queue_pair(&mut self) -> Result<(QueuePairId, Arc<QueuePair>), OpenError> {
        // One that has ended leaves its place when it is seen.
        self.look();
        if self.rare.ended.is_some() {
            return Err(OpenError::DeviceRemoved);
        }
        let parts = &self.rare.parameters;
        let limit = usize::from(parts.queue_pairs);
        let free = self.members.iter_mut().find(|member| member.rare.is_none() && !member.left);
        let member = free.ok_or_else(|| {
            let full = format!("the lane has as many queue pairs as it may have, {limit}");
            failed("Lane::queue_pair")(io::Error::new(io::ErrorKind::OutOfMemory, full))
        })?;
        let id = member.id;
        let sink = || CompletionSink::to_futures(Arc::<Table>::default());
        let own = self.rare.shared.is_none();
        let size = |value: u32| value as usize;
        let settings = QueuePairParts {
            receive_depth: if own { size(parts.receive_depth) } else { 0 },
            send_depth: size(parts.send_depth),
            receive_entries: 1,
            send_entries: size(parts.send_entries),
            inline: size(parts.inline),
            receive: sink(),
            initiator: sink(),
            inbox: None,
            credited: false,
        };
        let group = || self.rare.group.clone();
        let queues = Queues { shared: None, sends: group(), receives: group() };
        let membership = Membership {
            news: self.news.clone(),
            id,
            memory: Arc::downgrade(&self.rare.memory),
            receives: self.rare.shared.as_ref().map(|shared| shared.key()),
            ticked: AtomicBool::new(false),
        };
        let queue_pair = QueuePair::with(self.rare.context.clone(), settings, queues, Some(membership));
        let made = queue_pair.and_then(|queue_pair| {
            let device = queue_pair.look(false).device.ok_or(OpenError::DeviceRemoved)?;
            Ok((queue_pair, device))
        });
        // The news of one that has ended already must not be those of the next.
        let (queue_pair, device) = made.inspect_err(|_| member.renew())?;
        let number = device.queue_pair.number;
        if self.rare.shared.is_some() {
            self.rare.numbers.insert(number, id.place() as u16);
        }
        member.device = Some(device);
        (member.send_room, member.receive_room) =
            (parts.send_depth, if own { parts.receive_depth } else { 0 });
        member.quiet = 0;
        member.rare = Some(Box::new(RareMember {
            queue_pair: queue_pair.clone(),
            number,
            state: LaneState::Unconnected,
            reads: false,
            plain_reads: false,
            failed: false,
            broken: false,
            refused: VecDeque::new(),
            following: VecDeque::new(),
            loose: VecDeque::new(),
            unsignaled: 0,
            probe: None,
            until: None,
        }));
        member.refresh();
        Ok((id, queue_pair))
    }

    /// Ends the connection of a queue pair, or its attempt to connect. What is outstanding comes out of the next polls.
    pub(crate) fn close(&mut self, id: QueuePairId) {
        self.ring();
        if let Some(rare) = self.member(id).and_then(|member| member.rare.as_ref()) {
            let queue_pair = rare.queue_pair.clone();
            queue_pair.released();
        }
        self.look();
    }

    /// Returns the progress of a queue pair.
    pub(crate) fn state(&mut self, id: QueuePairId) -> LaneState {
        if self.news.is_pending() {
            self.look();
        }
        let member = self.members.get(id.place()).filter(|member| member.id == id);
        match member.map(|member| (&member.rare, member.left)) {
            Some((Some(rare), _)) => rare.state,
            Some((None, true)) => LaneState::Ended,
            _ => LaneState::Gone,
        }
    }

    /// Returns the queue pair with this id, unless it is gone.
    pub(super) fn member(&mut self, id: QueuePairId) -> Option<&mut Member> {
        self.members.get_mut(id.place()).filter(|member| member.id == id && member.rare.is_some())
    }

    /// Checks again whether a request of the send queue can be posted.
    ///
    /// # Errors
    /// The reason why it cannot.
    #[cold]
    pub(super) fn admit(&mut self, id: QueuePairId, kind: OpKind) -> Result<(), PostErrorKind> {
        self.close_ways();
        if self.news.is_pending() {
            self.look();
        }
        self.admits()?;
        let depth = self.rare.parameters.send_depth;
        let member = self.member(id).ok_or(PostErrorKind::ConnectionInvalid)?;
        let (room, rare) = (member.send_room, member.rare.as_ref());
        let rare = rare.filter(|rare| rare.state == LaneState::Connected && !rare.failed);
        let rare = rare.ok_or(PostErrorKind::ConnectionInvalid)?;
        if room == 0 {
            return Err(PostErrorKind::QueueFull { queue: QueueKind::Send, depth: depth as usize });
        }
        if is_read(kind) && !rare.reads { Err(PostErrorKind::NoReads) } else { Ok(()) }
    }

    /// Checks whether the lane goes on.
    ///
    /// # Errors
    /// `DeviceRemoved`; `ConnectionInvalid` if a completion is lost.
    pub(super) fn admits(&self) -> Result<(), PostErrorKind> {
        match self.rare.ended {
            None => Ok(()),
            Some(NotifyError::DeviceRemoved) => Err(PostErrorKind::DeviceRemoved),
            Some(_) => Err(PostErrorKind::ConnectionInvalid),
        }
    }

    /// Ends the lane, for this reason unless it has ended before: nothing more can be posted.
    pub(super) fn end(&mut self, reason: NotifyError) {
        self.members.iter_mut().for_each(Member::close);
        self.close_ways();
        self.halted = true;
        self.rare.ended.get_or_insert(reason);
    }

    /// Returns whether the queue pair is connected, and permits reads the plain way, as the lane saw it last.
    pub(super) fn admits_reads(&mut self, id: QueuePairId) -> bool {
        self.member(id).and_then(|member| member.rare.as_ref()).is_some_and(|rare| rare.plain_reads)
    }

    /// Looks at what has happened to the queue pairs.
    #[cold]
    pub(super) fn look(&mut self) {
        self.look_for(false);
    }

    /// Looks at what has happened to the queue pairs, for a poll if `polls`. Only those count the silence of peers, whose signs of life
    /// wait in the queue until a poll.
    #[cold]
    pub(super) fn look_for(&mut self, polls: bool) {
        self.close_ways();
        let destroyed = self.news.take();
        for (id, free) in destroyed {
            self.remove(id, free);
        }
        for place in 0..self.members.len() {
            self.look_at(place, polls);
        }
        if self.rare.context.is_removed() {
            self.end(NotifyError::DeviceRemoved);
        } else if !self.rare.room.is_served() || self.news.is_lost() {
            self.end(NotifyError::Lost);
        }
        self.free_places();
    }

    fn look_at(&mut self, place: usize, polls: bool) {
        let Some(member) = self.members.get_mut(place) else { return };
        let (Some(rare), true) = (&mut member.rare, member.device.is_some()) else { return };
        let Look { phase, device, reads, ticked } = rare.queue_pair.look(polls);
        match (rare.state, phase, device) {
            (LaneState::Unconnected, QueuePairState::Connected, Some(_)) => rare.state = LaneState::Connected,
            (LaneState::Unconnected | LaneState::Connected, _, None) => {
                rare.state = LaneState::Ended;
                rare.until = Some(Instant::now() + FLUSH);
                let (news, runtime) = (self.news.clone(), &self.rare.context.runtime);
                runtime.spawn(async move {
                    tokio::time::sleep(FLUSH).await;
                    news.mark();
                    news.wake();
                });
                debug!(place, "queue pair of a lane has ended");
            }
            _ => {}
        }
        // Also of one that a message of the peer has opened.
        rare.reads = rare.state == LaneState::Connected && reads > 0;
        rare.plain_reads = rare.reads && self.rare.context.reads.is_none();
        member.refresh();
        self.release_ended(place);
        match ticked && self.rare.ended.is_none() {
            true if polls => self.count_silence(place),
            // The next poll does it.
            true => self.news.mark(),
            false => {}
        }
    }

    /// Returns the rooms of a queue pair without requests.
    fn depths(&self) -> (u32, u32) {
        let parts = &self.rare.parameters;
        (parts.send_depth, if self.rare.shared.is_some() { 0 } else { parts.receive_depth })
    }

    /// Has the queue pair of the device destroyed that has ended, and has completed everything or had the time to.
    pub(super) fn release_ended(&mut self, place: usize) {
        let (shared, depths) = (self.rare.shared.is_some(), self.depths());
        let Some(member) = self.members.get_mut(place) else { return };
        let Some(rare) = member.rare.as_mut().filter(|rare| rare.state == LaneState::Ended) else { return };
        let late = rare.until.is_none_or(|until| Instant::now() >= until);
        // What it has taken from a shared queue is not counted, so it has the time.
        let flushed = !shared && (member.send_room, member.receive_room) == depths;
        // What has come by now is taken before: libraries of cards throw it away.
        if late && !flushed && member.device.is_some() {
            (self.rare.releasing, self.halted) = (true, true);
        }
        if flushed {
            self.release(place);
        }
    }

    /// Has the queue pairs of the device destroyed that have had the time to complete everything, after a poll that has found the queue
    /// empty.
    #[cold]
    pub(super) fn release_late(&mut self) {
        if std::mem::take(&mut self.rare.releasing) {
            (self.halted, self.rare.polled) = (self.rare.ended.is_some() || !self.rare.failed.is_empty(), 0);
            for place in 0..self.members.len() {
                self.release_waiting(place, true);
            }
        }
    }

    /// Does the same after a poll that has filled its room, with so many completions: a lane that is busy may never find the queue
    /// empty. In each round polls take as many completions as the queue has room for, so they have taken what was in it before.
    #[cold]
    pub(super) fn release_behind(&mut self, polled: usize) {
        self.rare.polled = self.rare.polled.saturating_add(polled);
        if !self.rare.releasing || self.rare.polled < self.completions.entries() as usize {
            return;
        }
        (self.rare.polled, self.rare.releasing) = (0, false);
        for place in 0..self.members.len() {
            self.rare.releasing |= self.release_waiting(place, false);
        }
        self.halted = self.rare.releasing || self.rare.ended.is_some() || !self.rare.failed.is_empty();
    }

    /// Ends the wait of a place, if there is one that has begun before this round, or that `ends` in any case. Returns whether the place
    /// waits on.
    fn release_waiting(&mut self, place: usize, ends: bool) -> bool {
        let Some(member) = self.members.get_mut(place) else { return false };
        let until = member.rare.as_ref().and_then(|rare| rare.until).filter(|_| member.device.is_some());
        let late = until.is_some_and(|until| Instant::now() >= until);
        if !late && !member.left {
            return false;
        }
        if !ends && !std::mem::replace(&mut member.waited, true) {
            return true;
        }
        member.waited = false;
        if std::mem::take(&mut member.left) {
            member.renew();
        }
        if late {
            self.release(place);
        }
        false
    }

    fn release(&mut self, place: usize) {
        self.aim_away(place);
        if let Some(device) = self.members.get_mut(place).and_then(|member| member.device.take()) {
            // Others may hold it, too. The news come when it is gone.
            self.rare.context.teardown.run(Box::new(move || drop(device)));
        }
    }

    /// Aims the chains away from the queue pair in this place, whose queue pair of the device the lane lets go. None of its requests
    /// waits: it has all its room, or a poll has just handed them over. Those that wait because a device has completed them before it
    /// had them are refused.
    fn aim_away(&mut self, place: usize) {
        if self.sends_of == place {
            debug_assert!(self.sends.is_empty(), "the device completed requests that it did not have");
            self.close_sends();
            self.sends.aim_nowhere();
        }
        if self.receives_of == place && self.rare.shared.is_none() {
            debug_assert!(self.receives.is_empty(), "the device completed receives that it did not have");
            self.close_receives();
            self.receives.aim_nowhere();
        }
    }

    /// Removes a queue pair whose queue pair of the device is gone. Its requests complete; the memory of one that could not be destroyed
    /// is withheld.
    fn remove(&mut self, id: QueuePairId, free: bool) {
        let (place, depths) = (id.place(), self.depths());
        if self.member(id).is_some() {
            self.aim_away(place);
        }
        let Some(member) = self.members.get_mut(place).filter(|member| member.id == id) else { return };
        let Some(rare) = member.rare.take() else { return };
        // A later one may have the number by now.
        if self.rare.numbers.get(&rare.number).copied().map(usize::from) == Some(place) {
            self.rare.numbers.remove(&rare.number);
        }
        // The probe has an entry of its own in the completion queue, as that of the next one has.
        let left = self.rare.shared.is_some()
            || (member.send_room, member.receive_room) != depths
            || rare.probe.is_some();
        *member = Member { id, left, ..Member::empty(place as u16) };
        if left {
            (self.rare.releasing, self.halted) = (true, true);
        } else {
            member.renew();
        }
        for Loose { id: loose, payload, place } in rare.loose {
            self.rare.places.extend(place);
            if !free {
                std::mem::forget(payload);
            }
            if !is_silent(loose as u32) {
                let done = Done::failed(loose, loose_kind(loose as u32), WcStatus::WR_FLUSH_ERR);
                self.fail_later(done);
            }
        }
        let mut withheld = 0;
        for slot in 0..self.slots.count() {
            let Some(state) = self.slots.state(slot).filter(|state| state.is_posted()) else { continue };
            // A receive of a shared queue has no owner before a message takes it.
            let of_other = state == SlotState::Receive && self.rare.shared.is_some();
            if of_other || self.slots.owner(slot).map(usize::from) != Some(place) {
                continue;
            }
            if !free {
                withheld += 1;
                self.slots.withhold(slot);
            }
            if state == SlotState::Part {
                continue;
            }
            let (kind, silent) = self.kind_of(slot, state);
            let done = Done::failed(Done::id_of(id, slot), kind, WcStatus::WR_FLUSH_ERR);
            match (free, silent) {
                (true, false) => self.fail_later(done),
                // SAFETY: the queue pair of the device is destroyed.
                (true, true) => unsafe { self.reclaim(slot, true) },
                (false, _) => {
                    self.outstanding -= u32::from(!silent);
                    let special = self.rare.special.remove(&slot);
                    self.rare.places.extend(special.and_then(|special| special.place));
                }
            }
        }
        // They come behind those that the queue pair had.
        rare.refused.into_iter().for_each(|refused| self.fail_disowned(refused));
        if withheld > 0 {
            warn!(withheld, "slots of a lane are lost: a queue pair of the device could not be destroyed");
        }
    }

    /// Counts a part of the path timeout without a sign of life: asks for one halfway, and gives the peer up at the end.
    fn count_silence(&mut self, place: usize) {
        let depth = self.rare.parameters.send_depth;
        let Some(member) = self.members.get_mut(place) else { return };
        let Some(rare) = member.rare.as_mut().filter(|rare| rare.state == LaneState::Connected) else {
            return;
        };
        let Some(device) = member.device.as_ref().filter(|_| !rare.failed) else { return };
        member.quiet = member.quiet.saturating_add(1);
        if let Some(probe) = &mut rare.probe {
            probe.ticks = probe.ticks.saturating_add(1);
            if probe.alone && member.quiet >= TICKS && probe.ticks >= TICKS / 2 {
                rare.queue_pair.gone_silent(device.key());
            }
            return;
        }
        // Requests of the program are left to the device, which reports when it gives up; except those whose success it does not report.
        let outstanding = depth.saturating_sub(member.send_room);
        let reported = outstanding > rare.unsignaled || outstanding as usize != rare.following.len();
        if member.quiet < TICKS / 2 || reported {
            return;
        }
        let nowhere = RemoteMemory { address: 0, key: 0 };
        let reads = self.rare.context.is_iwarp() && rare.reads;
        let operation = if reads { Operation::Read(nowhere) } else { Operation::Write(nowhere) };
        let entries = nothing(self.rare.context.quirks());
        let id = Done::id_of(member.id, settle::PROBE);
        let request = SendRequest { id, operation, entries: &entries, flags: SendFlags::SIGNALED };
        // SAFETY: the request has no bytes, so no memory is in use.
        match unsafe { device.queue_pair.post_one(&request) } {
            Ok(()) => {
                rare.probe = Some(Probe { ticks: 0, alone: outstanding == 0 });
                // Its answer says that those before it have succeeded.
                member.follow(id);
            }
            Err(refused) => debug!(error = %refused.source, "probe not posted"),
        }
    }
}
