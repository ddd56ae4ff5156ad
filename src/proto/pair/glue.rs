//! What the soft provider does between the machines: calls in, actions out, bytes both ways.

use std::mem;

use bytes::Bytes;

use super::link::{Frames, Link, Segment, message, terminate};
use super::{Act, Own, Owner, Pair, Place, Road, Socket, Was, Wire, checks};
use crate::proto::connector::{Action, Actions, Input, Op, State};
use crate::proto::limits;
use crate::proto::mpa::{Initiator, MAX_PRIVATE_DATA, Responder, Rtr, StartConfig, rtr_frame};
use crate::status::Status;
use crate::types::ReadLimits;

/// Bytes of this length that nobody sends by accident.
fn pattern(length: usize, seed: usize) -> Bytes {
    (0..length).map(|at| (at * 31 + length + seed * 7) as u8).collect()
}

impl Pair {
    /// One act, without the reading that may follow.
    pub(super) fn perform(&mut self, end: usize, act: Act) -> Result<(), Status> {
        let max_data = MAX_PRIVATE_DATA;
        if self.ends[end].waiter.is_some() && matches!(act, Act::Bind | Act::Connect { .. }) {
            // There is no connector yet that could be used otherwise.
            return Err(Status::CONNECTION_ACTIVE);
        }
        match act {
            Act::Bind => self.call(end, act, None, Input::Bind),
            Act::Connect { data, patience, busy, .. } => {
                let deadline = patience.map(|patience| self.now + patience);
                self.call(end, act, Some(Op::Connect), Input::Connect { data, max_data, busy, deadline })
            }
            Act::Complete => self.call(end, act, Some(Op::CompleteConnect), Input::CompleteConnect),
            Act::Accept { data, busy, .. } => {
                self.call(end, act, Some(Op::Accept), Input::Accept { data, max_data, busy })
            }
            Act::Reject { data } => self.decline(end, act, Input::Reject { data, max_data }),
            Act::Notify => self.call(end, act, Some(Op::NotifyDisconnect), Input::NotifyDisconnect),
            Act::Disconnect { patience } => {
                let deadline = self.now + patience;
                self.call(end, act, Some(Op::Disconnect), Input::Disconnect { deadline })
            }
            Act::Cancel => {
                self.withdraw(end);
                self.decline(end, act, Input::Cancel)
            }
            Act::Release => {
                self.withdraw(end);
                self.decline(end, act, Input::Release)
            }
            Act::Fetch => self.fetch(end),
            _ => {
                self.befall(end, act);
                Ok(())
            }
        }
    }

    /// An act that is no call, or one that nothing comes back from.
    fn befall(&mut self, end: usize, act: Act) {
        match act {
            Act::Send => self.send_message(end),
            Act::Listen => self.listen(end),
            Act::CloseListener => self.close_listener(end),
            Act::QueuePairRemoved => self.report(end, Input::QueuePairRemoved),
            Act::DeviceRemoved => self.remove_device(self.ends[end].host),
            Act::TimedOut => self.fail(end, Input::TimedOut),
            Act::PathLost => self.fail(end, Input::PathLost),
            Act::Failed => self.fail(end, Input::Failed(Status::UNSUCCESSFUL)),
            act => self.disturb(end, act),
        }
    }

    /// A call of the user.
    fn call(&mut self, end: usize, act: Act, op: Option<Op>, input: Input) -> Result<(), Status> {
        let before = self.state(end);
        let answer = self.ends[end].machine.handle(self.now, input);
        let actions = answer.inspect_err(|&status| checks::inline(self, end, act, before, status))?;
        self.ends[end].pending.extend(op);
        self.ends[end].until = match act {
            Act::Connect { patience, .. } => patience.map(|patience| self.now + patience),
            Act::Disconnect { patience } => Some(self.now + patience),
            _ => self.ends[end].until,
        };
        if actions[..] == [Action::StartBind] {
            return self.bind(end);
        }
        self.ends[end].staged = Some(act);
        self.carry_out(end, actions);
        self.ends[end].staged = None;
        Ok(())
    }

    /// A call that turns the peer down, if it is made after Connect succeeded.
    fn decline(&mut self, end: usize, act: Act, input: Input) -> Result<(), Status> {
        let half_open = self.ends[end].at.filter(|_| self.state(end) == State::ConnectDone);
        self.call(end, act, None, input)?;
        if let Some(place) = half_open {
            self.socket(place).was.declined = true;
        }
        Ok(())
    }

    /// Bind is answered before anything else happens.
    fn bind(&mut self, end: usize) -> Result<(), Status> {
        match self.setup.bind_fails.take() {
            None => {
                self.report(end, Input::Bound);
                Ok(())
            }
            Some(status) => {
                let answer = self.ends[end].machine.handle(self.now, Input::BindFailed(status));
                assert_eq!(answer, Err(status), "Bind says why it failed");
                Err(status)
            }
        }
    }

    /// A report of the provider.
    pub(super) fn report(&mut self, end: usize, input: Input) {
        let actions = self.ends[end].machine.handle(self.now, input).expect("a report is not answered");
        self.carry_out(end, actions);
    }

    /// Does what the machine asks for, in order.
    pub(super) fn carry_out(&mut self, end: usize, actions: Actions) {
        self.moved(end);
        for action in actions {
            match action {
                Action::Finish { op, status } => checks::finish(self, end, op, status),
                Action::StartBind => unreachable!("Bind is answered at once"),
                Action::StartConnect => self.connect(end),
                Action::StartComplete => {
                    let place = self.ends[end].at.expect("a transport");
                    self.own_later(Own { at: self.now + self.setup.complete[0], end, place, frame: true });
                }
                Action::StartAccept => self.accept(end),
                Action::StartDisconnect => self.disconnect(end),
                Action::RefusePeer => self.refuse(end),
                Action::Leave => self.let_go(end, Segment::Fin),
                Action::Abandon => self.let_go(end, Segment::Reset),
                Action::Flush => {
                    assert!(!mem::replace(&mut self.ends[end].flushed, true), "flushed twice");
                }
            }
        }
    }

    /// The machine may be in another state now.
    pub(super) fn moved(&mut self, end: usize) {
        let state = self.state(end);
        if let (State::Connected, Some(place)) = (state, self.ends[end].at) {
            self.socket(place).was.connected = true;
        }
        if mem::replace(&mut self.ends[end].seen, state) == state {
            return;
        }
        checks::shown(self, end);
        let matching = self.reactions.iter().filter(|it| it.end == end && it.state == state);
        for reaction in matching.copied().collect::<Vec<_>>() {
            if self.patience > 0 {
                self.patience -= 1;
                self.later(reaction.after, end, reaction.act);
            }
        }
    }

    /// One side of a stream.
    pub(super) fn socket(&mut self, place: Place) -> &mut Socket {
        &mut self.wires[place.wire].sockets[place.side]
    }

    /// Gives the link something to carry.
    pub(super) fn send(&mut self, place: Place, segment: Segment) {
        let now = self.now;
        self.wires[place.wire].link.send(place.side, now, segment);
    }

    /// Writes, which nobody does after the end of its own stream.
    pub(super) fn send_bytes(&mut self, place: Place, bytes: Bytes) {
        assert!(!self.socket(place).ended, "written after the end");
        self.send(place, Segment::Bytes(bytes));
    }

    /// The last that this side sends.
    pub(super) fn end_stream(&mut self, place: Place, end: Segment) {
        if !mem::replace(&mut self.socket(place).ended, true) {
            self.send(place, end);
        }
    }

    /// The provider closes the socket, though the machine has not let go yet.
    pub(super) fn close(&mut self, place: Place, end: Segment) {
        self.end_stream(place, end);
        self.socket(place).closed = true;
    }

    /// The machine gave the stream back.
    fn let_go(&mut self, end: usize, last: Segment) {
        assert!(mem::replace(&mut self.ends[end].transport, false), "let go of nothing");
        let Some(place) = self.ends[end].at.take() else { return };
        checks::parted(self, end, place);
        let socket = self.socket(place);
        socket.owner = Owner::Nobody;
        let half_closed = socket.ended && !socket.closed && !socket.heard_end;
        if half_closed && last == Segment::Reset {
            self.send(place, last);
        } else {
            self.end_stream(place, last);
        }
    }

    /// The machine starts with a stream, or with the attempt to get one.
    pub(super) fn start(&mut self, end: usize, place: Option<Place>) {
        let it = &mut self.ends[end];
        assert!(!mem::replace(&mut it.transport, true), "the last stream was not let go");
        (it.at, it.flushed, it.own_fault) = (place, false, false);
        it.last = place.or(it.last);
    }

    /// Opens a stream, unless the attempt fails before.
    fn connect(&mut self, end: usize) {
        let Some(Act::Connect { data, limits: asked, .. }) = self.ends[end].staged else {
            panic!("connects by itself")
        };
        match mem::take(&mut self.setup.road) {
            Road::Open => {}
            Road::None { network } => {
                self.start(end, None);
                return self.report(end, Input::Unreachable { network });
            }
            Road::NoPort => {
                self.start(end, None);
                return self.report(end, Input::BindFailed(Status::TOO_MANY_ADDRESSES));
            }
        }
        let host = self.ends[end].host;
        let (data, offer) = (pattern(data, self.wires.len()), limits::offer(asked, self.setup.adapter[host]));
        let mut sockets = [host, 1 - host].map(Socket::new);
        sockets[0].owner = Owner::End(end);
        sockets[0].was = Was { asked, sent: Some(data.clone()), ..Was::default() };
        let [active, passive] = [host, 1 - host]
            .map(|host| StartConfig { crc: self.setup.crc[host], unsaid_limits: ReadLimits::new(4, 4) });
        let link = Link::new(self.setup.manner);
        let initiator = Initiator::new(active, offer, &data);
        let responder = Responder::new(passive);
        self.wires.push(Wire {
            link,
            initiator,
            responder,
            offer: None,
            sockets,
            faulty: false,
            broken: false,
        });
        let place = Place { wire: self.wires.len() - 1, side: 0 };
        self.start(end, Some(place));
        self.send(place, Segment::Open);
    }

    /// Answers the request; without a first frame to wait for, that establishes.
    fn accept(&mut self, end: usize) {
        let Some(Act::Accept { data, limits: asked, .. }) = self.ends[end].staged else {
            panic!("accepts by itself")
        };
        let place = self.ends[end].at.expect("a request");
        let (data, most) = (pattern(data, place.wire), self.setup.adapter[self.ends[end].host]);
        let (reply, negotiated) = self.wires[place.wire].responder.accept(asked.capped_to(most), &data);
        let socket = self.socket(place);
        socket.negotiated = Some(negotiated);
        socket.frames = Some(Frames::new(negotiated.crc));
        (socket.was.asked, socket.was.sent) = (asked, Some(data));
        self.send_bytes(place, reply);
        if negotiated.rtr == Rtr::None {
            self.report(end, Input::PeerCompleted);
        }
    }

    /// A step that is due at once does not wait for others.
    fn own_later(&mut self, own: Own) {
        if own.at <= self.now { self.own_step(own) } else { self.own.push(own) }
    }

    /// A part of CompleteConnect.
    pub(super) fn own_step(&mut self, own: Own) {
        let Own { end, place, frame, .. } = own;
        if self.ends[end].at != Some(place) || self.state(end) != State::Completing {
            return;
        }
        if !frame {
            return self.report(end, Input::CompleteDone);
        }
        let socket = self.socket(place);
        if socket.inbox.iter().any(|it| matches!(it, Segment::Fin | Segment::Reset)) {
            return self.report(end, Input::Failed(Status::CONNECTION_ABORTED));
        }
        let negotiated = socket.negotiated.expect("a reply");
        socket.was.ready = true;
        self.send_bytes(place, rtr_frame(negotiated.rtr, negotiated.crc));
        self.own_later(Own { at: self.now + self.setup.complete[1], frame: false, ..own });
    }

    /// Ends the stream; the end of the other direction is the answer.
    fn disconnect(&mut self, end: usize) {
        let place = self.ends[end].at.expect("a connection");
        let socket = self.socket(place);
        if socket.closed || socket.heard_end {
            return self.report(end, Input::DisconnectAnswered);
        }
        self.end_stream(place, Segment::Fin);
    }

    /// Says no, in the way that the phase has for it.
    fn refuse(&mut self, end: usize) {
        let Some(place) = self.ends[end].at else { return self.let_go(end, Segment::Reset) };
        let data = match self.ends[end].staged {
            Some(Act::Reject { data }) => pattern(data, place.wire),
            _ => Bytes::new(),
        };
        let Wire { responder, sockets, .. } = &mut self.wires[place.wire];
        let socket = &mut sockets[place.side];
        let mut last = Segment::Fin;
        if socket.closed || socket.heard_end {
            // Nobody hears it.
        } else if let Some(negotiated) = socket.negotiated {
            socket.was.said_no = true;
            self.send_bytes(place, terminate(negotiated.crc));
        } else if place.side == 1 {
            let reply = responder.reject(&data);
            socket.was.reject = Some(data);
            self.send_bytes(place, reply);
        } else if !socket.open {
            last = Segment::Reset;
        }
        self.let_go(end, last);
    }

    /// Posts a message where that is allowed: a responder must have heard of its peer.
    fn send_message(&mut self, end: usize) {
        let Some(place) = self.ends[end].at.filter(|_| self.state(end) == State::Connected) else { return };
        let socket = self.socket(place);
        let allowed = place.side == 0 || socket.heard;
        if let (true, Some(negotiated)) = (allowed && !socket.ended, socket.negotiated) {
            socket.next_msn += 1;
            let bytes = message(socket.next_msn, negotiated.crc);
            self.send_bytes(place, bytes);
        }
    }

    /// A failure that the provider found by itself.
    fn fail(&mut self, end: usize, input: Input) {
        let Some(place) = self.ends[end].at else { return };
        let socket = self.socket(place);
        if socket.closed || socket.heard_end {
            return;
        }
        self.ends[end].own_fault = true;
        self.wires[place.wire].broken = true;
        let connected = self.state(end) == State::Connected;
        self.report(end, input);
        if connected {
            self.close(place, Segment::Reset);
        }
    }

    /// Something happens to the stream that the end has, or had.
    fn disturb(&mut self, end: usize, act: Act) {
        let Some(place) = self.ends[end].last else { return };
        let wire = &mut self.wires[place.wire];
        wire.faulty |= !matches!(act, Act::Slow(_));
        match act {
            Act::Slow(extra) => wire.link.slow(extra),
            Act::Reset => wire.link.sever(self.now, &Segment::Reset),
            Act::Close => wire.link.sever(self.now, &Segment::Fin),
            _ => wire.link.cut(place.side),
        }
    }
}

impl Socket {
    /// One that nothing came to yet.
    fn new(host: usize) -> Self {
        Self {
            host,
            owner: Owner::Nobody,
            open: false,
            inbox: Default::default(),
            ended: false,
            heard_end: false,
            closed: false,
            frames: None,
            heard: false,
            negotiated: None,
            next_msn: 0,
            was: Was::default(),
        }
    }
}
