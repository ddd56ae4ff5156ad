//! The effects of the user's calls and of the provider's reports, state by state. The comments name the rows of the state table that they
//! follow.

use std::time::Instant;

use super::Phase::{self, *};
use super::{Action, Actions, Connector, Failure, Loss, Op, Terms, UNKNOWN};
use crate::error::{ConnectError, Reason};
use crate::status::Status;
use crate::types::DisconnectReason;

impl Connector {
    /// Accepts `Bind` in `Idle`. Every state that has a local address refuses it with `ADDRESS_ALREADY_ASSOCIATED`
    /// (A1, A3, C16).
    pub(super) fn bind(&self) -> Result<Actions, Failure> {
        match self.phase {
            Idle => Ok([Action::StartBind].into()),
            Bound | Connecting | ConnectDone | Completing | Connected | PeerGone | Disconnecting
            | RequestPending | Accepting => Err(Status::ADDRESS_ALREADY_ASSOCIATED.into()),
            Disconnected | Dead => Err(Status::INVALID_DEVICE_STATE.into()),
        }
    }

    /// Starts `Connect` in `Idle` and `Bound`, unless the queue pair is busy or the private data is too long
    /// (A4, A5, A6, C16).
    pub(super) fn connect(
        &mut self,
        length: Result<(), Failure>,
        busy: bool,
        deadline: Option<Instant>,
        overdue: bool,
    ) -> Result<Actions, Failure> {
        if busy || !matches!(self.phase, Idle | Bound) {
            return Err(Status::CONNECTION_ACTIVE.into());
        }
        length?;
        self.refusal = None;
        // A deadline that has passed fails the call before a request is sent.
        if overdue {
            return Ok([Action::Finish { op: Op::Connect, status: Status::IO_TIMEOUT }].into());
        }
        self.enter(Connecting);
        self.deadline = deadline;
        Ok([Action::StartConnect].into())
    }

    /// Starts `CompleteConnect` in `ConnectDone`, unless the peer is gone (A18, A21, A23, A26).
    pub(super) fn complete_connect(&mut self) -> Result<Actions, Failure> {
        match self.phase {
            ConnectDone => {
                self.find_peer()?;
                self.enter(Completing);
                Ok([Action::StartComplete].into())
            }
            Dead => Err(self.fate.as_deref().cloned().unwrap_or(Status::CONNECTION_INVALID.into())),
            Idle | Bound | Connecting | Completing | Connected | PeerGone | Disconnecting | Disconnected
            | RequestPending | Accepting => Err(Status::CONNECTION_INVALID.into()),
        }
    }

    /// Starts `Accept` in `RequestPending`. An error of the caller is reported before the absence of the peer
    /// (P6, P7, P8, P10).
    pub(super) fn accept(&mut self, length: Result<(), Failure>, busy: bool) -> Result<Actions, Failure> {
        if self.phase != RequestPending {
            return Err(Status::CONNECTION_INVALID.into());
        }
        if busy {
            return Err(Status::CONNECTION_ACTIVE.into());
        }
        length?;
        self.find_peer()?;
        self.enter(Accepting);
        Ok([Action::StartAccept].into())
    }

    /// Rejects the peer and burns the connector; no `Finish` follows (A19, P9, P10).
    pub(super) fn reject(&mut self, length: Result<(), Failure>) -> Result<Actions, Failure> {
        if !matches!(self.phase, ConnectDone | RequestPending) {
            return Err(Status::CONNECTION_INVALID.into());
        }
        length?;
        // That the peer is gone is CONNECTION_ABORTED, however it was noticed.
        let aborted = |gone| Failure { status: Status::CONNECTION_ABORTED, ..gone };
        self.find_peer().map_err(aborted)?;
        self.enter(Dead);
        Ok([Action::RefusePeer].into())
    }

    /// Watches for the end of the connection, or finishes `NotifyDisconnect` at once if the connection has ended
    /// (C1, C6, C12).
    pub(super) fn notify_disconnect(&mut self) -> Result<Actions, Failure> {
        match self.phase {
            Connected => {
                self.watched = true;
                Ok(Actions::new())
            }
            PeerGone | Disconnecting | Disconnected => {
                Ok([Action::Finish { op: Op::NotifyDisconnect, status: Status::SUCCESS }].into())
            }
            Idle | Bound | Connecting | ConnectDone | Completing | RequestPending | Accepting | Dead => {
                Err(Status::CONNECTION_INVALID.into())
            }
        }
    }

    /// Starts `Disconnect` and flushes the work requests; in `PeerGone` they were flushed when the peer left
    /// (C4, C5, C11, A22).
    pub(super) fn disconnect(&mut self, deadline: Instant) -> Result<Actions, Failure> {
        let mut actions = Actions::new();
        match self.phase {
            Connected => {
                self.ending = Some(DisconnectReason::Local);
                actions = self.tell(Status::SUCCESS).into_iter().chain([Action::Flush]).collect();
            }
            PeerGone => {}
            Idle | Bound | Connecting | ConnectDone | Completing | Disconnecting | Disconnected
            | RequestPending | Accepting | Dead => return Err(Status::CONNECTION_INVALID.into()),
        }
        self.enter(Disconnecting);
        self.deadline = Some(deadline);
        actions.push(Action::StartDisconnect);
        Ok(actions)
    }

    /// Cancels the calls that are outstanding, as `CancelOverlappedRequests` does (A13, A20, A25, P16, C10, C14).
    pub(super) fn cancel(&mut self) -> Actions {
        match self.phase {
            Connecting | Completing | Accepting => self.fail(Action::RefusePeer, Status::CANCELED),
            ConnectDone => self.refuse(),
            Connected => self.tell(Status::CANCELED).into_iter().collect(),
            Disconnecting => self.end_disconnect(Status::CANCELED, None),
            // Nothing is outstanding.
            Idle | Bound | PeerGone | Disconnected | RequestPending | Dead => Actions::new(),
        }
    }

    /// Ends the attempt or the connection for `Release`, and clears all that a later call could read, because none
    /// follows (A13, A20, P11, P16, C13).
    pub(super) fn release(&mut self) -> Actions {
        let actions = match self.phase {
            Connecting | Completing | Accepting => self.fail(Action::RefusePeer, Status::CANCELED),
            ConnectDone | RequestPending => self.refuse(),
            Connected => self.leave(Status::CANCELED),
            PeerGone => [Action::Leave].into(),
            // The disconnect and the data before it are on their way. The wait for the peer's answer ends here.
            Disconnecting => {
                [Action::Leave, Action::Finish { op: Op::Disconnect, status: Status::CANCELED }].into()
            }
            Idle | Bound | Disconnected => Actions::new(),
            // Even now the device stays removed.
            Dead => return Actions::new(),
        };
        self.enter(Dead);
        self.refusal = None;
        actions
    }

    /// Burns the connector when the peer was seen leaving; its transport was let go then.
    fn find_peer(&mut self) -> Result<(), Failure> {
        match self.fate.take() {
            None => Ok(()),
            Some(failure) => {
                self.enter(Dead);
                Err(*failure)
            }
        }
    }

    /// Refuses a peer that waits for the answer of this end, unless it was seen leaving.
    pub(super) fn refuse(&mut self) -> Actions {
        let present = self.fate.is_none();
        self.enter(Dead);
        present.then_some(Action::RefusePeer).into_iter().collect()
    }

    /// Disconnects an established connection implicitly.
    pub(super) fn leave(&mut self, watchers: Status) -> Actions {
        self.ending = Some(DisconnectReason::Local);
        self.tell(watchers).into_iter().chain([Action::Flush, Action::Leave]).collect()
    }
}

impl Loss {
    /// Returns the action that ends the transport: a peer that may still be listening is refused.
    fn letting_go(&self) -> Action {
        match self {
            Self::TimedOut | Self::Failed(_) => Action::RefusePeer,
            Self::Unbound(_)
            | Self::Unreachable { .. }
            | Self::Refused(_)
            | Self::GaveUp
            | Self::Disconnected
            | Self::Path(_) => Action::Abandon,
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
            Self::Refused(_) | Self::GaveUp | Self::Disconnected | Self::Path(_) => {
                Status::CONNECTION_ABORTED
            }
            Self::Unreachable { .. } | Self::TimedOut => Status::IO_TIMEOUT,
            Self::Unbound(status) | Self::Failed(status) => *status,
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
        if self.phase == Idle {
            self.enter(Bound);
            self.bound = true;
        }
        Actions::new()
    }

    /// Fails the bind with the status of the provider (A2). `Bind` is synchronous, so its caller gets the status
    /// from this call.
    pub(super) fn unbound(
        &mut self,
        status: Status,
        error: Option<Box<ConnectError>>,
    ) -> Result<Actions, Failure> {
        // Only these two statuses burn the connector: a bind that fails otherwise can be tried again.
        let burns = matches!(status, Status::CANCELED | Status::DEVICE_REMOVED);
        let answer = match self.phase {
            Idle => {
                if burns {
                    self.enter(Dead);
                }
                Err(status.into())
            }
            Connecting => {
                let next = if burns { Dead } else { self.before_connect() };
                let actions = self.fail(Action::Abandon, Failure::new(status, None, error));
                self.enter(next);
                Ok(actions)
            }
            Bound | ConnectDone | Completing | Connected | PeerGone | Disconnecting | Disconnected
            | RequestPending | Accepting | Dead => return Ok(Actions::new()),
        };
        if status == Status::DEVICE_REMOVED {
            self.fate = Some(Box::new(status.into()));
        }
        answer
    }

    /// Finishes `Connect` and keeps the terms of the peer that accepted (A16).
    pub(super) fn peer_accepted(&mut self, terms: Terms) -> Actions {
        if self.phase != Connecting {
            return Actions::new();
        }
        self.enter(ConnectDone);
        self.terms = Some(terms);
        [Action::Finish { op: Op::Connect, status: Status::SUCCESS }].into()
    }

    /// Finishes the call that waits in this phase and establishes the connection: CompleteConnect of the active end
    /// (A24), or Accept of the passive end, because the active end has completed (P13). In any other phase the report no
    /// longer matters.
    pub(super) fn establish(&mut self, waiting: Phase, op: Op) -> Actions {
        if self.phase != waiting {
            return Actions::new();
        }
        self.enter(Connected);
        [Action::Finish { op, status: Status::SUCCESS }].into()
    }

    /// Finishes `Disconnect`: the peer has answered, and no memory is in use (C7).
    pub(super) fn disconnect_answered(&mut self) -> Actions {
        if self.phase != Disconnecting {
            return Actions::new();
        }
        self.end_disconnect(Status::SUCCESS, None)
    }

    /// Ends the attempt or the connection whose queue pair was removed (A14, A25, P16, C10, C13).
    pub(super) fn queue_pair_removed(&mut self) -> Actions {
        match self.phase {
            Connecting | Completing | Accepting => self.fail(Action::RefusePeer, Status::CANCELED),
            ConnectDone => {
                let reason = self.fate.as_deref().and_then(Failure::reason);
                let actions = self.refuse();
                // A later CompleteConnect fails with this status, because its queue pair is gone.
                self.fate = Some(Box::new(Failure::new(Status::CANCELED, reason, None)));
                actions
            }
            Connected => {
                let actions = self.leave(Status::SUCCESS);
                self.enter(Disconnected);
                actions
            }
            PeerGone => {
                self.enter(Disconnected);
                [Action::Leave].into()
            }
            // As with a release: data that was sent before the disconnect still arrives.
            Disconnecting => {
                self.enter(Disconnected);
                [Action::Leave, Action::Finish { op: Op::Disconnect, status: Status::CANCELED }].into()
            }
            // No queue pair belongs to it.
            Idle | Bound | Disconnected | RequestPending | Dead => Actions::new(),
        }
    }

    /// Burns the connector, and ends its attempt or connection, because the adapter is gone (A15, P17, C15).
    /// `failure` is that of the call that waits.
    pub(super) fn device_removed(&mut self, failure: Failure) -> Actions {
        const GONE: Status = Status::DEVICE_REMOVED;
        let actions = match self.phase {
            Connecting | Completing | Accepting => self.fail(Action::Abandon, failure),
            ConnectDone | RequestPending => {
                self.fate.is_none().then_some(Action::Abandon).into_iter().collect()
            }
            Connected => {
                self.ending = Some(DisconnectReason::DeviceRemoved);
                self.tell(GONE).into_iter().chain([Action::Flush, Action::Abandon]).collect()
            }
            PeerGone => [Action::Abandon].into(),
            Disconnecting => self.end_disconnect(GONE, None),
            Idle | Bound | Disconnected | Dead => Actions::new(),
        };
        self.enter(Dead);
        self.refusal = None;
        self.fate = Some(Box::new(GONE.into()));
        actions
    }

    /// Ends the attempt or the connection whose peer was lost, or notes the loss until the next call
    /// (A7 to A12, A21, A23, A25, P10, P14, P15, C2, C3, C8, C9).
    pub(super) fn lost(
        &mut self,
        loss: Loss,
        reason: Option<Reason>,
        error: Option<Box<ConnectError>>,
    ) -> Actions {
        let failure = |status| Failure::new(status, reason, None);
        if let Loss::Path(Some(status)) = loss {
            self.note_loss(status, reason.unwrap_or(UNKNOWN));
        }
        match self.phase {
            Connecting => self.connect_lost(loss, reason, error),
            ConnectDone if matches!(loss, Loss::TimedOut) => {
                let actions = self.refuse();
                self.fate = Some(Box::new(failure(Status::IO_TIMEOUT)));
                actions
            }
            // The loss is reported by the next call: until then the caller may still read the peer's terms.
            ConnectDone => self.peer_left(loss.parting(), failure(loss.half_open_status())),
            RequestPending => {
                let status = match loss {
                    Loss::Unbound(status) | Loss::Failed(status) => status,
                    Loss::Unreachable { .. }
                    | Loss::Refused(_)
                    | Loss::GaveUp
                    | Loss::Disconnected
                    | Loss::Path(_)
                    | Loss::TimedOut => Status::CONNECTION_ABORTED,
                };
                self.peer_left(loss.letting_go(), failure(status))
            }
            Completing => self.fail(loss.parting(), failure(loss.half_open_status())),
            Accepting => {
                // A reject differs from a peer that went away without one.
                let status = match &loss {
                    Loss::Refused(_) => Status::CONNECTION_REFUSED,
                    other => other.half_open_status(),
                };
                let actions = self.fail(loss.parting(), failure(status));
                if let Loss::Refused(data) = loss {
                    self.refusal = data.map(Box::new);
                }
                actions
            }
            Connected => {
                let (status, reason) = (loss.half_open_status(), reason.unwrap_or(UNKNOWN));
                self.ending.get_or_insert(match loss {
                    Loss::Disconnected => DisconnectReason::Peer,
                    _ => DisconnectReason::Lost { status, reason },
                });
                self.enter(PeerGone);
                self.tell(Status::SUCCESS).into_iter().chain([Action::Flush]).collect()
            }
            Disconnecting => {
                let status = match loss {
                    // It left of its own will, which is as good as an answer.
                    Loss::Refused(_) | Loss::GaveUp | Loss::Disconnected => Status::SUCCESS,
                    // No answer will come. The call has no status for a finer reason.
                    Loss::Unbound(_)
                    | Loss::Unreachable { .. }
                    | Loss::Path(_)
                    | Loss::TimedOut
                    | Loss::Failed(_) => Status::IO_TIMEOUT,
                };
                self.end_disconnect(status, reason)
            }
            Idle | Bound | PeerGone | Disconnected | Dead => Actions::new(),
        }
    }

    /// Fails `Connect` with the status of this loss. A retryable status leaves the connector as it was before.
    fn connect_lost(
        &mut self,
        loss: Loss,
        reason: Option<Reason>,
        error: Option<Box<ConnectError>>,
    ) -> Actions {
        let status = match &loss {
            Loss::Unreachable { network: true } => Status::NETWORK_UNREACHABLE,
            Loss::Unreachable { network: false } => Status::HOST_UNREACHABLE,
            // A peer that goes away before it answered has refused: its listener closed, or its connector did.
            Loss::Refused(_) | Loss::GaveUp | Loss::Disconnected => Status::CONNECTION_REFUSED,
            Loss::Path(_) | Loss::TimedOut => Status::IO_TIMEOUT,
            Loss::Unbound(status) | Loss::Failed(status) => *status,
        };
        let next = if is_retryable(status) { self.before_connect() } else { Dead };
        let actions = self.fail(loss.letting_go(), Failure::new(status, reason, error));
        self.enter(next);
        if let Loss::Refused(data) = loss {
            self.refusal = data.map(Box::new);
        }
        actions
    }

    /// Notes that the peer of a half-open connection is gone; only the first report counts.
    fn peer_left(&mut self, letting_go: Action, failure: Failure) -> Actions {
        if self.fate.is_some() {
            return Actions::new();
        }
        self.fate = Some(Box::new(failure));
        [letting_go].into()
    }

    /// Returns the phase that a retryable failure of Connect goes back to.
    fn before_connect(&self) -> Phase {
        if self.bound { Bound } else { Idle }
    }

    /// Ends the pending Connect, CompleteConnect or Accept, and burns the connector. Of these only CompleteConnect has
    /// the queue pair in use, which is flushed (A25); an attempt that failed earlier leaves it its receives (P18).
    pub(super) fn fail(&mut self, letting_go: Action, failure: impl Into<Failure>) -> Actions {
        let mut actions: Actions = [letting_go].into();
        let op = match self.phase {
            Connecting => Op::Connect,
            Accepting => Op::Accept,
            _ => {
                actions.push(Action::Flush);
                Op::CompleteConnect
            }
        };
        self.enter(Dead);
        actions.finish(op, failure.into())
    }

    /// Ends a pending Disconnect. The connection has ended, whatever the status.
    pub(super) fn end_disconnect(&mut self, status: Status, reason: Option<Reason>) -> Actions {
        self.enter(Disconnected);
        let failure = if status == Status::SUCCESS {
            status.into()
        } else {
            Failure::new(status, reason.or(self.loss().map(|(_, reason)| reason)), None)
        };
        Actions::from([Action::Abandon]).finish(Op::Disconnect, failure)
    }
}
