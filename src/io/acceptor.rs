//! Accepting in the background, so that a peer that is slow holds up nobody.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::cm::{Adapter, Listener, Request};
use crate::error::{BindError, StreamError};

/// How many peers of a listener may be between request and [`Acceptor::accept`]: each has its memory already. Further ones
/// wait with the adapter.
const BACKLOG: usize = 256;

/// Tasks that answer requests, and what they have made of them.
pub(super) struct Acceptor<T> {
    ready: Mutex<mpsc::Receiver<io::Result<T>>>,
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
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let (answer, alive) = (Arc::new(answer), Arc::new(()));
        let mut tasks = JoinSet::new();
        let handles = listeners.iter().map(|(_, listener)| listener.clone()).collect();
        for (adapter, listener) in listeners {
            let serving = Serving { adapter, listener, answer: answer.clone(), limit, alive: alive.clone() };
            tasks.spawn(serving.run(sender.clone()));
        }
        Ok(Self { ready: Mutex::new(receiver), listeners: handles, local, _tasks: tasks })
    }

    /// The local address of the first listener.
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next that is ready; an error once there will be none.
    pub(super) async fn accept(&self) -> io::Result<T> {
        let next = self.ready.lock().await.recv().await;
        next.unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::NotConnected, "the listener has ended")))
    }

    /// The next that is ready, one error if the last listener ends, then `None`.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<T>>> {
        self.ready.get_mut().poll_recv(cx)
    }
}

impl<T> Drop for Acceptor<T> {
    fn drop(&mut self) {
        // The tasks end when the runtime comes to it; the port is free at once (`LS-08`).
        self.listeners.iter().for_each(Listener::close);
    }
}

/// The task of one listener.
struct Serving<F> {
    adapter: Adapter,
    listener: Listener,
    answer: Arc<F>,
    limit: Duration,
    /// Held by every listener that still listens.
    alive: Arc<()>,
}

impl<F> Serving<F> {
    async fn run<T, H>(self, ready: mpsc::Sender<io::Result<T>>)
    where
        T: Send + 'static,
        F: Fn(Adapter, Request) -> H + Send + Sync + 'static,
        H: Future<Output = Result<T, StreamError>> + Send + 'static,
    {
        let Self { adapter, listener, answer, limit, alive } = self;
        let mut handshakes = JoinSet::new();
        // Nobody can be accepted any more when the receiver is gone.
        while let Ok(place) = ready.clone().reserve_owned().await {
            let request = loop {
                tokio::select! {
                    request = listener.request() => break request,
                    Some(_) = handshakes.join_next() => {}
                }
            };
            let request = match request {
                Ok(request) => request,
                // One of several has lost its adapter: the others go on.
                Err(error) if Arc::into_inner(alive).is_none() => {
                    tracing::warn!(?adapter, %error, "an adapter of a listener has ended");
                    break;
                }
                Err(error) => {
                    place.send(Err(error.into()));
                    break;
                }
            };
            let (adapter, answer) = (adapter.clone(), answer.clone());
            handshakes.spawn(async move {
                let (peer, id) = (request.peer_addr(), request.id());
                match tokio::time::timeout(limit, answer(adapter, request)).await {
                    Ok(Ok(made)) => drop(place.send(Ok(made))),
                    Ok(Err(error)) => {
                        tracing::debug!(%peer, connection = %id, %error, "a peer was not accepted");
                    }
                    Err(_) => tracing::debug!(%peer, connection = %id, "a peer took too long"),
                }
            });
        }
        // Those who are under way may still arrive.
        while handshakes.join_next().await.is_some() {}
    }
}
