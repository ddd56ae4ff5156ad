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
//! None is needed for tonic and axum: the bounds of [`serve`] and [`Channel`] are those of `http`, `http-body` and
//! `tower-service`.
//!
//! - `inspect`: the snapshots of `tokio_rdma::inspect`, and so `cargo rdma-top`, have a report of each connection.
//! - `metrics`: [metrics](mod@metrics) for the facade of that name.
//! - `rustls`: [`serve`] and [`divide`] take the streams of `tokio_rdma::io::TlsListener`, and other TLS streams of tokio-rustls. A
//!   [`ConnectionInfo`] has the certificates of the client.
//! - `tonic`: `local_addr` and `remote_addr` of `tonic::Request` return the addresses of the connection, and with the feature
//!   `rustls` `peer_certs` the certificates of the client. A `tonic::Status` that a service or a body fails with is the
//!   status of a call of gRPC.
//!
//! [`Error`]: enum@Error

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod channel;
mod config;
mod connected;
mod divide;
mod error;
mod grpc;
mod inspect;
mod link;
mod machine;
pub mod metrics;
mod observation;
mod server;
mod service;
mod wire;

pub use body::Incoming;
pub use channel::{Channel, ResponseFuture};
pub use config::Config;
pub use connected::{Connected, ConnectionInfo};
pub use divide::{Divided, PeekFirst, divide};
pub use error::{BoxError, Error};
pub use server::{Server, serve};
pub use service::HttpService;
pub use wire::Code;

/// The frames of a connection, complete.
#[doc = include_str!("../FRAMES.md")]
pub mod frames {}
