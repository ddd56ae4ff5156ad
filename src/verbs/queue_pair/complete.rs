//! Processes the completions of the device. Those that come while another thread has the lock of the queue pair wait as
//! [`DeferredCompletions`].
//!
//! The way of nearly all completions is inlined in one function: a request and its result are too large to be passed from one to the
//! next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::debug;

use super::{QueuePair, QueuePairUser, State};
use crate::error::{Reason, WcError};
use crate::inflight::{self, Completed, CompletionInfo};
use crate::proto::qp::QueuePairState;
use crate::status::{Status, WcStatus};
use crate::sync::Mutex;
use crate::sys::{Told, WcResult};
use crate::verbs::routes::{CompletionHandler, ConnectionEffects, Effects, RequestId};
use crate::verbs::work_queue::{Held, Outstanding, status_of};

/// A completion: the key of the device's queue pair, the id of the request, and its result.
pub(super) type RawCompletion = (u32, u64, WcResult);

/// Completions that came while another thread had the lock of the queue pair, or without a place for what follows from
/// them.
#[derive(Default)]
pub(super) struct DeferredCompletions {
    completions: Mutex<Vec<RawCompletion>>,
    /// Written with the lock.
    filled: AtomicBool,
}

impl DeferredCompletions {
    /// Returns whether there is none. Completions that another thread adds at the same time are processed by that
    /// thread, unless it adds them with the lock of the queues that the caller has.
    pub(super) fn is_empty(&self) -> bool {
        !self.filled.load(Ordering::Acquire)
    }

    /// Adds completions. The caller has them processed.
    pub(super) fn add(&self, completions: impl Iterator<Item = RawCompletion>) {
        let mut all = self.completions.lock();
        all.extend(completions);
        self.filled.store(true, Ordering::Release);
    }

    /// Exchanges the completions for an empty list.
    pub(super) fn swap(&self, empty: &mut Vec<RawCompletion>) {
        let mut all = self.completions.lock();
        std::mem::swap(&mut *all, empty);
        self.filled.store(false, Ordering::Release);
    }
}

/// The least time by which the event that ends a connection may lag behind the requests that the end flushed: siw
/// reports the two from threads of its own. Otherwise it is the disconnect timeout.
const LAG: Duration = Duration::from_secs(1);
/// The number of steps in which the event is waited for: a machine that stands still for a while delivers the event
/// before the next one.
const STEPS: u32 = 8;

/// The number of completions that a list has room for when it is empty.
const KEPT: usize = 64;

impl QueuePair {
    /// Does what follows from the results of requests, without the lock.
    pub(super) fn apply(&self, mut effects: Effects<'_, '_>) {
        effects.wakes.wake_all();
        self.apply_to_connection(effects.queue_pair);
    }

    /// Does what follows for the connection once the caller has released its locks.
    pub(super) fn apply_later(&self, effects: &mut Effects<'_, '_>) {
        if effects.queue_pair == ConnectionEffects::default() {
            return;
        }
        let of_connection = std::mem::take(&mut effects.queue_pair);
        if let Some(me) = self.me.upgrade() {
            effects.wakes.run(move || me.apply_to_connection(of_connection));
        }
    }

    fn apply_to_connection(&self, ConnectionEffects { received, broken, silent }: ConnectionEffects) {
        if received {
            self.data_arrived();
        }
        if let Some((error, key)) = broken {
            self.broke(error, key);
        }
        if let Some((error, key)) = silent {
            self.silent(key, Reason::Completion(error));
        }
    }

    /// Processes the completions that were deferred: most often there is none.
    #[inline]
    pub(super) fn read_current(&self, state: &mut State, effects: &mut Effects<'_, '_>) {
        if !self.deferred_completions.is_empty() {
            self.read_deferred(state, effects);
        }
    }

    #[inline(never)]
    fn read_deferred(&self, state: &mut State, effects: &mut Effects<'_, '_>) {
        let mut list = std::mem::take(&mut state.reading);
        self.deferred_completions.swap(&mut list);
        for (key, id, result) in list.drain(..) {
            self.read(state, key, id, result, effects);
        }
        // A list that a burst has made long is not kept.
        if list.capacity() <= KEPT {
            state.reading = list;
        }
    }

    /// Handles the result of a request of the device's queue pair with this key, which is in use, is being ended, or
    /// has ended.
    #[inline(always)]
    pub(super) fn read(
        &self,
        state: &mut State,
        key: u32,
        id: u64,
        result: WcResult,
        effects: &mut Effects<'_, '_>,
    ) {
        let id = RequestId::unpack(id);
        if state.device.key() != Some(key) {
            self.read_late(state, key, id, result, effects);
        } else if id.key != RequestId::SHARED {
            self.completed(state, id, result, effects);
        } else if let Some((ticket, payload)) = state.device.take_shared(id.sequence) {
            self.finished(state, key, true, Outstanding::new(ticket, payload), result, effects);
        }
    }

    /// Handles the result of a request of the queue pair in use, or of the one that is being ended.
    #[inline(always)]
    fn completed(&self, state: &mut State, id: RequestId, result: WcResult, effects: &mut Effects<'_, '_>) {
        let RequestId { key, receive, sequence } = id;
        // Nearly always it is the oldest.
        match state.queue(receive).pop_if(sequence) {
            Some(outstanding) => self.complete_next(state, key, receive, outstanding, result, effects),
            None => self.completed_early(state, id, result, effects),
        }
        if state.queue(receive).is_ready() {
            self.finish_ready(state, key, receive, effects);
        }
    }

    /// Handles a result that is not that of the oldest request of its queue.
    #[inline(never)]
    fn completed_early(
        &self,
        state: &mut State,
        id: RequestId,
        result: WcResult,
        effects: &mut Effects<'_, '_>,
    ) {
        let RequestId { key, receive, sequence } = id;
        if sequence == RequestId::KEEPALIVE {
            return self.probed(state, key, result, effects);
        }
        if !state.queue(receive).finished(sequence, result) {
            debug!(sequence, receive, "completion of a request that is not in its queue");
            // The job that ends the queue pair may have taken it, and has not settled the end.
            self.read_late(state, key, id, result, effects);
        }
    }

    /// Finishes the oldest requests of a queue of which the result is known.
    #[inline(never)]
    pub(super) fn finish_ready(
        &self,
        state: &mut State,
        key: u32,
        receive: bool,
        effects: &mut Effects<'_, '_>,
    ) {
        while let Some((outstanding, result)) = state.queue(receive).pop() {
            self.finished(state, key, receive, outstanding, result, effects);
        }
    }

    /// Finishes the next request of a queue, like [`complete_next`](Self::complete_next), where that is not in the way of nearly all.
    #[inline(never)]
    fn finished(
        &self,
        state: &mut State,
        key: u32,
        receive: bool,
        outstanding: Outstanding,
        result: WcResult,
        effects: &mut Effects<'_, '_>,
    ) {
        self.complete_next(state, key, receive, outstanding, result, effects);
    }

    /// Completes the next request of a queue. If it has failed, it is kept until the connection has ended.
    #[inline(always)]
    fn complete_next(
        &self,
        state: &mut State,
        key: u32,
        receive: bool,
        outstanding: Outstanding,
        result: WcResult,
        effects: &mut Effects<'_, '_>,
    ) {
        let Outstanding { ticket, payload, silent, held, copied, .. } = outstanding;
        let mut status = status_of(result.status, receive, self.adapter.quirks());
        // `siw` has often sent what was posted behind a read when that turns out to fail. No request succeeds behind one
        // that failed (`QP-18`).
        if status == Status::SUCCESS && !receive && !state.initiator.failed.is_empty() {
            status = Status::CANCELED;
        }
        if !matches!(held, Held::Nothing) {
            held.release(status == Status::SUCCESS, &mut effects.wakes);
        }
        if status != Status::SUCCESS {
            // First the connection ends, then its requests fail (`X3`).
            state.queue(receive).failed.push((ticket, result.failed(status, payload)));
            if let (None, Some(error)) = (state.broken, result.error()) {
                state.broken = Some(error);
                effects.queue_pair.broken = Some((error, key));
            }
            return;
        }
        // Once the connection is established, the connector needs no notice.
        let early = receive && state.phase == QueuePairState::Associated;
        effects.queue_pair.received |= early;
        if let Some(current) = state.device.current_mut() {
            // An iWARP device has only handed what it sends to its TCP.
            if receive || !self.adapter.is_iwarp() {
                current.silence.heard();
            }
            current.has_received |= early;
            if let Some(Told::Invalidated(invalidated)) = result.told {
                let windows = current.windows.iter().filter_map(Weak::upgrade);
                windows.for_each(|window| window.invalidated_by_peer(key, invalidated));
            }
        }
        let bytes =
            if receive { result.received(&payload) } else { copied as usize + inflight::length(&payload) };
        let mut completed = Completed::done(bytes, payload);
        completed.extra =
            if receive { result.extra() } else { CompletionInfo { silent, ..CompletionInfo::default() } };
        let Effects { wakes, polling, .. } = effects;
        state.queue(receive).sink.complete_polled(ticket, completed, polling.as_deref_mut(), wakes);
    }

    /// Returns the report of the device on the first request that failed, if one did, and the status of that.
    pub(crate) fn failure(&self) -> Option<(Status, WcError)> {
        let error = self.lock().broken?;
        Some((status_of(error.status, false, self.adapter.quirks()), error))
    }

    /// Ends the connection because a request has failed. The other requests wait for the end.
    pub(super) fn broke(&self, error: WcError, key: u32) {
        let Some(connector) = self.user_of(key) else { return };
        debug!(connection = %connector.connection(), %error, "request failed");
        let status = status_of(error.status, false, self.adapter.quirks());
        let reason = Reason::Completion(error);
        if error.status != WcStatus::WR_FLUSH_ERR {
            connector.broken_by(key, status, reason);
            return;
        }
        // Flushed, for a reason that an event will report. The wait for that does not keep a connection that has no
        // other holder.
        let (runtime, connector) = (self.adapter.runtime.clone(), Arc::downgrade(&connector));
        let step = self.adapter.config.disconnect_timeout.max(LAG) / STEPS;
        runtime.spawn(async move {
            for _ in 0..STEPS {
                tokio::time::sleep(step).await;
            }
            if let Some(connector) = connector.upgrade() {
                connector.broken_by(key, status, reason);
            }
        });
    }

    /// Ends the connection because the device has refused requests behind the doorbell: nothing can be posted behind
    /// them.
    pub(super) fn doorbell_refused(&self, key: u32) {
        const REASON: Reason = Reason::Local("the device refused requests behind the doorbell");
        if let Some(connector) = self.user_of(key) {
            connector.broken_by(key, Status::INVALID_DEVICE_REQUEST, REASON);
        }
    }

    /// Returns the connector that has the queue pair, while it uses that of the device with this key. Without a connector the requests
    /// finish.
    fn user_of(&self, key: u32) -> Option<Arc<dyn QueuePairUser>> {
        let state = self.lock();
        // The attempt may have ended by now, and the queue pair may have another one of the device.
        if state.device.current().is_none_or(|current| current.qp.key() != key) {
            return None;
        }
        let connector = state.user();
        if connector.is_none() {
            self.finish_apart(state, Status::CANCELED);
        }
        connector
    }
}
