//! Where a queue pair takes its receives from.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::shared::{Receive, SharedReceives};
use crate::error::PostErrorKind;
use crate::flight::{Completed, CompletionSink, WakeList};
use crate::status::Status;
use crate::sync::Mutex;

/// A receive that a message was arriving in when the connection ended.
pub(crate) struct Interrupted {
    pub(crate) receive: Receive,
    /// The message did not fit.
    pub(crate) overflowed: bool,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Receive>,
    /// The queue pair has been disconnected: what is posted now is flushed at once.
    dead: bool,
}

/// Posted receives, first in, first out.
pub(crate) struct ReceiveQueue {
    inner: Mutex<Inner>,
    depth: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: usize) -> Self {
        Self { inner: Mutex::default(), depth }
    }

    /// Posts a receive: at any time, connected or not (`QP-05`).
    ///
    /// # Errors
    /// `QueueFull`; nothing has been posted then.
    fn post(&self, receive: Receive, outlet: &CompletionSink) -> Result<(), (PostErrorKind, Receive)> {
        let mut inner = self.inner.lock();
        if inner.dead {
            drop(inner);
            let mut wakes = WakeList::default();
            cancel(receive, Status::CANCELED, outlet, &mut wakes);
            wakes.wake_all();
            return Ok(());
        }
        if inner.queue.len() >= self.depth {
            return Err((PostErrorKind::QueueFull, receive));
        }
        inner.queue.push_back(receive);
        Ok(())
    }

    /// The receive for the next message.
    fn take(&self) -> Option<Receive> {
        self.inner.lock().queue.pop_front()
    }

    /// The message never came: the receive is the next one again.
    fn put_back(&self, receive: Receive, outlet: &CompletionSink, wakes: &mut WakeList) {
        let mut inner = self.inner.lock();
        if inner.dead {
            drop(inner);
            return cancel(receive, Status::CANCELED, outlet, wakes);
        }
        inner.queue.push_front(receive);
    }

    /// Completes everything with `status`: first `current`, as [`Receives::flush`] does.
    fn flush(
        &self,
        current: Option<Interrupted>,
        status: Status,
        dead: bool,
        outlet: &CompletionSink,
        wakes: &mut WakeList,
    ) {
        let mut inner = self.inner.lock();
        inner.dead |= dead;
        interrupt(current, status, outlet, wakes);
        for receive in inner.queue.drain(..) {
            cancel(receive, status, outlet, wakes);
        }
    }
}

fn cancel(receive: Receive, status: Status, outlet: &CompletionSink, wakes: &mut WakeList) {
    outlet.complete(receive.ticket, Completed::failed(status, receive.payload), wakes);
}

fn interrupt(current: Option<Interrupted>, status: Status, outlet: &CompletionSink, wakes: &mut WakeList) {
    if let Some(Interrupted { receive, overflowed }) = current {
        let status = if overflowed { Status::BUFFER_OVERFLOW } else { status };
        cancel(receive, status, outlet, wakes);
    }
}

/// Where a queue pair takes its receives from: a queue of its own, or one that it shares.
#[derive(Clone)]
pub(crate) enum Receives {
    Own(Arc<ReceiveQueue>),
    Shared(Arc<SharedReceives>),
}

impl Receives {
    /// Whether a message waits for a receive when there is none. Otherwise it breaks its connection (`QP-20`).
    pub(crate) fn is_patient(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Posts a receive: at any time, connected or not (`QP-05`).
    ///
    /// # Errors
    /// `QueueFull`; `NotSupported` where all receives are shared. Nothing has been posted then.
    pub(crate) fn post(
        &self,
        receive: Receive,
        outlet: &CompletionSink,
    ) -> Result<(), (PostErrorKind, Receive)> {
        match self {
            Self::Own(queue) => queue.post(receive, outlet),
            Self::Shared(_) => Err((PostErrorKind::NotSupported("a receive of its own"), receive)),
        }
    }

    /// The receive for the next message.
    pub(crate) fn take(&self) -> Option<Receive> {
        match self {
            Self::Own(queue) => queue.take(),
            Self::Shared(shared) => shared.take(),
        }
    }

    /// The message never came: the receive is the next one again.
    pub(crate) fn put_back(&self, receive: Receive, outlet: &CompletionSink, wakes: &mut WakeList) {
        match self {
            Self::Own(queue) => queue.put_back(receive, outlet, wakes),
            Self::Shared(shared) => shared.put_back(receive),
        }
    }

    /// Ready when a message that waits for a receive may have found one.
    pub(crate) fn poll_ready(&self, link: u64, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Own(_) => Poll::Ready(()),
            Self::Shared(shared) => shared.poll_ready(link, cx),
        }
    }

    /// The connection with this number waits no more.
    pub(crate) fn forget(&self, link: u64) {
        if let Self::Shared(shared) = self {
            shared.forget(link);
        }
    }

    /// Completes everything that is the queue pair's alone with `status`: first `current`, the receive that a message was
    /// arriving in. With `dead`, later posts are flushed too.
    pub(crate) fn flush(
        &self,
        current: Option<Interrupted>,
        status: Status,
        dead: bool,
        outlet: &CompletionSink,
        wakes: &mut WakeList,
    ) {
        match self {
            Self::Own(queue) => queue.flush(current, status, dead, outlet, wakes),
            Self::Shared(_) => interrupt(current, status, outlet, wakes),
        }
    }
}
