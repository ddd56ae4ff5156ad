//! What a connection can be made for: a queue pair of the program, or of a lane.

use std::fmt;
use std::sync::Arc;

use super::queue_pair::QueuePair;
use crate::backend;

/// A queue pair that can be connected: a [`QueuePair`], or the [`LaneQueuePair`] of a [`Lane`](super::Lane). This trait is sealed.
pub trait Endpoint: sealed::Endpoint {}

impl<E: sealed::Endpoint> Endpoint for E {}

pub(crate) mod sealed {
    use crate::backend;
    use crate::qp::WeakQueuePair;

    /// A handle of a queue pair.
    pub trait Endpoint: Clone + Send + Sync + 'static {
        /// Returns the queue pair of the provider.
        fn provider(&self) -> Provided<'_>;

        /// Returns what the connection knows its queue pair by.
        fn downgrade(&self) -> Known;
    }

    /// A queue pair of a provider.
    pub struct Provided<'a>(pub(crate) &'a backend::QueuePair);

    /// A reference to a queue pair that does not keep it. `None` for one of a lane.
    pub struct Known(pub(crate) Option<WeakQueuePair>);
}

impl sealed::Endpoint for QueuePair {
    fn provider(&self) -> sealed::Provided<'_> {
        sealed::Provided(self.provider())
    }

    fn downgrade(&self) -> sealed::Known {
        sealed::Known(Some(self.downgrade()))
    }
}

/// A queue pair of a [`Lane`](super::Lane), for the calls that connect it. Requests are posted by the lane, which names it by its
/// [`QueuePairId`](crate::types::QueuePairId). Created by [`Lane::queue_pair`](super::Lane::queue_pair).
///
/// It is good for one attempt to connect. Dropping it has no effect: the lane keeps the queue pair, and
/// [`Lane::close`](super::Lane::close) ends it.
#[derive(Clone)]
pub struct LaneQueuePair(Arc<backend::QueuePair>);

impl LaneQueuePair {
    pub(super) fn new(provider: backend::QueuePair) -> Self {
        Self(Arc::new(provider))
    }
}

impl sealed::Endpoint for LaneQueuePair {
    fn provider(&self) -> sealed::Provided<'_> {
        sealed::Provided(&self.0)
    }

    fn downgrade(&self) -> sealed::Known {
        sealed::Known(None)
    }
}

impl fmt::Debug for LaneQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneQueuePair").finish_non_exhaustive()
    }
}
