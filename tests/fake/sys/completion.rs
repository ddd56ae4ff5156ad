//! Completion channels and completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use super::device::MAX_CQE;
use super::events::{self, EventQueue};
use super::status::{asynchronous, wc};
use super::types::*;
use super::world::{self, World, live};
use super::{device, free, minus_one, number_of, pointer, zeroed};

pub(super) struct CompletionChannel {
    events: EventQueue<usize>,
    users: usize,
}

pub(super) struct CompletionQueue {
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    pub(super) vector: c_int,
    entries: VecDeque<Completion>,
    pub(super) room: usize,
    armed: Option<Arm>,
    /// A completion was lost.
    overrun: bool,
    /// The number of queues of queue pairs that complete here.
    pub(super) users: usize,
    /// Events that were taken and not acknowledged.
    taken: usize,
}

/// The completion of which an event tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arm {
    Any,
    Solicited,
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

impl Completion {
    fn to_raw(self) -> ibv_wc {
        ibv_wc {
            wr_id: self.id,
            status: self.status,
            opcode: self.opcode,
            vendor_err: 0,
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
    pub(super) fn complete(&mut self, at: usize, completion: Completion, solicited: bool) {
        let full = self.script.overruns();
        let Some(queue) = self.queues.get_mut(&at) else { return };
        if queue.overrun {
            return;
        }
        if full || queue.entries.len() >= queue.room {
            // The device writes to it no more.
            let context = queue.context;
            queue.overrun = true;
            return self.asynchronous(context, asynchronous::CQ_ERR, at);
        }
        queue.entries.push_back(completion);
        let tells = match queue.armed {
            None => false,
            Some(Arm::Any) => true,
            Some(Arm::Solicited) => solicited || completion.status != wc::SUCCESS,
        };
        if tells {
            queue.armed = None;
            let channel = queue.channel;
            if !channel.is_null() {
                live(&mut self.channels, channel).events.push(at);
            }
        }
    }

    /// Throws the completions of a queue pair away, as libraries of cards do when it is destroyed: nobody hears of them, and the
    /// places of shared receives are free.
    pub(super) fn discard(&mut self, at: usize, number: u32) {
        let Some(queue) = self.queues.get_mut(&at) else { return };
        let mut shared = Vec::new();
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
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(world::enter("ibv_create_comp_channel").and_then(|mut world| {
        let events = EventQueue::new()?;
        world.add_object(context)?;
        // SAFETY: the structure is integers and pointers.
        let raw: *mut ibv_comp_channel = unsafe { zeroed() };
        // SAFETY: the structure is new.
        unsafe { raw.write(ibv_comp_channel { context, fd: events.descriptor(), refcnt: 0 }) };
        world.channels.insert(raw.addr(), CompletionChannel { events, users: 0 });
        Ok(raw)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number_of(world::enter("ibv_destroy_comp_channel").and_then(|mut world| {
        if live(&mut world.channels, channel).users > 0 {
            return Err(libc::EBUSY);
        }
        world.channels.remove(&channel.addr());
        // SAFETY: live until now.
        let context = unsafe { (*channel).context };
        world.remove_object(context);
        // SAFETY: made by `zeroed`, and in no table any more.
        unsafe { free(channel) };
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    let descriptor = live(&mut world::lock().channels, channel).events.descriptor();
    let next = events::next(descriptor, |world| {
        let Some(at) = live(&mut world.channels, channel).events.take() else {
            return if world.devices.removed { Err(libc::EIO) } else { Ok(None) };
        };
        if let Some(queue) = world.queues.get_mut(&at) {
            queue.taken += 1;
        }
        let raw: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the queue is live: its destruction takes its events away, under the lock.
        Ok(Some((raw, unsafe { (*raw).cq_context })))
    });
    minus_one(next.map(|(raw, of)| {
        // SAFETY: the caller's pointers.
        unsafe { queue.write(raw) };
        // SAFETY: as above.
        unsafe { context.write(of) };
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint) {
    live(&mut world::lock().queues, queue).taken -= count as usize;
    world::CHANGED.notify_all();
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
        // SAFETY: the structure is integers, pointers, and locks of the library that stay unused.
        let raw: *mut ibv_cq = unsafe { zeroed() };
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
            users: 0,
            taken: 0,
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
        let queue = live(&mut world.queues, raw);
        let room = usize::try_from(entries).unwrap_or(0);
        if room == 0 || room > MAX_CQE as usize || room < queue.entries.len() {
            return Err(libc::EINVAL);
        }
        queue.room = room;
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
            live(&mut world.channels, channel).events.extract(|of| *of == raw.addr());
        }
        while live(&mut world.queues, raw).taken > 0 {
            world = world::wait(world);
        }
        world = device::settle(world, context, raw.addr());
        world.queues.remove(&raw.addr());
        if !channel.is_null() {
            live(&mut world.channels, channel).users -= 1;
        }
        world.remove_object(context);
        // SAFETY: made by `zeroed`, and in no table any more.
        unsafe { free(raw) };
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
    let count = queue.entries.len().min(usize::try_from(room).unwrap_or(0));
    let taken: Vec<Completion> = queue.entries.drain(..count).collect();
    for (place, completion) in taken.into_iter().enumerate() {
        if let Some(shared) = completion.shared {
            world.give_back(shared);
        }
        // SAFETY: the caller's array has room for so many.
        let to = unsafe { to.add(place) };
        // SAFETY: as above.
        unsafe { to.write(completion.to_raw()) };
    }
    count as c_int
}

pub(super) unsafe extern "C" fn req_notify_cq(raw: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let mut world = world::lock();
    let queue = live(&mut world.queues, raw);
    // Whoever asks for all of them gets these, too.
    queue.armed = match (queue.armed, solicited_only) {
        (Some(Arm::Any), _) | (_, 0) => Some(Arm::Any),
        _ => Some(Arm::Solicited),
    };
    0
}
