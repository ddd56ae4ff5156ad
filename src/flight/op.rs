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
pub trait WorkBuffer: sealed::Lender {}

impl<B: sealed::Lender> WorkBuffer for B {}

pub(crate) mod sealed {
    use crate::flight::Payload;
    use crate::types::Access;

    /// A buffer taken apart for its time with the provider.
    #[derive(Debug)]
    pub struct Parts<T> {
        /// The scatter-gather list.
        pub(crate) payload: Payload,
        /// What the buffer needs to be put together again.
        pub(crate) rest: T,
    }

    /// How a buffer is lent to a provider and comes back.
    pub trait Lender: Sized + Send + 'static {
        /// What stays with the future.
        type Rest: Send + Unpin + 'static;
        /// Whether the request may use the buffer at all: `adapter` is the one of the queue pair.
        fn allows(&self, adapter: u64, access: Access) -> bool;
        /// How many bytes it lends.
        fn length(&self) -> usize;
        /// Takes it apart.
        fn lend(self) -> Parts<Self::Rest>;
        /// Puts it together again.
        fn reclaim(parts: Parts<Self::Rest>) -> Self;
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
    rest: Option<B::Rest>,
}

impl<B: WorkBuffer> Op<B> {
    pub(crate) fn new(table: Arc<Table>, ticket: Ticket, kind: OpKind, rest: B::Rest) -> Self {
        Self { table, ticket, kind, rest: Some(rest) }
    }
}

impl<B: WorkBuffer> Future for Op<B> {
    type Output = (Result<Completion, CompletionError>, B);

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The ticket may name another request once this one has been collected: look before polling it.
        assert!(self.rest.is_some(), "work request polled after completion");
        let completed = ready!(self.table.poll(self.ticket, cx));
        let (Some(completed), Some(rest)) = (completed, self.rest.take()) else {
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
        Poll::Ready((result, B::reclaim(sealed::Parts { payload: completed.payload, rest })))
    }
}

impl<B: WorkBuffer> Drop for Op<B> {
    fn drop(&mut self) {
        if self.rest.take().is_some() {
            self.table.abandon(self.ticket);
        }
    }
}

impl<B: WorkBuffer> fmt::Debug for Op<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("kind", &self.kind).field("finished", &self.rest.is_none()).finish()
    }
}
