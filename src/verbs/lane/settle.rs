//! The completions of a lane that are not plain: failures, shared receives, requests with options, messages before the connection is
//! established, and requests that no device has taken.

use tracing::{error, warn};

use super::{Lane, NONE, Special};
use crate::error::{NotifyError, WcError};
use crate::inflight::{Done, LOOSE, LaneState, is_silent, loose_kind};
use crate::memory::SlotState;
use crate::status::WcStatus;
use crate::sys::RefusedPart;
use crate::types::{OpKind, QueuePairId};

/// The slot of the empty request that asks for a sign of life.
pub(super) const PROBE: u32 = u32::MAX;

/// The number of completions of a poll that fails: more than there is room for.
const FAILED: usize = usize::MAX;

impl Lane {
    /// Returns the kind of the request that has a slot in this state, and whether it is silent.
    pub(super) fn kind_of(&self, slot: u32, state: SlotState) -> (OpKind, bool) {
        match state {
            SlotState::Send => (OpKind::Send, false),
            SlotState::Write => (OpKind::Write, false),
            SlotState::Read => (OpKind::Read, false),
            SlotState::Special => {
                let special = self.rare.special.get(&slot);
                special.map_or((OpKind::Send, false), |special| (special.kind, special.silent))
            }
            _ => (OpKind::Receive, false),
        }
    }

    /// Takes the slots of a request back, of which this is the first, as [`Slots::reclaim`](crate::memory::Slots::reclaim) does.
    ///
    /// # Safety
    /// As there, for each of its slots.
    pub(super) unsafe fn reclaim(&mut self, slot: u32, free: bool) {
        let others = match self.slots.state(slot) {
            Some(SlotState::Special) => {
                self.rare.special.remove(&slot).map(|Special { others, place, .. }| {
                    self.rare.places.extend(place);
                    others
                })
            }
            _ => None,
        };
        for slot in others.into_iter().flatten().chain([slot]) {
            // SAFETY: the caller's.
            unsafe { self.slots.reclaim(slot, free) };
        }
    }

    /// Settles polled completions from the one at `from` on, and leaves those out that the program has no use for. Those before are
    /// settled. Returns their number; [`FAILED`] if there is none and one was of no request.
    #[cold]
    pub(super) fn settle_others(&mut self, into: &mut [Done], from: usize, count: usize) -> usize {
        self.close_ways();
        let (mut shown, mut wrong) = (from, false);
        for at in from..count {
            let Some(mut done) = into.get(at).copied() else { break };
            let shows = self.settle_plain(&done) || {
                match self.settle(&mut done) {
                    Some(shows) => shows,
                    None => {
                        wrong = true;
                        false
                    }
                }
            };
            if shows && let Some(place) = into.get_mut(shown) {
                *place = done;
                shown += 1;
            }
        }
        self.outstanding -= shown as u32;
        self.free_places();
        if wrong {
            let failed = self.lose();
            // If some are shown, the next poll says so.
            return if shown == 0 { failed } else { shown };
        }
        shown
    }

    /// Settles a completion, and makes it one that the program understands. Returns whether the program is to see it; `None` if it is of
    /// no request.
    fn settle(&mut self, done: &mut Done) -> Option<bool> {
        if done.queue_pair().0 == NONE {
            return self.settle_shared(done);
        }
        let (id, slot) = (done.queue_pair(), done.slot().0);
        let Some(member) = self.member(id) else {
            // A late one of a queue pair that is gone: its requests have completed, and others may have its slots.
            return Some(false);
        };
        if slot == PROBE {
            member.rare.as_mut()?.probe.take()?;
            self.pass(id, done.id);
            if done.is_success() {
                self.member(id)?.quiet = 0;
                self.refresh(id);
            } else {
                self.fail(id, done);
            }
            return Some(false);
        }
        let (kind, silent) = if slot >= LOOSE {
            let loose = member.rare.as_mut()?.take_loose(done.id)?;
            self.rare.places.extend(loose.place);
            (loose_kind(slot), is_silent(slot))
        } else {
            let state =
                self.slots.state(slot).filter(|state| state.is_posted() && *state != SlotState::Part)?;
            self.kind_of(slot, state)
        };
        self.finish(done, id, (kind, silent))
    }

    /// Settles a completion of a request of the queue pair with this id, which is there.
    fn finish(&mut self, done: &mut Done, id: QueuePairId, (kind, silent): (OpKind, bool)) -> Option<bool> {
        let slot = done.slot().0;
        let (received, own) = (kind == OpKind::Receive, self.rare.shared.is_none());
        let heard = if matches!(kind, OpKind::Send | OpKind::Write) { self.deaf } else { 0 };
        if !received {
            self.pass(id, done.id);
        }
        let member = self.member(id)?;
        let rare = member.rare.as_mut()?;
        match (received, own) {
            (false, _) => member.send_room += 1,
            (true, true) => member.receive_room += 1,
            (true, false) => {}
        }
        let early = received && rare.state == LaneState::Unconnected;
        if done.is_success() && rare.broken && !received {
            // `siw` has often sent what was posted behind a request when that turns out to fail (`QP-18`).
            done.status = WcStatus::WR_FLUSH_ERR.code();
            done.vendor_error = Done::NO_DEVICE;
        }
        if done.is_success() {
            member.quiet &= heard;
            self.understand(done);
            if early {
                self.received_early(id);
            }
        } else {
            done.opcode = Done::opcode_of(kind);
            let short = WcStatus::LOC_QP_OP_ERR.code();
            if received && self.rare.context.quirks().misnames_short_receives && done.status == short {
                done.status = WcStatus::LOC_LEN_ERR.code();
            }
            self.fail(id, done);
        }
        let hidden = silent && done.is_success();
        if slot < LOOSE {
            // SAFETY: the device has completed the request that has the slots: its id names it, and its queue pair is in its place.
            unsafe { self.reclaim(slot, hidden) };
        }
        // A silent request that has failed was not counted.
        self.outstanding += u32::from(silent && !hidden);
        self.pass_refused(id);
        self.refresh(id);
        Some(!hidden)
    }

    /// Settles a completion of a receive of the shared queue. `None` if the lane has none.
    fn settle_shared(&mut self, done: &mut Done) -> Option<bool> {
        self.rare.shared.as_ref()?;
        let slot = done.slot().0;
        if self.slots.state(slot) != Some(SlotState::Receive) {
            return None;
        }
        self.rare.shared_room += 1;
        let place = self.rare.numbers.get(&done.number).copied().map(usize::from);
        let Some(member) = place.and_then(|place| self.members.get_mut(place)) else {
            // A late one of a queue pair that is gone, whose message cannot be answered.
            *done = Done::failed(done.id, OpKind::Receive, WcStatus::WR_FLUSH_ERR);
            // SAFETY: the device has completed the receive that has the slot.
            unsafe { self.slots.reclaim(slot, false) };
            return Some(true);
        };
        done.id = Done::id_of(member.id, slot);
        let plain = done.status | done.flags == 0 && member.plain == member.id.0;
        if !plain || done.length > self.slots.length() {
            return self.finish(done, done.queue_pair(), (OpKind::Receive, false));
        }
        member.quiet = 0;
        // SAFETY: as above.
        unsafe { self.slots.reclaim(slot, false) };
        Some(true)
    }

    /// Takes the requests off the list whose success the device does not report, up to the one with this id, which has completed. They
    /// have succeeded.
    fn pass(&mut self, id: QueuePairId, completed: u64) {
        loop {
            let Some(member) = self.member(id) else { return };
            let Some(rare) = member.rare.as_mut().filter(|rare| rare.following.contains(&completed)) else {
                return;
            };
            let Some(first) = rare.following.pop_front().filter(|first| *first != completed) else { return };
            let slot = first as u32;
            let loose = if slot >= LOOSE { rare.take_loose(first) } else { None };
            member.send_room += u32::from(slot != PROBE);
            self.rare.places.extend(loose.and_then(|loose| loose.place));
            if slot < LOOSE {
                // SAFETY: requests of a send queue complete in order, and a later one has.
                unsafe { self.reclaim(slot, true) };
            }
        }
    }

    /// Changes what a driver reports in its own way to what it should be.
    fn understand(&self, done: &mut Done) {
        let told = done.flags;
        done.flags = told & Done::IMMEDIATE;
        if told & Done::IMMEDIATE == 0 && told & self.completions.invalidated_flag() != 0 {
            done.flags = Done::INVALIDATED;
        }
        if done.opcode == Done::RECEIVED {
            // No device places more than there is room for, whatever length it reports.
            done.length = done.length.min(self.slots.length());
        }
    }

    /// Opens the send queue of a queue pair whose peer has sent a message before the connection manager has established the connection.
    fn received_early(&mut self, id: QueuePairId) {
        let Some(rare) = self.member(id).and_then(|member| member.rare.as_mut()) else { return };
        if rare.queue_pair.received_early() {
            rare.state = LaneState::Connected;
        }
        // It may have been established since the last look.
        self.look();
    }

    /// Ends the connection whose request has failed, unless it is known to be at its end.
    fn fail(&mut self, id: QueuePairId, done: &Done) {
        let Some(member) = self.member(id) else { return };
        let key = member.device.as_ref().map(|device| device.key());
        let Some(rare) = member.rare.as_mut() else { return };
        rare.broken |= done.kind() != OpKind::Receive;
        if !std::mem::replace(&mut rare.failed, true)
            && let Some(key) = key
        {
            let error = WcError::new(WcStatus::from_code(done.status), done.vendor_error);
            let queue_pair = rare.queue_pair.clone();
            queue_pair.failed(error, key);
        }
        self.refresh(id);
    }

    /// Opens or closes the plain ways of a queue pair after a change, and ends it if it was waited for.
    fn refresh(&mut self, id: QueuePairId) {
        if let Some(member) = self.member(id) {
            member.refresh();
        }
        self.release_ended(id.place());
    }

    /// Completes the requests of the chain in these places, which the device has refused, and ends their connection.
    #[cold]
    pub(super) fn sends_refused(&mut self, refused: RefusedPart) {
        let refused: Vec<u64> = self.sends.ids(refused).collect();
        let id = refused.first().map(|id| Done { id: *id, ..Done::EMPTY }.queue_pair());
        let ends = self.refuse(refused, false);
        let Some(id) = id else { return };
        self.pass_refused(id);
        // Last, because it has the subscriber of events called, which may panic.
        let Some(member) = self.member(id).filter(|_| ends) else { return };
        let key = member.device.as_ref().map(|device| device.key());
        if let (Some(rare), Some(key)) = (&member.rare, key) {
            let queue_pair = rare.queue_pair.clone();
            queue_pair.refused_by_device(key);
        }
    }

    /// Completes the receives of the chain in these places, which the device has refused.
    #[cold]
    pub(super) fn receives_refused(&mut self, refused: RefusedPart) {
        let refused: Vec<u64> = self.receives.ids(refused).collect();
        self.refuse(refused, true);
    }

    /// Completes the requests that the device has refused, once those that it has taken before have completed.
    pub(super) fn pass_refused(&mut self, id: QueuePairId) {
        let depth = self.rare.parameters.send_depth;
        let Some(member) = self.members.get_mut(id.place()).filter(|member| member.id == id) else { return };
        let Some(rare) = member.rare.as_mut().filter(|rare| !rare.refused.is_empty()) else { return };
        if depth.saturating_sub(member.send_room) as usize == rare.refused.len() {
            std::mem::take(&mut rare.refused).into_iter().for_each(|done| self.fail_disowned(done));
        }
    }

    /// Completes requests of a chain that the device has refused. Returns whether they end their connection, which goes on until then.
    fn refuse(&mut self, refused: Vec<u64>, received: bool) -> bool {
        self.close_ways();
        let mut ends = false;
        for id in refused {
            // Not if a device has completed the request before it had it: another one may have the slot, or the program.
            let Some(state) = self.slots.state(id as u32).filter(|state| state.is_posted()) else { continue };
            let (kind, _) = self.kind_of(id as u32, state);
            let ended = self.member(Done { id, ..Done::EMPTY }.queue_pair()).and_then(|member| {
                let rare = member.rare.as_mut()?;
                let ended = rare.failed || rare.state == LaneState::Ended;
                if !ended && !received {
                    (rare.failed, ends) = (true, true);
                    member.refresh();
                }
                Some(ended)
            });
            // The queue pair of the device comes into the error state, as the lane will see.
            let status = if ended == Some(false) { WcStatus::LOC_QP_OP_ERR } else { WcStatus::WR_FLUSH_ERR };
            let done = Done::failed(id, kind, status);
            self.slots.disown(id as u32);
            let member = self.member(done.queue_pair()).filter(|_| !received);
            match member.and_then(|member| member.rare.as_mut()) {
                Some(rare) => rare.refused.push_back(done),
                None => self.fail_disowned(done),
            }
        }
        ends
    }

    /// Adds a completion that no device has reported, for the next poll.
    pub(super) fn fail_later(&mut self, done: Done) {
        self.slots.disown(done.slot().0);
        self.fail_disowned(done);
    }

    /// Adds such a completion of a request whose slot is of no queue pair: that may be gone before the next poll, and its end is not to
    /// complete the request again.
    pub(super) fn fail_disowned(&mut self, done: Done) {
        self.rare.failed.push_back(done);
        self.halted = true;
    }

    /// Polls when there are news, completions that no device has reported, or queue pairs of the device to be destroyed. Returns what
    /// [`poll`](Self::poll) does.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_rare(&mut self, into: &mut [Done]) -> usize {
        if self.news.is_pending() {
            self.look_for(true);
        }
        self.close_ways();
        if self.rare.ended.is_some() {
            return FAILED;
        }
        if self.rare.failed.is_empty() {
            self.halted = self.rare.releasing;
            self.ring();
            let count = self.completions.poll_into(into);
            if count > into.len() {
                return self.lose();
            }
            let (shown, empty) = self.settle_rest(into, 0, count);
            if empty {
                self.release_late();
            } else {
                self.release_behind(into.len());
            }
            return shown;
        }
        self.ring();
        self.poll_failed(into)
    }

    /// Returns completions that no device has reported.
    fn poll_failed(&mut self, into: &mut [Done]) -> usize {
        let own = self.rare.shared.is_none();
        let mut count = 0;
        while let Some(place) = into.get_mut(count) {
            let Some(done) = self.rare.failed.pop_front() else { break };
            let (id, slot) = (done.queue_pair(), done.slot().0);
            if slot < LOOSE && !self.slots.is_disowned(slot) {
                // The device has completed what its driver has refused.
                continue;
            }
            *place = done;
            count += 1;
            let received = done.kind() == OpKind::Receive;
            if received && !own {
                self.rare.shared_room += 1;
            } else if let Some(member) = self.member(id) {
                // The queue pair is there: the device has refused the request.
                if received { member.receive_room += 1 } else { member.send_room += 1 }
            }
            if slot < LOOSE {
                // SAFETY: the device has not taken the request, or its queue pair is destroyed.
                unsafe { self.reclaim(slot, false) };
            }
            self.refresh(id);
        }
        self.outstanding -= count as u32;
        self.free_places();
        count
    }

    /// Frees the places of reads that are no longer in flight. Others may wait for them, whose wakers may panic.
    #[inline]
    pub(super) fn free_places(&mut self) {
        if !self.rare.places.is_empty() {
            self.rare.places.clear();
        }
    }

    /// Ends the lane: a completion is lost, or is of no request. All connections end, and no slot comes back that a request has. Returns
    /// what the poll returns then.
    #[cold]
    pub(super) fn lose(&mut self) -> usize {
        let adapter = &self.rare.context.device.name;
        if self.rare.ended.is_none() && self.rare.context.is_removed() {
            warn!(%adapter, "lane ended: the device is gone");
            self.end(NotifyError::DeviceRemoved);
        } else if self.rare.ended.is_none() {
            error!(%adapter, "lane ended: a completion is lost, or of no request");
            self.rare.room.fail();
            self.end(NotifyError::Lost);
        }
        FAILED
    }

    /// Returns the reason why the lane has ended.
    #[cold]
    pub(crate) fn ended(&self) -> NotifyError {
        self.rare.ended.unwrap_or(NotifyError::Lost)
    }
}
