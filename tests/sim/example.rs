//! The example `sim`: a user's test of a service of their own.

use std::process::Output;

use common::programs::example_command;

const VARIABLE: &str = "TOKIO_RDMA_SIM_SEED";

/// Runs the example, with this seed or with all of its seeds.
fn run(seed: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = example_command("sim");
    command.args(arguments).env_remove(VARIABLE).env("RUST_BACKTRACE", "0");
    if let Some(seed) = seed {
        command.env(VARIABLE, seed);
    }
    command.output().expect("the example")
}

/// The line that says what was lost, and the seed.
fn failure(output: &Output) -> (String, String) {
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    let lost = text.lines().find(|line| line.contains("is lost after")).expect("what was lost");
    let seed = text.split(&format!("{VARIABLE}=")).nth(1).and_then(|rest| rest.split(' ').next());
    (lost.to_owned(), seed.expect("how to repeat it").to_owned())
}

// SIM-07: the planted bug is found, its seed alone finds it again with the same words, and the mended service passes.
#[test]
fn a_seed_finds_the_bug_and_repeats_it() {
    let (lost, seed) = failure(&run(None, &[]));
    assert_eq!(failure(&run(Some(&seed), &[])), (lost, seed.clone()));
    for mended in [run(Some(&seed), &["--mended"]), run(None, &["--mended", "--seeds", "60"])] {
        assert!(mended.status.success(), "{}", String::from_utf8_lossy(&mended.stderr));
    }
}
