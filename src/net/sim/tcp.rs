//! Sends the segments of sockets, handles those that arrive, and does the work that is due: bytes are sent again, peers
//! are probed, and peers are given up.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use super::socket::{Kind, Phase, Segment, Socket};
use super::world::{Event, State};
use crate::net::kernel::options::KEEPALIVE_RETRIES;

/// The first wait before bytes are sent again, and before a connection is asked for again.
const RETRANSMIT: Duration = Duration::from_millis(200);
const CONNECT: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(120);
/// The number of times that a connection is asked for again, and granted again.
const CONNECT_RETRIES: u32 = 6;
const ACCEPT_RETRIES: u32 = 5;
/// The time that bytes may stay without an acknowledgement, by default and once the handle was dropped.
const PATIENCE: Duration = Duration::from_secs(924);
const ORPHAN_PATIENCE: Duration = Duration::from_secs(100);
/// The time for which the end of the peer's stream is awaited once the handle was dropped.
const FIN_WAIT: Duration = Duration::from_secs(60);

/// The most connections that wait for an accept: Linux's `net.core.somaxconn`.
const BACKLOG: usize = 4096;

impl State {
    /// Sends a segment, unless the way is cut. Returns when it arrives, and when it would without the rest of a stall.
    fn transmit(&mut self, segment: Segment, not_before: Duration) -> Option<(Duration, Duration)> {
        let now = self.now;
        let hosts = self
            .hosts(&segment)
            .filter(|(from, to)| self.places[*from].is_on_line() && self.link(*from, *to).cut_until <= now);
        let Some((from, to)) = hosts else {
            self.trace.segment(now, &segment, true);
            return None;
        };
        let (link, rng) = self.link_and_rng(from, to);
        let (arrival, expected) = link.carry(now, segment.bytes.len(), rng);
        let arrival = arrival.max(not_before);
        self.schedule(arrival, Event::Arrival(segment));
        Some((arrival, expected))
    }

    /// Returns the hosts of the two addresses of a segment, if there are both.
    fn hosts(&self, segment: &Segment) -> Option<(usize, usize)> {
        let host = |address: SocketAddr| self.addresses.get(&address.ip()).copied();
        Some((host(segment.from)?, host(segment.to)?))
    }

    /// Sends a segment of a socket.
    pub(super) fn emit(&mut self, id: u64, kind: Kind, bytes: Bytes, end: bool) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.advertised = socket.advertised.max(socket.window());
        let sequence = match kind {
            Kind::Data if bytes.is_empty() => socket.sent,
            Kind::Data => socket.sent - bytes.len() as u64,
            _ => socket.sent,
        };
        let segment = Segment {
            from: socket.local,
            to: socket.remote,
            connection: socket.connection,
            kind,
            sequence,
            bytes,
            end,
            acknowledged: socket.received + u64::from(socket.ended),
            edge: socket.advertised,
        };
        let not_before = socket.arrival;
        if self.is_forgotten(id) {
            return self.trace.segment(self.now, &segment, true);
        }
        let (now, sent) = (self.now, self.transmit(segment, not_before));
        if let (Some((arrival, expected)), Some(socket)) = (sent, self.sockets.get_mut(&id)) {
            socket.arrival = arrival;
            socket.expected = expected;
            socket.passed = now;
        }
    }

    /// Returns whether a box on the way has forgotten the connection of a socket, because no segment has come
    /// by for too long.
    fn is_forgotten(&mut self, id: u64) -> bool {
        let Some(socket) = self.sockets.get(&id) else { return false };
        let (host, own, pair) = (socket.host, socket.passed, (socket.remote, socket.local));
        let Some(&to) = self.addresses.get(&socket.remote.ip()) else { return false };
        let peer = self.pairs.get(&pair).and_then(|peer| self.sockets.get(peer));
        let passed = peer.map_or(own, |peer| own.max(peer.passed));
        let silence = self.now.saturating_sub(passed);
        self.link(host, to).settings.idle_limit.is_some_and(|limit| silence > limit)
    }

    /// Sends the peer the number of bytes that have arrived, and how much more it may send.
    pub(super) fn acknowledge(&mut self, id: u64) {
        self.emit(id, Kind::Data, Bytes::new(), false);
    }

    /// Answers a segment for which there is no socket.
    pub(super) fn refuse(&mut self, segment: &Segment) {
        let reset = Segment::bare(segment.to, segment.from, segment.connection, Kind::Reset);
        self.transmit(reset, Duration::ZERO);
    }

    /// Sends what may be sent.
    pub(super) fn pump(&mut self, id: u64) {
        loop {
            let Some(socket) = self.sockets.get(&id) else { return };
            if socket.phase != Phase::Open || (socket.times.recovering && socket.in_flight() > 0) {
                break;
            }
            let (host, remote, sendable) = (socket.host, socket.remote.ip(), socket.sendable());
            if sendable == 0 {
                self.send_end(id);
                break;
            }
            let Some(&to) = self.addresses.get(&remote) else { break };
            let (link, rng) = self.link_and_rng(host, to);
            let length = link.segment(rng).min(sendable);
            let Some(socket) = self.sockets.get_mut(&id) else { return };
            let start = socket.in_flight();
            let bytes = Bytes::copy_from_slice(&socket.output[start..start + length]);
            socket.sent += length as u64;
            self.emit(id, Kind::Data, bytes, false);
        }
        self.set_clock(id);
    }

    /// Ends the stream behind its last byte.
    fn send_end(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if socket.ends && !socket.end_sent && socket.in_flight() == socket.output.len() {
            socket.end_sent = true;
            self.emit(id, Kind::Data, Bytes::new(), true);
        }
    }

    /// Ends a connection with this error.
    pub(super) fn fail(&mut self, id: u64, error: i32) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if matches!(socket.phase, Phase::Dead | Phase::Gone) {
            return;
        }
        let unseen = socket.orphan || socket.phase == Phase::Accepting;
        socket.phase = Phase::Dead;
        socket.error = Some(error);
        socket.output.clear();
        let pair = (socket.local, socket.remote);
        self.wake_socket(id);
        self.pairs.remove(&pair);
        if unseen {
            self.remove_socket(id);
        }
    }

    /// Takes a socket out of the network, without its wakers, which are not dropped under the lock.
    pub(super) fn remove_socket(&mut self, id: u64) -> Option<Socket> {
        let mut socket = self.sockets.remove(&id)?;
        self.wakes.append(&mut socket.readers);
        self.wakes.append(&mut socket.writers);
        Some(socket)
    }

    /// Removes a socket, without a segment to the peer.
    pub(super) fn forget(&mut self, id: u64) {
        let Some(socket) = self.remove_socket(id) else { return };
        let pair = (socket.local, socket.remote);
        if self.pairs.get(&pair) == Some(&id) {
            self.pairs.remove(&pair);
        }
    }

    /// Sends a reset and removes the socket.
    pub(super) fn reset(&mut self, id: u64) {
        self.emit(id, Kind::Reset, Bytes::new(), false);
        self.forget(id);
    }

    /// Wakes the tasks that wait for a socket, unless the programs of its host are stopped.
    pub(super) fn wake_socket(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if self.places[socket.host].frozen {
            return;
        }
        if socket.is_readable() {
            self.wakes.append(&mut socket.readers);
        }
        if socket.is_writable() {
            self.wakes.append(&mut socket.writers);
        }
    }

    /// Closes a socket whose handle is dropped.
    pub(super) fn close(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.orphan = true;
        match socket.phase {
            Phase::Open if socket.aborting || !socket.input.is_empty() => self.reset(id),
            Phase::Open => {
                socket.ends = true;
                self.pump(id);
                self.bury(id);
            }
            Phase::Connecting | Phase::Accepting | Phase::Dead | Phase::Gone => self.forget(id),
        }
    }

    /// Removes an orphan when both streams have ended.
    pub(super) fn bury(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if !socket.orphan || !socket.end_acknowledged {
            return;
        }
        if socket.ended {
            self.forget(id);
        } else {
            let expiry = self.now + FIN_WAIT;
            socket.times.expiry.get_or_insert(expiry);
            self.set_clock(id);
        }
    }
}

impl State {
    /// Handles a segment that reaches its host.
    pub(super) fn arrive(&mut self, segment: Segment) {
        let Some((from, to)) = self.hosts(&segment) else { return };
        let now = self.now;
        let lost = self.link(from, to).cut_until > now || !self.places[to].is_on_line();
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
        if listener.queue.len() >= BACKLOG {
            // As Linux does it: the peer asks again.
            return;
        }
        let id = self.number();
        let ends = (segment.to, segment.from);
        self.add_socket(id, Socket::new(host, ends, segment.connection, Phase::Accepting), Kind::SynAck);
    }

    /// Adds a socket, and sends its first segment.
    pub(super) fn add_socket(&mut self, id: u64, mut socket: Socket, first: Kind) {
        (socket.output_limit, socket.input_limit) = self.buffers;
        (socket.passed, socket.times.heard) = (self.now, self.now);
        self.pairs.insert((socket.local, socket.remote), id);
        self.sockets.insert(id, socket);
        self.emit(id, first, Bytes::new(), false);
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
        if !self.places[listener.host].frozen {
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

impl Socket {
    /// Returns the time to wait for the answer to a segment, this time.
    fn patience(&self) -> Duration {
        let first = if self.phase == Phase::Open { RETRANSMIT } else { CONNECT };
        first.saturating_mul(1 << self.times.retries.min(16)).min(LONGEST)
    }

    /// Returns when the peer is given up, if something is unanswered.
    fn limit(&self) -> Option<Duration> {
        let limit = if self.orphan { ORPHAN_PATIENCE } else { PATIENCE };
        self.times.unanswered.map(|since| since.saturating_add(limit))
    }

    /// Returns when the next probe is due, if nothing is unanswered.
    fn probe_at(&self) -> Option<Duration> {
        let (first, interval) = self.times.keepalive.filter(|_| self.phase == Phase::Open)?;
        Some(self.times.heard + first + interval * self.times.probes)
    }

    /// Returns when something is due.
    fn due(&self) -> Option<Duration> {
        let own = if self.is_unanswered() {
            [self.times.retransmit, self.limit()]
        } else {
            [self.probe_at(), None]
        };
        own.into_iter().chain([self.times.expiry]).flatten().min()
    }
}

impl State {
    /// Sets the clock of a socket.
    pub(super) fn set_clock(&mut self, id: u64) {
        let now = self.now;
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if socket.is_unanswered() {
            socket.times.unanswered.get_or_insert(now);
            if socket.times.retransmit.is_none() {
                // Not while the answer may still be on its way: a segment that waits for its turn is not lost. A stall
                // is not known here.
                socket.times.retransmit = Some(now.max(socket.expected) + socket.patience());
            }
        } else {
            socket.times.unanswered = None;
            socket.times.retransmit = None;
        }
        if let Some(due) = socket.due()
            && socket.times.armed.is_none_or(|armed| due < armed)
        {
            socket.times.armed = Some(due);
            self.schedule(due, Event::Clock(id));
        }
    }

    /// Does what is due, when the clock of a socket has come to a time that it was set to.
    pub(super) fn tick(&mut self, id: u64) {
        let now = self.now;
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if socket.times.armed.is_some_and(|armed| armed <= now) {
            socket.times.armed = None;
        }
        let is_due = |time: Option<Duration>| time.is_some_and(|time| time <= now);
        if is_due(socket.times.expiry) {
            return self.forget(id);
        }
        if socket.is_unanswered() {
            if is_due(socket.limit()) {
                return self.fail(id, libc::ETIMEDOUT);
            }
            if is_due(socket.times.retransmit) {
                self.send_again(id);
            }
        } else if is_due(socket.probe_at()) {
            if socket.times.probes == KEEPALIVE_RETRIES {
                return self.fail(id, libc::ETIMEDOUT);
            }
            socket.times.probes += 1;
            self.emit(id, Kind::Probe, Bytes::new(), false);
        }
        self.set_clock(id);
    }

    /// Sends again what was not answered.
    fn send_again(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.times.retries += 1;
        socket.times.unheard += 1;
        socket.times.retransmit = None;
        let retries = socket.times.retries;
        match socket.phase {
            Phase::Connecting if retries > CONNECT_RETRIES => self.fail(id, libc::ETIMEDOUT),
            Phase::Connecting => self.emit(id, Kind::Syn, Bytes::new(), false),
            Phase::Accepting if retries > ACCEPT_RETRIES => self.forget(id),
            Phase::Accepting => self.emit(id, Kind::SynAck, Bytes::new(), false),
            // The peer has no room. The segment that announces room again may have been lost.
            Phase::Open if socket.in_flight() == 0 && !socket.end_sent => {
                self.emit(id, Kind::Probe, Bytes::new(), false);
            }
            Phase::Open => {
                socket.sent = socket.acknowledged;
                socket.end_sent = false;
                socket.times.recovering = true;
                self.pump(id);
            }
            Phase::Dead | Phase::Gone => {}
        }
    }
}
