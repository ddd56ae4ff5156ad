//! What a host does with requests until a connector has them.

use bytes::Bytes;

use super::link::Segment;
use super::{Owner, Pair, Place, Request, Wire, checks};
use crate::proto::connector::{Connector, Input, State, Terms};
use crate::proto::listener::{self, Arrival, End, Wait};
use crate::status::Status;

impl Pair {
    /// Starts anew after a close.
    pub(super) fn listen(&mut self, end: usize) {
        let listener = &mut self.listeners[self.ends[end].host];
        if listener.state() == listener::State::Closed {
            *listener = checks::listening(self.setup.backlog);
        }
    }

    /// GetConnectionRequest.
    pub(super) fn fetch(&mut self, end: usize) -> Result<(), Status> {
        let host = self.ends[end].host;
        match self.listeners[host].state() {
            listener::State::Listening => {}
            listener::State::Dead => return Err(Status::DEVICE_REMOVED),
            _ => return Err(Status::INVALID_DEVICE_STATE),
        }
        if matches!(self.state(end), State::Dead | State::Disconnected) {
            self.ends[end].renew();
        }
        if self.state(end) != State::Idle || self.ends[end].waiter.is_some() {
            return Err(Status::CONNECTION_ACTIVE);
        }
        match self.listeners[host].wait()? {
            Wait::Ready(request) => self.deliver(end, &request),
            Wait::Pending(waiter) => self.ends[end].waiter = Some(waiter),
        }
        Ok(())
    }

    /// The end no longer waits for a request.
    pub(super) fn withdraw(&mut self, end: usize) {
        let host = self.ends[end].host;
        if let Some(waiter) = self.ends[end].waiter.take() {
            assert!(self.listeners[host].cancel(waiter), "it waits still");
        }
    }

    /// A request reaches the end that waited for one.
    fn deliver(&mut self, end: usize, request: &Request) {
        let place = Place { wire: request.wire, side: 1 };
        let offer = self.wires[place.wire].offer.clone().expect("a whole request");
        let most = self.setup.adapter[self.ends[end].host];
        let terms = Terms { limits: offer.limits.capped_to(most), private_data: offer.private_data };
        self.socket(place).owner = Owner::End(end);
        self.ends[end].waiter = None;
        self.start(end, Some(place));
        self.ends[end].machine = Connector::with_request(terms);
        self.moved(end);
    }

    /// The last reference to the listener is gone.
    pub(super) fn close_listener(&mut self, end: usize) {
        let host = self.ends[end].host;
        let left = self.listeners[host].end(End::Closed);
        self.drop_unfetched(host);
        for request in left.requests {
            self.refuse_unfetched(&request);
        }
        for end in self.ends.iter_mut().filter(|end| end.host == host) {
            end.waiter.take_if(|waiter| left.waiters.contains(waiter));
        }
    }

    /// The adapter of a host is gone, with all that it has.
    pub(super) fn remove_device(&mut self, host: usize) {
        let left = self.listeners[host].end(End::Removed);
        self.drop_unfetched(host);
        for request in left.requests {
            self.forget(Place { wire: request.wire, side: 1 }, Segment::Reset);
        }
        for end in 0..self.ends.len() {
            if self.ends[end].host == host {
                self.ends[end].waiter = None;
                if let Some(place) = self.ends[end].at {
                    self.wires[place.wire].broken = true;
                }
                self.report(end, Input::DeviceRemoved);
            }
        }
    }

    /// The handshakes that have not shown a whole request end with the listener.
    fn drop_unfetched(&mut self, host: usize) {
        for wire in 0..self.wires.len() {
            let place = Place { wire, side: 1 };
            if self.socket(place).owner == Owner::Start && self.socket(place).host == host {
                self.forget(place, Segment::Reset);
            }
        }
    }

    /// A stream that no end has is over.
    pub(super) fn forget(&mut self, place: Place, last: Segment) {
        self.end_stream(place, last);
        self.socket(place).owner = Owner::Nobody;
    }

    /// Says no to a whole request.
    fn refuse_unfetched(&mut self, request: &Request) {
        let place = Place { wire: request.wire, side: 1 };
        let reply = self.wires[place.wire].responder.reject(&[]);
        self.socket(place).was.reject = Some(Bytes::new());
        self.send_bytes(place, reply);
        self.forget(place, Segment::Fin);
    }

    /// Reads the request, and hands it over when it is whole.
    pub(super) fn take_request(&mut self, place: Place, segment: &Segment) {
        let Segment::Bytes(bytes) = segment else { return self.forget(place, Segment::Fin) };
        let wire = &mut self.wires[place.wire];
        let Some(offer) = wire.responder.receive(bytes).expect("a good request") else { return };
        wire.offer = Some(offer);
        self.socket(place).owner = Owner::Queue;
        let host = self.socket(place).host;
        let over = |wire: &Wire| wire.sockets[1].inbox.iter().any(|it| !matches!(it, Segment::Bytes(_)));
        let request = Request { wire: place.wire };
        let (arrival, gone) =
            self.listeners[host].arrived(request, |request| over(&self.wires[request.wire]));
        for request in gone {
            self.forget(Place { wire: request.wire, side: 1 }, Segment::Fin);
        }
        match arrival {
            Arrival::Queued => {}
            Arrival::Refused(request) => self.refuse_unfetched(&request),
            Arrival::Delivered(waiter, request) => {
                let mut ends = self.ends.iter();
                let end = ends.position(|end| end.waiter == Some(waiter) && end.host == host);
                self.deliver(end.expect("somebody waits"), &request);
            }
        }
    }
}
