//! One end of a simulated connection, and the segments that travel from one end to the other.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::net::capture::{self, Packet};

/// The phase of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has asked for a connection.
    Connecting,
    /// It has granted one, and no listener has it yet.
    Accepting,
    /// Bytes go both ways.
    Open,
    /// It was reset, or given up.
    Dead,
    /// Its host has crashed: nothing happens to it.
    Gone,
}

/// The two times of keepalive: before the first probe, and between two.
pub(super) type Keepalive = (Duration, Duration);

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) host: usize,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) connection: u64,
    pub(super) phase: Phase,
    /// The number of the error that was not reported yet.
    pub(super) error: Option<i32>,

    /// The bytes that were written and not acknowledged.
    pub(super) output: BytesMut,
    /// The most bytes of `output`.
    pub(super) output_limit: usize,
    /// The place of the first byte of `output` in the stream.
    pub(super) acknowledged: u64,
    /// The place of the next byte to send.
    pub(super) sent: u64,
    /// The place in the stream up to which the peer allows to send.
    pub(super) edge: u64,
    /// The stream ends behind `output`.
    pub(super) ends: bool,
    pub(super) end_sent: bool,
    pub(super) end_acknowledged: bool,
    /// The time at which the last segment that was sent arrives.
    pub(super) arrival: Duration,
    /// The time at which that segment would arrive without the stall that it waits for.
    pub(super) expected: Duration,
    /// The time at which the last segment was sent that was not lost.
    pub(super) passed: Duration,

    /// The bytes that have arrived and were not read.
    pub(super) input: BytesMut,
    /// The most bytes of `input`.
    pub(super) input_limit: usize,
    /// The place behind the last byte that has arrived.
    pub(super) received: u64,
    /// The place in its stream up to which the peer was allowed to send.
    pub(super) advertised: u64,
    /// The peer's stream has ended.
    pub(super) ended: bool,
    /// No task reads behind `input`.
    pub(super) deaf: bool,

    pub(super) times: Times,

    /// The drop of the handle resets the connection.
    pub(super) aborting: bool,
    /// The handle was dropped.
    pub(super) orphan: bool,
    pub(super) readers: Vec<Waker>,
    pub(super) writers: Vec<Waker>,
}

/// The times and counts that the clock of an end goes by.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The time for which the next event of the clock is scheduled.
    pub(super) armed: Option<Duration>,
    /// The time at which unanswered segments are sent again.
    pub(super) retransmit: Option<Duration>,
    /// The number of times that this was done without an answer.
    pub(super) retries: u32,
    /// The number of times that something was sent again since the last segment of the peer.
    pub(super) unheard: u32,
    /// One segment at a time until something is acknowledged.
    pub(super) recovering: bool,
    /// The time since which something is unanswered.
    pub(super) unanswered: Option<Duration>,
    pub(super) keepalive: Option<Keepalive>,
    /// The time at which the last segment of the peer has come.
    pub(super) heard: Duration,
    /// Probes since then.
    pub(super) probes: u32,
    /// The time at which an orphan is removed.
    pub(super) expiry: Option<Duration>,
}

impl Socket {
    /// Creates an end of a connection: its own address, and that of the peer.
    pub(super) fn new(
        host: usize,
        (local, remote): (SocketAddr, SocketAddr),
        connection: u64,
        phase: Phase,
    ) -> Self {
        Self {
            host,
            local,
            remote,
            connection,
            phase,
            error: None,
            output: BytesMut::new(),
            output_limit: 0,
            acknowledged: 0,
            sent: 0,
            edge: 0,
            ends: false,
            end_sent: false,
            end_acknowledged: false,
            arrival: Duration::ZERO,
            expected: Duration::ZERO,
            passed: Duration::ZERO,
            input: BytesMut::new(),
            input_limit: 0,
            received: 0,
            advertised: 0,
            ended: false,
            deaf: false,
            times: Times::default(),
            aborting: false,
            orphan: false,
            readers: Vec::new(),
            writers: Vec::new(),
        }
    }

    /// Returns the number of bytes of `output` that are on their way.
    pub(super) fn in_flight(&self) -> usize {
        usize::try_from(self.sent - self.acknowledged).unwrap_or(usize::MAX).min(self.output.len())
    }

    /// Returns the number of bytes that were written and are not acknowledged, the end of the stream being one once it
    /// was sent.
    pub(super) fn unacknowledged(&self) -> usize {
        self.output.len() + usize::from(self.end_sent && !self.end_acknowledged)
    }

    /// Returns the number of bytes that may be sent now.
    pub(super) fn sendable(&self) -> usize {
        let window = usize::try_from(self.edge.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        (self.output.len() - self.in_flight()).min(window)
    }

    /// Returns whether the peer owes an acknowledgement, or room.
    pub(super) fn is_unanswered(&self) -> bool {
        match self.phase {
            Phase::Connecting | Phase::Accepting => true,
            Phase::Open => !self.output.is_empty() || (self.end_sent && !self.end_acknowledged),
            Phase::Dead | Phase::Gone => false,
        }
    }

    /// Returns the place in its stream up to which the peer may send now.
    pub(super) fn window(&self) -> u64 {
        self.received + self.input_limit.saturating_sub(self.input.len()) as u64
    }

    /// Takes an acknowledgement. Returns whether it was of something new.
    pub(super) fn take_acknowledgement(&mut self, segment: &Segment) -> bool {
        self.edge = self.edge.max(segment.edge);
        let written = self.acknowledged + self.output.len() as u64;
        let upto = segment.acknowledged.min(written);
        let count = usize::try_from(upto.saturating_sub(self.acknowledged)).unwrap_or(0);
        let was_open = self.end_sent && !self.end_acknowledged;
        self.output.advance(count);
        self.acknowledged += count as u64;
        self.sent = self.sent.max(self.acknowledged);
        self.end_acknowledged |= self.ends && self.output.is_empty() && segment.acknowledged > written;
        self.end_sent |= self.end_acknowledged;
        count > 0 || (was_open && self.end_acknowledged)
    }

    /// Takes the bytes of a segment that come next. Returns whether there were any, or the end of the stream.
    pub(super) fn take_bytes(&mut self, segment: &Segment) -> bool {
        let Some(known) = self.received.checked_sub(segment.sequence) else { return false };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let Some(fresh) = segment.bytes.get(known..) else { return false };
        let count = fresh.len().min(self.input_limit.saturating_sub(self.input.len()));
        self.input.extend_from_slice(&fresh[..count]);
        self.received += count as u64;
        let ends = segment.end && count == fresh.len() && !self.ended;
        self.ended |= ends;
        count > 0 || ends
    }

    /// Returns whether to send the peer that it may send more: once a quarter of the room has come free, unless its
    /// stream has ended. The peer may be gone then, and would answer with a reset.
    pub(super) fn owes_window(&self) -> bool {
        self.phase == Phase::Open
            && !self.ended
            && self.window() >= self.advertised + (self.input_limit as u64 / 4).max(1)
    }

    /// Returns whether a read does not have to wait.
    pub(super) fn is_readable(&self) -> bool {
        match self.phase {
            Phase::Gone => false,
            Phase::Dead => true,
            Phase::Connecting | Phase::Accepting | Phase::Open => {
                !self.input.is_empty() || self.ended || self.deaf
            }
        }
    }

    /// Returns whether a write does not have to wait.
    pub(super) fn is_writable(&self) -> bool {
        match self.phase {
            Phase::Connecting | Phase::Accepting | Phase::Gone => false,
            Phase::Dead => true,
            Phase::Open => self.ends || self.output.len() <= self.output_limit / 2,
        }
    }

    /// Returns the bytes that can be read.
    ///
    /// # Errors
    /// `WouldBlock`, or how the connection ended.
    pub(super) fn readable(&mut self) -> io::Result<&[u8]> {
        if self.phase == Phase::Gone {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // As on Linux: behind the end of the stream a reader gets no error.
        if self.input.is_empty() && !self.ended {
            if let Some(error) = self.error.take() {
                return Err(io::Error::from_raw_os_error(error));
            }
            if !self.is_readable() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(&self.input)
    }

    /// Returns the number of bytes that can be written, at least 1.
    ///
    /// # Errors
    /// `WouldBlock`, or how the connection ended.
    pub(super) fn room(&mut self) -> io::Result<usize> {
        match self.phase {
            Phase::Dead => Err(io::Error::from_raw_os_error(self.error.take().unwrap_or(libc::EPIPE))),
            Phase::Open if self.ends => Err(io::Error::from_raw_os_error(libc::EPIPE)),
            Phase::Open if self.output.len() < self.output_limit => Ok(self.output_limit - self.output.len()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Has the task woken when there is something to read.
    pub(super) fn poll_readable(&mut self, frozen: bool, cx: &Context<'_>) -> Poll<()> {
        if !frozen && self.is_readable() {
            return Poll::Ready(());
        }
        register(&mut self.readers, cx);
        Poll::Pending
    }

    /// Has the task woken when there is room to write.
    pub(super) fn poll_writable(&mut self, frozen: bool, cx: &Context<'_>) -> Poll<()> {
        if !frozen && self.is_writable() {
            return Poll::Ready(());
        }
        register(&mut self.writers, cx);
        Poll::Pending
    }
}

/// Adds the task to a list, unless it is there.
pub(super) fn register(list: &mut Vec<Waker>, cx: &Context<'_>) {
    if !list.iter().any(|known| known.will_wake(cx.waker())) {
        list.push(cx.waker().clone());
    }
}

/// The purpose of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Asks for a connection.
    Syn,
    /// Grants it.
    SynAck,
    /// Bytes, the end of the stream, or nothing but an acknowledgement.
    Data,
    /// Asks for an acknowledgement.
    Probe,
    /// Ends the connection at once.
    Reset,
}

/// A segment.
#[derive(Clone, Debug, Hash)]
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The connection: no two have the same number, also if they have the same addresses and ports.
    pub(super) connection: u64,
    pub(super) kind: Kind,
    /// The place of the first byte in the stream.
    pub(super) sequence: u64,
    pub(super) bytes: Bytes,
    /// The stream ends behind the bytes.
    pub(super) end: bool,
    /// The number of bytes of the other stream that have arrived, its end being one.
    pub(super) acknowledged: u64,
    /// The place in the stream up to which the other end may send.
    pub(super) edge: u64,
}

impl Segment {
    /// Creates a segment without bytes, which has no numbers of either stream.
    pub(super) fn bare(from: SocketAddr, to: SocketAddr, connection: u64, kind: Kind) -> Self {
        let bytes = Bytes::new();
        Self { from, to, connection, kind, sequence: 0, bytes, end: false, acknowledged: 0, edge: 0 }
    }

    /// Returns the segment as a TCP packet. The streams begin at the sequence number 1, behind the SYN.
    pub(super) fn packet(&self) -> Packet<'_> {
        use capture::{ACK, FIN, PSH, RST, SYN};
        let (sequence, acknowledged) = (self.sequence + 1, self.acknowledged + 1);
        let (flags, sequence, acknowledged) = match self.kind {
            Kind::Syn => (SYN, 0, 0),
            Kind::SynAck => (SYN | ACK, 0, acknowledged),
            Kind::Data if self.end => (FIN | ACK, sequence, acknowledged),
            Kind::Data if self.bytes.is_empty() => (ACK, sequence, acknowledged),
            Kind::Data => (PSH | ACK, sequence, acknowledged),
            // A probe has the number of a byte that the peer has already: that asks for an acknowledgement (RFC
            // 9293 section 3.8.4).
            Kind::Probe => (ACK, sequence - 1, acknowledged),
            Kind::Reset => (RST | ACK, sequence, acknowledged),
        };
        let window = self.edge.saturating_sub(self.acknowledged);
        Packet { from: self.from, to: self.to, flags, sequence, acknowledged, window, bytes: &self.bytes }
    }
}
