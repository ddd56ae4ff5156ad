//! The state table as data: every scene with every kind of input, and the row of the specification it follows.
//!
//! A line without rows is a pair that the specification does not list; it is `ignored`, or names the inline error
//! that a call gets. A1 to A26 are the active side, P5 to P18 the passive one, C1 to C16 both.

use super::Did::{self, *};
use super::Kind::{self, *};
use super::Scene::{self, *};
use crate::proto::connector::{Op, Phase};
use crate::status::Status as S;

/// The effect of a group of inputs in one scene.
#[derive(Clone, Copy)]
pub(super) struct Line {
    /// The rows it follows, separated by spaces.
    pub(super) rows: &'static str,
    pub(super) inputs: &'static [Kind],
    /// `None` when the state does not change.
    pub(super) next: Option<Phase>,
    pub(super) answer: Result<&'static [Did], S>,
}

/// Expects that the input is accepted and moves the machine.
const fn goes(rows: &'static str, inputs: &'static [Kind], next: Phase, actions: &'static [Did]) -> Line {
    Line { rows, inputs, next: Some(next), answer: Ok(actions) }
}

/// Expects that the input is accepted and the state stays.
const fn stays(rows: &'static str, inputs: &'static [Kind], actions: &'static [Did]) -> Line {
    Line { rows, inputs, next: None, answer: Ok(actions) }
}

/// Expects that the call is not accepted and the state stays.
const fn errs(rows: &'static str, inputs: &'static [Kind], status: S) -> Line {
    Line { rows, inputs, next: None, answer: Err(status) }
}

/// Expects that the call is not accepted and burns the connector.
const fn burns(rows: &'static str, inputs: &'static [Kind], status: S) -> Line {
    Line { rows, inputs, next: Some(Phase::Dead), answer: Err(status) }
}

/// Expects no effect, of inputs that the specification does not list in this scene.
const fn ignored(inputs: &'static [Kind]) -> Line {
    Line { rows: "", inputs, next: None, answer: Ok(&[]) }
}

const fn connect(status: S) -> Did {
    Finish { op: Op::Connect, status }
}
const fn complete(status: S) -> Did {
    Finish { op: Op::CompleteConnect, status }
}
const fn accept(status: S) -> Did {
    Finish { op: Op::Accept, status }
}
const fn notify(status: S) -> Did {
    Finish { op: Op::NotifyDisconnect, status }
}
const fn disconnect(status: S) -> Did {
    Finish { op: Op::Disconnect, status }
}

/// Connect in each of its variants.
const CONNECTS: [Kind; 4] = [Connect, ConnectTooLong, ConnectBusy, ConnectLate];
/// Accept and Reject in each of their variants.
const ANSWERS: [Kind; 5] = [Accept, AcceptTooLong, AcceptBusy, Reject, RejectTooLong];

/// The reports of a bind, a handshake or a disconnect that goes on: most phases have none under way.
const STEPS: [Kind; 7] =
    [BoundOk, BindFailed, BindCanceled, PeerAccepted, CompleteDone, PeerCompleted, DisconnectAnswered];

/// Returns the whole table: [`TABLE`], and the two scenes that are like another but for one thing.
pub(super) fn table() -> Vec<(Scene, Vec<Line>)> {
    let mut table: Vec<_> = TABLE.iter().map(|(scene, lines)| (*scene, lines.to_vec())).collect();
    let like = |like: Scene, change: fn(Line) -> Line| -> Vec<Line> {
        let (_, lines) = TABLE.iter().find(|(scene, _)| *scene == like).expect("a scene of the table");
        lines.iter().copied().map(change).collect()
    };
    // Retryable failures go back to `Bound`.
    let back = |line: Line| match line.next {
        Some(Phase::Idle) => Line { next: Some(Phase::Bound), ..line },
        _ => line,
    };
    table.push((ConnectingBound, like(Connecting, back)));
    let late = |line: Line| match line.inputs {
        [CompleteConnect] => errs("A21", line.inputs, S::IO_TIMEOUT),
        _ => line,
    };
    table.push((DeadIdleTooLong, like(Dead, late)));
    table
}

/// The table, but for the scenes of [`table`].
const TABLE: &[(Scene, &[Line])] = &[
    (
        Idle,
        &[
            stays("A1", &[Bind], &[StartBind]),
            goes("A1", &[BoundOk], Phase::Bound, &[]),
            errs("A2", &[BindFailed], S::SHARING_VIOLATION),
            burns("", &[BindCanceled], S::CANCELED),
            goes("A4", &[Connect], Phase::Connecting, &[StartConnect]),
            errs("A5", &[ConnectTooLong], S::INVALID_BUFFER_SIZE),
            errs("A6", &[ConnectBusy], S::CONNECTION_ACTIVE),
            stays("A12", &[ConnectLate], &[connect(S::IO_TIMEOUT)]),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("C11", &[Disconnect], S::CONNECTION_INVALID),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[]),
            goes("", &[Release], Phase::Dead, &[]),
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
            goes("A4", &[Connect], Phase::Connecting, &[StartConnect]),
            errs("A5", &[ConnectTooLong], S::INVALID_BUFFER_SIZE),
            errs("A6", &[ConnectBusy], S::CONNECTION_ACTIVE),
            stays("A12", &[ConnectLate], &[connect(S::IO_TIMEOUT)]),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Disconnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[]),
            goes("", &[Release], Phase::Dead, &[]),
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
            goes("A7", &[UnreachableNetwork], Phase::Idle, &[Abandon, connect(S::NETWORK_UNREACHABLE)]),
            goes("A8", &[UnreachableHost], Phase::Idle, &[Abandon, connect(S::HOST_UNREACHABLE)]),
            goes("A9", &[Refused], Phase::Idle, &[Abandon, connect(S::CONNECTION_REFUSED)]),
            goes(
                "A10",
                &[RefusedData, PeerRejected],
                Phase::Idle,
                &[Abandon, connect(S::CONNECTION_REFUSED)],
            ),
            goes(
                "A11",
                &[PeerGaveUp, PeerDisconnected],
                Phase::Idle,
                &[Abandon, connect(S::CONNECTION_REFUSED)],
            ),
            goes("A12", &[TimedOut], Phase::Idle, &[RefusePeer, connect(S::IO_TIMEOUT)]),
            goes("A12", &[PathLost], Phase::Idle, &[Abandon, connect(S::IO_TIMEOUT)]),
            goes("A8", &[FailedRetryable], Phase::Idle, &[RefusePeer, connect(S::HOST_UNREACHABLE)]),
            goes("A13", &[Cancel, Release], Phase::Dead, &[RefusePeer, connect(S::CANCELED)]),
            goes("A14", &[QueuePairRemoved], Phase::Dead, &[RefusePeer, connect(S::CANCELED)]),
            goes(
                "A15 C15",
                &[DeviceRemoved, FailedRemoved],
                Phase::Dead,
                &[Abandon, connect(S::DEVICE_REMOVED)],
            ),
            goes("A16", &[PeerAccepted], Phase::ConnectDone, &[connect(S::SUCCESS)]),
            goes("A2", &[BindFailed], Phase::Idle, &[Abandon, connect(S::SHARING_VIOLATION)]),
            goes("", &[BindCanceled], Phase::Dead, &[Abandon, connect(S::CANCELED)]),
            goes("", &[Failed], Phase::Dead, &[RefusePeer, connect(S::UNSUCCESSFUL)]),
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
            goes("A18", &[CompleteConnect], Phase::Completing, &[StartComplete]),
            goes("A19", &[Reject], Phase::Dead, &[RefusePeer]),
            errs("", &[RejectTooLong], S::INVALID_BUFFER_SIZE),
            goes("A20", &[Cancel, Release], Phase::Dead, &[RefusePeer]),
            goes("A21", &[TimedOut], Phase::Dead, &[RefusePeer]),
            errs("A22", &[Disconnect], S::CONNECTION_INVALID),
            stays("A23", &[Refused, RefusedData, PeerRejected, PeerGaveUp], &[Abandon]),
            stays("A23", &[PeerDisconnected], &[Leave]),
            stays("A23", &[PathLost, UnreachableNetwork, UnreachableHost], &[Abandon]),
            stays("A23", &[Failed, FailedRetryable], &[RefusePeer]),
            goes("", &[QueuePairRemoved], Phase::Dead, &[RefusePeer]),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Accept, AcceptTooLong, AcceptBusy], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&STEPS),
        ],
    ),
    (
        ConnectDoneAlone,
        &[
            burns("A23", &[CompleteConnect], S::CONNECTION_ABORTED),
            burns("", &[Reject], S::CONNECTION_ABORTED),
            errs("", &[RejectTooLong], S::INVALID_BUFFER_SIZE),
            goes("A20", &[Cancel, Release], Phase::Dead, &[]),
            goes("A21", &[TimedOut], Phase::Dead, &[]),
            errs("A22", &[Disconnect], S::CONNECTION_INVALID),
            goes("", &[QueuePairRemoved], Phase::Dead, &[]),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("C12", &[NotifyDisconnect], S::CONNECTION_INVALID),
            errs("", &[Accept, AcceptTooLong, AcceptBusy], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&STEPS),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable]),
        ],
    ),
    (
        Completing,
        &[
            goes("A24", &[CompleteDone], Phase::Connected, &[complete(S::SUCCESS)]),
            goes("A25", &[TimedOut], Phase::Dead, &[RefusePeer, Flush, complete(S::IO_TIMEOUT)]),
            goes(
                "A25",
                &[UnreachableNetwork, UnreachableHost],
                Phase::Dead,
                &[Abandon, Flush, complete(S::IO_TIMEOUT)],
            ),
            goes(
                "A25",
                &[Refused, RefusedData, PeerRejected, PeerGaveUp, PathLost],
                Phase::Dead,
                &[Abandon, Flush, complete(S::CONNECTION_ABORTED)],
            ),
            goes("A25", &[PeerDisconnected], Phase::Dead, &[Leave, Flush, complete(S::CONNECTION_ABORTED)]),
            goes(
                "A25",
                &[Cancel, Release, QueuePairRemoved],
                Phase::Dead,
                &[RefusePeer, Flush, complete(S::CANCELED)],
            ),
            goes(
                "A25 C15",
                &[DeviceRemoved, FailedRemoved],
                Phase::Dead,
                &[Abandon, Flush, complete(S::DEVICE_REMOVED)],
            ),
            goes("A25", &[Failed], Phase::Dead, &[RefusePeer, Flush, complete(S::UNSUCCESSFUL)]),
            goes("A25", &[FailedRetryable], Phase::Dead, &[RefusePeer, Flush, complete(S::HOST_UNREACHABLE)]),
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
            goes("C2", &[PeerDisconnected], Phase::PeerGone, &[Flush]),
            goes(
                "C3",
                &[PathLost, PeerGaveUp, PeerRejected, Refused, RefusedData],
                Phase::PeerGone,
                &[Flush],
            ),
            goes("C3", &[TimedOut, UnreachableNetwork, UnreachableHost], Phase::PeerGone, &[Flush]),
            goes("C3", &[Failed, FailedRetryable], Phase::PeerGone, &[Flush]),
            goes("C4", &[Disconnect], Phase::Disconnecting, &[Flush, StartDisconnect]),
            goes("C13", &[Release], Phase::Dead, &[Flush, Leave]),
            goes("C13", &[QueuePairRemoved], Phase::Disconnected, &[Flush, Leave]),
            stays("C14", &[Cancel], &[]),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[Flush, Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&STEPS),
        ],
    ),
    (
        ConnectedWatched,
        &[
            stays("C1", &[NotifyDisconnect], &[]),
            goes("C2", &[PeerDisconnected], Phase::PeerGone, &[notify(S::SUCCESS), Flush]),
            goes(
                "C3",
                &[PathLost, PeerGaveUp, PeerRejected, Refused, RefusedData],
                Phase::PeerGone,
                &[notify(S::SUCCESS), Flush],
            ),
            goes(
                "C3",
                &[TimedOut, UnreachableNetwork, UnreachableHost],
                Phase::PeerGone,
                &[notify(S::SUCCESS), Flush],
            ),
            goes("C3", &[Failed, FailedRetryable], Phase::PeerGone, &[notify(S::SUCCESS), Flush]),
            goes("C4", &[Disconnect], Phase::Disconnecting, &[notify(S::SUCCESS), Flush, StartDisconnect]),
            goes("C13", &[Release], Phase::Dead, &[notify(S::CANCELED), Flush, Leave]),
            goes("C13", &[QueuePairRemoved], Phase::Disconnected, &[notify(S::SUCCESS), Flush, Leave]),
            stays("C14", &[Cancel], &[notify(S::CANCELED)]),
            goes(
                "C15",
                &[DeviceRemoved, FailedRemoved],
                Phase::Dead,
                &[notify(S::DEVICE_REMOVED), Flush, Abandon],
            ),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&STEPS),
        ],
    ),
    (
        PeerGone,
        &[
            goes("C5", &[Disconnect], Phase::Disconnecting, &[StartDisconnect]),
            stays("C6", &[NotifyDisconnect], &[notify(S::SUCCESS)]),
            goes("", &[Release], Phase::Dead, &[Leave]),
            goes("", &[QueuePairRemoved], Phase::Disconnected, &[Leave]),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &ANSWERS, S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&STEPS),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut, Cancel]),
        ],
    ),
    (
        Disconnecting,
        &[
            goes("C7", &[DisconnectAnswered], Phase::Disconnected, &[Abandon, disconnect(S::SUCCESS)]),
            goes("C8", &[TimedOut, PathLost], Phase::Disconnected, &[Abandon, disconnect(S::IO_TIMEOUT)]),
            goes(
                "C8",
                &[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable],
                Phase::Disconnected,
                &[Abandon, disconnect(S::IO_TIMEOUT)],
            ),
            goes("C9", &[PeerDisconnected], Phase::Disconnected, &[Abandon, disconnect(S::SUCCESS)]),
            goes(
                "C9",
                &[PeerGaveUp, PeerRejected, Refused, RefusedData],
                Phase::Disconnected,
                &[Abandon, disconnect(S::SUCCESS)],
            ),
            goes("C10", &[Cancel], Phase::Disconnected, &[Abandon, disconnect(S::CANCELED)]),
            goes("C10", &[QueuePairRemoved], Phase::Disconnected, &[Leave, disconnect(S::CANCELED)]),
            goes("", &[Release], Phase::Dead, &[Leave, disconnect(S::CANCELED)]),
            goes(
                "C15",
                &[DeviceRemoved, FailedRemoved],
                Phase::Dead,
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
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[]),
            goes("", &[Release], Phase::Dead, &[]),
            ignored(&STEPS),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PathLost, QueuePairRemoved]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut, Cancel]),
        ],
    ),
    (
        RequestPending,
        &[
            errs("P6", &[AcceptTooLong], S::INVALID_BUFFER_SIZE),
            goes("P7", &[Accept], Phase::Accepting, &[StartAccept]),
            errs("P8", &[AcceptBusy], S::CONNECTION_ACTIVE),
            goes("P9", &[Reject], Phase::Dead, &[RefusePeer]),
            errs("", &[RejectTooLong], S::INVALID_BUFFER_SIZE),
            stays("P10", &[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected], &[Abandon]),
            stays("P10", &[PathLost, UnreachableNetwork, UnreachableHost], &[Abandon]),
            stays("P10", &[TimedOut, Failed, FailedRetryable], &[RefusePeer]),
            goes("P11", &[Release], Phase::Dead, &[RefusePeer]),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[Abandon]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect, Disconnect], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&STEPS),
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
            goes("P11", &[Release], Phase::Dead, &[]),
            goes("C15", &[DeviceRemoved, FailedRemoved], Phase::Dead, &[]),
            errs("A6", &CONNECTS, S::CONNECTION_ACTIVE),
            errs("A26", &[CompleteConnect], S::CONNECTION_INVALID),
            errs("", &[NotifyDisconnect, Disconnect], S::CONNECTION_INVALID),
            errs("", &[Bind], S::ADDRESS_ALREADY_ASSOCIATED),
            ignored(&STEPS),
            ignored(&[Cancel, QueuePairRemoved]),
            ignored(&[Refused, RefusedData, PeerRejected, PeerGaveUp, PeerDisconnected, PathLost]),
            ignored(&[UnreachableNetwork, UnreachableHost, Failed, FailedRetryable, TimedOut]),
        ],
    ),
    (
        Accepting,
        &[
            goes("P13", &[PeerCompleted], Phase::Connected, &[accept(S::SUCCESS)]),
            goes(
                "P14 P18",
                &[PeerRejected, Refused, RefusedData],
                Phase::Dead,
                &[Abandon, accept(S::CONNECTION_REFUSED)],
            ),
            goes("P14 P18", &[PeerGaveUp, PathLost], Phase::Dead, &[Abandon, accept(S::CONNECTION_ABORTED)]),
            goes("P14 P18", &[PeerDisconnected], Phase::Dead, &[Leave, accept(S::CONNECTION_ABORTED)]),
            goes("P15 P18", &[TimedOut], Phase::Dead, &[RefusePeer, accept(S::IO_TIMEOUT)]),
            goes(
                "P15 P18",
                &[UnreachableNetwork, UnreachableHost],
                Phase::Dead,
                &[Abandon, accept(S::IO_TIMEOUT)],
            ),
            goes(
                "P16 P18",
                &[Cancel, Release, QueuePairRemoved],
                Phase::Dead,
                &[RefusePeer, accept(S::CANCELED)],
            ),
            goes(
                "P17 C15",
                &[DeviceRemoved, FailedRemoved],
                Phase::Dead,
                &[Abandon, accept(S::DEVICE_REMOVED)],
            ),
            goes("P18", &[Failed], Phase::Dead, &[RefusePeer, accept(S::UNSUCCESSFUL)]),
            goes("P18", &[FailedRetryable], Phase::Dead, &[RefusePeer, accept(S::HOST_UNREACHABLE)]),
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
            ignored(&STEPS),
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
            ignored(&STEPS),
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
