//! Requests of a stream that complete through their futures: those over a provider that frames data itself.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use tokio::task::coop::unconstrained;

use crate::mr::Inline;
use crate::qp::Op;

/// The requests that have not completed, oldest first. They complete in this order. The end of a stream is two.
#[derive(Default)]
pub(super) struct PostedRequests(SmallVec<[PostedRequest; 2]>);

/// A request with its context.
struct PostedRequest {
    context: u64,
    future: Posted,
}

/// The future of a request.
pub(super) enum Posted {
    Send(Op<Inline>),
    Read(Op<()>),
}

impl PostedRequests {
    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a request with this context.
    pub(super) fn push(&mut self, context: u64, future: Posted) {
        self.0.push(PostedRequest { context, future });
    }

    /// Takes the oldest request if it has completed. Returns its context, and whether it has succeeded. If it has not completed, its
    /// completion wakes `waker`.
    pub(super) fn poll(&mut self, waker: &Waker) -> Option<(u64, bool)> {
        let PostedRequest { context, future } = self.0.first_mut()?;
        let cx = &mut Context::from_waker(waker);
        let polled = match future {
            Posted::Send(op) => pin!(unconstrained(op)).poll(cx).map(|(result, _)| result.is_ok()),
            Posted::Read(op) => pin!(unconstrained(op)).poll(cx).map(|(result, ())| result.is_ok()),
        };
        let Poll::Ready(has_succeeded) = polled else { return None };
        let context = *context;
        self.0.remove(0);
        Some((context, has_succeeded))
    }
}
