//! Several requests with one doorbell.

use std::fmt;
use std::ops::Deref;

use super::pair::QueuePair;

/// Posts several requests with one doorbell, on soft with one system call (NDK's DEFER). Created by
/// [`QueuePair::batch`].
///
/// Dereferences to [`QueuePair`], so every posting method is available and behaves as usual. The requests are sent when
/// the batch is dropped, when a request is posted without the batch, or earlier.
#[must_use = "dropping it rings the doorbell"]
pub struct Batch {
    queue_pair: QueuePair,
}

impl QueuePair {
    /// Returns a handle that posts several requests with one doorbell. The requests are sent when the handle is
    /// dropped.
    ///
    /// ```
    /// # use tokio_rdma::{QueuePair, Buffer, RemoteRegion};
    /// # async fn example(queue_pair: &QueuePair, parts: Vec<Buffer>, there: &RemoteRegion) -> std::io::Result<()> {
    /// let batch = queue_pair.batch();
    /// let mut writes = Vec::new();
    /// for part in parts {
    ///     writes.push(batch.write(part, there)?);
    /// }
    /// drop(batch);
    /// for write in writes {
    ///     write.await.0?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self) -> Batch {
        Batch { queue_pair: Self { handle: self.handle.clone(), defer: true } }
    }
}

impl Batch {
    /// Sends the posted requests. Dropping the batch does the same.
    pub fn submit(self) {}
}

impl Deref for Batch {
    type Target = QueuePair;
    fn deref(&self) -> &QueuePair {
        &self.queue_pair
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.queue_pair.provider().ring();
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("queue_pair", &self.queue_pair).finish()
    }
}
