//! Does the work that is due at a socket: bytes are sent again, peers are probed, and peers are given up.

use std::time::Duration;

use bytes::Bytes;

use super::segment::Kind;
use super::socket::{Phase, Socket};
use super::world::{Event, State};
use crate::net::options::KEEPALIVE_RETRIES;

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
pub(super) const FIN_WAIT: Duration = Duration::from_secs(60);

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
