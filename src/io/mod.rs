//! Byte streams over queue pairs, and what RPC frameworks plug into.

mod acceptor;
mod config;
mod connector;
mod end;
mod listener;
mod naming;
mod race;
mod split;
mod stream;
#[cfg(feature = "tower")]
mod tower;

pub use config::StreamConfig;
pub use connector::RdmaConnector;
pub use listener::RdmaListener;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::RdmaStream;
