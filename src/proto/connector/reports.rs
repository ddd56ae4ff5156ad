//! The effects of the provider's reports, state by state. The comments name the rows of the state table that
//! they follow.

use smallvec::smallvec;

use super::Phase::*;
use super::{Action, Actions, Connector, Ending, Op, Phase, Terms};
use crate::status::Status;
use crate::types::PrivateData;

/// The ways to lose the peer, or never to get it.
pub(super) enum Loss {
    /// There is no way to it.
    Unreachable {
        /// No route to the network, rather than no host there.
        network: bool,
    },
    /// It said no.
    Refused(Option<PrivateData>),
    /// It vanished without a message.
    GaveUp,
    /// It disconnected.
    Disconnected,
    /// The transport broke.
    Path,
    /// A timer ran out, the provider's or the caller's.
    TimedOut,
    /// Anything else.
    Failed(Status),
}

impl Loss {
    /// Returns the action that ends the transport: a peer that may still be listening is refused.
    fn letting_go(&self) -> Action {
        match self {
            Self::TimedOut | Self::Failed(_) => Action::RefusePeer,
            Self::Unreachable { .. } | Self::Refused(_) | Self::GaveUp | Self::Disconnected | Self::Path => {
                Action::Abandon
            }
        }
    }

    /// Returns the action that ends the transport once one end has accepted. A peer that disconnects then had an
    /// established connection, and its Disconnect waits for the disconnect of this end. Every other loss ends as
    /// in [`letting_go`](Self::letting_go).
    fn parting(&self) -> Action {
        if matches!(self, Self::Disconnected) { Action::Leave } else { self.letting_go() }
    }

    /// Returns the status of a handshake that fails after the peer has answered: the peer left, or nothing
    /// was received from it.
    fn half_open_status(&self) -> Status {
        match self {
            Self::Refused(_) | Self::GaveUp | Self::Disconnected | Self::Path => Status::CONNECTION_ABORTED,
            Self::Unreachable { .. } | Self::TimedOut => Status::IO_TIMEOUT,
            Self::Failed(status) => *status,
        }
    }
}

/// Returns whether the same connector may try again: the peer did not answer or refused, or this host lacks memory or
/// descriptors.
fn is_retryable(status: Status) -> bool {
    matches!(
        status,
        Status::NETWORK_UNREACHABLE
            | Status::HOST_UNREACHABLE
            | Status::CONNECTION_REFUSED
            | Status::IO_TIMEOUT
            | Status::INSUFFICIENT_RESOURCES
    )
}

impl Connector {
    /// Moves from `Idle` to `Bound` (A1). Ignores an implicit bind, because it is undone with its connect.
    pub(super) fn bound(&mut self) -> Actions {
        match self.phase {
            Idle => {
                self.enter(Bound);
                self.bound = true;
            }
            Bound | Connecting | ConnectDone | Completing | Connected | PeerGone | Disconnecting
            | Disconnected | RequestPending | Accepting | Dead => {}
        }
        Actions::new()
    }

    /// Fails the bind with the status of the provider (A2). `Bind` is synchronous, so its caller gets the status
    /// from this call.
    pub(super) fn bind_failed(&mut self, status: Status) -> Result<Actions, Status> {
        // Only these two statuses burn the connector: a bind that fails otherwise can be tried again.
        let going_away = matches!(status, Status::CANCELED | Status::DEVICE_REMOVED);
        match self.phase {
            Idle => {
                if going_away {
                    self.enter(Dead);
                    self.fate = (status == Status::DEVICE_REMOVED).then_some(status);
                }
                Err(status)
            }
            Connecting => {
                let next = if going_away { Dead } else { self.before_connect() };
                let actions = self.fail_connect(next, Action::Abandon, status);
                self.fate = (status == Status::DEVICE_REMOVED).then_some(status);
                Ok(actions)
            }
            Bound | ConnectDone | Completing | Connected | PeerGone | Disconnecting | Disconnected
            | RequestPending | Accepting | Dead => Ok(Actions::new()),
        }
    }

    /// Finishes `Connect` and keeps the terms of the peer that accepted (A16).
    pub(super) fn peer_accepted(&mut self, terms: Terms) -> Actions {
        match self.phase {
            Connecting => {
                self.enter(ConnectDone);
                self.terms = Some(terms);
                smallvec![Action::Finish { op: Op::Connect, status: Status::SUCCESS }]
            }
            Idle | Bound | ConnectDone | Completing | Connected | PeerGone | Disconnecting | Disconnected
            | RequestPending | Accepting | Dead => Actions::new(),
        }
    }

    /// Finishes `CompleteConnect` and establishes the connection of the active end (A24).
    pub(super) fn complete_done(&mut self) -> Actions {
        match self.phase {
            Completing => {
                self.enter(Connected);
                smallvec![Action::Finish { op: Op::CompleteConnect, status: Status::SUCCESS }]
            }
            Idle | Bound | Connecting | ConnectDone | Connected | PeerGone | Disconnecting | Disconnected
            | RequestPending | Accepting | Dead => Actions::new(),
        }
    }

    /// Finishes `Accept` and establishes the connection of the passive end, because the active end completed (P13).
    pub(super) fn peer_completed(&mut self) -> Actions {
        match self.phase {
            Accepting => {
                self.enter(Connected);
                smallvec![Action::Finish { op: Op::Accept, status: Status::SUCCESS }]
            }
            Idle | Bound | Connecting | ConnectDone | Completing | Connected | PeerGone | Disconnecting
            | Disconnected | RequestPending | Dead => Actions::new(),
        }
    }

    /// Finishes `Disconnect`: the peer has answered, and no memory is in use (C7).
    pub(super) fn disconnect_answered(&mut self) -> Actions {
        match self.phase {
            Disconnecting => self.end_disconnect(Status::SUCCESS),
            Idle | Bound | Connecting | ConnectDone | Completing | Connected | PeerGone | Disconnected
            | RequestPending | Accepting | Dead => Actions::new(),
        }
    }

    /// Ends the attempt or the connection whose queue pair was removed (A14, A25, P16, C10, C13).
    pub(super) fn queue_pair_removed(&mut self) -> Actions {
        match self.phase {
            Connecting => self.fail_connect(Dead, Action::RefusePeer, Status::CANCELED),
            ConnectDone => {
                let actions = self.refuse();
                // A later CompleteConnect fails with this status, because its queue pair is gone.
                self.fate = Some(Status::CANCELED);
                actions
            }
            Completing => self.fail_complete(Action::RefusePeer, Status::CANCELED),
            Accepting => self.fail_accept(Action::RefusePeer, Status::CANCELED),
            Connected => {
                let actions = self.leave(Status::SUCCESS);
                self.enter(Disconnected);
                actions
            }
            PeerGone => {
                self.enter(Disconnected);
                smallvec![Action::Leave]
            }
            // As with a release: data that was sent before the disconnect still arrives.
            Disconnecting => {
                self.enter(Disconnected);
                smallvec![Action::Leave, Action::Finish { op: Op::Disconnect, status: Status::CANCELED }]
            }
            // No queue pair belongs to it.
            Idle | Bound | Disconnected | RequestPending | Dead => Actions::new(),
        }
    }

    /// Burns the connector, and ends its attempt or connection, because the adapter is gone (A15, P17, C15).
    pub(super) fn device_removed(&mut self) -> Actions {
        const GONE: Status = Status::DEVICE_REMOVED;
        let actions = match self.phase {
            Connecting => self.fail_connect(Dead, Action::Abandon, GONE),
            ConnectDone | RequestPending => {
                self.fate.is_none().then_some(Action::Abandon).into_iter().collect()
            }
            Completing => self.fail_complete(Action::Abandon, GONE),
            Accepting => self.fail_accept(Action::Abandon, GONE),
            Connected => {
                self.ending = Some(Ending::Lost);
                self.tell(GONE).into_iter().chain([Action::Flush, Action::Abandon]).collect()
            }
            PeerGone => smallvec![Action::Abandon],
            Disconnecting => self.end_disconnect(GONE),
            Idle | Bound | Disconnected | Dead => Actions::new(),
        };
        self.enter(Dead);
        self.refusal = None;
        self.fate = Some(GONE);
        actions
    }

    /// Ends the attempt or the connection whose peer was lost, or notes the loss until the next call
    /// (A7 to A12, A21, A23, A25, P10, P14, P15, C2, C3, C8, C9).
    pub(super) fn lost(&mut self, loss: Loss) -> Actions {
        match self.phase {
            Connecting => self.connect_lost(loss),
            ConnectDone if matches!(loss, Loss::TimedOut) => {
                let actions = self.refuse();
                self.fate = Some(Status::IO_TIMEOUT);
                actions
            }
            // The loss is reported by the next call: until then the caller may still read the peer's terms.
            ConnectDone => self.peer_left(loss.parting(), loss.half_open_status()),
            RequestPending => {
                let status = match loss {
                    Loss::Failed(status) => status,
                    Loss::Unreachable { .. }
                    | Loss::Refused(_)
                    | Loss::GaveUp
                    | Loss::Disconnected
                    | Loss::Path
                    | Loss::TimedOut => Status::CONNECTION_ABORTED,
                };
                self.peer_left(loss.letting_go(), status)
            }
            Completing => self.fail_complete(loss.parting(), loss.half_open_status()),
            Accepting => {
                // A reject differs from a peer that went away without one.
                let status = match &loss {
                    Loss::Refused(_) => Status::CONNECTION_REFUSED,
                    other => other.half_open_status(),
                };
                let actions = self.fail_accept(loss.parting(), status);
                if let Loss::Refused(data) = loss {
                    self.refusal = data;
                }
                actions
            }
            Connected => {
                let ending = if matches!(loss, Loss::Disconnected) { Ending::Peer } else { Ending::Lost };
                self.ending = Some(ending);
                self.enter(PeerGone);
                self.tell(Status::SUCCESS).into_iter().chain([Action::Flush]).collect()
            }
            Disconnecting => match loss {
                // It left of its own will, which is as good as an answer.
                Loss::Refused(_) | Loss::GaveUp | Loss::Disconnected => self.end_disconnect(Status::SUCCESS),
                // No answer will come. The call has no status for a finer reason.
                Loss::Unreachable { .. } | Loss::Path | Loss::TimedOut | Loss::Failed(_) => {
                    self.end_disconnect(Status::IO_TIMEOUT)
                }
            },
            Idle | Bound | PeerGone | Disconnected | Dead => Actions::new(),
        }
    }

    /// Fails `Connect` with the status of this loss. A retryable status leaves the connector as it was before.
    fn connect_lost(&mut self, loss: Loss) -> Actions {
        let letting_go = loss.letting_go();
        let status = match &loss {
            Loss::Unreachable { network: true } => Status::NETWORK_UNREACHABLE,
            Loss::Unreachable { network: false } => Status::HOST_UNREACHABLE,
            // A peer that goes away before it answered has refused: its listener closed, or its connector did.
            Loss::Refused(_) | Loss::GaveUp | Loss::Disconnected => Status::CONNECTION_REFUSED,
            Loss::Path | Loss::TimedOut => Status::IO_TIMEOUT,
            Loss::Failed(status) => *status,
        };
        let next = if is_retryable(status) { self.before_connect() } else { Dead };
        let actions = self.fail_connect(next, letting_go, status);
        if let Loss::Refused(data) = loss {
            self.refusal = data;
        }
        actions
    }

    /// Notes that the peer of a half-open connection is gone; only the first report counts.
    fn peer_left(&mut self, letting_go: Action, status: Status) -> Actions {
        if self.fate.is_some() {
            return Actions::new();
        }
        self.fate = Some(status);
        smallvec![letting_go]
    }

    /// Returns the state that a retryable failure of Connect goes back to.
    fn before_connect(&self) -> Phase {
        if self.bound { Bound } else { Idle }
    }

    /// Ends a pending Connect that failed. The queue pair stays as it is, so nothing is flushed.
    pub(super) fn fail_connect(&mut self, next: Phase, letting_go: Action, status: Status) -> Actions {
        self.enter(next);
        smallvec![letting_go, Action::Finish { op: Op::Connect, status }]
    }

    /// Ends a pending CompleteConnect that failed. The queue pair was in use, so it is flushed (A25).
    pub(super) fn fail_complete(&mut self, letting_go: Action, status: Status) -> Actions {
        self.enter(Dead);
        smallvec![letting_go, Action::Flush, Action::Finish { op: Op::CompleteConnect, status }]
    }

    /// Ends a pending Accept that failed. The queue pair keeps its receives, so nothing is flushed (P18).
    pub(super) fn fail_accept(&mut self, letting_go: Action, status: Status) -> Actions {
        self.enter(Dead);
        smallvec![letting_go, Action::Finish { op: Op::Accept, status }]
    }

    /// Ends a pending Disconnect. The connection has ended, whatever the status.
    pub(super) fn end_disconnect(&mut self, status: Status) -> Actions {
        self.enter(Disconnected);
        smallvec![Action::Abandon, Action::Finish { op: Op::Disconnect, status }]
    }
}
