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
//! [`Ending`] has the key of the queue pair whose completions still count.
//!
//! A queue pair that takes its receives from a shared queue stays in the error state for a while, until the device
//! reports that no receive of it is to come (`IBV_EVENT_QP_LAST_WQE_REACHED`). Libraries of cards throw the completions
//! of a queue pair away when it is destroyed, and a receive without its completion would be lost to the shared queue.
//! The requests of its send queue finish as the device completes them, and the others when it is destroyed.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::debug;

use super::device::Sequel;
use super::{DeviceQp, QueuePair, Silence, State};
use crate::inflight::{Completed, WakeList};
use crate::proto::qp::QueuePairState;
use crate::provider::connector::Job;
use crate::provider::work::Refused;
use crate::status::Status;
use crate::sync::MutexGuard;
use crate::verbs::memory::Window;
use crate::verbs::receive_queue::Receives;
use crate::verbs::routes::{CompletionHandler, Effects, RequestId};
use crate::verbs::work_queue::{Outstanding, WcResult, WindowChange, WorkQueue, status_of};

/// The longest wait for the event of the last receive, which firmware raises within milliseconds. Not every driver
/// raises it.
const LAST_RECEIVE: Duration = Duration::from_secs(1);

/// A queue pair of the device that has ended, and may still complete receives of a shared queue.
pub(super) struct Draining {
    key: u32,
    /// `None` while it is being destroyed.
    device: Option<Arc<DeviceQp>>,
    receives: Arc<Receives>,
    /// The requests of its send queue, and the status with which they finish.
    requests: WorkQueue,
    status: Status,
}

impl Draining {
    /// Finishes the requests up to one that the device has completed: their memory is free.
    fn complete(&mut self, sequence: u32, result: WcResult, wakes: &mut WakeList) {
        self.requests.finished(sequence, result);
        while let Some((outstanding, _)) = self.requests.pop() {
            let (ticket, completed) = outstanding.ended(self.status, true);
            self.requests.sink.complete(ticket, completed, wakes);
        }
    }

    /// Ends the wait for the last receive: no receive is to come, or the device will not report it.
    fn notify(&self) {
        if let Some(device) = &self.device {
            device.last_receive.notify_one();
        }
    }
}

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
    device: Arc<DeviceQp>,
    /// It was given to a driver that connects it by itself, and may not have done so yet.
    lent: bool,
    /// There is nothing to flush.
    idle: bool,
    /// It has left its first state.
    used: bool,
    /// The windows that were bound on it.
    windows: Vec<Weak<Window>>,
}

/// The queue pair of the device that is being ended, as its owner needs it for what still completes.
pub(super) struct Ending {
    pub(super) key: u32,
    pub(super) receives: Option<Arc<Receives>>,
    last_receive: Arc<Notify>,
    /// The job that follows the destruction, while a thread in a call holds the queue pair. It may also run once the
    /// device has completed every request.
    sequel: Option<Arc<Sequel>>,
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
        if self.adapter.is_removed() || state.released {
            self.finish(state, self.status_of_the_rest())
        } else if state.used || state.flushed {
            self.renew(state)
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
        state.ending = None;
        let lives = state.phase == QueuePairState::Unconnected && !self.adapter.is_removed();
        let (next, unused) = if lives { (next, None) } else { (None, next) };
        let kept = next.as_ref().map(|_| state.take_receives(free)).unwrap_or_default();
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
        for (receive, ticket, mut completed) in std::mem::take(&mut state.failed) {
            // Flushed by the same end.
            if completed.status == Status::CANCELED {
                completed.status = status;
            }
            state.queue(receive).sink.complete(ticket, completed, &mut effects.wakes);
        }
        for receive in [false, true] {
            let WorkQueue { sink, outstanding, .. } = state.queue(receive);
            for outstanding in outstanding.drain(..) {
                let (ticket, completed) = outstanding.ended(status, free);
                sink.complete(ticket, completed, &mut effects.wakes);
            }
        }
        // No device has had these.
        for waiting in state.waiting.drain(..) {
            let (ticket, completed) = waiting.ended(status, true);
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
        state.silence = Silence::default();
        (state.used, state.broken, state.refused, state.unsignaled) = (false, None, false, 0);
        (state.has_received, state.reads) = (false, 0);
        state.device = Some(device);
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
        let device = state.device.take()?;
        state.ending = Some(Ending {
            key: device.key(),
            receives: device.receives().cloned(),
            last_receive: device.last_receive.clone(),
            sequel: None,
        });
        state.deferred.clear();
        state.copies.clear();
        // A call that connects it may have it, too.
        let idle = state.is_flushed() && self.queues.shared.is_none() && Arc::strong_count(&device) == 1;
        let windows = std::mem::take(&mut state.windows);
        Some(Detached { device, lent: std::mem::take(&mut state.lent), idle, used: state.used, windows })
    }

    /// Ends the device's use of every request, with calls that may take long: without the lock. Takes what the device
    /// has finished by then. The other requests stay outstanding, or drain with `status`. Runs `then` with whether the
    /// memory of what is outstanding is free: at once, or, if a thread in a call holds the queue pair, when that call
    /// has returned or the device has completed everything.
    pub(super) fn stop(&self, detached: Detached, status: Status, then: impl FnOnce(bool) + Send + 'static) {
        let Detached { device, lent, idle, used, windows } = detached;
        // If there is nothing to flush, destroying it is enough.
        let stopped = if idle && !self.adapter.is_iwarp() { Ok(()) } else { device.end() };
        // A device that is gone refuses the call; its queue pair can be destroyed all the same.
        if let Err(error) = &stopped {
            debug!(%error, "queue pair not moved to the error state");
        }
        // Some libraries throw away on destruction what was not polled by then, and some drivers flush only then.
        let (key, receives) = (device.key(), device.receives().cloned());
        device.collect();
        self.progress();
        // Windows go first, or the queue pair would wait for them.
        let changes: Vec<WindowChange> = {
            let mut state = self.lock();
            let all = state.initiator.outstanding.iter_mut();
            all.map(|outstanding| std::mem::replace(&mut outstanding.window_change, WindowChange::Nothing))
                .collect()
        };
        drop(changes);
        windows.iter().filter_map(Weak::upgrade).for_each(|window| window.leave(key));
        // A driver of iWARP that has found an error, or closes TCP, takes no other order: the queue pair ends by itself.
        let ends = |error: &io::Error| self.adapter.is_iwarp() && error.raw_os_error() == Some(libc::EINVAL);
        let drains = used
            && stopped.as_ref().err().is_none_or(ends)
            && !self.adapter.quirks().hides_last_receive
            && !self.adapter.is_removed()
            && !self.adapter.is_stopped();
        if let (true, Some(receives), Some(queue_pair)) = (drains, receives, self.me.upgrade()) {
            let last_receive = device.last_receive.clone();
            let mut state = self.lock();
            let next = WorkQueue::new(state.initiator.sink.clone());
            let requests = std::mem::replace(&mut state.initiator, next);
            state.draining.push(Draining { key, device: Some(device), receives, requests, status });
            drop(state);
            Drain { queue_pair, key }.begin(last_receive);
            return then(true);
        }
        let lent = lent && stopped.is_ok();
        let held = lent || Arc::strong_count(&device) > 1;
        let mut state = self.lock();
        if held && state.is_flushed() {
            drop(state);
            then(true);
        } else {
            let sequel = device.when_destroyed(then);
            if let (true, Some(ending)) = (held, &mut state.ending) {
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
        if state.ending.is_some() {
            self.check_ending(state, wakes);
        }
    }

    #[cold]
    fn check_ending(&self, state: &State, wakes: &mut WakeList) {
        let Some(sequel) = state.ending.as_ref().and_then(|ending| ending.sequel.as_ref()) else { return };
        if state.is_flushed() {
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

    /// Ends the wait for the last receive of the device's queue pair with this key, which takes no further receive of a
    /// shared queue.
    pub(super) fn takes_no_receive(&self, key: u32) {
        let state = self.lock();
        // The queue pair in use has failed. When it ends, there is nothing to wait for.
        state
            .device
            .iter()
            .filter(|device| device.key() == key)
            .for_each(|device| device.last_receive.notify_one());
        state
            .ending
            .iter()
            .filter(|ending| ending.key == key)
            .for_each(|ending| ending.last_receive.notify_one());
        state.draining.iter().filter(|draining| draining.key == key).for_each(Draining::notify);
    }

    /// Handles the result of a request of a device's queue pair that has ended. A message that arrived before the end
    /// is delivered.
    pub(super) fn read_late(
        &self,
        state: &mut State,
        key: u32,
        id: RequestId,
        result: WcResult,
        effects: &mut Effects<'_, '_>,
    ) {
        let Some(draining) = state.draining.iter_mut().find(|draining| draining.key == key) else { return };
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

    /// Ends the waits for the last receives.
    pub(super) fn stop_waiting(state: &State) {
        state.draining.iter().for_each(Draining::notify);
    }

    /// Destroys a queue pair of the device that takes no further receive. Without the lock, because that may take long.
    fn drained(self: &Arc<Self>, key: u32) {
        let device = {
            let mut state = self.lock();
            let draining = state.draining.iter_mut().find(|draining| draining.key == key);
            draining.and_then(|draining| draining.device.take())
        };
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
        let place = state.draining.iter().position(|draining| draining.key == key);
        if let Some(Draining { requests, status, .. }) = place.map(|place| state.draining.swap_remove(place))
        {
            for outstanding in requests.outstanding {
                // A request behind one that the device has not completed may have completed.
                let free = free || outstanding.result.is_some();
                let (ticket, completed) = outstanding.ended(status, free);
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
