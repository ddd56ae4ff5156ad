//! Queue pairs, completion queues, shared receive queues, and lanes.

mod completion_queue;
mod endpoint;
mod lane;
mod permit;
mod queue_pair;
mod requests;
mod shared;

pub use crate::inflight::{Completion, Done, NotifyKind, Op, WorkBuffer};
pub use crate::provider::lane::LaneState;
pub use crate::types::{QueuePairId, Slot};
pub use completion_queue::{CompletionQueue, CompletionQueueConfig, Notify, WorkCompletion};
pub use endpoint::{Endpoint, LaneQueuePair};
pub use lane::{Lane, LaneConfig, Local};
pub use permit::ReadPermit;
pub(crate) use queue_pair::WeakQueuePair;
pub use queue_pair::{QueuePair, QueuePairConfig};
pub use requests::{Batch, WorkOptions};
pub use shared::{BelowThreshold, SharedReceiveConfig, SharedReceiveQueue};
