//! The state table as data: every scene with every kind of input, and the row of the specification it follows.
//!
//! A line without rows is a pair that the specification does not list; it is `ignored`, or names the inline error
//! that a call gets. A1 to A26 are the active side, P5 to P18 the passive one, C1 to C16 both.

use super::Kind::{self, *};
use super::Scene::{self, *};
use super::UNKNOWN;
use crate::proto::connector::Action::{self, *};
use crate::proto::connector::{Op, Phase};
use crate::status::Status as S;

/// The state after an input.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// That before it.
    Same,
    /// That before the connect.
    Back,
    To(Phase),
}

/// The effect of a group of inputs in one scene.
pub(super) struct Line {
    /// The rows it follows, separated by spaces.
    pub(super) rows: &'static str,
    pub(super) inputs: Vec<Kind>,
    pub(super) next: Next,
    pub(super) answer: Result<Vec<Action>, S>,
}

fn line<const K: usize>(
    rows: &'static str,
    inputs: [Kind; K],
    next: Next,
    answer: Result<&[Action], S>,
) -> Line {
    Line { rows, inputs: inputs.to_vec(), next, answer: answer.map(<[Action]>::to_vec) }
}

/// Expects that the input is accepted and moves the machine.
fn goes<const K: usize, const A: usize>(
    rows: &'static str,
    inputs: [Kind; K],
    next: Phase,
    actions: [Action; A],
) -> Line {
    line(rows, inputs, Next::To(next), Ok(&actions))
}

/// Expects that the input is accepted and leaves the machine `Dead`.
fn dies<const K: usize, const A: usize>(rows: &'static str, inputs: [Kind; K], actions: [Action; A]) -> Line {
    line(rows, inputs, Next::To(Phase::Dead), Ok(&actions))
}

/// Expects that the input is accepted and leaves the machine as it was before the connect.
fn back<const K: usize, const A: usize>(rows: &'static str, inputs: [Kind; K], actions: [Action; A]) -> Line {
    line(rows, inputs, Next::Back, Ok(&actions))
}

/// Expects that the input is accepted and the state stays.
fn stays<const K: usize, const A: usize>(
    rows: &'static str,
    inputs: [Kind; K],
    actions: [Action; A],
) -> Line {
    line(rows, inputs, Next::Same, Ok(&actions))
}

/// Expects that the call is not accepted and the state stays.
fn errs<const K: usize>(rows: &'static str, inputs: [Kind; K], status: S) -> Line {
    line(rows, inputs, Next::Same, Err(status))
}

/// Expects that the call is not accepted and burns the connector.
fn burns<const K: usize>(rows: &'static str, inputs: [Kind; K], status: S) -> Line {
    line(rows, inputs, Next::To(Phase::Dead), Err(status))
}

/// Expects no effect, of inputs that the specification does not list in this scene.
fn ignored<const K: usize>(inputs: [Kind; K]) -> Line {
    line("", inputs, Next::Same, Ok(&[]))
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

/// The ways to lose the peer of a connection, except that it disconnects.
const LOSSES: [Kind; 9] = [
    UnreachableNetwork,
    UnreachableHost,
    Refused,
    RefusedData,
    PeerGaveUp,
    PathLost,
    TimedOut,
    Failed,
    FailedRetryable,
];
/// Connect in each of its variants.
const CONNECTS: [Kind; 4] = [Connect, ConnectTooLong, ConnectBusy, ConnectLate];
/// Accept and Reject in each of their variants.
const ANSWERS: [Kind; 5] = [Accept, AcceptTooLong, AcceptBusy, Reject, RejectTooLong];

/// Returns the lines of the inputs that the specification lists in a scene, and of those that differ from [`otherwise`].
pub(super) fn lines(scene: Scene) -> Vec<Line> {
    match scene {
        Idle => vec![
            stays("A1", [Bind], [StartBind]),
            goes("A1", [BoundOk], Phase::Bound, []),
            errs("A2", [BindFailed], S::SHARING_VIOLATION),
            burns("", [BindCanceled], S::CANCELED),
            goes("A4", [Connect], Phase::Connecting, [StartConnect]),
            errs("A5", [ConnectTooLong], S::INVALID_BUFFER_SIZE),
            stays("A12", [ConnectLate], [connect(S::IO_TIMEOUT)]),
            errs("C11", [Disconnect], S::CONNECTION_INVALID),
            errs("C12", [NotifyDisconnect], S::CONNECTION_INVALID),
        ],
        Bound => vec![
            errs("A3", [Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            goes("A4", [Connect], Phase::Connecting, [StartConnect]),
            errs("A5", [ConnectTooLong], S::INVALID_BUFFER_SIZE),
            stays("A12", [ConnectLate], [connect(S::IO_TIMEOUT)]),
            errs("C12", [NotifyDisconnect], S::CONNECTION_INVALID),
        ],
        Connecting | ConnectingBound => vec![
            back("A7", [UnreachableNetwork], [Abandon, connect(S::NETWORK_UNREACHABLE)]),
            back("A8", [UnreachableHost], [Abandon, connect(S::HOST_UNREACHABLE)]),
            back("A9", [Refused], [Abandon, connect(S::CONNECTION_REFUSED)]),
            back("A10", [RefusedData], [Abandon, connect(S::CONNECTION_REFUSED)]),
            back("A11", [PeerGaveUp, PeerDisconnected], [Abandon, connect(S::CONNECTION_REFUSED)]),
            back("A12", [TimedOut], [RefusePeer, connect(S::IO_TIMEOUT)]),
            back("A12", [PathLost], [Abandon, connect(S::IO_TIMEOUT)]),
            back("", [FailedRetryable], [RefusePeer, connect(S::INSUFFICIENT_RESOURCES)]),
            dies("A13", [Cancel, Release], [RefusePeer, connect(S::CANCELED)]),
            dies("A14", [QueuePairRemoved], [RefusePeer, connect(S::CANCELED)]),
            dies("A15 C15", [DeviceRemoved, FailedRemoved], [Abandon, connect(S::DEVICE_REMOVED)]),
            goes("A16", [PeerAccepted], Phase::ConnectDone, [connect(S::SUCCESS)]),
            back("A2", [BindFailed], [Abandon, connect(S::SHARING_VIOLATION)]),
            dies("", [BindCanceled], [Abandon, connect(S::CANCELED)]),
            dies("", [Failed], [RefusePeer, connect(UNKNOWN)]),
            errs("C12", [NotifyDisconnect], S::CONNECTION_INVALID),
        ],
        ConnectDone => vec![
            goes("A18", [CompleteConnect], Phase::Completing, [StartComplete]),
            dies("A19", [Reject], [RefusePeer]),
            errs("", [RejectTooLong], S::INVALID_BUFFER_SIZE),
            dies("A20", [Cancel, Release], [RefusePeer]),
            dies("A21", [TimedOut], [RefusePeer]),
            errs("A22", [Disconnect], S::CONNECTION_INVALID),
            stays("A23", [Refused, RefusedData, PeerGaveUp], [Abandon]),
            stays("A23", [PeerDisconnected], [Leave]),
            stays("A23", [PathLost, UnreachableNetwork, UnreachableHost], [Abandon]),
            stays("A23", [Failed, FailedRetryable], [RefusePeer]),
            dies("", [QueuePairRemoved], [RefusePeer]),
            dies("C15", [DeviceRemoved, FailedRemoved], [Abandon]),
            errs("C12", [NotifyDisconnect], S::CONNECTION_INVALID),
        ],
        ConnectDoneAlone => vec![
            burns("A23", [CompleteConnect], S::CONNECTION_ABORTED),
            burns("", [Reject], S::CONNECTION_ABORTED),
            errs("", [RejectTooLong], S::INVALID_BUFFER_SIZE),
            dies("A20", [Cancel, Release], []),
            dies("A21", [TimedOut], []),
            errs("A22", [Disconnect], S::CONNECTION_INVALID),
            dies("", [QueuePairRemoved], []),
            errs("C12", [NotifyDisconnect], S::CONNECTION_INVALID),
        ],
        Completing => vec![
            goes("A24", [CompleteDone], Phase::Connected, [complete(S::SUCCESS)]),
            dies("A25", [TimedOut], [RefusePeer, Flush, complete(S::IO_TIMEOUT)]),
            dies("A25", [UnreachableNetwork, UnreachableHost], [Abandon, Flush, complete(S::IO_TIMEOUT)]),
            dies(
                "A25",
                [Refused, RefusedData, PeerGaveUp, PathLost],
                [Abandon, Flush, complete(S::CONNECTION_ABORTED)],
            ),
            dies("A25", [PeerDisconnected], [Leave, Flush, complete(S::CONNECTION_ABORTED)]),
            dies("A25", [Cancel, Release, QueuePairRemoved], [RefusePeer, Flush, complete(S::CANCELED)]),
            dies("A25 C15", [DeviceRemoved, FailedRemoved], [Abandon, Flush, complete(S::DEVICE_REMOVED)]),
            dies("A25", [Failed], [RefusePeer, Flush, complete(UNKNOWN)]),
            dies("A25", [FailedRetryable], [RefusePeer, Flush, complete(S::INSUFFICIENT_RESOURCES)]),
        ],
        Connected => vec![
            stays("C1", [NotifyDisconnect], []),
            goes("C2", [PeerDisconnected], Phase::PeerGone, [Flush]),
            goes("C3", LOSSES, Phase::PeerGone, [Flush]),
            goes("C4", [Disconnect], Phase::Disconnecting, [Flush, StartDisconnect]),
            dies("C13", [Release], [Flush, Leave]),
            goes("C13", [QueuePairRemoved], Phase::Disconnected, [Flush, Leave]),
            stays("C14", [Cancel], []),
            dies("C15", [DeviceRemoved, FailedRemoved], [Flush, Abandon]),
        ],
        ConnectedWatched => vec![
            stays("C1", [NotifyDisconnect], []),
            goes("C2", [PeerDisconnected], Phase::PeerGone, [notify(S::SUCCESS), Flush]),
            goes("C3", LOSSES, Phase::PeerGone, [notify(S::SUCCESS), Flush]),
            goes("C4", [Disconnect], Phase::Disconnecting, [notify(S::SUCCESS), Flush, StartDisconnect]),
            dies("C13", [Release], [notify(S::CANCELED), Flush, Leave]),
            goes("C13", [QueuePairRemoved], Phase::Disconnected, [notify(S::SUCCESS), Flush, Leave]),
            stays("C14", [Cancel], [notify(S::CANCELED)]),
            dies("C15", [DeviceRemoved, FailedRemoved], [notify(S::DEVICE_REMOVED), Flush, Abandon]),
        ],
        PeerGone => vec![
            goes("C5", [Disconnect], Phase::Disconnecting, [StartDisconnect]),
            stays("C6", [NotifyDisconnect], [notify(S::SUCCESS)]),
            dies("", [Release], [Leave]),
            goes("", [QueuePairRemoved], Phase::Disconnected, [Leave]),
            dies("C15", [DeviceRemoved, FailedRemoved], [Abandon]),
        ],
        Disconnecting => vec![
            goes("C7", [DisconnectAnswered], Phase::Disconnected, [Abandon, disconnect(S::SUCCESS)]),
            goes("C8", [TimedOut, PathLost], Phase::Disconnected, [Abandon, disconnect(S::IO_TIMEOUT)]),
            goes(
                "C8",
                [UnreachableNetwork, UnreachableHost, Failed, FailedRetryable],
                Phase::Disconnected,
                [Abandon, disconnect(S::IO_TIMEOUT)],
            ),
            goes("C9", [PeerDisconnected], Phase::Disconnected, [Abandon, disconnect(S::SUCCESS)]),
            goes(
                "C9",
                [PeerGaveUp, Refused, RefusedData],
                Phase::Disconnected,
                [Abandon, disconnect(S::SUCCESS)],
            ),
            goes("C10", [Cancel], Phase::Disconnected, [Abandon, disconnect(S::CANCELED)]),
            goes("C10", [QueuePairRemoved], Phase::Disconnected, [Leave, disconnect(S::CANCELED)]),
            dies("", [Release], [Leave, disconnect(S::CANCELED)]),
            dies("C15", [DeviceRemoved, FailedRemoved], [Abandon, disconnect(S::DEVICE_REMOVED)]),
            stays("", [NotifyDisconnect], [notify(S::SUCCESS)]),
        ],
        Disconnected => vec![
            errs("C11", [Disconnect], S::CONNECTION_INVALID),
            errs("A6 C16", CONNECTS, S::CONNECTION_ACTIVE),
            errs("C16", [Bind], S::INVALID_DEVICE_STATE),
            stays("", [NotifyDisconnect], [notify(S::SUCCESS)]),
            stays("C9", [PeerDisconnected], []),
        ],
        RequestPending => vec![
            errs("P6", [AcceptTooLong], S::INVALID_BUFFER_SIZE),
            goes("P7", [Accept], Phase::Accepting, [StartAccept]),
            errs("P8", [AcceptBusy], S::CONNECTION_ACTIVE),
            dies("P9", [Reject], [RefusePeer]),
            errs("", [RejectTooLong], S::INVALID_BUFFER_SIZE),
            stays("P10", [Refused, RefusedData, PeerGaveUp, PeerDisconnected], [Abandon]),
            stays("P10", [PathLost, UnreachableNetwork, UnreachableHost], [Abandon]),
            stays("P10", [TimedOut, Failed, FailedRetryable], [RefusePeer]),
            dies("P11", [Release], [RefusePeer]),
            dies("C15", [DeviceRemoved, FailedRemoved], [Abandon]),
        ],
        RequestAlone => vec![
            errs("P6", [AcceptTooLong], S::INVALID_BUFFER_SIZE),
            errs("P8", [AcceptBusy], S::CONNECTION_ACTIVE),
            burns("P10", [Accept, Reject], S::CONNECTION_ABORTED),
            errs("", [RejectTooLong], S::INVALID_BUFFER_SIZE),
            dies("P11", [Release], []),
        ],
        Accepting => vec![
            goes("P13", [PeerCompleted], Phase::Connected, [accept(S::SUCCESS)]),
            dies("P14 P18", [Refused, RefusedData], [Abandon, accept(S::CONNECTION_REFUSED)]),
            dies("P14 P18", [PeerGaveUp, PathLost], [Abandon, accept(S::CONNECTION_ABORTED)]),
            dies("P14 P18", [PeerDisconnected], [Leave, accept(S::CONNECTION_ABORTED)]),
            dies("P15 P18", [TimedOut], [RefusePeer, accept(S::IO_TIMEOUT)]),
            dies("P15 P18", [UnreachableNetwork, UnreachableHost], [Abandon, accept(S::IO_TIMEOUT)]),
            dies("P16 P18", [Cancel, Release, QueuePairRemoved], [RefusePeer, accept(S::CANCELED)]),
            dies("P17 C15", [DeviceRemoved, FailedRemoved], [Abandon, accept(S::DEVICE_REMOVED)]),
            dies("P18", [Failed], [RefusePeer, accept(UNKNOWN)]),
            dies("P18", [FailedRetryable], [RefusePeer, accept(S::INSUFFICIENT_RESOURCES)]),
        ],
        Dead => {
            vec![errs("C11", [Disconnect], S::CONNECTION_INVALID), errs("", [Bind], S::INVALID_DEVICE_STATE)]
        }
        DeadIdleTooLong => vec![
            errs("A21", [CompleteConnect], S::IO_TIMEOUT),
            errs("C11", [Disconnect], S::CONNECTION_INVALID),
            errs("", [Bind], S::INVALID_DEVICE_STATE),
        ],
        DeadRemoved => vec![
            errs("C15", CONNECTS, S::DEVICE_REMOVED),
            errs("C15", ANSWERS, S::DEVICE_REMOVED),
            errs("C15", [Bind, CompleteConnect, Disconnect, NotifyDisconnect], S::DEVICE_REMOVED),
            stays("C15", [DeviceRemoved, FailedRemoved, Cancel, Release], []),
        ],
    }
}

/// Returns the lines of the inputs that a scene does not list.
pub(super) fn otherwise() -> Vec<Line> {
    vec![
        errs("A6", CONNECTS, S::CONNECTION_ACTIVE),
        errs("A26", [CompleteConnect], S::CONNECTION_INVALID),
        errs("", [NotifyDisconnect, Disconnect], S::CONNECTION_INVALID),
        errs("", ANSWERS, S::CONNECTION_INVALID),
        errs("", [Bind], S::ADDRESS_ALREADY_ASSOCIATED),
        dies("C15", [DeviceRemoved, FailedRemoved], []),
        dies("", [Release], []),
        ignored(LOSSES),
        ignored([BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone, PeerCompleted]),
        ignored([PeerDisconnected, DisconnectAnswered, QueuePairRemoved, Cancel]),
    ]
}

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
