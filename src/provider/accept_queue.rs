//! The accept queue of a listener, and the futures that wait for its requests.

use std::future::Future;
#[cfg(feature = "inspect")]
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::AcceptError;
#[cfg(feature = "inspect")]
use crate::inspect::ListenerReport;
use crate::inspect::Mark;
use crate::metrics::AcceptMetrics;
use crate::proto::listener::{Arrival, End, Leftovers, Listener, Wait, WaiterId};
use crate::status::Status;
use crate::sync::{KeyMap, MutexGuard, poll_budgeted};

/// The requests of listeners, in the metrics.
pub(crate) const ACCEPTS: AcceptMetrics = AcceptMetrics::new("listener");

/// A future that waits, or has been answered and not polled since.
struct Waiter<R> {
    answer: Option<Result<R, AcceptError>>,
    waker: Option<Waker>,
}

/// The queue of a listener, under its lock: requests that were not fetched yet, or futures that wait for one.
pub(crate) struct Requests<R> {
    pub(crate) machine: Listener<R>,
    waiters: KeyMap<WaiterId, Waiter<R>>,
    /// When the program has last taken a request, or one has come while none waited, for snapshots.
    taken: Mark,
}

/// The outcome of a new request, to be carried out without the lock: see [`AcceptQueue::deliver`].
#[must_use = "a future waits for the request, or it is refused"]
pub(crate) enum Placed<R> {
    /// The future that got it.
    Wake(Option<Waker>),
    /// It waits in the queue.
    Queued,
    /// The request is refused: the backlog is full, or the listener is closed.
    Refuse(R),
}

impl<R> Requests<R> {
    /// Creates the queue of a listener without an address.
    pub(crate) fn new() -> Self {
        Self { machine: Listener::new(), waiters: KeyMap::default(), taken: Mark::now() }
    }

    /// Returns its report, of a listener with this address.
    #[cfg(feature = "inspect")]
    pub(crate) fn report(&self, adapter: u64, local: Option<SocketAddr>) -> ListenerReport {
        let (state, backlog, waiting, calls) = self.machine.facts();
        let mut report =
            ListenerReport { adapter, local, backlog, waiting, calls, ..ListenerReport::default() };
        report.state = state.into();
        report.since_taken = self.taken.age();
        report
    }

    /// Ends every wait, and returns the futures to wake and the requests that were not fetched.
    pub(crate) fn end(&mut self, end: End) -> (Vec<Waker>, Vec<R>) {
        let Leftovers { waiters, requests } = self.machine.end(end);
        let error = match end {
            End::Closed => AcceptError::Canceled,
            End::Removed => AcceptError::DeviceRemoved,
        };
        (self.fail(&waiters, &error), requests)
    }

    /// Takes a Listen back that the provider could not carry out, like [`end`](Self::end).
    #[cfg(feature = "verbs")]
    pub(crate) fn withdraw(&mut self) -> (Vec<Waker>, Vec<R>) {
        let Leftovers { waiters, requests } = self.machine.withdraw();
        (self.fail(&waiters, &AcceptError::Canceled), requests)
    }

    /// Ends these waits with an error, and returns the futures to wake.
    fn fail(&mut self, waiters: &[WaiterId], error: &AcceptError) -> Vec<Waker> {
        waiters.iter().filter_map(|id| self.answer(*id, Err(error.clone()))).collect()
    }

    /// Answers a future that waits, and returns its waker.
    fn answer(&mut self, id: WaiterId, answer: Result<R, AcceptError>) -> Option<Waker> {
        let waiter = self.waiters.get_mut(&id)?;
        waiter.answer = Some(answer);
        waiter.waker.take()
    }

    fn place(&mut self, arrival: Arrival<R>) -> Placed<R> {
        match arrival {
            Arrival::Delivered(id, request) => Placed::Wake(self.answer(id, Ok(request))),
            Arrival::Queued => {
                if self.machine.has_one() {
                    self.taken = Mark::now();
                }
                Placed::Queued
            }
            Arrival::Refused(request) => Placed::Refuse(request),
        }
    }

    /// Polls for a request. A waker that was replaced is to be dropped without the lock.
    fn poll(
        &mut self,
        place: &mut Option<WaiterId>,
        waker: &Waker,
    ) -> (Poll<Result<R, AcceptError>>, Option<Waker>) {
        match *place {
            None => match self.machine.wait() {
                Ok(Wait::Ready(request)) => {
                    self.taken = Mark::now();
                    (Poll::Ready(Ok(request)), None)
                }
                Ok(Wait::Pending(id)) => {
                    self.waiters.insert(id, Waiter { answer: None, waker: Some(waker.clone()) });
                    *place = Some(id);
                    (Poll::Pending, None)
                }
                Err(Status::DEVICE_REMOVED) => (Poll::Ready(Err(AcceptError::DeviceRemoved)), None),
                Err(_) => (Poll::Ready(Err(AcceptError::NotListening)), None),
            },
            Some(id) => match self.waiters.get_mut(&id) {
                Some(Waiter { answer: None, waker: old }) => (Poll::Pending, old.replace(waker.clone())),
                Some(_) | None => {
                    self.taken = Mark::now();
                    let answer = self.waiters.remove(&id).and_then(|waiter| waiter.answer);
                    (Poll::Ready(answer.unwrap_or(Err(AcceptError::Canceled))), None)
                }
            },
        }
    }

    /// Removes a future that is dropped. A request that was delivered to it and not collected goes to the next one
    /// (`LS-06`). Its waker is to be dropped without the lock.
    fn leave(&mut self, id: WaiterId) -> (Placed<R>, Option<Waker>) {
        self.machine.cancel(id);
        let Some(Waiter { answer, waker }) = self.waiters.remove(&id) else { return (Placed::Queued, None) };
        let Some(Ok(request)) = answer else { return (Placed::Queued, waker) };
        let arrival = self.machine.put_back(request);
        (self.place(arrival), waker)
    }
}

/// A listener of one provider, as far as its queue of requests is concerned.
pub(crate) trait AcceptQueue: Send + Sync + Sized {
    /// The state under the lock.
    type State: AsMut<Requests<Self::Request>>;
    type Request: Send;
    type Connector;

    fn lock(&self) -> MutexGuard<'_, Self::State>;

    /// Returns the connector of a request that is handed out.
    fn connector_for(&self, request: Self::Request) -> Self::Connector;

    /// Refuses a request: the backlog is full, or the listener is closed.
    fn refuse(&self, request: Self::Request);

    /// Returns how many requests may wait when this one arrives, if that is less than the backlog.
    fn room(&self, _request: &Self::Request) -> usize {
        usize::MAX
    }

    /// Returns a future that resolves with a request (`IND2Listener::GetConnectionRequest`).
    fn request(self: &Arc<Self>) -> Accept<Self> {
        Accept { queue: self.clone(), place: None }
    }

    /// Ends every wait with CANCELED (CancelOverlappedRequests). The listener goes on.
    fn cancel(&self) {
        let mut state = self.lock();
        let requests = state.as_mut();
        let waiters = requests.machine.cancel_all();
        let wakers = requests.fail(&waiters, &AcceptError::Canceled);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Queues a request that has come in full, or delivers it to a future. Queued requests that are `dead` make room
    /// for it.
    fn enqueue(&self, request: Self::Request, dead: impl FnMut(&Self::Request) -> bool) {
        let room = self.room(&request);
        let mut state = self.lock();
        let requests = state.as_mut();
        let (arrival, gone) = requests.machine.arrived(request, room, dead);
        let placed = requests.place(arrival);
        drop(state);
        drop(gone);
        ACCEPTS.count(if matches!(placed, Placed::Refuse(_)) { "refused" } else { "requested" });
        self.deliver(placed);
    }

    /// Carries out, without the lock, the outcome of a new request.
    fn deliver(&self, placed: Placed<Self::Request>) {
        match placed {
            Placed::Wake(waker) => waker.into_iter().for_each(Waker::wake),
            Placed::Queued => {}
            Placed::Refuse(request) => self.refuse(request),
        }
    }
}

/// The future of GetConnectionRequest.
pub(crate) struct Accept<Q: AcceptQueue> {
    queue: Arc<Q>,
    /// Its place among those that wait.
    place: Option<WaiterId>,
}

impl<Q: AcceptQueue> Future for Accept<Q> {
    type Output = Result<Q::Connector, AcceptError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { queue, place } = &mut *self;
        let polled = poll_budgeted(cx, |cx| {
            let (polled, old) = queue.lock().as_mut().poll(place, cx.waker());
            drop(old);
            polled
        });
        polled.map(|answer| {
            *place = None;
            answer.map(|request| queue.connector_for(request))
        })
    }
}

impl<Q: AcceptQueue> Drop for Accept<Q> {
    fn drop(&mut self) {
        let Some(id) = self.place else { return };
        let (placed, waker) = self.queue.lock().as_mut().leave(id);
        drop(waker);
        self.queue.deliver(placed);
    }
}
