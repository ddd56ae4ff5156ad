//! Queue pairs: where work requests are posted.

mod config;
mod pair;

pub use crate::flight::{Completion, Op, WorkBuffer};
pub use config::QueuePairConfig;
pub use pair::QueuePair;
