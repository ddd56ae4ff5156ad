//! The engine of messages over a queue pair: outstanding requests and the processing of their completions.
//!
//! There is no background task. Each call that reads or writes processes all completions. Every request has the same
//! waker, which wakes the reader and the writer: a credit for the writer arrives in a message, and the credits of the
//! reader are sent in messages.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures::task::AtomicWaker;

use super::config::{self, MessagesConfig};
use crate::cm::{Adapter, Connection};
use crate::error::{
    CompletionError, MessageTooLong, PostErrorKind, ProtocolError, RegisterError, StreamBroken, StreamError,
};
use crate::metrics::Traffic;
use crate::mr::{Buffer, Entry, Pool, PoolConfig, Region, RegionSlice};
use crate::proto::messages::{CONTROLS, Channel, HEADER, Hello, Received};
use crate::qp::{Op, QueuePair, QueuePairConfig};
use crate::status::Status;
use crate::sync::Mutex;
use crate::types::{Access, DisconnectReason, Role};

/// A message up to this length is copied out of its receive: that is cheaper than to give the receive away, and its
/// reader may keep it without keeping memory for the longest.
const COPIED: usize = 1024;

/// Wakes the reading task and the writing task, if they wait.
#[derive(Default)]
pub(super) struct Wakers {
    pub(super) reader: AtomicWaker,
    pub(super) writer: AtomicWaker,
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.reader.wake();
        self.writer.wake();
    }
}

/// A queue pair with its receives posted, before it is connected.
pub(super) struct Prepared {
    adapter: Adapter,
    pub(super) queue_pair: QueuePair,
    pool: Pool,
    headers: Region,
    receives: VecDeque<Op<Buffer>>,
    pub(super) ours: Hello,
    config: MessagesConfig,
}

impl Prepared {
    /// # Errors
    /// `OutOfRange`, `Open`, `Register`, `Post`.
    pub(super) async fn new(adapter: &Adapter, config: &MessagesConfig) -> Result<Self, StreamError> {
        let ours = config.hello(adapter.properties())?;
        let receive_depth = config.receive_depth + CONTROLS;
        let send_depth = config.send_depth + CONTROLS;
        let queue_pair = adapter.queue_pair(
            QueuePairConfig::default()
                .receive_depth(receive_depth)
                .receive_entries(1)
                .send_depth(send_depth)
                .send_entries(2),
        )?;
        // Those that are posted, those that are sent from or wait for that, and those that are handed out.
        let buffers = receive_depth + config.send_depth + 1 + config.receive_depth;
        let pool = adapter.pool(PoolConfig::new(HEADER + config.max_message, buffers))?;
        let headers = adapter.register(send_depth * HEADER, Access::LOCAL_WRITE).await?;
        let mut receives = VecDeque::with_capacity(receive_depth);
        for _ in 0..receive_depth {
            receives.push_back(queue_pair.receive(pool.get().await?).map_err(|refused| refused.kind)?);
        }
        Ok(Self { adapter: adapter.clone(), queue_pair, pool, headers, receives, ours, config: *config })
    }

    /// Starts the engine on the established connection.
    pub(super) fn start(self, role: Role, theirs: Hello, connection: Connection) -> Engine {
        let wakers = Arc::<Wakers>::default();
        let channel = Channel::new(role, self.ours, theirs);
        let maximum = channel.maximum().min(config::longest(self.adapter.properties()));
        let mut engine = Engine {
            channel,
            maximum,
            queue_pair: self.queue_pair,
            connection,
            adapter: self.adapter,
            pool: self.pool,
            headers: self.headers,
            posted: 0,
            completed: 0,
            last: 0,
            end: None,
            send_depth: self.config.send_depth,
            receives: self.receives,
            sends: VecDeque::new(),
            waiting: None,
            closing: false,
            unread: VecDeque::new(),
            waker: wakers.clone().into(),
            wakers,
            receiving: true,
            closed: false,
            verdict: None,
            broken: None,
            told: false,
            traffic: Traffic::new("messages"),
        };
        engine.post_controls();
        engine
    }
}

/// An outstanding send.
enum Sending {
    /// A header alone.
    Header(Op<RegionSlice>),
    /// A header with its payload.
    Data(Op<[Entry; 2]>),
}

impl Sending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CompletionError>> {
        match self {
            Self::Header(op) => Pin::new(op).poll(cx).map(|(outcome, _)| outcome.map(drop)),
            Self::Data(op) => Pin::new(op).poll(cx).map(|(outcome, _)| outcome.map(drop)),
        }
    }
}

/// The wait for the reason of the end of a connection. The lock makes it `Sync`; it is never held.
type Verdict = Mutex<Pin<Box<dyn Future<Output = DisconnectReason> + Send>>>;

pub(super) struct Engine {
    channel: Channel,
    /// The longest message that the peer takes and this adapter can carry.
    maximum: usize,
    queue_pair: QueuePair,
    pub(super) connection: Connection,
    adapter: Adapter,
    pub(super) pool: Pool,
    /// A place for the header of every send that may be out, taken in turn.
    headers: Region,
    /// The number of sends that were posted.
    posted: u64,
    /// The number of sends that have succeeded. They complete in order, and none succeeds after one that
    /// fails.
    completed: u64,
    /// The value of `completed` at which every message has been sent. A message that was not even posted counts, so
    /// that this value is never reached.
    last: u64,
    /// The value of `completed` at which the end has been sent, once it has been posted.
    end: Option<u64>,
    send_depth: usize,
    receives: VecDeque<Op<Buffer>>,
    sends: VecDeque<Sending>,
    /// A message for which there is no room yet, empty or in memory for the device.
    ///
    /// This slot exists because a caller may send one message after each flush, as with any sink that has a buffer:
    /// some callers flush until they can send.
    waiting: Option<Option<Entry>>,
    /// No message follows the waiting one.
    closing: bool,
    /// Received messages that have not been read, with their lengths including headers.
    unread: VecDeque<(Buffer, usize)>,
    pub(super) wakers: Arc<Wakers>,
    waker: Waker,
    /// More may come: no receive has failed.
    receiving: bool,
    /// The end has been sent, and the send has completed.
    closed: bool,
    /// Set after a request has failed, while the reason is awaited.
    verdict: Option<Verdict>,
    /// The reason.
    broken: Option<StreamBroken>,
    /// The reader has received the reason.
    told: bool,
    traffic: Traffic,
}

impl Engine {
    /// Returns the longest message that can be sent.
    pub(super) fn maximum(&self) -> usize {
        self.maximum
    }

    /// Processes all completions, and posts what has become possible.
    fn drive(&mut self) {
        let waker = self.waker.clone();
        let cx = &mut Context::from_waker(&waker);
        self.collect_receives(cx);
        self.collect_sends(cx);
        // The requests that are posted now need the waker, too.
        while self.post_waiting() | self.post_controls() {
            self.collect_sends(cx);
        }
        while let Some(verdict) = &mut self.verdict {
            let verdict = verdict.get_mut();
            let Poll::Ready(reason) = verdict.as_mut().poll(cx) else { break };
            self.verdict = None;
            match reason {
                // The application has cancelled the wait through the connection, so wait again for the reason.
                DisconnectReason::Canceled => self.fail(),
                reason => self.broken_by(StreamBroken::Connection(reason)),
            }
        }
    }

    fn collect_receives(&mut self, cx: &mut Context<'_>) {
        while self.receiving
            && let Some(receive) = self.receives.front_mut()
        {
            let Poll::Ready((outcome, buffer)) = Pin::new(receive).poll(cx) else { return };
            self.receives.pop_front();
            let length = match outcome {
                Ok(completion) => completion.bytes,
                Err(error) => {
                    self.receiving = false;
                    return match error.status {
                        Status::BUFFER_OVERFLOW => {
                            self.broken_by(StreamBroken::Protocol(ProtocolError::Overrun("bytes")));
                        }
                        _ => self.fail(),
                    };
                }
            };
            match self.channel.received(&buffer[..length]) {
                Ok(Received::Data) => self.unread.push_back((buffer, length)),
                Ok(Received::Control) => self.post_receive(buffer),
                Err(error) => {
                    self.receiving = false;
                    self.broken_by(StreamBroken::Protocol(error));
                    // No message can be sent to a peer that uses another protocol.
                    self.queue_pair.flush();
                }
            }
        }
    }

    fn collect_sends(&mut self, cx: &mut Context<'_>) {
        while let Some(send) = self.sends.front_mut() {
            let Poll::Ready(outcome) = send.poll(cx) else { return };
            self.sends.pop_front();
            match outcome {
                Ok(()) => {
                    self.completed += 1;
                    self.closed |= self.end == Some(self.completed);
                }
                Err(_) => self.fail(),
            }
        }
    }

    /// Returns whether nothing more can be sent.
    fn is_over(&self) -> bool {
        self.broken.is_some() || self.verdict.is_some()
    }

    /// Handles a failed request: the connection has ended, and its reason is awaited.
    fn fail(&mut self) {
        if !self.is_over() {
            let connection = self.connection.clone();
            self.verdict = Some(Mutex::new(Box::pin(async move { connection.disconnected().await })));
        }
    }

    fn broken_by(&mut self, why: StreamBroken) {
        self.verdict = None;
        if self.broken.is_none() {
            let (local, status) = (why == StreamBroken::Connection(DisconnectReason::Local), why.status());
            self.broken = Some(why);
            if !local && !self.nothing_lost() {
                self.traffic.broken(status);
            }
        }
        self.waker.wake_by_ref();
    }

    /// Handles a request that could not be posted.
    fn refused(&mut self, kind: PostErrorKind) {
        match kind {
            PostErrorKind::ConnectionInvalid
            | PostErrorKind::ConnectionLost { .. }
            | PostErrorKind::DeviceRemoved => self.fail(),
            kind => {
                self.broken_by(StreamBroken::Post(kind));
                self.queue_pair.flush();
            }
        }
    }

    fn post_receive(&mut self, buffer: Buffer) {
        match self.queue_pair.receive(buffer) {
            Ok(receive) => self.receives.push_back(receive),
            Err(refused) => {
                // The receives posted before still complete.
                self.refused(refused.kind);
            }
        }
    }

    /// Sends the waiting message if there is room. Returns whether it did.
    fn post_waiting(&mut self) -> bool {
        if self.is_over() || !self.has_room() {
            return false;
        }
        let waiting = self.waiting.take();
        let any = waiting.is_some();
        if let Some(payload) = waiting {
            self.post_data(payload);
        }
        any
    }

    fn post_data(&mut self, payload: Option<Entry>) {
        if let Some(header) = self.channel.send() {
            self.last = self.posted + 1;
            self.post_send(header, payload);
        }
    }

    /// Sends the control messages of the protocol while there is room. Returns whether it sent any.
    fn post_controls(&mut self) -> bool {
        let before = self.posted;
        if self.closing && self.waiting.is_none() {
            self.channel.end();
        }
        while !self.is_over()
            && self.sends.len() < self.send_depth + CONTROLS
            && let Some(header) = self.channel.control()
        {
            if self.channel.has_ended() && self.end.is_none() {
                self.end = Some(self.posted + 1);
            }
            self.post_send(header, None);
        }
        self.posted != before
    }

    fn post_send(&mut self, header: [u8; HEADER], payload: Option<Entry>) {
        let places = (self.headers.len() / HEADER) as u64;
        let place = (self.posted % places) as usize * HEADER;
        let header =
            self.headers.write(place, &header).and_then(|()| self.headers.slice(place..place + HEADER));
        let posted = match (header, payload) {
            // It is as long as all the places.
            (Err(_), _) => Err(PostErrorKind::InsufficientResources("no place is left for the header")),
            (Ok(header), None) => {
                self.queue_pair.send(header).map(Sending::Header).map_err(|refused| refused.kind)
            }
            (Ok(header), Some(payload)) => {
                let entries = [header.into(), payload];
                self.queue_pair.send(entries).map(Sending::Data).map_err(|refused| refused.kind)
            }
        };
        match posted {
            Ok(send) => {
                self.sends.push_back(send);
                self.posted += 1;
            }
            Err(kind) => self.refused(kind),
        }
    }

    /// Returns memory from which the device reads a payload: the bytes themselves if they are in the pool, or a copy.
    fn lend(&self, bytes: Bytes) -> Result<Entry, RegisterError> {
        if bytes.len() <= self.pool.buffer_length()
            && let Some(lent) = self.pool.try_lend(bytes.clone())?
        {
            return Ok(lent.into());
        }
        // The peer takes longer ones than this side, or the user keeps all that the pool has.
        Ok(self.adapter.buffer_from(&bytes)?.into())
    }

    /// Returns the error of the writer if nothing can be sent any more. Pending while its reason is awaited.
    fn poll_writable(&self) -> Poll<io::Result<()>> {
        match (&self.broken, &self.verdict) {
            (Some(broken), _) => Poll::Ready(Err(broken.clone().into())),
            (None, Some(_)) => Poll::Pending,
            (None, None) => Poll::Ready(Ok(())),
        }
    }

    /// Resolves when a message can be sent, also if it has to wait then.
    pub(super) fn poll_ready(&mut self) -> Poll<io::Result<()>> {
        self.drive();
        if self.closing {
            return Poll::Ready(Err(closed_here()));
        }
        match self.poll_writable() {
            Poll::Ready(Ok(())) if self.waiting.is_some() => Poll::Pending,
            ready => ready,
        }
    }

    fn has_room(&self) -> bool {
        self.channel.may_send() && self.sends.len() < self.send_depth
    }

    pub(super) fn send(&mut self, message: Bytes) -> io::Result<()> {
        let (length, maximum) = (message.len(), self.maximum());
        if length > maximum {
            return Err(MessageTooLong { length, maximum }.into());
        }
        if self.closing {
            return Err(closed_here());
        }
        match self.poll_writable() {
            Poll::Ready(outcome) => outcome?,
            // The flush returns the reason.
            Poll::Pending => {
                self.last = self.posted + 1;
                return Ok(());
            }
        }
        if self.waiting.is_some() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let payload = if message.is_empty() { None } else { Some(self.lend(message)?) };
        self.traffic.sent(length);
        if self.has_room() {
            self.post_data(payload);
        } else {
            if self.channel.is_exhausted() {
                self.traffic.exhausted();
            }
            self.waiting = Some(payload);
        }
        Ok(())
    }

    /// Returns whether the connection has ended after each side had sent everything: the side that closes second may
    /// find that the first has disconnected.
    fn nothing_lost(&self) -> bool {
        matches!(self.broken, Some(StreamBroken::Connection(_)))
            && self.channel.peer_has_ended()
            && self.waiting.is_none()
            && self.completed >= self.last
    }

    /// Resolves when all sends have completed.
    pub(super) fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        self.drive();
        if self.closed || self.nothing_lost() {
            return Poll::Ready(Ok(()));
        }
        let missing = self.waiting.is_some() || self.completed < self.end.unwrap_or(self.last);
        match self.poll_writable() {
            Poll::Ready(Ok(())) if missing => Poll::Pending,
            ready => ready,
        }
    }

    /// Resolves when all sends have completed, including that of the end.
    pub(super) fn poll_close(&mut self) -> Poll<io::Result<()>> {
        self.closing = true;
        self.drive();
        match self.poll_writable() {
            _ if self.closed || self.nothing_lost() => Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) => Poll::Pending,
            ready => ready,
        }
    }

    /// Returns the next message.
    pub(super) fn poll_next(&mut self) -> Poll<Option<io::Result<Bytes>>> {
        self.drive();
        if let Some((buffer, length)) = self.unread.pop_front() {
            return Poll::Ready(Some(Ok(self.take(buffer, length))));
        }
        if self.channel.peer_has_ended() || self.told {
            return Poll::Ready(None);
        }
        match &self.broken {
            Some(broken) if !self.receiving => {
                self.told = true;
                Poll::Ready(Some(Err(broken.clone().into())))
            }
            _ => Poll::Pending,
        }
    }

    /// Returns the payload of a message, and posts its receive again, or another in its place.
    fn take(&mut self, buffer: Buffer, length: usize) -> Bytes {
        let spare = if length > HEADER + COPIED { self.pool.try_get().ok().flatten() } else { None };
        let (message, buffer) = match spare {
            Some(spare) => (buffer.freeze(length).slice(HEADER..), spare),
            None => (Bytes::copy_from_slice(&buffer[HEADER..length]), buffer),
        };
        self.traffic.received(message.len());
        if self.receiving {
            self.post_receive(buffer);
            self.channel.taken();
            self.post_controls();
        }
        message
    }
}

fn closed_here() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "this side has closed the stream")
}
