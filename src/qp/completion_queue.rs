//! Completion queues that the application polls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::coop::cooperative;

use crate::backend;
use crate::error::{NotifyError, OpenError, ResizeError, WcError};
use crate::inflight::{CompletionRing, Note, Notified, NotifyKind, Polled};
#[cfg(feature = "inspect")]
use crate::inspect::{CompletionQueueReport, Snapshot};
use crate::provider::registry::{Member, Registered};
use crate::status::Status;
use crate::sync::{Spin, poll_budgeted};
use crate::types::{OpKind, RemoteKey};

/// More processors than Linux supports.
const MAX_PROCESSORS: usize = 1 << 13;

/// Settings of a completion queue. Source: `IND2Adapter::CreateCompletionQueue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueConfig {
    depth: usize,
    affinity: Option<usize>,
    spin: Duration,
    busy_poll: bool,
}

impl Default for CompletionQueueConfig {
    /// Returns a depth of 256, no affinity and no spinning.
    fn default() -> Self {
        Self { depth: 256, affinity: None, spin: Duration::ZERO, busy_poll: false }
    }
}

impl CompletionQueueConfig {
    /// Sets how many completions the queue can hold.
    ///
    /// The queue cannot overrun if it can hold all requests that its queue pairs can have outstanding.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Sets the processor on which the completions are best handled. Default: none.
    ///
    /// This is a hint. A device selects its interrupt vector by it; the soft provider ignores it.
    #[doc(alias = "comp_vector")]
    #[must_use]
    pub fn affinity(mut self, processor: usize) -> Self {
        self.affinity = Some(processor);
        self
    }

    /// Sets how long [`notify`](CompletionQueue::notify) and [`wait`](CompletionQueue::wait) poll before they sleep.
    /// Default: zero.
    ///
    /// Other tasks of the runtime run between two polls, but the processor core stays busy. With the soft provider each of these polls
    /// reads the sockets, as [`poll`](CompletionQueue::poll) does.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Sets whether the program polls the queue all the time, to run each completion to its end where it finds it. Default:
    /// `false`.
    ///
    /// A device then raises no interrupts, except while a program waits with [`notify`](CompletionQueue::notify) or
    /// [`wait`](CompletionQueue::wait). While all waits are for [`NotifyKind::Solicited`] or [`NotifyKind::Errors`], messages
    /// without a solicited event raise none either, if
    /// [`AdapterInfo::solicited_events`](crate::cm::AdapterInfo::solicited_events) is `true`.
    ///
    /// In return the program has to poll. What it does not poll is noticed ten times in a `VerbsConfig::path_timeout`, and without one
    /// never: the completion of a request, an overrun of the queue, and the loss of a connection that only a failed request shows. The
    /// soft provider ignores this setting: requests that are not polled complete there as without it.
    #[must_use]
    pub fn busy_poll(mut self, busy_poll: bool) -> Self {
        self.busy_poll = busy_poll;
        self
    }

    /// Checks the settings. Errors number the arguments as `CreateCompletionQueue` does.
    fn check(&self, maximum: usize) -> Result<(), OpenError> {
        OpenError::check_range(3, "depth", self.depth, 1..=maximum)?;
        // It is a hint, so this does not check whether the processor exists and whether this process may use it.
        OpenError::check_range(5, "affinity", self.affinity.unwrap_or(0), 0..=MAX_PROCESSORS - 1)
    }
}

/// The completion of a work request in a completion queue (`ND2_RESULT`, `ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkCompletion {
    /// The status of the request.
    pub status: Status,
    /// The operation.
    pub kind: OpKind,
    /// The number of bytes transferred; 0 if the request failed.
    pub bytes: usize,
    /// The context of the queue pair: [`QueuePairConfig::context`](super::QueuePairConfig::context).
    pub queue_pair_context: u64,
    /// The context of the request: [`WorkOptions::context`](super::WorkOptions::context).
    pub context: u64,
    /// The immediate data of a received message.
    pub immediate: Option<u32>,
    /// The key of the memory window that a received message has invalidated.
    pub invalidated: Option<RemoteKey>,
    /// The report of the device, if the request failed there: see [`CompletionError::device`](crate::error::CompletionError::device).
    pub device: Option<WcError>,
}

impl From<Polled> for WorkCompletion {
    fn from(Polled { label, status, bytes, extra }: Polled) -> Self {
        // Every request has a label until its completion is taken, which was done just now.
        let (kind, context) = label.map_or((OpKind::Receive, 0), |label| (label.kind, label.context));
        let (mut immediate, mut invalidated, mut device) = (None, None, None);
        match extra.note {
            Note::Nothing => {}
            Note::Immediate(data) => immediate = Some(data),
            Note::Invalidated(key) => invalidated = Some(RemoteKey(key)),
            Note::Report(error) => device = Some(error),
        }
        let (bytes, queue_pair_context) = (bytes as usize, extra.queue_pair);
        Self { status, kind, bytes, queue_pair_context, context, immediate, invalidated, device }
    }
}

/// A completion queue that the application polls (`IND2CompletionQueue`, `ibv_cq`). Created by
/// [`Adapter::completion_queue`](crate::cm::Adapter::completion_queue).
///
/// Queue pairs that are created with a completion queue report their completions in it. The requests of one queue are
/// reported in the order in which they were posted. The [`Op`](super::Op) of a request resolves when
/// [`poll`](Self::poll) has returned its completion. Without a completion queue, an `Op` resolves when the request
/// completes.
///
/// If a completion arrives while the queue is full, the queue overruns: all connections that use it are closed, and
/// their outstanding requests complete with `CANCELED` and are not reported in the queue.
///
/// `CompletionQueue` is a cheap handle; clones refer to the same queue. Its queue pairs also keep the queue alive.
///
/// # Examples
/// ```
/// use tokio_rdma::qp::{CompletionQueueConfig, NotifyKind};
/// use tokio_rdma::{Adapter, QueuePairConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let adapter = Adapter::open("127.0.0.1")?;
/// let queue = adapter.completion_queue(CompletionQueueConfig::default().depth(64))?;
/// let config = QueuePairConfig::default().receive_completions(&queue).context(1);
/// let queue_pair = adapter.queue_pair(config)?;
/// let receive = queue_pair.receive(adapter.buffer(64)?)?;
/// queue_pair.flush();
/// queue.notify(NotifyKind::Any).await?;
/// let mut completions = Vec::new();
/// queue.poll(16, &mut completions);
/// assert_eq!((completions.len(), completions[0].queue_pair_context), (1, 1));
/// let (_result, _buffer) = receive.await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

struct Inner {
    results: Arc<CompletionRing>,
    adapter: backend::Adapter,
    /// The queue of the device.
    device: backend::CompletionQueue,
    config: CompletionQueueConfig,
    /// The program polls it, and not a stream.
    #[cfg_attr(not(feature = "inspect"), expect(dead_code, reason = "only snapshots read it"))]
    is_of_program: bool,
    _registered: Registered,
}

impl Member for Inner {
    fn device_removed(&self) {
        self.results.close(Status::DEVICE_REMOVED);
    }

    #[cfg(feature = "inspect")]
    fn inspect(&self, adapter: u64, snapshot: &mut Snapshot) {
        if !self.is_of_program {
            return;
        }
        let mut report = CompletionQueueReport { adapter, ..CompletionQueueReport::default() };
        self.results.inspect(&mut report);
        snapshot.completion_queues.push(report);
    }
}

impl CompletionQueue {
    /// Creates an empty queue.
    pub(crate) fn new(adapter: &backend::Adapter, config: CompletionQueueConfig) -> Result<Self, OpenError> {
        config.check(adapter.info().max_completion_depth)?;
        let device = adapter.completion_queue(config.depth, config.affinity, config.busy_poll)?;
        Self::with(adapter, device, config, true)
    }

    /// Creates an empty queue of a stream, over a queue of the device that other queues share.
    pub(crate) fn over(
        adapter: &backend::Adapter,
        device: backend::CompletionQueue,
        config: CompletionQueueConfig,
    ) -> Result<Self, OpenError> {
        Self::with(adapter, device, config, false)
    }

    fn with(
        adapter: &backend::Adapter,
        device: backend::CompletionQueue,
        config: CompletionQueueConfig,
        is_of_program: bool,
    ) -> Result<Self, OpenError> {
        config.check(adapter.info().max_completion_depth)?;
        let results = CompletionRing::new(config.depth);
        let inner = adapter.registry().create(|_, registered| Inner {
            results,
            adapter: adapter.clone(),
            device,
            config,
            is_of_program,
            _registered: registered,
        });
        Ok(Self { inner })
    }

    pub(super) fn device(&self) -> &backend::CompletionQueue {
        &self.inner.device
    }

    /// Returns the completions that wait to be polled.
    pub(super) fn results(&self) -> &Arc<CompletionRing> {
        &self.inner.results
    }

    pub(super) fn domain(&self) -> u64 {
        self.inner.adapter.domain()
    }

    /// Removes up to `most` completions, oldest first, appends them to `results`, and returns their number. Source:
    /// `IND2CompletionQueue::GetResults`, ibv_poll_cq(3).
    ///
    /// If the queue holds fewer, this also polls the device, so that a completion need not wait for the reactor. With the soft
    /// provider, a poll that finds the queue empty for the second time in a row, without a wait in between, reads and writes the
    /// sockets of the connections that report here: of up to 16 of them in a call, unless another thread does so. So does one of 32 polls
    /// that find something, however many are asked for. A call never waits.
    ///
    /// So a loop around `poll` makes progress without awaiting anything, also on a runtime of one thread. It is only completions that
    /// it finds: connections are established, and their ends are noticed, by tasks of the runtime. A program that polls in a loop
    /// lets these run now and then, for example with [`yield_now`](tokio::task::yield_now). On a simulated network (feature `sim`) time
    /// passes only while all tasks wait: there, await [`notify`](Self::notify) when the queue is empty.
    pub fn poll(&self, most: usize, results: &mut Vec<WorkCompletion>) -> usize {
        let take = |polled| results.push(WorkCompletion::from(polled));
        self.inner.results.poll(most, take, |polling| self.inner.device.poll(polling))
    }

    /// Polls the device, which may wake any task that uses it.
    pub(crate) fn progress(&self) {
        self.inner.device.progress();
    }

    /// Removes completions like [`poll`](Self::poll), but does not poll the device.
    pub(crate) fn take(&self, most: usize, results: &mut Vec<WorkCompletion>) -> usize {
        self.inner.results.poll(most, |polled| results.push(WorkCompletion::from(polled)), |_| {})
    }

    /// Requests a notification of completions. Source: `IND2CompletionQueue::Notify`.
    ///
    /// Resolves when a completion of this kind, or of a kind listed after it in [`NotifyKind`], has arrived since the
    /// later of two moments: the last notification, and the last [`poll`](Self::poll) that emptied the queue. To avoid
    /// missing a completion, call `notify` after `poll` has emptied the queue.
    ///
    /// The notification is armed when this method is called, not when the future is first polled. All pending
    /// notifications resolve together with the first that is due.
    ///
    /// # Errors
    /// `Overrun` and `DeviceRemoved`. Every later call fails with the same error. Completions that the queue holds can
    /// still be polled.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the notification. If the notification was due and the future had not returned it,
    /// the next call of `notify` receives it.
    pub fn notify(&self, kind: NotifyKind) -> Notify {
        let mut spin = Spin::new(self.inner.config.spin);
        spin.start();
        let notified = self.inner.results.notify(kind);
        // Behind the registration, so that a completion that it finds is notified of.
        self.inner.device.begin_wait(kind);
        Notify { notified, kind, inner: self.inner.clone(), spin }
    }

    /// Waits until `count` completions can be polled (uDAPL's threshold), or as many as the queue can hold.
    ///
    /// # Errors
    /// Those of [`notify`](Self::notify), if the queue holds fewer.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn wait(&self, count: usize) -> Result<(), NotifyError> {
        let wait = async {
            loop {
                let notified = self.notify(NotifyKind::Any);
                if self.len() >= count.min(self.depth()) {
                    return Ok(());
                }
                let notified = notified.await;
                // A queue that has overrun is full.
                if self.len() < count.min(self.depth()) {
                    notified?;
                }
            }
        };
        cooperative(wait).await
    }

    /// Returns the number of completions that can be polled.
    pub fn len(&self) -> usize {
        self.inner.results.len()
    }

    /// Returns `true` if no completion can be polled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of completions that the queue can hold.
    pub fn depth(&self) -> usize {
        self.inner.results.depth()
    }

    /// Changes the number of completions that the queue can hold. No completion is lost. Source:
    /// `IND2CompletionQueue::Resize`.
    ///
    /// # Errors
    /// `TooSmall` if the queue holds more; `OutOfRange` if the depth is 0 or exceeds the adapter's maximum; `Ended` if
    /// the queue has overrun or the adapter was removed. The queue is unchanged in each case.
    pub fn resize(&self, depth: usize) -> Result<(), ResizeError> {
        let maximum = self.inner.adapter.info().max_completion_depth;
        if depth == 0 || depth > maximum {
            return Err(ResizeError::OutOfRange { asked: depth, maximum });
        }
        if let Some(status) = self.inner.results.closed() {
            return Err(ended(status, self.depth()).into());
        }
        self.inner.results.resize(depth).map_err(|held| ResizeError::TooSmall { asked: depth, held })
    }

    /// Returns the configured processor. Source: `IND2CompletionQueue::GetNotifyAffinity`.
    pub fn affinity(&self) -> Option<usize> {
        self.inner.config.affinity
    }
}

fn ended(status: Status, depth: usize) -> NotifyError {
    if status == Status::DEVICE_REMOVED { NotifyError::DeviceRemoved } else { NotifyError::Overrun { depth } }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// The future of [`CompletionQueue::notify`].
#[must_use = "futures do nothing unless awaited"]
pub struct Notify {
    notified: Notified,
    kind: NotifyKind,
    inner: Arc<Inner>,
    /// While it spins, each poll of the future also polls the device.
    spin: Spin,
}

impl Notify {
    /// Polls like the future, without the budget of the task: for futures that use it themselves.
    pub(crate) fn poll_now(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NotifyError>> {
        if self.spin.is_started() {
            self.inner.device.progress();
            if self.spin.is_spinning() {
                cx.waker().wake_by_ref();
            } else {
                self.spin.stop();
            }
        }
        let error = |status| ended(status, self.inner.results.depth());
        self.notified.poll(cx).map(|closed| closed.map_or(Ok(()), |status| Err(error(status))))
    }
}

impl Drop for Notify {
    fn drop(&mut self) {
        self.inner.device.end_wait(self.kind);
    }
}

impl Future for Notify {
    type Output = Result<(), NotifyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll_budgeted(cx, |cx| self.poll_now(cx))
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify").finish_non_exhaustive()
    }
}
