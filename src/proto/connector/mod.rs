//! The NetworkDirect connector: both roles of the three-phase handshake, and the connection that follows.
//!
//! A machine without I/O: [`handle`](Connector::handle) takes a call of the user or a report of the provider
//! and answers with [`Actions`] for the provider, to be carried out in order. Both providers drive it under
//! their own lock.
//!
//! ```text
//!            ┌──────┐                                              a request arrived
//!            │ Idle │                                            ┌───────▼────────┐
//!            └─┬──┬─┘                                            │ RequestPending │
//!         Bind │  │                                              └───────┬────────┘
//!        ┌─────▼┐ │ Connect                                              │ Accept
//!        │Bound │ │                                               ┌──────▼────┐
//!        └─────┬┘ │                                               │ Accepting │
//!      Connect │  │                                               └──────┬────┘
//!            ┌─▼──▼───────┐ PeerAccepted ┌─────────────┐                 │ PeerCompleted
//!            │ Connecting ├─────────────▶│ ConnectDone │                 │
//!            └─┬──────────┘              └──────┬──────┘                 │
//!  refused,    │                CompleteConnect │                        │
//!  unreachable,│                         ┌──────▼─────┐ CompleteDone ┌───▼───────┐
//!  no answer:  ▼                         │ Completing ├─────────────▶│ Connected ├──┐ Disconnect
//!  back to Idle or Bound                 └────────────┘              └─────┬─────┘  │
//!                                                 peer left, path lost     │        ▼
//!                                              ┌──────────┐◀──────────────┘  ┌───────────────┐
//!                                              │ PeerGone ├─────────────────▶│ Disconnecting │
//!                                              └──────────┘    Disconnect    └──────┬────────┘
//!                  answered, simultaneous, no answer, cancelled, queue pair removed │
//!                                                                          ┌────────▼─────┐
//!  every state: Release, DeviceRemoved ──▶ Dead                            │ Disconnected │
//!  every other failure from Connecting to Accepting ──▶ Dead               └──────────────┘
//! ```
//!
//! The rules of the house:
//!
//! * `Err` answers a call that was not accepted: nothing was submitted and no notification ever follows.
//! * Each accepted call that names an [`Op`] is answered by exactly one [`Action::Finish`], at once or later.
//!   `NotifyDisconnect` may be outstanding several times; one `Finish` answers all of them.
//! * A transport starts with [`Action::StartConnect`] or a request that arrived, and is let go by exactly one
//!   of [`Action::RefusePeer`], [`Action::Leave`], [`Action::Abandon`], which comes before the `Finish` that
//!   allows a retry. Later reports about a transport that was let go must not be fed in.
//! * `NotifyDisconnect` finishes before the work requests are flushed.
//! * A report that no longer matters is ignored, by a rule that names the state, never by a catch-all.

mod effects;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Instant;

use crate::error::{AcceptError, ConnectError, Reason, StateError};
#[cfg(feature = "inspect")]
use crate::inspect::ConnectionState;
use crate::status::Status;
use crate::types::{DisconnectReason, PrivateData, ReadLimits};

/// The phase of a connector: the state of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// New, or back here after a retryable failure of a connect that bound implicitly.
    Idle,
    /// It has a local address.
    Bound,
    /// Connect is pending.
    Connecting,
    /// The peer accepted; CompleteConnect is owed.
    ConnectDone,
    /// CompleteConnect is pending.
    Completing,
    /// Both ends are connected.
    Connected,
    /// It was connected; the peer left or the path broke. Disconnect is still owed.
    PeerGone,
    /// Disconnect is pending.
    Disconnecting,
    /// Over, in order. Neither the connector nor its queue pair can be used again.
    Disconnected,
    /// It holds a request; Accept or Reject is owed.
    RequestPending,
    /// Accept is pending.
    Accepting,
    /// Burnt or released: only cleanup is left.
    Dead,
}

/// A call that may be answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// `IND2Connector::Connect`.
    Connect,
    /// `IND2Connector::CompleteConnect`.
    CompleteConnect,
    /// `IND2Connector::Accept`.
    Accept,
    /// `IND2Connector::NotifyDisconnect`, all that are outstanding.
    NotifyDisconnect,
    /// `IND2Connector::Disconnect`.
    Disconnect,
}

/// The terms of the request or the reply of the peer, already in the direction of this end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The read limits, capped by the rules of [`limits`](super::limits).
    pub(crate) limits: ReadLimits,
    /// The private data.
    pub(crate) private_data: PrivateData,
}

/// An input of the machine: first the calls of the user, then the reports of the provider.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// `Bind`. The provider binds at once when this is accepted and reports how it went.
    Bind,
    /// `Connect`.
    Connect {
        /// The length of the private data.
        data: usize,
        /// The maximum of the adapter for a request.
        max_data: usize,
        /// Whether the queue pair belongs to another connection.
        busy: bool,
        /// When the caller stops waiting; without it nothing here ends the attempt.
        deadline: Option<Instant>,
        /// Whether it has done so already.
        overdue: bool,
    },
    /// `CompleteConnect`.
    CompleteConnect,
    /// `Accept`.
    Accept {
        /// The length of the private data.
        data: usize,
        /// The maximum of the adapter for a reply.
        max_data: usize,
        /// Whether the queue pair belongs to another connection.
        busy: bool,
    },
    /// `Reject`, by either role.
    Reject {
        /// The length of the private data.
        data: usize,
        /// The maximum of the adapter for a reject.
        max_data: usize,
    },
    /// `NotifyDisconnect`.
    NotifyDisconnect,
    /// `Disconnect`.
    Disconnect {
        /// When this end stops waiting for the peer's answer.
        deadline: Instant,
    },
    /// `CancelOverlappedRequests`, or the drop of a `connect()` future.
    ///
    /// A connection that is established survives it. The drop of a future that owns the connection, such as
    /// `accept()` or `complete()`, is therefore a [`Release`](Self::Release): it must not leak the connection.
    Cancel,
    /// The last reference is gone.
    Release,

    /// The local address is reserved.
    Bound,
    /// The peer accepted the request.
    PeerAccepted(Terms),
    /// The second half of the handshake is out.
    CompleteDone,
    /// The active side carried out CompleteConnect.
    PeerCompleted,
    /// The peer answered the disconnect, and all accesses to memory of the queue pair have ended.
    DisconnectAnswered,
    /// The queue pair is gone.
    QueuePairRemoved,
    /// The adapter is gone.
    DeviceRemoved,
    /// The peer was lost, or could not be reached.
    Lost {
        loss: Loss,
        /// The cause, if it is known.
        reason: Option<Reason>,
        /// The error of the attempt of Connect, if a step of it has failed at this end.
        error: Option<Box<ConnectError>>,
    },
}

impl Input {
    /// Returns the name of the call or the report.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Bind => "Bind",
            Self::Connect { .. } => "Connect",
            Self::CompleteConnect => "CompleteConnect",
            Self::Accept { .. } => "Accept",
            Self::Reject { .. } => "Reject",
            Self::NotifyDisconnect => "NotifyDisconnect",
            Self::Disconnect { .. } => "Disconnect",
            Self::Cancel => "CancelOverlappedRequests",
            Self::Release => "Release",
            Self::Bound => "bound",
            Self::PeerAccepted(_) => "the peer has accepted",
            Self::CompleteDone => "completed",
            Self::PeerCompleted => "the peer has completed",
            Self::DisconnectAnswered => "the disconnect is over",
            Self::QueuePairRemoved => "the queue pair was dropped",
            Self::DeviceRemoved => "the adapter was removed",
            Self::Lost { loss: Loss::Disconnected, .. } => "the peer has disconnected",
            Self::Lost { .. } => "the peer was lost",
        }
    }
}

/// The ways to lose the peer, or never to get it.
#[derive(Clone, Debug)]
pub(crate) enum Loss {
    /// The local address cannot be bound, by Bind or within a connect.
    Unbound(Status),
    /// There is no way to the peer.
    Unreachable {
        /// There is no route to its network, rather than no host there.
        network: bool,
    },
    /// There is no listener, its backlog is full, or the peer said no, as Reject and Release do: with the private data of a
    /// reject, if the wire carries it.
    Refused(Option<PrivateData>),
    /// The peer vanished during the handshake, without a message.
    GaveUp,
    /// The peer disconnected.
    Disconnected,
    /// The transport broke, or is given up as broken. The status is that of the outstanding requests. Without one there
    /// is no connection that was lost: it is not established yet, or about to end.
    Path(Option<Status>),
    /// The caller's deadline passed, or a timer of the provider for this phase ran out.
    TimedOut,
    /// Any other failure.
    Failed(Status),
}

impl Input {
    /// Reports a loss, with its cause.
    pub(crate) fn lost(loss: Loss, reason: impl Into<Option<Reason>>) -> Self {
        Self::Lost { loss, reason: reason.into(), error: None }
    }

    /// Reports the failure of an attempt of Connect, whose caller gets this error.
    pub(crate) fn failed(error: ConnectError, reason: Option<Reason>) -> Self {
        let loss = match &error {
            ConnectError::NetworkUnreachable { .. } => Loss::Unreachable { network: true },
            ConnectError::HostUnreachable { .. } => Loss::Unreachable { network: false },
            ConnectError::TimedOut { .. } => Loss::TimedOut,
            ConnectError::Refused { .. } => Loss::Refused(None),
            ConnectError::Rejected { private_data, .. } => Loss::Refused(private_data.clone()),
            ConnectError::Bind(_) | ConnectError::NotSupported(_) => Loss::Unbound(error.status()),
            other => Loss::Failed(other.status()),
        };
        Self::Lost { loss, reason, error: Some(Box::new(error)) }
    }
}

impl From<ConnectError> for Input {
    fn from(error: ConnectError) -> Self {
        let reason = error.reason();
        Self::failed(error, reason)
    }
}

/// The reason of a failure of which none is known.
const UNKNOWN: Reason = Reason::Local("no reason was given");

/// The failure of a call.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// Boxed, so that the answers to calls that succeed are small to move.
    detail: Option<Box<Detail>>,
}

/// What is known of a failure besides its status.
#[derive(Clone, Debug)]
struct Detail {
    /// The cause, as it was reported.
    reason: Option<Reason>,
    /// The error itself, if it says more: that of an attempt of Connect of which a step has failed at this end, or the
    /// lengths of private data that is too long.
    error: Option<Box<ConnectError>>,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, detail: None }
    }
}

impl Failure {
    fn new(status: Status, reason: Option<Reason>, error: Option<Box<ConnectError>>) -> Self {
        let is_known = reason.is_some() || error.is_some();
        Self { status, detail: is_known.then(|| Box::new(Detail { reason, error })) }
    }

    /// Returns the cause, if it is known.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.detail.as_ref()?.reason
    }

    /// Checks the length of the private data of a call.
    fn check_length(length: usize, maximum: usize) -> Result<(), Self> {
        if length <= maximum {
            return Ok(());
        }
        let error = ConnectError::InvalidBufferSize { length, maximum };
        Err(Self::new(error.status(), None, Some(Box::new(error))))
    }

    /// Returns the cause, for the errors that have one.
    fn cause(&self) -> Reason {
        self.reason().unwrap_or(UNKNOWN)
    }

    /// Returns the error of a connect to `peer`.
    pub(crate) fn connect_error(self, peer: SocketAddr) -> ConnectError {
        let (status, reason) = (self.status, self.cause());
        if let Some(error) = self.detail.and_then(|detail| detail.error) {
            return *error;
        }
        match status {
            Status::CANCELED if reason == Reason::RUNTIME_ENDED => {
                ConnectError::Other { peer, status, reason }
            }
            Status::CONNECTION_REFUSED => ConnectError::Refused { peer, reason },
            Status::NETWORK_UNREACHABLE => ConnectError::NetworkUnreachable { peer },
            Status::HOST_UNREACHABLE => ConnectError::HostUnreachable { peer },
            Status::IO_TIMEOUT => ConnectError::TimedOut { peer, limit: None },
            Status::CONNECTION_ACTIVE => ConnectError::Active,
            Status::CONNECTION_INVALID => ConnectError::Invalid,
            Status::CANCELED => ConnectError::Canceled,
            Status::CONNECTION_ABORTED => ConnectError::Aborted { peer, reason },
            Status::DEVICE_REMOVED => ConnectError::DeviceRemoved,
            status => ConnectError::Other { peer, status, reason },
        }
    }

    /// Returns the error of an accept of a request of `peer`. `private_data` is that of the peer's reject.
    pub(crate) fn accept_error(self, peer: SocketAddr, private_data: Option<PrivateData>) -> AcceptError {
        let (status, reason) = (self.status, self.cause());
        let error = self.detail.and_then(|detail| detail.error);
        if let Some(&ConnectError::InvalidBufferSize { length, maximum }) = error.as_deref() {
            return AcceptError::InvalidBufferSize { length, maximum };
        }
        match status {
            Status::CANCELED if reason == Reason::RUNTIME_ENDED => {
                AcceptError::Other { peer, status, reason }
            }
            Status::CONNECTION_REFUSED => AcceptError::Refused { peer, private_data, reason },
            Status::CONNECTION_ABORTED => AcceptError::Aborted { peer, reason },
            Status::IO_TIMEOUT => AcceptError::TimedOut { peer },
            Status::CONNECTION_ACTIVE => AcceptError::Active,
            Status::CANCELED => AcceptError::Canceled,
            Status::DEVICE_REMOVED => AcceptError::DeviceRemoved,
            status => AcceptError::Other { peer, status, reason },
        }
    }
}

/// An action of the provider. Actions are carried out in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Answer the pending call with this status. [`Actions::answer`] returns the whole answer.
    Finish { op: Op, status: Status },
    /// Reserve the local address, report [`Input::Bound`] or [`Loss::Unbound`] before anything else.
    StartBind,
    /// Send the request; bind implicitly when there is no local address.
    StartConnect,
    /// Carry out the second half of the handshake.
    StartComplete,
    /// Send the reply.
    StartAccept,
    /// Send the disconnect, wait for the peer's answer and for the end of all memory accesses.
    StartDisconnect,
    /// Let the transport go, saying no: with the data of the Reject that was called, if it was.
    RefusePeer,
    /// Let the transport of a connection go: send the disconnect, and do not wait for the peer's answer.
    Leave,
    /// Let the transport go at once, without a message: there is no peer, or the peer needs none.
    Abandon,
    /// Finish every outstanding work request of the queue pair as CANCELED.
    Flush,
}

/// The actions that one input leads to. The actions own nothing and the list has a fixed size, because every step moves and
/// drops one.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    list: [Option<Action>; Self::MOST],
    /// The detail of the failure with which the last action answers a call.
    detail: Option<Box<Detail>>,
}

impl Actions {
    /// Finishing NotifyDisconnect, flushing, and ending the transport; or ending the transport, flushing, and finishing a call.
    const MOST: usize = 3;

    /// Returns no actions.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds an action behind the others.
    fn push(&mut self, action: Action) {
        let place = self.list.iter_mut().find(|place| place.is_none());
        debug_assert!(place.is_some(), "more actions than a step has");
        if let Some(place) = place {
            *place = Some(action);
        }
    }

    /// Adds the last action: answering the call with this failure.
    fn finish(mut self, op: Op, Failure { status, detail }: Failure) -> Self {
        self.push(Action::Finish { op, status });
        self.detail = detail;
        self
    }

    /// Returns the actions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Action> + use<> {
        self.list.into_iter().flatten()
    }

    /// Returns the answer of an action that finishes a call with this status.
    ///
    /// # Errors
    /// The failure, for any status but `SUCCESS`.
    pub(crate) fn answer(&mut self, status: Status) -> Result<(), Failure> {
        if status == Status::SUCCESS { Ok(()) } else { Err(Failure { status, detail: self.detail.take() }) }
    }
}

impl<const COUNT: usize> From<[Action; COUNT]> for Actions {
    fn from(actions: [Action; COUNT]) -> Self {
        actions.into_iter().collect()
    }
}

impl FromIterator<Action> for Actions {
    fn from_iter<T: IntoIterator<Item = Action>>(actions: T) -> Self {
        let mut list = Self::new();
        actions.into_iter().for_each(|action| list.push(action));
        list
    }
}

/// One connector.
#[derive(Debug)]
pub(crate) struct Connector {
    phase: Phase,
    /// Bind succeeded: a connect that failed comes back to `Bound` rather than `Idle`.
    bound: bool,
    /// The peer's terms; kept only while they may be read.
    terms: Option<Terms>,
    /// The private data of the peer's reject. In a box, as is what else most connectors never have.
    refusal: Option<Box<PrivateData>>,
    /// The caller's deadline, in `Connecting` and `Disconnecting`.
    deadline: Option<Instant>,
    /// At least one NotifyDisconnect is outstanding.
    watched: bool,
    /// The failure of the next call. In `ConnectDone` and `RequestPending`: the peer is gone and so is the
    /// transport. In `Dead`: the failure of CompleteConnect, or that the device was removed.
    fate: Option<Box<Failure>>,
    /// The first cause of the end of the connection.
    ending: Option<DisconnectReason>,
    /// The status and the cause of its loss, also after this end had begun to disconnect. In a box, because most are not lost.
    loss: Option<Box<(Status, Reason)>>,
}

impl Connector {
    /// Creates a connector in `Idle`.
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            bound: false,
            terms: None,
            refusal: None,
            deadline: None,
            watched: false,
            fate: None,
            ending: None,
            loss: None,
        }
    }

    /// Creates a connector in `RequestPending`, for a request that has arrived with these terms.
    pub(crate) fn with_request(terms: Terms) -> Self {
        Self { phase: Phase::RequestPending, terms: Some(terms), ..Self::new() }
    }

    /// Returns the phase.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the cause of the end of the connection; `None` while it lasts and when there never was one.
    pub(crate) fn ending(&self) -> Option<&DisconnectReason> {
        self.ending.as_ref()
    }

    /// Returns the status and the cause of the loss of the connection, if it was lost before both ends had agreed to its end.
    pub(crate) fn loss(&self) -> Option<(Status, Reason)> {
        self.loss.as_deref().copied()
    }

    /// Records the loss of the connection. The first cause stays the reason of its end. A provider calls this by itself if
    /// the loss ends no call yet.
    pub(crate) fn note_loss(&mut self, status: Status, reason: Reason) {
        self.loss.get_or_insert_with(|| Box::new((status, reason)));
        self.ending.get_or_insert(DisconnectReason::Lost { status, reason });
    }

    /// Takes one call or report. Only a call, or the failed bind that answers one, gets an `Err`.
    ///
    /// # Errors
    /// The call was not accepted. The state is as it was, except after a call that found the peer gone, which
    /// burns the connector.
    pub(crate) fn handle(&mut self, input: Input) -> Result<Actions, Failure> {
        if input.needs_device()
            && let Some(failure) = &self.fate
            && failure.status == Status::DEVICE_REMOVED
        {
            return Err(Failure::clone(failure));
        }
        Ok(match input {
            Input::Bind => self.bind()?,
            Input::Connect { data, max_data, busy, deadline, overdue } => {
                self.connect(Failure::check_length(data, max_data), busy, deadline, overdue)?
            }
            Input::CompleteConnect => self.complete_connect()?,
            Input::Accept { data, max_data, busy } => {
                self.accept(Failure::check_length(data, max_data), busy)?
            }
            Input::Reject { data, max_data } => self.reject(Failure::check_length(data, max_data))?,
            Input::NotifyDisconnect => self.notify_disconnect()?,
            Input::Disconnect { deadline } => self.disconnect(deadline)?,
            Input::Cancel => self.cancel(),
            Input::Release => self.release(),

            Input::Bound => self.bound(),
            Input::PeerAccepted(terms) => self.peer_accepted(terms),
            Input::CompleteDone => self.establish(Phase::Completing, Op::CompleteConnect),
            Input::PeerCompleted => self.establish(Phase::Accepting, Op::Accept),
            Input::DisconnectAnswered => self.disconnect_answered(),
            Input::QueuePairRemoved => self.queue_pair_removed(),
            Input::DeviceRemoved => self.device_removed(Status::DEVICE_REMOVED.into()),
            Input::Lost { loss: Loss::Failed(status @ Status::DEVICE_REMOVED), reason, error } => {
                self.device_removed(Failure::new(status, reason, error))
            }
            Input::Lost { loss: Loss::Unbound(status), error, .. } => self.unbound(status, error)?,
            Input::Lost { loss, reason, error } => self.lost(loss, reason, error),
        })
    }

    /// Returns the caller's deadline. The provider reports [`Input::TimedOut`] when it passes.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the negotiated read limits, while CompleteConnect, or Accept or Reject, is owed.
    ///
    /// # Errors
    /// `CONNECTION_INVALID` at any other moment.
    pub(crate) fn read_limits(&self) -> Result<ReadLimits, StateError> {
        self.terms.as_ref().map(|terms| terms.limits).ok_or(StateError::ConnectionInvalid)
    }

    /// Returns the peer's private data: while [`read_limits`](Self::read_limits) returns limits, and after a
    /// refusal that came with private data.
    ///
    /// # Errors
    /// `CONNECTION_INVALID` at any other moment.
    pub(crate) fn private_data(&self) -> Result<&PrivateData, StateError> {
        let terms = self.terms.as_ref().map(|terms| &terms.private_data);
        terms.or(self.refusal.as_deref()).ok_or(StateError::ConnectionInvalid)
    }

    /// Checks that `GetLocalAddress` is valid in this state: connecting or connected.
    ///
    /// # Errors
    /// `CONNECTION_INVALID` at any other moment.
    pub(crate) fn local_address_ready(&self) -> Result<(), StateError> {
        if self.phase == Phase::Connecting { Ok(()) } else { self.peer_address_ready() }
    }

    /// Checks that `GetPeerAddress` is valid in this state: from the first message of the peer to the end of
    /// the connection.
    ///
    /// # Errors
    /// `CONNECTION_INVALID` at any other moment.
    pub(crate) fn peer_address_ready(&self) -> Result<(), StateError> {
        match self.phase {
            Phase::ConnectDone
            | Phase::Completing
            | Phase::Connected
            | Phase::PeerGone
            | Phase::Disconnecting
            | Phase::RequestPending
            | Phase::Accepting => Ok(()),
            Phase::Idle | Phase::Bound | Phase::Connecting | Phase::Disconnected | Phase::Dead => {
                Err(StateError::ConnectionInvalid)
            }
        }
    }

    /// Enters a state and clears all that was valid in the state before alone; the caller then sets what is valid now.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.terms = None;
        self.deadline = None;
        self.fate = None;
    }

    /// Returns the action that finishes every outstanding NotifyDisconnect; `None` if there is none.
    fn tell(&mut self, status: Status) -> Option<Action> {
        std::mem::take(&mut self.watched).then_some(Action::Finish { op: Op::NotifyDisconnect, status })
    }
}

impl Input {
    /// Returns whether this is a call that has no answer but `DEVICE_REMOVED` once the device is gone: all
    /// but cleanup.
    fn needs_device(&self) -> bool {
        matches!(
            self,
            Self::Bind
                | Self::Connect { .. }
                | Self::CompleteConnect
                | Self::Accept { .. }
                | Self::Reject { .. }
                | Self::NotifyDisconnect
                | Self::Disconnect { .. }
        )
    }
}

#[cfg(feature = "inspect")]
impl From<Phase> for ConnectionState {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Idle => Self::Idle,
            Phase::Bound => Self::Bound,
            Phase::Connecting => Self::Connecting,
            Phase::ConnectDone => Self::Replied,
            Phase::Completing => Self::Completing,
            Phase::RequestPending => Self::Requested,
            Phase::Accepting => Self::Accepting,
            Phase::Connected => Self::Connected,
            Phase::PeerGone => Self::PeerGone,
            Phase::Disconnecting => Self::Disconnecting,
            Phase::Disconnected => Self::Disconnected,
            Phase::Dead => Self::Dead,
        }
    }
}
