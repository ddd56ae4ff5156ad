//! The size of a queue pair.

use crate::error::OpenError;
use crate::provider::Capabilities;

/// How many requests a queue pair holds. Source: `IND2Adapter::CreateQueuePair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairConfig {
    pub(crate) receive_depth: usize,
    pub(crate) initiator_depth: usize,
    pub(crate) receive_entries: usize,
    pub(crate) initiator_entries: usize,
}

impl Default for QueuePairConfig {
    /// 128 requests and 4 scatter-gather entries in each queue.
    fn default() -> Self {
        Self { receive_depth: 128, initiator_depth: 128, receive_entries: 4, initiator_entries: 4 }
    }
}

impl QueuePairConfig {
    /// The most receives that may be outstanding.
    #[must_use]
    pub fn receive_depth(mut self, depth: usize) -> Self {
        self.receive_depth = depth;
        self
    }

    /// The most sends, writes and reads that may be outstanding.
    #[must_use]
    pub fn initiator_depth(mut self, depth: usize) -> Self {
        self.initiator_depth = depth;
        self
    }

    /// The most scatter-gather entries of a receive.
    #[must_use]
    pub fn receive_entries(mut self, entries: usize) -> Self {
        self.receive_entries = entries;
        self
    }

    /// The most scatter-gather entries of a send, write or read.
    #[must_use]
    pub fn initiator_entries(mut self, entries: usize) -> Self {
        self.initiator_entries = entries;
        self
    }

    /// Numbers the arguments as `CreateQueuePair` does.
    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<(), OpenError> {
        let limits = [
            (5, "receive queue depth", self.receive_depth, capabilities.depth),
            (6, "initiator queue depth", self.initiator_depth, capabilities.depth),
            (7, "receive scatter-gather entries", self.receive_entries, capabilities.entries),
            (8, "initiator scatter-gather entries", self.initiator_entries, capabilities.entries),
        ];
        match limits.into_iter().find(|(_, _, value, maximum)| *value == 0 || value > maximum) {
            Some((argument, what, _, _)) => Err(OpenError::InvalidParameter { argument, what }),
            None => Ok(()),
        }
    }
}
