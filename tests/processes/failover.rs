//! The example `failover`: a stream that goes from one cable to the other and back.
//!
//! Runs on: soft

use common::programs::{example, stdout};
use common::skipped;

// Each end of the example checks that every block comes once and in order (SES-01, SES-07).
#[test]
fn stream_takes_the_other_cable_and_comes_back() {
    let output = example("failover", &["--seconds", "12"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("does not permit network namespaces") {
        return skipped("needs CAP_NET_ADMIN");
    }
    assert!(output.status.success(), "{stderr}");
    let printed = stdout(&output);
    let mut lines = printed.lines();
    for expected in [
        " s 10.77.1.1 - 10.77.1.2",
        "cable 0 is down",
        " s 10.77.2.1 - 10.77.2.2",
        "cable 0 is up",
        "cable 1 is down",
        " s 10.77.1.1 - 10.77.1.2",
        "each block once",
    ] {
        assert!(lines.any(|line| line.contains(expected)), "no {expected:?} in its place: {printed}");
    }
}
