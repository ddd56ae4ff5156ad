//! Completion queues that are polled by hand.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::error::{NotifyError, OpenError, ResizeError};
use crate::flight::{CompletionRing, Notified, NotifyKind, Polled};
use crate::provider;
use crate::provider::registry::{Member, Registered};
use crate::status::Status;
use crate::sync::Spin;
use crate::types::{OpKind, RemoteKey};

/// No Linux numbers as many.
const MAX_PROCESSORS: usize = 1 << 13;

/// How large a completion queue is, and how it is waited for. Source: `IND2Adapter::CreateCompletionQueue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueConfig {
    depth: usize,
    affinity: Option<usize>,
    spin: Duration,
}

impl Default for CompletionQueueConfig {
    /// Room for 256 results.
    fn default() -> Self {
        Self { depth: 256, affinity: None, spin: Duration::ZERO }
    }
}

impl CompletionQueueConfig {
    /// The most results that may wait to be polled: as many as its queue pairs can have outstanding, to be safe.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// The processor on which its results are best handled. A hint: a device picks the interrupt vector by it, the
    /// soft provider leaves it to the runtime. Default: none.
    #[must_use]
    pub fn affinity(mut self, processor: usize) -> Self {
        self.affinity = Some(processor);
        self
    }

    /// How long [`notify`](CompletionQueue::notify) and [`wait`](CompletionQueue::wait) look for results before they
    /// sleep. Each look takes a turn of the runtime, so other tasks run in between, but the core never rests meanwhile.
    /// Default: not at all.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Numbers the arguments as `CreateCompletionQueue` does.
    fn check(&self, maximum: usize) -> Result<(), OpenError> {
        let wrong = |argument, what| Err(OpenError::InvalidParameter { argument, what });
        if self.depth == 0 || self.depth > maximum {
            return wrong(3, "depth is not between 1 and AdapterInfo::max_completion_depth");
        }
        // Which there are and which of them this process may use is the system's affair: it is a hint.
        if self.affinity.is_some_and(|processor| processor >= MAX_PROCESSORS) {
            return wrong(5, "affinity is not a processor number below 8192");
        }
        Ok(())
    }
}

/// The result of a work request (`ND2_RESULT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkCompletion {
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub kind: OpKind,
    /// How many bytes it moved; 0 when it failed.
    pub bytes: usize,
    /// The number of its queue pair: [`QueuePairConfig::context`](super::QueuePairConfig::context).
    pub queue_pair: u64,
    /// The number that it was posted with: [`WorkOptions::context`](super::WorkOptions::context).
    pub context: u64,
    /// Immediate data that came with the message of a receive.
    pub immediate: Option<u32>,
    /// The key of the memory window that the message of a receive has invalidated.
    pub invalidated: Option<RemoteKey>,
}

/// A completion queue that is polled by hand (IND2CompletionQueue). Made by
/// [`Adapter::completion_queue`](crate::cm::Adapter::completion_queue).
///
/// The requests of queue pairs that are made with it leave their results here, those of one queue in the order in which
/// they were posted. [`poll`](Self::poll) takes them, and only then is the [`Op`](super::Op) of each request ready, with
/// its buffer. A queue pair without such a queue feeds its futures by itself.
///
/// A result that finds no room is lost to the queue, and with it the connections of all its queue pairs: their requests
/// finish `CANCELED`, without a result here.
///
/// Handles are counted. Queue pairs keep the queue, too.
///
/// # Examples
/// ```
/// use tokio_rdma::qp::{CompletionQueueConfig, NotifyKind};
/// use tokio_rdma::{Adapter, QueuePairConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let adapter = Adapter::open("127.0.0.1".parse().unwrap())?;
/// let queue = adapter.completion_queue(CompletionQueueConfig::default().depth(64))?;
/// let config = QueuePairConfig::default().receive_completions(&queue).context(1);
/// let queue_pair = adapter.queue_pair(config)?;
/// let receive = queue_pair.receive(adapter.buffer(64)?)?;
/// queue_pair.flush();
/// queue.notify(NotifyKind::Any).await?;
/// let mut results = Vec::new();
/// queue.poll(16, &mut results);
/// assert_eq!((results.len(), results[0].queue_pair), (1, 1));
/// let (_outcome, _buffer) = receive.await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CompletionQueue {
    core: Arc<Core>,
}

struct Core {
    results: Arc<CompletionRing>,
    adapter: provider::Adapter,
    config: CompletionQueueConfig,
    _registered: Registered,
}

impl Member for Core {
    fn device_removed(&self) {
        self.results.close(Status::DEVICE_REMOVED);
    }
}

impl CompletionQueue {
    pub(crate) fn new(adapter: &provider::Adapter, config: CompletionQueueConfig) -> Result<Self, OpenError> {
        config.check(adapter.info().max_completion_depth)?;
        let results = CompletionRing::new(config.depth);
        let core = adapter.registry().create(|_, registered| Core {
            results,
            adapter: adapter.clone(),
            config,
            _registered: registered,
        });
        Ok(Self { core })
    }

    pub(super) fn results(&self) -> &Arc<CompletionRing> {
        &self.core.results
    }

    pub(super) fn domain(&self) -> u64 {
        self.core.adapter.domain()
    }

    /// Takes up to `most` results, oldest first, appends them to `results`, and says how many. Source:
    /// `IND2CompletionQueue::GetResults`.
    ///
    /// The device is looked at, too, so that a result need not wait for the reactor.
    pub fn poll(&self, most: usize, results: &mut Vec<WorkCompletion>) -> usize {
        if self.core.results.len() < most {
            self.progress();
        }
        self.take(most, results)
    }

    /// Looks at the device, which may run the wakers of whoever uses it.
    pub(crate) fn progress(&self) {
        self.core.adapter.progress();
    }

    /// [`poll`](Self::poll) without looking at the device.
    pub(crate) fn take(&self, most: usize, results: &mut Vec<WorkCompletion>) -> usize {
        self.core.results.poll(most, |polled| {
            let Polled { label, queue_pair, status, bytes, extra } = polled;
            // Every request has a label until its completion is taken, which was done just now.
            let (kind, context) = label.map_or((OpKind::Receive, 0), |label| (label.kind, label.context));
            results.push(WorkCompletion {
                status,
                kind,
                bytes,
                queue_pair,
                context,
                immediate: extra.immediate,
                invalidated: extra.invalidated.map(RemoteKey),
            });
        })
    }

    /// Asks to be told of results. Source: `IND2CompletionQueue::Notify`.
    ///
    /// Ready when a result of that kind, or of one behind it, has come since the last notification or since the queue was
    /// polled empty, whichever was later; so poll until nothing is left, then ask. It is asked for by the call, not by
    /// the first poll of the future. All that were asked for are met together, as soon as one of them is.
    ///
    /// # Errors
    /// `Overrun` and `DeviceRemoved`, from then on every time. Results that are there can be polled all the same.
    ///
    /// # Cancel safety
    /// Dropping it takes the request back. A result that it was told of and has not told is told to the next.
    pub fn notify(&self, kind: NotifyKind) -> Notify {
        let mut spin = Spin::new(self.core.config.spin);
        spin.start();
        Notify { notified: self.core.results.notify(kind), core: self.core.clone(), spin }
    }

    /// Waits until so many results can be polled (uDAPL's threshold), at most as many as there is room for.
    ///
    /// # Errors
    /// Those of [`notify`](Self::notify), when there are fewer.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn wait(&self, count: usize) -> Result<(), NotifyError> {
        loop {
            let notified = self.notify(NotifyKind::Any);
            if self.len() >= count.min(self.depth()) {
                return Ok(());
            }
            notified.await?;
        }
    }

    /// How many results can be polled.
    pub fn len(&self) -> usize {
        self.core.results.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many results there is room for.
    pub fn depth(&self) -> usize {
        self.core.results.depth()
    }

    /// Makes room for so many results; none is lost. Source: `IND2CompletionQueue::Resize`.
    ///
    /// # Errors
    /// `TooSmall` when it holds more; `OutOfRange`; `Ended`. It is as it was then.
    pub fn resize(&self, depth: usize) -> Result<(), ResizeError> {
        let maximum = self.core.adapter.info().max_completion_depth;
        if depth == 0 || depth > maximum {
            return Err(ResizeError::OutOfRange { maximum });
        }
        if let Some(status) = self.core.results.closed() {
            return Err(ended(status).into());
        }
        self.core.results.resize(depth).map_err(|held| ResizeError::TooSmall { held })
    }

    /// The processor that was given as a hint. Source: `IND2CompletionQueue::GetNotifyAffinity`.
    pub fn affinity(&self) -> Option<usize> {
        self.core.config.affinity
    }
}

fn ended(status: Status) -> NotifyError {
    if status == Status::DEVICE_REMOVED { NotifyError::DeviceRemoved } else { NotifyError::Overrun }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("config", &self.core.config).finish_non_exhaustive()
    }
}

/// A notification of a [`CompletionQueue`] that has been asked for.
#[must_use = "futures do nothing unless awaited"]
pub struct Notify {
    notified: Notified,
    core: Arc<Core>,
    /// How long it is looked for without sleep.
    spin: Spin,
}

impl Future for Notify {
    type Output = Result<(), NotifyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.spin.is_started() {
            self.core.adapter.progress();
            if self.spin.is_spinning() {
                cx.waker().wake_by_ref();
            } else {
                self.spin.stop();
            }
        }
        Poll::Ready(match ready!(self.notified.poll(cx)) {
            None => Ok(()),
            Some(status) => Err(ended(status)),
        })
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify").finish_non_exhaustive()
    }
}
