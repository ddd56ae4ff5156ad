//! The queue pair: its settings, its creation, receives, flush, and the messages of a byte stream; and what a connection can be made for, a
//! queue pair of the program or of a lane.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::completion_queue::CompletionQueue;
use super::shared::SharedReceiveQueue;
use crate::backend::{self, Queues};
use crate::error::{OpenError, PostError, PostErrorKind};
use crate::inflight::{
    self, CompletionSink, Joined, LentList, Op, RequestMeta, StreamInbox, Table, Ticket, WorkBuffer,
};
use crate::mr::RemoteRegion;
use crate::provider::info::{AdapterInfo, USUAL_ENTRIES, USUAL_INLINE};
use crate::provider::params::QueuePairParts;
use crate::provider::work::Refused;
use crate::status::Status;
use crate::types::{Access, OpKind};

/// Settings of a queue pair: the sizes of its queues, and the queues that it shares with other queue pairs. Source:
/// `IND2Adapter::CreateQueuePair`.
#[derive(Clone, Debug)]
pub struct QueuePairConfig {
    pub(crate) receive_depth: usize,
    pub(crate) send_depth: usize,
    pub(crate) receive_entries: usize,
    pub(crate) send_entries: usize,
    /// `None`: [`USUAL_INLINE`], or less if the adapter supports less.
    pub(crate) inline: Option<usize>,
    pub(crate) context: u64,
    pub(crate) receive_completions: Option<CompletionQueue>,
    pub(crate) send_completions: Option<CompletionQueue>,
    pub(crate) shared: Option<SharedReceiveQueue>,
    /// The destination of what the peer of a byte stream sends.
    pub(crate) inbox: Option<Arc<StreamInbox>>,
    /// The peer has a receive for each message.
    pub(crate) credited: bool,
}

impl Default for QueuePairConfig {
    /// Returns 128 requests and 4 scatter-gather entries in each queue, and 64 bytes inline if the adapter supports
    /// that.
    fn default() -> Self {
        Self {
            receive_depth: 128,
            send_depth: 128,
            receive_entries: USUAL_ENTRIES,
            send_entries: USUAL_ENTRIES,
            inline: None,
            context: 0,
            receive_completions: None,
            send_completions: None,
            shared: None,
            inbox: None,
            credited: false,
        }
    }
}

impl QueuePairConfig {
    /// Sets how many receives can be outstanding.
    #[must_use]
    pub fn receive_depth(mut self, depth: usize) -> Self {
        self.receive_depth = depth;
        self
    }

    /// Sets how many requests of the send queue can be outstanding: all requests except receives (`initiatorQueueDepth`
    /// of ND, `max_send_wr` of verbs).
    #[must_use]
    pub fn send_depth(mut self, depth: usize) -> Self {
        self.send_depth = depth;
        self
    }

    /// Sets the maximum number of scatter-gather entries of a receive.
    #[doc(alias = "sge")]
    #[doc(alias = "max_recv_sge")]
    #[must_use]
    pub fn receive_entries(mut self, entries: usize) -> Self {
        self.receive_entries = entries;
        self
    }

    /// Sets the maximum number of scatter-gather entries of a request of the send queue.
    #[doc(alias = "sge")]
    #[doc(alias = "max_send_sge")]
    #[must_use]
    pub fn send_entries(mut self, entries: usize) -> Self {
        self.send_entries = entries;
        self
    }

    /// Sets the maximum number of bytes of an inline send or write. Default: 64, or the adapter's maximum if that is
    /// smaller. The queue pair is refused (`INVALID_PARAMETER_n`) if it cannot have as many, also where the driver of the device
    /// would give it fewer without an error.
    ///
    /// A device gets sends and writes of registered memory that are not longer inline, too, so that it need not come for the bytes. With
    /// 0 nothing is inline.
    #[must_use]
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = Some(bytes);
        self
    }

    /// Sets a number that completions name the queue pair by, in
    /// [`WorkCompletion::queue_pair_context`](super::WorkCompletion::queue_pair_context) and
    /// [`Completion::queue_pair_context`](super::Completion::queue_pair_context). Default: 0.
    #[must_use]
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Sets the completion queue of both queues.
    #[must_use]
    pub fn completions(self, queue: &CompletionQueue) -> Self {
        self.receive_completions(queue).send_completions(queue)
    }

    /// Sets the completion queue of receives. Default: none; receives complete through their futures.
    #[must_use]
    pub fn receive_completions(mut self, queue: &CompletionQueue) -> Self {
        self.receive_completions = Some(queue.clone());
        self
    }

    /// Sets the completion queue of the send queue. Default: none; its requests complete through their futures.
    #[must_use]
    pub fn send_completions(mut self, queue: &CompletionQueue) -> Self {
        self.send_completions = Some(queue.clone());
        self
    }

    /// Sets a shared receive queue, from which messages take their receives. Source:
    /// `IND2Adapter::CreateQueuePairWithSrq`.
    ///
    /// Receives cannot be posted to the queue pair then. The depth and the entries of receives are those of the shared
    /// queue.
    #[must_use]
    pub fn shared_receives(mut self, queue: &SharedReceiveQueue) -> Self {
        self.shared = Some(queue.clone());
        self
    }

    /// Sets the inbox that messages go to instead of receives: on the soft provider alone.
    #[must_use]
    pub(crate) fn inbox(mut self, inbox: &Arc<StreamInbox>) -> Self {
        self.inbox = Some(inbox.clone());
        self
    }

    /// Promises that the peer has posted a receive for each message before it is sent.
    #[must_use]
    pub(crate) fn credited(mut self) -> Self {
        self.credited = true;
        self
    }

    /// Returns the most inline bytes, for an adapter with this maximum.
    pub(crate) fn inline_bytes(&self, maximum: usize) -> usize {
        self.inline.unwrap_or(USUAL_INLINE.min(maximum))
    }

    /// Checks the settings. Errors number the arguments as `CreateQueuePair` does, and with a shared receive queue as
    /// `CreateQueuePairWithSrq` does, which has no depth and no entries of receives.
    pub(crate) fn check(&self, info: &AdapterInfo, domain: u64) -> Result<(), OpenError> {
        let wrong =
            |argument, what: &'static str| Err(OpenError::InvalidParameter { argument, what: what.into() });
        let foreign =
            |queue: &Option<CompletionQueue>| queue.as_ref().is_some_and(|queue| queue.domain() != domain);
        if foreign(&self.receive_completions) {
            return wrong(2, "the receive completion queue belongs to another adapter");
        }
        if foreign(&self.send_completions) {
            return wrong(3, "the send completion queue belongs to another adapter");
        }
        if self.shared.as_ref().is_some_and(|shared| shared.domain() != domain) {
            return wrong(4, "the shared receive queue belongs to another adapter");
        }
        let own = self.shared.is_none();
        let (depth, entries) = (info.max_queue_depth, info.max_entries);
        let [send_entries, at_inline] = if own { [8, 9] } else { [7, 8] };
        let inline = self.inline_bytes(info.max_inline);
        let limits = [
            (5, "receive_depth", self.receive_depth, 1, depth, own),
            (6, "send_depth", self.send_depth, 1, depth, true),
            (7, "receive_entries", self.receive_entries, 1, entries, own),
            (send_entries, "send_entries", self.send_entries, 1, entries, true),
            (at_inline, "inline", inline, 0, info.max_inline, true),
        ];
        for (argument, name, value, least, most, counts) in limits {
            if counts {
                OpenError::check_range(argument, name, value, least..=most)?;
            }
        }
        Ok(())
    }
}

/// A queue pair: a send queue and a receive queue (`IND2QueuePair`, `ibv_qp`).
///
/// Create one with [`Adapter::queue_pair`](crate::cm::Adapter::queue_pair), connect it with
/// [`Connector::connect`](crate::cm::Connector::connect) or [`Request::accept`](crate::cm::Request::accept), and post
/// work requests to it. A queue pair serves one connection. If a connection attempt fails, the queue pair can be used
/// for another attempt and keeps its posted receives. After an established connection has ended, create a new queue
/// pair.
///
/// # Posting and completion
/// A posting method, such as [`send`](Self::send), queues the request and returns an [`Op`]. If the request cannot be
/// posted, the method returns a [`PostError`] with the buffer, and nothing is sent. The `Op` resolves to the result and
/// the buffer when the request completes.
///
/// Requests of one queue start in the order of the calls and complete in that order. There is no order between the two
/// queues.
///
/// If the peer disconnects, all outstanding requests complete with [`Status::CANCELED`]. The end is known by the time that the first
/// of them completes: [`Connection::is_connected`](crate::cm::Connection::is_connected) is `false`, and
/// [`Connection::disconnected`](crate::cm::Connection::disconnected) is ready. Which task runs first is the scheduler's choice.
///
/// If the connection ends because of a request, that request may complete with another status: see
/// [`AdapterInfo::per_request_errors`](crate::cm::AdapterInfo::per_request_errors). On devices
/// [`CompletionError::device`](crate::error::CompletionError::device) is the report of the device. If the adapter is removed,
/// outstanding requests complete with [`Status::DEVICE_REMOVED`].
///
/// # Cloning and dropping
/// `QueuePair` is a cheap handle; clones refer to the same queue pair. Dropping the last handle disconnects, and
/// outstanding requests complete with [`Status::CANCELED`]. Dropping the last handle of the
/// [`Connection`](crate::cm::Connection) does the same: keep both, or keep the queue pair in the connection with
/// [`Connection::keep_queue_pair`](crate::cm::Connection::keep_queue_pair).
///
/// # Examples
/// ```
/// # async fn example(queue_pair: &tokio_rdma::QueuePair, buffer: tokio_rdma::Buffer) -> std::io::Result<()> {
/// let (result, buffer) = queue_pair.send(buffer)?.await;
/// println!("sent {} bytes", result?.bytes);
/// # drop(buffer);
/// # Ok(())
/// # }
/// ```
pub struct QueuePair {
    pub(super) inner: Arc<Inner>,
    /// Requests wait for the doorbell.
    pub(super) defer: bool,
}

/// The part of a queue pair that its handles share.
pub(super) struct Inner {
    pub(super) provider: backend::QueuePair,
    pub(super) table: Arc<Table>,
    pub(super) domain: u64,
    pub(super) config: QueuePairConfig,
    pub(super) info: Arc<AdapterInfo>,
    /// The most bytes of an inline request.
    pub(super) inline: usize,
    /// Its registrations with its completion queues. Not set without one of the program.
    joined: OnceLock<Box<[Joined]>>,
    /// The last handle of its connection was dropped while that was established.
    is_dropped: AtomicBool,
}

impl Inner {
    /// Joins the completion queues of the program, which report that they overran.
    fn join(self: &Arc<Self>) {
        let listener: Weak<dyn inflight::OverrunListener> = Arc::<Self>::downgrade(self);
        let queues = [&self.config.send_completions, &self.config.receive_completions];
        let places = queues.into_iter().flatten().map(|queue| queue.results().join(listener.clone()));
        let _ = self.joined.set(places.collect());
        // A queue that overran before this queue pair joined it does not report that.
        if queues.into_iter().flatten().any(|queue| queue.results().closed() == Some(Status::BUFFER_OVERFLOW))
        {
            self.provider.overrun();
        }
    }

    /// Adds the cause if a request was refused because this side has ended the connection.
    #[cold]
    pub(super) fn explain(&self, kind: PostErrorKind) -> PostErrorKind {
        match kind {
            PostErrorKind::ConnectionInvalid if self.is_dropped.load(Ordering::Acquire) => {
                PostErrorKind::ConnectionDropped
            }
            kind => kind,
        }
    }
}

/// A reference to a queue pair that does not keep it.
pub(crate) struct WeakQueuePair(Weak<Inner>);

impl WeakQueuePair {
    /// Returns a handle, unless all have been dropped.
    pub(crate) fn upgrade(&self) -> Option<QueuePair> {
        Some(QueuePair { inner: self.0.upgrade()?, defer: false })
    }

    /// Notes that the last handle of its connection is being dropped, and that this ends the connection.
    pub(crate) fn connection_dropped(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.is_dropped.store(true, Ordering::Release);
        }
    }
}

impl inflight::OverrunListener for Inner {
    fn overrun(&self) {
        self.provider.overrun();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.provider.released();
    }
}

impl Clone for QueuePair {
    fn clone(&self) -> Self {
        // Also of a batch: a clone may outlive it, and rings for itself.
        Self { inner: self.inner.clone(), defer: false }
    }
}

impl QueuePair {
    /// Creates a queue pair.
    pub(crate) fn new(adapter: &backend::Adapter, config: QueuePairConfig) -> Result<Self, OpenError> {
        let info = adapter.info().clone();
        let table = Arc::<Table>::default();
        let sink = |queue: &Option<CompletionQueue>, table: &Arc<Table>| {
            let sink = match queue {
                Some(queue) => CompletionSink::to_ring(table.clone(), queue.results().clone()),
                None => CompletionSink::to_futures(table.clone()),
            };
            sink.of_queue_pair(config.context)
        };
        let receive = match &config.shared {
            Some(shared) => sink(&config.receive_completions, shared.table()).counted(shared.count().clone()),
            None => sink(&config.receive_completions, &table),
        };
        let device = |queue: &Option<CompletionQueue>| match queue {
            Some(queue) => Ok(queue.device().clone()),
            None => adapter.shared_completions(),
        };
        let sends = device(&config.send_completions)?;
        // Without one of its own, both complete in the same.
        let receives = match (&config.send_completions, &config.receive_completions) {
            (None, None) => sends.clone(),
            (_, queue) => device(queue)?,
        };
        let inline = config.inline_bytes(info.max_inline);
        let queues = Queues {
            shared: config.shared.as_ref().map(|shared| shared.provider().clone()),
            sends,
            receives,
        };
        let parts = QueuePairParts {
            receive_depth: config.receive_depth,
            send_depth: config.send_depth,
            receive_entries: config.receive_entries,
            send_entries: config.send_entries,
            inline,
            receive,
            initiator: sink(&config.send_completions, &table),
            inbox: config.inbox.clone(),
            credited: config.credited,
        };
        let provider = adapter.queue_pair(parts, queues)?;
        let domain = adapter.domain();
        let joined = OnceLock::new();
        let inner = Arc::new(Inner {
            provider,
            table,
            domain,
            config,
            info,
            inline,
            joined,
            is_dropped: AtomicBool::new(false),
        });
        if inner.config.send_completions.is_some() || inner.config.receive_completions.is_some() {
            inner.join();
        }
        Ok(Self { inner, defer: false })
    }

    /// Returns a reference that does not keep the queue pair.
    pub(crate) fn downgrade(&self) -> WeakQueuePair {
        WeakQueuePair(Arc::downgrade(&self.inner))
    }

    pub(crate) fn provider(&self) -> &backend::QueuePair {
        &self.inner.provider
    }

    /// Posts a receive for one message (`IND2QueuePair::Receive`, `ibv_post_recv`).
    ///
    /// Receives are consumed in the order in which they were posted. They can be posted at any time, also before the
    /// queue pair is connected. Post at least one before connecting: the connection breaks if a message arrives and no
    /// receive is posted.
    ///
    /// The returned [`Op`] resolves when a message has been received; [`Completion::bytes`](super::Completion::bytes)
    /// is its length. If the message is longer than the buffer, the receive fails with [`Status::BUFFER_OVERFLOW`] and
    /// the connection ends. After the connection has ended, a receive is accepted and completes immediately with
    /// [`Status::CANCELED`].
    ///
    /// # Errors
    /// Returns the buffer in a [`PostError`] of kind
    /// * [`QueueFull`](PostErrorKind::QueueFull) if [`receive_depth`](QueuePairConfig::receive_depth) receives are
    ///   posted;
    /// * [`TooManyEntries`](PostErrorKind::TooManyEntries) if the buffer has too many scatter-gather entries;
    /// * [`AccessViolation`](PostErrorKind::AccessViolation) if the memory lacks
    ///   [`LOCAL_WRITE`](Access::LOCAL_WRITE);
    /// * [`ForeignMemory`](PostErrorKind::ForeignMemory) if the memory belongs to another adapter;
    /// * [`NotSupported`](PostErrorKind::NotSupported) if the queue pair uses a
    ///   [`SharedReceiveQueue`](super::SharedReceiveQueue); post the receive there; and for a
    ///   [`DmaBufSlice`](crate::mr::DmaBufSlice) on most devices, see [`DmaBufRegion`](crate::mr::DmaBufRegion);
    /// * [`DeviceRemoved`](PostErrorKind::DeviceRemoved) if the adapter has been removed.
    ///
    /// # Cancel safety
    /// The receive is posted by this call. Dropping the [`Op`] does not withdraw it: the receive still takes the next
    /// message, which is then lost with its buffer. To wait with a time limit, or in `tokio::select!`, await `&mut op` and
    /// keep the `Op` for the next wait:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn example(queue_pair: &tokio_rdma::QueuePair, buffer: tokio_rdma::Buffer) -> std::io::Result<()> {
    /// let mut receive = queue_pair.receive(buffer)?;
    /// let (result, buffer) = loop {
    ///     match tokio::time::timeout(Duration::from_secs(1), &mut receive).await {
    ///         Ok(completed) => break completed,
    ///         Err(_elapsed) => println!("still waiting"),
    ///     }
    /// };
    /// println!("received {} bytes", result?.bytes);
    /// # drop(buffer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn receive<B: WorkBuffer>(&self, buffer: B) -> Result<Op<B>, PostError<B>> {
        self.receive_with(buffer, 0)
    }

    /// Posts a receive like [`receive`](Self::receive), with a context that is returned in
    /// [`WorkCompletion::context`](super::WorkCompletion::context).
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    pub fn receive_with<B: WorkBuffer>(&self, buffer: B, context: u64) -> Result<Op<B>, PostError<B>> {
        if self.inner.config.shared.is_some() {
            let kind =
                PostErrorKind::NotSupported("a receive posted to a queue pair with a shared receive queue");
            return Err(PostError { kind, buffer });
        }
        let entries = self.inner.config.receive_entries;
        let lent = self.lend(buffer, OpKind::Receive, entries, Access::LOCAL_WRITE, None)?;
        let LentList { payload, state } = lent;
        let table = &self.inner.table;
        let length = || inflight::length(&payload);
        let ticket = table.open(RequestMeta { kind: OpKind::Receive, context }, length);
        match self.inner.provider.post_receive(ticket, payload) {
            Ok(()) => Ok(Op::new(table.clone(), ticket, OpKind::Receive, state)),
            Err(refused) => Err(self.refused(ticket, refused, state)),
        }
    }

    /// Completes all outstanding requests of both queues with `CANCELED`. Source: `IND2QueuePair::Flush`.
    ///
    /// A queue pair that is not connected can still be used. A connect or accept in progress fails with `Canceled`, as does
    /// [`Reply::complete`](crate::Reply::complete), and leaves the queue pair free. A connected queue pair loses its connection, like a verbs
    /// queue pair that is moved to the error state, because the peer may already be executing the flushed requests.
    /// Receives of a shared receive queue stay posted.
    pub fn flush(&self) {
        self.inner.provider.flush();
    }

    /// Lends the buffer to the provider.
    ///
    /// # Errors
    /// The reason, with the buffer.
    #[inline]
    pub(super) fn lend<B: WorkBuffer>(
        &self,
        buffer: B,
        kind: OpKind,
        entries: usize,
        access: Access,
        remote: Option<&RemoteRegion>,
    ) -> Result<LentList<B::State>, PostError<B>> {
        if !buffer.allows(self.inner.domain, access) {
            return Err(PostError {
                kind: inflight::not_allowed(&buffer, self.inner.domain, access),
                buffer,
            });
        }
        let list = buffer.lend();
        let refuse = |kind, list| Err(PostError { kind, buffer: B::reclaim(list) });
        if list.payload.len() > entries {
            let (entries, maximum) = (list.payload.len(), entries);
            return refuse(PostErrorKind::TooManyEntries { kind, entries, maximum }, list);
        }
        if let Some(remote) = remote
            && let Err(kind) = self.check_remote(remote, inflight::length(&list.payload))
        {
            return refuse(kind, list);
        }
        Ok(list)
    }

    /// Closes the slot of a request that the provider has refused. Returns the error, with the buffer.
    #[cold]
    pub(super) fn refused<B: WorkBuffer>(
        &self,
        ticket: Ticket,
        Refused { kind, payload }: Refused,
        state: B::State,
    ) -> PostError<B> {
        self.inner.table.close(ticket);
        let kind = self.inner.explain(kind);
        PostError { kind, buffer: B::reclaim(LentList { payload, state }) }
    }

    /// Checks that the memory of the peer has `length` bytes.
    ///
    /// # Errors
    /// `BeyondRemote`, `TooLong`.
    pub(super) fn check_remote(&self, remote: &RemoteRegion, length: usize) -> Result<(), PostErrorKind> {
        let remote = remote.length;
        match u32::try_from(length) {
            Ok(within) if within <= remote => Ok(()),
            Ok(_) => Err(PostErrorKind::BeyondRemote { length, remote }),
            // Longer than any region, and than any transfer.
            Err(_) => Err(PostErrorKind::TooLong { length, maximum: self.inner.info.max_transfer }),
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// A queue pair that can be connected: a [`QueuePair`], or the [`LaneQueuePair`] of a [`Lane`](super::Lane). This trait is sealed.
pub trait Endpoint: sealed::Endpoint {}

impl<E: sealed::Endpoint> Endpoint for E {}

pub(crate) mod sealed {
    use crate::backend;
    use crate::qp::WeakQueuePair;

    /// A handle of a queue pair.
    pub trait Endpoint: Clone + Send + Sync + 'static {
        /// Returns the queue pair of the provider.
        fn provider(&self) -> Provided<'_>;

        /// Returns what the connection knows its queue pair by.
        fn downgrade(&self) -> Known;
    }

    /// A queue pair of a provider.
    pub struct Provided<'a>(pub(crate) &'a backend::QueuePair);

    /// A reference to a queue pair that does not keep it. `None` for one of a lane.
    pub struct Known(pub(crate) Option<WeakQueuePair>);
}

impl sealed::Endpoint for QueuePair {
    fn provider(&self) -> sealed::Provided<'_> {
        sealed::Provided(self.provider())
    }

    fn downgrade(&self) -> sealed::Known {
        sealed::Known(Some(self.downgrade()))
    }
}

/// A queue pair of a [`Lane`](super::Lane), for the calls that connect it. Requests are posted by the lane, which names it by its
/// [`QueuePairId`](crate::types::QueuePairId). Created by [`Lane::queue_pair`](super::Lane::queue_pair).
///
/// It is good for one attempt to connect. Dropping it has no effect: the lane keeps the queue pair, and
/// [`Lane::close`](super::Lane::close) ends it.
#[derive(Clone)]
pub struct LaneQueuePair(Arc<backend::QueuePair>);

impl LaneQueuePair {
    pub(super) fn new(provider: backend::QueuePair) -> Self {
        Self(Arc::new(provider))
    }
}

impl sealed::Endpoint for LaneQueuePair {
    fn provider(&self) -> sealed::Provided<'_> {
        sealed::Provided(&self.0)
    }

    fn downgrade(&self) -> sealed::Known {
        sealed::Known(None)
    }
}

impl fmt::Debug for LaneQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneQueuePair").finish_non_exhaustive()
    }
}
