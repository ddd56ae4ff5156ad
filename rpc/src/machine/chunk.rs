//! The parts of a body that wait for their reader.

use bytes::Bytes;

/// A part of a body.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) content: Content,
    /// What it counts in the windows.
    pub(super) cost: u32,
}

#[derive(Debug)]
pub(super) enum Content {
    /// Bytes that have arrived.
    Bytes(Bytes),
    /// A loan of this number, which is being read.
    Lent(u32),
}

impl Chunk {
    /// Returns the bytes, if they have arrived.
    pub(super) fn into_bytes(self) -> Option<Bytes> {
        match self.content {
            Content::Bytes(bytes) => Some(bytes),
            Content::Lent(_) => None,
        }
    }
}
