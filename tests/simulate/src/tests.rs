//! The workload is repeated by its seeds, and reaches what it is for.

use crate::{run, run_all};

/// The seeds that have found a defect. The same seed means something else after a change of the workload or of the stack.
const REGRESSIONS: [u64; 2] = [
    // A request or a reply that came while its adapter was removed had no peer and no private data.
    5478,
    // The network told a peer that was gone of room, and delivered the reset that this brought.
    11_613,
];

// SIM-01: the same seeds have the same trace, whatever ran before and on how many threads, and others have another.
#[test]
fn seeds_repeat_their_runs() {
    let once = run_all(0, 60, 1);
    let again = run_all(0, 60, 3);
    assert_eq!(
        (once.trace, once.operations, once.virtual_time),
        (again.trace, again.operations, again.virtual_time)
    );
    assert_ne!(once.trace, run_all(60, 60, 2).trace);
    let alone = run(7).expect("it holds");
    assert_eq!(run(7).expect("it holds"), alone);
    assert_ne!(run(8).expect("it holds").trace, alone.trace);
}

// SIM-05: `cargo xtask test` runs 20,000 seeds in its step `simulate`; these are the first of them.
#[test]
fn whatever_happens_the_invariants_hold() {
    let seeds = 0..300;
    let mut operations = 0;
    for seed in seeds.chain(REGRESSIONS) {
        match run(seed) {
            Ok(run) => operations += run.operations,
            Err(reason) => panic!("seed {seed}: {reason}"),
        }
    }
    assert!(operations > 10_000, "{operations} operations");
}
