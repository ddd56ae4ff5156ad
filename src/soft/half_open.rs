//! Accepts TCP connections and reads their MPA requests: the peers between the two are half open.
//!
//! There are at most [`SoftConfig::half_open`](super::config::SoftConfig) of them at one listening address,
//! and at all addresses together as many as the [descriptors](crate::net::descriptors) of the
//! process allow. When there is no room for another, the oldest of the source that has most is closed
//! ([`HalfOpen`]). So the queue of the kernel is always drained, and silent peers delay no others. A peer
//! that is not silent is not closed by this: its request is read when it is accepted, and once more before it
//! is closed, and it has [`GRACE`] to send it.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::adapter::{Adapter, READ_LIMITS};
use super::handshake::PendingHandshake;
use crate::error::DecodeError;
use crate::net::descriptors::{Descriptors, Held, Holder};
use crate::net::{Listener, Stream, canonical};
use crate::proto::connector::Terms;
use crate::proto::half_open::{HalfOpen, PeerKey};
use crate::proto::limits;
use crate::proto::mpa::{Offer, Responder, StartConfig, StartError};
use crate::provider::accept_queue::ACCEPTS;
use crate::sync::Throttle;
use crate::types::{ReadLimits, Role};

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
pub(super) const TURN: usize = 16;

/// A connection request that no connector has yet.
pub(crate) struct Incoming {
    pub(super) terms: Terms,
    pub(super) handshake: PendingHandshake,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) descriptor: Held,
}

/// Accepts TCP connections and reads their requests, until the socket is closed or `arrived` no longer takes
/// them.
pub(super) async fn accept_loop(
    listener: Arc<Listener>,
    adapter: Arc<Adapter>,
    arrived: impl Fn(Incoming) -> ControlFlow<()>,
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
                    Ok((stream, peer)) => match peers.admit(stream, peer) {
                        Admitted::Done(incoming) => incoming,
                        Admitted::Silent(request) => {
                            reading.push(request);
                            None
                        }
                    },
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

    /// Admits a connection. Most peers have sent their request by now; the others get a future that reads it.
    fn admit(&mut self, stream: Stream, peer: SocketAddr) -> Admitted<impl Future<Output = Read> + use<>> {
        // The listening socket may be one for every address.
        let local = match self.local.ip().is_unspecified() {
            true => stream.local_addr().unwrap_or(self.local),
            false => self.local,
        };
        let stream = stream.captured(self.adapter.config.capture.as_ref(), canonical(peer), Role::Passive);
        let mut request = Request::new(stream, local, peer, self);
        let progress = request.look();
        if !matches!(progress, Ok(None)) {
            return Admitted::Done(request.end(progress, &self.adapter));
        }
        let (leave, left) = oneshot::channel();
        let key = self.table.insert(peer.ip(), Place { since: Instant::now(), leave });
        let (adapter, counted) = (self.adapter.clone(), (ACCEPTS.half_open(), self.half_open.hold()));
        Admitted::Silent(async move {
            let _counted = counted;
            (key, request.read(left, &adapter).await)
        })
    }

    /// Handles a failed accept. Breaks if accepting will always fail.
    fn failed(&mut self, error: &io::Error) -> ControlFlow<()> {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::EBADF | libc::ENOTSOCK) => {
                debug!(%error, "the listening socket is closed");
                return ControlFlow::Break(());
            }
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => self.lack(error),
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

    /// Records that accepting has failed for want of descriptors or memory.
    fn lack(&mut self, error: &io::Error) {
        self.lacking = Some(Instant::now());
        ACCEPTS.count("no_resources");
        if let Some(held_back) = self.lack_logged.admit() {
            warn!(%error, half_open = self.table.len(), held_back, "accept failed");
        }
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

/// The outcome of reading the request of a peer in the table.
type Read = (PeerKey, Option<Incoming>);

/// The state of a peer when it was accepted.
#[allow(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box would be an allocation for each connection"
)]
enum Admitted<F> {
    /// The peer has sent its whole request, or invalid bytes, or has closed.
    Done(Option<Incoming>),
    /// The peer has sent too little. The future reads on.
    Silent(F),
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
    fn new(stream: Stream, local: SocketAddr, peer: SocketAddr, peers: &Peers) -> Self {
        let config = StartConfig { crc: peers.adapter.config.crc, unsaid_limits: ReadLimits::default() };
        Self { stream, local, peer, responder: Responder::new(config), requested: peers.requested.clone() }
    }

    /// Reads what has arrived from the kernel: tokio knows only the state of its last event.
    fn look(&mut self) -> Progress {
        let mut bytes = [0; 1024];
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
    async fn read(mut self, left: oneshot::Receiver<()>, adapter: &Adapter) -> Option<Incoming> {
        let timeout = adapter.config.request_timeout;
        let progress = tokio::select! {
            biased;
            progress = self.whole() => progress,
            _ = left => match self.look() {
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
    fn end(self, progress: Progress, adapter: &Adapter) -> Option<Incoming> {
        let Self { stream, local, peer, responder, requested } = self;
        let closed = match progress {
            Ok(Some(offer)) => {
                stream.prepare_accepted(&adapter.socket_options(None, false));
                let limits = limits::as_seen_by_passive(offer.limits.swapped(), READ_LIMITS);
                let terms = Terms { limits, private_data: offer.private_data };
                let responder = Box::new(responder);
                let handshake = PendingHandshake::Passive { stream, responder, reject_data: None };
                let (peer, descriptor) = (canonical(peer), requested.hold());
                return Some(Incoming { terms, handshake, local, peer, descriptor });
            }
            Ok(None) | Err(Closed::Gone) => Closed::Gone,
            Err(Closed::Invalid(error)) => {
                debug!(%peer, error = %error.error, "closed without a valid MPA request");
                if let DecodeError::BadKey(start) = error.error
                    && let Some(held_back) = adapter.foreign_logged.admit()
                {
                    info!(%peer, held_back, "a peer does not speak iWARP: its bytes start with {start}");
                }
                ACCEPTS.count("invalid");
                adapter.lingering_close.close_after(stream, error.bytes());
                return None;
            }
            Err(Closed::Replaced) => {
                // With a reset: a flood would leave a TIME_WAIT for each of its peers.
                let _ = stream.abort();
                Closed::Replaced
            }
            Err(Closed::TimedOut) => Closed::TimedOut,
        };
        let (outcome, why) = match closed {
            Closed::Gone | Closed::Invalid(_) => ("closed", "closed without a valid MPA request"),
            Closed::Replaced => ("replaced", "closed without an MPA request to make room"),
            Closed::TimedOut => ("timed_out", "closed without an MPA request in time"),
        };
        debug!(%peer, "{why}");
        ACCEPTS.count(outcome);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::adapter::resolve;
    use super::super::config::SoftConfig;
    use super::*;
    use crate::net::Host;

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
