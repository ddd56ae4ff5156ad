//! The stories that everybody expects, told from both ends.

use super::*;
use crate::proto::connector::{Ending, Input};
use crate::status::Status as S;

impl Pair {
    /// The passive end holds a request.
    pub(super) fn requested(setup: Setup) -> Self {
        let mut pair = Self::new(setup);
        pair.act(PASSIVE, Act::Fetch).expect("a listener");
        pair.act(ACTIVE, CONNECT).expect("a new connector");
        pair.run();
        assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::Connecting, State::RequestPending]);
        pair
    }

    /// The active end knows that it was accepted.
    pub(super) fn accepted(setup: Setup) -> Self {
        let mut pair = Self::requested(setup);
        pair.act(PASSIVE, ACCEPT).expect("a request");
        pair.run();
        assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::ConnectDone, State::Accepting]);
        assert_eq!(pair.last(ACTIVE, Op::Connect), Some(S::SUCCESS));
        pair
    }

    /// Both ends are connected.
    pub(super) fn connected(setup: Setup) -> Self {
        let mut pair = Self::accepted(setup);
        pair.act(ACTIVE, Act::Complete).expect("an accepted connect");
        pair.run();
        assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::Connected; 2]);
        assert_eq!(pair.last(ACTIVE, Op::CompleteConnect), Some(S::SUCCESS));
        assert_eq!(pair.last(PASSIVE, Op::Accept), Some(S::SUCCESS));
        pair
    }

    /// The data that the peer sent, as this end shows it.
    fn data(&self, end: usize) -> Option<usize> {
        self.ends[end].machine.private_data().ok().map(|data| data.len())
    }
}

/// A world whose users look only when they call.
pub(super) fn inattentive() -> Setup {
    Setup { watchful: [false; 2], ..Setup::default() }
}

// CM-08, CM-09, LS-12, LS-13, LS-24: Accept waits for CompleteConnect, for as long as that takes.
#[test]
fn three_phases() {
    let mut pair = Pair::accepted(Setup::default());
    assert_eq!(
        [pair.data(ACTIVE), pair.wires[0].sockets[0].was.sent.as_ref().map(Bytes::len)],
        [Some(30), Some(20)]
    );
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.last(PASSIVE, Op::Accept), None);
    pair.act(ACTIVE, Act::Complete).expect("an accepted connect");
    pair.run();
    assert_eq!(pair.last(PASSIVE, Op::Accept), Some(S::SUCCESS));
    for end in [ACTIVE, PASSIVE, PASSIVE] {
        pair.act(end, Act::Send).expect("a connection");
    }
    pair.run();
    assert_eq!(pair.wires[0].sockets.each_ref().map(|socket| socket.was.messages), [2, 1]);
    pair.check_end();
}

// NEG-01, NEG-02, NEG-03: whatever is asked, both ends hold the same two numbers. The checks know which.
#[test]
fn every_pair_of_limits() {
    const STEPS: [u32; 6] = [0, 1, 16, 17, 0x3fff, u32::MAX];
    let adapters = [ReadLimits::new(16, 4), ReadLimits::new(u32::MAX, 0x3fff)];
    for (asked_a, asked_p) in STEPS.iter().flat_map(|&a| STEPS.map(|p| (a, p))) {
        for [here, there] in [[0, 1], [1, 0], [1, 1]] {
            let adapter = [adapters[here], adapters[there]];
            let mut pair = Pair::new(Setup { adapter, ..Setup::default() });
            let (a, p) = (ReadLimits::new(asked_a, 5), ReadLimits::new(7, asked_p));
            pair.act(PASSIVE, Act::Fetch).expect("a listener");
            pair.act(ACTIVE, Act::Connect { data: 0, limits: a, patience: None, busy: false }).expect("new");
            pair.run();
            pair.act(PASSIVE, Act::Accept { data: 0, limits: p, busy: false }).expect("a request");
            pair.run();
            pair.act(ACTIVE, Act::Complete).expect("an accepted connect");
            pair.run();
            assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::Connected; 2]);
            pair.check_end();
        }
    }
}

// PD-01, PD-02, PD-03: every length, in pieces of every size; what is shown is checked by the harness.
#[test]
fn private_data_arrives() {
    for (length, chunk) in
        [0, 1, 255, 508].into_iter().flat_map(|length| [1, 19, 4096].map(|chunk| (length, chunk)))
    {
        for accepts in [true, false] {
            let manner = Manner { latency: ms(1), chunk, gap: Duration::from_nanos(10) };
            let mut pair = Pair::new(Setup { manner, ..Setup::default() });
            let limits = ReadLimits::default();
            pair.act(ACTIVE, Act::Connect { data: length, limits, patience: None, busy: false })
                .expect("new");
            pair.act(PASSIVE, Act::Fetch).expect("a listener");
            pair.run();
            assert_eq!(pair.data(PASSIVE), Some(length));
            let answer = if accepts {
                Act::Accept { data: length, limits, busy: false }
            } else {
                Act::Reject { data: length }
            };
            pair.act(PASSIVE, answer).expect("a request");
            pair.run();
            assert_eq!(pair.state(ACTIVE), if accepts { State::ConnectDone } else { State::Idle });
            let was = &pair.wires[0].sockets[1].was;
            let sent = if accepts { &was.sent } else { &was.reject };
            assert_eq!(pair.ends[ACTIVE].machine.private_data().ok().map(|data| &**data), sent.as_deref());
            pair.check_end();
        }
    }
}

// PD-04, CM-22: a mistake of the caller costs nothing, at either end.
#[test]
fn a_mistake_can_be_mended() {
    let limits = ReadLimits::default();
    let mut pair = Pair::new(Setup::default());
    pair.act(PASSIVE, Act::Fetch).expect("a listener");
    for (data, busy, status) in [(509, false, S::INVALID_BUFFER_SIZE), (0, true, S::CONNECTION_ACTIVE)] {
        let act = Act::Connect { data, limits, patience: None, busy };
        assert_eq!(pair.act(ACTIVE, act), Err(status));
    }
    pair.act(ACTIVE, CONNECT).expect("unharmed");
    pair.run();
    for (data, busy, status) in [(509, false, S::INVALID_BUFFER_SIZE), (0, true, S::CONNECTION_ACTIVE)] {
        assert_eq!(pair.act(PASSIVE, Act::Accept { data, limits, busy }), Err(status));
    }
    assert_eq!(pair.act(PASSIVE, Act::Reject { data: 509 }), Err(S::INVALID_BUFFER_SIZE));
    pair.act(PASSIVE, ACCEPT).expect("unharmed");
    pair.run();
    assert_eq!(pair.act(ACTIVE, Act::Reject { data: 509 }), Err(S::INVALID_BUFFER_SIZE));
    pair.act(ACTIVE, Act::Complete).expect("unharmed");
    pair.run();
    assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::Connected; 2]);
    pair.check_end();
}

// CM-15, CM-16, CM-17, CM-19, LS-04, LS-17, LS-22, PD-03: every way to be turned away, and then a success.
#[test]
fn turned_away_and_tried_again() {
    let bound = Setup { backlog: 1, ..Setup::default() };
    let mut pair = Pair::new(bound);
    pair.act(ACTIVE, Act::Bind).expect("a new connector");
    let attempt = |pair: &mut Pair, status, data| {
        let _ = pair.act(ACTIVE, CONNECT);
        pair.run();
        if pair.state(PASSIVE) == State::RequestPending {
            pair.act(PASSIVE, if data == Some(77) { Act::Reject { data: 77 } } else { Act::Release })
                .expect("no");
            pair.run();
        }
        assert_eq!((pair.last(ACTIVE, Op::Connect), pair.data(ACTIVE)), (Some(status), data));
        assert_eq!(pair.state(ACTIVE), State::Bound);
    };
    for network in [true, false] {
        pair.setup.road = Road::None { network };
        attempt(&mut pair, if network { S::NETWORK_UNREACHABLE } else { S::HOST_UNREACHABLE }, None);
    }
    pair.setup.road = Road::NoPort;
    attempt(&mut pair, S::TOO_MANY_ADDRESSES, None);
    // Its place in the backlog is taken by one that nobody fetches.
    let other = pair.add_end(0);
    pair.act(other, CONNECT).expect("a new connector");
    pair.run();
    attempt(&mut pair, S::CONNECTION_REFUSED, Some(0));
    pair.act(other, Act::Release).expect("a release");
    pair.run();
    // What has gone makes room: the next one is queued, and turned away by the user.
    for data in [77, 0] {
        pair.act(ACTIVE, CONNECT).expect("unharmed");
        pair.run();
        pair.act(PASSIVE, Act::Fetch).expect("a listener");
        pair.run();
        attempt(&mut pair, S::CONNECTION_REFUSED, Some(data));
    }
    pair.act(PASSIVE, Act::CloseListener).expect("a listener");
    attempt(&mut pair, S::CONNECTION_REFUSED, None);
    pair.act(PASSIVE, Act::Listen).expect("a port");
    pair.act(PASSIVE, Act::Fetch).expect("a listener");
    pair.act(ACTIVE, CONNECT).expect("unharmed");
    pair.run();
    pair.act(PASSIVE, ACCEPT).expect("a request");
    pair.run();
    assert_eq!(pair.last(ACTIVE, Op::Connect), Some(S::SUCCESS));
    pair.check_end();
}

// CM-12, CM-18: nobody answers. The caller's patience ends to the instant, and without any nothing ends it.
#[test]
fn nobody_answers() {
    for watchful in [[true; 2], [false; 2]] {
        let mut pair = Pair::new(Setup { watchful, ..Setup::default() });
        let limits = ReadLimits::default();
        pair.act(ACTIVE, Act::Connect { data: 0, limits, patience: Some(ms(500)), busy: false })
            .expect("new");
        pair.act(PASSIVE, Act::BlackHole).expect("a fault");
        pair.act(ACTIVE, Act::BlackHole).expect("a fault");
        pair.run_for(ms(499));
        assert_eq!(pair.last(ACTIVE, Op::Connect), None);
        pair.run_for(ms(1));
        assert_eq!((pair.last(ACTIVE, Op::Connect), pair.state(ACTIVE)), (Some(S::IO_TIMEOUT), State::Idle));
        pair.act(ACTIVE, CONNECT).expect("unharmed");
        pair.run();
        pair.run_for(Duration::from_secs(1_000));
        assert_eq!(pair.last(ACTIVE, Op::Connect), None);
        pair.check_end();
    }
}

// CM-12, CM-21: an attempt without any patience, of a connector that came after one whose queue pair was flushed.
#[test]
fn no_patience_with_a_new_connector() {
    let hurried =
        Act::Connect { data: 0, limits: ReadLimits::default(), patience: Some(Duration::ZERO), busy: false };
    for end in [ACTIVE, PASSIVE] {
        for (leaves, left) in [(DISCONNECT, State::Disconnected), (Act::Release, State::Dead)] {
            let mut pair = Pair::connected(Setup::default());
            pair.act(end, leaves).expect("connected");
            pair.run();
            assert_eq!(pair.state(end), left);
            // The new one waits for a request, and then does not.
            pair.act(end, Act::Fetch).expect("a listener");
            pair.act(end, Act::Cancel).expect("it waits");
            for _ in 0..2 {
                pair.act(end, hurried).expect("a new connector");
                assert_eq!(
                    (pair.last(end, Op::Connect), pair.state(end)),
                    (Some(S::IO_TIMEOUT), State::Idle)
                );
            }
            assert_eq!(pair.wires.len(), 1, "the peer could not hear of it");
            pair.check_end();
        }
    }
}

// X1, CM-24, LS-15: the active end leaves after Connect. A no is a refusal, silence is an abort.
#[test]
fn the_active_end_leaves_before_it_completes() {
    let cases = [
        (Act::Reject { data: 9 }, S::CONNECTION_REFUSED),
        (Act::Release, S::CONNECTION_REFUSED),
        (Act::Cancel, S::CONNECTION_REFUSED),
        (Act::QueuePairRemoved, S::CONNECTION_REFUSED),
        (Act::TimedOut, S::CONNECTION_REFUSED),
        (Act::DeviceRemoved, S::CONNECTION_ABORTED),
        (Act::PathLost, S::CONNECTION_ABORTED),
        (Act::Reset, S::CONNECTION_ABORTED),
        (Act::Close, S::CONNECTION_ABORTED),
    ];
    for ((act, status), chunk) in cases.into_iter().flat_map(|case| [1, 4096].map(|chunk| (case, chunk))) {
        let manner = Manner { chunk, ..Setup::default().manner };
        let mut pair = Pair::accepted(Setup { manner, ..Setup::default() });
        pair.act(ACTIVE, act).expect("an act");
        pair.run();
        assert_eq!(pair.last(PASSIVE, Op::Accept), Some(status), "{act:?}");
        assert_eq!(pair.state(PASSIVE), State::Dead);
        pair.check_end();
    }
}

// CM-28, P16: the passive end leaves after Accept. Noticed before, the call is not accepted; else it fails.
#[test]
fn the_passive_end_leaves_before_the_other_completes() {
    let acts =
        [Act::Release, Act::Cancel, Act::QueuePairRemoved, Act::DeviceRemoved, Act::Failed, Act::Reset];
    for act in acts {
        let mut pair = Pair::accepted(Setup::default());
        pair.act(PASSIVE, act).expect("an act");
        pair.run();
        assert!(pair.data(ACTIVE).is_some(), "what it sent may still be read");
        assert_eq!(pair.act(ACTIVE, Act::Complete), Err(S::CONNECTION_ABORTED), "{act:?}");
        pair.check_end();
        let mut pair = Pair::accepted(inattentive());
        pair.act(PASSIVE, act).expect("an act");
        pair.run();
        pair.act(ACTIVE, Act::Complete).expect("nobody looked");
        assert_eq!(pair.last(ACTIVE, Op::CompleteConnect), Some(S::CONNECTION_ABORTED), "{act:?}");
        assert_eq!(pair.state(ACTIVE), State::Dead);
        pair.check_end();
    }
}

// DIS-01, DIS-02, DIS-13, DIS-11: one end leaves, the other is told, and says goodbye in its turn.
#[test]
fn one_end_leaves() {
    let orderly = [DISCONNECT, Act::Release, Act::QueuePairRemoved];
    let broken = [Act::DeviceRemoved, Act::PathLost, Act::Failed, Act::Reset];
    for (leaves, stays) in [(ACTIVE, PASSIVE), (PASSIVE, ACTIVE)] {
        for act in orderly.into_iter().chain(broken) {
            let mut pair = Pair::connected(Setup::default());
            pair.act(stays, Act::Notify).expect("connected");
            pair.act(stays, Act::Notify).expect("twice is allowed");
            pair.act(leaves, act).expect("an act");
            pair.run();
            assert_eq!(pair.last(stays, Op::NotifyDisconnect), Some(S::SUCCESS), "{act:?}");
            let ending = if orderly.contains(&act) { Ending::Peer } else { Ending::Lost };
            assert_eq!(pair.ends[stays].machine.ending(), Some(ending), "{act:?}");
            if act == DISCONNECT {
                assert_eq!(pair.last(leaves, Op::Disconnect), Some(S::SUCCESS));
            }
            assert_eq!(pair.state(stays), State::PeerGone);
            pair.act(stays, DISCONNECT).expect("still owed");
            assert_eq!(pair.last(stays, Op::Disconnect), Some(S::SUCCESS));
            pair.check_end();
        }
    }
}

// DIS-14: a disconnect that nobody answers is over when its deadline is.
#[test]
fn an_unanswered_disconnect() {
    for end in [ACTIVE, PASSIVE] {
        let mut pair = Pair::connected(Setup::default());
        pair.act(end, Act::BlackHole).expect("a fault");
        pair.act(end, DISCONNECT).expect("connected");
        pair.run_for(ms(999));
        assert_eq!(pair.last(end, Op::Disconnect), None);
        pair.run_for(ms(1));
        assert_eq!(pair.last(end, Op::Disconnect), Some(S::IO_TIMEOUT));
        // The other has not heard a word of it.
        assert_eq!(pair.state(1 - end), State::Connected);
        pair.check_end();
    }
}

// NEG-07: an initiator of revision 1 sends no first frame, so Accept is over when the reply is out.
#[test]
fn a_plain_initiator() {
    let mut pair = Pair::requested(Setup { plain: true, ..Setup::default() });
    pair.act(PASSIVE, ACCEPT).expect("a request");
    assert_eq!(pair.last(PASSIVE, Op::Accept), Some(S::SUCCESS));
    pair.run();
    assert_eq!(pair.state(ACTIVE), State::ConnectDone);
    pair.act(ACTIVE, Act::Complete).expect("accepted");
    pair.act(ACTIVE, Act::Send).expect("connected");
    pair.run();
    assert_eq!(pair.wires[0].sockets[1].was.messages, 1);
    pair.check_end();
    // Its user's no comes when the other end is connected already.
    let mut pair = Pair::requested(Setup { plain: true, ..Setup::default() });
    pair.act(PASSIVE, ACCEPT).expect("a request");
    pair.run();
    pair.act(ACTIVE, Act::Reject { data: 0 }).expect("accepted");
    pair.run();
    assert_eq!(pair.state(PASSIVE), State::PeerGone);
    pair.check_end();
}

// DIS-08: the connector itself takes no notice of a report that comes after its own end.
#[test]
fn a_late_indication() {
    for end in [ACTIVE, PASSIVE] {
        let mut pair = Pair::connected(Setup::default());
        pair.act(end, DISCONNECT).expect("connected");
        pair.run();
        for late in [Input::PeerDisconnected, Input::PathLost, Input::DisconnectAnswered, Input::TimedOut] {
            pair.report(end, late);
        }
        assert_eq!(pair.state(end), State::Disconnected);
        pair.check_end();
    }
}
