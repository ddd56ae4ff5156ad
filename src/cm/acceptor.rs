//! Answers requests in the background, so that a slow or silent peer delays no other.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::task::AtomicWaker;
use futures::{FutureExt, Stream, StreamExt};
use tokio::runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::coop;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::{debug, warn};

use super::handshakes::Handshakes;
use super::listener::{Listener, Request};
use crate::error::{AcceptError, BindError};
use crate::metrics::AcceptMetrics;
use crate::net::descriptors::Held;
use crate::proto::half_open::HalfOpen;
use crate::provider::info::ProviderKind;
use crate::sync::{Mutex, Throttle, runtime_with_timers};

/// The time after which an acceptor without descriptors for another handshake looks again: those of other acceptors may be free.
const PAUSE: Duration = Duration::from_millis(50);

/// The pause before each error after the end, so that a loop that continues after errors does not occupy a processor.
const END_PAUSE: Duration = Duration::from_secs(1);

/// The number of requests that are taken before other tasks have their turn.
const TURN: usize = 64;

/// Settings of an [`Acceptor`].
///
/// ```
/// use std::time::Duration;
/// use tokio_rdma::AcceptorConfig;
///
/// let config = AcceptorConfig::default().handshake_timeout(Duration::from_secs(2)).handshakes(64);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptorConfig {
    handshake_timeout: Duration,
    handshakes: usize,
    waiting: usize,
}

impl Default for AcceptorConfig {
    /// Returns 10 seconds for a handshake, 256 handshakes at the same time, and 2048 peers that wait for one.
    fn default() -> Self {
        Self { handshake_timeout: Duration::from_secs(10), handshakes: 256, waiting: 2048 }
    }
}

impl AcceptorConfig {
    /// Sets the time limit of a handshake: of the future that answers a request. A slower peer is dropped.
    #[must_use]
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// Sets how many peers may be between their request and [`Acceptor::accept`], at least 1. Each may have the resources
    /// of its connection already.
    ///
    /// If there is no place for another peer, the oldest handshake of the address that has most is dropped. Each peer has
    /// at least 1 s from the reply that [`Request::accept`] sends, or 50 ms if its address has an eighth of the places besides.
    /// The time that the answer takes before its reply does not count. Connections that are ready are not
    /// dropped.
    ///
    /// Whatever the setting, with the soft provider the peers of all acceptors of the process have at most an eighth of its
    /// descriptors (`RLIMIT_NOFILE`).
    #[must_use]
    pub fn handshakes(mut self, most: usize) -> Self {
        self.handshakes = most.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// Sets how many peers may wait for a handshake. Each has a socket and its request, and no other resources. If there
    /// is no place for another peer, the oldest of the address that has most is rejected.
    ///
    /// Whatever the setting, with the soft provider the waiting peers and the backlogs of all listeners of the process have at
    /// most an eighth of its descriptors (`RLIMIT_NOFILE`).
    #[must_use]
    pub fn waiting(mut self, most: usize) -> Self {
        self.waiting = most;
        self
    }
}

/// Accepts the connections of a listener in the background.
///
/// Returned by [`Listener::acceptor`]. Each request is answered in a task of its own with a time limit, so a slow or
/// silent peer delays no other. The number of handshakes is limited by [`AcceptorConfig`]. A peer whose handshake fails is
/// dropped and logged by `tracing`.
///
/// Dropping the `Acceptor` closes the listener, and drops the connections that were not yet returned. The end of the
/// runtime in which the `Acceptor` was created closes the listener, too. [`Listener::cancel`] of another handle cancels
/// the wait for requests, which ends the `Acceptor` and closes the listener. Like any cancel it does nothing if no call
/// waits at that moment: the task of the `Acceptor` may be taking a request, or may not have run yet. Drop the
/// `Acceptor` to end it.
///
/// `Acceptor` is a [`Stream`] of connections. If the listener fails, it yields one error and then `None`.
#[must_use = "streams do nothing unless polled"]
pub struct Acceptor<T> {
    ready: Arc<Ready<T>>,
    listeners: Arc<Mutex<Listeners>>,
    local: SocketAddr,
    /// When the next call fails after the end.
    next_error: Mutex<Option<Instant>>,
    /// The timer of [`poll_accept`](Self::poll_accept), with its runtime.
    pause: Mutex<Option<(runtime::Id, Pin<Box<Sleep>>)>>,
    /// Dropping it ends the tasks, and with them the handshakes.
    _tasks: JoinSet<()>,
}

/// The parts of an acceptor.
pub(crate) struct AcceptorParts<A, F> {
    /// Listeners that listen, all on the same port, each with what is passed on with its requests.
    pub(crate) listeners: Vec<(A, Listener)>,
    /// Listeners that are added later.
    pub(crate) later: BoxStream<'static, (A, Listener)>,
    /// Notified when one of the listeners has ended.
    pub(crate) closed: Arc<Notify>,
    pub(crate) config: AcceptorConfig,
    pub(crate) metrics: AcceptMetrics,
    /// Answers a request. A connection that belongs to something else that was accepted before is not returned.
    pub(crate) answer: F,
    /// The answers over the soft provider hold the thread only briefly, and mostly wait for nothing: one gets a task if it waits.
    pub(crate) is_prompt: bool,
}

impl<T: Send + 'static> Acceptor<T> {
    /// Answers the requests of these listeners, of which one at least has to listen. Panics outside of a runtime.
    pub(crate) fn new<A, F, H, E>(parts: AcceptorParts<A, F>) -> Result<Self, BindError>
    where
        A: Clone + Send + Sync + 'static,
        F: Fn(A, Request) -> H + Send + Sync + 'static,
        H: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: Into<io::Error> + Send + 'static,
    {
        let AcceptorParts { listeners, later, closed, config, metrics, answer, is_prompt } = parts;
        let mut addresses = listeners.iter().filter_map(|(_, listener)| listener.local_addr().ok());
        let local = addresses.next().ok_or(BindError::InvalidState("the listeners are closed"))?;
        let ready = Arc::new(Ready::new());
        let shared = Arc::new(Mutex::new(Listeners::default()));
        let mut serving = Serving {
            answer: self::answer::<A, T, F, H, E>,
            spare: None,
            requests: Merged::default(),
            listeners: shared.clone(),
            closed,
            waiting: HalfOpen::new(),
            handshakes: Handshakes::new(config.handshakes),
            tasks: JoinSet::new(),
            places: Arc::new(Semaphore::new(config.handshakes)),
            context: Arc::new(Answers {
                config,
                metrics,
                answer,
                is_prompt,
                ready: ready.clone(),
                logged: Logged::default(),
            }),
        };
        for (with, listener) in listeners {
            serving.add(with, listener);
        }
        let mut tasks = JoinSet::new();
        let guard = EndGuard { ready: ready.clone(), listeners: shared.clone(), error: None };
        tasks.spawn(serving.run(later, guard));
        Ok(Self {
            ready,
            listeners: shared,
            local,
            next_error: Mutex::default(),
            pause: Mutex::default(),
            _tasks: tasks,
        })
    }

    /// Returns the local address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the next connection.
    ///
    /// Any number of tasks may call this method at the same time.
    ///
    /// # Errors
    /// If the listener has ended, because its adapter was removed or it was cancelled. The failure of a single peer is not returned.
    /// The end is final: calls that are pending fail at once, and each call that is made after the first error fails after 1 s,
    /// so that a loop that continues after errors does not occupy a processor.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection: the next call returns it.
    pub async fn accept(&self) -> io::Result<T> {
        coop::consume_budget().await;
        let mut was_pending = false;
        loop {
            let more = self.ready.more.notified();
            match self.ready.take() {
                Poll::Ready(Some(next)) => return next,
                Poll::Ready(None) => {
                    // Without timers there is no pause.
                    if !was_pending && runtime_with_timers().is_ok() {
                        sleep_until(self.next_error()).await;
                        *self.next_error.lock() = None;
                    }
                    return Err(ended());
                }
                Poll::Pending => {
                    was_pending = true;
                    more.await;
                }
            }
        }
    }

    /// Returns the next connection like [`accept`](Self::accept), in the manner of `tokio::net::TcpListener::poll_accept`.
    ///
    /// Only the waker of the last `poll_accept`, or of the last poll of the [`Stream`], is woken.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        match ready!(self.poll_take(cx)) {
            Some(next) => Poll::Ready(next),
            None => self.poll_pause(cx).map(|()| Err(ended())),
        }
    }
}

impl<T> Acceptor<T> {
    /// Returns the end of the pause before an error after the end. Calls that are dropped during the pause share it.
    fn next_error(&self) -> Instant {
        *self.next_error.lock().get_or_insert_with(|| Instant::now() + END_PAUSE)
    }

    /// Waits before an error after the end.
    fn poll_pause(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Without timers there is no pause.
        let Ok(runtime) = runtime_with_timers() else { return Poll::Ready(()) };
        // Out of the lock, because polling may drop a waker. A timer of a runtime that has ended panics.
        let begun = self.pause.lock().take().filter(|(id, _)| *id == runtime.id());
        let (id, mut timer) =
            begun.unwrap_or_else(|| (runtime.id(), Box::pin(sleep_until(self.next_error()))));
        if timer.as_mut().poll(cx).is_pending() {
            *self.pause.lock() = Some((id, timer));
            return Poll::Pending;
        }
        *self.next_error.lock() = None;
        Poll::Ready(())
    }

    /// Returns the next connection, or `None` if there will be none.
    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<io::Result<T>>> {
        let turn = ready!(coop::poll_proceed(cx));
        self.ready.stream.register(cx.waker());
        let next = ready!(self.ready.take());
        turn.made_progress();
        Poll::Ready(next)
    }
}

/// Returns the error after the last connection of a listener.
fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the listener has ended")
}

impl<T> Stream for Acceptor<T> {
    type Item = io::Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_take(cx)
    }
}

impl<T> Drop for Acceptor<T> {
    fn drop(&mut self) {
        // The tasks end when the runtime comes to it; the port is free at once (`LS-08`).
        let listeners = self.listeners.lock().close();
        listeners.iter().for_each(Listener::close);
        let queue = std::mem::take(&mut self.ready.queue.lock().connections);
        drop(queue);
    }
}

impl<T> fmt::Debug for Acceptor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("local", &self.local).finish_non_exhaustive()
    }
}

/// The listeners of an acceptor.
#[derive(Default)]
struct Listeners {
    closed: bool,
    listeners: Vec<Listener>,
}

impl Listeners {
    fn close(&mut self) -> Vec<Listener> {
        self.closed = true;
        std::mem::take(&mut self.listeners)
    }
}

/// The place of a handshake, until [`Acceptor::accept`] returns its connection.
struct Place {
    _place: OwnedSemaphorePermit,
    descriptor: Option<Held>,
}

/// The connections that are ready, and the tasks that wait for them.
struct Ready<T> {
    queue: Mutex<ReadyQueue<T>>,
    /// Wakes all futures of [`Acceptor::accept`], not one: that one may be kept and never polled again.
    more: Notify,
    /// The waker of the task that polls.
    stream: AtomicWaker,
}

struct ReadyQueue<T> {
    /// In the order in which they became ready, each with its place.
    connections: VecDeque<(io::Result<T>, Option<Place>)>,
    ended: bool,
}

impl<T> Ready<T> {
    fn new() -> Self {
        let queue = Mutex::new(ReadyQueue { connections: VecDeque::new(), ended: false });
        Self { queue, more: Notify::new(), stream: AtomicWaker::new() }
    }

    /// Returns the next connection, or `None` if there will be none.
    fn take(&self) -> Poll<Option<io::Result<T>>> {
        let mut queue = self.queue.lock();
        let taken = queue.connections.pop_front();
        let ended = queue.ended;
        drop(queue);
        match taken {
            Some((next, place)) => {
                if let Some(descriptor) = place.and_then(|place| place.descriptor) {
                    descriptor.release();
                }
                Poll::Ready(Some(next))
            }
            None if ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn push(&self, connection: T, place: Place) {
        self.queue.lock().connections.push_back((Ok(connection), Some(place)));
        self.wake();
    }

    fn wake(&self) {
        self.more.notify_waiters();
        self.stream.wake();
    }
}

/// Ends the connections, and the listeners, when the task that makes the connections ends. With the runtime it ends before the
/// listeners do, whose peers would wait for an answer.
struct EndGuard<T> {
    ready: Arc<Ready<T>>,
    listeners: Arc<Mutex<Listeners>>,
    /// The error with which the task has ended.
    error: Option<io::Error>,
}

impl<T> Drop for EndGuard<T> {
    fn drop(&mut self) {
        let mut queue = self.ready.queue.lock();
        queue.ended = true;
        queue.connections.extend(self.error.take().map(|error| (Err(error), None)));
        drop(queue);
        let listeners = self.listeners.lock().close();
        listeners.iter().for_each(Listener::close);
        self.ready.wake();
    }
}

/// The function that answers requests, and the state that its tasks share.
struct Answers<T, F> {
    config: AcceptorConfig,
    metrics: AcceptMetrics,
    answer: F,
    is_prompt: bool,
    ready: Arc<Ready<T>>,
    logged: Logged,
}

/// The messages that are logged once in a while.
#[derive(Default)]
struct Logged {
    replaced: Throttle,
    no_resources: Throttle,
}

/// A request that waits for a place.
struct Waiting<A> {
    with: A,
    request: Request,
    descriptor: Option<Held>,
}

/// The items of several streams, in turns. Each stream is polled whenever one is: there are few, and a set that polls only those
/// that were woken wakes the task once more for each wait.
struct Merged<T> {
    streams: Vec<BoxStream<'static, T>>,
    /// The stream that is polled first.
    turn: usize,
}

impl<T> Default for Merged<T> {
    fn default() -> Self {
        Self { streams: Vec::new(), turn: 0 }
    }
}

impl<T> Stream for Merged<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut pending = 0;
        while pending < self.streams.len() {
            let at = self.turn % self.streams.len();
            match self.streams[at].poll_next_unpin(cx) {
                Poll::Ready(None) => {
                    // The one behind it is the next.
                    self.turn = at;
                    drop(self.streams.remove(at));
                }
                polled => {
                    self.turn = at + 1;
                    if polled.is_ready() {
                        return polled;
                    }
                    pending += 1;
                }
            }
        }
        if self.streams.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// The task of an acceptor.
struct Serving<A, T, F, G, P> {
    /// Makes the future that answers a request.
    answer: P,
    /// The place of the next such future, which has kilobytes: most are over at their first poll and leave it.
    spare: Option<Pin<Box<Option<G>>>>,
    requests: Merged<(A, Result<Request, AcceptError>)>,
    listeners: Arc<Mutex<Listeners>>,
    closed: Arc<Notify>,
    /// The requests that wait for a place.
    waiting: HalfOpen<Waiting<A>>,
    handshakes: Handshakes,
    tasks: JoinSet<()>,
    places: Arc<Semaphore>,
    context: Arc<Answers<T, F>>,
}

impl<A, T, F, G, P> Serving<A, T, F, G, P>
where
    A: Clone + Send + Sync + 'static,
    T: Send + 'static,
    F: Send + Sync + 'static,
    G: Future<Output = ()> + Send + 'static,
    P: Fn(Arc<Answers<T, F>>, A, Request, Place) -> G,
{
    /// Adds a listener whose requests are taken, too.
    fn add(&mut self, with: A, listener: Listener) {
        let mut listeners = self.listeners.lock();
        if listeners.closed {
            return;
        }
        listeners.listeners.push(listener.clone());
        drop(listeners);
        self.requests
            .streams
            .push(listener.counted_requests().map(move |request| (with.clone(), request)).boxed());
    }

    /// Runs until all listeners and all handshakes have ended.
    async fn run(mut self, later: BoxStream<'static, (A, Listener)>, mut guard: EndGuard<T>) {
        let mut later = later.fuse();
        while !(self.requests.streams.is_empty() && self.handshakes.len() == 0 && self.waiting.len() == 0) {
            let (waits, has_room) = (self.waiting.len() > 0, self.handshakes.has_room());
            let mut next = self.replace();
            if waits && !has_room {
                let again = Instant::now() + PAUSE;
                next = Some(next.map_or(again, |next| next.min(again)));
            }
            tokio::select! {
                // The waits that a flood of requests would delay are looked at below, or come first.
                biased;
                Some((with, listener)) = later.next(), if !self.requests.streams.is_empty() => self.add(with, listener),
                // At the end of the last listener the loop looks at its condition again.
                next = self.requests.next(), if !self.requests.streams.is_empty() => {
                    if let Some((with, request)) = next {
                        self.take(with, request, &mut guard);
                        self.take_more(&mut guard).await;
                    }
                }
                // They are never closed.
                Ok(place) = self.places.clone().acquire_owned(), if waits && has_room => self.begin_oldest(place),
                () = wait_until(next) => {}
                Some(ended) = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => self.remove_ended(ended),
            }
            while let Some(ended) = self.tasks.try_join_next_with_id() {
                self.remove_ended(ended);
            }
            self.begin_all();
        }
    }

    /// Takes requests that have arrived, so that none is rejected because the backlog of its listener is full.
    async fn take_more(&mut self, guard: &mut EndGuard<T>) {
        for _ in 0..TURN {
            let Some(Some((with, request))) = self.requests.next().now_or_never() else { return };
            self.take(with, request, guard);
        }
        tokio::task::yield_now().await;
    }

    /// Takes a request that has arrived, or the error of a listener that has ended.
    fn take(&mut self, with: A, request: Result<Request, AcceptError>, guard: &mut EndGuard<T>) {
        let mut is_short = false;
        match request {
            Ok(request) => {
                let descriptor = request.provider().take_descriptor();
                is_short = descriptor.as_ref().is_some_and(|descriptor| !descriptor.fits());
                let waiting = Waiting { with, request, descriptor };
                // Mostly there is a place, and a table with one entry is an allocation of two kilobytes.
                if self.waiting.len() == 0
                    && let Some(place) = self.place()
                {
                    self.begin(waiting, place);
                } else {
                    self.waiting.insert(waiting.request.peer_addr().ip(), waiting);
                }
            }
            Err(error) => {
                if matches!(error, AcceptError::Canceled) {
                    debug!("listener closed or cancelled");
                } else {
                    warn!(%error, "listener closed on one adapter");
                }
                guard.error = Some(error.into());
                self.closed.notify_one();
            }
        }
        self.begin_all();
        // Without descriptors one waits, so that a handshake is dropped for it.
        if self.waiting.len() > self.context.config.waiting || (is_short && self.waiting.len() > 1) {
            let victim = self.waiting.victim().map(|(key, _)| key);
            // Dropping the request rejects the peer.
            drop(victim.and_then(|victim| self.waiting.remove(victim)));
            self.report_replaced("too many requests: the oldest is rejected");
        }
    }

    /// Removes a handshake that has ended, and has returned its place or passed it on.
    fn remove_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        self.handshakes.remove(id);
    }

    /// Takes a place for a handshake, if there is one.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.handshakes.has_room().then(|| self.places.clone().try_acquire_owned().ok())?
    }

    /// Begins to answer requests while there are places.
    fn begin_all(&mut self) {
        while self.waiting.len() > 0 {
            let Some(place) = self.place() else { return };
            self.begin_oldest(place);
        }
    }

    /// Begins to answer the oldest request.
    fn begin_oldest(&mut self, place: OwnedSemaphorePermit) {
        if let Some(oldest) = self.waiting.pop_oldest() {
            self.begin(oldest, place);
        }
    }

    /// Begins to answer a request.
    fn begin(&mut self, waiting: Waiting<A>, place: OwnedSemaphorePermit) {
        let Waiting { with, mut request, descriptor } = waiting;
        let (peer, replied) = (request.peer_addr(), Arc::default());
        request.note_reply(Arc::clone(&replied));
        let budget = request.provider().descriptors().filter(|_| descriptor.is_some());
        let of_handshake = budget.map(|budget| self.handshakes.holder(&budget.handshakes).hold());
        if let Some(descriptor) = of_handshake.clone() {
            request.provider().set_descriptor(descriptor);
        }
        let place = Place { _place: place, descriptor: of_handshake };
        // A device takes its time for the queues of a connection.
        let is_prompt = self.context.is_prompt && request.provider().kind() == ProviderKind::Soft;
        // In a box: to spawn a task moves its future several times.
        let mut handshake = self.spare.take().unwrap_or_else(|| Box::pin(None));
        handshake.set(Some((self.answer)(self.context.clone(), with, request, place)));
        if is_prompt {
            // One that panics ends alone, as it would in a task.
            let first = catch_unwind(AssertUnwindSafe(|| handshake.as_mut().as_pin_mut()?.now_or_never()));
            match first {
                Ok(None) => {}
                Ok(Some(())) => {
                    handshake.set(None);
                    self.spare = Some(handshake);
                    return;
                }
                Err(_) => return,
            }
        }
        let task = self.tasks.spawn(async move {
            if let Some(answer) = handshake.as_mut().as_pin_mut() {
                answer.await;
            }
        });
        self.handshakes.insert(peer.ip(), task, replied);
    }

    /// Drops handshakes while requests wait for their places: the oldest of the address that has most. Returns when the
    /// next one may be dropped, if there is need.
    fn replace(&mut self) -> Option<Instant> {
        // Handshakes that were dropped have not returned their places yet.
        while self.handshakes.leaving() < self.waiting.len() {
            if let Err(expendable) = self.handshakes.drop_oldest() {
                return expendable;
            }
            self.report_replaced("too many handshakes: the oldest is dropped");
        }
        None
    }

    fn report_replaced(&self, what: &'static str) {
        self.context.metrics.count("replaced");
        if let Some(held_back) = self.context.logged.replaced.admit() {
            warn!(held_back, "{what}");
        }
    }
}

/// Resolves at this time; without a time it never resolves.
pub(crate) async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Answers a request, within the time limit.
async fn answer<A, T, F, H, E>(answers: Arc<Answers<T, F>>, with: A, request: Request, place: Place)
where
    F: Fn(A, Request) -> H,
    H: Future<Output = Result<Option<T>, E>>,
    E: Into<io::Error>,
{
    let (peer, id, metrics) = (request.peer_addr(), request.id(), answers.metrics);
    let _half_open = metrics.half_open();
    let mut answer = pin!((answers.answer)(with, request));
    // Most answers over the soft provider wait for nothing, and need no timer.
    let answered = match poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
        Poll::Ready(answered) => Ok(answered),
        Poll::Pending => tokio::time::timeout(answers.config.handshake_timeout, answer).await,
    };
    let outcome = match answered {
        Ok(Ok(Some(connection))) => {
            answers.ready.push(connection, place);
            "accepted"
        }
        Ok(Ok(None)) => {
            // It is no handshake any longer, and who has it was accepted before.
            place.descriptor.inspect(Held::release);
            "resumed"
        }
        Ok(Err(error)) => {
            let error = error.into();
            debug!(%peer, connection = %id, %error, "peer not accepted");
            let lacking = error.kind() == io::ErrorKind::OutOfMemory;
            if let Some(held_back) = lacking.then(|| answers.logged.no_resources.admit()).flatten() {
                warn!(%error, held_back, "no resources for a connection: the peer is rejected");
            }
            if lacking { "no_resources" } else { "failed" }
        }
        Err(_elapsed) => {
            debug!(%peer, connection = %id, "handshake timed out");
            "timed_out"
        }
    };
    metrics.count(outcome);
}

/// Returns a stream that adds no listeners.
pub(crate) fn none_later<A: Send + 'static>() -> BoxStream<'static, (A, Listener)> {
    stream::empty().boxed()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    // A stream that is not polled before a wait would not wake the task.
    #[test]
    fn merged_streams_are_all_polled() {
        for (turn, ending) in (0..4).flat_map(|turn| (0..3).map(move |ending| (turn, ending))) {
            let polled = Arc::new([const { AtomicBool::new(false) }; 3]);
            let stream = |number: usize| {
                let polled = polled.clone();
                let poll = move |_: &mut Context<'_>| {
                    polled[number].store(true, Ordering::Relaxed);
                    if number == ending { Poll::Ready(None::<()>) } else { Poll::Pending }
                };
                stream::poll_fn(poll).boxed()
            };
            let mut merged = Merged { streams: (0..3).map(stream).collect(), turn };
            assert!(merged.next().now_or_never().is_none(), "two streams go on");
            assert!(polled.iter().all(|polled| polled.load(Ordering::Relaxed)), "{turn} {ending} {polled:?}");
        }
    }
}
