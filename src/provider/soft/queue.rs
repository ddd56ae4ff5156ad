//! The receive queue of a queue pair, and what the queue pair is bound to.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::PostErrorKind;
use crate::flight::{Aftermath, Completed, Outlet, Payload, Ticket};
use crate::status::Status;

/// A posted receive.
pub(crate) struct Receive {
    pub(crate) ticket: Ticket,
    pub(crate) payload: Payload,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Receive>,
    /// The message did not fit.
    overflowed: bool,
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a receive: at any time, connected or not (`QP-05`).
    ///
    /// # Errors
    /// `QueueFull`; nothing has been posted then.
    pub(crate) fn post(&self, receive: Receive, outlet: &Outlet) -> Result<(), (PostErrorKind, Receive)> {
        let mut inner = self.lock();
        if inner.dead {
            drop(inner);
            let mut after = Aftermath::default();
            cancel(receive, Status::CANCELED, outlet, &mut after);
            after.settle();
            return Ok(());
        }
        if inner.queue.len() >= self.depth {
            return Err((PostErrorKind::QueueFull, receive));
        }
        inner.queue.push_back(receive);
        Ok(())
    }

    /// The receive for the next message.
    pub(crate) fn take(&self) -> Option<Receive> {
        self.lock().queue.pop_front()
    }

    /// The message never came: the receive is the next one again.
    pub(crate) fn put_back(&self, receive: Receive) {
        self.lock().queue.push_front(receive);
    }

    /// The message was longer than the receive that was taken for it.
    pub(crate) fn overflowed(&self) {
        self.lock().overflowed = true;
    }

    /// Completes everything with `status`: first `current`, the receive that a message was arriving in.
    /// With `dead`, later posts are flushed too.
    pub(crate) fn flush(
        &self,
        current: Option<Receive>,
        status: Status,
        dead: bool,
        outlet: &Outlet,
        after: &mut Aftermath,
    ) {
        let mut inner = self.lock();
        inner.dead |= dead;
        let overflowed = std::mem::take(&mut inner.overflowed);
        if let Some(receive) = current {
            let status = if overflowed { Status::BUFFER_OVERFLOW } else { status };
            cancel(receive, status, outlet, after);
        }
        for receive in inner.queue.drain(..) {
            cancel(receive, status, outlet, after);
        }
    }
}

fn cancel(receive: Receive, status: Status, outlet: &Outlet, after: &mut Aftermath) {
    outlet.complete(receive.ticket, Completed::failed(status, receive.payload), after);
}
