//! Errors of messages.

use crate::status::Status;

/// The error of sending a message that is longer than the peer accepts.
///
/// The message was not sent. Other messages can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {length} bytes exceeds the peer's maximum of {maximum}")]
pub struct MessageTooLong {
    /// The length of the message.
    pub length: usize,
    /// The maximum length that the peer accepts.
    pub maximum: usize,
}

impl MessageTooLong {
    /// Always [`Status::BUFFER_OVERFLOW`].
    pub fn status(&self) -> Status {
        Status::BUFFER_OVERFLOW
    }
}
