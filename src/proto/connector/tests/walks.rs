//! Random walks: whatever happens in whatever order, the promises of the module's docs hold.

use proptest::prelude::*;

use super::*;

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
