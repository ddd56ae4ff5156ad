//! The receive queue of a queue pair: one of its own, one that it shares with others, or the inbox of a byte
//! stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::shared::{Receive, SharedReceives};
use crate::error::PostErrorKind;
use crate::inflight::{Completed, CompletionSink, Ticket, WakeList};
use crate::provider::stream::StreamInbox;
use crate::status::Status;
use crate::sync::Mutex;
use crate::types::QueueKind;

/// A receive that a message was arriving in when the connection ended.
pub(crate) struct Interrupted {
    pub(crate) receive: Receive,
    /// The message did not fit.
    pub(crate) overflowed: bool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Receive>,
    /// The queue pair has been disconnected: receives that are posted now are flushed at once.
    closed: bool,
}

enum Source {
    /// First in, first out, at most `depth` of them.
    Own {
        state: Mutex<State>,
        depth: usize,
    },
    Shared(Arc<SharedReceives>),
    /// No receives: messages go to the stream.
    Stream(Arc<StreamInbox>),
}

/// The receives of a queue pair, and where they complete.
pub(crate) struct ReceiveQueue {
    source: Source,
    sink: CompletionSink,
}

impl ReceiveQueue {
    /// Creates a queue with receives of its own.
    pub(crate) fn new(depth: usize, sink: CompletionSink) -> Arc<Self> {
        Arc::new(Self { source: Source::Own { state: Mutex::default(), depth }, sink })
    }

    /// Creates a queue whose receives are those of a shared queue.
    pub(crate) fn with_shared(shared: Arc<SharedReceives>, sink: CompletionSink) -> Arc<Self> {
        Arc::new(Self { source: Source::Shared(shared), sink })
    }

    /// Creates a queue without receives, whose messages go to this inbox.
    pub(crate) fn to_stream(inbox: Arc<StreamInbox>, sink: CompletionSink) -> Arc<Self> {
        Arc::new(Self { source: Source::Stream(inbox), sink })
    }

    /// Returns the inbox that messages go to instead of receives.
    pub(crate) fn inbox(&self) -> Option<&StreamInbox> {
        match &self.source {
            Source::Stream(inbox) => Some(inbox),
            Source::Own { .. } | Source::Shared(_) => None,
        }
    }

    /// Returns whether the receives are those of a shared queue. If there is none for a message, the message
    /// waits for one in that case, and breaks its connection otherwise (`QP-20`).
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Posts a receive: at any time, connected or not (`QP-05`).
    ///
    /// # Errors
    /// `QueueFull`; `NotSupported` if all receives are shared, or messages go to a stream. Nothing has been
    /// posted then.
    pub(crate) fn post(&self, receive: Receive) -> Result<(), (PostErrorKind, Receive)> {
        let Source::Own { state, depth } = &self.source else {
            return Err((
                PostErrorKind::NotSupported("a receive posted to a queue pair with a shared receive queue"),
                receive,
            ));
        };
        let mut state = state.lock();
        if state.closed {
            drop(state);
            let mut wakes = WakeList::default();
            self.cancel(receive, Status::CANCELED, &mut wakes);
            wakes.wake_all();
            return Ok(());
        }
        if state.queue.len() >= *depth {
            let full = PostErrorKind::QueueFull { queue: QueueKind::Receive, depth: *depth };
            return Err((full, receive));
        }
        state.queue.push_back(receive);
        Ok(())
    }

    /// Takes the receive for the next message of this connection.
    pub(crate) fn take(&self, connection: u64) -> Option<Receive> {
        match &self.source {
            Source::Own { state, .. } => state.lock().queue.pop_front(),
            Source::Shared(shared) => shared.take(connection),
            Source::Stream(_) => None,
        }
    }

    /// Returns the receive of an unfinished message to the queue, as the next one.
    pub(crate) fn restore(&self, receive: Receive, wakes: &mut WakeList) {
        match &self.source {
            Source::Own { state, .. } => {
                let mut state = state.lock();
                if state.closed {
                    drop(state);
                    return self.cancel(receive, Status::CANCELED, wakes);
                }
                state.queue.push_front(receive);
            }
            Source::Shared(shared) => shared.restore(receive),
            Source::Stream(_) => self.cancel(receive, Status::CANCELED, wakes),
        }
    }

    /// Completes a receive that was taken.
    pub(crate) fn complete(&self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        self.sink.complete(ticket, completed, wakes);
    }

    /// Resolves when a message that waits for a receive may have found one.
    pub(crate) fn poll_ready(&self, connection: u64, cx: &mut Context<'_>) -> Poll<()> {
        match &self.source {
            Source::Own { .. } | Source::Stream(_) => Poll::Ready(()),
            Source::Shared(shared) => shared.poll_ready(connection, cx),
        }
    }

    /// Returns whether a message that waits for a receive finds one.
    pub(crate) fn is_ready(&self, connection: u64) -> bool {
        match &self.source {
            Source::Own { .. } | Source::Stream(_) => true,
            Source::Shared(shared) => shared.is_ready(connection),
        }
    }

    /// Ends the wait of the connection with this number.
    pub(crate) fn forget(&self, connection: u64) {
        if let Source::Shared(shared) = &self.source {
            shared.forget(connection);
        }
    }

    /// Completes all receives that are the queue pair's alone with `status`: first `current`, the receive
    /// that a message was arriving in. With `close`, later posts are flushed too.
    pub(crate) fn flush(
        &self,
        current: Option<Interrupted>,
        status: Status,
        close: bool,
        wakes: &mut WakeList,
    ) {
        let mut own = match &self.source {
            Source::Own { state, .. } => Some(state.lock()),
            Source::Shared(_) => None,
            Source::Stream(inbox) => {
                inbox.end(wakes);
                None
            }
        };
        if let Some(Interrupted { receive, overflowed }) = current {
            let status = if overflowed { Status::BUFFER_OVERFLOW } else { status };
            self.cancel(receive, status, wakes);
        }
        if let Some(state) = &mut own {
            state.closed |= close;
            for receive in state.queue.drain(..) {
                self.cancel(receive, status, wakes);
            }
        }
    }

    fn cancel(&self, receive: Receive, status: Status, wakes: &mut WakeList) {
        self.complete(receive.ticket, Completed::failed(status, receive.payload), wakes);
    }
}
