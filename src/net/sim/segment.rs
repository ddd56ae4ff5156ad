//! The segments that travel from one end of a connection to the other.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::net::pcap::{self, Packet};

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
        use pcap::{ACK, FIN, PSH, RST, SYN};
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
