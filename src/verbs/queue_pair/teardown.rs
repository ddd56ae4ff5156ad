//! Ends a queue pair of the device.
//!
//! The queue pair is moved to the error state, its completions are taken, and it is destroyed: after that no memory is
//! in use, whatever the device has not reported yet. If it cannot be destroyed, the memory of what is outstanding is
//! withheld: a driver that is being unbound refuses every command before it destroys the objects of the device, which
//! may write until then.
//!
//! A thread in a call that connects the queue pair holds it, too. In the error state the device may go on with a
//! message that it has begun to receive; only the completion of a request, or the destruction, shows that its memory is
//! free. So what the device has not completed stays outstanding until that thread has dropped the queue pair.
//!
//! The calls are commands to the device, so no lock is held during them. The queue pair is taken from its owner under
//! the lock, [`Detached`], and a [`Job`] does the rest; until the job is done,
//! [`Generations`](super::device::Generations) have the key of the queue pair whose completions still count.
//!
//! A queue pair that takes its receives from a shared queue stays in the error state for a while, until the device
//! reports that no receive of it is to come (`IBV_EVENT_QP_LAST_WQE_REACHED`). Libraries of cards throw the completions
//! of a queue pair away when it is destroyed, and a receive without its completion would be lost to the shared queue.
//! The requests of its send queue finish as the device completes them, and the others when it is destroyed.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::debug;

use super::device::{Current, Draining};
use super::{DeviceQp, QueuePair, State};
use crate::inflight::{Completed, WakeList};
use crate::proto::qp::QueuePairState;
use crate::provider::connector::Job;
use crate::provider::work::Refused;
use crate::status::Status;
use crate::sync::MutexGuard;
use crate::sys::WcResult;
use crate::verbs::routes::{CompletionHandler, Effects, RequestId};
use crate::verbs::work_queue::{Outstanding, WorkQueue, status_of};

/// The longest wait for the event of the last receive, which firmware raises within milliseconds. Not every driver
/// raises it.
const LAST_RECEIVE: Duration = Duration::from_secs(1);

/// A guard that destroys a queue pair of the device when it is dropped: also by a runtime that shuts down.
struct Drain {
    queue_pair: Arc<QueuePair>,
    key: u32,
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.queue_pair.drained(self.key);
    }
}

/// A queue pair of the device that was taken from its owner, for the calls that end it.
pub(super) struct Detached {
    was: Current,
    /// There is nothing to flush.
    idle: bool,
}

impl QueuePair {
    /// Frees the queue pair after an attempt that came to nothing, with its receives as they were (`CM-21`, `LS-16`),
    /// unless it was flushed. If the adapter is removed or the last handle is dropped, they finish.
    pub(crate) fn dissociate(&self) -> Option<Job> {
        let mut state = self.lock();
        if state.phase != QueuePairState::Associated {
            return None;
        }
        state.phase.dissociate();
        state.connector = None;
        if self.adapter.is_removed() || self.released.load(Ordering::Relaxed) {
            self.finish(state, self.status_of_the_rest())
        } else if state.device.current().is_some_and(|current| current.used || current.flushed) {
            // A lane has one queue pair of the device for each of its own.
            if self.lane.is_some() { self.finish(state, Status::CANCELED) } else { self.renew(state) }
        } else {
            None
        }
    }

    /// Ends a connection: everything outstanding finishes. An attempt keeps its receives, see
    /// [`dissociate`](Self::dissociate).
    pub(crate) fn end(&self) -> Option<Job> {
        let state = self.lock();
        match state.phase {
            QueuePairState::Connected | QueuePairState::Over => self.finish(state, self.status_of_the_rest()),
            QueuePairState::Unconnected | QueuePairState::Associated => None,
        }
    }

    /// Returns the status of requests that the device has not finished.
    pub(super) fn status_of_the_rest(&self) -> Status {
        if self.adapter.is_removed() { Status::DEVICE_REMOVED } else { Status::CANCELED }
    }

    /// Ends the queue pair: nothing more can be posted. The job ends the device's queue pair, and finishes everything
    /// with `status` that has not finished by itself. There is none if another job does so already, or did. If a call
    /// that connects the queue pair has yet to return, and the device has not given every request back, the thread of
    /// that call finishes the rest.
    pub(super) fn finish(&self, mut state: MutexGuard<'_, State>, status: Status) -> Option<Job> {
        state.phase.end();
        let detached = self.detach(&mut state)?;
        let me = self.me.upgrade()?;
        Some(Box::new(move || {
            let core = me.clone();
            me.stop(detached, status, move |free| core.settle(free, status, None));
        }))
    }

    /// Has a finished queue pair ended on a thread of the adapter.
    pub(super) fn finish_apart(&self, state: MutexGuard<'_, State>, status: Status) {
        if let Some(job) = self.finish(state, status) {
            self.adapter.teardown.run(job);
        }
    }

    /// Replaces the queue pair of the device by a new one, in the job. Its receives are posted again, or finish
    /// CANCELED.
    pub(super) fn renew(&self, mut state: MutexGuard<'_, State>) -> Option<Job> {
        let detached = self.detach(&mut state)?;
        let me = self.me.upgrade()?;
        Some(Box::new(move || {
            let core = me.clone();
            me.stop(detached, me.status_of_the_rest(), move |free| {
                let next = core.make().inspect_err(|error| debug!(%error, "queue pair not replaced"));
                core.settle(free, core.status_of_the_rest(), next.ok());
            });
        }))
    }

    /// Settles the end of a queue pair of the device. `free` is whether the memory of what is still outstanding is
    /// free. Its receives are posted to the next one, if the user can still use that. Everything else finishes with
    /// `status`.
    pub(super) fn settle(&self, free: bool, status: Status, next: Option<Arc<DeviceQp>>) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        self.read_current(&mut state, &mut effects);
        let flushed = state.device.settle();
        let lives = state.phase == QueuePairState::Unconnected && !self.adapter.is_removed();
        let (next, unused) = if lives { (next, None) } else { (None, next) };
        let kept = next.as_ref().map(|_| state.take_receives(flushed, free)).unwrap_or_default();
        self.finish_all(&mut state, free, status, &mut effects);
        match next {
            Some(device) => self.begin_anew(&mut state, device, kept, &mut effects),
            None => state.phase.end(),
        }
        drop(state);
        drop(unused);
        self.check_completions();
        self.settled.notify_waiters();
        effects.wakes.wake_all();
    }

    /// Finishes everything with `status` that has not finished by itself.
    pub(super) fn finish_all(
        &self,
        state: &mut State,
        free: bool,
        status: Status,
        effects: &mut Effects<'_, '_>,
    ) {
        for receive in [false, true] {
            let queue = state.queue(receive);
            queue.complete_failed(status, &mut effects.wakes);
            let WorkQueue { sink, outstanding, .. } = queue;
            for outstanding in outstanding.drain(..) {
                let (ticket, completed) = outstanding.ended(status, free, &mut effects.wakes);
                sink.complete(ticket, completed, &mut effects.wakes);
            }
        }
        // No device has had these.
        for waiting in state.waiting.drain(..) {
            let (ticket, completed) = waiting.ended(status, true, &mut effects.wakes);
            state.receives.sink.complete(ticket, completed, &mut effects.wakes);
        }
    }

    /// Uses this queue pair of the device from now on, with these receives. Those that it does not take finish CANCELED.
    pub(super) fn begin_anew(
        &self,
        state: &mut State,
        device: Arc<DeviceQp>,
        mut kept: VecDeque<Outstanding>,
        effects: &mut Effects<'_, '_>,
    ) {
        state.receives.reset();
        state.initiator.reset();
        state.broken = None;
        state.device.begin(device);
        while let Some(Outstanding { ticket, payload, .. }) = kept.pop_front() {
            let posted = match &self.queues.shared {
                Some(shared) => shared.post_receive(ticket, payload),
                None => self.post_receive_locked(state, ticket, payload),
            };
            if let Err(Refused { payload, .. }) = posted {
                kept.push_front(Outstanding::new(ticket, payload));
                break;
            }
        }
        for Outstanding { ticket, payload, .. } in kept {
            let completed = Completed::failed(self.status_of_the_rest(), payload);
            state.receives.sink.complete(ticket, completed, &mut effects.wakes);
        }
    }

    /// Takes the queue pair of the device, if there is one. From then on nothing is posted to it.
    pub(super) fn detach(&self, state: &mut State) -> Option<Detached> {
        let was = state.device.detach()?;
        // A call that connects it may have it, too.
        let idle = state.is_flushed() && self.queues.shared.is_none() && Arc::strong_count(&was.qp) == 1;
        Some(Detached { was, idle })
    }

    /// Ends the device's use of every request, with calls that may take long: without the lock. Takes what the device
    /// has finished by then. The other requests stay outstanding, or drain with `status`. Runs `then` with whether the
    /// memory of what is outstanding is free: at once, or, if a thread in a call holds the queue pair, when that call
    /// has returned or the device has completed everything.
    pub(super) fn stop(&self, detached: Detached, status: Status, then: impl FnOnce(bool) + Send + 'static) {
        let Detached { was: Current { qp: device, lent, used, windows, .. }, idle } = detached;
        // If there is nothing to flush, destroying it is enough.
        let stopped = if idle && !self.adapter.is_iwarp() { Ok(()) } else { device.end() };
        // A device that is gone refuses the call; its queue pair can be destroyed all the same.
        if let Err(error) = &stopped {
            debug!(%error, "queue pair not moved to the error state");
        }
        // Some libraries throw away on destruction what was not polled by then, and some drivers flush only then.
        let (key, receives) = (device.key(), device.receives.clone());
        self.tell_lane();
        device.collect();
        self.progress();
        // Windows go first, or the queue pair would wait for them.
        let take = |outstanding: &mut Outstanding| outstanding.held.take_window();
        let changes: Vec<_> = self.lock().initiator.outstanding.iter_mut().map(take).collect();
        drop(changes);
        windows.iter().filter_map(Weak::upgrade).for_each(|window| drop(window.unbind(key)));
        // A driver of iWARP that has found an error, or closes TCP, takes no other order: the queue pair ends by itself.
        let ends = |error: &io::Error| self.adapter.is_iwarp() && error.raw_os_error() == Some(libc::EINVAL);
        let drains = used
            && stopped.as_ref().err().is_none_or(ends)
            && !self.adapter.quirks().hides_last_receive
            && !self.adapter.is_removed()
            && !self.adapter.is_stopped();
        if let (true, Some(receives), Some(queue_pair)) = (drains, receives, self.me.upgrade()) {
            let last_receive = device.last_receive.clone();
            let (mut state, mut wakes) = (self.lock(), WakeList::default());
            let next = WorkQueue::new(state.initiator.sink.clone());
            let mut requests = std::mem::replace(&mut state.initiator, next);
            // Before those that drain, which may finish before the end has settled (`QP-17`).
            requests.complete_failed(status, &mut wakes);
            state.device.draining.push(Draining { key, qp: Some(device), receives, requests, status });
            drop(state);
            Drain { queue_pair, key }.begin(last_receive);
            // Behind the wakers, even if one panics.
            wakes.run(move || then(true));
            return wakes.wake_all();
        }
        let lent = lent && stopped.is_ok();
        let held = lent || Arc::strong_count(&device) > 1;
        let mut state = self.lock();
        if held && state.is_flushed() {
            drop(state);
            then(true);
        } else {
            let sequel = device.when_destroyed(then);
            if let (true, Some(ending)) = (held, state.device.ending_mut()) {
                ending.sequel = Some(sequel);
            }
            drop(state);
        }
        if lent {
            // A connect that nothing can take back may still have it, and its destruction waits for that.
            self.adapter.runtime.spawn_blocking(move || drop(device));
        }
    }

    /// Lets the end of the queue pair of the device go on, if that waits for a thread in a call and the device has
    /// completed every request of it.
    #[inline]
    pub(super) fn check_flushed(&self, state: &State, wakes: &mut WakeList) {
        if state.device.ending().is_some() {
            self.check_ending(state, wakes);
        }
    }

    #[cold]
    fn check_ending(&self, state: &State, wakes: &mut WakeList) {
        if let Some(sequel) = state.device.ending().and_then(|ending| ending.sequel.as_ref())
            && state.is_flushed()
        {
            let (sequel, teardown) = (sequel.clone(), self.adapter.teardown.clone());
            // Without the locks of the caller, which the job may need if no thread can take it. One that is not run, because a waker
            // has panicked, is left to the last holder.
            wakes.run(move || {
                if let Some(job) = sequel.take(true) {
                    teardown.run_next(job);
                }
            });
        }
    }

    /// Handles the result of a request of a device's queue pair that has ended, or whose requests drain. A message that
    /// arrived before the end is delivered.
    #[cold]
    pub(super) fn read_late(
        &self,
        state: &mut State,
        key: u32,
        id: RequestId,
        result: WcResult,
        effects: &mut Effects<'_, '_>,
    ) {
        let Some(draining) = state.device.draining(key) else { return };
        if id.key != RequestId::SHARED {
            if !id.receive && id.sequence != RequestId::KEEPALIVE {
                draining.complete(id.sequence, result, &mut effects.wakes);
            }
            return;
        }
        let Some((ticket, payload)) = draining.receives.take(id.sequence) else { return };
        let completed = match status_of(result.status, true, self.adapter.quirks()) {
            Status::SUCCESS => {
                Completed { extra: result.extra(), ..Completed::done(result.received(&payload), payload) }
            }
            Status::CANCELED => result.failed(draining.status, payload),
            status => result.failed(status, payload),
        };
        state.receives.sink.complete(ticket, completed, &mut effects.wakes);
    }

    /// Destroys a queue pair of the device that takes no further receive. Without the lock, because that may take long.
    fn drained(self: &Arc<Self>, key: u32) {
        let device = self.lock().device.draining(key).and_then(|draining| draining.qp.take());
        let Some(device) = device else { return };
        device.collect();
        // Another holder may keep it for long.
        self.progress();
        let me = self.clone();
        device.when_destroyed(move |free| me.finish_drained(key, free));
    }

    /// Finishes what a queue pair of the device that was destroyed has left. `free` is whether its memory is free.
    fn finish_drained(&self, key: u32, free: bool) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        self.read_current(&mut state, &mut effects);
        if let Some(Draining { requests, status, .. }) = state.device.drained(key) {
            for outstanding in requests.outstanding {
                // A request behind one that the device has not completed may have completed.
                let free = free || outstanding.result.is_some();
                let (ticket, completed) = outstanding.ended(status, free, &mut effects.wakes);
                requests.sink.complete(ticket, completed, &mut effects.wakes);
            }
        }
        drop(state);
        self.apply(effects);
    }
}

impl Drain {
    /// Waits for the event of the last receive, and has the queue pair destroyed off the runtime's threads.
    fn begin(self, last_receive: Arc<Notify>) {
        let adapter = self.queue_pair.adapter.clone();
        // A runtime that has shut down drops the task at once.
        adapter.runtime.clone().spawn(async move {
            if tokio::time::timeout(LAST_RECEIVE, last_receive.notified()).await.is_err() {
                debug!("no event has told of the last receive of a queue pair");
            }
            adapter.teardown.run(Box::new(move || drop(self)));
        });
    }
}
