//! The example `rping` and the original at the two ends of a connection.

use std::net::IpAddr;

use super::guest::{Stage, port, start};
use super::interop::Outcome;

const SIZES: [u32; 2] = [4096, 60_000];
pub const MTUS: [u32; 2] = [1500, 9000];
const COUNT: usize = 3;

/// The settings that vary on a stage.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub mtu: u32,
    /// 0 for IPv4, 1 for IPv6.
    version: usize,
    size: u32,
    pub crc: bool,
}

/// Every combination of any three of the four.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for number in 0..16_usize {
        let [mtu, version, size, crc] = [0, 1, 2, 3].map(|bit| number >> bit & 1);
        if number.count_ones() % 2 == 0 {
            cases.push(Case { mtu: MTUS[mtu], version, size: SIZES[size], crc: crc == 1 });
        }
    }
    cases
}

impl Case {
    /// The flags of both sides.
    fn flags(self, stage: &Stage, server: IpAddr, port: u16) -> (String, String) {
        let common = format!("-a {server} -p {port} -v -S {}", self.size);
        let crc = if self.crc && stage.provider == "soft" { "--crc" } else { "" };
        let ours = format!("{common} --provider {} --timeout 60 {crc}", stage.provider);
        (common, ours)
    }
}

pub fn original_client(stage: &Stage, case: Case) {
    let port = port();
    let (theirs, ours) = case.flags(stage, stage.ours[case.version], port);
    let server = stage.start("rping", &format!("-s {ours}"), Some(port));
    let client = start("rping", &format!("-c {theirs} -V -C {COUNT}"), None).finish();
    let name = format!("original client, {}, {case:?}", stage.name);
    let [server, client] = check(&name, [server.finish(), client], case.size);
    assert!(server.status.success() && original_ended_well(&client), "{name}\n{client}\n{server}");
}

pub fn original_server(stage: &Stage, case: Case) {
    let port = port();
    let (theirs, ours) = case.flags(stage, stage.theirs[case.version], port);
    let server = start("rping", &format!("-s {theirs}"), Some(port));
    let client = stage.start("rping", &format!("-c {ours} -V -C {COUNT}"), None).finish();
    let name = format!("original server, {}, {case:?}", stage.name);
    let [server, client] = check(&name, [server.finish(), client], case.size);
    assert!(client.status.success() && original_ended_well(&server), "{name}\n{client}\n{server}");
}

pub fn both_ours(stage: &Stage, case: Case) {
    let port = port();
    let (_, ours) = case.flags(stage, stage.ours[case.version], port);
    let server = stage.start("rping", &format!("-s {ours}"), Some(port));
    let client = stage.start("rping", &format!("-c {ours} -V -C {COUNT}"), None).finish();
    let name = format!("both ours, {}, {case:?}", stage.name);
    let [server, client] = check(&name, [server.finish(), client], case.size);
    assert!(client.status.success() && server.status.success(), "{name}\n{client}\n{server}");
}

/// The original has ended well, in either role: it closes its event channel under its own event thread, at its very end, and
/// that thread may say so and exit first (newer versions join it).
fn original_ended_well(outcome: &Outcome) -> bool {
    outcome.status.success() || outcome.stderr.ends_with("rdma_get_cm_event: Bad file descriptor\n")
}

/// Both have shown as many texts as there were, of the right length.
fn check(case: &str, [server, client]: [Outcome; 2], size: u32) -> [Outcome; 2] {
    for (outcome, prefix) in [(&client, "ping data: "), (&server, "server ping data: ")] {
        let lines: Vec<_> = outcome.stdout.lines().collect();
        assert_eq!(lines.len(), COUNT, "{case}\n{outcome}");
        for (number, line) in lines.iter().enumerate() {
            assert!(line.starts_with(&format!("{prefix}rdma-ping-{number}: ")), "{case}\n{outcome}");
            assert_eq!(line.len(), prefix.len() + size as usize - 1, "{case}\n{outcome}");
        }
    }
    [server, client]
}
