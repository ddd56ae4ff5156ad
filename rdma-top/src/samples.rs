//! Snapshots for tests.

use std::path::PathBuf;

use serde_json::json;

use crate::source::{Answer, Failure, Reading};

/// Returns a reading of this snapshot, of a process with this number.
pub(crate) fn reading(process: u32, snapshot: &serde_json::Value) -> Reading {
    let json = snapshot.to_string().into_bytes();
    let snapshot = serde_json::from_slice(&json).expect("a snapshot");
    Reading { path: PathBuf::from(format!("/run/{process}.sock")), outcome: Ok(Answer { snapshot, json }) }
}

/// Returns a snapshot without objects.
fn empty(process: u32, program: &str) -> serde_json::Value {
    json!({
        "version": 1, "process": process, "program": program,
        "adapters": [], "listeners": [], "connections": [], "completion_queues": [],
        "shared_receive_queues": [], "lanes": [], "streams": [], "sessions": [], "channels": [],
    })
}

/// Returns a process with a stream whose write waits, and one that does not answer.
pub(crate) fn readings() -> Vec<Reading> {
    let mut snapshot = empty(17, "kv");
    snapshot["adapters"] = json!([{
        "id": 1, "name": "lo", "provider": "soft", "addresses": ["127.0.0.1"], "is_removed": false,
        "age": 60.0, "waits_for": null,
    }]);
    snapshot["listeners"] = json!([{
        "adapter": 1, "state": "listening", "local": "127.0.0.1:7000", "backlog": 128, "waiting": 0,
        "calls": 1, "since_taken": 30.0, "waits_for": "no peer asks",
    }]);
    let oldest = json!([{ "kind": "Send", "bytes": 65536, "age": 12.0 }]);
    let queue = json!({ "depth": 64, "outstanding": 1, "uncollected": 0, "oldest": oldest });
    let tcp = json!({
        "state": "ESTAB", "round_trip": 0.0005, "round_trip_variance": 0.0001, "unacknowledged": 2500,
        "unsent": 2500, "peer_window": 0, "retransmits": 0, "unanswered_probes": 2, "since_sent": 12.0,
        "since_received": 11.5, "since_acknowledged": 0.4,
    });
    snapshot["connections"] = json!([
        {
            "id": 4, "adapter": 1, "role": "passive", "state": "connected", "since": 30.0,
            "local": "127.0.0.1:7000", "peer": "127.0.0.1:41000",
            "last_event": { "name": "Established", "age": 30.0 }, "ended": null,
            "queue_pair": {
                "number": null, "sends": queue, "receives": queue, "shared_receives": false,
                "send_state": "socket_full", "awaits_receive": false, "reads_unanswered": 0, "reads_limit": 16,
                "reads_to_answer": 0, "bytes_sent": 2_100_000, "bytes_received": 400,
            },
            "tcp": tcp,
            "waits_for": "socket full: the peer has read nothing for 12.0 s, and its window is closed",
        },
        {
            "id": 5, "adapter": 1, "role": "passive", "state": "accepting", "since": 5.0,
            "local": "127.0.0.1:7000", "peer": "127.0.0.1:41002", "last_event": null, "ended": null,
            "queue_pair": null, "tcp": null,
            "waits_for": "accept pending: the peer has not completed for 5.0 s",
        },
    ]);
    snapshot["streams"] = json!([{
        "connection": 4, "age": 30.0, "bytes_sent": 2_097_152, "bytes_received": 12, "credits": 100,
        "room": 0, "peer_credits": 100, "peer_room": 65536, "unread": 0, "unread_by_peer": 2_097_152,
        "outstanding": 1, "read_waits": null, "write_waits": 12.0, "peer_closed": false, "ended": null,
        "session": null,
        "waits_for": "no credit: the program of the peer has not read 2,097,152 bytes",
    }]);
    snapshot["completion_queues"] = json!([{
        "adapter": 1, "depth": 128, "waiting": 3, "oldest": 2.0, "tasks": 0, "is_closed": false,
        "waits_for": "3 completions not polled for 2.0 s: no task waits for a notification",
    }]);
    let silent = Reading { path: PathBuf::from("/run/18.sock"), outcome: Err(Failure::Silent) };
    vec![reading(17, &snapshot), silent]
}

/// Returns processes whose texts have sequences that a terminal obeys.
pub(crate) fn hostile() -> Vec<Reading> {
    const TEXT: &str = "\u{1b}]0;x\u{7}\u{1b}[2J\r\n\u{9b}31m\u{202e}";
    let mut snapshot = empty(19, TEXT);
    snapshot["adapters"] = json!([{
        "id": 1, "name": TEXT, "provider": TEXT, "addresses": [], "is_removed": false, "age": 0.0,
        "waits_for": TEXT,
    }]);
    snapshot["sessions"] = json!([{
        "id": TEXT, "role": TEXT, "connection": 1, "lost": null, "gives_up_after": 1e300, "resumed": 0,
        "is_over": false, "waits_for": TEXT,
    }]);
    snapshot["channels"] = json!([{
        "role": TEXT, "connection": null, "peer": TEXT, "calls": 1, "oldest": 1.0, "places": 99,
        "blocked": 0, "unsent": 0, "waits_for": TEXT,
    }]);
    let unreadable =
        Reading { path: PathBuf::from(format!("/{TEXT}")), outcome: Err(Failure::Wrong(TEXT.to_owned())) };
    vec![reading(19, &snapshot), unreadable]
}
