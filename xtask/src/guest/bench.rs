//! `cargo xtask guest-bench`: what the verbs provider costs, measured in one start of the guest machine.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rdma_guest::command::Request;
use rdma_guest::machine::Siw;

use super::exit_code;
use crate::{Usage, exec};

/// The program that measures; see `benches/verbs/README.md`.
const PROGRAM: &str = "verbs-bench";
/// The program that it is compared with, and what that is made of.
const C: (&str, &str) = ("target/whole/examples/verbs-pingpong", "benches/verbs/pingpong.c");

/// How long a build may take.
const BUILD_LIMIT: Duration = exec::minutes(30);
/// How long the comparison may take.
const LIMIT: Duration = exec::minutes(30);

/// The command: the arguments are those of the program's `compare`.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let status = build().and_then(|()| {
        let (siw, named, command) = (Siw::Stock, Vec::new(), command(arguments));
        Request { siw, limit: LIMIT, named, command }.run(super::places(), crate::origin())
    });
    Ok(exit_code(status))
}

/// Builds both programs on the host, whose files the guest sees.
///
/// # Errors
/// A sentence that says which of them could not be built.
fn build() -> Result<(), String> {
    let quietly = |command| exec::quietly(command, BUILD_LIMIT);
    quietly(exec::cargo(&["build", "--profile", "whole", "--features", "verbs", "--example", PROGRAM]))?;
    let (program, source) = C;
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-o", program, source]);
    cc.args(["-lrdmacm", "-libverbs"]);
    quietly(cc)
}

/// The command that the guest runs.
fn command(arguments: &[String]) -> Vec<String> {
    let root = crate::root();
    let path = |place: &Path| root.join(place).to_string_lossy().into_owned();
    let program = path(&Path::new("target/whole/examples").join(PROGRAM));
    // The address of the device is known only there.
    let script = r#"program=$1; c=$2; shift 2; exec "$program" compare --address "$TOKIO_RDMA_RXE_ADDR" --c "$c" "$@""#;
    let words = ["sh", "-c", script, "guest-bench"].map(str::to_owned);
    words.into_iter().chain([program, path(Path::new(C.0))]).chain(arguments.iter().cloned()).collect()
}
