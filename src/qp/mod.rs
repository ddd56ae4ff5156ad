//! Queue pairs, completion queues and shared receive queues.

mod completion_queue;
mod queue_pair;
mod requests;
mod shared;

pub use crate::inflight::{Completion, NotifyKind, Op, WorkBuffer};
pub use completion_queue::{CompletionQueue, CompletionQueueConfig, Notify, WorkCompletion};
pub(crate) use queue_pair::WeakQueuePair;
pub use queue_pair::{QueuePair, QueuePairConfig};
pub use requests::{Batch, WorkOptions};
pub use shared::{BelowThreshold, SharedReceiveConfig, SharedReceiveQueue};
