//! The end of a stream: the messages to the peer, and the confirmation of its device.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::{Confirmation, State, StreamInner};
use crate::error::StreamBroken;
use crate::io::wakers::Side;
use crate::provider::stream::Progress;
use crate::types::DisconnectReason;

impl StreamInner {
    /// Ends this direction. Returns `true` if its end has been sent to the peer or need not be sent.
    pub(in crate::io) fn shutdown(&self) -> bool {
        let mut state = self.hold();
        state.machine.shutdown();
        self.advance(&mut state);
        state.machine.has_said_so() || state.ended.is_some()
    }

    /// Ends both directions.
    pub(in crate::io) fn disconnect(&self) {
        let mut state = self.hold();
        state.machine.disconnect();
        self.advance(&mut state);
    }

    /// Returns the progress of the connection. `None` if it has ended, or the provider cannot say.
    pub(in crate::io) fn progress(&self) -> Option<Progress> {
        self.queue_pair.progress()
    }

    /// Ends the connection without a message to the peer.
    pub(in crate::io) fn abort(&self) {
        self.queue_pair.flush();
    }

    /// Resolves when all sends have completed and, after a shutdown, the end of this direction has been sent to the
    /// peer. If a send completes before the peer's device has received it, the device has confirmed that it has.
    pub(in crate::io) fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let budget = ready!(coop::poll_proceed(cx));
        let outcome = ready!(self.poll_for(cx, Side::Writer, |state, collected| {
            self.advance(state);
            if !collected {
                return None;
            }
            let sent = !self.frames || self.queue_pair.takes_messages(&self.completed);
            if sent && state.machine.is_settled() && self.is_confirmed(state) {
                return Some(Ok(()));
            }
            match &state.ended {
                Some(ended) if is_good_order(state, ended) => Some(Ok(())),
                ended => ended.clone().map(|broken| Err(broken.into())),
            }
        }));
        budget.made_progress();
        Poll::Ready(outcome)
    }

    /// Returns whether the peer's device has received what was sent, as far as that can be known. Posts the request for
    /// a confirmation if that was not done before.
    fn is_confirmed(&self, state: &mut State) -> bool {
        // A peer that has disconnected knows the end of this side, or no longer takes data.
        if !self.confirms || state.machine.has_peer_disconnected() {
            return true;
        }
        if state.confirmation == Confirmation::Unasked && state.ended.is_none() {
            state.confirmation = Confirmation::Asked;
            // Nothing but a few control messages is in the send queue: there is room.
            if let Err(kind) = self.post_confirmation(state) {
                self.refused(state, kind);
            }
        }
        state.confirmation == Confirmation::Given
    }
}

/// Returns whether the connection was ended by a peer that no longer takes data: messages that were on their way are
/// lost then.
fn is_good_order(state: &State, ended: &StreamBroken) -> bool {
    let by_peer = *ended == StreamBroken::Connection(DisconnectReason::Peer);
    state.machine.has_peer_disconnected() || by_peer && state.machine.is_peer_gone()
}
