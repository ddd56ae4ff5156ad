//! The passive side of the connector: Accept and Reject of a request, and the refusal of a peer that waits.
//!
//! A passive side of InfiniBand or RoCE may be unable to take a connection for now. InfiniBand's connection manager has one
//! reason for every reject of a program, so the private data marks this one as not the application's, [`MARKER`]. Its last byte
//! is not zero: the private data of an application is at least one byte shorter, and arrives with zeros behind it. A peer that
//! does not know the marker finds a sentence in it.

use std::io;
use std::sync::Arc;

use tracing::debug;

use super::cm_id::CmId;
use super::connector::{Connector, Offer, PendingCall, State};
use super::limits::IB_REJECT_DATA;
use super::queue_pair::{DeviceQp, QueuePair};
use crate::error::{AcceptError, Reason};
use crate::proto::connector::{Input, Loss, Op, Phase};
use crate::provider::connector::{AfterStep, ConnectorDriver, ReleaseGuard};
use crate::provider::params::AcceptParams;
use crate::status::Status;
use crate::types::{ConnectionId, ReadLimits, Role};

/// The sentence at the front of the private data.
const TEXT: &[u8] = b"tokio-rdma: the connection cannot be taken for now";

/// The private data of a reject for now.
pub(super) const MARKER: [u8; IB_REJECT_DATA] = {
    let mut marker = [0; IB_REJECT_DATA];
    let (text, _) = marker.split_at_mut(TEXT.len());
    text.copy_from_slice(TEXT);
    marker[IB_REJECT_DATA - 1] = 1;
    marker
};

impl Connector {
    /// Accepts the request (`IND2Connector::Accept`). Resolves when the peer has completed the connection.
    ///
    /// # Errors
    /// See [`AcceptError`]. [`is_pending`](Self::is_pending) returns whether the request is still usable.
    pub(crate) async fn accept(
        &self,
        queue_pair: &Arc<QueuePair>,
        params: &AcceptParams,
    ) -> Result<(), AcceptError> {
        if queue_pair.adapter.domain != self.adapter.domain {
            return Err(AcceptError::ForeignQueuePair);
        }
        if self.adapter.is_stopped() {
            let (peer, status) = (self.peer(), Status::CANCELED);
            return Err(AcceptError::Other { peer, status, reason: Reason::RUNTIME_ENDED });
        }
        let (length, maximum) = (params.private_data.len(), self.adapter.info().max_reply_data);
        // After an attempt that failed it is being renewed.
        queue_pair.settled().await;
        let mut taken = false;
        let within = |state: &mut State, after: &mut AfterStep| {
            taken = length <= maximum
                && state.progress.phase() == Phase::RequestPending
                && state.queue_pair.is_none()
                && queue_pair.associate(self.me.clone()).is_ok();
            if taken {
                let offered = state.progress.machine.read_limits().unwrap_or(ReadLimits::NONE);
                state.queue_pair = Some(queue_pair.clone());
                state.limits = self.agreed(params.read_limits, offered);
                state.offer = Offer {
                    private_data: params.private_data.clone(),
                    limits: state.limits,
                    options: params.options,
                    traffic_class: None,
                    tries: 0,
                    until: None,
                };
            }
            let busy = length <= maximum && !taken;
            self.advance(state, Input::Accept { data: length, max_data: maximum, busy }, after)
        };
        if let Err(failure) = self.step(|after| Self::run_on(&self.adapter.setup, after), within) {
            self.give_back(taken);
            return Err(self.accept_error(failure));
        }
        let guard = ReleaseGuard::new(self);
        let answer = self.answer(Op::Accept).await;
        guard.disarm();
        answer.map_err(|failure| self.accept_error(failure))
    }

    /// Returns the read limits of an accept that asks for these: at most those that were offered. Some devices serve
    /// all reads that were offered.
    pub(crate) fn agreed(&self, asked: ReadLimits, offered: ReadLimits) -> ReadLimits {
        let agreed = asked.capped_to(offered);
        if self.adapter.quirks().serves_offered_reads {
            ReadLimits { inbound: offered.inbound, ..agreed }
        } else {
            agreed
        }
    }

    /// Frees the queue pair of a call that was refused inline.
    fn give_back(&self, taken: bool) {
        let queue_pair = if taken { self.lock().queue_pair.take() } else { None };
        if let Some(job) = queue_pair.and_then(|queue_pair| queue_pair.dissociate()) {
            self.adapter.teardown.run(job);
        }
    }

    /// Has a thread send the reply. InfiniBand's queue pair is ready before that; iWARP's driver does it by itself.
    ///
    /// # Errors The input that reports the failure to the machine.
    pub(crate) fn reply(&self, state: &mut State, after: &mut AfterStep) -> Result<(), Input> {
        let (Some(id), Some(queue_pair), Some(connector)) =
            (state.id.clone(), state.queue_pair.clone(), self.me.upgrade())
        else {
            return Err(Input::lost(Loss::GaveUp, None));
        };
        let device = queue_pair.lend().ok_or_else(|| Input::lost(Loss::GaveUp, None))?;
        state.awaited = false;
        state.pending_call = PendingCall::Calling;
        let (offer, limits) = (state.offer.clone(), state.limits);
        if self.adapter.quirks().misses_early_frames {
            // On a thread of its own it would wait in the middle for its turn, while the peer sends.
            let connection = self.id;
            let log = |error: io::Error| after.log(move || Self::log_ack_timeout(connection, &error));
            let outcome = self.send_reply(&id, &queue_pair, &device, &offer, limits, log);
            // Not under the lock: its last holder finishes requests.
            after.jobs.push(Box::new(move || drop(device)));
            return self.has_replied(state, outcome).map(drop);
        }
        after.jobs.push(Box::new(move || {
            let log = |error: io::Error| Self::log_ack_timeout(connector.id, &error);
            let outcome = connector.send_reply(&id, &queue_pair, &device, &offer, limits, log);
            connector.returned(id, Some(device), |state| connector.has_replied(state, outcome));
        }));
        Ok(())
    }

    /// Makes the calls of an accept.
    ///
    /// # Errors
    /// Those of the calls.
    fn send_reply(
        &self,
        id: &CmId,
        queue_pair: &QueuePair,
        device: &DeviceQp,
        offer: &Offer,
        limits: ReadLimits,
        log_ack_timeout: impl FnOnce(io::Error),
    ) -> io::Result<()> {
        if let Some(timeout) = offer.options.ack_timeout()
            && let Err(error) = id.set_ack_timeout(timeout)
        {
            log_ack_timeout(error);
        }
        if self.adapter.is_iwarp() {
            queue_pair.set_reads(limits);
            self.set_path(device.path(id, None));
        } else {
            self.set_path(queue_pair.ready(device, id, limits, offer.options)?);
        }
        id.accept(&offer.parameters(limits, device.queue_pair.number))
    }

    /// Logs that the acknowledge timeout could not be set, which does not keep the accept from succeeding.
    fn log_ack_timeout(connection: ConnectionId, error: &io::Error) {
        debug!(%connection, %error, "acknowledge timeout not set");
    }

    /// Handles the outcome of the calls that send the reply.
    ///
    /// # Errors The input that reports the failure to the machine.
    fn has_replied(&self, state: &mut State, outcome: io::Result<()>) -> Result<Option<Input>, Input> {
        if let Err(error) = outcome {
            // Most often the peer has gone, and the event that says so is on its way.
            return Err(Input::lost(Loss::GaveUp, error.raw_os_error().map(Reason::Errno)));
        }
        // Unless the word that establishes the connection has been faster.
        if state.pending_call == PendingCall::Calling {
            state.pending_call =
                if self.adapter.is_iwarp() { PendingCall::Waiting } else { PendingCall::None };
        }
        Ok(None)
    }

    /// Returns whether Accept or Reject may still be called.
    pub(crate) fn is_pending(&self) -> bool {
        let state = self.lock();
        state.progress.phase() == Phase::RequestPending && state.id.is_some()
    }

    /// Rejects the request (`IND2Connector::Reject` by the passive side).
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub(crate) fn reject_request(&self, data: &[u8]) -> Result<(), AcceptError> {
        let keep = |state: &mut State, data| state.reject_data = Some(data);
        self.reject(data, self.adapter.info().max_reject_data, keep)
            .map_err(|failure| self.accept_error(failure))
    }

    /// Refuses a waiting peer, with the private data of Reject, or for now. Over iWARP a reject for now has no data.
    pub(super) fn refuse(&self, state: &mut State) {
        let said = state.reject_data.take();
        let for_now: &[u8] =
            if self.role == Role::Passive && !self.adapter.is_iwarp() { &MARKER } else { &[] };
        let data = said.as_deref().unwrap_or(for_now);
        // At any other moment the destruction of the id refuses the peer. After an accept a reject would leave the
        // reply in flight, and the destruction would wait a minute for it.
        if let Some(id) = state.id.as_ref().filter(|_| std::mem::take(&mut state.awaited)) {
            let established = self.adapter.is_iwarp() && self.role == Role::Active;
            // If the peer has gone, the call fails, which makes no difference.
            let _ = if established { id.disconnect() } else { id.reject(data) };
        }
        self.release_id(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::limits::MAX_REJECT_DATA;

    // ERR-10: not even the marker itself, sent by an application, arrives as the marker.
    #[test]
    fn no_data_of_an_application_is_the_marker() {
        for length in 0..=MAX_REJECT_DATA {
            let mut arrives = MARKER[..length].to_vec();
            arrives.resize(IB_REJECT_DATA, 0);
            assert_ne!(arrives, MARKER, "{length}");
        }
    }
}
