//! The engine of a stream, shared by the stream and its halves, and the close when the last of them is dropped.
//!
//! Each end of a stream waits for something else:
//!
//! | end | waits for | at most | the peer reads |
//! |---|---|---|---|
//! | `shutdown` | all sends, and over the soft provider an answer behind the last of them | the close timeout without progress, ten minutes in all | all data, the end of file |
//! | drop of the write half | the same, in a task, as long as there is the read half | – | the same |
//! | drop of the stream, or of its second half | the same, in a task; then the disconnect | the close timeout, then that of the provider | the same; an error if the time was too short |
//! | drop after `set_zero_linger` | nothing | – | the data that had arrived, an error |
//! | the same, with a session | a message about it, in the task of the session | a second | the data that had arrived, an error |
//! | the same, with a program with rsocket over InfiniBand or RoCE | the peer's answer to the disconnect, in a task, while its writes are refused | a second | the data that had arrived, an error of its writes |
//! | end of the runtime | nothing | – | as much as the kernel delivers; an error unless the end of file had been sent |
//!
//! The answer is that to an empty read. It is behind everything in the order of the connection, so the peer's driver has
//! placed all data when it arrives, and a reset of the connection or the end of this process destroys none.

use std::future::poll_fn;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::end::End;
use super::engine::Side;
use super::limits::Limit;
use crate::sync::Mutex;

/// Closes the stream when it is dropped.
pub(super) struct Shared {
    pub(super) end: End,
    /// The task that sends the end of the write direction after its half was dropped.
    ending: Mutex<Option<JoinHandle<()>>>,
    /// The limit of a `shutdown` that waits.
    pub(super) limit: Mutex<Limit>,
    /// The drop aborts the connection.
    aborts: AtomicBool,
}

// As tokio's streams are: the locks survive a panic, and no state is left half changed by one.
impl UnwindSafe for Shared {}
impl RefUnwindSafe for Shared {}

impl Shared {
    pub(super) fn new(end: End) -> Arc<Self> {
        let (ending, limit, aborts) = (Mutex::new(None), Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { end, ending, limit, aborts })
    }

    /// Sets whether dropping the stream aborts the connection.
    pub(super) fn set_aborts(&self, aborts: bool) {
        self.aborts.store(aborts, Ordering::Relaxed);
    }

    pub(super) fn aborts(&self) -> bool {
        self.aborts.load(Ordering::Relaxed)
    }

    /// Closes the write direction, and has a task send that end to the peer if it could not be sent at once.
    pub(super) fn shutdown(&self) {
        if let (false, Some(runtime)) = (self.end.shutdown(), &self.end.engine().runtime) {
            let end = self.end.clone();
            let ending = runtime.spawn(async move {
                // The read half returns the reason if it fails.
                tokio::select! {
                    biased;
                    _ = poll_fn(|cx| end.poll_settled(cx)) => {}
                    () = end.ended() => {}
                }
            });
            *self.ending.lock() = Some(ending);
        }
    }

    /// Closes the write direction. Resolves when the peer's device has received everything, or when it has made no progress for the
    /// close timeout: a peer may answer nothing, and be alive otherwise.
    pub(super) fn poll_shutdown(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let settled = self.end.poll_shutdown(cx);
        if settled.is_ready() {
            self.end_limit();
            return settled;
        }
        // Behind the registration of the waker, which the end of the limit wakes.
        if self.is_limit_over() {
            self.end.log_unconfirmed();
            self.end.end_waits(&[Side::Writer]);
            let what = "the peer has not confirmed the end of the stream within the close timeout";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)));
        }
        Poll::Pending
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end_limit();
        let ending = self.ending.get_mut().take();
        if self.aborts() {
            ending.inspect(JoinHandle::abort);
            self.end.abort();
            return;
        }
        self.end.end_waits(&[Side::Reader]);
        if ending.is_none() && self.end.is_over() {
            // The drop of the connection disconnects.
            return;
        }
        self.end.disconnect();
        // Without a runtime it ends here and now, with the queue pair.
        let engine = self.end.engine();
        if let Some(runtime) = &engine.runtime {
            runtime.spawn(close(self.end.clone(), ending, engine.close_timeout));
        }
    }
}

/// Waits until the written data has been delivered, for at most `limit`, and disconnects.
async fn close(end: End, ending: Option<JoinHandle<()>>, limit: Duration) {
    if let Some(ending) = ending {
        // Its waker would displace the one of this task.
        ending.abort();
        let _ = ending.await;
    }
    let settled = poll_fn(|cx| end.poll_settled(cx));
    // The stream has been dropped, so no error can be returned.
    let outcome = tokio::time::timeout(limit, settled).await;
    if outcome.is_err() {
        end.log_unconfirmed();
    }
    end.finish(matches!(outcome, Ok(Ok(())))).await;
}
