//! Runs external commands, as [`rdma_guest::exec`] does, and cargo.

use std::env;
use std::process::Command;

pub(crate) use rdma_guest::exec::*;

/// The cargo that started us, with these arguments. It builds in `target`, where the steps look for what it has built.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).env_remove("CARGO_TARGET_DIR");
    command
}
