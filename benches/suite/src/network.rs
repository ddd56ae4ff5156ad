//! A private network namespace, where nobody else's traffic is and the congestion control is one that does not pace.

use std::fs;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

/// The file in which the namespace's algorithm is set.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The one that is measured with: bbr, for example, paces, which costs a fifth on loopback.
const RENO: &str = "reno";

/// Moves this process, and all that it will start, into a namespace of its own; to be called while it has one thread.
/// A sentence for the report says what came of it.
pub(crate) fn isolate() -> String {
    let isolated = unshare(CloneFlags::CLONE_NEWNET).is_ok();
    if isolated {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).stdin(Stdio::null()).status();
        if !up.is_ok_and(|status| status.success()) {
            return "a private network namespace whose loopback could not be brought up: needs iproute2"
                .into();
        }
        // Inside a namespace of our own this is nobody else's business.
        let _ = fs::write(CONGESTION_CONTROL, RENO);
    }
    let algorithm = fs::read_to_string(CONGESTION_CONTROL).unwrap_or_default();
    let place = if isolated {
        "a private network namespace"
    } else {
        "the loopback of the host, since a private network namespace needs CAP_NET_ADMIN"
    };
    format!("{place}, congestion control {}", algorithm.trim())
}
