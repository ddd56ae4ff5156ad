//! Byte streams over queue pairs, and their integrations with axum, tonic, hyper, tower and rustls.
//!
//! # tarpc
//!
//! tarpc needs nothing of this crate: its `serde_transport` takes any stream.
//!
//! Each request and each response is one frame. The limit of a frame is that of the codec of its receiver, 8 MiB by
//! default; a longer one ends the connection and all its calls. A request that is longer than the limit of its sender
//! fails alone. As over TCP, tarpc's server keeps the calls of a client that ends without a cancel until their deadlines.
//!
#![cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/tarpc.md"))]

mod addresses;
#[cfg(feature = "axum")]
mod axum;
mod close;
mod config;
mod connector;
mod end;
mod engine;
mod listener;
mod race;
mod resources;
mod session;
mod split;
mod stream;
#[cfg(feature = "rustls")]
mod tls;
#[cfg(feature = "tonic")]
mod tonic;
#[cfg(feature = "tower")]
mod tower;

pub use config::{SessionConfig, StreamConfig};
pub use connector::RdmaConnector;
pub use engine::OneSided;
pub use listener::RdmaListener;
pub use session::{PathChanges, SessionPath};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::{ConnectionInfo, RdmaStream};
#[cfg(feature = "rustls")]
pub use tls::TlsListener;
#[cfg(feature = "tonic")]
pub use tonic::TonicStream;
#[cfg(feature = "hyper")]
pub use tower::HttpConnector;
