//! Collects the completions of a lane of the soft provider until its owner takes them.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use super::{Completed, Done, Ticket, WakeList};
use crate::memory::Owned;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::types::QueuePairId;

/// A request of a lane that has completed. It is flat, and no enum, so that it is written field by field to its place in a list.
pub(crate) struct Arrived {
    /// The queue pair, and the first slot.
    pub(crate) id: u64,
    /// The length of a message that has arrived.
    pub(crate) length: u32,
    /// The memory of the receive that has the message.
    pub(crate) memory: Option<Owned>,
    /// Any other result than a message that has arrived, and the success of a Send or a Write whose slot has kept its memory.
    pub(crate) other: Option<Box<Completed>>,
}

impl Arrived {
    /// Creates the success of a Send or a Write whose bytes were copied: the slot has kept its memory.
    #[inline]
    pub(crate) fn copied(queue_pair: QueuePairId, slot: u32) -> Self {
        Self { id: Done::id_of(queue_pair, slot), length: 0, memory: None, other: None }
    }

    /// Creates the success of a receive, with its memory.
    #[inline]
    pub(crate) fn received(queue_pair: QueuePairId, slot: u32, memory: Owned, length: u32) -> Self {
        Self { id: Done::id_of(queue_pair, slot), length, memory: Some(memory), other: None }
    }

    /// Creates any other result.
    pub(crate) fn other(queue_pair: QueuePairId, slot: u32, completed: Completed) -> Self {
        Self { other: Some(Box::new(completed)), ..Self::copied(queue_pair, slot) }
    }
}

#[derive(Default)]
struct State {
    arrived: VecDeque<Arrived>,
    /// A queue pair has changed, or the adapter was removed.
    has_news: bool,
    /// Wakes the task that waits for completions.
    waker: Option<Waker>,
}

/// The completions of a lane that its owner has not taken.
#[derive(Default)]
pub(crate) struct Inbox {
    /// There are completions or news. Written with the lock.
    pending: AtomicBool,
    state: Mutex<State>,
}

impl Inbox {
    /// Returns whether there is something to take.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Moves the completions behind those in `into`. Returns whether a queue pair has changed, or the adapter was removed. No task waits
    /// any longer.
    pub(crate) fn take(&self, into: &mut VecDeque<Arrived>) -> bool {
        let mut state = self.state.lock();
        self.pending.store(false, Ordering::Release);
        if into.is_empty() {
            mem::swap(into, &mut state.arrived);
        } else {
            into.append(&mut state.arrived);
        }
        let (has_news, waker) = (mem::take(&mut state.has_news), state.waker.take());
        drop(state);
        drop(waker);
        has_news
    }

    /// Has the waker woken when there is something to take. Returns false if there is something already.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.is_pending() {
            return false;
        }
        let known = state.waker.as_ref().is_some_and(|known| known.will_wake(waker));
        let replaced = if known { None } else { state.waker.replace(waker.clone()) };
        drop(state);
        drop(replaced);
        true
    }

    /// Wakes no task any longer, because the owner of the lane is at work.
    pub(crate) fn end_wait(&self) {
        let waker = self.state.lock().waker.take();
        drop(waker);
    }

    /// Adds completions. The caller wakes `wakes` without its locks.
    pub(crate) fn add<R>(&self, wakes: &mut WakeList, add: impl FnOnce(&mut VecDeque<Arrived>) -> R) -> R {
        let mut state = self.state.lock();
        let result = add(&mut state.arrived);
        if !state.arrived.is_empty() {
            self.pending.store(true, Ordering::Release);
            wakes.extend(state.waker.take());
        }
        result
    }

    /// Completes a request.
    pub(super) fn complete(
        &self,
        queue_pair: QueuePairId,
        ticket: Ticket,
        completed: Completed,
        wakes: &mut WakeList,
    ) {
        let arrived = Arrived::other(queue_pair, ticket.slot(), completed);
        self.add(wakes, |list| list.push_back(arrived));
    }

    /// Notes that a queue pair has changed, or that the adapter was removed.
    pub(crate) fn note_news(&self, wakes: &mut WakeList) {
        let mut state = self.state.lock();
        state.has_news = true;
        self.pending.store(true, Ordering::Release);
        wakes.extend(state.waker.take());
    }
}
