//! The passive side of connection setup: Listen, GetConnectionRequest, Accept, Reject.
//!
//! The listener accepts TCP connections and reads their MPA requests: the peers between the two are half
//! open. There are at most [`SoftConfig::half_open`] of them at one listening address, and at all addresses
//! together as many as the [descriptors](crate::net::descriptors) of the process allow. When there is no room
//! for another, the oldest of the source that has most is closed ([`HalfOpen`]). So the queue of the kernel is
//! always drained, and silent peers delay no others. A peer that is not silent is not closed by this: its
//! request is read when it is accepted, and once more before it is closed, and it has [`GRACE`] to send it.
//!
//! [`SoftConfig::half_open`]: super::config::SoftConfig::half_open

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::adapter::{Adapter, MAX_PRIVATE_DATA, READ_LIMITS};
use super::connect::START;
use super::connector::{self, Connector, Incoming, PendingHandshake};
use super::queue_pair::QueuePair;
use crate::error::{AcceptError, BindError, DecodeError, Reason, StateError};
#[cfg(feature = "inspect")]
use crate::inspect::Snapshot;
use crate::net::descriptors::{Descriptors, Holder};
use crate::net::{self, BoundListener, Stream, canonical};
use crate::proto::connector::{Input, Loss, Op, Terms};
use crate::proto::half_open::{HalfOpen, PeerKey};
use crate::proto::limits;
use crate::proto::listener::End;
use crate::proto::mpa::{Negotiated, Offer, Responder, Rtr, StartConfig, StartError};
use crate::provider::accept_queue::{ACCEPTS, AcceptQueue, Requests};
use crate::provider::connector::{AfterStep, ConnectorDriver, ReleaseGuard};
use crate::provider::params::AcceptParams;
use crate::provider::registry::{Member, Registered};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard, Throttle};
use crate::types::{ReadLimits, Role};

/// A listener, shared by its handle and its tasks.
pub(crate) struct Listener {
    pub(crate) adapter: Arc<Adapter>,
    state: Mutex<State>,
    _registered: Registered,
}

/// The state of a listener, under its lock.
pub(crate) struct State {
    requests: Requests<Box<Incoming>>,
    bound: Option<BoundListener>,
    local: Option<SocketAddr>,
    /// The listening sockets, each with the task that accepts from it.
    tasks: Vec<(Arc<net::Listener>, AbortHandle)>,
}

impl Listener {
    pub(crate) fn new(adapter: Arc<Adapter>) -> Arc<Self> {
        let state = State { requests: Requests::new(), bound: None, local: None, tasks: Vec::new() };
        let registry = adapter.registry().clone();
        registry.create(|_, registered| Self { adapter, state: Mutex::new(state), _registered: registered })
    }

    /// Binds the listener to `address` (IND2Listener::Bind).
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        let mut state = self.state.lock();
        let local = state.local;
        state.requests.machine.may_bind().map_err(|status| BindError::of_listener(status, local))?;
        let address = net::canonical(address);
        // The address of a listener at every address is not checked against a list: the kernel decides.
        let addresses = match self.adapter.is_everywhere() {
            true => vec![address.ip()],
            false if self.adapter.owns(address.ip()) => self.adapter.expand(address.ip()),
            false => return Err(BindError::InvalidAddress(address.ip())),
        };
        let options = self.adapter.socket_options(None, false);
        let host = &self.adapter.host;
        let bound = host.bind_listener(&addresses, address.port(), self.adapter.ports(), &options)?;
        state.local = Some(SocketAddr::new(address.ip(), bound.port()));
        state.bound = Some(bound);
        state.requests.machine.bound().map_err(|status| BindError::of_listener(status, local))
    }

    /// Starts to accept TCP connections (IND2Listener::Listen).
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn listen(self: &Arc<Self>, backlog: usize) -> Result<(), BindError> {
        let mut state = self.state.lock();
        let local = state.local;
        state.requests.machine.may_listen().map_err(|status| BindError::of_listener(status, local))?;
        // The sockets belong to the adapter's runtime, whichever thread calls.
        let _home = self.adapter.runtime.enter();
        // The kernel's queue holds peers whose request has not been read yet; the queue of this listener is
        // the backlog.
        let listeners =
            state.bound.as_mut().ok_or(BindError::InvalidState("the listener is closed"))?.listen()?;
        state.requests.machine.listen(backlog).map_err(|status| BindError::of_listener(status, local))?;
        let local = state.local;
        drop(state);
        info!(local = local.map(tracing::field::display), backlog, "listening");
        // Without the lock: a runtime that has shut down drops the task within `spawn`, which closes the
        // listener.
        let tasks: Vec<_> = listeners
            .into_iter()
            .map(|listener| {
                let listener = Arc::new(listener);
                let close = CloseOnDrop(Arc::downgrade(self));
                let task = accept_loop(listener.clone(), self.adapter.clone(), move |incoming| {
                    let Some(core) = close.0.upgrade() else { return ControlFlow::Break(()) };
                    core.arrived(incoming);
                    ControlFlow::Continue(())
                });
                (listener, self.adapter.runtime.spawn(self.adapter.host.clone().run(task)).abort_handle())
            })
            .collect();
        let mut state = self.state.lock();
        if state.bound.is_some() {
            state.tasks = tasks;
        } else {
            // The listener was closed between the two locks.
            drop(state);
            stop(tasks);
        }
        Ok(())
    }

    /// Returns the bound address (IND2Listener::GetLocalAddress).
    ///
    /// # Errors
    /// `InvalidDeviceState` if the listener does not listen.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        let state = self.state.lock();
        state.requests.machine.local_address_ready()?;
        state.local.ok_or(StateError::InvalidDeviceState)
    }

    /// Queues a connection request that has arrived in full.
    fn arrived(&self, incoming: Box<Incoming>) {
        debug!(peer = %incoming.peer, "request arrived");
        self.enqueue(incoming, |queued| queued.handshake.check().is_err());
    }

    /// Ends the tasks that accept and every waiting future, and closes the sockets of requests that were not fetched.
    fn end(&self, end: End) {
        let mut state = self.state.lock();
        let (wakers, requests) = state.requests.end(end);
        let bound = state.bound.take();
        let tasks = std::mem::take(&mut state.tasks);
        drop(state);
        stop(tasks);
        drop(bound);
        wakers.into_iter().for_each(Waker::wake);
        drop(requests);
    }

    /// Closes the listener, after its last handle was dropped: waiting futures end with CANCELED, and queued
    /// requests are refused by closing their sockets (`LS-07`).
    pub(crate) fn close(&self) {
        self.end(End::Closed);
    }
}

impl AsMut<Requests<Box<Incoming>>> for State {
    fn as_mut(&mut self) -> &mut Requests<Box<Incoming>> {
        &mut self.requests
    }
}

impl AcceptQueue for Listener {
    type State = State;
    type Request = Box<Incoming>;
    type Connector = Arc<Connector>;

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn connector_for(&self, incoming: Box<Incoming>) -> Arc<Connector> {
        Connector::with_request(self.adapter.serving(incoming.local), incoming)
    }

    /// Returns how many requests may be queued when this one arrives. A request beyond the budget of
    /// descriptors may wait with a few others, because a task that waits for requests may need a turn to take
    /// them.
    fn room(&self, incoming: &Box<Incoming>) -> usize {
        if incoming.descriptor.fits() { usize::MAX } else { TURN }
    }

    fn refuse(&self, incoming: Box<Incoming>) {
        // The peer reads the end of the stream.
        debug!(peer = %incoming.peer, "request rejected: the backlog is full or the listener is closed");
    }
}

impl Member for Listener {
    fn device_removed(&self) {
        self.end(End::Removed);
    }

    #[cfg(feature = "inspect")]
    fn inspect(&self, adapter: u64, snapshot: &mut Snapshot) {
        let state = self.state.lock();
        let report = state.requests.report(adapter, state.local);
        drop(state);
        snapshot.listeners.push(report);
    }
}

/// Stops accepting. The runtime drops the tasks later; the port is free at once (`LS-08`).
fn stop(tasks: Vec<(Arc<net::Listener>, AbortHandle)>) {
    for (listener, task) in tasks {
        listener.close();
        task.abort();
    }
}

/// Closes the listener when its accepting task is dropped. Only the end of the runtime drops the task before
/// the listener is closed, and then no future may be left waiting.
struct CloseOnDrop(Weak<Listener>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(core) = self.0.upgrade() {
            core.close();
        }
    }
}

impl Connector {
    /// Returns the read limits of an accept that asks for `asked`, given the peer's offer.
    pub(crate) fn agreed(&self, asked: ReadLimits, offered: ReadLimits) -> ReadLimits {
        asked.capped_to(offered)
    }

    /// Accepts the request (IND2Connector::Accept). Resolves when the peer has completed the connection.
    ///
    /// # Errors
    /// See [`AcceptError`]; [`is_pending`](Self::is_pending) returns whether the request is still usable.
    pub(crate) async fn accept(
        self: &Arc<Self>,
        queue_pair: &Arc<QueuePair>,
        params: &AcceptParams,
    ) -> Result<(), AcceptError> {
        if queue_pair.adapter.domain != self.adapter.domain {
            return Err(AcceptError::ForeignQueuePair);
        }
        if let Some(option) = params.options.first() {
            return Err(AcceptError::NotSupported(option));
        }
        let (length, maximum) = (params.private_data.len(), MAX_PRIVATE_DATA);
        self.notice_departure();
        let begun = self.step(AfterStep::run, |state, after| {
            let offer = state.progress.machine.read_limits().unwrap_or(ReadLimits::NONE);
            let fits = length <= maximum;
            let taken = fits && state.queue_pair.is_none() && self.take_queue_pair(state, queue_pair);
            let input = Input::Accept { data: length, max_data: maximum, busy: fits && !taken };
            let begun = self.advance(state, input, after);
            if taken && begun.is_err() {
                Self::free_queue_pair(state, after);
            }
            begun.map(|()| (offer, state.handshake.take()))
        });
        let (offer, handshake) = begun.map_err(|failure| self.accept_error(failure))?;
        let guard = ReleaseGuard::new(&**self);
        let agreed = limits::accept(params.read_limits, READ_LIMITS, offer.swapped());
        if let Some(PendingHandshake::Passive { stream, mut responder, .. }) =
            handshake.map(|handshake| *handshake)
        {
            if params.waives_rtr {
                responder.waive_rtr();
            }
            let (reply, negotiated) = responder.accept(agreed, &params.private_data);
            self.reply(stream, &reply, &negotiated, queue_pair).await;
        }
        let answer = self.answer(Op::Accept).await;
        guard.disarm();
        answer.map_err(|failure| self.accept_error(failure))
    }

    /// Sends the reply and passes the socket to its driver.
    async fn reply(
        self: &Arc<Self>,
        stream: Stream,
        reply: &[u8],
        negotiated: &Negotiated,
        queue_pair: &Arc<QueuePair>,
    ) {
        let sent = {
            let mut write = pin!(stream.write_all(reply));
            // A fresh socket has room for it.
            match write.as_mut().now_or_never() {
                Some(sent) => sent,
                None => tokio::select! {
                    biased;
                    () = std::future::poll_fn(|cx| self.poll_answered(Op::Accept, cx)) => return,
                    sent = write => sent,
                },
            }
        };
        if let Err(error) = sent {
            let _ = self.handle(match error.raw_os_error() {
                Some(code) => Input::lost(Loss::GaveUp, Reason::Errno(code)),
                // Tokio's error for a socket whose runtime has shut down has no error number; all others have
                // one.
                None => Input::lost(Loss::Failed(Status::CANCELED), Reason::RUNTIME_ENDED),
            });
            return;
        }
        let started = self.start_connection(stream, queue_pair, Role::Passive, negotiated, &Bytes::new());
        let Some(driver) = started else { return };
        if matches!(negotiated.rtr, Rtr::None | Rtr::Waived) {
            // The peer sends no RTR message, so its request for the connection is all that can be awaited
            // (`NEG-07`).
            self.unwatch(Op::Accept);
            self.establish(Input::PeerCompleted);
        }
        self.adapter.runtime.spawn(driver);
    }

    /// Returns whether Accept or Reject may still be called.
    pub(crate) fn is_pending(&self) -> bool {
        self.read_limits().is_ok() && self.lock().handshake.is_some()
    }

    /// Rejects the request (IND2Connector::Reject by the passive side).
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub(crate) fn reject_request(&self, data: &[u8]) -> Result<(), AcceptError> {
        self.notice_departure();
        let keep = |state: &mut connector::State, data| {
            if let Some(handshake) = &mut state.handshake {
                handshake.set_reject_data(data);
            }
        };
        self.reject(data, MAX_PRIVATE_DATA, keep).map_err(|failure| self.accept_error(failure))
    }
}

/// The time that a peer has at least to send its request. Together with the number of places it limits what a
/// flood costs: 1,024 places change hands 5,120 times a second, and a peer behind a full queue of the kernel
/// (4,096) waits for 0.8 s. With 512 it waits for 1.6 s, and with 4,096 for the grace time alone.
const GRACE: Duration = Duration::from_millis(200);

/// The time for which accepting pauses when descriptors or memory are lacking, and no half-open peer can make
/// room.
const PAUSE: Duration = Duration::from_millis(50);

/// The number of connections that are accepted before other tasks, and the sockets, have their turn. The
/// budget of tokio is not enough: a task that has used it up may be polled dozens of times more before the
/// runtime polls the sockets.
const TURN: usize = 16;

/// Accepts TCP connections and reads their requests, until the socket is closed or `arrived` no longer takes
/// them.
async fn accept_loop(
    listener: Arc<net::Listener>,
    adapter: Arc<Adapter>,
    arrived: impl Fn(Box<Incoming>) -> ControlFlow<()>,
) {
    let mut reading = FuturesUnordered::new();
    let Ok(local) = listener.local_addr() else { return };
    let mut peers = Peers::new(adapter, local);
    let mut accepted = 0;
    loop {
        if accepted == TURN {
            accepted = 0;
            tokio::task::yield_now().await;
        }
        let room = reading.len() < peers.most && peers.lacking.is_none() && peers.half_open.has_room();
        // A peer that has to leave is no longer in the table, and gives its place up when its future is
        // polled.
        let leaving = peers.table.len() < reading.len();
        let incoming = tokio::select! {
            // None of these can keep the others waiting: each request that is read gives up a place.
            biased;
            Some((key, incoming)) = reading.next(), if !reading.is_empty() => {
                peers.remove(key);
                incoming
            }
            connection = listener.accept(), if room => {
                accepted += 1;
                match connection {
                    Ok((stream, peer)) => {
                        let mut request = peers.request(stream, peer);
                        // Most peers have sent their request by now.
                        match request.read_now() {
                            Ok(None) => {
                                reading.push(peers.insert(request));
                                None
                            }
                            progress => request.end(progress, &peers.adapter),
                        }
                    }
                    Err(error) if peers.failed(&error).is_break() => return,
                    Err(_) => None,
                }
            },
            () = peers.turn(), if !room && !leaving => {
                peers.make_room(reading.len());
                None
            }
        };
        if incoming.is_some_and(|incoming| arrived(incoming).is_break()) {
            return;
        }
    }
}

/// A half-open peer, in the table.
struct Place {
    since: Instant,
    /// Ends the future that reads the request.
    leave: oneshot::Sender<()>,
}

/// The half-open peers of a listening socket.
struct Peers {
    adapter: Arc<Adapter>,
    /// The address that the peers have connected to.
    local: SocketAddr,
    /// The number of places.
    most: usize,
    /// The descriptors of half-open peers.
    half_open: Arc<Holder>,
    /// The descriptors of requests that no connector has yet.
    requested: Arc<Holder>,
    table: HalfOpen<Place>,
    /// The time since which descriptors or memory are lacking.
    lacking: Option<Instant>,
    lack_logged: Throttle,
    closed_logged: Throttle,
}

impl Peers {
    fn new(adapter: Arc<Adapter>, local: SocketAddr) -> Self {
        let Descriptors { half_open, requested, .. } = adapter.host.descriptors();
        Self {
            most: adapter.config.half_open,
            half_open: half_open.holder(),
            requested: requested.holder(),
            adapter,
            local,
            table: HalfOpen::new(),
            lacking: None,
            lack_logged: Throttle::default(),
            closed_logged: Throttle::default(),
        }
    }

    /// Returns the request of a peer that has connected, of which nothing has been read.
    fn request(&self, stream: Stream, peer: SocketAddr) -> Request {
        // The listening socket may be one for every address.
        let local = match self.local.ip().is_unspecified() {
            true => stream.local_addr().unwrap_or(self.local),
            false => self.local,
        };
        let stream = stream.captured(self.adapter.config.capture.as_ref(), canonical(peer), Role::Passive);
        let config = StartConfig { crc: self.adapter.config.crc, unsaid_limits: ReadLimits::default() };
        let (responder, requested) = (Responder::new(config), self.requested.clone());
        Request { stream, local, peer, responder, requested }
    }

    /// Enters a peer that is half open. Returns the future that reads its request.
    fn insert(&mut self, request: Request) -> impl Future<Output = (PeerKey, Option<Box<Incoming>>)> + use<> {
        let (leave, left) = oneshot::channel();
        let key = self.table.insert(request.peer.ip(), Place { since: Instant::now(), leave });
        let (adapter, counted) = (self.adapter.clone(), (ACCEPTS.half_open(), self.half_open.hold()));
        async move {
            let _counted = counted;
            (key, request.read(left, &adapter).await)
        }
    }

    /// Handles a failed accept. Breaks if accepting will always fail.
    fn failed(&mut self, error: &io::Error) -> ControlFlow<()> {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::EBADF | libc::ENOTSOCK) => {
                debug!(%error, "the listening socket is closed");
                return ControlFlow::Break(());
            }
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                self.lacking = Some(Instant::now());
                ACCEPTS.count("no_resources");
                if let Some(held_back) = self.lack_logged.admit() {
                    warn!(%error, half_open = self.table.len(), held_back, "accept failed");
                }
            }
            // Linux passes on the errors of the network, which concern the connection that it takes out of
            // the queue.
            _ => debug!(%error, "a connection failed before it was accepted"),
        }
        ControlFlow::Continue(())
    }

    /// Removes a peer whose request was read, or will not be.
    fn remove(&mut self, key: PeerKey) {
        self.table.remove(key);
        // The peer had a descriptor, which is free now.
        self.lacking = None;
    }

    /// Waits until a peer may be closed, or for descriptors and memory.
    async fn turn(&self) {
        let until = match (self.table.victim(), self.lacking) {
            (Some((_, place)), _) => place.since + GRACE,
            (None, Some(since)) => since + PAUSE,
            // All remaining peers are about to end.
            (None, None) => return std::future::pending().await,
        };
        // The timer has a resolution of a millisecond.
        if Instant::now() < until {
            sleep_until(until).await;
        }
    }

    /// Closes the oldest peer of the source that has most, unless there is room for another one by now.
    /// `reading` peers are half open.
    fn make_room(&mut self, reading: usize) {
        let is_lacking = self.lacking.take().is_some();
        if !is_lacking && reading < self.most && self.half_open.has_room() {
            return;
        }
        let Some((key, _)) = self.table.victim() else { return };
        if let Some(place) = self.table.remove(key) {
            // If this fails, the future has ended already.
            let _ = place.leave.send(());
            if let Some(held_back) = self.closed_logged.admit() {
                warn!(held_back, "too many half-open peers: the oldest is closed");
            }
        }
    }
}

/// A request that is being read. Only these bytes have a deadline: no caller waits for them yet (`X8`).
struct Request {
    stream: Stream,
    local: SocketAddr,
    peer: SocketAddr,
    responder: Responder,
    requested: Arc<Holder>,
}

/// The request, if it is whole.
type Progress = Result<Option<Offer>, Closed>;

/// The reason why there is no request.
enum Closed {
    /// The peer has closed the connection, or it has failed.
    Gone,
    /// The bytes of the peer are no request.
    Invalid(StartError),
    /// Another peer needs the place.
    Replaced,
    /// The request did not arrive within the request timeout.
    TimedOut,
}

impl Request {
    /// Reads what has arrived from the kernel: tokio knows only the state of its last event.
    fn read_now(&mut self) -> Progress {
        let mut bytes = [0; START];
        let read = self.stream.read_now(&mut bytes);
        self.take(read, &bytes)
    }

    /// Processes the result of a read into these bytes.
    fn take(&mut self, read: io::Result<usize>, bytes: &[u8]) -> Progress {
        match read {
            Ok(0) => Err(Closed::Gone),
            Ok(length) => self.responder.receive(&bytes[..length]).map_err(Closed::Invalid),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(_) => Err(Closed::Gone),
        }
    }

    /// Reads the request, until it is whole, its place is needed, or the time is up.
    async fn read(mut self, left: oneshot::Receiver<()>, adapter: &Adapter) -> Option<Box<Incoming>> {
        let timeout = adapter.config.request_timeout;
        let progress = tokio::select! {
            biased;
            progress = self.whole() => progress,
            _ = left => match self.read_now() {
                Ok(None) => Err(Closed::Replaced),
                progress => progress,
            },
            () = tokio::time::sleep(timeout) => Err(Closed::TimedOut),
        };
        self.end(progress, adapter)
    }

    /// Reads until the request is whole.
    async fn whole(&mut self) -> Progress {
        loop {
            self.stream.readable().await.map_err(|_| Closed::Gone)?;
            // On the stack, and not part of what is kept of each peer.
            let mut bytes = [0; 1024];
            let read = self.stream.try_read(&mut bytes);
            if let Some(offer) = self.take(read, &bytes)? {
                return Ok(Some(offer));
            }
        }
    }

    /// Returns the request as the listener takes it, or closes the connection.
    fn end(self, progress: Progress, adapter: &Adapter) -> Option<Box<Incoming>> {
        let Self { stream, local, peer, responder, requested } = self;
        let (outcome, why) = match progress {
            Ok(Some(offer)) => {
                stream.prepare_accepted(&adapter.socket_options(None, false));
                let limits = limits::as_seen_by_passive(offer.limits.swapped(), READ_LIMITS);
                let terms = Terms { limits, private_data: offer.private_data };
                let handshake = Box::new(PendingHandshake::Passive { stream, responder, reject_data: None });
                let (peer, descriptor) = (canonical(peer), requested.hold());
                return Some(Box::new(Incoming { terms, handshake, local, peer, descriptor }));
            }
            Ok(None) | Err(Closed::Gone) => ("closed", "closed without a valid MPA request"),
            Err(Closed::Invalid(error)) => {
                debug!(%peer, error = %error.error, "closed without a valid MPA request");
                if let DecodeError::BadKey(start) = error.error
                    && let Some(held_back) = adapter.foreign_logged.admit()
                {
                    info!(%peer, held_back, "a peer does not speak iWARP: its bytes start with {start}");
                }
                ACCEPTS.count("invalid");
                adapter.lingering_close.close_after(stream, error.bytes);
                return None;
            }
            Err(Closed::Replaced) => {
                // With a reset: a flood would leave a TIME_WAIT for each of its peers.
                let _ = stream.abort();
                ("replaced", "closed without an MPA request to make room")
            }
            Err(Closed::TimedOut) => ("timed_out", "closed without an MPA request in time"),
        };
        debug!(%peer, "{why}");
        ACCEPTS.count(outcome);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Host;
    use crate::soft::adapter::resolve;
    use crate::soft::config::SoftConfig;

    #[tokio::test]
    async fn only_a_lack_of_resources_pauses_accepting() {
        let id = resolve(&Host::Kernel, [127, 0, 0, 1].into()).expect("the loopback interface");
        let adapter = Adapter::open(Host::Kernel, id, SoftConfig::default()).expect("opened");
        let mut peers = Peers::new(adapter, ([127, 0, 0, 1], 7).into());
        // The own listener was closed; one connection has failed; resources are lacking.
        let cases = [
            (libc::EINVAL, true, false),
            (libc::ECONNABORTED, false, false),
            (libc::ENETDOWN, false, false),
            (libc::EMFILE, false, true),
            (libc::ENFILE, false, true),
            (libc::ENOBUFS, false, true),
            (libc::ENOMEM, false, true),
        ];
        for (errno, ends, lacks) in cases {
            peers.lacking = None;
            let outcome = peers.failed(&io::Error::from_raw_os_error(errno));
            assert_eq!((outcome.is_break(), peers.lacking.is_some()), (ends, lacks), "{errno}");
        }
    }
}
