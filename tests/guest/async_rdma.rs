//! Runs on: guest
//!
//! Queue pairs of async-rdma, connected with the private data of our Connect and Accept. The program is in
//! `interop/async-rdma`, which is not part of the workspace: `cargo xtask test` builds it.

use std::path::Path;

use common::guest::{addresses, is_guest, start};

/// The two ends run side by side, and each time in another order.
const TIMES: usize = 5;

/// The lines that it prints when a Send of async-rdma has gone either way, and the connection has ended in order.
const SAID: [&str; 4] = [
    "passive: received \"is this a queue pair of yours?\"",
    "active: received \"it is, and you have found it.\"",
    "passive: the other end is gone: Peer",
    "done",
];

#[test]
fn async_rdma_queue_pairs_send_both_ways() {
    if !is_guest() {
        return;
    }
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/target/debug/rendezvous");
    if !Path::new(program).is_file() {
        return eprintln!("skipped: interop/async-rdma is not built (cargo xtask test --filter async-rdma)");
    }
    for _ in 0..TIMES {
        for address in addresses("RXE") {
            let outcome = start(program, &address.to_string(), None).finish().expect_success();
            for line in SAID {
                assert!(outcome.stdout.lines().any(|said| said == line), "no {line:?}: {outcome}");
            }
        }
    }
}
