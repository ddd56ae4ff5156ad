//! The lock of what is modelled with loom, which has one of its own: `cargo xtask test --filter model`.

#[cfg(not(all(test, tokio_rdma_model)))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(all(test, tokio_rdma_model))]
pub(crate) use loom::sync::{Mutex, MutexGuard};
