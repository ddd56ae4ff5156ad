//! The state table as data: every scene with every kind of input, and the row of the specification it follows.
//!
//! A line without rows is a pair that the specification does not list; it is `ignored`, or names the inline error
//! that a call gets. A1 to A26 are the active side, P5 to P18 the passive one, C1 to C16 both.

use super::Kind::{self, *};
use super::Scene::{self, *};
use crate::proto::connector::Action::{self, *};
use crate::proto::connector::{Op, State};
use crate::status::Status as S;

/// The effect of a group of inputs in one scene.
#[derive(Clone, Copy)]
pub(super) struct Line {
    /// The rows it follows, separated by spaces.
    pub(super) rows: &'static str,
    pub(super) inputs: &'static [Kind],
    /// `None` when the state does not change.
    pub(super) next: Option<State>,
    pub(super) answer: Result<&'static [Action], S>,
}

/// Expects that the input is accepted and moves the machine.
const fn goes(rows: &'static str, inputs: &'static [Kind], next: State, actions: &'static [Action]) -> Line {
    Line { rows, inputs, next: Some(next), answer: Ok(actions) }
}

/// Expects that the input is accepted and the state stays.
const fn stays(rows: &'static str, inputs: &'static [Kind], actions: &'static [Action]) -> Line {
    Line { rows, inputs, next: None, answer: Ok(actions) }
}

/// Expects that the call is not accepted and the state stays.
const fn errs(rows: &'static str, inputs: &'static [Kind], status: S) -> Line {
    Line { rows, inputs, next: None, answer: Err(status) }
}

/// Expects that the call is not accepted and burns the connector.
const fn burns(rows: &'static str, inputs: &'static [Kind], status: S) -> Line {
    Line { rows, inputs, next: Some(State::Dead), answer: Err(status) }
}

/// Expects no effect, of inputs that the specification does not list in this scene.
const fn ignored(inputs: &'static [Kind]) -> Line {
    Line { rows: "", inputs, next: None, answer: Ok(&[]) }
}

const fn connect(status: S) -> Action {
    Finish { op: Op::Connect, status }
}
const fn complete(status: S) -> Action {
    Finish { op: Op::CompleteConnect, status }
}
const fn accept(status: S) -> Action {
    Finish { op: Op::Accept, status }
}
const fn notify(status: S) -> Action {
    Finish { op: Op::NotifyDisconnect, status }
}
const fn disconnect(status: S) -> Action {
    Finish { op: Op::Disconnect, status }
}

/// Connect in each of its variants.
const CONNECTS: [Kind; 4] = [Connect, ConnectTooLong, ConnectBusy, ConnectLate];
/// Accept and Reject in each of their variants.
const ANSWERS: [Kind; 5] = [Accept, AcceptTooLong, AcceptBusy, Reject, RejectTooLong];

/// The whole table.
pub(super) const TABLE: &[(Scene, &[Line])] = &[
    (
        Idle,
        &[
            stays("A1", &[Bind], &[StartBind]),
            goes("A1", &[BoundOk], State::Bound, &[]),
            errs("A2", &[BindFailed], S::SHARING_VIOLATION),
            burns("", &[BindCanceled], S::CANCELED),
            goes("A4", &[Connect], State::Connecting, &[StartConnect]),
            errs("A5", &[ConnectTooLong], S::INVALID_BUFFER_SIZE),
            errs("A6", &[ConnectBusy], S::CONNECTION_ACTIVE),
            stays("A12", &[ConnectLate], &[connect(S::IO_TIMEOUT)]),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("C11", &[Disconnect], S::CONNECTION_INVALID),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[]),
            goes("", &[Release], State::Dead, &[]),
            ignored(&[Cancel, UnreachableNetwork, UnreachableHost, Refused, RefusedData, PeerAccepted]),
            ignored(&[CompleteDone, PeerCompleted]),
            ignored(&[PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[DisconnectAnswered, QueuePairRemoved, TimedOut, Failed, FailedRetryable]),
        ],
    ),
    (
        Bound,
        &[
            errs("A3", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            goes("A4", &[Connect], State::Connecting, &[StartConnect]),
            errs("A5", &[ConnectTooLong], S::INVALID_BUFFER_SIZE),
            errs("A6", &[ConnectBusy], S::CONNECTION_ACTIVE),
            stays("A12", &[ConnectLate], &[connect(S::IO_TIMEOUT)]),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Disconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[]),
            goes("", &[Release], State::Dead, &[]),
            ignored(&[Cancel, UnreachableNetwork, UnreachableHost, Refused, RefusedData, PeerAccepted]),
            ignored(&[CompleteDone, PeerCompleted]),
            ignored(&[PeerRejected, PeerGaveUp, PeerDisconnected, PathLost, BoundOk]),
            ignored(&[DisconnectAnswered, QueuePairRemoved, TimedOut, Failed, FailedRetryable]),
            ignored(&[BindFailed, BindCanceled]),
        ],
    ),
    (
        Connecting,
        &[
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            goes("A7", &[UnreachableNetwork], State::Idle, &[Abandon, connect(S::NETWORK_UNREACHABLE)]),
            goes("A8", &[UnreachableHost], State::Idle, &[Abandon, connect(S::HOST_UNREACHABLE)]),
            goes("A9", &[Refused], State::Idle, &[Abandon, connect(S::CONNECTION_REFUSED)]),
            goes(
                "A10",
                &[RefusedData, PeerRejected],
                State::Idle,
                &[Abandon, connect(S::CONNECTION_REFUSED)],
            ),
            goes(
                "A11",
                &[PeerGaveUp, PeerDisconnected],
                State::Idle,
                &[Abandon, connect(S::CONNECTION_REFUSED)],
            ),
            goes("A12", &[TimedOut], State::Idle, &[RefusePeer, connect(S::IO_TIMEOUT)]),
            goes("A12", &[PathLost], State::Idle, &[Abandon, connect(S::IO_TIMEOUT)]),
            goes("A8", &[FailedRetryable], State::Idle, &[RefusePeer, connect(S::HOST_UNREACHABLE)]),
            goes("A13", &[Cancel, Release], State::Dead, &[RefusePeer, connect(S::CANCELED)]),
            goes("A14", &[QueuePairRemoved], State::Dead, &[RefusePeer, connect(S::CANCELED)]),
            goes(
                "A15 C15",
                &[DeviceRemoved, FailedRemoved],
                State::Dead,
                &[Abandon, connect(S::DEVICE_REMOVED)],
            ),
            goes("A16", &[PeerAccepted], State::ConnectDone, &[connect(S::SUCCESS)]),
            goes("A2", &[BindFailed], State::Idle, &[Abandon, connect(S::SHARING_VIOLATION)]),
            goes("", &[BindCanceled], State::Dead, &[Abandon, connect(S::CANCELED)]),
            goes("", &[Failed], State::Dead, &[RefusePeer, connect(S::UNSUCCESSFUL)]),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Disconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
        ],
    ),
    (
        ConnectingBound,
        &[
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            goes("A7", &[UnreachableNetwork], State::Bound, &[Abandon, connect(S::NETWORK_UNREACHABLE)]),
            goes("A8", &[UnreachableHost], State::Bound, &[Abandon, connect(S::HOST_UNREACHABLE)]),
            goes("A9", &[Refused], State::Bound, &[Abandon, connect(S::CONNECTION_REFUSED)]),
            goes(
                "A10",
                &[RefusedData, PeerRejected],
                State::Bound,
                &[Abandon, connect(S::CONNECTION_REFUSED)],
            ),
            goes(
                "A11",
                &[PeerGaveUp, PeerDisconnected],
                State::Bound,
                &[Abandon, connect(S::CONNECTION_REFUSED)],
            ),
            goes("A12", &[TimedOut], State::Bound, &[RefusePeer, connect(S::IO_TIMEOUT)]),
            goes("A12", &[PathLost], State::Bound, &[Abandon, connect(S::IO_TIMEOUT)]),
            goes("A8", &[FailedRetryable], State::Bound, &[RefusePeer, connect(S::HOST_UNREACHABLE)]),
            goes("A13", &[Cancel, Release], State::Dead, &[RefusePeer, connect(S::CANCELED)]),
            goes("A14", &[QueuePairRemoved], State::Dead, &[RefusePeer, connect(S::CANCELED)]),
            goes(
                "A15 C15",
                &[DeviceRemoved, FailedRemoved],
                State::Dead,
                &[Abandon, connect(S::DEVICE_REMOVED)],
            ),
            goes("A16", &[PeerAccepted], State::ConnectDone, &[connect(S::SUCCESS)]),
            goes("A2", &[BindFailed], State::Bound, &[Abandon, connect(S::SHARING_VIOLATION)]),
            goes("", &[BindCanceled], State::Dead, &[Abandon, connect(S::CANCELED)]),
            goes("", &[Failed], State::Dead, &[RefusePeer, connect(S::UNSUCCESSFUL)]),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Disconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
        ],
    ),
    (
        ConnectDone,
        &[
            goes("A18", &[CompleteConnect], State::Completing, &[StartComplete]),
            goes("A19", &[Reject], State::Dead, &[RefusePeer]),
            errs("", &[RejectTooLong], S::INVALID_BUFFER_SIZE),
            goes("A20", &[Cancel, Release], State::Dead, &[RefusePeer]),
            goes("A21", &[TimedOut], State::Dead, &[RefusePeer]),
            errs("A22", &[Disconnect], S::CONNECTION_INVALID),
            stays("A23", &[Refused, RefusedData, PeerRejected, PeerGaveUp], &[Abandon]),
            stays("A23", &[PeerDisconnected], &[Leave]),
            stays("A23", &[PathLost, UnreachableNetwork, UnreachableHost], &[Abandon]),
            stays("A23", &[Failed, FailedRetryable], &[RefusePeer]),
            goes("", &[QueuePairRemoved], State::Dead, &[RefusePeer]),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Accept, AcceptTooLong, AcceptBusy], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
        ],
    ),
    (
        ConnectDoneAlone,
        &[
            burns("A23", &[CompleteConnect], S::CONNECTION_ABORTED),
            burns("", &[Reject], S::CONNECTION_ABORTED),
            errs("", &[RejectTooLong], S::INVALID_BUFFER_SIZE),
            goes("A20", &[Cancel, Release], State::Dead, &[]),
            goes("A21", &[TimedOut], State::Dead, &[]),
            errs("A22", &[Disconnect], S::CONNECTION_INVALID),
            goes("", &[QueuePairRemoved], State::Dead, &[]),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Accept, AcceptTooLong, AcceptBusy], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable]),
        ],
    ),
    (
        Completing,
        &[
            goes("A24", &[CompleteDone], State::Connected, &[complete(S::SUCCESS)]),
            goes("A25", &[TimedOut], State::Dead, &[RefusePeer, Flush, complete(S::IO_TIMEOUT)]),
            goes(
                "A25",
                &[UnreachableNetwork, UnreachableHost],
                State::Dead,
                &[Abandon, Flush, complete(S::IO_TIMEOUT)],
            ),
            goes(
                "A25",
                &[Refused, RefusedData, PeerRejected, PeerGaveUp, PathLost],
                State::Dead,
                &[Abandon, Flush, complete(S::CONNECTION_ABORTED)],
            ),
            goes("A25", &[PeerDisconnected], State::Dead, &[Leave, Flush, complete(S::CONNECTION_ABORTED)]),
            goes(
                "A25",
                &[Cancel, Release, QueuePairRemoved],
                State::Dead,
                &[RefusePeer, Flush, complete(S::CANCELED)],
            ),
            goes(
                "A25 C15",
                &[DeviceRemoved, FailedRemoved],
                State::Dead,
                &[Abandon, Flush, complete(S::DEVICE_REMOVED)],
            ),
            goes("A25", &[Failed], State::Dead, &[RefusePeer, Flush, complete(S::UNSUCCESSFUL)]),
            goes("A25", &[FailedRetryable], State::Dead, &[RefusePeer, Flush, complete(S::HOST_UNREACHABLE)]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect, Disconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
        ],
    ),
    (
        Connected,
        &[
            stays("C1", &[NotifyDisconnect], &[]),
            goes("C2", &[PeerDisconnected], State::PeerGone, &[Flush]),
            goes(
                "C3",
                &[PathLost, PeerGaveUp, PeerRejected, Refused, RefusedData],
                State::PeerGone,
                &[Flush],
            ),
            goes("C3", &[TimedOut, UnreachableNetwork, UnreachableHost], State::PeerGone, &[Flush]),
            goes("C3", &[Failed, FailedRetryable], State::PeerGone, &[Flush]),
            goes("C4", &[Disconnect], State::Disconnecting, &[Flush, StartDisconnect]),
            goes("C13", &[Release], State::Dead, &[Flush, Leave]),
            goes("C13", &[QueuePairRemoved], State::Disconnected, &[Flush, Leave]),
            stays("C14", &[Cancel], &[]),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[Flush, Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
        ],
    ),
    (
        ConnectedWatched,
        &[
            stays("C1", &[NotifyDisconnect], &[]),
            goes("C2", &[PeerDisconnected], State::PeerGone, &[notify(S::SUCCESS), Flush]),
            goes(
                "C3",
                &[PathLost, PeerGaveUp, PeerRejected, Refused, RefusedData],
                State::PeerGone,
                &[notify(S::SUCCESS), Flush],
            ),
            goes(
                "C3",
                &[TimedOut, UnreachableNetwork, UnreachableHost],
                State::PeerGone,
                &[notify(S::SUCCESS), Flush],
            ),
            goes("C3", &[Failed, FailedRetryable], State::PeerGone, &[notify(S::SUCCESS), Flush]),
            goes("C4", &[Disconnect], State::Disconnecting, &[notify(S::SUCCESS), Flush, StartDisconnect]),
            goes("C13", &[Release], State::Dead, &[notify(S::CANCELED), Flush, Leave]),
            goes("C13", &[QueuePairRemoved], State::Disconnected, &[notify(S::SUCCESS), Flush, Leave]),
            stays("C14", &[Cancel], &[notify(S::CANCELED)]),
            goes(
                "C15",
                &[DeviceRemoved, FailedRemoved],
                State::Dead,
                &[notify(S::DEVICE_REMOVED), Flush, Abandon],
            ),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
        ],
    ),
    (
        PeerGone,
        &[
            goes("C5", &[Disconnect], State::Disconnecting, &[StartDisconnect]),
            stays("C6", &[NotifyDisconnect], &[notify(S::SUCCESS)]),
            goes("", &[Release], State::Dead, &[Leave]),
            goes("", &[QueuePairRemoved], State::Disconnected, &[Leave]),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut, Cancel]),
        ],
    ),
    (
        Disconnecting,
        &[
            goes("C7", &[DisconnectAnswered], State::Disconnected, &[Abandon, disconnect(S::SUCCESS)]),
            goes("C8", &[TimedOut, PathLost], State::Disconnected, &[Abandon, disconnect(S::IO_TIMEOUT)]),
            goes(
                "C8",
                &[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable],
                State::Disconnected,
                &[Abandon, disconnect(S::IO_TIMEOUT)],
            ),
            goes("C9", &[PeerDisconnected], State::Disconnected, &[Abandon, disconnect(S::SUCCESS)]),
            goes(
                "C9",
                &[PeerGaveUp, PeerRejected, Refused, RefusedData],
                State::Disconnected,
                &[Abandon, disconnect(S::SUCCESS)],
            ),
            goes("C10", &[Cancel], State::Disconnected, &[Abandon, disconnect(S::CANCELED)]),
            goes("C10", &[QueuePairRemoved], State::Disconnected, &[Leave, disconnect(S::CANCELED)]),
            goes("", &[Release], State::Dead, &[Leave, disconnect(S::CANCELED)]),
            goes(
                "C15",
                &[DeviceRemoved, FailedRemoved],
                State::Dead,
                &[Abandon, disconnect(S::DEVICE_REMOVED)],
            ),
            stays("", &[NotifyDisconnect], &[notify(S::SUCCESS)]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &[Disconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted]),
        ],
    ),
    (
        Disconnected,
        &[
            errs("C11", &[Disconnect], S::CONNECTION_INVALID),
            errs("A6 C16", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("C16", &[Bind], S::INVALID_DEVICE_STATE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            stays("", &[NotifyDisconnect], &[notify(S::SUCCESS)]),
            stays("C9", &[PeerDisconnected], &[]),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[]),
            goes("", &[Release], State::Dead, &[]),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PathLost, QueuePairRemoved]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut, Cancel]),
        ],
    ),
    (
        RequestPending,
        &[
            errs("P6", &[AcceptTooLong], S::INVALID_BUFFER_SIZE),
            goes("P7", &[Accept], State::Accepting, &[StartAccept]),
            errs("P8", &[AcceptBusy], S::CONNECTION_ACTIVE),
            goes("P9", &[Reject], State::Dead, &[RefusePeer]),
            errs("", &[RejectTooLong], S::INVALID_BUFFER_SIZE),
            stays("P10", &[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected], &[Abandon]),
            stays("P10", &[PathLost, UnreachableNetwork, UnreachableHost], &[Abandon]),
            stays("P10", &[TimedOut, Failed, FailedRetryable], &[RefusePeer]),
            goes("P11", &[Release], State::Dead, &[RefusePeer]),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect, Disconnect], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Cancel, QueuePairRemoved]),
        ],
    ),
    (
        RequestAlone,
        &[
            errs("P6", &[AcceptTooLong], S::INVALID_BUFFER_SIZE),
            errs("P8", &[AcceptBusy], S::CONNECTION_ACTIVE),
            burns("P10", &[Accept, Reject], S::CONNECTION_ABORTED),
            errs("", &[RejectTooLong], S::INVALID_BUFFER_SIZE),
            goes("P11", &[Release], State::Dead, &[]),
            goes("C15", &[DeviceRemoved, FailedRemoved], State::Dead, &[]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect, Disconnect], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Cancel, QueuePairRemoved]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut]),
        ],
    ),
    (
        Accepting,
        &[
            goes("P13", &[PeerCompleted], State::Connected, &[accept(S::SUCCESS)]),
            goes(
                "P14 P18",
                &[PeerRejected, Refused, RefusedData],
                State::Dead,
                &[Abandon, accept(S::CONNECTION_REFUSED)],
            ),
            goes("P14 P18", &[PeerGaveUp, PathLost], State::Dead, &[Abandon, accept(S::CONNECTION_ABORTED)]),
            goes("P14 P18", &[PeerDisconnected], State::Dead, &[Leave, accept(S::CONNECTION_ABORTED)]),
            goes("P15 P18", &[TimedOut], State::Dead, &[RefusePeer, accept(S::IO_TIMEOUT)]),
            goes(
                "P15 P18",
                &[UnreachableNetwork, UnreachableHost],
                State::Dead,
                &[Abandon, accept(S::IO_TIMEOUT)],
            ),
            goes(
                "P16 P18",
                &[Cancel, Release, QueuePairRemoved],
                State::Dead,
                &[RefusePeer, accept(S::CANCELED)],
            ),
            goes(
                "P17 C15",
                &[DeviceRemoved, FailedRemoved],
                State::Dead,
                &[Abandon, accept(S::DEVICE_REMOVED)],
            ),
            goes("P18", &[Failed], State::Dead, &[RefusePeer, accept(S::UNSUCCESSFUL)]),
            goes("P18", &[FailedRetryable], State::Dead, &[RefusePeer, accept(S::HOST_UNREACHABLE)]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect, Disconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[DisconnectAnswered]),
        ],
    ),
    (
        Dead,
        &[
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("C11", &[Disconnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::INVALID_DEVICE_STATE),
            stays("C15", &[DeviceRemoved, FailedRemoved], &[]),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut]),
            ignored(&[Cancel, Release, QueuePairRemoved]),
        ],
    ),
    (
        DeadIdleTooLong,
        &[
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A21", &[CompleteConnect], S::IO_TIMEOUT),
            errs("C11", &[Disconnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::INVALID_DEVICE_STATE),
            stays("C15", &[DeviceRemoved, FailedRemoved], &[]),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut]),
            ignored(&[Cancel, Release, QueuePairRemoved]),
        ],
    ),
    (
        DeadRemoved,
        &[
            errs("C15", &CONNECTS, S::DEVICE_REMOVED),
            errs("C15", &ANSWERS, S::DEVICE_REMOVED),
            errs("C15", &[Bind, CompleteConnect, Disconnect, NotifyDisconnect], S::DEVICE_REMOVED),
            stays("C15", &[DeviceRemoved, FailedRemoved, Cancel, Release], &[]),
            ignored(&[BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone]),
            ignored(&[PeerCompleted, DisconnectAnswered]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut]),
            ignored(&[QueuePairRemoved]),
        ],
    ),
];

/// The queries: which of read limits, private data, local address and peer address a scene has.
pub(super) const QUERIES: &[(&str, Scene, [bool; 4])] = &[
    ("", Idle, [false; 4]),
    ("", Bound, [false; 4]),
    ("", Connecting, [false, false, true, false]),
    ("", ConnectingBound, [false, false, true, false]),
    ("A17", ConnectDone, [true; 4]),
    ("A17", ConnectDoneAlone, [true; 4]),
    ("", Completing, [false, false, true, true]),
    ("", Connected, [false, false, true, true]),
    ("", ConnectedWatched, [false, false, true, true]),
    ("", PeerGone, [false, false, true, true]),
    ("", Disconnecting, [false, false, true, true]),
    ("", Disconnected, [false; 4]),
    ("P5", RequestPending, [true; 4]),
    ("P5", RequestAlone, [true; 4]),
    ("", Accepting, [false, false, true, true]),
    ("", Dead, [false; 4]),
    ("", DeadIdleTooLong, [false; 4]),
    ("", DeadRemoved, [false; 4]),
];
