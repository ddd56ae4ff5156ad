//! Completion channels: events of completion queues, until they are acknowledged.
//!
//! The events have a lock of their own, behind that of the world: an instant device takes only this one.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::events::{self, EventQueue};
use super::types::*;
use super::world::{self, live};
use super::{Answer, free, instant, minus_one, number_of, objects, pointer};

/// The queues that have an event, by their addresses.
type Events = Arc<Mutex<EventQueue<usize>>>;

pub(super) struct CompletionChannel {
    events: Events,
    pub(super) users: usize,
}

impl CompletionChannel {
    pub(super) fn events(&self) -> MutexGuard<'_, EventQueue<usize>> {
        lock(&self.events)
    }
}

fn lock(events: &Events) -> MutexGuard<'_, EventQueue<usize>> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A channel as this device allocates it.
#[repr(C)]
struct Channel {
    raw: ibv_comp_channel,
    events: Events,
}

/// Adds an event of a queue, without the lock of the world.
///
/// # Safety
/// The channel is live.
pub(super) unsafe fn push(raw: *mut ibv_comp_channel, queue: usize) {
    // SAFETY: the caller's; every channel was made below.
    let events = unsafe { &(*raw.cast::<Channel>()).events };
    lock(events).push(queue);
}

/// Takes the next event. Its queue, which is live until it is acknowledged.
fn take(events: &mut EventQueue<usize>) -> Option<*mut ibv_cq> {
    let raw = std::ptr::with_exposed_provenance_mut(events.take()?);
    // SAFETY: the queue is live: its destruction takes its events away first, under their lock.
    unsafe { objects::event_taken(raw) };
    Some(raw)
}

/// Takes the next event of a channel of an instant device. `None`: as of any other device.
///
/// # Safety
/// The channel is live.
unsafe fn take_at_once(raw: *mut ibv_comp_channel) -> Option<Answer<*mut ibv_cq>> {
    if !instant::has_events() {
        return None;
    }
    // SAFETY: the caller's; every channel was made below.
    let mut events = lock(unsafe { &(*raw.cast::<Channel>()).events });
    match take(&mut events) {
        Some(queue) => Some(Ok(queue)),
        None if !events::blocks(events.descriptor()) => Some(Err(libc::EAGAIN)),
        None => None,
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(world::enter("ibv_create_comp_channel").and_then(|mut world| {
        let events = EventQueue::new()?;
        world.add_object(context)?;
        let fd = events.descriptor();
        let events = Arc::new(Mutex::new(events));
        let raw = ibv_comp_channel { context, fd, refcnt: 0 };
        let raw: *mut ibv_comp_channel =
            Box::into_raw(Box::new(Channel { raw, events: events.clone() })).cast();
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
        // SAFETY: made above, as the first member of this, and in no table any more.
        unsafe { free(channel.cast::<Channel>()) };
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
    // SAFETY: the caller's channel, which an instant device does not look for.
    let next = unsafe { take_at_once(channel) };
    minus_one(next.unwrap_or_else(|| wait(channel)).map(|raw| {
        // SAFETY: the queue is live until the event is acknowledged.
        let of = unsafe { (*raw).cq_context };
        // SAFETY: the caller's pointers.
        unsafe { queue.write(raw) };
        // SAFETY: as above.
        unsafe { context.write(of) };
    }))
}

fn wait(channel: *mut ibv_comp_channel) -> Answer<*mut ibv_cq> {
    let descriptor = live(&mut world::enter("ibv_get_cq_event")?.channels, channel).events().descriptor();
    events::next(descriptor, |world| match take(&mut live(&mut world.channels, channel).events()) {
        None if world.devices.removed => Err(libc::EIO),
        next => Ok(next),
    })
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint) {
    let mut world = (!instant::is_on()).then(world::lock);
    if let Some(world) = &mut world {
        live(&mut world.queues, queue);
    }
    // SAFETY: the queue is live: just looked for, or by the word of the caller. It may be destroyed as soon as this returns.
    if unsafe { objects::events_acknowledged(queue, count) } {
        // Its destruction has the lock from its look at the count to its wait.
        drop(world.unwrap_or_else(world::lock));
        world::CHANGED.notify_all();
    }
}
