//! Finds the runtime of the caller and checks it, and runs futures within that of the adapter, whichever task polls them.

use std::cell::Cell;
use std::future::Future;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project::pin_project;
use tokio::net::UnixDatagram;
use tokio::runtime::{Handle, Id};

use super::poll_budgeted;
use crate::error::OpenError;

thread_local! {
    /// The last runtime of this thread that has both, so that a connect does not check it again.
    static COMPLETE: Cell<Option<Id>> = const { Cell::new(None) };
}

/// Returns the runtime of the caller, which must have I/O and time enabled: every task of an adapter uses both.
///
/// # Errors
/// `Unsupported` without a runtime, or if the runtime lacks one of the two.
pub(crate) fn current_runtime() -> Result<Handle, OpenError> {
    let runtime = Handle::try_current().ok();
    if let Some(runtime) = runtime.filter(|runtime| COMPLETE.get() == Some(runtime.id())) {
        return Ok(runtime);
    }
    let runtime = runtime_with_timers()?;
    match catch_unwind(|| UnixDatagram::unbound().map(drop)) {
        // A lack of descriptors is reported by what needs them.
        Ok(_) => {
            COMPLETE.set(Some(runtime.id()));
            Ok(runtime)
        }
        Err(_) => Err(OpenError::Unsupported("the tokio runtime has no I/O driver: build it with enable_io")),
    }
}

/// Returns the runtime of the caller, which must have time enabled: a simulated network needs no I/O.
///
/// # Errors
/// `Unsupported` without a runtime, or if the runtime has no timers.
pub(crate) fn runtime_with_timers() -> Result<Handle, OpenError> {
    let runtime = Handle::try_current()
        .map_err(|_| OpenError::Unsupported("no tokio runtime: call this inside one"))?;
    // tokio reports it only by a panic. Found here, it does not hit a task later.
    match catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))) {
        Ok(()) => Ok(runtime),
        Err(_) => Err(OpenError::Unsupported("the tokio runtime has no timers: build it with enable_time")),
    }
}

/// A future that is polled within a runtime: what it opens is watched by that runtime, not by the one that polls, if
/// any. It uses the budget of the task that polls.
#[pin_project]
pub(crate) struct WithRuntime<'a, F> {
    runtime: &'a Handle,
    #[pin]
    future: F,
}

impl<'a, F: Future> WithRuntime<'a, F> {
    pub(crate) fn new(runtime: &'a Handle, future: F) -> Self {
        Self { runtime, future }
    }
}

impl<F: Future> Future for WithRuntime<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.runtime.enter();
        poll_budgeted(cx, |cx| this.future.poll(cx))
    }
}
