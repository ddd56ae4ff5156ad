//! `cargo xtask guest`: a virtual machine with RDMA devices, for machines that have none.
//!
//! The package `rdma-guest` is that machine. Here is what is particular to this repository: which tests run in it.

use std::process::ExitCode;
use std::sync::OnceLock;

use rdma_guest::command::{Places, Request};

use crate::Usage;

pub(crate) mod bench;
pub(crate) mod modules;
pub(crate) mod project;
mod suite;

pub(crate) use suite::{Program, build, image, interop, rxe, simulated, siw, words};

/// The command: its exit status is that of the command in the guest, or 1 if it could not be run or was ended.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let request = Request::parse(arguments).map_err(|rdma_guest::Usage(wrong)| Usage(wrong))?;
    Ok(exit_code(request.run(places(), crate::origin())))
}

/// The folders of the machine: its image is with the user, so that every clone of the repository finds it, and its runs are here.
pub(crate) fn places() -> &'static Places {
    static PLACES: OnceLock<Places> = OnceLock::new();
    PLACES.get_or_init(|| {
        let runs = crate::root().join("target/guest");
        let cache = rdma_guest::image::user_cache().unwrap_or_else(|| runs.join("rdma-guest"));
        Places { cache, runs }
    })
}

/// The exit status of the command, or 1 and the sentence.
fn exit_code(status: Result<u8, String>) -> ExitCode {
    status.map_or_else(
        |error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}
