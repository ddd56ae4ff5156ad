//! The engine of a stream, shared by the stream and its halves, and the close when the last of them is dropped.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::inner::StreamInner;

/// Closes the stream when it is dropped.
pub(super) struct Shared(Arc<StreamInner>);

impl Shared {
    pub(super) fn new(end: StreamInner) -> Arc<Self> {
        Arc::new(Self(Arc::new(end)))
    }

    pub(super) fn end(&self) -> &StreamInner {
        &self.0
    }

    /// Closes the write direction, and has a task send that end to the peer if it could not be sent at once. The task
    /// keeps the stream alive meanwhile, because the close on drop would wait for the same.
    pub(super) fn shutdown(self: &Arc<Self>) {
        if let (false, Some(runtime)) = (self.0.shutdown(), self.0.runtime()) {
            let shared = self.clone();
            runtime.spawn(async move {
                let end = shared.end();
                let told = async {
                    // The read half returns the reason of the end.
                    tokio::select! {
                        _ = std::future::poll_fn(|cx| end.poll_settled(cx)) => {}
                        _ = end.connection().disconnected() => {}
                    }
                };
                let _ = tokio::time::timeout(end.config().close_timeout, told).await;
            });
        }
    }

    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.shutdown();
        self.0.poll_settled(cx)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.disconnect();
        // Without a runtime it ends here and now, with the queue pair.
        if let Some(runtime) = self.0.runtime() {
            runtime.spawn(close(self.0.clone(), self.0.config().close_timeout));
        }
    }
}

/// Waits until the written data has been delivered, for at most `limit`, and disconnects.
async fn close(end: Arc<StreamInner>, limit: Duration) {
    let settled = std::future::poll_fn(|cx| end.poll_settled(cx));
    // The stream has been dropped, so no error can be returned.
    let _ = tokio::time::timeout(limit, settled).await;
    let _ = end.connection().disconnect().await;
}
