//! Futures that run within the adapter's runtime, whichever task polls them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project::pin_project;
use tokio::runtime::Handle;

use crate::sync::poll_budgeted;

/// A future that is polled within a runtime: what it opens is watched by that runtime, not by the one that polls, if
/// any. It uses the budget of the task that polls.
#[pin_project]
pub(crate) struct WithRuntime<F> {
    runtime: Handle,
    #[pin]
    future: F,
}

impl<F: Future> WithRuntime<F> {
    pub(crate) fn new(runtime: Handle, future: F) -> Self {
        Self { runtime, future }
    }
}

impl<F: Future> Future for WithRuntime<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.runtime.enter();
        poll_budgeted(cx, |cx| this.future.poll(cx))
    }
}
