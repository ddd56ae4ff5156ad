//! Settings of messages.

use std::time::Duration;

use crate::cm::{AcceptorConfig, AdapterInfo};
use crate::error::StreamError;
use crate::io::config::CONNECT_TIMEOUT;
use crate::io::options::{ConnectionOptions, connection_setters};
use crate::proto::messages::{CONTROLS, HEADER, Hello};

/// Settings of [`Messages`](crate::io::Messages): the longest message, the queue depths and the handshake time limit.
///
/// Before the handshake, each side registers memory for [`receive_depth`](Self::receive_depth) + 4 messages: 768 KiB
/// with the defaults. More memory is registered with use: for the messages that are sent at the same time, up to 2 MiB
/// with the defaults, and for up to `receive_depth` messages that the application holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagesConfig {
    pub(super) max_message: usize,
    pub(super) receive_depth: usize,
    pub(super) send_depth: usize,
    pub(in crate::io) acceptor: AcceptorConfig,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) options: ConnectionOptions,
}

connection_setters!(MessagesConfig);

impl Default for MessagesConfig {
    /// Messages of up to 64 KiB; 8 messages ahead of the reader and 32 ahead of the network; 10 seconds to connect or for
    /// a handshake.
    fn default() -> Self {
        Self {
            max_message: 1 << 16,
            receive_depth: 8,
            send_depth: 32,
            acceptor: AcceptorConfig::default(),
            connect_timeout: Some(CONNECT_TIMEOUT),
            options: ConnectionOptions::default(),
        }
    }
}

impl MessagesConfig {
    /// Sets the longest message that the peer may send, in bytes.
    ///
    /// The peer announces the longest message that it receives: see
    /// [`Messages::max_message`](crate::io::Messages::max_message).
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Sets how many messages the peer may send before they are read, 1 to 65535.
    ///
    /// With 1, the peer waits for a credit after each message. With 2 or more, it can send while a credit is on its
    /// way. Short messages need many to fill a fast network. Each takes memory for the longest message.
    #[must_use]
    pub fn receive_depth(mut self, messages: usize) -> Self {
        self.receive_depth = messages;
        self
    }

    /// Sets how many messages can be outstanding in the send queue.
    #[must_use]
    pub fn send_depth(mut self, messages: usize) -> Self {
        self.send_depth = messages;
        self
    }

    /// Sets how long [`Messages::connect_on`](crate::io::Messages::connect_on) waits for the peer. `None` waits for as long
    /// as the network and the peer let it. Default: 10 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Returns the handshake data that is sent to the peer.
    ///
    /// # Errors
    /// `OutOfRange` if a setting exceeds the limits of the adapter.
    pub(in crate::io) fn hello(&self, info: &AdapterInfo) -> Result<Hello, StreamError> {
        let queue = info.max_queue_depth.saturating_sub(CONTROLS);
        let longest = longest(info);
        let (credits, message) = (usize::from(u16::MAX), usize::try_from(u32::MAX).unwrap_or(usize::MAX));
        for (what, value, most) in [
            ("the send depth", self.send_depth, queue),
            ("the receive depth", self.receive_depth, queue.min(credits)),
            ("the longest message", self.max_message, longest.min(message)),
        ] {
            if value == 0 || value > most {
                return Err(StreamError::OutOfRange { what, value, least: 1, most });
            }
        }
        Ok(Hello {
            credits: u16::try_from(self.receive_depth).unwrap_or(u16::MAX),
            maximum: u32::try_from(self.max_message).unwrap_or(u32::MAX),
        })
    }
}

/// The longest message that an adapter can carry.
pub(super) fn longest(info: &AdapterInfo) -> usize {
    info.max_transfer.min(info.max_registration).saturating_sub(HEADER)
}
