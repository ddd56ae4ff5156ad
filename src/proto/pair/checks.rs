//! What must be true of every story, at each answer, at rest and at the end.

use super::{Act, Owner, Pair, Place, Request, Wire};
use crate::proto::connector::{Op, State};
use crate::proto::listener::{self, Listener};
use crate::proto::mpa::{MAX_LIMIT, Rtr};
use crate::status::Status;
use crate::types::ReadLimits;

/// A listener that is ready for requests.
pub(super) fn listening(backlog: usize) -> Listener<Request> {
    let mut listener = Listener::new();
    listener.bound().expect("a new listener");
    listener.listen(backlog).expect("a bound listener");
    listener
}

/// What a call may end with. `UNSUCCESSFUL` is what these stories have a provider fail with.
fn may_end(op: Op, status: Status) -> bool {
    use Status as S;
    let more: &[S] = match op {
        Op::Connect => &[
            S::NETWORK_UNREACHABLE,
            S::HOST_UNREACHABLE,
            S::CONNECTION_REFUSED,
            S::IO_TIMEOUT,
            S::TOO_MANY_ADDRESSES,
            S::UNSUCCESSFUL,
        ],
        Op::CompleteConnect => &[S::IO_TIMEOUT, S::CONNECTION_ABORTED, S::UNSUCCESSFUL],
        Op::Accept => &[S::CONNECTION_REFUSED, S::CONNECTION_ABORTED, S::IO_TIMEOUT, S::UNSUCCESSFUL],
        Op::Disconnect => &[S::IO_TIMEOUT],
        Op::NotifyDisconnect => &[],
    };
    [S::SUCCESS, S::CANCELED, S::DEVICE_REMOVED].contains(&status) || more.contains(&status)
}

/// A call was refused inline: with a status of its list, and without a trace.
pub(super) fn inline(pair: &Pair, end: usize, act: Act, before: State, status: Status) {
    use Status as S;
    let listed: &[S] = match act {
        Act::Bind => &[S::ADDRESS_ALREADY_ASSOCIATED, S::INVALID_DEVICE_STATE],
        Act::Connect { .. } => &[S::INVALID_BUFFER_SIZE, S::CONNECTION_ACTIVE],
        Act::Complete => {
            &[S::CONNECTION_INVALID, S::CONNECTION_ABORTED, S::IO_TIMEOUT, S::CANCELED, S::UNSUCCESSFUL]
        }
        Act::Accept { .. } => &[
            S::CONNECTION_INVALID,
            S::CONNECTION_ACTIVE,
            S::INVALID_BUFFER_SIZE,
            S::CONNECTION_ABORTED,
            S::UNSUCCESSFUL,
        ],
        Act::Reject { .. } => &[S::CONNECTION_INVALID, S::INVALID_BUFFER_SIZE, S::CONNECTION_ABORTED],
        Act::Notify | Act::Disconnect { .. } => &[S::CONNECTION_INVALID],
        _ => &[],
    };
    assert!(status == S::DEVICE_REMOVED || listed.contains(&status), "{before:?} {act:?}: {status:?}");
    let state = pair.state(end);
    assert!(state == before || state == State::Dead, "an error moved it from {before:?} to {state:?}");
    assert!(state == before || !pair.ends[end].transport, "burnt, and still holds a stream");
}

/// A call is answered: once, with a status of its list, and for the right reason.
pub(super) fn finish(pair: &mut Pair, end: usize, op: Op, status: Status) {
    assert!(may_end(op, status), "{op:?} ends with {status:?}");
    let it = &mut pair.ends[end];
    let before = it.pending.len();
    it.pending.retain(|other| *other != op);
    let answered = before - it.pending.len();
    assert!(
        answered == 1 || (answered > 1 && op == Op::NotifyDisconnect),
        "{op:?} answered {answered} times"
    );
    it.finished.push((op, status));
    let (own_fault, last, held) = (it.own_fault, it.last, it.transport);
    match op {
        Op::Connect => assert!(!it.flushed, "CM-21: an attempt leaves the queue pair alone"),
        Op::CompleteConnect | Op::Accept => assert_eq!(it.flushed, status != Status::SUCCESS, "P18"),
        Op::Disconnect => assert!(it.flushed, "DIS-06: requests are left over"),
        Op::NotifyDisconnect => {}
    }
    let (late, host) = (it.until.is_some_and(|until| until <= pair.now), it.host);
    if status != Status::SUCCESS && op != Op::NotifyDisconnect {
        assert!(!held, "{op:?} failed before the stream was let go");
    }
    match status {
        Status::DEVICE_REMOVED => assert_eq!(pair.listeners[host].state(), listener::State::Dead),
        Status::UNSUCCESSFUL => assert!(own_fault, "{op:?} failed without a failure"),
        _ => {}
    }
    let Some(place) = last else { return };
    let wire = &pair.wires[place.wire];
    let peer = &wire.sockets[1 - place.side].was;
    match (op, status) {
        // X1: a peer that says no differs from one that vanishes.
        (Op::Accept, Status::CONNECTION_REFUSED) => assert!(peer.said_no, "refused by nobody"),
        (Op::Accept, Status::CONNECTION_ABORTED) if !wire.faulty && !own_fault => {
            assert!(!peer.said_no && !peer.declined, "the peer did say no");
        }
        (Op::Accept, Status::SUCCESS) => assert!(peer.ready || pair.setup.plain, "nobody completed"),
        // DIS-01: a peer that is there answers, and nobody gives up too early.
        (_, Status::IO_TIMEOUT) => {
            assert!(late || wire.faulty || wire.broken, "{op:?} times out before its time");
        }
        (Op::CompleteConnect, Status::SUCCESS) => assert!(wire.sockets[0].was.ready, "nothing was sent"),
        _ => {}
    }
}

/// A stream is given back: the queue pair of a connection is flushed by then, and how it ended is known.
pub(super) fn parted(pair: &Pair, end: usize, place: Place) {
    let (it, connected) = (&pair.ends[end], pair.wires[place.wire].sockets[place.side].was.connected);
    assert!(it.flushed || !connected, "DIS-06: requests are left over");
    assert_eq!(it.machine.ending().is_some(), connected, "CM-33");
}

/// What each end may read at its moment is what the other sent.
pub(super) fn shown(pair: &Pair, end: usize) {
    let it = &pair.ends[end];
    let (machine, place) = (&it.machine, it.last);
    let readable = matches!(machine.state(), State::ConnectDone | State::RequestPending);
    assert_eq!(machine.read_limits().is_ok(), readable, "NEG-04");
    if let Some(Place { wire, side }) = place.filter(|_| readable) {
        let wire = &pair.wires[wire];
        let sent = wire.sockets[1 - side].was.sent.as_deref();
        let data = machine.private_data().expect("private data");
        assert!(data.is_exact());
        assert_eq!(Some(&**data), sent, "PD-01, PD-02");
        if !pair.setup.plain {
            let [active, passive] = effective(pair, wire);
            assert_eq!(machine.read_limits(), Ok(if side == 0 { active } else { passive }));
        }
    }
}

/// What the four numbers of each direction come to, by the rules and not by the code: for the side that
/// connects, and for the other as far as it is known.
fn effective(pair: &Pair, wire: &Wire) -> [ReadLimits; 2] {
    let [a, p] = &wire.sockets;
    let [cap_a, cap_p] = [a, p].map(|socket| pair.setup.adapter[socket.host]);
    // Before Accept the passive end sees what it could have at most.
    let asked_p = if p.was.sent.is_some() { p.was.asked } else { ReadLimits::new(u32::MAX, u32::MAX) };
    let least = |numbers: [u32; 5]| numbers.into_iter().min().unwrap_or_default();
    let reads_of_a = least([a.was.asked.outbound, cap_a.outbound, asked_p.inbound, cap_p.inbound, MAX_LIMIT]);
    let reads_of_p = least([a.was.asked.inbound, cap_a.inbound, asked_p.outbound, cap_p.outbound, MAX_LIMIT]);
    [ReadLimits::new(reads_of_p, reads_of_a), ReadLimits::new(reads_of_a, reads_of_p)]
}

impl Pair {
    /// Nothing is left to happen: nobody waits for a peer that has gone.
    pub(super) fn check_rest(&mut self) {
        let plain = self.setup.plain;
        for wire in 0..self.wires.len() {
            let sides = [0, 1].map(|side| match self.wires[wire].sockets[side].owner {
                Owner::End(end) => Some(self.state(end)),
                Owner::Nobody | Owner::Start | Owner::Queue => None,
            });
            let Wire { sockets, faulty, .. } = &self.wires[wire];
            for (socket, state) in sockets.iter().zip(sides) {
                let reached = socket.heard_end && state == Some(State::Connected);
                assert!(!reached, "connected to nobody: {sides:?}");
                assert_ne!(state, Some(State::Disconnecting), "every disconnect has a deadline");
                assert_ne!(state, Some(State::Completing), "nothing keeps CompleteConnect");
            }
            if *faulty {
                continue;
            }
            let unread = [0, 1].map(|side| !sockets[side].inbox.is_empty() && !self.setup.watchful[side]);
            let [a, p] = sides;
            let fits = match a {
                Some(State::Connecting) => {
                    p == Some(State::RequestPending) || sockets[1].owner == Owner::Queue
                }
                Some(State::ConnectDone) => {
                    unread[0] || p == Some(State::Accepting) || (plain && p == Some(State::Connected))
                }
                Some(State::Connected) => p == Some(State::Connected),
                _ => match p {
                    Some(State::RequestPending) => unread[1],
                    Some(State::Accepting | State::Connected) => false,
                    _ => true,
                },
            };
            assert!(fits, "they wait for each other: {sides:?}");
        }
    }

    /// The users release everything, and nothing is left over.
    pub(super) fn check_end(&mut self) {
        self.run();
        self.check_rest();
        for end in 0..self.ends.len() {
            self.act(end, Act::CloseListener).expect("a close");
            self.act(end, Act::Release).expect("a release");
        }
        self.run();
        self.check_rest();
        for end in &self.ends {
            assert_eq!(end.machine.state(), State::Dead);
            assert!(end.pending.is_empty(), "never answered: {:?}", end.pending);
            assert!(!end.transport && end.at.is_none(), "a stream leaks");
            assert!(end.waiter.is_none() && end.machine.next_timeout().is_none());
        }
        for wire in &self.wires {
            for socket in &wire.sockets {
                assert_eq!(socket.owner, Owner::Nobody);
                assert!(socket.ended || !socket.open, "a socket stays open");
            }
            self.check_agreement(wire);
        }
    }

    /// Two ends that were connected to each other hold the same.
    fn check_agreement(&self, wire: &Wire) {
        let [a, p] = &wire.sockets;
        let (Some(active), Some(passive)) = (a.negotiated, p.negotiated) else {
            let alone = p.was.connected && !self.setup.plain;
            assert!(!a.was.connected && !alone, "connected without a handshake");
            return;
        };
        if a.was.connected && p.was.connected && !self.setup.plain {
            // NEG-03
            assert_eq!(active.limits, passive.limits.swapped());
            assert_eq!([active.limits, passive.limits], effective(self, wire));
            assert_eq!(active.rtr, Rtr::Write);
        }
        assert_eq!(active.crc, passive.crc);
        assert_eq!(active.crc, self.setup.crc.contains(&true));
        assert_eq!((active.rtr, active.revision), (passive.rtr, passive.revision));
        if p.was.connected && !self.setup.plain {
            assert!(a.was.ready, "connected without a first frame");
        }
    }
}
