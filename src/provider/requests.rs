//! The requests that a listener hands out, and the futures that wait for them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::AcceptError;
use crate::proto::listener::{Arrival, Leftovers, Listener, Wait, WaiterId};
use crate::status::Status;

struct Waiter<R> {
    answer: Option<Result<R, AcceptError>>,
    waker: Option<Waker>,
}

/// The queue of a listener, under its lock: requests that nobody fetched yet, or futures that wait for one.
pub(crate) struct Requests<R> {
    pub(crate) machine: Listener<R>,
    /// Oldest first, which is how a cancel answers them.
    waiters: BTreeMap<WaiterId, Waiter<R>>,
}

/// What to do about a request without the lock.
#[must_use = "somebody waits for it, or is to be refused"]
pub(crate) enum Placed<R> {
    /// The future that got it.
    Wake(Option<Waker>),
    /// It waits in the queue.
    Queued,
    /// Nobody will take it.
    Refuse(R),
}

impl<R> Requests<R> {
    pub(crate) fn new() -> Self {
        Self { machine: Listener::new(), waiters: BTreeMap::new() }
    }

    /// A request has come in full.
    pub(crate) fn arrived(&mut self, request: R) -> Placed<R> {
        let arrival = self.machine.arrived(request);
        self.place(arrival)
    }

    fn place(&mut self, arrival: Arrival<R>) -> Placed<R> {
        match arrival {
            Arrival::Delivered(id, request) => Placed::Wake(self.waiters.get_mut(&id).and_then(|waiter| {
                waiter.answer = Some(Ok(request));
                waiter.waker.take()
            })),
            Arrival::Queued => Placed::Queued,
            Arrival::Refused(request) => Placed::Refuse(request),
        }
    }

    /// Ends every wait with `error`, and gives the futures to wake and the requests that nobody fetched.
    pub(crate) fn end(
        &mut self,
        end: impl FnOnce(&mut Listener<R>) -> Leftovers<R>,
        error: fn() -> AcceptError,
    ) -> (Vec<Waker>, Vec<R>) {
        let Leftovers { waiters, requests } = end(&mut self.machine);
        let wakers = waiters
            .iter()
            .filter_map(|id| {
                let waiter = self.waiters.get_mut(id)?;
                waiter.answer = Some(Err(error()));
                waiter.waker.take()
            })
            .collect();
        (wakers, requests)
    }

    /// CancelOverlappedRequests: every wait ends CANCELED, the listener goes on.
    pub(crate) fn cancel(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (id, waiter) in self.waiters.iter_mut().filter(|(_, waiter)| waiter.answer.is_none()) {
            if self.machine.cancel(*id) {
                waiter.answer = Some(Err(AcceptError::Canceled));
                wakers.extend(waiter.waker.take());
            }
        }
        wakers
    }
}

/// A listener of one provider, as far as the future of GetConnectionRequest is concerned.
pub(crate) trait Source: Send + Sync {
    /// What arrives.
    type Request: Send;
    /// What is handed out.
    type Connector;

    /// Does something under the lock.
    fn with<T>(&self, act: impl FnOnce(&mut Requests<Self::Request>) -> T) -> T;

    /// Makes what is handed out.
    fn hand_out(&self, request: Self::Request) -> Self::Connector;

    /// Says no.
    fn refuse(&self, request: Self::Request);

    /// Carries out, without the lock, what became of a request.
    fn settle(&self, placed: Placed<Self::Request>) {
        match placed {
            Placed::Wake(waker) => waker.into_iter().for_each(Waker::wake),
            Placed::Queued => {}
            Placed::Refuse(request) => self.refuse(request),
        }
    }
}

enum Place {
    New,
    Waiting(WaiterId),
    Done,
}

/// The future of GetConnectionRequest.
pub(crate) struct GetRequest<S: Source> {
    listener: Arc<S>,
    place: Place,
}

impl<S: Source> GetRequest<S> {
    pub(crate) fn new(listener: Arc<S>) -> Self {
        Self { listener, place: Place::New }
    }
}

impl<S: Source> Future for GetRequest<S> {
    type Output = Result<S::Connector, AcceptError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let place = &mut this.place;
        let mut old = None;
        let polled = this.listener.with(|requests| match place {
            Place::New => match requests.machine.wait() {
                Ok(Wait::Ready(request)) => Poll::Ready(Ok(request)),
                Ok(Wait::Pending(id)) => {
                    requests.waiters.insert(id, Waiter { answer: None, waker: Some(cx.waker().clone()) });
                    *place = Place::Waiting(id);
                    Poll::Pending
                }
                Err(Status::DEVICE_REMOVED) => Poll::Ready(Err(AcceptError::DeviceRemoved)),
                Err(_) => Poll::Ready(Err(AcceptError::NotListening)),
            },
            Place::Waiting(id) => match requests.waiters.get_mut(id) {
                None => Poll::Ready(Err(AcceptError::Canceled)),
                Some(waiter) => match waiter.answer.take() {
                    Some(answer) => {
                        requests.waiters.remove(id);
                        Poll::Ready(answer)
                    }
                    None => {
                        old = waiter.waker.replace(cx.waker().clone());
                        Poll::Pending
                    }
                },
            },
            Place::Done => Poll::Ready(Err(AcceptError::Canceled)),
        });
        drop(old);
        polled.map(|answer| {
            this.place = Place::Done;
            answer.map(|request| this.listener.hand_out(request))
        })
    }
}

impl<S: Source> Drop for GetRequest<S> {
    /// A request that was delivered to this future and not collected goes to the next one (`LS-06`).
    fn drop(&mut self) {
        let Place::Waiting(id) = self.place else { return };
        let placed = self.listener.with(|requests| {
            requests.machine.cancel(id);
            match requests.waiters.remove(&id).and_then(|waiter| waiter.answer) {
                Some(Ok(request)) => {
                    let arrival = requests.machine.put_back(request);
                    requests.place(arrival)
                }
                Some(Err(_)) | None => Placed::Queued,
            }
        });
        self.listener.settle(placed);
    }
}
