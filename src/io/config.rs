//! Settings of streams.

use std::time::Duration;

use super::options::ConnectionOptions;
use crate::cm::{AcceptorConfig, AdapterInfo, ProviderKind};
use crate::error::StreamError;

/// The fewest messages that may be on their way: rsocket's own lower limit (`RS_QP_MIN_SIZE`).
const MIN_DEPTH: usize = 16;

/// The most: a credit is a number of 16 bits (`RS_QP_MAX_SIZE`).
const MAX_DEPTH: usize = 0xFFFE;

/// The smallest ring: the space that a write of rsocket waits for (`RS_SNDLOWAT`).
const MIN_BUFFER: usize = 2048;

/// The largest ring: the length of a message has 29 bits.
const MAX_BUFFER: usize = (1 << 29) - 1;

/// The default buffers on devices, rsocket's own sizes: a device pins all of the memory.
const BUFFERS: [usize; 2] = [1 << 17, 1 << 17];

/// The default buffers over TCP. There is none to send from: the first is the longest message. The other is granted by
/// halves, so a half should take the longest message, and has to last until this end has woken up and granted the other half.
/// Bytes that wait in a longer ring leave the caches, and all of it may stay in memory.
const SOFT_BUFFERS: [usize; 2] = [1 << 20, 1 << 21];

/// The time that a connect waits for the peer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of streams: the sizes of buffers and queues, spinning and time limits.
///
/// The defaults are those of rsocket(7), except for the buffers on the soft provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    send_buffer: Option<usize>,
    receive_buffer: Option<usize>,
    pub(super) send_depth: usize,
    pub(super) receive_depth: usize,
    pub(super) inline: usize,
    pub(super) spin: Duration,
    pub(super) acceptor: AcceptorConfig,
    pub(super) close_timeout: Duration,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) options: ConnectionOptions,
}

impl Default for StreamConfig {
    /// Returns buffers of 128 KiB in each direction, or on the soft provider 2 MiB to receive and messages of up to
    /// 1 MiB; 384 messages in each direction; 64 bytes inline; no spinning; 10 seconds to connect or for a handshake, and 30 seconds
    /// to close.
    fn default() -> Self {
        Self {
            send_buffer: None,
            receive_buffer: None,
            send_depth: 384,
            receive_depth: 384,
            inline: 64,
            spin: Duration::ZERO,
            acceptor: AcceptorConfig::default(),
            close_timeout: Duration::from_secs(30),
            connect_timeout: Some(CONNECT_TIMEOUT),
            options: ConnectionOptions::default(),
        }
    }
}

impl StreamConfig {
    /// Sets how many bytes can be written before they are sent (`wmem_default`, `SO_SNDBUF`), at least 2048.
    ///
    /// The soft provider has no such buffer: a write is sent from the memory of the caller, as far as the socket has room. There
    /// this limits how many bytes one write sends.
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// Sets how many bytes the peer can write before they are read (`mem_default`, `SO_RCVBUF`), at least 2048.
    ///
    /// The peer fills one half of the buffer while this side reads the other.
    #[must_use]
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Sets how many requests of the send queue can be outstanding (`sqsize_default`, `RDMA_SQSIZE`), 16 to 65534.
    ///
    /// The value is reduced to the adapter's maximum.
    #[must_use]
    pub fn send_depth(mut self, depth: usize) -> Self {
        self.send_depth = depth;
        self
    }

    /// Sets how many receives are posted for messages of the peer (`rqsize_default`, `RDMA_RQSIZE`), 16 to 65534.
    ///
    /// The value is reduced to the adapter's maximum. Up to 16 of the receives are reserved for messages about the
    /// stream itself.
    #[must_use]
    pub fn receive_depth(mut self, depth: usize) -> Self {
        self.receive_depth = depth;
        self
    }

    /// Sets the length up to which writes are posted inline on devices (`inline_default`, `RDMA_INLINE`).
    ///
    /// The value is reduced to the adapter's maximum. The soft provider ignores it, because it copies short writes in
    /// any case.
    #[must_use]
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = bytes;
        self
    }

    /// Sets how long a read or write polls before it sleeps (`polling_time`).
    ///
    /// Other tasks of the runtime run between two polls, but the processor core stays busy.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Sets how long a dropped stream continues to send the written data, from the drop of its last half, and how long
    /// [`shutdown`](tokio::io::AsyncWriteExt::shutdown) waits for progress until the peer's device has received it.
    ///
    /// Either ends earlier when the peer has received all of it, and `shutdown` after ten minutes, if this time is not longer. After
    /// a drop the connection ends in either case; after the time,
    /// `shutdown` fails with `TimedOut`, and the connection goes on.
    #[must_use]
    pub fn close_timeout(mut self, time: Duration) -> Self {
        self.close_timeout = time;
        self
    }

    /// Sets how long [`RdmaStream::connect_on`](super::RdmaStream::connect_on) and
    /// [`RdmaConnector::connect`](super::RdmaConnector::connect) wait for the peer, over all addresses. `None` waits for as
    /// long as the network and the peer let it. Default: 10 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Returns the sizes of the send buffer and the receive buffer.
    pub(super) fn buffers(&self, info: &AdapterInfo) -> [usize; 2] {
        let usual = if info.provider == ProviderKind::Soft { SOFT_BUFFERS } else { BUFFERS };
        [self.send_buffer.unwrap_or(usual[0]), self.receive_buffer.unwrap_or(usual[1])]
    }

    /// Checks the settings and reduces them to the limits of the adapter.
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
                return Err(StreamError::OutOfRange { what, value, least, most });
            }
        }
        if info.max_queue_depth < MIN_DEPTH {
            let (what, value) = ("the queue depth of the adapter", info.max_queue_depth);
            return Err(StreamError::OutOfRange { what, value, least: MIN_DEPTH, most: MAX_DEPTH });
        }
        self.send_depth = self.send_depth.min(info.max_queue_depth);
        self.receive_depth = self.receive_depth.min(info.max_queue_depth);
        self.inline = self.inline.min(info.max_inline);
        Ok(self)
    }
}
