//! `cargo rdma-top`: shows why programs that use tokio-rdma wait.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdma_top::main()
}
