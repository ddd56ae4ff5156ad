//! Accepting in the background, so that a peer that is slow holds up nobody.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::cm::{Listener, Request};
use crate::error::StreamError;

/// How many peers may be between request and [`Acceptor::accept`]; further ones wait with the listener.
const BACKLOG: usize = 1024;

/// Tasks that answer requests, and what they have made of them.
pub(super) struct Acceptor<T> {
    ready: Mutex<mpsc::Receiver<io::Result<T>>>,
    /// Dropping it ends them, and with them the handshakes.
    _tasks: JoinSet<()>,
}

impl<T: Send + 'static> Acceptor<T> {
    /// Answers the requests of each listener by its function, which may take so long for one peer.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub(super) fn new<F, H>(listeners: impl IntoIterator<Item = (Listener, F)>, limit: Duration) -> Self
    where
        F: Fn(Request) -> H + Send + Sync + 'static,
        H: Future<Output = Result<T, StreamError>> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let mut tasks = JoinSet::new();
        for (listener, answer) in listeners {
            tasks.spawn(serve(listener, Arc::new(answer), sender.clone(), limit));
        }
        Self { ready: Mutex::new(receiver), _tasks: tasks }
    }

    /// The next that is ready; an error once there will be none.
    pub(super) async fn accept(&self) -> io::Result<T> {
        let next = self.ready.lock().await.recv().await;
        next.unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::NotConnected, "the listener has ended")))
    }

    /// The next that is ready, one error if the listener ends, then `None`.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<T>>> {
        self.ready.get_mut().poll_recv(cx)
    }
}

/// Answers the requests of one listener, until that ends.
async fn serve<T, F, H>(
    listener: Listener,
    answer: Arc<F>,
    ready: mpsc::Sender<io::Result<T>>,
    limit: Duration,
) where
    T: Send + 'static,
    F: Fn(Request) -> H + Send + Sync + 'static,
    H: Future<Output = Result<T, StreamError>> + Send + 'static,
{
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
            Err(error) => {
                place.send(Err(error.into()));
                break;
            }
        };
        let answer = answer.clone();
        handshakes.spawn(async move {
            let (peer, id) = (request.peer_addr(), request.id());
            match tokio::time::timeout(limit, answer(request)).await {
                Ok(Ok(made)) => drop(place.send(Ok(made))),
                Ok(Err(error)) => tracing::debug!(%peer, connection = %id, %error, "a peer was not accepted"),
                Err(_) => tracing::debug!(%peer, connection = %id, "a peer took too long"),
            }
        });
    }
    // Those who are under way may still arrive.
    while handshakes.join_next().await.is_some() {}
}
