//! The example `srq_server`: many clients on one shared receive queue.
//!
//! Runs on: soft, rxe, siw, fake, fake-iwarp

use common::device::{Device, is_emulated, v4};
use common::programs::{example, stdout};

// SRQ-01, CQ-08: a hundred clients, whose first messages come while they are accepted, get their own answers, from a server of
// futures and from one that polls.
#[test]
fn a_hundred_clients_get_their_answers() {
    let messages = if is_emulated() { 2 } else { 10 };
    let arguments = ["--address", &v4().to_string(), "--messages", &messages.to_string()];
    let output = example("srq_server", &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = 100 * messages;
    // Elsewhere a message waits for a receive.
    let receives = if matches!(Device::under_test(), Device::Siw | Device::FakeIwarp) { 100 } else { 64 };
    let line = |server| format!("{server}: 100 clients, {answers} answers, {receives} receives\n");
    assert_eq!(stdout(&output), ["futures", "a polled queue"].map(line).concat());
}
