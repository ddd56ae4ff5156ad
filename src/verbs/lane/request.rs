//! The requests of a lane that have options, several slots or none, and receives of a shared queue.

use std::ops::Range;

use smallvec::SmallVec;

use super::members::Loose;
use super::post::add_receive;
use super::{Lane, NONE, Special};
use crate::error::PostErrorKind;
use crate::inflight::{self, Done, Payload};
use crate::memory::SlotState;
use crate::provider::lane::{LOOSE, LaneRequest, LaneSource, loose};
use crate::provider::reads::ReadPlace;
use crate::provider::work::{Flags, Operation};
use crate::sys::{ScatterEntry, SendFlags, SendRequest};
use crate::types::{OpKind, QueueKind, QueuePairId, Slot};
use crate::verbs::queue_pair::{is_read, translate};
use crate::verbs::work_queue::{Entries, entries, nothing};

impl Lane {
    /// Posts a request of the send queue with options, at once and behind those that wait.
    ///
    /// # Errors
    /// The reason why it was not posted: nothing has changed.
    pub(crate) fn request(&mut self, request: LaneRequest<'_>) -> Result<(), PostErrorKind> {
        let LaneRequest { queue_pair, operation, source, flags } = request;
        let kind = operation.kind();
        self.admit(queue_pair, kind)?;
        self.ring();
        // The doorbell may have found the end.
        self.admit(queue_pair, kind)?;
        let place = if is_read(kind) { self.read_place(&source)? } else { None };
        let silent = flags.contains(Flags::SILENT);
        let mut payload = Payload::new();
        let (id, entries, inline) = match source {
            LaneSource::Bytes(bytes) => {
                let id = self.loose_id(queue_pair, kind, silent);
                // The library copies them within the call.
                let address = bytes.as_ptr().addr() as u64;
                let entry = ScatterEntry { address, length: bytes.len() as u32, key: 0 };
                let none = || nothing(self.rare.context.quirks());
                let entries = if bytes.is_empty() { none() } else { Entries::from_iter([entry]) };
                (id, entries, !bytes.is_empty())
            }
            LaneSource::Slots(parts) => self.lend(queue_pair, (kind, flags), parts)?,
            LaneSource::Region(memory) => {
                let id = self.loose_id(queue_pair, kind, silent);
                let reads = !matches!(kind, OpKind::Send | OpKind::Write);
                let found = entries(memory, reads, self.rare.context.quirks());
                payload = memory.clone();
                (id, found.ok_or(PostErrorKind::ForeignMemory)?, false)
            }
        };
        // The place of a read is free once its completion has come.
        let unsignaled = place.is_none() && self.is_unsignaled(queue_pair, silent);
        let mut options = SendFlags::empty();
        options.set(SendFlags::SIGNALED, !unsignaled);
        options.set(SendFlags::INLINE, inline);
        options.set(SendFlags::FENCE, flags.contains(Flags::FENCE));
        options.set(SendFlags::SOLICITED, flags.contains(Flags::SOLICITED));
        let request = SendRequest { id, operation: translate(operation), entries: &entries, flags: options };
        let device = self.members.get(queue_pair.place()).and_then(|member| member.device.as_ref());
        // SAFETY: the entries are bytes that the call copies, or parts of slots that are lent to the request, as for plain requests,
        // or parts of registered memory that `count` keeps as long.
        let posted = device.map(|device| unsafe { device.queue_pair.post_one(&request) });
        if let Some(Ok(())) = posted {
            self.count(queue_pair, Loose { id, payload, place }, (silent, unsignaled));
            return Ok(());
        }
        let code = posted.and_then(|posted| posted.err()).and_then(|refused| refused.source.raw_os_error());
        if (id as u32) < LOOSE {
            // SAFETY: the device has not taken the request.
            unsafe { self.reclaim(id as u32, false) };
        }
        Err(PostErrorKind::Device(code.unwrap_or(libc::EINVAL)))
    }

    /// Posts a request with a part of a slot that is not plain: its queue pair has changed, or follows requests whose success the device
    /// does not report; or the part is empty or wrong, or the slot is not held.
    ///
    /// # Errors
    /// The reason why it was not posted.
    #[cold]
    #[inline(never)]
    pub(super) fn post_otherwise(
        &mut self,
        queue_pair: QueuePairId,
        (slot, start, end): (Slot, usize, usize),
        operation: Operation,
    ) -> Result<(), PostErrorKind> {
        let source = LaneSource::Slots(&[(slot, start..end)]);
        self.request(LaneRequest { queue_pair, operation, source, flags: Flags::empty() })
    }

    /// Returns the place among the reads in flight of the adapter for one into this memory, if their number is limited.
    ///
    /// # Errors
    /// `ReadsFull`.
    fn read_place(&self, into: &LaneSource<'_>) -> Result<Option<ReadPlace>, PostErrorKind> {
        let length = match into {
            LaneSource::Bytes(bytes) => bytes.len(),
            LaneSource::Slots(parts) => parts.iter().fold(0, |length, (_, part)| part.len().max(length)),
            LaneSource::Region(memory) => inflight::length(memory),
        };
        self.rare.context.read_place(Flags::empty(), length)
    }

    /// Returns the id of the next request of this kind without a slot: no other one of the queue pair has it.
    fn loose_id(&mut self, queue_pair: QueuePairId, kind: OpKind, silent: bool) -> u64 {
        let number = self.rare.loose;
        self.rare.loose = number.wrapping_add(1);
        Done::id_of(queue_pair, loose(kind, silent, number))
    }

    /// Lends parts of slots to a request of this kind. Returns its id, its entries, and whether the call is to copy the bytes.
    ///
    /// # Errors
    /// `NotHeld`, `TooLong`: none is lent.
    fn lend(
        &mut self,
        queue_pair: QueuePairId,
        (kind, flags): (OpKind, Flags),
        parts: &[(Slot, Range<usize>)],
    ) -> Result<(u64, Entries, bool), PostErrorKind> {
        let (maximum, mut length) = (self.slots.length() as usize, 0);
        for (place, (slot, part)) in parts.iter().enumerate() {
            if part.start > part.end || part.end > maximum {
                return Err(PostErrorKind::TooLong { length: part.end.max(part.start), maximum });
            }
            let twice = parts.iter().take(place).any(|(other, _)| other == slot);
            if twice || !self.slots.is_held(slot.0) {
                return Err(PostErrorKind::NotHeld { slot: slot.0 });
            }
            length += part.len();
        }
        let entry = |(slot, part): &(Slot, Range<usize>)| ScatterEntry {
            address: self.slots.device_address(slot.0) + part.start as u64,
            length: part.len() as u32,
            key: self.slots.key(),
        };
        let mut entries: Entries = parts.iter().filter(|(_, part)| !part.is_empty()).map(entry).collect();
        if entries.is_empty() {
            entries = nothing(self.rare.context.quirks());
        }
        let silent = flags.contains(Flags::SILENT);
        let Some((first, _)) = parts.first() else {
            return Ok((self.loose_id(queue_pair, kind, silent), entries, false));
        };
        let others: SmallVec<[u32; 4]> = parts.iter().skip(1).map(|(slot, _)| slot.0).collect();
        for (place, (slot, _)) in parts.iter().enumerate() {
            let state = if place == 0 { SlotState::Special } else { SlotState::Part };
            self.slots.lend(slot.0, state, queue_pair.place() as u16);
        }
        self.rare.special.insert(first.0, Special { kind, silent, others, place: None });
        // Not behind a fence: they may be what a read before it brings.
        let copied = matches!(kind, OpKind::Send | OpKind::Write)
            && (1..=self.inline as usize).contains(&length)
            && !flags.contains(Flags::FENCE);
        Ok((Done::id_of(queue_pair, first.0), entries, copied))
    }

    /// Returns whether the device is not to report the success of the next request. In each half of the queue one has a completion, so
    /// that there is always room again. Devices of iWARP finish a write before an earlier read, and then nothing follows from the
    /// completion of the write.
    fn is_unsignaled(&mut self, id: QueuePairId, silent: bool) -> bool {
        let half = self.rare.parameters.send_depth / 2;
        let iwarp = self.rare.context.is_iwarp();
        let unsignaled = self.member(id).and_then(|member| member.rare.as_ref()).map(|rare| rare.unsignaled);
        silent && !iwarp && unsignaled.is_some_and(|unsignaled| unsignaled < half)
    }

    /// Counts a request that was posted.
    fn count(&mut self, queue_pair: QueuePairId, mut request: Loose, (silent, unsignaled): (bool, bool)) {
        let id = request.id;
        if request.place.is_some()
            && let Some(special) = self.rare.special.get_mut(&(id as u32))
        {
            special.place = request.place.take();
        }
        if let Some(member) = self.member(queue_pair) {
            member.send_room = member.send_room.saturating_sub(1);
            if let Some(rare) = member.rare.as_mut() {
                if id as u32 >= LOOSE {
                    rare.loose.push_back(request);
                }
                if unsignaled {
                    rare.unsignaled += 1;
                    rare.following.push_back(id);
                } else {
                    member.follow(id);
                }
            }
            member.refresh();
        }
        self.close_ways();
        self.outstanding += u32::from(!silent);
    }

    /// Posts a receive to the shared queue, or finds out why one to a queue pair cannot be posted.
    ///
    /// # Errors
    /// The reason why it was not posted.
    pub(super) fn receive_apart(&mut self, queue_pair: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        if self.news.is_pending() {
            self.look();
        }
        self.admits()?;
        let depth = self.rare.parameters.receive_depth as usize;
        if self.rare.shared.is_none() {
            let member = self.member(queue_pair).ok_or(PostErrorKind::ConnectionInvalid)?;
            let alive = member.receiving == queue_pair.0;
            let full = PostErrorKind::QueueFull { queue: QueueKind::Receive, depth };
            return Err(if alive { full } else { PostErrorKind::ConnectionInvalid });
        }
        if self.rare.shared_room == 0 {
            return Err(PostErrorKind::QueueFull { queue: QueueKind::SharedReceive, depth });
        }
        if self.receives.is_full() {
            self.ring_receives();
        }
        let Self { receives, outstanding, slots, rare, .. } = self;
        let mut run = receives.run(&mut rare.shared_room, outstanding);
        let added = add_receive(&mut run, slots, Done::id_of(QueuePairId(NONE), 0), slot);
        if added { Ok(()) } else { Err(PostErrorKind::NotHeld { slot: slot.0 }) }
    }
}
