//! Programs and drivers that are not ours, in the guest machine.
//!
//! Each module is run by a process of its own (`cargo xtask test --filter guest-interop`): a process keeps the devices that
//! it has had open, and some tests replace them.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

mod async_rdma;
mod librdmacm;
mod machine;
mod netem;
mod perftest;
mod rping;
mod rsocket;
mod rsocket_verbs;
mod siw;
mod verbs;
mod verbs_p2p;
