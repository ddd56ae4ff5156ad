//! Queue pairs of either provider. Each posted request finishes exactly once, in post order within its queue,
//! through the sink of its queue.

use std::sync::Arc;
use std::task::Waker;

use super::completion_queue::CompletionQueue;
use crate::error::{PostErrorKind, ResizeError};
use crate::inflight::{CompletionSink, Payload, Ticket, WakeList};
use crate::provider::stream::{Progress, StreamInbox, StreamMessage, StreamRoom, Streamed};
use crate::provider::work::{DirectOutcome, DirectRequest, InlineRequest, Refused, WorkRequest};

/// The arguments of a new queue pair.
pub(crate) struct QueuePairParts {
    pub(crate) receive_depth: usize,
    pub(crate) send_depth: usize,
    pub(crate) receive_entries: usize,
    pub(crate) send_entries: usize,
    /// The most bytes of an inline request.
    pub(crate) inline: usize,
    /// The destination of the completions of receives. Receives of a shared queue are in the table of that
    /// queue.
    pub(crate) receive: CompletionSink,
    pub(crate) initiator: CompletionSink,
    pub(crate) shared: Option<SharedReceives>,
    /// The destination of the Sends of the peer, if a byte stream takes them without receives: on the soft provider.
    #[cfg_attr(
        not(feature = "soft"),
        expect(dead_code, reason = "only the soft provider delivers by itself")
    )]
    pub(crate) inbox: Option<Arc<StreamInbox>>,
    /// Its user sends no message for which the peer has no receive, so that none waits for the peer's application.
    #[cfg_attr(
        not(feature = "verbs"),
        expect(dead_code, reason = "the soft provider has its own signs of life")
    )]
    pub(crate) credited: bool,
    /// The completion queues of a device for its two queues.
    pub(crate) send_queue: CompletionQueue,
    pub(crate) receive_queue: CompletionQueue,
}

provider_handle! {
    /// A queue pair.
    enum QueuePair {
        Soft(queue_pair::QueuePair),
        Verbs(queue_pair::QueuePair),
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The reason, with the payload.
    fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused>;

    /// Posts a request of the send queue.
    ///
    /// # Errors
    /// The reason, with the payload.
    fn post_send(&self, request: WorkRequest) -> Result<(), Refused>;

    /// Posts a request of the send queue whose bytes are copied by this call.
    ///
    /// # Errors
    /// The reason.
    fn post_inline(&self, request: InlineRequest<'_>) -> Result<(), PostErrorKind>;

    /// Has the device look at what was deferred.
    fn ring(&self);

    /// Finishes everything outstanding as `CANCELED`. A connection does not survive it.
    fn flush(&self);

    /// A completion queue of it has lost a result: its connection ends.
    fn overrun(&self);

    /// The user has dropped the last handle.
    fn released(&self);
}

impl QueuePair {
    /// Executes a request within the call, if the provider can and nothing is ahead of it. `open` opens the slot of one that has to
    /// wait for the provider after all.
    #[inline]
    pub(crate) fn post_direct(
        &self,
        request: DirectRequest<'_>,
        open: impl FnOnce() -> Ticket,
    ) -> DirectOutcome {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.post_direct(request, open),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => {
                let _ = (request, open);
                DirectOutcome::Declined
            }
        }
    }

    /// Writes a message of a stream, or as much of it as the connection takes, if the provider frames messages itself.
    ///
    /// # Errors
    /// The reason why nothing more can be sent.
    pub(crate) fn write_message(
        &self,
        message: &StreamMessage<'_>,
        waker: &Waker,
    ) -> Result<Streamed, PostErrorKind> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.write_message(message, waker),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => {
                let _ = (message, waker);
                Err(PostErrorKind::NotSupported("a message that is no request, on a device"))
            }
        }
    }

    /// Reads what has come for a stream, if the provider reads for the caller. Payload for the place that is read next goes to the
    /// room, and the rest to where it belongs. Without a room, it looks for what is small. If the stream spins, it does not wait for
    /// the runtime to say that something has come. The waker is woken when there may be more; `wakes` is for the caller to wake
    /// without its locks.
    pub(crate) fn read_stream(
        &self,
        room: Option<&mut StreamRoom<'_>>,
        waker: &Waker,
        spins: bool,
        wakes: &mut WakeList,
    ) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.read_stream(room, waker, spins, wakes),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => {
                let _ = (room, waker, spins, wakes);
            }
        }
    }

    /// Calls `act` with the end of the last Write to the ring if the peer of a stream is writing nothing. Nothing is placed meanwhile.
    pub(crate) fn if_quiet(&self, act: &mut dyn FnMut(Option<u64>)) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.if_quiet(act),
            // The memory is the device's.
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => {
                let _ = act;
            }
        }
    }

    /// Waits until an attempt that has ended has given the queue pair back.
    pub(crate) async fn settled(&self) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.settled().await,
            #[cfg(feature = "verbs")]
            // In a box, because it would be moved with each accept of either provider.
            Self::Verbs(queue_pair) => Box::pin(queue_pair.settled()).await,
        }
    }

    /// Returns the progress of the connection. `None` if it has ended, and with a device.
    pub(crate) fn progress(&self) -> Option<Progress> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.progress(),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => None,
        }
    }

    /// Returns whether a message of a stream would be taken now, or never again. If not, the waker is woken when one may be.
    pub(crate) fn takes_messages(&self, waker: &Waker) -> bool {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.takes_messages(waker),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => {
                let _ = waker;
                true
            }
        }
    }
}

provider_handle! {
    /// A receive queue of several queue pairs.
    enum SharedReceives {
        Soft(shared::SharedReceives),
        Verbs(shared::SharedReceives),
    }

    /// Posts a receive. There is room: the caller counts.
    ///
    /// # Errors
    /// The reason, with the payload.
    fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused>;

    /// Makes room for so many receives; there are not more.
    ///
    /// # Errors
    /// Those of the system.
    fn resize(&self, depth: usize) -> Result<(), ResizeError>;

    /// The user has dropped the last handle, and no queue pair uses it.
    fn released(&self);
}
