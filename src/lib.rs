//! Async RDMA connection management for tokio.
#![deny(unsafe_code)]

pub mod error;
pub(crate) mod proto;
pub mod status;
pub mod types;

#[cfg(feature = "soft")]
pub(crate) mod proto;
#[cfg(feature = "soft")]
pub(crate) mod wire;
