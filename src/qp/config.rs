//! Settings of queue pairs.

use std::sync::Arc;

use super::completion_queue::CompletionQueue;
use super::shared::SharedReceiveQueue;
use crate::error::OpenError;
use crate::provider::info::{AdapterInfo, USUAL_ENTRIES, USUAL_INLINE};
use crate::provider::stream::StreamInbox;

/// Settings of a queue pair: the sizes of its queues, and the queues that it shares with other queue pairs. Source:
/// `IND2Adapter::CreateQueuePair`.
#[derive(Clone, Debug)]
pub struct QueuePairConfig {
    pub(crate) receive_depth: usize,
    pub(crate) send_depth: usize,
    pub(crate) receive_entries: usize,
    pub(crate) send_entries: usize,
    /// `None`: [`USUAL_INLINE`], or less if the adapter supports less.
    pub(crate) inline: Option<usize>,
    pub(crate) context: u64,
    pub(crate) receive_completions: Option<CompletionQueue>,
    pub(crate) send_completions: Option<CompletionQueue>,
    pub(crate) shared: Option<SharedReceiveQueue>,
    /// The destination of what the peer of a byte stream sends.
    pub(crate) inbox: Option<Arc<StreamInbox>>,
    /// The peer has a receive for each message.
    pub(crate) credited: bool,
}

impl Default for QueuePairConfig {
    /// Returns 128 requests and 4 scatter-gather entries in each queue, and 64 bytes inline if the adapter supports
    /// that.
    fn default() -> Self {
        Self {
            receive_depth: 128,
            send_depth: 128,
            receive_entries: USUAL_ENTRIES,
            send_entries: USUAL_ENTRIES,
            inline: None,
            context: 0,
            receive_completions: None,
            send_completions: None,
            shared: None,
            inbox: None,
            credited: false,
        }
    }
}

impl QueuePairConfig {
    /// Sets how many receives can be outstanding.
    #[must_use]
    pub fn receive_depth(mut self, depth: usize) -> Self {
        self.receive_depth = depth;
        self
    }

    /// Sets how many requests of the send queue can be outstanding: all requests except receives (`initiatorQueueDepth`
    /// of ND, `max_send_wr` of verbs).
    #[must_use]
    pub fn send_depth(mut self, depth: usize) -> Self {
        self.send_depth = depth;
        self
    }

    /// Sets the maximum number of scatter-gather entries of a receive.
    #[doc(alias = "sge")]
    #[doc(alias = "max_recv_sge")]
    #[must_use]
    pub fn receive_entries(mut self, entries: usize) -> Self {
        self.receive_entries = entries;
        self
    }

    /// Sets the maximum number of scatter-gather entries of a request of the send queue.
    #[doc(alias = "sge")]
    #[doc(alias = "max_send_sge")]
    #[must_use]
    pub fn send_entries(mut self, entries: usize) -> Self {
        self.send_entries = entries;
        self
    }

    /// Sets the maximum number of bytes of an inline send or write. Default: 64, or the adapter's maximum if that is
    /// smaller. The queue pair is refused (`INVALID_PARAMETER_n`) if it cannot have as many, also where the driver of the device
    /// would give it fewer without an error.
    ///
    /// A device gets sends and writes of registered memory that are not longer inline, too, so that it need not come for the bytes. With
    /// 0 nothing is inline.
    #[must_use]
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = Some(bytes);
        self
    }

    /// Sets a number that completions name the queue pair by, in
    /// [`WorkCompletion::queue_pair_context`](super::WorkCompletion::queue_pair_context) and
    /// [`Completion::queue_pair_context`](super::Completion::queue_pair_context). Default: 0.
    #[must_use]
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Sets the completion queue of both queues.
    #[must_use]
    pub fn completions(self, queue: &CompletionQueue) -> Self {
        self.receive_completions(queue).send_completions(queue)
    }

    /// Sets the completion queue of receives. Default: none; receives complete through their futures.
    #[must_use]
    pub fn receive_completions(mut self, queue: &CompletionQueue) -> Self {
        self.receive_completions = Some(queue.clone());
        self
    }

    /// Sets the completion queue of the send queue. Default: none; its requests complete through their futures.
    #[must_use]
    pub fn send_completions(mut self, queue: &CompletionQueue) -> Self {
        self.send_completions = Some(queue.clone());
        self
    }

    /// Sets a shared receive queue, from which messages take their receives. Source:
    /// `IND2Adapter::CreateQueuePairWithSrq`.
    ///
    /// Receives cannot be posted to the queue pair then. The depth and the entries of receives are those of the shared
    /// queue.
    #[must_use]
    pub fn shared_receives(mut self, queue: &SharedReceiveQueue) -> Self {
        self.shared = Some(queue.clone());
        self
    }

    /// Sets the inbox that messages go to instead of receives: on the soft provider alone.
    #[must_use]
    pub(crate) fn inbox(mut self, inbox: &Arc<StreamInbox>) -> Self {
        self.inbox = Some(inbox.clone());
        self
    }

    /// Promises that the peer has posted a receive for each message before it is sent.
    #[must_use]
    pub(crate) fn credited(mut self) -> Self {
        self.credited = true;
        self
    }

    /// Returns the most inline bytes, for an adapter with this maximum.
    pub(crate) fn inline_bytes(&self, maximum: usize) -> usize {
        self.inline.unwrap_or(USUAL_INLINE.min(maximum))
    }

    /// Checks the settings. Errors number the arguments as `CreateQueuePair` does, and with a shared receive queue as
    /// `CreateQueuePairWithSrq` does, which has no depth and no entries of receives.
    pub(crate) fn check(&self, info: &AdapterInfo, domain: u64) -> Result<(), OpenError> {
        let wrong =
            |argument, what: &'static str| Err(OpenError::InvalidParameter { argument, what: what.into() });
        let foreign =
            |queue: &Option<CompletionQueue>| queue.as_ref().is_some_and(|queue| queue.domain() != domain);
        if foreign(&self.receive_completions) {
            return wrong(2, "the receive completion queue belongs to another adapter");
        }
        if foreign(&self.send_completions) {
            return wrong(3, "the send completion queue belongs to another adapter");
        }
        if self.shared.as_ref().is_some_and(|shared| shared.domain() != domain) {
            return wrong(4, "the shared receive queue belongs to another adapter");
        }
        let own = self.shared.is_none();
        let (depth, entries) = (info.max_queue_depth, info.max_entries);
        let [send_entries, at_inline] = if own { [8, 9] } else { [7, 8] };
        let inline = self.inline_bytes(info.max_inline);
        let limits = [
            (5, "receive_depth", self.receive_depth, 1, depth, own),
            (6, "send_depth", self.send_depth, 1, depth, true),
            (7, "receive_entries", self.receive_entries, 1, entries, own),
            (send_entries, "send_entries", self.send_entries, 1, entries, true),
            (at_inline, "inline", inline, 0, info.max_inline, true),
        ];
        for (argument, name, value, least, most, counts) in limits {
            if counts && !(least..=most).contains(&value) {
                return Err(OpenError::out_of_range(argument, name, value, least, most));
            }
        }
        Ok(())
    }
}
