//! The limit on the reads and atomics that an adapter has in flight.

use std::sync::Arc;

use tokio::sync::{Semaphore, TryAcquireError};

use crate::error::PostErrorKind;

/// The places of the reads in flight of an adapter. Those that wait for one stand in line.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only the verbs provider has such a limit"))]
pub(crate) struct ReadPlaces {
    free: Arc<Semaphore>,
    limit: usize,
}

/// A place among the reads in flight, which is free again when this is dropped. That wakes the next in line, so no lock may be held
/// that a waker could need.
#[derive(Debug)]
pub(crate) struct ReadPlace(Option<Arc<Semaphore>>);

#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only the verbs provider has such a limit"))]
impl ReadPlaces {
    /// Creates the places of an adapter, of which there is at least one.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(limit)), limit }
    }

    /// Returns the place of a read of so many bytes that is being posted. One without bytes needs none, nor does any at the end of the
    /// adapter. If the caller has `reserved` the place, it has [passed](ReadPlace::pass) that, and takes it back only if the read is
    /// not posted.
    ///
    /// # Errors
    /// `ReadsFull` if none is free, or others wait for it.
    pub(crate) fn place_for(
        &self,
        reserved: bool,
        length: usize,
    ) -> Result<Option<ReadPlace>, PostErrorKind> {
        if reserved {
            return Ok(Some(self.taken()));
        }
        if length == 0 { Ok(None) } else { self.take() }
    }

    /// Takes a place, if one is free for which no other waits. `None` at the end of the adapter.
    ///
    /// # Errors
    /// `ReadsFull`.
    pub(crate) fn take(&self) -> Result<Option<ReadPlace>, PostErrorKind> {
        match self.free.try_acquire() {
            Ok(permit) => {
                permit.forget();
                Ok(Some(self.taken()))
            }
            Err(TryAcquireError::Closed) => Ok(None),
            Err(TryAcquireError::NoPermits) => Err(PostErrorKind::ReadsFull { limit: self.limit }),
        }
    }

    /// Waits in line for a place. `None` at the end of the adapter.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line.
    pub(crate) async fn wait(&self) -> Option<ReadPlace> {
        self.free.acquire().await.ok()?.forget();
        Some(self.taken())
    }

    /// Returns a place that was taken.
    fn taken(&self) -> ReadPlace {
        ReadPlace(Some(self.free.clone()))
    }

    /// Ends the waits for places, at the end of the adapter.
    pub(crate) fn close(&self) {
        self.free.close();
    }
}

impl ReadPlace {
    /// Leaves the place to the request that is posted with it. If that is refused, the place can be [taken back](PassedPlace::back).
    pub(crate) fn pass(mut self) -> PassedPlace {
        PassedPlace(self.0.take())
    }
}

/// A place that was left to a request.
pub(crate) struct PassedPlace(Option<Arc<Semaphore>>);

impl PassedPlace {
    /// Takes back the place of a request that was refused.
    pub(crate) fn back(self) -> ReadPlace {
        ReadPlace(self.0)
    }
}

impl Drop for ReadPlace {
    fn drop(&mut self) {
        if let Some(free) = &self.0 {
            free.add_permits(1);
        }
    }
}
