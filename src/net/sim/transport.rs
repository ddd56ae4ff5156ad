//! Sends the segments of sockets.

use std::time::Duration;

use bytes::Bytes;

use super::clock::FIN_WAIT;
use super::segment::{Kind, Segment};
use super::socket::{Phase, Socket};
use super::world::{Event, Place, State};

impl State {
    /// Sends a segment, unless the way is cut. Returns when it arrives, and when it would without the rest of a stall.
    fn transmit(&mut self, segment: Segment, not_before: Duration) -> Option<(Duration, Duration)> {
        let hosts = (self.addresses.get(&segment.from.ip()), self.addresses.get(&segment.to.ip()));
        let (Some(&from), Some(&to)) = hosts else {
            self.trace.segment(self.now, &segment, true);
            return None;
        };
        let on_line = self.places.get(from).is_some_and(Place::is_on_line);
        let now = self.now;
        if !on_line || self.link(from, to).cut_until > now {
            self.trace.segment(now, &segment, true);
            return None;
        }
        self.link(from, to);
        let link = self.links.get_mut(&(from, to))?;
        let (arrival, expected) = link.carry(now, segment.bytes.len(), &mut self.rng);
        let arrival = arrival.max(not_before);
        self.schedule(arrival, Event::Arrival(segment));
        Some((arrival, expected))
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
            self.link(host, to);
            let Some(link) = self.links.get(&(host, to)) else { break };
            let length = link.segment(&mut self.rng).min(sendable);
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
        if self.places.get(socket.host).is_some_and(|place| place.frozen) {
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
