//! Completion queues, as far as a provider has a part in them.

use std::sync::Arc;

use crate::inflight::Polling;
#[cfg(feature = "soft")]
use crate::provider::soft;
#[cfg(feature = "verbs")]
use crate::provider::verbs;

/// The completion queue of a provider. The soft provider completes requests in the program's own queue, and has one only for the
/// sockets that a poll looks at: not for requests that complete through futures.
#[derive(Clone)]
pub(crate) enum CompletionQueue {
    #[cfg(feature = "soft")]
    Soft(Option<Arc<soft::completion_queue::CompletionQueue>>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::completions::CompletionGroup>),
}

impl CompletionQueue {
    /// Takes what the device has completed, for who polls and does not wait for the reactor.
    pub(crate) fn progress(&self) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue) => {
                if let Some(queue) = queue {
                    queue.progress(|| false);
                }
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(group) => group.progress(),
        }
    }

    /// As [`progress`](Self::progress), for who polls this queue.
    pub(crate) fn poll(&self, polling: &mut Polling<'_>) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue) => {
                if let Some(queue) = queue {
                    queue.poll(polling.is_empty(), || polling.is_satisfied());
                }
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(group) => {
                if polling.room() > 0 {
                    group.poll(polling);
                }
            }
        }
    }

    /// Somebody begins to wait for completions, until [`end_wait`](Self::end_wait).
    pub(crate) fn begin_wait(&self) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue) => {
                if let Some(queue) = queue {
                    queue.begin_wait();
                }
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(group) => group.begin_wait(),
        }
    }

    /// Somebody waits no more.
    pub(crate) fn end_wait(&self) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => {}
            #[cfg(feature = "verbs")]
            Self::Verbs(group) => group.end_wait(),
        }
    }
}
