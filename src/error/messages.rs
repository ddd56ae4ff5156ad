//! The errors of messages beyond those of streams.

use crate::status::Status;

/// A message that is longer than the peer takes. Nothing was sent, and others may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {length} bytes, the peer takes {maximum}")]
pub struct MessageTooLong {
    /// How long it is.
    pub length: usize,
    /// The longest that the peer takes.
    pub maximum: usize,
}

impl MessageTooLong {
    /// Always [`Status::BUFFER_OVERFLOW`].
    pub fn status(&self) -> Status {
        Status::BUFFER_OVERFLOW
    }
}
