//! How large a stream's buffers and queues are.

use std::time::Duration;

use crate::cm::{AdapterInfo, ProviderKind};
use crate::error::StreamError;

/// The fewest messages that may be on their way: rsocket's own lower limit (`RS_QP_MIN_SIZE`).
const MIN_DEPTH: usize = 16;

/// The most: a credit is a number of 16 bits (`RS_QP_MAX_SIZE`).
const MAX_DEPTH: usize = 0xFFFE;

/// The smallest ring, and what a write waits for (`RS_SNDLOWAT`).
const MIN_BUFFER: usize = 2048;

/// The largest ring: the length of a message has 29 bits.
const MAX_BUFFER: usize = (1 << 29) - 1;

/// What is sent from and received into unless told otherwise: rsocket's own sizes, since a device pins all of it.
const BUFFERS: [usize; 2] = [1 << 17, 1 << 17];

/// The same over TCP. A granted half has to last for as long as it takes the peer to wake up and grant the other; and memory
/// counts only once it is used.
const SOFT_BUFFERS: [usize; 2] = [1 << 18, 1 << 19];

/// How large the buffers and queues of a stream are, and how it waits. The defaults are rsocket's, see rsocket(7), but
/// for the buffers over the soft provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    send_buffer: Option<usize>,
    receive_buffer: Option<usize>,
    pub(super) send_depth: usize,
    pub(super) receive_depth: usize,
    pub(super) inline: usize,
    pub(super) spin: Duration,
    pub(super) handshake_timeout: Duration,
    pub(super) close_timeout: Duration,
}

impl Default for StreamConfig {
    /// 128 KiB each way, over the soft provider 256 KiB out and 512 KiB in; 384 messages each way, 64 bytes inline, no
    /// spinning, 10 seconds for a handshake, 30 to close.
    fn default() -> Self {
        Self {
            send_buffer: None,
            receive_buffer: None,
            send_depth: 384,
            receive_depth: 384,
            inline: 64,
            spin: Duration::ZERO,
            handshake_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(30),
        }
    }
}

impl StreamConfig {
    /// How many bytes may be written ahead of the network (`wmem_default`, `SO_SNDBUF`). At least 2048.
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// How many bytes the peer may write ahead of the reader (`mem_default`, `SO_RCVBUF`). At least 2048. The peer fills one
    /// half while the other is read.
    #[must_use]
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// How many requests of the send queue may be outstanding (`sqsize_default`, `RDMA_SQSIZE`), 16 to 65534; capped by
    /// what the adapter has.
    #[must_use]
    pub fn send_depth(mut self, depth: usize) -> Self {
        self.send_depth = depth;
        self
    }

    /// How many receives are posted for messages of the peer's (`rqsize_default`, `RDMA_RQSIZE`), 16 to 65534; capped by what
    /// the adapter has. Up to 16 of them are for messages about the stream itself.
    #[must_use]
    pub fn receive_depth(mut self, depth: usize) -> Self {
        self.receive_depth = depth;
        self
    }

    /// Writes of so many bytes are posted inline on devices (`inline_default`, `RDMA_INLINE`); capped by what the adapter has.
    /// The soft provider copies what is short in any case.
    #[must_use]
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = bytes;
        self
    }

    /// How long a read or write looks for the peer before it sleeps (`polling_time`). Each look takes a turn of the runtime,
    /// but the core never rests meanwhile.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// How long a handshake that a listener has begun may take: a peer that is slower is dropped.
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Self {
        self.handshake_timeout = time;
        self
    }

    /// How long a stream that was dropped goes on with what was written: then its connection ends, whether or not the peer has
    /// taken it.
    #[must_use]
    pub fn close_timeout(mut self, time: Duration) -> Self {
        self.close_timeout = time;
        self
    }

    /// How large the two buffers are.
    pub(super) fn buffers(&self, info: &AdapterInfo) -> [usize; 2] {
        let usual = if info.provider == ProviderKind::Soft { SOFT_BUFFERS } else { BUFFERS };
        [self.send_buffer.unwrap_or(usual[0]), self.receive_buffer.unwrap_or(usual[1])]
    }

    /// Caps it by what the adapter has.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub(super) fn on(mut self, info: &AdapterInfo) -> Result<Self, StreamError> {
        let [send_buffer, receive_buffer] = self.buffers(info);
        for (what, value, least, most) in [
            ("the send buffer", send_buffer, MIN_BUFFER, MAX_BUFFER),
            ("the receive buffer", receive_buffer, MIN_BUFFER, MAX_BUFFER),
            ("the send depth", self.send_depth, MIN_DEPTH, MAX_DEPTH),
            ("the receive depth", self.receive_depth, MIN_DEPTH, MAX_DEPTH),
        ] {
            if value < least || value > most {
                return Err(StreamError::OutOfRange(what));
            }
        }
        if info.max_queue_depth < MIN_DEPTH {
            return Err(StreamError::OutOfRange("the queue depth of the adapter"));
        }
        self.send_depth = self.send_depth.min(info.max_queue_depth);
        self.receive_depth = self.receive_depth.min(info.max_queue_depth);
        self.inline = self.inline.min(info.max_inline);
        Ok(self)
    }
}
