//! Async RDMA connection management for tokio.
#![deny(unsafe_code)]

pub mod error;
pub mod status;
pub mod types;

pub(crate) mod provider;
