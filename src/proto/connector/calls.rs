//! The effects of the user's calls, state by state. The comments name the rows of the state table that they
//! follow.

use std::time::Instant;

use super::Phase::*;
use super::{Action, Actions, Connector, Failure, Op};
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
            Dead => Err(self.fate.clone().unwrap_or(Status::CONNECTION_INVALID.into())),
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
                Err(failure)
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
