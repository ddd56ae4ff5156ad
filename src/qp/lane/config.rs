//! The settings of a lane.

use crate::error::OpenError;
use crate::inflight::LOOSE;
use crate::memory::Pages;
use crate::provider::info::{AdapterInfo, USUAL_ENTRIES, USUAL_INLINE};
use crate::provider::work::LaneParts;

/// The most slots of a lane.
const MOST_SLOTS: usize = LOOSE as usize;
/// The most queue pairs of a lane.
const MOST_QUEUE_PAIRS: usize = 65_534;

/// Settings of a [`Lane`](super::Lane): its slots, and the sizes of the queues of its queue pairs.
///
/// ```
/// use tokio_rdma::qp::LaneConfig;
///
/// let config = LaneConfig::new(4096, 64).queue_pairs(64).shared_receives(true).receive_depth(2048);
/// ```
#[derive(Clone, Debug)]
pub struct LaneConfig {
    slots: usize,
    slot_length: usize,
    queue_pairs: usize,
    send_depth: usize,
    receive_depth: usize,
    shared_receives: bool,
    send_entries: usize,
    /// `None`: [`USUAL_INLINE`], or less if the adapter supports less.
    inline: Option<usize>,
    processor: Option<usize>,
    pages: Pages,
}

impl LaneConfig {
    /// Creates settings for so many slots of this length in bytes.
    ///
    /// A message that is received must fit into a slot. Slots begin at cache lines, so lengths that are no multiple of 64 leave some
    /// bytes unused.
    pub fn new(slots: usize, slot_length: usize) -> Self {
        Self {
            slots,
            slot_length,
            queue_pairs: 1,
            send_depth: 128,
            receive_depth: 128,
            shared_receives: false,
            send_entries: USUAL_ENTRIES,
            inline: None,
            processor: None,
            pages: Pages::Base,
        }
    }

    /// Sets how many queue pairs the lane may have at a time. One that has ended counts until each of its requests has come out of a
    /// poll. Default: 1.
    #[must_use]
    pub fn queue_pairs(mut self, most: usize) -> Self {
        self.queue_pairs = most;
        self
    }

    /// Sets how many requests of the send queue of each queue pair can be outstanding: all requests except receives. Default: 128.
    #[must_use]
    pub fn send_depth(mut self, depth: usize) -> Self {
        self.send_depth = depth;
        self
    }

    /// Sets how many receives of each queue pair can be outstanding, or of all of them with
    /// [`shared_receives`](Self::shared_receives). Default: 128.
    #[must_use]
    pub fn receive_depth(mut self, depth: usize) -> Self {
        self.receive_depth = depth;
        self
    }

    /// Has the queue pairs take their receives from one queue, so that a server needs receives for the messages that come, and not for
    /// each of its clients. [`Lane::receive`](super::Lane::receive) then posts to that queue, whichever queue pair it names. Source:
    /// `IND2Adapter::CreateSharedReceiveQueue`, ibv_create_srq(3). Default: off.
    #[must_use]
    pub fn shared_receives(mut self, shared: bool) -> Self {
        self.shared_receives = shared;
        self
    }

    /// Sets the maximum number of parts of a request of the send queue. Default: 4.
    #[must_use]
    pub fn send_entries(mut self, entries: usize) -> Self {
        self.send_entries = entries;
        self
    }

    /// Sets the number of bytes up to which a device gets Sends and Writes inline, so that it need not come for the bytes. The slot
    /// comes back with the completion all the same. Default: 64, or the adapter's maximum if that is smaller.
    #[must_use]
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = Some(bytes);
        self
    }

    /// Sets the processor that is interrupted by completions while the lane [waits](super::Lane::ready), if the device can choose.
    /// Default: none.
    #[must_use]
    pub fn affinity(mut self, processor: usize) -> Self {
        self.processor = Some(processor);
        self
    }

    /// Sets the pages of the memory of the slots. Default: those of the usual size.
    #[must_use]
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// Checks the settings against an adapter. Errors number the arguments as `CreateQueuePair` does; those of the slots have 1.
    pub(super) fn check(&self, info: &AdapterInfo) -> Result<LaneParts, OpenError> {
        let inline = self.inline.unwrap_or(USUAL_INLINE.min(info.max_inline));
        let receives = if self.shared_receives { info.max_shared_depth } else { info.max_queue_depth };
        let bytes = isize::MAX as usize;
        let limits = [
            (1, "slots", self.slots, 1, MOST_SLOTS),
            (1, "slot_length", self.slot_length, 1, info.max_transfer.min(u32::MAX as usize >> 1)),
            (1, "queue_pairs", self.queue_pairs, 1, MOST_QUEUE_PAIRS),
            (1, "slots times slot_length", self.slots.saturating_mul(self.slot_length), 1, bytes),
            (5, "receive_depth", self.receive_depth, 1, receives),
            (6, "send_depth", self.send_depth, 1, info.max_queue_depth),
            (8, "send_entries", self.send_entries, 1, info.max_entries),
            (9, "inline", inline, 0, info.max_inline),
        ];
        for (argument, name, value, least, most) in limits {
            OpenError::check_range(argument, name, value, least..=most)?;
        }
        // Each was checked against a limit that is smaller.
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(LaneParts {
            slots: small(self.slots),
            slot_length: small(self.slot_length),
            queue_pairs: u16::try_from(self.queue_pairs).unwrap_or(u16::MAX - 1),
            send_depth: small(self.send_depth),
            receive_depth: small(self.receive_depth),
            shared_receives: self.shared_receives,
            send_entries: small(self.send_entries),
            inline: small(inline),
            processor: self.processor,
            pages: self.pages,
        })
    }
}
