//! Several requests with one doorbell.

use std::fmt;
use std::ops::Deref;

use super::pair::QueuePair;

/// Posting calls that reach the device together: with one doorbell, on soft with one system call (NDK's DEFER). Made by
/// [`QueuePair::batch`].
///
/// It is the queue pair, so every call of that can be made on it, and each answers as it does there. What was posted
/// goes out when this is dropped, or with the next request that is posted without it, or earlier.
#[must_use = "dropping it rings the doorbell"]
pub struct Batch {
    queue_pair: QueuePair,
}

impl QueuePair {
    /// Posting calls with one doorbell: what is posted through what this returns goes out when that is dropped.
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
    /// Has the device look at what was posted. So does dropping it.
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
