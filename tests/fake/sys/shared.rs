//! Shared receive queues.

use std::collections::VecDeque;
use std::ffi::c_int;

use super::device::{MAX_SRQ_SGE, MAX_SRQ_WR};
use super::post::Receive;
use super::status::asynchronous;
use super::types::*;
use super::world::{self, World, live};
use super::{device, dress, free, number, number_of, pointer, zeroed};

const SRQ_LIMIT: u32 = 1 << 1;

pub(super) struct SharedQueue {
    pub(super) context: *mut ibv_context,
    pub(super) domain: usize,
    pub(super) receives: VecDeque<Receive>,
    pub(super) room: usize,
    pub(super) entries: usize,
    limit: usize,
    /// The number of queue pairs that take from it.
    pub(super) users: usize,
    /// The number of receives that were taken, and whose completions nobody has polled. Each has its place until then.
    pub(super) taken: usize,
}

impl World {
    /// The next receive of a shared queue, which has an event when few are left.
    pub(super) fn take_shared(&mut self, at: usize) -> Option<Receive> {
        let queue = self.shared.get_mut(&at)?;
        let receive = queue.receives.pop_front()?;
        queue.taken += 1;
        if queue.receives.len() < queue.limit {
            queue.limit = 0;
            let context = queue.context;
            self.asynchronous(context, asynchronous::SRQ_LIMIT_REACHED, at);
        }
        Some(receive)
    }

    /// Tells the owners of all shared queues that these are in the error state.
    pub(super) fn lose_shared_queues(&mut self) {
        let all: Vec<_> = self.shared.iter().map(|(at, queue)| (*at, queue.context)).collect();
        all.into_iter().for_each(|(at, context)| self.asynchronous(context, asynchronous::SRQ_ERR, at));
    }

    /// The place of a receive of a shared queue is free.
    pub(super) fn give_back(&mut self, at: usize) {
        if let Some(queue) = self.shared.get_mut(&at) {
            queue.taken -= 1;
        }
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(domain: *mut ibv_pd, asked: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(world::enter("ibv_create_srq").and_then(|mut world| {
        live(&mut world.domains, domain);
        // SAFETY: the caller's structure.
        let asked = unsafe { &mut *asked };
        let (room, entries) = (asked.attr.max_wr, asked.attr.max_sge);
        if !(1..=MAX_SRQ_WR).contains(&room) || entries > MAX_SRQ_SGE {
            return Err(libc::EINVAL);
        }
        world.card.shared.check(room, dress::receive_size(entries))?;
        // SAFETY: the domain is live.
        let context = unsafe { (*domain).context };
        world.add_object(context)?;
        live(&mut world.domains, domain).users += 1;
        let handle = world.number();
        // SAFETY: the structure is integers, pointers, and locks of the library that stay unused.
        let raw: *mut ibv_srq = unsafe { zeroed() };
        // SAFETY: the structure is new.
        let new = unsafe { &mut *raw };
        (new.context, new.srq_context, new.pd, new.handle) = (context, asked.srq_context, domain, handle);
        let queue = SharedQueue {
            context,
            domain: domain.addr(),
            receives: VecDeque::new(),
            room: room as usize,
            entries: entries as usize,
            limit: 0,
            users: 0,
            taken: 0,
        };
        world.shared.insert(raw.expose_provenance(), queue);
        Ok(raw)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(raw: *mut ibv_srq, to: *mut ibv_srq_attr, mask: c_int) -> c_int {
    number_of(world::enter("ibv_modify_srq").and_then(|mut world| {
        let fixed = world.card.fixed_shared;
        let queue = live(&mut world.shared, raw);
        // SAFETY: the caller's structure.
        let to = unsafe { &*to };
        let mask = mask as u32;
        if mask & number::IBV_SRQ_MAX_WR != 0 {
            let room = to.max_wr as usize;
            // The error of the drivers, whichever the reason.
            if fixed || to.max_wr > MAX_SRQ_WR || room < queue.receives.len() + queue.taken {
                return Err(libc::EINVAL);
            }
            queue.room = room;
        }
        if mask & SRQ_LIMIT != 0 {
            queue.limit = to.srq_limit as usize;
        }
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(raw: *mut ibv_srq) -> c_int {
    number_of(world::enter("ibv_destroy_srq").and_then(|mut world| {
        let &mut SharedQueue { users, context, .. } = live(&mut world.shared, raw);
        if users > 0 {
            return Err(libc::EBUSY);
        }
        world = device::settle(world, context, raw.addr());
        world.shared.remove(&raw.addr());
        // SAFETY: live until now.
        let domain = unsafe { (*raw).pd };
        live(&mut world.domains, domain).users -= 1;
        world.remove_object(context);
        // SAFETY: made by `zeroed`, and in no table any more.
        unsafe { free(raw) };
        Ok(())
    }))
}
