//! Byte streams and messages over queue pairs, and their integrations with axum, tonic, hyper, tower, tarpc and rustls.

#[cfg(feature = "axum")]
mod axum;
mod bind;
mod config;
mod connector;
#[cfg(feature = "hyper")]
mod hyper;
mod inner;
mod later;
mod listener;
mod messages;
mod options;
mod places;
mod race;
mod resources;
mod shared;
mod split;
mod stream;
#[cfg(feature = "tarpc")]
pub mod tarpc;
#[cfg(feature = "rustls")]
mod tls;
#[cfg(feature = "tonic")]
mod tonic;
#[cfg(feature = "tower")]
mod tower;
mod wakers;

pub use config::StreamConfig;
pub use connector::RdmaConnector;
#[cfg(feature = "hyper")]
pub use hyper::{HttpConnector, HttpInfo};
pub use listener::{MessageListener, RdmaListener};
pub use messages::{Messages, MessagesConfig};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::RdmaStream;
#[cfg(feature = "rustls")]
pub use tls::TlsListener;
#[cfg(feature = "tonic")]
pub use tonic::TonicStream;
