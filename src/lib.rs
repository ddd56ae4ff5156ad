//! Async RDMA connection management for tokio.
#![deny(unsafe_code)]

pub mod error;
pub mod status;
pub mod types;

#[cfg(feature = "soft")]
pub(crate) mod wire;

pub(crate) mod proto;

#[cfg(feature = "soft")]
pub(crate) mod flight;
#[cfg(feature = "soft")]
pub(crate) mod memory;

pub(crate) mod provider;
