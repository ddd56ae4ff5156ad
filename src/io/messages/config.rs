//! How large messages are, and how many may be on their way.

use std::time::Duration;

use crate::cm::AdapterInfo;
use crate::error::StreamError;
use crate::proto::messages::{CONTROLS, HEADER, Hello};

/// How long the messages of an end are, and how many may wait for it.
///
/// An end has registered memory for as many messages as it lets wait and four more, from before the handshake and whether
/// any come or not: with the defaults 768 KiB. More comes with use: for as many messages as are sent at once, with the
/// defaults up to 2 MiB, and for as many that were handed out as may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagesConfig {
    pub(super) max_message: usize,
    pub(super) receive_depth: usize,
    pub(super) send_depth: usize,
    pub(in crate::io) handshake_timeout: Duration,
}

impl Default for MessagesConfig {
    /// Messages of up to 64 KiB, 8 of them ahead of the reader, 32 ahead of the network, and 10 seconds for a handshake.
    fn default() -> Self {
        Self {
            max_message: 1 << 16,
            receive_depth: 8,
            send_depth: 32,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

impl MessagesConfig {
    /// The longest message that the peer may send, in bytes; the peer says how long those to it may be.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// How many messages the peer may send ahead of the reader, 1 to 65535. Two or more, for it to send while it is told
    /// that one has been read; many, for short messages to fill a fast network. Each is memory of the length of the longest.
    #[must_use]
    pub fn receive_depth(mut self, messages: usize) -> Self {
        self.receive_depth = messages;
        self
    }

    /// How many messages may be sent ahead of the network.
    #[must_use]
    pub fn send_depth(mut self, messages: usize) -> Self {
        self.send_depth = messages;
        self
    }

    /// How long a handshake that a listener has begun may take: a peer that is slower is dropped.
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Self {
        self.handshake_timeout = time;
        self
    }

    /// What the peer is told.
    ///
    /// # Errors
    /// `OutOfRange` for what the adapter has not.
    pub(in crate::io) fn hello(&self, info: &AdapterInfo) -> Result<Hello, StreamError> {
        let out = StreamError::OutOfRange;
        let queue = info.max_queue_depth.saturating_sub(CONTROLS);
        let longest = longest(info);
        let maximum = u32::try_from(self.max_message).ok().filter(|bytes| *bytes > 0);
        let credits = u16::try_from(self.receive_depth).ok().filter(|depth| *depth > 0);
        if self.send_depth == 0 || self.send_depth > queue {
            return Err(out("the send depth"));
        }
        Ok(Hello {
            credits: credits.filter(|_| self.receive_depth <= queue).ok_or(out("the receive depth"))?,
            maximum: maximum.filter(|_| self.max_message <= longest).ok_or(out("the longest message"))?,
        })
    }
}

/// The longest message that an adapter can carry.
pub(super) fn longest(info: &AdapterInfo) -> usize {
    info.max_transfer.min(info.max_registration).saturating_sub(HEADER)
}
