//! Handles the segments that arrive at a host.

use bytes::Bytes;

use super::segment::{Kind, Segment};
use super::socket::{Phase, Socket, SocketParts};
use super::world::{Place, State};

impl State {
    /// Handles a segment that reaches its host.
    pub(super) fn arrive(&mut self, segment: Segment) {
        let hosts = (self.addresses.get(&segment.from.ip()), self.addresses.get(&segment.to.ip()));
        let (Some(&from), Some(&to)) = hosts else { return };
        let now = self.now;
        let lost = self.link(from, to).cut_until > now || !self.places.get(to).is_some_and(Place::is_on_line);
        self.trace.segment(now, &segment, lost);
        if lost {
            return;
        }
        let known = self.pairs.get(&(segment.to, segment.from)).copied();
        let same = |id: &u64| self.sockets.get(id).is_some_and(|end| end.connection == segment.connection);
        match known.filter(same) {
            Some(id) => self.arrive_at(id, &segment),
            None if segment.kind == Kind::Syn => {
                if let Some(stale) = known {
                    // The peer has no state of the connection that it had.
                    self.fail(stale, libc::ECONNRESET);
                }
                self.offer(&segment, to);
            }
            None if segment.kind == Kind::Reset => {}
            None => self.refuse(&segment),
        }
    }

    /// Handles a request for a connection: grants it if a socket listens and its queue has room.
    fn offer(&mut self, segment: &Segment, host: usize) {
        let Some(listener) = self.listening.get(&segment.to) else { return self.refuse(segment) };
        if listener.queue.len() >= listener.backlog {
            // As Linux does it: the peer asks again.
            return;
        }
        let id = self.number();
        let socket = Socket::new(SocketParts {
            host,
            local: segment.to,
            remote: segment.from,
            connection: segment.connection,
            phase: Phase::Accepting,
            limits: self.buffers,
            now: self.now,
        });
        self.pairs.insert((socket.local, socket.remote), id);
        self.sockets.insert(id, socket);
        self.emit(id, Kind::SynAck, Bytes::new(), false);
        self.set_clock(id);
    }

    /// Handles a segment that reaches its socket.
    fn arrive_at(&mut self, id: u64, segment: &Segment) {
        let now = self.now;
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.times.heard = now;
        socket.times.unheard = 0;
        socket.times.probes = 0;
        match (socket.phase, segment.kind) {
            (Phase::Dead | Phase::Gone, _) => {}
            (Phase::Connecting, Kind::Reset) => self.fail(id, libc::ECONNREFUSED),
            // As on Linux, where only the writer gets the error then.
            (_, Kind::Reset) if socket.ended && !socket.end_sent => self.fail(id, libc::EPIPE),
            (_, Kind::Reset) => self.fail(id, libc::ECONNRESET),
            (Phase::Connecting, Kind::SynAck) => {
                self.open(id, segment);
                self.acknowledge(id);
            }
            (Phase::Connecting, _) => {}
            (Phase::Accepting, Kind::Syn) => self.emit(id, Kind::SynAck, Bytes::new(), false),
            (Phase::Accepting, _) => {
                self.open(id, segment);
                if self.enqueue(id) {
                    self.take(id, segment);
                }
            }
            (Phase::Open, Kind::Syn | Kind::SynAck) => self.acknowledge(id),
            (Phase::Open, Kind::Data | Kind::Probe) => self.take(id, segment),
        }
    }

    /// Opens a connection that both ends have agreed on.
    fn open(&mut self, id: u64, segment: &Segment) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.phase = Phase::Open;
        socket.edge = segment.edge;
        socket.times.retries = 0;
        socket.times.retransmit = None;
        socket.times.unanswered = None;
        self.wake_socket(id);
        self.pump(id);
    }

    /// Gives a connection to its listener. Returns whether there is one.
    fn enqueue(&mut self, id: u64) -> bool {
        let local = self.sockets.get(&id).map(|socket| socket.local);
        let Some(listener) = local.and_then(|local| self.listening.get_mut(&local)) else {
            self.reset(id);
            return false;
        };
        listener.queue.push_back(id);
        if !self.places.get(listener.host).is_some_and(|place| place.frozen) {
            self.wakes.append(&mut listener.waiters);
        }
        true
    }

    /// Takes the acknowledgement and the bytes of a segment.
    fn take(&mut self, id: u64, segment: &Segment) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let progress = socket.take_acknowledgement(segment);
        // A peer that has room again has answered the probes.
        if progress || (socket.in_flight() == 0 && socket.sendable() > 0) {
            socket.times.retries = 0;
            socket.times.recovering = false;
        }
        let awaits_end = socket.end_sent && !socket.end_acknowledged;
        // Bytes that a probe of the peer does not acknowledge are sent again when they are due.
        if progress || (socket.in_flight() == 0 && !awaits_end) {
            socket.times.retransmit = None;
            socket.times.unanswered = None;
        }
        let beyond = segment.sequence + segment.bytes.len() as u64 > socket.received;
        if socket.orphan && beyond && !segment.bytes.is_empty() {
            // No reader is left for it.
            return self.reset(id);
        }
        socket.take_bytes(segment);
        let answers = !segment.bytes.is_empty() || segment.end || segment.kind == Kind::Probe;
        if answers {
            self.acknowledge(id);
        }
        self.wake_socket(id);
        self.pump(id);
        self.bury(id);
    }
}
