//! Programs and drivers of other projects, in the guest machine.
//!
//! Each module runs in a separate process (`cargo xtask test --filter guest-interop`), because a process keeps the
//! devices that it has opened, and some tests replace them.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

mod async_rdma;
mod bindings;
mod doctor;
mod librdmacm;
mod machine;
mod netem;
mod perftest;
mod rping;
mod rsocket;
mod rsocket_verbs;
mod sideway;
mod siw;
mod verbs;
mod verbs_p2p;
