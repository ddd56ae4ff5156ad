//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};

use super::device::MAX_CQE;
use super::instant::{self, News, Ring};
use super::status::{asynchronous, wc};
use super::types::*;
use super::world::{self, World, live};
use super::{device, number_of, objects, pointer};

pub(super) struct CompletionQueue {
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    pub(super) vector: c_int,
    entries: VecDeque<Completion>,
    pub(super) room: usize,
    armed: Option<Arm>,
    /// A completion was lost.
    overrun: bool,
    /// The place of a completion that cannot be read.
    spoiled: Option<usize>,
    /// The number of completions in front of the place where it was resized, at which a poll ends.
    cut: Option<usize>,
    /// The ring that its completions are in instead, if the device is an instant one.
    ring: Option<Ring>,
    /// The number of queues of queue pairs that complete here.
    pub(super) users: usize,
}

/// The completion of which an event tells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arm {
    Any,
    Solicited,
}

impl Arm {
    /// The completions that a queue tells of after one more request for an event.
    pub(super) fn asked(before: Option<Self>, solicited_only: c_int) -> Self {
        // Whoever asks for all of them gets these, too.
        match (before, solicited_only) {
            (Some(Self::Any), _) | (_, 0) => Self::Any,
            _ => Self::Solicited,
        }
    }

    /// Whether there is an event for this completion.
    pub(super) fn tells(self, completion: Completion, solicited: bool) -> bool {
        self == Self::Any || solicited || completion.status != wc::SUCCESS
    }
}

/// A completion.
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) bytes: u32,
    /// Immediate data as it was sent, or an invalidated key, as the flags say.
    pub(super) word: u32,
    pub(super) flags: u32,
    pub(super) number: u32,
    /// The shared queue that a receive was taken from, which has its place again when this is polled.
    pub(super) shared: Option<usize>,
}

/// The vendor error of a completion that failed, to which its status is added.
const VENDOR_ERROR: u32 = 0x5000;

impl Completion {
    pub(super) fn to_raw(self) -> ibv_wc {
        ibv_wc {
            wr_id: self.id,
            status: self.status,
            opcode: self.opcode,
            vendor_err: if self.status == wc::SUCCESS { 0 } else { VENDOR_ERROR | self.status },
            byte_len: self.bytes,
            imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union { imm_data: self.word },
            qp_num: self.number,
            src_qp: 0,
            wc_flags: self.flags,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

impl World {
    /// Adds a completion to a queue.
    pub(super) fn complete(&mut self, at: usize, mut completion: Completion, solicited: bool) {
        if self.script.misnames() {
            completion.id |= !u64::from(u32::MAX);
        }
        let (full, spoiled, twice) = (self.script.overruns(), self.script.spoils(), self.script.repeats());
        let Some(queue) = self.queues.get_mut(&at) else { return };
        if let Some(ring) = &queue.ring {
            let news = instant::push(ring, completion, solicited);
            return self.announce(at, news);
        }
        if queue.overrun {
            return;
        }
        if full || queue.entries.len() >= queue.room {
            // The device writes to it no more.
            queue.overrun = true;
            return self.announce(at, News::Overrun);
        }
        if spoiled {
            queue.spoiled = Some(queue.entries.len());
        }
        queue.entries.push_back(completion);
        if twice {
            queue.entries.push_back(Completion { shared: None, ..completion });
        }
        if queue.armed.is_some_and(|arm| arm.tells(completion, solicited)) {
            queue.armed = None;
            self.announce(at, News::Event);
        }
    }

    /// Tells the owner of a queue of a completion that was added to it.
    pub(super) fn announce(&mut self, at: usize, news: News) {
        let Some(&mut CompletionQueue { context, channel, .. }) = self.queues.get_mut(&at) else { return };
        match news {
            News::Event if !channel.is_null() => {
                self.script.events += 1;
                live(&mut self.channels, channel).events().push(at);
            }
            News::Overrun => self.asynchronous(context, asynchronous::CQ_ERR, at),
            News::Event | News::None => {}
        }
    }

    /// Throws the completions of a queue pair away, as libraries of cards do when it is destroyed: nobody hears of them, and the
    /// places of shared receives are free.
    pub(super) fn discard(&mut self, at: usize, number: u32) {
        let Some(queue) = self.queues.get_mut(&at) else { return };
        let mut shared = queue.ring.as_ref().map(|ring| instant::discard(ring, number)).unwrap_or_default();
        (queue.spoiled, queue.cut) = (None, None);
        queue.entries.retain(|completion| {
            let stays = completion.number != number;
            shared.extend(completion.shared.filter(|_| !stays));
            stays
        });
        shared.into_iter().for_each(|shared| self.give_back(shared));
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    key: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(world::enter("ibv_create_cq").and_then(|mut world| {
        // SAFETY: the device is open.
        let vectors = unsafe { (*context).num_comp_vectors };
        let fits = u32::try_from(entries).is_ok_and(|entries| (1..=MAX_CQE).contains(&entries));
        if !fits || !(0..vectors).contains(&vector) {
            return Err(libc::EINVAL);
        }
        world.add_object(context)?;
        let handle = world.number();
        if !channel.is_null() {
            live(&mut world.channels, channel).users += 1;
        }
        let (raw, ring) = objects::new_queue(entries as usize);
        // SAFETY: the structure is new.
        let new = unsafe { &mut *raw };
        (new.context, new.channel, new.cq_context) = (context, channel, key);
        (new.handle, new.cqe) = (handle, entries);
        let queue = CompletionQueue {
            context,
            channel,
            vector,
            entries: VecDeque::new(),
            room: entries as usize,
            armed: None,
            overrun: false,
            spoiled: None,
            cut: None,
            ring,
            users: 0,
        };
        world.queues.insert(raw.expose_provenance(), queue);
        Ok(raw)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(raw: *mut ibv_cq, entries: c_int) -> c_int {
    number_of(world::enter("ibv_resize_cq").and_then(|mut world| {
        let cuts_off = world.script.cuts_off;
        let queue = live(&mut world.queues, raw);
        let room = usize::try_from(entries).unwrap_or(0);
        if room == 0 || room > MAX_CQE as usize || room < queue.entries.len() {
            return Err(libc::EINVAL);
        }
        if queue.ring.as_ref().is_some_and(|ring| !instant::resize(ring, room)) {
            return Err(libc::EINVAL);
        }
        queue.room = room;
        queue.cut = cuts_off.then_some(queue.entries.len());
        // SAFETY: the queue is live, and the caller lets nobody else read this meanwhile.
        unsafe { (*raw).cqe = entries };
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(raw: *mut ibv_cq) -> c_int {
    number_of(world::enter("ibv_destroy_cq").and_then(|mut world| {
        let &mut CompletionQueue { users, channel, context, .. } = live(&mut world.queues, raw);
        if users > 0 {
            return Err(libc::EBUSY);
        }
        // No further event comes: nothing completes here any more.
        if !channel.is_null() {
            live(&mut world.channels, channel).events().extract(|of| *of == raw.addr());
        }
        // SAFETY: the queue is live, until the end of this function.
        while unsafe { objects::has_taken_events(raw) } {
            world = world::wait(world);
        }
        world = device::settle(world, context, raw.addr());
        world.queues.remove(&raw.addr());
        if !channel.is_null() {
            live(&mut world.channels, channel).users -= 1;
        }
        world.remove_object(context);
        // SAFETY: made by `new_queue`, and in no table any more.
        unsafe { objects::free_queue(raw) };
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn poll_cq(raw: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    let mut world = world::lock();
    world.script.count("ibv_poll_cq");
    let queue = live(&mut world.queues, raw);
    if queue.overrun && queue.entries.is_empty() {
        return -1;
    }
    let room = usize::try_from(room).unwrap_or(0);
    let count = queue.entries.len().min(room).min(queue.cut.unwrap_or(room));
    // As mlx5 and cxgb4: the call fails, and those in front of the one that it cannot read are taken.
    let fails = queue.spoiled.is_some_and(|at| at < room.min(queue.cut.unwrap_or(room)));
    let count = queue.spoiled.filter(|_| fails).unwrap_or(count);
    let taken: Vec<Completion> = queue.entries.drain(..count).collect();
    // As cxgb4: the id of the one that cannot be read is stored before that is known.
    let unreadable = if fails { queue.entries.pop_front() } else { None };
    let gone = count + usize::from(fails);
    queue.spoiled = queue.spoiled.filter(|_| !fails).map(|at| at - gone);
    // As bnxt_re, which goes on in the new queue with the next call.
    queue.cut = queue.cut.filter(|cut| *cut >= room).map(|cut| cut - gone);
    for (place, completion) in taken.into_iter().enumerate() {
        if let Some(shared) = completion.shared {
            world.give_back(shared);
        }
        // SAFETY: the caller's array has room for so many.
        let to = unsafe { to.add(place) };
        // SAFETY: as above.
        unsafe { to.write(completion.to_raw()) };
    }
    if let Some(unreadable) = unreadable {
        let raw = unreadable.to_raw();
        // SAFETY: the caller's array has room for it.
        let to = unsafe { to.add(count) };
        // SAFETY: as above.
        unsafe { (*to).wr_id = raw.wr_id };
    }
    if fails {
        return -2;
    }
    count as c_int
}

pub(super) unsafe extern "C" fn req_notify_cq(raw: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let entered = if solicited_only == 0 {
        let mut world = world::lock();
        world.script.count("ibv_req_notify_cq");
        Ok(world)
    } else {
        world::enter("ibv_req_notify_cq:solicited")
    };
    number_of(entered.map(|mut world| {
        let replaces = world.script.replaces_arms;
        let queue = live(&mut world.queues, raw);
        let before = queue.armed.filter(|_| !replaces);
        queue.armed = Some(Arm::asked(before, solicited_only));
    }))
}
