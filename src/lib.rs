//! Async RDMA connection management for tokio.
#![deny(unsafe_code)]

pub mod error;
pub(crate) mod proto;
pub mod status;
pub mod types;
