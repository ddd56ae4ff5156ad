//! The state table, checked pair by pair, and random walks through it.

mod table;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Action, Actions, Connector, Failure, Input, Loss, Op, Phase, Terms};
use crate::error::{AcceptError, ConnectError, Reason};
use crate::status::Status;
use crate::types::{DisconnectReason, PrivateData, ReadLimits};
use table::{Line, Next};

/// The time that the caller of Connect waits in these tests.
const PATIENCE: Duration = Duration::from_secs(10);
/// A number that no status has: it reaches the caller as it is.
const UNKNOWN: Status = Status::from_code(0xC00F_1234);

fn terms() -> Terms {
    Terms { limits: ReadLimits::new(3, 4), private_data: PrivateData::exact(&b"offer"[..]) }
}

fn refusal() -> Option<PrivateData> {
    Some(PrivateData::exact(&b"no"[..]))
}

/// The answer of the machine to an input.
type Answer = Result<Vec<Action>, Status>;

/// Returns what the table has of an answer.
fn seen(answer: Result<Actions, Failure>) -> Answer {
    answer.map(|actions| actions.iter().collect()).map_err(|failure| failure.status)
}

/// An enum of kinds with the list of all of them.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($kind:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum $name { $($kind),* }

        impl $name {
            const ALL: &'static [Self] = &[$(Self::$kind),*];
        }
    };
}

kinds! {
    /// The inputs of the machine: each in every variant that matters.
    Kind {
        Bind, Connect, ConnectTooLong, ConnectBusy, ConnectLate, CompleteConnect, Accept, AcceptTooLong,
        AcceptBusy, Reject, RejectTooLong, NotifyDisconnect, Disconnect, Cancel, Release, BoundOk, BindFailed,
        BindCanceled, UnreachableNetwork, UnreachableHost, Refused, RefusedData, PeerAccepted, CompleteDone,
        PeerCompleted, PeerGaveUp, PeerDisconnected, PathLost, DisconnectAnswered, QueuePairRemoved,
        DeviceRemoved, TimedOut, Failed, FailedRetryable, FailedRemoved,
    }
}

impl Kind {
    /// Returns the input of this kind.
    fn input(self, now: Instant) -> Input {
        let connect = |data, busy, deadline| {
            let overdue = deadline == Some(now);
            Input::Connect { data, max_data: 8, busy, deadline, overdue }
        };
        let later = Some(now + PATIENCE);
        let lost = |loss| Input::lost(loss, None);
        match self {
            Self::Bind => Input::Bind,
            Self::Connect => connect(8, false, later),
            Self::ConnectTooLong => connect(9, false, later),
            Self::ConnectBusy => connect(8, true, later),
            Self::ConnectLate => connect(8, false, Some(now)),
            Self::CompleteConnect => Input::CompleteConnect,
            Self::Accept => Input::Accept { data: 8, max_data: 8, busy: false },
            Self::AcceptTooLong => Input::Accept { data: 9, max_data: 8, busy: false },
            Self::AcceptBusy => Input::Accept { data: 0, max_data: 8, busy: true },
            Self::Reject => Input::Reject { data: 8, max_data: 8 },
            Self::RejectTooLong => Input::Reject { data: 9, max_data: 8 },
            Self::NotifyDisconnect => Input::NotifyDisconnect,
            Self::Disconnect => Input::Disconnect { deadline: now + PATIENCE },
            Self::Cancel => Input::Cancel,
            Self::Release => Input::Release,
            Self::BoundOk => Input::Bound,
            Self::BindFailed => lost(Loss::Unbound(Status::SHARING_VIOLATION)),
            Self::BindCanceled => lost(Loss::Unbound(Status::CANCELED)),
            Self::UnreachableNetwork => lost(Loss::Unreachable { network: true }),
            Self::UnreachableHost => lost(Loss::Unreachable { network: false }),
            Self::Refused => lost(Loss::Refused(None)),
            Self::RefusedData => lost(Loss::Refused(refusal())),
            Self::PeerAccepted => Input::PeerAccepted(terms()),
            Self::CompleteDone => Input::CompleteDone,
            Self::PeerCompleted => Input::PeerCompleted,
            Self::PeerGaveUp => lost(Loss::GaveUp),
            Self::PeerDisconnected => lost(Loss::Disconnected),
            Self::PathLost => lost(Loss::Path(Some(Status::IO_TIMEOUT))),
            Self::DisconnectAnswered => Input::DisconnectAnswered,
            Self::QueuePairRemoved => Input::QueuePairRemoved,
            Self::DeviceRemoved => Input::DeviceRemoved,
            Self::TimedOut => lost(Loss::TimedOut),
            Self::Failed => lost(Loss::Failed(UNKNOWN)),
            // A lack of memory or descriptors passes.
            Self::FailedRetryable => lost(Loss::Failed(Status::INSUFFICIENT_RESOURCES)),
            Self::FailedRemoved => lost(Loss::Failed(Status::DEVICE_REMOVED)),
        }
    }

    /// Returns the kinds of this input: a new input does not compile until it has one.
    fn of(input: &Input) -> &'static [Self] {
        match input {
            Input::Bind => &[Self::Bind],
            Input::Connect { .. } => {
                &[Self::Connect, Self::ConnectTooLong, Self::ConnectBusy, Self::ConnectLate]
            }
            Input::CompleteConnect => &[Self::CompleteConnect],
            Input::Accept { .. } => &[Self::Accept, Self::AcceptTooLong, Self::AcceptBusy],
            Input::Reject { .. } => &[Self::Reject, Self::RejectTooLong],
            Input::NotifyDisconnect => &[Self::NotifyDisconnect],
            Input::Disconnect { .. } => &[Self::Disconnect],
            Input::Cancel => &[Self::Cancel],
            Input::Release => &[Self::Release],
            Input::Bound => &[Self::BoundOk],
            Input::PeerAccepted(_) => &[Self::PeerAccepted],
            Input::CompleteDone => &[Self::CompleteDone],
            Input::PeerCompleted => &[Self::PeerCompleted],
            Input::DisconnectAnswered => &[Self::DisconnectAnswered],
            Input::QueuePairRemoved => &[Self::QueuePairRemoved],
            Input::DeviceRemoved => &[Self::DeviceRemoved],
            Input::Lost { loss, .. } => match loss {
                Loss::Unbound(_) => &[Self::BindFailed, Self::BindCanceled],
                Loss::Unreachable { .. } => &[Self::UnreachableNetwork, Self::UnreachableHost],
                Loss::Refused(_) => &[Self::Refused, Self::RefusedData],
                Loss::GaveUp => &[Self::PeerGaveUp],
                Loss::Disconnected => &[Self::PeerDisconnected],
                Loss::Path(_) => &[Self::PathLost],
                Loss::TimedOut => &[Self::TimedOut],
                Loss::Failed(_) => &[Self::Failed, Self::FailedRetryable, Self::FailedRemoved],
            },
        }
    }
}

kinds! {
    /// The starting point of a pair: each state, and separately the data that the machine keeps beyond its
    /// state.
    Scene {
        Idle, Bound, Connecting, ConnectingBound, ConnectDone, ConnectDoneAlone, Completing, Connected,
        ConnectedWatched, PeerGone, Disconnecting, Disconnected, RequestPending, RequestAlone, Accepting,
        Dead, DeadIdleTooLong, DeadRemoved,
    }
}

impl Scene {
    /// Returns the scenes of a state: a new state does not compile until it has one.
    fn of(phase: Phase) -> &'static [Self] {
        match phase {
            Phase::Idle => &[Self::Idle],
            Phase::Bound => &[Self::Bound],
            Phase::Connecting => &[Self::Connecting, Self::ConnectingBound],
            Phase::ConnectDone => &[Self::ConnectDone, Self::ConnectDoneAlone],
            Phase::Completing => &[Self::Completing],
            Phase::Connected => &[Self::Connected, Self::ConnectedWatched],
            Phase::PeerGone => &[Self::PeerGone],
            Phase::Disconnecting => &[Self::Disconnecting],
            Phase::Disconnected => &[Self::Disconnected],
            Phase::RequestPending => &[Self::RequestPending, Self::RequestAlone],
            Phase::Accepting => &[Self::Accepting],
            Phase::Dead => &[Self::Dead, Self::DeadIdleTooLong, Self::DeadRemoved],
        }
    }

    /// Returns the machine from which the scene is reached.
    fn beginning(self) -> Connector {
        match self {
            Self::RequestPending | Self::RequestAlone | Self::Accepting => Connector::with_request(terms()),
            _ => Connector::new(),
        }
    }

    /// Returns the inputs that lead from [`beginning`](Self::beginning) to the scene.
    fn recipe(self) -> Vec<Kind> {
        let after = |scene: Self, kinds: &[Kind]| [&scene.recipe(), kinds].concat();
        match self {
            Self::Idle | Self::RequestPending => vec![],
            Self::Bound => vec![Kind::Bind, Kind::BoundOk],
            Self::Connecting => vec![Kind::Connect],
            Self::ConnectingBound => after(Self::Bound, &[Kind::Connect]),
            Self::ConnectDone => after(Self::Connecting, &[Kind::PeerAccepted]),
            Self::ConnectDoneAlone => after(Self::ConnectDone, &[Kind::PeerGaveUp]),
            Self::Completing => after(Self::ConnectDone, &[Kind::CompleteConnect]),
            Self::Connected => after(Self::Completing, &[Kind::CompleteDone]),
            Self::ConnectedWatched => after(Self::Connected, &[Kind::NotifyDisconnect]),
            Self::PeerGone => after(Self::Connected, &[Kind::PeerDisconnected]),
            Self::Disconnecting => after(Self::Connected, &[Kind::Disconnect]),
            Self::Disconnected => after(Self::Disconnecting, &[Kind::DisconnectAnswered]),
            Self::RequestAlone => after(Self::RequestPending, &[Kind::PeerGaveUp]),
            Self::Accepting => after(Self::RequestPending, &[Kind::Accept]),
            Self::Dead => after(Self::ConnectDone, &[Kind::Reject]),
            Self::DeadIdleTooLong => after(Self::ConnectDone, &[Kind::TimedOut]),
            Self::DeadRemoved => vec![Kind::DeviceRemoved],
        }
    }

    fn build(self, now: Instant) -> Connector {
        let mut machine = self.beginning();
        for kind in self.recipe() {
            drop(step(&mut machine, now, kind));
        }
        assert!(Self::of(machine.phase()).contains(&self), "{self:?} is not {:?}", machine.phase());
        machine
    }
}

fn step(machine: &mut Connector, now: Instant, kind: Kind) -> Answer {
    seen(machine.handle(kind.input(now)))
}

/// Feeds inputs of these kinds to the machine of a scene. Returns the machine and its answers.
fn told(scene: Scene, kinds: &[Kind]) -> (Connector, Vec<Answer>) {
    let now = Instant::now();
    let mut machine = scene.build(now);
    let answers = kinds.iter().map(|&kind| step(&mut machine, now, kind)).collect();
    (machine, answers)
}

// ERR-04, ERR-05, CM-01, CM-06, CM-07, CM-19, CM-20, CM-22, CM-27, CAN-05, DIS-03, DIS-09, DIS-10, PD-04, LS-15, LS-18: each
// state with each input.
#[test]
fn every_pair_is_as_the_table_says() {
    let now = Instant::now();
    for &scene in Scene::ALL {
        let (lines, otherwise) = (table::lines(scene), table::otherwise());
        for &kind in Kind::ALL {
            // Each pair has one line.
            let of = |lines: &[Line]| lines.iter().filter(|line| line.inputs.contains(&kind)).count();
            assert_eq!(
                [of(&lines), of(&otherwise)].into_iter().find(|count| *count > 0),
                Some(1),
                "{scene:?} × {kind:?}"
            );
            let mut all = lines.iter().chain(&otherwise);
            let line = all.find(|line| line.inputs.contains(&kind)).expect("one line");
            let mut machine = scene.build(now);
            let next = match line.next {
                Next::Same => machine.phase(),
                Next::Back if scene == Scene::ConnectingBound => Phase::Bound,
                Next::Back => Phase::Idle,
                Next::To(phase) => phase,
            };
            let answer = step(&mut machine, now, kind);
            assert_eq!(answer, line.answer, "{scene:?} × {kind:?}, row {:?}", line.rows);
            assert_eq!(machine.phase(), next, "{scene:?} × {kind:?}");
        }
    }
}

/// Checks that the lists of kinds and scenes cover the types that they stand for.
#[test]
fn kinds_and_scenes_cover_inputs_and_states() {
    let now = Instant::now();
    let mut seen = BTreeSet::new();
    for kind in Kind::ALL {
        let input = kind.input(now);
        assert!(Kind::of(&input).contains(kind), "{kind:?}");
        seen.extend(Kind::of(&input));
    }
    assert_eq!(seen, BTreeSet::from_iter(Kind::ALL.iter().copied()));
    for scene in Scene::ALL {
        scene.build(now);
    }
}

/// Checks that the table cites every row of the specification. P1 to P4 are rows of the listener. P12 changes no state:
/// `verbs` handles it, and `a_receive_may_complete_before_the_accept` of `tests/api/listener.rs` shows it.
#[test]
fn every_row_of_the_specification_is_cited() {
    let expected = [("A", 1..=26), ("P", 5..=11), ("P", 13..=18), ("C", 1..=16)];
    let expected: BTreeSet<String> = expected
        .into_iter()
        .flat_map(|(letter, numbers)| numbers.map(move |number| format!("{letter}{number}")))
        .collect();
    let lines = Scene::ALL.iter().flat_map(|scene| table::lines(*scene)).chain(table::otherwise());
    let queries = table::QUERIES.iter().map(|(rows, ..)| *rows);
    let cited: BTreeSet<String> = lines
        .map(|line| line.rows)
        .chain(queries)
        .flat_map(str::split_whitespace)
        .map(String::from)
        .collect();
    assert_eq!(cited, expected);
}

// Read limits, private data and addresses can be read in the states that the table lists (NEG-04, PD-09, CM-25, CM-26,
// LS-11).
#[test]
fn queries_answer_at_their_moment_only() {
    let now = Instant::now();
    assert!(table::QUERIES.iter().map(|(_, scene, _)| scene).eq(Scene::ALL), "a scene is missing");
    for &(_, scene, expected) in table::QUERIES {
        let machine = scene.build(now);
        let answers = [
            machine.read_limits().map(|limits| assert_eq!(limits, terms().limits)),
            machine.private_data().map(|data| assert_eq!(*data, terms().private_data)),
            machine.local_address_ready(),
            machine.peer_address_ready(),
        ];
        for (answer, expected) in answers.into_iter().zip(expected) {
            let status = answer.map_err(|error| error.status());
            let expected = if expected { Ok(()) } else { Err(Status::CONNECTION_INVALID) };
            assert_eq!(status, expected, "{scene:?}");
        }
    }
}

// CM-16, CM-19, PD-03: the data of a reject can be read until the next attempt, which may succeed.
#[test]
fn rejected_connector_keeps_data_until_next_attempt() {
    for scene in [Scene::Connecting, Scene::ConnectingBound] {
        let (mut machine, _) = told(scene, &[Kind::RefusedData]);
        assert_eq!(machine.private_data().ok(), refusal().as_ref());
        assert!(machine.read_limits().is_err());
        assert!(step(&mut machine, Instant::now(), Kind::Connect).is_ok());
        assert!(machine.private_data().is_err());
        assert!(step(&mut machine, Instant::now(), Kind::PeerAccepted).is_ok());
        assert_eq!(machine.phase(), Phase::ConnectDone);
    }
    // CM-24: and that of the active side's reject after the failed accept.
    let (machine, _) = told(Scene::Accepting, &[Kind::RefusedData]);
    assert_eq!(machine.private_data().ok(), refusal().as_ref());
}

// CM-28: the cause of the peer's end determines the status of CompleteConnect, once.
#[test]
fn complete_connect_tells_why_the_peer_is_gone() {
    let aborted = [Kind::PeerGaveUp, Kind::PeerDisconnected, Kind::RefusedData, Kind::PathLost];
    let silent = [Kind::UnreachableHost, Kind::TimedOut];
    let cases = aborted.map(|kind| (kind, Status::CONNECTION_ABORTED));
    for (kind, status) in cases.into_iter().chain(silent.map(|kind| (kind, Status::IO_TIMEOUT))) {
        let (machine, answers) = told(Scene::ConnectDone, &[kind, Kind::CompleteConnect]);
        assert_eq!(answers[1], Err(status), "{kind:?}");
        assert_eq!(machine.phase(), Phase::Dead);
    }
    let (_, answers) = told(Scene::ConnectDoneAlone, &[Kind::CompleteConnect, Kind::CompleteConnect]);
    assert_eq!(answers[1], Err(Status::CONNECTION_INVALID));
    let (_, answers) = told(Scene::ConnectDone, &[Kind::QueuePairRemoved, Kind::CompleteConnect]);
    assert_eq!(answers[1], Err(Status::CANCELED));
}

// CM-33: `ending` returns the first cause of the end.
#[test]
fn the_ending_is_remembered() {
    use DisconnectReason::{DeviceRemoved, Local, Peer};
    let lost = || {
        Some(DisconnectReason::Lost {
            status: Status::IO_TIMEOUT,
            reason: Reason::Local("no reason was given"),
        })
    };
    let cases = [
        (Scene::Connected, &[Kind::NotifyDisconnect][..], None),
        (Scene::ConnectedWatched, &[Kind::Cancel, Kind::PeerDisconnected], Some(Peer)),
        (Scene::PeerGone, &[Kind::Disconnect, Kind::DisconnectAnswered], Some(Peer)),
        (Scene::Connected, &[Kind::PathLost, Kind::PeerDisconnected], lost()),
        (Scene::Connected, &[Kind::TimedOut], lost()),
        (Scene::Connected, &[Kind::Disconnect, Kind::PeerDisconnected], Some(Local)),
        (Scene::Connected, &[Kind::QueuePairRemoved], Some(Local)),
        (Scene::Connected, &[Kind::Release], Some(Local)),
        (Scene::Connected, &[Kind::DeviceRemoved], Some(DeviceRemoved)),
        (Scene::PeerGone, &[Kind::DeviceRemoved], Some(Peer)),
        (Scene::Accepting, &[Kind::PeerGaveUp], None),
    ];
    for (scene, kinds, ending) in cases {
        assert_eq!(told(scene, kinds).0.ending(), ending.as_ref(), "{scene:?} {kinds:?}");
    }
}

// CM-12, CM-18, DIS-14: a deadline ends with its call, and a call without a deadline has none.
#[test]
fn deadlines() {
    let start = Instant::now();
    for (scene, end) in [(Scene::ConnectingBound, Phase::Bound), (Scene::Disconnecting, Phase::Disconnected)]
    {
        let mut machine = scene.build(start);
        assert_eq!(machine.next_timeout(), Some(start + PATIENCE));
        assert_eq!(step(&mut machine, start, Kind::TimedOut).map(|actions| actions.len()), Ok(2));
        assert_eq!((machine.phase(), machine.next_timeout()), (end, None));
        assert_eq!(step(&mut machine, start, Kind::TimedOut), Ok(vec![]));
    }
    let mut machine = Connector::new();
    let forever = Input::Connect { data: 0, max_data: 0, busy: false, deadline: None, overdue: false };
    assert!(machine.handle(forever).is_ok());
    assert_eq!(machine.next_timeout(), None);
    // LS-24, X8: nothing here limits how long Accept and CompleteConnect may take.
    for scene in [Scene::ConnectDone, Scene::Completing, Scene::RequestPending, Scene::Accepting] {
        assert_eq!(scene.build(start).next_timeout(), None, "{scene:?}");
    }
}

/// Checks that the caller gets the error and the cause that were reported, at once or by the call that finds them.
#[test]
fn the_cause_reaches_the_caller() {
    let peer = SocketAddr::from(([192, 0, 2, 1], 7));
    let (first, second) = (Reason::Errno(1), Reason::Errno(2));
    let failure = |scene: Scene, inputs: Vec<Input>| {
        let mut machine = scene.build(Instant::now());
        let answers = inputs.into_iter().map(|input| machine.handle(input));
        let failed = answers.filter_map(|answer| match answer {
            Ok(mut actions) => actions.iter().find_map(|action| match action {
                Action::Finish { status, .. } => actions.answer(status).err(),
                _ => None,
            }),
            Err(failure) => Some(failure),
        });
        failed.last().expect("a call has failed")
    };
    let error = failure(Scene::Connecting, vec![ConnectError::InvalidAddress(peer).into()]);
    assert!(matches!(error.connect_error(peer), ConnectError::InvalidAddress(_)));
    // The system may have no device on the way, although the adapter is there.
    let gone = ConnectError::Other { peer, status: Status::DEVICE_REMOVED, reason: first };
    let error = failure(Scene::Connecting, vec![gone.into()]).connect_error(peer);
    assert!(matches!(error, ConnectError::Other { reason, .. } if reason == first), "{error:?}");
    let inputs =
        vec![Input::lost(Loss::GaveUp, first), Input::lost(Loss::Path(None), second), Input::CompleteConnect];
    let error = failure(Scene::ConnectDone, inputs).connect_error(peer);
    assert!(matches!(error, ConnectError::Aborted { reason, .. } if reason == first), "{error:?}");
    let error = failure(Scene::Accepting, vec![Input::lost(Loss::Refused(None), first)]);
    let error = error.accept_error(peer, refusal());
    assert!(matches!(error, AcceptError::Refused { private_data: Some(_), reason, .. } if reason == first));
    let error = failure(Scene::RequestPending, vec![Input::Reject { data: 9, max_data: 8 }]);
    let error = error.accept_error(peer, None);
    assert!(matches!(error, AcceptError::InvalidBufferSize { length: 9, maximum: 8 }), "{error:?}");
}

/// Checks that a loss is kept for Disconnect, also one after it; the end of a connection about to end is none.
#[test]
fn a_loss_is_kept_for_disconnect() {
    let loss = (Status::REMOTE_ERROR, Reason::Errno(1));
    let cases = [
        (Scene::Connected, Some(loss.0), Some(loss)),
        (Scene::Disconnecting, Some(loss.0), Some(loss)),
        (Scene::Disconnecting, None, None),
    ];
    for (scene, status, expected) in cases {
        let (mut machine, _) = told(scene, &[]);
        assert!(machine.handle(Input::lost(Loss::Path(status), loss.1)).is_ok());
        assert_eq!(machine.loss(), expected, "{scene:?}");
    }
}

/// Checks that a bind that finds the device removed burns the connector, alone or within a connect.
#[test]
fn a_bind_that_finds_the_device_removed() {
    let now = Instant::now();
    let removed = || Input::lost(Loss::Unbound(Status::DEVICE_REMOVED), None);
    let mut idle = Scene::Idle.build(now);
    assert_eq!(seen(idle.handle(removed())), Err(Status::DEVICE_REMOVED));
    let mut connecting = Scene::Connecting.build(now);
    let finish = Action::Finish { op: Op::Connect, status: Status::DEVICE_REMOVED };
    assert_eq!(seen(connecting.handle(removed())), Ok(vec![Action::Abandon, finish]));
    for mut machine in [idle, connecting] {
        assert_eq!(machine.phase(), Phase::Dead);
        assert_eq!(seen(machine.handle(Input::Bind)), Err(Status::DEVICE_REMOVED));
    }
}

/// The machine with everything that a provider would have to keep straight.
struct Walker {
    machine: Connector,
    now: Instant,
    /// Calls that were accepted and not answered yet.
    pending: Vec<Op>,
    /// Whether there is a transport that was not let go.
    transport: bool,
    /// Whether the work requests of this transport were flushed.
    flushed: bool,
}

/// Returns the call that this kind makes, if it may be answered later.
fn op_of(kind: Kind) -> Option<Op> {
    match kind.input(Instant::now()) {
        Input::Connect { .. } => Some(Op::Connect),
        Input::CompleteConnect => Some(Op::CompleteConnect),
        Input::Accept { .. } => Some(Op::Accept),
        Input::NotifyDisconnect => Some(Op::NotifyDisconnect),
        Input::Disconnect { .. } => Some(Op::Disconnect),
        _ => None,
    }
}

/// Returns whether the specification lists the final status for the call, or these walks report it.
fn is_listed(op: Op, status: Status) -> bool {
    use Status as S;
    let common = [S::SUCCESS, S::CANCELED, S::DEVICE_REMOVED];
    let reported = [UNKNOWN, S::INSUFFICIENT_RESOURCES];
    let more: &[S] = match op {
        Op::Connect => &[
            S::NETWORK_UNREACHABLE,
            S::HOST_UNREACHABLE,
            S::CONNECTION_REFUSED,
            S::IO_TIMEOUT,
            S::SHARING_VIOLATION,
        ],
        Op::CompleteConnect => &[S::IO_TIMEOUT, S::CONNECTION_ABORTED],
        Op::Accept => &[S::CONNECTION_REFUSED, S::CONNECTION_ABORTED, S::IO_TIMEOUT],
        Op::Disconnect => &[S::IO_TIMEOUT],
        Op::NotifyDisconnect => &[],
    };
    let carries = matches!(op, Op::Connect | Op::CompleteConnect | Op::Accept);
    common.contains(&status) || more.contains(&status) || (carries && reported.contains(&status))
}

/// Returns whether the specification lists the inline error for the call, or these walks report it.
fn is_listed_inline(kind: Kind, status: Status) -> bool {
    use Status as S;
    let listed: &[S] = match kind.input(Instant::now()) {
        Input::Bind => &[S::ADDRESS_ALREADY_ASSOCIATED, S::INVALID_DEVICE_STATE],
        Input::Lost { loss: Loss::Unbound(reported), .. } => return status == reported,
        Input::Connect { .. } => &[S::INVALID_BUFFER_SIZE, S::CONNECTION_ACTIVE],
        // CANCELED: its queue pair was removed before. The last two are reports of the walks.
        Input::CompleteConnect => &[
            S::CONNECTION_INVALID,
            S::CONNECTION_ABORTED,
            S::IO_TIMEOUT,
            S::CANCELED,
            UNKNOWN,
            S::INSUFFICIENT_RESOURCES,
        ],
        Input::Accept { .. } => &[
            S::CONNECTION_INVALID,
            S::CONNECTION_ACTIVE,
            S::INVALID_BUFFER_SIZE,
            S::CONNECTION_ABORTED,
            UNKNOWN,
            S::INSUFFICIENT_RESOURCES,
        ],
        Input::Reject { .. } => &[S::CONNECTION_INVALID, S::INVALID_BUFFER_SIZE, S::CONNECTION_ABORTED],
        Input::NotifyDisconnect | Input::Disconnect { .. } => &[S::CONNECTION_INVALID],
        // Reports and cleanup never fail.
        _ => return false,
    };
    status == S::DEVICE_REMOVED || listed.contains(&status)
}

impl Walker {
    fn new(machine: Connector) -> Self {
        let transport = machine.phase() == Phase::RequestPending;
        Self { machine, now: Instant::now(), pending: Vec::new(), transport, flushed: false }
    }

    fn step(&mut self, kind: Kind) {
        let before = self.machine.phase();
        match step(&mut self.machine, self.now, kind) {
            Ok(actions) => {
                self.pending.extend(op_of(kind));
                self.carry_out(kind, &actions);
            }
            Err(status) => {
                assert!(is_listed_inline(kind, status), "{before:?} × {kind:?}: {status:?}");
                let same = self.machine.phase() == before;
                assert!(same || self.machine.phase() == Phase::Dead, "an error moved it");
            }
        }
        self.check();
    }

    fn start(&mut self) {
        assert!(!self.transport, "the last transport was not let go");
        (self.transport, self.flushed) = (true, false);
    }

    fn carry_out(&mut self, kind: Kind, actions: &[Action]) {
        for (at, action) in actions.iter().enumerate() {
            match action {
                Action::Finish { op, status } => {
                    assert!(is_listed(*op, *status), "{kind:?}: {op:?} {status:?}");
                    let before = self.pending.len();
                    self.pending.retain(|other| other != op);
                    let answered = before - self.pending.len();
                    assert!(answered == 1 || (answered > 0 && *op == Op::NotifyDisconnect), "{op:?} twice");
                    if *op == Op::NotifyDisconnect {
                        assert!(!actions[..at].contains(&Action::Flush), "told after the flush");
                    } else {
                        assert_eq!(at + 1, actions.len(), "{op:?} must be able to start anew: {actions:?}");
                    }
                }
                Action::StartConnect => self.start(),
                Action::RefusePeer | Action::Leave | Action::Abandon => {
                    assert!(self.transport, "{action:?} for nothing: {kind:?}");
                    self.transport = false;
                }
                Action::Flush => {
                    assert!(!self.flushed, "flushed twice");
                    self.flushed = true;
                }
                Action::StartComplete | Action::StartAccept | Action::StartDisconnect => {
                    assert!(self.transport);
                }
                Action::StartBind => assert_eq!(self.machine.phase(), Phase::Idle),
            }
        }
    }

    fn check(&mut self) {
        let phase = self.machine.phase();
        let mut expected: Vec<Op> = match phase {
            Phase::Connecting => vec![Op::Connect],
            Phase::Completing => vec![Op::CompleteConnect],
            Phase::Accepting => vec![Op::Accept],
            Phase::Disconnecting => vec![Op::Disconnect],
            Phase::Connected => self.pending.clone(),
            Phase::Idle
            | Phase::Bound
            | Phase::ConnectDone
            | Phase::PeerGone
            | Phase::Disconnected
            | Phase::RequestPending
            | Phase::Dead => vec![],
        };
        expected.retain(|op| phase != Phase::Connected || *op == Op::NotifyDisconnect);
        assert_eq!(self.pending, expected, "{phase:?}");
        let timed = matches!(phase, Phase::Connecting | Phase::Disconnecting);
        assert_eq!(self.machine.next_timeout().is_some(), timed, "{phase:?}");
        let readable = matches!(phase, Phase::ConnectDone | Phase::RequestPending);
        assert_eq!(self.machine.read_limits().is_ok(), readable, "{phase:?}");
        if matches!(phase, Phase::Connected | Phase::PeerGone | Phase::Disconnecting) {
            assert!(self.transport, "{phase:?}");
            assert_eq!(self.flushed, phase != Phase::Connected, "{phase:?}");
        }
    }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    // Half of the steps are those that lead deeper, or a walk would seldom get anywhere.
    prop_oneof![
        prop::sample::select(Kind::ALL),
        prop::sample::select(vec![
            Kind::Connect,
            Kind::PeerAccepted,
            Kind::CompleteConnect,
            Kind::CompleteDone,
            Kind::NotifyDisconnect,
            Kind::Disconnect,
            Kind::Accept,
            Kind::PeerCompleted,
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    // CAN-01, CAN-06, CAN-07, CAN-08, DIS-02, DIS-04, DIS-06, DIS-08, DIS-13: each accepted call is answered exactly
    // once, with a status of its list, and each transport is let go exactly once.
    #[test]
    fn every_call_is_answered_once(
        scene in prop::sample::select(Scene::ALL),
        walk in prop::collection::vec(any_kind(), 0..30),
        end in prop::sample::select(vec![Kind::Release, Kind::DeviceRemoved]),
    ) {
        let mut walker = Walker::new(scene.beginning());
        for kind in scene.recipe().into_iter().chain(walk).chain([end]) {
            walker.step(kind);
        }
        prop_assert_eq!(walker.machine.phase(), Phase::Dead);
        prop_assert!(walker.pending.is_empty());
        prop_assert!(!walker.transport, "the transport leaks");
    }

    // CM-12, DIS-14: inputs that are ignored do not move a deadline.
    #[test]
    fn deadlines_hold(
        scene in prop::sample::select(vec![Scene::Connecting, Scene::ConnectingBound, Scene::Disconnecting]),
        noise in prop::collection::vec(prop::sample::select(Kind::ALL), 0..10),
    ) {
        let start = Instant::now();
        let mut machine = scene.build(start);
        let phase = machine.phase();
        for kind in noise {
            let mut probe = scene.build(start);
            // Only what leaves the state alone: the rest ends the wait in a way of its own.
            drop(step(&mut probe, start, kind));
            if probe.phase() == phase {
                drop(step(&mut machine, start, kind));
            }
        }
        prop_assert_eq!((machine.phase(), machine.next_timeout()), (phase, Some(start + PATIENCE)));
        let actions = step(&mut machine, start + PATIENCE, Kind::TimedOut).unwrap();
        let op = if phase == Phase::Connecting { Op::Connect } else { Op::Disconnect };
        let finish = Action::Finish { op, status: Status::IO_TIMEOUT };
        prop_assert_eq!(actions.last(), Some(&finish));
    }
}
