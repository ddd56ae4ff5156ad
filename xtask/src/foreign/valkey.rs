//! `cargo xtask foreign valkey`: the example `valkey` with Valkey, built from its source with RDMA, on `rxe0` of the guest machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use super::{Script, debian};
use crate::exec::{self, minutes};
use crate::packages;
use crate::tally::Tally;

/// The checks.
pub(super) const SCRIPT: &str = include_str!("valkey.sh");

/// Our end.
const EXAMPLE: &str = "target/debug/examples/valkey";

/// What Valkey is built with.
const PACKAGES: &[&str] = &["gcc", "libibverbs-dev", "librdmacm-dev", "make"];

/// Builds both, and runs the checks.
pub(super) fn run() -> Tally {
    match build() {
        Ok(valkey) => {
            Script { text: SCRIPT, paths: &[&valkey, Path::new(EXAMPLE)], words: &[], limit: minutes(20) }
                .run()
        }
        Err(sentence) => Tally::check(Err(sentence)),
    }
}

/// Builds Valkey and the example; returns the folder of Valkey.
fn build() -> Result<PathBuf, String> {
    packages::lacking(PACKAGES).map_or(Ok(()), Err)?;
    let valkey = debian::source("valkey")?;
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let make = |folder: &str, arguments: &[&str]| {
        let mut make = Command::new("make");
        make.arg(format!("-j{jobs}")).arg("-C").arg(valkey.join(folder)).args(arguments);
        exec::quietly(make, minutes(30))
    };
    println!("Valkey is built");
    // Optimised a little, which takes a fifth of the time.
    let settings = ["BUILD_RDMA=yes", "MALLOC=libc", "OPTIMIZATION=-O1"];
    let programs = ["valkey-server", "valkey-cli", "valkey-benchmark"];
    make("src", &[&settings[..], &programs[..]].concat())?;
    make("tests/rdma", &[])?;
    exec::quietly(exec::cargo(&["build", "--features", "verbs", "--example", "valkey"]), minutes(30))?;
    Ok(valkey)
}
