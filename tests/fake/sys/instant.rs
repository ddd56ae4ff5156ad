//! The device that costs next to nothing, for measurements of the code above it: the line `instant`.
//!
//! A send or a write of a connected queue pair is complete when it is posted, without its bytes and without the peer. Its
//! completion goes to a ring that belongs to the completion queue, with a lock of its own: queue pairs with completion queues of
//! their own share nothing. Rings are found as [`objects`](super::objects) says, so nobody sees that an object was
//! destroyed, as in the library of a card.
//!
//! Setup, errors, and other requests take the usual way, and all completions of the device come in the rings. Events of completion
//! channels come without the lock of the world, see [`channel`].

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::completion::{Arm, Completion};
use super::number::*;
use super::objects::{ring_of, state_of};
use super::status::{opcode, wc};
use super::types::*;
use super::world;
use super::{channel, post};

/// Whether the line was given. A device that is opened afterwards has the functions below, and is used with the structures that
/// were made afterwards.
static ON: AtomicBool = AtomicBool::new(false);

pub(super) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

pub(super) fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

/// Whether the device was taken out of the machine since.
static REMOVED: AtomicBool = AtomicBool::new(false);

pub(super) fn device_removed() {
    REMOVED.store(true, Ordering::Relaxed);
}

/// Whether the events of completion channels come without the lock of the world. Those of a device that was removed do not: its
/// channels end.
pub(super) fn has_events() -> bool {
    is_on() && !REMOVED.load(Ordering::Relaxed)
}

/// Replaces the functions of a new context by those below.
pub(super) fn dress_up(context: &mut ibv_context) {
    if is_on() {
        context.ops.poll_cq = Some(poll_cq);
        context.ops.req_notify_cq = Some(req_notify_cq);
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
    }
}

/// The completions of a queue.
pub(super) struct Entries {
    waiting: VecDeque<Completion>,
    room: usize,
    armed: Option<Arm>,
    /// A completion was lost.
    overrun: bool,
}

pub(super) type Ring = Arc<Mutex<Entries>>;

/// The event that a new completion asks for.
pub(super) enum News {
    None,
    /// An event of the completion channel.
    Event,
    /// The event that says that the queue is lost.
    Overrun,
}

/// A ring with room for so many completions.
pub(super) fn new_ring(room: usize) -> Ring {
    let waiting = VecDeque::with_capacity(room);
    Arc::new(Mutex::new(Entries { waiting, room, armed: None, overrun: false }))
}

fn lock(ring: &Ring) -> MutexGuard<'_, Entries> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a completion.
pub(super) fn push(ring: &Ring, completion: Completion, solicited: bool) -> News {
    let mut entries = lock(ring);
    if entries.overrun {
        return News::None;
    }
    if entries.waiting.len() >= entries.room {
        entries.overrun = true;
        return News::Overrun;
    }
    entries.waiting.push_back(completion);
    let tells = entries.armed.is_some_and(|arm| arm.tells(completion, solicited));
    if tells {
        entries.armed = None;
        return News::Event;
    }
    News::None
}

/// Removes the completions of a queue pair. Returns the shared queues of its receives.
pub(super) fn discard(ring: &Ring, number: u32) -> Vec<usize> {
    let mut shared = Vec::new();
    lock(ring).waiting.retain(|completion| {
        let stays = completion.number != number;
        shared.extend(completion.shared.filter(|_| !stays));
        stays
    });
    shared
}

/// Changes the room of a queue. Returns whether what waits fits.
pub(super) fn resize(ring: &Ring, room: usize) -> bool {
    let mut entries = lock(ring);
    let fits = entries.waiting.len() <= room;
    if fits {
        entries.room = room;
    }
    fits
}

unsafe extern "C" fn post_send(
    raw: *mut ibv_qp,
    mut next: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair is live.
    let own = unsafe { state_of(raw) };
    if own.connected.load(Ordering::Acquire) {
        // SAFETY: the caller's queue pair is live, and nobody writes this member.
        let queue = unsafe { (*raw).send_cq };
        // SAFETY: as above.
        let number = unsafe { (*raw).qp_num };
        // SAFETY: a queue pair keeps its completion queue alive.
        let ring = unsafe { ring_of(queue) };
        while !next.is_null() {
            // SAFETY: a link of the caller's chain.
            let request = unsafe { &*next };
            let kind = match request.opcode {
                IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => opcode::SEND,
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => opcode::RDMA_WRITE,
                _ => break,
            };
            if request.send_flags & IBV_SEND_SIGNALED != 0 {
                let done = Completion {
                    id: request.wr_id,
                    status: wc::SUCCESS,
                    opcode: kind,
                    bytes: 0,
                    word: 0,
                    flags: 0,
                    number,
                    shared: None,
                };
                match push(ring, done, false) {
                    News::None => {}
                    // SAFETY: a queue pair keeps its completion queue alive, and that its channel.
                    News::Event => unsafe { tell(queue) },
                    News::Overrun => world::lock().announce(queue.addr(), News::Overrun),
                }
            }
            next = request.next;
        }
    }
    // SAFETY: the rest of the caller's chain.
    if next.is_null() { 0 } else { unsafe { post::post_send(raw, next, bad) } }
}

/// Tells the owner of a queue of a completion.
///
/// # Safety
/// The queue is live.
unsafe fn tell(raw: *mut ibv_cq) {
    // SAFETY: the caller's, and nobody writes this member.
    let channel = unsafe { (*raw).channel };
    if !channel.is_null() {
        // SAFETY: a queue keeps its channel alive.
        unsafe { channel::push(channel, raw.addr()) };
    }
}

unsafe extern "C" fn post_recv(
    raw: *mut ibv_qp,
    mut next: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue pair is live.
    let own = unsafe { state_of(raw) };
    let mut receives = own.receives.lock().unwrap_or_else(PoisonError::into_inner);
    // Under their lock: the end of the connection is visible before it takes them, so none is left behind.
    while own.connected.load(Ordering::Acquire) && !next.is_null() && receives.len() < own.room {
        // SAFETY: a link of the caller's chain.
        let request = unsafe { &*next };
        receives.push(request.wr_id);
        next = request.next;
    }
    drop(receives);
    if next.is_null() {
        return 0;
    }
    if own.connected.load(Ordering::Acquire) {
        // SAFETY: the caller's place for it.
        unsafe { *bad = next };
        return libc::ENOMEM;
    }
    // SAFETY: the rest of the caller's chain.
    unsafe { post::post_recv(raw, next, bad) }
}

unsafe extern "C" fn poll_cq(raw: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue is live, and of a device that was opened after the line.
    let mut entries = lock(unsafe { ring_of(raw) });
    if entries.overrun && entries.waiting.is_empty() {
        return -1;
    }
    let mut count = 0;
    while count < usize::try_from(room).unwrap_or(0)
        && let Some(completion) = entries.waiting.pop_front()
    {
        if let Some(shared) = completion.shared {
            // Seldom, and not under the lock of the ring: that of the world comes first.
            drop(entries);
            world::lock().give_back(shared);
            // SAFETY: as above.
            entries = lock(unsafe { ring_of(raw) });
        }
        // SAFETY: the caller's array has room for so many.
        let to = unsafe { to.add(count) };
        // SAFETY: as above.
        unsafe { to.write(completion.to_raw()) };
        count += 1;
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(raw: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's queue is live, and of a device that was opened after the line.
    let mut entries = lock(unsafe { ring_of(raw) });
    entries.armed = Some(Arm::asked(entries.armed, solicited_only));
    0
}
