//! Queue pairs, completion queues, shared receive queues, and lanes.

mod completion_queue;
mod lane;
mod queue_pair;
mod requests;
mod shared;

pub use crate::inflight::{Completion, Done, LaneState, NotifyKind, Op, WorkBuffer};
pub use crate::types::{QueuePairId, Slot};
pub use completion_queue::{CompletionQueue, CompletionQueueConfig, Notify, WorkCompletion};
pub use lane::{Lane, LaneConfig, Local};
pub(crate) use queue_pair::WeakQueuePair;
pub use queue_pair::{Endpoint, LaneQueuePair, QueuePair, QueuePairConfig};
pub use requests::{Batch, ReadPermit, WorkOptions};
pub use shared::{BelowThreshold, SharedReceiveConfig, SharedReceiveQueue};
