#![doc = include_str!("../README.md")]
//!
//! # Limits
//! What a peer can make an end keep is bounded by the [`Config`]: the windows for bodies, the number of calls, and the
//! longest head for each. A server reads no more while a peer does not take its answers.
//!
//! # Errors
//! A call of gRPC (`content-type: application/grpc`) that fails has an answer with a status, as if a server had sent it; any
//! other has an [`Error`]. No call is repeated.
//!
//! # Features
//! None: the bounds of [`serve`] and [`Channel`] are those of `http`, `http-body` and `tower-service`, which tonic and axum
//! have, too.
//!
//! [`Error`]: enum@Error

mod body;
mod channel;
mod config;
mod divide;
mod error;
mod grpc;
mod link;
mod machine;
mod server;
mod service;
mod wire;

pub use body::Incoming;
pub use channel::{Channel, ResponseFuture};
pub use config::Config;
pub use divide::{Divided, divide};
pub use error::{BoxError, Error};
pub use server::{Server, serve};
pub use service::HttpService;
pub use wire::Code;

/// The frames of a connection, complete.
#[doc = include_str!("../FRAMES.md")]
pub mod frames {}
