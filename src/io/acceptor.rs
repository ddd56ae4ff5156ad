//! Accepts peers in the background, so that a slow peer delays no other.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::cm::{Adapter, Listener, Request};
use crate::error::{BindError, StreamError};
use crate::sync::Mutex;

/// How many peers of a listener may be between request and [`Acceptor::accept`]: each has its memory already. Further ones
/// wait with the adapter.
const BACKLOG: usize = 256;

/// Tasks that answer requests, and what they have made of them.
pub(super) struct Acceptor<T> {
    ready: Arc<Ready<T>>,
    listeners: Vec<Listener>,
    local: SocketAddr,
    /// Dropping it ends them, and with them the handshakes.
    _tasks: JoinSet<()>,
}

impl<T: Send + 'static> Acceptor<T> {
    /// Answers the requests of listeners that listen, all on the same port, each within `limit`.
    ///
    /// # Errors
    /// `Bind` without a listener.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub(super) fn new<F, H>(
        listeners: Vec<(Adapter, Listener)>,
        limit: Duration,
        answer: F,
    ) -> Result<Self, StreamError>
    where
        F: Fn(Adapter, Request) -> H + Send + Sync + 'static,
        H: Future<Output = Result<T, StreamError>> + Send + 'static,
    {
        let mut addresses = listeners.iter().filter_map(|(_, listener)| listener.local_addr().ok());
        let local = addresses.next().ok_or(BindError::InvalidAddress)?;
        let ready = Arc::new(Ready::new(listeners.len()));
        let (answer, places) = (Arc::new(answer), Arc::new(Semaphore::new(BACKLOG)));
        let mut tasks = JoinSet::new();
        let handles = listeners.iter().map(|(_, listener)| listener.clone()).collect();
        for (adapter, listener) in listeners {
            let maker = Maker { ready: ready.clone(), error: None };
            let (answer, places) = (answer.clone(), places.clone());
            tasks.spawn(Serving { adapter, listener, answer, limit, places }.run(maker));
        }
        Ok(Self { ready, listeners: handles, local, _tasks: tasks })
    }

    /// The local address of the first listener.
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the next accepted peer. Fails if all listeners have ended.
    pub(super) async fn accept(&self) -> io::Result<T> {
        loop {
            let more = self.ready.more.notified();
            match self.ready.take() {
                Poll::Ready(Some(next)) => return next,
                Poll::Ready(None) => {
                    return Err(io::Error::new(io::ErrorKind::NotConnected, "the listener has ended"));
                }
                Poll::Pending => more.await,
            }
        }
    }

    /// Returns the next accepted peer, one error if the last listener ends, then `None`.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<T>>> {
        self.ready.stream.register(cx.waker());
        self.ready.take()
    }
}

impl<T> Drop for Acceptor<T> {
    fn drop(&mut self) {
        // The tasks end when the runtime comes to it; the port is free at once (`LS-08`).
        self.listeners.iter().for_each(Listener::close);
        let queue = std::mem::take(&mut self.ready.made.lock().queue);
        drop(queue);
    }
}

/// The accepted peers, and the tasks that wait for them.
struct Ready<T> {
    made: Mutex<Made<T>>,
    /// Wakes all futures of [`Acceptor::accept`], not one: that one may be kept and never polled again.
    more: Notify,
    /// The waker of the task that polls the stream.
    stream: AtomicWaker,
}

struct Made<T> {
    /// In the order in which they became ready.
    queue: VecDeque<(io::Result<T>, Option<OwnedSemaphorePermit>)>,
    /// The number of listeners that have not ended.
    makers: usize,
}

impl<T> Ready<T> {
    fn new(makers: usize) -> Self {
        let made = Mutex::new(Made { queue: VecDeque::new(), makers });
        Self { made, more: Notify::new(), stream: AtomicWaker::new() }
    }

    /// Returns the next peer, or `None` if all listeners have ended.
    fn take(&self) -> Poll<Option<io::Result<T>>> {
        let mut made = self.made.lock();
        let taken = made.queue.pop_front();
        let ended = made.makers == 0;
        drop(made);
        match taken {
            Some((next, _place)) => Poll::Ready(Some(next)),
            None if ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn put(&self, made: T, place: OwnedSemaphorePermit) {
        self.made.lock().queue.push_back((Ok(made), Some(place)));
        self.wake();
    }

    fn wake(&self) {
        self.more.notify_waiters();
        self.stream.wake();
    }
}

/// The part of one listener in it.
struct Maker<T> {
    ready: Arc<Ready<T>>,
    /// Why it has ended.
    error: Option<io::Error>,
}

impl<T> Drop for Maker<T> {
    fn drop(&mut self) {
        let mut made = self.ready.made.lock();
        made.makers -= 1;
        // One of several has lost its adapter: the others go on.
        if made.makers == 0 {
            made.queue.extend(self.error.take().map(|error| (Err(error), None)));
        }
        drop(made);
        self.ready.wake();
    }
}

/// The task of one listener.
struct Serving<F> {
    adapter: Adapter,
    listener: Listener,
    answer: Arc<F>,
    limit: Duration,
    places: Arc<Semaphore>,
}

impl<F> Serving<F> {
    async fn run<T, H>(self, mut maker: Maker<T>)
    where
        T: Send + 'static,
        F: Fn(Adapter, Request) -> H + Send + Sync + 'static,
        H: Future<Output = Result<T, StreamError>> + Send + 'static,
    {
        let Self { adapter, listener, answer, limit, places } = self;
        let mut handshakes = JoinSet::new();
        loop {
            let request = loop {
                tokio::select! {
                    request = listener.request() => break request,
                    Some(_) = handshakes.join_next() => {}
                }
            };
            let request = match request {
                Ok(request) => request,
                Err(error) => {
                    tracing::warn!(?adapter, %error, "listener closed on one adapter");
                    maker.error = Some(error.into());
                    break;
                }
            };
            // They are never closed.
            let Ok(place) = places.clone().acquire_owned().await else { break };
            let (adapter, answer, ready) = (adapter.clone(), answer.clone(), maker.ready.clone());
            handshakes.spawn(async move {
                let (peer, id) = (request.peer_addr(), request.id());
                match tokio::time::timeout(limit, answer(adapter, request)).await {
                    Ok(Ok(made)) => ready.put(made, place),
                    Ok(Err(error)) => {
                        tracing::debug!(%peer, connection = %id, %error, "peer not accepted");
                    }
                    Err(_) => tracing::debug!(%peer, connection = %id, "handshake timed out"),
                }
            });
        }
        // Those who are under way may still arrive.
        while handshakes.join_next().await.is_some() {}
    }
}
