//! Who reads what arrives, and what is reported of it.

use std::mem;

use bytes::{Bytes, BytesMut};

use super::link::{Frame, Frames, Segment};
use super::{Owner, Pair, Place, Socket};
use crate::proto::connector::{Input, State, Terms};
use crate::proto::listener;
use crate::proto::mpa::Reply;
use crate::wire::mpa::{StartFrame, StartKind};

impl Pair {
    /// The network brings something.
    pub(super) fn arrive(&mut self, place: Place, segment: Segment) {
        if (&segment, place.side) != (&Segment::Open, 1) {
            return self.socket(place).inbox.push_back(segment);
        }
        let host = self.socket(place).host;
        if self.listeners[host].state() == listener::State::Listening {
            let socket = self.socket(place);
            (socket.owner, socket.open) = (Owner::Start, true);
            self.send(place, Segment::Open);
        } else {
            self.end_stream(place, Segment::Reset);
        }
    }

    /// Everybody reads what there is.
    pub(super) fn read_all(&mut self) {
        let mut idle = false;
        while !mem::replace(&mut idle, true) {
            for wire in 0..self.wires.len() {
                for side in 0..2 {
                    let place = Place { wire, side };
                    while self.may_read(place) {
                        let Some(segment) = self.socket(place).inbox.pop_front() else { break };
                        self.take(place, segment);
                        idle = false;
                    }
                }
            }
        }
    }

    /// Nobody looks into the queue of the listener, and not every user looks while it makes up its mind.
    fn may_read(&mut self, place: Place) -> bool {
        match self.socket(place).owner {
            Owner::Nobody | Owner::Start => true,
            Owner::Queue => false,
            Owner::End(end) => match self.state(end) {
                State::ConnectDone | State::RequestPending => self.setup.watchful[place.side],
                _ => true,
            },
        }
    }

    /// One segment, for whoever has the stream.
    fn take(&mut self, place: Place, segment: Segment) {
        let Socket { owner, closed, .. } = *self.socket(place);
        match owner {
            Owner::Nobody | Owner::Queue => {}
            Owner::Start => self.take_request(place, &segment),
            Owner::End(_) if closed => {}
            Owner::End(end) => match segment {
                Segment::Open => {
                    self.socket(place).open = true;
                    let request = self.request(place);
                    self.send_bytes(place, request);
                }
                Segment::Bytes(bytes) => self.take_bytes(place, end, bytes),
                Segment::Fin => self.take_end(place, end, false),
                Segment::Reset => self.take_end(place, end, true),
            },
        }
    }

    /// Bytes for an end, which mean something else in each phase.
    fn take_bytes(&mut self, place: Place, end: usize, bytes: Bytes) {
        match self.state(end) {
            State::Connecting => self.take_reply(place, end, &bytes),
            State::RequestPending => panic!("the initiator spoke out of turn"),
            // It has nowhere to go.
            State::Disconnecting => {}
            _ => {
                self.socket(place).frames.as_mut().expect("an answered handshake").push(&bytes);
                while self.socket(place).owner == Owner::End(end) && !self.socket(place).closed {
                    let Some(frame) = self.socket(place).frames.as_mut().and_then(Frames::next) else {
                        break;
                    };
                    self.take_frame(place, end, frame);
                }
            }
        }
    }

    /// The request as it goes out.
    fn request(&mut self, place: Place) -> Bytes {
        let wire = &self.wires[place.wire];
        if !self.setup.plain {
            return wire.initiator.request();
        }
        let mut out = BytesMut::new();
        let frame = StartFrame {
            kind: StartKind::Request,
            markers: false,
            crc: self.setup.crc[wire.sockets[0].host],
            reject: false,
            enhanced: false,
            revision: 1,
            private_data: wire.sockets[0].was.sent.clone().unwrap_or_default(),
        };
        frame.encode(&mut out);
        out.freeze()
    }

    /// The reply, or a part of it.
    fn take_reply(&mut self, place: Place, end: usize, bytes: &[u8]) {
        let initiator = &mut self.wires[place.wire].initiator;
        let Some(reply) = initiator.receive(bytes).expect("a good reply") else { return };
        match reply {
            Reply::Rejected { private_data } => {
                self.report(end, Input::Refused { private_data: Some(private_data) });
            }
            Reply::Accepted { negotiated, private_data } => {
                let rest = initiator.leftover();
                let socket = self.socket(place);
                socket.negotiated = Some(negotiated);
                socket.frames = Some(Frames::new(negotiated.crc));
                if !rest.is_empty() {
                    socket.inbox.push_front(Segment::Bytes(rest));
                }
                self.report(end, Input::PeerAccepted(Terms { limits: negotiated.limits, private_data }));
            }
        }
    }

    /// A frame that followed the handshake.
    fn take_frame(&mut self, place: Place, end: usize, frame: Frame) {
        if frame == Frame::Terminate {
            if self.state(end) == State::Connected {
                self.report(end, Input::PathLost);
                return self.close(place, Segment::Fin);
            }
            return self.report(end, Input::PeerRejected { private_data: None });
        }
        let first = !mem::replace(&mut self.socket(place).heard, true);
        if frame == Frame::Message {
            self.socket(place).was.messages += 1;
        }
        if first && place.side == 1 {
            self.report(end, Input::PeerCompleted);
        }
    }

    /// The peer ends the stream.
    fn take_end(&mut self, place: Place, end: usize, reset: bool) {
        let eager = self.setup.eager;
        let socket = self.socket(place);
        socket.heard_end = true;
        let cut = reset || socket.frames.as_ref().is_some_and(|frames| !frames.at_boundary());
        let input = match self.state(end) {
            State::Connecting => Input::Refused { private_data: None },
            State::RequestPending | State::Accepting => Input::PeerGaveUp,
            State::Disconnecting if reset => Input::PathLost,
            State::Disconnecting if eager => Input::PeerDisconnected,
            State::Disconnecting => Input::DisconnectAnswered,
            _ if cut => Input::PathLost,
            // Without a first frame to wait for, the peer was connected when it had accepted.
            State::ConnectDone if !self.setup.plain => Input::PeerGaveUp,
            _ => Input::PeerDisconnected,
        };
        let connected = self.state(end) == State::Connected;
        self.report(end, input);
        if connected {
            self.close(place, Segment::Fin);
        }
    }
}
