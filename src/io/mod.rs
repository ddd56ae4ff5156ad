//! Byte streams over queue pairs.

mod acceptor;
mod config;
mod end;
mod listener;
mod split;
mod stream;

pub use config::StreamConfig;
pub use listener::RdmaListener;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::RdmaStream;
