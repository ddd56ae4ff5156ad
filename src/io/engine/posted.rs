//! Requests of a stream that complete through their futures: those over a provider that frames data itself.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::task::coop::unconstrained;

use crate::mr::Inline;
use crate::qp::Op;

/// The requests that have not completed, oldest first. They complete in this order.
#[derive(Default)]
pub(super) struct PostedRequests(SmallVec<[PostedRequest; 1]>);

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
    /// Adds a request with this context.
    pub(super) fn push(&mut self, context: u64, future: Posted) {
        self.0.push(PostedRequest { context, future });
    }

    /// Takes the oldest request if it has completed. Returns its context, and whether it has succeeded.
    pub(super) fn take(&mut self) -> Option<(u64, bool)> {
        if self.0.is_empty() {
            return None;
        }
        let PostedRequest { context, future } = self.0.remove(0);
        let future = match future {
            Posted::Send(op) => op.take().map(|(result, _)| result.is_ok()).map_err(Posted::Send),
            Posted::Read(op) => op.take().map(|(result, ())| result.is_ok()).map_err(Posted::Read),
        };
        match future {
            Ok(has_succeeded) => Some((context, has_succeeded)),
            Err(future) => {
                self.0.insert(0, PostedRequest { context, future });
                None
            }
        }
    }

    /// Takes the oldest request like [`take`](Self::take). If it has not completed, its completion wakes the task.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<(u64, bool)> {
        let PostedRequest { context, future } = self.0.first_mut()?;
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
