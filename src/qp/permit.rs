//! Reads whose place among the reads in flight of the adapter was reserved before.

use super::queue_pair::QueuePair;
use super::requests::WorkOptions;
use crate::error::{PostError, PostErrorKind};
use crate::inflight::{Op, WorkBuffer};
use crate::mr::RemoteRegion;
use crate::provider::reads::ReadPlace;

/// The right to post one RDMA Read or atomic, within the limit on those that the adapter has in flight. Created by
/// [`QueuePair::reserve_read`].
///
/// Dropping it frees the place for the next in line.
#[derive(Debug)]
#[must_use = "dropping it frees the place"]
pub struct ReadPermit<'a> {
    queue_pair: &'a QueuePair,
    /// `None` without a limit.
    place: Option<ReadPlace>,
}

impl QueuePair {
    /// Waits until the adapter has fewer RDMA Reads and atomics in flight than its settings permit (`VerbsConfig::max_reads`), and
    /// reserves the place of one.
    ///
    /// Callers wait in line, in the order in which the futures are first polled, over all queue pairs of the adapter, and come before
    /// [`read`](Self::read), which does not wait. Requests of a [`batch`](Self::batch) are sent before it waits. Without a limit, and on
    /// the soft provider, it resolves at once.
    ///
    /// A place is free when the completion of its read has been taken: from a queue with
    /// [`busy_poll`](super::CompletionQueueConfig::busy_poll) and from a lane when the program polls. So a task should not wait here for
    /// reads that it alone would poll, nor while it holds another permit or has an open batch of another queue pair.
    ///
    /// # Errors
    /// If it would wait: `ConnectionInvalid` and the other causes if the queue pair is not connected, or ends while this waits;
    /// `NoReads`; `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line, and nothing is posted.
    ///
    /// # Examples
    /// ```
    /// # use tokio_rdma::{Buffer, QueuePair, RemoteRegion};
    /// # async fn example(queue_pair: &QueuePair, buffer: Buffer, remote: &RemoteRegion) -> std::io::Result<()> {
    /// let permit = queue_pair.reserve_read().await?;
    /// let (outcome, buffer) = permit.read(buffer, remote)?.await;
    /// println!("{} bytes", outcome?.bytes);
    /// # drop(buffer);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve_read(&self) -> Result<ReadPermit<'_>, PostErrorKind> {
        let place = self.provider().reserve_read().await.map_err(|kind| self.inner.explain(kind))?;
        Ok(ReadPermit { queue_pair: self, place })
    }
}

impl ReadPermit<'_> {
    /// Posts an RDMA Read, as [`QueuePair::read`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::read`], except `ReadsFull`.
    pub fn read<B: WorkBuffer>(self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.read_with(buffer, remote, WorkOptions::default())
    }

    /// Posts an RDMA Read with options, as [`QueuePair::read_with`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::read_with`], except `ReadsFull`.
    pub fn read_with<B: WorkBuffer>(
        mut self,
        buffer: B,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        self.post(options, |queue_pair, options| queue_pair.read_with(buffer, remote, options))
    }

    /// Posts an atomic compare-and-swap, as [`QueuePair::compare_swap`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::compare_swap`], except `ReadsFull`.
    pub fn compare_swap<B: WorkBuffer>(
        mut self,
        buffer: B,
        remote: &RemoteRegion,
        compare: u64,
        swap: u64,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        self.post(options, |queue_pair, options| {
            queue_pair.compare_swap(buffer, remote, compare, swap, options)
        })
    }

    /// Posts an atomic fetch-and-add, as [`QueuePair::fetch_add`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::fetch_add`], except `ReadsFull`.
    pub fn fetch_add<B: WorkBuffer>(
        mut self,
        buffer: B,
        remote: &RemoteRegion,
        add: u64,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        self.post(options, |queue_pair, options| queue_pair.fetch_add(buffer, remote, add, options))
    }

    /// Posts a request, which then has the place. If it is not posted, the permit still has the place.
    pub(crate) fn post<B: WorkBuffer>(
        &mut self,
        options: WorkOptions,
        post: impl FnOnce(&QueuePair, WorkOptions) -> Result<Op<B>, PostError<B>>,
    ) -> Result<Op<B>, PostError<B>> {
        let Some(place) = self.place.take() else { return post(self.queue_pair, options) };
        // Before the post, in which foreign code may panic: the place has one owner.
        let passed = place.pass();
        post(self.queue_pair, options.reserved()).inspect_err(|_| self.place = Some(passed.back()))
    }
}
