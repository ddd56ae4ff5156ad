//! Two things happen at once: each race is run both ways round.

use super::stories::inattentive;
use super::*;
use crate::proto::connector::Ending;
use crate::status::Status as S;

/// The act comes first.
const ACT_FIRST: [Turn; 4] = [Turn::Act, Turn::Arrival, Turn::Own, Turn::Deadline];
/// Everything else comes first.
const ACT_LAST: [Turn; 4] = [Turn::Arrival, Turn::Own, Turn::Deadline, Turn::Act];

/// How long everything is under way in these stories.
const LATENCY: Duration = ms(10);

/// The plain world with this order of things.
fn ordered(order: [Turn; 4]) -> Setup {
    Setup { order, ..Setup::default() }
}

/// An end whose call is about to succeed, one latency from now.
fn about_to_succeed(op: Op, order: [Turn; 4]) -> (Pair, usize) {
    let setup = ordered(order);
    match op {
        Op::Connect => {
            let mut pair = Pair::requested(setup);
            pair.act(PASSIVE, ACCEPT).expect("a request");
            (pair, ACTIVE)
        }
        Op::CompleteConnect => {
            let mut pair = Pair::accepted(Setup { complete: [Duration::ZERO, LATENCY], ..setup });
            pair.act(ACTIVE, Act::Complete).expect("accepted");
            (pair, ACTIVE)
        }
        Op::Accept => {
            let mut pair = Pair::accepted(setup);
            pair.act(ACTIVE, Act::Complete).expect("accepted");
            (pair, PASSIVE)
        }
        Op::NotifyDisconnect => {
            let mut pair = Pair::connected(setup);
            pair.act(ACTIVE, Act::Notify).expect("connected");
            pair.act(PASSIVE, DISCONNECT).expect("connected");
            (pair, ACTIVE)
        }
        Op::Disconnect => {
            let mut pair = Pair::connected(setup);
            pair.act(ACTIVE, DISCONNECT).expect("connected");
            pair.run_for(LATENCY);
            (pair, ACTIVE)
        }
    }
}

/// Every call that may be answered later.
const OPS: [Op; 5] = [Op::Connect, Op::CompleteConnect, Op::Accept, Op::NotifyDisconnect, Op::Disconnect];

// Races 1 and 8; CAN-01, CAN-06, C15: a call that is ended and succeeds at the same instant has one result.
#[test]
fn every_call_against_cancel_and_removal() {
    let ends =
        [(Act::Cancel, S::CANCELED), (Act::DeviceRemoved, S::DEVICE_REMOVED), (Act::Release, S::CANCELED)];
    for (op, (act, status)) in OPS.into_iter().flat_map(|op| ends.map(|end| (op, end))) {
        for (order, expected) in [(ACT_FIRST, status), (ACT_LAST, S::SUCCESS)] {
            let (mut pair, end) = about_to_succeed(op, order);
            assert_eq!(pair.last(end, op), None);
            pair.later(LATENCY, end, act);
            pair.run_for(LATENCY);
            assert_eq!(pair.last(end, op), Some(expected), "{op:?} {act:?}");
            let finished = pair.ends[end].finished.iter().filter(|(other, _)| *other == op).count();
            assert_eq!(finished, 1, "{op:?} {act:?}");
            if act == Act::DeviceRemoved {
                assert_eq!(pair.act(end, Act::Notify), Err(S::DEVICE_REMOVED));
            }
            pair.check_end();
        }
    }
}

// Race 1; CAN-03, X1: the peer of a cancelled connect. Before the reply it saw someone vanish, after it a no.
#[test]
fn a_cancelled_connect_at_the_other_end() {
    for act in [Act::Cancel, Act::Release] {
        for (order, status) in [(ACT_FIRST, S::CONNECTION_ABORTED), (ACT_LAST, S::CONNECTION_REFUSED)] {
            let (mut pair, _) = about_to_succeed(Op::Connect, order);
            pair.later(LATENCY, ACTIVE, act);
            pair.run();
            assert_eq!(pair.state(ACTIVE), State::Dead);
            assert_eq!(pair.last(PASSIVE, Op::Accept), Some(status), "{act:?}");
            pair.check_end();
        }
    }
    // A connect is cancelled at every instant on its way: the peer never keeps it.
    for at in 0..60 {
        let mut pair = Pair::new(Setup::default());
        pair.reactions =
            vec![Reaction { end: PASSIVE, state: State::RequestPending, after: ms(5), act: ACCEPT }];
        pair.act(PASSIVE, Act::Fetch).expect("a listener");
        pair.act(ACTIVE, CONNECT).expect("new");
        pair.later(ms(at), ACTIVE, Act::Cancel);
        pair.run();
        let expected = if at <= 44 { S::CANCELED } else { S::SUCCESS };
        assert_eq!(pair.last(ACTIVE, Op::Connect), Some(expected), "after {at} ms");
        assert!(!matches!(pair.state(PASSIVE), State::Accepting | State::Connected), "after {at} ms");
        pair.check_end();
    }
}

// Race 2; CAN-04: an accept that nobody waits for any more is undone, complete or not.
#[test]
fn a_dropped_accept_after_the_peer_completed() {
    let cases = [(ACT_FIRST, S::CANCELED, Ending::Lost), (ACT_LAST, S::SUCCESS, Ending::Peer)];
    for (order, status, ending) in cases {
        let (mut pair, _) = about_to_succeed(Op::Accept, order);
        pair.act(ACTIVE, Act::Notify).expect("connected");
        pair.later(LATENCY, PASSIVE, Act::Release);
        pair.run();
        assert_eq!(pair.last(PASSIVE, Op::Accept), Some(status));
        assert_eq!(pair.last(ACTIVE, Op::NotifyDisconnect), Some(S::SUCCESS));
        assert_eq!((pair.state(ACTIVE), pair.ends[ACTIVE].machine.ending()), (State::PeerGone, Some(ending)));
        pair.check_end();
    }
}

// CAN-05: a cancel that comes after the success does not hurt the connection.
#[test]
fn a_late_cancel_hurts_nobody() {
    for op in [Op::Accept, Op::CompleteConnect] {
        let (mut pair, end) = about_to_succeed(op, ACT_LAST);
        pair.later(LATENCY, end, Act::Cancel);
        pair.run();
        assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::Connected; 2]);
        pair.check_end();
    }
}

// LS-14: data right behind the first frame is delivered.
#[test]
fn data_right_behind_the_first_frame() {
    let mut pair = Pair::accepted(Setup::default());
    pair.act(ACTIVE, Act::Complete).expect("accepted");
    pair.act(ACTIVE, Act::Send).expect("connected");
    pair.run();
    assert_eq!(pair.last(PASSIVE, Op::Accept), Some(S::SUCCESS));
    assert_eq!(pair.wires[0].sockets[1].was.messages, 1);
    pair.check_end();
}

// Race 4; DIS-03: the peer leaves before or after somebody asks to be told.
#[test]
fn a_disconnect_against_the_first_notify() {
    for act in [DISCONNECT, Act::Release, Act::PathLost] {
        for order in [ACT_FIRST, ACT_LAST] {
            let mut pair = Pair::connected(ordered(order));
            pair.act(PASSIVE, act).expect("connected");
            pair.later(LATENCY, ACTIVE, Act::Notify);
            pair.run();
            assert_eq!(pair.last(ACTIVE, Op::NotifyDisconnect), Some(S::SUCCESS), "{act:?}");
            pair.check_end();
        }
    }
}

// Race 4; CM-28: the peer connects and leaves while CompleteConnect is still on its way back to its caller.
#[test]
fn a_disconnect_against_complete_connect() {
    let own_first = [Turn::Own, Turn::Arrival, Turn::Deadline, Turn::Act];
    for (order, status) in [(own_first, S::SUCCESS), (ACT_LAST, S::CONNECTION_ABORTED)] {
        let mut pair = Pair::accepted(Setup { complete: [Duration::ZERO, 2 * LATENCY], ..ordered(order) });
        pair.reactions =
            vec![Reaction { end: PASSIVE, state: State::Connected, after: Duration::ZERO, act: DISCONNECT }];
        pair.act(ACTIVE, Act::Complete).expect("accepted");
        pair.run();
        assert_eq!(pair.last(ACTIVE, Op::CompleteConnect), Some(status));
        assert_eq!(pair.last(PASSIVE, Op::Accept), Some(S::SUCCESS));
        assert_eq!(pair.last(PASSIVE, Op::Disconnect), Some(S::SUCCESS));
        pair.check_end();
    }
}

// Race 5; LS-07, LS-22: what nobody fetched goes with the listener, what was fetched stays.
#[test]
fn a_listener_closes() {
    // The request arrives, and at the same instant the listener closes.
    for (order, data) in [(ACT_FIRST, None), (ACT_LAST, Some(0))] {
        let mut pair = Pair::new(ordered(order));
        pair.act(ACTIVE, CONNECT).expect("new");
        pair.later(3 * LATENCY, PASSIVE, Act::CloseListener);
        pair.run();
        assert_eq!(pair.last(ACTIVE, Op::Connect), Some(S::CONNECTION_REFUSED));
        let shown = pair.ends[ACTIVE].machine.private_data().ok().map(|data| data.len());
        assert_eq!(shown, data, "a whole request is answered");
        pair.check_end();
    }
    // The request is queued; it is fetched and the listener closes, or the other way round.
    for fetched in [true, false] {
        let mut pair = Pair::new(Setup::default());
        pair.act(ACTIVE, CONNECT).expect("new");
        pair.run();
        let acts = if fetched { [Act::Fetch, Act::CloseListener] } else { [Act::CloseListener, Act::Fetch] };
        let answers = acts.map(|act| pair.act(PASSIVE, act));
        pair.run();
        if fetched {
            pair.act(PASSIVE, ACCEPT).expect("it was fetched");
            pair.run();
            pair.act(ACTIVE, Act::Complete).expect("accepted");
            pair.run();
            assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::Connected; 2]);
        } else {
            assert_eq!(answers[1], Err(S::INVALID_DEVICE_STATE));
            assert_eq!(pair.last(ACTIVE, Op::Connect), Some(S::CONNECTION_REFUSED));
        }
        pair.check_end();
    }
    // Somebody waits when the request arrives, and the listener closes or the wait is cancelled.
    for act in [Act::CloseListener, Act::Cancel] {
        for (order, expected) in [(ACT_FIRST, State::Idle), (ACT_LAST, State::RequestPending)] {
            let mut pair = Pair::new(ordered(order));
            pair.act(PASSIVE, Act::Fetch).expect("a listener");
            pair.act(ACTIVE, CONNECT).expect("new");
            pair.later(3 * LATENCY, PASSIVE, act);
            pair.run();
            assert!(pair.ends[PASSIVE].waiter.is_none(), "{act:?}");
            assert_eq!(pair.state(PASSIVE), expected, "{act:?}");
            pair.check_end();
        }
    }
}

// Race 6; LS-15, LS-18: the peer dies while its request waits for a decision, noticed in time or not.
#[test]
fn the_peer_dies_before_the_decision() {
    let deaths = [Act::Cancel, Act::Release, Act::DeviceRemoved, Act::PathLost, Act::Reset, Act::Close];
    for death in deaths {
        // The news arrives first, and somebody looks.
        let told = |answer| {
            let mut pair = Pair::requested(Setup::default());
            pair.act(ACTIVE, death).expect("an act");
            pair.run();
            assert_eq!(pair.state(PASSIVE), State::RequestPending, "nobody asked yet");
            assert_eq!(pair.act(PASSIVE, answer), Err(S::CONNECTION_ABORTED), "{death:?} {answer:?}");
            assert_eq!(pair.state(PASSIVE), State::Dead);
            pair.check_end();
        };
        told(ACCEPT);
        told(Act::Reject { data: 3 });
        // The news arrives first and nobody looks, or it arrives later.
        for (setup, order) in [(inattentive(), ACT_LAST), (Setup::default(), ACT_FIRST)] {
            let mut pair = Pair::requested(Setup { order, ..setup });
            pair.act(ACTIVE, death).expect("an act");
            pair.later(
                if death == Act::Reset || death == Act::Close { Duration::ZERO } else { LATENCY },
                PASSIVE,
                ACCEPT,
            );
            pair.run();
            assert_eq!(pair.last(PASSIVE, Op::Accept), Some(S::CONNECTION_ABORTED), "{death:?}");
            pair.check_end();
        }
    }
}

// Race 7; CM-29: each side connects to the other. There are two connections, until one side declines one.
#[test]
fn both_sides_connect() {
    for (lead, both) in [(0, true), (0, false), (7, false), (40, false)] {
        let mut pair = Pair::new(Setup::default());
        let [passive, active] = [pair.add_end(0), pair.add_end(1)];
        for end in [PASSIVE, passive] {
            pair.act(end, Act::Fetch).expect("a listener");
        }
        pair.act(ACTIVE, CONNECT).expect("new");
        pair.later(ms(lead), active, CONNECT);
        pair.run();
        assert_eq!([pair.state(PASSIVE), pair.state(passive)], [State::RequestPending; 2]);
        // The higher rank is the one that accepts.
        pair.act(PASSIVE, ACCEPT).expect("a request");
        pair.act(passive, if both { ACCEPT } else { Act::Reject { data: 1 } }).expect("a request");
        pair.run();
        pair.act(ACTIVE, Act::Complete).expect("accepted");
        if both {
            pair.act(active, Act::Complete).expect("accepted");
            pair.run();
            assert!(pair.ends.iter().all(|end| end.machine.state() == State::Connected));
            pair.act(ACTIVE, Act::Release).expect("connected");
        } else {
            pair.run();
            assert_eq!(pair.last(active, Op::Connect), Some(S::CONNECTION_REFUSED));
            assert_eq!([pair.state(ACTIVE), pair.state(PASSIVE)], [State::Connected; 2]);
        }
        pair.run();
        if both {
            assert_eq!([pair.state(active), pair.state(passive)], [State::Connected; 2], "independent");
        }
        pair.check_end();
    }
}

// C9; DIS-07: both ends disconnect before they hear of each other, at the same instant or nearly so.
#[test]
fn both_sides_disconnect() {
    for (eager, apart) in
        [false, true].into_iter().flat_map(|eager| (0..=10).map(move |apart| (eager, apart)))
    {
        for (first, order) in [(ACTIVE, ACT_FIRST), (PASSIVE, ACT_FIRST), (ACTIVE, ACT_LAST)] {
            let mut pair = Pair::connected(Setup { eager, ..ordered(order) });
            for end in [ACTIVE, PASSIVE] {
                pair.act(end, Act::Notify).expect("connected");
            }
            pair.act(first, DISCONNECT).expect("connected");
            pair.later(ms(apart), 1 - first, DISCONNECT);
            pair.run();
            for end in [ACTIVE, PASSIVE] {
                assert_eq!(pair.last(end, Op::Disconnect), Some(S::SUCCESS), "{apart} ms apart");
                assert_eq!(pair.last(end, Op::NotifyDisconnect), Some(S::SUCCESS));
                assert_eq!(pair.state(end), State::Disconnected);
            }
            pair.check_end();
        }
    }
}

// CM-12: the reply and the end of the caller's patience, at the same instant.
#[test]
fn a_reply_against_the_deadline() {
    let deadline_first = [Turn::Deadline, Turn::Arrival, Turn::Own, Turn::Act];
    for (order, status) in [(deadline_first, S::IO_TIMEOUT), (ACT_LAST, S::SUCCESS)] {
        let mut pair = Pair::new(ordered(order));
        let limits = ReadLimits::default();
        pair.reactions =
            vec![Reaction { end: PASSIVE, state: State::RequestPending, after: Duration::ZERO, act: ACCEPT }];
        pair.act(PASSIVE, Act::Fetch).expect("a listener");
        pair.act(ACTIVE, Act::Connect { data: 0, limits, patience: Some(4 * LATENCY), busy: false })
            .expect("new");
        pair.run();
        assert_eq!(pair.last(ACTIVE, Op::Connect), Some(status));
        if status == S::IO_TIMEOUT {
            assert_eq!((pair.state(ACTIVE), pair.state(PASSIVE)), (State::Idle, State::Dead));
            assert_eq!(pair.last(PASSIVE, Op::Accept), Some(S::CONNECTION_ABORTED));
        }
        pair.check_end();
    }
}
