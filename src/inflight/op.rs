//! The future of a posted work request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Payload;
use super::table::{Completed, Table, Ticket};
use crate::error::{CompletionError, PostErrorKind};
use crate::status::Status;
use crate::sync::poll_budgeted;
use crate::types::{Access, OpKind, RemoteKey};

/// The result of a work request that succeeded. Source: `ND2_RESULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The operation.
    pub kind: OpKind,
    /// The number of bytes transferred; for a receive, the length of the message.
    pub bytes: usize,
    /// The immediate data of a received message.
    pub immediate: Option<u32>,
    /// The key of the memory window that a received message has invalidated.
    pub invalidated: Option<RemoteKey>,
    /// The context of the queue pair: [`QueuePairConfig::context`](crate::qp::QueuePairConfig::context). It says from which peer
    /// a receive of a [`SharedReceiveQueue`](crate::qp::SharedReceiveQueue) has its message.
    pub queue_pair_context: u64,
}

/// Memory of a work request.
///
/// Implemented by [`Buffer`](crate::mr::Buffer), [`RegionSlice`](crate::mr::RegionSlice) and the other variants of
/// [`Entry`](crate::mr::Entry); by lists of these for scatter-gather (`Vec<Buffer>`, `[RegionSlice; N]`, or
/// `Vec<Entry>` for mixed lists); and by `()` for no memory.
///
/// The request owns the memory until it completes; then the future returns it. This trait is sealed.
pub trait WorkBuffer: sealed::WorkBuffer {}

impl<B: sealed::WorkBuffer> WorkBuffer for B {}

pub(crate) mod sealed {
    use crate::inflight::Payload;
    use crate::types::Access;

    /// A buffer taken apart for its time with the provider.
    #[derive(Debug)]
    pub struct LentList<T> {
        /// The scatter-gather list.
        pub(crate) payload: Payload,
        /// The parts of the buffer that are not lent, from which it is put together again.
        pub(crate) state: T,
    }

    /// A buffer that can be lent to a provider and returned.
    pub trait WorkBuffer: Sized + Send + 'static {
        /// The parts of the buffer that stay with the future.
        type State: Send + Unpin + 'static;
        /// Returns whether a request of the adapter with this domain may use the buffer in this way.
        fn allows(&self, domain: u64, access: Access) -> bool;
        /// Returns the number of bytes that it lends.
        fn length(&self) -> usize;
        /// Splits the buffer into the memory for the provider and the state that stays with the future.
        fn lend(self) -> LentList<Self::State>;
        /// Joins the memory and the state to the buffer again.
        fn reclaim(list: LentList<Self::State>) -> Self;
    }
}

/// Returns the error of a request that needs these rights, with a buffer that its adapter may not use so.
#[cold]
pub(crate) fn not_allowed<B: WorkBuffer>(buffer: &B, domain: u64, needed: Access) -> PostErrorKind {
    // Without any right asked for, only the adapter can be wrong.
    if buffer.allows(domain, Access::empty()) {
        let missing = needed.iter().filter(|right| !buffer.allows(domain, *right)).collect();
        PostErrorKind::AccessViolation { missing }
    } else {
        PostErrorKind::ForeignMemory
    }
}

/// The future of a posted work request. Resolves to the result and the buffer.
///
/// The request was posted by the call that returned this future. It executes whether or not the future is polled. If
/// the queue pair reports to a [`CompletionQueue`](crate::qp::CompletionQueue), the future resolves when
/// [`CompletionQueue::poll`](crate::qp::CompletionQueue::poll) returns this completion.
///
/// If a device cannot be kept from the memory of a request (`ibv_destroy_qp` fails, as while the driver is unbound), the request fails
/// and a buffer comes back empty: its memory is never freed.
///
/// Like tokio's own futures, it uses the [cooperative budget](tokio::task::coop) of its task: a task that awaits many
/// completed requests yields to other tasks now and then. So a single poll of the future, such as
/// [`FutureExt::now_or_never`](futures::FutureExt::now_or_never), may find a completed request pending, and loses its buffer.
/// [`take`](Self::take) collects a completed request without a task and without budget.
///
/// # Cancel safety
/// Dropping the future discards the result. The request still executes. Its memory stays with the provider until the
/// request completes, and is then freed.
#[must_use = "dropping this discards the result; the request still runs"]
pub struct Op<B: WorkBuffer> {
    progress: Progress,
    /// `None` once the output has been given.
    state: Option<B::State>,
}

/// The way in which the completion reaches the future.
enum Progress {
    /// The completion comes to this slot.
    Posted { table: Arc<Table>, ticket: Ticket, kind: OpKind },
    /// The posting call has executed the request: the payload, the context of the queue pair, and the number of bytes.
    Completed { payload: Payload, queue_pair: u64, bytes: u32, kind: OpKind },
}

impl Progress {
    fn kind(&self) -> OpKind {
        let (Self::Posted { kind, .. } | Self::Completed { kind, .. }) = self;
        *kind
    }

    /// Polls for the completion, which is stored in `into`, once.
    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>, into: &mut Option<Completed>) -> Poll<()> {
        match self {
            Self::Posted { table, ticket, .. } => table.poll_into(*ticket, cx, into),
            Self::Completed { payload, bytes, queue_pair, .. } => {
                *into = Some(done(*bytes, *queue_pair, std::mem::take(payload)));
                Poll::Ready(())
            }
        }
    }
}

impl<B: WorkBuffer> Op<B> {
    /// Creates the future of a request that was posted with this ticket.
    pub(crate) fn new(table: Arc<Table>, ticket: Ticket, kind: OpKind, state: B::State) -> Self {
        Self { progress: Progress::Posted { table, ticket, kind }, state: Some(state) }
    }

    /// Creates the future of a request that has completed already, of a queue pair with this context.
    pub(crate) fn completed(
        (bytes, queue_pair): (usize, u64),
        payload: Payload,
        kind: OpKind,
        state: B::State,
    ) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { progress: Progress::Completed { payload, queue_pair, bytes, kind }, state: Some(state) }
    }

    /// Takes the result and the buffer of a request that has completed, as awaiting the future returns them.
    ///
    /// This is for programs that poll a [`CompletionQueue`](crate::qp::CompletionQueue): once
    /// [`poll`](crate::qp::CompletionQueue::poll) has returned the completion of a request, `take` succeeds. It needs no task and
    /// uses no [budget](tokio::task::coop).
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use tokio_rdma::{Buffer, CompletionQueue, Op};
    ///
    /// /// Takes the buffers of all requests that have completed. The table has them by their contexts.
    /// fn collect(queue: &CompletionQueue, posted: &mut HashMap<u64, Op<Buffer>>) -> Vec<Buffer> {
    ///     let mut completions = Vec::new();
    ///     queue.poll(64, &mut completions);
    ///     let polled = completions.iter().filter_map(|completion| posted.remove(&completion.context));
    ///     polled.filter_map(|op| op.take().ok()).map(|(_result, buffer)| buffer).collect()
    /// }
    /// ```
    ///
    /// # Errors
    /// The future, if the request has not completed, or its queue pair reports to a completion queue and `poll` has not returned
    /// the completion.
    ///
    /// # Panics
    /// If the future has resolved.
    pub fn take(mut self) -> Result<(Result<Completion, CompletionError>, B), Self> {
        assert!(self.state.is_some(), "work request taken after completion");
        let completed = match &mut self.progress {
            Progress::Posted { table, ticket, .. } => table.take(*ticket),
            Progress::Completed { payload, bytes, queue_pair, .. } => {
                Some(done(*bytes, *queue_pair, std::mem::take(payload)))
            }
        };
        match completed {
            Some(completed) => Ok(self.resolve(completed)),
            None => Err(self),
        }
    }

    /// Makes the output of the future from the completion. Is called once.
    #[inline(always)]
    fn resolve(&mut self, completed: Completed) -> (Result<Completion, CompletionError>, B) {
        let Some(state) = self.state.take() else {
            unreachable!("the callers have checked that the output was not given");
        };
        let result = match completed.status {
            Status::SUCCESS => Ok(Completion {
                kind: self.progress.kind(),
                bytes: completed.bytes as usize,
                immediate: completed.extra.note.immediate(),
                invalidated: completed.extra.note.invalidated(),
                queue_pair_context: completed.extra.queue_pair,
            }),
            status => {
                Err(CompletionError { device: completed.extra.note.report(), ..CompletionError::new(status) })
            }
        };
        (result, B::reclaim(sealed::LentList { payload: completed.payload, state }))
    }
}

/// Returns the completion of a request that the posting call has executed.
fn done(bytes: u32, queue_pair: u64, payload: Payload) -> Completed {
    let mut completed = Completed::done(bytes as usize, payload);
    completed.extra.queue_pair = queue_pair;
    completed
}

impl<B: WorkBuffer> Future for Op<B> {
    type Output = (Result<Completion, CompletionError>, B);

    /// Resolves to the result and the buffer of the request.
    ///
    /// # Panics
    /// If polled again after it has resolved.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The ticket may name another request once this one has been collected: look before polling it.
        assert!(self.state.is_some(), "work request polled after completion");
        let mut completed = None;
        ready!(poll_budgeted(cx, |cx| self.progress.poll(cx, &mut completed)));
        let Some(completed) = completed else {
            unreachable!("an uncollected request has a slot until its future collects it");
        };
        Poll::Ready(self.resolve(completed))
    }
}

impl<B: WorkBuffer> Drop for Op<B> {
    fn drop(&mut self) {
        if let (Some(_), Progress::Posted { table, ticket, .. }) = (self.state.take(), &self.progress) {
            table.abandon(*ticket);
        }
    }
}

impl<B: WorkBuffer> fmt::Debug for Op<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op")
            .field("kind", &self.progress.kind())
            .field("finished", &self.state.is_none())
            .finish()
    }
}
