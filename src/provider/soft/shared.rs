//! Receive queues that several queue pairs share.
//!
//! A message that finds the queue empty stays in its socket: the connection stops reading until somebody posts a
//! receive. TCP holds the peer back meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::adapter::AdapterCore;
use crate::error::{OpenError, PostErrorKind, ResizeError};
use crate::inflight::{Completed, CompletionSink, Payload, Ticket, WakeList};
use crate::provider::registry::{Member, Registered};
use crate::provider::work::Refused;
use crate::status::Status;
use crate::sync::Mutex;

/// A posted receive.
pub(crate) struct Receive {
    pub(crate) ticket: Ticket,
    pub(crate) payload: Payload,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Receive>,
    /// The connections in which a message waits for a receive, by their numbers.
    waiting: Vec<(u64, Waker)>,
    /// Nobody is left to post, or to receive.
    dead: bool,
}

/// A shared receive queue.
pub(crate) struct SharedReceives {
    inner: Mutex<Inner>,
    /// Where the receives that are left at the end complete.
    sink: CompletionSink,
    adapter: Arc<AdapterCore>,
    _registered: Registered,
}

impl SharedReceives {
    /// # Errors
    /// None: there is no device to ask, and depth and entries are counted by the caller.
    #[expect(clippy::unnecessary_wraps, reason = "other providers have to ask a device")]
    pub(crate) fn new(
        adapter: &Arc<AdapterCore>,
        _depth: usize,
        _entries: usize,
        sink: CompletionSink,
    ) -> Result<Arc<Self>, OpenError> {
        Ok(adapter.registry().create(|_, registered| Self {
            inner: Mutex::default(),
            sink,
            adapter: adapter.clone(),
            _registered: registered,
        }))
    }

    /// Posts a receive, and wakes the connections that wait for one.
    ///
    /// # Errors
    /// `DeviceRemoved`, with the payload.
    pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        let waiting = {
            let mut inner = self.inner.lock();
            if inner.dead {
                return Err(Refused { kind: PostErrorKind::DeviceRemoved, payload });
            }
            inner.queue.push_back(Receive { ticket, payload });
            std::mem::take(&mut inner.waiting)
        };
        // All of them: the first one may be on its way out.
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
        Ok(())
    }

    /// The receive for the next message.
    pub(super) fn take(&self) -> Option<Receive> {
        self.inner.lock().queue.pop_front()
    }

    /// The message never came: the receive is the next one again, for whoever waits for one.
    pub(super) fn restore(&self, receive: Receive) {
        let mut inner = self.inner.lock();
        if inner.dead {
            drop(inner);
            return self.finish([receive], self.last_status());
        }
        inner.queue.push_front(receive);
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Ready when there is a receive; until then this connection waits for one.
    pub(super) fn poll_ready(&self, connection: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        if !inner.queue.is_empty() {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        let old = match inner.waiting.iter_mut().find(|(number, _)| *number == connection) {
            Some((_, known)) => Some(std::mem::replace(known, waker)),
            None => {
                inner.waiting.push((connection, waker));
                None
            }
        };
        drop(inner);
        drop(old);
        Poll::Pending
    }

    /// This connection waits no more.
    pub(super) fn forget(&self, connection: u64) {
        let mut inner = self.inner.lock();
        let place = inner.waiting.iter().position(|(number, _)| *number == connection);
        let gone = place.map(|place| inner.waiting.swap_remove(place));
        drop(inner);
        drop(gone);
    }

    /// There is room for as many as anybody likes.
    ///
    /// # Errors
    /// None.
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "other providers have to ask a device")]
    pub(crate) fn resize(&self, _depth: usize) -> Result<(), ResizeError> {
        Ok(())
    }

    /// The user has dropped the last handle, and no queue pair uses it.
    pub(crate) fn released(&self) {
        self.end(Status::CANCELED);
    }

    fn last_status(&self) -> Status {
        if self.adapter.is_removed() { Status::DEVICE_REMOVED } else { Status::CANCELED }
    }

    fn end(&self, status: Status) {
        let left = {
            let mut inner = self.inner.lock();
            inner.dead = true;
            std::mem::take(&mut inner.queue)
        };
        self.finish(left, status);
    }

    fn finish(&self, left: impl IntoIterator<Item = Receive>, status: Status) {
        let mut wakes = WakeList::default();
        for Receive { ticket, payload } in left {
            self.sink.complete(ticket, Completed::failed(status, payload), &mut wakes);
        }
        wakes.wake_all();
    }
}

impl Member for SharedReceives {
    fn device_removed(&self) {
        self.end(Status::DEVICE_REMOVED);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::inflight::{RequestMeta, Table};
    use crate::provider::soft::adapter;
    use crate::provider::soft::config::SoftConfig;
    use crate::types::OpKind;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    // SRQ-02
    #[tokio::test]
    async fn who_waits_hears_of_every_receive_that_can_be_had() {
        let id = adapter::resolve("127.0.0.1".parse().expect("an address")).expect("the loopback interface");
        let adapter = AdapterCore::open(id, SoftConfig::default()).expect("opened");
        let table = Arc::<Table>::default();
        let shared =
            SharedReceives::new(&adapter, 4, 1, CompletionSink::to_futures(table.clone())).expect("a queue");
        let (count, label) = (Arc::<Count>::default(), RequestMeta { kind: OpKind::Receive, context: 0 });
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        for connection in [1, 2, 1] {
            assert!(shared.poll_ready(connection, &mut cx).is_pending());
        }
        assert!(shared.post_receive(table.open(label), Payload::new()).is_ok());
        assert_eq!(count.0.load(Ordering::SeqCst), 2, "each once");
        assert!(shared.poll_ready(1, &mut cx).is_ready());
        let taken = shared.take().expect("there is one");
        assert!(shared.poll_ready(1, &mut cx).is_pending() && shared.poll_ready(2, &mut cx).is_pending());
        shared.forget(2);
        shared.restore(taken);
        assert_eq!(count.0.load(Ordering::SeqCst), 3, "one that comes back, too");
        assert!(shared.poll_ready(1, &mut cx).is_ready());
        shared.released();
        assert!(shared.take().is_none());
        assert!(shared.post_receive(table.open(label), Payload::new()).is_err(), "nobody could take it");
    }
}
