//! The future of a posted work request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::table::{Table, Ticket};
use crate::error::CompletionError;
use crate::status::Status;
use crate::types::{OpKind, RemoteKey};

/// What a work request did, once it succeeded. Source: `ND2_RESULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// What it was.
    pub kind: OpKind,
    /// How many bytes it moved; for a receive, the length of the message.
    pub bytes: usize,
    /// Immediate data that came with the message of a receive.
    pub immediate: Option<u32>,
    /// The key of the memory window that the message of a receive has invalidated.
    pub invalidated: Option<RemoteKey>,
}

/// Memory that a work request can use: a [`Buffer`](crate::mr::Buffer), a part of a [`Region`](crate::mr::Region), several
/// of these as a scatter-gather list (`Vec<Buffer>`, `[RegionSlice; N]`, or `Vec<Entry>` of all kinds), or `()` for no
/// memory at all.
///
/// The request owns it until it completes; the future gives it back. This trait is sealed.
pub trait WorkBuffer: sealed::WorkBuffer {}

impl<B: sealed::WorkBuffer> WorkBuffer for B {}

pub(crate) mod sealed {
    use crate::flight::Payload;
    use crate::types::Access;

    /// A buffer taken apart for its time with the provider.
    #[derive(Debug)]
    pub struct LentList<T> {
        /// The scatter-gather list.
        pub(crate) payload: Payload,
        /// What the buffer needs to be put together again.
        pub(crate) state: T,
    }

    /// How a buffer is lent to a provider and comes back.
    pub trait WorkBuffer: Sized + Send + 'static {
        /// What stays with the future.
        type State: Send + Unpin + 'static;
        /// Whether a request of the adapter with this domain may use the buffer in this way.
        fn allows(&self, domain: u64, access: Access) -> bool;
        /// How many bytes it lends.
        fn length(&self) -> usize;
        /// Takes it apart.
        fn lend(self) -> LentList<Self::State>;
        /// Puts it together again.
        fn reclaim(list: LentList<Self::State>) -> Self;
    }
}

/// A posted work request: await it for the outcome and the buffer.
///
/// It was posted when the call returned, and proceeds whether or not this is polled. Where the queue pair has a
/// [`CompletionQueue`](crate::qp::CompletionQueue) of the user's, this is ready once that has been polled for the result.
///
/// # Cancel safety
/// Dropping it forgets the result. The request goes on; its memory stays with the provider until it completes and is
/// freed then.
#[must_use = "dropping this forgets the result; the buffer lives until the provider is done with it"]
pub struct Op<B: WorkBuffer> {
    table: Arc<Table>,
    ticket: Ticket,
    kind: OpKind,
    /// `None` once the output has been given.
    state: Option<B::State>,
}

impl<B: WorkBuffer> Op<B> {
    pub(crate) fn new(table: Arc<Table>, ticket: Ticket, kind: OpKind, state: B::State) -> Self {
        Self { table, ticket, kind, state: Some(state) }
    }
}

impl<B: WorkBuffer> Future for Op<B> {
    type Output = (Result<Completion, CompletionError>, B);

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The ticket may name another request once this one has been collected: look before polling it.
        assert!(self.state.is_some(), "work request polled after completion");
        let completed = ready!(self.table.poll(self.ticket, cx));
        let (Some(completed), Some(state)) = (completed, self.state.take()) else {
            unreachable!("an uncollected request has a slot until its future collects it");
        };
        let result = match completed.status {
            Status::SUCCESS => Ok(Completion {
                kind: self.kind,
                bytes: completed.bytes,
                immediate: completed.extra.immediate,
                invalidated: completed.extra.invalidated.map(RemoteKey),
            }),
            status => Err(CompletionError { status }),
        };
        Poll::Ready((result, B::reclaim(sealed::LentList { payload: completed.payload, state })))
    }
}

impl<B: WorkBuffer> Drop for Op<B> {
    fn drop(&mut self) {
        if self.state.take().is_some() {
            self.table.abandon(self.ticket);
        }
    }
}

impl<B: WorkBuffer> fmt::Debug for Op<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("kind", &self.kind).field("finished", &self.state.is_none()).finish()
    }
}
