//! Runs on: guest
//!
//! The unit tests of the bindings on the machine's devices, with the verbs libraries loaded and linked. The programs are those of
//! the step `guest-interop`, which builds them.

use std::path::Path;

use common::guest::{is_guest, start};

/// The features that choose how the libraries are called, which are the names of the programs.
const BACKENDS: [&str; 2] = ["verbs", "rdma-sys"];

// One after the other: they count what the kernel keeps for programs.
#[test]
fn unit_tests_pass_with_libraries_loaded_or_linked() {
    if !is_guest() {
        return;
    }
    for feature in BACKENDS {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bindings").join(feature);
        if !program.is_file() {
            return eprintln!(
                "skipped: needs {} (cargo xtask test --filter guest-interop)",
                program.display()
            );
        }
        let outcome = start(program, "sys:: --test-threads 1 --show-output", None).finish().expect_success();
        let ran = outcome.stdout.contains("test sys::tests::data::chains_of_requests_on_each_device ... ok");
        assert!(ran && !outcome.stdout.contains("skipped: needs the devices"), "{outcome}");
    }
}
