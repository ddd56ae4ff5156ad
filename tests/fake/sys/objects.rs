//! Completion queues and queue pairs as this device allocates them: a structure of C is the first member of a larger one, so that
//! what belongs to it is found by the pointers of C, without a table and its lock.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::free;
use super::instant::{self, Ring};
use super::number::IBV_QPS_RTS;
use super::types::*;

/// A completion queue as this device allocates it.
#[repr(C)]
struct Queue {
    raw: ibv_cq,
    ring: Option<Ring>,
    /// The number of events that were taken and not acknowledged, and [`CLOSING`].
    taken: AtomicU32,
}

/// The destruction of the queue waits for these.
const CLOSING: u32 = 1 << 31;

/// # Safety
/// The queue is live.
unsafe fn taken<'a>(raw: *mut ibv_cq) -> &'a AtomicU32 {
    // SAFETY: the caller's; every queue comes from `new_queue`.
    unsafe { &(*raw.cast::<Queue>()).taken }
}

/// Counts an event that was taken.
///
/// # Safety
/// The queue is live.
pub(super) unsafe fn event_taken(raw: *mut ibv_cq) {
    // SAFETY: the caller's.
    unsafe { taken(raw) }.fetch_add(1, Ordering::SeqCst);
}

/// Counts events that were acknowledged. Whether the destruction of the queue waits for that.
///
/// # Safety
/// The queue is live. It may not be any more when this returns.
pub(super) unsafe fn events_acknowledged(raw: *mut ibv_cq, count: c_uint) -> bool {
    // SAFETY: the caller's.
    let before = unsafe { taken(raw) }.fetch_sub(count, Ordering::SeqCst);
    assert!(before & !CLOSING >= count, "events are acknowledged that were not taken");
    before & CLOSING != 0
}

/// Whether events are left that were taken, for the destruction of the queue, which is notified when these become fewer.
///
/// # Safety
/// The queue is live.
pub(super) unsafe fn has_taken_events(raw: *mut ibv_cq) -> bool {
    // SAFETY: the caller's.
    unsafe { taken(raw) }.fetch_or(CLOSING, Ordering::SeqCst) & !CLOSING > 0
}

/// A new completion queue, and its ring if the device has rings.
pub(super) fn new_queue(room: usize) -> (*mut ibv_cq, Option<Ring>) {
    let ring = instant::is_on().then(|| instant::new_ring(room));
    // SAFETY: the structure is integers, pointers, and locks of the library that stay unused.
    let raw = unsafe { std::mem::zeroed() };
    (Box::into_raw(Box::new(Queue { raw, ring: ring.clone(), taken: AtomicU32::new(0) })).cast(), ring)
}

/// # Safety
/// It came from [`new_queue`], and nobody uses it any more.
pub(super) unsafe fn free_queue(raw: *mut ibv_cq) {
    // SAFETY: the caller's; `Queue` begins with the structure.
    unsafe { free(raw.cast::<Queue>()) };
}

/// # Safety
/// The queue is live, and was made by [`new_queue`] after the line was given.
pub(super) unsafe fn ring_of<'a>(raw: *mut ibv_cq) -> &'a Ring {
    let queue: *const Queue = raw.cast();
    // SAFETY: the caller's. The member is never written.
    let ring = unsafe { &(*queue).ring };
    ring.as_ref().expect("this device makes queues with rings")
}

/// A queue pair as this device allocates it.
#[repr(C)]
struct Pair {
    raw: ibv_qp,
    own: PairState,
}

/// The part of a queue pair that an instant device has.
pub(super) struct PairState {
    pub(super) connected: AtomicBool,
    /// The most of these.
    pub(super) room: usize,
    /// The receives that were posted while it was connected, by their ids. Nothing arrives in them.
    pub(super) receives: Mutex<Vec<u64>>,
}

/// A new queue pair, with room for so many receives.
pub(super) fn new_pair(room: usize) -> *mut ibv_qp {
    // SAFETY: the structure is integers, pointers, and locks of the library that stay unused.
    let raw = unsafe { std::mem::zeroed() };
    let own = PairState { connected: AtomicBool::new(false), room, receives: Mutex::default() };
    Box::into_raw(Box::new(Pair { raw, own })).cast()
}

/// # Safety
/// The queue pair is live.
pub(super) unsafe fn state_of<'a>(raw: *mut ibv_qp) -> &'a PairState {
    // SAFETY: the caller's; every queue pair comes from `new_pair`, and this member is only ever shared.
    unsafe { &(*raw.cast::<Pair>()).own }
}

/// # Safety
/// It came from [`new_pair`], and nobody uses it any more.
pub(super) unsafe fn free_pair(raw: *mut ibv_qp) {
    // SAFETY: the caller's; `Pair` begins with the structure.
    unsafe { free(raw.cast::<Pair>()) };
}

/// Sets the state that is visible from outside.
///
/// # Safety
/// The queue pair is live, and this is called under the lock of the world.
pub(super) unsafe fn set_state(raw: *mut ibv_qp, state: u32) {
    // SAFETY: the caller's.
    unsafe { (*raw).state = state };
    // SAFETY: as above.
    let own = unsafe { state_of(raw) };
    own.connected.store(state == IBV_QPS_RTS, Ordering::Release);
}

/// Takes the receives that were posted while it was connected.
///
/// # Safety
/// The queue pair is live.
pub(super) unsafe fn take_receives(raw: *mut ibv_qp) -> Vec<u64> {
    // SAFETY: the caller's.
    let own = unsafe { state_of(raw) };
    std::mem::take(&mut *own.receives.lock().unwrap_or_else(PoisonError::into_inner))
}
