//! Queue pairs, completion queues and shared receive queues.

mod batch;
mod completion_queue;
mod config;
mod options;
mod pair;
mod requests;
mod shared;
mod stream;

pub use crate::inflight::{Completion, NotifyKind, Op, WorkBuffer};
pub use batch::Batch;
pub use completion_queue::{CompletionQueue, CompletionQueueConfig, Notify, WorkCompletion};
pub use config::QueuePairConfig;
pub use options::WorkOptions;
pub use pair::QueuePair;
pub(crate) use pair::WeakQueuePair;
pub use shared::{BelowThreshold, SharedReceiveConfig, SharedReceiveQueue};
