//! A virtual machine with RDMA devices, for machines that have none: what the command `cargo rdma-guest` is made of.
//!
//! The machine is Debian's own kernel under software emulation, with the host's root file system underneath a layer in memory: every
//! program of the host is there at its own path, and nothing that the guest does to files stays. It has the devices `rxe0` (`rdma_rxe`, RoCE) and
//! `siw0` (`siw`, iWARP).
//!
//! The [README](https://docs.rs/crate/rdma-guest/latest) describes the command. This library is for tools that need more than the command offers,
//! such as the developer commands of tokio-rdma. It may change in any release.

pub mod command;
pub mod environment;
pub mod exec;
pub mod failure;
pub mod image;
pub mod libtest;
pub mod machine;
pub mod messages;
pub mod packages;
pub mod permits;
mod progress;
pub mod suite;
pub mod tally;
pub mod test;

/// The command line was not understood; the sentence says what was wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub struct Usage(pub String);
