//! Probes idle peers for a sign of life.
//!
//! A device notices a dead peer by what it sends and the peer does not acknowledge. A connection on which nothing is
//! sent would not notice at all, so after half of the path timeout without a sign of life an empty request is posted:
//! one that names no memory, and that the peer's application does not notice. On InfiniBand and RoCE that is an RDMA
//! Write, which the peer's device acknowledges. On iWARP it is an RDMA Read, which the peer answers: a Write is
//! complete there once TCP has it.
//!
//! Requests of the application that are outstanding are left to the device. It repeats them, and reports when it gives
//! up; and a peer that is slow to post receives lets them wait for longer than any timeout. On iWARP they are complete
//! as soon as TCP has them, so there the empty request may wait behind them: a peer that reads nothing for half of the
//! path timeout is given up. Requests whose completion the device leaves out may have been executed long ago. The
//! completion of the empty request covers them, and if their user knows that the peer has receives, the empty request
//! is as good as alone.

use tracing::debug;

use super::{QueuePair, State};
use crate::error::{Reason, WcError};
use crate::proto::qp::QueuePairState;
use crate::status::{Status, WcStatus};
use crate::sys::{Operation, RemoteMemory, SendFlags, SendRequest, WcResult};
use crate::verbs::context::AdapterContext;
use crate::verbs::routes::{CompletionHandler, Effects, RequestId, TICKS};
use crate::verbs::work_queue::nothing;

/// The silence of a peer, in ticks.
#[derive(Default)]
pub(super) struct Silence {
    /// The ticks since the last sign of life.
    quiet: u32,
    probe: Option<Probe>,
}

/// An empty request that has not completed.
struct Probe {
    /// The ticks since it was posted.
    ticks: u32,
    /// No request is ahead of it that might wait for the peer's application.
    alone: bool,
    /// The number of the first request behind it.
    next: u32,
}

impl Silence {
    /// Records a sign of life of the peer.
    pub(super) fn heard(&mut self) {
        self.quiet = 0;
    }

    /// Counts a tick without a sign of life. Returns whether the peer is given up.
    fn tick(&mut self) -> bool {
        self.quiet = self.quiet.saturating_add(1);
        let Some(probe) = &mut self.probe else { return false };
        probe.ticks = probe.ticks.saturating_add(1);
        probe.alone && self.quiet >= TICKS && probe.ticks >= TICKS / 2
    }

    /// Returns whether it is time to post a probe.
    fn is_due(&self) -> bool {
        self.probe.is_none() && self.quiet >= TICKS / 2
    }
}

impl QueuePair {
    /// Counts one of the [`TICKS`] parts of the path timeout: posts a probe if one is due, or gives up the peer.
    pub(super) fn count_silence(&self) {
        if let Some(lane) = &self.lane {
            // It sees the signs of life, and posts.
            return lane.tick();
        }
        // A completion is a sign of life, also if the program has not polled for it yet.
        self.collect_completions();
        let mut state = self.lock();
        if state.phase != QueuePairState::Connected || state.broken.is_some() {
            return;
        }
        let Some(current) = state.device.current_mut().filter(|current| !current.refused) else { return };
        if current.silence.tick() {
            let key = current.qp.key();
            drop(state);
            self.silent(key, Reason::PathTimeout);
        } else if current.silence.is_due() {
            self.probe(&mut state);
        }
    }

    /// Takes what the device has completed by now.
    pub(crate) fn collect_completions(&self) {
        // Under the lock: the thread that ends the queue pair of the device has to be its last holder.
        if let Some(current) = self.lock().device.current() {
            current.qp.collect();
        }
        self.progress();
    }

    /// Ends the connection, whose peer was given up by us or by the device.
    pub(super) fn silent(&self, key: u32, reason: Reason) {
        let connector = self.lock().user();
        if let Some(connector) = connector {
            debug!(connection = %connector.connection(), ?reason, "peer silent");
            connector.broken_by(key, Status::IO_TIMEOUT, reason);
        }
    }

    /// Posts an empty request, unless requests are outstanding that the device reports.
    fn probe(&self, state: &mut State) {
        let Some(current) = state.device.current_mut() else { return };
        let outstanding = &state.initiator.outstanding;
        if !current.deferred.is_empty() || outstanding.iter().any(|other| !other.unsignaled) {
            return;
        }
        let alone = outstanding.is_empty() || self.credited;
        let nowhere = RemoteMemory { address: 0, key: 0 };
        let reads = self.adapter.is_iwarp() && current.reads > 0;
        let operation = if reads { Operation::Read(nowhere) } else { Operation::Write(nowhere) };
        let id = RequestId { key: current.qp.key(), receive: false, sequence: RequestId::KEEPALIVE };
        let entries = nothing(self.adapter.quirks());
        let request = SendRequest { id: id.pack(), operation, entries: &entries, flags: SendFlags::SIGNALED };
        // SAFETY: the request has no bytes, so no memory is in use.
        match unsafe { current.qp.queue_pair.post_one(&request) } {
            Ok(()) => {
                let next = state.initiator.next();
                current.silence.probe = Some(Probe { ticks: 0, alone, next });
            }
            // The queue is full after all, or the connection is ending.
            Err(refused) => debug!(error = %refused.source, "probe not posted"),
        }
    }

    /// Handles the completion of the empty request.
    pub(super) fn probed(
        &self,
        state: &mut State,
        key: u32,
        result: WcResult,
        effects: &mut Effects<'_, '_>,
    ) {
        let Some(silence) = state.device.silence() else { return };
        let probe = silence.probe.take();
        match result.error() {
            None => {
                silence.heard();
                // The unsignaled requests before the probe have succeeded. They are retired, or the next probe would
                // not count as alone.
                if let Some(Probe { next, .. }) = probe {
                    state.initiator.finished_before(next);
                    self.finish_ready(state, key, false, effects);
                }
            }
            // Flushed: an event, or the request that failed, has the reason.
            Some(WcError { status: WcStatus::WR_FLUSH_ERR, .. }) => {}
            Some(error) => {
                state.broken.get_or_insert(error);
                effects.queue_pair.silent = Some((error, key));
            }
        }
    }
}

/// Returns the number of requests that a queue pair of the device has room for: as many as the application may post,
/// and an empty one if there is a path timeout. The advertised limit is one below that of the device.
pub(super) fn slots(adapter: &AdapterContext, depth: u32) -> u32 {
    depth.saturating_add(u32::from(adapter.config.path_timeout.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A peer is probed after half of the path timeout, and given up after all of it (SEC-04).
    #[test]
    fn silent_peer_is_probed_halfway_then_lost() {
        let mut silence = Silence::default();
        for _ in 0..TICKS / 2 {
            assert!(!silence.is_due());
            assert!(!silence.tick());
        }
        assert!(silence.is_due());
        silence.probe = Some(Probe { ticks: 0, alone: true, next: 0 });
        assert!(!silence.is_due(), "one at a time");
        for _ in 1..TICKS / 2 {
            assert!(!silence.tick());
        }
        assert!(silence.tick());
    }

    // A sign of life restarts the count, and the probe stays outstanding (SEC-04).
    #[test]
    fn a_sign_of_life_begins_anew() {
        let mut silence = Silence::default();
        (0..TICKS / 2).for_each(|_| assert!(!silence.tick()));
        silence.probe = Some(Probe { ticks: 0, alone: true, next: 0 });
        (0..TICKS / 2 - 1).for_each(|_| assert!(!silence.tick()));
        silence.heard();
        (0..TICKS - 1).for_each(|_| assert!(!silence.tick()));
        assert!(silence.tick(), "the question is still open");
    }

    // SEC-04: what is ahead of the probe may wait for a receive.
    #[test]
    fn probe_behind_requests_is_left_to_device() {
        let mut silence =
            Silence { quiet: TICKS, probe: Some(Probe { ticks: TICKS, alone: false, next: 0 }) };
        assert!(!silence.tick());
    }
}
