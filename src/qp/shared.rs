//! Receive queues that several queue pairs share.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::backend;
use crate::error::{NotifyError, OpenError, PostError, PostErrorKind, ResizeError};
use crate::inflight::{
    self, CompletionSink, LentList, Op, ReceiveCounter, RequestMeta, Table, WakeList, Watch, WorkBuffer,
};
#[cfg(feature = "inspect")]
use crate::inspect::{SharedReceiveQueueReport, Snapshot};
use crate::provider::info::{AdapterInfo, USUAL_ENTRIES};
use crate::provider::registry::{Member, Registered};
use crate::provider::work::Refused;
use crate::status::Status;
use crate::sync::poll_budgeted;
use crate::types::{Access, OpKind, QueueKind};

/// Settings of a shared receive queue. Source: `IND2Adapter::CreateSharedReceiveQueue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveConfig {
    depth: usize,
    entries: usize,
    threshold: usize,
}

impl Default for SharedReceiveConfig {
    /// Returns 256 receives of up to 4 scatter-gather entries, and no threshold.
    fn default() -> Self {
        Self { depth: 256, entries: USUAL_ENTRIES, threshold: 0 }
    }
}

impl SharedReceiveConfig {
    /// Sets how many receives can be outstanding.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Sets the maximum number of scatter-gather entries of a receive.
    #[must_use]
    pub fn entries(mut self, entries: usize) -> Self {
        self.entries = entries;
        self
    }

    /// Sets the number of outstanding receives below which [`SharedReceiveQueue::below_threshold`] resolves.
    ///
    /// Default: 0, with which it never resolves.
    #[must_use]
    pub fn threshold(mut self, receives: usize) -> Self {
        self.threshold = receives;
        self
    }

    /// Checks the settings. Errors number the arguments as `CreateSharedReceiveQueue` does.
    fn check(&self, info: &AdapterInfo) -> Result<(), OpenError> {
        if info.max_shared_depth == 0 {
            return Err(OpenError::Unsupported("the adapter has no shared receive queues"));
        }
        OpenError::check_range(3, "depth", self.depth, 1..=info.max_shared_depth)?;
        OpenError::check_range(4, "entries", self.entries, 1..=info.max_entries)?;
        OpenError::check_range(5, "threshold", self.threshold, 0..=self.depth)
    }
}

/// A receive queue that several queue pairs share (`IND2SharedReceiveQueue`, `ibv_srq`). Created by
/// [`Adapter::shared_receive_queue`](crate::cm::Adapter::shared_receive_queue).
///
/// A message is assigned to a receive when it arrives. The receive completes through its future, or through the receive
/// completion queue of the queue pair that consumed it.
///
/// If no receive is posted, a message waits on adapters with
/// [`waits_for_shared_receives`](crate::cm::AdapterInfo::waits_for_shared_receives). The connection then fails only if
/// the peer gives up: its RNR retries or its own time-out end. On other adapters the connection ends.
///
/// If a connection ends while a message is being received, the affected receive completes when that connection is
/// flushed. On devices that do not report it, the receive completes when the shared queue is dropped.
///
/// `SharedReceiveQueue` is a cheap handle; clones refer to the same queue. Its queue pairs also keep the queue alive.
/// When the last of them is dropped, the receives that are still posted complete with `CANCELED`.
#[derive(Clone)]
pub struct SharedReceiveQueue {
    inner: Arc<Inner>,
}

struct Inner {
    provider: backend::SharedReceives,
    adapter: backend::Adapter,
    table: Arc<Table>,
    count: Arc<ReceiveCounter>,
    config: SharedReceiveConfig,
    _registered: Registered,
}

impl Member for Inner {
    fn device_removed(&self) {
        self.count.close(Status::DEVICE_REMOVED);
    }

    #[cfg(feature = "inspect")]
    fn inspect(&self, adapter: u64, snapshot: &mut Snapshot) {
        let mut report = SharedReceiveQueueReport { adapter, ..SharedReceiveQueueReport::default() };
        (report.depth, report.posted) = (self.count.depth(), self.count.held());
        report.messages_waiting = self.provider.messages_waiting();
        snapshot.shared_receive_queues.push(report);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.provider.released();
    }
}

impl SharedReceiveQueue {
    /// Creates an empty queue.
    pub(crate) fn new(adapter: &backend::Adapter, config: SharedReceiveConfig) -> Result<Self, OpenError> {
        config.check(adapter.info())?;
        let table = Arc::<Table>::default();
        let count = Arc::new(ReceiveCounter::new(config.depth, config.threshold));
        let sink = CompletionSink::to_futures(table.clone()).counted(count.clone());
        let provider = adapter.shared_receives(config.depth, config.entries, sink)?;
        let inner = adapter.registry().create(|_, registered| Inner {
            provider,
            adapter: adapter.clone(),
            table,
            count,
            config,
            _registered: registered,
        });
        Ok(Self { inner })
    }

    pub(super) fn provider(&self) -> &backend::SharedReceives {
        &self.inner.provider
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.inner.table
    }

    pub(super) fn count(&self) -> &Arc<ReceiveCounter> {
        &self.inner.count
    }

    pub(super) fn domain(&self) -> u64 {
        self.inner.adapter.domain()
    }

    /// Posts a receive for one message of any of the queue pairs. Source: `IND2SharedReceiveQueue::Receive`.
    ///
    /// # Errors
    /// `QueueFull`; `TooManyEntries`; `AccessViolation` if the memory lacks [`LOCAL_WRITE`](Access::LOCAL_WRITE);
    /// `ForeignMemory` if it belongs to another adapter; `NotSupported` for a [`DmaBufSlice`](crate::mr::DmaBufSlice) on most
    /// devices, see [`DmaBufRegion`](crate::mr::DmaBufRegion); `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// The receive is posted by this call. Dropping the [`Op`] does not withdraw it: the receive still takes the next
    /// message, which is then lost with its buffer. To wait with a time limit, or in `tokio::select!`, await `&mut op` and
    /// keep the `Op` for the next wait:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn example(receives: &tokio_rdma::SharedReceiveQueue, buffer: tokio_rdma::Buffer) -> std::io::Result<()> {
    /// let mut receive = receives.receive(buffer)?;
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
        let inner = &self.inner;
        if !buffer.allows(self.domain(), Access::LOCAL_WRITE) {
            return Err(PostError {
                kind: inflight::not_allowed(&buffer, self.domain(), Access::LOCAL_WRITE),
                buffer,
            });
        }
        if inner.adapter.is_removed() {
            return Err(PostError { kind: PostErrorKind::DeviceRemoved, buffer });
        }
        let LentList { payload, state } = buffer.lend();
        let refuse =
            |kind, payload, state| Err(PostError { kind, buffer: B::reclaim(LentList { payload, state }) });
        let (entries, maximum) = (payload.len(), inner.config.entries);
        if entries > maximum {
            let kind = PostErrorKind::TooManyEntries { kind: OpKind::Receive, entries, maximum };
            return refuse(kind, payload, state);
        }
        if !inner.count.reserve() {
            let full = PostErrorKind::QueueFull { queue: QueueKind::SharedReceive, depth: self.depth() };
            return refuse(full, payload, state);
        }
        let length = || inflight::length(&payload);
        let ticket = inner.table.open(RequestMeta { kind: OpKind::Receive, context }, length);
        match inner.provider.post_receive(ticket, payload) {
            Ok(()) => Ok(Op::new(inner.table.clone(), ticket, OpKind::Receive, state)),
            Err(Refused { kind, payload }) => {
                inner.table.close(ticket);
                let mut after = WakeList::default();
                inner.count.taken(&mut after);
                after.wake_all();
                refuse(kind, payload, state)
            }
        }
    }

    /// Waits until fewer receives than the threshold are outstanding. Source: `IND2SharedReceiveQueue::Notify`.
    ///
    /// Receives that are currently being filled may still be counted. The wait is armed when this method is called.
    ///
    /// # Errors
    /// `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    #[doc(alias = "srq_limit")]
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    pub fn below_threshold(&self) -> BelowThreshold {
        BelowThreshold { watch: self.inner.count.watch() }
    }

    /// Returns the number of outstanding receives.
    pub fn len(&self) -> usize {
        self.inner.count.held()
    }

    /// Returns `true` if no receive is outstanding.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of outstanding receives.
    pub fn depth(&self) -> usize {
        self.inner.count.depth()
    }

    /// Changes the depth, the threshold, or both. Source: `IND2SharedReceiveQueue::Modify`.
    ///
    /// `None` leaves a value unchanged, except that a threshold above a smaller depth is reduced to it.
    ///
    /// # Errors
    /// `TooSmall` if more receives are outstanding; `OutOfRange`, also for a threshold above the depth; `Ended`; `Os`, for a change of
    /// the depth with `EOPNOTSUPP` (`NOT_SUPPORTED`) on devices without `IBV_DEVICE_SRQ_RESIZE`: all but `rxe`, as far as is
    /// known. Nothing is changed in each case.
    pub fn modify(&self, depth: Option<usize>, threshold: Option<usize>) -> Result<(), ResizeError> {
        let maximum = self.inner.adapter.info().max_shared_depth;
        let new = depth.unwrap_or_else(|| self.depth());
        if new == 0 || new > maximum || threshold.is_some_and(|threshold| threshold > new) {
            let asked = threshold.map_or(new, |threshold| threshold.max(new));
            return Err(ResizeError::OutOfRange { asked, maximum });
        }
        if self.inner.adapter.is_removed() {
            return Err(NotifyError::DeviceRemoved.into());
        }
        let before = self.depth();
        if let Some(depth) = depth
            && depth > before
        {
            self.inner.provider.resize(depth)?;
        }
        self.inner.count.modify(depth, threshold).map_err(|held| ResizeError::TooSmall { asked: new, held })
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// The future of [`SharedReceiveQueue::below_threshold`].
#[must_use = "futures do nothing unless awaited"]
pub struct BelowThreshold {
    watch: Watch,
}

impl Future for BelowThreshold {
    type Output = Result<(), NotifyError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let closed = ready!(poll_budgeted(cx, |cx| self.watch.poll(cx)));
        Poll::Ready(closed.map_or(Ok(()), |_| Err(NotifyError::DeviceRemoved)))
    }
}

impl fmt::Debug for BelowThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BelowThreshold").finish_non_exhaustive()
    }
}
